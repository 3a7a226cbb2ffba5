"""What a tracker is, and how one is found by name.

A tracker turns a Recording into a HandMotion; nothing downstream asks which one did. A third party
adds one with an entry point in the group ``acehand.trackers`` that names a factory
``TrackerSettings -> Tracker``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Protocol, runtime_checkable

from acehand_core.ace.settings import AceSettings
from acehand_core.errors import InputError, MissingDependencyError, nearest
from acehand_core.motion import HandModelName, HandMotion, Recording
from acehand_core.types import Hands, Progress, Quality, TurnsMode, no_progress

ENTRY_POINT_GROUP = "acehand.trackers"

#: From a small child's hand to beyond the largest measured.
HAND_LENGTHS_M = (0.05, 0.35)


@dataclass(frozen=True, slots=True)
class TrackerSettings:
    """What every tracker is told.

    Attributes:
        hands: which hands to look for.
        hand_length_m: wrist to middle fingertip; fixes the scale a single camera cannot know.
        work_dir: folder for partial results of long work, or None; a second run with the same
            input and settings resumes from them.
        ace: weights and settings of the ace tracker, or None.
        keypoints: how a file of keypoints as tracker is written: a mapping or a preset.
        camera_motion: what to find out of the camera's motion where the recording has no poses.
        quality: of the mediapipe tracker against its time: in how many crops it sees each hand.
        palm_calibration: how much of the measured difference between the mediapipe tracker's wrist
            and thumb base and the hand model's is allowed for, 0 (none) to 1.
    """

    hands: Hands = "both"
    hand_length_m: float | None = None
    work_dir: Path | None = None
    ace: AceSettings | None = None
    keypoints: str | None = None
    camera_motion: TurnsMode = "rotation"
    quality: Quality = "balanced"
    palm_calibration: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.palm_calibration <= 1:
            raise InputError(
                f"A palm calibration of {self.palm_calibration}; valid: 0 (none) to 1."
            )
        low, high = HAND_LENGTHS_M
        if self.hand_length_m is not None and not low <= self.hand_length_m <= high:
            raise InputError(
                f"A hand length of {self.hand_length_m} m; valid: {low} to {high} m from the "
                "wrist to the tip of the middle finger."
            )


@runtime_checkable
class Tracker(Protocol):
    """Turns a recording into the motion of both hands.

    What a dataset must know before any work: whether the hands will have a place before the camera,
    and to which hand model their parameters belong.
    """

    name: str
    placed: bool
    hand_model: HandModelName

    def track(self, recording: Recording, progress: Progress = no_progress) -> HandMotion:
        """Return the hands of the whole recording.

        Raises:
            InputError: the recording lacks what this tracker needs.
        """
        ...


def _mediapipe(settings: TrackerSettings) -> Tracker:
    from acehand_core.trackers.mediapipe.tracker import MediaPipeTracker

    return MediaPipeTracker(settings)


def _ace(settings: TrackerSettings) -> Tracker:
    if settings.ace is None:
        raise InputError(
            "--tracker ace needs its weights: give --weights PATH, or set ACEHAND_WEIGHTS."
        )
    from acehand_core.ace.tracker import AceTracker

    return AceTracker(settings, settings.ace)


#: Trackers of this package, by name.
BUILT_IN: dict[str, Callable[[TrackerSettings], Tracker]] = {"ace": _ace, "mediapipe": _mediapipe}


def tracker_names() -> tuple[str, ...]:
    """Return the names that ``--tracker`` takes beside a file, sorted."""
    installed = {point.name for point in entry_points(group=ENTRY_POINT_GROUP)}
    return tuple(sorted({"auto", *BUILT_IN, *installed}))


def resolved_name(name: str, settings: TrackerSettings) -> str:
    """Return the tracker a name stands for.

    ``auto`` is ace with weights that are known to be trained on recordings, else mediapipe: what
    was trained on synthetic clips alone, or on nobody knows what, is taken by its name only.

    Raises as ``AceSettings.trained_on``.
    """
    if name != "auto":
        return name
    if settings.ace is None or settings.ace.trained_on() != "real":
        return "mediapipe"
    return "ace"


def make_tracker(name: str, settings: TrackerSettings) -> Tracker:
    """Return the tracker of that name (see ``resolved_name``)."""
    name = resolved_name(name, settings)
    if name in BUILT_IN:
        return BUILT_IN[name](settings)
    for point in entry_points(group=ENTRY_POINT_GROUP):
        if point.name == name:
            return _installed(point, settings)
    raise InputError(f"--tracker {name!r} is neither a tracker nor a file; "
                     f"{nearest(name, tracker_names())}")  # fmt: skip


def _installed(point: EntryPoint, settings: TrackerSettings) -> Tracker:
    """Return the tracker of a third party's entry point."""
    try:
        factory = point.load()
    except (ImportError, AttributeError) as error:
        raise MissingDependencyError(
            f"--tracker {point.name!r} is installed as {point.value!r}, which cannot be loaded: "
            f"{error}."
        ) from error
    tracker = factory(settings)
    if not isinstance(tracker, Tracker):
        wanted = ("name", "placed", "hand_model", "track")
        lacks = ", ".join(name for name in wanted if not hasattr(tracker, name))
        raise InputError(f"--tracker {point.name!r}: what {point.value!r} returns lacks {lacks}.")
    return tracker
