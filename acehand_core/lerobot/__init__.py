"""Outputs: LeRobot datasets, tables, pictures, reports. Atomic, with provenance."""
