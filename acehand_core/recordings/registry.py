"""The formats of recordings (plug-ins ``acehand.recordings``), and opening an input of any."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, get_args

from acehand_core import plugins
from acehand_core.errors import InputError, VideoError, nearest
from acehand_core.motion import DroppedMessages, Recording
from acehand_core.provenance import LENS, UNKNOWN_SIGMA
from acehand_core.recordings import lerobot_video
from acehand_core.recordings.bags.records import (
    METADATA,
    BagOptions,
    is_bag,
    storage_files,
)
from acehand_core.recordings.camera_metadata import (
    KIND_SIGMA,
    CameraDescription,
    described_by_picture,
    described_by_pictures,
    described_by_video,
    descriptions,
)
from acehand_core.recordings.hands_file import (
    SUFFIXES,
    motion_recording,
    read_motion_file,
)
from acehand_core.recordings.options import RecordingOptions, RigOptions
from acehand_core.recordings.selection import part
from acehand_core.recordings.video import (
    EXTENSIONS,
    PICTURES,
    frames_between,
    open_frames,
    open_video,
    pictures_in,
    videos_in,
)
from acehand_core.safe_files import content_sha256
from acehand_core.settings import changed, leaves
from acehand_core.types import Progress, no_progress

if TYPE_CHECKING:
    from acehand_core.recordings.bag import BagIndex
    from acehand_core.recordings.rig import Rig


#: Options that formats with pictures take, unless they say otherwise.
PICTURE_OPTIONS = frozenset(field.name for field in fields(RecordingOptions)) - {
    "keypoints", "video_key", "frame_rate", "views"
}  # fmt: skip


class RecordingFormat(ABC):
    """One kind of input; by default every path of that kind is one input.

    Attributes:
        noun: name of an input of this kind in messages, with its article.
        takes: the fields of ``RecordingOptions`` that apply to it; others are refused. The settings
            of a plug-in are in ``RecordingOptions.own``, by the plug-in's name.
        order: the lowest one that matches a path is used. Ours have 10 and more; the last, a video,
            matches everything.
        folder_of_frames: a folder with one file per frame. In a folder of such folders they are
            inputs only without inputs of other kinds, because pictures next to a video may be
            anything.
    """

    noun: ClassVar[str]
    takes: ClassVar[frozenset[str]] = PICTURE_OPTIONS
    order: ClassVar[int] = 0
    folder_of_frames: ClassVar[bool] = False

    @staticmethod
    @abstractmethod
    def matches(path: Path) -> bool:
        """Return, quickly, whether a path is of this kind; its content may be damaged."""

    def contained(self, folder: Path) -> list[Path]:
        """Return the inputs of this kind directly in a folder that is not an input itself."""
        if not self.folder_of_frames:
            return []
        inner = (path for path in folder.iterdir() if path.is_dir() and path.name[:1] != ".")
        return [path for path in inner if format_of(path) is type(self)]

    def expand(self, path: Path) -> list[Path]:
        """Return the inputs of a path. Raises InputError: it does not exist."""
        if not path.exists():
            raise InputError(f"{path}: no such file or folder.")
        return [path]

    def stream(
        self, path: Path, name: str, options: RecordingOptions
    ) -> tuple[Path, RecordingOptions] | None:
        """Return how to open what ``view`` or ``depth`` names within the input; None: a file."""
        return None

    def sha256(self, path: Path, options: RecordingOptions) -> str:
        """Return the hash of its recording, without decoding. Raises InputError."""
        return content_sha256(path)

    def described(self, path: Path, recording: Recording) -> CameraDescription | None:
        """Return the camera of the input's metadata, or None."""
        return None

    @abstractmethod
    def open(self, path: Path, options: RecordingOptions, progress: Progress | None) -> Recording:
        """Open all of it; ``Registry.open`` selects the part and adds the camera."""


