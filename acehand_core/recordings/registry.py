"""Opening an input, whatever it is: the formats of recordings, each behind the same few methods.

A format is a class with the methods of ``RecordingFormat`` and an entry point in the group
``acehand.recordings`` (``plugins``). Whoever must know which format a path has asks ``format_of``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from acehand_core import plugins
from acehand_core.errors import InputError, VideoError
from acehand_core.motion import HandMotion, Recording
from acehand_core.recordings import cameras, frames_folder, lerobot_video
from acehand_core.recordings.bags.records import (
    METADATA,
    BagOptions,
    DroppedMessages,
    is_bag,
    storage_files,
)
from acehand_core.recordings.camera_metadata import (
    CameraDescription,
    described_by_picture,
    described_by_pictures,
    described_by_video,
    descriptions,
)
from acehand_core.recordings.camera_presets import preset_camera, preset_note
from acehand_core.recordings.hands_file import (
    SUFFIXES,
    motion_recording,
    read_motion_file,
    refuse_flags,
)
from acehand_core.recordings.options import RecordingOptions
from acehand_core.recordings.selection import part
from acehand_core.recordings.video import EXTENSIONS, frames_between, open_video, videos_in
from acehand_core.safe_files import content_sha256
from acehand_core.settings import leaves
from acehand_core.types import Progress, no_progress

if TYPE_CHECKING:
    from acehand_core.recordings.bag import BagIndex


@dataclass(frozen=True, slots=True)
class InputPart:
    """An open input: all of it, or a part.

    ``hands`` is what a file of hands holds, or a clip is labelled with; None: to be tracked.
    ``dropped`` counts messages of a bag that could not be used, and remarks on what is odd in a
    file of hands; reading frames may add to it.
    """

    recording: Recording
    hands: HandMotion | None = None
    dropped: DroppedMessages | None = None


class RecordingFormat(ABC):
    """One kind of input. As it stands here, every path of that kind is one input.

    Attributes:
        noun: what an input of this kind is called in messages, with its article.
        option: the field of ``RecordingOptions`` that only this kind has, or None. Settings that a
            plug-in brings itself are in ``RecordingOptions.own``, by the plug-in's name.
        order: the lowest that matches a path is taken. Ours have 10 and more, the last, a video,
            takes everything.
        virtual: its paths need not exist.
        folder_of_frames: a folder whose files are its frames. In a folder of such folders they are
            inputs only where it has none of other kinds: beside a video they may be anything.
    """

    noun: ClassVar[str]
    option: ClassVar[str | None] = None
    order: ClassVar[int] = 0
    virtual: ClassVar[bool] = False
    folder_of_frames: ClassVar[bool] = False

    @staticmethod
    @abstractmethod
    def matches(path: Path) -> bool:
        """Tell, quickly, whether a path is of this kind; what it holds may still be damaged."""

    def contained(self, folder: Path) -> list[Path]:
        """Return the inputs of this kind directly in a folder that is not an input itself."""
        if not self.folder_of_frames:
            return []
        inner = (path for path in folder.iterdir() if path.is_dir() and path.name[:1] != ".")
        return [path for path in inner if format_of(path) is type(self)]

    def expand(self, path: Path) -> list[Path]:
        """Return the inputs that a path stands for. Raises InputError."""
        return [path]

    def sha256(self, path: Path, options: RecordingOptions) -> str:
        """Return the hash that its recording will have, without decoding. Raises InputError."""
        return content_sha256(path)

    def described(self, path: Path, recording: Recording) -> CameraDescription | None:
        """Return what the input's metadata says of its camera; None: nothing."""
        return None

    @abstractmethod
    def open(self, path: Path, options: RecordingOptions, progress: Progress | None) -> InputPart:
        """Open all of it; ``Registry.open`` cuts it and adds camera and poses.

        Raises:
            InputError: it cannot be read, or an option does not apply to it.
        """


