"""Inline intrinsics, camera poses, and recordings undistorted to a pinhole.

Formats: docs/formats.md; camera files: ``camera_files``.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from acehand_core.errors import CalibrationError, InputError, nearest
from acehand_core.geometry import frames, rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import ChangedFrames, FrameSource, Recording
from acehand_core.types import CameraPoses, ImageRgb, TimestampsNs

#: Columns of a camera pose table: camera to world, metres, wxyz unit quaternion.
POSE_COLUMNS = ("timestamp_ns", "x", "y", "z", "qw", "qx", "qy", "qz")
#: Two image shapes count as equal up to this relative difference of their aspect ratios.
_ASPECT_TOLERANCE = 0.01
_UNIT_TOLERANCE = 1e-3
#: Where a principal point lies, as a share of the image's width and height. Values that belong to
#: twice or half the size fall outside, also where the lens sits a little off the middle.
_CENTRAL = (0.3, 0.7)
#: Focal lengths over the longer side: a pinhole of 170 degrees across it, and one of 5.
_FOCAL = (0.044, 11.5)


def parse_intrinsics(text: str, width: int, height: int) -> Camera:
    """Return the pinhole of ``fx,fy,cx,cy`` in pixels of a ``width`` x ``height`` image.

    Raises:
        CalibrationError: not four usable numbers, or a principal point so far from the middle of
            the image that the values belong to another size.
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
            f"video; it is that of a video of about {2 * cx + 1:.0f} x {2 * cy + 1:.0f}. Give the "
            "values in pixels of this video, or a --camera file, which says its own size."
        )

    return camera


def check_plausible(camera: Camera) -> None:
    """Raise CalibrationError for focal lengths that no lens has which shows whole hands."""
    low, high = (round(share * max(camera.width, camera.height)) for share in _FOCAL)
    if not (low <= camera.fx <= high and low <= camera.fy <= high):
        raise CalibrationError(
            f"The camera's fx {camera.fx:g} and fy {camera.fy:g} px would not show hands in "
            f"{camera.width} x {camera.height} pixels; valid: {low} to {high} px."
        )


def same_shape(
    one: tuple[int | float, int | float], other: tuple[int | float, int | float]
) -> bool:
    """Tell whether two widths and heights have the same ratio, up to 1 %."""
    return abs(math.log(one[0] / one[1] / (other[0] / other[1]))) <= _ASPECT_TOLERANCE


def fit_camera_to(camera: Camera, width: int, height: int) -> Camera:
    """Return the camera rescaled to a video's size.

    Raises:
        CalibrationError: the shapes differ by more than 1 %, so the video is not a plain resize.
    """
    if (camera.width, camera.height) == (width, height):
        return camera
    if not same_shape((camera.width, camera.height), (width, height)):
        turned = same_shape((camera.height, camera.width), (width, height))
        hint = " The video is turned: calibrate it as it is shown." if turned else ""
        raise CalibrationError(
            f"The camera was calibrated at {camera.width} x {camera.height}, the video is "
            f"{width} x {height}: the shapes differ, so it is cropped or not this camera. "
            f"Give the calibration of this video mode.{hint}"
        )
    return camera.rescaled(width, height)


def turned_back(camera: Camera) -> Camera:
    """Return the camera of a selfie video's frames once they are turned back.

    Raises:
        InputError: it has a distortion that is not radial, which would have to be mirrored too.
    """
    if camera.model not in ("pinhole", "kannala_brandt"):
        raise InputError(
            f"--mirrored with a {camera.model} camera: the distortion would have to be mirrored "
            "too; undistort the video first."
        )
    return replace(camera, cx=camera.width - 1 - camera.cx)


