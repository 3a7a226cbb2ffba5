"""How a camera turns, from its pictures.

``recorded_rotations`` returns the ``CameraMotion`` of a recording, segment by segment, beside the
hands that are seen in it.

``estimate_rotations`` takes frames, the camera and what not to look at (``hand_mask``) and
returns a ``CameraMotion``. The turn from frame to frame comes from whole small pictures
(``alignment``), for a camera that does nothing but turn.
"""

from acehand_core.camera_motion.estimate import estimate_rotations
from acehand_core.camera_motion.masks import hand_mask
from acehand_core.camera_motion.recorded import recorded_rotations

__all__ = ["estimate_rotations", "hand_mask", "recorded_rotations"]
