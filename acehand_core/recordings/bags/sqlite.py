"""sqlite3 files of rosbag2 (.db3), read with the standard library."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Set
from pathlib import Path

from acehand_core.errors import InputError
from acehand_core.recordings.bags.library import unpacked_message
from acehand_core.recordings.bags.records import (
    DEFINITION_FORMATS,
    UNKNOWN_TOPIC,
    Data,
    DroppedMessages,
    Message,
    Place,
    Topic,
)

#: Rows in a row that cannot be read before a damaged database is given up.
_GIVE_UP = 2000


class SqliteFile:
    """One .db3 file of a ``Bag``. Not for two threads at once.

    ``packed``: metadata.yaml says that every message is compressed with zstd. ``counts`` are the
    messages by topic, or None where only reading tells. Written with the standard library: that of
    rosbags reads no database that is damaged, and none that was not closed.

    Raises:
        InputError: it is not a database of rosbag2.
    """

    def __init__(self, path: Path, packed: bool, dropped: DroppedMessages) -> None:
        self.path, self._packed = path, packed
        self.metadata: dict[str, dict[str, str]] = {}
        # A bag that was not closed keeps its last messages in a -wal file beside it.
        mode = "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "immutable=1"
        uri = f"{path.absolute().as_uri()}?{mode}"
        try:
            self._db = sqlite3.connect(uri, uri=True, check_same_thread=False)
            self._db.text_factory = lambda raw: raw.decode("utf-8", "replace")
            self._cut_off = False
            try:
                self._topics = self._read_topics()
            except sqlite3.DatabaseError:
                self._cut_off = True
                # Of a database that was cut off, this opens what is left of its pages.
                self._db.execute("PRAGMA writable_schema=ON")
                self._topics = self._read_topics()
                dropped.remark(f"{path.name}: cut off or damaged; read as far as it goes")
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise InputError(f"{path}: not a readable rosbag2 database: {error}.") from error

        self.counts = self._read_counts(dropped)

    @property
    def topics(self) -> tuple[Topic, ...]:
        """Topics in the order of the database."""
        return tuple(self._topics.values())

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def messages(self, topics: Set[str] | None, dropped: DroppedMessages) -> Iterator[Message]:
        """Yield messages as stored; where the database is damaged, row by row."""
        ids = [i for i, t in self._topics.items() if topics is None or t.name in topics]
        marks = ",".join("?" * len(ids))
        query = (
            f"SELECT id, topic_id, timestamp, data FROM messages WHERE topic_id IN ({marks}) "
            "ORDER BY id"
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
        """Return one message's data."""
        row = self._db.execute("SELECT data FROM messages WHERE id = ?", place[:1]).fetchone()
        if row is None:
            raise InputError(f"{self.path}: message {place[0]} is gone; was the bag changed?")
        return unpacked_message(row[0], self._packed)

    def _row_by_row(self, first: int, ids: set[int], dropped: DroppedMessages) -> Iterator[Message]:
        """Yield what can still be reached of a damaged database, and count what cannot."""
        query = "SELECT id, topic_id, timestamp, data FROM messages WHERE id = ?"
        number, pending = first, 0  # failures since the last row that could be read
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

    def _read_topics(self) -> dict[int, Topic]:
        columns = {row[1] for row in self._db.execute("PRAGMA table_info(topics)")}
        if not columns or not list(self._db.execute("PRAGMA table_info(messages)")):
            raise InputError(f"{self.path}: a database without tables of topics and messages.")
        qos = "offered_qos_profiles" if "offered_qos_profiles" in columns else "''"
        digest = "type_description_hash" if "type_description_hash" in columns else "''"
        definitions = {}

        if list(self._db.execute("PRAGMA table_info(message_definitions)")):
            definitions = {
                name: (text, DEFINITION_FORMATS.get(encoding, ""))
                for name, encoding, text in self._db.execute(
                    "SELECT topic_type, encoding, encoded_message_definition "
                    "FROM message_definitions"
                )
            }

        query = f"SELECT id, name, type, serialization_format, {qos}, {digest} FROM topics"
        return {
            number: Topic(
                name,
                kind,
                serial,
                *definitions.get(kind, ("", "")),
                profiles or "",
                type_hash or "",
            )
            for number, name, kind, serial, profiles, type_hash in self._db.execute(query)
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
                    dropped.count(UNKNOWN_TOPIC, "of a topic that is not described", count)
        except sqlite3.Error as error:
            dropped.remark(f"{self.path.name}: damaged database ({error})")
            return None
        return counts
