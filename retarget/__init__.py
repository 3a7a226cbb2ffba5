"""From human hands to robot hands: robots, targets, solvers, simulation, pictures."""
