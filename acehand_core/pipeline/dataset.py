"""The dataset of a run: LeRobot's files, and next to them our own."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from acehand_core.atomic import DirectoryLock, atomic_path, output_errors, sync
from acehand_core.drawing.contact_sheet import (
    EpisodePictures,
    RobotPicture,
    arm_view,
    picture_size,
    source_view,
)
from acehand_core.errors import InputError, MissingDependencyError, OutputError, nearest
from acehand_core.lerobot import columns
from acehand_core.lerobot.columns import (
    DEPTH_KEY,
    IMAGE_KEY,
    ROBOT_KEYS,
    Layout,
    features,
    kept,
    view_key,
)
from acehand_core.lerobot.dataset import JOB, create, open_for_append, prepare_output
from acehand_core.lerobot.format import (
    CALIBRATION,
    HANDS,
    INFO_PATH,
    OVERLAY,
    PENDING,
    REPORT,
    SHEET,
    FeatureSpec,
    episode_folder,
    partial_files,
    pending_bytes,
    read_json,
)
from acehand_core.lerobot.writer import LeRobotWriter, max_episode_frames
from acehand_core.motion import Depth, FrameSource, HandMotion, Recording, RobotTrajectory
from acehand_core.pipeline.report import (
    EpisodeReport,
    PlannedEpisode,
    RetargetedEpisode,
    episode_provenance,
    episode_report,
)
from acehand_core.pipeline.settings import TASK
from acehand_core.processes import in_background, release_memory
from acehand_core.recordings.hands_file import write_hand_motion
from acehand_core.recordings.lerobot_video import is_dataset, open_episode
from acehand_core.recordings.selection import SAME_TIME_NS, aligned
from acehand_core.recordings.video_encode import VideoEncoding, encode_video, even_size
from acehand_core.types import SIDES, Existing, Progress, no_progress
from retarget.robots.robot import Robot, load_robot
from retarget.solve.arm import Arm
from retarget.solve.calibration_file import StoredCalibration, calibration_text


class Dataset:
    """Writer of a LeRobot dataset of a robot's demonstrations.

    ::

        with Dataset.open("pour", robot) as dataset:
            dataset.add(recording, motion, trajectory, task="pour water")

    The first episode sets the layout; an episode appears whole or not at all.
    """

    def __init__(
        self, output: Path, robot: Robot, existing: Existing = "refuse", fps: int | None = None
    ) -> None:
        self.output, self.robot, self.fps = output, robot, fps
        self._existing: Existing = existing
        self._writer: EpisodeWriter | None = None

    @classmethod
    def open(
        cls,
        output: Path | str,
        robot: Robot | str = "inspire",
        *,
        existing: Existing = "refuse",
        fps: int | None = None,
    ) -> Dataset:
        """Return the dataset of a folder, for ``with``; the first episode creates it.

        Args:
            existing: "append" to a dataset, "overwrite" it with the first complete episode, or
                "refuse".
            fps: of a new dataset; None: the first recording's, rounded.

        Raises InputError for an unknown robot, OutputError if ``existing`` refuses the folder.
        """
        path = Path(output)
        finished = prepare_output(path, existing)
        robot = load_robot(robot) if isinstance(robot, str) else robot
        return cls(path, robot, existing, fps or finished.fps)

    def __enter__(self) -> Dataset:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.finish() if kind is None else self.close()

    def add(
        self,
        recording: Recording,
        motion: HandMotion,
        trajectory: RobotTrajectory,
        task: str | None = None,
        *,
        overlay: bool = True,
        keep_views: bool = False,
        keep_depth: bool = False,
        robot_videos: Sequence[str] = (),
        progress: Progress = no_progress,
    ) -> EpisodeReport:
        """Add one episode of T frames: pictures, hands and the robot's motion.

        Args:
            recording: at the dataset's rate (``resample``).
            motion, trajectory: at the recording's times.
            task: what the hands do; None: the recording's, else "hand motion".
            overlay: draw the overlay video if the recording has pictures.
            keep_views, keep_depth: store the frames of the other cameras, and the depth pictures
                (whole mm, 0 for none), that are nearest in time to the recording's frames.
            robot_videos: keys of videos that show the robot to add (``columns.ROBOT_KEYS``).

        Raises InputError for other times, rate, robot or layout, too many frames, or views or depth
        to keep that are not there, have another time, or a name that is no key; OutputError if
        it cannot be written; earlier episodes stay.
        """
        self._check_fits_together(recording, motion, trajectory)
        arms = [arm for arm in trajectory.arms if arm is not None]
        hand = next(iter(self.robot.hands.values()))
        size = even_size(recording.width, recording.height) if recording.frames else None
        others = kept(recording, keep_views, keep_depth)
        for key in robot_videos:
            if key not in ROBOT_KEYS:
                raise InputError(f"robot_videos: {nearest(key, ROBOT_KEYS)}")
        layout = Layout(
            trajectory.joint_names,
            trajectory.command_names,
            trajectory.command_joints,
            trajectory.frame,
            motion.hand_model,
            size,
            hand.controller.unit,
            arms[0].joint_names if arms else (),
            other_videos=(*others, *((key, size or (0, 0)) for key in robot_videos)),
        )
        writer = self.begin(layout, recording)

        fitted = {
            side: StoredCalibration(calibration, recording.name, recording.sha256 or "")
            for side, calibration in zip(SIDES, trajectory.calibration, strict=True)
            if calibration is not None
        }
        text = calibration_text(self.robot, fitted) if fitted else None
        planned = PlannedEpisode(recording, task or recording.task or TASK)
        episode = RetargetedEpisode(planned, motion, trajectory, text)
        with writer.encoded([recording]) as videos:
            report, folder = writer.store(episode, next(videos), overlay, progress)
        self.draw(episode, folder, overlay, progress)
        return report

    def _check_fits_together(
        self, recording: Recording, motion: HandMotion, trajectory: RobotTrajectory
    ) -> None:
        fps, times, name = self.rate_of(recording), recording.timestamps_ns, recording.source
        if trajectory.robot != self.robot.label:
            raise InputError(
                f"{name}: a trajectory of {trajectory.robot} does not fit a dataset of "
                f"{self.robot.label}."
            )
        for what, other in (("hands", motion), ("trajectory", trajectory)):
            if not np.array_equal(other.timestamps_ns, times):
                raise InputError(
                    f"{name}: the {what} and the recording differ in their times; track and "
                    "retarget the recording that is added."
                )
        ticks = np.round(np.arange(len(times)) * 1e9 / fps)
        if np.abs(times - times[0] - ticks).max() > SAME_TIME_NS:
            raise InputError(
                f"{name}: its frames are not 1/{fps} s apart; resample(recording, motion, {fps}) "
                "before retargeting."
            )
        if len(times) > (limit := max_episode_frames(fps)):
            raise InputError(f"{name}: {len(times)} frames; one episode holds at most {limit}.")

    @property
    def has_episodes(self) -> bool:
        """Whether at least one episode was written or appended to."""
        return self._writer is not None and self._writer.lerobot.total_episodes > 0

    def rate_of(self, recording: Recording) -> int:
        """Return the dataset's rate; if not set, the first recording sets it."""
        if self.fps is None:
            self.fps = max(1, round(recording.fps))
        return self.fps

    def begin(self, layout: Layout, recording: Recording) -> EpisodeWriter:
        """Open the dataset, or check a recording's layout. Raises InputError, OutputError."""
        if self._writer is not None:
            first = self._writer.layout
            shared = "frame", "hand_model", "image_size", "arm_joints", "other_videos"
            differences = ", ".join(
                f"{name} is {getattr(layout, name)}, not {getattr(first, name)}"
                for name in shared
                if getattr(layout, name) != getattr(first, name)
            )
            if layout != first:
                raise InputError(
                    f"{recording.source} does not fit the dataset of this run: {differences}; "
                    "give it a separate `output`."
                )
            return self._writer

        fps, robot = self.rate_of(recording), self.robot.label
        if self._existing in ("append", "resume") and is_dataset(self.output):
            stored = read_json(self.output / INFO_PATH).get("features")
            specs = features(layout, stored if isinstance(stored, Mapping) else {})
            lerobot = open_for_append(self.output, fps, specs, robot)
        else:
            overwrite, specs = self._existing == "overwrite", features(layout)
            lerobot = create(self.output, fps, specs, robot, overwrite=overwrite)
        self._writer = EpisodeWriter(self.output, self.robot, layout, specs, lerobot)
        return self._writer

    def complete(
        self,
        episode: RetargetedEpisode,
        number: int,
        overlay: bool,
        progress: Progress,
        arm: Arm | None = None,
    ) -> None:
        """Write the files and pictures that an interrupted run left out of an episode.

        Raises LockedError, an OutputError, while another process writes.
        """
        folder = self.output / episode_folder(number)
        with contextlib.nullcontext() if self._writer else DirectoryLock(self.output):
            with output_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)
                for path in partial_files(folder):
                    path.unlink()
            if not (folder / HANDS).is_file():
                write_hand_motion(episode.hands, folder / HANDS)
            for name, data in _described(episode, number, self.robot)[2].items():
                if not (folder / name).is_file():
                    with atomic_path(folder / name) as partial:
                        partial.write_bytes(data)
            if {SHEET, OVERLAY} & set(episode.planned.missing):
                self.draw(episode, folder, overlay, progress, arm)

    def draw(
        self,
        episode: RetargetedEpisode,
        folder: Path,
        overlay: bool,
        progress: Progress,
        arm: Arm | None = None,
    ) -> None:
        """Draw an episode's pictures and mark it as finished. Raises OutputError."""
        view, output, shown = episode.planned.view, self.output / folder.name, None
        if not overlay and view.frames is not None:
            # The sheet's few pictures: the dataset's video has a key frame near each of them.
            view = replace(view, frames=open_episode(output, IMAGE_KEY).frames)
            episode = replace(episode, planned=replace(episode.planned, view=view))
        if ROBOT_KEYS[0] in read_json(self.output / INFO_PATH)["features"]:
            shown = open_episode(output, ROBOT_KEYS[0]).frames
        draw(episode, self.robot, folder, overlay, progress, arm, shown)
        with output_errors(folder):
            (folder / PENDING).unlink(missing_ok=True)
            sync(folder)

    def finish(self) -> None:
        """Complete the statistics and release the dataset. Raises OutputError."""
        if self._writer is not None:
            self._writer.lerobot.finish()
        elif self._existing == "resume" and is_dataset(self.output):
            from acehand_core.lerobot.repair import finish_statistics

            finish_statistics(self.output)

    def close(self) -> None:
        """Release the dataset; finished episodes stay."""
        if self._writer is not None:
            self._writer.lerobot.close()


