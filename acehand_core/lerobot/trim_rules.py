"""Rules for trimming an episode: idle ends, gaps, low confidence, blurred pictures.

A file of rules (YAML) has any of these, each with values other than its defaults::

    idle: {seconds: 0.5, speed: 0.05, keep: 0.2}   # at both ends: no hand moves
    gaps: {seconds: 0.5, hands: any}               # any (or both) of the hands not observed
    confidence: {min: 0.3, hands: any, seconds: 0} # any (or both) of the hands less confident
    blur: {below: 0.3, seconds: 0.1}               # relative to the episode's median sharpness
    min_seconds: 1.0                               # shorter remaining pieces go too
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import cv2
import numpy as np
from jaxtyping import Bool, Float

from acehand_core.errors import InputError
from acehand_core.lerobot.columns import CONFIDENCE, FILLED, JOINTS, VALID, WRIST_JOINTS, Column
from acehand_core.lerobot.rules import read_rules_file
from acehand_core.motion import Recording, runs
from acehand_core.types import SIDES
from acehand_core.user_files import NonNegative, structured

#: Columns that rules about hands read, if available.
RULE_COLUMNS = (JOINTS, WRIST_JOINTS, CONFIDENCE, VALID, FILLED)
#: Interval over which speed is measured, in seconds: over one frame jitter dominates.
SPEED_S = 0.25
#: Longer side of the pictures whose sharpness is measured, in pixels: finer detail is mostly noise
#: and coding.
SHARPNESS_SIDE = 640

AnyOrBoth = Literal["any", "both"]


@dataclass(frozen=True, slots=True)
class Idle:
    """Ends longer than ``seconds`` in which no hand is valid and as fast as ``speed`` (m/s).

    ``keep`` seconds of them stay. A hand's speed is the mean of its 21 keypoints'.
    """

    seconds: NonNegative = 0.5
    speed: NonNegative = 0.05
    keep: NonNegative = 0.0


@dataclass(frozen=True, slots=True)
class Gaps:
    """Stretches longer than ``seconds`` in which a hand is not observed, or both are not.

    Frames that gap filling wrote are not observed. A hand that never appears has no gaps.
    """

    seconds: NonNegative = 0.5
    hands: AnyOrBoth = "any"


@dataclass(frozen=True, slots=True)
class Confidence:
    """Stretches longer than ``seconds`` with a valid hand, or each, below ``min`` (0 to 1)."""

    min: NonNegative
    hands: AnyOrBoth = "any"
    seconds: NonNegative = 0.0


@dataclass(frozen=True, slots=True)
class Blur:
    """Stretches longer than ``seconds`` with less than ``below`` of the median sharpness.

    ``video`` is a key; None: the dataset's only one.
    """

    below: NonNegative = 0.3
    seconds: NonNegative = 0.0
    video: str | None = None


@dataclass(frozen=True, slots=True)
class TrimRules:
    """Content of a file of rules; None: no such rule."""

    idle: Idle | None = None
    gaps: Gaps | None = None
    confidence: Confidence | None = None
    blur: Blur | None = None
    min_seconds: NonNegative = 0.0


@dataclass(frozen=True, slots=True)
class TrimCut:
    """Frames ``start`` to ``stop - 1`` to cut off an episode, and why."""

    start: int
    stop: int
    reason: str


def read_trim_rules(path: Path) -> TrimRules:
    """Return the rules of a file. Raises InputError, SchemaError."""
    rules = {name: {} if rule is None else rule for name, rule in read_rules_file(path).items()}
    return structured(TrimRules, rules, path)


def find_cuts(
    rules: TrimRules,
    columns: Mapping[Column, np.ndarray],
    sharpness: Float[np.ndarray, "T"] | None,
    frames: int,
    fps: int | float,
) -> tuple[list[TrimCut], list[tuple[int, int]]]:
    """Return the cuts of an episode of T ``frames``, and the pieces that stay.

    ``columns`` are those of ``RULE_COLUMNS`` that exist, ``sharpness`` is for the rule blur. Raises
    InputError if a rule lacks its column.
    """
    cuts = [
        *(_idle(rules.idle, columns, frames, fps) if rules.idle else ()),
        *(_gaps(rules.gaps, columns, fps) if rules.gaps else ()),
        *(_unsure(rules.confidence, columns, fps) if rules.confidence else ()),
    ]
    if rules.blur and sharpness is not None:
        low = sharpness < rules.blur.below * np.median(sharpness)
        share = sharpness / max(float(np.median(sharpness)), 1e-12)
        for start, stop in runs(low):
            if (stop - start) / fps > rules.blur.seconds:
                why = f"blurred for {_seconds(start, stop, fps)}: sharpness down to "
                why += f"{share[start:stop].min():.2f} of the episode's median, less than "
                cuts.append(TrimCut(start, stop, f"{why}{rules.blur.below:g}"))

    pieces = []
    for start, stop in left_of(cuts, frames):
        if (stop - start) / fps >= rules.min_seconds:
            pieces.append((start, stop))
        else:
            left = f"only {_seconds(start, stop, fps)} would be left"
            cuts.append(TrimCut(start, stop, f"{left}, less than {rules.min_seconds:g} s"))
    return sorted(cuts, key=lambda cut: (cut.start, cut.stop)), pieces


def left_of(cuts: Sequence[TrimCut], frames: int) -> list[tuple[int, int]]:
    """Return the pieces of an episode between cuts: first frame and the one after the last."""
    kept = np.ones(frames, bool)
    for cut in cuts:
        kept[cut.start : cut.stop] = False
    return runs(kept)


def sharpness_of(recording: Recording) -> Float[np.ndarray, "T"]:
    """Return the variance of each picture's Laplacian, grey levels squared.

    It falls with defocus and motion blur, but also depends on scene and noise: compare it within
    one recording only. Raises VideoError.
    """
    assert recording.frames is not None
    values = np.zeros(len(recording))
    shrink = min(1.0, SHARPNESS_SIDE / max(recording.width, recording.height))
    for frame, image in enumerate(recording.frames.read(0, len(recording))):
        grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
        if shrink < 1:
            grey = cv2.resize(grey, None, fx=shrink, fy=shrink, interpolation=cv2.INTER_AREA)
        values[frame] = cv2.Laplacian(grey, cv2.CV_64F).var()
    return values


def speeds(joints: Float[np.ndarray, "T 2 21 3"], fps: int | float) -> Float[np.ndarray, "T 2"]:
    """Return the mean speed of each hand's keypoints over ``SPEED_S`` around each frame, m/s."""
    frames, half = np.arange(len(joints)), max(1, round(SPEED_S * fps / 2))
    before, after = (frames - half).clip(0), (frames + half).clip(max=len(joints) - 1)
    moved = np.linalg.norm(joints[after] - joints[before], axis=-1).mean(axis=-1)
    speed: np.ndarray = moved * fps / np.maximum(after - before, 1)[:, None]
    return speed


