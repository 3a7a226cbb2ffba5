"""``acehand render``: videos and film strips of hands, panel by panel.

One file of hands or one episode, or the results of several methods on one recording side by side.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import cv2
import numpy as np
from jaxtyping import Float32

from acehand_core.atomic import check_free
from acehand_core.datasets.clips.store import ClipStore
from acehand_core.datasets.segments import segment_place
from acehand_core.drawing.contact_sheet import picture_size
from acehand_core.drawing.overlay import ArrayFrames, header, put_caption, write_png
from acehand_core.drawing.panels import Panel, Panels
from acehand_core.drawing.robot_view import RobotRenderer
from acehand_core.drawing.scene import Layer, View
from acehand_core.errors import InputError, SchemaError, nearest
from acehand_core.lerobot import dataset
from acehand_core.lerobot.extras import CALIBRATION, HANDS, episode_folder
from acehand_core.lerobot.features import IMAGE_KEY
from acehand_core.lerobot.format import read_episode_rows, video_file
from acehand_core.motion import Calibration, HandMotion, Recording, RobotTrajectory
from acehand_core.recordings.cameras import undistort
from acehand_core.recordings.hands_file import is_motion_file, only_hands, read_motion_file
from acehand_core.recordings.registry import RecordingOptions
from acehand_core.recordings.selection import part
from acehand_core.recordings.video import frames_between
from acehand_core.recordings.video_encode import VideoEncoding, encode_video
from acehand_core.trackers.base import Hands, Progress, TrackerSettings, no_progress
from acehand_core.trackers.choose import open_input
from acehand_core.trackers.files import FileTracker
from acehand_core.types import SIDES, ImageRgb, Picture, Side
from retarget.retargeting import retarget_motion
from retarget.robots.robot import Robot, load_robot
from retarget.solve.robot_calibration import known_calibrations

VIDEO, STRIP = "render.mp4", "strip.png"
DEFAULT_PANELS: tuple[Panel, ...] = ("source", "mesh", "robot", "robot-third")
#: As in the paper's qualitative comparison: over the frame, and in one world frame with trails.
COLUMN_PANELS: tuple[Panel, ...] = ("mesh", "third")
#: The strip shows so many moments of so many seconds, and no wider pictures.
STRIP_MOMENTS, STRIP_S, STRIP_WIDTH = 8, 120.0, 320
#: The strip of several inputs is as tall as it has moments; their film is no wider than this.
COLUMN_MOMENTS, COLUMNS_WIDTH = 4, 1920
_TRUTH = "ground truth"
_GAP = 4


@dataclass(frozen=True, slots=True)
class RenderSettings:
    """What to draw. ``depth`` is a folder of 16-bit PNG in millimetres, one per frame, by name.

    ``calibration`` None takes the one that is kept beside a dataset's episode, if it is of this
    robot, and fits one otherwise. ``panels`` None: ``DEFAULT_PANELS``, of several inputs
    ``COLUMN_PANELS``. ``labels``: one per input, written over its column. ``segment`` chooses the
    table in a folder of predictions; with ``clips``, a store, it is drawn over its frames there,
    beside the store's own hands.
    """

    output: Path
    panels: tuple[Panel, ...] | None = None
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
    labels: tuple[str, ...] = ()
    segment: str | None = None
    clips: Path | None = None


@dataclass(frozen=True, slots=True)
class _Column:
    """Hands of one input, on the frames that all columns share."""

    source: Path
    label: str
    motion: HandMotion


def render(
    sources: Sequence[Path], settings: RenderSettings, progress: Progress = no_progress
) -> list[Path]:
    """Draw files of hands, folders of predictions or episodes; return the files written.

    Several are drawn side by side, a column each.

    Raises:
        InputError: a source is none of these, does not fit the video or the depth pictures, or is
            of another recording than the first.
        MissingDependencyError: panels with the robot, and there is no OpenGL.
        OutputError: the pictures exist and may not be overwritten.
    """
    names = (STRIP, VIDEO) if settings.moving else (STRIP,)
    files = [settings.output / name for name in names]
    for path in files:
        check_free(path, settings.overwrite)
    recording, columns = _columns(sources, settings, progress)
    in_columns = len(columns) > 1 or bool(settings.labels)
    shown = settings.panels or (COLUMN_PANELS if in_columns else DEFAULT_PANELS)
    motions = [column.motion for column in columns]
    depth = _depth_files(settings.depth, len(motions[0]))
    width, height = picture_size(recording) if recording.frames else (960, 540)
    with contextlib.ExitStack() as exits:
        panels = []
        for column in columns:
            layer = None
            if any("robot" in panel or panel == "both" for panel in shown):
                robot = load_robot(settings.robot, models=settings.robot_model)
                known = _calibrations(column.source, settings, robot)
                trajectory = retarget_motion(column.motion, robot, calibrations=known)
                robots = _Robots(robot, column.motion, trajectory, width, height)
                layer = exits.enter_context(robots)
            panels.append(Panels(column.motion, width, height, layer, beside=motions))
        labels = tuple(column.label for column in columns) if in_columns else ()
        film = _Film(recording, tuple(panels), shown, labels, depth, (width, height))
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
    """All panels of a recording: a row each and a column per input, or of one input in a grid.

    ``labels`` are those of the columns; none without columns.
    """

    recording: Recording
    panels: tuple[Panels, ...]
    names: tuple[Panel, ...]
    labels: tuple[str, ...]
    depth: tuple[Path, ...]
    size: tuple[int, int]

    def pictures(self, frame: int, image: ImageRgb | None) -> list[list[ImageRgb]]:
        """Return the panels of one frame, of each panel one picture per input."""
        scene = _read_depth(self.depth[frame], self.size) if self.depth else None
        return [[one.draw(name, frame, image, scene) for one in self.panels] for name in self.names]

    def strip(self) -> Picture:
        """Return a film strip of moments of the first two minutes.

        Of one input a column per moment and a row per panel; of several the moments follow one
        another downwards.
        """
        fps, count = self.recording.fps, COLUMN_MOMENTS if self.labels else STRIP_MOMENTS
        last = min(len(self.recording) - 1, round(STRIP_S * fps))
        moments = []
        for frame in np.unique(np.linspace(0, last, count).round().astype(int)).tolist():
            image = None if self.recording.frames is None else self.recording.frames.at(frame)
            rows = [[_shrunk(shot) for shot in row] for row in self.pictures(frame, image)]
            put_caption(rows[0][0], f"{frame / fps:.1f} s")
            moments.append(_joined([_joined(row, 1) for row in rows], 0))
        if not self.labels:
            return _joined(moments, 1)
        return np.vstack([header(self.labels, STRIP_WIDTH, _GAP), _joined(moments, 0)])

    def write(self, path: Path, progress: Progress) -> None:
        """Write every frame as a video."""
        count, frames = len(self.recording), self.recording.frames
        across = len(self.labels) or min(2, len(self.names))
        # One picture of two or more panels is made smaller, so that any player shows it.
        scale = 1 if across == 1 else 2 / 3
        if self.labels:
            scale = min(scale, COLUMNS_WIDTH / (across * self.size[0]))
        width, height = (2 * round(side * scale / 2) for side in self.size)

        def made() -> Iterator[Picture]:
            images = frames.read(0, count) if frames is not None else iter([None] * count)
            for frame, image in enumerate(images):
                rows = self.pictures(frame, image)
                yield self._page([[cv2.resize(shot, (width, height), interpolation=cv2.INTER_AREA)
                                   for shot in row] for row in rows])  # fmt: skip
                progress("render", frame + 1, count)

        blank = self._page([[np.zeros((height, width, 3), np.uint8)] * len(self.panels)
                            for _ in self.names])  # fmt: skip
        canvas = replace(
            self.recording, width=blank.shape[1], height=blank.shape[0], camera=None,
            frames=ArrayFrames(made(), count),
        )  # fmt: skip
        encode_video(canvas, path, round(self.recording.fps), VideoEncoding(gop=30))

    def _page(self, rows: list[list[ImageRgb]]) -> Picture:
        """Return one picture of the film: the columns below their labels, else two to a row."""
        for row, name in zip(rows, self.names, strict=True):
            put_caption(row[0], name)
        if self.labels:
            return np.vstack([header(self.labels, rows[0][0].shape[1]), *map(np.hstack, rows)])
        shots = [row[0] for row in rows]
        across = min(2, len(shots))
        shots += [np.zeros_like(shots[0])] * (-len(shots) % across)
        grid = [np.hstack(shots[i : i + across]) for i in range(0, len(shots), across)]
        return np.vstack(grid)


def _calibrations(source: Path, settings: RenderSettings, robot: Robot) -> dict[Side, Calibration]:
    """Return the calibrations that are asked for, else those that the episode was made with."""
    kept = _extras(source, settings) / CALIBRATION
    if settings.calibration is not None or not dataset.is_dataset(source) or not kept.is_file():
        return known_calibrations(settings.calibration, robot)
    try:
        return known_calibrations(kept, robot)
    except SchemaError:
        raise
    except InputError:  # of another robot
        return {}


def _extras(source: Path, settings: RenderSettings) -> Path:
    return source / episode_folder(settings.episode)


def _columns(
    sources: Sequence[Path], settings: RenderSettings, progress: Progress
) -> tuple[Recording, list[_Column]]:
    """Open all inputs; return the recording that they share and the hands of each."""
    if settings.segment and not settings.clips and not any(map(_is_folder, sources)):
        raise InputError(
            "--segment chooses a table in a folder of predictions, or with --clips a part of a "
            "store; neither is given."
        )
    files = [_hands_in(s, settings.segment) if _is_folder(s) else s for s in sources]
    labels = _labels(sources, settings)
    if settings.clips is not None:
        return _over_clip(settings.clips, files, labels, settings)
    if len(files) == 1:
        recording, motion = _open(files[0], settings, progress)
        return recording, [_Column(files[0], labels[0], motion)]

    opened = [_open(file, settings, progress, own_poses=True) for file in files]
    for file, (_, motion) in zip(files[1:], opened[1:], strict=True):
        _check_same_frames(file, motion, files[0], opened[0][1])
        _check_same_source(file, motion, files[0], opened[0][1])
    motions = _in_one_frame([motion for _, motion in opened])
    recording = next((r for r, _ in opened if r.frames is not None), opened[0][0])
    return recording, [_Column(*row) for row in zip(files, labels, motions, strict=True)]


def _is_folder(source: Path) -> bool:
    return source.is_dir() and not dataset.is_dataset(source)


def _hands_in(folder: Path, segment: str | None) -> Path:
    """Return the table of a segment in a folder of predictions; subfolders count."""
    files = sorted(folder.rglob("*.parquet"))
    found = [file for file in files if segment in (None, file.stem)]
    if len(found) == 1:
        return found[0]
    if not files:
        raise InputError(f"{folder}: neither a dataset nor a folder with tables of hands.")
    if segment is None:
        raise InputError(
            f"{folder}: {len(files)} tables of hands; choose one with --segment, for example "
            f"--segment {files[0].stem}."
        )
    if found:
        raise InputError(f"{found[1]}: segment {segment!r} is there twice; also {found[0]}.")
    raise InputError(
        f"{folder}: no {segment}.parquet; {nearest(segment, [file.stem for file in files][:8])}"
    )


def _labels(sources: Sequence[Path], settings: RenderSettings) -> list[str]:
    """Return what is written over each input: as given, else the names of the inputs."""
    labels = list(settings.labels)
    if not labels:
        labels = [source.resolve().name.removesuffix(source.suffix) for source in sources]
        if len(set(labels)) < len(labels):
            labels = [str(source) for source in sources]
    elif len(labels) != len(sources):
        raise InputError(f"{len(labels)} labels for {len(sources)} inputs; give one for each.")
    for label in labels:
        if settings.labels and not (label.isascii() and label.isprintable()):
            raise InputError(f"label {label!r}: only plain ASCII letters can be drawn.")
    return labels


def _over_clip(
    root: Path, files: Sequence[Path], labels: Sequence[str], settings: RenderSettings
) -> tuple[Recording, list[_Column]]:
    """Return a segment of a store and the hands predicted for it, the store's own first."""
    reading = settings.reading
    if settings.video is not None or reading != RecordingOptions():
        raise InputError(
            "--clips gives pictures, camera and times of the segment, so --video and what says "
            "how to read one do not apply."
        )
    store = ClipStore(root)
    name, first = segment_place(settings.segment or files[0].stem, store.info.dataset)
    clip = store.open(name)
    trackers = [FileTracker(file, TrackerSettings(hands=settings.hands)) for file in files]
    stop = first + len(trackers[0].recording())
    if clip.frames is None:
        raise InputError(f"{root}: clip {name!r} has no pictures to draw over.")
    if stop > clip.info.frames:
        raise InputError(
            f"{files[0]}: {stop - first} frames from frame {first} on; clip {name!r} has "
            f"{clip.info.frames}."
        )
    recording = part(clip.recording(), first, stop)
    poses = recording.T_world_camera
    if poses is not None and np.isnan(poses).any():
        recording = replace(recording, T_world_camera=None)
    if recording.camera is not None and recording.camera.model != "pinhole":
        recording = undistort(recording)
    truth = clip.motion.at(np.arange(first, stop), recording.timestamps_ns, recording.fps)
    truth = only_hands(truth, settings.hands)
    truth = replace(truth, camera=recording.camera, T_world_camera=recording.T_world_camera)

    columns = [_Column(root, _TRUTH, truth)]
    for file, label, tracker in zip(files, labels, trackers, strict=True):
        _check_same_frames(file, tracker.recording(), root, recording)
        columns.append(_Column(file, label, tracker.track(recording)))
    return recording, columns


