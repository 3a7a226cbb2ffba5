"""The frames of a bag by index, any number of times and in either direction."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Int

from acehand_core.bags.bag import Bag
from acehand_core.bags.images import decode_image
from acehand_core.bags.packets import PacketDecoder
from acehand_core.bags.records import Data, Losses
from acehand_core.bags.typestore import decode
from acehand_core.errors import InputError, SchemaError
from acehand_core.types import ImageRgb

_REVERSED_BYTES = 200_000_000


class BagFrames:
    """A ``FrameSource`` over T picture messages of a bag.

    ``places`` (T, 4) says where each lies (file, place in it). Every thread opens the bag for
    itself, and holds two chunks of it at most. A picture that turns out not to decode shows the one
    before it and is counted, once, in ``losses``.
    """

    def __init__(
        self,
        path: Path,
        topic: str,
        msgtype: str,
        places: Int[np.ndarray, "T 4"],
        size: tuple[int, int],
        mirrored: bool,
        losses: Losses,
    ) -> None:
        self.path, self.topic, self.msgtype = path, topic, msgtype
        self._places, self._size, self._mirrored = places, size, mirrored
        self.losses = losses
        self._broken: set[int] = set()
        self._local = threading.local()

    def __len__(self) -> int:
        return len(self._places)

    def read(self, start: int, stop: int) -> Iterator[ImageRgb]:
        """Yield frames ``start`` to ``stop - 1``."""
        self._check(start, stop)
        for index in range(start, stop):
            yield self.at(index)

    def read_reversed(self, start: int, stop: int) -> Iterator[ImageRgb]:
        """Yield frames ``stop - 1`` down to ``start`` in bounded memory."""
        self._check(start, stop)
        for index in range(stop - 1, start - 1, -1):
            yield self.at(index)

    def at(self, index: int) -> ImageRgb:
        """Return one frame."""
        self._check(index, index + 1)
        for near in (*range(index, -1, -1), *range(index + 1, len(self))):
            if near in self._broken:
                continue
            try:
                return self._turned(decode_image(decode(self._data(near), self.msgtype),
                                                 self.msgtype))  # fmt: skip
            except SchemaError as error:
                self._lose(near, str(error))
        raise InputError(f"{self.path}: no picture of {self.topic} decodes.")

    def mirrored(self) -> BagFrames:
        """Return the same frames with left and right exchanged."""
        return BagFrames(self.path, self.topic, self.msgtype, self._places, self._size,
                         not self._mirrored, self.losses)  # fmt: skip

    def _data(self, index: int) -> Data:
        return self._read(self._places[index])

    def _read(self, row: Int[np.ndarray, "4"]) -> Data:
        """Return one message's data from the bag as the calling thread has it open."""
        bag = self._local.__dict__.get("bag")
        if bag is None:
            bag = self._local.bag = Bag(self.path)
        file, *place = row.tolist()
        return bag.read(file, tuple(place))

    def _turned(self, image: ImageRgb) -> ImageRgb:
        if (image.shape[1], image.shape[0]) != self._size:
            raise SchemaError(f"a picture of {image.shape[1]} x {image.shape[0]} pixels")
        return np.ascontiguousarray(image[:, ::-1]) if self._mirrored else image

    def _lose(self, index: int, reason: str) -> None:
        if index not in self._broken:
            self._broken.add(index)
            self.losses.lose(self.topic, f"{reason}; the picture before it is shown instead")

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
                         base._mirrored, base.losses)  # fmt: skip
        self._stream, self._packet, self._keys, self._codec = stream, packet, keys, codec
        self._frame_of = {int(p): i for i, p in enumerate(packet)}

    def read(self, start: int, stop: int) -> Iterator[ImageRgb]:
        """Yield frames ``start`` to ``stop - 1``."""
        self._check(start, stop)
        wanted, held = start, None
        if start == stop:
            return
        for packet, image in self._decoder().decode(int(self._packet[start])):
            index = self._frame_of.get(packet)
            if index is None or (image.shape[1], image.shape[0]) != self._size:
                continue
            image = self._turned(image)
            while wanted < min(index, stop):
                self._lose(wanted, "a packet that does not decode")
                yield image if held is None else held
                wanted += 1
            held = image
            if index == wanted:
                yield image
                wanted += 1
            if wanted >= stop:
                return
        for missing in range(wanted, stop):
            if held is None:
                raise InputError(f"{self.path}: packet {missing} of {self.topic} does not decode.")
            self._lose(missing, "a packet that does not decode")
            yield held

    def read_reversed(self, start: int, stop: int) -> Iterator[ImageRgb]:
        """Yield frames ``stop - 1`` down to ``start``, a bounded number decoded at a time."""
        self._check(start, stop)
        chunk = max(1, _REVERSED_BYTES // (3 * self._size[0] * self._size[1]))
        while stop > start:
            begin = max(start, stop - chunk)
            held = list(self.read(begin, stop))
            stop = begin
            while held:
                yield held.pop()

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
