"""Rotations, rigid frames and camera models."""
