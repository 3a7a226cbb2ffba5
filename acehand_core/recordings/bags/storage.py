"""The storage files of rosbag2, .mcap and .db3, read record by record, and the .bag of ROS 1.

The library mcap parses records; its readers stop at a damaged one and do not report places. At most
two chunks are held in memory.
"""

from __future__ import annotations

import contextlib
import io
import sqlite3
import struct
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Set
from pathlib import Path
from typing import Any
from zlib import crc32

from mcap.data_stream import ReadDataStream
from mcap.exceptions import InvalidMagic, McapError
from mcap.opcode import Opcode
from mcap.reader import make_reader
from mcap.records import Channel, Chunk, Header, Schema
from mcap.records import Message as McapMessage
from mcap.stream_reader import StreamReader

from acehand_core.errors import InputError
from acehand_core.motion import DroppedMessages
from acehand_core.recordings.bags.images import IMAGE
from acehand_core.recordings.bags.library import decompress, typestore, unpacked_message
from acehand_core.recordings.bags.records import (
    DEFINITION_FORMATS,
    UNKNOWN_TOPIC,
    Data,
    Message,
    Place,
    Topic,
)

_PRIVATE = 0x80
_CHUNKS_HELD = 2
#: Raised by the library for a damaged record.
_DAMAGE = (McapError, struct.error, ValueError, KeyError, OverflowError, MemoryError, OSError)
#: Consecutive unreadable rows after which a damaged database is given up.
_GIVE_UP = 2000
#: The header of a message's record in a .bag.
_MESSAGE = b"op=\2"
#: Types of ROS 1 under another name.
_RENAMED = {"tf/msg/tfMessage": "tf2_msgs/msg/TFMessage"}


