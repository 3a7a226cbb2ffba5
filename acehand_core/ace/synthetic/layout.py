"""Lights, room, table and objects of a scene: their MuJoCo models, and distances to objects.

World frame: z up, table top at z = 0, y away from the person, x to the person's right; metres.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from acehand_core.ace.synthetic import surfaces
from acehand_core.geometry import frames, rotations
from acehand_core.motion import ObjectPart
from acehand_core.types import RigidTransform, Rotation

#: Planes are lit at the corners of squares of this size; finer ones cost more than the hands do.
GRID_M = 0.1

PropKind = Literal["box", "mug", "can", "bottle", "bowl", "ball"]

Points = Float[np.ndarray, "N 3"]
Distances = Float[np.ndarray, "N"]

#: Radius of a mug's handle as a round tube; the mesh is oval, 4.8 by 7.2 mm.
_HANDLE_M = 0.0068
#: Boxes in a ring of a mug's or bowl's wall.
_AROUND = 20


@dataclass(frozen=True, slots=True)
class Prop:
    """A movable object, metres.

    ``size``: half edges of a box; radius, height and wall of a mug; radius and height of a can,
    bottle or bowl, with the origin at the bottom; radius of a ball, then zeros. ``pattern``: its
    texture in ``surfaces.PATTERNS``; "" is plain.
    """

    name: str
    kind: PropKind
    size: tuple[float, float, float]
    colour: surfaces.Colour
    pattern: str = ""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Light:
    """A directional light."""

    direction: tuple[float, float, float]
    diffuse: surfaces.Colour
    specular: float = 0.1
    shadow: bool = False
    position: tuple[float, float, float] = (0.0, 0.0, 1.2)


#: A window on the left and a weak lamp on the right.
DAYLIGHT = (
    Light((0.25, 0.14, -1.0), (0.46, 0.44, 0.41), 0.25, True, (-0.3, -0.1, 1.2)),
    Light((-0.7, 0.6, -0.6), (0.16, 0.16, 0.18), 0.05, False, (0.8, -0.6, 1.0)),
)


@dataclass(frozen=True, slots=True)
class Room:
    """A closed room around the table; a surface is a pattern's name and a colour.

    ``depth``: distance of the far wall. ``furniture``: fixed boxes (half edges, centre, colour).
    """

    half_width: float = 1.8
    depth: float = 1.4
    floor_z: float = -0.75
    ceiling_z: float = 1.7
    table_half: tuple[float, float] = (0.8, 0.45)
    table: tuple[str, surfaces.Colour] = ("wood", (0.55, 0.45, 0.36))
    floor: tuple[str, surfaces.Colour] = ("wood", (0.40, 0.33, 0.27))
    wall: tuple[str, surfaces.Colour] = ("plaster", (0.72, 0.74, 0.72))
    furniture: tuple[tuple[tuple[float, ...], tuple[float, ...], surfaces.Colour], ...] = ()


def add_room(mujoco: Any, spec: Any, room: Room, seed: int) -> None:
    for offset, name in enumerate(("table", "floor", "wall")):
        pattern, colour = getattr(room, name)
        picture = surfaces.PATTERNS[pattern](seed + offset, colour=colour)
        repeat = {"table": (2, 2), "floor": (4, 4), "wall": (3, 2)}[name]
        add_material(mujoco, spec, name, picture=picture, repeat=repeat, specular=0.1)

    world, plane, box = spec.worldbody, mujoco.mjtGeom.mjGEOM_PLANE, mujoco.mjtGeom.mjGEOM_BOX
    half, middle = room.half_width, 0.5 * (room.floor_z + room.ceiling_z)
    back = -1.2  # behind the person
    depth, centre = 0.5 * (room.depth - back), 0.5 * (room.depth + back)
    tall = 0.5 * (room.ceiling_z - room.floor_z)
    x, y = room.table_half
    world.add_geom(type=box, size=[x, y, 0.02], pos=[0, y - 0.2, -0.02], material="table")
    world.add_geom(
        type=plane, size=[half, depth, GRID_M], pos=[0, centre, room.floor_z], material="floor"
    )

    walls = (  # normal, centre, half sizes
        ((0, -1, 0), (0, room.depth, middle), (half, tall)),
        ((0, 1, 0), (0, back, middle), (half, tall)),
        ((1, 0, 0), (-half, centre, middle), (tall, depth)),
        ((-1, 0, 0), (half, centre, middle), (tall, depth)),
        ((0, 0, -1), (0, centre, room.ceiling_z), (half, depth)),
    )

    for normal, position, size in walls:
        quaternion = np.empty(4)
        mujoco.mju_quatZ2Vec(quaternion, np.array(normal, float))
        world.add_geom(
            type=plane, size=[*size, GRID_M], pos=list(position), quat=quaternion, material="wall"
        )
    for number, (edges, place, colour) in enumerate(room.furniture):
        name = f"furniture{number}"
        add_material(mujoco, spec, name, rgba=colour, specular=0.1)
        world.add_geom(type=box, size=list(edges), pos=list(place), material=name)


def add_prop(mujoco: Any, spec: Any, prop: Prop) -> None:
    body = spec.worldbody.add_body(name=prop.name, mocap=True)
    wrapped = None
    if prop.pattern:
        wrapped = surfaces.PATTERNS[prop.pattern](prop.seed, size=64, colour=prop.colour)
    add_material(
        mujoco, spec, prop.name, rgba=prop.colour, wrapped=wrapped, specular=0.4, shininess=0.6
    )
    geom = mujoco.mjtGeom
    if prop.kind == "box":
        body.add_geom(type=geom.mjGEOM_BOX, size=list(prop.size), material=prop.name)
    elif prop.kind == "ball":
        body.add_geom(type=geom.mjGEOM_SPHERE, size=list(prop.size), material=prop.name)
    else:
        add_solid(mujoco, spec, prop.name, surfaces.solid(prop.kind, prop.size))
        body.add_geom(type=geom.mjGEOM_MESH, meshname=prop.name, material=prop.name)


def add_solid(mujoco: Any, spec: Any, name: str, solid: surfaces.Solid) -> None:
    """Add a mesh with a thin shell."""
    vertices, faces = solid
    mesh = spec.add_mesh(name=name)
    mesh.uservert, mesh.userface = vertices.ravel(), faces.ravel()
    mesh.inertia = mujoco.mjtMeshInertia.mjMESH_INERTIA_SHELL


def add_material(mujoco: Any, spec: Any, name: str, *, rgba: Any = (1, 1, 1), picture: Any = None,
                 wrapped: Any = None, repeat: tuple[int, int] = (1, 1), specular: float = 0.3,
                 shininess: float = 0.3) -> None:  # fmt: skip
    """Add a material: one colour, a ``picture``, or a square picture ``wrapped`` around a solid."""
    material = spec.add_material(name=name)
    material.rgba = [*(rgba if picture is None and wrapped is None else (1, 1, 1)), 1.0]
    material.specular, material.shininess = specular, shininess
    if picture is None and wrapped is None:
        return
    texture = spec.add_texture(name=name)
    kinds = mujoco.mjtTexture
    texture.type = kinds.mjTEXTURE_2D if wrapped is None else kinds.mjTEXTURE_CUBE
    data = picture if wrapped is None else np.concatenate([wrapped] * 6)
    texture.height, texture.width = data.shape[:2]
    texture.nchannel = 3
    texture.data = data.tobytes()
    material.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = name
    material.texrepeat = list(repeat)


def distance(
    prop: Prop, T_world_prop: RigidTransform, points_world: Points
) -> tuple[Distances, Points]:
    """Return signed distances in metres, negative inside, and unit gradients, in the world.

    Exact except for a mug's handle, which counts as a round tube.
    """
    local = (points_world - T_world_prop[:3, 3]) @ T_world_prop[:3, :3]
    if prop.kind == "box":
        away, slope = _box(np.array(prop.size), local)
    elif prop.kind == "ball":
        away, slope = _tube(np.zeros((1, 3)), prop.size[0], local)
    else:
        away, slope = _lathe(surfaces.PROFILES[prop.kind](*prop.size), local)
        if prop.kind == "mug":
            line = surfaces.mug_handle(*prop.size[:2])
            line = np.concatenate([line, 0.5 * (line[1:] + line[:-1])])
            # The handle can only be nearer on its own side of the axis.
            near = np.flatnonzero(local[:, 0] > 0)
            handle, slope_handle = _tube(line, _HANDLE_M, local[near])
            nearer = handle < away[near]
            away[near[nearer]] = handle[nearer]
            slope[near[nearer]] = slope_handle[nearer]
    return away, slope @ T_world_prop[:3, :3].T


def solid_parts(prop: Prop) -> tuple[ObjectPart, ...]:
    """Return an object as convex solids for simulation; walls of mugs and bowls are boxes."""
    size = prop.size
    if prop.kind == "box":
        return (ObjectPart("box", size),)
    if prop.kind == "ball":
        return (ObjectPart("sphere", size[:1]),)
    profile = surfaces.PROFILES[prop.kind](*size)
    if prop.kind == "can":
        return (_disc(size[0], 0.0, size[1]),)
    if prop.kind == "bottle":  # body, shoulder, neck
        return tuple(
            _disc(share * size[0], low * size[1], high * size[1])
            for share, low, high in ((1.0, 0.0, 0.62), (0.8, 0.62, 0.76), (0.42, 0.76, 1.0))
        )

    # The outside from the foot up, the wall inside of it.
    mug = prop.kind == "mug"
    outside, wall = (profile[1:5], size[2]) if mug else (profile[1:8], 0.07 * size[0])
    parts = [_disc(outside[0, 0], 0.0, 0.008 if mug else 0.003)]
    for low, high in itertools.pairwise(outside):
        edge = high - low
        length = float(np.hypot(*edge))
        inwards = np.array([-edge[1], edge[0]]) / length
        r, z = 0.5 * (low + high) + 0.5 * wall * inwards
        half = (0.5 * wall, float(high[0] * np.tan(np.pi / _AROUND)), 0.5 * length)
        tilt = np.arctan2(edge[0], edge[1])
        for angle in 2 * np.pi * np.arange(_AROUND) / _AROUND:
            turn = rotations.from_rpy(np.array([0.0, 0.0, angle])) @ rotations.from_rpy(
                np.array([0.0, tilt, 0.0])
            )
            place = (float(r * np.cos(angle)), float(r * np.sin(angle)), float(z))
            parts.append(ObjectPart("box", half, place, _rpy(turn)))
    if mug:
        line = surfaces.mug_handle(*size[:2])[::2]
        for a, b in itertools.pairwise(line):
            turn = rotations.between(np.array([0.0, 0.0, 1.0]), rotations.unit(b - a))
            half_length = 0.5 * float(np.linalg.norm(b - a))
            x, y, z = map(float, 0.5 * (a + b))
            parts.append(ObjectPart("capsule", (_HANDLE_M, half_length), (x, y, z), _rpy(turn)))
    return tuple(parts)


def _disc(radius: float, low: float, high: float) -> ObjectPart:
    half = 0.5 * float(high - low)
    return ObjectPart("cylinder", (float(radius), half), (0.0, 0.0, float(low) + half))


def _rpy(turn: Rotation) -> tuple[float, float, float]:
    x, y, z = map(float, rotations.to_rpy(turn))
    return x, y, z


def corners(prop: Prop) -> Points:
    """Return points of the object's frame that include the lowest one in any orientation."""
    if prop.kind == "box":
        return np.array(np.meshgrid(*[(-h, h) for h in prop.size])).reshape(3, 8).T
    if prop.kind == "ball":
        return prop.size[0] * np.concatenate([np.eye(3), -np.eye(3)])
    profile = surfaces.PROFILES[prop.kind](*prop.size)
    angle = np.linspace(0, 2 * np.pi, 16, endpoint=False)
    around = np.stack([np.cos(angle), np.sin(angle)], 1)
    return np.concatenate([np.column_stack([r * around, np.full(16, z)]) for r, z in profile])


