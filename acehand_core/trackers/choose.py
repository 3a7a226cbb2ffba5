"""The tracker of an input by ``tracker``: a tracker or a file of hands, kept with ``cache``."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from acehand_core import plugins
from acehand_core.atomic import output_errors
from acehand_core.errors import AcehandError, InputError, NoHandError
from acehand_core.motion import HandMotion, Recording
from acehand_core.provenance import code_sha256
from acehand_core.recordings.hands_file import (
    read_hand_motion,
    read_motion_file,
    refuse_settings,
    with_hands,
    write_hand_motion,
)
from acehand_core.recordings.options import RecordingOptions
from acehand_core.recordings.registry import HandsFile, Registry, format_of
from acehand_core.recordings.selection import only_hands
from acehand_core.settings import identity_of
from acehand_core.trackers.base import Tracker, TrackerSettings, make_tracker
from acehand_core.types import Hands, Progress, Quality, TurnsMode, no_progress

#: The code that decides what a tracker returns.
_CODE = tuple(
    f"acehand_core/{name}.py"
    for name in (
        *("*", "ace/*", "ace/model/**/*", "camera/*", "geometry/*", "hand/*", "motion/*"),
        *("recordings/**/*", "trackers/**/*"),
    )
)
#: Libraries that decide it too.
_LIBRARIES = ("numpy", "openvino", "opencv-python-headless", "av", "torch", "diffusers")


class FileTracker:
    """Tracker of recordings that have their hands: of a file, or a clip's labels."""

    name = "file"

    def __init__(self, hands: HandMotion) -> None:
        self.placed, self.hand_model = hands.placed, hands.hand_model

    def track(self, recording: Recording, progress: Progress = no_progress) -> HandMotion:
        """Return the recording's hands, at its times and with its camera and poses."""
        hands, poses = recording.hands, recording.T_world_camera
        assert hands is not None
        camera = hands.camera
        if recording.frames is not None and (camera := recording.camera or camera) is not None:
            camera = camera.rescaled(recording.width, recording.height)
        times, fps = recording.timestamps_ns, recording.fps
        return replace(hands, timestamps_ns=times, fps=fps, camera=camera, T_world_camera=poses)


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
            "code": code_sha256(*_CODE),
            "libraries": _libraries(),
        }


def _digest(values: Any) -> str:
    if isinstance(values, np.ndarray):
        return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()
    return repr(values)


@functools.cache
def _libraries() -> dict[str, str]:
    versions = {}
    for name in _LIBRARIES:
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def open_tracked(
    path: Path,
    tracker: str,
    settings: TrackerSettings,
    reading: RecordingOptions,
    registry: Registry | None = None,
    progress: Progress | None = None,
) -> tuple[Recording, Tracker]:
    """Open an input with the tracker of a name, or the hands of a file; it may have its own hands.

    Raises:
        InputError: it cannot be opened, or a setting does not apply to it.
    """
    if format_of(path) is HandsFile:
        refuse_settings(path, tracker=tracker != "auto")

    # Next to a video the mapping is that of the tracker's file.
    keypoints, file = reading.keypoints, Path(tracker)
    has_file = format_of(path) is not HandsFile and format_of(file) is HandsFile
    if has_file:
        reading = replace(reading, keypoints=None)
    reading = replace(reading, hands=settings.hands, work_dir=settings.work_dir)
    recording = (registry or Registry()).open(path, reading, progress)
    if has_file:
        motion = read_motion_file(file, settings.hands, keypoints=keypoints)
        recording, tracker = with_hands(recording, file, motion), "auto"

    chosen: Tracker
    if recording.hands is not None and tracker == "auto":
        refuse_settings(path, hand_length=settings.hand_length_m is not None)
        chosen, poses = FileTracker(recording.hands), recording.hands.T_world_camera
        if reading.camera_poses is not None and poses is not None and (poses == np.eye(4)).all():
            raise InputError(
                f"{path}: `camera_poses` cannot apply: the joints are in the world frame already "
                "(else state `frame: camera` in the mapping of `keypoints`)."
            )
    else:
        chosen, recording = make_tracker(tracker, settings), replace(recording, hands=None)
        # Before hours of work, or gigabytes of weights, for a recording that cannot do.
        getattr(chosen, "check", lambda recording: None)(recording)

    if reading.camera_poses is not None and not chosen.placed:
        raise InputError(f"{path}: `camera_poses` cannot apply to joints relative to the wrist.")
    return recording, chosen


def cached(tracker: Tracker, settings: TrackerSettings, folder: Path | None) -> Tracker:
    """Return a ``CachedTracker`` for a given folder; only for this package's trackers.

    Versions of plug-ins are unknown.
    """
    if folder is None or not plugins.is_ours("trackers", tracker.name):
        return tracker
    return CachedTracker(tracker, settings, folder)


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
        weights: of the model, for the ace tracker; None: those of ``$ACEHAND_WEIGHTS``.
        camera_motion: the camera's motion to estimate in recordings without camera poses.
        quality: of the mediapipe tracker, against its time.
        progress: called with (stage, done, total).

    Raises:
        InputError: unknown tracker, weights for another one, or the recording lacks what it needs.
        NoHandError: no frame has a hand.
    """
    if isinstance(tracker, str | Path):
        settings = TrackerSettings(hands, hand_length, quality=quality, camera_motion=camera_motion)
        if weights is not None:
            ace = replace(settings.own["ace"], weights=Path(weights))
            settings = replace(settings, own={**settings.own, "ace": ace})
        settings = settings.with_environment(str(tracker), progress)

        if format_of(file := Path(tracker)) is HandsFile:
            recording, tracker = with_hands(recording, file, read_motion_file(file, hands)), "auto"
        if recording.hands is not None and tracker == "auto":
            refuse_settings(Path(recording.source), hand_length=hand_length is not None)
            tracker = FileTracker(recording.hands)
        else:
            tracker = make_tracker(str(tracker), settings)

    motion = only_hands(tracker.track(recording, progress), hands)
    if not motion.known.any():
        raise NoHandError(f"{recording.source}: no hand was found in {len(motion)} frames.")
    return motion
