"""How far points are from the objects that hands take, and which way leads away from them."""

from __future__ import annotations

import functools

import numpy as np
from jaxtyping import Float

from acehand_core.geometry import frames
from acehand_core.synthetic import surfaces
from acehand_core.synthetic.furniture import Prop
from acehand_core.types import RigidTransform

Points = Float[np.ndarray, "N 3"]
Distances = Float[np.ndarray, "N"]

#: A mug's handle as a round tube around its middle line; it is drawn oval, 4.8 by 7.2 mm.
_HANDLE_M = 0.0068


def distance(
    prop: Prop, T_world_prop: RigidTransform, points_world: Points
) -> tuple[Distances, Points]:
    """Return signed distances in metres, negative inside, and unit directions away, in the world.

    Exact for boxes, balls, cans, bottles and bowls; a mug's handle is taken as a round tube.
    """
    local = (points_world - T_world_prop[:3, 3]) @ T_world_prop[:3, :3]
    if prop.kind == "box":
        away, slope = _box(np.array(prop.size), local)
    elif prop.kind == "ball":
        away, slope = _tube(np.zeros((1, 3)), prop.size[0], local)
    else:
        away, slope = _lathe(_profile(prop.kind, prop.size), local)
        if prop.kind == "mug":
            line = surfaces.mug_handle(*prop.size[:2])
            line = np.concatenate([line, 0.5 * (line[1:] + line[:-1])])
            # Only where it can be nearer than the mug itself: beyond its middle, on that side.
            beside = np.flatnonzero(local[:, 0] > 0)
            handle, slope_handle = _tube(line, _HANDLE_M, local[beside])
            nearer = handle < away[beside]
            away[beside[nearer]] = handle[nearer]
            slope[beside[nearer]] = slope_handle[nearer]
    return away, slope @ T_world_prop[:3, :3].T


def corners(prop: Prop) -> Points:
    """Return points in the object's frame whose lowest is its lowest however it is turned."""
    if prop.kind == "box":
        return np.array(np.meshgrid(*[(-h, h) for h in prop.size])).reshape(3, 8).T
    if prop.kind == "ball":
        return prop.size[0] * np.concatenate([np.eye(3), -np.eye(3)])
    profile = _profile(prop.kind, prop.size)
    angle = np.linspace(0, 2 * np.pi, 16, endpoint=False)
    around = np.stack([np.cos(angle), np.sin(angle)], 1)
    rings = [np.column_stack([r * around, np.full(16, z)]) for r, z in profile]
    return np.concatenate(rings)


def lowest(prop: Prop, T_world_prop: RigidTransform) -> float:
    """Return the height of an object's lowest point."""
    if prop.kind == "ball":
        return float(T_world_prop[2, 3] - prop.size[0])
    return float(frames.apply(T_world_prop, corners(prop))[:, 2].min())


@functools.lru_cache(maxsize=64)
def _profile(kind: str, size: tuple[float, float, float]) -> surfaces.Profile:
    return surfaces.PROFILES[kind](*size)


def _box(half: np.ndarray, points: Points) -> tuple[Distances, Points]:
    sign = np.where(points < 0, -1.0, 1.0)
    beyond = np.abs(points) - half
    out = np.maximum(beyond, 0.0)
    outside = np.linalg.norm(out, axis=1)
    face = np.eye(3)[beyond.argmax(1)]
    slope = np.where((outside > 1e-12)[:, None], out / np.maximum(outside, 1e-12)[:, None], face)
    return np.where(outside > 0, outside, beyond.max(1)), slope * sign


def _tube(
    line: Float[np.ndarray, "L 3"], radius: float, points: Points
) -> tuple[Distances, Points]:
    """Spheres of one radius around points close to each other, or around one."""
    squares = (points**2).sum(1)[:, None] - 2 * points @ line.T + (line**2).sum(1)
    arms = points - line[squares.argmin(1)]
    length = np.linalg.norm(arms, axis=1)
    return length - radius, arms / np.maximum(length, 1e-12)[:, None]


def _lathe(profile: surfaces.Profile, points: Points) -> tuple[Distances, Points]:
    """The distance to a polygon in the half plane of radius and height."""
    radius = np.maximum(np.hypot(points[:, 0], points[:, 1]), 1e-12)
    at = np.stack([radius, points[:, 2]], 1)[:, None]
    start, edge = profile[:-1], np.diff(profile, axis=0)
    along = np.clip(((at - start) * edge).sum(-1) / (edge**2).sum(-1), 0.0, 1.0)
    arms = at - start - along[..., None] * edge
    lengths = np.hypot(arms[..., 0], arms[..., 1])
    nearest = lengths.argmin(1)
    rows = np.arange(len(points))
    length, arm = lengths[rows, nearest], arms[rows, nearest]
    # Inside where a line to larger radii crosses the profile an odd number of times.
    low, high = np.minimum(start, profile[1:])[:, 1], np.maximum(start, profile[1:])[:, 1]
    level = (low <= at[..., 1]) & (at[..., 1] < high)
    rise = np.where(edge[:, 1] == 0, 1.0, edge[:, 1])
    crossing = start[:, 0] + (at[..., 1] - start[:, 1]) / rise * edge[:, 0]
    inside = (level & (at[..., 0] < crossing)).sum(1) % 2 == 1
    sign = np.where(inside, -1.0, 1.0)
    # On the surface itself the edge's own normal; the profile runs with the inside on its left.
    normal = np.stack([edge[:, 1], -edge[:, 0]], 1)[nearest]
    normal = normal / np.linalg.norm(normal, axis=1, keepdims=True)
    flat = np.where(
        (length > 1e-9)[:, None], sign[:, None] * arm / np.maximum(length, 1e-9)[:, None], normal
    )
    slope = np.column_stack([points[:, :2] / radius[:, None] * flat[:, :1], flat[:, 1]])
    return sign * length, slope
