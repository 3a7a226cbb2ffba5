"""Topics, messages, options and dropped messages of a bag, whatever its storage."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from acehand_core.settings import setting
from acehand_core.types import Progress

#: Where a message lies in its file, in terms of its storage.
Place = tuple[int, int, int]
#: A serialized message; a view into a chunk spares a copy of every picture.
Data = bytes | memoryview
#: In ``DroppedMessages``: the topic of the lost messages is unknown.
UNKNOWN_TOPIC = "*"
METADATA = "metadata.yaml"
#: Suffixes of storage files; PACKED after them: the whole file is compressed.
STORAGES = (".mcap", ".db3", ".bag")
PACKED = (".zstd", ".zst")
#: Languages of message definitions.
DEFINITION_FORMATS = ("ros2msg", "ros2idl")


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic of a bag; ``qos`` is YAML, ``definition`` text in one of ``DEFINITION_FORMATS``."""

    name: str
    msgtype: str
    serialization: str = "cdr"
    definition: str = ""
    definition_format: str = ""
    qos: str = ""
    type_hash: str = ""


class Message(NamedTuple):
    """One serialized message; ``log_ns`` is when it was received."""

    topic: str
    log_ns: int
    data: Data
    file: int
    place: Place


class BytesRead:
    """Progress of reading a bag ``passes`` times, in bytes.

    It counts decompressed bytes, so for a compressed bag the count runs ahead.
    """

    def __init__(self, stage: str, path: Path, progress: Progress | None, passes: int = 1) -> None:
        self._stage, self._progress, self._done = stage, progress, 0
        files = [path] if path.is_file() else path.iterdir() if path.is_dir() else ()
        self._size = max(1, sum(file.stat().st_size for file in files if file.is_file()))
        self._total, self._end = passes * self._size, self._size
        self.add(0)

    def add(self, count: int) -> None:
        """Count more bytes; raises what the callback raises."""
        self._report(min(self._done + count, self._end - 1))

    def still(self) -> None:
        """Report that work is in progress, where no bytes can be counted."""
        self.add(0)

    def end_pass(self, number: int) -> None:
        """Report that the bag was read ``number`` times."""
        self._end = (number + 1) * self._size
        self._report(number * self._size)

    def _report(self, done: int) -> None:
        self._done = done
        if self._progress is not None:
            self._progress(self._stage, done, self._total)


@dataclass(frozen=True, slots=True)
class BagOptions:
    """Topics and world frame of a bag; None: found by type, or map, world or odom if connected.

    ``world_frame`` "none" ignores the camera poses, ``depth_topic`` "none" the depth. ``views`` are
    those of ``RecordingOptions``.
    """

    image_topic: str | None = setting(
        None, "the pictures of a bag", metavar="TOPIC", default_text="found by type"
    )
    camera_info_topic: str | None = setting(
        None, "the CameraInfo of these pictures", metavar="TOPIC", default_text="found by type"
    )
    world_frame: str | None = setting(
        None,
        "the world frame of a bag's camera poses; none ignores them",
        metavar="FRAME",
        default_text="map, world or odom if present",
    )
    depth_topic: str | None = setting(
        None,
        "the depth pictures of a bag; none ignores them",
        metavar="TOPIC",
        default_text="found by type, if there is one",
    )
    views: str | None = None


def is_bag(path: Path) -> bool:
    """Return whether a path looks like a bag, by its name and files."""
    if not path.is_dir():
        return is_storage(path)
    return (path / METADATA).is_file() or bool(parts_in(path))


def storage_files(folder: Path) -> list[Path]:
    """Return the storage files directly in a folder, in order."""
    return sorted((p for p in folder.iterdir() if is_storage(p) and p.is_file()), key=_number)


def parts_in(folder: Path) -> list[Path]:
    """Return a folder's storage files if they are the parts of one bag."""
    files = storage_files(folder)
    # Parts of one bag have one suffix and are named NAME_0, NAME_1, ...
    names = {re.sub(r"_\d+\.", ".", file.name) for file in files}
    numbered = all(_number(file)[0] >= 0 for file in files)
    return files if len(files) == 1 or (len(names) == 1 and numbered) else []


def is_storage(path: Path) -> bool:
    """Return whether a path has the suffix of a storage file."""
    plain = path.with_suffix("") if path.suffix in PACKED else path
    return plain.suffix in STORAGES and not path.name.startswith(".")


def _number(path: Path) -> tuple[int, str]:
    number = re.search(r"_(\d+)\.", path.name)
    return (int(number[1]) if number else -1, path.name)
