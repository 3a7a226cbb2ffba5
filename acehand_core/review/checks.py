"""What is measured of an episode, the limits of it, and what is found where they are passed.

A check is a number, of a hand or of the whole episode, with two limits: beyond the first the
episode is doubtful, beyond the second it is rejected (docs/review.md says how each was chosen).
``hand_checks`` measures hands, ``robot_checks`` what the robot does with them, ``pictures`` holds
both against the video; ``batch_measures`` compares the episodes of a batch with one another.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from acehand_core.errors import SchemaError, nearest
from acehand_core.lerobot.features import hand_columns
from acehand_core.lerobot.rules import read_mapping
from acehand_core.review.episode import Episode
from acehand_core.types import Side

Level = Literal["note", "doubtful", "rejected"]
Status = Literal["accepted", "doubtful", "rejected"]


@dataclass(frozen=True, slots=True)
class Limit:
    """What a check may measure: above ``doubtful`` or ``rejected`` the episode is that."""

    doubtful: int | float
    rejected: int | float
    unit: str
    meaning: str


_NEVER = float("inf")
#: By check. Those that measure a share or a count of faults begin at what healthy clips show
#: (docs/review.md).
LIMITS: Mapping[str, Limit] = {
    "hand_size": Limit(1.25, 1.6, "x", "hand length (wrist to middle fingertip, along the bones) "
                       "over or under that of a mean adult hand, 187 mm, as a factor"),
    "bone_length": Limit(0.05, 0.15, "", "how much a typical bone's length varies over time, "
                         "relative to it"),
    "jitter": Limit(1.5, 4.0, "mm", "noise of the joints from frame to frame: standard deviation "
                    "per direction, by third differences"),
    "identity_swaps": Limit(0.5, 1.5, "", "times at which both hands change places"),
    "wrong_side": Limit(0.5, 0.5, "", "1 where the fingers of a hand bend out of its palm over all "
                        "or a part of the clip: it is the other hand, or mirrored"),
    "flips": Limit(0.5, 2.5, "", "times at which the palm turns faster than 2000 degrees a second"),
    "bends": Limit(0.03, 0.15, "", "share of finger joints bent backwards by over 30 degrees"),
    "speed": Limit(0.5, 2.5, "", "times at which a wrist is faster than 6 m/s"),
    "frozen": Limit(0.3, 1.0, "s", "longest time for which a hand is said to be seen and none of "
                    "its joints moves at all"),
    "distance": Limit(1.5, 3.0, "m", "median distance of a wrist from the camera"),
    "reprojection": Limit(0.15, 0.35, "", "median distance of the joints, seen through the camera, "
                          "from the landmarks the tracker saw, over the hand's size in the "
                          "picture"),
    "depth_size": Limit(1.15, 1.4, "x", "size of the hand as its depth and the camera make it, "
                        "over or under that of the landmarks the tracker saw, as a factor"),
    "principal_point": Limit(0.08, 0.2, "", "distance of the principal point from the middle of "
                             "the picture, over the picture's width"),
    "field_of_view": Limit(0.5, 1.5, "", "1 for an angle across the wider side that is under 25 or "
                           "over 130 degrees, 2 under 10 or over 170, or where the camera is of "
                           "another picture size"),
    "camera": Limit(0.5, 1.5, "", "1 where the camera was not known but assumed, 2 where none is "
                    "kept"),
    "tips": Limit(0.25, 0.35, "", "share of robot fingertips over 30 mm from the human ones, "
                  "counted again from the dataset"),
    "robot": Limit(0.5, 0.5, "", "1 where the episode was made for another robot than the dataset"),
    "joint_limits": Limit(0.0, 0.001, "", "share of joint angles outside the robot's limits"),
    "coupling": Limit(0.01, 0.05, "rad", "largest angle by which a coupled joint is not where its "
                      "driven one puts it"),
    "register": Limit(0.02, 0.1, "", "share of register values that are not those of the commands "
                      "within 5 % of their range"),
    "calibration": Limit(0.5, 1.5, "", "1 where the calibration beside the episode is missing or "
                         "not that of its provenance"),
    "still": Limit(0.3, 0.6, "", "share of the time in which the fingers move and the robot's do "
                   "not"),
    "reach": Limit(0.02, 0.2, "", "share of a hand's frames in which its arm does not reach it"),
    "stamp_gaps": Limit(0.15, 0.5, "s", "longest time between two source frames"),
    "stamp_repeats": Limit(0.1, 0.3, "", "share of frames that show the source frame before again"),
    "repeated_pictures": Limit(0.04, 0.2, "", "share of frames whose picture repeats the one "
                               "before while pictures around it change"),
    "picture_jumps": Limit(0.5, 3.5, "", "times at which the picture jumps although time stamps "
                           "are even"),
    "uneven_pictures": Limit(2.5, _NEVER, "", "times at which a picture changes by 1.4 times as "
                             "much as those before and after it: single frames that were lost"),
    "picture_agreement": Limit(0.25, 0.6, "", "median distance of the dataset's hands from hands "
                               "found in the video again, over their size"),
    "picture_lag": Limit(1.5, 3.5, "frames", "by how many frames hands are ahead of the pictures "
                         "or behind them"),
    "picture_size": Limit(1.2, 1.5, "x", "size of the dataset's hands in the picture over or under "
                          "that of hands found in the video again, as a factor"),
    "picture_sides": Limit(0.3, 0.6, "", "share of frames in which a hand found again is the other "
                           "one"),
    "batch_camera": Limit(0.05, _NEVER, "", "relative difference of the focal length from that of "
                          "most recordings of this picture size in the batch"),
    "batch_jitter": Limit(4.0, _NEVER, "x", "jitter over the batch's median"),
    "batch_hand_size": Limit(0.08, _NEVER, "", "relative difference of the hand's length from the "
                             "same subject's other recordings"),
    "batch_side": Limit(0.5, _NEVER, "", "1 where the other hand does the work than in most "
                        "recordings of this task: mirrored?"),
    "batch_twice": Limit(0.5, _NEVER, "", "1 where another episode of the batch has the very same "
                         "values"),
    "unsure": Limit(0.4, 0.7, "", "share of a hand's frames that are filled in or of confidence 0"),
    "verdict": Limit(1.5, 1.5, "", "what the conversion said of itself: 1 warn, 2 fail"),
    "finite": Limit(0.0, 0.0, "", "share of a column's values that are not numbers, of the worst "
                    "column"),
    "action": Limit(0.0, 0.001, "", "share of frames whose action is not the next frame's state"),
    "hand_columns": Limit(0.0, 0.001, "", "share of frames in which a column of the human hands is "
                          "not that of the table of hands next to the episode; the worst column"),
    "base": Limit(0.04, 0.1, "m", "median distance of the middle of the robot's fingertips from "
                  "that of the human ones, in the camera frame"),
    "licences": Limit(1.5, _NEVER, "", "1 where something it was made with is for non-commercial "
                      "use, 2 where a licence is not known or none is recorded"),
    "unreadable": Limit(0.5, 0.5, "", "1 where a file of the episode cannot be read"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Measure:
    """What a check measured: of a hand or, ``side`` None, of the whole episode.

    ``text`` says what that means where a limit is passed, ``frame`` where to look.
    """

    check: str
    value: int | float
    text: str
    side: Side | None = None
    frame: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as report.json holds it."""
        return {**asdict(self), "value": round(float(self.value), 5)}


