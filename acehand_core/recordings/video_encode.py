"""Video files for datasets: their facts, read without decoding, and encoding frame by frame.

Frame k is shown at exactly k / fps. There are no B-frames and key frames are close together, so
that single frames are cheap to reach. Rotation is applied. yuv 4:2:0 needs even sizes: an odd last
row or column is cut off, so that every pixel keeps its coordinates.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import av
import numpy as np
from av.filter import Graph
from av.video.reformatter import ColorRange, Colorspace
from jaxtyping import Float

from acehand_core.atomic import atomic_path
from acehand_core.errors import AcehandError, OutputError, SchemaError, VideoError
from acehand_core.motion import FrameSource, Recording
from acehand_core.recordings.video_index import VideoPacket, open_container, video_stream


@dataclass(frozen=True, slots=True)
class VideoFacts:
    """``times_s`` are the frames' presentation times in increasing order, in seconds."""

    path: Path
    width: int
    height: int
    codec: str
    pix_fmt: str
    has_audio: bool
    starts_with_key_frame: bool
    times_s: Float[np.ndarray, "T"]

    def info(self, fps: int) -> dict[str, Any]:
        """Return the entries that describe the video in a dataset's info.json."""
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
    """Read a video's size, codec and frame times. Raises VideoError when it is not a usable one."""
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
                raise VideoError(f"{path} is coded in a way that is not known here.")
            ticks = np.array(sorted(pts for pts, _ in packets), dtype=np.int64)

            return VideoFacts(
                path=path,
                width=context.width,
                height=context.height,
                codec=context.codec.canonical_name,
                pix_fmt=context.pix_fmt or "",
                has_audio=bool(container.streams.audio),
                starts_with_key_frame=bool(packets and packets[0][1]),
                times_s=ticks * stream.time_base.numerator / stream.time_base.denominator,
            )
    except (OSError, av.FFmpegError) as error:
        raise VideoError(f"{path} cannot be read as a video: {error}.") from error


_ENCODERS: Mapping[str, Literal["libx264", "libsvtav1"]] = {"h264": "libx264", "av1": "libsvtav1"}
_DEFAULTS = {"h264": ("superfast", 23), "av1": ("10", 30)}
_PICTURE_TYPE_UNSET = 0
_MUXER = {"movflags": "faststart"}  # the table of frames first: readable while it downloads
#: Filters that turn a picture counter-clockwise by 0 to 3 quarters.
_TURNS: dict[int, tuple[tuple[str, str | None], ...]] = {
    0: (),
    1: (("transpose", "cclock"),),
    2: (("hflip", None), ("vflip", None)),
    3: (("transpose", "clock"),),
}

Codec = Literal["h264", "av1"]


@dataclass(frozen=True, slots=True)
class VideoEncoding:
    """How to encode: ``preset`` and ``crf`` None mean superfast and 23 for h264, 10 and 30 for av1.

    ``gop`` is the distance of key frames.
    """

    codec: Codec = "h264"
    preset: str | None = None
    crf: int | None = None
    gop: int = 10

    def __post_init__(self) -> None:
        if self.gop < 1 or (self.crf is not None and not 0 <= self.crf <= 63):
            raise SchemaError(
                f"Video settings: gop {self.gop} must be at least 1, crf {self.crf} within 0..63."
            )


class EncodingCancelledError(AcehandError):
    """The caller asked to stop; nothing was written."""


@runtime_checkable
class DecodedSource(Protocol):
    """A frame source backed by a file: it can hand out frames as they were decoded.

    ``rotation`` (degrees, counter-clockwise) turns them upright, then ``mirrored`` flips them left
    to right.
    """

    path: Path
    rotation: int
    mirrored: bool

    def decode(self, start: int, stop: int) -> Iterator[av.VideoFrame]:
        """Yield frames ``start`` to ``stop - 1`` as they are stored."""
        ...


