"""Opening an input: a video or a bag with what is known about its camera."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from acehand_core.bags.bag import METADATA, is_bag, storage_files
from acehand_core.bags.records import BagReading
from acehand_core.errors import InputError
from acehand_core.files.safe_files import content_sha256
from acehand_core.motion import Camera, Recording
from acehand_core.recordings import cameras, lerobot_video
from acehand_core.recordings.cameras import undistort
from acehand_core.recordings.selection import part
from acehand_core.recordings.video import find_videos, frames_between, open_video, videos_in


@dataclass(frozen=True, slots=True)
class RecordingOptions:
    """How to read a video.

    Attributes:
        intrinsics: "fx,fy,cx,cy" in pixels of the video, or None.
        camera: camera file, rescaled to the video; a distorted video is undistorted to pinhole.
        camera_poses: table of camera poses; gives the world frame.
        mirrored: the video is a selfie image; it is turned back on reading.
        start_s, duration_s: the part to read, seconds after the first frame.
        video_key: the video feature of a LeRobot dataset; None: its only one.
        bag: which topics of a bag are read.
    """

    intrinsics: str | None = None
    camera: Path | None = None
    camera_poses: Path | None = None
    mirrored: bool = False
    start_s: float | None = None
    duration_s: float | None = None
    video_key: str | None = None
    bag: BagReading = field(default_factory=BagReading)

    def __post_init__(self) -> None:
        if self.intrinsics is not None and self.camera is not None:
            raise InputError("Give either --intrinsics or --camera, not both.")


def expand_inputs(inputs: Sequence[Path]) -> list[Path]:
    """Replace folders by the videos and bags in them; a bag's own folder stays.

    A LeRobot dataset is replaced by its episodes.

    Raises:
        InputError: something does not exist, a folder has neither, or a folder is a bag without
            metadata.yaml and has videos, too.
    """
    out: list[Path] = []
    for path in inputs:
        if lerobot_video.is_dataset(path):
            out += lerobot_video.episode_paths(path)
        elif lerobot_video.is_episode(path):
            out.append(path)
        elif is_bag(path):
            _check_not_mixed(path)
            out.append(path)
        elif path.is_dir():
            bags = _bags_in(path)
            out += sorted([*bags, *(videos_in(path) if bags else find_videos(path))])
        elif path.exists():
            out.append(path)
        else:
            raise InputError(f"{path}: no such file or folder.")
    if not out:
        raise InputError(
            "No input; give a video, a bag, a folder of either, a LeRobot dataset or a file of "
            "hands."
        )
    return out


def _check_not_mixed(path: Path) -> None:
    """Refuse a folder that may be a bag or a collection: nothing says which."""
    if not path.is_dir() or (path / METADATA).is_file():
        return
    if videos := videos_in(path):
        raise InputError(
            f"{path}: has bag files without {METADATA} and videos ({videos[0].name}), so it is "
            "not clear what it is; name the files one by one."
        )


def _bags_in(folder: Path) -> list[Path]:
    """Return the bags directly in a folder: bare files, and folders that are bags."""
    return sorted(
        [*storage_files(folder), *(p for p in folder.iterdir() if p.is_dir() and is_bag(p))]
    )


def open_bag(path: Path, options: RecordingOptions) -> Recording:
    """Return the wanted part of a bag as a recording.

    Raises:
        InputError: see ``bags.recording.index_bag``, or the wanted part is not there.
    """
    from acehand_core.recordings.bag import index_bag

    index = index_bag(path, options.bag)
    recording = index.recording(options.mirrored)
    if recording.camera is not None and options.mirrored:
        recording = replace(recording, camera=_seen(recording.camera, options))
    wanted = frames_between(
        str(path), recording.timestamps_ns, recording.fps, options.start_s, options.duration_s
    )
    return part(recording, *wanted)


def open_episode(path: Path, options: RecordingOptions) -> Recording:
    """Return the wanted part of an episode of a LeRobot dataset as a recording.

    Raises:
        InputError: see ``lerobot_videos.open_episode``, or the wanted part is not there.
    """
    whole = lerobot_video.open_episode(path, options.video_key, options.mirrored)
    wanted = frames_between(
        str(path), whole.timestamps_ns, whole.fps, options.start_s, options.duration_s
    )
    return part(whole, *wanted)


def recording_sha256(path: Path, options: RecordingOptions) -> str:
    """Return the hash that the input's recording or file of hands will have. Raises InputError."""
    if lerobot_video.is_episode(path):
        return lerobot_video.episode_sha256(path, options.video_key)
    return content_sha256(path)


def open_recording(path: Path, options: RecordingOptions) -> Recording:
    """Open a video, a bag or an episode of a LeRobot dataset with its camera and camera poses.

    Raises:
        VideoError, CalibrationError: see ``video`` and ``calibration``.
        InputError: see ``open_bag`` and ``open_episode``.
    """
    if options.video_key is not None and not lerobot_video.is_episode(path):
        raise InputError(f"{path} is no LeRobot dataset, so --video-key does not apply to it.")
    if lerobot_video.is_dataset(path):
        raise InputError(f"{path}: a LeRobot dataset; name one episode: {path}/episode_000000.")
    if is_bag(path):
        recording = open_bag(path, options)
    elif lerobot_video.is_episode(path):
        _refuse_bag_flags(path, options)
        recording = open_episode(path, options)
    else:
        _refuse_bag_flags(path, options)
        recording = open_video(
            path, start_s=options.start_s, duration_s=options.duration_s, mirrored=options.mirrored
        )
    size = recording.width, recording.height
    if options.camera is not None:
        camera = cameras.fit_camera_to(cameras.load_camera(options.camera), *size)
        recording = replace(recording, camera=_seen(camera, options))
    elif options.intrinsics is not None:
        camera = cameras.parse_intrinsics(options.intrinsics, *size)
        recording = replace(recording, camera=_seen(camera, options))
    recording = with_camera_poses(recording, options)
    if recording.camera is not None and recording.camera.model != "pinhole":
        note = f"undistorted from {recording.camera.model} to pinhole"
        recording = undistort(recording)
        recording = replace(recording, notes=(*recording.notes, note))
    return recording


def with_camera_poses(recording: Recording, options: RecordingOptions) -> Recording:
    """Return the recording with the camera poses of the options, if there are any.

    Raises:
        CalibrationError: see ``calibration.load_camera_poses``.
    """
    if options.camera_poses is None:
        return recording
    poses = cameras.load_camera_poses(options.camera_poses, recording.timestamps_ns)
    return replace(recording, T_world_camera=poses)


def _refuse_bag_flags(path: Path, options: RecordingOptions) -> None:
    if options.bag != BagReading():
        flags = ", ".join(f"--{flag}" for flag in options.bag.to_json())
        raise InputError(f"{path} is no bag, so these do not apply to it: {flags}.")


def _seen(camera: Camera, options: RecordingOptions) -> Camera:
    """Return the camera of the frames as they are read: a mirrored video is turned back."""
    if not options.mirrored:
        return camera
    if camera.model != "pinhole":
        raise InputError(
            f"--mirrored with a {camera.model} camera: the distortion would have to be mirrored "
            "too; undistort the video first."
        )
    return replace(camera, cx=camera.width - 1 - camera.cx)