@dataclass(frozen=True, slots=True)
class EpisodeWriter:
    """Writer of episodes of one layout to an open dataset."""

    output: Path
    robot: Robot
    layout: Layout
    specs: Sequence[FeatureSpec]
    lerobot: LeRobotWriter

    @contextlib.contextmanager
    def encoded(self, views: Sequence[Recording]) -> Iterator[Iterator[dict[str, Path]]]:
        """Encode parts of a recording, the first in a thread; yield an iterator of files by key."""
        if views[0].frames is None:
            yield ({} for _ in views)
            return
        layout, stop = self.layout, threading.Event()

        def encode(view: Recording) -> dict[str, Path]:
            own = [key for key, _ in layout.other_videos if key not in ROBOT_KEYS]
            keys, others = own, aligned(view)
            kept(view, views=any(key != DEPTH_KEY for key in keys), depth=DEPTH_KEY in keys)
            stored: dict[str, Recording | Depth] = {IMAGE_KEY: view}
            stored |= {view_key(one.name): one.recording for one in others.views}
            if others.depth is not None:
                stored[DEPTH_KEY] = others.depth

            streams, fps = {key: stored[key] for key in (IMAGE_KEY, *keys)}, round(view.fps)
            paths = {key: self.lerobot.scratch_video(key) for key in streams}
            try:
                for key, stream in streams.items():
                    encode_video(stream, paths[key], fps, VideoEncoding(), stop.is_set)
            except OutputError as error:
                raise OutputError(f"{self.output}: its video failed: {error}") from error
            return paths

        # Tracking waits for it only at the end, where retargeting leaves processors idle.
        with ThreadPoolExecutor(1, "encode", in_background) as pool:
            first = pool.submit(encode, views[0])

            def videos() -> Iterator[dict[str, Path]]:
                yield first.result()
                yield from map(encode, views[1:])

            try:
                yield videos()
            finally:
                stop.set()

    def store(
        self,
        episode: RetargetedEpisode,
        videos: Mapping[str, Path],
        overlay: bool,
        progress: Progress,
        arm: Arm | None = None,
    ) -> tuple[EpisodeReport, Path]:
        """Write one episode, unfinished until ``Dataset.draw``; return its report and folder."""
        videos = {**videos, **self._robot_videos(episode, progress, arm)}
        number = self.lerobot.total_episodes
        report, record, content = _described(episode, number, self.robot)
        view = episode.planned.view
        drawn = overlay and view.frames is not None
        pictures = (SHEET, OVERLAY) if drawn else (SHEET,)
        content[PENDING] = pending_bytes(pictures)

        staged = {name: self.lerobot.scratch(name) for name in (HANDS, *content)}
        with output_errors(self.output):
            for name, data in content.items():
                staged[name].write_bytes(data)

        write_hand_motion(episode.hands, staged[HANDS], overwrite=True)
        release_memory()
        shown = view.source_timestamps_ns
        stamps = view.timestamps_ns if shown is None else shown
        sources = columns.Sources(episode.hands, episode.trajectory, stamps)
        values = columns.write(self.specs, sources)
        folder = episode_folder(number)
        sidecars = {f"{folder}/{name}": path for name, path in staged.items()}
        self.lerobot.add_episode(values, episode.planned.task, videos, record, sidecars)
        del values
        release_memory()  # pictures are drawn next
        return report, self.output / folder

    def _robot_videos(
        self, episode: RetargetedEpisode, progress: Progress, arm: Arm | None
    ) -> dict[str, Path]:
        """Draw the videos that show the robot; return them by key."""
        sizes = self.layout.robot_videos
        paths = {key: self.lerobot.scratch_video(key) for key in sizes}
        if paths:
            from acehand_core.drawing.robot_video import write_robot_videos

            size = next(iter(sizes.values()))
            view, motion, trajectory = episode.planned.view, episode.hands, episode.trajectory
            write_robot_videos(view, motion, trajectory, self.robot, arm, paths, size, progress)
            release_memory()
        return paths


