"""Trains the network of ``trackers.mediapipe.prior`` on projected motions; no pictures."""
