"""Random appearance of a clip: objects, light, skin, room; lens and sensor."""

from __future__ import annotations

import colorsys
import math
from dataclasses import dataclass, replace
from typing import Any

import cv2
import numpy as np
from jaxtyping import Bool, Float

from acehand_core.ace.synthetic.layout import Light, Prop, PropKind, Room
from acehand_core.ace.synthetic.scene import Appearance
from acehand_core.ace.synthetic.surfaces import Colour, SkinColours
from acehand_core.geometry import frames, rotations
from acehand_core.geometry.cameras import Camera, CameraModel
from acehand_core.types import ImageRgb, PointsCamera, RigidTransform

_LIGHT_SKIN, _DARK_SKIN = np.array([0.88, 0.68, 0.57]), np.array([0.30, 0.18, 0.12])

#: Image circle of a fisheye.
MAX_ANGLE = math.radians(65.0)

_GAMMA = 2.2


def random_object(rng: np.random.Generator, name: str) -> Prop:
    """Return an object that one hand can hold."""
    kind: PropKind = str(rng.choice(["box", "mug", "can", "bottle", "bowl", "ball"]))  # type: ignore[assignment]
    uniform = rng.uniform
    size = {
        "box": (uniform(0.012, 0.024), uniform(0.015, 0.035), uniform(0.018, 0.040)),
        "mug": (uniform(0.034, 0.042), uniform(0.08, 0.11), 0.004),
        "can": (uniform(0.026, 0.037), uniform(0.08, 0.13), 0.0),
        "bottle": (uniform(0.026, 0.036), uniform(0.17, 0.24), 0.0),
        "bowl": (uniform(0.05, 0.07), uniform(0.04, 0.06), 0.0),
        "ball": (uniform(0.02, 0.038), 0.0, 0.0),
    }[kind]
    return Prop(name, kind, size, random_colour(rng), *random_pattern(rng))


def random_pattern(rng: np.random.Generator) -> tuple[str, int]:
    """Return an object's pattern and its seed."""
    pattern = str(rng.choice(["", "", "", "stripes", "checks", "speckle", "marble"]))
    return pattern, int(rng.integers(1 << 30))


def random_clutter(
    rng: np.random.Generator, taken: list[np.ndarray], scenario: str
) -> list[tuple[Prop, RigidTransform]]:
    """Return objects that stand clear of those that hands take; some occlude hands."""
    objects = []
    for number in range(int(rng.integers(1, 7))):
        at = np.array([rng.uniform(-0.5, 0.5), rng.uniform(0.24, 0.55)])
        near = rng.random() < 0.12
        if near:  # between eyes and hands
            at = np.array([rng.uniform(-0.22, 0.22), rng.uniform(-0.10, -0.04)])
        if any(np.linalg.norm(at - other) < 0.13 for other in taken):
            continue
        taken.append(at)
        prop = random_object(rng, f"clutter{number}")
        if rng.random() < 0.4:  # a book, a sheet of paper, a parcel, a screen
            x, y, z = rng.uniform([0.05, 0.05, 0.002], [0.12, 0.12, 0.06]).tolist()
            prop = replace(prop, kind="box", size=(x, y, z))
        if near:
            half = (rng.uniform(0.01, 0.03), 0.008, rng.uniform(0.07, 0.12))
            prop = replace(prop, kind="box", size=half)
        height = {"box": prop.size[2], "ball": prop.size[0]}.get(prop.kind, 0.0)
        yaw = rotations.exp(np.array([0.0, 0.0, rng.uniform(-3.1, 3.1) * (0.1 if near else 1)]))
        objects.append((prop, frames.rigid(yaw, np.array([*at, height + 0.0005]))))

    if scenario in ("gestures", "real") and rng.random() < 0.5:  # a sheet or mat under the hands
        half = (rng.uniform(0.1, 0.25), rng.uniform(0.08, 0.16), 0.001)
        mat = Prop("mat", "box", half, random_colour(rng), *random_pattern(rng))
        objects.append((mat, frames.rigid(np.eye(3), np.array([rng.normal(0, 0.05), 0.12, 0.001]))))
    return objects


def random_colour(rng: np.random.Generator, saturation: float = 0.7) -> Colour:
    """Return a random colour up to a saturation."""
    return colorsys.hsv_to_rgb(rng.random(), saturation * rng.random(), rng.uniform(0.15, 0.95))


