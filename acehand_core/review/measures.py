"""Measures of an inspection in addition to those of a conversion: of files, and of a batch.

``retarget.replay.checks`` lists all checks with their limits; ``pictures`` compares an episode
with its video.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from acehand_core.errors import AcehandError
from acehand_core.geometry import frames
from acehand_core.hand.skeleton import FINGERS, TIPS
from acehand_core.lerobot.columns import ACTION, HAND_COLUMNS, STATE, Sources
from acehand_core.lerobot.episode import Episode
from acehand_core.lerobot.format import CALIBRATION
from acehand_core.motion import Calibration
from acehand_core.types import SIDES, Side
from retarget.replay.checks import Measure
from retarget.replay.clip import clip_measures, evidence_measures
from retarget.robots.kinematics import KinematicTree
from retarget.robots.robot import Robot
from retarget.solve.calibration_file import read_calibrations
from retarget.targets import calibrated, palm_frames

#: In notes on the camera of a recording.
_ASSUMED = re.compile(r"assumed|published field of view|camera preset", re.IGNORECASE)
_NON_COMMERCIAL = re.compile(
    r"non-?commercial|no commercial|\bnc\b|research (use )?only", re.IGNORECASE
)
_UNKNOWN_LICENCE = re.compile(
    r"unknown|unlicen[cs]ed|no licen[cs]e|states none|not stated", re.IGNORECASE
)


def episode_measures(episode: Episode, robot: Robot | None) -> list[Measure]:
    """Measure an episode without its pictures; ``robot`` None: the dataset's is unknown."""
    measures = [*origin_measures(episode), *column_measures(episode)]
    own, errors, columns = None, None, episode.robot
    if columns is not None:
        made_for = str(episode.origin.get("robot") or episode.robot_label)
        other = made_for != episode.robot_label
        text = f"made for the robot {made_for}, the dataset is of {episode.robot_label}"
        names = columns.joint_names
        if robot is not None and names != next(iter(robot.hands.values())).joint_names:
            other, text = True, f"its joints are not those of the robot {episode.robot_label}"
        measures.append(Measure("robot", float(other), text))
        own = None if other else robot
    if own is not None and columns is not None:
        fitted, missing = calibrations_of(episode, own)
        errors = tip_errors(episode, own, fitted)
        if episode.origin.get("solver", "trajectory") == "trajectory":
            text = f"the calibration of hand to robot cannot be trusted: {missing}"
            measures.append(Measure("calibration", 0 if missing is None else 1, text))
        for slot, side in enumerate(SIDES):
            if side in own.hands and episode.valid[:, slot].any():
                units, commands = own.hands[side].controller, columns.commands[:, slot]
                off = np.abs(
                    columns.registers[:, slot] - own.hands[side].controller.to_registers(commands)
                )
                wrong = off > 0.05 * np.abs(units.at_upper - units.at_lower)
                share, at = float(wrong.mean()), int(np.argmax(wrong.any(1)))
                text = f"{share:.0%} of the {side} hand's register values are not those of its "
                measures.append(Measure("register", share, f"{text}commands", side, at))
    return [*clip_measures(episode, own, errors), *measures]


def origin_measures(episode: Episode) -> list[Measure]:
    """Measure the metadata of an episode: verdict, camera, licences."""
    measures = [*_camera_measures(episode), *evidence_measures(episode.origin)]
    verdict, reasons = episode.report.get("verdict"), episode.report.get("reasons") or ()
    if verdict is not None:
        value = {"pass": 0, "warn": 1}.get(str(verdict), 2)
        text = f"the conversion's own verdict is {verdict}: {'; '.join(map(str, reasons))}"
        measures.append(Measure("verdict", value, text))

    licences = [str(line) for line in episode.origin.get("licenses", ())]
    value, text = 0, ""
    if bound := [line for line in licences if _NON_COMMERCIAL.search(line)]:
        value, text = 1, f"made with something for non-commercial use: {'; '.join(bound)}"
    if unknown := [line for line in licences if _UNKNOWN_LICENCE.search(line)]:
        value, text = 2, f"made with something of unknown licence: {'; '.join(unknown)}"
    if not licences:
        value, text = 2, "the licences of its inputs are not recorded"
    return [*measures, Measure("licences", value, text)]


