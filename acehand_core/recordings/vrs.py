"""Recordings of Project Aria glasses (.vrs): the RGB camera, and SLAM cameras as its views.

Gen 1 mounts its cameras a quarter turn anticlockwise: pictures and calibrations are turned back.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from jaxtyping import Int

from acehand_core.errors import CalibrationError, InputError, MissingDependencyError, VideoError
from acehand_core.geometry import frames
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import Recording, View
from acehand_core.recordings.bag import frame_rate
from acehand_core.recordings.options import RecordingOptions
from acehand_core.recordings.registry import PICTURE_OPTIONS, RecordingFormat
from acehand_core.safe_files import content_sha256
from acehand_core.types import ImageRgb, Progress, RigidTransform

RGB = "camera-rgb"
#: ``T_stored_upright`` of Gen 1: the upright x is the stored -y, the upright y the stored x.
UPRIGHT = np.array([[0.0, 1, 0, 0], [-1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
_OPENING = threading.Lock()


class AriaRecording(RecordingFormat):
    """A .vrs file of Aria Gen 1 or Gen 2."""

    order = 45
    noun = "an Aria recording"
    takes = PICTURE_OPTIONS - {"mirrored", "rigs"} | {"views"}

    @staticmethod
    def matches(path: Path) -> bool:
        return path.suffix.lower() == ".vrs" and not path.is_dir()

    def contained(self, folder: Path) -> list[Path]:
        return [p for p in folder.iterdir() if self.matches(p) and not p.name.startswith(".")]

    def open(self, path: Path, options: RecordingOptions, progress: Progress | None) -> Recording:
        return open_aria(path, options.views)


def open_vrs(path: Path) -> tuple[Any, str]:
    """Return projectaria's provider of a VRS file, and what the library printed while opening it.

    Raises MissingDependencyError; InputError: not a readable VRS file.
    """
    try:
        from projectaria_tools.core.data_provider import create_vrs_data_provider
    except ImportError as error:
        what = f"{path}: needs acehand's extra 'vrs' ({error}): pip install 'acehand[vrs]'"
        raise MissingDependencyError(what) from error
    provider, reasons = None, ["unknown reason"]
    with _OPENING, tempfile.TemporaryFile() as file:  # it has no switch for its output
        kept = [(os.dup(fd), os.dup2(file.fileno(), fd)) for fd in (1, 2)]
        try:
            provider = create_vrs_data_provider(str(path))
        except (RuntimeError, ValueError) as error:  # a damaged calibration
            reasons = [str(error)]
        finally:
            ctypes.CDLL(None).fflush(None)
            for own, fd in kept:
                os.dup2(own, fd)
                os.close(own)
        file.seek(0)
        printed = file.read().decode("utf-8", "replace")
    if provider is None:
        reasons = re.findall(r"\[ERROR\]: ([^\x1b\n]*)", printed) or reasons
        raise InputError(f"{path}: not a readable VRS file ({reasons[0].rstrip('.')}).")
    return provider, printed


class VrsFile(threading.local):
    """A VRS file, opened anew by every thread: providers keep the place of a video decoder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.provider, self.printed = open_vrs(path)