def random_appearance(rng: np.random.Generator) -> Appearance:
    """Return a random person, room and light."""
    warmth, strength = rng.normal(0, 0.05), rng.uniform(0.25, 0.65)
    angle, slope = rng.uniform(0, 2 * np.pi), rng.uniform(0.1, 0.8)
    x, y = float(slope * np.cos(angle)), float(slope * np.sin(angle))
    colour = (strength * (1 + warmth), strength, strength * (1 - warmth))
    sun = Light((x, y, -1.0), colour, rng.uniform(0.05, 0.4), True, (-x, -y, 1.2))
    red, green, blue = rng.uniform(0.02, 0.25, 3).tolist()
    x, y = rng.uniform(-1, 1, 2).tolist()
    fill = Light((x, y, -0.7), (red, green, blue))
    r, g, b = (0.5 + 0.45 * channel for channel in random_colour(rng, 0.25))
    room = Room(
        half_width=rng.uniform(1.2, 2.4),
        depth=rng.uniform(0.9, 2.2),
        table_half=(rng.uniform(0.6, 1.0), rng.uniform(0.38, 0.55)),
        table=(
            str(rng.choice(["wood", "wood", "plain", "marble", "checks", "stripes", "speckle"])),
            _surface(rng),
        ),
        floor=(str(rng.choice(["wood", "checks", "speckle"])), _surface(rng)),
        wall=(str(rng.choice(["plaster", "plaster", "plain", "stripes"])), (r, g, b)),
        furniture=_furniture(rng),
    )

    return Appearance(
        seed=int(rng.integers(1 << 30)),
        skin=_skin(rng),
        sleeve=random_colour(rng),
        arm="bare" if rng.random() < 0.4 else "sleeve",
        ambient=rng.uniform(0.2, 0.5),
        lights=(sun, fill),
        room=room,
    )


def _surface(rng: np.random.Generator) -> Colour:
    value = rng.uniform(0.12, 0.9)
    plain = colorsys.hsv_to_rgb(rng.uniform(0.02, 0.14), rng.uniform(0.0, 0.55), value)
    return plain if rng.random() < 0.75 else random_colour(rng, 0.5)


def _furniture(rng: np.random.Generator) -> tuple[tuple[Any, Any, Colour], ...]:
    boxes = []
    for _ in range(int(rng.integers(2, 7))):
        half = tuple(rng.uniform([0.1, 0.02, 0.1], [0.5, 0.25, 0.6]).tolist())
        side = rng.choice([-1.0, 0.0, 1.0])
        x = side * rng.uniform(1.0, 1.5) if side else rng.uniform(-1, 1)
        y = rng.uniform(-0.3, 0.9) if side else rng.uniform(0.75, 1.6)
        boxes.append((half, (float(x), y, rng.uniform(-0.5, 0.9)), random_colour(rng)))
    return tuple(boxes)


def _skin(rng: np.random.Generator) -> SkinColours:
    dark = rng.beta(0.9, 1.2)
    back = (1 - dark) * _LIGHT_SKIN + dark * _DARK_SKIN
    back = np.clip(back * (1 + rng.normal(0, [0.03, 0.04, 0.05])), 0.05, 0.97)
    pale = np.clip(back + (0.05 + 0.22 * dark) * np.array([1.0, 0.8, 0.7]), 0, 0.97)

    def colour(values: np.ndarray) -> Colour:
        r, g, b = values.tolist()
        return r, g, b

    crease = back * np.array([0.80, 0.66, 0.66])
    nail = 0.5 * pale + 0.5 * np.array([0.92, 0.75, 0.68])
    if rng.random() < 0.1:  # painted nails
        nail = np.array(random_colour(rng, 1.0))
    return SkinColours(colour(back), colour(pale), colour(crease), colour(nail))


