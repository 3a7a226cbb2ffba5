"""Procedural textures and meshes of the scene, drawn from seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, UInt8

Colour = tuple[float, float, float]
Picture = UInt8[np.ndarray, "H W 3"]
#: (radius, height) of a solid of revolution about z: axis at the bottom, outside, inside, axis.
Profile = Float[np.ndarray, "_ 2"]
Solid = tuple[Float[np.ndarray, "_ 3"], Int[np.ndarray, "_ 3"]]


@dataclass(frozen=True, slots=True)
class SkinColours:
    """Display colours (0..1) of one person's skin."""

    back: Colour = (0.81, 0.59, 0.47)
    palm: Colour = (0.88, 0.67, 0.56)
    crease: Colour = (0.66, 0.38, 0.31)
    nail: Colour = (0.90, 0.69, 0.61)

    def palette(self, size: int = 64) -> Picture:
        """Return the texture for a hand's ``tint`` (paleness, mark)."""
        paleness, mark = np.meshgrid(np.linspace(0, 1, size), np.linspace(0, 1, size))
        paleness, mark = paleness[..., None], mark[..., None]
        plain = (1 - paleness) * self.back + paleness * np.array(self.palm)
        toward = np.where(mark > 0.5, np.array(self.nail), np.array(self.crease))
        amount = np.abs(2 * mark - 1)
        return _to_bytes((1 - amount) * plain + amount * toward)


def wood(seed: int, size: int = 512, colour: Colour = (0.62, 0.47, 0.34)) -> Picture:
    """Return planks with the grain along the first axis."""
    rng = np.random.default_rng(seed)
    grain = _noise(rng, size, (4, 64)) * 0.6 + _noise(rng, size, (8, 170)) * 0.4
    broad = _noise(rng, size, (3, 6))
    planks = rng.uniform(-0.05, 0.05, 4)[np.arange(size) * 4 // size]
    shade = 1 + 0.16 * grain + 0.10 * broad + planks
    shade[:, np.arange(size) % (size // 4) < 2] *= 0.75
    return _to_bytes(shade[..., None] * colour)


def plaster(seed: int, size: int = 256, colour: Colour = (0.74, 0.75, 0.73)) -> Picture:
    """Return a softly mottled wall."""
    rng = np.random.default_rng(seed)
    shade = 1 + 0.05 * _noise(rng, size, (5, 5)) + 0.03 * _noise(rng, size, (60, 60))
    return _to_bytes(shade[..., None] * colour)


def plain(seed: int, size: int = 64, colour: Colour = (0.5, 0.5, 0.5)) -> Picture:
    return _to_bytes(np.broadcast_to(np.array(colour), (size, size, 3)))


def checks(seed: int, size: int = 256, colour: Colour = (0.6, 0.6, 0.6)) -> Picture:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 6)) * 2
    cell = np.arange(size) * count // size
    shade = np.where((cell[:, None] + cell) % 2, 1.0, rng.uniform(0.55, 0.9))
    shade = shade * (1 + 0.04 * _noise(rng, size, (40, 40)))
    return _to_bytes(shade[..., None] * colour)


def stripes(seed: int, size: int = 256, colour: Colour = (0.6, 0.6, 0.6)) -> Picture:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(3, 12))
    amount = (np.sin(np.arange(size) / size * 2 * np.pi * count) > rng.uniform(-0.6, 0.6))[:, None]
    other = rng.uniform(0.1, 0.9, 3)
    row = np.where(amount, np.array(colour), other)
    return _to_bytes(np.broadcast_to(row[:, None], (size, size, 3)))


def marble(seed: int, size: int = 256, colour: Colour = (0.8, 0.8, 0.78)) -> Picture:
    """Return stone with veins."""
    rng = np.random.default_rng(seed)
    bumps = _noise(rng, size, (4, 4)) + 0.5 * _noise(rng, size, (9, 9))
    vein = np.exp(-((bumps + 0.3 * _noise(rng, size, (20, 20))) ** 2) / 0.01)
    shade = 1 - rng.uniform(0.1, 0.4) * vein + 0.05 * _noise(rng, size, (50, 50))
    return _to_bytes(shade[..., None] * colour)


