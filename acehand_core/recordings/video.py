"""Video files as recordings: frames by exact index, any number of times."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.video.reformatter import Interpolation, VideoReformatter
from jaxtyping import Int

from acehand_core.errors import InputError
from acehand_core.motion import Recording
from acehand_core.recordings.video_index import VideoIndex, rgb_options
from acehand_core.recordings.video_scan import scan
from acehand_core.safe_files import content_sha256
from acehand_core.types import ImageRgb, TimestampsNs

#: File names that are taken for videos.
EXTENSIONS = (
    ".mp4", ".mov", ".m4v", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".ts", ".mts", ".m2ts",
    ".wmv", ".flv", ".3gp",
)  # fmt: skip
#: A conversion stays in its own thread. Before PyAV 17 every one does, and none can be told to.
_ONE_THREAD: dict[str, Any] = {"threads": 1} if int(av.__version__.partition(".")[0]) >= 17 else {}


class VideoFrames:
    """The frames of a video file as a ``FrameSource`` of T frames.

    ``source_indices`` (T,) are the file's frames shown here, in order; a frame may be left out or
    repeated. Every call of ``read`` and ``decode`` opens the file anew, and ``at`` keeps one
    decoder per thread, so several threads may read at once.
    """

    def __init__(self, index: VideoIndex, source_indices: Int[np.ndarray, "T"]) -> None:
        self._index = index
        self._local = threading.local()
        self.source_indices = source_indices

    def __reduce__(self) -> tuple[type[VideoFrames], tuple[VideoIndex, np.ndarray]]:
        return VideoFrames, (self._index, self.source_indices)

    def __len__(self) -> int:
        return len(self.source_indices)

    @property
    def path(self) -> Path:
        """The video file."""
        return self._index.path

    @property
    def source_timestamps_ns(self) -> TimestampsNs:
        """The file's own time of each frame (T,); repeated where a frame is."""
        return self._index.timestamps_ns[self.source_indices]

    @property
    def rotation(self) -> int:
        """Degrees counter-clockwise (0, 90, 180, 270) that decoded pictures are turned by."""
        return self._index.rotation

    @property
    def mirrored(self) -> bool:
        """Whether turned pictures are flipped left to right."""
        return self._index.mirrored

    def select(self, indices: Int[np.ndarray, "N"]) -> VideoFrames:
        """Return the frames at non-decreasing ``indices``, without decoding anything."""
        return VideoFrames(self._index, self.source_indices[indices])

    def read(self, start: int, stop: int) -> Iterator[ImageRgb]:
        """Yield frames ``start`` to ``stop - 1``, upright; each array is the caller's own."""
        convert = _Converter(self._index)
        for frame in self.decode(start, stop):
            yield convert(frame)

    def read_resized(self, start: int, stop: int, width: int, height: int) -> Iterator[ImageRgb]:
        """Yield what ``read`` does in any size; much cheaper than resizing its pictures."""
        convert = _Converter(self._index, (width, height))
        for frame in self.decode(start, stop):
            yield convert(frame)

    def at(self, index: int) -> ImageRgb:
        """Return one frame; cheap where the calling thread asks for frames in order."""
        self._check(index, index + 1)
        target = int(self.source_indices[index])
        cursor = self._local.__dict__.pop("cursor", None)
        if cursor is None or not cursor.reaches(target):
            cursor = _Cursor(self._index, target)
        image = cursor.convert(cursor.frame(target))
        self._local.cursor = cursor  # only one that still works is kept
        return image

    def decode(self, start: int, stop: int) -> Iterator[av.VideoFrame]:
        """Yield the decoder's own frames ``start`` to ``stop - 1``, for encoding them again.

        Rotation is NOT applied (see ``rotation``, ``mirrored``), stamps are the file's, and a
        frame that is shown twice is the same object.
        """
        self._check(start, stop)
        targets = self.source_indices[start:stop].tolist()
        if not targets:
            return
        position = 0
        for index, frame in self._index.frames(targets[0], targets[-1] + 1):
            while position < len(targets) and targets[position] == index:
                yield frame
                position += 1

    def _check(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= len(self):
            raise IndexError(
                f"{self.path}: frames {start} to {stop - 1} asked for; valid: 0 to {len(self) - 1}."
            )


class _Converter:
    """Turns decoded frames into upright RGB of a size (width, height), by default their own.

    Not for use by two threads at once.
    """

    def __init__(self, index: VideoIndex, size: tuple[int, int] | None = None) -> None:
        self._index = index
        self._reformatter, self._resizer = VideoReformatter(), VideoReformatter()
        width, height = size or (index.width, index.height)
        turned = index.rotation % 180 == 90
        self._size = (height, width) if turned else (width, height)
        self._resizes = (width, height) != (index.width, index.height)

    def __call__(self, frame: av.VideoFrame) -> ImageRgb:
        width, height = self._size
        options = rgb_options(frame)
        if self._resizes and frame.format.name.startswith("yuv"):  # three times as fast as with RGB
            area: dict[str, Any] = {"interpolation": Interpolation.AREA, **_ONE_THREAD}
            frame = self._resizer.reformat(frame, width=width, height=height, **area)
        rgb = self._reformatter.reformat(
            frame, width=width, height=height, **options, **_ONE_THREAD
        )
        image = np.rot90(rgb.to_ndarray(), self._index.rotation // 90)
        image = image[:, ::-1] if self._index.mirrored else image
        return np.ascontiguousarray(image)


class _Cursor:
    """A decoder that stands at some frame and can continue from there."""

    def __init__(self, index: VideoIndex, start: int) -> None:
        self.convert = _Converter(index)
        self._index = index
        self._frames = index.frames(start, len(index))
        self._position, self._frame = next(self._frames)

    def reaches(self, target: int) -> bool:
        """Whether continuing is no more work than starting at the key frame before ``target``."""
        if target <= self._position + 1:
            return target >= self._position
        return self._position >= self._index.keyframe_before(target)

    def frame(self, target: int) -> av.VideoFrame:
        while self._position < target:
            self._position, self._frame = next(self._frames)
        return self._frame


def open_video(path: Path | str, mirrored: bool = False) -> Recording:
    """Return a video file as a recording whose ``frames`` are ``VideoFrames``.

    Args:
        path: the video file; its audio is ignored, its rotation applied.
        mirrored: the video shows a mirror image (a selfie); turn it back.

    Raises:
        VideoError: the file cannot be read.
    """
    path = Path(path)
    index = scan(path)
    if mirrored:
        index = replace(index, mirrored=not index.mirrored)

    return Recording(
        source=str(path),
        sha256=content_sha256(path),
        timestamps_ns=index.timestamps_ns,
        fps=index.fps,
        width=index.width,
        height=index.height,
        frames=VideoFrames(index, np.arange(len(index))),
        notes=index.notes,
        processing={"rotation": index.rotation, "mirrored": index.mirrored},
    )


def videos_in(folder: Path) -> list[Path]:
    """Return the video files directly in a folder, sorted by name; there may be none."""
    return sorted(
        path
        for path in folder.iterdir()
        if path.suffix.lower() in EXTENSIONS and path.is_file() and not path.name.startswith(".")
    )


def frames_between(
    source: str,
    timestamps_ns: TimestampsNs,
    fps: float,
    start_s: float | None,
    duration_s: float | None,
) -> tuple[int, int]:
    """Return the first frame from ``start_s`` on and the one after ``duration_s`` of them.

    Seconds count from the first frame; None means from there and to the end.

    Raises:
        InputError: that part is not there.
    """
    since = timestamps_ns - timestamps_ns[0]
    length = since[-1] / 1e9 + 1 / fps
    if start_s is not None and not 0 <= start_s < length - 1e-6:
        raise InputError(
            f"{source}: start {start_s} s is outside the recording; valid: 0 to {length:.3f} s."
        )
    if duration_s is not None and not 0 < duration_s < math.inf:
        raise InputError(f"{source}: duration {duration_s} s; give seconds above 0.")
    start_ns = round((start_s or 0) * 1e9)
    first = min(int(np.searchsorted(since, start_ns)), len(since) - 1)
    if duration_s is None:
        return first, len(since)
    last = int(np.searchsorted(since, start_ns + round(duration_s * 1e9)))
    return first, max(last, first + 1)
