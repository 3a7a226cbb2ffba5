"""The frames of a video file: their number, times and key frames, and decoding by index."""

from __future__ import annotations

import bisect
import contextlib
import itertools
import logging
import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import av
import numpy as np
from av.container import InputContainer
from av.filter import Graph
from av.sidedata.sidedata import SideData
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

_log = logging.getLogger(__name__)

#: Self-contained media formats; playlists and scripts could refer to other files.
_FORMATS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,mpegvideo,flv,ogg,asf,h264,hevc,m4v,"
    "mjpeg,ivf,nut,mxf,gif"
)

#: FFmpeg's AVStereo3DType: side by side, top and bottom.
_PACKED = (1, 2)
#: Pixels within this of square are square: players round sizes, too.
_SQUARE = Fraction(1, 100)

#: In these containers one packet is one frame and carries its own presentation stamp.
_ONE_PACKET_ONE_FRAME = {"mov", "matroska"}


def rgb_options(frame: av.VideoFrame) -> dict[str, Any]:
    """Return ``reformat``'s options for RGB by a frame's colour tags, which PyAV < 17 ignores."""
    full = frame.format.name.startswith(("yuvj", "gray", "ya"))  # regardless of the tag
    return {
        "format": "rgb24",
        "src_color_range": ColorRange.JPEG if full else frame.color_range,
        "src_colorspace": frame.colorspace,
        "dst_colorspace": Colorspace.DEFAULT,
    }


@dataclass(frozen=True, slots=True)
class VideoIndex:
    """The T source frames of a video stream in presentation order.

    ``pts`` identify frames; None: untrustworthy, frames are counted from the beginning. Decoding
    starts at ``keyframes``, the first being 0. Frames are scaled to square pixels (``width`` and
    ``height`` are then upright), rotated by ``rotation`` (degrees counter-clockwise), then flipped
    left to right if ``mirrored``. ``warned``: frames with a logged warning. ``track``: of the
    file's video streams; None: the first one. ``changes``: to pixels that are stored otherwise.
    ``two_pictures``: the file says that there are two in each frame.
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
    track: int | None = None
    changes: Mapping[str, str] = field(default_factory=dict)
    two_pictures: bool = False

    def __len__(self) -> int:
        return len(self.timestamps_ns)

    def keyframe_before(self, index: int) -> int:
        """Return the last key frame up to ``index``."""
        return self.keyframes[bisect.bisect_right(self.keyframes, index) - 1]

    def frames(self, start: int, stop: int) -> Iterator[tuple[int, av.VideoFrame]]:
        """Yield (index, frame) for every index from ``start`` to ``stop - 1``.

        A broken frame is replaced by the one before it, with a warning. Raises VideoError: nothing
        decodes.
        """
        due = start
        # Parallel decoding is faster, but a broken frame also hides its neighbours.
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
        due, previous = start, None
        for index, frame in self._decode(start, parallel=False):
            for missing in range(due, min(index, stop)):
                self._warn(missing)
                yield missing, frame if previous is None else previous
                due = missing + 1
            previous = frame
            if index == due < stop:
                yield index, frame
                due += 1
            if due >= stop:
                return

        for missing in range(due, stop):
            if previous is None:
                raise VideoError(
                    f"{self.path}: frame {missing} of {len(self)} cannot be decoded. "
                    "Was the file changed or removed while it was read?"
                )
            self._warn(missing)
            yield missing, previous

    def _warn(self, frame: int) -> None:
        if frame not in self.warned:
            self.warned.add(frame)
            _log.warning("%s: frame %d cannot be decoded; repeated the last one.", self.path, frame)

    def _decode(self, start: int, parallel: bool) -> Iterator[tuple[int, av.VideoFrame]]:
        """Yield decoded frames from a key frame up to ``start`` to the end."""
        if "deinterlaced" not in self.changes:
            return self._stored(start, parallel)
        # A frame is made of the one before it too, wherever reading starts.
        return _deinterlaced(self._stored(max(start - 1, 0), parallel))

    def _stored(self, start: int, parallel: bool) -> Iterator[tuple[int, av.VideoFrame]]:
        position = bisect.bisect_right(self.keyframes, start) - 1
        back = 1
        while True:
            key = self.keyframes[position] if position > 0 else 0
            with open_container(self.path) as container:
                stream = video_stream(container, self.path, self.track)
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
            # The container cannot seek exactly to this key frame: start from an earlier one.
            position, back = position - back, back * 2

    def _index_of(self, frame: av.VideoFrame, count: int) -> int | None:
        if self.pts is None:
            return count if count < len(self) else None
        if frame.pts is None:
            return None
        index = int(np.searchsorted(self.pts, frame.pts))
        return index if index < len(self.pts) and self.pts[index] == frame.pts else None


def _deinterlaced(
    frames: Iterator[tuple[int, av.VideoFrame]],
) -> Iterator[tuple[int, av.VideoFrame]]:
    """Yield frames of the first field's time, with the numbers and stamps of the given ones."""
    graph, waiting = Graph(), deque[tuple[int, av.VideoFrame]]()
    for number, frame in itertools.chain(frames, [(-1, None)]):
        if frame is not None:
            if not waiting and not graph.configured:
                source = graph.add_buffer(
                    width=frame.width,
                    height=frame.height,
                    format=frame.format,
                    time_base=Fraction(1, 1),
                )
                bwdif = graph.add("bwdif", "mode=send_frame:deint=interlaced")
                graph.link_nodes(source, bwdif, graph.add("buffersink")).configure()
            waiting.append((number, frame))
        graph.push(frame)
        # It comes one frame late.
        while len(waiting) > (frame is not None):
            filtered = graph.vpull()
            index, stored = waiting.popleft()
            filtered.pts, filtered.time_base = stored.pts, stored.time_base
            yield index, filtered


