"""Cutting a long recording into demonstrations by the motion of its hands: ``--split auto``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from acehand_core.motion import CameraMotion, HandMotion, runs
from acehand_core.pipeline.activity import Activity, activity
from acehand_core.pipeline.settings import CutRules

#: Counts up with every change that moves a cut: no run resumes one of an older rule.
VERSION = 1
#: A rest counts as closed if fingertips meet in this share of it.
_CLOSED_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class Cut:
    """A demonstration: frames ``start`` to ``stop - 1``, and why it starts and ends there."""

    start: int
    stop: int
    starts: str
    ends: str


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Frames ``start`` to ``stop - 1`` outside of demonstrations, and why."""

    start: int
    stop: int
    reason: str


@dataclass(frozen=True, slots=True)
class Cutting:
    """How a recording was cut: its demonstrations and what lies between, in order."""

    cuts: tuple[Cut, ...]
    left_out: tuple[LeftOut, ...]
    activity: Activity
    rules: CutRules

    def entry(self, part: Cut | LeftOut) -> dict[str, Any]:
        """Return the report's entry of a demonstration or of frames left out."""
        seconds, why = self.activity.seconds, asdict(part)
        first, last = why.pop("start"), why.pop("stop") - 1
        end = float(seconds[last] + _steps(self.activity)[last])
        return {
            "first_frame": first,
            "last_frame": last,
            "start_s": round(float(seconds[first]), 3),
            "end_s": round(end, 3),
            **why,
        }

    def to_json(self) -> dict[str, Any]:
        """Return a recording's entry of ``--json`` (docs/cutting.md)."""
        noise = self.activity.noise
        return {
            "rules": asdict(self.rules) | {"speeds": list(self.rules.speeds)},
            "noise_m_s": None if np.isnan(noise) else round(noise, 4),
            "demonstrations": [self.entry(cut) for cut in self.cuts],
            "left_out": [self.entry(part) for part in self.left_out],
        }


def cut_demonstrations(
    motion: HandMotion, rules: CutRules, turns: CameraMotion | None = None
) -> Cutting:
    """Return the demonstrations, if any, of a recording; ``turns`` is the camera's rotation."""
    acts = activity(motion, turns, *rules.speeds)
    active = [
        run
        for run in _joined(acts, rules)
        if acts.seconds[run.stop - 1] - acts.seconds[run.start] >= rules.min_s
    ]
    cuts: list[Cut] = []
    for number, run in enumerate(active):
        following = active[number + 1].start if number + 1 < len(active) else len(motion)
        previous = cuts[-1].stop if cuts else 0
        whole = _with_margins(acts, run, rules.margin_s, previous)
        cuts += _divided(acts, whole, run, following, rules)

    edges = [0, *(edge for cut in cuts for edge in (cut.start, cut.stop)), len(motion)]
    gaps = [slice(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if b > a]
    left_out = tuple(LeftOut(gap.start, gap.stop, _what_was(acts, gap)) for gap in gaps)
    return Cutting(tuple(cuts), left_out, acts, rules)


def _joined(acts: Activity, rules: CutRules) -> list[slice]:
    """Return the runs of movement, joined over rests too short to end a demonstration."""
    out: list[slice] = []
    for run in (slice(*edges) for edges in runs(acts.moving)):
        if out:
            rest = slice(out[-1].stop, run.start)
            lasts = acts.seconds[run.start] - acts.seconds[rest.start - 1]
            if lasts < (rules.hold_s if _is_closed(acts, rest) else rules.pause_s):
                out[-1] = slice(out[-1].start, run.stop)
                continue
        out.append(run)
    return out


def _is_closed(acts: Activity, rest: slice) -> bool:
    """Return whether a hand is present and fingertips meet throughout a rest."""
    there = bool(acts.present[rest].all())
    return there and float(acts.closed[rest].mean()) >= _CLOSED_SHARE


def _with_margins(acts: Activity, run: slice, margin_s: float, earliest: int) -> slice:
    """Return a run of movement with its margins, without frames that have no hand."""
    t, start, stop = acts.seconds, run.start, run.stop
    while start > earliest and t[run.start] - t[start - 1] <= margin_s and acts.present[start - 1]:
        start -= 1
    while stop < len(t) and t[stop] - t[run.stop - 1] <= margin_s and acts.present[stop]:
        stop += 1
    return slice(start, stop)


def _divided(
    acts: Activity, whole: slice, run: slice, following: int, rules: CutRules
) -> Iterator[Cut]:
    """Yield a demonstration, or parts of a long one; hands move again in ``following``."""
    longest = f"longest allowed length, {rules.max_s:g} s"
    edges, t = [whole.start], acts.seconds
    pace = np.where(acts.judged, np.nan_to_num(acts.speed), np.inf)
    while t[whole.stop - 1] - t[edges[-1]] > rules.max_s:
        begun = t[edges[-1]]
        latest = min(begun + rules.max_s, t[whole.stop - 1] - rules.min_s)
        allowed = np.flatnonzero((t >= begun + rules.max_s / 2) & (t <= latest))
        if not len(allowed):
            break
        # Of several at rest the last.
        slowest = np.flatnonzero(pace[allowed] == pace[allowed].min())[-1]
        edges.append(int(allowed[slowest]))

    starts = [_why_it_starts(acts, whole.start), *[longest] * (len(edges) - 1)]
    ends = [*[longest] * (len(edges) - 1), _why_it_ends(acts, run.stop, whole.stop, following)]
    for (start, stop), first, last in zip(
        pairwise([*edges, whole.stop]), starts, ends, strict=True
    ):
        yield Cut(start, stop, first, last)


def _why_it_starts(acts: Activity, start: int) -> str:
    if start == 0:
        return "the recording begins"
    return "hands began to move" if acts.present[start - 1] else "hands came"


def _why_it_ends(acts: Activity, moved: int, stop: int, following: int) -> str:
    """Return why a demonstration ends: hands move until ``moved``, its margin until ``stop``."""
    if stop == len(acts.seconds):
        return "the recording ends"
    if not acts.present[stop]:
        return "hands left"
    rest = slice(moved, following)
    gone = np.flatnonzero(~acts.present[rest])
    if len(gone):
        rest = slice(moved, moved + int(gone[0]))
    lasts = _steps(acts)[rest].sum()
    if acts.judged[rest].mean() < 0.5:
        return f"hands not seen well enough to tell for {lasts:.1f} s"
    return f"still{' and closed' if _is_closed(acts, rest) else ''} for {lasts:.1f} s"


def _what_was(acts: Activity, gap: slice) -> str:
    """Return what the hands did between demonstrations, and for how long."""
    absent, moving = ~acts.present[gap], acts.moving[gap]
    judged = acts.judged[gap]
    kinds = {
        "no hands": absent,
        "moved too briefly": moving & ~absent,
        "not seen well enough to tell": ~absent & ~moving & ~judged,
        "still": ~absent & ~moving & judged,
    }
    steps = _steps(acts)[gap]
    parts = [f"{kind} {steps[rows].sum():.1f} s" for kind, rows in kinds.items() if rows.any()]
    return ", ".join(parts)


def _steps(acts: Activity) -> np.ndarray:
    """Return how long each frame lasts; the last one as long as the median."""
    steps = np.diff(acts.seconds)
    return np.append(steps, np.median(steps) if len(steps) else 0.0)
