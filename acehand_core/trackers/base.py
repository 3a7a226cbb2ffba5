"""Trackers, which turn a Recording into a HandMotion, by name.

A plug-in adds one with an entry point in the group ``acehand.trackers`` for a factory
``TrackerSettings -> Tracker`` (``plugins``); its flags are in ``TrackerSettings.own``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from acehand_core import plugins
from acehand_core.errors import InputError, nearest
from acehand_core.motion import HandModelName, HandMotion, Recording
from acehand_core.settings import check_values, plugin_groups, setting
from acehand_core.types import Hands, Progress, Quality, TurnsMode, no_progress


@dataclass(frozen=True, slots=True)
class TrackerSettings:
    """Settings of all trackers.

    Attributes:
        hands: the hands to track.
        work_dir: folder for partial results, from which a second run with the same input and
            settings resumes.
        own: trackers' own settings by name, see ``plugins``.
    """

    hands: Hands = "both"
    hand_length_m: float | None = setting(
        None,
        "wrist to middle fingertip in metres: the scale, which one camera cannot measure",
        flag="hand-length",
        metavar="M",
        low=0.05,  # of a small child
        high=0.35,  # beyond the largest measured
        identity="always",
        common=True,
    )
    work_dir: Path | None = None
    own: Mapping[str, Any] = plugin_groups("trackers", "tracker {}", identity=False)
    camera_motion: TurnsMode = setting(
        "rotation",
        "estimate the camera's rotation of a recording without camera poses, so that gaps are "
        "filled where the hand stayed; or off",
        identity="always",
    )
    quality: Quality = setting(
        "balanced",
        "of the mediapipe tracker, against time: how many crops of each hand the landmark network "
        "sees again (0, 1 to 3, or 12), and how thorough the search is",
        identity="always",
        common=True,
    )
    palm_calibration: float = setting(
        1.0,
        "of the mediapipe tracker: share of the measured offset between the network's wrist and "
        "thumb base and the hand model's that is corrected",
        low=0.0,
        high=1.0,
        identity="always",
    )

    def __post_init__(self) -> None:
        check_values(self)

    def with_environment(self, tracker: str, progress: Progress = no_progress) -> TrackerSettings:
        """Return settings with what the environment gives to trackers, such as weights.

        Trackers' own settings may have ``with_environment(tracker)``, which returns them and a
        remark, empty for none. Raises InputError: settings that ``tracker`` does not use.
        """
        own = dict(self.own)
        for name, settings in self.own.items():
            if hasattr(settings, "with_environment"):
                own[name], note = settings.with_environment(tracker)
                if note:
                    progress(note, 0, 0)
        return replace(self, own=own)


@runtime_checkable
class Tracker(Protocol):
    """Turns a recording into the motion of both hands.

    A tracker may also have ``check(recording)``, which raises what ``track`` would, as far as
    settings and headers show; it is called before hours of work.
    """

    name: str
    #: Whether the hands will have a place before the camera.
    placed: bool
    #: The hand model of their parameters.
    hand_model: HandModelName

    def track(self, recording: Recording, progress: Progress = no_progress) -> HandMotion:
        """Return the hands of the whole recording.

        Raises:
            InputError: the recording lacks what this tracker needs.
        """
        ...


def tracker_names() -> tuple[str, ...]:
    """Return the names that ``tracker`` takes besides files, sorted."""
    return tuple(sorted({"auto", *plugins.names("trackers")}))


def resolved_name(name: str, own: Mapping[str, Any]) -> str:
    """Return a tracker's name; for ``auto`` one with ``automatic()`` settings, else mediapipe."""
    if name != "auto":
        return name
    automatic = (key for key, one in own.items() if hasattr(one, "automatic") and one.automatic())
    return next(automatic, "mediapipe")


def make_tracker(name: str, settings: TrackerSettings) -> Tracker:
    """Return the tracker of a name (``resolved_name``); raises InputError, or as its factory."""
    name = resolved_name(name, settings.own)
    if name not in plugins.names("trackers"):
        wrong = f"`tracker={name!r}` is neither a tracker nor a file"
        raise InputError(f"{wrong}; {nearest(name, tracker_names())}")
    tracker = plugins.load("trackers", name)(settings)
    if not isinstance(tracker, Tracker):
        wanted = ("name", "placed", "hand_model", "track")
        lacks = ", ".join(name for name in wanted if not hasattr(tracker, name))
        raise plugins.unfit("trackers", name, f"returns what lacks {lacks}")
    return tracker
