"""Everything that is drawn: overlays, contact sheets, strips, the robot's views."""
