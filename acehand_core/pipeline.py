"""The main job: recordings in, one dataset of robot demonstrations out.

recording -> tracker -> robot hand -> dataset and pictures, one input after another. An input that
fails is reported and the rest goes on; what was finished stays.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Int

from acehand_core.data.recordings import RecordingOptions, expand_inputs, open_recording
from acehand_core.data.selection import at_rate, part
from acehand_core.errors import (
    AcehandError,
    InputError,
    MissingDependencyError,
    NoHandError,
    OutputError,
)
from acehand_core.export import lerobot
from acehand_core.export.atomic import atomic_path
from acehand_core.export.features import IMAGE_KEY, Layout, columns, features
from acehand_core.export.overlay import write_png
from acehand_core.export.pictures import EpisodePictures, RobotPicture, picture_size
from acehand_core.export.report import (
    EpisodeReport,
    Failure,
    JobReport,
    episode_provenance,
    episode_report,
)
from acehand_core.export.table import write_hand_motion
from acehand_core.export.video_encode import VideoEncoding, encode_video, even_size
from acehand_core.motion import HandMotion, Recording, RobotTrajectory
from acehand_core.trackers.base import Hands, Progress, Tracker, TrackerSettings, no_progress
from acehand_core.trackers.choose import choose_tracker, is_motion_file
from acehand_core.types import SIDES
from retarget.pipeline import retarget_motion
from retarget.render import portrait
from retarget.robot import Robot, load_robot
from retarget.views import SourceView

#: Folder of a dataset that holds what is not LeRobot's: pictures, hand motions, reports.
EXTRAS = "acehand"

Existing = Literal["refuse", "append", "overwrite", "resume"]


@dataclass(frozen=True, slots=True)
class JobSettings:
    """Everything the main job can be told. ``fps`` None: the first source's nearest integer."""

    output: Path
    robot: str = "inspire"
    solver: str = "trajectory"
    tracker: str = "auto"
    hands: Hands = "both"
    hand_length_m: float | None = None
    task: str = "hand motion"
    reading: RecordingOptions = field(default_factory=RecordingOptions)
    fps: int | None = None
    existing: Existing = "refuse"
    overlay: bool = True
    dry_run: bool = False
    encoding: VideoEncoding = field(default_factory=VideoEncoding)

    def __post_init__(self) -> None:
        if self.fps is not None and self.fps < 1:
            raise InputError(f"--fps {self.fps}: a whole number from 1 on is needed.")
        if not self.task.strip():
            raise InputError("--task is empty; say in a few words what the hands do.")
        _ = self.tracking  # its values are checked on construction

    @property
    def work_dir(self) -> Path:
        """Where partial results of this output wait for ``resume``."""
        return self.output.with_name(f".{self.output.name}.acehand-work")

    @property
    def tracking(self) -> TrackerSettings:
        """The tracker's share of the settings."""
        return TrackerSettings(
            hands=self.hands,
            hand_length_m=self.hand_length_m,
            work_dir=None if self.dry_run else self.work_dir,
        )


def run_job(
    inputs: Sequence[Path], settings: JobSettings, progress: Progress = no_progress
) -> JobReport:
    """Turn every input into an episode of the dataset at ``settings.output``.

    Returns:
        The report; inputs that gave no episode are in its ``failures``.

    Raises:
        InputError, OutputError: an input does not exist, a setting is not valid, or the output is
            taken: nothing was started.
    """
    started = time.perf_counter()
    paths = expand_inputs(inputs)
    job = _Job(settings, progress)
    with job.running():
        for path in paths:
            if not job.add(path):
                break
    return job.report(time.perf_counter() - started)


@dataclass(frozen=True, slots=True)
class _Source:
    """One opened input: as recorded, and at the dataset's rate in parts of allowed length."""

    recording: Recording
    tracker: Tracker
    view: Recording
    index: Int[np.ndarray, "N"]
    parts: tuple[tuple[int, int], ...]


