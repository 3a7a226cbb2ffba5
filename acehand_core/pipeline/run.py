"""The steps of the main job that make a demonstration: open, cut, track, retarget and judge.

Writing and drawing are in ``dataset.py``; ``job.py`` puts the steps in order.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from acehand_core.errors import AcehandError, InputError, NoHandError
from acehand_core.lerobot import format as files
from acehand_core.lerobot.dataset import EpisodeKey
from acehand_core.motion import Calibration, CameraMotion, HandMotion, Recording
from acehand_core.pipeline.report import Demonstration
from acehand_core.pipeline.settings import JobSettings, Span, TaskSegment, task_of
from acehand_core.processes import release_memory
from acehand_core.recordings.bags.records import DroppedMessages
from acehand_core.recordings.hands_file import read_hand_motion
from acehand_core.recordings.registry import Registry
from acehand_core.recordings.selection import HOLE_NS, Fit, hands_at, only_hands
from acehand_core.settings import file_identity
from acehand_core.trackers.base import Tracker
from acehand_core.trackers.choose import FileTracker, cached, open_tracked
from acehand_core.types import SIDES, Progress, Side
from retarget.replay.judgements import JUDGEMENTS, Judgements, read_gates
from retarget.replay.simulate import Physics
from retarget.retargeting import refuse_faulty, retarget_motion
from retarget.robots.robot import Robot, load_robot
from retarget.solve.arm import Arm
from retarget.solve.calibration_file import (
    StoredCalibration,
    calibration_text,
    known_calibrations,
    read_calibrations,
)
from retarget.solve.methods import Retargeter, retargeter_named
from retarget.targets import hand_targets

if TYPE_CHECKING:
    from acehand_core.pipeline.narration import Narration

#: Hands and the robot's calibrations to them.
Tracked = tuple[HandMotion, dict[Side, Calibration]]


@dataclass(frozen=True, slots=True)
class Source:
    """An opened input.

    Attributes:
        fit: how its pictures become those of the dataset; None: unchanged.
        dropped: see ``InputPart``.
    """

    path: Path
    recording: Recording
    tracker: Tracker
    fit: Fit | None
    dropped: DroppedMessages | None


@dataclass(frozen=True, slots=True)
class Run:
    """One run's settings, robot and files, and the steps that need them."""

    settings: JobSettings
    progress: Progress
    registry: Registry
    narration: Narration | None
    robot: Robot
    retargeter: Retargeter
    arm: Arm | None
    given: Mapping[Side, StoredCalibration]
    gates: Judgements

    @classmethod
    def of(cls, settings: JobSettings, progress: Progress, registry: Registry | None = None) -> Run:
        """Load what the settings name. Raises InputError."""
        robot = load_robot(settings.robot, models=settings.robot_model)
        hands = robot.hands_to_follow(settings.hands)
        if not settings.robot_unchecked:
            refuse_faulty(robot, SIDES if hands == "both" else (hands,))
        narration = None
        if settings.task_file:
            from acehand_core.pipeline.narration import Narration

            narration = Narration.read(settings.task_file)
        return cls(
            replace(settings, hands=hands).with_environment(progress),
            progress,
            registry or Registry(),
            narration,
            robot,
            retargeter=retargeter_named(settings.method, settings.second_pass),
            arm=settings.arm.load(),
            given=read_calibrations(settings.calibration, robot) if settings.calibration else {},
            gates=read_gates(settings.gates) if settings.gates else JUDGEMENTS,
        )

    def shaping(self, fps: int | None) -> dict[str, Any]:
        """Return the settings that change an episode: see ``JobSettings.shaping``."""
        models = [file_identity(hand.user_model) for hand in self.robot.hands.values()]
        return self.settings.shaping(fps) | {"robot-model": models if any(models) else None}

    def open(self, path: Path) -> Source:
        """Open an input and choose its tracker. Raises as ``open_tracked``."""
        settings, tracking = self.settings, self.settings.tracker_settings
        opener = functools.partial(self.registry.open, progress=self.progress)
        opened, tracker = open_tracked(path, settings.tracker, tracking, settings.reading, opener)
        tracker = cached(tracker, tracking, settings.cache)
        fit = settings.fit_of(opened.recording)
        return Source(path, opened.recording, tracker, fit, opened.dropped)

    def track(self, source: Source, recording: Recording) -> Tracked:
        """Return the hands of a recording or part, and its calibrations. Raises NoHandError."""
        motion = source.tracker.track(recording, self.progress)
        motion = only_hands(motion, self.settings.hands or "both")
        topic = recording.processing.get("topic")
        if topic is not None:  # the topic and frame of a bag's pictures
            topics = {"image_topic": topic, "camera_frame": recording.camera_frame}
            kept = {**motion.provenance.settings, **topics}
            motion = replace(motion, provenance=replace(motion.provenance, settings=kept))
        if source.fit:
            motion = source.fit.hands(motion)
        release_memory()

        if all(hand_targets(motion, side) is None for side in SIDES):
            known = int(motion.known.any(axis=1).sum())
            doubt = f" The joints of {known} frames have confidence 0." if known else ""
            raise NoHandError(
                f"{recording.source}: no hand was found in {len(motion)} frames.{doubt}"
            )
        given = {side: fitted.calibration for side, fitted in self.given.items()}
        return motion, self.retargeter.calibrate([motion], self.robot, given)

    def demonstrate(
        self,
        view: Recording,
        tracked: Tracked,
        task: str,
        key: EpisodeKey,
        cut: Mapping[str, Any] | None,
    ) -> Demonstration:
        """Let the robot follow the hands at the times of a view: see ``Demonstration``."""
        settings, (motion, calibrations) = self.settings, tracked
        hands = hands_at(motion, view.timestamps_ns, view.fps)
        self.progress("retarget", 0, 1)
        trajectory = retarget_motion(
            hands,
            self.robot,
            self.retargeter,
            calibrations=calibrations,
            physics=Physics(latency=settings.latency, second_pass=settings.second_pass),
            gates=self.gates,
            unchecked=settings.robot_unchecked,
            source_ns=view.source_timestamps_ns,
        )
        if self.arm is not None:
            from retarget.solve.arm_attachment import attach_arms

            trajectory = attach_arms(trajectory, self.arm, settings.arm, self.robot)
        self.progress("retarget", 1, 1)
        text = None
        if self.retargeter.calibrates:
            fitted = {
                side: self.given.get(side, StoredCalibration(one, view.name, view.sha256))
                for side, one in calibrations.items()
            }
            text = calibration_text(self.robot, fitted)
        return Demonstration(view, hands, trajectory, task, text, key, cut)

    def stored(self, folder: Path) -> Tracked | None:
        """Return the hands and calibrations kept in an episode's folder; None: incomplete."""
        try:
            motion = read_hand_motion(folder / files.HANDS)
            if not self.retargeter.calibrates:
                return motion, {}
            return motion, known_calibrations(folder / files.CALIBRATION, self.robot)
        except AcehandError:
            return None


