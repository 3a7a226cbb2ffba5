"""Depth pictures next to a recording, as a ``DepthSource``."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import cv2
import numpy as np

from acehand_core.errors import CalibrationError, InputError, MissingDependencyError, VideoError
from acehand_core.motion import Depth, Recording
from acehand_core.recordings.cameras import fit_camera_to
from acehand_core.recordings.options import RigOptions
from acehand_core.recordings.rig import DEPTH, Rig, check_overlap
from acehand_core.recordings.video import pictures_in, times_of_names
from acehand_core.types import DepthImage, TimestampsNs

_SUFFIXES = (".png", ".exr", ".tif", ".tiff")
#: Plausible medians of depth, metres.
_LEAST_M, _MOST_M = 0.01, 50.0


@dataclass(frozen=True, slots=True)
class DepthPictures:
    """T depth pictures in files, each read on demand; ``scale`` as ``RigOptions.depth_unit``."""

    paths: Sequence[Path]
    scale: float | None

    def __len__(self) -> int:
        return len(self.paths)

    def at(self, index: int) -> DepthImage:
        """Return z in metres, NaN without a reading. Raises VideoError: not a depth picture."""
        path = self.paths[index]
        image = _exr(path) if path.suffix.lower() == ".exr" else _counts(path)
        scale = self.scale or (1e-3 if image.dtype == np.uint16 else 1.0)
        return in_metres(image, scale)


def in_metres(counts: np.ndarray, scale: float) -> DepthImage:
    """Return counts times ``scale``, NaN for those that are 0 or not finite."""
    metres = (counts * scale).astype(np.float32)
    metres[~(np.isfinite(metres) & (metres > 0))] = np.nan
    return metres


def _counts(path: Path) -> np.ndarray:
    try:
        data = np.frombuffer(path.read_bytes(), np.uint8)
    except OSError as error:
        raise VideoError(f"{path}: cannot be read ({error.strerror or error}).") from error
    image = cv2.imdecode(data, cv2.IMREAD_UNCHANGED) if len(data) else None
    if image is None:
        raise VideoError(f"{path}: is damaged, or not a picture.")
    if image.ndim != 2 or image.dtype not in (np.uint16, np.float32):
        raise VideoError(
            f"{path}: {image.dtype} of shape {image.shape} is no depth; valid: one channel of 16 "
            "bits, or of floats."
        )
    return image


def _exr(path: Path) -> np.ndarray:
    try:
        library = importlib.import_module("OpenEXR")
    except ImportError:
        raise MissingDependencyError(
            f"{path}: EXR needs OpenEXR: pip install OpenEXR. Or write 16-bit PNG."
        ) from None
    try:
        channels = library.File(str(path)).channels()
    except Exception as error:  # the library raises RuntimeError, ValueError and others
        raise VideoError(f"{path}: is damaged, or not EXR ({error}).") from error
    name = next((name for name in ("Z", "Y", "V", "R", "RGB") if name in channels), None)
    if name is None:
        raise VideoError(f"{path}: channels {', '.join(channels)}; valid: Z, Y, V or R.")
    pixels = np.asarray(channels[name].pixels)
    return pixels if pixels.ndim == 2 else pixels[..., 0]


def with_depth(
    recording: Recording, options: RigOptions, rig: Rig | None, whole_ns: TimestampsNs
) -> Recording:
    """Return a recording with depth; it has its camera, and pictures as stored.

    Args:
        whole_ns: times of all frames of the input, for depth pictures that are not named by time.

    Raises:
        InputError, VideoError: no depth pictures, not as many as frames, or at other times.
        CalibrationError: no camera; another size without a camera ``depth`` in the rig; depth
            that is not plausible in its unit.
    """
    folder = options.depth
    assert folder is not None
    if not folder.is_dir() or not (paths := pictures_in(folder, _SUFFIXES)):
        raise InputError(f"--depth {folder}: give a folder of {', '.join(_SUFFIXES)} pictures.")
    frames = DepthPictures(paths, options.depth_unit)
    times = times_of_names(folder, [path.stem for path in paths])
    if len(paths) == len(whole_ns) and (times is None or _apart(times, whole_ns)):
        times = whole_ns
    if times is None:
        raise InputError(
            f"--depth {folder} has {len(paths)} pictures, the input {len(whole_ns)} frames; valid: "
            "as many, or names that are times (12.345678 s, or nanoseconds)."
        )
    check_overlap(recording, times, f"--depth {folder}")
    height, width = _check_plausible(frames, folder)

    note = f"depth of {folder.name}"
    if rig is not None and DEPTH in rig.cameras:
        camera = rig.fitted(DEPTH, width, height)
        pose = rig.T_main(DEPTH)
    elif recording.camera is None:
        raise CalibrationError("--depth needs the camera: --camera, --intrinsics, or a --rig.")
    elif (width, height) != (recording.width, recording.height):
        raise CalibrationError(
            f"--depth {folder} is {width} x {height}, the pictures {recording.width} x "
            f"{recording.height}; valid: depth registered to the pictures, in their size, or a "
            "--rig with a camera named depth."
        )
    else:
        camera = fit_camera_to(recording.camera, width, height)
        pose, note = np.eye(4), f"{note}, taken as registered to the pictures"
    return replace(
        recording,
        depth=Depth(frames, times, camera, pose),
        notes=(*recording.notes, note),
    )


def _apart(times_ns: TimestampsNs, whole_ns: TimestampsNs) -> bool:
    return bool(times_ns[-1] < whole_ns[0] or whole_ns[-1] < times_ns[0])


def _check_plausible(frames: DepthPictures, folder: Path) -> tuple[int, int]:
    """Return height and width. Raises CalibrationError by the median of three pictures."""
    images = [frames.at(index) for index in (0, len(frames) // 2, len(frames) - 1)]
    sizes = {image.shape for image in images}
    if len(sizes) > 1:
        raise VideoError(f"--depth {folder} has pictures of several sizes: {sizes}.")
    readings = np.concatenate([image[np.isfinite(image)] for image in images])
    if not len(readings):
        raise CalibrationError(
            f"--depth {folder}: no reading in the first, middle and last picture."
        )
    if not _LEAST_M <= (median := float(np.median(readings))) <= _MOST_M:
        raise CalibrationError(
            f"--depth {folder}: the median is {median:.3g} m, which is not plausible (valid: "
            f"{_LEAST_M:g} to {_MOST_M:g}); give --depth-unit mm, m, or metres per count."
        )
    return images[0].shape
