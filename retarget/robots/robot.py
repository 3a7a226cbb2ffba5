"""Robots: which there are, and what a robot.yaml says of one and of each of its hands.

The file's schema is documented at the top of ``robots/inspire/robot.yaml``.
"""

from __future__ import annotations

import importlib.resources
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from acehand_core import plugins
from acehand_core.errors import InputError, nearest
from acehand_core.hand.skeleton import FINGERS, KEYPOINT_NAMES
from acehand_core.types import SIDES, Hands, Side
from retarget.robots.hand_spec import (
    KEYS,
    HandBody,
    HandSpec,
    Tracks,
    read_body,
    read_controller_units,
)
from retarget.robots.parameters import Section, merged, read_yaml, unmirrored

#: Who follows hands where nobody says it.
DEFAULT_ROBOT = "inspire"


def _joint_table(root: Section, side: Side, changes: Section | None) -> Section:
    """Return the joints of one side with the changes of that side and of a variant applied."""
    table = root.section("joints")
    own = root.section("sides").section(side).section("joints", optional=True)
    for change in (own, changes):
        if change is not None:
            change.known(table, "a joint")
            table = merged(table, change)
    return table


def read_hand(root: Section, side: Side, variant: str, changes: Section | None) -> HandSpec:
    """Return one side of a robot.yaml; ``changes`` are those of a variant. Raises SchemaError."""
    joints = _joint_table(root, side, changes)
    names = tuple(joints)
    limits = np.array([joints.section(n).interval("limits") for n in names])
    own = unmirrored(root.section("sides"), side)
    commands = root.section("commands")
    changed = own.section("commands", optional=True)
    changed.known(commands)
    commands = merged(commands, changed)
    driven = tuple(commands.section(c).choice("joint", names) for c in commands)
    factor, offset = _couplings(joints, names, commands, driven)
    low, high = _command_limits(joints, names, limits, factor, offset, driven)
    body = read_body(root, side, names)
    keypoints, frames = _targets(root, body)
    tips = dict(zip(keypoints, frames, strict=True))
    fingers = _fingers(root, tips)
    tracks: Tracks = root.choice("follows", get_args(Tracks)) if "follows" in root else "keypoints"
    entries = [commands.section(name) for name in commands]
    for entry in entries:
        entry.only(f"joint tip_force lever torque rest {KEYS}")
    for name in names:
        joints.section(name).only("limits velocity acceleration follows factor offset")

    return HandSpec(
        robot=root.text("name"),
        side=side,
        variant=variant,
        joint_names=names,
        lower=limits[:, 0],
        upper=limits[:, 1],
        command_names=tuple(commands),
        command_joints=driven,
        command_lower=low,
        command_upper=high,
        command_velocity=_command_rate(joints, names, factor, "velocity"),
        command_acceleration=_command_rate(joints, names, factor, "acceleration"),
        command_torque=np.array(
            [
                e.positive("torque", e.positive("tip_force", np.inf) * e.positive("lever", 1.0))
                for e in entries
            ]
        ),
        rest=_rest(entries, low, high),
        coupling=factor,
        coupling_offset=offset,
        controller=read_controller_units(root, commands, low, high),
        latency_s=root.number("latency", 0.0),
        tracks=tracks,
        fingers=fingers,
        tip_names=tuple(tips[KEYPOINT_NAMES.index(f"{f}_tip")] for f in fingers),
        target_keypoints=keypoints,
        target_frames=frames,
        mjcf_path=_model_path(root, "mjcf", side, variant),
        urdf_path=_model_path(root, "urdf", side, variant),
        body=body,
        calibration_path=_of_variant(root.file.with_name("calibration.json"), variant),
    )


def _model_path(root: Section, kind: Literal["mjcf", "urdf"], side: Side, variant: str) -> Path:
    """Return the path of a model file beside robot.yaml."""
    usual = {"mjcf": "{side}.xml", "urdf": "{side}.urdf"}[kind]
    name = root.section("files", optional=True).text(kind, usual).replace("{side}", side)
    return _of_variant(root.file.parent / name, variant)


def _of_variant(path: Path, variant: str) -> Path:
    """Return the path with ``-{variant}`` before the suffix unless that is the default one."""
    return path if variant == "default" else path.with_name(f"{path.stem}-{variant}{path.suffix}")