@dataclass(frozen=True, slots=True)
class Spans:
    """The parts of a recording that become episodes.

    Attributes:
        tracked: the hands of the whole recording; None: each part is tracked separately.
        cuts: entry of the run's report; None: not cut.
        notes: sentences about the task text and holes.
    """

    spans: tuple[Span, ...]
    tracked: Tracked | None = None
    cuts: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()


def cut_recording(run: Run, source: Source) -> Spans:
    """Return the parts of a recording by ``split``, each with its task by ``task_file``.

    Raises NoHandError if ``split=auto`` finds no hand, InputError if nothing moves or the task
    text does not fit the recording.
    """
    settings, recording = run.settings, source.recording
    segments: Sequence[TaskSegment] = ()
    notes: list[str] = []
    if run.narration is not None:
        lasts, rows = duration_s(recording), settings.split == "tasks"
        segments, notes = run.narration.fitting(source.path, settings.cut, lasts, rows)
    if settings.spans_of is not None:
        return Spans(tuple(settings.spans_of(recording)), notes=tuple(notes))
    if settings.split == "auto":
        return _demonstrations(run, source, segments, notes)
    by = _by_rows if settings.split == "tasks" else _between_holes
    spans = by(source, segments, notes)
    whole = [(span.start, span.stop) for span in spans.spans] == [(0, len(recording))]
    if whole or recording.frames is None or not isinstance(source.tracker, FileTracker):
        return spans
    # A file of hands has one row per frame of the video: it refuses a part.
    return replace(spans, tracked=run.track(source, recording))


def duration_s(recording: Recording) -> float:
    """Return how long a recording lasts, its last frame included."""
    times = recording.timestamps_ns
    return float(times[-1] - times[0]) * 1e-9 + 1 / recording.fps


