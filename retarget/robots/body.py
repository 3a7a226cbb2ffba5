"""The physical side of a robot.yaml: links, shapes, tips and how they behave in MuJoCo.

Model files are written from this by ``tools.robot_models``. Metres, radians, kilograms;
rotations are roll, pitch, yaw about fixed axes, as in URDF.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from acehand_core.types import Side
from retarget.robots.parameters import Section, unmirrored

Vector = tuple[float, ...]
ShapeKind = Literal["capsule", "cylinder", "sphere", "box"]
ROOT_LINK = "base"
MOTIONS = ("hinge", "slide")


@dataclass(frozen=True, slots=True)
class Shape:
    """A primitive: sphere at ``start``; capsule or cylinder from ``start`` to ``end``; box at
    ``start`` with full lengths ``size`` turned by ``rpy``. Frame: its link's."""

    kind: ShapeKind
    start: Vector
    end: Vector = (0.0, 0.0, 0.0)
    radius: float = 0.0
    size: Vector = (0.0, 0.0, 0.0)
    rpy: Vector = (0.0, 0.0, 0.0)
    material: str | None = None


@dataclass(frozen=True, slots=True)
class Link:
    """A rigid part and the joint (None: fixed) that carries it, placed in the parent's frame.

    The joint turns about ``axis`` (this link's frame), or slides along it.
    """

    name: str
    parent: str
    joint: str | None
    xyz: Vector
    rpy: Vector
    axis: Vector
    mass: float
    com: Vector | None
    visuals: tuple[Shape, ...]
    collisions: tuple[Shape, ...]
    slides: bool = False


@dataclass(frozen=True, slots=True)
class Tip:
    """A point fixed to a link."""

    name: str
    link: str
    xyz: Vector


@dataclass(frozen=True, slots=True)
class Material:
    """Colour and gloss of visual shapes; all values 0..1."""

    rgba: Vector
    specular: float
    shininess: float


@dataclass(frozen=True, slots=True)
class Simulation:
    """MuJoCo parameters of servos and couplings; units in robot.yaml."""

    timestep: float
    stiffness: float
    damping: float
    armature: float
    coupled_armature: float
    coupled_damping: float
    coupling_solref: Vector
    coupling_solimp: Vector
    contact_solref: Vector


@dataclass(frozen=True, slots=True)
class HandBody:
    """Links in an order in which parents come first, tips, and what the whole hand shares."""

    links: tuple[Link, ...]
    tips: tuple[Tip, ...]
    materials: dict[str, Material]
    no_contact: tuple[tuple[str, str], ...]
    simulation: Simulation

    def frame_names(self) -> tuple[str, ...]:
        """Return every link and tip."""
        return (*(link.name for link in self.links), *(tip.name for tip in self.tips))


def read_body(root: Section, side: Side, joint_names: tuple[str, ...]) -> HandBody | None:
    """Read one side's body, or None if the file leaves the model files to their author.

    Raises:
        SchemaError: wrong, missing or unknown keys; a link without a known parent; a joint that no
            link or more than one link uses.
    """
    own = unmirrored(root.section("sides"), side)
    materials, colours = {}, root.section("materials", optional=True)
    for name in colours:
        entry = colours.section(name)
        entry.only("rgba specular shininess")
        rgba = entry.vector("rgba", 4)
        materials[name] = Material(rgba, entry.number("specular"), entry.number("shininess"))

    if "links" not in own:
        return None
    table = own.section("links")

    links: list[Link] = []
    for name in table:
        parents = [ROOT_LINK, *(link.name for link in links)]
        links.append(_read_link(table.section(name), name, parents, joint_names, materials))

    used = [link.joint for link in links if link.joint]
    for joint in joint_names:
        if used.count(joint) != 1:
            table.fail("joint", f"{joint!r} must move exactly one link, not {used.count(joint)}.")

    names = [link.name for link in links]
    tips, table = [], own.section("tips", optional=True)
    for name in table:
        entry = table.section(name)
        entry.only("link xyz")
        tips.append(Tip(name, entry.choice("link", names), entry.vector("xyz", 3)))

    no_contact = root.pairs("no_contact", names)
    entry = root.section("simulation")
    scalars = ("timestep", "stiffness", "damping", "armature", "coupled_armature",
               "coupled_damping")  # fmt: skip
    entry.only(" ".join((*scalars, "coupling_solref", "coupling_solimp", "contact_solref")))
    simulation = Simulation(
        **{name: entry.positive(name) for name in scalars},
        coupling_solref=entry.vector("coupling_solref", 2),
        coupling_solimp=entry.vector("coupling_solimp", 3),
        contact_solref=entry.vector("contact_solref", 2),
    )
    return HandBody(tuple(links), tuple(tips), materials, no_contact, simulation)


def _read_link(
    entry: Section,
    name: str,
    parents: list[str],
    joints: tuple[str, ...],
    materials: dict[str, Material],
) -> Link:
    entry.only("parent joint motion xyz rpy axis mass com visuals collisions")
    joint = entry.choice("joint", joints) if "joint" in entry else None
    axis = entry.vector("axis", 3) if joint else (0.0, 0.0, 1.0)
    if abs(np.linalg.norm(axis) - 1) > 1e-6:
        entry.fail("axis", f"must have length 1, not {np.linalg.norm(axis):.6g}.")

    return Link(
        name=name,
        parent=entry.choice("parent", parents),
        joint=joint,
        xyz=entry.vector("xyz", 3),
        rpy=entry.vector("rpy", 3, (0.0, 0.0, 0.0)),
        axis=axis,
        mass=entry.positive("mass"),
        com=entry.vector("com", 3) if "com" in entry else None,
        visuals=tuple(_read_shape(s, materials) for s in entry.sections("visuals")),
        collisions=tuple(_read_shape(s, None) for s in entry.sections("collisions")),
        slides="motion" in entry and entry.choice("motion", MOTIONS) == "slide",
    )


def _read_shape(entry: Section, materials: dict[str, Material] | None) -> Shape:
    kind: ShapeKind = entry.choice("shape", get_args(ShapeKind))
    colour = "" if materials is None else " material"

    material = entry.choice("material", materials) if materials is not None else None
    if kind == "box":
        entry.only("shape center size rpy" + colour)
        size = entry.vector("size", 3)
        if min(size) <= 0:
            entry.fail("size", f"must be greater than 0, not {list(size)}.")
        rpy = entry.vector("rpy", 3, (0.0, 0.0, 0.0))
        return Shape(kind, entry.vector("center", 3), size=size, rpy=rpy, material=material)

    radius = entry.positive("radius")
    if kind == "sphere":
        entry.only("shape center radius" + colour)
        return Shape(kind, entry.vector("center", 3), radius=radius, material=material)

    entry.only("shape from to radius" + colour)
    start, end = entry.vector("from", 3), entry.vector("to", 3)
    if start == end:
        entry.fail("to", "must differ from `from`.")

    return Shape(kind, start, end, radius, material=material)