class HandsFile(RecordingFormat):
    """A HandMotion table, or keypoints in any layout: hands without pictures."""

    order = 10
    noun = "a file of hands"
    takes = frozenset(
        {"keypoints", "camera_metadata", "camera_poses", "objects", "start_s", "duration_s"}
    )

    @staticmethod
    def matches(path: Path) -> bool:
        return path.suffix in SUFFIXES and not path.is_dir()

    def open(self, path: Path, options: RecordingOptions, progress: Progress | None) -> Recording:
        from acehand_core.recordings.keypoints.joints import DOUBT

        motion = read_motion_file(path, options.hands, keypoints=options.keypoints)
        remarks = [f"{path}: {n}" for n in motion.provenance.notes if n.startswith(DOUBT)]
        dropped = DroppedMessages(remarks=remarks)
        return replace(motion_recording(path, motion), dropped=dropped)


class LeRobotDataset(RecordingFormat):
    """A LeRobot dataset with videos; its inputs are its episodes."""

    order = 20
    noun = "a LeRobot dataset"
    takes = PICTURE_OPTIONS | {"video_key"}
    matches = staticmethod(lerobot_video.is_dataset)

    def expand(self, path: Path) -> list[Path]:
        return lerobot_video.episode_paths(path)

    def open(self, path: Path, options: RecordingOptions, progress: Progress | None) -> Recording:
        raise InputError(f"{path}: a LeRobot dataset; name one episode: {path}/episode_000000.")


class LeRobotEpisode(RecordingFormat):
    """An episode of a LeRobot dataset; its path need not exist."""

    order = 30
    noun = LeRobotDataset.noun
    takes = LeRobotDataset.takes
    matches = staticmethod(lerobot_video.is_episode)

    def __init__(self) -> None:
        self._videos = lerobot_video.Latest(4)  # neighbouring episodes share a file

    def expand(self, path: Path) -> list[Path]:
        return [path]

    def stream(
        self, path: Path, name: str, options: RecordingOptions
    ) -> tuple[Path, RecordingOptions] | None:
        return path, replace(options, video_key=name)

    def sha256(self, path: Path, options: RecordingOptions) -> str:
        return lerobot_video.episode_sha256(path, options.video_key, self._videos)

    def open(self, path: Path, options: RecordingOptions, progress: Progress | None) -> Recording:
        key, mirrored = options.video_key, options.mirrored
        return lerobot_video.open_episode(path, key, mirrored, self._videos)


class BagFile(RecordingFormat):
    """A folder of rosbag2, a bare .mcap or .db3, or a ROS 1 .bag."""

    order = 40
    noun = "a bag"
    takes = PICTURE_OPTIONS - {"rigs"} | {"views"}
    matches = staticmethod(is_bag)

    def __init__(self) -> None:
        self._indexes = lerobot_video.Latest(2)

    def contained(self, folder: Path) -> list[Path]:
        inner = (path for path in folder.iterdir() if path.is_dir() and is_bag(path))
        return sorted([*storage_files(folder), *inner])

    def expand(self, path: Path) -> list[Path]:
        if path.is_dir() and not (path / METADATA).is_file() and (videos := videos_in(path)):
            raise InputError(
                f"{path}: has bag files without {METADATA}, and videos ({videos[0].name}); name "
                "the files one by one."
            )
        return super().expand(path)

    def index(self, path: Path, reading: RecordingOptions, progress: Progress | None) -> BagIndex:
        """Return the index of a bag, cached while it is unchanged. Raises as ``index_bag``."""
        from acehand_core.recordings.bag import index_bag

        options = replace(reading.own.get("bag", BagOptions()), views=reading.views)
        files = sorted(path.iterdir()) if path.is_dir() else [path] if path.exists() else []
        state = tuple(v for file in files for v in (file.stat().st_size, file.stat().st_mtime_ns))
        return self._indexes((path, options, state), lambda: index_bag(path, options, progress))

    def open(self, path: Path, options: RecordingOptions, progress: Progress | None) -> Recording:
        index = self.index(path, options, progress)
        recording = index.recording(options.mirrored)
        if recording.camera is not None and options.mirrored:
            from acehand_core.recordings.cameras import turned_back

            recording = replace(recording, camera=turned_back(recording.camera))
        return replace(recording, dropped=index.dropped)


