"""What a synthetic clip looks like: objects, clutter, light, skin and furniture; lens and sensor.

A fisheye is read from one pinhole picture that reaches ``MAX_ANGLE`` from the axis; beyond that
circle the picture is black, as beyond the image circle of a real fisheye. The sensor's exposure,
white balance, vignetting and noise come from a seed.
"""

from __future__ import annotations

import colorsys
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from acehand_core.ace.synthetic.layout import Light, Prop, PropKind, Room
from acehand_core.ace.synthetic.scene import Appearance
from acehand_core.ace.synthetic.surfaces import Colour, SkinColours
from acehand_core.geometry import frames, rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.types import ImageRgb, PointsCamera, RigidTransform

_LIGHT_SKIN, _DARK_SKIN = np.array([0.88, 0.68, 0.57]), np.array([0.30, 0.18, 0.12])


def random_object(rng: np.random.Generator, name: str) -> Prop:
    """Return something that one hand can hold."""
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
    """Return the pattern of an object and its seed."""
    pattern = str(rng.choice(["", "", "", "stripes", "checks", "speckle", "marble"]))
    return pattern, int(rng.integers(1 << 30))


def random_clutter(
    rng: np.random.Generator, taken: list[np.ndarray], scenario: str
) -> list[tuple[Prop, RigidTransform]]:
    """Return objects that stand around, clear of where hands take theirs; some hide hands."""
    objects = []
    for number in range(int(rng.integers(1, 7))):
        at = np.array([rng.uniform(-0.5, 0.5), rng.uniform(0.24, 0.55)])
        near = rng.random() < 0.12
        if near:  # between the eyes and the hands
            at = np.array([rng.uniform(-0.22, 0.22), rng.uniform(-0.10, -0.04)])
        if any(np.linalg.norm(at - other) < 0.13 for other in taken):
            continue
        taken.append(at)
        prop = random_object(rng, f"clutter{number}")
        if rng.random() < 0.4:  # a book, a sheet of paper, a parcel, a screen
            x, y, z = map(float, rng.uniform([0.05, 0.05, 0.002], [0.12, 0.12, 0.06]))
            prop = replace(prop, kind="box", size=(x, y, z))
        if near:
            half = (float(rng.uniform(0.01, 0.03)), 0.008, float(rng.uniform(0.07, 0.12)))
            prop = replace(prop, kind="box", size=half)
        height = {"box": prop.size[2], "ball": prop.size[0]}.get(prop.kind, 0.0)
        yaw = rotations.exp(np.array([0.0, 0.0, rng.uniform(-3.1, 3.1) * (0.1 if near else 1)]))
        objects.append((prop, frames.rigid(yaw, np.array([*at, height + 0.0005]))))

    if scenario in ("gestures", "real") and rng.random() < 0.5:  # a sheet or mat under the hands
        half = (float(rng.uniform(0.1, 0.25)), float(rng.uniform(0.08, 0.16)), 0.001)
        mat = Prop("mat", "box", half, random_colour(rng), *random_pattern(rng))
        objects.append((mat, frames.rigid(np.eye(3), np.array([rng.normal(0, 0.05), 0.12, 0.001]))))
    return objects


def random_colour(rng: np.random.Generator, saturation: float = 0.7) -> Colour:
    """Return any colour, up to a saturation."""
    r, g, b = colorsys.hsv_to_rgb(rng.random(), saturation * rng.random(), rng.uniform(0.15, 0.95))
    return (r, g, b)


