"""Closed-form and small least-squares solves: placing hands, smoothing over time."""
