"""The tracker of an input by ``tracker``: a tracker or a file of hands, kept with ``cache``."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from acehand_core import plugins
from acehand_core.atomic import output_errors
from acehand_core.errors import AcehandError, InputError, NoHandError
from acehand_core.motion import HandMotion, Recording
from acehand_core.recordings.hands_file import (
    motion_recording,
    read_hand_motion,
    read_motion_file,
    refuse_settings,
    write_hand_motion,
)
from acehand_core.recordings.options import RecordingOptions
from acehand_core.recordings.registry import HandsFile, InputPart, Registry, format_of
from acehand_core.settings import identity_of
from acehand_core.trackers.base import Tracker, TrackerSettings, make_tracker
from acehand_core.types import Hands, Progress, Quality, TurnsMode, no_progress

#: The code that decides what a tracker returns.
_CODE = "*.py ace/*.py ace/model/**/*.py camera/*.py geometry/*.py hand/*.py motion/*.py"
_CODE += " recordings/**/*.py trackers/**/*.py"
#: Libraries that decide it too.
_LIBRARIES = ("numpy", "openvino", "opencv-python-headless", "av", "torch", "diffusers")


class FileTracker:
    """Tracker with the hands of a file."""

    name = "file"

    def __init__(
        self, path: Path, settings: TrackerSettings, motion: HandMotion | None = None
    ) -> None:
        """Read the file, unless its ``motion`` is given.

        Raises:
            SchemaError: the file breaks its format.
            UnsafeFileError: it holds pickled objects.
            InputError: it cannot be read, or a hand length is given.
        """
        refuse_settings(path, hand_length=settings.hand_length_m is not None)
        self._path = path
        keypoints = settings.keypoints
        self._motion = motion or read_motion_file(path, settings.hands, keypoints=keypoints)
        self.placed = self._motion.placed
        self.hand_model = self._motion.hand_model

    @property
    def posed(self) -> bool:
        """Whether the file has camera poses, so that base poses are in the world."""
        return self._motion.T_world_camera is not None

    @property
    def in_world(self) -> bool:
        """Whether the joints are in the world frame, with the camera at its origin."""
        poses = self._motion.T_world_camera
        return poses is not None and bool((poses == np.eye(4)).all())

    def recording(self) -> Recording:
        """Return the file's time axis and camera as a recording without images."""
        return motion_recording(self._path, self._motion)

    def track(self, recording: Recording, progress: Progress = no_progress) -> HandMotion:
        """Return the file's motion, which needs a row per frame of a video.

        A recording without images is the file's time axis or a part of it.

        Raises:
            InputError: the file does not match the recording.
        """
        if recording.frames is None:
            return self._at_times_of(recording)
        if len(self._motion) != len(recording):
            raise InputError(
                f"{self._path}: holds {len(self._motion)} frames but {recording.source} has "
                f"{len(recording)}; a tracker file needs one entry per frame."
            )

        camera = recording.camera or self._motion.camera
        if camera is not None:
            camera = camera.rescaled(recording.width, recording.height)
        poses = recording.T_world_camera
        return replace(
            self._motion,
            timestamps_ns=recording.timestamps_ns,
            fps=recording.fps,
            camera=camera,
            T_world_camera=self._motion.T_world_camera if poses is None else poses,
        )

    def _at_times_of(self, recording: Recording) -> HandMotion:
        times = self._motion.timestamps_ns
        index = np.minimum(np.searchsorted(times, recording.timestamps_ns), len(times) - 1)
        if not np.array_equal(times[index], recording.timestamps_ns):
            raise InputError(f"{self._path}: has no hands at the times of {recording.source}.")
        motion = self._motion.at(index, recording.timestamps_ns, recording.fps)
        return replace(motion, T_world_camera=recording.T_world_camera)


class CachedTracker:
    """A tracker that keeps its hands in a folder and reads them from there.

    A file's name is a hash of all that decides its content: the recording, its reading, camera,
    poses, views and depth, the tracker's settings and code, and versions of libraries. So no file
    is ever out of date, and processes may share the folder.
    """

    def __init__(self, tracker: Tracker, settings: TrackerSettings, folder: Path) -> None:
        self.name, self.placed = tracker.name, tracker.placed
        self.hand_model = tracker.hand_model
        self._tracker, self._settings, self._folder = tracker, settings, folder

    def path(self, recording: Recording) -> Path | None:
        """Return the path of a recording's hands; None for a recording without a hash."""
        if recording.sha256 is None:
            return None
        key = json.dumps(self._key(recording), sort_keys=True, default=str).encode()
        name = hashlib.sha256(key).hexdigest()
        return self._folder / name[:2] / f"{name}.parquet"

    def track(self, recording: Recording, progress: Progress = no_progress) -> HandMotion:
        """Return the kept hands, else track and keep them.

        Raises:
            OutputError: the folder cannot be written. Else as the tracker.
        """
        path = self.path(recording)
        if path is None:
            return self._tracker.track(recording, progress)

        with contextlib.suppress(AcehandError):  # not there, or damaged
            return read_hand_motion(path)
        motion = self._tracker.track(recording, progress)
        with output_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_hand_motion(motion, path, overwrite=True)
        return motion

    def _key(self, recording: Recording) -> dict[str, Any]:
        # The folder of partial results does not matter; of weights the content counts.
        settings = asdict(replace(self._settings, work_dir=None, own={}))
        own = self._settings.own.get(self.name)
        views, depth = recording.views, recording.depth
        measured = () if depth is None else (depth.timestamps_ns, depth.T_camera_depth)
        return {
            "recording": [recording.sha256, recording.name, recording.width, recording.height],
            "read": {**recording.processing, "notes": recording.notes, "fps": recording.fps},
            "arrays": {
                "times": _digest(recording.timestamps_ns),
                "poses": _digest(recording.T_world_camera),
            },
            "camera": repr(recording.camera),
            "views": [[v.name, _digest(v.T_camera_view), self._key(v.recording)] for v in views],
            "depth": depth and [repr(depth.camera), depth.sigma_per_m, *map(_digest, measured)],
            "tracker": [self.name, settings, own and identity_of(own)],
            "code": _code(),
            "libraries": _libraries(),
        }


