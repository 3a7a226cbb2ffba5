"""``acehand render``: videos and film strips of a file of hands or an episode, panel by panel."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import cv2
import numpy as np
from jaxtyping import Float32

from acehand_core.atomic import check_free
from acehand_core.data.recordings import RecordingOptions
from acehand_core.data.selection import part
from acehand_core.data.video import frames_between
from acehand_core.errors import InputError, SchemaError
from acehand_core.export import lerobot
from acehand_core.export.extras import CALIBRATION, HANDS, episode_folder
from acehand_core.export.features import IMAGE_KEY
from acehand_core.export.lerobot_format import read_episode_rows, video_file
from acehand_core.export.overlay import ArrayFrames, put_caption, write_png
from acehand_core.export.panels import Panel, Panels
from acehand_core.export.pictures import picture_size
from acehand_core.export.scene import Layer, View
from acehand_core.export.video_encode import VideoEncoding, encode_video
from acehand_core.motion import Calibration, HandMotion, Recording, RobotTrajectory
from acehand_core.trackers.base import Hands, Progress, TrackerSettings, no_progress
from acehand_core.trackers.choose import is_motion_file, open_input
from acehand_core.types import SIDES, ImageRgb, Picture, Side
from retarget.calibration_file import known_calibrations
from retarget.pipeline import retarget_motion
from retarget.render import RobotRenderer
from retarget.robot import Robot, load_robot

VIDEO, STRIP = "render.mp4", "strip.png"
DEFAULT_PANELS: tuple[Panel, ...] = ("source", "mesh", "robot", "robot-third")
#: The strip shows so many moments of so many seconds, and no wider pictures.
STRIP_MOMENTS, STRIP_S, STRIP_WIDTH = 8, 120.0, 320
_GAP = 4


@dataclass(frozen=True, slots=True)
class RenderSettings:
    """What to draw. ``depth`` is a folder of 16-bit PNG in millimetres, one per frame, by name.

    ``calibration`` None takes the one that is kept beside a dataset's episode, if it is of this
    robot, and fits one otherwise.
    """

    output: Path
    panels: tuple[Panel, ...] = DEFAULT_PANELS
    robot: str = "inspire"
    robot_model: Path | None = None
    calibration: Path | None = None
    hands: Hands = "both"
    video: Path | None = None
    episode: int = 0
    depth: Path | None = None
    moving: bool = True
    overwrite: bool = False
    reading: RecordingOptions = field(default_factory=RecordingOptions)


def render(source: Path, settings: RenderSettings, progress: Progress = no_progress) -> list[Path]:
    """Draw a file of hands, or an episode of a dataset; return the files written.

    Raises:
        InputError: ``source`` is neither, or does not fit the video or the depth pictures.
        MissingDependencyError: panels with the robot, and there is no OpenGL.
        OutputError: the pictures exist and may not be overwritten.
    """
    names = (STRIP, VIDEO) if settings.moving else (STRIP,)
    files = [settings.output / name for name in names]
    for path in files:
        check_free(path, settings.overwrite)
    recording, motion = _open(source, settings, progress)
    depth = _depth_files(settings.depth, len(motion))
    width, height = picture_size(recording) if recording.frames else (960, 540)
    with contextlib.ExitStack() as exits:
        layer = None
        if any("robot" in panel or panel == "both" for panel in settings.panels):
            robot = load_robot(settings.robot, models=settings.robot_model)
            known = _calibrations(source, settings, robot)
            trajectory = retarget_motion(motion, robot, calibrations=known)
            layer = exits.enter_context(_Robots(robot, motion, trajectory, width, height))
        panels = Panels(motion, width, height, layer)
        film = _Film(recording, motion, panels, settings.panels, depth, (width, height))
        write_png(film.strip(), files[0])
        if settings.moving:
            film.write(files[1], progress)
    return files


class _Robots:
    """Robot hands as layers; a context manager."""

    def __init__(
        self, robot: Robot, motion: HandMotion, trajectory: RobotTrajectory, width: int, height: int
    ) -> None:
        self._trajectory = trajectory
        self._renderer = RobotRenderer(robot, width, height)

    def __enter__(self) -> _Robots:
        return self

    def __exit__(self, *_: object) -> None:
        self._renderer.close()

    def __call__(self, view: View, frame: int) -> Layer:
        trajectory = self._trajectory
        assert trajectory.T_frame_base is not None
        shown = [(slot, side) for slot, side in enumerate(SIDES) if trajectory.active[frame, slot]]
        poses = view.T_view_frame @ trajectory.T_frame_base[frame]
        picture, depth = self._renderer.render_with_depth(
            view.camera,
            {side: trajectory.joints[frame, slot] for slot, side in shown},
            {side: poses[slot] for slot, side in shown},
        )
        return Layer(picture, depth)


@dataclass(frozen=True, slots=True)
class _Film:
    """All panels of a recording in a grid."""

    recording: Recording
    motion: HandMotion
    panels: Panels
    names: tuple[Panel, ...]
    depth: tuple[Path, ...]
    size: tuple[int, int]

    def pictures(self, frame: int, image: ImageRgb | None) -> list[ImageRgb]:
        """Return the panels of one frame."""
        scene = _read_depth(self.depth[frame], self.size) if self.depth else None
        return [self.panels.draw(name, frame, image, scene) for name in self.names]

    def strip(self) -> Picture:
        """Return a film strip: a column per moment of the first two minutes, a row per panel."""
        last = min(len(self.motion) - 1, round(STRIP_S * self.motion.fps))
        chosen = np.unique(np.linspace(0, last, STRIP_MOMENTS).round().astype(int)).tolist()
        columns = []
        for frame in chosen:
            image = None if self.recording.frames is None else self.recording.frames.at(frame)
            shots = [_shrunk(picture) for picture in self.pictures(frame, image)]
            put_caption(shots[0], f"{frame / self.motion.fps:.1f} s")
            columns.append(_joined(shots, 1))
        return np.concatenate(_spaced(columns, 1), axis=1)

    def write(self, path: Path, progress: Progress) -> None:
        """Write every frame as a video, two panels to a row."""
        count, frames = len(self.motion), self.recording.frames
        across = min(2, len(self.names))
        rows = -(-len(self.names) // across)
        # One picture of two or more panels is made smaller, so that any player shows it.
        scale = 1 if across == 1 else 2 / 3
        width, height = (2 * round(side * scale / 2) for side in self.size)

        def made() -> Iterator[Picture]:
            images = frames.read(0, count) if frames is not None else iter([None] * count)
            for frame, image in enumerate(images):
                shots = self.pictures(frame, image)
                shots = [cv2.resize(s, (width, height), interpolation=cv2.INTER_AREA)
                         for s in shots]  # fmt: skip
                for shot, name in zip(shots, self.names, strict=True):
                    put_caption(shot, name)
                shots += [np.zeros_like(shots[0])] * (rows * across - len(shots))
                grid = [np.hstack(shots[i : i + across]) for i in range(0, len(shots), across)]
                yield np.vstack(grid)
                progress("render", frame + 1, count)

        canvas = replace(
            self.recording, width=width * across, height=height * rows, camera=None,
            frames=ArrayFrames(made(), count),
        )  # fmt: skip
        encode_video(canvas, path, round(self.motion.fps), VideoEncoding(gop=30))


def _calibrations(source: Path, settings: RenderSettings, robot: Robot) -> dict[Side, Calibration]:
    """Return the calibrations that are asked for, else those that the episode was made with."""
    kept = _extras(source, settings) / CALIBRATION
    if settings.calibration is not None or not lerobot.is_dataset(source) or not kept.is_file():
        return known_calibrations(settings.calibration, robot)
    try:
        return known_calibrations(kept, robot)
    except SchemaError:
        raise
    except InputError:  # of another robot
        return {}


def _extras(source: Path, settings: RenderSettings) -> Path:
    return source / episode_folder(settings.episode)


def _open(
    source: Path, settings: RenderSettings, progress: Progress
) -> tuple[Recording, HandMotion]:
    hands, video, reading = source, settings.video, settings.reading
    cut: tuple[float | None, float | None] = (None, None)
    if lerobot.is_dataset(source):
        # Of the episode: its film may begin anywhere in a video file.
        cut = reading.start_s, reading.duration_s
        reading = replace(reading, start_s=None, duration_s=None)
        hands = _extras(source, settings) / HANDS
        rows = {row["episode_index"]: row for row in read_episode_rows(source)}
        if settings.episode not in rows or not hands.is_file():
            raise InputError(f"{source}: no episode {settings.episode}; it has {len(rows)}.")
        row = rows[settings.episode]
        key = f"videos/{IMAGE_KEY}/from_timestamp"
        if video is None and row.get(key) is not None:
            video = source / video_file(row, IMAGE_KEY)
            reading = replace(reading, start_s=float(row[key]) or None)
            seconds = row[f"videos/{IMAGE_KEY}/to_timestamp"] - row[key]
            reading = replace(reading, duration_s=float(seconds))
    if not is_motion_file(hands):
        raise InputError(
            f"{source}: give a HandMotion table (.parquet), a joints file (.npz) or a dataset."
        )
    tracker = "auto" if video is None else str(hands)
    tracking = TrackerSettings(hands=settings.hands)
    recording, found = open_input(video or hands, tracker, tracking, reading)
    motion = found.track(recording, progress)
    if cut == (None, None):
        return recording, motion
    first, stop = frames_between(str(source), recording.timestamps_ns, recording.fps, *cut)
    recording = part(recording, first, stop)
    return recording, motion.at(np.arange(first, stop), recording.timestamps_ns, recording.fps)


def _depth_files(folder: Path | None, count: int) -> tuple[Path, ...]:
    if folder is None:
        return ()
    files = tuple(sorted(folder.glob("*.png")))
    if len(files) != count:
        raise InputError(f"{folder}: {len(files)} depth pictures (.png) for {count} frames.")
    return files


def _read_depth(path: Path, size: tuple[int, int]) -> Float32[np.ndarray, "H W"]:
    values = cv2.imdecode(np.fromfile(path, np.uint8), cv2.IMREAD_UNCHANGED)
    if values is None or values.dtype != np.uint16 or values.ndim != 2:
        raise InputError(f"{path}: depth pictures are 16-bit grey PNG in millimetres.")
    # Depths of two things must not be mixed: the nearest pixel, not the mean.
    values = cv2.resize(values, size, interpolation=cv2.INTER_NEAREST)
    return values.astype(np.float32) / 1000


def _shrunk(picture: ImageRgb) -> Picture:
    height = round(picture.shape[0] * STRIP_WIDTH / picture.shape[1])
    return cv2.resize(picture, (STRIP_WIDTH, height), interpolation=cv2.INTER_AREA)


def _joined(pictures: Sequence[np.ndarray], axis: int) -> np.ndarray:
    return np.concatenate(_spaced(pictures, 1 - axis), axis=1 - axis)


def _spaced(pictures: Sequence[np.ndarray], axis: int) -> list[np.ndarray]:
    """Return pictures with a thin gap between each two."""
    shape = list(pictures[0].shape)
    shape[axis] = _GAP
    gap = np.full(shape, 255, np.uint8)
    out = [part for picture in pictures for part in (picture, gap)]
    return out[:-1]
