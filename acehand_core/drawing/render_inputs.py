"""The hands that ``acehand render`` draws: inputs with the same frames of one recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from acehand_core.errors import InputError, SchemaError, nearest
from acehand_core.lerobot.episode import DatasetReader
from acehand_core.lerobot.format import CALIBRATION, HANDS, INFO_PATH, episode_folder, read_json
from acehand_core.motion import Calibration, HandMotion, Recording
from acehand_core.recordings.hands_file import read_motion_file, with_hands
from acehand_core.recordings.options import RecordingOptions
from acehand_core.recordings.registry import HandsFile, LeRobotDataset, Registry, format_of
from acehand_core.recordings.selection import part
from acehand_core.recordings.video import frames_between
from acehand_core.settings import group, setting
from acehand_core.trackers.base import TrackerSettings
from acehand_core.trackers.choose import FileTracker, open_tracked
from acehand_core.types import Hands, Progress, Side
from retarget.robots.robot import DEFAULT_ROBOT, Robot, load_robot, load_stored_robot
from retarget.solve.arm import ArmSettings
from retarget.solve.calibration_file import known_calibrations

_TRUTH = "ground truth"


@dataclass(frozen=True, slots=True)
class RenderSettings:
    """Settings of ``acehand render``, which states those of the main job.

    Attributes:
        robot: None: a dataset's own, else inspire.
        calibration: None: that of a dataset's episode, if it is of this robot, else a new one.
        hands: None: all; a robot with one hand follows that one.
    """

    labels: tuple[str, ...] = setting(
        (), "label of an input, once per input", flag="label", repeat=True, default_text="its name"
    )
    episode: int = setting(0, "of a dataset")
    video: Path | None = setting(None, "the video of the hands", metavar="VIDEO")
    segment: str | None = setting(None, "the table in a folder of predictions", metavar="NAME")
    clips: Path | None = setting(
        None, "the segment's store, with pictures, camera and true hands", metavar="STORE"
    )
    panels: str | None = setting(
        None,
        "of source, mesh, robot, both, third, head, robot-third, robot-head",
        metavar="LIST",
        default_text="source,mesh,robot,robot-third; of several inputs mesh,third",
    )
    robot: str | None = None
    robot_model: Path | None = None
    calibration: Path | None = None
    hands: Hands | None = None
    moving: bool = setting(True, "write the video, not only the strip", pair=True)
    output: Path = setting(Path("acehand_render"), "folder to write", metavar="DIR")
    overwrite: bool = setting(False, "replace what is there")
    reading: RecordingOptions = group(RecordingOptions, "recording")
    arm: ArmSettings = group(ArmSettings, "arm")
    scene_depth: Path | None = setting(
        None, "16-bit PNG in mm, one per frame: what is nearer hides the robot", metavar="DIR"
    )


@dataclass(frozen=True, slots=True)
class DrawnHands:
    """Hands of one input."""

    source: Path
    label: str
    motion: HandMotion


def robot_of(source: Path, settings: RenderSettings, progress: Progress) -> Robot:
    """Return the given robot, else the dataset's own, else inspire.

    Raises InputError: the name is unknown, or the dataset's robot does not come with acehand.
    """
    if format_of(source) is not LeRobotDataset:
        return load_robot(settings.robot or DEFAULT_ROBOT, models=settings.robot_model)
    label = str(read_json(source / INFO_PATH).get("robot_type") or "")
    if settings.robot is None:
        return load_stored_robot(label, None, settings.robot_model, str(source))
    robot = load_robot(settings.robot, models=settings.robot_model)
    if robot.label != label:
        progress(f"{source}: drawn with {robot.label}; its own robot is {label}", 0, 0)
    return robot


def calibrations_of(
    source: Path, settings: RenderSettings, robot: Robot
) -> dict[Side, Calibration]:
    """Return the given calibrations, else those of the dataset's episode."""
    kept = source / episode_folder(settings.episode) / CALIBRATION
    of_dataset = format_of(source) is LeRobotDataset
    if settings.calibration is not None or not of_dataset or not kept.is_file():
        return known_calibrations(settings.calibration, robot)
    try:
        return known_calibrations(kept, robot)
    except SchemaError:
        raise
    except InputError:  # of another robot
        return {}


