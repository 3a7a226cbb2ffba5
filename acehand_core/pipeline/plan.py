"""What a run makes of an input: the spans it is cut into, and which of their episodes are missing.

Whether an episode is finished is asked here only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from acehand_core.errors import InputError
from acehand_core.lerobot.dataset import EpisodeKey, FinishedEpisodes
from acehand_core.lerobot.writer import max_episode_frames
from acehand_core.motion import CameraMotion, Recording
from acehand_core.pipeline.converter import Converter, Input, TrackedHands
from acehand_core.pipeline.narration import Narration, TaskSegment, task_of
from acehand_core.pipeline.report import PlannedEpisode
from acehand_core.pipeline.settings import TASK, JobSettings, Span
from acehand_core.recordings.selection import HOLE_NS, at_rate, part


def duration_s(recording: Recording) -> float:
    """Return how long a recording lasts, its last frame included."""
    times = recording.timestamps_ns
    return float(times[-1] - times[0]) * 1e-9 + 1 / recording.fps


@dataclass(frozen=True, slots=True)
class Spans:
    """The parts of a recording that become episodes.

    Attributes:
        tracked: the hands of the whole recording; None: each part is tracked separately.
        report: entry of the run's report; None: not cut.
        notes: sentences about the task text and holes.
    """

    spans: tuple[Span, ...]
    tracked: TrackedHands | None = None
    report: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()


def cut_input(converter: Converter, narration: Narration | None, source: Input) -> Spans:
    """Return the parts of an input by ``split``, each with its task by ``task_file``.

    Raises NoHandError if ``split=auto`` finds no hand, InputError if nothing moves or the task
    text does not fit the recording.
    """
    settings, recording = converter.settings, source.recording
    segments: Sequence[TaskSegment] = ()
    notes: list[str] = []
    if narration is not None:
        lasts, rows = duration_s(recording), settings.split == "tasks"
        segments, notes = narration.fitting(source.path, settings.extent, lasts, rows)
    if settings.spans is not None:
        return Spans(settings.spans, notes=tuple(notes))
    if settings.split == "auto":
        return _demonstrations(converter, source, segments, notes)
    by = _by_rows if settings.split == "tasks" else _between_holes
    spans = by(source, segments, notes)
    whole = [(one.start, one.stop) for one in spans.spans] == [(0, len(recording))]
    if whole or recording.hands is None or recording.frames is None:
        return spans
    # One calibration to all hands of a file next to a video.
    return replace(spans, tracked=converter.track(source.tracker, recording))


def _demonstrations(
    converter: Converter, source: Input, segments: Sequence[TaskSegment], notes: Sequence[str]
) -> Spans:
    """Return the demonstrations of a recording, found by the motion of its hands."""
    from acehand_core.pipeline.cutting import cut_demonstrations

    settings, recording = converter.settings, source.recording
    tracked = converter.track(source.tracker, recording)
    motion, turns = tracked.motion, None
    if motion.T_world_camera is not None:
        turns = CameraMotion.from_poses(motion.T_world_camera)
    elif settings.tracking.camera_motion != "off" and recording.frames and motion.camera:
        from acehand_core.camera.turns import recorded_rotations

        fit = settings.fit_of(recording)
        turns = recorded_rotations(
            fit.recording(recording) if fit else recording,
            motion.camera,
            motion.joints_image,
            np.asarray(motion.known.any(axis=1)),
            settings.tracker_settings.work_dir,
            converter.progress,
        )
    cutting = cut_demonstrations(motion, settings.cutting, turns)
    report = cutting.to_json()
    if not cutting.spans:
        reasons = "; ".join(part.reason for part in cutting.left_out)
        raise InputError(
            f"{source.path}: `split=auto` found no demonstration: {reasons}. Adjust `cut_speeds` "
            "and `cut_min`, or use `split=none`."
        )
    seconds = cutting.activity.seconds
    ends = seconds + 1 / recording.fps
    spans = [
        replace(one, task=task_of(segments, seconds[one.start], ends[one.stop - 1]))
        for one in cutting.spans
    ]
    without_task = ", ".join(str(number) for number, one in enumerate(spans) if one.task is None)
    if segments and without_task:
        note = f"{source.path}: `task_file` has no task for demonstrations {without_task}"
        notes = (*notes, note)
    report = {"source": str(source.path), "split": "auto", **report}
    return Spans(_numbered(spans, report["demonstrations"]), tracked, report, tuple(notes))


def _between_holes(source: Input, segments: Sequence[TaskSegment], notes: Sequence[str]) -> Spans:
    """Return the parts of a recording between holes of more than 1.5 s."""
    recording = source.recording
    times = recording.timestamps_ns
    holes = np.flatnonzero(np.diff(times) > HOLE_NS)
    edges = [0, *(holes + 1).tolist(), len(recording)]
    seconds = (times - times[0]) * 1e-9
    ends = seconds + 1 / recording.fps
    count = len(edges) - 1
    spans = tuple(
        Span(
            start,
            stop,
            task_of(segments, seconds[start], ends[stop - 1]),
            number=(number, count) if count > 1 else None,
        )
        for number, (start, stop) in enumerate(pairwise(edges))
    )
    if count > 1:
        longest = float(np.diff(times)[holes].max()) * 1e-9
        note = (
            f"{recording.source}: nothing was recorded for up to {longest:.1f} s: its "
            f"{len(recording)} frames become {count} episodes"
        )
        notes = (*notes, note)
    return Spans(spans, notes=tuple(notes))


def _by_rows(source: Input, segments: Sequence[TaskSegment], notes: Sequence[str]) -> Spans:
    """Return a part for each row with start and end. Raises InputError for no such row."""
    path, recording = source.path, source.recording
    seconds = (recording.timestamps_ns - recording.timestamps_ns[0]) * 1e-9
    rows = [one for one in segments if one.start_s is not None and one.end_s is not None]
    if not rows:
        raise InputError(
            f"{path}: `split=tasks`: `task_file` has no row with start and end for this recording."
        )
    spans, entries = [], []
    for one in rows:
        assert one.start_s is not None and one.end_s is not None
        # Times are often those of the frames, rounded.
        start, stop = np.searchsorted(seconds, np.array([one.start_s, one.end_s]) - 5e-4).tolist()
        if stop - start < 2:
            notes = (*notes, f"{one.where}: has fewer than two frames of {path}, left out")
            continue
        spans.append(Span(start, stop, one.task, starts=one.where, ends=one.where))
        entries.append(spans[-1].entry(seconds[start], seconds[stop - 1] + 1 / recording.fps))
    if not spans:
        raise InputError(
            f"{path}: `split=tasks`: no row covers two of its frames ({rows[0].where})."
        )
    report = {"source": str(path), "split": "tasks", "demonstrations": entries, "left_out": []}
    return Spans(_numbered(spans, entries), report=report, notes=tuple(notes))


def _numbered(spans: Sequence[Span], entries: Sequence[Mapping[str, Any]]) -> tuple[Span, ...]:
    """Return spans with their number and, of the report, their entry."""
    count = len(spans)
    return tuple(
        replace(one, number=(n, count), report={"number": n, "of": count, **entry})
        for n, (one, entry) in enumerate(zip(spans, entries, strict=True))
    )


@dataclass(frozen=True, slots=True)
class Plan:
    """Plan of an input's episodes, by the settings and by what the dataset has.

    Attributes:
        shaping: see ``JobSettings.shaping``.
    """

    settings: JobSettings
    finished: FinishedEpisodes
    fps: int
    shaping: Mapping[str, Any]

    def converted(self, source: Input, narration: Narration | None) -> list[int]:
        """Return the demonstrations of an input, by number, if the dataset has all of them.

        With ``split=auto`` it then need not be cut again. Raises InputError if it has, but the
        input is appended or a task has changed.
        """
        recording, settings, extent = source.recording, self.settings, self.settings.extent
        if settings.split != "auto":
            return []
        done = self.finished.all_of(recording.sha256 or "", extent, self.shaping)
        if done and settings.existing == "append":
            raise _is_there(source.path, done[0][0])

        segments = narration.since(source.path, extent[0]) if narration else ()
        for number, key in done:
            start = key.extent[0] - extent[0]
            lasts = duration_s(recording) if key.one_of == (0, 1) else key.extent[1] or 0.0
            task = task_of(segments, start, start + lasts) or settings.task
            if task != key.settings["task"]:
                raise _other_task(source.path, number, task)
        return [number for number, _ in done]

    def episodes(self, path: Path, recording: Recording, span: Span) -> list[PlannedEpisode]:
        """Return the episodes of a span of an input: to be made, or in the dataset.

        Raises InputError if the dataset has one that is appended, or with another task.
        """
        settings, extent = self.settings, self.settings.extent
        if (span.start, span.stop) != (0, len(recording)):
            first, last = recording.timestamps_ns[[span.start, span.stop - 1]]
            offset_s = float(first - recording.timestamps_ns[0]) / 1e9
            length_s = float(last - first) / 1e9 + 1 / recording.fps
            extent = (extent[0] + offset_s, length_s)
            recording = span.of(recording)

        view, _ = at_rate(recording, self.fps)
        if fit := settings.fit_of(recording):
            view = fit.recording(view)
        shaping = {**self.shaping, "task": span.task or settings.task}
        task = span.task or settings.task or recording.task or TASK
        episodes = []
        edges = [*range(0, len(view), max_episode_frames(self.fps)), len(view)]
        for frames in pairwise(edges):
            key = EpisodeKey(
                recording.name,
                recording.sha256 or "",
                extent,
                frames,
                shaping,
                within=settings.extent if span.number else None,
                one_of=span.number,
            )
            episode = PlannedEpisode(part(view, *frames), task, key, span.report)
            numbers = self.finished.numbers_of(key)
            if numbers and settings.existing == "append":
                raise _is_there(path, numbers[0])
            others = self.finished.but_for_task(key)
            if not numbers and others and settings.existing == "resume":
                raise _other_task(path, others[0], shaping["task"])

            episodes += [
                replace(episode, number=number, missing=self.finished.missing.get(number, ()))
                for number in numbers
            ] or [episode]
        return episodes


def _is_there(path: Path, number: int) -> InputError:
    return InputError(
        f"{path}: episode {number} of the dataset is already this recording with the same cut "
        "and settings. "
        "`existing=append` adds it with another `task`, `start`, `duration` or other settings; "
        "`existing=resume` finishes an interrupted run."
    )


def _other_task(path: Path, number: int, task: str | None) -> InputError:
    return InputError(
        f"{path}: episode {number} of the dataset has another task than {task or TASK!r}. "
        "Resume with the same task text (lerobot-edit-dataset changes it later: docs/formats.md), "
        "or add it with `existing=append` as another episode."
    )
