"""Camera rotations (``turns``) and focal length, estimated from pictures."""

#: Part of cache keys; raise it when an estimate from the same pictures changes.
FOCAL_LENGTH_VERSION = 1
