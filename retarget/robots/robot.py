"""Robots and how to read them: robot.yaml, variants, and the user's model files.

The schema is documented at the top of ``robots/inspire/robot.yaml``.
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
from acehand_core.user_files import read_yaml
from retarget.robots import hand_spec
from retarget.robots.hand_spec import HandBody, HandSpec, Tracks
from retarget.robots.parameters import Section, merged, unmirrored

DEFAULT_ROBOT = "inspire"
SCHEMA = "acehand-robot/1"
_HOW_TO_BEGIN = (
    f" A robot.yaml begins with `schema: {SCHEMA}` (docs/robots.md); `acehand robots init` drafts "
    "one for an MJCF or URDF."
)
MODELS_VARIABLE = "ACEHAND_ROBOT_MODELS"
OURS: Literal["ours"] = "ours"


def read_hand(root: Section, side: Side, variant: str, changes: Section | None) -> HandSpec:
    """Return one side of a robot.yaml with a variant's joint changes. Raises SchemaError."""
    joints = root.section("joints")
    stated = root.section("sides").section(side).section("joints", optional=True)
    for change in (stated, changes):
        if change is not None:
            change.known(joints, "a joint")
            joints = merged(joints, change)
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
    body = hand_spec.read_body(root, side, names)
    keypoints, frames = _targets(root, body)
    tips = dict(zip(keypoints, frames, strict=True))
    fingers = _fingers(root, tips)
    tracks: Tracks = root.choice("follows", get_args(Tracks)) if "follows" in root else "keypoints"
    entries = [commands.section(name) for name in commands]
    torques = []
    for entry in entries:
        entry.only(f"joint tip_force lever torque rest {hand_spec.KEYS}")
        usual = entry.positive("tip_force", np.inf) * entry.positive("lever", 1.0)
        torques.append(entry.positive("torque", usual))
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
        command_torque=np.array(torques),
        rest=_rest(entries, low, high),
        coupling=factor,
        coupling_offset=offset,
        controller=hand_spec.read_controller_units(root, commands, low, high),
        latency_s=root.number("latency", 0.0),
        tracks=tracks,
        fingers=fingers,
        tip_names=tuple(tips[KEYPOINT_NAMES.index(f"{f}_tip")] for f in fingers),
        target_keypoints=keypoints,
        target_frames=frames,
        mjcf_path=_model_path(root, "mjcf", "{side}.xml", side, variant),
        urdf_path=_model_path(root, "urdf", "{side}.urdf", side, variant),
        body=body,
        calibration_path=_of_variant(root.file.with_name("calibration.json"), variant),
    )


def _model_path(root: Section, kind: str, usual: str, side: Side, variant: str) -> Path:
    name = root.section("files", optional=True).text(kind, usual).replace("{side}", side)
    return _of_variant(root.file.parent / name, variant)


def _of_variant(path: Path, variant: str) -> Path:
    """Return the path with ``-{variant}`` before the suffix, except for the default."""
    return path if variant == "default" else path.with_name(f"{path.stem}-{variant}{path.suffix}")


