"""Videos of datasets: probing, encoding and cutting. Frame k is shown at exactly k / fps.

No B-frames and close key frames make single frames cheap to reach. yuv 4:2:0 needs even sizes: an
odd last row or column is cut off, which keeps pixel coordinates.
"""

from __future__ import annotations

import itertools
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, TypeVar

import av
import numpy as np
from av.filter import Graph
from av.video.reformatter import ColorRange, Colorspace
from jaxtyping import Float

from acehand_core.atomic import atomic_path
from acehand_core.errors import AcehandError, OutputError, SchemaError, VideoError
from acehand_core.motion import Depth, DepthSource, FrameSource, Recording
from acehand_core.recordings.video import VideoFrames
from acehand_core.recordings.video_index import VideoPacket, open_container, video_stream
from acehand_core.types import ImageRgb

_ENCODERS: Mapping[str, Literal["libx264", "libsvtav1"]] = {"h264": "libx264", "av1": "libsvtav1"}
#: Of x264's presets the fastest to encode and to load; files are up to half larger than those of
#: the next one (benchmarks/encoding.py).
_DEFAULTS = {"h264": ("ultrafast", 23), "av1": ("10", 30)}
#: Filters for 0 to 3 quarter turns counter-clockwise.
_TURNS: dict[int, tuple[tuple[str, str | None], ...]] = {
    0: (),
    1: (("transpose", "cclock"),),
    2: (("hflip", None), ("vflip", None)),
    3: (("transpose", "clock"),),
}

Codec = Literal["h264", "av1"]

#: Depth as lerobot (0.6) reads it, 12 bits: here whole millimetres, 0 where there is no reading.
DEPTH_FORMAT, _MOST_MM = "gray12le", 4095
DEPTH_INFO = {"is_depth_map": True, "depth_unit": "mm", "video.channels": 1, "video.depth_min": 0.0,
              "video.depth_max": _MOST_MM / 1000, "video.use_log": False}  # fmt: skip
#: Every picture is a key frame, so that an episode can be cut anywhere without encoding again.
_X265 = "lossless=1:keyint=1:ctu=16:rd=2:fast-intra=1:log-level=none"
_LOSSLESS = {"preset": "ultrafast", "x265-params": _X265}

#: Largest number of pictures waiting for the next thread.
_WAITING = 4

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class VideoFacts:
    """A video's properties; ``times_s`` are the frames' presentation times, increasing."""

    path: Path
    width: int
    height: int
    codec: str
    pix_fmt: str
    has_audio: bool
    starts_with_key_frame: bool
    timescale: int  # ticks per second
    times_s: Float[np.ndarray, "T"]

    def info(self, fps: int) -> dict[str, Any]:
        """Return the video's entries in a dataset's info.json."""
        return {
            "video.height": self.height,
            "video.width": self.width,
            "video.codec": self.codec,
            "video.pix_fmt": self.pix_fmt,
            "video.fps": fps,
            "video.channels": 3,
            "has_audio": self.has_audio,
            "is_depth_map": False,
        }


def probe_video(path: Path) -> VideoFacts:
    """Read a video's size, codec and frame times without decoding. Raises VideoError."""
    try:
        with av.open(f"file:{path}", metadata_errors="ignore") as container:
            if not container.streams.video:
                raise VideoError(f"{path} has no video stream.")
            stream = container.streams.video[0]
            packets = [
                (packet.pts, packet.is_keyframe)
                for packet in container.demux(stream)
                if packet.pts is not None and packet.size and not packet.is_discard
            ]
            context = stream.codec_context
            if context is None or stream.time_base is None:
                raise VideoError(f"{path} has an unknown codec.")
            ticks = np.array(sorted(pts for pts, _ in packets), dtype=np.int64)

            return VideoFacts(
                path=path,
                width=context.width,
                height=context.height,
                codec=context.codec.canonical_name,
                pix_fmt=context.pix_fmt or "",
                has_audio=bool(container.streams.audio),
                starts_with_key_frame=bool(packets and packets[0][1]),
                timescale=stream.time_base.denominator,
                times_s=ticks * stream.time_base.numerator / stream.time_base.denominator,
            )
    except (OSError, av.FFmpegError) as error:
        raise VideoError(f"{path} cannot be read as a video: {error}.") from error