class FramesFolder(RecordingFormat):
    """A picture, or a folder of pictures, one per frame, and no videos."""

    order = 50
    noun = "a picture or a folder of pictures"
    takes = PICTURE_OPTIONS | {"frame_rate"}
    folder_of_frames = True

    @staticmethod
    def matches(path: Path) -> bool:
        if path.is_dir():
            return bool(pictures_in(path)) and not videos_in(path)
        return path.suffix.lower() in PICTURES

    def open(self, path: Path, options: RecordingOptions, progress: Progress | None) -> Recording:
        return open_frames(path, options.frame_rate, options.mirrored)

    def described(self, path: Path, recording: Recording) -> CameraDescription | None:
        for picture in pictures_in(path)[:1]:
            return described_by_picture(picture, recording.width, recording.height)
        return None


class VideoFile(RecordingFormat):
    """A video file, or anything of no other kind."""

    order = 100
    noun = "a video"

    @staticmethod
    def matches(path: Path) -> bool:
        return True

    def contained(self, folder: Path) -> list[Path]:
        return videos_in(folder)

    def open(self, path: Path, options: RecordingOptions, progress: Progress | None) -> Recording:
        return open_video(path, mirrored=options.mirrored)

    def described(self, path: Path, recording: Recording) -> CameraDescription | None:
        return described_by_video(path, recording.width, recording.height)


def formats() -> dict[type[RecordingFormat], str]:
    """Return all formats in matching order, with the plug-in's name."""
    kinds: dict[type[RecordingFormat], str] = {}
    for name in plugins.names("recordings"):
        kind = plugins.load("recordings", name)
        if not (isinstance(kind, type) and issubclass(kind, RecordingFormat)):
            raise plugins.unfit("recordings", name, "is not a subclass of RecordingFormat")
        kinds[kind] = name
    return dict(sorted(kinds.items(), key=lambda entry: entry[0].order))


