"""What stands in a scene beside the hands: lights, room, table and objects, as MuJoCo knows them.

World frame: z up, table top at z = 0, y away from the person, x to the person's right; metres.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from acehand_core.synthetic import surfaces

PropKind = Literal["box", "mug", "can", "bottle", "bowl", "ball", "stick"]


@dataclass(frozen=True, slots=True)
class Prop:
    """A movable object, metres.

    ``size``: half edges of a box; radius, height and wall of a mug; radius, height and (unused) of
    a can, bottle or bowl, which stand on their origin; radius first of a ball; radius and half
    length of a stick, which lies along z. ``pattern`` names a picture of ``surfaces.PATTERNS``
    that is wrapped around it; "" is plain.
    """

    name: str
    kind: PropKind
    size: tuple[float, float, float]
    colour: surfaces.Colour
    pattern: str = ""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Light:
    """A far light: where it shines to, its colour, whether it casts shadows."""

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
    """A closed room around the table: half width, distance of the far wall, heights, surfaces.

    A surface is a pattern's name and a colour. ``furniture``: boxes that never move, as (half
    edges, centre, colour).
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


def add_lights(mujoco: Any, spec: Any, lights: tuple[Light, ...]) -> None:
    """Add far lights."""
    for light in lights:
        far = spec.worldbody.add_light(type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL)
        far.pos, far.dir = list(light.position), list(light.direction)
        far.diffuse, far.specular = list(light.diffuse), [light.specular] * 3
        far.castshadow = light.shadow


def add_room(mujoco: Any, spec: Any, room: Room, seed: int) -> None:
    """Add floor, four walls, ceiling, table top and furniture."""
    for offset, name in enumerate(("table", "floor", "wall")):
        pattern, colour = getattr(room, name)
        picture = surfaces.PATTERNS[pattern](seed + offset, colour=colour)
        repeat = {"table": (2, 2), "floor": (4, 4), "wall": (3, 2)}[name]
        add_material(mujoco, spec, name, picture=picture, repeat=repeat, specular=0.1)
    world, plane, box = spec.worldbody, mujoco.mjtGeom.mjGEOM_PLANE, mujoco.mjtGeom.mjGEOM_BOX
    half, middle = room.half_width, 0.5 * (room.floor_z + room.ceiling_z)
    back = -1.2  # behind the person
    depth = 0.5 * (room.depth - back)
    centre = 0.5 * (room.depth + back)
    tall = 0.5 * (room.ceiling_z - room.floor_z)
    x, y = room.table_half
    world.add_geom(type=box, size=[x, y, 0.02], pos=[0, y - 0.2, -0.02], material="table")
    world.add_geom(type=plane, size=[half, depth, 0.01], pos=[0, centre, room.floor_z],
                   material="floor")  # fmt: skip
    walls = (
        # normal, centre, half sizes
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
            type=plane, size=[*size, 0.01], pos=list(position), quat=quaternion, material="wall"
        )
    for number, (edges, position, colour) in enumerate(room.furniture):
        add_material(mujoco, spec, f"furniture{number}", rgba=colour, specular=0.1)
        world.add_geom(
            type=box, size=list(edges), pos=list(position), material=f"furniture{number}"
        )


def add_prop(mujoco: Any, spec: Any, prop: Prop) -> None:
    """Add an object as a body that is moved from outside."""
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
    elif prop.kind == "stick":
        body.add_geom(type=geom.mjGEOM_CAPSULE, size=list(prop.size), material=prop.name)
    else:
        add_solid(mujoco, spec, prop.name, surfaces.SOLIDS[prop.kind](*prop.size))
        body.add_geom(type=geom.mjGEOM_MESH, meshname=prop.name, material=prop.name)


def add_solid(mujoco: Any, spec: Any, name: str, solid: surfaces.Solid) -> None:
    """Add a mesh."""
    vertices, faces = solid
    mesh = spec.add_mesh(name=name)
    mesh.uservert, mesh.userface = vertices.ravel(), faces.ravel()
    mesh.inertia = mujoco.mjtMeshInertia.mjMESH_INERTIA_SHELL


def add_material(mujoco: Any, spec: Any, name: str, *, rgba: Any = (1, 1, 1), picture: Any = None,
                 wrapped: Any = None, repeat: tuple[int, int] = (1, 1), specular: float = 0.3,
                 shininess: float = 0.3) -> None:  # fmt: skip
    """Add a material: of one colour, with a ``picture`` laid on, or ``wrapped`` in a square one."""
    material = spec.add_material(name=name)
    material.rgba = [*(rgba if picture is None and wrapped is None else (1, 1, 1)), 1.0]
    material.specular, material.shininess = specular, shininess
    if picture is None and wrapped is None:
        return
    texture = spec.add_texture(name=name)
    kinds = mujoco.mjtTexture
    texture.type = kinds.mjTEXTURE_2D if wrapped is None else kinds.mjTEXTURE_CUBE
    data = picture if wrapped is None else np.concatenate([wrapped] * 6)
    texture.height, texture.width, texture.nchannel = (*data.shape[:2], 3)
    texture.data = data.tobytes()
    material.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = name
    material.texrepeat = list(repeat)
