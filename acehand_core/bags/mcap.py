"""MCAP files of rosbag2, read record by record: whole, cut off, or without an index.

Only the records that matter are understood. A chunk is the unit of memory: at most two are held.
Source of the layout: the MCAP format specification, https://mcap.dev/spec.
"""

from __future__ import annotations

import struct
from collections import Counter, OrderedDict
from collections.abc import Callable, Generator, Iterator, Set
from pathlib import Path
from typing import BinaryIO
from zlib import crc32

from acehand_core.bags.mcap_records import (
    CHANNEL,
    CHUNK,
    CHUNK_INDEX,
    DATA_END,
    FOOTER,
    FOOTER_BYTES,
    LAST_KNOWN,
    MAGIC,
    MESSAGE,
    MESSAGE_INDEX,
    METADATA,
    METADATA_INDEX,
    PRIVATE,
    SCHEMA,
    STATISTICS,
    Chunk,
    Record,
    decompress,
    decompress_some,
    string_at,
    string_map_at,
)
from acehand_core.bags.records import (
    UNKNOWN_TOPIC,
    Data,
    DroppedMessages,
    Message,
    Place,
    Topic,
    unpacked_message,
)
from acehand_core.errors import InputError

_CHUNKS_HELD = 2


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
        self._still = still
        self._packed = packed
        try:
            self._file: BinaryIO = path.open("rb")
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror or error}).") from error
        self._size = path.stat().st_size
        self._schemas: dict[int, tuple[str, str, str]] = {}
        self._channels: dict[int, Topic] = {}
        self._chunk_channels: dict[int, frozenset[int]] = {}
        self._held: OrderedDict[int, bytes] = OrderedDict()
        self._metadata_at: list[int] = []
        self.counts: dict[str, int] | None = None

        if self._at(0, len(MAGIC)) != MAGIC:
            raise InputError(f"{self.path}: not an MCAP file; it does not begin like one.")
        record = self._record(len(MAGIC))
        if record is None or record.op != 1:
            raise InputError(f"{self.path}: cut off in its header; nothing can be read from it.")
        try:
            profile, _ = string_at(self._at(record.body, record.size), 0)
        except (struct.error, UnicodeDecodeError):
            raise InputError(f"{self.path}: its header is damaged.") from None
        if profile not in ("ros2", ""):
            raise InputError(f"{self.path}: an MCAP file of profile {profile!r}; valid: ros2.")
        self._start = record.body + record.size

        if not self._read_summary():
            # Its topics are listed by reading it once.
            dropped.remark(f"{path.name}: no index; read from its beginning to its end")
            self._chunk_channels.clear()
            for _ in self._records(frozenset(), DroppedMessages()):
                pass

    @property
    def topics(self) -> tuple[Topic, ...]:
        """Topics in the order of their channels; two channels of one topic count once."""
        return tuple({t.name: t for _, t in sorted(self._channels.items())}.values())

    def metadata(self, wanted: str) -> dict[str, str]:
        """Return the texts of a metadata record; empty where the summary names no such record."""
        for position in self._metadata_at:
            record = self._record(position)
            if record is None or record.op != METADATA:
                continue
            body = self._at(record.body, record.size)
            try:
                name, at = string_at(body, 0)
                if name == wanted:
                    return string_map_at(body, at)
            except (struct.error, UnicodeDecodeError):
                continue
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
            data, whole = self._unpacked(packed)
            self._held[chunk] = data if whole else self._partly_unpacked(packed)
            while len(self._held) > _CHUNKS_HELD:
                self._held.popitem(last=False)
        self._held.move_to_end(chunk)
        data = memoryview(self._held[chunk])[offset : offset + size]
        return unpacked_message(data, self._packed)

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
            body = self._at(record.body, record.size)
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
            position = record.body + record.size

        if counts is None or not self._channels:
            return False
        by_topic: Counter[str] = Counter()
        for channel, topic in self._channels.items():
            by_topic[topic.name] += counts.get(channel, 0)
        self.counts = dict(by_topic)

        return True

    def _records(self, topics: Set[str] | None, dropped: DroppedMessages) -> Iterator[Message]:
        position = self._start
        while position < self._size:
            if self._still is not None:
                self._still()
            record = self._record(position)
            if record is None or (LAST_KNOWN < record.op < PRIVATE) or record.op == 0:
                later = [start for start in self._chunk_channels if start > position]
                if later:
                    reason = "lie in a damaged part of the file"
                    dropped.count(UNKNOWN_TOPIC, reason)
                    position = min(later)
                    continue
                yield from self._cut_off(position, topics, dropped)
                return
            if record.op in (DATA_END, FOOTER):
                return
            if record.op == CHUNK:
                yield from self._chunk_messages(position, topics, dropped)
            elif record.op in (SCHEMA, CHANNEL, MESSAGE):
                body = self._at(record.body, record.size)
                message = self._understand(record.op, body, dropped, (-1, record.body, 0))
                if message is not None and (topics is None or message.topic in topics):
                    yield message
            position = record.body + record.size

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
            try:
                chunk = self._chunk(position)
            except (struct.error, UnicodeDecodeError):
                chunk = None
            if chunk is not None:
                data = self._partly_unpacked(chunk)
                yield from self._inside(chunk.start, data, topics, dropped, Counter())
        dropped.count(UNKNOWN_TOPIC, "cut off at the end of the file")

    def _chunk_messages(
        self, start: int, topics: Set[str] | None, dropped: DroppedMessages
    ) -> Iterator[Message]:
        channels = self._chunk_channels.get(start)
        if channels is not None and topics is not None:
            names = {self._channels[c].name for c in channels if c in self._channels}
            if not names & topics:
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
            if count > seen[topic] and (topics is None or topic in topics):
                missing = count - seen[topic]
                dropped.count(topic, "in a damaged chunk", missing, unread=True)

        if not whole and not indexed:
            dropped.count(UNKNOWN_TOPIC, "in a damaged chunk, at least")

    def _inside(
        self,
        start: int,
        data: bytes,
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
                place = (start, body, 0)
                message = self._understand(op, view[body : body + size], dropped, place)
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
        topic = self._channels.get(channel)
        if topic is None:
            dropped.count(UNKNOWN_TOPIC, "of a channel that is not described")
            return None

        where = (place[0], place[1] + 22, len(body) - 22)
        return Message(topic.name, log_ns, body[22:], 0, where)

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
        msgtype, kind, definition = self._schemas.get(schema, ("", "", ""))
        self._channels[number] = Topic(
            name,
            msgtype,
            encoding,
            definition,
            kind if kind in ("ros2msg", "ros2idl") else "",
            metadata.get("offered_qos_profiles", ""),
            metadata.get("topic_type_hash", ""),
        )

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

    def _unpacked(self, chunk: Chunk) -> tuple[bytes, bool]:
        """Return a chunk's records, and whether they are what was written."""
        packed = self._at(chunk.data, chunk.stored)
        try:
            data = decompress(packed, chunk.compression)
        except (ValueError, RuntimeError, EOFError, OSError):
            return b"", False
        if len(data) != chunk.size or (chunk.crc and crc32(data) != chunk.crc):
            return data, False
        return data, True

    def _partly_unpacked(self, chunk: Chunk) -> bytes:
        """Return as much of a cut-off chunk as can be had."""
        packed = self._at(chunk.data, min(chunk.stored, self._size - chunk.data))
        return decompress_some(packed, chunk.compression)

    def _indexed_messages(self, chunk: Chunk) -> dict[str, int]:
        """Return how many messages of each topic the index behind a chunk lists."""
        counts: Counter[str] = Counter()
        position = chunk.end
        while (record := self._record(position)) is not None and record.op == MESSAGE_INDEX:
            if record.size < 6:
                break
            channel, size = struct.unpack("<HI", self._at(record.body, 6))
            topic = self._channels.get(channel)
            counts[topic.name if topic else UNKNOWN_TOPIC] += size // 16
            position = record.body + record.size
        return dict(counts)

    def _record(self, position: int) -> Record | None:
        """Return the record at a place in the file, or None if it is not whole."""
        head = self._at(position, 9)
        if len(head) < 9:
            return None
        op, size = struct.unpack("<BQ", head)
        return Record(op, position + 9, size) if position + 9 + size <= self._size else None

    def _at(self, position: int, size: int) -> bytes:
        self._file.seek(position)
        return self._file.read(size)