def format_of(path: Path) -> type[RecordingFormat]:
    """Return the format of an input, which need not exist. Raises InputError: a pipe, a device."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise InputError(
            f"{path}: a pipe or a device cannot be read several times; save it as a file."
        )
    return next(kind for kind in formats() if kind.matches(path))


class Registry:
    """Opens inputs; caches the last bag indexes and dataset videos."""

    def __init__(self) -> None:
        self.bags = BagFile()
        self._formats = {kind: kind() for kind in formats()} | {BagFile: self.bags}

    def expand(self, inputs: Sequence[Path]) -> list[Path]:
        """Replace datasets by their episodes, and other folders by their bags and videos.

        A folder without those is replaced by its folders of pictures.

        Raises:
            InputError: a path does not exist, is given twice, or is a folder without inputs, or
                with bag files and videos.
        """
        paths: list[Path] = []
        for path in inputs:
            kind = format_of(path)
            if path.is_dir() and kind is VideoFile:
                paths += self._inside(path)
            else:
                paths += self._formats[kind].expand(path)

        if not paths:
            nouns = ", ".join(dict.fromkeys(kind.noun for kind in reversed(self._formats)))
            raise InputError(f"No input; give any of: {nouns}, a folder of these.")
        if twice := [p for p, n in Counter(path.resolve() for path in paths).items() if n > 1]:
            raise InputError(f"{twice[0]} is given twice; give every input once.")
        return paths

    def _inside(self, folder: Path) -> list[Path]:
        """Return the inputs in a folder that is not an input."""
        inputs: dict[bool, list[Path]] = {True: [], False: []}
        for kind in self._formats.values():
            inputs[kind.folder_of_frames] += kind.contained(folder)
        if paths := inputs[False] or inputs[True]:
            return sorted(paths)
        raise VideoError(f"{folder} has no video; valid: files ending in {' '.join(EXTENSIONS)}.")

    def sha256(self, path: Path, options: RecordingOptions) -> str:
        """Return the hash of an input's recording, with views and depth. Raises InputError."""
        sha256, rigs = self._formats[format_of(path)].sha256(path, options), options.rigs
        parts = {**rigs.views, **({"--depth": str(rigs.depth)} if rigs.depth else {})}
        if not parts:
            return sha256
        places = [(name, self._place(path, value, options)) for name, value in parts.items()]
        hashes = [f"{name} {kind.sha256(at, own)}" for name, (kind, at, own) in places]
        return hashlib.sha256("\n".join([sha256, *hashes]).encode()).hexdigest()

    def _place(
        self, path: Path, value: str, options: RecordingOptions
    ) -> tuple[RecordingFormat, Path, RecordingOptions]:
        """Return format, path and options of what the ``view`` or ``depth`` of an input names."""
        kind, file = self._formats[format_of(path)], Path(value)
        if file.exists():
            return self._formats[format_of(file)], file, options
        if (stream := kind.stream(path, file.name, options)) is not None:
            return kind, *stream
        raise InputError(f"{file}: no such file or folder; give a video, or pictures.")

    def open(
        self, path: Path, options: RecordingOptions, progress: Progress | None = None
    ) -> Recording:
        """Open the selected part of an input, with its camera and camera poses.

        Raises:
            InputError, VideoError, CalibrationError, SchemaError: it cannot be read, a camera file
                does not fit, an option does not apply, or the part is outside the recording.
        """
        kind = self._formats[format_of(path)]
        _refuse_options_of_others(path, type(kind), options)
        whole, rig = self._with_views(kind, path, options, progress)
        start_s, duration_s, times = options.start_s, options.duration_s, whole.timestamps_ns
        recording = part(whole, *frames_between(str(path), times, whole.fps, start_s, duration_s))

        recording = _with_camera(kind, path, recording, options, progress)
        if options.rigs.depth is not None:
            from acehand_core.recordings.depth import with_depth

            recording = with_depth(path, recording, options.rigs, rig, whole)

        views = recording.views
        if options.rigs.baseline_m is not None:  # a rectified pair has one camera
            right = replace(views[0].recording, camera=recording.camera)
            views = (replace(views[0], recording=right),)
        views = tuple(replace(v, recording=_calibrated(v.recording, None)) for v in views)
        recording = replace(recording, views=views)
        if recording.camera is not None or options.camera_poses is not None:
            recording = _calibrated(recording, options.camera_poses)
        if options.objects is not None:
            from acehand_core.recordings.objects import read_objects

            recording = replace(recording, objects=read_objects(options.objects))

        if recording.frames is not None and min(recording.width, recording.height) < 2:
            size = f"{recording.width} x {recording.height} px"
            raise VideoError(f"{path}: pictures of {size}; valid: 2 x 2 px or more.")
        return recording

    def _with_views(
        self,
        kind: RecordingFormat,
        path: Path,
        options: RecordingOptions,
        progress: Progress | None,
    ) -> tuple[Recording, Rig | None]:
        """Return all of an input with the other cameras of a rig, and the rig."""
        from acehand_core.recordings.rig import open_views, shows_two_pictures

        recording, rig = kind.open(path, options, progress), None
        if options.rigs != RigOptions():

            def open_view(value: str) -> Recording:
                kind, file, own = self._place(path, value, options)
                return kind.open(file, own, progress)

            recording, rig = open_views(recording, options.rigs, open_view)
            recording = replace(recording, sha256=self.sha256(path, options))
        if "rigs" in kind.takes and options.rigs.stereo is None and shows_two_pictures(recording):
            note = "two pictures in one, side by side or above each other: give `stereo`"
            notes, assumed = (*recording.notes, note), {"single picture": UNKNOWN_SIGMA}
            recording = replace(recording, notes=notes, assumed=assumed)
        return recording, rig


def _refuse_options_of_others(
    path: Path, kind: type[RecordingFormat], options: RecordingOptions
) -> None:
    """Raise InputError with the given options that a format does not take."""
    names, wrong = formats(), []
    for leaf in leaves(RecordingOptions):
        first, *inner = leaf.path
        if leaf.value(options) == leaf.default:
            continue
        if first == "own" and names.get(kind) != inner[0]:
            takers = {other.noun for other, name in names.items() if name == inner[0]}
        elif first != "own" and first not in kind.takes:
            takers = {other.noun for other in names if first in other.takes}
        else:
            continue
        wrong.append(f"`{leaf.parameter}`" + (f" (for {takers.pop()})" if len(takers) == 1 else ""))
    if wrong:
        raise InputError(f"{path} is {kind.noun}, so leave out: {', '.join(wrong)}.")


