"""A rosbag2 folder with metadata.yaml and its files, a bare .mcap or .db3, or a ROS 1 .bag."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Set
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import yaml

from acehand_core.errors import InputError
from acehand_core.motion import DroppedMessages
from acehand_core.recordings.bags import library, records
from acehand_core.recordings.bags.records import Data, Message, Place, Topic

if TYPE_CHECKING:
    from acehand_core.recordings.bags.storage import McapFile, Rosbag1File, SqliteFile

#: Later times of receipt, after the year 2116, are damage; two of them fit into int64.
_LAST_NS = 2**62


class Bag:
    """An open bag. Not thread-safe; every thread opens its own.

    ``still`` is called repeatedly while a bag without an index, or a compressed file, is opened.
    ``copies`` are decompressed files to share; None: its own. ``dropped`` collects the problems of
    opening; ``messages`` adds to the object that it gets.

    Raises:
        InputError: not a bag, or none of its files can be read.
        OutputError: no room to decompress a file.
    """

    def __init__(
        self,
        path: Path,
        still: Callable[[], None] | None = None,
        copies: library.UnpackedFiles | None = None,
    ) -> None:
        self.path = path
        self._still = still
        self._copies, self._owns_copies = copies or library.UnpackedFiles(), copies is None
        self.dropped = DroppedMessages()
        self._metadata: dict[str, Any] = {}
        self._files: list[McapFile | Rosbag1File | SqliteFile] = []
        self.storage_paths = self._find_files()

        try:
            for file in self.storage_paths:
                self._open_file(file)
        except BaseException:
            self.close()
            raise

        if not self._files:
            reasons = "; ".join(self.dropped.remarks)
            raise InputError(f"{path}: nothing of this bag can be read: {reasons}.")

    @property
    def topics(self) -> dict[str, Topic]:
        """Every topic by name; one whose files disagree on its type keeps the first."""
        topics: dict[str, Topic] = {}
        for entry in self._metadata.get("topics_with_message_count") or ():
            data = entry.get("topic_metadata", {}) if isinstance(entry, dict) else {}
            if "name" in data and "type" in data:
                qos = data.get("offered_qos_profiles") or ""
                topics[data["name"]] = Topic(
                    str(data["name"]),
                    str(data["type"]),
                    str(data.get("serialization_format", "cdr")),
                    qos=qos if isinstance(qos, str) else yaml.safe_dump(qos),
                    type_hash=str(data.get("type_description_hash") or ""),
                )

        for file in self._files:
            for topic in file.topics:
                known = topics.setdefault(topic.name, topic)
                if not known.definition and known.msgtype == topic.msgtype:
                    topics[topic.name] = replace(
                        topic,
                        serialization=topic.serialization or known.serialization,
                        qos=known.qos or topic.qos,
                        type_hash=known.type_hash or topic.type_hash,
                    )
        return topics

    @property
    def counts(self) -> dict[str, int]:
        """Messages by topic; empty if a file has no counts."""
        total: Counter[str] = Counter(dict.fromkeys(self.topics, 0))
        for file in self._files:
            if file.counts is None:
                return {}
            total.update(file.counts)
        return dict(total)

    @property
    def promised(self) -> dict[str, int]:
        """Messages by topic as metadata.yaml counts them; empty without it."""
        return {
            entry["topic_metadata"]["name"]: int(entry.get("message_count") or 0)
            for entry in self._metadata.get("topics_with_message_count") or ()
        }

    @property
    def custom_data(self) -> dict[str, str]:
        """The custom_data of its metadata; a bare .db3 has none."""
        metadata = self._metadata
        if not metadata:
            text = self._files[0].metadata.get("rosbag2", {}).get("serialized_metadata", "")
            with contextlib.suppress(yaml.YAMLError):
                metadata = yaml.safe_load(text)
        custom = metadata.get("custom_data") if isinstance(metadata, dict) else None
        return {str(k): str(v) for k, v in custom.items()} if isinstance(custom, dict) else {}

    @property
    def distro(self) -> str:
        """The ROS distribution that recorded it, "" if unknown."""
        return str(self._metadata.get("ros_distro") or "")

    @property
    def definitions(self) -> str:
        """The distribution for messages without a stored definition."""
        if self.distro in library.DISTROS:
            return self.distro
        version = self._metadata.get("version")
        old = isinstance(version, int) and version <= 5  # up to Humble, without a distribution
        return library.OLDEST if old else library.LATEST

    @property
    def storage(self) -> str:
        """Kind of the first file: "mcap", "sqlite3" or "rosbag1"."""
        return {".mcap": "mcap", ".bag": "rosbag1"}.get(self._files[0].path.suffix, "sqlite3")

    @property
    def compression(self) -> str:
        """compression_mode of metadata.yaml: "file", "message", or "" for none."""
        mode = str(self._metadata.get("compression_mode") or "").lower()
        return "" if mode == "none" else mode

    def messages(self, topics: Set[str] | None, dropped: DroppedMessages) -> Iterator[Message]:
        """Yield the messages of some topics (None: all), file after file, as stored.

        The difference to the counts of a file is counted as lost.
        """
        for number, file in enumerate(self._files):
            before, seen = Counter(dropped.unread), Counter[str]()
            for message in file.messages(topics, dropped):
                if abs(message.log_ns) > _LAST_NS:
                    dropped.count(message.topic, "an impossible time of receipt", unread=True)
                    continue
                seen[message.topic] += 1
                yield message._replace(file=number)
            for name, count in (file.counts or {}).items():
                missing = count - seen[name] - (dropped.unread[name] - before[name])
                if missing > 0 and (topics is None or name in topics):
                    dropped.count(name, "cannot be found in the file", missing, unread=True)

    def count_missing(self, names: Set[str], read: Counter[str], dropped: DroppedMessages) -> None:
        """Count the messages that metadata.yaml lists and the files do not hold."""
        for name in sorted(self.promised.keys() & names):
            missing = self.promised[name] - read[name] - dropped.unread[name]
            if missing > 0:
                dropped.forget(records.UNKNOWN_TOPIC)  # an exact count replaces "at least one"
                dropped.count(name, f"listed in {records.METADATA} but not in the files", missing)

    def read(self, file: int, place: Place) -> Data:
        return self._files[file].read(place)

    def close(self) -> None:
        for file in self._files:
            file.close()
        if self._owns_copies:
            self._copies.remove()

    def __enter__(self) -> Bag:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _find_files(self) -> list[Path]:
        if not self.path.exists():
            raise InputError(f"{self.path}: no such bag.")
        if not self.path.is_dir():
            if not (records.is_storage(self.path) and self.path.is_file()):
                raise InputError(f"{self.path}: not a bag; valid: a folder, .mcap, .db3 or .bag.")
            return [self.path]

        listed = self._read_metadata()
        if listed is None:
            return self._files_without_metadata()

        present = [file for file in listed if file.is_file()]
        for file in listed:
            if file not in present:
                self.dropped.remark(f"{file.name}: listed in {records.METADATA} but missing")
                lost = [f for f in self._metadata.get("files") or () if f.get("path") == file.name]
                count = int(lost[0]["message_count"]) if lost else 1
                self.dropped.count(records.UNKNOWN_TOPIC, "in a missing file", count)
        if not present:
            raise InputError(f"{self.path}: none of the files listed in {records.METADATA} exists.")
        return present

    def _read_metadata(self) -> list[Path] | None:
        """Return the files of metadata.yaml; None, with a remark, if it is missing or damaged."""
        path = self.path / records.METADATA
        try:
            content = yaml.safe_load(path.read_text("utf-8"))
            information = content["rosbag2_bagfile_information"]
            listed = [self.path / PurePosixPath(f).name for f in information["relative_file_paths"]]
            self._metadata = dict(information)
            _ = self.promised  # raises if damaged
            return listed
        except FileNotFoundError:
            self.dropped.remark(f"{path.name} is missing; files and topics were found without it")
        except (OSError, ValueError, TypeError, KeyError, AttributeError, yaml.YAMLError) as error:
            self._metadata = {}
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            self.dropped.remark(f"{path.name} is damaged ({reason}); read without it")
        return None

    def _files_without_metadata(self) -> list[Path]:
        if files := records.parts_in(self.path):
            return files
        names = sorted(p.name for p in self.path.iterdir() if records.is_storage(p))
        if not names:
            raise InputError(f"{self.path}: not a bag; valid: a folder with .mcap or .db3 files.")
        raise InputError(
            f"{self.path}: several bags and no {records.METADATA}: {', '.join(names)}; give one."
        )

    def _open_file(self, file: Path) -> None:
        opened = file
        try:
            if file.suffix in records.PACKED:
                opened = self._copies.unpack(file, self.dropped, self._still)
            try:
                from acehand_core.recordings.bags.storage import McapFile, Rosbag1File, SqliteFile
            except ImportError as error:
                raise library.needs_rosbags("a bag") from error
            packed = self.compression == "message"
            if opened.suffix == ".mcap":
                self._files.append(McapFile(opened, packed, self.dropped, self._still))
            elif opened.suffix == ".bag":
                self._files.append(Rosbag1File(opened))
            else:
                self._files.append(SqliteFile(opened, packed, self.dropped))
        except InputError as error:
            text = str(error).replace(str(opened), str(file))  # not the copy's name
            if len(self.storage_paths) == 1:
                raise InputError(" ".join([text, *self.dropped.sentences()])) from error
            self.dropped.remark(text)
            self.dropped.count(records.UNKNOWN_TOPIC, "in a file that cannot be opened")
