"""Options of reading a recording: camera, part, topics, the other cameras of a rig, depth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from acehand_core.errors import InputError, nearest
from acehand_core.settings import group, plugin_groups, setting
from acehand_core.types import Hands

#: Where the left picture of a side-by-side video is, and the right one.
Stereo = Literal["left-right", "right-left", "top-bottom"]


def _metres_per_count(text: str) -> float:
    return {"mm": 1e-3, "m": 1.0}.get(text.lower()) or float(text)


@dataclass(frozen=True, slots=True)
class RigOptions:
    """Options of the other cameras of a recording, and of its depth.

    ``view`` and ``view_offset`` are texts NAME=VALUE. Raises InputError for other texts, and
    options that need one another.
    """

    rig: Path | None = setting(
        None,
        "cameras of a rig with their poses: ours, Kalibr or OpenCV stereo (docs/my_camera.md); "
        "FILE:NAME says which is the input's, by default the first",
        metavar="FILE",
    )
    view: tuple[str, ...] = setting(
        (),
        "video or folder of pictures of another camera of --rig; of a LeRobot episode, its key",
        metavar="NAME=FILE",
        repeat=True,
        identity="never",  # the hash of the recording covers it
    )
    view_offset: tuple[str, ...] = setting(
        (),
        "what a view's clock shows minus what the input's shows",
        metavar="NAME=SECONDS",
        repeat=True,
    )
    stereo: Stereo | None = setting(
        None, "the input has two pictures side by side, or the left one above the right one"
    )
    baseline_m: float | None = setting(
        None,
        "metres between the cameras of a rectified --stereo pair without --rig",
        flag="baseline",
        metavar="M",
    )
    depth: Path | None = setting(
        None,
        "depth: folder of 16-bit PNG or EXR, one per frame or named by time; in the input's pixels "
        "unless --rig has a camera 'depth'",
        metavar="FOLDER",
        identity="never",  # the hash of the recording covers it
    )
    depth_unit: float | None = setting(
        None,
        "unit of depth: mm, m, or metres per count",
        metavar="mm|m|SCALE",
        default_text="mm of whole numbers, else m",
        low=1e-6,
        parse=_metres_per_count,
    )

    def __post_init__(self) -> None:
        for name in self.offsets_s.keys() - self.views:
            raise InputError(f"--view-offset {name}: no such --view; {nearest(name, self.views)}")
        pair = self.baseline_m is not None
        rules = (
            (self.view and not self.rig, "--view needs --rig, with cameras and poses"),
            (self.view and self.stereo, "--view and --stereo exclude one another"),
            (self.stereo and not self.rig and not pair, "--stereo needs --rig, or --baseline"),
            (pair and (self.rig or not self.stereo), "--baseline is of --stereo without --rig"),
            (self.depth_unit and not self.depth, "--depth-unit needs --depth"),
            (self.rig and not (self.view or self.stereo or self.depth),
             "--rig needs --view, --stereo or --depth; of a single camera give --camera"),
        )  # fmt: skip
        for broken, text in rules:
            if broken:
                raise InputError(f"{text}.")

    @property
    def views(self) -> dict[str, str]:
        """File, or key of a LeRobot dataset, of each view by name."""
        return _named(self.view, "--view", "FILE")

    @property
    def offsets_s(self) -> dict[str, float]:
        """What a view's clock shows minus what the input's shows."""
        texts = _named(self.view_offset, "--view-offset", "SECONDS")
        try:
            return {name: float(text) for name, text in texts.items()}
        except ValueError as error:
            raise InputError(f"--view-offset: {error}; give NAME=SECONDS.") from None

    @property
    def files(self) -> list[Path]:
        """Existing files of views and depth, those of a folder one by one."""
        paths = [*map(Path, self.views.values()), *([self.depth] if self.depth else [])]
        inside = [sorted(path.iterdir()) if path.is_dir() else [path] for path in paths]
        return [file for files in inside for file in files if file.is_file()]


def _named(texts: tuple[str, ...], flag: str, what: str) -> dict[str, str]:
    """Return the values of texts NAME=VALUE. Raises InputError."""
    values = {name: value for name, _, value in (text.partition("=") for text in texts)}
    if len(values) < len(texts) or not all(name and value for name, value in values.items()):
        raise InputError(f"{flag} {' '.join(texts)}: give NAME={what}, once per camera.")
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
    rigs: RigOptions = group(RigOptions, "rigs and depth")
    own: Mapping[str, Any] = plugin_groups("recordings", "{}s")
    hands: Hands = "both"
    work_dir: Path | None = None

    def __post_init__(self) -> None:
        if sum(g is not None for g in (self.intrinsics, self.camera, self.camera_preset)) > 1:
            raise InputError("Give one of --intrinsics, --camera and --camera-preset.")
