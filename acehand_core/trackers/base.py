"""What a tracker is, and how one is found by name.

A tracker turns a Recording into a HandMotion; nothing downstream asks which one did. A third party
adds one with an entry point in the group ``acehand.trackers`` that names a factory
``TrackerSettings -> Tracker`` (``plugins``); flags of its own go into ``TrackerSettings.own``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from acehand_core import plugins
from acehand_core.errors import InputError, nearest
from acehand_core.motion import HandModelName, HandMotion, Recording
from acehand_core.types import Hands, Progress, Quality, TurnsMode, no_progress

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
        own: settings that a tracker brings itself, by its name; see ``plugins``.
        keypoints: how a file of keypoints as tracker is written: a mapping or a preset.
        camera_motion: what to find out of the camera's motion where the recording has no poses.
        quality: of the mediapipe tracker against its time: in how many crops it sees each hand.
        palm_calibration: how much of the measured difference between the mediapipe tracker's wrist
            and thumb base and the hand model's is allowed for, 0 (none) to 1.
    """

    hands: Hands = "both"
    hand_length_m: float | None = None
    work_dir: Path | None = None
    own: Mapping[str, Any] = field(default_factory=dict)
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


def tracker_names() -> tuple[str, ...]:
    """Return the names that ``--tracker`` takes beside a file, sorted."""
    return tuple(sorted({"auto", *plugins.names("trackers")}))


def resolved_name(name: str, own: Mapping[str, Any]) -> str:
    """Return the tracker a name stands for.

    ``auto`` is one whose own settings say so (``automatic()``), else mediapipe.

    Raises as these settings do.
    """
    if name != "auto":
        return name
    for tracker, settings in own.items():
        if hasattr(settings, "automatic") and settings.automatic():
            return tracker
    return "mediapipe"


def with_environment(
    own: Mapping[str, Any], tracker: str, say: Callable[[str], None]
) -> dict[str, Any]:
    """Return trackers' own settings with what the environment says, as of weights.

    A class of settings may have ``with_environment(tracker)``, which returns them and a sentence
    for ``say``, or an empty one.

    Raises:
        InputError: settings were given that ``tracker`` would not use.
    """
    filled = dict(own)
    for name, settings in own.items():
        if hasattr(settings, "with_environment"):
            filled[name], note = settings.with_environment(tracker)
            if note:
                say(note)
    return filled


def make_tracker(name: str, settings: TrackerSettings) -> Tracker:
    """Return the tracker of that name (see ``resolved_name``).

    Raises:
        InputError: there is none, or what its factory returns is none. Else as the factory.
    """
    name = resolved_name(name, settings.own)
    if name not in plugins.names("trackers"):
        wrong = f"--tracker {name!r} is neither a tracker nor a file"
        raise InputError(f"{wrong}; {nearest(name, tracker_names())}")
    tracker = plugins.load("trackers", name)(settings)
    if not isinstance(tracker, Tracker):
        wanted = ("name", "placed", "hand_model", "track")
        lacks = ", ".join(name for name in wanted if not hasattr(tracker, name))
        raise plugins.unfit("trackers", name, f"returns what lacks {lacks}")
    return tracker
