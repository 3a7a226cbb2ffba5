"""Video files, and folders of pictures, as recordings with frames by exact index."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
from av.video.reformatter import Interpolation, VideoReformatter
from jaxtyping import Int

from acehand_core.errors import InputError, VideoError
from acehand_core.motion import ChangedFrames, Recording
from acehand_core.recordings.video_index import VideoIndex, rgb_options, scan
from acehand_core.safe_files import content_sha256
from acehand_core.types import ImageRgb, TimestampsNs

#: Suffixes of video files.
EXTENSIONS = (
    ".mp4", ".mov", ".m4v", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".ts", ".mts", ".m2ts",
    ".wmv", ".flv", ".3gp",
)  # fmt: skip
#: Suffixes of pictures.
PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp")
#: Frames per second of pictures whose names are not times.
DEFAULT_RATE = 30.0
#: Numbered pictures of a recording's frames reach over at least this share of them.
_SPANNED = 0.9
#: Names that are times: as in EuRoC, and as in TUM RGB-D.
_NANOSECONDS, _SECONDS = re.compile(r"\d{16,19}"), re.compile(r"\d{1,10}\.\d{3,9}")
#: Convert in the calling thread, as PyAV before 17 always does.
_ONE_THREAD: dict[str, Any] = {"threads": 1} if int(av.__version__.partition(".")[0]) >= 17 else {}


class VideoFrames:
    """The frames of a video file as a ``FrameSource`` of T frames.

    ``source_indices`` (T,) are the file's frames in order, some omitted or repeated. Thread-safe:
    every call of ``read`` and ``decode`` opens the file, and ``at`` keeps one decoder per thread.
    """

    def __init__(self, index: VideoIndex, source_indices: Int[np.ndarray, "T"]) -> None:
        self._index = index
        self._local = threading.local()
        self.source_indices = source_indices

    @property
    def two_pictures(self) -> bool:
        """Whether the file says that each frame has two pictures."""
        return self._index.two_pictures

    def __reduce__(self) -> tuple[type[VideoFrames], tuple[VideoIndex, np.ndarray]]:
        return VideoFrames, (self._index, self.source_indices)

    def __len__(self) -> int:
        return len(self.source_indices)

    @property
    def path(self) -> Path:
        """The video file."""
        return self._index.path

    @property
    def rotation(self) -> int:
        """Degrees counter-clockwise (0, 90, 180, 270) that turn decoded pictures upright."""
        return self._index.rotation

    @property
    def mirrored(self) -> bool:
        """Whether upright pictures are flipped left to right."""
        return self._index.mirrored

    def select(self, indices: Int[np.ndarray, "N"]) -> VideoFrames:
        """Return the frames at non-decreasing ``indices``."""
        return VideoFrames(self._index, self.source_indices[indices])

    def read(self, start: int, stop: int) -> Iterator[ImageRgb]:
        """Yield frames ``start`` to ``stop - 1``, upright, as new arrays."""
        yield from map(_Converter(self._index), self.decode(start, stop))

    def read_resized(self, start: int, stop: int, width: int, height: int) -> Iterator[ImageRgb]:
        """Yield the frames of ``read`` in any size; cheaper than resizing them."""
        yield from map(_Converter(self._index, (width, height)), self.decode(start, stop))

    def at(self, index: int) -> ImageRgb:
        """Return one frame; cheap if the calling thread reads in order."""
        frame = self.decoded_at(index)
        image: ImageRgb = self._local.cursor.convert(frame)
        return image

    def decoded_at(self, index: int) -> av.VideoFrame:
        """Return the decoder's frame for ``at``, NOT rotated."""
        check_range(self.path, index, index + 1, len(self))
        target = int(self.source_indices[index])
        cursor = self._local.__dict__.pop("cursor", None)
        if cursor is None or not cursor.reaches(target):
            cursor = _Cursor(self._index, target)
        frame = cursor.frame(target)
        self._local.cursor = cursor  # not after an error
        return frame

    def decode(self, start: int, stop: int) -> Iterator[av.VideoFrame]:
        """Yield the decoder's frames ``start`` to ``stop - 1``, NOT rotated, with file stamps.

        A repeated frame is the same object.
        """
        check_range(self.path, start, stop, len(self))
        targets = self.source_indices[start:stop].tolist()
        if not targets:
            return
        position = 0
        for index, frame in self._index.frames(targets[0], targets[-1] + 1):
            while position < len(targets) and targets[position] == index:
                yield frame
                position += 1


