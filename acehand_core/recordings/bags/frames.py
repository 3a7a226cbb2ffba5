"""The frames of a bag by index: pictures, or video with one packet per message."""

from __future__ import annotations

import bisect
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import av
import numpy as np
from jaxtyping import Int

from acehand_core.errors import InputError, SchemaError
from acehand_core.motion import DroppedMessages
from acehand_core.recordings.bags.bag import Bag
from acehand_core.recordings.bags.images import decode_image
from acehand_core.recordings.bags.library import FFMPEG_PACKET, UnpackedFiles, decode
from acehand_core.recordings.bags.records import Data
from acehand_core.recordings.video import check_range
from acehand_core.recordings.video_index import rgb_options
from acehand_core.types import ImageRgb

#: Codec names in messages -> FFmpeg's decoder.
_CODECS = {r"h\.?264|avc|x264": "h264", r"h\.?265|hevc|x265": "hevc", r"av1": "av1", r"vp9": "vp9"}
_KEY_FLAG = 1
_NAL_UNIT = re.compile(b"\x00\x00\x01(.)", re.DOTALL)


@dataclass(eq=False)
class BagMessages:
    """T messages with pictures of one size, by index.

    ``places`` are file and place of each. Every thread opens the bag for itself; ``copies`` are
    shared. A picture that does not decode is counted in ``dropped``, once; ``instead`` says what is
    given for it.
    """

    instead: ClassVar[str]
    path: Path
    topic: str
    msgtype: str
    places: Int[np.ndarray, "T 4"]
    size: tuple[int, int]
    dropped: DroppedMessages
    copies: UnpackedFiles
    _broken: set[int] = field(default_factory=set, init=False)
    _local: threading.local = field(default_factory=threading.local, init=False)

    def __len__(self) -> int:
        return len(self.places)

    def message(self, index: int) -> Any:
        """Return one message. Raises SchemaError: it does not decode."""
        return decode(self._read(self.places[index]), self.msgtype)

    def _read(self, row: Int[np.ndarray, "4"]) -> Data:
        """Return one message's data from the calling thread's bag."""
        bag = self._local.__dict__.get("bag")
        if bag is None:
            bag = self._local.bag = Bag(self.path, copies=self.copies)
        file, *place = row.tolist()
        return bag.read(file, tuple(place))

    def _count_broken(self, index: int, reason: str) -> None:
        if index not in self._broken:
            self._broken.add(index)
            self.dropped.count(self.topic, f"{reason}; {self.instead}")


class BagFrames(BagMessages):
    """A ``FrameSource``; a picture that does not decode is replaced by the one before it."""

    instead = "the picture before it is shown instead"

    def read(self, start: int, stop: int) -> Iterator[ImageRgb]:
        check_range(self.path, start, stop, len(self))
        for index in range(start, stop):
            yield self.at(index)

    def at(self, index: int) -> ImageRgb:
        check_range(self.path, index, index + 1, len(self))
        for near in (*range(index, -1, -1), *range(index + 1, len(self))):
            if near in self._broken:
                continue
            try:
                image = decode_image(self.message(near), self.msgtype)
                if (image.shape[1], image.shape[0]) != self.size:
                    raise SchemaError(f"a picture of {image.shape[1]} x {image.shape[0]} pixels")
                return image
            except SchemaError as error:
                self._count_broken(near, str(error))
        raise InputError(f"{self.path}: no picture of {self.topic} decodes.")


@dataclass(eq=False)
class PacketFrames(BagFrames):
    """Frames of a video stream, decoded from the key frame before them.

    ``stream`` are all packets in order, ``packet`` that of each frame, ``keys`` the key packets.
    """

    codec: str
    stream: Int[np.ndarray, "P 4"]
    packet: Int[np.ndarray, "T"]
    keys: list[int]

    def __post_init__(self) -> None:
        self._frame_of = {int(p): i for i, p in enumerate(self.packet)}

    def read(self, start: int, stop: int) -> Iterator[ImageRgb]:
        check_range(self.path, start, stop, len(self))
        due, previous = start, None
        if start == stop:
            return

        first = int(self.packet[start])
        key = self.keys[max(bisect.bisect_right(self.keys, first) - 1, 0)]
        for packet, image in decode_packets(self.codec, key, len(self.stream), self._data):
            index = self._frame_of.get(packet)
            if index is None or (image.shape[1], image.shape[0]) != self.size:
                continue
            while due < min(index, stop):
                self._count_broken(due, "a packet that does not decode")
                yield image if previous is None else previous
                due += 1
            previous = image
            if index == due:
                yield image
                due += 1
            if due >= stop:
                return

        for missing in range(due, stop):
            if previous is None:
                raise InputError(f"{self.path}: packet {missing} of {self.topic} does not decode.")
            self._count_broken(missing, "a packet that does not decode")
            yield previous

    def at(self, index: int) -> ImageRgb:
        """Return one frame; cheap if the calling thread reads in order."""
        check_range(self.path, index, index + 1, len(self))
        last, frames = self._local.__dict__.pop("cursor", (-2, None))
        if frames is None or index != last + 1:
            frames = self.read(index, len(self))
        image = next(frames)
        self._local.cursor = index, frames
        return image

    def _data(self, packet: int) -> bytes:
        return bytes(decode(self._read(self.stream[packet]), self.msgtype).data)


def codec_of(message: Any, msgtype: str) -> str:
    """Return FFmpeg's name of a packet's codec. Raises SchemaError for an unknown one."""
    name = message.encoding if msgtype == FFMPEG_PACKET else message.format
    for pattern, codec in _CODECS.items():
        if re.search(pattern, name, re.IGNORECASE):
            return codec
    raise SchemaError(f"video packets of {name!r}; valid: h264, h265, av1, vp9")


def is_key(message: Any, msgtype: str, codec: str) -> bool:
    """Return whether decoding can start at this packet."""
    if msgtype == FFMPEG_PACKET:
        return bool(message.flags & _KEY_FLAG)
    # The byte behind a start code holds the NAL unit's type.
    heads = [unit[1][0] for unit in _NAL_UNIT.finditer(bytes(message.data)[:4096])]
    if codec == "h264":
        return any(head & 0x1F in (5, 7) for head in heads)
    if codec == "hevc":
        return any((head >> 1) & 0x3F in (*range(16, 22), 32, 33) for head in heads)
    return True


def decode_packets(
    codec: str, key: int, count: int, packet: Callable[[int], bytes]
) -> Iterator[tuple[int, ImageRgb]]:
    """Yield (number, picture) of the packets from ``key`` to ``count - 1``, as they come out."""
    context: Any = av.CodecContext.create(codec, "r")
    context.thread_type = "SLICE"
    for number in range(key, count + 1):
        coded = None  # at the end: flush the decoder
        if number < count:
            coded = av.Packet(packet(number))
            coded.pts = number
        try:
            decoded = context.decode(coded)
        except av.FFmpegError:
            continue  # the caller counts the missing frame
        for frame in decoded:
            if frame.pts is not None:
                image = frame.to_ndarray(**rgb_options(frame))
                yield int(frame.pts), np.ascontiguousarray(image)
