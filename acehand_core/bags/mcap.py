"""MCAP files of rosbag2, read record by record: whole, cut off, or without an index.

Only the records that matter are understood. A chunk is the unit of memory: at most two are held.
Source of the layout: the MCAP format specification, https://mcap.dev/spec.
"""

from __future__ import annotations

import contextlib
import struct
from collections import Counter, OrderedDict
from collections.abc import Callable, Generator, Iterator, Set
from pathlib import Path
from typing import BinaryIO, NamedTuple
from zlib import crc32

from acehand_core.bags.library import decompress, decompress_some, unpacked_message
from acehand_core.bags.records import (
    DEFINITION_FORMATS,
    UNKNOWN_TOPIC,
    Data,
    DroppedMessages,
    Message,
    Place,
    Topic,
)
from acehand_core.errors import InputError

MAGIC = b"\x89MCAP0\r\n"
FOOTER_BYTES = 1 + 8 + 20 + len(MAGIC)
SCHEMA, CHANNEL, MESSAGE, CHUNK, MESSAGE_INDEX = 3, 4, 5, 6, 7
CHUNK_INDEX, STATISTICS, DATA_END, FOOTER = 8, 11, 15, 2
METADATA, METADATA_INDEX = 12, 13
LAST_KNOWN = 15
PRIVATE = 0x80
_CHUNKS_HELD = 2


class Record(NamedTuple):
    """Where a record lies: its number, and its body without number and length."""

    op: int
    body: int
    end: int


class Chunk(NamedTuple):
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
    at, end, texts = at + 4, at + 4 + size, {}
    while at < end:
        key, at = string_at(data, at)
        texts[key], at = string_at(data, at)
    return texts