@dataclass(eq=False)
class AriaFrames:
    """A ``FrameSource`` of the pictures ``rows`` (T,) of a stream, turned clockwise."""

    file: VrsFile
    stream: Any
    rows: Int[np.ndarray, "T"]
    degrees: int

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, start: int, stop: int) -> Iterator[ImageRgb]:
        return map(self.at, range(start, stop))

    def at(self, index: int) -> ImageRgb:
        """Return one frame, grey ones in three channels. Raises VideoError: it does not decode."""
        row = int(self.rows[index])
        image: Any = np.empty(0)
        with contextlib.suppress(RuntimeError):  # a damaged picture
            picture, _ = self.file.provider.get_image_data_by_index(self.stream, row)
            image = picture.to_numpy_array()
        if image.dtype != np.uint8:
            raise VideoError(f"{self.file.path}: picture {row} of {self.stream} does not decode.")
        image = image if image.ndim == 3 else cv2.cvtColor(image, cv2.COLOR_GRAY2RGB)
        return np.ascontiguousarray(np.rot90(image, -(self.degrees // 90)))


def open_aria(path: Path, views: str | None) -> Recording:
    """Return the RGB camera of a VRS file with its factory calibration, and ``views``.

    ``views`` are words of SLAM cameras' names, with commas: slam-left, side. Times are device time.
    Raises as ``open_vrs``; InputError: no pictures of a camera, or no camera of a name;
    CalibrationError: no calibration, or of another lens model than FISHEYE624.
    """
    file = VrsFile(path)
    device = file.provider.get_device_calibration()
    if RGB not in (labels := () if device is None else device.get_camera_labels()):
        raise CalibrationError(f"{path}: no factory calibration of {RGB} in the file.")
    slam = {label.removeprefix("camera-"): label for label in labels if "slam" in label}
    chosen: dict[str, str] = {}
    for word in views.replace("_", "-").split(",") if views is not None else ():
        matching = [name for name in slam if f"-{word.strip()}-" in f"-{name}-"]
        if not matching:
            valid = ", ".join(slam) or "none in the file"
            raise InputError(f"{path}: `views={word!r}` names no SLAM camera; valid: {valid}.")
        chosen |= {name.replace("-", "_"): slam[name] for name in matching}
    recording, T_device_rgb = _camera(file, device, RGB)
    notes = ("factory calibration", *re.findall(r"\d+ records are beyond [^.]*", file.printed))
    recording = replace(recording, sha256=content_sha256(path), notes=notes)
    seen = []
    for name, label in chosen.items():
        view, pose = _camera(file, device, label)
        view = replace(view, name=f"{recording.name} {name}")
        seen.append(View(name, view, frames.inverse(T_device_rgb) @ pose))
    return replace(recording, views=tuple(seen))


def _camera(file: VrsFile, device: Any, label: str) -> tuple[Recording, RigidTransform]:
    """Return the upright pictures of a camera as a recording, and T_device_camera."""
    from projectaria_tools.core.sensor_data import TimeDomain

    path, provider, calibration = file.path, file.provider, device.get_camera_calib(label)
    stream = provider.get_stream_id_from_label(label)
    times = stream and provider.get_timestamps_ns(stream, TimeDomain.DEVICE_TIME)
    if not times:
        raise InputError(f"{path}: no pictures of {label}; the file is cut off, or has none.")
    if (model := calibration.get_model_name().name) != "FISHEYE624":
        raise CalibrationError(f"{path}: {label} has the camera model {model}; valid: FISHEYE624.")
    times, rows = np.unique(np.array(times, np.int64), return_index=True)
    degrees = 0 if device.get_device_version().name == "Gen2" else 90
    source = AriaFrames(file, stream, rows, degrees)
    height, width = source.at(0).shape[:2]
    across, down = map(int, calibration.get_image_size())
    f, cx, cy, *lens = map(float, calibration.get_projection_params())
    camera = Camera("fisheye624", across, down, f, f, cx, cy, tuple(lens)).rotated(degrees)
    if (camera.width, camera.height) != (width, height):
        size = f"{camera.width} x {camera.height}, its pictures are {width} x {height}"
        raise CalibrationError(f"{path}: {label} is calibrated at {size}; valid: the same.")
    pose = np.asarray(calibration.get_transform_device_camera().to_matrix())
    recording = Recording(
        source=str(path),
        sha256=None,
        timestamps_ns=times,
        fps=frame_rate(times),
        width=width,
        height=height,
        frames=source,
        camera=camera,
        processing={"stream": label, "rotation": degrees},
    )
    return recording, pose @ UPRIGHT if degrees else pose
