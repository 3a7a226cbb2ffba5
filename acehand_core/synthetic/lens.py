"""Lens and sensor: samples of any camera model out of a wide pinhole picture, light into bytes.

A fisheye is read from one pinhole picture that reaches ``MAX_ANGLE`` from the axis; beyond that
circle the picture is black, as beyond the image circle of a real fisheye. The sensor's exposure,
white balance, vignetting and noise come from a seed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from acehand_core.geometry.cameras import Camera
from acehand_core.types import ImageRgb, PointsCamera

#: Radius of a fisheye's image circle.
MAX_ANGLE = math.radians(65.0)


@dataclass(frozen=True, slots=True)
class Lens:
    """A camera drawn through ``drawn``, a pinhole, with n by n samples per pixel.

    ``rows`` and ``columns`` say which sample of the pinhole picture each sample of the camera's is
    (nearest; -1 outside the circle); None where they are the same.
    """

    camera: Camera
    drawn: Camera
    samples: int
    rows: np.ndarray | None = None
    columns: np.ndarray | None = None

    @classmethod
    def of(cls, camera: Camera, samples: int = 2) -> Lens:
        """Return the lens of a camera."""
        if camera.model == "pinhole":
            return cls(camera, camera, samples)
        reach = math.tan(MAX_ANGLE)
        focal = max(camera.fx, camera.fy)
        side = 2 * math.ceil(reach * focal) + 2
        drawn = Camera("pinhole", side, side, focal, focal, (side - 1) / 2, (side - 1) / 2)
        width, height = camera.width * samples, camera.height * samples
        fine = camera.rescaled(width, height)
        pixels = np.stack(np.meshgrid(np.arange(width), np.arange(height)), axis=-1).astype(float)
        rays = fine.unproject(pixels)

        # Samples of the pinhole picture are pixels of the same camera at n times its size.
        source = drawn.rescaled(side * samples, side * samples).project(rays)
        with np.errstate(invalid="ignore"):
            inside = np.arccos(np.clip(rays[..., 2], -1, 1)) <= MAX_ANGLE
            inside &= ((source >= -0.5) & (source < side * samples - 0.5)).all(-1)

        nearest = np.where(inside[..., None], np.round(np.nan_to_num(source)), -1).astype(np.int32)
        return cls(camera, drawn, samples, nearest[..., 1], nearest[..., 0])

    def bend(self, image: np.ndarray) -> np.ndarray:
        """Return the camera's samples of a pinhole picture; 0 outside the circle."""
        if self.rows is None or self.columns is None:
            return image
        out = image[self.rows, self.columns]
        out[self.rows < 0] = 0
        return out

    def pixels(self, image: np.ndarray) -> np.ndarray:
        """Split both axes of an image of samples so that each pixel's samples have own axes."""
        n = self.samples
        return image.reshape(self.camera.height, n, self.camera.width, n, *image.shape[2:])

    def sees(self, points: PointsCamera) -> Bool[np.ndarray, "*batch"]:
        """Return which points project into the picture and into the circle."""
        pixels = self.camera.project(points)
        inside = self.camera.contains(pixels)
        if self.camera.model == "pinhole":
            return inside
        angle = np.arctan2(np.linalg.norm(points[..., :2], axis=-1), points[..., 2])
        return inside & (angle <= MAX_ANGLE)


