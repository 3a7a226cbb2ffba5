"""How a camera turns, from its pictures.

``recorded_rotations`` returns the ``CameraMotion`` of a recording, segment by segment, beside the
hands that are seen in it.

``estimate_rotations`` takes frames, the camera and what not to look at (``hand_mask``) and
returns a ``CameraMotion``. Small versions of whole frames are aligned one to the next
(``alignment``), as for a camera that only turns.
"""

from acehand_core.camera_motion.estimate import estimate_rotations
from acehand_core.camera_motion.masks import hand_mask
from acehand_core.camera_motion.recorded import recorded_rotations

__all__ = ["estimate_rotations", "hand_mask", "recorded_rotations"]
