"""Anybody's keypoints as a HandMotion: orders, units, missing joints, and likely mistakes."""