def load_camera_poses(path: Path | str, timestamps_ns: TimestampsNs) -> CameraPoses:
    """Return ``T_world_camera`` (T, 4, 4) at each frame of a recording.

    Positions are interpolated along lines, rotations along the shortest turn. A frame up to one
    frame interval outside the poses takes the nearest one.

    Args:
        path: csv or parquet with the columns ``POSE_COLUMNS``, camera to world.
        timestamps_ns: (T,) times of the frames, same clock.

    Raises:
        CalibrationError: the table is not usable, or does not cover the recording.
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

    clipped = np.clip(timestamps_ns, times[0], times[-1])
    after = np.clip(np.searchsorted(times, clipped), 1, max(len(times) - 1, 1))
    before = after - 1
    after = np.minimum(after, len(times) - 1)
    span = np.maximum(times[after] - times[before], 1)
    share = ((clipped - times[before]) / span)[:, None]
    position = (1 - share) * values[before, :3] + share * values[after, :3]
    rotation = rotations.from_quaternion(values[:, 3:])
    turn = rotations.log(np.swapaxes(rotation[before], -1, -2) @ rotation[after])

    return frames.rigid(rotation[before] @ rotations.exp(share * turn), position)


def _read_poses(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return times (N,) int64 and rows x y z qw qx qy qz (N, 7) of a checked pose table."""
    _check_file(path, "a csv or parquet table of camera poses")
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise CalibrationError(f"{path}: camera poses must be a .csv or .parquet file.")

    read = pa.csv.read_csv if path.suffix.lower() == ".csv" else pa.parquet.read_table
    try:
        table = read(path)
    except (pa.ArrowException, OSError) as error:
        raise CalibrationError(f"{path} cannot be read as a table: {error}") from None

    for name in table.column_names:
        if name not in POSE_COLUMNS:
            raise CalibrationError(
                f"{path}: unknown column {name!r}; {nearest(name, POSE_COLUMNS)}"
            )

    for name in POSE_COLUMNS:
        if table.column_names.count(name) != 1:
            raise CalibrationError(f"{path}: column {name!r} must be there once.")

    if table.num_rows == 0:
        raise CalibrationError(f"{path} has no pose; at least one row is needed.")
    if not pa.types.is_integer(table["timestamp_ns"].type) or table["timestamp_ns"].null_count:
        raise CalibrationError(f"{path}: timestamp_ns must hold whole nanoseconds in every row.")

    try:
        columns = [table[name].cast(pa.float64()).to_numpy() for name in POSE_COLUMNS[1:]]
    except pa.ArrowException:
        raise CalibrationError(f"{path}: {', '.join(POSE_COLUMNS[1:])} must be numbers.") from None

    times, values = table["timestamp_ns"].to_numpy().astype(np.int64), np.stack(columns, axis=1)
    _check_rows(path, times, values)
    return times, values


def _check_rows(path: Path, times: np.ndarray, values: np.ndarray) -> None:
    length = np.linalg.norm(values[:, 3:], axis=1)
    problems = (
        (~np.isfinite(values).all(axis=1), "has a value that is missing or not finite"),
        (np.diff(times, prepend=times[0] - 1) <= 0, "is not later than the row before it"),
        (np.abs(length - 1) > _UNIT_TOLERANCE, "has a quaternion whose length is not 1"),
    )
    for bad, what in problems:
        if bad.any():
            row = int(np.argmax(bad))
            raise CalibrationError(f"{path}: pose {row} (timestamp_ns {times[row]}) {what}.")


def _check_file(path: Path, what: str) -> None:
    if path.is_dir():
        raise CalibrationError(f"{path} is a folder; give {what}.")
    if not path.is_file():
        raise CalibrationError(f"{path} does not exist; give {what}.")


def undistorted_frames(frames: FrameSource, camera: Camera, pinhole: Camera) -> ChangedFrames:
    """Return frames that were taken by ``camera`` as a pinhole shows them.

    Pixels are interpolated linearly; black where ``camera`` does not see.
    """
    return ChangedFrames(frames, partial(_remapped, undistortion_maps(camera, pinhole)))


def _remapped(maps: tuple[np.ndarray, np.ndarray], image: ImageRgb) -> ImageRgb:
    return cv2.remap(image, *maps, interpolation=cv2.INTER_LINEAR)


def undistortion_maps(camera: Camera, pinhole: Camera) -> tuple[np.ndarray, np.ndarray]:
    """Return OpenCV's fixed-point maps from the pixels of the pinhole to those of the camera."""
    x, y = np.meshgrid(np.arange(camera.width, dtype=float), np.arange(camera.height, dtype=float))
    source = camera.project(pinhole.unproject(np.stack([x, y], axis=-1)))
    # Unseen pixels look far outside, so that they turn black; the fixed-point maps hold 16 bits.
    source = np.clip(np.nan_to_num(source, nan=-1e4), -1e4, 3e4).astype(np.float32)
    return cv2.convertMaps(source[..., 0], source[..., 1], cv2.CV_16SC2)


def undistort(recording: Recording) -> Recording:
    """Return the recording as seen by a pinhole of the same size (``Camera.whole_view``).

    A recording whose camera is a pinhole already is returned as it is.

    Raises:
        CalibrationError: there is no camera, no image, or the camera's shape is not the video's.
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
