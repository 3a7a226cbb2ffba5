"""Options of reading a recording: camera, part, topics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acehand_core.errors import InputError
from acehand_core.settings import plugin_groups, setting
from acehand_core.types import Hands


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
    mirrored: bool = setting(
        False, "a selfie video; it is flipped back when read, and stored so", identity="always"
    )
    start_s: float | None = setting(
        None, "seconds to skip", flag="start", metavar="S", identity="never", default_text="0"
    )
    duration_s: float | None = setting(
        None, "seconds to read", flag="duration", metavar="S", identity="never", default_text="all"
    )
    keypoints: str | None = setting(
        None,
        "layout of a file of keypoints: a mapping (YAML), or a preset such as mano, avp25, "
        "openxr26 or manus (docs/my_keypoints.md)",
        metavar="MAP|PRESET",
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
    own: Mapping[str, Any] = plugin_groups("recordings", "{}s")
    hands: Hands = "both"
    work_dir: Path | None = None

    def __post_init__(self) -> None:
        if sum(g is not None for g in (self.intrinsics, self.camera, self.camera_preset)) > 1:
            raise InputError("Give one of --intrinsics, --camera and --camera-preset.")
