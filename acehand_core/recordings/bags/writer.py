"""Writing bags, as a rosbag2 folder or a bare .mcap: copied messages and plain ones."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml

from acehand_core import atomic
from acehand_core.atomic import sync
from acehand_core.errors import InputError, OutputError, SchemaError
from acehand_core.recordings.bags.library import LATEST, needs_rosbags, type_hash, typestore
from acehand_core.recordings.bags.messages import TOPICS, PlainMessage, TopicSpec
from acehand_core.recordings.bags.records import Data, Topic

Storage = Literal["mcap", "sqlite3"]
_NO_HASH = "RIHS01_" + 64 * "0"

_BASE, _NAME, _ARRAY = 1, 2, 3


class BagWriter:
    """A new bag that appears at ``path`` when it is complete, or not at all.

    ``path`` ending in .mcap is a bare file, anything else a folder with metadata.yaml. Used as a
    context manager, it removes the bag on an exception. Leftovers of killed writers of ``path`` are
    removed first. Until complete, the bag is the hidden folder ``.NAME.partial-PID``; with
    ``keep_partial`` that stays if ``close`` fails. ``recorded_on`` is the distribution that
    metadata.yaml names.

    Raises:
        OutputError: ``path`` exists, or cannot be written. InputError: .mcap with another storage.
        MissingDependencyError: rosbags is not installed.
    """

    def __init__(
        self,
        path: Path,
        storage: Storage = "mcap",
        overwrite: bool = False,
        distro: str = LATEST,
        keep_partial: bool = False,
        recorded_on: str = "",
    ) -> None:
        load_library()
        from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin, Writer

        self.path = path
        self._bare = path.suffix == ".mcap"
        if self._bare and storage != "mcap":
            raise InputError(f"{path}: a bare file is mcap; give a folder's name for {storage}.")
        clean_siblings(path)
        atomic.check_free(path, overwrite)
        if overwrite and path.is_dir() and not (path / "metadata.yaml").is_file():
            raise OutputError(f"{path} is a folder but not a bag, so it is not overwritten.")
        self._store = typestore(distro)
        hidden = path.with_name(f".{path.name}.partial-{os.getpid()}")
        self._partial = hidden / (path.stem if self._bare else path.name)
        self._connections: dict[str, tuple[str, Any]] = {}
        self._overwrite, self._keep_partial = overwrite, keep_partial
        self._recorded_on = recorded_on if recorded_on.isalnum() else ""
        self.counts: Counter[str] = Counter()
        with atomic.output_errors(path):
            hidden.mkdir(parents=True, exist_ok=True)
            self._lock = atomic.DirectoryLock(hidden)
            shutil.rmtree(self._partial, ignore_errors=True)
            plugin = StoragePlugin.MCAP if storage == "mcap" else StoragePlugin.SQLITE3
            # Version of metadata.yaml: 5 is Humble's, 8 Iron's and Jazzy's, 9 newer.
            self._writer: Any = Writer(self._partial, version=8, storage_plugin=plugin)
            if storage == "mcap":
                self._writer.set_compression(CompressionMode.STORAGE, CompressionFormat.ZSTD)
            self._writer.open()

    def add_topic(self, topic: Topic) -> None:
        """Add a topic of another bag, with its definition."""
        self._connect(topic.name, topic.msgtype, topic, None)

    def write_raw(self, topic: str, msgtype: str, time_ns: int, data: Data) -> None:
        """Write a serialized message (CDR). Raises OutputError."""
        self._write(self._connect(topic, msgtype, None, TOPICS.get(topic)), topic, time_ns, data)

    def write(self, message: PlainMessage, topic: str | None = None) -> None:
        """Serialize and write a plain message, to another topic if given. Raises OutputError."""
        name = topic or message.topic
        connection = self._connect(name, message.msgtype, None, TOPICS.get(message.topic))
        content = build(self._store, message.msgtype, message.fields)
        data = self._store.serialize_cdr(content, message.msgtype)
        self._write(connection, name, message.time_ns, data)

    def describe(self, custom: Mapping[str, str]) -> None:
        """Write custom_data into the bag's metadata."""
        for name, text in custom.items():
            self._writer.set_custom_data(name, text)

    def close(self) -> None:
        """Complete the bag and move it to its path. Raises OutputError."""
        try:
            with atomic.output_errors(self.path):
                self._writer.close()
                finished = self._partial
                if self._recorded_on:
                    metadata = finished / "metadata.yaml"
                    text = metadata.read_text("utf-8")
                    named = f"ros_distro: {self._recorded_on}"
                    metadata.write_text(text.replace("ros_distro: rosbags", named), "utf-8")
                if self._bare:
                    finished = next(self._partial.glob("*.mcap"))
                for file in (finished, *finished.rglob("*")):
                    sync(file)
                self._put_in_place(finished)
                sync(self.path.parent)
        except BaseException:
            self._let_go(self._keep_partial)
            raise
        self._let_go(False)

    def abort(self) -> None:
        """Remove what was written."""
        try:
            self._writer.abort()
        finally:
            self._let_go(False)

    def _put_in_place(self, finished: Path) -> None:
        """Rename ``made`` to the path; a replaced folder is kept until that succeeds."""
        atomic.check_free(self.path, self._overwrite)
        if not self.path.is_dir():
            if finished.is_dir():
                self.path.unlink(missing_ok=True)
            finished.replace(self.path)
            return

        with atomic.DirectoryLock(self.path):
            atomic.rename_folder(finished, self.path, replaces=True)

    def _let_go(self, keep: bool) -> None:
        if not keep:
            shutil.rmtree(self._partial.parent, ignore_errors=True)
        self._lock.release()

    def __enter__(self) -> BagWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def _write(self, connection: Any, topic: str, time_ns: int, data: Any) -> None:
        with atomic.output_errors(self.path):
            self._writer.write(connection, max(time_ns, 0), data)
        self.counts[topic] += 1

    def _connect(self, name: str, msgtype: str, topic: Topic | None, spec: TopicSpec | None) -> Any:
        if name in self._connections:
            known, connection = self._connections[name]
            if known != msgtype:
                raise SchemaError(f"{self.path}: topic {name} is {known}, not {msgtype}.")
            return connection

        options: dict[str, Any] = {}
        # The definition stored in a bag comes before that of a distribution.
        if (topic is None or not topic.definition) and msgtype in self._store.fielddefs:
            options["typestore"] = self._store
        else:
            digest = topic.type_hash if topic else None
            if topic and not digest and topic.definition_format == "ros2msg":
                digest = type_hash(topic.msgtype, topic.definition)
            options |= {"msgdef": topic.definition if topic else "", "rihs01": digest or _NO_HASH}
        if topic is not None:
            options["serialization_format"] = topic.serialization or "cdr"
        options["offered_qos_profiles"] = _qos(topic, spec)
        with atomic.output_errors(self.path):
            connection = self._writer.add_connection(name, msgtype, **options)

        self._connections[name] = msgtype, connection
        self.counts[name] += 0
        return connection


