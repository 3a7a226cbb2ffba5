"""What a video tells of its camera: how it turns, and its focal length.

``recorded.recorded_rotations`` returns the ``CameraMotion`` of a recording, segment by segment,
next to the hands that are seen in it. ``turns.estimate_rotations`` takes frames, the camera and
what not to look at (``masks.hand_mask``): small versions of whole frames are aligned one to the
next (``alignment``), as for a camera that only turns.

``focal_length`` estimates it from a moving camera (``structure``) and from straight lines.
"""

#: Another one where an estimate from the same pictures changes; kept ones are told apart by it.
FOCAL_LENGTH_VERSION = 1