def random_camera(
    rng: np.random.Generator, width: int, height: int, kinds: str = "mixed"
) -> Camera:
    """Return a plausible head-mounted camera; ``kinds``: "mixed", "pinhole" or "fisheye"."""
    fisheye = kinds == "fisheye" or (kinds == "mixed" and rng.random() < 0.4)
    cx = (width - 1) / 2 + rng.normal(0, 0.015) * width
    cy = (height - 1) / 2 + rng.normal(0, 0.015) * height

    squeeze = 1 + rng.normal(0, 0.004)
    if not fisheye:
        half = math.radians(rng.uniform(58, 100)) / 2
        fx = width / (2 * math.tan(half))
        return Camera("pinhole", width, height, fx, fx * squeeze, cx, cy)

    fx = max(width, height) / math.radians(rng.uniform(105, 150))
    if rng.random() < 0.5:
        k = rng.normal(0, [0.02, 0.006, 0.002, 0.0005])
        return Camera(
            "kannala_brandt", width, height, fx, fx * squeeze, cx, cy, tuple(map(float, k))
        )

    k = rng.normal(0, [0.02, 0.01, 0.003, 0.001, 3e-4, 1e-4])
    tangential, prism = rng.normal(0, 4e-4, 2), rng.normal(0, 4e-4, 4)
    every = np.concatenate([k, tangential, prism])

    return Camera("fisheye624", width, height, fx, fx * squeeze, cx, cy, tuple(map(float, every)))


def covers_image_circle(camera: Camera) -> bool:
    """Tell whether the model describes the whole image circle."""
    return camera.model == "pinhole" or camera.max_angle > MAX_ANGLE


def displacement(before: Float[np.ndarray, "N 2"], after: Float[np.ndarray, "N 2"]) -> float:
    """Return the largest distance in pixels between points that both pictures show, else 0."""
    moved = np.linalg.norm(after - before, axis=-1)
    moved = moved[np.isfinite(moved)]
    return float(moved.max()) if len(moved) else 0.0


_GAMMA = 2.2


@dataclass(frozen=True, slots=True)
class Sensor:
    """How one clip is exposed.

    ``shutter``: share of the frame time during which light is gathered, for motion blur. ``gain``:
    exposure about 1, drifting by ``drift`` over the clip. ``balance``: gains of red and blue.
    ``shot`` and ``read``: noise that grows with the light, and noise that does not (0..1).
    """

    shutter: float = 0.3
    gain: float = 1.0
    drift: float = 0.0
    balance: tuple[float, float] = (1.0, 1.0)
    vignette: float = 0.0
    shot: float = 0.01
    read: float = 0.004

    @classmethod
    def random(cls, rng: np.random.Generator) -> Sensor:
        """Return a plausible sensor."""
        return cls(
            shutter=float(rng.choice([0.1, 0.25, 0.5, 0.8])),
            gain=float(np.exp(rng.normal(0.05, 0.22))),
            drift=float(rng.normal(0, 0.12)),
            balance=(float(np.exp(rng.normal(0, 0.06))), float(np.exp(rng.normal(0, 0.08)))),
            vignette=float(rng.uniform(0, 0.35)),
            shot=float(rng.uniform(0.002, 0.03)),
            read=float(rng.uniform(0.001, 0.012)),
        )

    def expose(
        self, picture: Float[np.ndarray, "H W 3"], progress: float, rng: np.random.Generator
    ) -> ImageRgb:
        """Return the picture (0..255, display values) as this sensor gives it.

        ``progress``: 0 at the clip's first frame, 1 at its last.
        """
        light = (picture / 255.0) ** _GAMMA
        light *= self.gain * np.exp(self.drift * (progress - 0.5))
        light *= np.array([self.balance[0], 1.0, self.balance[1]])
        height, width = picture.shape[:2]
        rows, columns = np.indices((height, width))
        radius = np.hypot((rows / (height - 1)) - 0.5, (columns / (width - 1)) - 0.5) / 0.7071
        light *= (1 - self.vignette * radius**2)[..., None]
        deviation = np.sqrt(self.read**2 + self.shot**2 * np.maximum(light, 0))
        light = light + deviation * rng.standard_normal(light.shape)
        value = np.clip(light, 0, 1) ** (1 / _GAMMA)
        return np.round(255 * value).astype(np.uint8)


#: No blur, no noise, even exposure.
CLEAN = Sensor(0.0, 1.0, 0.0, (1.0, 1.0), 0.0, 0.0, 0.0)
