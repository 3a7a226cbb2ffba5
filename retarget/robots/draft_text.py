"""The robot.yaml of drafted hands; ``# CHECK: ...`` marks what their files leave open."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from acehand_core.atomic import atomic_path, check_free
from acehand_core.geometry import rotations
from acehand_core.hand.skeleton import FINGERS, KEYPOINT_NAMES, finger_keypoints
from acehand_core.types import SIDES, Side
from retarget.robots.anatomy import HandPosture, slides
from retarget.robots.draft import DraftedHand, draft_hands
from retarget.robots.robot import SCHEMA

CHECK = "# CHECK:"
#: Speeds (rad/s, m/s) of joints without any in the file.
ASSUMED_SPEED = (3.0, 0.1)
#: Joints closer than this (m) are one joint of a human finger.
_ONE_JOINT_M = 0.008


def write_draft(
    file: Path,
    folder: Path,
    left: Path | None = None,
    side: Side | None = None,
    root: str | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a drafted robot.yaml into a folder; return its path. See ``draft_hands``.

    Raises OutputError if it exists or cannot be written.
    """
    path = folder / "robot.yaml"
    check_free(path, overwrite)
    text = draft_text(draft_hands(file, left, side, root), robot_name(file), folder)
    with atomic_path(path, overwrite) as partial:
        partial.write_text(text, encoding="utf-8")
    return path


def robot_name(file: Path) -> str:
    """Return a robot's name: that of the file, or of its folder if that is more specific."""
    words = re.split(r"[^a-z0-9]+", file.stem.lower())
    if not {*words} - {"left", "right", "l", "r", "lh", "rh", "hand", "gripper", "model", "robot"}:
        words = re.split(r"[^a-z0-9]+", file.resolve().parent.name.lower())
    return "_".join(w for w in words if w not in ("left", "right", "")) or "robot"


def draft_text(hands: Mapping[Side, DraftedHand], name: str, folder: Path) -> str:
    """Return the robot.yaml of drafted hands, to be written to ``folder``."""
    first = hands["right"] if "right" in hands else next(iter(hands.values()))
    license_text, license_doubt = _license(first.facts.file)

    lines = [
        f"# Drafted by `acehand robots init {first.facts.file.name}` from that file; comments with",
        "# CHECK say what it leaves open. Schema: top of robots/inspire/robot.yaml.",
        f"schema: {SCHEMA}",
        f"name: {_quoted(name)}",
        f"title: {_quoted(name.replace('_', ' '))}",
        _line(f"license: {_quoted(license_text)}", license_doubt),
        "",
        *_joint_lines(first),
        "",
        *_command_lines(first),
        "# Registers are radians (metres of slides) without register_scale or register_range.",
        "",
    ]

    if first.gripper:
        lines.append("follows: opening")
    dropped = [f for f in FINGERS if f not in first.names]
    lines.append(f"dropped_fingers: [{', '.join(dropped)}]")
    frames = {side: _frames(hand) for side, hand in hands.items()}
    lines.append(_line("keypoints:", first.doubts.get("keypoints", "")))
    lines += [f"  {key}: {key}" for key in frames[first.side]]
    lines += [
        "",
        "# In frame `base` +z leads from the wrist to the fingers, +x out of the palm (where",
        "# fingers close), +y to the thumb on a right hand and away from it on a left one.",
        "sides:",
    ]

    for side in SIDES:
        if side in hands:
            lines += _side_lines(hands[side], first, frames[side], license_text, folder)
    return "\n".join(lines) + "\n"


def checks_of(text: str) -> list[str]:
    """Return the open questions of a robot.yaml: the key of each marked line and the reason."""
    questions = []
    for line in text.splitlines():
        before, mark, reason = line.partition(CHECK)
        if mark:
            questions.append(f"{before.strip(' #').partition(':')[0]}: {reason.strip()}")
    return questions


def _line(text: str, doubt: str = "") -> str:
    return f"{text} {CHECK} {doubt}" if doubt else text


