"""MCAP files of rosbag2, read record by record: whole, cut off, or without an index.

The library mcap knows what is in a record. Here is the way from one record to the next, since the
library's readers end at the first damaged one and do not say where a message lies. A chunk is the
unit of memory: at most two are held. Imported only where an .mcap file is read.
"""

from __future__ import annotations

import contextlib
import io
import struct
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Set
from pathlib import Path
from zlib import crc32

from mcap.data_stream import ReadDataStream
from mcap.exceptions import InvalidMagic, McapError
from mcap.opcode import Opcode
from mcap.reader import make_reader
from mcap.records import Channel, Chunk, Header, Schema
from mcap.records import Message as McapMessage
from mcap.stream_reader import StreamReader

from acehand_core.errors import InputError
from acehand_core.recordings.bags.library import decompress, unpacked_message
from acehand_core.recordings.bags.records import (
    DEFINITION_FORMATS,
    UNKNOWN_TOPIC,
    Data,
    DroppedMessages,
    Message,
    Place,
    Topic,
)

_PRIVATE = 0x80
_CHUNKS_HELD = 2
#: What the library raises for a record that is not one.
_DAMAGE = (McapError, struct.error, ValueError, KeyError, OverflowError, MemoryError, OSError)


class McapFile:
    """One .mcap file of a ``Bag``. ``packed``: as of ``SqliteFile``. Not for two threads at once.

    Opening reads the summary. Where there is none the whole file is read once to list its topics;
    ``still`` is called for each of its records. ``counts`` are the messages by topic as the file
    counts them, or None where only reading tells; ``metadata`` are its texts by record and name.

    Raises:
        InputError: it is not an MCAP file of ROS 2, or not even its beginning can be read.
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
        self._held: dict[int, bytes] = {}  # the records of chunks by where these begin
        self._chunks: dict[int, Set[int]] = {}  # and the channels in each
        self.counts: dict[str, int] | None = None
        self.metadata: dict[str, dict[str, str]] = {}

        try:
            header = next(StreamReader(self._file, record_size_limit=self._size).records)
        except InvalidMagic:
            raise InputError(f"{path}: not an MCAP file; it does not begin like one.") from None
        except (StopIteration, *_DAMAGE):
            header = None
        if not isinstance(header, Header):
            raise InputError(f"{path}: cut off or damaged in its header; nothing can be read.")
        if header.profile not in ("ros2", ""):
            raise InputError(f"{path}: an MCAP file of profile {header.profile!r}; valid: ros2.")
        self._start = self._file.tell()

        with contextlib.suppress(StopIteration, *_DAMAGE):
            self._read_summary()
        if self.counts is None:  # its topics are listed by reading it once
            dropped.remark(f"{path.name}: no index; read from its beginning to its end")
            for _ in self.messages(frozenset(), DroppedMessages()):
                pass

    @property
    def topics(self) -> tuple[Topic, ...]:
        """Topics in the order of their channels; two channels of one topic count once."""
        return tuple({t.name: t for _, t in sorted(self._channels.items())}.values())

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def messages(self, topics: Set[str] | None, dropped: DroppedMessages) -> Iterator[Message]:
        """Yield the messages of some topics (None: of all) as stored.

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
        """Read topics, counts and the index of chunks, if there is all of that."""
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
        """Yield messages of records from ``at`` on; ``file`` is ours, or the records of a chunk.

        Returns where the first record begins that is not whole; None: there is an end mark.
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
                message = self._understand(op, file.read(length), dropped)
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
            if self.counts is None:  # else it comes out how many
                dropped.count(UNKNOWN_TOPIC, "in a damaged chunk, at least")

    def _rest(
        self, at: int, topics: Set[str] | None, dropped: DroppedMessages
    ) -> Iterator[Message]:
        """Yield what is whole in the last, incomplete record, and count the loss."""
        if at == self._size:
            dropped.remark(f"{self.path.name}: the file ends without an end mark; not closed")
            dropped.count(UNKNOWN_TOPIC, "behind the end of a file that was not closed, at least")
            return
        dropped.remark(
            f"{self.path.name}: cut off or damaged at byte {at} of {self._size}; "
            "how many messages came after that is not known"
        )
        self._file.seek(at)
        if self._file.read(1)[0] == Opcode.CHUNK:
            data, _ = self._unpacked(at)
            yield from self._walk(io.BytesIO(data), 0, at, topics, dropped)
        dropped.count(UNKNOWN_TOPIC, "cut off at the end of the file")

    def _understand(self, op: int, content: bytes, dropped: DroppedMessages) -> Message | None:
        """Return a message, its place not known; learn what another record says of topics."""
        stream = ReadDataStream(io.BytesIO(content))
        try:
            if op != Opcode.MESSAGE:
                self._learn(Schema.read(stream) if op == Opcode.SCHEMA else Channel.read(stream))
                return None
            record = McapMessage.read(stream, len(content))
            topic = self._channels[record.channel_id].name
        except KeyError:
            dropped.count(UNKNOWN_TOPIC, "of a channel that is not described")
        except _DAMAGE:
            dropped.remark(f"{self.path.name}: a record that cannot be read")
            if op == Opcode.MESSAGE:
                dropped.count(UNKNOWN_TOPIC, "too short")
        else:
            return Message(topic, record.log_time, record.data, 0, (0, 0, 0))
        return None

    def _learn(self, record: Schema | Channel) -> None:
        """Remember a schema or a channel."""
        if isinstance(record, Schema):
            self._schemas[record.id] = record
            return
        schema = self._schemas.get(record.schema_id, Schema(0, b"", "", ""))
        self._channels[record.id] = Topic(
            record.topic,
            schema.name,
            record.message_encoding,
            schema.data.decode("utf-8", "replace"),
            DEFINITION_FORMATS.get(schema.encoding, ""),
            record.metadata.get("offered_qos_profiles", ""),
            record.metadata.get("topic_type_hash", ""),
        )

    def _unpacked(self, start: int) -> tuple[bytes, bool]:
        """Return the records of a chunk, as far as they can be had, and whether that is all."""
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