class _Job:
    """One run: the robot, and the dataset once the first input is open."""

    def __init__(self, settings: JobSettings, progress: Progress) -> None:
        self._settings, self._progress = settings, progress
        self._robot: Robot = load_robot(settings.robot)
        self._writer: lerobot.LeRobotWriter | None = None
        self._layout: Layout | None = None
        self._fps = settings.fps
        self._finished = _prepare_output(settings)
        self._episodes: list[EpisodeReport] = []
        self._failures: list[Failure] = []
        self._skipped: list[str] = []
        self._recorded_s = 0.0

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Close the dataset at the end; an interrupted run keeps its partial results."""
        try:
            yield
        except BaseException:
            if self._writer is not None:
                self._writer.close()
            raise
        try:
            if self._writer is not None:
                self._writer.finish()
        except OutputError as error:
            self._failures.append(Failure(str(self._settings.output), error))
        shutil.rmtree(self._settings.work_dir, ignore_errors=True)

    def report(self, seconds: float) -> JobReport:
        """Return what was done."""
        written = self._writer is not None and self._writer.total_episodes > 0
        return JobReport(
            dataset=str(self._settings.output) if written else None,
            seconds=seconds,
            recorded_seconds=self._recorded_s,
            episodes=tuple(self._episodes),
            failures=tuple(self._failures),
            skipped=tuple(self._skipped),
        )

    def add(self, path: Path) -> bool:
        """Process one input, keep its failure for the report, and tell whether to go on."""
        try:
            source = self._open(path)
            if source is None:
                self._skipped.append(str(path))
            else:
                self._process(source)
        except AcehandError as error:
            self._failures.append(Failure(str(path), error))
            return not isinstance(error, OutputError)
        return True

    def _open(self, path: Path) -> _Source | None:
        """Open an input, or None if a resumed dataset already has it."""
        settings = self._settings
        video = None if is_motion_file(path) else open_recording(path, settings.reading)
        chosen = str(path) if video is None else settings.tracker
        tracker = choose_tracker(chosen, settings.tracking)
        recording = video if video is not None else tracker.recording()
        if (recording.sha256, _cut(settings)) in self._finished:
            return None
        if self._fps is None:
            self._fps = max(1, round(recording.fps))
        view, index = at_rate(recording, self._fps)
        limit = lerobot.max_episode_frames(self._fps)
        cuts = [*range(0, len(view), limit), len(view)]
        return _Source(recording, tracker, view, index, tuple(pairwise(cuts)))

    def _process(self, source: _Source) -> None:
        with self._encoding(source) as videos:
            motion = source.tracker.track(source.recording, self._progress)
            if not motion.known.any():
                raise NoHandError(
                    f"{source.recording.source}: no hand was found in {len(motion)} frames."
                )
            self._recorded_s += len(source.view) / source.view.fps
            for start, stop in source.parts:
                view = part(source.view, start, stop)
                index = source.index[start:stop]
                episode = motion.at(index, view.timestamps_ns, view.fps)
                self._progress("retarget", 0, 1)
                trajectory = retarget_motion(episode, self._robot, self._settings.solver)
                self._progress("retarget", 1, 1)
                if self._settings.dry_run:
                    self._episodes.append(episode_report(episode, trajectory, None))
                    continue
                stamps = motion.timestamps_ns[index]
                number = self._store(episode, trajectory, stamps, next(videos))
                folder = _folder(self._settings.output, number)
                overlay = self._settings.overlay
                _draw(view, episode, trajectory, self._robot, folder, overlay, self._progress)

    @contextlib.contextmanager
    def _encoding(self, source: _Source) -> Iterator[Iterator[dict[str, Path]]]:
        """Encode the first part beside the tracker's work, further ones when asked for."""
        if self._settings.dry_run:
            yield iter(())
            return
        writer = self._ensure_writer(source)
        if source.view.frames is None:
            yield ({} for _ in source.parts)
            return
        stop = threading.Event()

        def encode(start: int, end: int) -> dict[str, Path]:
            path = writer.scratch_video(IMAGE_KEY)
            clip = part(source.view, start, end)
            encoding, fps = self._settings.encoding, round(clip.fps)
            try:
                encode_video(clip, path, fps, encoding, None, stop.is_set)
            except OutputError as error:
                raise OutputError(f"{self._settings.output}: its video failed: {error}") from error
            return {IMAGE_KEY: path}

        with ThreadPoolExecutor(1, "encode") as pool:
            first: Future[dict[str, Path]] = pool.submit(encode, *source.parts[0])

            def videos() -> Iterator[dict[str, Path]]:
                yield first.result()
                for start, end in source.parts[1:]:
                    yield encode(start, end)

            try:
                yield videos()
            finally:
                stop.set()

    def _ensure_writer(self, source: _Source) -> lerobot.LeRobotWriter:
        """Open the dataset with the first input; later ones must fit it."""
        recording = source.recording
        frame: Literal["camera", "world", "none"] = "camera"
        if not source.tracker.placed:
            frame = "none"
        elif recording.T_world_camera is not None:
            frame = "world"
        hand = self._robot.hand(SIDES[1])
        size = even_size(recording.width, recording.height) if recording.frames else None
        layout = Layout(
            hand.joint_names,
            hand.command_names,
            hand.command_joints,
            frame,
            source.tracker.hand_model,
            size,
        )
        if self._writer is None:
            self._writer = _open_writer(self._settings, self._fps or 1, layout, self._robot.name)
            self._layout = layout
        elif layout != self._layout:
            raise InputError(
                f"{recording.source} does not fit the dataset of this run: "
                f"{_differences(layout, self._layout)}; give it an --output of its own."
            )
        return self._writer

    def _store(
        self,
        episode: HandMotion,
        trajectory: RobotTrajectory,
        stamps: Int[np.ndarray, "N"],
        videos: dict[str, Path],
    ) -> int:
        """Write one episode and what belongs to it; return its index."""
        assert self._writer is not None
        record = episode_provenance(episode, trajectory, self._robot.license)
        record["cut"] = _cut(self._settings)
        number = self._writer.add_episode(
            columns(episode, trajectory, stamps), self._settings.task, videos, record
        )
        report = episode_report(episode, trajectory, number)
        self._episodes.append(report)
        folder = _folder(self._settings.output, number)
        write_hand_motion(episode, folder / "hand_motion.parquet")
        with atomic_path(folder / "report.json", overwrite=True) as partial:
            text = json.dumps({**report.json, "provenance": record}, indent=2)
            partial.write_text(text + "\n", "utf-8")
        return number