class HandsFile(RecordingFormat):
    """A HandMotion table, or anybody's keypoints: hands without pictures."""

    order = 10
    noun = "a file of hands"
    option = "keypoints"

    @staticmethod
    def matches(path: Path) -> bool:
        return path.suffix in SUFFIXES and not path.is_dir()

    def open(self, path: Path, options: RecordingOptions, progress: Progress | None) -> InputPart:
        given = {
            "--intrinsics": options.intrinsics is not None,
            "--camera": options.camera is not None,
            "--camera-preset": options.camera_preset is not None,
            "--camera-estimate": options.camera_estimate,
            "--mirrored": options.mirrored,
        }
        refuse_flags(path, given)

        from acehand_core.recordings.keypoints.joints import DOUBT

        motion = read_motion_file(path, options.hands, keypoints=options.keypoints)
        remarks = [f"{path}: {n}" for n in motion.provenance.notes if n.startswith(DOUBT)]
        dropped = DroppedMessages(remarks=remarks)
        return InputPart(motion_recording(path, motion), hands=motion, dropped=dropped)


class LeRobotDataset(RecordingFormat):
    """A LeRobot dataset with videos: stands for its episodes."""

    order = 20
    noun = "a LeRobot dataset"
    option = "video_key"

    @staticmethod
    def matches(path: Path) -> bool:
        return lerobot_video.is_dataset(path)

    def expand(self, path: Path) -> list[Path]:
        return lerobot_video.episode_paths(path)

    def open(self, path: Path, options: RecordingOptions, progress: Progress | None) -> InputPart:
        raise InputError(f"{path}: a LeRobot dataset; name one episode: {path}/episode_000000.")


class LeRobotEpisode(RecordingFormat):
    """An episode of a LeRobot dataset; its path need not exist."""

    order = 30
    virtual = True
    noun = LeRobotDataset.noun
    option = LeRobotDataset.option

    def __init__(self) -> None:
        self._videos = lerobot_video.Latest(4)  # neighbouring episodes mostly lie in the same file

    @staticmethod
    def matches(path: Path) -> bool:
        return lerobot_video.is_episode(path)

    def sha256(self, path: Path, options: RecordingOptions) -> str:
        return lerobot_video.episode_sha256(path, options.video_key, self._videos)

    def open(self, path: Path, options: RecordingOptions, progress: Progress | None) -> InputPart:
        return InputPart(
            lerobot_video.open_episode(path, options.video_key, options.mirrored, self._videos)
        )


class BagFile(RecordingFormat):
    """A folder of rosbag2, or a bare .mcap or .db3."""

    order = 40
    noun = "a bag"

    def __init__(self) -> None:
        self._indexes = lerobot_video.Latest(2)

    @staticmethod
    def matches(path: Path) -> bool:
        return is_bag(path)

    def contained(self, folder: Path) -> list[Path]:
        inner = (path for path in folder.iterdir() if path.is_dir() and is_bag(path))
        return sorted([*storage_files(folder), *inner])

    def expand(self, path: Path) -> list[Path]:
        # Such a folder may be a bag or a collection: nothing says which.
        if path.is_dir() and not (path / METADATA).is_file() and (videos := videos_in(path)):
            raise InputError(
                f"{path}: has bag files without {METADATA} and videos ({videos[0].name}), so it is "
                "not clear what it is; name the files one by one."
            )
        return [path]

    def index(self, path: Path, options: BagOptions, progress: Progress | None = None) -> BagIndex:
        """Return the index of a bag; asked again for an unchanged bag, the same one.

        Raises:
            InputError, CalibrationError: see ``index_bag``.
        """
        from acehand_core.recordings.bag import index_bag

        files = sorted(path.iterdir()) if path.is_dir() else [path] if path.exists() else []
        state = tuple(v for file in files for v in (file.stat().st_size, file.stat().st_mtime_ns))
        return self._indexes((path, options, state), lambda: index_bag(path, options, progress))

    def open(self, path: Path, options: RecordingOptions, progress: Progress | None) -> InputPart:
        wanted = options.own.get("bag", BagOptions())
        index = self.index(path, wanted, progress)
        recording = index.recording(options.mirrored)
        if recording.camera is not None and options.mirrored:
            recording = replace(recording, camera=cameras.turned_back(recording.camera))
        return InputPart(recording, dropped=index.dropped)


