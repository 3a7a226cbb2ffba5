"""Command lines: parsing only. Imported by nobody."""
