"""Depth pictures of a bag: Image in 16UC1 and 32FC1, CompressedImage in png and rvl."""

from __future__ import annotations

import struct
from typing import Any

import cv2
import numpy as np
from jaxtyping import UInt16

from acehand_core.errors import SchemaError
from acehand_core.recordings.bags.frames import BagMessages
from acehand_core.recordings.bags.images import COMPRESSED_IMAGE
from acehand_core.recordings.depth import metres
from acehand_core.recordings.video import check_range
from acehand_core.types import DepthImage

#: Encoding -> type of a stored number: metres, or of 16 bits millimetres (mono16 in some drivers).
_STORED = {"16UC1": "u2", "mono16": "u2", "32FC1": "f4"}
_VALID = "valid: 16UC1 (mm) or 32FC1 (m), raw or as compressedDepth"
#: Before the coded picture: kind, and two parameters of inverse depth.
_CONFIG = struct.Struct("<iff")
#: Larger pictures are damage.
_MOST_PIXELS = 1 << 26


class BagDepth(BagMessages):
    """A ``DepthSource`` over T messages; a picture that does not decode has no readings."""

    instead = "it has no readings"

    def at(self, index: int) -> DepthImage:
        """Return one picture (H, W): z in metres, NaN without a reading."""
        check_range(self.path, index, index + 1, len(self))
        shape = self.size[::-1]
        if index not in self._broken:
            try:
                depth = decode_depth(self.message(index), self.msgtype)
                if depth.shape == shape:
                    return depth
                raise SchemaError(f"a picture of {depth.shape[1]} x {depth.shape[0]} pixels")
            except SchemaError as error:
                self._count_broken(index, str(error))
        return np.full(shape, np.nan, np.float32)


def check_depth(message: Any, msgtype: str) -> tuple[int, int]:
    """Return (width, height) of a depth picture without decoding. Raises SchemaError."""
    if msgtype != COMPRESSED_IMAGE:
        height, width = _stored(message).shape
        return width, height
    rvl, data = _coded(message)
    try:
        width, height = struct.unpack_from("<II" if rvl else ">II", data, 0 if rvl else 16)
    except struct.error as error:
        raise SchemaError(f"{message.format!r} that is cut off") from error
    if not 0 < width * height <= _MOST_PIXELS:
        raise SchemaError(f"{message.format!r} of {width} x {height} pixels")
    if not rvl and data[24:26] != b"\x10\x00":
        raise SchemaError(f"{message.format!r} without a png of 16 bits and one channel")
    return width, height


def decode_depth(message: Any, msgtype: str) -> DepthImage:
    """Return a depth picture (H, W): z in metres, NaN without a reading. Raises SchemaError."""
    width, height = check_depth(message, msgtype)
    if msgtype != COMPRESSED_IMAGE:
        return metres(_stored(message))
    rvl, data = _coded(message)
    stored: np.ndarray | None
    if rvl:
        stored = _rvl(data[8:], width * height).reshape(height, width)
    else:
        stored = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    if stored is None:
        raise SchemaError("a damaged png")
    if message.format.startswith("32FC1"):
        _, a, b = _CONFIG.unpack_from(bytes(message.data))
        with np.errstate(divide="ignore"):
            depth = np.float32(a) / (stored.astype(np.float32) - np.float32(b))
        stored = np.where(stored > 0, depth, np.float32(np.nan))
    return metres(stored)


def _stored(message: Any) -> np.ndarray:
    """Return the numbers (H, W) of an Image; its last row may lack the padding."""
    encoding, width, height = message.encoding, int(message.width), int(message.height)
    if encoding not in _STORED:
        raise SchemaError(f"encoding {encoding!r} is no depth; {_VALID}")
    kind = np.dtype(_STORED[encoding]).newbyteorder(">" if message.is_bigendian else "<")
    row, size = width * kind.itemsize, len(message.data)
    step = int(message.step) or row
    if min(width, height) < 1 or step < row or size < step * (height - 1) + row:
        raise SchemaError(f"{size} bytes for {width} x {height} {encoding} in rows of {step} bytes")
    data = memoryview(message.data)
    return np.ndarray((height, width), kind, data, strides=(step, kind.itemsize))


def _coded(message: Any) -> tuple[bool, bytes]:
    """Return whether a CompressedImage is rvl, else png, and the coded picture."""
    encoding, _, form = message.format.partition(";")
    if encoding not in _STORED or "compressedDepth" not in form:
        raise SchemaError(f"format {message.format!r} is no depth; {_VALID}")
    return "rvl" in form, bytes(message.data)[_CONFIG.size :]


def _rvl(data: bytes, pixels: int) -> UInt16[np.ndarray, "N"]:
    """Decode run lengths and differences (Wilson, Fast Lossless Depth Image Compression, 2017).

    Groups of 3 bits with a flag for more, the lowest first, make numbers: of zeros, of readings,
    then each reading's difference to the last one, its sign in the lowest bit.
    """
    words = np.frombuffer(data, "<u4", len(data) // 4)
    groups = ((words[:, None] >> np.arange(28, -4, -4, dtype=np.uint32)) & 15).ravel()
    ends = np.flatnonzero(groups < 8)
    starts = np.concatenate([[0], ends[:-1] + 1])[: len(ends)]
    place = np.arange(ends.max(initial=-1) + 1) - np.repeat(starts, ends - starts + 1)
    bits = (groups[: len(place)] & 7).astype(np.int64) << 3 * np.minimum(place, 15)
    numbers = np.add.reduceat(bits, starts) if len(starts) else bits

    stored, runs, at, filled = np.zeros(pixels, bool), [numbers[:0]], 0, 0
    while filled < pixels and at + 1 < len(numbers):
        begin = filled + int(numbers[at])
        filled = begin + int(numbers[at + 1])
        stored[begin:filled] = True
        at += 2 + filled - begin
        runs.append(numbers[at - (filled - begin) : at])
    steps = np.concatenate(runs)
    if filled != pixels or len(steps) != stored.sum():
        raise SchemaError("a damaged rvl picture")
    picture = np.zeros(pixels, np.uint16)
    picture[stored] = np.cumsum((steps >> 1) ^ -(steps & 1)).astype(np.uint16)
    return picture