def _with_camera(
    kind: RecordingFormat,
    path: Path,
    recording: Recording,
    options: RecordingOptions,
    progress: Progress | None,
) -> Recording:
    """Return a recording with the camera of the options, else its own, else of its metadata."""
    size, camera = (recording.width, recording.height), None
    if options.camera is not None:
        from acehand_core.recordings import cameras
        from acehand_core.recordings.camera_files import read_camera

        file = read_camera(options.camera)
        camera = cameras.fit_camera_to(file.camera, *size)
        named = f"camera {file.name} of a {file.format}" if len(file.names) > 1 else ""
        notes = (*recording.notes, *filter(None, (named, file.note)))
        recording = replace(recording, notes=notes)
    elif options.intrinsics is not None:
        from acehand_core.recordings import cameras

        camera = cameras.parse_intrinsics(options.intrinsics, *size)
    elif options.camera_preset is not None:
        from acehand_core.recordings.camera_presets import preset_camera, preset_note

        camera = preset_camera(options.camera_preset, *size)
        notes = (*recording.notes, preset_note(options.camera_preset, camera))
        recording = replace(recording, notes=notes, assumed={**recording.assumed, LENS: KIND_SIGMA})
    elif recording.camera is None:
        stated = kind.described(path, recording) if options.camera_metadata else None
        estimated = None
        if options.camera_estimate and recording.frames is not None:
            work_dir, shown = options.work_dir, progress or no_progress
            estimated = partial(described_by_pictures, recording, work_dir, shown)
        for described in descriptions(stated, estimated):
            camera, notes = described.camera, (*recording.notes, described.note)
            lens = {LENS: described.sigma} if camera is not None else {}
            recording = replace(recording, notes=notes, assumed={**recording.assumed, **lens})
    if camera is not None and options.mirrored:
        from acehand_core.recordings.cameras import turned_back

        camera = turned_back(camera)
    return recording if camera is None else replace(recording, camera=camera)


def _calibrated(recording: Recording, poses: Path | None) -> Recording:
    """Return a recording with its camera poses, checked, and undistorted to a pinhole."""
    from acehand_core.recordings import cameras

    if poses is not None:
        loaded = cameras.load_camera_poses(poses, recording.timestamps_ns)
        recording = replace(recording, T_world_camera=loaded)
    camera = recording.camera
    if camera is not None:
        cameras.check_plausible(camera)
        if recording.frames is not None and camera.model != "pinhole":
            note = f"undistorted from {camera.model} to pinhole"
            recording = cameras.undistort(recording)
            recording = replace(recording, notes=(*recording.notes, note))
    return recording


def open_recording(
    path: Path | str, options: RecordingOptions | None = None, **given: Any
) -> Recording:
    """Open a video, a folder of pictures, a bag, a LeRobot episode or a file of hands.

    Args:
        options: how to read it, or as keywords the fields of ``RecordingOptions``, ``RigOptions``
            and the settings of formats (``image_topic`` of a bag); ``intrinsics`` may be four
            numbers: fx, fy, cx, cy in pixels.

    Raises as ``Registry.open``; InputError for an unknown keyword.
    """
    if not isinstance(given.get("intrinsics", ""), str | None):
        given["intrinsics"] = ",".join(str(float(number)) for number in given["intrinsics"])
    settings = {leaf.name: leaf for leaf in leaves(RecordingOptions)}
    paths: dict[str, tuple[str, ...]] = {f.name: (f.name,) for f in fields(RecordingOptions)}
    paths |= {name: leaf.path for name, leaf in settings.items()}
    for name, value in given.items():
        if name not in paths:
            raise InputError(f"open_recording: no option {name!r}; {nearest(name, paths)}")
        kinds = {settings[name].type, *get_args(settings[name].type)} if name in settings else {}
        if isinstance(value, str) and Path in kinds:
            given[name] = Path(value)
        elif isinstance(value, int) and float in kinds:
            given[name] = float(value)
    options = options or RecordingOptions()
    options = replace(options, own={**RecordingOptions().own, **options.own})
    options = changed(options, {paths[name]: value for name, value in given.items()})
    return Registry().open(Path(path), options)
