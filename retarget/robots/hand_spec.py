"""One hand of a robot: names, limits, couplings, controller units and model files.

Joint and command names have no side prefix here; in MJCF, URDF, datasets and ROS they are
``{side}_{name}``. Joint vectors (Q) follow ``joint_names``, command vectors (C) the vendor's
order, ``command_names``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Float

from acehand_core.types import Side
from retarget.robots.parameters import Section, unmirrored

# The body in a robot.yaml: links, shapes, tips and their MuJoCo parameters, from which
# ``tools.robot_models`` writes model files. Metres, radians, kilograms; rotations are roll, pitch,
# yaw about fixed axes, as in URDF.

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
    """A rigid part in its parent's frame; a joint, if any, turns about or slides along ``axis``."""

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
    """Colour and gloss of visual shapes, 0..1."""

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
    """Links, parents first, tips, and what the hand shares."""

    links: tuple[Link, ...]
    tips: tuple[Tip, ...]
    materials: dict[str, Material]
    no_contact: tuple[tuple[str, str], ...]
    simulation: Simulation


def read_body(root: Section, side: Side, joint_names: tuple[str, ...]) -> HandBody | None:
    """Read one side's body; None if the author's model files replace it. Raises SchemaError."""
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
    keys = [key.name for key in fields(Simulation)]
    entry.only(" ".join(keys))
    sizes = {"coupling_solref": 2, "coupling_solimp": 3, "contact_solref": 2}
    values: dict[str, Any] = {
        key: entry.vector(key, sizes[key]) if key in sizes else entry.positive(key) for key in keys
    }
    return HandBody(tuple(links), tuple(tips), materials, no_contact, Simulation(**values))


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
    material = entry.choice("material", materials) if materials is not None else None
    own = {"box": "center size rpy", "sphere": "center radius"}.get(kind, "from to radius")
    entry.only(f"shape {own}" + ("" if materials is None else " material"))
    if kind == "box":
        size = entry.vector("size", 3)
        if min(size) <= 0:
            entry.fail("size", f"must be greater than 0, not {list(size)}.")
        rpy = entry.vector("rpy", 3, (0.0, 0.0, 0.0))
        return Shape(kind, entry.vector("center", 3), size=size, rpy=rpy, material=material)

    radius = entry.positive("radius")
    if kind == "sphere":
        return Shape(kind, entry.vector("center", 3), radius=radius, material=material)
    start, end = entry.vector("from", 3), entry.vector("to", 3)
    if start == end:
        entry.fail("to", "must differ from `from`.")
    return Shape(kind, start, end, radius, material=material)


Tracks = Literal["keypoints", "opening"]

JointVector = Float[np.ndarray, "Q"]
CommandVector = Float[np.ndarray, "C"]
Joints = Float[np.ndarray, "*batch Q"]
CommandBatch = Float[np.ndarray, "*batch C"]
Commands = Float[np.ndarray, "T C"]

#: Rounding tolerated beyond the limits (rad or m; relative for rates).
ANGLE_EPS = 1e-6
SPEED_EPS = 1e-6
#: Shares of the limits left unused, so that rounding to float32 does not exceed them.
SPEED_MARGIN = 1e-4
ACCELERATION_MARGIN = 1e-3
#: Keys of a command, or of the file for all commands.
KEYS = "register_range register_zero register_scale register_offset"


@dataclass(frozen=True, slots=True, eq=False)
class ControllerUnits:
    """Register values at the limits of the driven joints, integers if ``whole``."""

    lower: CommandVector
    upper: CommandVector
    at_lower: CommandVector
    at_upper: CommandVector
    unit: str
    whole: bool

    def of(self, commands: CommandBatch) -> CommandBatch:
        """Return register values of driven angles, clipped to the limits."""
        share = np.clip((commands - self.lower) / (self.upper - self.lower), 0, 1)
        return self.at_lower + (self.at_upper - self.at_lower) * share

    def inverse(self, registers: CommandBatch) -> CommandBatch:
        """Return driven angles of register values, clipped to the range."""
        share = np.clip((registers - self.at_lower) / (self.at_upper - self.at_lower), 0, 1)
        return self.lower + share * (self.upper - self.lower)