def _folder(output: Path, number: int) -> Path:
    return output / EXTRAS / f"episode_{number:06d}"


def _differences(ours: Layout, theirs: Layout | None) -> str:
    assert theirs is not None
    names = ("frame", "hand_model", "image_size")
    return ", ".join(
        f"{name} is {getattr(ours, name)}, not {getattr(theirs, name)}"
        for name in names
        if getattr(ours, name) != getattr(theirs, name)
    )


def _cut(settings: JobSettings) -> str:
    """Which part of a source an episode shows: tells two cuts of one file apart."""
    return json.dumps([settings.reading.start_s, settings.reading.duration_s])


def _prepare_output(settings: JobSettings) -> set[tuple[str | None, str]]:
    """Check the output before any work; return the (source hash, cut) a resumed run may skip."""
    if settings.dry_run:
        return set()
    output, existing = settings.output, settings.existing
    if existing in ("append", "resume") and lerobot.is_dataset(output):
        if existing == "append":
            return set()
        records = lerobot.read_provenance(output)
        return {(r["source_sha256"], r["cut"]) for r in records if r and "cut" in r}
    if existing == "append":
        raise InputError(f"{output}: there is no LeRobot dataset to append to.")
    if existing == "overwrite" and output.exists() and not lerobot.is_dataset(output):
        raise OutputError(f"{output}: not a LeRobot dataset, so it is not overwritten.")
    if existing in ("refuse", "resume") and output.exists():
        raise OutputError(f"{output} exists; use --append, --overwrite, --resume or another name.")
    if existing != "resume":
        shutil.rmtree(settings.work_dir, ignore_errors=True)
    return set()


def _open_writer(
    settings: JobSettings, fps: int, layout: Layout, robot: str
) -> lerobot.LeRobotWriter:
    specs = features(layout)
    if settings.existing in ("append", "resume") and lerobot.is_dataset(settings.output):
        return lerobot.open_for_append(settings.output, fps, specs, robot)
    overwrite = settings.existing == "overwrite"
    return lerobot.create(settings.output, fps, specs, robot, overwrite=overwrite)


def view_hands(
    hands: Path,
    video: Path | None,
    reading: RecordingOptions,
    robot: str,
    folder: Path,
    overlay: bool,
    progress: Progress = no_progress,
) -> list[Path]:
    """Draw a file of hands, over its video if there is one; return the files written."""
    tracker = choose_tracker(str(hands), TrackerSettings())
    recording = open_recording(video, reading) if video is not None else tracker.recording()
    motion = tracker.track(recording, progress)
    model = load_robot(robot)
    trajectory = retarget_motion(motion, model)
    return _draw(recording, motion, trajectory, model, folder, overlay, progress)


def draw_robot(robot: Robot, path: Path) -> None:
    """Write a picture of a robot's hands. Raises MissingDependencyError without OpenGL."""
    panels = [portrait(robot, side, hand.expand(hand.rest)) for side, hand in robot.hands.items()]
    write_png(np.hstack(panels), path)


def _draw(
    view: Recording,
    motion: HandMotion,
    trajectory: RobotTrajectory,
    robot: Robot,
    folder: Path,
    overlay: bool,
    progress: Progress,
) -> list[Path]:
    """Write the contact sheet and, if wanted and possible, the overlay video."""
    with contextlib.ExitStack() as stack:
        try:
            source_view = SourceView(robot, motion, trajectory, *picture_size(view))
            draw: RobotPicture | None = stack.enter_context(source_view)
        except MissingDependencyError as error:
            progress(f"no pictures of the robot: {error}", 0, 0)
            draw = None
        pictures = EpisodePictures(view, motion, trajectory, draw)
        files = [folder / "contact_sheet.png"]
        pictures.write_contact_sheet(files[0])
        if overlay and view.frames is not None:
            files.append(folder / "overlay.mp4")
            pictures.write_overlay(files[1], progress)
    return files
