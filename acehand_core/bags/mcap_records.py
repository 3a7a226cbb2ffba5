"""Records of MCAP files: their numbers, how texts are stored in them, how chunks are packed.

Source of the layout: the MCAP format specification, https://mcap.dev/spec.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

from acehand_core.bags.records import needs_rosbags, zstd_module
from acehand_core.errors import InputError

MAGIC = b"\x89MCAP0\r\n"
FOOTER_BYTES = 1 + 8 + 20 + len(MAGIC)
SCHEMA, CHANNEL, MESSAGE, CHUNK, MESSAGE_INDEX = 3, 4, 5, 6, 7
CHUNK_INDEX, STATISTICS, DATA_END, FOOTER = 8, 11, 15, 2
METADATA, METADATA_INDEX = 12, 13
LAST_KNOWN = 15
PRIVATE = 0x80


class Record(NamedTuple):
    """Where a record lies: its number, and its body without number and length."""

    op: int
    body: int  # offset of the body
    size: int


@dataclass(slots=True)
class Chunk:
    """Where the records of a chunk lie in the file, and how they are packed."""

    start: int
    end: int
    data: int
    stored: int
    size: int
    crc: int
    compression: str


def string_at(data: bytes, at: int) -> tuple[str, int]:
    """Return a text and where it ends. Raises struct.error or UnicodeDecodeError."""
    (size,) = struct.unpack_from("<I", data, at)
    end = at + 4 + size
    if end > len(data):
        raise struct.error("a text is cut off")
    return data[at + 4 : end].decode(), end


def string_map_at(data: bytes, at: int) -> dict[str, str]:
    """Return a map of texts. Raises as ``string_at``."""
    (size,) = struct.unpack_from("<I", data, at)
    at, end, out = at + 4, at + 4 + size, {}
    while at < end:
        key, at = string_at(data, at)
        out[key], at = string_at(data, at)
    return out


def _lz4():
    try:
        import lz4.frame
    except ImportError as error:
        raise needs_rosbags("an lz4-compressed bag") from error
    return lz4.frame


def decompress(packed: bytes, compression: str) -> bytes:
    """Return a chunk's records.

    Raises:
        ValueError, RuntimeError, EOFError: it is damaged. InputError: of an unknown compression.
        MissingDependencyError: what decompresses it is not installed.
    """
    if compression == "":
        return packed
    if compression == "zstd":
        zstd = zstd_module()
        try:
            return zstd.decompress(packed)
        except zstd.ZstdError as error:
            raise ValueError(str(error)) from error
    if compression == "lz4":
        return _lz4().decompress(packed)
    raise InputError(f"MCAP chunk compression {compression!r}; valid: lz4, zstd or none.")


def decompress_some(packed: bytes, compression: str) -> bytes:
    """Return what the beginning of a compressed block still gives."""
    if compression == "":
        return packed
    out = []
    if compression == "zstd":
        zstd = zstd_module()
        machine, errors = zstd.ZstdDecompressor(), (zstd.ZstdError, EOFError)
    else:
        machine, errors = _lz4().LZ4FrameDecompressor(), (RuntimeError, EOFError)
    try:
        for at in range(0, len(packed), 4096):
            out.append(machine.decompress(packed[at : at + 4096]))
    except errors:  # where the damage begins; what came before it is kept
        pass
    return b"".join(out)