def lowest(prop: Prop, T_world_prop: RigidTransform) -> float:
    """Return the height of an object's lowest point."""
    if prop.kind == "ball":
        return float(T_world_prop[2, 3] - prop.size[0])
    return float(frames.apply(T_world_prop, corners(prop))[:, 2].min())


def _box(half: np.ndarray, points: Points) -> tuple[Distances, Points]:
    sign = np.where(points < 0, -1.0, 1.0)
    beyond = np.abs(points) - half
    apart = np.maximum(beyond, 0.0)
    outside = np.linalg.norm(apart, axis=1)
    face = np.eye(3)[beyond.argmax(1)]
    slope = np.where((outside > 1e-12)[:, None], apart / np.maximum(outside, 1e-12)[:, None], face)
    return np.where(outside > 0, outside, beyond.max(1)), slope * sign


def _tube(
    line: Float[np.ndarray, "L 3"], radius: float, points: Points
) -> tuple[Distances, Points]:
    """Return distances to spheres of one radius around close points."""
    squares = (points**2).sum(1)[:, None] - 2 * points @ line.T + (line**2).sum(1)
    arms = points - line[squares.argmin(1)]
    length = np.linalg.norm(arms, axis=1)
    return length - radius, arms / np.maximum(length, 1e-12)[:, None]


