"""The main job: recordings in, one dataset and its pictures out; and pictures of hands alone.

An input that fails is reported and the next one is taken; what was finished stays.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from acehand_core.atomic import check_free
from acehand_core.errors import AcehandError, InputError, Interrupted, OutputError
from acehand_core.lerobot.dataset import FinishedEpisodes, prepare_output
from acehand_core.lerobot.format import OVERLAY, SHEET, episode_folder
from acehand_core.motion import DroppedMessages, HandMotion, Recording, RobotTrajectory
from acehand_core.pipeline.converter import Converter, Input, TrackedHands
from acehand_core.pipeline.dataset import Dataset, draw
from acehand_core.pipeline.narration import Narration
from acehand_core.pipeline.plan import Plan, cut_input
from acehand_core.pipeline.report import (
    EpisodeReport,
    Failure,
    JobReport,
    PlannedEpisode,
    RetargetedEpisode,
    episode_report,
)
from acehand_core.pipeline.settings import JobSettings, Span
from acehand_core.processes import release_memory
from acehand_core.recordings.registry import HandsFile, Registry, format_of
from acehand_core.trackers.base import Tracker
from acehand_core.trackers.choose import open_tracked
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


@dataclass(slots=True)
class _Job:
    """The running job: what it has loaded, the dataset, and the results so far."""

    converter: Converter
    narration: Narration | None
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
        converter = Converter.of(settings, progress, registry)
        narration = None
        if settings.task_file:
            narration = Narration.read(settings.task_file)
            narration.check_inputs(paths)
            for path in paths:
                narration.of(path)

        finished = FinishedEpisodes()
        if not settings.dry_run:
            finished = prepare_output(settings.output, settings.existing)
        resumed = settings.existing == "resume"
        fps = settings.fps or (finished.fps if resumed else None)
        if resumed and finished.keys:
            origins = [(path, registry.sha256(path, settings.reading)) for path in paths]
            shaping = converter.shaping(fps)
            if narration is not None:  # each episode has its own task
                del shaping["task"]
            finished.check_settings(origins, settings.extent, shaping)

        dataset = Dataset(settings.output, converter.robot, settings.existing, fps)
        job = cls(converter, narration, paths, finished, dataset, started)
        if settings.hands is None and (side := converter.settings.hands) != "both":
            robot = converter.robot.label
            note = f"robot {robot} has a {side} hand only: the other is not tracked"
            progress(note, 0, 0)
            job.dropped.remark(note)
        return job

    def convert_input(self, path: Path) -> bool:
        """Process one input, keep its failures, and return whether to take the next."""
        dropped, notes = None, list[str]()
        try:
            source = self.converter.open(path)
            dropped = source.recording.dropped
            if done := self._plan(source).converted(source, self.narration):
                self.skipped.append(str(path))
                self.skipped_episodes += done
                return True

            parts = cut_input(self.converter, self.narration, source)
            self.cuts += [parts.report] if parts.report else []
            notes += parts.notes
            for number, span in enumerate(parts.spans):
                name = str(path) if len(parts.spans) == 1 else f"{path} (clip {number})"
                try:
                    self._convert(source, span, parts.tracked, notes)
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

    def _plan(self, source: Input) -> Plan:
        """Return the plan of an input's episodes; the first input sets the dataset's rate."""
        fps = self.dataset.rate_of(source.recording)
        shaping = self.converter.shaping(fps)
        return Plan(self.converter.settings, self.finished, fps, shaping)

    def _convert(
        self, source: Input, span: Span, tracked: TrackedHands | None, notes: list[str]
    ) -> None:
        """Make the episodes of a span that the dataset lacks; skip and complete the others.

        ``tracked`` are the hands of the whole recording, if known.
        """
        recording, path = source.recording, source.path
        episodes = self._plan(source).episodes(path, recording, span)
        # Of several appended copies the last is the interrupted run's.
        places = {int(one.view.timestamps_ns[0]): one.number for one in episodes}
        skipped = [number for number in places.values() if number is not None]
        todo = [one for one in episodes if one.number is None]
        self.skipped_episodes += skipped
        if skipped:
            count = f"{path}: {len(skipped)} of {len(places)} parts"
            self.skipped.append(count if todo else str(path))

        @functools.cache
        def track() -> TrackedHands:
            return tracked or self.converter.track(source.tracker, span.of(recording))

        for episode in episodes:
            if episode.missing:
                self._complete(episode, track, notes)
        if todo:
            self._make(todo, source.tracker, track)

    def _complete(
        self, planned: PlannedEpisode, track: Callable[[], TrackedHands], notes: list[str]
    ) -> None:
        """Write the files that an interrupted run left out, and note them."""
        converter, dataset, number = self.converter, self.dataset, planned.number
        assert number is not None
        stored = converter.stored(dataset.output / episode_folder(number))
        episode = converter.retarget(planned, stored or track())
        overlay = converter.settings.overlay
        dataset.complete(episode, number, overlay, converter.progress, converter.arm)
        self.finished = self.finished.completed(number)
        made_now = f"episode {number} was interrupted; made now: {', '.join(planned.missing)}"
        notes.append(f"{planned.view.source}: {made_now}")

    def _make(
        self,
        episodes: Sequence[PlannedEpisode],
        tracker: Tracker,
        track: Callable[[], TrackedHands],
    ) -> None:
        """Track a span, and write and draw each of its episodes."""
        converter, dataset, settings = self.converter, self.dataset, self.converter.settings
        views = [episode.view for episode in episodes]
        layout = settings.layout(views[0], tracker, converter.robot, converter.arm)
        with contextlib.ExitStack() as stack:
            if not settings.dry_run:
                writer = dataset.begin(layout, views[0])
                # Encoding runs while the tracker does.
                videos = stack.enter_context(writer.encoded(views))
            tracked = track()

            for planned in episodes:
                episode = converter.retarget(planned, tracked)
                self.recorded_s += len(planned.view) / planned.view.fps
                if settings.dry_run:
                    self.episodes.append(episode_report(episode, None))
                    continue
                overlay, progress, arm = settings.overlay, converter.progress, converter.arm
                report, folder = writer.store(episode, next(videos), overlay, progress, arm)
                self.episodes.append(report)
                dataset.draw(episode, folder, overlay, progress, arm)

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


def draw_hands(
    hands: Path, video: Path | None, settings: JobSettings, progress: Progress = no_progress
) -> list[Path]:
    """Draw a file of hands, over its video if given; return the files written.

    Reads the settings output, robot, hands, reading, overlay and existing. Raises InputError if
    ``hands`` does not fit the video or the settings, OutputError for existing pictures.
    """
    check_hands_file(hands)
    for name in (SHEET, OVERLAY):
        check_free(settings.output / name, settings.existing == "overwrite")
    recording, motion, trajectory, robot = follow_hands(hands, video, settings, progress)
    shown = RetargetedEpisode(PlannedEpisode(recording), motion, trajectory)
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
    recording, tracker = open_tracked(
        video or hands, name, settings.tracker_settings, settings.reading
    )
    motion = tracker.track(recording, progress)
    return recording, motion, retarget_motion(motion, robot, unchecked=True), robot
