"""One hand of a robot: names, limits, couplings, controller units and model files.

Joint and command names have no side prefix here; in MJCF, URDF, datasets and ROS they are
``{side}_{name}``. Joint vectors (Q) follow ``joint_names``, command vectors (C) the vendor's
order, ``command_names``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from jaxtyping import Float

from acehand_core.errors import SchemaError
from acehand_core.types import Side
from acehand_core.user_files import NOT_IN_FILES, Valid, called, structured
from retarget.robots.parameters import (
    ZERO,
    Command,
    Material,
    Pairs,
    Positive,
    RobotFile,
    Simulation,
    Tracks,
    Vector,
)

# The body in a robot.yaml: links, shapes, tips and their MuJoCo parameters, from which
# ``tools.robot_models`` writes model files. Metres, radians, kilograms; rotations are roll, pitch,
# yaw about fixed axes, as in URDF.

ShapeKind = Literal["capsule", "cylinder", "sphere", "box"]
ROOT_LINK = "base"

_Axis = Annotated[
    Vector, Valid("a direction of length 1", lambda axis: abs(np.linalg.norm(axis) - 1) <= 1e-6)
]
_Size = Annotated[Vector, Valid("numbers greater than 0", lambda size: min(size) > 0)]

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

    link: str
    xyz: Vector
    name: str = field(default="", metadata=NOT_IN_FILES)


@dataclass(frozen=True, slots=True)
class HandBody:
    """Links, parents first, tips, and what the hand shares."""

    links: tuple[Link, ...]
    tips: tuple[Tip, ...]
    materials: dict[str, Material]
    no_contact: Pairs
    simulation: Simulation


@dataclass(frozen=True, slots=True, kw_only=True)
class _Solid:
    """A shape in a robot.yaml."""

    shape: ShapeKind
    center: Vector | None = None
    start: Vector | None = called("from")
    end: Vector | None = called("to")
    radius: Positive | None = None
    size: _Size | None = None
    rpy: Vector | None = None

    def __post_init__(self) -> None:
        needed = {"box": ("center", "size"), "sphere": ("center", "radius")}.get(
            self.shape, ("from", "to", "radius")
        )
        names = {"start": "from", "end": "to"}
        given = {names.get(f.name, f.name) for f in fields(_Solid) if getattr(self, f.name)}
        if given - {"shape", "rpy" if self.shape == "box" else ""} != {*needed}:
            raise SchemaError(f"a {self.shape} has {', '.join(needed)}; a box may have rpy, too.")
        if self.end is not None and self.start == self.end:
            raise SchemaError("to must differ from `from`.")

    def to_shape(self, material: str | None = None) -> Shape:
        start, radius = self.center or self.start or ZERO, self.radius or 0.0
        ends = self.end or ZERO, radius, self.size or ZERO, self.rpy or ZERO
        return Shape(self.shape, start, *ends, material)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Visual(_Solid):
    material: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _LinkEntry:
    """A link in a robot.yaml."""

    parent: str
    joint: str | None = None
    motion: Literal["hinge", "slide"] = "hinge"
    xyz: Vector
    rpy: Vector = ZERO
    axis: _Axis | None = None
    mass: Positive
    com: Vector | None = None
    visuals: tuple[_Visual, ...] = ()
    collisions: tuple[_Solid, ...] = ()

    def __post_init__(self) -> None:
        if self.joint is not None and self.axis is None:
            raise SchemaError("a link with a joint needs its axis.")

    def to_link(self, name: str) -> Link:
        return Link(
            name=name,
            parent=self.parent,
            joint=self.joint,
            xyz=self.xyz,
            rpy=self.rpy,
            axis=self.axis if self.joint and self.axis else (0.0, 0.0, 1.0),
            mass=self.mass,
            com=self.com,
            visuals=tuple(shape.to_shape(shape.material) for shape in self.visuals),
            collisions=tuple(shape.to_shape() for shape in self.collisions),
            slides=self.motion == "slide",
        )


def read_body(file: RobotFile, side: Side, joint_names: tuple[str, ...]) -> HandBody | None:
    """Read one side's body; None if the author's model files replace it. Raises SchemaError."""
    own, place = file.side(side), f"sides.{side}.links"
    if own.links is None:
        return None

    entries = structured(dict[str, _LinkEntry], own.links, file.path, "sides", side, "links")
    for number, (name, entry) in enumerate(entries.items()):
        file.choose(f"{place}.{name}.parent", entry.parent, [ROOT_LINK, *[*entries][:number]])
        if entry.joint is not None:
            file.choose(f"{place}.{name}.joint", entry.joint, joint_names)
        for shape in entry.visuals:
            file.choose(f"{place}.{name}.visuals: material", shape.material, file.materials)
    used = [entry.joint for entry in entries.values()]
    for joint in joint_names:
        if used.count(joint) != 1:
            problem = f"{joint!r} must move exactly one link, not {used.count(joint)}."
            file.fail(f"{place}: joint", problem)

    tips = structured(dict[str, Tip], own.tips, file.path, "sides", side, "tips")
    for name, tip in tips.items():
        file.choose(f"sides.{side}.tips.{name}.link", tip.link, entries)
    for pair in file.no_contact:
        for name in pair:
            file.choose("no_contact", name, entries)
    if file.simulation is None:
        file.fail("simulation", "is missing; links need it.")

    links = tuple(entry.to_link(name) for name, entry in entries.items())
    named_tips = tuple(replace(tip, name=name) for name, tip in tips.items())
    return HandBody(links, named_tips, file.materials, file.no_contact, file.simulation)


@dataclass(frozen=True, slots=True, eq=False)
class ControllerUnits:
    """Register values at the limits of the driven joints, integers if ``whole``."""

    lower: CommandVector
    upper: CommandVector
    at_lower: CommandVector
    at_upper: CommandVector
    unit: str
    whole: bool

    def to_registers(self, commands: CommandBatch) -> CommandBatch:
        """Return register values of driven angles, clipped to the limits."""
        share = np.clip((commands - self.lower) / (self.upper - self.lower), 0, 1)
        return self.at_lower + (self.at_upper - self.at_lower) * share

    def to_angles(self, registers: CommandBatch) -> CommandBatch:
        """Return driven angles of register values, clipped to the range."""
        share = np.clip((registers - self.at_lower) / (self.at_upper - self.at_lower), 0, 1)
        return self.lower + share * (self.upper - self.lower)


def read_controller_units(
    file: RobotFile, commands: Mapping[str, Command], lower: CommandVector, upper: CommandVector
) -> ControllerUnits:
    """Read the register of each command. Raises SchemaError.

    Either ``register_range`` with ``register_zero``, the joint limit at the range's first value; or
    ``offset + scale * angle`` by ``register_scale`` and ``register_offset``; otherwise the angle.
    """
    ends, plain = [], True
    for (name, entry), low, high in zip(commands.items(), lower, upper, strict=True):
        interval, scale, offset = (
            getattr(file, key) if getattr(entry, key) is None else getattr(entry, key)
            for key in ("register_range", "register_scale", "register_offset")
        )
        if entry.register_zero is interval is scale is offset is None:
            ends.append((low, high))
            continue
        plain = False
        if scale is not None and entry.register_zero is None:
            if scale == 0:
                file.fail(f"commands.{name}.register_scale", "must not be 0.")
            shift = 0.0 if offset is None else offset
            ends.append((shift + scale * low, shift + scale * high))
            continue
        if interval is None or entry.register_zero is None:
            missing = "register_range" if interval is None else f"commands.{name}.register_zero"
            file.fail(missing, "is missing.")
        ends.append(interval[::-1] if entry.register_zero == "upper" else interval)

    at_lower, at_upper = np.array(ends, float).T.copy()
    unit = file.register_unit or ("rad, m" if plain else "vendor register")
    return ControllerUnits(lower, upper, at_lower, at_upper, unit.strip(), file.register_whole)


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

    @property
    def frame_of_keypoint(self) -> dict[int, str]:
        """The robot's frame of each human keypoint that it follows."""
        return dict(zip(self.target_keypoints, self.target_frames, strict=True))

    def commands_at(self, share: CommandBatch) -> CommandBatch:
        """Return the driven angles at shares of their ranges, 0 to 1."""
        return self.command_lower + share * (self.command_upper - self.command_lower)

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
        limited = np.clip(commands, self.lower, self.upper)
        done = [] if history is None else list(history[-2:])

        bend = np.where(np.isfinite(self.bend), self.bend, 1e9)
        for frame in limited:
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
        return limited

    def allows(self, commands: Commands, history: Float[np.ndarray, "H C"] | None = None) -> bool:
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