def speckle(seed: int, size: int = 256, colour: Colour = (0.5, 0.5, 0.5)) -> Picture:
    """Return carpet or fine-grained stone."""
    rng = np.random.default_rng(seed)
    grain = rng.normal(0, 0.08, (size, size, 1)) + 0.1 * _noise(rng, size, (12, 12))[..., None]
    return _to_bytes((1 + grain) * np.array(colour))


def _noise(rng: np.random.Generator, size: int, cells: tuple[int, int]) -> np.ndarray:
    """Return smooth periodic noise in about -1..1 with ``cells`` bumps along each axis."""
    grid = rng.uniform(-1, 1, cells)
    rows, columns = (np.arange(size) * c / size for c in cells)
    noise = np.zeros((size, size))
    for row in (0, 1):
        for column in (0, 1):
            i = (np.floor(rows).astype(int) + row) % cells[0]
            j = (np.floor(columns).astype(int) + column) % cells[1]
            fade = np.multiply.outer(_fade(rows, row), _fade(columns, column))
            noise += fade * grid[np.ix_(i, j)]
    return noise


def _fade(position: np.ndarray, side: int) -> np.ndarray:
    t = position - np.floor(position)
    t = t * t * (3 - 2 * t)
    return t if side else 1 - t


def _to_bytes(colours: np.ndarray) -> Picture:
    return np.round(np.clip(colours, 0, 1) * 255).astype(np.uint8)


def solid(kind: str, size: tuple[float, float, float]) -> Solid:
    """Return the mesh of a mug (handle along +x), can, bottle or bowl on z = 0; metres."""
    vertices, faces = _lathe(PROFILES[kind](*size), {"mug": 48, "bowl": 40}.get(kind, 32))
    if kind == "mug":
        handle, handle_faces = _tube(mug_handle(*size[:2]), 0.0048, 0.0072)
        faces = np.concatenate([faces, handle_faces + len(vertices)])
        vertices = np.concatenate([vertices, handle])
    return vertices, faces


def mug_handle(radius: float, height: float) -> Float[np.ndarray, "17 3"]:
    """Return the centre line of a mug's handle."""
    bend = np.linspace(-0.5 * np.pi, 0.5 * np.pi, 17)
    return np.stack(
        [radius - 0.004 + 0.030 * np.cos(bend), 0 * bend, 0.5 * height + 0.029 * np.sin(bend)], 1
    )


def sleeve() -> Solid:
    """Return an oval sleeve around +z, its cuff at z = 0 open towards the hand; metres."""
    height = np.array([0.0, -0.0015, 0.0, 0.004, 0.024, 0.027, 0.032, 0.08, 0.2, 0.34, 0.34])
    scale = np.array([0.85, 0.97, 1.02, 1.04, 1.04, 1.02, 0.99, 1.03, 1.18, 1.30, 0.0])
    profile = np.stack([0.037 * scale, height], 1)
    vertices, faces = _lathe(np.concatenate([[[0.0, 0.004]], profile]), 40)
    return vertices * np.array([1.0, 0.80, 1.0]), faces


def forearm() -> Solid:
    """Return a bare oval forearm in place of ``sleeve``; metres."""
    height = np.array([-0.012, -0.010, -0.004, 0.004, 0.03, 0.08, 0.15, 0.22, 0.34, 0.34])
    radius = np.array([0.0, 0.018, 0.026, 0.029, 0.030, 0.033, 0.040, 0.044, 0.043, 0.0])
    vertices, faces = _lathe(np.stack([radius, height], 1), 40)
    return vertices * np.array([1.0, 0.80, 1.0]), faces


def _mug_profile(radius: float, height: float, wall: float) -> Profile:
    inner = radius - wall
    outside = [0, radius * 0.88, radius * 0.97, radius, radius]
    radii = [*outside, radius - wall / 2, inner, inner, 0]
    heights = [0, 0, 0.004, 0.012, height - 0.002, height, height - 0.002, 0.010, 0.008]
    return np.stack([radii, heights], 1)


