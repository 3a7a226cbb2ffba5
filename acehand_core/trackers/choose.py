"""From an input and what ``--tracker`` says to a recording and its tracker."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from acehand_core import plugins
from acehand_core.errors import InputError, NoHandError
from acehand_core.motion import HandMotion, Recording
from acehand_core.recordings.hands_file import refuse_flags
from acehand_core.recordings.options import RecordingOptions
from acehand_core.recordings.registry import HandsFile, InputPart, Registry, format_of
from acehand_core.trackers.base import Tracker, TrackerSettings, make_tracker
from acehand_core.trackers.cache import CachedTracker
from acehand_core.trackers.files import FileTracker
from acehand_core.types import Hands, Progress, Quality, TurnsMode, no_progress


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
    registry: Registry,
    progress: Progress | None = None,
    cache: Path | None = None,
) -> tuple[InputPart, Tracker]:
    """Open an input with the tracker of that name; a file of hands is its own tracker.

    Args:
        cache: folder in which tracked hands are kept for other runs; only built-in trackers', since
            nothing tells the versions of others apart.

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
    opened = registry.open(path, reading, progress)
    chosen: Tracker

    if opened.hands is not None and tracker == "auto":
        chosen = FileTracker(path, settings, opened.hands)
    else:
        chosen = choose_tracker(tracker, settings)

    if reading.camera_poses is not None:
        _refuse_camera_poses(path, chosen)
    if cache is not None and plugins.is_ours("trackers", chosen.name):
        chosen = CachedTracker(chosen, settings, cache)
    return opened, chosen


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
    opened, chosen = open_tracked(path, tracker, settings, reading, Registry())
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