def _couplings(
    joints: Section, names: tuple[str, ...], commands: Section, driven: tuple[str, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the (Q, C) factors and (Q,) offsets of ``joints = factor @ commands + offset``."""
    factor, offset = np.zeros((len(names), len(driven))), np.zeros(len(names))
    for command, joint in zip(commands, driven, strict=True):
        if "follows" in joints.section(joint):
            commands.section(command).fail("joint", f"is {joint!r}, which follows another joint.")
        if factor[names.index(joint)].any():
            commands.section(command).fail("joint", f"is {joint!r}, driven by two commands.")
        factor[names.index(joint), driven.index(joint)] = 1.0

    for row, name in enumerate(names):
        entry = joints.section(name)
        if "follows" in entry:
            column = driven.index(entry.choice("follows", driven))
            factor[row, column] = entry.number("factor", 1.0)
            offset[row] = entry.number("offset", 0.0)
        elif name not in driven:
            joints.fail(name, "is driven by no command and follows no joint.")

    return factor, offset


def _command_limits(
    joints: Section,
    names: tuple[str, ...],
    limits: np.ndarray,
    factor: np.ndarray,
    offset: np.ndarray,
    driven: tuple[str, ...],
) -> tuple[np.ndarray, np.ndarray]:
    """Intersect each driven joint's limits with what its coupled joints allow."""
    low, high = np.full(len(driven), -np.inf), np.full(len(driven), np.inf)
    for (lower, upper), row, shift in zip(limits, factor, offset, strict=True):
        for column in np.flatnonzero(row):
            ends = np.sort((np.array([lower, upper]) - shift) / row[column])
            low[column], high[column] = max(low[column], ends[0]), min(high[column], ends[1])
    # With a factor of 0 a joint stands still at its offset.
    for name, (lower, upper), row, shift in zip(names, limits, factor, offset, strict=True):
        if not row.any() and not lower <= shift <= upper:
            joints.section(name).fail("offset", f"is {shift:g}, beyond its limits.")
    for column in np.flatnonzero(low >= high):
        joints.section(driven[column]).fail(
            "limits", "leave no angle at which every coupled joint is within its own limits."
        )
    return low, high


def _rest(entries: list[Section], low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return the idle pose: as given, within the limits, else the angles nearest to 0."""
    rest = [entry.number("rest", 0.0) for entry in entries]
    for entry, angle, lower, upper in zip(entries, rest, low, high, strict=True):
        if "rest" in entry and not lower <= angle <= upper:
            entry.fail("rest", f"is {angle:g}, beyond its joint's [{lower:g}, {upper:g}].")
    return np.clip(rest, low, high)


def _command_rate(
    joints: Section, names: tuple[str, ...], factor: np.ndarray, key: str
) -> np.ndarray:
    """Return the largest rate of each driven joint, given those of the joints it moves."""
    rates = np.array([joints.section(name).positive(key, np.inf) for name in names])
    with np.errstate(divide="ignore"):
        return (rates[:, None] / np.abs(factor)).min(axis=0)


def _fingers(root: Section, tips: Mapping[int, str]) -> tuple[str, ...]:
    """Return the human fingers that have a robot tip; what the file says of the others must fit."""
    fingers = tuple(f for f in FINGERS if KEYPOINT_NAMES.index(f"{f}_tip") in tips)
    dropped = root.choices("dropped_fingers", FINGERS)
    if "dropped_fingers" in root and {*dropped} != {*FINGERS} - {*fingers}:
        root.fail(
            "dropped_fingers",
            f"are {', '.join(dropped) or 'none'}, but keypoints has tips for {', '.join(fingers)}.",
        )
    return fingers


def _targets(root: Section, body: HandBody | None) -> tuple[tuple[int, ...], tuple[str, ...]]:
    table = root.section("keypoints")
    table.known(KEYPOINT_NAMES, "a keypoint")
    if body is not None:
        for name in table:
            table.choice(name, body.frame_names())
    indices = sorted(KEYPOINT_NAMES.index(name) for name in table)
    return tuple(indices), tuple(table.text(KEYPOINT_NAMES[i]) for i in indices)


SCHEMA = "acehand-robot/1"
_HOW_TO_BEGIN = (
    f" A robot.yaml begins with `schema: {SCHEMA}` (docs/robots.md); `acehand robots init` drafts "
    "one for an MJCF or URDF."
)
MODELS_VARIABLE = "ACEHAND_ROBOT_MODELS"
OURS: Literal["ours"] = "ours"


@dataclass(frozen=True, slots=True, eq=False)
class Robot:
    """A robot hand model with one or two sides; ``license`` is a note for provenance."""

    name: str
    title: str
    license: str
    variant: str
    variants: tuple[str, ...]
    path: Path
    hands: Mapping[Side, HandSpec]

    @property
    def label(self) -> str:
        """The name, with the variant after a colon unless it is the default one."""
        return self.name if self.variant == "default" else f"{self.name}:{self.variant}"

    def hand(self, side: Side) -> HandSpec:
        """Return one side's hand; InputError if this robot has no such side."""
        if side not in self.hands:
            raise InputError(f"Robot {self.name!r} has no {side} hand; {nearest(side, self.hands)}")
        return self.hands[side]

    def hands_to_follow(self, asked: Hands | None) -> Hands:
        """Return which human hands it is to follow: those asked for, None: those that it has.

        Raises:
            InputError: it lacks one that is asked for.
        """
        if len(self.hands) == len(SIDES):
            return asked or "both"
        (there,) = self.hands
        if asked not in (None, there):
            raise InputError(
                f"--hands {asked}: robot {self.label!r} has a {there} hand only; "
                f"give --hands {there}."
            )
        return there


def _robot_folders() -> dict[str, tuple[Path, bool]]:
    """Return the folders of robots by name, with whether each comes with this package."""
    found: dict[str, tuple[Path, bool]] = {}
    for plugin in plugins.names("robots"):
        root = Path(str(importlib.resources.files(plugins.load("robots", plugin))))
        ours = plugins.is_ours("robots", plugin)
        for folder in sorted(root.iterdir()):
            if (folder / "robot.yaml").is_file():
                found.setdefault(folder.name, (folder, ours))
    return found


def robot_names() -> tuple[str, ...]:
    """Return the robots of this package and of plug-ins."""
    return tuple(sorted(_robot_folders()))


def comes_with_us(name: str) -> bool:
    """Whether a name is that of a robot of this package."""
    return name in _robot_folders() and _robot_folders()[name][1]


def is_packaged(robot: Robot) -> bool:
    """Whether a robot comes with this package."""
    return comes_with_us(robot.name) and robot.path == find_robot_file(robot.name)


def find_robot_file(name_or_path: str | Path) -> Path:
    """Return the robot.yaml of an installed robot, or of a file or folder given as a path."""
    if str(name_or_path) in _robot_folders():
        return _robot_folders()[str(name_or_path)][0] / "robot.yaml"
    path = Path(name_or_path)
    if path.is_dir() and (path / "robot.yaml").is_file():
        return path / "robot.yaml"
    if path.is_file():
        return path
    looks_like_path = path.suffix in (".yaml", ".yml") or len(path.parts) > 1
    where = "There is no such robot file or folder" if looks_like_path else "Unknown robot"
    raise InputError(
        f"{where}: {str(name_or_path)!r}; {nearest(str(name_or_path), robot_names())} "
        "Or give the path of a robot.yaml."
    )


def split_variant(name_or_path: str | Path) -> tuple[str, str | None]:
    """Return a robot's name or path and the variant after the colon, if there is one."""
    text = str(name_or_path)
    if ":" not in text or Path(text).exists():
        return text, None
    name, _, variant = text.rpartition(":")
    return name, variant


def load_robot(
    name_or_path: str | Path,
    variant: str | None = None,
    models: Path | Literal["ours"] | None = None,
) -> Robot:
    """Read a robot.

    Args:
        name_or_path: a packaged robot's name, or the path of a robot.yaml or its folder; a variant
            may follow after a colon.
        variant: one of the file's variants; None takes "default".
        models: the user's own model file, or a folder that has it; None looks into the folder that
            ACEHAND_ROBOT_MODELS names; OURS takes the files beside the robot.yaml.

    Raises:
        InputError: unknown robot or variant, or no model file.
        SchemaError: the file breaks the schema, or a model file lacks what it names.
    """
    name, named = split_variant(name_or_path)
    variant = variant or named or "default"
    path = find_robot_file(name)
    root = read_yaml(path, _HOW_TO_BEGIN)
    if (schema := root.text("schema")) != SCHEMA:
        root.fail("schema", f"is {schema!r}; this version reads {SCHEMA!r}.")
    variants = root.section("variants", optional=True)
    names = ("default", *variants)
    if variant not in names:
        raise InputError(f"Unknown variant {variant!r} of robot {path}; {nearest(variant, names)}")
    changes = variants.section(variant).section("joints") if variant != "default" else None
    sides = root.section("sides")
    if not tuple(sides):
        root.fail("sides", "must hold left, right or both.")

    sides.known(SIDES, "a side")
    hands = {side: read_hand(root, side, variant, changes) for side in SIDES if side in sides}
    texts = root.text("name"), root.text("title"), root.text("license")
    robot = Robot(*texts, variant, names, path, hands)
    root.only("schema name title license source files joints commands register_range "
              "register_scale register_offset register_unit register_whole latency follows "
              "keypoints dropped_fingers variants simulation materials no_contact "
              "sides")  # fmt: skip

    return robot if models == OURS else _with_users_models(robot, root, models)


def load_stored_robot(label: str, given: str | None, models: Path | None, made: str) -> Robot:
    """Return the robot that a dataset was made for: the given one if it is that, else the packaged.

    Args:
        label: what the dataset says; empty: nothing, so it is the given one or the default.
        given, models: see ``load_robot``.
        made: what messages call the dataset.

    Raises:
        InputError: it is another one than the given and none that is packaged.
    """
    if not label:
        return load_robot(given or DEFAULT_ROBOT, models=models)
    robot = None if given is None else load_robot(given, models=models)
    if robot is not None and robot.label == label:
        return robot
    if split_variant(label)[0] not in robot_names():
        other = "" if robot is None else f"; {given} is {robot.label!r}"
        raise InputError(
            f"{made}: made for the robot {label!r}, which does not come with acehand. "
            f"Give its robot.yaml (--robot){other}."
        )
    return load_robot(label, models=models)


def _with_users_models(robot: Robot, root: Section, place: Path | None) -> Robot:
    """Return the robot with the user's own model files where they are asked for or needed."""
    asked = place is not None
    if place is not None and not place.exists():
        raise InputError(f"{place}: no such file or folder; --robot-model needs one that exists.")
    if place is None and os.environ.get(MODELS_VARIABLE):
        place = Path(os.environ[MODELS_VARIABLE])
    hands, licenses, files = dict(robot.hands), [robot.license], []
    sides = root.section("sides")
    for side, hand in robot.hands.items():
        if "model" not in unmirrored(sides, side):
            continue
        from retarget.robots.user_model import adopt, find_model, read_entry

        entry = read_entry(root, side, hand.joint_names)
        if entry is None:
            continue
        files.append(entry.file)
        folder = None if hand.body else robot.path.parent
        places = [*dict.fromkeys(p for p in (place, folder) if p is not None)]
        file = next((f for p in places if (f := find_model(entry, p))), None)
        if file is not None:
            hands[side] = adopt(hand, entry, file)
            licenses.append(f"{side} model file: {entry.license}")
        elif hand.body is None:
            looked = ", ".join(map(str, places))
            raise InputError(
                f"Robot {robot.name!r}: the {side} hand's model file {entry.file!r} is not in "
                f"{looked}. It does not come with the package ({entry.license}): get your own copy "
                f"and give its place with --robot-model or {MODELS_VARIABLE}."
            )
    if asked and not files:
        raise InputError(
            f"{place}: robot {robot.name!r} reads no other model file than its own; its robot.yaml "
            "would have to name one (docs/robots.md)."
        )
    if asked and not any(hand.user_model for hand in hands.values()):
        valid = " or ".join(dict.fromkeys(files))
        raise InputError(
            f"{place}: has no model file of robot {robot.name!r}; valid: {valid}, by that name, or "
            "a folder that has it there."
        )
    return replace(robot, hands=hands, license="; ".join(licenses))