def open_columns(
    sources: Sequence[Path], settings: RenderSettings, progress: Progress
) -> tuple[Recording, list[DrawnHands]]:
    """Open all inputs; return their recording and the hands of each."""
    if settings.segment and not settings.clips and not any(map(_is_folder, sources)):
        raise InputError("`segment` needs a folder of predictions, or `clips=STORE`.")
    files = [_hands_in(s, settings.segment) if _is_folder(s) else s for s in sources]
    labels = _labels(sources, settings)
    if settings.clips is not None:
        return _over_clip(settings.clips, files, labels, settings)
    if len(files) == 1:
        recording, motion = _open(files[0], settings, progress)
        return recording, [DrawnHands(files[0], labels[0], motion)]

    opened = [_open(file, settings, progress, own_poses=True) for file in files]
    for file, (_, motion) in zip(files[1:], opened[1:], strict=True):
        _check_same_frames(file, motion, files[0], opened[0][1])
        own, others = motion.provenance, opened[0][1].provenance
        # A file of joints has only its own hash.
        hashes = {p.source_sha256 for p in (own, others) if p.tracker != "file"} - {None}
        if len(hashes) > 1:
            raise InputError(
                f"{file}: made from {own.source}, but {files[0]} from another file, "
                f"{others.source}; inputs must be of one recording."
            )
    motions = [motion for _, motion in opened]
    known = [motion.T_world_camera for motion in motions if motion.T_world_camera is not None]
    if any(not np.allclose(poses, known[0], atol=1e-6) for poses in known):
        raise InputError("the inputs have different camera poses; give `camera_poses=FILE`.")
    if known:
        motions = [replace(motion, T_world_camera=known[0]) for motion in motions]
    recording = next((r for r, _ in opened if r.frames is not None), opened[0][0])
    return recording, [DrawnHands(*row) for row in zip(files, labels, motions, strict=True)]


def _is_folder(source: Path) -> bool:
    return source.is_dir() and format_of(source) is not LeRobotDataset


def _hands_in(folder: Path, segment: str | None) -> Path:
    """Return the table of a segment in a folder of predictions or its subfolders."""
    files = sorted(folder.rglob("*.parquet"))
    tables = [file for file in files if segment in (None, file.stem)]
    if len(tables) == 1:
        return tables[0]
    if not files:
        raise InputError(f"{folder}: neither a dataset nor a folder with tables of hands.")
    if segment is None:
        raise InputError(
            f"{folder}: {len(files)} tables of hands; choose one with `segment`, for example "
            f"`segment={files[0].stem}`."
        )
    if tables:
        raise InputError(f"{tables[1]}: segment {segment!r} is there twice; also {tables[0]}.")
    raise InputError(
        f"{folder}: no {segment}.parquet; {nearest(segment, [file.stem for file in files][:8])}"
    )


def _labels(sources: Sequence[Path], settings: RenderSettings) -> list[str]:
    """Return the given labels, else the names of the inputs."""
    labels = list(settings.labels)
    if not labels:
        labels = [source.resolve().name.removesuffix(source.suffix) for source in sources]
        return labels if len(set(labels)) == len(labels) else [str(source) for source in sources]
    if len(labels) != len(sources):
        raise InputError(f"{len(labels)} labels for {len(sources)} inputs; give one for each.")
    for label in labels:
        if not (label.isascii() and label.isprintable()):
            raise InputError(f"label {label!r}: valid: printable ASCII characters.")
    return labels