def _check_same_frames(
    file: Path, of: Recording | HandMotion, first: Path, other: Recording | HandMotion
) -> None:
    """Raise InputError unless both have as many frames, as far apart to half a frame."""
    wanted = "inputs side by side must be of the same frames of one recording."
    if len(of) != len(other):
        raise InputError(f"{file}: {len(of)} frames, but {first} has {len(other)}; {wanted}")
    times, others = of.timestamps_ns, other.timestamps_ns
    late = np.abs((times - times[0]) - (others - others[0]))
    if late.max() > 0.5e9 / other.fps:
        frame = int(np.argmax(late > 0.5e9 / other.fps))
        raise InputError(
            f"{file}: frame {frame} is {late[frame] * 1e-6:.0f} ms from that of {first}; {wanted}"
        )


def _check_same_source(file: Path, motion: HandMotion, first: Path, other: HandMotion) -> None:
    """Raise InputError if both say that they were made from files of other content."""
    one, two = motion.provenance, other.provenance
    # A file of joints has only its own hash.
    hashes = {p.source_sha256 for p in (one, two) if p.tracker != "file"} - {None}
    if len(hashes) > 1:
        raise InputError(
            f"{file}: made from {one.source}, but {first} from another file, {two.source}; inputs "
            "side by side must be of one recording."
        )


