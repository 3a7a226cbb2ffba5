"""Tracked hands kept in a folder, for other runs over the same recordings."""

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

from acehand_core.atomic import output_errors
from acehand_core.errors import AcehandError
from acehand_core.motion import HandMotion, Recording
from acehand_core.recordings.hands_file import read_hand_motion, write_hand_motion
from acehand_core.settings import identity_of
from acehand_core.trackers.base import Tracker, TrackerSettings
from acehand_core.types import Progress, no_progress

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
        arrays = {
            "times": recording.timestamps_ns,
            "poses": recording.T_world_camera,
        }
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