def _described(
    episode: RetargetedEpisode, number: int, robot: Robot
) -> tuple[EpisodeReport, dict[str, Any], dict[str, bytes]]:
    """Return an episode's report, provenance, and the files of report and calibration."""
    report = episode_report(episode, number)
    record = episode_provenance(episode.hands, episode.trajectory, robot.license)
    record |= _other_cameras(episode.planned.view)
    if episode.planned.key is not None:
        record[JOB] = episode.planned.key.to_json()
    entry = {**report.json, "source": episode.planned.view.name, "provenance": record}
    content = {REPORT: (json.dumps(entry, indent=2) + "\n").encode()}
    if episode.calibration is not None:
        content[CALIBRATION] = episode.calibration.encode()
    return report, record, content


def _other_cameras(view: Recording) -> dict[str, Any]:
    """Return the provenance's entries of the other cameras and of depth: cameras and poses."""
    entries: dict[str, Any] = {
        "views": {
            one.name: {
                "camera": one.recording.camera and one.recording.camera.to_json(),
                "T_camera_view": one.T_camera_view.tolist(),
            }
            for one in view.views
        }
    }
    if (depth := view.depth) is not None:
        pose = depth.T_camera_depth.tolist()
        entries["depth"] = {"camera": depth.camera.to_json(), "T_camera_depth": pose}
    return {name: entry for name, entry in entries.items() if entry}


def draw(
    episode: RetargetedEpisode,
    robot: Robot,
    folder: Path,
    overlay: bool,
    progress: Progress,
    arm: Arm | None = None,
    robot_video: FrameSource | None = None,
) -> list[Path]:
    """Write the contact sheet and, with ``overlay`` and pictures, the overlay video."""
    view, motion, trajectory = episode.planned.view, episode.hands, episode.trajectory
    with contextlib.ExitStack() as stack:
        hands: RobotPicture | None = None
        arms: RobotPicture | None = None
        size = picture_size(view)
        try:
            hands = stack.enter_context(source_view(robot, motion, trajectory, *size))
            if arm is not None and any(trajectory.arms):
                arms = stack.enter_context(arm_view(robot, arm, motion, trajectory, *size))
        except MissingDependencyError as error:
            progress(f"no pictures of the robot: {error}", 0, 0)
            hands = arms = None
        pictures = EpisodePictures(view, motion, trajectory, hands, arms, robot_video)
        if not overlay or view.frames is None:
            pictures.write_contact_sheet(folder / SHEET)
            return [folder / SHEET]
        pictures.write(folder / SHEET, folder / OVERLAY, progress)
        return [folder / SHEET, folder / OVERLAY]
