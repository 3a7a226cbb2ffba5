"""Which frames a video file has and when each was taken.

Where presentation stamps can be trusted the packets are only listed, not decoded; else every frame
is decoded once and what came out is the truth.
"""

from __future__ import annotations

import bisect
import itertools
import math
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.container import InputContainer
from av.sidedata.sidedata import SideData
from av.video.stream import VideoStream

from acehand_core.errors import VideoError
from acehand_core.recordings.video_index import (
    VideoIndex,
    decoded,
    is_cut_off,
    open_container,
    video_stream,
)

#: In these containers one packet is one frame and carries its own presentation stamp.
_ONE_PACKET_ONE_FRAME = {"mov", "matroska"}


def scan(path: Path) -> VideoIndex:
    """List the frames of a video file.

    Raises:
        VideoError: the file cannot be opened, has no video stream, or no frame that decodes.
    """
    listing = _list_packets(path)
    with open_container(path) as container:
        stream = video_stream(container, path)
        first = next(decoded(container, stream, parallel=False), None)

    if first is None:
        raise VideoError(f"{path}: the video stream has no frame that can be decoded.")
    notes = []
    if listing.pixel_aspect != 1:
        notes.append(f"pixels are not square ({listing.pixel_aspect}); frames are read as stored")
    if first.interlaced_frame:
        notes.append("interlaced: moving edges are combed")

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
        pts, keys, times, more = _scan_by_decoding(path, listing)
        notes += more

    keyframes = (0, *(int(i) for i in np.flatnonzero(keys) if i > 0)) if pts is not None else (0,)
    rotation, mirrored = _orientation(first)
    turned = rotation % 180 == 90

    return VideoIndex(
        path=path,
        pts=pts,
        keyframes=keyframes,
        timestamps_ns=np.array(times, np.int64),
        fps=_nominal_fps(times, listing),
        width=first.height if turned else first.width,
        height=first.width if turned else first.height,
        rotation=rotation,
        mirrored=mirrored,
        damaged=listing.damaged,
        notes=tuple(notes),
    )


@dataclass(slots=True)
class _Listing:
    """What the container says about its video packets, in storage order.

    ``pts`` is None where the packets' stamps cannot be trusted.
    """

    pts: list[int] | None
    keys: list[bool]
    time_base: Fraction
    rates: tuple[float, ...]
    expected: int
    damaged: bool
    reorders: bool
    pixel_aspect: Fraction


def _list_packets(path: Path) -> _Listing:
    with open_container(path) as container:
        stream = video_stream(container, path)
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
        expected = _expected_frames(path, container, stream, stored, time_base) or len(stored)
        damaged = damaged or expected > len(stored)
        reorders = bool(stream.codec_context.has_b_frames)
        pts = [stamp for stamp in stored if stamp is not None]
        trusted = (
            len(set(pts)) == len(stored)  # none is missing or repeated
            and not damaged
            and bool(kinds & _ONE_PACKET_ONE_FRAME)
            and stream.codec_context.name != "vp8"  # its packets may show nothing
            # Frames that are stored out of order must carry stamps that are, too.
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
    path: Path,
    container: InputContainer,
    stream: VideoStream,
    stored: list[int | None],
    time_base: Fraction,
) -> int | None:
    """Return how many frames the container announces, if it does; an estimate for Matroska."""
    if "mov" in container.format.name:
        if hasattr(stream, "index_entries"):  # from PyAV 17 on
            return sum(not entry.is_discard for entry in stream.index_entries)
        return stream.frames if is_cut_off(path) else None
    duration, rate = stream.metadata.get("DURATION"), stream.average_rate
    pts = [stamp for stamp in stored if stamp is not None]
    if "matroska" not in container.format.name or not (duration and rate and pts):
        return None
    if len(pts) < len(stored):
        return None
    hours, minutes, seconds = duration.split(":")
    total = int(hours) * 3600 + int(minutes) * 60 + float(seconds)
    missing = total - float(max(pts) * time_base) - float(1 / rate)
    # The last frame of a variable rate may be shown long.
    return len(pts) + (round(missing * rate) if missing > max(0.25, float(2 / rate)) else 0)


def _scan_by_decoding(
    path: Path, listing: _Listing
) -> tuple[np.ndarray | None, np.ndarray, list[int], list[str]]:
    """Return pts (or None), key flags, times and notes of the frames that decode."""
    with open_container(path) as container:
        stream = video_stream(container, path)
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
    """Return strictly increasing times and how many had to be changed.

    The longest increasing subsequence is kept; the others are spread between their neighbours, or
    continue at the median interval.
    """
    tails: list[int] = []  # positions that end the best subsequence of each length
    before: dict[int, int] = {}
    known = {i: time for i, time in enumerate(times) if time is not None}
    for i, time in known.items():
        at = bisect.bisect_left(tails, time, key=lambda j: known[j])
        if at < len(tails) and known[tails[at]] == time:
            continue  # of equal stamps the first is right
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
    """Return the announced rate if the stamps agree with it, else the mean rate they show."""
    announced = [rate for rate in listing.rates if 0.01 <= rate <= 2000]
    if len(times) < 2:
        return announced[0] if announced else 30.0
    span = (times[-1] - times[0]) / 1e9
    mean = (len(times) - 1) / span
    typical = 1e9 / float(np.median(np.diff(times)))  # unlike the mean, blind to gaps
    tick = float(listing.time_base)
    for rate in announced:
        near_mean = abs(rate / mean - 1) <= 0.005 + 2 * tick / span
        if near_mean or abs(rate / typical - 1) <= 0.005 + tick * typical:
            return rate
    return mean


def _orientation(frame: av.VideoFrame) -> tuple[int, bool]:
    """Return rotation (counter-clockwise degrees) and mirroring of the display matrix."""
    matrix = frame.side_data.get("DISPLAYMATRIX")
    if not isinstance(matrix, SideData):
        return 0, False
    a, b, _, c, d = np.frombuffer(bytes(matrix), np.int32)[:5].tolist()
    mirrored = a * d - b * c < 0
    a = -a if mirrored else a  # the flip comes last: x' = a x + c y, y' = b x + d y
    return round(math.degrees(math.atan2(-b, a)) / 90) % 4 * 90, mirrored
