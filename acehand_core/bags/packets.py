"""Pictures that are a video stream inside a bag: one packet per message (h264 and others)."""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import av
import numpy as np
from av.video.reformatter import ColorRange, Colorspace

from acehand_core.bags.typestore import FFMPEG_PACKET
from acehand_core.errors import SchemaError
from acehand_core.types import ImageRgb

#: Names that messages use -> FFmpeg's decoder.
_CODECS = (
    (re.compile(r"h\.?264|avc|x264", re.IGNORECASE), "h264"),
    (re.compile(r"h\.?265|hevc|x265", re.IGNORECASE), "hevc"),
    (re.compile(r"av1", re.IGNORECASE), "av1"),
    (re.compile(r"vp9", re.IGNORECASE), "vp9"),
)
_KEY_FLAG = 1


def codec_of(message: Any, msgtype: str) -> str:
    """Return FFmpeg's name of a packet's codec. Raises SchemaError for an unknown one."""
    name = message.encoding if msgtype == FFMPEG_PACKET else message.format
    for pattern, codec in _CODECS:
        if pattern.search(name):
            return codec
    raise SchemaError(f"video packets of {name!r}; valid: h264, h265, av1, vp9")


def is_key(message: Any, msgtype: str, codec: str) -> bool:
    """Tell whether decoding can start at this packet."""
    if msgtype == FFMPEG_PACKET:
        return bool(message.flags & _KEY_FLAG)
    kinds = set(_nal_types(bytes(message.data), codec))
    if codec == "h264":
        return 5 in kinds or 7 in kinds
    if codec == "hevc":
        return bool(kinds & {16, 17, 18, 19, 20, 21, 32, 33})
    return True


class PacketDecoder:
    """Decodes N packets in the order of the stream; knows which are key frames."""

    def __init__(
        self, codec: str, keys: Sequence[int], count: int, packet: Callable[[int], bytes]
    ) -> None:
        self._codec, self._keys, self._count, self._packet = codec, list(keys), count, packet

    def decode(self, start: int) -> Iterator[tuple[int, ImageRgb]]:
        """Yield (packet, picture) from the key frame before ``start`` on, as they come out."""
        at = bisect.bisect_right(self._keys, start) - 1
        context = av.CodecContext.create(self._codec, "r")
        context.thread_type = "SLICE"
        for number in range(self._keys[max(at, 0)], self._count):
            packet = av.Packet(self._packet(number))
            packet.pts = number
            yield from _pictures(context, packet)
        yield from _pictures(context, None)


def _pictures(context: Any, packet: av.Packet | None) -> Iterator[tuple[int, ImageRgb]]:
    try:
        decoded = context.decode(packet)
    except av.FFmpegError:
        return  # its frame stays away, which the caller notices
    for frame in decoded:
        if frame.pts is not None:
            yield int(frame.pts), np.ascontiguousarray(frame.to_ndarray(**rgb_options(frame)))


def _nal_types(data: bytes, codec: str) -> Iterator[int]:
    for found in re.finditer(b"\x00\x00\x01(.)", data[:4096], re.DOTALL):
        head = found[1][0]
        yield head & 0x1F if codec == "h264" else (head >> 1) & 0x3F


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
