"""What the storages of a bag have in common: topics, messages, options, dropped messages."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from acehand_core.settings import setting
from acehand_core.types import Progress

#: Where a message lies in its file; what the numbers mean is the storage's own business.
Place = tuple[int, int, int]
#: A serialized message; a view into a chunk spares a copy of every picture.
Data = bytes | memoryview
#: Stands for a topic in ``DroppedMessages`` where it is not known which topic lost messages.
UNKNOWN_TOPIC = "*"
#: How a message definition is written; "" where it is not stored, or in a way not known here.
DefinitionFormat = Literal["ros2msg", "ros2idl", ""]
METADATA = "metadata.yaml"
#: Endings of storage files; with .zst or .zstd behind them the whole file is compressed.
STORAGES = (".mcap", ".db3")
PACKED = (".zstd", ".zst")
DEFINITION_FORMATS: Mapping[str, DefinitionFormat] = {"ros2msg": "ros2msg", "ros2idl": "ros2idl"}


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic of a bag. ``definition`` is the message definition's text, "" if not stored.

    ``qos`` is the YAML of the offered profiles, as rosbag2 stores it.
    """

    name: str
    msgtype: str
    serialization: str = "cdr"
    definition: str = ""
    definition_format: DefinitionFormat = ""
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
    """Reports to a progress callback how much of a bag was read, of ``passes`` times its size.

    Counted is what came out of the files, so of a compressed bag the count runs ahead.
    """

    def __init__(self, stage: str, path: Path, progress: Progress | None, passes: int = 1) -> None:
        self._stage, self._progress, self._done = stage, progress, 0
        files = [path] if path.is_file() else path.iterdir() if path.is_dir() else ()
        self._size = max(1, sum(file.stat().st_size for file in files if file.is_file()))
        self._total, self._end = passes * self._size, self._size
        self.add(0)

    def add(self, count: int) -> None:
        """Count more bytes; raises what the callback raises."""
        if self._progress is not None:
            self._done = min(self._done + count, self._end - 1)
            self._progress(self._stage, self._done, self._total)

    def still(self) -> None:
        """Report that work is in progress, where no bytes can be counted."""
        self.add(0)

    def end_pass(self, number: int) -> None:
        """Whatever was counted: the bag was read ``number`` times."""
        self._done, self._end = number * self._size, (number + 1) * self._size
        if self._progress is not None:
            self._progress(self._stage, self._done, self._total)


@dataclass(slots=True)
class DroppedMessages:
    """Messages that could not be used, by topic, and the reasons, a sentence each.

    ``unread`` is the part of ``by_topic`` that could not even be read from the files.
    """

    by_topic: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    remarks: list[str] = field(default_factory=list)
    unread: Counter[str] = field(default_factory=Counter)

    def count(self, topic: str, reason: str, count: int = 1, unread: bool = False) -> None:
        """Count messages of ``topic`` that could not be used because of ``reason``."""
        self.by_topic[topic] += count
        self.reasons[f"{topic}: {reason}"] += count
        if unread:
            self.unread[topic] += count

    def forget(self, topic: str) -> None:
        """Take back what was counted of one topic."""
        for counts in (self.by_topic, self.unread):
            counts.pop(topic, None)
        for reason in [r for r in self.reasons if r.startswith(f"{topic}: ")]:
            del self.reasons[reason]

    def add(self, other: DroppedMessages) -> None:
        """Add what another one counted."""
        self.by_topic.update(other.by_topic)
        self.reasons.update(other.reasons)
        self.unread.update(other.unread)
        for remark in other.remarks:
            self.remark(remark)

    def remark(self, text: str) -> None:
        """Keep a sentence about the bag, once."""
        if text not in self.remarks:
            self.remarks.append(text)

    @property
    def total(self) -> int:
        """Number of dropped messages."""
        return sum(self.by_topic.values())

    def sentences(self) -> tuple[str, ...]:
        """Return every remark and every reason with its count, for people."""
        lost = (f"{reason}: {count} lost" for reason, count in self.reasons.items())
        return (*self.remarks, *lost)


@dataclass(frozen=True, slots=True)
class BagOptions:
    """Which topics and frame of a bag are used; None: found by type.

    ``world_frame`` "none": no poses. None takes map, world or odom where transforms or odometry
    lead from it to the camera.
    """

    image_topic: str | None = setting(
        None, "the pictures of a bag", metavar="TOPIC", default_text="found by type"
    )
    camera_info_topic: str | None = setting(
        None, "their calibration", metavar="TOPIC", default_text="found by type"
    )
    world_frame: str | None = setting(
        None,
        "the frame that a bag's camera moves in; none leaves its transforms alone",
        metavar="FRAME",
        default_text="map, world or odom where there is one",
    )


def is_bag(path: Path) -> bool:
    """Tell whether a path looks like a bag, by its name and files."""
    if path.is_dir():
        return (path / METADATA).is_file() or len(parts_in(path)) > 0
    return is_storage(path)


def storage_files(folder: Path) -> list[Path]:
    """Return the storage files directly in a folder, in order."""
    return sorted((p for p in folder.iterdir() if is_storage(p) and p.is_file()), key=_number)


def parts_in(folder: Path) -> list[Path]:
    """Return a folder's storage files if they are the parts of one bag."""
    files = storage_files(folder)
    # Parts of one bag are called NAME_0, NAME_1 and so on, and are of one kind.
    names = {re.sub(r"_\d+\.", ".", file.name) for file in files}
    numbered = all(_number(file)[0] >= 0 for file in files)
    return files if len(files) == 1 or (len(names) == 1 and numbered) else []


def is_storage(path: Path) -> bool:
    """Tell whether a path has the ending of a storage file."""
    suffixes = path.suffixes
    if suffixes and suffixes[-1] in PACKED:
        suffixes = suffixes[:-1]
    return bool(suffixes) and suffixes[-1] in STORAGES and not path.name.startswith(".")


def _number(path: Path) -> tuple[int, str]:
    number = re.search(r"_(\d+)\.", path.name)
    return (int(number[1]) if number else -1, path.name)
