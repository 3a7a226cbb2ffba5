"""Files that others define, read as they are."""
