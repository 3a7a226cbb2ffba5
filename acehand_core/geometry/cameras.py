"""Camera models: pinhole, Brown-Conrady, Kannala-Brandt fisheye and Fisheye624 (Project Aria).

Pixels: integer coordinates are pixel centres. Camera frame: OpenCV.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from acehand_core.errors import CalibrationError
from acehand_core.types import PointsCamera, PointsImage, Rays

CameraModel = Literal["pinhole", "brown_conrady", "kannala_brandt", "fisheye624"]


@dataclass(frozen=True, slots=True)
class Camera:
    """One calibrated camera; values belong to an image of ``width`` x ``height`` pixels."""

    model: CameraModel
    width: int
    height: int
    fx: float
    fy: float
    cx: float
    cy: float
    distortion: tuple[float, ...] = ()

    @classmethod
    def nominal(cls, width: int, height: int, fov_degrees: float = 60.0) -> Camera:
        """Return a pinhole whose longer image side spans ``fov_degrees``."""
        focal = 0.5 * max(width, height) / math.tan(math.radians(fov_degrees) / 2)
        return cls("pinhole", width, height, focal, focal, (width - 1) / 2, (height - 1) / 2)

    def project(self, points: PointsCamera) -> PointsImage:
        """Return pixels; NaN where a point cannot be seen (behind, or outside the model)."""
        raise NotImplementedError

    def unproject(self, pixels: PointsImage) -> Rays:
        """Return unit rays; NaN where the pixel lies outside the model's field of view."""
        raise NotImplementedError

    def rescaled(self, width: int, height: int) -> Camera:
        """Return the camera of the same view resized to ``width`` x ``height``."""
        raise NotImplementedError