@dataclass(frozen=True, slots=True)
class Finding:
    """A measure beyond a limit."""

    check: str
    level: Level
    text: str
    value: int | float
    side: Side | None = None
    frame: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as report.json holds it."""
        return {**asdict(self), "value": round(float(self.value), 5)}


def read_limits(path: Path) -> dict[str, Limit]:
    """Return the limits with those that a YAML file changes, ``{check: {doubtful, rejected}}``.

    A limit that is null is never passed.

    Raises:
        InputError: the file cannot be read. SchemaError: it names no check, or its limits are no
            numbers or in the wrong order.
    """
    limits = dict(LIMITS)
    for check, given in read_mapping(path, "jitter: {doubtful: 1.5, rejected: 4}").items():
        if check not in limits:
            raise SchemaError(f"{path}: {check}: no such check; {nearest(str(check), limits)}")
        if not isinstance(given, Mapping) or not given.keys() <= {"doubtful", "rejected"}:
            raise SchemaError(
                f"{path}: {check}: {given!r} has other keys than doubtful and rejected."
            )
        old = limits[check]
        values = {key: _NEVER if value is None else value for key, value in given.items()}
        values = {"doubtful": old.doubtful, "rejected": old.rejected, **values}
        numbers = [value for value in values.values()
                   if isinstance(value, int | float) and not isinstance(value, bool)]  # fmt: skip
        if len(numbers) < 2 or not numbers[0] <= numbers[1]:
            raise SchemaError(
                f"{path}: {check}: doubtful and rejected are numbers, the first not above the "
                f"second, not {values['doubtful']!r} and {values['rejected']!r}."
            )
        limits[check] = Limit(numbers[0], numbers[1], old.unit, old.meaning)
    return limits


def findings(
    measures: Iterable[Measure], limits: Mapping[str, Limit], shared: Collection[str] = ()
) -> list[Finding]:
    """Return the measures beyond a limit, the worst first.

    ``shared``: checks that tell no episode of a batch from another; what they doubt is a note.
    """
    found = []
    for measure in measures:
        limit = limits[measure.check]
        if measure.value > limit.rejected:
            level: Level = "rejected"
        elif measure.value > limit.doubtful and measure.check not in shared:
            level = "doubtful"
        elif measure.check in ("licences", "verdict", *shared) and measure.value:
            level = "note"
        else:
            continue
        found.append(Finding(measure.check, level, measure.text, measure.value, measure.side,
                             measure.frame))  # fmt: skip
    order = ("rejected", "doubtful", "note")
    return sorted(found, key=lambda finding: order.index(finding.level))


def status_of(found: Sequence[Finding]) -> Status:
    """Return what findings make of an episode."""
    levels = {finding.level for finding in found}
    if "rejected" in levels:
        return "rejected"
    return "doubtful" if "doubtful" in levels else "accepted"


# What is known of an episode without looking at hands.

#: In what a recording's notes say of its camera.
_ASSUMED = re.compile(r"assumed|published field of view|camera preset", re.IGNORECASE)
_NON_COMMERCIAL = re.compile(
    r"non-?commercial|no commercial|\bnc\b|research (use )?only", re.IGNORECASE
)
_UNKNOWN_LICENCE = re.compile(
    r"unknown|unlicen[cs]ed|no licen[cs]e|states none|not stated", re.IGNORECASE
)


def origin_measures(episode: Episode) -> list[Measure]:
    """Measure what the episode says of itself: verdict, camera, licences, time stamps."""
    measures = [*_camera_measures(episode), *_stamp_measures(episode)]
    verdict, reasons = episode.report.get("verdict"), episode.report.get("reasons") or ()
    if verdict is not None:
        value = {"pass": 0, "warn": 1}.get(str(verdict), 2)
        said = f"the conversion's own verdict is {verdict}"
        measures.append(Measure("verdict", value, f"{said}: {'; '.join(map(str, reasons))}"))

    licences = [str(line) for line in episode.origin.get("licenses", ())]
    value, text = 0, ""
    if bound := [line for line in licences if _NON_COMMERCIAL.search(line)]:
        value, text = 1, f"made with something for non-commercial use: {'; '.join(bound)}"
    if unknown := [line for line in licences if _UNKNOWN_LICENCE.search(line)]:
        value, text = 2, f"made with something of unknown licence: {'; '.join(unknown)}"
    if not licences:
        value, text = 2, "nothing is recorded of the licences of what it was made with"
    return [*measures, Measure("licences", value, text)]


def column_measures(episode: Episode) -> list[Measure]:
    """Measure every recorded column: finite, and what the others and the table of hands make it."""
    measures = []
    numbers = {k: v for k, v in episode.columns.items() if v.dtype.kind == "f"}
    bad = {name: ~np.isfinite(column) for name, column in numbers.items()}
    if bad:
        name = max(bad, key=lambda name: bad[name].mean())
        share, at = float(bad[name].mean()), int(np.argmax(bad[name].any(1)))
        text = f"{share:.1%} of the values of {name} are not numbers"
        measures.append(Measure("finite", share, text, frame=at))

    state, action = (numbers.get(name) for name in ("observation.state", "action"))
    # Of other people's datasets an action may be anything.
    if episode.robot is not None and state is not None and action is not None and len(state) > 1:
        measures.append(
            _unlike("action", action[:-1], state[1:], "action is not the next frame's state")
        )

    if episode.motion is not None:
        made = hand_columns(episode.motion, episode.placed, episode.confidence, episode.valid)
        off = [
            _unlike("hand_columns", numbers[name], column,
                    f"{name} is not that of the hands next to the episode")
            for name, column in made.items()
            if name in numbers and numbers[name].shape == column.shape
        ]  # fmt: skip
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
        return [Measure("camera", 2, "no camera is kept with it: distances mean nothing")]
    notes = [str(note) for note in episode.origin.get("notes", ())]
    assumed = [note for note in notes if _ASSUMED.search(note) and "frames per second" not in note
               and "hand length" not in note]  # fmt: skip
    text = f"the camera was not known: {assumed[0]}" if assumed else ""
    measures = [Measure("camera", 1 if assumed else 0, text)]

    fx, fy, cx, cy, width, height = episode.camera[0]
    away = float(np.hypot(cx - (width - 1) / 2, cy - (height - 1) / 2) / width)
    measures.append(
        Measure("principal_point", away,
                f"the principal point ({cx:.0f}, {cy:.0f}) is {away:.0%} of the picture's width "
                "from its middle: a calibration of another picture size?")
    )  # fmt: skip
    wide = float(np.degrees(2 * np.arctan(max(width / fx, height / fy) / 2)))
    odd = 0 if 25 <= wide <= 130 else 1 if 10 <= wide <= 170 else 2
    text = f"the camera sees {wide:.0f} degrees across the wider side"
    if episode.image_size is not None and (width, height) != episode.image_size:
        # Odd sizes lose their last row or column in the video.
        apart = np.abs(np.subtract((width, height), episode.image_size)).max()
        if apart > 1:
            odd = 2
            text = (
                f"the camera is of pictures of {width:.0f} x {height:.0f}, the video has "
                f"{episode.image_size[0]} x {episode.image_size[1]}"
            )
    return [*measures, Measure("field_of_view", odd, text)]


def _stamp_measures(episode: Episode) -> list[Measure]:
    steps = np.diff(episode.source_ns) / 1e9
    if not len(steps):
        return []
    at = int(np.argmax(steps))
    gap, repeats = float(steps[at]), float((steps <= 0).mean())
    # An episode slower than its source skips frames, a faster one shows them several times.
    usual = max(float(np.median(steps)), 1 / episode.fps)
    return [
        Measure("stamp_gaps", max(gap - usual, 0.0),
                f"{gap:.2f} s lie between two frames of the source: frames are missing",
                frame=at),
        Measure("stamp_repeats", repeats,
                f"{repeats:.0%} of the frames show the source frame before again, or their stamps "
                "go back", frame=int(np.argmin(steps))),
    ]  # fmt: skip


# What only the batch tells.


def batch_measures(episodes: Sequence[Mapping[str, Any]]) -> list[list[Measure]]:
    """Compare episodes with one another; return the measures of each.

    Args:
        episodes: for each ``camera`` (fx, fy, cx, cy, width, height, or None), ``source_size``
            (width, height of pictures that were fitted into others, or None), ``subject``,
            ``task``, ``work`` (path of the left and the right wrist, m), ``hand_length``,
            ``fingerprint`` (empty where it cannot be read) and ``measures``.
    """
    out: list[list[Measure]] = [[] for _ in episodes]
    sizes = defaultdict(list)
    for index, episode in enumerate(episodes):
        if episode["camera"] is not None:
            fx, _, _, _, width, height = episode["camera"]
            across, down = episode["source_size"] or (width, height)
            sizes[width, height, round(across / down, 2)].append((index, fx))
    for listed in sizes.values():
        usual = float(np.median([fx for _, fx in listed]))
        same = np.mean([abs(fx / usual - 1) < 0.02 for _, fx in listed])
        # One camera made the batch, or hardly any: several kinds say nothing of a single one.
        if len(listed) >= 5 and same >= 0.6:
            for index, fx in listed:
                away = abs(fx / usual - 1)
                text = (
                    f"the focal length is {fx:.0f} px, in {same:.0%} of the {len(listed)} "
                    f"episodes with pictures of this size {usual:.0f}: another camera?"
                )
                out[index].append(Measure("batch_camera", away, text))

    there = Counter(episode["fingerprint"] for episode in episodes)
    for index, episode in enumerate(episodes):
        twice = bool(episode["fingerprint"]) and there[episode["fingerprint"]] > 1
        text = "another episode has the very same values: it is there twice"
        out[index].append(Measure("batch_twice", float(twice), text))

    _compare_jitter(episodes, out)
    _compare_hands(episodes, out)
    _compare_sides(episodes, out)
    return out


def _compare_jitter(episodes: Sequence[Mapping[str, Any]], out: list[list[Measure]]) -> None:
    worst = [max((m.value for m in e["measures"] if m.check == "jitter"), default=np.nan)
             for e in episodes]  # fmt: skip
    if np.isfinite(worst).sum() < 5:
        return
    # Below 0.2 mm nobody cares, whatever the others are like.
    usual = max(float(np.nanmedian(worst)), 0.2)
    for index, value in enumerate(worst):
        if np.isfinite(value):
            text = f"jitter of {value:.1f} mm, in this batch it is mostly {usual:.1f}"
            out[index].append(Measure("batch_jitter", value / usual, text))


def _compare_hands(episodes: Sequence[Mapping[str, Any]], out: list[list[Measure]]) -> None:
    lengths = defaultdict(list)
    for index, episode in enumerate(episodes):
        if episode["subject"] is not None and episode["hand_length"]:
            lengths[episode["subject"]].append((index, episode["hand_length"]))
    for subject, listed in lengths.items():
        if len(listed) < 3:
            continue
        usual = float(np.median([length for _, length in listed]))
        for index, length in listed:
            text = (
                f"the hand is {1e3 * length:.0f} mm long, mostly {1e3 * usual:.0f} in the other "
                f"recordings of {subject}"
            )
            out[index].append(Measure("batch_hand_size", abs(length / usual - 1), text))


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
                abs(usual) >= 0.2 and same >= 0.75
                and -np.sign(usual) * share > 0.25 and abs(share - usual) > 2.5 * spread
            )  # fmt: skip
            hands = ("right", "left") if usual > 0 else ("left", "right")
            text = (
                f"the {hands[1]} hand does the work, in most other recordings of {task!r} "
                f"the {hands[0]} one: is the video mirrored?"
            )
            out[index].append(Measure("batch_side", float(other), text))
