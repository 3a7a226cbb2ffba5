"""The frames of a bag by index, any number of times.

Pictures that are a video stream have one packet per message (h264 and others).
"""

from __future__ import annotations

import bisect
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
from jaxtyping import Int

from acehand_core.errors import InputError, SchemaError
from acehand_core.recordings.bags.bag import Bag
from acehand_core.recordings.bags.images import decode_image
from acehand_core.recordings.bags.library import FFMPEG_PACKET, UnpackedFiles, decode
from acehand_core.recordings.bags.records import Data, DroppedMessages
from acehand_core.recordings.video_index import rgb_options
from acehand_core.types import ImageRgb


class BagFrames:
    """A ``FrameSource`` over T picture messages of a bag.

    ``places`` (T, 4) says where each lies (file, place in it). Every thread opens the bag for
    itself, and holds two chunks of it at most; ``copies`` are for all of them. A picture that turns
    out not to decode shows the one before it and is counted, once, in ``dropped``.
    """

    def __init__(
        self,
        path: Path,
        topic: str,
        msgtype: str,
        places: Int[np.ndarray, "T 4"],
        size: tuple[int, int],
        mirrored: bool,
        dropped: DroppedMessages,
        copies: UnpackedFiles,
    ) -> None:
        self.path, self.topic, self.msgtype = path, topic, msgtype
        self._places, self._size, self._mirrored = places, size, mirrored
        self.dropped, self.copies = dropped, copies
        self._broken: set[int] = set()
        self._local = threading.local()

    def __len__(self) -> int:
        return len(self._places)

    def read(self, start: int, stop: int) -> Iterator[ImageRgb]:
        """Yield frames ``start`` to ``stop - 1``."""
        self._check(start, stop)
        for index in range(start, stop):
            yield self.at(index)

    def at(self, index: int) -> ImageRgb:
        """Return one frame."""
        self._check(index, index + 1)
        for near in (*range(index, -1, -1), *range(index + 1, len(self))):
            if near in self._broken:
                continue
            try:
                message = decode(self._read(self._places[near]), self.msgtype)
                return self._as_shown(decode_image(message, self.msgtype))
            except SchemaError as error:
                self._count_broken(near, str(error))
        raise InputError(f"{self.path}: no picture of {self.topic} decodes.")

    def mirrored(self) -> BagFrames:
        """Return the same frames with left and right exchanged."""
        return BagFrames(self.path, self.topic, self.msgtype, self._places, self._size,
                         not self._mirrored, self.dropped, self.copies)  # fmt: skip

    def _read(self, row: Int[np.ndarray, "4"]) -> Data:
        """Return one message's data from the bag as the calling thread has it open."""
        bag = self._local.__dict__.get("bag")
        if bag is None:
            bag = self._local.bag = Bag(self.path, copies=self.copies)
        file, *place = row.tolist()
        return bag.read(file, tuple(place))

    def _as_shown(self, image: ImageRgb) -> ImageRgb:
        if (image.shape[1], image.shape[0]) != self._size:
            raise SchemaError(f"a picture of {image.shape[1]} x {image.shape[0]} pixels")
        return np.ascontiguousarray(image[:, ::-1]) if self._mirrored else image

    def _count_broken(self, index: int, reason: str) -> None:
        if index not in self._broken:
            self._broken.add(index)
            self.dropped.count(self.topic, f"{reason}; the picture before it is shown instead")

    def _check(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= len(self):
            raise IndexError(
                f"{self.path}: frames {start} to {stop - 1} asked for; valid: 0 to {len(self) - 1}."
            )


class PacketFrames(BagFrames):
    """Frames that are a video stream: decoded from the key frame before them.

    ``stream`` (P, 4) are all packets in the order of the stream, ``packet`` (T,) the one that shows
    each frame, ``keys`` the packets at which decoding can start.
    """

    def __init__(
        self,
        base: BagFrames,
        codec: str,
        stream: Int[np.ndarray, "P 4"],
        packet: Int[np.ndarray, "T"],
        keys: list[int],
    ) -> None:
        super().__init__(base.path, base.topic, base.msgtype, stream[packet], base._size,
                         base._mirrored, base.dropped, base.copies)  # fmt: skip
        self._stream, self._packet, self._keys, self._codec = stream, packet, keys, codec
        self._frame_of = {int(p): i for i, p in enumerate(packet)}

    def read(self, start: int, stop: int) -> Iterator[ImageRgb]:
        """Yield frames ``start`` to ``stop - 1``."""
        self._check(start, stop)
        due, held = start, None
        if start == stop:
            return

        for packet, image in self._decoder().decode(int(self._packet[start])):
            index = self._frame_of.get(packet)
            if index is None or (image.shape[1], image.shape[0]) != self._size:
                continue
            image = self._as_shown(image)
            while due < min(index, stop):
                self._count_broken(due, "a packet that does not decode")
                yield image if held is None else held
                due += 1
            held = image
            if index == due:
                yield image
                due += 1
            if due >= stop:
                return

        for missing in range(due, stop):
            if held is None:
                raise InputError(f"{self.path}: packet {missing} of {self.topic} does not decode.")
            self._count_broken(missing, "a packet that does not decode")
            yield held

    def at(self, index: int) -> ImageRgb:
        """Return one frame; cheap where the calling thread asks for frames in order."""
        self._check(index, index + 1)
        last, frames = self._local.__dict__.pop("cursor", (-2, None))
        if frames is None or index != last + 1:
            frames = self.read(index, len(self))
        image = next(frames)
        self._local.cursor = index, frames
        return image

    def mirrored(self) -> PacketFrames:
        """Return the same frames with left and right exchanged."""
        return PacketFrames(super().mirrored(), self._codec, self._stream, self._packet, self._keys)

    def _decoder(self) -> PacketDecoder:
        def data(packet: int) -> bytes:
            return bytes(decode(self._read(self._stream[packet]), self.msgtype).data)

        return PacketDecoder(self._codec, self._keys, len(self._stream), data)


#: Names that messages use -> FFmpeg's decoder.
_CODECS = (
    (re.compile(r"h\.?264|avc|x264", re.IGNORECASE), "h264"),
    (re.compile(r"h\.?265|hevc|x265", re.IGNORECASE), "hevc"),
    (re.compile(r"av1", re.IGNORECASE), "av1"),
    (re.compile(r"vp9", re.IGNORECASE), "vp9"),
)
_KEY_FLAG = 1
_NAL_UNIT = re.compile(b"\x00\x00\x01(.)", re.DOTALL)


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
    # The bytes behind start codes hold the kinds of the units of the stream.
    heads = [unit[1][0] for unit in _NAL_UNIT.finditer(bytes(message.data)[:4096])]
    if codec == "h264":
        return any(head & 0x1F in (5, 7) for head in heads)
    if codec == "hevc":
        return any((head >> 1) & 0x3F in (*range(16, 22), 32, 33) for head in heads)
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
        context: Any = av.CodecContext.create(self._codec, "r")
        context.thread_type = "SLICE"
        for number in range(self._keys[max(at, 0)], self._count + 1):
            packet = None  # after the last one: what the decoder still holds
            if number < self._count:
                packet = av.Packet(self._packet(number))
                packet.pts = number
            try:
                decoded = context.decode(packet)
            except av.FFmpegError:
                continue  # its frame stays away, which the caller notices
            for frame in decoded:
                if frame.pts is not None:
                    image = frame.to_ndarray(**rgb_options(frame))
                    yield int(frame.pts), np.ascontiguousarray(image)
