"""Options of reading a recording: camera, part, topics, the other cameras of a rig, depth."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from acehand_core.errors import InputError
from acehand_core.settings import check_values, group, plugin_groups, setting
from acehand_core.types import Hands

Value = TypeVar("Value")
#: Where the left picture of a video with both is, and the right one.
Stereo = Literal["left-right", "right-left", "top-bottom"]


def _metres_per_count(text: str) -> float:
    return {"mm": 1e-3, "m": 1.0}.get(text.lower()) or float(text)


@dataclass(frozen=True, slots=True)
class RigOptions:
    """The other cameras of a recording, and its depth (docs/my_camera.md).

    ``view`` and ``view_offset`` are texts NAME=VALUE. Raises InputError: options need others.
    """

    rig: Path | None = setting(
        None,
        "file with all cameras and their poses; FILE:NAME: NAME is the input's",
        metavar="FILE",
    )
    # The hash of a recording covers views and depth.
    view: tuple[str, ...] = setting(
        (),
        "video, folder of pictures, or LeRobot key of another camera of `rig`",
        metavar="NAME=FILE",
        repeat=True,
        identity="never",
    )
    view_offset: tuple[str, ...] = setting(
        (), "a view's clock minus the input's", metavar="NAME=SECONDS", repeat=True
    )
    stereo: Stereo | None = setting(None, "the input shows two pictures; top: the left one")
    baseline_m: float | None = setting(
        None, "of a rectified `stereo` pair", flag="baseline", metavar="M", low=0.001, high=5.0
    )
    depth: Path | None = setting(
        None,
        "folder of 16-bit PNG or EXR, video with a depth track, or LeRobot key",
        metavar="PATH",
        identity="never",
    )
    depth_unit: float | None = setting(
        None, "mm, m, or metres per count", metavar="UNIT", low=1e-6, parse=_metres_per_count
    )

    def __post_init__(self) -> None:
        check_values(self)
        pair, more = self.baseline_m is not None, self.view or self.stereo or self.depth
        offsets = self.offsets_s
        rules = {
            "`view` needs `rig`, with cameras and poses": self.view and not self.rig,
            "`stereo` needs `rig` or `baseline`": self.stereo and not (self.rig or pair),
            "`baseline` requires `stereo` without `rig`": pair and (self.rig or not self.stereo),
            "`depth_unit` needs `depth`": self.depth_unit and not self.depth,
            "`rig` needs `view`, `stereo` or `depth`; else `camera`": self.rig and not more,
            "`view_offset` names no `view`": offsets.keys() - self.views.keys(),
            "`view_offset`: seconds below a day": not all(abs(s) < 86400 for s in offsets.values()),
        }
        if broken := [text for text, applies in rules.items() if applies]:
            raise InputError(f"{broken[0]}.")

    @property
    def views(self) -> dict[str, str]:
        """File, or key of a LeRobot episode, of each view by name."""
        return _named("`view`", self.view, str)

    @property
    def offsets_s(self) -> dict[str, float]:
        """What a view's clock shows minus what the input's shows."""
        return _named("`view_offset`", self.view_offset, float)


def _named(flag: str, texts: tuple[str, ...], kind: Callable[[str], Value]) -> dict[str, Value]:
    try:
        values = {n: kind(text) for n, _, text in (text.partition("=") for text in texts) if n}
    except ValueError:
        values = {}
    if len(values) < len(texts) or "" in values.values():
        raise InputError(f"{flag} {' '.join(texts)}: give NAME=VALUE, once per camera.")
    return values


@dataclass(frozen=True, slots=True)
class RecordingOptions:
    """Options of reading a recording.

    A camera file is rescaled to the video; a distorted video is undistorted to a pinhole. ``own``
    has the settings of plug-in formats by name: "bag". ``keypoints`` and ``hands`` are for files of
    hands; ``hands`` also is the side of a single hand without one. ``work_dir`` keeps an estimated
    camera for a second run.
    """

    intrinsics: str | None = setting(
        None,
        "a pinhole, in pixels of the video",
        metavar="FX,FY,CX,CY",
        either="camera",
        identity="always",
    )
    camera: Path | None = setting(
        None,
        "camera file: ours, ROS, Kalibr, OpenCV, COLMAP, ORB-SLAM, Aria, GoPro "
        "(docs/my_camera.md); a distorted video is undistorted to a pinhole first",
        metavar="FILE[:NAME]",
        either="camera",
        identity="always",
        common=True,
    )
    camera_preset: str | None = setting(
        None,
        "without a calibration, a kind of camera with a published field of view: "
        "gopro_wide, phone, aria, ... (acehand camera presets)",
        metavar="NAME",
        either="camera",
    )
    camera_metadata: bool = setting(
        True, "without a camera, do not use the lens metadata of the file"
    )
    camera_estimate: bool = setting(
        False,
        "without a camera, estimate the focal length from the pictures, if two methods agree "
        "(docs/my_camera.md)",
    )
    camera_poses: Path | None = setting(
        None,
        "table of camera poses; base poses are then in the world frame",
        metavar="FILE",
        identity="always",
    )
    objects: Path | None = setting(
        None,
        "file of tracked objects, whose grasps the robot repeats (docs/grasps.md)",
        metavar="FILE",
        identity="always",
    )
    mirrored: bool = setting(
        False, "a selfie video; it is flipped back when read, and stored so", identity="always"
    )
    start_s: float | None = setting(
        None,
        "seconds to skip",
        flag="start",
        metavar="S",
        identity="never",
        default_text="0",
        common=True,
    )
    duration_s: float | None = setting(
        None,
        "seconds to read",
        flag="duration",
        metavar="S",
        identity="never",
        default_text="all",
        common=True,
    )
    keypoints: str | None = setting(
        None,
        "layout of a file of keypoints: a mapping (YAML), or a preset such as mano, avp25, "
        "openxr26 or manus (docs/my_keypoints.md)",
        metavar="MAP|PRESET",
        common=True,
    )
    video_key: str | None = setting(
        None, "which video of a LeRobot dataset", metavar="KEY", default_text="the only one"
    )
    frame_rate: float | None = setting(
        None,
        "frames per second of a folder of pictures whose names are not times",
        metavar="HZ",
        default_text="30",
    )
    views: str | None = setting(
        None,
        "other cameras of a bag or an Aria recording to read too: topics, or parts of names such "
        "as right, with commas",
        metavar="NAME,TOPIC",
    )
    rigs: RigOptions = group(RigOptions, "rigs and depth")
    own: Mapping[str, Any] = plugin_groups("recordings", "{}s")
    hands: Hands = "both"
    work_dir: Path | None = None

    def __post_init__(self) -> None:
        if sum(g is not None for g in (self.intrinsics, self.camera, self.camera_preset)) > 1:
            raise InputError("Give one of `intrinsics`, `camera` and `camera_preset`.")
        known = bool(self.intrinsics or self.camera or self.camera_preset)
        if (self.rigs.rig and known) or (self.rigs.baseline_m and not known):
            raise InputError("Give the camera by `rig`, or with `baseline` by `camera`.")