def _digest(values: Any) -> str:
    if isinstance(values, np.ndarray):
        return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()
    return repr(values)


@functools.cache
def _code() -> str:
    """Return a hash of the code that decides what a tracker returns."""
    root, digest = Path(__file__).resolve().parent.parent, hashlib.sha256()
    for pattern in _CODE.split():
        for path in sorted(root.glob(pattern)):
            digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


@functools.cache
def _libraries() -> dict[str, str]:
    found = {}
    for name in _LIBRARIES:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def choose_tracker(name: str, settings: TrackerSettings) -> Tracker:
    """Return a tracker by name, or one that reads the file of that name."""
    if format_of(Path(name)) is HandsFile:
        return FileTracker(Path(name), settings)
    return make_tracker(name, settings)


def open_tracked(
    path: Path,
    tracker: str,
    settings: TrackerSettings,
    reading: RecordingOptions,
    opener: Callable[[Path, RecordingOptions], InputPart],
) -> tuple[InputPart, Tracker]:
    """Open an input with the tracker of a name; a file of hands is its own tracker.

    Raises:
        InputError: it cannot be opened, or a setting does not apply to it.
    """
    if format_of(path) is HandsFile:
        refuse_settings(path, tracker=tracker != "auto")

    # Next to a video the mapping is that of the tracker's file.
    settings = replace(settings, keypoints=reading.keypoints)
    if format_of(path) is not HandsFile and format_of(Path(tracker)) is HandsFile:
        reading = replace(reading, keypoints=None)
    reading = replace(reading, hands=settings.hands, work_dir=settings.work_dir)
    opened = opener(path, reading)
    chosen: Tracker
    if opened.hands is not None and tracker == "auto":
        chosen = FileTracker(path, settings, opened.hands)
    else:
        chosen = choose_tracker(tracker, settings)

    # Before hours of work, or gigabytes of weights, for a recording that cannot do.
    getattr(chosen, "check", lambda recording: None)(opened.recording)
    if reading.camera_poses is not None and not chosen.placed:
        raise InputError(f"{path}: `camera_poses` cannot apply to joints relative to the wrist.")
    in_world = isinstance(chosen, FileTracker) and chosen.in_world
    if reading.camera_poses is not None and in_world:
        raise InputError(
            f"{path}: `camera_poses` cannot apply: the joints are in the world frame already (else "
            "state `frame: camera` in the mapping of `keypoints`)."
        )
    return opened, chosen


def cached(tracker: Tracker, settings: TrackerSettings, folder: Path | None) -> Tracker:
    """Return a ``CachedTracker`` for a given folder; only for this package's trackers.

    Versions of plug-ins are unknown.
    """
    if folder is None or not plugins.is_ours("trackers", tracker.name):
        return tracker
    return CachedTracker(tracker, settings, folder)


def open_input(
    path: Path, tracker: str, settings: TrackerSettings, reading: RecordingOptions
) -> tuple[Recording, Tracker]:
    """Open a single input, see ``open_tracked``."""
    opened, chosen = open_tracked(path, tracker, settings, reading, Registry().open)
    return opened.recording, chosen


def track(
    recording: Recording,
    tracker: str | Path | Tracker = "auto",
    *,
    hands: Hands = "both",
    hand_length: float | None = None,
    weights: Path | str | None = None,
    camera_motion: TurnsMode = "rotation",
    quality: Quality = "balanced",
    progress: Progress = no_progress,
) -> HandMotion:
    """Return the motion of both hands of a recording.

    Args:
        tracker: a name ("auto", "mediapipe", "ace", an installed one), the recording's file of
            hands, or a ``Tracker``.
        hands: the hands to track.
        hand_length: wrist to middle fingertip in metres; the scale, which a single camera cannot
            know.
        weights: of the model, for the ace tracker.
        camera_motion: the camera's motion to estimate in recordings without camera poses.
        quality: of the mediapipe tracker, against its time.
        progress: called with (stage, done, total).

    Raises:
        InputError: unknown tracker, or the recording lacks what it needs.
        NoHandError: no frame has a hand.
    """
    if recording.frames is None and tracker == "auto":
        tracker = recording.source  # a file of hands
    if isinstance(tracker, str | Path):
        own = {}
        if weights is not None:
            own["ace"] = plugins.settings_of("trackers")["ace"](weights=Path(weights))
        settings = TrackerSettings(hands, hand_length, own=own, quality=quality)
        settings = replace(settings, camera_motion=camera_motion)
        tracker = choose_tracker(str(tracker), settings)

    motion = tracker.track(recording, progress)
    if not motion.known.any():
        raise NoHandError(f"{recording.source}: no hand was found in {len(motion)} frames.")
    return motion