def column_measures(episode: Episode) -> list[Measure]:
    """Measure the columns: finite, and consistent with each other and the table of hands."""
    measures = []
    numbers = {k: v for k, v in episode.columns.items() if v.dtype.kind == "f"}
    bad = {name: ~np.isfinite(column) for name, column in numbers.items()}
    if bad:
        name = max(bad, key=lambda name: bad[name].mean())
        share, at = float(bad[name].mean()), int(np.argmax(bad[name].any(1)))
        text = f"{share:.1%} of the values of {name} are not numbers"
        measures.append(Measure("finite", share, text, frame=at))

    state, action = (numbers.get(column.name) for column in (STATE, ACTION))
    # In datasets of other origin an action may be anything.
    if episode.robot is not None and state is not None and action is not None and len(state) > 1:
        measures.append(
            _unlike("action", action[:-1], state[1:], "action is not the next frame's state")
        )

    if episode.motion is not None:
        text, sources = "{} differs from the hands next to the episode", Sources(episode.motion)
        from_hands = {c.name: c.write(c.make(sources)) for c in HAND_COLUMNS if c.name in numbers}
        off = [
            _unlike("hand_columns", numbers[name], column, text.format(name))
            for name, column in from_hands.items()
            if numbers[name].shape == column.shape
        ]
        measures += sorted(off, key=lambda measure: -measure.value)[:1]
    return measures


def _unlike(check: str, column: np.ndarray, expected: np.ndarray, text: str) -> Measure:
    same = np.isclose(column, expected, rtol=1e-3, atol=1e-3, equal_nan=True).all(1)
    share = float(1 - same.mean())
    return Measure(check, share, f"{text} in {share:.1%} of the frames", frame=int(same.argmin()))


def _camera_measures(episode: Episode) -> list[Measure]:
    if not episode.placed:
        return []
    if episode.camera is None:
        return [Measure("camera", 2, "no camera is stored with it: distances are meaningless")]
    notes = [str(note) for note in episode.origin.get("notes", ())]
    others = ("frames per second", "hand length")
    notes = [note for note in notes if not any(other in note for other in others)]
    assumed = next(filter(_ASSUMED.search, notes), None)
    old = assumed is not None and "assumed" not in episode.origin
    text = f"the camera was not known: {assumed}" if old else ""
    measures = [Measure("camera", int(old), text)]

    fx, fy, cx, cy, width, height = episode.camera[0]
    away = float(np.hypot(cx - (width - 1) / 2, cy - (height - 1) / 2) / width)
    text = (
        f"the principal point ({cx:.0f}, {cy:.0f}) is {away:.0%} of the picture's width from its "
        "middle: a calibration of another picture size?"
    )
    measures.append(Measure("principal_point", away, text))
    wide = float(np.degrees(2 * np.arctan(max(width / fx, height / fy) / 2)))
    odd = 0 if 25 <= wide <= 130 else 1 if 10 <= wide <= 170 else 2
    text = f"the camera sees {wide:.0f} degrees across the wider side"
    # Odd sizes lose their last row or column in the video.
    size = episode.image_size
    if size is not None and np.abs(np.subtract((width, height), size)).max() > 1:
        odd, seen = 2, f"the video has {size[0]} x {size[1]}"
        text = f"the camera is for pictures of {width:.0f} x {height:.0f}, {seen}"
    return [*measures, Measure("field_of_view", odd, text)]


def calibrations_of(episode: Episode, robot: Robot) -> tuple[dict[Side, Calibration], str | None]:
    """Return the calibrations of an episode and their fault, if any.

    Without a file next to the episode, those of its provenance count.
    """
    stored: dict[Side, Calibration] = {}
    for side, entry in (episode.origin.get("calibration") or {}).items():
        if entry is not None and side in SIDES:
            stored[side] = Calibration(
                float(entry["scale"]),
                np.array(entry["rotation"], float),
                np.array(entry["translation"], float),
                float(entry["residual_m"] or 0.0),
                np.array([entry["anchors_m"][finger] for finger in FINGERS], float),
                np.array([entry["lengths"][finger] for finger in FINGERS], float),
            )

    path = episode.folder / CALIBRATION
    if not path.is_file():
        return stored, f"{CALIBRATION} is missing"
    try:
        kept = {side: f.calibration for side, f in read_calibrations(path, robot).items()}
    except AcehandError as error:
        return stored, str(error)
    for side, calibration in stored.items():
        other, own = (c.apply(np.eye(3)) for c in (kept.get(side, calibration), calibration))
        if side not in kept or not np.allclose(other, own, atol=1e-3):
            return stored, f"{CALIBRATION} is not the one that the {side} hand was made with"
    return {**kept, **stored}, None


def tip_errors(
    episode: Episode, robot: Robot, fitted: dict[Side, Calibration]
) -> Float[np.ndarray, "T 2 5"]:
    """Return the distances of the robot's fingertips to the calibrated human ones (m).

    Thumb first; NaN where either is unknown.
    """
    errors = np.full((len(episode), 2, len(TIPS)), np.nan)
    for slot, side in enumerate(SIDES):
        hand = robot.hands.get(side)
        if hand is None or side not in fitted or episode.robot is None or hand.tracks == "opening":
            continue
        tree = KinematicTree.of(hand)
        ours = tree.points(episode.robot.joints[:, slot], hand.tip_names)

        with np.errstate(invalid="ignore", divide="ignore"):
            palms = palm_frames(episode.joints[:, slot], side)
        known = np.isfinite(palms).all((1, 2)) & episode.valid[:, slot]
        known &= episode.confidence[:, slot] > 0
        local = np.full((len(episode), 21, 3), np.nan)
        local[known] = frames.apply(frames.inverse(palms[known]), episode.joints[known, slot])

        goals = calibrated(local, fitted[side])[:, list(TIPS)]
        fingers = [FINGERS.index(finger) for finger in hand.fingers]
        errors[:, slot, fingers] = np.linalg.norm(ours - goals[:, fingers], axis=-1)
    return errors


