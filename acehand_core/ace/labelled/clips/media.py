"""Image files and videos: a clip's pictures, written and read by frame index."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Literal

import av
import cv2
import numpy as np

from acehand_core.errors import SchemaError, VideoError
from acehand_core.recordings.depth import metres
from acehand_core.recordings.video import VideoFrames
from acehand_core.recordings.video_index import scan
from acehand_core.types import DepthImage, ImageRgb

Quality = Literal["lossless", "visual"]

VIDEO, IMAGE = "video.mp4", "image.png"
#: Readings of a depth camera: ``millimetres`` (T, H, W) uint16, 0 without one.
SENSOR_DEPTH = "sensor_depth"
#: "lossless" is bit-exact RGB; "visual" is 4:2:0 without visible loss.
_ENCODERS = {
    "lossless": ("libx264rgb", "rgb24", {"crf": "0", "preset": "veryfast"}),
    "visual": ("libx264", "yuv420p", {"crf": "12", "preset": "veryfast"}),
}
_GOP = 12


class ByIndex:
    """``FrameSource.read`` on top of ``at``."""

    def __len__(self) -> int:
        raise NotImplementedError

    def at(self, index: int) -> ImageRgb:
        """Return one frame."""
        raise NotImplementedError

    def read(self, start: int, stop: int) -> Iterator[ImageRgb]:
        """Yield frames ``start`` to ``stop - 1``."""
        return (self.at(index) for index in range(start, stop))


class ImageFiles(ByIndex):
    """Image files in order, one per frame; of (width, height) ``size`` if given."""

    def __init__(self, paths: Sequence[Path], size: tuple[int, int] | None = None) -> None:
        self.paths, self.size = tuple(paths), size

    def __len__(self) -> int:
        return len(self.paths)

    def at(self, index: int) -> ImageRgb:
        """Return one frame. Raises VideoError, SchemaError for another size."""
        path = self.paths[index]
        try:
            data = path.read_bytes()
        except OSError as error:
            raise VideoError(f"{path}: cannot be read ({error.strerror or error}).") from error
        image = decode(data, str(path))
        _check_size(path, image.shape[1::-1], self.size)
        return image


@dataclass(frozen=True)
class DepthFile:
    """The readings of a ``sensor_depth.npz`` as a ``DepthSource``; read when first needed."""

    path: Path
    shape: tuple[int, int, int]

    def __len__(self) -> int:
        return self.shape[0]

    def at(self, index: int) -> DepthImage:
        """Return one picture: z in metres, NaN without a reading. Raises SchemaError."""
        return metres(self._millimetres[index])

    @cached_property
    def _millimetres(self) -> np.ndarray:
        try:
            with np.load(self.path, allow_pickle=False) as arrays:
                stored = arrays["millimetres"]
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise SchemaError(f"{self.path}: not readable as depth ({error}).") from error
        if stored.shape != self.shape or stored.dtype != np.uint16:
            raise SchemaError(
                f"{self.path}: {stored.dtype} {stored.shape}; uint16 {self.shape} is needed."
            )
        return stored


def decode(data: bytes, where: str) -> ImageRgb:
    """Return a jpg or png as stored RGB; orientation tags are ignored. Raises VideoError."""
    flags = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
    image = cv2.imdecode(np.frombuffer(data, np.uint8), flags) if data else None
    if image is None:
        raise VideoError(f"{where}: not a readable jpg or png.")
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB)


def write_image(path: Path, image: ImageRgb) -> None:
    """Write a png. Raises OSError."""
    done, data = cv2.imencode(".png", cv2.cvtColor(image, cv2.COLOR_RGB2BGR))
    if not done:
        raise OSError("the image could not be encoded")
    path.write_bytes(data.tobytes())


def write_video(path: Path, frames: Iterable[ImageRgb], fps: float, quality: Quality) -> int:
    """Write h264 with a key frame every 12 and no B-frames; return the number of frames.

    Presentation times are k / fps; the clip's timestamps are those of its hands.

    Raises:
        SchemaError: "visual" with an odd size.
    """
    encoder, pixel_format, options = _ENCODERS[quality]
    rate = Fraction(fps).limit_denominator(1001)

    count = 0
    with av.open(f"file:{path}", "w", format="mp4") as container:
        stream: av.VideoStream | None = None
        for image in frames:
            if stream is None:
                height, width = image.shape[:2]
                if quality == "visual" and (width % 2 or height % 2):
                    raise SchemaError(
                        f"{path}: pictures of {width} x {height}; quality 'visual' needs even "
                        "sizes, 'lossless' does not."
                    )
                added = container.add_stream(encoder, rate=rate, options=options)
                assert isinstance(added, av.VideoStream)
                stream = added
                stream.width, stream.height, stream.pix_fmt = width, height, pixel_format
                stream.codec_context.gop_size, stream.codec_context.max_b_frames = _GOP, 0
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
            frame.pts, frame.time_base = count, 1 / rate
            container.mux(stream.encode(frame))
            count += 1
        if stream is not None:
            container.mux(stream.encode())

    return count


def open_frames(
    path: Path, size: tuple[int, int], first: int = 0, stop: int | None = None
) -> VideoFrames:
    """Return frames of a video file by index.

    Raises:
        VideoError: not readable. SchemaError: not of (width, height) ``size``, or too short.
    """
    index = scan(path)  # no hash of the file: the clip's description has it
    _check_size(path, (index.width, index.height), size)
    stop = len(index) if stop is None else stop
    if stop > len(index):
        raise SchemaError(f"{path}: {len(index)} frames; the clip needs {stop}.")
    return VideoFrames(index, np.arange(first, stop))


def _check_size(path: Path, actual: tuple[int, ...], described: tuple[int, int] | None) -> None:
    if described not in (None, tuple(actual)):
        raise SchemaError(
            f"{path}: pictures of {actual[0]} x {actual[1]}; its clip is described as "
            f"{described[0]} x {described[1]}."
        )
