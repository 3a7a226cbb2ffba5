"""How to reach any frame of a video file exactly: containers, key frames, decoding.

A frame's identity is its presentation stamp; ``video_scan`` finds out which there are.
"""

from __future__ import annotations

import bisect
import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import av
import numpy as np
from av.container import InputContainer
from av.stream import Disposition
from av.video.reformatter import ColorRange, Colorspace
from av.video.stream import VideoStream
from jaxtyping import Int

from acehand_core.errors import VideoError
from acehand_core.types import TimestampsNs

if TYPE_CHECKING:
    VideoPacket = av.Packet[av.VideoStream]
else:
    VideoPacket = av.Packet


def rgb_options(frame: av.VideoFrame) -> dict[str, Any]:
    """Return what ``reformat`` needs to make RGB of a frame by the colour tags it carries.

    PyAV before 17 does not look at them unless it is told; later ones take them anyway.
    """
    full = frame.format.name.startswith(("yuvj", "gray", "ya"))  # whatever their tag says
    return {
        "format": "rgb24",
        "src_color_range": ColorRange.JPEG if full else frame.color_range,
        "src_colorspace": frame.colorspace,
        "dst_colorspace": Colorspace.DEFAULT,
    }


_log = logging.getLogger(__name__)

#: Only self-contained media formats: playlists and scripts could point at other files.
_FORMATS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,mpegvideo,flv,ogg,asf,h264,hevc,m4v,"
    "mjpeg,ivf,nut,mxf,gif"
)


@dataclass(frozen=True, slots=True)
class VideoIndex:
    """The T source frames of one video stream, in the order they are shown.

    ``pts`` identifies a frame while reading; None where the file's stamps cannot, and frames are
    counted from the file's beginning. ``keyframes`` are frames at which decoding can start; the
    first is 0. ``rotation`` is counter-clockwise in degrees, ``mirrored`` flips left and right
    after it. ``warned`` are the frames of which a warning was logged: one is enough.
    """

    path: Path
    pts: Int[np.ndarray, "T"] | None
    keyframes: tuple[int, ...]
    timestamps_ns: TimestampsNs
    fps: float
    width: int
    height: int
    rotation: int
    mirrored: bool
    damaged: bool
    notes: tuple[str, ...]
    warned: set[int] = field(default_factory=set, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.timestamps_ns)

    def keyframe_before(self, index: int) -> int:
        """Return the last frame up to ``index`` at which decoding can start."""
        return self.keyframes[bisect.bisect_right(self.keyframes, index) - 1]

    def frames(self, start: int, stop: int) -> Iterator[tuple[int, av.VideoFrame]]:
        """Yield (index, frame) for every index from ``start`` to ``stop - 1``.

        A frame that cannot be decoded is replaced by the one before it, and a warning is logged.

        Raises:
            VideoError: nothing can be decoded any more.
        """
        due = start
        # Decoding frames in parallel is faster, but one broken frame then hides its neighbours.
        if not self.damaged:
            with contextlib.suppress(av.FFmpegError):
                for index, frame in self._decode(start, parallel=True):
                    if index == due < stop:
                        yield index, frame
                        due += 1
                    if index >= due or due == stop:
                        break
        if due < stop:
            yield from self._frames_patched(due, stop)

    def _frames_patched(self, start: int, stop: int) -> Iterator[tuple[int, av.VideoFrame]]:
        due, held = start, None
        for index, frame in self._decode(start, parallel=False):
            for missing in range(due, min(index, stop)):
                self._warn(missing)
                yield missing, frame if held is None else held
                due = missing + 1
            held = frame
            if index == due < stop:
                yield index, frame
                due += 1
            if due >= stop:
                return

        for missing in range(due, stop):
            if held is None:
                raise VideoError(
                    f"{self.path}: frame {missing} of {len(self)} cannot be decoded. "
                    "Was the file changed or removed while it was read?"
                )
            self._warn(missing)
            yield missing, held

    def _warn(self, frame: int) -> None:
        if frame not in self.warned:
            self.warned.add(frame)
            _log.warning(
                "%s: frame %d cannot be decoded; the one before it is shown.", self.path, frame
            )

    def _decode(self, start: int, parallel: bool) -> Iterator[tuple[int, av.VideoFrame]]:
        """Yield decoded frames of the index from some keyframe up to ``start`` to the end."""
        position = bisect.bisect_right(self.keyframes, start) - 1
        back = 1
        while True:
            key = self.keyframes[position] if position > 0 else 0
            with open_container(self.path) as container:
                stream = video_stream(container, self.path)
                if key > 0 and self.pts is not None:
                    container.seek(int(self.pts[key]), stream=stream)
                arrived = key == 0
                for count, frame in enumerate(decoded(container, stream, parallel)):
                    index = self._index_of(frame, count)
                    arrived = arrived or index == key
                    if arrived and index is not None:
                        yield index, frame
                    elif index is not None and index > key:
                        break
                if arrived:
                    return
            # The container could not seek to this keyframe exactly: start from an earlier one.
            position, back = position - back, back * 2

    def _index_of(self, frame: av.VideoFrame, count: int) -> int | None:
        if self.pts is None:
            return count if count < len(self) else None
        if frame.pts is None:
            return None
        index = int(np.searchsorted(self.pts, frame.pts))
        return index if index < len(self.pts) and self.pts[index] == frame.pts else None