class McapFile:
    """One .mcap file of a ``Bag``. Not thread-safe.

    Opening reads the summary; without one the whole file is read to list its topics, with a call of
    ``still`` for each record. ``packed``: each message is compressed with zstd. ``counts`` are the
    messages by topic as the file counts them, None without a summary; ``metadata`` are its texts by
    record and name.

    Raises InputError: not an MCAP file of ROS 2, or its beginning cannot be read.
    """

    def __init__(
        self, path: Path, packed: bool, dropped: DroppedMessages, still: Callable[[], None] | None
    ) -> None:
        self.path, self._packed = path, packed
        self._still = still or (lambda: None)
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror or error}).") from error
        self._size = path.stat().st_size
        self._schemas: dict[int, Schema] = {}
        self._channels: dict[int, Topic] = {}
        self._held: dict[int, bytes] = {}  # start of a chunk -> its records
        self._chunks: dict[int, Set[int]] = {}  # start of a chunk -> its channels
        self.counts: dict[str, int] | None = None
        self.metadata: dict[str, dict[str, str]] = {}

        try:
            header = next(StreamReader(self._file, record_size_limit=self._size).records)
        except InvalidMagic:
            raise InputError(f"{path}: not an MCAP file (no magic bytes).") from None
        except (StopIteration, *_DAMAGE):
            header = None
        if not isinstance(header, Header):
            raise InputError(f"{path}: cut off or damaged in its header; nothing can be read.")
        if header.profile not in ("ros2", ""):
            raise InputError(f"{path}: an MCAP file of profile {header.profile!r}; valid: ros2.")
        self._start = self._file.tell()

        with contextlib.suppress(StopIteration, *_DAMAGE):
            self._read_summary()
        if self.counts is None:
            dropped.remark(f"{path.name}: no index; read from its beginning to its end")
            for _ in self.messages(frozenset(), DroppedMessages()):
                pass

    @property
    def topics(self) -> tuple[Topic, ...]:
        """Topics in the order of their channels; two channels of one topic count once."""
        return tuple({t.name: t for _, t in sorted(self._channels.items())}.values())

    def close(self) -> None:
        self._file.close()

    def messages(self, topics: Set[str] | None, dropped: DroppedMessages) -> Iterator[Message]:
        """Yield the messages of some topics (None: all) as stored.

        A damaged chunk or a cut end is counted in ``dropped``.
        """
        start: int = self._start
        while (at := (yield from self._walk(self._file, start, -1, topics, dropped))) is not None:
            later = [chunk for chunk in self._chunks if chunk > at]
            if not later:
                yield from self._rest(at, topics, dropped)
                return
            dropped.count(UNKNOWN_TOPIC, "lie in a damaged part of the file")
            start = min(later)

    def read(self, place: Place) -> Data:
        """Return one message's data; its chunk is kept for the next one."""
        chunk, offset, size = place
        if chunk < 0:
            self._file.seek(offset)
            return unpacked_message(self._file.read(size), self._packed)
        if chunk not in self._held:
            if len(self._held) == _CHUNKS_HELD:
                del self._held[next(iter(self._held))]
            self._held[chunk], _ = self._unpacked(chunk)
        message = memoryview(self._held[chunk])[offset : offset + size]
        return unpacked_message(message, self._packed)

    def _read_summary(self) -> None:
        """Read topics, counts and the chunk index if the summary is complete."""
        self._file.seek(0)
        reader = make_reader(self._file)
        summary = reader.get_summary()
        if summary is None or summary.statistics is None or not summary.channels:
            return
        for schema in summary.schemas.values():
            self._learn(schema)
        for channel in summary.channels.values():
            self._learn(channel)
        counts: Counter[str] = Counter()
        for number, topic in self._channels.items():
            counts[topic.name] += summary.statistics.channel_message_counts.get(number, 0)
        self.counts = dict(counts)
        for index in summary.chunk_indexes:
            self._chunks[index.chunk_start_offset] = index.message_index_offsets.keys()
        self.metadata = {record.name: record.metadata for record in reader.iter_metadata()}

    def _walk(
        self,
        file: io.BufferedReader | io.BytesIO,
        at: int,
        chunk: int,
        topics: Set[str] | None,
        dropped: DroppedMessages,
    ) -> Generator[Message, None, int | None]:
        """Yield messages from ``at`` on; ``file`` is the file, or the records of a chunk.

        Returns the start of the first incomplete record, None after an end mark.
        """
        size, of_file = file.seek(0, io.SEEK_END), chunk < 0
        while at + 9 <= size:
            self._still()
            file.seek(at)
            op, length = struct.unpack("<BQ", file.read(9))
            end = at + 9 + length
            if end > size or (of_file and (op == 0 or Opcode.DATA_END < op < _PRIVATE)):
                break
            if of_file and op in (Opcode.DATA_END, Opcode.FOOTER):
                return None
            if of_file and op == Opcode.CHUNK:
                yield from self._chunk_messages(at, topics, dropped)
            elif op in (Opcode.SCHEMA, Opcode.CHANNEL, Opcode.MESSAGE):
                message = self._parse(op, file.read(length), dropped)
                if message is not None and (topics is None or message.topic in topics):
                    place = (chunk, end - len(message.data), len(message.data))
                    try:
                        data = unpacked_message(message.data, self._packed)
                    except ValueError:
                        dropped.count(message.topic, "cannot be decompressed", unread=True)
                    else:
                        yield message._replace(data=data, place=place)
            at = end
        return at

    def _chunk_messages(
        self, start: int, topics: Set[str] | None, dropped: DroppedMessages
    ) -> Iterator[Message]:
        if topics is not None and start in self._chunks:
            channels = self._chunks[start] & self._channels.keys()
            if not any(self._channels[channel].name in topics for channel in channels):
                return
        data, whole = self._unpacked(start)
        if whole:
            end = yield from self._walk(io.BytesIO(data), 0, start, topics, dropped)
            whole = end == len(data)
        if not whole:
            dropped.remark(f"{self.path.name}: messages in a damaged chunk at {start} are lost")
            if self.counts is None:  # otherwise ``Bag.messages`` counts them exactly
                dropped.count(UNKNOWN_TOPIC, "in a damaged chunk, at least")

    def _rest(
        self, at: int, topics: Set[str] | None, dropped: DroppedMessages
    ) -> Iterator[Message]:
        """Yield the complete messages of the last, incomplete record, and count the loss."""
        if at == self._size:
            dropped.remark(f"{self.path.name}: the file ends without an end mark; not closed")
            dropped.count(UNKNOWN_TOPIC, "behind the end of a file that was not closed, at least")
            return
        dropped.remark(
            f"{self.path.name}: cut off or damaged at byte {at} of {self._size}; "
            "the number of later messages is unknown"
        )
        self._file.seek(at)
        if self._file.read(1)[0] == Opcode.CHUNK:
            data, _ = self._unpacked(at)
            yield from self._walk(io.BytesIO(data), 0, at, topics, dropped)
        dropped.count(UNKNOWN_TOPIC, "cut off at the end of the file")

    def _parse(self, op: int, content: bytes, dropped: DroppedMessages) -> Message | None:
        """Return a message, without its place; remember a schema or channel."""
        stream = ReadDataStream(io.BytesIO(content))
        try:
            if op != Opcode.MESSAGE:
                self._learn(Schema.read(stream) if op == Opcode.SCHEMA else Channel.read(stream))
                return None
            record = McapMessage.read(stream, len(content))
            topic = self._channels[record.channel_id].name
        except KeyError:
            dropped.count(UNKNOWN_TOPIC, "of an unknown channel")
        except _DAMAGE:
            dropped.remark(f"{self.path.name}: a record that cannot be read")
            if op == Opcode.MESSAGE:
                dropped.count(UNKNOWN_TOPIC, "too short")
        else:
            return Message(topic, record.log_time, record.data, 0, (0, 0, 0))
        return None

    def _learn(self, record: Schema | Channel) -> None:
        if isinstance(record, Schema):
            self._schemas[record.id] = record
            return
        schema = self._schemas.get(record.schema_id, Schema(0, b"", "", ""))
        self._channels[record.id] = Topic(
            record.topic,
            schema.name,
            record.message_encoding,
            schema.data.decode("utf-8", "replace"),
            schema.encoding if schema.encoding in DEFINITION_FORMATS else "",
            record.metadata.get("offered_qos_profiles", ""),
            record.metadata.get("topic_type_hash", ""),
        )

    def _unpacked(self, start: int) -> tuple[bytes, bool]:
        """Return the readable records of a chunk, and whether they are all of it."""
        self._file.seek(start + 1)
        (size,) = struct.unpack("<Q", self._file.read(8).ljust(8, b"\0"))
        body = self._file.read(min(size, self._size))
        try:
            chunk = Chunk.read(ReadDataStream(io.BytesIO(body)))
            data, undamaged = decompress(chunk.data, chunk.compression)
        except _DAMAGE:
            return b"", False
        undamaged &= not chunk.uncompressed_crc or crc32(data) == chunk.uncompressed_crc
        return data, undamaged and len(data) == chunk.uncompressed_size