def random_appearance(rng: np.random.Generator) -> Appearance:
    """Return a person's skin and sleeves, a room and its light."""
    warmth = rng.normal(0, 0.05)
    strength = rng.uniform(0.25, 0.65)
    angle = rng.uniform(0, 2 * np.pi)
    slope = rng.uniform(0.1, 0.8)
    sun = Light(
        (float(slope * np.cos(angle)), float(slope * np.sin(angle)), -1.0),
        (float(strength * (1 + warmth)), float(strength), float(strength * (1 - warmth))),
        float(rng.uniform(0.05, 0.4)),
        True,
        (float(-slope * np.cos(angle)), float(-slope * np.sin(angle)), 1.2),
    )
    weak = [float(v) for v in rng.uniform(0.02, 0.25, 3)]
    aside = [float(v) for v in rng.uniform(-1, 1, 2)]
    fill = Light((aside[0], aside[1], -0.7), (weak[0], weak[1], weak[2]))
    r, g, b = (0.5 + 0.45 * channel for channel in random_colour(rng, 0.25))
    bright = (r, g, b)
    room = Room(
        half_width=float(rng.uniform(1.2, 2.4)),
        depth=float(rng.uniform(0.9, 2.2)),
        table_half=(float(rng.uniform(0.6, 1.0)), float(rng.uniform(0.38, 0.55))),
        table=(str(rng.choice(["wood", "wood", "plain", "marble", "checks", "stripes", "speckle"])),
               _surface(rng)),
        floor=(str(rng.choice(["wood", "checks", "speckle"])), _surface(rng)),
        wall=(str(rng.choice(["plaster", "plaster", "plain", "stripes"])), bright),
        furniture=_furniture(rng),
    )  # fmt: skip

    return Appearance(
        seed=int(rng.integers(1 << 30)),
        skin=_skin(rng),
        sleeve=random_colour(rng),
        arm="bare" if rng.random() < 0.4 else "sleeve",
        ambient=float(rng.uniform(0.2, 0.5)),
        lights=(sun, fill),
        room=room,
    )


def _surface(rng: np.random.Generator) -> Colour:
    value = rng.uniform(0.12, 0.9)
    r, g, b = colorsys.hsv_to_rgb(rng.uniform(0.02, 0.14), rng.uniform(0.0, 0.55), value)
    return (r, g, b) if rng.random() < 0.75 else random_colour(rng, 0.5)


def _furniture(rng: np.random.Generator) -> tuple[tuple[Any, Any, Colour], ...]:
    """Return cupboards, shelves and pictures along the walls."""
    boxes = []
    for _ in range(int(rng.integers(2, 7))):
        half = tuple(float(v) for v in rng.uniform([0.1, 0.02, 0.1], [0.5, 0.25, 0.6]))
        side = rng.choice([-1.0, 0.0, 1.0])
        x = side * rng.uniform(1.0, 1.5) if side else rng.uniform(-1, 1)
        y = rng.uniform(-0.3, 0.9) if side else rng.uniform(0.75, 1.6)
        boxes.append(
            (half, (float(x), float(y), float(rng.uniform(-0.5, 0.9))), random_colour(rng))
        )
    return tuple(boxes)


def _skin(rng: np.random.Generator) -> SkinColours:
    """Return one person's colours, anywhere between light and dark."""
    dark = rng.beta(0.9, 1.2)
    back = (1 - dark) * _LIGHT_SKIN + dark * _DARK_SKIN
    back = np.clip(back * (1 + rng.normal(0, [0.03, 0.04, 0.05])), 0.05, 0.97)
    pale = np.clip(back + (0.05 + 0.22 * dark) * np.array([1.0, 0.8, 0.7]), 0, 0.97)

    def colour(values: np.ndarray) -> Colour:
        return (float(values[0]), float(values[1]), float(values[2]))

    crease = back * np.array([0.80, 0.66, 0.66])
    nail = 0.5 * pale + 0.5 * np.array([0.92, 0.75, 0.68])
    if rng.random() < 0.1:  # painted nails
        nail = np.array(random_colour(rng, 1.0))
    return SkinColours(colour(back), colour(pale), colour(crease), colour(nail))


# --- lens and sensor ------------------------------------------------------------------------

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
        samples = image[self.rows, self.columns]
        samples[self.rows < 0] = 0
        return samples

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
