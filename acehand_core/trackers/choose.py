"""From what ``--tracker`` says to a tracker."""

from __future__ import annotations

from pathlib import Path

from acehand_core.trackers.base import Tracker, TrackerSettings, make_tracker
from acehand_core.trackers.files import FILE_SUFFIXES, FileTracker


def is_motion_file(path: Path) -> bool:
    """Tell whether a path names a file of hands rather than a recording."""
    return path.suffix in FILE_SUFFIXES


def choose_tracker(name: str, settings: TrackerSettings) -> Tracker:
    """Return a tracker by name, or one that reads the file of that name."""
    path = Path(name)
    return FileTracker(path, settings) if is_motion_file(path) else make_tracker(name, settings)
