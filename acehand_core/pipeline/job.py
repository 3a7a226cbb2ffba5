"""The main job itself.

recording -> tracker -> robot hand -> dataset and pictures, one input after another. An input that
fails is reported and the rest goes on; what was finished stays.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from acehand_core.bags.bag import is_bag
from acehand_core.bags.records import Losses
from acehand_core.errors import AcehandError, Interrupted, NoHandError, OutputError
from acehand_core.lerobot import dataset, extras
from acehand_core.lerobot.resume import EpisodeJob, FinishedEpisodes, identity, prepare_output
from acehand_core.motion import Calibration, HandMotion, Recording, RobotTrajectory
from acehand_core.pipeline.destination import Destination, release_memory
from acehand_core.pipeline.pictures import draw
from acehand_core.pipeline.report import EpisodeReport, Failure, JobReport, episode_report
from acehand_core.pipeline.settings import Clip, JobSettings
from acehand_core.recordings.bag import index_bag
from acehand_core.recordings.hand_table import read_hand_motion
from acehand_core.recordings.registry import expand_inputs, recording_sha256
from acehand_core.recordings.selection import at_rate, hands_at, part
from acehand_core.recordings.video_encode import encode_video
from acehand_core.trackers.base import Progress, Tracker, no_progress
from acehand_core.trackers.choose import open_input
from acehand_core.types import SIDES, Side
from retarget.calibration_file import (
    Fitted,
    calibration_text,
    known_calibrations,
    read_calibrations,
)
from retarget.carry import with_arms
from retarget.physics import Physics
from retarget.pipeline import calibrate_motion, retarget_motion
from retarget.robot import Robot, load_robot
from retarget.targets import hand_targets
from retarget.verdict import GATES, read_gates


def run_job(
    inputs: Sequence[Path], settings: JobSettings, progress: Progress = no_progress
) -> JobReport:
    """Turn every input into an episode of the dataset at ``settings.output``.

    Returns:
        The report; inputs that gave no episode are in its ``failures``.

    Raises:
        InputError, OutputError: an input does not exist, a setting is not valid or not the one of
            the run that is resumed, or the output is taken: nothing was started.
        Interrupted: by Ctrl-C; holds the report of what was finished.
    """
    started = time.perf_counter()
    paths = expand_inputs(inputs)
    job = _Job(settings, progress)
    job.check_resumed(paths)
    try:
        with job.running():
            for path in paths:
                if not job.add(path):
                    break
    except KeyboardInterrupt as stop:
        raise Interrupted(job.report(time.perf_counter() - started)) from stop
    return job.report(time.perf_counter() - started)


@dataclass(frozen=True, slots=True)
class _Source:
    """One opened input: as recorded, at the dataset's rate, and the episodes to make of it.

    ``unfinished`` are episodes of the dataset, by number, that lack files beside their data.
    """

    recording: Recording
    tracker: Tracker
    view: Recording
    index: Int[np.ndarray, "N"]
    jobs: tuple[EpisodeJob, ...]
    task: str
    unfinished: Mapping[int, EpisodeJob]


class _Job:
    """One run: the robot, and the dataset once the first input is open."""

    def __init__(self, settings: JobSettings, progress: Progress) -> None:
        self._settings, self._progress = settings, progress
        self._robot: Robot = load_robot(settings.robot, models=settings.robot_model)
        self._arm = settings.arm.load() if settings.arm else None
        kept = settings.calibration
        self._given = read_calibrations(kept, self._robot) if kept else {}
        self._gates = read_gates(settings.gates) if settings.gates else GATES
        self._destination = Destination(settings.output, settings.existing)
        self._finished = FinishedEpisodes()
        if not settings.dry_run:
            self._finished = prepare_output(settings.output, settings.existing, settings.work_dir)
        self._fps = settings.fps or self._finished.fps
        self._episodes: list[EpisodeReport] = []
        self._failures: list[Failure] = []
        self._skipped: list[str] = []
        self._skipped_episodes: list[int] = []
        self._recorded_s = 0.0
        self._losses = Losses()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Close the dataset at the end; an interrupted run keeps its partial results."""
        try:
            yield
        except KeyboardInterrupt:
            with contextlib.suppress(AcehandError):  # finished episodes are there all the same
                self._finish()
            raise
        except BaseException:
            self._destination.close()
            raise
        release_memory()
        try:
            self._finish()
        except AcehandError as error:
            self._failures.append(Failure(str(self._settings.output), error))
        shutil.rmtree(self._settings.work_dir, ignore_errors=True)

    def _finish(self) -> None:
        if not self._settings.dry_run:
            self._destination.finish()

    def report(self, seconds: float) -> JobReport:
        """Return what was done."""
        there = self._destination.has_episodes or bool(self._skipped)
        return JobReport(
            dataset=str(self._settings.output) if there else None,
            seconds=seconds,
            recorded_seconds=self._recorded_s,
            episodes=tuple(self._episodes),
            failures=tuple(self._failures),
            skipped=tuple(self._skipped),
            lost_messages=dict(self._losses.by_topic),
            notes=self._losses.sentences(),
            skipped_episodes=tuple(self._skipped_episodes),
        )

    def check_resumed(self, paths: Sequence[Path]) -> None:
        """Refuse to go on with other settings than the finished episodes were made with."""
        if self._finished.jobs:
            settings = self._settings
            origins = [(path, recording_sha256(path, settings.reading)) for path in paths]
            self._finished.check_settings(origins, settings.cut, self._shaping())

    def _shaping(self) -> dict[str, Any]:
        models = [identity(hand.user_model) for hand in self._robot.hands.values()]
        return self._settings.shaping(self._fps) | {"robot-model": models if any(models) else None}

    def add(self, path: Path) -> bool:
        """Process one input, keep its failures for the report, and tell whether to go on."""
        opened = False
        try:
            recording, tracker = self._open(path)
            opened = True
            split = self._settings.split
            clips = split(recording) if split else [Clip(0, len(recording))]
            for number, clip in enumerate(clips):
                name = str(path) if len(clips) == 1 else f"{path} (clip {number})"
                try:
                    source = self._source(path, recording, tracker, clip)
                    if source is not None:
                        self._process(source)
                except OutputError:
                    raise
                except AcehandError as error:
                    self._failures.append(Failure(name, error))
        except KeyboardInterrupt:
            self._failures.append(Failure(str(path), AcehandError(f"{path}: interrupted.")))
            raise
        except AcehandError as error:
            self._failures.append(Failure(str(path), error))
            return not isinstance(error, OutputError)
        finally:
            if opened and is_bag(path):
                self._losses.add(index_bag(path, self._settings.reading.bag).losses)
        return True

    def _open(self, path: Path) -> tuple[Recording, Tracker]:
        settings = self._settings
        if is_bag(path):  # it is read wholly first, which may take long
            index_bag(path, settings.reading.bag, self._progress)
        recording, tracker = open_input(path, settings.tracker, settings.tracking, settings.reading)
        if self._fps is None:
            self._fps = max(1, round(recording.fps))
        return recording, tracker

    def _source(
        self, path: Path, recording: Recording, tracker: Tracker, clip: Clip
    ) -> _Source | None:
        """Return one clip of an input, or None if a resumed dataset already has all of it."""
        settings = self._settings
        assert self._fps is not None
        cut, task = settings.cut, settings.task_of(clip, recording)
        if (clip.start, clip.stop) != (0, len(recording)):
            whole = recording
            recording = part(whole, clip.start, clip.stop)
            first, last = recording.timestamps_ns[[0, -1]] - whole.timestamps_ns[0]
            cut = (cut[0] + float(first) / 1e9, float(last - first) / 1e9 + 1 / recording.fps)
        view, index = at_rate(recording, self._fps)
        limit = dataset.max_episode_frames(self._fps)
        shaping = self._shaping() | {"task": clip.task or settings.task}
        jobs = [
            EpisodeJob(recording.name, recording.sha256 or "", cut, frames, shaping)
            for frames in pairwise([*range(0, len(view), limit), len(view)])
        ]
        made = [(job, self._finished.numbers_of(job)) for job in jobs]
        todo = tuple(job for job, numbers in made if not numbers)
        # Of one that was appended more than once the last is the interrupted run's.
        self._skipped_episodes += [numbers[-1] for _, numbers in made if numbers]
        missing = self._finished.missing
        unfinished = {n: job for job, numbers in made for n in numbers if n in missing}
        if len(todo) < len(jobs):
            done = len(jobs) - len(todo)
            self._skipped.append(f"{path}: {done} of {len(jobs)} parts" if todo else str(path))
        if not todo and not unfinished:
            return None
        return _Source(recording, tracker, view, index, todo, task, unfinished)

    def _process(self, source: _Source) -> None:
        if source.unfinished:
            self._complete(source)
        if not source.jobs:
            return
        with self._encoding(source) as videos:
            motion, calibrations = self._track(source)
            for job in source.jobs:
                start, stop = job.part
                view = part(source.view, start, stop)
                index = source.index[start:stop]
                episode = hands_at(motion, view.timestamps_ns, view.fps)
                trajectory = self._follow(episode, calibrations)
                self._recorded_s += len(view) / view.fps
                given = source.recording.source
                if self._settings.dry_run:
                    report = episode_report(given, episode, trajectory, None)
                    self._episodes.append(report)
                    continue
                stamps, video = motion.timestamps_ns[index], next(videos)
                text = self._calibration_text(calibrations, source.recording)
                overlay = self._settings.overlay and view.frames is not None
                pictures = (extras.SHEET, extras.OVERLAY) if overlay else (extras.SHEET,)
                report, folder = self._destination.store(
                    job, given, episode, trajectory, stamps, video, source.task,
                    self._robot.license, text, pictures,
                )  # fmt: skip
                self._episodes.append(report)
                self._draw(view, episode, trajectory, folder, overlay)

    def _complete(self, source: _Source) -> None:
        """Make what an interrupted run left out beside episodes of the dataset."""
        tracked: tuple[HandMotion, dict[Side, Calibration]] | None = None
        for number, job in source.unfinished.items():
            names = self._finished.missing.pop(number, ())
            view = part(source.view, *job.part)
            made = self._stored(number)
            if made is None:
                motion, calibrations = tracked = tracked or self._track(source)
                made = hands_at(motion, view.timestamps_ns, view.fps), calibrations
            episode, calibrations = made
            trajectory = self._follow(episode, calibrations)
            text = self._calibration_text(calibrations, source.recording)
            with self._destination.held():
                folder = self._destination.complete(
                    job, number, episode, trajectory, self._robot.license, text
                )
                if {extras.SHEET, extras.OVERLAY} & set(names):
                    self._draw(view, episode, trajectory, folder, self._settings.overlay)
            self._losses.remark(f"{source.recording.source}: episode {number} was interrupted; "
                                f"made now: {', '.join(names)}")  # fmt: skip

    def _stored(self, number: int) -> tuple[HandMotion, dict[Side, Calibration]] | None:
        """Return the hands and calibrations kept beside an episode, None where they are not."""
        folder = self._settings.output / extras.episode_folder(number)
        try:
            motion = read_hand_motion(folder / extras.HANDS)
            if self._settings.solver != "trajectory":
                return motion, self._given_calibrations()
            return motion, known_calibrations(folder / extras.CALIBRATION, self._robot)
        except AcehandError:
            return None

    def _track(self, source: _Source) -> tuple[HandMotion, dict[Side, Calibration]]:
        """Return the hands of the whole recording, and the calibrations all episodes share."""
        motion = _of_camera(
            source.tracker.track(source.recording, self._progress), source.recording
        )
        release_memory()
        if all(hand_targets(motion, side) is None for side in SIDES):
            known = int(motion.known.any(axis=1).sum())
            doubt = f" The joints of {known} frames have confidence 0." if known else ""
            raise NoHandError(
                f"{source.recording.source}: no hand was found in {len(motion)} frames.{doubt}"
            )
        calibrations = self._given_calibrations()
        if self._settings.solver == "trajectory":
            # Of the whole recording: all its episodes show the same subject.
            calibrations = calibrate_motion(motion, self._robot, known=calibrations)
        return motion, calibrations

    def _given_calibrations(self) -> dict[Side, Calibration]:
        return {side: one.calibration for side, one in self._given.items()}

    def _follow(
        self, episode: HandMotion, calibrations: Mapping[Side, Calibration]
    ) -> RobotTrajectory:
        settings = self._settings
        physics = Physics(latency=settings.latency, second_pass=settings.second_pass)
        self._progress("retarget", 0, 1)
        trajectory = retarget_motion(
            episode, self._robot, settings.solver, calibrations=calibrations, physics=physics,
            gates=self._gates,
        )  # fmt: skip
        if self._arm is not None and settings.arm is not None:
            trajectory = with_arms(trajectory, self._arm, settings.arm)
        self._progress("retarget", 1, 1)
        return trajectory

    def _draw(
        self,
        view: Recording,
        episode: HandMotion,
        trajectory: RobotTrajectory,
        folder: Path,
        overlay: bool,
    ) -> None:
        draw(view, episode, trajectory, self._robot, folder, overlay, self._progress)
        self._destination.pictures_done(folder)

    def _calibration_text(
        self, calibrations: Mapping[Side, Calibration], recording: Recording
    ) -> str | None:
        """Return the file of calibrations, so that other recordings of the subject can use them."""
        if self._settings.solver != "trajectory":
            return None
        origin = recording.name, recording.sha256
        fitted = {side: self._given.get(side, Fitted(one, *origin))
                  for side, one in calibrations.items()}  # fmt: skip
        return calibration_text(self._robot, fitted)

    @contextlib.contextmanager
    def _encoding(self, source: _Source) -> Iterator[Iterator[Path | None]]:
        """Encode the first part beside the tracker's work, further ones when asked for."""
        if self._settings.dry_run:
            yield iter(())
            return
        assert self._fps is not None
        name = source.recording.source
        layout = self._settings.layout(source.recording, source.tracker, self._robot, self._arm)
        self._destination.open(layout, self._fps, self._robot.label, name)
        if source.view.frames is None:
            yield (None for _ in source.jobs)
            return
        stop = threading.Event()

        def encode(start: int, end: int) -> Path:
            path = self._destination.scratch_video()
            clip = part(source.view, start, end)
            encoding, fps = self._settings.encoding, round(clip.fps)
            try:
                encode_video(clip, path, fps, encoding, None, stop.is_set)
            except OutputError as error:
                raise OutputError(f"{self._settings.output}: its video failed: {error}") from error
            return path

        with ThreadPoolExecutor(1, "encode") as pool:
            first: Future[Path] = pool.submit(encode, *source.jobs[0].part)

            def videos() -> Iterator[Path]:
                yield first.result()
                for job in source.jobs[1:]:
                    yield encode(*job.part)

            try:
                yield videos()
            finally:
                stop.set()


def _of_camera(motion: HandMotion, recording: Recording) -> HandMotion:
    """Return a motion that says which topic and frame of a bag its pictures are of."""
    topic = recording.processing.get("topic")
    if topic is None:
        return motion
    said = {"image_topic": topic, "camera_frame": recording.camera_frame}
    settings = {**motion.provenance.settings, **said}
    return replace(motion, provenance=replace(motion.provenance, settings=settings))