def open_container(path: Path) -> InputContainer:
    """Open a video file. Raises VideoError: missing, a folder, empty, not a video, or cut off."""
    try:
        options = {"format_whitelist": _FORMATS, "protocol_whitelist": "file"}
        return av.open(f"file:{path}", options=options)
    except (av.FFmpegError, OSError) as error:
        raise VideoError(f"{path} {_problem(path, error)}.") from error


def _problem(path: Path, error: Exception) -> str:
    if path.is_dir():
        return "is a folder; give a video file"
    if not path.exists():
        return "does not exist; give the path of a video file"
    if path.stat().st_size == 0:
        return "is empty (0 bytes); copy it again"
    if isinstance(error, PermissionError):
        return "may not be read; check its permissions"
    if isinstance(error, EOFError):
        return "ends before its first frame"

    with path.open("rb") as file:
        head = file.read(4096)
        is_mp4 = head[4:8] == b"ftyp"
        names = [name for name, _, _ in boxes(file, 0, path.stat().st_size)] if is_mp4 else []
    if names and b"moov" not in names:
        return (
            "is cut off: an MP4 without its index ('moov'). Copy it again, or try a recovery tool"
        )
    text = head.decode("utf-8", "ignore").encode()  # a character may be cut at the end
    if b"\0" not in head and len(text) > len(head) - 4:
        return "is a text file; give a video file"
    return "is not a video that can be read; valid: mp4, mov, mkv, webm, avi, ts"


def is_cut_off(path: Path) -> bool:
    """Return whether an MP4 file ends before its last box."""
    size = path.stat().st_size
    with path.open("rb") as file:
        return any(end > size for _, _, end in boxes(file, 0, size))