def _license(file: Path) -> tuple[str, str]:
    """Return the first line of a LICENSE file near the model, or "unknown" and a doubt."""
    for folder in list(file.resolve().parents)[:3]:
        for path in sorted(folder.glob("LICEN[SC]E*")):
            lines = (text.strip() for text in path.read_text(errors="replace").splitlines())
            return f"{next(filter(None, lines), '')[:80]} ({folder.name}/{path.name})", ""
    return "unknown", "no LICENSE file near the model"


def _joint_lines(first: DraftedHand) -> Iterator[str]:
    """Yield the table of joints: limits, speeds, couplings."""
    facts = first.facts
    unit = "degrees" if facts.degrees else "radians"
    speeds = {
        n: facts.velocity.get(facts.model.joint(j).name, 0.0) for n, j in first.joints.items()
    }
    driven = [n for n, j in first.joints.items() if j in first.drive.actuators]
    unknown = [n for n in driven if not speeds[n] > 0]
    yield f"# Limits of {facts.file.name}, there in {unit}; here radians (slides: metres)."
    doubt = "the file gives no speed" + (f" of {len(unknown)} joints" if unknown != driven else "")
    kinds = sorted({int(slides(facts.model, first.joints[n])) for n in unknown})
    assumed = " and ".join(f"{ASSUMED_SPEED[k]:g} {('rad/s', 'm/s')[k]}" for k in kinds)
    yield _line("joints:", f"{doubt}: {assumed} assumed" if unknown else "")

    for name, joint in first.joints.items():
        entry, doubt, speed = _limits_and_coupling(first, name), "", speeds[name]
        if joint in first.drive.actuators or speed > 0:
            assumed_speed = ASSUMED_SPEED[int(slides(facts.model, joint))]
            entry += f", velocity: {_number(speed if speed > 0 else assumed_speed)}"
        if joint in first.drive.couplings:
            doubt = first.drive.couplings[joint].doubt
        elif facts.model.nu and first.drive.actuators[joint] is None:
            doubt = "no actuator of the file moves it; assumed driven"
        if not facts.model.jnt_limited[joint]:
            doubt = "the file has no limits; half a turn each way assumed"
        yield _line(f"  {_quoted(name)}: {{{entry}}}", doubt)


def _limits_and_coupling(hand: DraftedHand, name: str) -> str:
    joint = hand.joints[name]
    text = f"limits: [{_number(hand.lower[joint])}, {_number(hand.upper[joint])}]"
    if joint in hand.drive.couplings:
        coupling = hand.drive.couplings[joint]
        driver = next(n for n, j in hand.joints.items() if j == coupling.driver)
        text += f", follows: {_quoted(driver)}, factor: {_number(coupling.factor)}"
        text += f", offset: {_number(coupling.offset)}"
    return text


def _command_lines(hand: DraftedHand) -> Iterator[str]:
    """Yield the table of commands: one per driven joint, with its torque if known."""
    model = hand.facts.model
    ours = {joint: name for name, joint in hand.joints.items()}
    entries, missing = [], 0
    for joint, actuator in hand.drive.actuators.items():
        torque = hand.facts.effort.get(model.joint(joint).name, 0.0)
        if actuator is not None and model.actuator_forcelimited[actuator]:
            gear = abs(float(model.actuator_gear[actuator, 0]))
            torque = float(np.abs(model.actuator_forcerange[actuator]).max()) * gear
        elif model.jnt_actfrclimited[joint]:
            torque = float(np.abs(model.jnt_actfrcrange[joint]).max())
        missing += torque <= 0
        name = _quoted(ours[joint])
        limit = f", torque: {_number(torque)}" if torque > 0 else ""
        entries.append(f"  {name}: {{joint: {name}{limit}}}")

    doubt = f"the file limits no torque of {missing} of them; none is assumed" if missing else ""
    yield _line("commands:", doubt)
    yield from entries


