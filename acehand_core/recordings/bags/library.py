"""Message types of rosbags (definitions stored in a bag are never compiled), decompression."""

from __future__ import annotations

import functools
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from acehand_core.errors import (
    InputError,
    MissingDependencyError,
    OutputError,
    SchemaError,
    nearest,
)
from acehand_core.motion import DroppedMessages
from acehand_core.recordings.bags.records import UNKNOWN_TOPIC, Data

#: Distributions with known types, oldest first.
DISTROS = ("humble", "iron", "jazzy", "kilted", "lyrical")
OLDEST, LATEST = DISTROS[0], DISTROS[-1]

FFMPEG_PACKET = "ffmpeg_image_transport_msgs/msg/FFMPEGPacket"
COMPRESSED_VIDEO = "foxglove_msgs/msg/CompressedVideo"
_EXTRA = {
    FFMPEG_PACKET: "std_msgs/Header header\nint32 width\nint32 height\nstring encoding\n"
    "uint64 pts\nuint8 flags\nbool is_bigendian\nuint8[] data\n",
    COMPRESSED_VIDEO: "builtin_interfaces/Time timestamp\nstring frame_id\nuint8[] data\n"
    "string format\n",
}

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_BLOCK, _PIECE = 1 << 20, 1 << 12


@functools.cache
def typestore(distro: str = LATEST) -> Any:
    """Return the types of a distribution, with those of video packets. Raises InputError."""
    try:
        from rosbags.typesys import Stores, get_types_from_msg, get_typestore
    except ImportError as error:
        raise needs_rosbags("a bag") from error
    if distro not in DISTROS:
        raise InputError(f"ROS distribution {distro!r}; {nearest(distro, DISTROS)}")
    store = get_typestore(Stores[f"ROS2_{distro.upper()}"])
    for name, definition in _EXTRA.items():
        store.register(get_types_from_msg(definition, name))
    return store


def type_hash(msgtype: str, definition: str) -> str | None:
    """Return the REP-2011 hash of a definition's text, None if it does not parse."""
    from rosbags.typesys import TypesysError, get_types_from_msg
    from rosbags.typesys.store import Typestore

    try:
        store = Typestore()
        store.fielddefs.update(get_types_from_msg(definition, msgtype))
        return store.hash_rihs01(msgtype)
    except (TypesysError, KeyError, ValueError, RecursionError):
        return None


def decode(data: Data, msgtype: str) -> Any:
    """Return a message as an object; its layout is the same from Humble on. Raises SchemaError."""
    from rosbags.serde import SerdeError

    store = typestore()
    if msgtype not in store.fielddefs:
        raise SchemaError(f"Unknown message type {msgtype!r}.")
    try:
        return store.deserialize_cdr(data, msgtype)
    except (SerdeError, IndexError, AssertionError, MemoryError, OverflowError) as error:
        raise SchemaError(f"no {msgtype}: {error}") from error


def needs_rosbags(what: str) -> MissingDependencyError:
    """Return the error for missing libraries."""
    return MissingDependencyError(f"{what} needs rosbags and mcap: pip install acehand[ros]")


def zstd_module() -> ModuleType:
    """Return the zstd library of rosbags. Raises MissingDependencyError."""
    try:
        from backports import zstd
    except ImportError as error:
        raise needs_rosbags("a compressed bag") from error
    return zstd


def decompress(packed: bytes, compression: str) -> tuple[bytes, bool]:
    """Return a decompressed chunk ("zstd", "lz4" or "": not compressed) and whether it is whole.

    Of a damaged one the beginning is returned. Raises InputError for an unknown compression.
    """
    if compression == "":
        return packed, True
    zstd = zstd_module()
    if compression == "zstd":
        machine = zstd.ZstdDecompressor()
    elif compression == "lz4":
        from lz4.frame import LZ4FrameDecompressor

        machine = LZ4FrameDecompressor()
    else:
        raise InputError(f"MCAP chunk compression {compression!r}; valid: lz4, zstd or none.")
    parts = []
    try:
        for at in range(0, len(packed), _PIECE):
            parts.append(machine.decompress(packed[at : at + _PIECE]))
    except (zstd.ZstdError, RuntimeError, EOFError):
        return b"".join(parts), False
    return b"".join(parts), True


def unpacked_message(data: Data, packed: bool) -> Data:
    """Return one message's data, decompressed if ``packed`` or if it has zstd's magic bytes.

    They cannot be CDR, which begins with 0. Raises ValueError: it cannot be decompressed.
    """
    if not packed and bytes(data[:4]) != _ZSTD_MAGIC:
        return data
    zstd = zstd_module()
    try:
        return bytes(zstd.decompress(data))
    except zstd.ZstdError as error:
        raise ValueError(str(error)) from error


class UnpackedFiles:
    """Temporary decompressed copies of storage files, each made once; removed with this object."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._copies: dict[Path, tuple[Path, str]] = {}  # and the original's damage
        self._removals: list[Callable[[], object]] = []

    def unpack(
        self, file: Path, dropped: DroppedMessages, still: Callable[[], None] | None = None
    ) -> Path:
        """Return the copy of a file. ``still`` is called repeatedly, and may raise to stop.

        Raises InputError: the file cannot be read; OutputError: the copy cannot be written.
        """
        with self._lock:
            if file not in self._copies:
                self._copies[file] = self._decompressed(file, still)
            copy, problem = self._copies[file]
        if problem:
            dropped.remark(f"{file.name}: damaged compression ({problem})")
            dropped.count(UNKNOWN_TOPIC, "behind the damaged part of a compressed file")
        return copy

    def remove(self) -> None:
        for remove in self._removals:
            remove()
        self._copies.clear()

    def _decompressed(self, file: Path, still: Callable[[], None] | None) -> tuple[Path, str]:
        try:
            folder = tempfile.mkdtemp(prefix="acehand-bag-")
        except OSError as error:
            raise _no_room(file, error) from error
        removal = weakref.finalize(self, shutil.rmtree, folder, True)
        self._removals.append(removal)
        copy = Path(folder) / file.stem
        try:
            return copy, _decompress(file, copy, still)
        except BaseException:
            removal()
            raise


def _decompress(file: Path, target: Path, still: Callable[[], None] | None) -> str:
    zstd = zstd_module()
    try:
        source, copy = zstd.ZstdFile(file), target.open("wb")
    except OSError as error:
        raise _unreadable(file, error) from error

    with source, copy:
        while True:
            if still is not None:
                still()
            try:
                block = source.read1(_BLOCK)
            except (zstd.ZstdError, EOFError) as error:
                return str(error)
            except OSError as error:
                raise _unreadable(file, error) from error
            if not block:
                return ""
            try:
                copy.write(block)
                copy.flush()
            except OSError as error:
                raise _no_room(file, error) from error


def _unreadable(file: Path, error: OSError) -> InputError:
    return InputError(f"{file}: cannot be read ({error.strerror or error}).")


def _no_room(file: Path, error: OSError) -> OutputError:
    return OutputError(
        f"{file}: cannot be decompressed into {tempfile.gettempdir()}: {error.strerror or error}. "
        "Set TMPDIR to another folder."
    )