def batch_measures(episodes: Sequence[Mapping[str, Any]]) -> list[list[Measure]]:
    """Compare the episodes of a batch; return the measures of each.

    Args:
        episodes: for each ``camera`` (fx, fy, cx, cy, width, height, or None), ``source_size``
            (width, height before pictures were fitted into others, or None), ``subject``,
            ``task``, ``work`` (path of the left and the right wrist, m), ``hand_length``,
            ``fingerprint`` (empty: unreadable) and ``measures``.
    """
    out: list[list[Measure]] = [[] for _ in episodes]
    sizes, subjects = defaultdict(list), defaultdict(list)
    for index, episode in enumerate(episodes):
        if episode["camera"] is not None:
            fx, _, _, _, width, height = episode["camera"]
            across, down = episode["source_size"] or (width, height)
            sizes[width, height, round(across / down, 2)].append((index, fx))
        if episode["subject"] is not None and episode["hand_length"]:
            subjects[episode["subject"]].append((index, episode["hand_length"]))
    for listed in sizes.values():
        usual = float(np.median([fx for _, fx in listed]))
        same = np.mean([abs(fx / usual - 1) < 0.02 for _, fx in listed])
        # Unless one camera made most of the batch, another focal length means nothing.
        for index, fx in listed if len(listed) >= 5 and same >= 0.6 else ():
            text = (
                f"the focal length is {fx:.0f} px, in {same:.0%} of the {len(listed)} "
                f"episodes with pictures of this size {usual:.0f}: another camera?"
            )
            out[index].append(Measure("batch_camera", abs(fx / usual - 1), text))
    prints = Counter(episode["fingerprint"] for episode in episodes)
    for index, episode in enumerate(episodes):
        twice = bool(episode["fingerprint"]) and prints[episode["fingerprint"]] > 1
        text = "another episode has exactly the same values: a duplicate"
        out[index].append(Measure("batch_twice", float(twice), text))

    _compare_jitter(episodes, out)
    for subject, listed in subjects.items():
        usual = float(np.median([length for _, length in listed]))
        for index, length in listed if len(listed) >= 3 else ():
            text = (
                f"the hand is {1e3 * length:.0f} mm long, mostly {1e3 * usual:.0f} in the other "
                f"recordings of {subject}"
            )
            out[index].append(Measure("batch_hand_size", abs(length / usual - 1), text))
    _compare_sides(episodes, out)
    return out


def _compare_jitter(episodes: Sequence[Mapping[str, Any]], out: list[list[Measure]]) -> None:
    jitters = ([m.value for m in e["measures"] if m.check == "jitter"] for e in episodes)
    worst = [max(values, default=np.nan) for values in jitters]
    if np.isfinite(worst).sum() < 5:
        return
    usual = max(float(np.nanmedian(worst)), 0.2)  # less does not matter
    for index, value in enumerate(worst):
        if np.isfinite(value):
            text = f"jitter of {value:.1f} mm, in this batch it is mostly {usual:.1f}"
            out[index].append(Measure("batch_jitter", value / usual, text))


def _compare_sides(episodes: Sequence[Mapping[str, Any]], out: list[list[Measure]]) -> None:
    tasks = defaultdict(list)
    for index, episode in enumerate(episodes):
        left, right = episode["work"]
        if left + right > 0.1:
            tasks[episode["task"]].append((index, (right - left) / (left + right)))
    for task, listed in tasks.items():
        shares = np.array([share for _, share in listed])
        for place, (index, share) in enumerate(listed):
            others = np.delete(shares, place)
            if len(others) < 4:
                break
            usual = float(np.median(others))
            same = float((np.sign(others) == np.sign(usual)).mean())
            spread = max(1.48 * float(np.median(np.abs(others - usual))), 0.1)
            other = (
                abs(usual) >= 0.2
                and same >= 0.75
                and -np.sign(usual) * share > 0.25
                and abs(share - usual) > 2.5 * spread
            )
            hands = ("right", "left") if usual > 0 else ("left", "right")
            text = (
                f"the {hands[1]} hand does the work, in most other recordings of {task!r} "
                f"the {hands[0]} one: is the video mirrored?"
            )
            out[index].append(Measure("batch_side", float(other), text))