def _frames(hand: DraftedHand) -> dict[str, tuple[str, np.ndarray | None]]:
    """Return the link or site of each keypoint, and its place in it (None: the origin)."""
    model = hand.facts.model
    table = {}
    for finger in FINGERS:
        if finger not in hand.names:
            continue
        place = hand.names.index(finger)
        chain, tip = hand.parts.fingers[place], hand.parts.tip_names[place]
        keypoints = [KEYPOINT_NAMES[i] for i in finger_keypoints(finger)]
        for key, joint in zip(*_keyed(hand, chain.joints, keypoints[:3]), strict=True):
            link = int(model.jnt_bodyid[joint])
            anchor = model.jnt_pos[joint]
            table[key] = (model.body(link).name, anchor if np.abs(anchor).max() > 1e-6 else None)
        table[keypoints[3]] = (tip, None) if tip else (model.body(chain.link).name, chain.tip)
    return table


def _keyed(
    hand: DraftedHand, joints: tuple[int, ...], names: list[str]
) -> tuple[list[str], list[int]]:
    """Return a finger's keypoints and their joints, from the palm on; none of a jaw.

    Joints at one place, as knuckles that bend and spread, are one joint of a human finger.
    """
    if hand.gripper:
        return [], []
    anchors = HandPosture(hand.facts.model, hand.opened).anchors
    groups: list[int] = []
    for joint in joints:
        if slides(hand.facts.model, joint):
            continue
        if groups and np.linalg.norm(anchors[joint] - anchors[groups[-1]]) < _ONE_JOINT_M:
            groups[-1] = joint
        else:
            groups.append(joint)
    last = groups[-3:]
    return names[: len(last)], last


def _side_lines(
    hand: DraftedHand,
    first: DraftedHand,
    frames: dict[str, tuple[str, np.ndarray | None]],
    license_text: str,
    folder: Path,
) -> Iterator[str]:
    """Yield one side: its file, frame, names, and the joints that differ."""
    model, root = hand.facts.model, hand.parts.root
    yield _line(f"  {hand.side}:", hand.doubts.get("side", ""))
    own = []
    for name, j in hand.joints.items():
        entry, usual = _limits_and_coupling(hand, name), _limits_and_coupling(first, name)
        if entry != usual:
            doubt = hand.drive.couplings[j].doubt if j in hand.drive.couplings else ""
            own.append(_line(f"      {_quoted(name)}: {{{entry}}}", doubt))
    yield from (["    joints:", *own] if own else [])
    yield "    model:"
    absolute = hand.facts.file.resolve()
    relative = os.path.relpath(absolute, folder.resolve())
    yield f"      file: {_quoted(relative if relative.count('..') <= 2 else str(absolute))}"
    yield f"      license: {_quoted(license_text)}"
    if root:
        yield f"      root: {_quoted(model.body(root).name)}"
    if np.abs(hand.origin).max() > 0:
        yield f"      xyz: {_vector(hand.origin)} # the base is at the lower end of the palm"
    rpy = rotations.to_rpy(hand.turn)
    yield _line(f"      rpy: {_vector(rpy)}", hand.doubts.get("rpy", ""))

    theirs = {name: model.joint(j).name for name, j in hand.joints.items()}
    tables = {
        "joints": {ours: _quoted(name) for ours, name in theirs.items() if ours != name},
        "frames": {key: _quoted(link) for key, (link, place) in frames.items() if place is None},
        "tips": {
            key: f"{{link: {_quoted(link)}, xyz: {_vector(place)}}}"
            for key, (link, place) in frames.items()
            if place is not None
        },
    }
    for title, table in tables.items():
        yield from ([f"      {title}:"] if table else [])
        yield from (f"        {_quoted(name)}: {value}" for name, value in table.items())


def _quoted(text: str) -> str:
    """Quote text for YAML if needed."""
    plain = re.fullmatch(r"[A-Za-z_][\w./\-]*( [\w./\-(),]+)*", text)
    words = ("y", "n", "yes", "no", "on", "off", "true", "false", "null")
    if plain and text.lower() not in words:
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _number(value: float) -> str:
    text = f"{value:.6f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def _vector(values: np.ndarray) -> str:
    return f"[{', '.join(_number(round(float(v), 5)) for v in values)}]"