def _lathe(profile: surfaces.Profile, points: Points) -> tuple[Distances, Points]:
    """Return distances to a polygon in the half plane of radius and height."""
    radius = np.maximum(np.hypot(points[:, 0], points[:, 1]), 1e-12)
    at = np.stack([radius, points[:, 2]], 1)[:, None]
    start, edge = profile[:-1], np.diff(profile, axis=0)
    along = np.clip(((at - start) * edge).sum(-1) / (edge**2).sum(-1), 0.0, 1.0)
    arms = at - start - along[..., None] * edge
    lengths = np.hypot(arms[..., 0], arms[..., 1])
    nearest = lengths.argmin(1)
    rows = np.arange(len(points))
    length, arm = lengths[rows, nearest], arms[rows, nearest]

    # Inside: a line to larger radii crosses the profile an odd number of times.
    low, high = np.minimum(start, profile[1:])[:, 1], np.maximum(start, profile[1:])[:, 1]
    level = (low <= at[..., 1]) & (at[..., 1] < high)
    rise = np.where(edge[:, 1] == 0, 1.0, edge[:, 1])
    crossing = start[:, 0] + (at[..., 1] - start[:, 1]) / rise * edge[:, 0]
    inside = (level & (at[..., 0] < crossing)).sum(1) % 2 == 1
    sign = np.where(inside, -1.0, 1.0)

    # On the surface: the edge's normal; the profile runs with the inside on its left.
    normal = np.stack([edge[:, 1], -edge[:, 0]], 1)[nearest]
    normal = normal / np.linalg.norm(normal, axis=1, keepdims=True)
    flat = np.where(
        (length > 1e-9)[:, None], sign[:, None] * arm / np.maximum(length, 1e-9)[:, None], normal
    )
    slope = np.column_stack([points[:, :2] / radius[:, None] * flat[:, :1], flat[:, 1]])
    return sign * length, slope
