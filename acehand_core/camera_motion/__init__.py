"""How a camera turns, from its pictures and, where there is one, its gyroscope.

``recorded_rotations`` returns the ``CameraMotion`` of a recording, segment by segment, beside the
hands that are seen in it; ``from_gyroscope`` joins it with what a gyroscope says.

``estimate_rotations`` takes frames, the camera and what not to look at (``hand_mask``) and
returns a ``CameraMotion``. The turn from frame to frame comes from whole small pictures
(``alignment``), for a camera that does nothing but turn; points are followed from keyframes
(``odometry``, ``tracks``), and poses of the last frames and distances of their points are
adjusted together (``bundle``, ``pose``), so that near things that shift are not taken for a turn.
Views that come back take the drift away (``loops``, ``averaging``).

``recorded_path`` and ``estimate_path`` return full poses (``poses``, ``recall``, ``adjustment``),
or why they are not to be trusted. ``metric_scale`` and ``scale_of_two_points`` find their unit of
length (``scale``), ``gravity_aligned`` which way is up (``upright``).
"""

from acehand_core.camera_motion.estimate import estimate_rotations
from acehand_core.camera_motion.gravity import gravity_in_camera
from acehand_core.camera_motion.gyroscope import from_gyroscope
from acehand_core.camera_motion.masks import hand_mask
from acehand_core.camera_motion.poses import CameraPath, estimate_path
from acehand_core.camera_motion.recorded import recorded_path, recorded_rotations
from acehand_core.camera_motion.scale import Scale, metric_scale, scale_of_two_points, scaled
from acehand_core.camera_motion.upright import gravity_aligned

__all__ = [
    "CameraPath", "Scale", "estimate_path", "estimate_rotations", "from_gyroscope",
    "gravity_aligned", "gravity_in_camera", "hand_mask", "metric_scale", "recorded_path",
    "recorded_rotations", "scale_of_two_points", "scaled",
]  # fmt: skip