def encode_video(
    recording: Recording,
    path: Path,
    fps: int,
    settings: VideoEncoding | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> VideoFacts:
    """Write all frames of a recording to ``path`` (mp4, replaced if it exists), at k / fps.

    ``cancelled()`` is called before each frame; a true answer raises EncodingCancelledError. Raises
    OutputError when the file cannot be written. The file appears only when complete.
    """
    settings = settings or VideoEncoding()
    if recording.frames is None:
        raise OutputError(f"{recording.source} has no frames; leave the video feature out.")

    with atomic_path(path, overwrite=True) as temporary:
        try:
            _encode(recording, recording.frames, temporary, fps, settings, cancelled)
        except av.FFmpegError as error:
            if isinstance(error, OSError):
                raise
            raise OutputError(f"{path}: encoding failed: {error}.") from error

    return probe_video(path)


def even_size(width: int, height: int) -> tuple[int, int]:
    """Return the (width, height) that an encoded frame of the given size has."""
    return width - width % 2, height - height % 2


def _encode(
    recording: Recording,
    source: FrameSource,
    path: Path,
    fps: int,
    settings: VideoEncoding,
    cancelled: Callable[[], bool] | None,
) -> None:
    total = len(recording)
    with av.open(f"file:{path}", "w", format="mp4", options=_MUXER) as container:
        stream: av.VideoStream | None = None
        for index, frame in enumerate(_frames(source, recording)):
            if cancelled is not None and cancelled():
                raise EncodingCancelledError(
                    f"{recording.source}: encoding was stopped at frame {index} of {total}."
                )
            if stream is None:
                stream = _open_stream(container, source, frame, fps, settings)
            frame.pts, frame.time_base = index, Fraction(1, fps)
            frame.pict_type = _PICTURE_TYPE_UNSET  # else the source's key frames are kept
            container.mux(stream.encode(frame))

        if stream is None:
            raise OutputError(f"{recording.source} has no frames to encode.")
        container.mux(stream.encode())


def _open_stream(
    container: av.container.OutputContainer,
    source: FrameSource,
    frame: av.VideoFrame,
    fps: int,
    settings: VideoEncoding,
) -> av.VideoStream:
    os.environ.setdefault("SVT_LOG", "1")  # its encoder talks on standard error otherwise
    preset, crf = _DEFAULTS[settings.codec]
    options = {
        "preset": settings.preset or preset,
        "crf": str(crf if settings.crf is None else settings.crf),
    }
    stream = container.add_stream(_ENCODERS[settings.codec], rate=fps, options=options)
    stream.width, stream.height, stream.pix_fmt = frame.width, frame.height, "yuv420p"
    context = stream.codec_context
    context.time_base = Fraction(1, fps)
    context.gop_size = settings.gop
    if settings.codec == "h264":
        context.max_b_frames = 0

    # Without these tags a player would guess the matrix, and colours would shift.
    context.color_range, context.colorspace = frame.color_range, frame.colorspace
    if isinstance(source, DecodedSource):  # frames know the other two only from PyAV 17 on
        with open_container(source.path) as original:
            decoder = video_stream(original, source.path).codec_context
            context.color_primaries = decoder.color_primaries
            context.color_trc = decoder.color_trc

    return stream


def _frames(source: FrameSource, recording: Recording) -> Iterator[av.VideoFrame]:
    """Yield upright yuv420p frames of even size, converting as little as possible."""
    if not isinstance(source, DecodedSource):
        width, height = even_size(recording.width, recording.height)
        rgb = av.VideoFrame(width, height, "rgb24")  # one for all: new memory is slow to fill
        rows = np.frombuffer(memoryview(rgb.planes[0]), np.uint8).reshape(height, -1)[
            :, : 3 * width
        ]
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
        if (frame.width, frame.height) != stored:  # some streams change their size half way
            frame = frame.reformat(width=stored[0], height=stored[1])
        if frame.format.name != "yuv420p" or frame.color_range == ColorRange.JPEG:
            frame = frame.reformat(
                format="yuv420p", src_color_range=frame.color_range, dst_color_range=ColorRange.MPEG
            )
            frame.color_range = ColorRange.MPEG  # PyAV before 17 does not say so
        if turns or source.mirrored or even_size(*upright) != upright:
            graph = graph or _turn_and_crop(frame, turns, source.mirrored, even_size(*upright))
            graph.push(frame)
            turned = graph.pull()
            assert isinstance(turned, av.VideoFrame)
            frame = turned
        yield frame


def _turn_and_crop(
    frame: av.VideoFrame, turns: int, mirrored: bool, size: tuple[int, int]
) -> Graph:
    """Return a filter: quarter turns counter-clockwise, a flip, then a cut to (width, height)."""
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
    for first, second in itertools.pairwise(nodes):
        first.link_to(second)
    graph.configure()
    return graph


def _remux(packets: Sequence[VideoPacket], stream: av.VideoStream, path: Path, fps: int) -> None:
    """Write packets in the order of decoding; frame k is then shown at k / fps."""
    ranks = np.argsort(np.argsort(np.array([packet.pts for packet in packets])))
    delay = int(np.max(np.arange(len(ranks)) - ranks))  # B-frames: decoded before shown
    with av.open(f"file:{path}", "w", format="mp4", options=_MUXER) as container:
        target = container.add_stream_from_template(stream, opaque=True)  # AV1's decoder only reads
        target.time_base = Fraction(1, fps)  # milliseconds could not express k / fps
        for order, (packet, rank) in enumerate(zip(packets, ranks, strict=True)):
            packet.stream, packet.time_base = target, Fraction(1, fps)
            packet.pts, packet.dts, packet.duration = int(rank), order - delay, 1
            container.mux(packet)


def copy_parts(source: Path, parts: Sequence[tuple[float, int]], path: Path, fps: int) -> None:
    """Write parts of a video one after another to ``path`` (mp4) without coding them anew.

    ``parts``: the first frame's time in seconds, and the number of frames. Raises VideoError where
    it cannot be cut there: a part has to begin with a key frame and to need no frame outside.
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
                        f"{source} cannot be cut at {start:.3f} s: its {frames} frames from there "
                        "on do not begin with a key frame of their own."
                    )
                chosen += packets[own[0] : own[-1] + 1]
            _remux(chosen, stream, path, fps)
    except (OSError, av.FFmpegError) as error:
        raise VideoError(f"{source} cannot be cut: {error}.") from error
