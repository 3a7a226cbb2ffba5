"""From what a human hand does to the commands and places of a robot hand."""