def read_controller_units(
    root: Section, commands: Section, lower: CommandVector, upper: CommandVector
) -> ControllerUnits:
    """Read the register of each command. Raises SchemaError.

    Either ``register_range`` with ``register_zero``, the joint limit at the range's first value; or
    ``offset + scale * angle`` by ``register_scale`` and ``register_offset``; otherwise the angle.
    """
    ends, plain = [], True
    for name, low, high in zip(commands, lower, upper, strict=True):
        entry = commands.section(name)
        if not any(key in entry or key in root for key in KEYS.split()):
            ends.append((low, high))
            continue
        plain = False
        linear = "register_scale" in entry or "register_scale" in root
        if linear and "register_zero" not in entry:
            scale = entry.number("register_scale", root.number("register_scale", 0.0))
            offset = entry.number("register_offset", root.number("register_offset", 0.0))
            if scale == 0:
                entry.fail("register_scale", "must not be 0.")
            ends.append((offset + scale * low, offset + scale * high))
            continue
        first, last = (entry if "register_range" in entry else root).interval("register_range")
        inverted = entry.choice("register_zero", ("lower", "upper")) == "upper"
        ends.append((last, first) if inverted else (first, last))

    at_lower, at_upper = np.array(ends, float).T.copy()
    unit = root.text("register_unit", "rad, m" if plain else "vendor register")
    whole = root.flag("register_whole", False)
    return ControllerUnits(lower, upper, at_lower, at_upper, unit, whole)


@dataclass(frozen=True, slots=True, eq=False)
class HandSpec:
    """One hand of a robot. Radians (metres of slides), rad/s, N m.

    ``lower``, ``upper`` limit all joints; the ``command_*`` limits of the driven joints also keep
    coupled joints within theirs. ``joints = coupling @ commands + coupling_offset``.

    ``target_frames[i]`` is the link or tip that follows human keypoint ``target_keypoints[i]``
    (OpenPose index); ``tip_names`` are the tips of ``fingers``, thumb first. ``tracks`` is
    "keypoints", or "opening" for a gripper, which follows the distance of thumb and index only.

    ``body`` is None if the model files are not generated from it. ``user_model`` is the user's file
    that replaces them: ``user_joints`` are its joint names with -1 for an opposite sense,
    ``user_rpy`` turns its root link in the base frame. ``calibration_path`` is the file of the
    robot's own calibration, if any.
    """

    robot: str
    side: Side
    variant: str
    joint_names: tuple[str, ...]
    lower: JointVector
    upper: JointVector
    command_names: tuple[str, ...]
    command_joints: tuple[str, ...]
    command_lower: CommandVector
    command_upper: CommandVector
    command_velocity: CommandVector
    command_acceleration: CommandVector
    command_torque: CommandVector
    rest: CommandVector
    coupling: Float[np.ndarray, "Q C"]
    coupling_offset: JointVector
    controller: ControllerUnits
    latency_s: float
    tracks: Tracks
    fingers: tuple[str, ...]
    tip_names: tuple[str, ...]
    target_keypoints: tuple[int, ...]
    target_frames: tuple[str, ...]
    mjcf_path: Path
    urdf_path: Path
    body: HandBody | None = field(repr=False)
    user_model: Path | None = None
    user_joints: tuple[tuple[str, int], ...] = ()
    user_rpy: tuple[float, ...] | None = None
    calibration_path: Path | None = None

    def full_name(self, name: str) -> str:
        """Return a joint, command, link or tip name with its side, as in model files."""
        return f"{self.side}_{name}"

    def expand(self, commands: CommandBatch) -> Joints:
        """Return all joints for driven angles."""
        return commands @ self.coupling.T + self.coupling_offset

    def reduce(self, joints: Joints) -> CommandBatch:
        """Return the driven angles of all joints."""
        return joints[..., [self.joint_names.index(name) for name in self.command_joints]]

    def coupling_residual(self, joints: Joints) -> float:
        """Return the largest deviation of a coupled joint from ``factor * q_driven + offset``."""
        return float(np.abs(joints - self.expand(self.reduce(joints))).max(initial=0.0))


