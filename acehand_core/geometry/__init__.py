"""Rotations, rigid frames and camera models: the only place with their maths."""
