"""A quarter turn clockwise of pictures, their lens and the camera frame: Aria's are stored lying.

The new camera frame has x where the old had -y and y where it had x.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from jaxtyping import UInt8

from acehand_core.errors import CalibrationError
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import FrameSource
from acehand_core.types import ImageRgb

#: Maps points of the turned camera's frame to the camera's own.
TURN = np.array([[0.0, 1, 0, 0], [-1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])


class TurnedFrames:
    """A ``FrameSource`` that shows another one's frames turned clockwise."""

    def __init__(self, frames: FrameSource) -> None:
        self._frames = frames

    def __len__(self) -> int:
        return len(self._frames)

    def read(self, start: int, stop: int) -> Iterator[ImageRgb]:
        """Yield frames ``start`` to ``stop - 1``."""
        return map(_turn, self._frames.read(start, stop))

    def read_reversed(self, start: int, stop: int) -> Iterator[ImageRgb]:
        """Yield frames ``stop - 1`` down to ``start``."""
        return map(_turn, self._frames.read_reversed(start, stop))

    def at(self, index: int) -> ImageRgb:
        """Return one frame."""
        return _turn(self._frames.at(index))


def turned_camera(camera: Camera) -> Camera:
    """Return the camera of the turned picture: exact, the lens numbers change places and signs.

    Raises CalibrationError for Brown-Conrady lenses, which nothing here needs.
    """
    lens = camera.distortion
    if camera.model == "fisheye624":
        *radial, p1, p2, s1, s2, s3, s4 = lens
        lens = (*radial, -p2, p1, -s3, -s4, s1, s2)
    elif camera.model == "brown_conrady":
        raise CalibrationError("A Brown-Conrady camera cannot be turned.")
    return replace(
        camera,
        width=camera.height,
        height=camera.width,
        fx=camera.fy,
        fy=camera.fx,
        cx=camera.height - 1 - camera.cy,
        cy=camera.cx,
        distortion=lens,
    )


def _turn(image: UInt8[np.ndarray, "H W 3"]) -> UInt8[np.ndarray, "W H 3"]:
    return np.ascontiguousarray(np.rot90(image, 3))
