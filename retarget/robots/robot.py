"""Robots and how to read them: robot.yaml, variants, and the user's model files.

The schema is documented at the top of ``robots/inspire/robot.yaml``.
"""

from __future__ import annotations

import importlib.resources
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from acehand_core import plugins
from acehand_core.errors import InputError, nearest
from acehand_core.hand.skeleton import FINGERS, KEYPOINT_NAMES
from acehand_core.types import SIDES, Hands, Side
from acehand_core.user_files import structured
from retarget.robots import hand_spec
from retarget.robots.hand_spec import HandBody, HandSpec
from retarget.robots.parameters import Command, Joint, RobotFile, read_robot_file

DEFAULT_ROBOT = "inspire"
SCHEMA = "acehand-robot/1"
_HOW_TO_BEGIN = (
    f" A robot.yaml begins with `schema: {SCHEMA}` (docs/robots.md); `acehand robots init` drafts "
    "one for an MJCF or URDF."
)
MODELS_VARIABLE = "ACEHAND_ROBOT_MODELS"
OURS: Literal["ours"] = "ours"


def read_hand(file: RobotFile, side: Side, variant: str) -> HandSpec:
    """Return one side of a robot.yaml with a variant's joint changes. Raises SchemaError."""
    own = file.side(side)
    changed = file.merged(file.joints, own.joints, f"sides.{side}.joints")
    if variant != "default":
        place = f"variants.{variant}.joints"
        changed = file.merged(changed, file.variants[variant].joints, place)
    joints = structured(dict[str, Joint], changed, file.path, "joints")
    changed = file.merged(file.commands, own.commands, f"sides.{side}.commands")
    commands = structured(dict[str, Command], changed, file.path, "commands")
    for name, command in commands.items():
        file.choose(f"commands.{name}.joint", command.joint, joints)

    names, limits = tuple(joints), np.array([joint.limits for joint in joints.values()])
    driven = tuple(command.joint for command in commands.values())
    factor, offset = _couplings(file, joints, commands, driven)
    low, high = _command_limits(file, names, limits, factor, offset, driven)
    body = hand_spec.read_body(file, side, names)
    keypoints, frames = _targets(file, body)
    tips = dict(zip(keypoints, frames, strict=True))
    fingers = _fingers(file, tips)
    torques = [
        command.tip_force * command.lever if command.torque is None else command.torque
        for command in commands.values()
    ]

    return HandSpec(
        robot=file.name.strip(),
        side=side,
        variant=variant,
        joint_names=names,
        lower=limits[:, 0],
        upper=limits[:, 1],
        command_names=tuple(commands),
        command_joints=driven,
        command_lower=low,
        command_upper=high,
        command_velocity=_command_rate(joints, factor, "velocity"),
        command_acceleration=_command_rate(joints, factor, "acceleration"),
        command_torque=np.array(torques),
        rest=_rest(file, commands, low, high),
        coupling=factor,
        coupling_offset=offset,
        controller=hand_spec.read_controller_units(file, commands, low, high),
        latency_s=file.latency,
        tracks=file.follows,
        fingers=fingers,
        tip_names=tuple(tips[KEYPOINT_NAMES.index(f"{f}_tip")] for f in fingers),
        target_keypoints=keypoints,
        target_frames=frames,
        mjcf_path=_model_path(file, file.files.mjcf, side, variant),
        urdf_path=_model_path(file, file.files.urdf, side, variant),
        body=body,
        calibration_path=_of_variant(file.path.with_name("calibration.json"), variant),
    )


def _model_path(file: RobotFile, name: str, side: Side, variant: str) -> Path:
    return _of_variant(file.path.parent / name.replace("{side}", side), variant)


def _of_variant(path: Path, variant: str) -> Path:
    """Return the path with ``-{variant}`` before the suffix, except for the default."""
    return path if variant == "default" else path.with_name(f"{path.stem}-{variant}{path.suffix}")


def _couplings(
    file: RobotFile,
    joints: Mapping[str, Joint],
    commands: Iterable[str],
    driven: tuple[str, ...],
) -> tuple[np.ndarray, np.ndarray]:
    """Return factors (Q, C) and offsets (Q,) of ``joints = factor @ commands + offset``."""
    factor, offset = np.zeros((len(joints), len(driven))), np.zeros(len(joints))
    for column, (command, joint) in enumerate(zip(commands, driven, strict=True)):
        if joints[joint].follows is not None:
            file.fail(f"commands.{command}.joint", f"is {joint!r}, which follows another joint.")
        if driven.index(joint) < column:
            file.fail(f"commands.{command}.joint", f"is {joint!r}, driven by two commands.")
        factor[[*joints].index(joint), column] = 1.0

    for row, (name, entry) in enumerate(joints.items()):
        if entry.follows is not None:
            file.choose(f"joints.{name}.follows", entry.follows, driven)
            factor[row, driven.index(entry.follows)] = entry.factor
            offset[row] = entry.offset
        elif name not in driven:
            file.fail(f"joints.{name}", "is driven by no command and follows no joint.")
    return factor, offset


