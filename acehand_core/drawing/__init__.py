"""Overlays, contact sheets, strips, and views of the robot."""