def _couplings(
    joints: Section, names: tuple[str, ...], commands: Section, driven: tuple[str, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Return factors (Q, C) and offsets (Q,) of ``joints = factor @ commands + offset``."""
    factor, offset = np.zeros((len(names), len(driven))), np.zeros(len(names))
    for column, (command, joint) in enumerate(zip(commands, driven, strict=True)):
        if "follows" in joints.section(joint):
            commands.section(command).fail("joint", f"is {joint!r}, which follows another joint.")
        if driven.index(joint) < column:
            commands.section(command).fail("joint", f"is {joint!r}, driven by two commands.")
        factor[names.index(joint), column] = 1.0

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
    """Intersect the limits of each driven joint with those that its coupled joints imply."""
    low, high = np.full(len(driven), -np.inf), np.full(len(driven), np.inf)
    for name, ends, row, shift in zip(names, limits, factor, offset, strict=True):
        # With a factor of 0 a joint is fixed at its offset.
        if not row.any() and not ends[0] <= shift <= ends[1]:
            joints.section(name).fail("offset", f"is {shift:g}, beyond its limits.")
        for column in np.flatnonzero(row):
            lower, upper = np.sort((ends - shift) / row[column])
            low[column], high[column] = max(low[column], lower), min(high[column], upper)
    for column in np.flatnonzero(low >= high):
        joints.section(driven[column]).fail(
            "limits", "leave no angle at which every coupled joint is within its own limits."
        )
    return low, high


def _rest(entries: list[Section], low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return the idle pose: as stated, otherwise the angles nearest to 0."""
    rest = [entry.number("rest", 0.0) for entry in entries]
    for entry, angle, lower, upper in zip(entries, rest, low, high, strict=True):
        if "rest" in entry and not lower <= angle <= upper:
            entry.fail("rest", f"is {angle:g}, beyond its joint's [{lower:g}, {upper:g}].")
    return np.clip(rest, low, high)


def _command_rate(
    joints: Section, names: tuple[str, ...], factor: np.ndarray, key: str
) -> np.ndarray:
    """Return the highest rate of each driven joint allowed by the joints it moves."""
    rates = np.array([joints.section(name).positive(key, np.inf) for name in names])
    with np.errstate(divide="ignore"):
        return (rates[:, None] / np.abs(factor)).min(axis=0)


def _fingers(root: Section, tips: Mapping[int, str]) -> tuple[str, ...]:
    """Return the human fingers with a robot tip; ``dropped_fingers`` must be the others."""
    fingers = tuple(f for f in FINGERS if KEYPOINT_NAMES.index(f"{f}_tip") in tips)
    dropped = root.choices("dropped_fingers", FINGERS)
    if "dropped_fingers" in root and {*dropped} != {*FINGERS} - {*fingers}:
        named = ", ".join(dropped) or "none"
        tipped = ", ".join(fingers)
        root.fail("dropped_fingers", f"are {named}, but keypoints has tips for {tipped}.")
    return fingers


def _targets(root: Section, body: HandBody | None) -> tuple[tuple[int, ...], tuple[str, ...]]:
    table = root.section("keypoints")
    table.known(KEYPOINT_NAMES, "a keypoint")
    if body is not None:
        frames = [*(link.name for link in body.links), *(tip.name for tip in body.tips)]
        for name in table:
            table.choice(name, frames)
    indices = sorted(KEYPOINT_NAMES.index(name) for name in table)
    return tuple(indices), tuple(table.text(KEYPOINT_NAMES[i]) for i in indices)


@dataclass(frozen=True, slots=True, eq=False)
class Robot:
    """A robot with one or two hands; ``license`` is a provenance note."""

    name: str
    title: str
    license: str
    variant: str
    variants: tuple[str, ...]
    path: Path
    hands: Mapping[Side, HandSpec]

    @property
    def label(self) -> str:
        """The name, followed by ``:variant`` except for the default."""
        return self.name if self.variant == "default" else f"{self.name}:{self.variant}"

    def hand(self, side: Side) -> HandSpec:
        """Return one side's hand; InputError if the robot has none."""
        if side not in self.hands:
            raise InputError(f"Robot {self.name!r} has no {side} hand; {nearest(side, self.hands)}")
        return self.hands[side]

    def hands_to_follow(self, asked: Hands | None) -> Hands:
        """Return the requested human hands, by default the robot's. Raises InputError."""
        if len(self.hands) == len(SIDES):
            return asked or "both"
        (there,) = self.hands
        if asked not in (None, there):
            problem = f"robot {self.label!r} has a {there} hand only"
            raise InputError(f"`hands={asked}`: {problem}; give `hands={there}`.")
        return there


def _robot_folders() -> dict[str, tuple[Path, bool]]:
    """Return the folders of robots by name, with whether each belongs to this package."""
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
    return _robot_folders().get(name, (None, False))[1]


def is_packaged(robot: Robot) -> bool:
    """Whether a robot was read from this package."""
    return comes_with_us(robot.name) and robot.path == find_robot_file(robot.name)


def find_robot_file(name_or_path: str | Path) -> Path:
    """Return the robot.yaml of an installed robot, or of a file or folder; else InputError."""
    if installed := _robot_folders().get(str(name_or_path)):
        return installed[0] / "robot.yaml"
    path = Path(name_or_path)
    if path.is_dir() and (path / "robot.yaml").is_file():
        return path / "robot.yaml"
    if path.is_file():
        return path
    looks_like_path = path.suffix in (".yaml", ".yml") or len(path.parts) > 1
    problem = "No such robot file or folder" if looks_like_path else "Unknown robot"
    raise InputError(
        f"{problem}: {str(name_or_path)!r}; {nearest(str(name_or_path), robot_names())} "
        "Or give the path of a robot.yaml."
    )


def split_variant(name_or_path: str | Path) -> tuple[str, str | None]:
    """Split ``NAME_OR_PATH:VARIANT``; the variant is None if absent."""
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
        name_or_path: a robot's name, or the path of a robot.yaml or its folder; ``:VARIANT`` may
            follow.
        variant: a variant of the file; None is "default".
        models: the user's model file or its folder; None is the folder in ACEHAND_ROBOT_MODELS;
            OURS takes the files next to the robot.yaml.

    Raises:
        InputError: unknown robot or variant, or no model file.
        SchemaError: the file breaks the schema, or a model file lacks a joint or link.
    """
    name, named = split_variant(name_or_path)
    variant = variant or named or "default"
    path = find_robot_file(name)
    root = Section(path, "", read_yaml(path, _HOW_TO_BEGIN))
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
    """Return the robot of a dataset: the given one if its label matches, otherwise a packaged one.

    Args:
        label: the dataset's robot; "" takes the given one or the default.
        given, models: see ``load_robot``.
        made: the dataset, for messages.

    Raises:
        InputError: the robot is neither the given nor a packaged one.
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
            f"Give its robot.yaml (`robot`){other}."
        )
    return load_robot(label, models=models)


def _with_users_models(robot: Robot, root: Section, asked: Path | None) -> Robot:
    """Return the robot with the user's model files, if given, stated or needed."""
    if asked is not None and not asked.exists():
        raise InputError(f"{asked}: no such file or folder, given as `robot_model`.")
    variable = os.environ.get(MODELS_VARIABLE)
    place = Path(variable) if asked is None and variable else asked
    hands, licenses, files = dict(robot.hands), [robot.license], []
    sides = root.section("sides")
    for side, hand in robot.hands.items():
        if "model" not in unmirrored(sides, side):
            continue
        from retarget.robots.user_model import adopt, find_model, read_entry

        entry = read_entry(root, side, hand.joint_names)
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
                f"and give its place with `robot_model` or {MODELS_VARIABLE}."
            )
    if asked is not None and not files:
        raise InputError(
            f"{asked}: robot {robot.name!r} takes no user model; its robot.yaml would have to name "
            "one (docs/robots.md)."
        )
    if asked is not None and not any(hand.user_model for hand in hands.values()):
        valid = " or ".join(dict.fromkeys(files))
        raise InputError(
            f"{asked}: has no model file of robot {robot.name!r}; valid: {valid}, or a folder that "
            "contains it."
        )
    return replace(robot, hands=hands, license="; ".join(licenses))