def check_range(where: Path, start: int, stop: int, count: int) -> None:
    """Raise IndexError unless frames ``start`` to ``stop - 1`` are among ``count``."""
    if not 0 <= start <= stop <= count:
        raise IndexError(f"{where}: no frames {start} to {stop - 1}; valid: 0 to {count - 1}.")


class _Converter:
    """Converts decoded frames to upright RGB of a size (width, height). Not thread-safe."""

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
        if self._resizes and frame.format.name.startswith("yuv"):  # 3x faster than in RGB
            area: dict[str, Any] = {"interpolation": Interpolation.AREA, **_ONE_THREAD}
            frame = self._resizer.reformat(frame, width=width, height=height, **area)
        rgb = self._reformatter.reformat(
            frame, width=width, height=height, **options, **_ONE_THREAD
        )
        image = np.rot90(rgb.to_ndarray(), self._index.rotation // 90)
        image = image[:, ::-1] if self._index.mirrored else image
        return np.ascontiguousarray(image)


class _Cursor:
    """A decoder at some frame, which can continue from there."""

    def __init__(self, index: VideoIndex, start: int) -> None:
        self.convert = _Converter(index)
        self._index = index
        self._frames = index.frames(start, len(index))
        self._position, self._frame = next(self._frames)

    def reaches(self, target: int) -> bool:
        """Return whether continuing is as cheap as starting at a key frame."""
        if target <= self._position + 1:
            return target >= self._position
        return self._position >= self._index.keyframe_before(target)

    def frame(self, target: int) -> av.VideoFrame:
        while self._position < target:
            self._position, self._frame = next(self._frames)
        return self._frame


def open_video(path: Path | str, mirrored: bool = False) -> Recording:
    """Return a video file as a recording of ``VideoFrames``, upright.

    ``mirrored`` flips a mirror image (a selfie) back. Raises VideoError: the file cannot be read.
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
        processing={"rotation": index.rotation, "mirrored": index.mirrored, **index.changes},
    )


def videos_in(folder: Path) -> list[Path]:
    """Return the video files directly in a folder, sorted by name."""
    return sorted(_files(folder, EXTENSIONS))


def frames_between(
    source: str,
    timestamps_ns: TimestampsNs,
    fps: float,
    start_s: float | None,
    duration_s: float | None,
) -> tuple[int, int]:
    """Return the frames from ``start_s`` (None: 0) for ``duration_s`` (None: to the end).

    Raises InputError: outside the recording.
    """
    since = timestamps_ns - timestamps_ns[0]
    length = since[-1] / 1e9 + 1 / fps
    if start_s is not None and not 0 <= start_s < length - 1e-6:
        text = f"start {start_s} s is outside the recording; valid: 0 to {length:.3f} s"
        raise InputError(f"{source}: {text}.")
    if duration_s is not None and not 0 < duration_s < math.inf:
        raise InputError(f"{source}: duration {duration_s} s; give seconds above 0.")
    start_ns = round((start_s or 0) * 1e9)
    first = min(int(np.searchsorted(since, start_ns)), len(since) - 1)
    if duration_s is None:
        return first, len(since)
    last = int(np.searchsorted(since, start_ns + round(duration_s * 1e9)))
    return first, max(last, first + 1)


class FolderFrames:
    """The T pictures of a folder as a ``FrameSource``, each read on demand."""

    def __init__(self, paths: Sequence[Path], size: tuple[int, int]) -> None:
        self.paths, self.size = tuple(paths), size

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, start: int, stop: int) -> Iterator[ImageRgb]:
        return map(self.at, range(start, stop))

    def at(self, index: int) -> ImageRgb:
        """Return one frame. Raises VideoError: damaged, or of another size than the first."""
        image = _read(self.paths[index])
        size = image.shape[1], image.shape[0]
        if size != self.size:
            raise VideoError(
                f"{self.paths[index]}: {size[0]} x {size[1]} pixels, but the first picture of the "
                f"folder has {self.size[0]} x {self.size[1]}; all must have the same size."
            )
        return image


def flipped(image: ImageRgb) -> ImageRgb:
    """Return a picture flipped left to right."""
    return np.ascontiguousarray(image[:, ::-1])


def _files(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    return [
        path
        for path in folder.iterdir()
        if path.suffix.lower() in suffixes and path.is_file() and not path.name.startswith(".")
    ]


def pictures_in(folder: Path, suffixes: tuple[str, ...] = PICTURES) -> list[Path]:
    """Return a picture, or those directly in a folder, sorted by the numbers in their names."""

    def by_number(path: Path) -> list[tuple[bool, int, str]]:
        parts = re.split(r"(\d+)", path.stem)
        return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts]

    files = _files(folder, suffixes) if folder.is_dir() else [folder]
    return sorted(files, key=by_number)


def open_frames(folder: Path, rate: float | None = None, mirrored: bool = False) -> Recording:
    """Return a picture, or a folder of them sorted by the numbers in their names, as a recording.

    ``rate`` (frames per second) is only valid if the names are not times; ``mirrored`` flips mirror
    images (selfies) back.

    Raises:
        VideoError: the first picture cannot be read.
        InputError: no pictures, an invalid rate, a rate for names that are times, or equal times.
    """
    paths = pictures_in(folder)
    if not paths:
        raise InputError(f"{folder} has no pictures; valid: {' '.join(PICTURES)}.")
    height, width = _read(paths[0]).shape[:2]
    frames = FolderFrames(paths, (width, height))

    notes: tuple[str, ...] = ()
    times = times_of_names(folder, [path.stem for path in paths])
    if times is None:
        if rate is None:
            notes = (f"no frame rate given: {DEFAULT_RATE:g} frames per second assumed",)
        fps = DEFAULT_RATE if rate is None else rate
        if not 0 < fps <= 1000:
            raise InputError(f"{folder}: a frame rate of {fps:g}; valid: above 0, up to 1000.")
        times = np.round(np.arange(len(paths)) * 1e9 / fps).astype(np.int64)
    elif rate is not None:
        raise InputError(f"{folder}: pictures are named by time; `frame_rate` does not apply.")
    else:
        steps = np.diff(times)
        fps = DEFAULT_RATE if not len(steps) else 1e9 / float(np.median(steps))

    return Recording(
        source=str(folder),
        sha256=content_sha256(folder),
        timestamps_ns=times,
        fps=fps,
        width=width,
        height=height,
        frames=ChangedFrames(frames, flipped) if mirrored else frames,
        notes=notes,
        processing={"rotation": 0, "mirrored": mirrored},
    )


def times_of_names(folder: Path, stems: Sequence[str]) -> TimestampsNs | None:
    """Return the times in the names of pictures, or None."""
    if all(_NANOSECONDS.fullmatch(stem) for stem in stems):
        times = np.array([int(stem) for stem in stems], np.int64)
    elif all(_SECONDS.fullmatch(stem) for stem in stems):
        # A float has too few digits for nanoseconds since 1970.
        whole = (stem.split(".") for stem in stems)
        times = np.array([int(s) * 10**9 + int(f.ljust(9, "0")) for s, f in whole], np.int64)
    else:
        return None
    if (np.diff(times) <= 0).any():
        frame = int(np.argmax(np.diff(times) <= 0))
        raise InputError(f"{folder}: {stems[frame]} and {stems[frame + 1]} name the same time.")
    return times


def of_frames(
    paths: Sequence[Path], recording: Recording
) -> tuple[list[Path], TimestampsNs] | None:
    """Return which of other pictures belong to frames, and the frames' times; None: not known.

    By the last number in their names: as in the frame's own picture, else from 0, or from 1 to the
    number of frames. As many pictures as frames are in order if no number is missing.
    """
    if times_of_names(paths[0].parent, [path.stem for path in paths]) is not None:
        return None
    numbers, times, own = _numbers(paths), recording.timestamps_ns, recording.frames
    named: Sequence[int] = range(1, len(times) + 1) if numbers[-1] == len(times) else ()
    if isinstance(own, FolderFrames):
        named = _numbers(own.paths)
    elif numbers[0] == 0:
        named = range(len(times))
    frame_of = {number: frame for frame, number in enumerate(named)}
    kept = [i for i, number in enumerate(numbers) if number in frame_of]
    frames = np.array([frame_of[numbers[i]] for i in kept], int)

    # Pictures that end early, or go far beyond the end, have another rate.
    known = 2 * len(kept) > len(paths) and bool((np.diff(frames) > 0).all())
    known = known and np.ptp(frames) + 1 >= _SPANNED * len(times)
    if len(paths) == len(times) and not (known and np.ptp(numbers) >= len(paths)):
        return list(paths), times
    return ([paths[i] for i in kept], times[frames]) if known else None


def _numbers(paths: Sequence[Path]) -> list[int]:
    return [int((re.findall(r"\d+", path.stem) or [-1])[-1]) for path in paths]


def _read(path: Path) -> ImageRgb:
    """Return a picture as RGB, rotated by its EXIF."""
    try:
        data = np.frombuffer(path.read_bytes(), np.uint8)
    except OSError as error:
        raise VideoError(f"{path}: cannot be read ({error.strerror or error}).") from error
    image = cv2.imdecode(data, cv2.IMREAD_COLOR) if len(data) else None
    if image is None:
        raise VideoError(f"{path}: is damaged, or not a picture.")
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