# --- lens and sensor ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Lens:
    """A camera sampled from a wide pinhole, ``drawn``, with n by n samples per pixel.

    ``drawn`` is cut to what the picture shows. ``rows``, ``columns``: nearest sample of ``drawn``,
    -1 outside ``MAX_ANGLE``; None for pinholes.
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
        focal = max(camera.fx, camera.fy)
        side = 2 * math.ceil(math.tan(MAX_ANGLE) * focal) + 2
        drawn = Camera("pinhole", side, side, focal, focal, (side - 1) / 2, (side - 1) / 2)
        width, height = camera.width * samples, camera.height * samples
        rays = camera.rescaled(width, height).all_rays()
        source = drawn.rescaled(side * samples, side * samples).project(rays)
        inside = np.arccos(np.clip(rays[..., 2], -1, 1)) <= MAX_ANGLE
        inside &= ((source >= -0.5) & (source < side * samples - 0.5)).all(-1)
        nearest = np.where(inside[..., None], np.round(np.nan_to_num(source)), -1).astype(np.int32)
        first, last = nearest[inside].min(0) // samples, nearest[inside].max(0) // samples
        (width, height), (cx, cy) = last - first + 1, (side - 1) / 2 - first
        drawn = Camera("pinhole", int(width), int(height), focal, focal, float(cx), float(cy))
        nearest[inside] -= samples * first
        return cls(camera, drawn, samples, nearest[..., 1], nearest[..., 0])

    def bend(self, image: np.ndarray) -> np.ndarray:
        """Return the camera's samples of a pinhole image; 0 outside the circle."""
        if self.rows is None or self.columns is None:
            return image
        samples = image[self.rows, self.columns]
        samples[self.rows < 0] = 0
        return samples

    def pixels(self, image: np.ndarray) -> np.ndarray:
        """Split the axes of an image of samples into pixels and their samples."""
        n = self.samples
        return image.reshape(self.camera.height, n, self.camera.width, n, *image.shape[2:])

    def sees(self, points: PointsCamera) -> Bool[np.ndarray, "*batch"]:
        """Return which points project into the image and the circle."""
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
        fx = width / (2 * math.tan(math.radians(rng.uniform(58, 100)) / 2))
        return Camera("pinhole", width, height, fx, fx * squeeze, cx, cy)
    fx = max(width, height) / math.radians(rng.uniform(105, 150))
    model: CameraModel = "kannala_brandt" if rng.random() < 0.5 else "fisheye624"
    sigma = [0.02, 0.006, 0.002, 0.0005]
    if model == "fisheye624":  # radial, then tangential and prism terms
        sigma = [0.02, 0.01, 0.003, 0.001, 3e-4, 1e-4, *[4e-4] * 6]
    k = tuple(rng.normal(0, sigma).tolist())
    return Camera(model, width, height, fx, fx * squeeze, cx, cy, k)


def covers_image_circle(camera: Camera) -> bool:
    """Whether the camera model reaches the edge of the image circle."""
    return camera.model == "pinhole" or camera.max_angle > MAX_ANGLE


@dataclass(frozen=True, slots=True)
class Sensor:
    """Exposure of a clip.

    ``shutter``: exposure per frame time. ``gain``: brightness around 1, with a ``drift`` over the
    clip. ``balance``: gains of red and blue. ``shot``, ``read``: growing and constant noise.
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
            drift=rng.normal(0, 0.12),
            balance=(float(np.exp(rng.normal(0, 0.06))), float(np.exp(rng.normal(0, 0.08)))),
            vignette=rng.uniform(0, 0.35),
            shot=rng.uniform(0.002, 0.03),
            read=rng.uniform(0.001, 0.012),
        )

    def expose(
        self, picture: Float[np.ndarray, "H W 3"], progress: float, rng: np.random.Generator
    ) -> ImageRgb:
        """Return an image (0..255, display values) exposed at ``progress`` (0..1) of the clip."""
        light: np.ndarray = cv2.pow((picture / 255.0).astype(np.float32), _GAMMA)
        light *= self.gain * np.exp(self.drift * (progress - 0.5))
        light *= np.array([self.balance[0], 1.0, self.balance[1]])
        # Squares of the distance from the middle: 1 in the corners.
        rows, columns = (np.linspace(-1, 1, n, dtype=np.float32) ** 2 / 2 for n in light.shape[:2])
        light *= (1 - self.vignette * (rows[:, None] + columns))[..., None]
        deviation = np.sqrt(self.read**2 + self.shot**2 * light)
        light += deviation * rng.standard_normal(light.shape)
        value = cv2.pow(np.clip(light, 0, 1), 1 / _GAMMA)
        return np.round(255 * value).astype(np.uint8)


#: No blur, no noise, even exposure.
CLEAN = Sensor(0.0, 1.0, 0.0, (1.0, 1.0), 0.0, 0.0, 0.0)
