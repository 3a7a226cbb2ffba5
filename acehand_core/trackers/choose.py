"""From an input and what ``--tracker`` says to a recording and its tracker."""

from __future__ import annotations

from pathlib import Path

from acehand_core.errors import InputError
from acehand_core.motion import Recording
from acehand_core.recordings.registry import RecordingOptions, open_recording, with_camera_poses
from acehand_core.recordings.selection import part
from acehand_core.recordings.video import frames_between
from acehand_core.trackers.base import Tracker, TrackerSettings, make_tracker
from acehand_core.trackers.files import FILE_SUFFIXES, FileTracker, refuse_flags


def is_motion_file(path: Path) -> bool:
    """Tell whether a path names a file of hands rather than a recording."""
    return path.suffix in FILE_SUFFIXES


def choose_tracker(name: str, settings: TrackerSettings) -> Tracker:
    """Return a tracker by name, or one that reads the file of that name."""
    path = Path(name)
    return FileTracker(path, settings) if is_motion_file(path) else make_tracker(name, settings)


def open_input(
    path: Path, tracker: str, settings: TrackerSettings, reading: RecordingOptions
) -> tuple[Recording, Tracker]:
    """Open a video with the tracker of that name, or a file of hands, which is its own tracker.

    Raises:
        InputError: it cannot be opened, or a flag was given that has no meaning for it.
    """
    if is_motion_file(path):
        recording, chosen = _open_hands(path, tracker, settings, reading)
    else:
        recording, chosen = open_recording(path, reading), choose_tracker(tracker, settings)
    if reading.camera_poses is not None and not chosen.placed:
        raise InputError(
            f"{path}: --camera-poses cannot apply: the joints are relative to the wrist, "
            "not to the camera."
        )
    return recording, chosen


def _open_hands(
    path: Path, tracker: str, settings: TrackerSettings, reading: RecordingOptions
) -> tuple[Recording, FileTracker]:
    refuse_flags(
        path,
        {
            "--tracker": tracker != "auto",
            "--intrinsics": reading.intrinsics is not None,
            "--camera": reading.camera is not None,
            "--mirrored": reading.mirrored,
            "--hand-length": settings.hand_length_m is not None,
        },
    )
    chosen = FileTracker(path, settings)
    whole = chosen.recording()
    wanted = frames_between(
        str(path), whole.timestamps_ns, whole.fps, reading.start_s, reading.duration_s
    )
    return with_camera_poses(part(whole, *wanted), reading), chosen
