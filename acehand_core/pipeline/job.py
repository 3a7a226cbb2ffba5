"""The main job: recordings in, one dataset and its pictures out; and pictures of hands alone.

An input that fails is reported and the next one is taken; what was finished stays.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from acehand_core.atomic import check_free
from acehand_core.errors import AcehandError, InputError, Interrupted, OutputError
from acehand_core.lerobot import format as files
from acehand_core.lerobot.dataset import EpisodeKey, FinishedEpisodes, prepare_output
from acehand_core.lerobot.writer import max_episode_frames
from acehand_core.motion import HandMotion, Recording, RobotTrajectory
from acehand_core.pipeline.dataset import Dataset, draw
from acehand_core.pipeline.report import (
    Demonstration,
    EpisodeReport,
    Failure,
    JobReport,
    episode_report,
)
from acehand_core.pipeline.run import Run, Source, Tracked, cut_recording, duration_s
from acehand_core.pipeline.settings import TASK, JobSettings, Span, task_of
from acehand_core.processes import release_memory
from acehand_core.recordings.bags.records import DroppedMessages
from acehand_core.recordings.registry import HandsFile, Registry, format_of
from acehand_core.recordings.selection import at_rate, part
from acehand_core.trackers.base import Tracker
from acehand_core.trackers.choose import open_input
from acehand_core.types import Progress, no_progress
from retarget.retargeting import retarget_motion
from retarget.robots.robot import Robot, load_robot


def run_job(
    inputs: Sequence[Path],
    settings: JobSettings,
    progress: Progress = no_progress,
    registry: Registry | None = None,
) -> JobReport:
    """Turn every input into episodes of the dataset at ``settings.output``; return the report.

    Args:
        registry: opens the inputs, and keeps what it has opened before.

    Raises:
        InputError, OutputError: before any work: an input does not exist, a setting is invalid or
            differs from the resumed run's, or the output is taken.
        Interrupted: by Ctrl-C; holds the report of what was finished.
    """
    job = _Job.of(inputs, settings, progress, registry)
    stopped: KeyboardInterrupt | None = None
    try:
        for path in job.paths:
            if not job.convert_input(path):
                break
    except KeyboardInterrupt as stop:
        stopped = stop
    except BaseException:
        job.dataset.close()
        raise

    release_memory()
    try:
        if not settings.dry_run:
            job.dataset.finish()
    except AcehandError as error:
        job.failures.append(Failure(str(settings.output), error))
    except KeyboardInterrupt as stop:
        stopped = stop
    report = job.report()
    if stopped is not None:
        raise Interrupted(report) from stopped
    # Another run may have the output, and the folder.
    if not settings.dry_run and not any(isinstance(f.error, OutputError) for f in job.failures):
        shutil.rmtree(settings.work_dir, ignore_errors=True)
    return report


@dataclass(frozen=True, slots=True)
class _Plan:
    """The episodes of one span of an input.

    Attributes:
        track: finds its hands.
        todo: episodes to make, each with its view: the recording at the dataset's rate and size.
        unfinished: episodes of the dataset, by number, that lack files next to their data.
        cut: see ``Demonstration``.
    """

    task: str
    track: Callable[[], Tracked]
    todo: Sequence[tuple[EpisodeKey, Recording]]
    unfinished: Mapping[int, tuple[EpisodeKey, Recording]]
    cut: Mapping[str, Any] | None


@dataclass(slots=True)
class _Job:
    """The running job: what it has loaded, the dataset, and the results so far."""

    run: Run
    paths: list[Path]
    finished: FinishedEpisodes
    dataset: Dataset
    started: float
    episodes: list[EpisodeReport] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    skipped_episodes: list[int] = field(default_factory=list)
    recorded_s: float = 0.0
    dropped: DroppedMessages = field(default_factory=DroppedMessages)
    cuts: list[Mapping[str, Any]] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        inputs: Sequence[Path],
        settings: JobSettings,
        progress: Progress,
        registry: Registry | None,
    ) -> _Job:
        """Load and check everything before any work. Raises as ``run_job``."""
        started, registry = time.perf_counter(), registry or Registry()
        paths = registry.expand(inputs)
        run = Run.of(settings, progress, registry)
        if run.narration is not None:
            run.narration.check_inputs(paths)
            for path in paths:
                run.narration.of(path)

        finished = FinishedEpisodes()
        if not settings.dry_run:
            finished = prepare_output(settings.output, settings.existing)
        resumed = settings.existing == "resume"
        fps = settings.fps or (finished.fps if resumed else None)
        if resumed and finished.keys:
            origins = [(path, registry.sha256(path, settings.reading)) for path in paths]
            shaping = run.shaping(fps)
            if run.narration is not None:  # each episode has its own task
                del shaping["task"]
            finished.check_settings(origins, settings.cut, shaping)

        dataset = Dataset(settings.output, run.robot, settings.existing, fps)
        job = cls(run, paths, finished, dataset, started)
        if settings.hands is None and (side := run.settings.hands) != "both":
            note = f"robot {run.robot.label} has a {side} hand only: the other is not tracked"
            progress(note, 0, 0)
            job.dropped.remark(note)
        return job

    def convert_input(self, path: Path) -> bool:
        """Process one input, keep its failures, and return whether to take the next."""
        dropped, notes = None, list[str]()
        try:
            source = self.run.open(path)
            dropped = source.dropped
            if self._already_converted(source):
                return True
            parts = cut_recording(self.run, source)
            self.cuts += [parts.cuts] if parts.cuts else []
            notes += parts.notes
            for number, span in enumerate(parts.spans):
                name = str(path) if len(parts.spans) == 1 else f"{path} (clip {number})"
                try:
                    plan = self._plan(source, span, parts.tracked)
                    self._complete(plan, notes)
                    if plan.todo:
                        self._convert(plan, source.tracker)
                except OutputError:
                    raise
                except AcehandError as error:
                    self.failures.append(Failure(name, error))
        except KeyboardInterrupt:
            self.failures.append(Failure(str(path), AcehandError(f"{path}: interrupted.")))
            raise
        except AcehandError as error:
            self.failures.append(Failure(str(path), error))
            return not isinstance(error, OutputError)
        finally:
            for note in notes:
                self.dropped.remark(note)
            if dropped is not None:
                self.dropped.add(dropped)
        return True

    def _already_converted(self, source: Source) -> bool:
        """Return whether the dataset has all demonstrations of an input: it need not be cut again.

        Raises InputError if it has, but the input is appended or a task has changed.
        """
        run, recording, settings = self.run, source.recording, self.run.settings
        if settings.split != "auto":
            return False
        shaping = run.shaping(self.dataset.rate_of(recording))
        done = self.finished.all_of(recording.sha256 or "", settings.cut, shaping)
        if not done:
            return False
        if settings.existing == "append":
            raise _there_already(source.path, done[0][0])

        segments = run.narration.since(source.path, settings.cut[0]) if run.narration else ()
        for number, key in done:
            start = key.cut[0] - settings.cut[0]
            lasts = duration_s(recording) if key.one_of == (0, 1) else key.cut[1] or 0.0
            task = task_of(segments, start, start + lasts) or settings.task
            if task != key.settings["task"]:
                raise _other_task(source.path, number, task)
        self.skipped.append(str(source.path))
        self.skipped_episodes += [number for number, _ in done]
        return True

    def _plan(self, source: Source, span: Span, tracked: Tracked | None) -> _Plan:
        """Divide a span into episodes and skip those that the resumed dataset has.

        ``tracked`` are the hands of the whole recording, if known. Raises InputError if the dataset
        has an episode that is appended, or with another task.
        """
        run, path, recording, finished = self.run, source.path, source.recording, self.finished
        settings, fps, times = run.settings, self.dataset.rate_of(recording), run.settings.cut
        if (span.start, span.stop) != (0, len(recording)):
            first, last = recording.timestamps_ns[[span.start, span.stop - 1]]
            offset_s = float(first - recording.timestamps_ns[0]) / 1e9
            length_s = float(last - first) / 1e9 + 1 / recording.fps
            times = (times[0] + offset_s, length_s)
            recording = part(recording, span.start, span.stop)

        view, _ = at_rate(recording, fps)
        if source.fit:
            view = source.fit.recording(view)
        limit = max_episode_frames(fps)
        shaping = run.shaping(fps) | {"task": span.task or settings.task}
        todo, skipped = [], []
        unfinished: dict[int, tuple[EpisodeKey, Recording]] = {}
        edges = [*range(0, len(view), limit), len(view)]
        for frames in pairwise(edges):
            key = EpisodeKey(
                recording.name,
                recording.sha256 or "",
                times,
                frames,
                shaping,
                within=settings.cut if span.number else None,
                one_of=span.number,
            )
            episode = key, part(view, *frames)
            numbers = finished.numbers_of(key)
            if not numbers:
                others = finished.but_for_task(key)
                if others and settings.existing == "resume":
                    raise _other_task(path, others[0], shaping["task"])
                todo.append(episode)
                continue
            if settings.existing == "append":
                raise _there_already(path, numbers[0])
            # Of several appended copies the last is the interrupted run's.
            skipped.append(numbers[-1])
            unfinished |= {number: episode for number in numbers if number in finished.missing}
        self.skipped_episodes += skipped
        if skipped:
            parts = f"{path}: {len(skipped)} of {len(edges) - 1} parts"
            self.skipped.append(parts if todo else str(path))

        def track() -> Tracked:
            return tracked or run.track(source, recording)

        task = span.task or settings.task or recording.task or TASK
        return _Plan(task, track, todo, unfinished, span.cut)

    def _complete(self, plan: _Plan, notes: list[str]) -> None:
        """Write the files that an interrupted run left out; note each episode."""
        dataset, overlay = self.dataset, self.run.settings.overlay
        tracked: Tracked | None = None
        for number, (key, view) in plan.unfinished.items():
            names = self.finished.missing.pop(number)
            hands = self.run.stored(dataset.output / files.episode_folder(number))
            if hands is None:
                hands = tracked = tracked or plan.track()
            episode = self.run.demonstrate(view, hands, plan.task, key, plan.cut)
            with dataset.lock():
                folder = dataset.complete(episode, number)
                if {files.SHEET, files.OVERLAY} & set(names):
                    dataset.draw(episode, folder, overlay, self.run.progress, self.run.arm)
            made_now = f"episode {number} was interrupted; made now: {', '.join(names)}"
            notes.append(f"{view.source}: {made_now}")

    def _convert(self, plan: _Plan, tracker: Tracker) -> None:
        """Track a span, and make each of its episodes."""
        run, dataset, settings = self.run, self.dataset, self.run.settings
        views = [view for _, view in plan.todo]
        layout = settings.layout(views[0], tracker, run.robot, run.arm)
        with contextlib.ExitStack() as stack:
            if not settings.dry_run:
                dataset.begin(layout, views[0])
                # Encoding runs while the tracker does.
                videos = stack.enter_context(dataset.encoded(views))
            tracked = plan.track()

            for key, view in plan.todo:
                episode = run.demonstrate(view, tracked, plan.task, key, plan.cut)
                self.recorded_s += len(view) / view.fps
                if settings.dry_run:
                    self.episodes.append(episode_report(episode, None))
                    continue
                report, folder = dataset.store(episode, next(videos), settings.overlay)
                self.episodes.append(report)
                dataset.draw(episode, folder, settings.overlay, run.progress, run.arm)

    def report(self) -> JobReport:
        """Return the report of the run."""
        exists = self.dataset.has_episodes or bool(self.skipped)
        return JobReport(
            dataset=str(self.dataset.output) if exists else None,
            seconds=time.perf_counter() - self.started,
            recorded_seconds=self.recorded_s,
            episodes=tuple(self.episodes),
            failures=tuple(self.failures),
            skipped=tuple(self.skipped),
            lost_messages=dict(self.dropped.by_topic),
            notes=self.dropped.sentences(),
            skipped_episodes=tuple(self.skipped_episodes),
            cuts=tuple(self.cuts),
        )


def _there_already(path: Path, number: int) -> InputError:
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


def view_hands(
    hands: Path, video: Path | None, settings: JobSettings, progress: Progress = no_progress
) -> list[Path]:
    """Draw a file of hands, over its video if given; return the files written.

    Reads the settings output, robot, hands, reading, overlay and existing. Raises InputError if
    ``hands`` does not fit the video or the settings, OutputError for existing pictures.
    """
    check_hands_file(hands)
    for name in (files.SHEET, files.OVERLAY):
        check_free(settings.output / name, settings.existing == "overwrite")
    recording, motion, trajectory, robot = follow_hands(hands, video, settings, progress)
    shown = Demonstration(recording, motion, trajectory)
    return draw(shown, robot, settings.output, settings.overlay, progress)


def check_hands_file(path: Path) -> None:
    """Raise InputError for a path that is no file of hands."""
    if format_of(path) is not HandsFile:
        raise InputError(f"{path}: give a HandMotion table (.parquet) or a joints file (.npz).")


def follow_hands(
    hands: Path, video: Path | None, settings: JobSettings, progress: Progress = no_progress
) -> tuple[Recording, HandMotion, RobotTrajectory, Robot]:
    """Return a file's recording, its hands and a robot that follows them.

    Reads the settings robot, hands and reading. Raises InputError if ``hands`` does not fit the
    video or the settings.
    """
    robot = load_robot(settings.robot)
    settings = replace(settings, hands=robot.hands_to_follow(settings.hands))
    name = "auto" if video is None else str(hands)
    recording, tracker = open_input(
        video or hands, name, settings.tracker_settings, settings.reading
    )
    motion = tracker.track(recording, progress)
    return recording, motion, retarget_motion(motion, robot, unchecked=True), robot
