"""One hand out of a robot.yaml: joints and their couplings, limits of commands, keypoints, files.

The file's schema is documented at the top of ``robots/inspire/robot.yaml``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import get_args

import numpy as np

from acehand_core.errors import nearest
from acehand_core.hand.skeleton import FINGERS, KEYPOINT_NAMES
from acehand_core.types import Side
from retarget.body import HandBody, read_body
from retarget.hand_spec import Follows, HandSpec
from retarget.mirror import unmirrored
from retarget.parameters import Section, merged
from retarget.registers import KEYS, read_registers


def _joint_table(root: Section, side: Side, changes: Section | None) -> Section:
    """Return the joints of one side with the changes of that side and of a variant applied."""
    table = root.section("joints")
    own = root.section("sides").section(side).section("joints", optional=True)
    for change in (own, changes):
        if change is not None:
            for name in change:
                if name not in table:
                    change.fail(name, f"is not a joint; {nearest(name, table)}")
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
        rest=np.array(
            [
                e.number("rest", float(np.clip(0, a, b)))
                for e, a, b in zip(entries, low, high, strict=True)
            ]
        ),
        coupling=factor,
        coupling_offset=offset,
        registers=read_registers(root, commands, low, high),
        latency_s=root.number("latency", 0.0),
        follows=root.choice("follows", get_args(Follows)) if "follows" in root else "keypoints",
        fingers=fingers,
        tip_names=tuple(tips[KEYPOINT_NAMES.index(f"{f}_tip")] for f in fingers),
        target_keypoints=keypoints,
        target_frames=frames,
        mjcf_path=_model_path(root, "mjcf", side, variant),
        urdf_path=_model_path(root, "urdf", side, variant),
        body=body,
        calibration_path=_of_variant(root.file.with_name("calibration.json"), variant),
    )


def _model_path(root: Section, kind: str, side: Side, variant: str) -> Path:
    """Return the path of a model file beside robot.yaml."""
    name = root.section("files").text(kind).replace("{side}", side)
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
    for column in np.flatnonzero(low >= high):
        joints.section(driven[column]).fail(
            "limits", "leave no angle at which every coupled joint is within its own limits."
        )
    return low, high


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
    for name in table:
        if name not in KEYPOINT_NAMES:
            table.fail(name, f"is not a keypoint; {nearest(name, KEYPOINT_NAMES)}")
        if body is not None:
            table.choice(name, body.frame_names())
    indices = sorted(KEYPOINT_NAMES.index(name) for name in table)
    return tuple(indices), tuple(table.text(KEYPOINT_NAMES[i]) for i in indices)