class McapFile:
    """One .mcap file; see ``StorageFile``. ``packed``: as of ``SqliteFile``.

    Opening reads the summary. Where there is none the whole file is read once to list its topics;
    ``still`` is called for each of its records.

    Raises:
        InputError: it is not an MCAP file of ROS 2, or not even its beginning can be read.
    """

    def __init__(
        self,
        path: Path,
        packed: bool,
        dropped: DroppedMessages,
        still: Callable[[], None] | None = None,
    ) -> None:
        self.path = path
        self._still = still or (lambda: None)
        self._packed = packed
        try:
            self._file: BinaryIO = path.open("rb")
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror or error}).") from error
        self._size = path.stat().st_size
        self._schemas: dict[int, tuple[str, str, str]] = {}
        self._channels: dict[int, Topic] = {}
        self._chunk_channels: dict[int, frozenset[int]] = {}
        self._held: OrderedDict[int, Data] = OrderedDict()
        self._metadata_at: list[int] = []
        self.counts: dict[str, int] | None = None

        if self._at(0, len(MAGIC)) != MAGIC:
            raise InputError(f"{self.path}: not an MCAP file; it does not begin like one.")
        record = self._record(len(MAGIC))
        if record is None or record.op != 1:
            raise InputError(f"{self.path}: cut off in its header; nothing can be read from it.")
        try:
            profile, _ = string_at(self._body(record), 0)
        except (struct.error, UnicodeDecodeError):
            raise InputError(f"{self.path}: its header is damaged.") from None
        if profile not in ("ros2", ""):
            raise InputError(f"{self.path}: an MCAP file of profile {profile!r}; valid: ros2.")
        self._start = record.end

        if not self._read_summary():  # its topics are listed by reading it once
            dropped.remark(f"{path.name}: no index; read from its beginning to its end")
            self._chunk_channels.clear()
            for _ in self._records(frozenset(), DroppedMessages()):
                pass

    @property
    def topics(self) -> tuple[Topic, ...]:
        """Topics in the order of their channels; two channels of one topic count once."""
        return tuple({t.name: t for _, t in sorted(self._channels.items())}.values())

    def metadata(self, title: str) -> dict[str, str]:
        """Return the texts of a metadata record; empty where the summary names no such record."""
        for position in self._metadata_at:
            record = self._record(position)
            if record is not None and record.op == METADATA:
                with contextlib.suppress(struct.error, UnicodeDecodeError):
                    name, at = string_at(self._body(record), 0)
                    if name == title:
                        return string_map_at(self._body(record), at)
        return {}

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def messages(self, topics: Set[str] | None, dropped: DroppedMessages) -> Iterator[Message]:
        """Yield messages as stored; a damaged chunk or a cut end is counted in ``dropped``."""
        for message in self._records(topics, dropped):
            try:
                data = unpacked_message(message.data, self._packed)
            except ValueError:
                dropped.count(message.topic, "cannot be decompressed", unread=True)
                continue
            yield message._replace(data=data)

    def read(self, place: Place) -> Data:
        """Return one message's data; its chunk is kept for the next one."""
        chunk, offset, size = place
        if chunk < 0:
            return unpacked_message(self._at(offset, size), self._packed)
        if chunk not in self._held:
            packed = self._chunk(chunk)
            records, whole = self._unpacked(packed)
            self._held[chunk] = records if whole else self._beginning(packed)
            while len(self._held) > _CHUNKS_HELD:
                self._held.popitem(last=False)
        self._held.move_to_end(chunk)
        message = memoryview(self._held[chunk])[offset : offset + size]
        return unpacked_message(message, self._packed)

    def _read_summary(self) -> bool:
        """Read topics, counts and the index of chunks; False where there is no usable summary."""
        tail = self._at(max(self._size - FOOTER_BYTES, 0), FOOTER_BYTES)
        if len(tail) < FOOTER_BYTES or tail[0] != FOOTER or tail[-len(MAGIC) :] != MAGIC:
            return False
        (position,) = struct.unpack_from("<Q", tail, 9)
        counts = None

        while 0 < position < self._size - FOOTER_BYTES:
            record = self._record(position)
            if record is None:
                return False
            body = self._body(record)
            try:
                if record.op in (SCHEMA, CHANNEL):
                    self._learn(record.op, body)
                elif record.op == CHUNK_INDEX:
                    (start, _, size) = struct.unpack_from("<QQI", body, 16)
                    pairs = struct.iter_unpack("<HQ", body[36 : 36 + size])
                    self._chunk_channels[start] = frozenset(channel for channel, _ in pairs)
                elif record.op == STATISTICS:
                    (size,) = struct.unpack_from("<I", body, 42)
                    counts = dict(struct.iter_unpack("<HQ", body[46 : 46 + size]))
                elif record.op == METADATA_INDEX:
                    self._metadata_at.append(struct.unpack_from("<Q", body)[0])
            except (struct.error, UnicodeDecodeError, KeyError):
                return False
            position = record.end

        if counts is None or not self._channels:
            return False
        self.counts = dict.fromkeys((topic.name for topic in self._channels.values()), 0)
        for channel, topic in self._channels.items():
            self.counts[topic.name] += counts.get(channel, 0)

        return True

    def _records(self, topics: Set[str] | None, dropped: DroppedMessages) -> Iterator[Message]:
        position = self._start
        while position < self._size:
            self._still()
            record = self._record(position)
            if record is None or (LAST_KNOWN < record.op < PRIVATE) or record.op == 0:
                later = [start for start in self._chunk_channels if start > position]
                if later:
                    dropped.count(UNKNOWN_TOPIC, "lie in a damaged part of the file")
                    position = min(later)
                    continue
                yield from self._cut_off(position, topics, dropped)
                return
            if record.op in (DATA_END, FOOTER):
                return
            if record.op == CHUNK:
                yield from self._chunk_messages(position, topics, dropped)
            elif record.op in (SCHEMA, CHANNEL, MESSAGE):
                place = (-1, record.body, 0)
                message = self._understand(record.op, self._body(record), dropped, place)
                if message is not None and (topics is None or message.topic in topics):
                    yield message
            position = record.end

        dropped.remark(f"{self.path.name}: the file ends without an end mark; it was not closed")
        dropped.count(UNKNOWN_TOPIC, "behind the end of a file that was not closed, at least")

    def _cut_off(
        self, position: int, topics: Set[str] | None, dropped: DroppedMessages
    ) -> Iterator[Message]:
        """Yield what is whole in the last, incomplete record, and count the loss."""
        dropped.remark(
            f"{self.path.name}: cut off or damaged at byte {position} of {self._size}; "
            "how many messages came after that is not known"
        )
        head = self._at(position, 9)
        if len(head) == 9 and head[0] == CHUNK:
            with contextlib.suppress(struct.error, UnicodeDecodeError):
                data = self._beginning(self._chunk(position))
                yield from self._inside(position, data, topics, dropped, Counter())
        dropped.count(UNKNOWN_TOPIC, "cut off at the end of the file")

    def _chunk_messages(
        self, start: int, topics: Set[str] | None, dropped: DroppedMessages
    ) -> Iterator[Message]:
        if start in self._chunk_channels and topics is not None:
            channels = self._chunk_channels[start] & self._channels.keys()
            if not any(self._channels[channel].name in topics for channel in channels):
                return

        try:
            chunk = self._chunk(start)
        except (struct.error, UnicodeDecodeError):
            dropped.count(UNKNOWN_TOPIC, "lie in a damaged part of the file")
            return

        data, whole = self._unpacked(chunk)
        seen: Counter[str] = Counter()
        if whole:
            whole = yield from self._inside(start, data, topics, dropped, seen)

        indexed = self._indexed_messages(chunk)
        for topic, count in indexed.items():
            missing = count - seen[topic]
            if missing > 0 and (topics is None or topic in topics):
                dropped.count(topic, "in a damaged chunk", missing, unread=True)

        if not whole and not indexed:
            dropped.count(UNKNOWN_TOPIC, "in a damaged chunk, at least")

    def _inside(
        self,
        start: int,
        data: Data,
        topics: Set[str] | None,
        dropped: DroppedMessages,
        seen: Counter[str],
    ) -> Generator[Message, None, bool]:
        """Yield a chunk's messages, count all of them in ``seen``; return whether it is whole."""
        position, view = 0, memoryview(data)
        while position + 9 <= len(data):
            op, size = struct.unpack_from("<BQ", data, position)
            body = position + 9
            if body + size > len(data):
                return False
            if op in (SCHEMA, CHANNEL, MESSAGE):
                content = view[body : body + size]
                message = self._understand(op, content, dropped, (start, body, 0))
                if message is not None:
                    seen[message.topic] += 1
                    if topics is None or message.topic in topics:
                        yield message
            position = body + size

        return position == len(data)

    def _understand(
        self, op: int, body: bytes | memoryview, dropped: DroppedMessages, place: Place
    ) -> Message | None:
        if op != MESSAGE:
            try:
                self._learn(op, bytes(body))
            except (struct.error, UnicodeDecodeError):
                dropped.remark(f"{self.path.name}: the description of a topic is damaged")
            return None

        if len(body) < 22:
            dropped.count(UNKNOWN_TOPIC, "too short")
            return None

        channel, _, log_ns, _ = struct.unpack_from("<HIQQ", body)
        if channel not in self._channels:
            dropped.count(UNKNOWN_TOPIC, "of a channel that is not described")
            return None
        where = (place[0], place[1] + 22, len(body) - 22)
        return Message(self._channels[channel].name, log_ns, body[22:], 0, where)

    def _learn(self, op: int, body: bytes) -> None:
        """Remember a schema or a channel."""
        (number,) = struct.unpack_from("<H", body)
        if op == SCHEMA:
            name, at = string_at(body, 2)
            encoding, at = string_at(body, at)
            definition, _ = string_at(body, at)
            self._schemas[number] = name, encoding, definition
            return

        (schema,) = struct.unpack_from("<H", body, 2)
        name, at = string_at(body, 4)
        encoding, at = string_at(body, at)
        metadata = string_map_at(body, at)
        qos, type_hash = (metadata.get(n, "") for n in ("offered_qos_profiles", "topic_type_hash"))
        msgtype, kind, text = self._schemas.get(schema, ("", "", ""))
        written = DEFINITION_FORMATS.get(kind, "")
        self._channels[number] = Topic(name, msgtype, encoding, text, written, qos, type_hash)

    def _chunk(self, start: int) -> Chunk:
        size = struct.unpack("<Q", self._at(start + 1, 8))[0]
        body = start + 9
        head = self._at(body, min(size, 128))
        unpacked, crc = struct.unpack_from("<QI", head, 16)
        compression, at = string_at(head, 28)
        (stored,) = struct.unpack_from("<Q", head, at)
        data = body + at + 8
        if data + stored > body + size:
            raise struct.error("a chunk is longer than its record")
        return Chunk(start, body + size, data, stored, unpacked, crc, compression)

    def _unpacked(self, chunk: Chunk) -> tuple[Data, bool]:
        """Return a chunk's records, and whether they are what was written."""
        try:
            data = decompress(self._at(chunk.data, chunk.stored), chunk.compression)
        except (ValueError, RuntimeError, EOFError, OSError):
            return b"", False
        return data, len(data) == chunk.size and (not chunk.crc or crc32(data) == chunk.crc)

    def _beginning(self, chunk: Chunk) -> bytes:
        """Return as much of a cut-off chunk as can be had."""
        return decompress_some(self._at(chunk.data, chunk.stored), chunk.compression)

    def _indexed_messages(self, chunk: Chunk) -> dict[str, int]:
        """Return how many messages of each topic the index behind a chunk lists."""
        counts: Counter[str] = Counter()
        position = chunk.end
        while (record := self._record(position)) is not None and record.op == MESSAGE_INDEX:
            if record.end < record.body + 6:
                break
            channel, size = struct.unpack("<HI", self._at(record.body, 6))
            topic = self._channels.get(channel)
            counts[topic.name if topic else UNKNOWN_TOPIC] += size // 16
            position = record.end
        return dict(counts)

    def _record(self, position: int) -> Record | None:
        """Return the record at a place in the file, or None if it is not whole."""
        head = self._at(position, 9)
        if len(head) < 9:
            return None
        op, size = struct.unpack("<BQ", head)
        end = position + 9 + size
        return Record(op, position + 9, end) if end <= self._size else None

    def _body(self, record: Record) -> bytes:
        return self._at(record.body, record.end - record.body)

    def _at(self, position: int, size: int) -> bytes:
        """Return bytes of the file, fewer at its end."""
        self._file.seek(position)
        return self._file.read(max(0, min(size, self._size - position)))