@dataclass(frozen=True, slots=True)
class VideoEncoding:
    """Encoder settings; default preset and crf: ultrafast and 23 for h264, 10 and 30 for av1."""

    codec: Codec = "h264"
    preset: str | None = None
    crf: int | None = None
    gop: int = 10
    timescale: int = 0  # ticks per second; FFmpeg chooses for 0 and where k / fps are not whole

    def __post_init__(self) -> None:
        if self.gop < 1 or (self.crf is not None and not 0 <= self.crf <= 63):
            raise SchemaError(f"Video: gop {self.gop} must be at least 1, crf {self.crf} in 0..63.")


class EncodingCancelledError(AcehandError):
    """The caller cancelled; nothing was written."""


def encode_video(
    recording: Recording | Depth,
    path: Path,
    fps: int,
    settings: VideoEncoding | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> VideoFacts:
    """Write all frames of a recording to ``path`` (mp4), atomically, replacing an existing file.

    Depth is lossless in whole millimetres up to 4.095 m (``DEPTH_INFO``), whatever the settings.
    ``cancelled()`` is called before each frame; True raises EncodingCancelledError. Raises
    OutputError: the file cannot be written.
    """
    settings = settings or VideoEncoding()
    if isinstance(recording, Recording) and recording.frames is None:
        raise OutputError(f"{recording.source} has no frames; leave the video feature out.")
    with atomic_path(path, overwrite=True) as temporary:
        try:
            _encode(recording, temporary, fps, settings, cancelled)
        except av.FFmpegError as error:
            if isinstance(error, OSError):
                raise
            raise OutputError(f"{path}: encoding failed: {error}.") from error
    return probe_video(path)


def even_size(width: int, height: int) -> tuple[int, int]:
    """Return the (width, height) of an encoded frame."""
    return width - width % 2, height - height % 2


def _encode(
    recording: Recording | Depth,
    path: Path,
    fps: int,
    settings: VideoEncoding,
    cancelled: Callable[[], bool] | None,
) -> None:
    total, source = len(recording.timestamps_ns), getattr(recording, "source", "depth")
    frames = _depth_frames(recording) if isinstance(recording, Depth) else _frames(recording)
    with _open_mp4(path, fps, settings.timescale) as container:
        stream: av.VideoStream | None = None
        for index, frame in enumerate(frames):
            if cancelled is not None and cancelled():
                stopped = f"{source}: encoding was stopped at frame {index} of {total}."
                raise EncodingCancelledError(stopped)
            if stream is None:
                stream = _open_stream(container, recording.frames, frame, fps, settings)
            frame.pts, frame.time_base = index, Fraction(1, fps)
            frame.pict_type = 0  # unset; else the source's key frames are kept
            container.mux(stream.encode(frame))

        if stream is None:
            raise OutputError(f"{source} has no frames to encode.")
        container.mux(stream.encode())


def _open_mp4(path: Path, fps: int, timescale: int) -> av.container.OutputContainer:
    """Keep a timescale with k / fps as whole ticks: lerobot's merge needs one for all videos."""
    kept = 0 if timescale % fps else timescale
    options = {"movflags": "faststart", "video_track_timescale": str(kept)}  # the index first
    return av.open(f"file:{path}", "w", format="mp4", options=options)


def _open_stream(
    container: av.container.OutputContainer,
    source: FrameSource | DepthSource | None,
    frame: av.VideoFrame,
    fps: int,
    settings: VideoEncoding,
) -> av.VideoStream:
    os.environ.setdefault("SVT_LOG", "1")  # else it logs to stderr
    preset, crf = _DEFAULTS[settings.codec]
    options = {
        "preset": settings.preset or preset,
        "crf": str(crf if settings.crf is None else settings.crf),
    }
    encoder: Literal["libx264", "libsvtav1", "libx265"] = _ENCODERS[settings.codec]
    pixels = "yuv420p"
    if frame.format.name == DEPTH_FORMAT:
        encoder, options, pixels = "libx265", _LOSSLESS, DEPTH_FORMAT
    stream = container.add_stream(encoder, rate=fps, options=options)
    stream.width, stream.height, stream.pix_fmt = frame.width, frame.height, pixels
    context = stream.codec_context
    context.time_base = Fraction(1, fps)
    context.gop_size = settings.gop
    if settings.codec == "h264":
        context.max_b_frames = 0

    # Without these tags players guess the matrix, and colours shift.
    context.color_range, context.colorspace = frame.color_range, frame.colorspace
    if isinstance(source, VideoFrames):  # frames have the other two from PyAV 17 on
        with open_container(source.path) as original:
            decoder = video_stream(original, source.path).codec_context
            context.color_primaries = decoder.color_primaries
            context.color_trc = decoder.color_trc

    return stream


def _frames(recording: Recording) -> Iterator[av.VideoFrame]:
    """Yield upright yuv420p frames of even size, converting as little as possible."""
    source = recording.frames
    assert source is not None
    if not isinstance(source, VideoFrames):
        width, height = even_size(recording.width, recording.height)
        rgb = av.VideoFrame(width, height, "rgb24")  # reused: new memory is slow
        plane = np.frombuffer(memoryview(rgb.planes[0]), np.uint8)
        rows = plane.reshape(height, -1)[:, : 3 * width]
        for image in source.read(0, len(recording)):
            rows[:] = image[:height, :width].reshape(height, -1)
            frame = rgb.reformat(
                format="yuv420p", dst_colorspace=Colorspace.ITU709, dst_color_range=ColorRange.MPEG
            )
            frame.colorspace, frame.color_range = Colorspace.ITU709, ColorRange.MPEG
            yield frame
        return

    turns = source.rotation // 90 % 4
    upright = (recording.width, recording.height)
    stored = upright[::-1] if turns % 2 else upright

    graph: Graph | None = None
    for frame in source.decode(0, len(recording)):
        if (frame.width, frame.height) != stored:  # some streams change size midway
            frame = frame.reformat(width=stored[0], height=stored[1])
        if frame.format.name != "yuv420p" or frame.color_range == ColorRange.JPEG:
            frame = frame.reformat(
                format="yuv420p", src_color_range=frame.color_range, dst_color_range=ColorRange.MPEG
            )
            frame.color_range = ColorRange.MPEG  # not set by PyAV before 17
        if turns or source.mirrored or even_size(*upright) != upright:
            graph = graph or _turned(frame, turns, source.mirrored, even_size(*upright))
            graph.push(frame)
            turned = graph.pull()
            assert isinstance(turned, av.VideoFrame)
            frame = turned
        yield frame


def _depth_frames(depth: Depth) -> Iterator[av.VideoFrame]:
    for index in range(len(depth.frames)):
        counts = np.rint(1e3 * np.nan_to_num(depth.frames.at(index)))
        counts[(counts < 0) | (counts > _MOST_MM)] = 0
        yield av.VideoFrame.from_ndarray(counts.astype(np.uint16), format=DEPTH_FORMAT)


def _turned(frame: av.VideoFrame, turns: int, mirrored: bool, size: tuple[int, int]) -> Graph:
    """Return a filter graph: quarter turns counter-clockwise, flip, crop to (width, height)."""
    graph = Graph()
    nodes = [
        graph.add_buffer(
            width=frame.width, height=frame.height, format=frame.format, time_base=Fraction(1, 1)
        )
    ]
    steps = [*_TURNS[turns], *([("hflip", None)] if mirrored else [])]
    for name, argument in [*steps, ("crop", f"{size[0]}:{size[1]}:0:0:exact=1")]:
        nodes.append(graph.add(name, argument))
    nodes.append(graph.add("buffersink"))
    graph.link_nodes(*nodes).configure()
    return graph


def _remux(packets: Sequence[VideoPacket], stream: av.VideoStream, path: Path, fps: int) -> None:
    """Write packets in decoding order, with frame k at k / fps."""
    ranks = np.argsort(np.argsort(np.array([packet.pts for packet in packets])))
    delay = int(np.max(np.arange(len(ranks)) - ranks))  # B-frames: decoded before shown
    with _open_mp4(path, fps, packets[0].time_base.denominator) as container:
        target = container.add_stream_from_template(stream, opaque=True)  # AV1's decoder only reads
        target.time_base = Fraction(1, fps)  # milliseconds could not express k / fps
        for order, (packet, rank) in enumerate(zip(packets, ranks, strict=True)):
            packet.stream, packet.time_base = target, Fraction(1, fps)
            packet.pts, packet.dts, packet.duration = int(rank), order - delay, 1
            container.mux(packet)


def copy_parts(source: Path, parts: Sequence[tuple[float, int]], path: Path, fps: int) -> None:
    """Write parts of a video to ``path`` (mp4) without re-encoding.

    ``parts``: time of the first frame in seconds, number of frames. Raises VideoError: a part does
    not begin with a key frame, or needs frames outside.
    """
    try:
        with open_container(source) as original:
            stream = video_stream(original, source)
            packets = [p for p in original.demux(stream) if p.size and p.pts is not None]
            base = stream.time_base or Fraction(1, fps)  # a demuxer sets it
            ticks = np.array([packet.pts for packet in packets])
            ranks, times = np.argsort(np.argsort(ticks)), np.sort(ticks * float(base))
            chosen: list[VideoPacket] = []
            for start, frames in parts:
                first = int(np.searchsorted(times, start - 0.5 / fps))
                own = np.flatnonzero((ranks >= first) & (ranks < first + frames))
                whole = len(own) == frames and own[-1] - own[0] + 1 == frames
                if not whole or not packets[own[0]].is_keyframe:
                    raise VideoError(
                        f"{source} cannot be cut at {start:.3f} s: the {frames} frames from there "
                        "do not begin with a key frame, or need frames outside."
                    )
                chosen += packets[own[0] : own[-1] + 1]
            _remux(chosen, stream, path, fps)
    except (OSError, av.FFmpegError) as error:
        raise VideoError(f"{source} cannot be cut: {error}.") from error


OVERLAY_ENCODING = VideoEncoding(crf=24, gop=30)


def ahead(items: Iterator[Item]) -> Iterator[Item]:
    """Yield items made in another thread, a few ahead."""

    def following() -> list[Item]:
        return list(itertools.islice(items, 1))

    with ThreadPoolExecutor(1, "ahead") as pool:
        pending = deque(pool.submit(following) for _ in range(_WAITING))
        while item := pending.popleft().result():
            pending.append(pool.submit(following))
            yield item[0]


def write_video(
    recording: Recording,
    pictures: Iterable[ImageRgb],
    size: tuple[int, int],
    fps: float,
    path: Path,
) -> None:
    """Encode a picture of ``size`` (width, height) per frame of a recording, as they are made."""
    write_videos(recording, ([p] for p in pictures), size, fps, [path], OVERLAY_ENCODING)


def write_videos(
    recording: Recording,
    pictures: Iterable[Sequence[ImageRgb]],
    size: tuple[int, int],
    fps: float,
    paths: Sequence[Path],
    settings: VideoEncoding | None = None,
) -> None:
    """Encode a picture per path and frame of a recording, as they are made."""
    streams = [_DrawnFrames(len(recording)) for _ in paths]
    drawn = [
        replace(recording, width=size[0], height=size[1], camera=None, frames=frames)
        for frames in streams
    ]
    with ThreadPoolExecutor(len(paths), "encode") as pool:
        encoded = [
            pool.submit(encode_video, one, path, round(fps), settings)
            for one, path in zip(drawn, paths, strict=True)
        ]
        try:
            for row in pictures:
                handed = zip(streams, row, encoded, strict=True)
                if not all([frames.put(picture, reader) for frames, picture, reader in handed]):
                    break
        finally:
            for frames in streams:
                frames.end()
        for reader in encoded:
            reader.result()


class _DrawnFrames:
    """A FrameSource over pictures being drawn, read once and in order."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._made: queue.SimpleQueue[ImageRgb | None] = queue.SimpleQueue()
        self._room = threading.Semaphore(_WAITING)

    def __len__(self) -> int:
        return self._count

    def put(self, picture: ImageRgb, reader: Future[VideoFacts]) -> bool:
        """Wait for room and hand over the next picture; return whether ``reader`` is running."""
        while not self._room.acquire(timeout=0.2):
            if reader.done():
                return False
        self._made.put(picture)
        return True

    def end(self) -> None:
        """End the pictures."""
        self._made.put(None)

    def read(self, start: int, stop: int) -> Iterator[ImageRgb]:
        """Yield the next ``stop - start`` pictures. Raises EncodingCancelledError at their end."""
        for _ in range(start, stop):
            picture = self._made.get()
            if picture is None:
                raise EncodingCancelledError("The pictures of a video ended too early.")
            self._room.release()
            yield picture

    def at(self, index: int) -> ImageRgb:
        """Raise NotImplementedError."""
        raise NotImplementedError("Pictures being drawn are read in order.")
