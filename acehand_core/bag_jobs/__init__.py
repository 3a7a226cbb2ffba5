"""Bags in and bags out: what ``acehand bag`` and the ROS nodes call.

Each job takes its options, a progress callback and an event that stops it.
"""