def load_library() -> None:
    """Load rosbags. Raises MissingDependencyError.

    To be called early: loaded after a renderer's drivers, rosbags would use their zstd, and the
    bytes of the bag would differ.
    """
    try:
        import rosbags.rosbag2  # noqa: F401
    except ImportError as error:
        raise needs_rosbags("writing a bag") from error


def build(store: Any, msgtype: str, fields: Any) -> Any:
    """Return a rosbags message from nested dicts; missing fields are empty."""
    kinds = store.fielddefs[msgtype][1]
    values = {name: _value(store, kind, fields.get(name)) for name, kind in kinds}
    if unknown := set(fields) - values.keys():
        raise SchemaError(f"{msgtype} has no field {sorted(unknown)[0]!r}.")
    return store.types[msgtype](**values)


def _sequence(store: Any, msgtype: str, values: Any) -> list[Any]:
    """Build many messages of one type; fast for flat ones such as points."""
    fields, cls = store.fielddefs[msgtype][1], store.types[msgtype]
    names = {name for name, kind in fields if int(kind[0]) == _BASE}
    if len(names) == len(fields) and all(value.keys() == names for value in values):
        return [cls(**value) for value in values]
    return [build(store, msgtype, value) for value in values]


def _value(store: Any, kind: Any, value: Any) -> Any:
    """Return the value of a field; None gives an empty one."""
    code, detail = int(kind[0]), kind[1]
    if code == _BASE:
        empty = {"string": "", "bool": False}.get(detail[0], 0.0 if "float" in detail[0] else 0)
        return empty if value is None else value
    if code == _NAME:
        return build(store, detail, value or {})

    inner = detail[0]
    if int(inner[0]) == _NAME:
        return _sequence(store, inner[1], value or [])
    name = inner[1][0]
    if name == "string":
        return list(value or [])
    dtype = np.uint8 if name in ("octet", "byte", "char") else np.dtype(name)
    zeros = np.zeros(detail[1] if code == _ARRAY else 0)
    return np.asarray(zeros if value is None else value, dtype)


def _qos(topic: Topic | None, spec: TopicSpec | None) -> list[Any]:
    """Return the QoS of a topic: as recorded, or that of ``TOPICS``."""
    from rosbags import interfaces as ros

    if topic is not None and topic.qos:
        from rosbags.rosbag2.errors import ReaderError
        from rosbags.rosbag2.metadata import parse_qos

        try:
            return parse_qos(yaml.safe_load(topic.qos))
        except (ReaderError, KeyError, TypeError, ValueError, yaml.YAMLError):
            return []  # not a known profile
    if spec is None:
        return []
    latched = ros.QosDurability.TRANSIENT_LOCAL if spec.latched else ros.QosDurability.VOLATILE
    reliable, automatic = ros.QosReliability.RELIABLE, ros.QosLiveliness.AUTOMATIC
    never = ros.QosTime(9223372036, 854775807)
    keep = ros.QosHistory.KEEP_LAST
    return [ros.Qos(keep, spec.depth, reliable, latched, never, never, automatic, never, False)]


def clean_siblings(path: Path) -> None:
    """Remove or restore what killed writers of a bag left next to it. Raises OutputError."""
    with atomic.output_errors(path):
        for folder in atomic.abandoned(path, "replaced"):
            if path.exists():
                shutil.rmtree(folder)
            else:
                folder.rename(path)
        for folder in atomic.abandoned(path, "partial"):
            shutil.rmtree(folder)