def _demonstrations(
    run: Run, source: Source, segments: Sequence[TaskSegment], notes: Sequence[str]
) -> Spans:
    """Return the demonstrations of a recording, found by the motion of its hands."""
    from acehand_core.pipeline.cutting import cut_demonstrations

    settings, recording = run.settings, source.recording
    tracked = run.track(source, recording)
    motion, turns = tracked[0], None
    if motion.T_world_camera is not None:
        turns = CameraMotion.from_poses(motion.T_world_camera)
    elif settings.tracking.camera_motion != "off" and recording.frames and motion.camera:
        from acehand_core.camera.recorded import recorded_rotations

        turns = recorded_rotations(
            source.fit.recording(recording) if source.fit else recording,
            motion.camera,
            motion.joints_image,
            np.asarray(motion.known.any(axis=1)),
            settings.tracker_settings.work_dir,
            run.progress,
        )
    cutting = cut_demonstrations(motion, settings.cutting, turns)
    report = cutting.to_json()
    if not cutting.cuts:
        reasons = "; ".join(part.reason for part in cutting.left_out)
        raise InputError(
            f"{source.path}: `split=auto` found no demonstration: {reasons}. Adjust `cut_speeds` "
            "and `cut_min`, or use `split=none`."
        )
    seconds = cutting.activity.seconds
    ends = seconds + 1 / recording.fps
    parts = [
        (one.start, one.stop, task_of(segments, seconds[one.start], ends[one.stop - 1]))
        for one in cutting.cuts
    ]
    without_task = ", ".join(str(number) for number, part in enumerate(parts) if part[2] is None)
    if segments and without_task:
        notes = (
            *notes,
            f"{source.path}: `task_file` has no task for demonstrations {without_task}",
        )
    spans = _numbered(parts, report["demonstrations"])
    cuts = {"source": str(source.path), "split": "auto", **report}
    return Spans(spans, tracked, cuts, tuple(notes))


def _between_holes(source: Source, segments: Sequence[TaskSegment], notes: Sequence[str]) -> Spans:
    """Return the parts of a recording between holes of more than 1.5 s."""
    recording = source.recording
    times = recording.timestamps_ns
    holes = np.flatnonzero(np.diff(times) > HOLE_NS)
    edges = [0, *(holes + 1).tolist(), len(recording)]
    seconds = (times - times[0]) * 1e-9
    ends = seconds + 1 / recording.fps
    spans = tuple(
        Span(
            start,
            stop,
            task_of(segments, seconds[start], ends[stop - 1]),
            (number, len(edges) - 1) if len(holes) else None,
        )
        for number, (start, stop) in enumerate(pairwise(edges))
    )
    if len(holes):
        longest = float(np.diff(times)[holes].max()) * 1e-9
        note = (
            f"{recording.source}: nothing was recorded for up to {longest:.1f} s: its "
            f"{len(recording)} frames become {len(spans)} episodes"
        )
        notes = (*notes, note)
    return Spans(spans, notes=tuple(notes))


def _by_rows(source: Source, segments: Sequence[TaskSegment], notes: Sequence[str]) -> Spans:
    """Return a part for each row with start and end. Raises InputError for no such row."""
    path, recording = source.path, source.recording
    seconds = (recording.timestamps_ns - recording.timestamps_ns[0]) * 1e-9
    rows = [one for one in segments if one.start_s is not None and one.end_s is not None]
    if not rows:
        raise InputError(
            f"{path}: `split=tasks`: `task_file` has no row with start and end for this recording."
        )
    parts, entries = [], []
    for one in rows:
        assert one.start_s is not None and one.end_s is not None
        # Times are often those of the frames, rounded.
        start, stop = np.searchsorted(seconds, np.array([one.start_s, one.end_s]) - 5e-4).tolist()
        if stop - start < 2:
            notes = (*notes, f"{one.where}: has fewer than two frames of {path}, left out")
            continue
        parts.append((start, stop, one.task))
        entries.append(
            {
                "first_frame": start,
                "last_frame": stop - 1,
                "start_s": round(float(seconds[start]), 3),
                "end_s": round(float(seconds[stop - 1]) + 1 / recording.fps, 3),
                "starts": one.where,
                "ends": one.where,
            }
        )
    if not parts:
        raise InputError(
            f"{path}: `split=tasks`: no row covers two of its frames ({rows[0].where})."
        )
    cuts = {"source": str(path), "split": "tasks", "demonstrations": entries, "left_out": []}
    return Spans(_numbered(parts, entries), cuts=cuts, notes=tuple(notes))


def _numbered(
    parts: Sequence[tuple[int, int, str | None]], entries: Sequence[Mapping[str, Any]]
) -> tuple[Span, ...]:
    """Return spans of (start, stop, task), each with its number in its entry of the report."""
    count = len(parts)
    return tuple(
        Span(*part, (number, count), {"number": number, "of": count, **entry})
        for number, (part, entry) in enumerate(zip(parts, entries, strict=True))
    )
