"""LeRobot datasets: format, statistics, transactions, check, repair."""