class SqliteFile:
    """One .db3 file of a ``Bag``, with the attributes and methods of ``McapFile``.

    It does not use rosbags, whose reader opens neither damaged nor unclosed databases.

    Raises InputError: not a database of rosbag2.
    """

    def __init__(self, path: Path, packed: bool, dropped: DroppedMessages) -> None:
        self.path, self._packed = path, packed
        self.metadata: dict[str, dict[str, str]] = {}
        # An unclosed bag keeps its last messages in a -wal file next to it.
        mode = "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "immutable=1"
        uri = f"{path.absolute().as_uri()}?{mode}"
        self._cut_off = False
        try:
            self._db = sqlite3.connect(uri, uri=True, check_same_thread=False)
            self._db.text_factory = lambda raw: raw.decode("utf-8", "replace")
            try:
                self._topics = self._read_topics()
            except sqlite3.DatabaseError:
                self._cut_off = True
                self._db.execute("PRAGMA writable_schema=ON")  # opens the pages that are left
                self._topics = self._read_topics()
                dropped.remark(f"{path.name}: cut off or damaged; read as far as it goes")
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise InputError(f"{path}: not a readable rosbag2 database: {error}.") from error
        self.counts = self._read_counts(dropped)

    @property
    def topics(self) -> tuple[Topic, ...]:
        return tuple(self._topics.values())

    def close(self) -> None:
        self._db.close()

    def messages(self, topics: Set[str] | None, dropped: DroppedMessages) -> Iterator[Message]:
        """Yield messages as stored; where the database is damaged, row by row."""
        ids = [i for i, t in self._topics.items() if topics is None or t.name in topics]
        query = (
            "SELECT id, topic_id, timestamp, data FROM messages "
            f"WHERE topic_id IN ({','.join('?' * len(ids))}) ORDER BY id"
        )
        last = 0
        try:
            for row in self._db.execute(query, ids):
                last = row[0]
                yield from self._message(row, dropped)
        except sqlite3.Error as error:
            dropped.remark(f"{self.path.name}: damaged database ({error})")
            yield from self._row_by_row(last + 1, set(ids), dropped)
            return

        if self._cut_off:
            dropped.count(UNKNOWN_TOPIC, "in the part that was cut off, at least")

    def _message(
        self, row: tuple[int, int, object, object], dropped: DroppedMessages
    ) -> Iterator[Message]:
        number, topic_id, log_ns, stored = row
        topic = self._topics[topic_id].name
        if not (isinstance(log_ns, int) and isinstance(stored, bytes)):
            dropped.count(topic, "in a damaged row of the database", unread=True)
            return
        try:
            data = unpacked_message(stored, self._packed)
        except ValueError:
            dropped.count(topic, "cannot be decompressed", unread=True)
            return
        yield Message(topic, log_ns, data, 0, (number, 0, len(data)))

    def read(self, place: Place) -> Data:
        row = self._db.execute("SELECT data FROM messages WHERE id = ?", place[:1]).fetchone()
        if row is None:
            raise InputError(f"{self.path}: message {place[0]} is gone; was the bag changed?")
        return unpacked_message(row[0], self._packed)

    def _row_by_row(self, first: int, ids: set[int], dropped: DroppedMessages) -> Iterator[Message]:
        """Yield the readable rows of a damaged database, and count the others."""
        query = "SELECT id, topic_id, timestamp, data FROM messages WHERE id = ?"
        number, pending = first, 0  # failures since the last readable row
        while pending < _GIVE_UP:
            try:
                row = self._db.execute(query, (number,)).fetchone()
            except sqlite3.Error:
                row = None
            number, pending = number + 1, pending + 1
            if row is None:
                continue
            if pending > 1:
                reason = "lie in a damaged part of the database"
                dropped.count(UNKNOWN_TOPIC, reason, pending - 1)
            pending = 0
            if row[1] in ids:
                yield from self._message(row, dropped)

        dropped.count(UNKNOWN_TOPIC, "lie behind the damaged part of the database, at least")

    def _columns(self, table: str) -> set[str]:
        return {row[1] for row in self._db.execute(f"PRAGMA table_info({table})")}

    def _read_topics(self) -> dict[int, Topic]:
        columns = self._columns("topics")
        if not columns or not self._columns("messages"):
            raise InputError(f"{self.path}: a database without tables of topics and messages.")
        texts = {}
        if self._columns("message_definitions"):
            query = "SELECT topic_type, encoding, encoded_message_definition"
            texts = {
                name: (text, encoding if encoding in DEFINITION_FORMATS else "")
                for name, encoding, text in self._db.execute(f"{query} FROM message_definitions")
            }
        later = ("offered_qos_profiles", "type_description_hash")  # not in old bags
        qos, digest = (name if name in columns else "''" for name in later)
        query = f"SELECT id, name, type, serialization_format, {qos}, {digest} FROM topics"
        return {
            number: Topic(name, kind, serial, *texts.get(kind, ("", "")), qos or "", digest or "")
            for number, name, kind, serial, qos, digest in self._db.execute(query)
            if isinstance(name, str) and isinstance(kind, str)
        }

    def _read_counts(self, dropped: DroppedMessages) -> dict[str, int] | None:
        counts = {topic.name: 0 for topic in self._topics.values()}
        query = "SELECT topic_id, count(*) FROM messages GROUP BY topic_id"
        try:
            for number, count in self._db.execute(query):
                if number in self._topics:
                    counts[self._topics[number].name] += count
                else:
                    dropped.count(UNKNOWN_TOPIC, "of an unknown topic", count)
        except sqlite3.Error as error:
            dropped.remark(f"{self.path.name}: damaged database ({error})")
            return None
        return counts


