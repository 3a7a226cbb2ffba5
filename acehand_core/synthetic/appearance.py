"""What a synthetic clip looks like: objects, clutter, colours, light, skin, furniture."""

from __future__ import annotations

import colorsys
from typing import Any

import numpy as np

from acehand_core.geometry import frames, rotations
from acehand_core.synthetic.layout import Light, Prop, PropKind, Room
from acehand_core.synthetic.scene import Appearance
from acehand_core.synthetic.surfaces import Colour, SkinColours
from acehand_core.types import RigidTransform

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
    out = []
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
            half = rng.uniform([0.05, 0.05, 0.002], [0.12, 0.12, 0.06])
            prop = Prop(prop.name, "box", tuple(map(float, half)), prop.colour, prop.pattern,
                        prop.seed)  # fmt: skip
        if near:
            half = (float(rng.uniform(0.01, 0.03)), 0.008, float(rng.uniform(0.07, 0.12)))
            prop = Prop(prop.name, "box", half, prop.colour, prop.pattern, prop.seed)
        height = {"box": prop.size[2], "ball": prop.size[0]}.get(prop.kind, 0.0)
        yaw = rotations.exp(np.array([0.0, 0.0, rng.uniform(-3.1, 3.1) * (0.1 if near else 1)]))
        out.append((prop, frames.rigid(yaw, np.array([*at, height + 0.0005]))))

    if scenario in ("gestures", "real") and rng.random() < 0.5:  # a sheet or mat under the hands
        half = (float(rng.uniform(0.1, 0.25)), float(rng.uniform(0.08, 0.16)), 0.001)
        mat = Prop("mat", "box", half, random_colour(rng), *random_pattern(rng))
        out.append((mat, frames.rigid(np.eye(3), np.array([rng.normal(0, 0.05), 0.12, 0.001]))))
    return out


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
    fill = Light(
        tuple(float(v) for v in (*rng.uniform(-1, 1, 2), -0.7)), (weak[0], weak[1], weak[2])
    )
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
    out = []
    for _ in range(int(rng.integers(2, 7))):
        half = tuple(float(v) for v in rng.uniform([0.1, 0.02, 0.1], [0.5, 0.25, 0.6]))
        side = rng.choice([-1.0, 0.0, 1.0])
        x = side * rng.uniform(1.0, 1.5) if side else rng.uniform(-1, 1)
        y = rng.uniform(-0.3, 0.9) if side else rng.uniform(0.75, 1.6)
        out.append((half, (float(x), float(y), float(rng.uniform(-0.5, 0.9))), random_colour(rng)))
    return tuple(out)


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