def boxes(file: BinaryIO, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield name, content start and end of MP4 boxes (ISO/IEC 14496-12), the last maybe cut."""
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


def video_stream(container: InputContainer, path: Path, track: int | None = None) -> VideoStream:
    """Return a video stream, by default the first without cover pictures. Raises VideoError."""
    if track is not None:
        return container.streams.video[track]
    for stream in container.streams.video:
        if not stream.disposition & Disposition.attached_pic:
            return stream
    kinds = sorted({stream.type for stream in container.streams})
    content = f"only {' and '.join(kinds)}" if kinds else "no stream at all"
    raise VideoError(f"{path} contains {content}; a video stream is needed.")


def decoded(
    container: InputContainer, stream: VideoStream, parallel: bool
) -> Iterator[av.VideoFrame]:
    """Yield frames in decoder order; broken packets raise if ``parallel``, else are skipped."""
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


def scan(path: Path, track: int | None = None) -> VideoIndex:
    """Return the index of a video file. Raises VideoError: no video, or no frame decodes."""
    listing = _list_packets(path, track)
    with open_container(path) as container:
        stream = video_stream(container, path, track)
        first = next(decoded(container, stream, parallel=False), None)

    if first is None:
        raise VideoError(f"{path}: the video stream has no frame that can be decoded.")
    notes, changes, aspect = [], dict[str, str](), listing.pixel_aspect
    width, height = first.width, first.height
    if abs(aspect - 1) > _SQUARE and 1 / 4 < aspect < 4:
        width = round(width * aspect)
        changes["pixel_aspect"] = str(aspect)
        notes.append(f"pixels of {aspect} are made square: {width} x {height}")
    if first.interlaced_frame:
        changes["deinterlaced"] = "bwdif"
        notes.append("interlaced: deinterlaced, one frame of each two fields")

    packed = first.side_data.get("STEREO3D")
    pts: np.ndarray | None
    if listing.pts is not None and first.pts is not None and first.pts in listing.pts:
        order = np.argsort(listing.pts)
        pts, keys = np.array(listing.pts)[order], np.array(listing.keys)[order]
        leading = int(np.searchsorted(pts, first.pts))
        if leading:
            notes.append(f"{leading} frames before the first key frame cannot be decoded")
        pts, keys = pts[leading:], keys[leading:]
        times = _to_ns(pts.tolist(), listing.time_base)
    else:
        pts, keys, times, more = _scan_by_decoding(path, listing, track)
        notes += more

    rotation, mirrored = _orientation(first)
    turned = rotation % 180 == 90

    return VideoIndex(
        path=path,
        pts=pts,
        keyframes=(0,) if pts is None else (0, *(int(i) for i in np.flatnonzero(keys) if i > 0)),
        timestamps_ns=np.array(times, np.int64),
        fps=_nominal_fps(times, listing),
        width=height if turned else width,
        height=width if turned else height,
        rotation=rotation,
        mirrored=mirrored,
        damaged=listing.damaged,
        notes=tuple(notes),
        track=track,
        changes=changes,
        two_pictures=isinstance(packed, SideData) and bytes(packed)[0] in _PACKED,
    )


@dataclass(slots=True)
class _Listing:
    """The video packets of a container in storage order; ``pts`` None: untrustworthy stamps."""

    pts: list[int] | None
    keys: list[bool]
    time_base: Fraction
    rates: tuple[float, ...]
    expected: int
    damaged: bool
    reorders: bool
    pixel_aspect: Fraction


def _list_packets(path: Path, track: int | None) -> _Listing:
    with open_container(path) as container:
        stream = video_stream(container, path, track)
        stored: list[int | None] = []
        keys, damaged = [], False
        try:
            for packet in container.demux(stream):
                damaged = damaged or packet.is_corrupt
                if packet.size > 0 and not packet.is_discard:
                    stored.append(packet.pts)
                    keys.append(packet.is_keyframe)
        except av.FFmpegError:
            damaged = True

        kinds = set(container.format.name.split(","))
        rates = (stream.average_rate, stream.guessed_rate)
        time_base = stream.time_base or Fraction(1, 1000)
        expected = _expected_frames(path, container, stream, stored) or len(stored)
        damaged = damaged or expected > len(stored)
        reorders = bool(stream.codec_context.has_b_frames)
        pts = [stamp for stamp in stored if stamp is not None]
        trusted = (
            len(set(pts)) == len(stored)  # none missing or repeated
            and not damaged
            and bool(kinds & _ONE_PACKET_ONE_FRAME)
            and stream.codec_context.name != "vp8"  # its packets may show nothing
            # Reordered frames must have unsorted stamps.
            and not (reorders and len(pts) > 3 and pts == sorted(pts))
        )

        return _Listing(
            pts=pts if trusted else None,
            keys=keys,
            time_base=time_base,
            rates=tuple(float(rate) for rate in rates if rate),
            expected=expected,
            damaged=damaged,
            reorders=reorders,
            pixel_aspect=stream.sample_aspect_ratio or Fraction(1),
        )


def _expected_frames(
    path: Path, container: InputContainer, stream: VideoStream, stored: list[int | None]
) -> int | None:
    """Return the announced number of frames, for Matroska an estimate; None: not announced."""
    if "mov" in container.format.name:
        if hasattr(stream, "index_entries"):  # from PyAV 17 on
            return sum(not entry.is_discard for entry in stream.index_entries)
        return stream.frames if is_cut_off(path) else None
    duration, rate = stream.metadata.get("DURATION"), stream.average_rate
    pts = [stamp for stamp in stored if stamp is not None]
    if "matroska" not in container.format.name or len(pts) < len(stored):
        return None
    if not (duration and rate and pts):
        return None
    hours, minutes, seconds = duration.split(":")
    total = int(hours) * 3600 + int(minutes) * 60 + float(seconds)
    shown = float(max(pts) * (stream.time_base or Fraction(1, 1000)))
    missing = total - shown - float(1 / rate)
    # With a variable rate, the last frame may be long.
    return len(pts) + (round(missing * rate) if missing > max(0.25, float(2 / rate)) else 0)


def _scan_by_decoding(
    path: Path, listing: _Listing, track: int | None
) -> tuple[np.ndarray | None, np.ndarray, list[int], list[str]]:
    """Return pts (or None), key flags, times and notes of the decodable frames."""
    with open_container(path) as container:
        stream = video_stream(container, path, track)
        frames = [(f.pts, bool(f.key_frame)) for f in decoded(container, stream, parallel=False)]

    stored = [stamp for stamp, _ in frames]
    pts = [stamp for stamp in stored if stamp is not None]
    keys = np.array([key for _, key in frames])
    notes = []
    lost = listing.expected - len(frames)
    if listing.damaged and lost > 0:
        notes.append(f"cut off or damaged: at least {lost} of {lost + len(frames)} frames are lost")
    if len(pts) == len(stored) and all(a < b for a, b in itertools.pairwise(pts)):
        return np.array(pts, np.int64), keys, _to_ns(pts, listing.time_base), notes

    if not pts:
        rate = listing.rates[0] if listing.rates else 30.0
        notes.append(f"no time stamps: {rate:g} frames per second assumed")
        return None, keys, [round(i * 1e9 / rate) for i in range(len(stored))], notes

    if listing.reorders and len(set(pts)) == len(stored):
        stored = [*sorted(pts)]  # AVI stamps packets in storage order
    times, repaired = repair_times(
        [None if stamp is None else _to_ns([stamp], listing.time_base)[0] for stamp in stored]
    )
    if repaired:
        notes.append(f"{repaired} time stamps were missing or did not increase; interpolated")

    return None, keys, times, notes


def repair_times(times: list[int | None]) -> tuple[list[int], int]:
    """Return strictly increasing times and the number of changed ones.

    The longest increasing subsequence is kept, the others are interpolated, or extrapolated at the
    median interval.
    """
    tails: list[int] = []  # positions that end the best subsequence of each length
    before: dict[int, int] = {}
    known = {i: time for i, time in enumerate(times) if time is not None}
    for i, time in known.items():
        at = bisect.bisect_left(tails, time, key=lambda j: known[j])
        if at < len(tails) and known[tails[at]] == time:
            continue  # the first of equal stamps is kept
        if at:
            before[i] = tails[at - 1]
        tails[at:] = [i] if at == len(tails) else [i, *tails[at + 1 :]]

    kept = [tails[-1]]
    while kept[-1] in before:
        kept.append(before[kept[-1]])
    kept.reverse()
    origin = known[kept[0]]  # times since 1970 in ns would not fit a float
    values = np.array([known[i] - origin for i in kept], np.float64)
    step = float(np.median(np.diff(values) / np.diff(kept))) if len(kept) > 1 else 1e9 / 30
    spread = np.interp(np.arange(len(times)), kept, values)
    head, tail = np.arange(kept[0]), np.arange(kept[-1] + 1, len(times))
    spread[head] = values[0] + (head - kept[0]) * step
    spread[tail] = values[-1] + (tail - kept[-1]) * step
    result = np.round(spread).astype(np.int64) + origin
    result[kept] = [known[i] for i in kept]

    return result.tolist(), len(times) - len(kept)


def _to_ns(stamps: list[int], time_base: Fraction) -> list[int]:
    scale = time_base * 1_000_000_000
    top, bottom = scale.numerator, scale.denominator
    return [(2 * stamp * top + bottom) // (2 * bottom) for stamp in stamps]


def _nominal_fps(times: list[int], listing: _Listing) -> float:
    """Return the announced rate if the stamps agree with it, else their mean rate."""
    announced = [rate for rate in listing.rates if 0.01 <= rate <= 2000]
    if len(times) < 2:
        return announced[0] if announced else 30.0
    span = (times[-1] - times[0]) / 1e9
    mean = (len(times) - 1) / span
    typical = 1e9 / float(np.median(np.diff(times)))  # unlike the mean, robust to gaps
    tick = float(listing.time_base)
    for rate in announced:
        near_mean = abs(rate / mean - 1) <= 0.005 + 2 * tick / span
        if near_mean or abs(rate / typical - 1) <= 0.005 + tick * typical:
            return rate
    return mean


def _orientation(frame: av.VideoFrame) -> tuple[int, bool]:
    """Return rotation (degrees counter-clockwise) and mirroring of the display matrix."""
    matrix = frame.side_data.get("DISPLAYMATRIX")
    if not isinstance(matrix, SideData):
        return 0, False
    a, b, _, c, d = np.frombuffer(bytes(matrix), np.int32)[:5].tolist()
    mirrored = a * d - b * c < 0
    a = -a if mirrored else a  # flip last: x' = a x + c y, y' = b x + d y
    return round(math.degrees(math.atan2(-b, a)) / 90) % 4 * 90, mirrored