def open_container(path: Path) -> InputContainer:
    """Open a video file.

    Raises:
        VideoError: the file is missing, a folder, empty, not a video, or cut off.
    """
    if path.is_dir():
        raise VideoError(f"{path} is a folder; give a video file.")
    if not path.exists():
        raise VideoError(f"{path} does not exist; give the path of a video file.")
    if path.stat().st_size == 0:
        raise VideoError(f"{path} is empty (0 bytes); it was perhaps not copied completely.")
    try:
        options = {"format_whitelist": _FORMATS, "protocol_whitelist": "file"}
        return av.open(f"file:{path}", options=options)
    except (av.FFmpegError, OSError) as error:
        raise VideoError(_why_unreadable(path, error)) from error


def _why_unreadable(path: Path, error: Exception) -> str:
    if isinstance(error, PermissionError):
        return f"{path} may not be read; check its permissions."
    if isinstance(error, EOFError):
        return f"{path} ends before its first frame; a video with at least one frame is needed."

    with path.open("rb") as file:
        head = file.read(4096)
        is_mp4 = head[4:8] == b"ftyp"
        names = [name for name, _, _ in boxes(file, 0, path.stat().st_size)] if is_mp4 else []

    if names and b"moov" not in names:
        return (
            f"{path} is cut off: an MP4 file without its table of frames ('moov'). The recording "
            "or the copy was interrupted; copy it again, or repair it with a recovery tool."
        )

    text = head.decode("utf-8", "ignore").encode()  # a character may be cut at the end
    if b"\0" not in head and len(text) > len(head) - 4:
        return f"{path} is a text file, whatever its name says; give a video file."
    return f"{path} is not a video that can be read; valid: mp4, mov, mkv, webm, avi, ts."


def is_cut_off(path: Path) -> bool:
    """Whether an MP4 file ends before its last box does."""
    size = path.stat().st_size
    with path.open("rb") as file:
        return any(end > size for _, _, end in boxes(file, 0, size))


def boxes(file: BinaryIO, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield name, start and end of the content of an MP4 file's boxes (ISO/IEC 14496-12).

    The last one may say that it ends beyond ``end``.
    """
    while start + 8 <= end:
        file.seek(start)
        head = file.read(16)
        size, name, header = int.from_bytes(head[:4]), head[4:8], 8
        if size == 1:
            size, header = int.from_bytes(head[8:16]), 16
        size = end - start if size == 0 else size
        if size < header:
            return
        yield name, start + header, start + size
        start += size


def video_stream(container: InputContainer, path: Path) -> VideoStream:
    """Return the first video stream that is not a cover picture."""
    for stream in container.streams.video:
        if not stream.disposition & Disposition.attached_pic:
            return stream
    kinds = sorted({stream.type for stream in container.streams})
    content = f"only {' and '.join(kinds)}" if kinds else "no stream at all"
    raise VideoError(f"{path} contains {content}; a video stream is needed.")


def decoded(
    container: InputContainer, stream: VideoStream, parallel: bool
) -> Iterator[av.VideoFrame]:
    """Yield frames in the decoder's order; unless ``parallel``, broken packets are skipped."""
    stream.thread_type = "AUTO" if parallel else "SLICE"
    packets = container.demux(stream)
    while True:
        try:
            packet = next(packets)
            frames = packet.decode()
        except StopIteration:
            return
        except av.FFmpegError:
            if parallel:
                raise
            continue
        yield from frames