def _in_one_frame(motions: Sequence[HandMotion]) -> list[HandMotion]:
    """Give all the one path of the camera that is known, so that the world is the same for all."""
    known = [motion.T_world_camera for motion in motions if motion.T_world_camera is not None]
    if any(not np.allclose(poses, known[0], atol=1e-6) for poses in known):
        raise InputError(
            "the inputs have different camera poses; give --camera-poses FILE, which then counts "
            "for all."
        )
    return [replace(motion, T_world_camera=known[0] if known else None) for motion in motions]


def _open(
    source: Path, settings: RenderSettings, progress: Progress, own_poses: bool = False
) -> tuple[Recording, HandMotion]:
    """Open one input. ``own_poses``: where the video has no camera poses, those of the hands."""
    hands, video, reading = source, settings.video, settings.reading
    cut: tuple[float | None, float | None] = (None, None)
    if dataset.is_dataset(source):
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
            f"{source}: give a HandMotion table (.parquet), a joints file (.npz), a folder of "
            "predictions or a dataset."
        )
    tracker = "auto" if video is None else str(hands)
    tracking = TrackerSettings(hands=settings.hands)
    recording, found = open_input(video or hands, tracker, tracking, reading)
    motion = found.track(recording, progress)
    if own_poses and motion.T_world_camera is None:
        motion = replace(motion, T_world_camera=read_motion_file(hands).T_world_camera)
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


def _joined(pictures: Sequence[np.ndarray], axis: int) -> Picture:
    """Return pictures one after another along an axis, with a thin gap between each two."""
    shape = list(pictures[0].shape)
    shape[axis] = _GAP
    gap = np.full(shape, 255, np.uint8)
    parts = [part for picture in pictures for part in (picture, gap)]
    return np.concatenate(parts[:-1], axis=axis)
