"""Inline intrinsics, camera poses, and recordings undistorted to a pinhole.

Formats: docs/formats.md; camera files: ``camera_files``.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from jaxtyping import Float, Int

from acehand_core.errors import CalibrationError, InputError, nearest
from acehand_core.geometry import frames, rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import ChangedFrames, FrameSource, Recording
from acehand_core.recordings.camera_presets import same_shape
from acehand_core.types import CameraPoses, ImageRgb, TimestampsNs

#: Columns of a camera pose table: camera to world, metres, wxyz unit quaternion.
POSE_COLUMNS = ("timestamp_ns", "x", "y", "z", "qw", "qx", "qy", "qz")
_UNIT_TOLERANCE = 1e-3
#: Principal point as a share of the image's size; one for twice or half the size is outside.
_CENTRAL = (0.3, 0.7)
#: Focal lengths over the longer side: pinholes of 170 and of 5 degrees.
_FOCAL = (0.044, 11.5)


def parse_intrinsics(text: str, width: int, height: int) -> Camera:
    """Return the pinhole of ``fx,fy,cx,cy`` in pixels of an image.

    Raises:
        CalibrationError: not four valid numbers, or a principal point far from the image centre,
            as of another image size.
    """
    where = f"Intrinsics {text!r}"
    try:
        fx, fy, cx, cy = (float(part) for part in text.split(","))
    except ValueError:
        raise CalibrationError(
            f"{where}: give four numbers fx,fy,cx,cy in pixels, for example 900,900,639.5,359.5."
        ) from None

    values = {"model": "pinhole", "width": width, "height": height}
    camera = Camera.from_json(values | {"fx": fx, "fy": fy, "cx": cx, "cy": cy}, where)

    low, high = _CENTRAL
    if not (low <= (cx + 0.5) / width <= high and low <= (cy + 0.5) / height <= high):
        raise CalibrationError(
            f"{where}: the principal point is far from the middle of the {width} x {height} "
            f"video; it fits a video of about {2 * cx + 1:.0f} x {2 * cy + 1:.0f}. Give the values "
            "in pixels of this video, or a `camera` file, which has its own size."
        )
    return camera


def check_plausible(camera: Camera) -> None:
    """Raise CalibrationError for focal lengths of lenses that cannot show whole hands."""
    low, high = (round(share * max(camera.width, camera.height)) for share in _FOCAL)
    if not (low <= camera.fx <= high and low <= camera.fy <= high):
        raise CalibrationError(
            f"The camera's fx {camera.fx:g} and fy {camera.fy:g} px would not show hands in "
            f"{camera.width} x {camera.height} pixels; valid: {low} to {high} px."
        )


def fit_camera_to(camera: Camera, width: int, height: int) -> Camera:
    """Return the camera rescaled to a video's size. Raises CalibrationError: another shape."""
    if (camera.width, camera.height) == (width, height):
        return camera
    if not same_shape((camera.width, camera.height), (width, height)):
        turned = same_shape((camera.height, camera.width), (width, height))
        hint = " The video is turned: calibrate it in its upright orientation." if turned else ""
        raise CalibrationError(
            f"The camera was calibrated at {camera.width} x {camera.height}, the video is "
            f"{width} x {height}: the shapes differ, so it is cropped or not this camera. "
            f"Give the calibration of this video mode.{hint}"
        )
    return camera.rescaled(width, height)


def turned_back(camera: Camera) -> Camera:
    """Return the camera of a selfie video's flipped frames. Raises InputError: not symmetric."""
    if camera.model not in ("pinhole", "kannala_brandt"):
        raise InputError(
            f"`mirrored` with a {camera.model} camera: its distortion is not symmetric; undistort "
            "the video first."
        )
    return replace(camera, cx=camera.width - 1 - camera.cx)


def load_camera_poses(path: Path | str, timestamps_ns: TimestampsNs) -> CameraPoses:
    """Return ``T_world_camera`` (T, 4, 4) at each frame of a recording.

    Positions are interpolated linearly, rotations by slerp. Frames up to one interval outside the
    poses take the nearest one.

    Args:
        path: csv or parquet with the columns ``POSE_COLUMNS``, camera to world.
        timestamps_ns: (T,) times of the frames, same clock.

    Raises CalibrationError: invalid table, or it does not cover the recording.
    """
    path = Path(path)
    times, values = _read_poses(path)
    steps = np.diff(timestamps_ns if len(timestamps_ns) > 1 else times)
    tolerance = float(np.median(steps)) if len(steps) else 0.0
    early, late = times[0] - timestamps_ns[0], timestamps_ns[-1] - times[-1]
    if max(early, late) > tolerance:
        raise CalibrationError(
            f"{path} covers {times[0]} to {times[-1]} ns, but the recording needs "
            f"{timestamps_ns[0]} to {timestamps_ns[-1]} ns; poses must span it, on the same clock."
        )

    return interpolated_poses(times, values, timestamps_ns)


