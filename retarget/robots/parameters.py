"""The content of a robot.yaml, whose entries ``robots/inspire/robot.yaml`` documents.

A side of a hand may mirror the other in the y of every link's frame; it then states only what
differs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

from acehand_core.errors import SchemaError, nearest
from acehand_core.hand.skeleton import FINGERS, KEYPOINT_NAMES
from acehand_core.types import Side
from acehand_core.user_files import NOT_IN_FILES, OneOf, Text, Valid, read_yaml, structured

Tracks = Literal["keypoints", "opening"]

Vector = tuple[float, float, float]
ZERO: Vector = (0.0, 0.0, 0.0)
Positive = Annotated[float, Valid("a number greater than 0", lambda number: number > 0)]
Interval = Annotated[
    tuple[float, float], Valid("[lower, upper], lower < upper", lambda ends: ends[0] < ends[1])
]
Pairs = tuple[tuple[str, str], ...]
#: Entries that are complete only with those of another table.
Changes = dict[str, dict[str, Any]]

#: Signs of vectors in the mirror y -> -y; rotation axes mirror unlike directions.
_DIRECTION = (1.0, -1.0, 1.0)
_TURN = (-1.0, 1.0, -1.0)
_SIGNS = dict.fromkeys(("xyz", "com", "from", "to", "center"), _DIRECTION) | {"rpy": _TURN}


@dataclass(frozen=True, slots=True)
class Joint:
    """A joint; ``follows`` is the driven joint that it is coupled to."""

    limits: Interval
    velocity: Positive = math.inf
    acceleration: Positive = math.inf
    follows: str | None = None
    factor: float = 1.0
    offset: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Register:
    """Values of a controller, of a command or of all."""

    register_range: Interval | None = None
    register_scale: float | None = None
    register_offset: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Command(Register):
    """A driven joint."""

    joint: str
    register_zero: Literal["lower", "upper"] | None = None
    tip_force: Positive = math.inf
    lever: Positive = 1.0
    torque: Positive | None = None
    rest: float | None = None


@dataclass(frozen=True, slots=True)
class Material:
    """Colour and gloss of visual shapes, 0..1."""

    rgba: tuple[float, float, float, float]
    specular: float
    shininess: float


@dataclass(frozen=True, slots=True)
class Simulation:
    """MuJoCo parameters of servos and couplings."""

    timestep: Positive
    stiffness: Positive
    damping: Positive
    armature: Positive
    coupled_armature: Positive
    coupled_damping: Positive
    coupling_solref: tuple[float, float]
    coupling_solimp: Vector
    contact_solref: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Files:
    """Names of model files."""

    mjcf: Text = "{side}.xml"
    urdf: Text = "{side}.urdf"


@dataclass(frozen=True, slots=True)
class RobotVariant:
    """What differs in a variant."""

    joints: Changes


@dataclass(frozen=True, slots=True)
class OneSide:
    """What belongs to one side."""

    joints: Changes = field(default_factory=dict)
    commands: Changes = field(default_factory=dict)
    links: Changes | None = None
    tips: Changes = field(default_factory=dict)
    model: dict[str, Any] | None = None
    mirror: Side | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotFile(Register):
    """A robot.yaml."""

    schema: Literal["acehand-robot/1"]
    name: Text
    title: Text
    license: Text
    source: Any = None
    files: Files = Files()
    joints: Changes
    commands: Changes
    register_unit: Text | None = None
    register_whole: bool = False
    latency: float = 0.0
    follows: Tracks = "keypoints"
    keypoints: dict[Annotated[str, OneOf(KEYPOINT_NAMES)], Text]
    dropped_fingers: tuple[Annotated[str, OneOf(FINGERS)], ...] | None = None
    variants: dict[str, RobotVariant] = field(default_factory=dict)
    simulation: Simulation | None = None
    materials: dict[str, Material] = field(default_factory=dict)
    no_contact: Pairs = ()
    sides: Annotated[dict[Side, OneSide], Valid("left, right or both", bool)]
    path: Path = field(default=Path(), metadata=NOT_IN_FILES)

    def fail(self, place: str, problem: str) -> NoReturn:
        """Raise a SchemaError about an entry."""
        raise SchemaError(f"{self.path}: {place} {problem}")

    def choose(self, place: str, name: str, valid: Iterable[str]) -> None:
        """Raise a SchemaError unless an entry is one of the valid names."""
        if name not in (valid := tuple(valid)):
            self.fail(place, f"is {name!r}; {nearest(name, valid)}")

    def merged(self, base: Changes, change: Changes, place: str) -> Changes:
        """Return ``base`` updated with the entries of ``change``, two levels deep."""
        for name in change:
            if name not in base:
                self.fail(f"{place}.{name}", f"is not known here; {nearest(name, base)}")
        return base | {name: base[name] | own for name, own in change.items()}

    def side(self, side: Side) -> OneSide:
        """Return one side's entry; ``mirror: OTHER`` takes the other's, mirrored, as defaults.

        Joints keep their names and signs: flexion is positive on both sides or on none.
        """
        own, place = self.sides[side], f"sides.{side}"
        if own.mirror is None:
            return own
        self.choose(f"{place}.mirror", own.mirror, self.sides.keys() - {side})
        other = self.sides[own.mirror]
        if other.mirror is not None:
            self.fail(f"{place}.mirror", f"is {own.mirror!r}, which is a mirror image itself.")

        links, tips = own.links, own.tips
        if other.links is not None:
            links = self.merged(_mirrored(other.links), links or {}, f"{place}.links")
        if other.tips:
            tips = self.merged(_mirrored(other.tips), tips, f"{place}.tips")
        return replace(own, links=links, tips=tips)


def read_robot_file(path: Path, hint: str) -> RobotFile:
    """Read a robot.yaml; ``hint`` completes messages. Raises InputError, SchemaError."""
    return replace(structured(RobotFile, read_yaml(path, hint), path), path=path)


def _mirrored(entry: Any) -> Any:
    """Return links, tips or a shape in the mirror; malformed values are left to the reader."""
    if isinstance(entry, list):
        return [_mirrored(item) for item in entry]
    if not isinstance(entry, dict):
        return entry
    signs = _SIGNS | {"axis": _DIRECTION if entry.get("motion") == "slide" else _TURN}
    image = {}
    for key, value in entry.items():
        image[key] = _mirrored(value)
        vector = key in signs and isinstance(value, list) and len(value) == 3
        if vector and all(isinstance(v, int | float) and not isinstance(v, bool) for v in value):
            image[key] = [v * s for v, s in zip(value, signs[key], strict=True)]
    return image
