"""Recordings of human hands in, robot demonstration data out."""

__version__ = "0.1.0"
