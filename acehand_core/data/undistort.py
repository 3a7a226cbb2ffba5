"""Recordings as an ideal pinhole would have seen them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
from av.container import OutputContainer
from av.video.reformatter import ColorPrimaries, ColorRange, Colorspace, ColorTrc

from acehand_core.data.calibration import fit_camera_to
from acehand_core.errors import CalibrationError, OutputError
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import FrameSource, Recording
from acehand_core.types import ImageRgb

#: Called with the number of frames written and the number of all.
Progress = Callable[[int, int], None]

#: Fine enough for any frame's own time, coarse enough for hours in 32 bits.
_TIME_BASE = Fraction(1, 90_000)


class UndistortedFrames:
    """A ``FrameSource`` that shows another one's frames through ``camera.pinhole_like()``.

    Pixels are interpolated linearly; black where ``camera`` does not see.
    """

    def __init__(self, frames: FrameSource, camera: Camera) -> None:
        self._frames = frames
        self._maps = undistortion_maps(camera)

    def __len__(self) -> int:
        return len(self._frames)

    def read(self, start: int, stop: int) -> Iterator[ImageRgb]:
        """Yield frames ``start`` to ``stop - 1``."""
        return map(self._undistort, self._frames.read(start, stop))

    def read_reversed(self, start: int, stop: int) -> Iterator[ImageRgb]:
        """Yield frames ``stop - 1`` down to ``start``."""
        return map(self._undistort, self._frames.read_reversed(start, stop))

    def at(self, index: int) -> ImageRgb:
        """Return one frame."""
        return self._undistort(self._frames.at(index))

    def _undistort(self, image: ImageRgb) -> ImageRgb:
        return cv2.remap(image, *self._maps, interpolation=cv2.INTER_LINEAR)


def undistortion_maps(camera: Camera) -> tuple[np.ndarray, np.ndarray]:
    """Return OpenCV's fixed-point maps from the pixels of ``camera.pinhole_like()``."""
    pinhole = camera.pinhole_like()
    x, y = np.meshgrid(np.arange(camera.width, dtype=float), np.arange(camera.height, dtype=float))
    source = camera.project(pinhole.unproject(np.stack([x, y], axis=-1)))
    # Unseen pixels look far outside, so that they turn black; the fixed-point maps hold 16 bits.
    source = np.clip(np.nan_to_num(source, nan=-1e4), -1e4, 3e4).astype(np.float32)
    return cv2.convertMaps(source[..., 0], source[..., 1], cv2.CV_16SC2)


def undistort(recording: Recording) -> Recording:
    """Return the recording as seen by a pinhole of the same size and focal length.

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
    return replace(
        recording,
        frames=UndistortedFrames(recording.frames, camera),
        camera=camera.pinhole_like(),
        processing={**recording.processing, "undistorted": camera.to_json()},
    )


def write_undistorted(
    recording: Recording,
    path: Path | str,
    progress: Progress | None = None,
    overwrite: bool = False,
) -> Recording:
    """Write the undistorted recording as an h264 mp4 with the recording's own time stamps.

    The file appears only when it is complete. The picture's size is kept; odd sizes need the
    4:4:4 profile, which some players lack.

    Returns:
        The undistorted recording, as ``undistort`` gives it.

    Raises:
        CalibrationError: see ``undistort``.
        VideoError: the source cannot be read.
        OutputError: ``path`` exists, has no .mp4 suffix, or cannot be written.
    """
    path = Path(path)
    if path.suffix.lower() != ".mp4":
        raise OutputError(f"{path}: undistorted videos are written as .mp4.")
    if path.exists() and not overwrite:
        raise OutputError(f"{path} exists; choose another name or allow overwriting.")
    pinhole = undistort(recording)
    partial = path.with_name(f".{path.stem}.{os.getpid()}.partial.mp4")
    try:
        with av.open(f"file:{partial}", "w") as container:
            _encode(pinhole, container, progress)
        partial.replace(path)
    except (av.FFmpegError, OSError) as error:
        raise OutputError(f"{path} cannot be written: {error.strerror or error}.") from error
    finally:
        partial.unlink(missing_ok=True)
    return pinhole


def _encode(recording: Recording, container: OutputContainer, progress: Progress | None) -> None:
    stream = container.add_stream(
        "libx264", rate=Fraction(recording.fps).limit_denominator(1001), options={"crf": "18"}
    )
    stream.width, stream.height = recording.width, recording.height
    even = recording.width % 2 == 0 and recording.height % 2 == 0
    stream.pix_fmt = "yuv420p" if even else "yuv444p"
    context = stream.codec_context
    context.time_base = _TIME_BASE
    # Without these tags a player would guess the matrix, and colours would shift.
    context.colorspace, context.color_range = Colorspace.ITU709, ColorRange.MPEG
    context.color_primaries, context.color_trc = ColorPrimaries.BT709, ColorTrc.BT709
    count = len(recording)
    for i, image in enumerate(recording.frames.read(0, count)):
        frame = av.VideoFrame.from_ndarray(image, format="rgb24").reformat(
            format=stream.pix_fmt,
            dst_colorspace=Colorspace.ITU709,
            dst_color_range=ColorRange.MPEG,
        )
        frame.time_base = _TIME_BASE
        frame.pts = round(int(recording.timestamps_ns[i]) * _TIME_BASE.denominator / 10**9)
        container.mux(stream.encode(frame))
        if progress is not None:
            progress(i + 1, count)
    container.mux(stream.encode(None))
