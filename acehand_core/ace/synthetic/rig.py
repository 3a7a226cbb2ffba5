"""Rigs and depth cameras of rendered clips: where they sit, and what a depth camera reads."""

from __future__ import annotations

import math
from typing import Literal

import cv2
import numpy as np
from jaxtyping import Float, UInt16

from acehand_core.ace.labelled.clips.schema import Mounted
from acehand_core.geometry import frames, rotations
from acehand_core.geometry.cameras import Camera

Rig = Literal["none", "stereo", "aria"]
DepthKind = Literal["none", "aligned", "unaligned"]

#: Standard deviation of a depth reading at z metres, over z squared.
_SIGMA_PER_M = 0.004
#: Of ``stereo``; between an unaligned depth camera and the colour camera; inside a depth camera.
_STEREO_M, _OFFSET_M, _BASELINE_M = 0.063, 0.015, 0.05
#: Fields of view across the longer side: SLAM cameras, of which a pinhole shows a part; a D435.
_SLAM_DEGREES, _SLAM_PINHOLE_DEGREES, _DEPTH_DEGREES = 150.0, 110.0, 87.0
#: Steps of inverse depth (1/m): 1/32 px of disparity where focal length x baseline is 32 px m.
_STEP_PER_M = 1 / 1024
#: Readable distances; edge of the matching window and correlation of the noise, in pixels.
_RANGE_M, _WINDOW_PX, _CORRELATION_PX = (0.15, 8.0), 5, 1.5
#: Surfaces seen at more than 78 degrees from their normal match nothing.
_GRAZING = math.cos(math.radians(78))


def rig_of(rig: Rig, camera: Camera) -> dict[str, Mounted]:
    """Return the cameras of a rig next to the clip's ``camera``, with pictures of the same size.

    ``stereo``: "right", the same camera 63 mm to the right with a parallel axis.

    ``aria``: the clip's camera is the colour camera of Project Aria glasses (first generation), and
    "slam-left" and "slam-right" sit as in the calibration of a HOT3D recording, rounded: 13 mm to
    the left and 126 mm to the right, turned outwards by 38 and 37 degrees. "down" is not on Aria:
    between the eyes, 30 mm lower, looking down by 35 degrees. The three are grey, with short
    exposures (no motion blur): equidistant fisheyes of 150 degrees next to a fisheye, pinholes of
    110 degrees next to a pinhole.
    """
    if rig == "none":
        return {}
    if rig == "stereo":
        return {"right": Mounted(camera, _pose(_STEREO_M))}

    width, height = camera.width, camera.height
    centre = ((width - 1) / 2, (height - 1) / 2)
    focal = max(width, height) / math.radians(_SLAM_DEGREES)
    slam = Camera("kannala_brandt", width, height, focal, focal, *centre, (0.0,) * 4)
    if camera.model == "pinhole":
        slam = Camera.nominal(width, height, _SLAM_PINHOLE_DEGREES)
    return {
        "slam-left": Mounted(slam, _pose(-0.013, 0.005, -0.004, right=-38.0), True),
        "slam-right": Mounted(slam, _pose(0.126, 0.004, -0.003, right=37.0), True),
        "down": Mounted(slam, _pose(0.057, 0.03, 0.0, down=35.0), True),
    }


def depth_camera(kind: DepthKind, camera: Camera) -> Mounted | None:
    """Return the camera of depth pictures of the colour pictures' size.

    ``aligned``: the colour camera itself, as if the driver had registered depth to it.
    ``unaligned``: a pinhole of 87 degrees, 15 mm to the right of the colour camera.
    """
    if kind == "none":
        return None
    if kind == "aligned":
        return Mounted(camera, _pose(0.0), sigma_per_m=_SIGMA_PER_M)
    lens = Camera.nominal(camera.width, camera.height, _DEPTH_DEGREES)
    return Mounted(lens, _pose(_OFFSET_M), sigma_per_m=_SIGMA_PER_M)


def _pose(
    x: float, y: float = 0.0, z: float = 0.0, right: float = 0.0, down: float = 0.0
) -> tuple[tuple[float, ...], ...]:
    """Return a pose in metres, turned ``right`` or ``down`` by degrees."""
    pose = frames.rigid(rotations.exp(np.radians([-down, right, 0.0])), np.array([x, y, z]))
    return tuple(map(tuple, pose.tolist()))


def read_depth(
    metres: Float[np.ndarray, "H W"],
    camera: Camera,
    rng: np.random.Generator,
    sigma_per_m: float = _SIGMA_PER_M,
) -> UInt16[np.ndarray, "H W"]:
    """Return what an active stereo camera like a RealSense D400 reads: mm, 0 without a reading.

    ``metres`` is the true z in ``camera``, 0 where there is none (rendered, that of a sample up to
    0.4 pixels from the pixel's centre). The model, in this order:

    1. A window of 5 x 5 pixels is matched: inverse depths are averaged, which mixes foreground and
       background next to edges.
    2. Noise of disparity is the same everywhere, so z has a standard deviation of ``sigma_per_m``
       z squared. Neighbours share their window: noise is correlated over 1.5 pixels (the sigma of a
       Gaussian), not over time.
    3. Inverse depth is rounded to 1/1024 per metre (1/32 px of disparity), z to 1 mm.
    4. Holes: what the second imager, 50 mm to the right, does not see (for a fisheye roughly);
       surfaces at more than 78 degrees from their normal, so also a pixel on each side of an edge;
       and distances outside 0.15 to 8 m.
    """
    known = metres > 0
    inverse = np.divide(1.0, metres, out=np.zeros(metres.shape), where=known)

    # Hidden from the second imager: something further right appears left of it there.
    second = np.arange(camera.width) - camera.fx * _BASELINE_M * inverse
    hidden = second > np.minimum.accumulate(second[:, ::-1], axis=1)[:, ::-1] + 0.5

    rays = camera.all_rays()
    points = rays * (metres / rays[..., 2])[..., None]
    down, across = np.gradient(points, axis=(0, 1))
    normal = np.cross(across, down)
    size = np.linalg.norm(normal, axis=-1) * np.linalg.norm(points, axis=-1)
    facing = np.abs((normal * points).sum(-1)) > _GRAZING * size

    noise = cv2.GaussianBlur(rng.standard_normal(metres.shape), (0, 0), _CORRELATION_PX)
    amount = 2 * math.sqrt(math.pi) * _CORRELATION_PX * sigma_per_m  # blurring weakened it
    read = cv2.blur(inverse, (_WINDOW_PX, _WINDOW_PX)) + amount * noise
    read = _STEP_PER_M * np.round(read / _STEP_PER_M)
    near, far = _RANGE_M
    valid = known & facing & ~hidden & (read > 1 / far) & (read < 1 / near)
    millimetres = np.divide(1000.0, read, out=np.zeros(read.shape), where=valid)
    return np.round(millimetres).astype(np.uint16)