def _command_limits(
    file: RobotFile,
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
            file.fail(f"joints.{name}.offset", f"is {shift:g}, beyond its limits.")
        for column in np.flatnonzero(row):
            lower, upper = np.sort((ends - shift) / row[column])
            low[column], high[column] = max(low[column], lower), min(high[column], upper)
    for column in np.flatnonzero(low >= high):
        file.fail(
            f"joints.{driven[column]}.limits",
            "leave no angle at which every coupled joint is within its own limits.",
        )
    return low, high


def _rest(
    file: RobotFile, commands: Mapping[str, Command], low: np.ndarray, high: np.ndarray
) -> np.ndarray:
    """Return the idle pose: as stated, otherwise the angles nearest to 0."""
    for (name, command), lower, upper in zip(commands.items(), low, high, strict=True):
        if command.rest is not None and not lower <= command.rest <= upper:
            problem = f"is {command.rest:g}, beyond its joint's [{lower:g}, {upper:g}]."
            file.fail(f"commands.{name}.rest", problem)
    return np.clip([command.rest or 0.0 for command in commands.values()], low, high)


def _command_rate(
    joints: Mapping[str, Joint], factor: np.ndarray, key: Literal["velocity", "acceleration"]
) -> np.ndarray:
    """Return the highest rate of each driven joint allowed by the joints it moves."""
    rates = np.array([getattr(joint, key) for joint in joints.values()])
    with np.errstate(divide="ignore"):
        return (rates[:, None] / np.abs(factor)).min(axis=0)


def _fingers(file: RobotFile, tips: Mapping[int, str]) -> tuple[str, ...]:
    """Return the human fingers with a robot tip; ``dropped_fingers`` must be the others."""
    fingers = tuple(f for f in FINGERS if KEYPOINT_NAMES.index(f"{f}_tip") in tips)
    dropped = file.dropped_fingers
    if dropped is not None and {*dropped} != {*FINGERS} - {*fingers}:
        named = ", ".join(dropped) or "none"
        tipped = ", ".join(fingers)
        file.fail("dropped_fingers", f"are {named}, but keypoints has tips for {tipped}.")
    return fingers


def _targets(file: RobotFile, body: HandBody | None) -> tuple[tuple[int, ...], tuple[str, ...]]:
    if body is not None:
        frames = [*(link.name for link in body.links), *(tip.name for tip in body.tips)]
        for name, frame in file.keypoints.items():
            file.choose(f"keypoints.{name}", frame, frames)
    indices = sorted(map(KEYPOINT_NAMES.index, file.keypoints))
    return tuple(indices), tuple(file.keypoints[KEYPOINT_NAMES[i]] for i in indices)


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
        (only,) = self.hands
        if asked not in (None, only):
            problem = f"robot {self.label!r} has a {only} hand only"
            raise InputError(f"`hands={asked}`: {problem}; give `hands={only}`.")
        return only


def _robot_folders() -> dict[str, tuple[Path, bool]]:
    """Return the folders of robots by name, with whether each belongs to this package."""
    folders: dict[str, tuple[Path, bool]] = {}
    for plugin in plugins.names("robots"):
        root = Path(str(importlib.resources.files(plugins.load("robots", plugin))))
        ours = plugins.is_ours("robots", plugin)
        for folder in sorted(root.iterdir()):
            if (folder / "robot.yaml").is_file():
                folders.setdefault(folder.name, (folder, ours))
    return folders


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
    file = read_robot_file(path, _HOW_TO_BEGIN)
    names = ("default", *file.variants)
    if variant not in names:
        raise InputError(f"Unknown variant {variant!r} of robot {path}; {nearest(variant, names)}")
    hands = {side: read_hand(file, side, variant) for side in SIDES if side in file.sides}
    texts = file.name.strip(), file.title.strip(), file.license.strip()
    robot = Robot(*texts, variant, names, path, hands)
    return robot if models == OURS else _with_users_models(robot, file, models)


def load_stored_robot(label: str, given: str | None, models: Path | None, dataset: str) -> Robot:
    """Return the robot of a dataset: the given one if its label matches, otherwise a packaged one.

    Args:
        label: the dataset's robot; "" takes the given one or the default.
        given, models: see ``load_robot``.
        dataset: for messages.

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
            f"{dataset}: made for the robot {label!r}, which does not come with acehand. "
            f"Give its robot.yaml (`robot`){other}."
        )
    return load_robot(label, models=models)


def _with_users_models(robot: Robot, described: RobotFile, asked: Path | None) -> Robot:
    """Return the robot with the user's model files, if given, stated or needed."""
    if asked is not None and not asked.exists():
        raise InputError(f"{asked}: no such file or folder, given as `robot_model`.")
    variable = os.environ.get(MODELS_VARIABLE)
    place = Path(variable) if asked is None and variable else asked
    hands, licenses, files = dict(robot.hands), [robot.license], []
    for side, hand in robot.hands.items():
        if described.sides[side].model is None:
            continue
        from retarget.robots.user_model import adopt, find_model, read_entry

        entry = read_entry(described, side, hand.joint_names)
        files.append(entry.file)
        folder = None if hand.body else robot.path.parent
        places = [*dict.fromkeys(p for p in (place, folder) if p is not None)]
        file = next((f for p in places if (f := find_model(entry, p))), None)
        if file is not None:
            hands[side] = adopt(hand, entry, file)
            licenses.append(f"{side} model file: {entry.license.strip()}")
        elif hand.body is None:
            looked = ", ".join(map(str, places))
            raise InputError(
                f"Robot {robot.name!r}: the {side} hand's model file {entry.file!r} is not in "
                f"{looked}. It does not come with the package ({entry.license.strip()}): get your "
                f"own copy and give its place with `robot_model` or {MODELS_VARIABLE}."
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