def _over_clip(
    root: Path, files: Sequence[Path], labels: Sequence[str], settings: RenderSettings
) -> tuple[Recording, list[DrawnHands]]:
    """Return a segment of a store, its true hands and those predicted for it."""
    reading = settings.reading
    if settings.video is not None or reading != RecordingOptions():
        raise InputError("`clips` excludes `video` and the flags for reading recordings.")
    hands = settings.hands or "both"
    motions = [read_motion_file(file, hands) for file in files]
    wanted, count = settings.segment or files[0].stem, len(motions[0])
    recording = Registry().open(root / wanted, RecordingOptions(hands=hands))
    if recording.hands is None:
        raise InputError(f"{root}: not a store of clips.")
    if recording.frames is None:
        raise InputError(f"{root}: {wanted!r} has no pictures to draw over.")
    if count > len(recording):
        raise InputError(f"{files[0]}: {count} frames, but {root}/{wanted} has {len(recording)}.")
    recording = part(recording, 0, count)
    assert recording.hands is not None
    columns = [DrawnHands(root, _TRUTH, replace(recording.hands, camera=recording.camera))]
    for file, label, motion in zip(files, labels, motions, strict=True):
        _check_same_frames(file, motion, root, recording)
        predicted = with_hands(recording, file, motion)
        columns.append(DrawnHands(file, label, FileTracker(motion).track(predicted)))
    return recording, columns


def _check_same_frames(
    file: Path, of: Recording | HandMotion, first: Path, other: Recording | HandMotion
) -> None:
    """Raise InputError unless both have the same frames, to half a frame."""
    rule = "inputs must have the same frames of one recording."
    if len(of) != len(other):
        raise InputError(f"{file}: {len(of)} frames, but {first} has {len(other)}; {rule}")
    times, others = of.timestamps_ns, other.timestamps_ns
    late = np.abs((times - times[0]) - (others - others[0]))
    if late.max() > 0.5e9 / other.fps:
        frame = int(np.argmax(late > 0.5e9 / other.fps))
        raise InputError(
            f"{file}: frame {frame} is {late[frame] * 1e-6:.0f} ms from that of {first}; {rule}"
        )


def _open(
    source: Path, settings: RenderSettings, progress: Progress, own_poses: bool = False
) -> tuple[Recording, HandMotion]:
    """Open one input. ``own_poses``: without camera poses of the video, take those of the hands."""
    hands, video, reading = source, settings.video, settings.reading
    cut: tuple[float | None, float | None] = (None, None)

    if format_of(source) is LeRobotDataset:
        # They are times of the episode, which may begin anywhere in a video file.
        cut = reading.start_s, reading.duration_s
        reading = replace(reading, start_s=None, duration_s=None)
        hands = source / episode_folder(settings.episode) / HANDS
        place = DatasetReader(source).video(settings.episode)
        if not hands.is_file():
            raise InputError(f"{source}: no {HANDS} of episode {settings.episode}.")
        if video is None and place is not None:
            video, seconds = place.video, place.frames / place.fps
            reading = replace(reading, start_s=place.start_s or None, duration_s=seconds)

    if format_of(hands) is not HandsFile:
        raise InputError(
            f"{source}: give a HandMotion table (.parquet), a joints file (.npz), a folder of "
            "predictions or a dataset."
        )
    tracker = "auto" if video is None else str(hands)
    tracking = TrackerSettings(hands=settings.hands or "both")
    recording, chosen = open_tracked(video or hands, tracker, tracking, reading)
    motion = chosen.track(recording, progress)
    if own_poses and motion.T_world_camera is None:
        stored = read_motion_file(hands, tracking.hands, keypoints=reading.keypoints)
        motion = replace(motion, T_world_camera=stored.T_world_camera)
    if cut == (None, None):
        return recording, motion
    first, stop = frames_between(str(source), recording.timestamps_ns, recording.fps, *cut)
    recording = part(recording, first, stop)
    return recording, motion.at(np.arange(first, stop), recording.timestamps_ns, recording.fps)