class FramesFolder(RecordingFormat):
    """A folder of pictures, one per frame, without videos beside them."""

    order = 50
    noun = "a folder of pictures"
    option = "frame_rate"
    folder_of_frames = True

    @staticmethod
    def matches(path: Path) -> bool:
        return path.is_dir() and bool(frames_folder.pictures_in(path)) and not videos_in(path)

    def open(self, path: Path, options: RecordingOptions, progress: Progress | None) -> InputPart:
        return InputPart(frames_folder.open_frames(path, options.frame_rate, options.mirrored))

    def described(self, path: Path, recording: Recording) -> CameraDescription | None:
        for picture in frames_folder.pictures_in(path)[:1]:
            return described_by_picture(picture, recording.width, recording.height)
        return None


class VideoFile(RecordingFormat):
    """A video file; what is of no other kind is taken for one."""

    order = 100
    noun = "a video"

    @staticmethod
    def matches(path: Path) -> bool:
        return True

    def contained(self, folder: Path) -> list[Path]:
        return videos_in(folder)

    def open(self, path: Path, options: RecordingOptions, progress: Progress | None) -> InputPart:
        return InputPart(open_video(path, mirrored=options.mirrored))

    def described(self, path: Path, recording: Recording) -> CameraDescription | None:
        return described_by_video(path, recording.width, recording.height)


def formats() -> dict[type[RecordingFormat], str]:
    """Return all formats in the order in which they are asked, with the plug-in's name."""
    found: dict[type[RecordingFormat], str] = {}
    for name in plugins.names("recordings"):
        kind = plugins.load("recordings", name)
        if not (isinstance(kind, type) and issubclass(kind, RecordingFormat)):
            raise plugins.unfit("recordings", name, "is not a subclass of RecordingFormat")
        found[kind] = name
    return dict(sorted(found.items(), key=lambda entry: entry[0].order))


def format_of(path: Path) -> type[RecordingFormat]:
    """Return the format of an input; that of a missing one follows from its name."""
    return next(kind for kind in formats() if kind.matches(path))


class Registry:
    """Opens inputs. As long as it lives, the last bag indexes and dataset videos are kept."""

    def __init__(self) -> None:
        self.bags = BagFile()
        self._formats = {kind: kind() for kind in formats()} | {BagFile: self.bags}

    def expand(self, inputs: Sequence[Path]) -> list[Path]:
        """Replace datasets by their episodes, and folders by the inputs in them.

        Of a folder that is not an input itself, the bags and videos in it are taken, else the
        folders of pictures.

        Raises:
            InputError: something does not exist or is given twice, a folder holds no input, or it
                is a bag without metadata.yaml and has videos, too.
        """
        paths: list[Path] = []
        for path in inputs:
            kind = format_of(path)
            if path.is_dir() and kind is VideoFile:
                paths += self._inside(path)
            elif path.exists() or kind.virtual:
                paths += self._formats[kind].expand(path)
            else:
                raise InputError(f"{path}: no such file or folder.")

        if not paths:
            nouns = ", ".join(dict.fromkeys(kind.noun for kind in reversed(self._formats)))
            raise InputError(f"No input; give any of: {nouns}, a folder of these.")
        if twice := [p for p, n in Counter(path.resolve() for path in paths).items() if n > 1]:
            raise InputError(f"{twice[0]} is given twice; its episodes would be in there twice.")
        return paths

    def _inside(self, folder: Path) -> list[Path]:
        """Return the inputs in a folder that is not an input itself."""
        inputs: dict[bool, list[Path]] = {True: [], False: []}
        for kind in self._formats.values():
            inputs[kind.folder_of_frames] += kind.contained(folder)
        if paths := inputs[False] or inputs[True]:
            return sorted(paths)
        raise VideoError(f"{folder} has no video; valid: files ending in {' '.join(EXTENSIONS)}.")

    def sha256(self, path: Path, options: RecordingOptions) -> str:
        """Return the hash that an input's recording will have. Raises InputError."""
        return self._formats[format_of(path)].sha256(path, options)

    def open(
        self, path: Path, options: RecordingOptions, progress: Progress | None = None
    ) -> InputPart:
        """Open the wanted part of an input, with its camera and camera poses.

        Raises:
            InputError, VideoError, CalibrationError, SchemaError: it cannot be read, a camera file
                does not fit, an option does not apply, or the wanted part is not there.
        """
        kind = self._formats[format_of(path)]
        self._refuse_options_of_others(path, kind, options)
        opened = kind.open(path, options, progress)
        recording = opened.recording
        bounds = frames_between(
            str(path), recording.timestamps_ns, recording.fps, options.start_s, options.duration_s
        )
        recording = part(recording, *bounds)
        if opened.hands is not None and recording.frames is not None:
            frames = np.arange(*bounds)
            hands = opened.hands.at(frames, recording.timestamps_ns, recording.fps)
            opened = replace(opened, hands=hands)

        recording = _with_camera(kind, path, recording, options, progress)
        if options.camera_poses is not None:
            poses = cameras.load_camera_poses(options.camera_poses, recording.timestamps_ns)
            recording = replace(recording, T_world_camera=poses)

        if recording.camera is not None:
            cameras.check_plausible(recording.camera)
        if recording.frames is not None and recording.camera is not None:
            model = recording.camera.model
            if model != "pinhole":
                recording = cameras.undistort(recording)
                note = f"undistorted from {model} to pinhole"
                recording = replace(recording, notes=(*recording.notes, note))
        return replace(opened, recording=recording)

    def _refuse_options_of_others(
        self, path: Path, kind: RecordingFormat, options: RecordingOptions
    ) -> None:
        given = [leaf for leaf in leaves(RecordingOptions) if leaf.value(options) != leaf.default]
        for other, name in formats().items():
            flags = [
                leaf.spelled
                for leaf in given
                if (leaf.path[:2] == ("own", name) and other is not type(kind))
                or (leaf.path == (other.option,) and other.option != kind.option)
            ]
            if flags:
                raise InputError(
                    f"{path} is not {other.noun}, so this does not apply to it: {', '.join(flags)}."
                )


