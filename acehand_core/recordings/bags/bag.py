"""A rosbag2 recording: a folder with metadata.yaml and its files, or a bare .mcap or .db3."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Set
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import yaml

from acehand_core.errors import InputError
from acehand_core.recordings.bags.library import (
    DISTROS,
    LATEST,
    OLDEST,
    UnpackedFiles,
    needs_rosbags,
)
from acehand_core.recordings.bags.records import (
    METADATA,
    PACKED,
    Data,
    DroppedMessages,
    Message,
    Place,
    Topic,
    is_storage,
    parts_in,
)
from acehand_core.recordings.bags.sqlite import SqliteFile

if TYPE_CHECKING:
    from acehand_core.recordings.bags.mcap import McapFile

#: Version of metadata.yaml up to Humble, which does not name the distribution.
_LAST_WITHOUT_DISTRO = 5
#: Times of receipt beyond this, the year 2116, are damage; two of them can be added as int64.
_LAST_NS = 2**62


class Bag:
    """An open bag. Not for two threads at once; every thread opens its own.

    ``still`` is called now and then where opening takes long: of a bag without an index or
    compressed as a whole. ``copies`` are decompressed files that it shares with others; None: it
    has its own. ``dropped`` collects what opening found out; ``messages`` adds to the dropped it is
    given.

    Raises:
        InputError: it is not a bag, or nothing of it can be read.
        OutputError: a file of it is compressed and there is no room to decompress it.
    """

    def __init__(
        self,
        path: Path,
        still: Callable[[], None] | None = None,
        copies: UnpackedFiles | None = None,
    ) -> None:
        self.path = path
        self._still = still
        self._copies, self._owns_copies = copies or UnpackedFiles(), copies is None
        self.dropped = DroppedMessages()
        self._metadata: dict[str, Any] = {}
        self._files: list[McapFile | SqliteFile] = []
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
                known = topics.get(topic.name)
                if known is None:
                    topics[topic.name] = topic
                elif not known.definition and known.msgtype == topic.msgtype:
                    topics[topic.name] = Topic(
                        known.name,
                        known.msgtype,
                        topic.serialization or known.serialization,
                        topic.definition,
                        topic.definition_format,
                        known.qos or topic.qos,
                        known.type_hash or topic.type_hash,
                    )

        return topics

    @property
    def counts(self) -> dict[str, int]:
        """Messages by topic as the files count them; a file without counts adds none."""
        total: Counter[str] = Counter(dict.fromkeys(self.topics, 0))
        for file in self._files:
            total.update(file.counts or {})
        return dict(total)

    @property
    def counted(self) -> bool:
        """Whether every file says how many messages it holds."""
        return all(file.counts is not None for file in self._files)

    @property
    def promised(self) -> dict[str, int]:
        """Messages by topic as metadata.yaml counts them; empty without it."""
        return {
            entry["topic_metadata"]["name"]: int(entry.get("message_count") or 0)
            for entry in self._metadata.get("topics_with_message_count") or ()
        }

    @property
    def custom_data(self) -> dict[str, str]:
        """Texts by name that the writer of the bag kept in its metadata; a bare .db3 has none."""
        metadata = self._metadata
        if not metadata:
            text = self._files[0].metadata.get("rosbag2", {}).get("serialized_metadata", "")
            with contextlib.suppress(yaml.YAMLError):
                metadata = yaml.safe_load(text)
        custom = metadata.get("custom_data") if isinstance(metadata, dict) else None
        return {str(k): str(v) for k, v in custom.items()} if isinstance(custom, dict) else {}

    @property
    def distro(self) -> str:
        """The ROS distribution that recorded it, "" if not known."""
        return str(self._metadata.get("ros_distro") or "")

    @property
    def definitions(self) -> str:
        """The distribution whose message definitions hold where the bag stores none."""
        if self.distro in DISTROS:
            return self.distro
        version = self._metadata.get("version")
        old = isinstance(version, int) and version <= _LAST_WITHOUT_DISTRO
        return OLDEST if old else LATEST

    @property
    def storage(self) -> str:
        """Kind of the first file: "mcap" or "sqlite3"."""
        return "sqlite3" if isinstance(self._files[0], SqliteFile) else "mcap"

    @property
    def compression(self) -> str:
        """Compression by file or by message, as metadata.yaml says; "" for none."""
        mode = str(self._metadata.get("compression_mode") or "").lower()
        return "" if mode == "none" else mode

    def messages(self, topics: Set[str] | None, dropped: DroppedMessages) -> Iterator[Message]:
        """Yield the messages of some topics (None: of all), file after file, as stored.

        What a file counts and does not give is lost.
        """
        for number, file in enumerate(self._files):
            before, seen = Counter(dropped.unread), Counter[str]()
            for message in file.messages(topics, dropped):
                if abs(message.log_ns) > _LAST_NS:
                    dropped.count(message.topic, "a time of receipt that cannot be", unread=True)
                    continue
                seen[message.topic] += 1
                yield message._replace(file=number)
            for name, count in (file.counts or {}).items():
                missing = count - seen[name] - (dropped.unread[name] - before[name])
                if missing > 0 and (topics is None or name in topics):
                    dropped.count(name, "cannot be found in the file", missing, unread=True)

    def read(self, file: int, place: Place) -> Data:
        """Return the data of one message."""
        return self._files[file].read(place)

    def close(self) -> None:
        """Close the files."""
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
        if self.path.is_file():
            if not is_storage(self.path):
                raise InputError(f"{self.path}: not a bag; valid: a folder, .mcap or .db3.")
            return [self.path]

        listed = self._read_metadata()
        if listed is None:
            return self._files_without_metadata()

        present = [file for file in listed if file.is_file()]
        for file in (file for file in listed if not file.is_file()):
            self.dropped.remark(f"{file.name}: listed in {METADATA} but missing")
            lost = [f for f in self._metadata.get("files") or () if f.get("path") == file.name]
            self.dropped.count(
                "*", "in a missing file", int(lost[0]["message_count"]) if lost else 1
            )

        if not present:
            raise InputError(f"{self.path}: none of the files that {METADATA} lists is there.")
        return present

    def _read_metadata(self) -> list[Path] | None:
        """Read metadata.yaml; None (and a remark) where it is missing or damaged."""
        path = self.path / METADATA
        try:
            content = yaml.safe_load(path.read_text("utf-8"))
            information = content["rosbag2_bagfile_information"]
            listed = [self.path / PurePosixPath(f).name for f in information["relative_file_paths"]]
            self._metadata = dict(information)
            _ = self.promised
        except FileNotFoundError:
            self.dropped.remark(f"{METADATA} is missing; files and topics were found without it")
        except (OSError, ValueError, TypeError, KeyError, AttributeError, yaml.YAMLError) as error:
            self._metadata = {}
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            self.dropped.remark(f"{METADATA} is damaged ({reason}); read without it")
        else:
            return listed

        return None

    def _files_without_metadata(self) -> list[Path]:
        files = parts_in(self.path)
        if not files:
            names = sorted(p.name for p in self.path.iterdir() if is_storage(p))
            if not names:
                raise InputError(
                    f"{self.path}: not a bag; a folder with {METADATA}, .mcap or .db3 files "
                    "is needed."
                )
            raise InputError(
                f"{self.path}: several bags and no {METADATA}: {', '.join(names)}; give one."
            )
        return files

    def _open_file(self, file: Path) -> None:
        opened = file
        try:
            if file.suffix in PACKED:
                opened = self._copies.unpack(file, self.dropped, self._still)

            packed = self.compression == "message"
            if opened.suffix == ".mcap":
                try:
                    from acehand_core.recordings.bags.mcap import McapFile
                except ImportError as error:
                    raise needs_rosbags("a bag") from error
                self._files.append(McapFile(opened, packed, self.dropped, self._still))
            else:
                self._files.append(SqliteFile(opened, packed, self.dropped))
        except InputError as error:
            text = str(error).replace(str(opened), str(file))  # not the name of the copy
            if len(self.storage_paths) == 1:
                raise InputError(" ".join([text, *self.dropped.sentences()])) from error
            self.dropped.remark(text)
            self.dropped.count("*", "in a file that cannot be opened")