def interpolated_poses(
    known_ns: Int[np.ndarray, "N"], rows: Float[np.ndarray, "N 7"], times_ns: TimestampsNs
) -> CameraPoses:
    """Return poses between rows x y z qw qx qy qz, linear and by slerp; the nearest outside."""
    clipped = np.clip(times_ns, known_ns[0], known_ns[-1])
    after = np.clip(np.searchsorted(known_ns, clipped), 1, max(len(known_ns) - 1, 1))
    before = after - 1
    after = np.minimum(after, len(known_ns) - 1)
    share = (clipped - known_ns[before]) / np.maximum(known_ns[after] - known_ns[before], 1)
    position = (1 - share[:, None]) * rows[before, :3] + share[:, None] * rows[after, :3]
    rotation = rotations.from_quaternion(rows[:, 3:])
    return frames.rigid(rotations.slerp(rotation[before], rotation[after], share), position)


def _read_poses(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return times (N,) int64 and rows x y z qw qx qy qz (N, 7) of a checked pose table."""
    what = "a csv or parquet table of camera poses"
    if path.is_dir():
        raise CalibrationError(f"{path} is a folder; give {what}.")
    if not path.is_file():
        raise CalibrationError(f"{path} does not exist; give {what}.")
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise CalibrationError(f"{path}: camera poses must be a .csv or .parquet file.")
    read = pa.csv.read_csv if path.suffix.lower() == ".csv" else pa.parquet.read_table
    try:
        table = read(path)
        names = table.column_names
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise CalibrationError(f"{path} cannot be read as a table: {error}") from None

    for name in names:
        if name not in POSE_COLUMNS:
            raise CalibrationError(f"{path}: column {name!r}; {nearest(name, POSE_COLUMNS)}")

    for name in POSE_COLUMNS:
        if names.count(name) != 1:
            raise CalibrationError(f"{path}: column {name!r} must occur once.")

    if table.num_rows == 0:
        raise CalibrationError(f"{path} has no poses.")
    if not pa.types.is_integer(table["timestamp_ns"].type) or table["timestamp_ns"].null_count:
        raise CalibrationError(f"{path}: timestamp_ns must hold whole nanoseconds in every row.")

    try:
        columns = [table[name].cast(pa.float64()).to_numpy() for name in POSE_COLUMNS[1:]]
    except pa.ArrowException:
        raise CalibrationError(f"{path}: {', '.join(POSE_COLUMNS[1:])} must be numbers.") from None

    times, values = table["timestamp_ns"].to_numpy().astype(np.int64), np.stack(columns, axis=1)
    length = np.linalg.norm(values[:, 3:], axis=1)
    problems = (
        (~np.isfinite(values).all(axis=1), "has a missing or non-finite value"),
        (np.diff(times, prepend=times[0] - 1) <= 0, "is not later than the row before it"),
        (np.abs(length - 1) > _UNIT_TOLERANCE, "has a quaternion whose length is not 1"),
    )
    for bad, problem in problems:
        if bad.any():
            row = int(np.argmax(bad))
            raise CalibrationError(f"{path}: pose {row} (timestamp_ns {times[row]}) {problem}.")
    return times, values


def undistorted_frames(frames: FrameSource, camera: Camera, pinhole: Camera) -> ChangedFrames:
    """Return frames of ``camera`` resampled bilinearly to a pinhole; black outside its view."""
    return ChangedFrames(frames, partial(_remapped, undistortion_maps(camera, pinhole)))


def _remapped(maps: tuple[np.ndarray, np.ndarray], image: ImageRgb) -> ImageRgb:
    return cv2.remap(image, *maps, interpolation=cv2.INTER_LINEAR)


def undistortion_maps(camera: Camera, pinhole: Camera) -> tuple[np.ndarray, np.ndarray]:
    """Return OpenCV's fixed-point maps from the pixels of the pinhole to those of the camera."""
    source = camera.project(pinhole.all_rays())
    # Unseen pixels map far outside and turn black; the fixed-point maps hold 16 bits.
    source = np.clip(np.nan_to_num(source, nan=-1e4), -1e4, 3e4).astype(np.float32)
    return cv2.convertMaps(source[..., 0], source[..., 1], cv2.CV_16SC2)


def undistort(recording: Recording) -> Recording:
    """Return the recording undistorted to a pinhole of the same size (``Camera.whole_view``).

    Raises CalibrationError: no camera, no images, or the camera's shape is not the video's.
    """
    if recording.camera is None or recording.frames is None:
        what = "camera calibration" if recording.camera is None else "video"
        raise CalibrationError(f"{recording.source}: undistortion needs a {what}; none is given.")
    camera = fit_camera_to(recording.camera, recording.width, recording.height)
    if camera.model == "pinhole":
        return replace(recording, camera=camera)
    pinhole = camera.whole_view()
    return replace(
        recording,
        frames=undistorted_frames(recording.frames, camera, pinhole),
        camera=pinhole,
        processing={**recording.processing, "undistorted": camera.to_json()},
    )
