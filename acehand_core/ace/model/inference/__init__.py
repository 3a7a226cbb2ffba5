"""The model over whole recordings, in memory that does not grow with their length."""