def _idle(
    rule: Idle, columns: Mapping[Column, np.ndarray], frames: int, fps: int | float
) -> Iterator[TrimCut]:
    joints = columns.get(JOINTS, columns.get(WRIST_JOINTS))
    if joints is None:
        raise InputError(f"Rule idle needs the feature {JOINTS.name} or {WRIST_JOINTS.name}.")
    moving = _valid(columns, "idle") & (speeds(joints, fps) >= rule.speed)
    active: np.ndarray = np.any(moving, axis=1)
    why = f"no hand is valid and as fast as {rule.speed:g} m/s"
    if not active.any():
        yield TrimCut(0, frames, f"idle throughout: {why}")
        return
    first, after = int(np.argmax(active)), frames - int(np.argmax(active[::-1]))
    kept = round(rule.keep * fps)
    if first / fps > rule.seconds and first > kept:
        yield TrimCut(0, first - kept, f"idle for {_seconds(0, first, fps)} at the start: {why}")
    if (frames - after) / fps > rule.seconds and frames - after > kept:
        reason = f"idle for {_seconds(after, frames, fps)} at the end: {why}"
        yield TrimCut(after + kept, frames, reason)


def _gaps(rule: Gaps, columns: Mapping[Column, np.ndarray], fps: int | float) -> Iterator[TrimCut]:
    valid = _valid(columns, "gaps")
    observed = valid & ~columns.get(FILLED, np.False_)
    present = np.any(valid, axis=0)
    for start, stop, sides in _stretches(~observed, present, rule.hands):
        if (stop - start) / fps > rule.seconds:
            yield TrimCut(start, stop, f"{sides} not observed for {_seconds(start, stop, fps)}")


def _unsure(
    rule: Confidence, columns: Mapping[Column, np.ndarray], fps: int | float
) -> Iterator[TrimCut]:
    valid, confidence = _valid(columns, "confidence"), columns[CONFIDENCE]
    low = valid & (confidence < np.float32(rule.min))  # as it is stored
    if not low.any():
        return
    if rule.hands == "both":  # each valid hand
        low = np.where((~valid | low).all(axis=1, keepdims=True), low, False)
    for start, stop, sides in _stretches(low, np.any(valid, axis=0), "any"):
        if (stop - start) / fps > rule.seconds:
            least = confidence[start:stop][valid[start:stop]].min()
            why = f"{sides} down to confidence {least:.2f} for {_seconds(start, stop, fps)}"
            yield TrimCut(start, stop, f"{why}, less than {rule.min:g}")


def _stretches(
    flags: Bool[np.ndarray, "T 2"], present: Bool[np.ndarray, "2"], hands: AnyOrBoth
) -> Iterator[tuple[int, int, str]]:
    """Yield stretches in which any or each of the hands there is flagged, and its name."""
    if not present.any():
        yield 0, len(flags), "both hands"
        return
    own = flags[:, present]
    for start, stop in runs(np.any(own, axis=1) if hands == "any" else np.all(own, axis=1)):
        flagged = present & flags[start:stop].any(axis=0)
        sides = [side for slot, side in enumerate(SIDES) if flagged[slot]]
        yield start, stop, f"{' and '.join(sides)} hand{'s' if len(sides) > 1 else ''}"


def _valid(columns: Mapping[Column, np.ndarray], rule: str) -> Bool[np.ndarray, "T 2"]:
    if CONFIDENCE not in columns:
        raise InputError(f"Rule {rule} needs the feature {CONFIDENCE.name}.")
    return columns[VALID]


def _seconds(start: int, stop: int, fps: int | float) -> str:
    return f"{(stop - start) / fps:.2f} s"
