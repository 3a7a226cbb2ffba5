"""Which parts of a recording become episodes, and what is done in each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from acehand_core.errors import InputError
from acehand_core.motion import Recording
from acehand_core.pipeline.run import Run, Source, Tracked
from acehand_core.pipeline.settings import Span
from acehand_core.recordings.narration import TaskSegment, task_of
from acehand_core.recordings.selection import HOLE_NS
from acehand_core.trackers.choose import FileTracker


@dataclass(frozen=True, slots=True)
class Spans:
    """The parts of a recording that become episodes.

    Attributes:
        tracked: the hands of the whole recording, where they told its parts; else each part is
            tracked on its own.
        cuts: what the run's report says of where it was cut; None: it was not.
        notes: what is odd about its task text, in sentences.
    """

    spans: tuple[Span, ...]
    tracked: Tracked | None = None
    cuts: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()


def cut(run: Run, source: Source) -> Spans:
    """Return the parts of a recording by ``--split``, each with its task by ``--task-file``.

    Raises:
        NoHandError: there is no hand to cut by. InputError: nothing moves, or the task text is not
            of this recording.
    """
    settings, path, recording = run.settings, source.path, source.recording
    told, notes = _told(run, source)
    if settings.spans_of is not None:
        spans: Sequence[Span] = settings.spans_of(recording)
        return Spans(tuple(spans), notes=notes)
    if settings.split == "tasks":
        return _with_hands_of_file(_by_rows(source, told, notes), run, source)
    if settings.split == "none":
        spans, holes = _between_holes(recording, told)
        return _with_hands_of_file(Spans(spans, notes=(*notes, *holes)), run, source)

    from acehand_core.pipeline.cutting import cut_demonstrations, nothing_moves

    tracked = run.track(source.tracker, recording)
    turns = run.turns(recording, tracked[0])
    cutting = cut_demonstrations(tracked[0], settings.cutting, turns)
    if not cutting.cuts:
        raise nothing_moves(str(path), cutting)
    report = cutting.to_json()
    entries: list[dict[str, Any]] = report["demonstrations"]
    seconds = cutting.activity.seconds
    spans = [
        Span(
            cut.start,
            cut.stop,
            task_of(told, seconds[cut.start], seconds[cut.stop - 1] + 1 / recording.fps),
            (number, len(entries)),
            {"number": number, "of": len(entries), **entry},
        )
        for number, (cut, entry) in enumerate(zip(cutting.cuts, entries, strict=True))
    ]
    untold = [span.number[0] for span in spans if told and span.task is None and span.number]
    if untold:
        numbers = ", ".join(map(str, untold))
        notes = (*notes, f"{path}: --task-file says nothing of demonstrations {numbers}")
    return Spans(tuple(spans), tracked, {"source": str(path), "split": "auto", **report}, notes)


def _with_hands_of_file(found: Spans, run: Run, source: Source) -> Spans:
    """Return the spans with the hands of a file: it has those of all frames, and refuses a part."""
    recording = source.recording
    whole = [(span.start, span.stop) for span in found.spans] == [(0, len(recording))]
    if whole or recording.frames is None or not isinstance(source.tracker, FileTracker):
        return found
    return replace(found, tracked=run.track(source.tracker, recording))


def _between_holes(
    recording: Recording, told: Sequence[TaskSegment]
) -> tuple[tuple[Span, ...], tuple[str, ...]]:
    """Return the parts in which something was recorded, and a sentence about the holes."""
    times = recording.timestamps_ns
    holes = np.flatnonzero(np.diff(times) > HOLE_NS)
    edges = [0, *(holes + 1).tolist(), len(recording)]
    seconds = (times - times[0]) * 1e-9
    spans = tuple(
        Span(
            start, stop, task_of(told, seconds[start], seconds[stop - 1] + 1 / recording.fps),
            (number, len(edges) - 1) if len(holes) else None,
        )
        for number, (start, stop) in enumerate(pairwise(edges))
    )  # fmt: skip
    longest = float(np.diff(times)[holes].max(initial=0)) * 1e-9
    note = (
        f"{recording.source}: nothing was recorded for up to {longest:.1f} s: its "
        f"{len(recording)} frames become {len(spans)} episodes"
    )
    return spans, (note,) if len(holes) else ()


def told_of(run: Run, path: Path) -> tuple[TaskSegment, ...]:
    """Return what is said of a recording, in seconds from where it is read. Raises InputError."""
    return () if run.narration is None else _shifted(run.narration.of(path), run.settings.cut[0])


def duration_s(recording: Recording) -> float:
    """Return how long a recording lasts, its last frame included."""
    times = recording.timestamps_ns
    return float(times[-1] - times[0]) * 1e-9 + 1 / recording.fps


def _told(run: Run, source: Source) -> tuple[tuple[TaskSegment, ...], tuple[str, ...]]:
    """Return what is said of a recording, in seconds from its first frame, and what is odd of it.

    Raises:
        InputError: all of its times lie beyond its end.
    """
    path, recording, settings = source.path, source.recording, run.settings
    if run.narration is None:
        return (), ()
    told = told_of(run, path)
    if not told:
        return (), (f"{path}: --task-file {run.narration.source} says nothing of it",)

    duration, notes = duration_s(recording), []
    beyond = [one for one in told if one.start_s is not None and one.start_s >= duration]
    if len(beyond) == len(told) and settings.cut == (0.0, None):
        raise InputError(
            f"{beyond[0].where}: begins at {beyond[0].start_s:g} s, but {path} lasts "
            f"{duration:.1f} s: its rows are of another recording."
        )
    if beyond and settings.cut[1] is None:
        notes.append(
            f"{path}: {len(beyond)} of {len(told)} rows begin after its end, {duration:.1f} s "
            f"({beyond[0].where})"
        )
    timed = [one for one in told if one.start_s is not None]
    crossed = sum((a.end_s or 0) > (b.start_s or 0) for a, b in pairwise(timed))
    if crossed and settings.split == "tasks":
        notes.append(f"{path}: {crossed} rows overlap the next: its frames are in both episodes")
    return tuple(one for one in told if one not in beyond), tuple(notes)


def _shifted(told: Sequence[TaskSegment], start_s: float) -> tuple[TaskSegment, ...]:
    """Return what is said with times from where a recording is read; nothing of before."""
    out = []
    for one in told:
        if one.start_s is None or one.end_s is None:
            out.append(one)
        elif one.end_s > start_s or start_s == 0:
            begin = max(one.start_s - start_s, 0.0)
            out.append(TaskSegment(begin, one.end_s - start_s, one.task, one.where))
    return tuple(out)


def _by_rows(source: Source, told: Sequence[TaskSegment], notes: tuple[str, ...]) -> Spans:
    """Return a part for each row with start and end. Raises InputError: there is none."""
    path, recording = source.path, source.recording
    seconds = (recording.timestamps_ns - recording.timestamps_ns[0]) * 1e-9
    rows = [one for one in told if one.start_s is not None and one.end_s is not None]
    if not rows:
        raise InputError(
            f"{path}: --split tasks: --task-file has no row with start and end of this recording."
        )
    found = []
    for one in rows:
        assert one.start_s is not None and one.end_s is not None
        # Times are often those of the frames, rounded.
        start, stop = np.searchsorted(seconds, np.array([one.start_s, one.end_s]) - 5e-4)
        if stop - start > 1:
            found.append((int(start), int(stop), one))
        else:
            notes = (*notes, f"{one.where}: has fewer than two frames of {path}, left out")
    if not found:
        raise InputError(f"{path}: --split tasks: no row has two frames of it ({rows[0].where}).")

    entries, spans = [], []
    for number, (start, stop, one) in enumerate(found):
        entry = {
            "first_frame": start,
            "last_frame": stop - 1,
            "start_s": round(float(seconds[start]), 3),
            "end_s": round(float(seconds[stop - 1]) + 1 / recording.fps, 3),
            "starts": one.where,
            "ends": one.where,
        }
        entries.append(entry)
        of = (number, len(found))
        spans.append(Span(start, stop, one.task, of, {"number": number, "of": of[1], **entry}))
    report = {"source": str(path), "split": "tasks", "demonstrations": entries, "left_out": []}
    return Spans(tuple(spans), cuts=report, notes=notes)