@dataclass(frozen=True, slots=True)
class CommandLimits:
    """Bounds of driven joints for commands ``1 / fps`` apart; ``fps`` 0: unordered frames.

    ``step`` and ``bend`` are the largest first and second differences, rad.
    """

    lower: Float[np.ndarray, "C"]
    upper: Float[np.ndarray, "C"]
    step: Float[np.ndarray, "C"]
    bend: Float[np.ndarray, "C"]
    fps: float

    @classmethod
    def of(cls, hand: HandSpec, fps: float) -> CommandLimits:
        """Return the limits of a hand commanded at a fixed rate."""
        step = hand.command_velocity / fps * (1 - SPEED_MARGIN)
        bend = hand.command_acceleration / fps**2 * (1 - ACCELERATION_MARGIN)
        return cls(hand.command_lower, hand.command_upper, step, bend, fps)

    def without_rate(self) -> CommandLimits:
        """Return the same bounds for unordered frames."""
        free = np.full_like(self.step, np.inf)
        return CommandLimits(self.lower, self.upper, free, free, 0.0)

    def every(self, stride: int) -> CommandLimits:
        """Return the limits of every stride-th frame."""
        fps = self.fps / stride
        return CommandLimits(self.lower, self.upper, self.step * stride, self.bend * stride**2, fps)

    def enforce(
        self, commands: Commands, history: Float[np.ndarray, "H C"] | None = None
    ) -> Commands:
        """Return commands that keep every limit exactly, each as close as possible.

        A forward pass from ``history``, the last one or two finished frames; a joint approaches its
        bound only as fast as it can still brake.
        """
        kept = np.clip(commands, self.lower, self.upper)
        done = [] if history is None else list(history[-2:])

        bend = np.where(np.isfinite(self.bend), self.bend, 1e9)
        for frame in kept:
            if done:
                last = done[-1]
                high = np.minimum(self.step, _fastest(self.upper - last, bend))
                low = -np.minimum(self.step, _fastest(last - self.lower, bend))
                if len(done) > 1:
                    speed = last - done[-2]
                    # Bounds by earlier frames win: rounding must not cross the two.
                    high = np.maximum(np.minimum(high, speed + bend), speed - bend)
                    low = np.minimum(np.maximum(low, speed - bend), speed + bend)
                np.clip(frame, last + low, last + high, out=frame)
                np.clip(frame, self.lower, self.upper, out=frame)
            done = [*done[-1:], frame]
        return kept

    def kept_by(self, commands: Commands, history: Float[np.ndarray, "H C"] | None = None) -> bool:
        """Whether commands after ``history`` keep all limits, with the margins as tolerance."""
        if (commands < self.lower).any() or (commands > self.upper).any():
            return False
        if self.fps == 0:
            return True
        path = commands if history is None else np.concatenate([history[-2:], commands])
        step = np.abs(np.diff(path, axis=0)) <= self.step * (1 + SPEED_MARGIN / 2)
        bend = np.abs(np.diff(path, 2, axis=0)) <= self.bend * (1 + ACCELERATION_MARGIN / 2)
        return bool(step.all() and bend.all())


def limit_violations(hand: HandSpec, joints: Float[np.ndarray, "T Q"]) -> int:
    """Count joint-frames outside the limits, coupled joints included."""
    outside = (joints < hand.lower - ANGLE_EPS) | (joints > hand.upper + ANGLE_EPS)
    return int(outside.sum())


def speed_violations(
    hand: HandSpec, commands: Commands, fps: float | Float[np.ndarray, "S"]
) -> int:
    """Count driven joint-frames above the speed limit at one rate, or at a rate per step."""
    rate = np.broadcast_to(fps, max(0, len(commands) - 1))[:, None]
    step = np.abs(np.diff(commands, axis=0))
    return int((step > hand.command_velocity / rate * (1 + SPEED_EPS)).sum())


def _fastest(room: Float[np.ndarray, "C"], bend: Float[np.ndarray, "C"]) -> np.ndarray:
    """Return the largest step from which steps shrinking by ``bend`` stop within ``room``.

    Steps v, v - b, v - 2 b, ... sum to (n + 1) v - b n (n + 1) / 2 with n = floor(v / b).
    """
    room = np.maximum(room, 0.0)
    n = np.floor((np.sqrt(1 + 8 * room / bend) - 1) / 2)
    return (room + bend * n * (n + 1) / 2) / (n + 1)