class Rosbag1File:
    """One .bag of ROS 1, with the attributes and methods of ``McapFile``.

    Messages are converted to CDR if ROS 2 has their type, else given as stored.

    Raises InputError: not a bag, encrypted, or without a whole index.
    """

    def __init__(self, path: Path) -> None:
        from rosbags.rosbag1 import Reader

        self.path = path
        self.metadata: dict[str, dict[str, str]] = {}
        self._held: dict[int, bytes] = {}  # start of a chunk -> its records
        self._reader = Reader(path)
        try:
            self._reader.open()
        except Exception as error:  # a damaged file raises anything
            valid = "valid: version 2.0 with its index (rosbag reindex), not encrypted"
            raise InputError(f"{path}: not a readable ROS 1 bag ({error}); {valid}.") from error
        self._file: Any = self._reader.bio
        self._topics: dict[int, Topic] = {}
        for c in self._reader.connections:
            kind = _RENAMED.get(c.msgtype, c.msgtype)
            form = "cdr" if kind in typestore().fielddefs else "ros1"
            self._topics[c.id] = Topic(c.topic, kind, form)
        self.topics = tuple({topic.name: topic for topic in self._topics.values()}.values())
        counts = {name: info.msgcount for name, info in self._reader.topics.items()}
        self.counts: dict[str, int] | None = counts

    def close(self) -> None:
        self._reader.close()

    def messages(self, topics: Set[str] | None, dropped: DroppedMessages) -> Iterator[Message]:
        """Yield messages in the file's order; ``Bag`` counts those that cannot be read."""
        entries = sorted(
            (entry.chunk_pos, entry.offset, connection, entry.time)
            for connection, topic in self._topics.items()
            if topics is None or topic.name in topics
            for entry in self._reader.indexes[connection]
        )
        for chunk, at, connection, log_ns in entries:
            place, topic = (chunk, at, connection), self._topics[connection].name
            try:
                data = self.read(place)
            except Exception as error:  # of bz2, lz4 and rosbags
                dropped.remark(f"{self.path.name}: messages that cannot be read ({error})")
            else:
                yield Message(topic, log_ns, data, 0, place)

    def read(self, place: Place) -> Data:
        """Return one message's data; ``place`` is its chunk, offset there and connection."""
        chunk, at, connection = place
        if chunk not in self._held:
            if len(self._held) == _CHUNKS_HELD:
                del self._held[next(iter(self._held))]
            packed = self._reader.chunks[chunk]
            self._file.seek(packed.datapos)
            self._held[chunk] = packed.decompressor(self._file.read(packed.datasize))
        records, header = memoryview(self._held[chunk]), b""
        while _MESSAGE not in header:  # definitions of connections may come before
            (length,) = struct.unpack_from("<I", records, at)
            header = bytes(records[at + 4 : at + 4 + length])
            (size,) = struct.unpack_from("<I", records, at + 4 + length)
            at += 8 + length + size
        data, topic = records[at - size : at], self._topics[connection]
        return data if topic.serialization == "ros1" else _as_cdr(data, topic.msgtype)


def _as_cdr(data: memoryview, msgtype: str) -> Data:
    """Return a ROS 1 message of a type that ROS 2 has as CDR. Raises SerdeError."""
    from rosbags.serde import SerdeError

    store = typestore()
    try:
        return store.ros1_to_cdr(data, msgtype)
    except SerdeError:
        # RealSense's viewer, with frame_id "1", writes depth's metres per count behind the picture.
        if msgtype != IMAGE or bytes(data[12:17]) != b"\1\0\0\x001":
            raise
        (metres,) = struct.unpack("<f", data[-4:])
        if metres and abs(metres - 1e-3) > 1e-6:
            raise SerdeError(f"depth of {metres:g} m per count; valid: 0.001") from None
        return store.ros1_to_cdr(data[:-4], msgtype)