def _with_camera(
    kind: RecordingFormat,
    path: Path,
    recording: Recording,
    options: RecordingOptions,
    progress: Progress | None,
) -> Recording:
    """Return a recording with the camera that the user named, else its own, else a described one.

    Raises:
        InputError, CalibrationError: it cannot be read, or does not fit.
    """
    size, camera = (recording.width, recording.height), None
    if options.camera is not None:
        from acehand_core.recordings.camera_files import read_camera

        found = read_camera(options.camera)
        camera = cameras.fit_camera_to(found.camera, *size)
        named = f"camera {found.name} of a {found.format}" if len(found.names) > 1 else ""
        notes = (note for note in (named, found.note) if note)
        recording = replace(recording, notes=(*recording.notes, *notes))
    elif options.intrinsics is not None:
        camera = cameras.parse_intrinsics(options.intrinsics, *size)
    elif options.camera_preset is not None:
        camera = preset_camera(options.camera_preset, *size)
        note = preset_note(options.camera_preset, camera)
        recording = replace(recording, notes=(*recording.notes, note))
    elif recording.camera is None:
        said = kind.described(path, recording) if options.camera_metadata else None
        estimated = None
        if options.camera_estimate and recording.frames is not None:
            work_dir, shown = options.work_dir, progress or no_progress
            estimated = partial(described_by_pictures, recording, work_dir, shown)
        for described in descriptions(said, estimated):
            camera = described.camera
            recording = replace(recording, notes=(*recording.notes, described.note))
    if camera is not None:
        camera = cameras.turned_back(camera) if options.mirrored else camera
        recording = replace(recording, camera=camera)
    return recording


def open_recording(
    path: Path | str, options: RecordingOptions | None = None, **given: Any
) -> Recording:
    """Open a video, a folder of pictures, a bag, a LeRobot episode or a file of hands.

    Args:
        options: how to read it, or the fields of ``RecordingOptions`` as keywords; ``intrinsics``
            may be four numbers: fx, fy, cx, cy in pixels.

    Raises as ``Registry.open``.
    """
    if not isinstance(given.get("intrinsics", ""), str | None):
        given["intrinsics"] = ",".join(str(float(number)) for number in given["intrinsics"])
    for name in ("camera", "camera_poses"):
        if isinstance(given.get(name), str):
            given[name] = Path(given[name])
    for name in ("start_s", "duration_s", "frame_rate"):
        if isinstance(given.get(name), int):
            given[name] = float(given[name])
    options = replace(options or RecordingOptions(), **given)
    return Registry().open(Path(path), options).recording