def _can_profile(radius: float, height: float, wall: float) -> Profile:
    rim = min(0.004, 0.1 * radius)
    radii = [0, radius - rim, radius, radius, radius - rim, radius - 2 * rim, 0]
    heights = [0, 0, rim, height - rim, height, height - rim / 2, height - rim / 2]
    return np.stack([radii, heights], 1)


def _bottle_profile(radius: float, height: float, wall: float) -> Profile:
    radii = np.array([0, 0.9, 1, 1, 0.8, 0.36, 0.34, 0.42, 0.42, 0.38, 0])
    heights = np.array([0, 0, 0.03, 0.62, 0.72, 0.80, 0.88, 0.885, 0.99, 1, 1])
    return np.stack([radius * radii, height * heights], 1)


def _bowl_profile(radius: float, height: float, wall: float) -> Profile:
    up = np.linspace(0, 0.5 * np.pi, 7)[1:]
    outside = np.stack([radius * (0.45 + 0.55 * np.sin(up)), height * (1 - np.cos(up))], 1)
    inside = outside[::-1] * np.array([0.93, 0.98]) + np.array([0.0, 0.003])
    foot = np.array([(0, 0), (0.45 * radius, 0)])
    return np.concatenate([foot, outside, inside, [(0, inside[-1, 1])]])


def _lathe(profile: np.ndarray, around: int) -> Solid:
    """Revolve a profile (radius, height) with both ends on the z axis."""
    angle = np.linspace(0, 2 * np.pi, around, endpoint=False)
    rings = [
        np.stack([r * np.cos(angle), r * np.sin(angle), np.full(around, z)], 1)
        for r, z in profile[1:-1]
    ]
    vertices = np.concatenate([[[0, 0, profile[0, 1]]], *rings, [[0, 0, profile[-1, 1]]]])
    last = len(vertices) - 1
    this, following = np.arange(around), (np.arange(around) + 1) % around
    faces = [np.stack([0 * this, following + 1, this + 1], 1)]

    for ring in range(len(rings) - 1):
        a, b = 1 + ring * around, 1 + (ring + 1) * around
        faces.append(np.stack([a + this, a + following, b + following], 1))
        faces.append(np.stack([a + this, b + following, b + this], 1))
    a = 1 + (len(rings) - 1) * around
    faces.append(np.stack([a + this, a + following, 0 * this + last], 1))
    return vertices.astype(float), np.concatenate(faces)


def _tube(path: np.ndarray, half_thick: float, half_wide: float, around: int = 16) -> Solid:
    """Sweep an oval along a path in the xz plane; both ends stay open."""
    tangent = np.gradient(path, axis=0)
    tangent /= np.linalg.norm(tangent, axis=1, keepdims=True)
    side = np.array([0.0, 1.0, 0.0])
    outwards = np.cross(tangent, side)
    angle = np.linspace(0, 2 * np.pi, around, endpoint=False)
    rings = path[:, None] + half_thick * np.cos(angle)[:, None] * outwards[:, None]
    rings = rings + half_wide * np.sin(angle)[:, None] * side
    this, following = np.arange(around), (np.arange(around) + 1) % around
    faces = []
    for ring in range(len(path) - 1):
        a, b = ring * around, (ring + 1) * around
        faces.append(np.stack([a + this, b + following, a + following], 1))
        faces.append(np.stack([a + this, b + this, b + following], 1))
    return rings.reshape(-1, 3), np.concatenate(faces)


#: Textures by name; each takes a seed, a size and a colour.
PATTERNS: Mapping[str, Callable[..., Picture]] = {
    pattern.__name__: pattern
    for pattern in (plain, wood, plaster, checks, stripes, marble, speckle)
}
#: Profiles by the kind of ``layout.Prop``; each takes its ``size``.
PROFILES: Mapping[str, Callable[[float, float, float], Profile]] = {
    "mug": _mug_profile, "can": _can_profile, "bottle": _bottle_profile, "bowl": _bowl_profile,
}  # fmt: skip
