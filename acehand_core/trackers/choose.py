"""The tracker of an input, by ``--tracker``; with ``--cache`` one that keeps what it tracked."""

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
from acehand_core.recordings.hands_file import read_hand_motion, refuse_flags, write_hand_motion
from acehand_core.recordings.options import RecordingOptions
from acehand_core.recordings.registry import HandsFile, InputPart, Registry, format_of
from acehand_core.settings import identity_of
from acehand_core.trackers.base import Tracker, TrackerSettings, make_tracker
from acehand_core.trackers.files import FileTracker
from acehand_core.types import Hands, Progress, Quality, TurnsMode, no_progress

#: Whose code decides what a tracker returns.
_CODE = (
    "*.py", "ace/*.py", "ace/model/**/*.py", "camera/*.py", "geometry/*.py", "hand/*.py",
    "motion/*.py", "recordings/**/*.py", "trackers/**/*.py",
)  # fmt: skip
#: Libraries whose other versions may track differently.
_LIBRARIES = ("numpy", "openvino", "opencv-python-headless", "av", "torch", "diffusers")


class CachedTracker:
    """A tracker that reads the hands from a folder where they were tracked before.

    A file's name is a hash of all that decides its content: the recording's content, how it was
    read, its camera and poses, the tracker's settings, its code and the versions of libraries. So
    nothing in the folder is ever out of date, and several processes may share it.
    """

    def __init__(self, tracker: Tracker, settings: TrackerSettings, folder: Path) -> None:
        self.name, self.placed = tracker.name, tracker.placed
        self.hand_model = tracker.hand_model
        self._tracker, self._settings, self._folder = tracker, settings, folder

    def path(self, recording: Recording) -> Path | None:
        """Return the file of a recording's hands, there or not; None: it cannot be told apart."""
        if recording.sha256 is None:
            return None
        key = json.dumps(self._key(recording), sort_keys=True, default=str).encode()
        name = hashlib.sha256(key).hexdigest()
        return self._folder / name[:2] / f"{name}.parquet"

    def track(self, recording: Recording, progress: Progress = no_progress) -> HandMotion:
        """Return the hands of the whole recording: kept ones, else tracked now and kept.

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
        # Where partial results wait changes nothing; of weights the content counts.
        settings = asdict(replace(self._settings, work_dir=None, own={}))
        own = self._settings.own.get(self.name)
        arrays = {"times": recording.timestamps_ns, "poses": recording.T_world_camera}
        return {
            "recording": [recording.sha256, recording.name, recording.width, recording.height],
            "read": {**recording.processing, "notes": recording.notes, "fps": recording.fps},
            "arrays": {name: _digest(values) for name, values in arrays.items()},
            "camera": repr(recording.camera),
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
    """Return a hash of the sources that decide what a tracker returns."""
    root, digest = Path(__file__).resolve().parent.parent, hashlib.sha256()
    for pattern in _CODE:
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
    """Open an input with the tracker of that name; a file of hands is its own tracker.

    Raises:
        InputError: it cannot be opened, or a flag was given that has no meaning for it.
    """
    if format_of(path) is HandsFile:
        given = {
            "--tracker": tracker != "auto",
            "--intrinsics": reading.intrinsics is not None,
            "--camera": reading.camera is not None,
            "--camera-preset": reading.camera_preset is not None,
            "--camera-estimate": reading.camera_estimate,
            "--mirrored": reading.mirrored,
            "--hand-length": settings.hand_length_m is not None,
        }
        refuse_flags(path, given)

    # Beside a video the mapping is that of the tracker's file.
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

    if reading.camera_poses is not None:
        _refuse_camera_poses(path, chosen)
    return opened, chosen


def cached(tracker: Tracker, settings: TrackerSettings, folder: Path | None) -> Tracker:
    """Return a tracker that keeps hands in a folder, if one is given.

    Only for this package's trackers: nothing tells the versions of others apart.
    """
    if folder is None or not plugins.is_ours("trackers", tracker.name):
        return tracker
    return CachedTracker(tracker, settings, folder)


def _refuse_camera_poses(path: Path, chosen: Tracker) -> None:
    if not chosen.placed:
        raise InputError(
            f"{path}: --camera-poses cannot apply: the joints are relative to the wrist, "
            "not to the camera."
        )
    if isinstance(chosen, FileTracker) and chosen.in_world:
        raise InputError(
            f"{path}: --camera-poses cannot apply: the joints are in the world frame already "
            "(`frame: camera` in the mapping of --keypoints says that they are before the camera)."
        )


def open_input(
    path: Path, tracker: str, settings: TrackerSettings, reading: RecordingOptions
) -> tuple[Recording, Tracker]:
    """Open one input on its own: see ``open_tracked``."""
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
        tracker: a name ("auto", "mediapipe", "ace", one that is installed), a file of hands that
            belongs to the recording, or an object with the methods of ``Tracker``.
        hands: which hands to look for.
        hand_length: wrist to middle fingertip in metres; fixes the scale that a single camera
            cannot know.
        weights: of the model, for the ace tracker.
        camera_motion: what to find out of it where the recording has no camera poses.
        quality: of the mediapipe tracker, against its time.
        progress: called with (stage, done, total).

    Raises:
        InputError: there is no such tracker, or the recording lacks what it needs.
        NoHandError: no frame shows a hand.
    """
    if recording.frames is None and tracker == "auto":
        tracker = recording.source  # a file of hands
    if isinstance(tracker, str | Path):
        own = {}
        if weights is not None:
            own["ace"] = plugins.settings_of("trackers")["ace"](weights=Path(weights))
        settings = TrackerSettings(
            hands=hands,
            hand_length_m=hand_length,
            own=own,
            camera_motion=camera_motion,
            quality=quality,
        )
        tracker = choose_tracker(str(tracker), settings)

    motion = tracker.track(recording, progress)
    if not motion.known.any():
        raise NoHandError(f"{recording.source}: no hand was found in {len(motion)} frames.")
    return motion
