"""The manifest of a batch: its recordings, and the settings of each."""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from acehand_core.errors import AcehandError, InputError, SchemaError, nearest
from acehand_core.pipeline.settings import JobSettings
from acehand_core.recordings.registry import Registry
from acehand_core.settings import Leaf, changed, leaves, value_of

#: Column that names the recording.
RECORDING = "recording"
#: Settings in which recordings of one dataset may differ, besides those of reading.
_OWN = [
    "calibration",
    "camera-motion",
    "hand-length",
    "hands",
    "split",
    "subject",
    "task",
    "task-file",
    "tracker",
]


@dataclass(frozen=True, slots=True)
class Entry:
    """One recording of a batch; ``id`` names its folder and does not depend on other recordings."""

    id: str
    path: Path
    settings: JobSettings


def own_columns() -> dict[str, Leaf]:
    """Return the settings that columns may give, by column name: the flag with underscores."""
    return {
        leaf.parameter: leaf
        for leaf in leaves(JobSettings)
        if leaf.path[0] == "reading" or leaf.flag in _OWN
    }


def read_manifest(path: Path, settings: JobSettings) -> tuple[Entry, ...]:
    """Return the recordings of a manifest, in its order.

    Args:
        path: a CSV or Parquet table with a column ``recording``, relative to the table's folder,
            and columns for settings (``own_columns``); or a folder of recordings. A LeRobot dataset
            represents all its episodes.
        settings: of all recordings; a value in the table overrides them.

    Raises InputError, SchemaError for an invalid table, column or value, or a recording that is
    missing or listed twice.
    """
    columns, registry = own_columns(), Registry()
    folder = path if path.is_dir() else path.parent
    entries: dict[str, Entry] = {}
    for where, row in _rows(path):
        source = folder / row.pop(RECORDING)
        values = {}
        for column, text in row.items():
            leaf = columns[column]
            try:
                values[leaf.path] = value_of(leaf, text, folder)
            except ValueError as error:
                raise SchemaError(f"{where}: {column} {text!r}: {error}.") from error

        try:
            own = changed(settings, values).with_environment()
            paths = registry.expand([source])
        except AcehandError as error:
            raise InputError(f"{where}: {error}") from error
        for recording in paths:
            name = _name(recording, folder, own)
            if name in entries:
                raise InputError(f"{where}: {recording} is listed twice with the same start.")
            entries[name] = Entry(name, recording, own)
    return tuple(entries.values())


def _rows(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the place of each row, for messages, and its cells that are not empty."""
    if path.is_dir():
        yield str(path), {RECORDING: "."}
        return
    if not path.is_file():
        raise InputError(f"{path}: no such manifest; give a .csv or .parquet, or a folder.")
    try:
        if path.suffix == ".parquet":
            table = pq.read_table(path).to_pylist()
        else:
            with path.open(newline="", encoding="utf-8-sig") as stream:
                table = list(csv.DictReader(stream, strict=True))
    except (OSError, UnicodeDecodeError, csv.Error, pa.ArrowException) as error:
        raise SchemaError(f"{path}: is not a readable table: {error}.") from error
    if not table:
        raise InputError(f"{path}: has no recording.")

    valid = {RECORDING, *own_columns()}
    for number, row in enumerate(table):
        where = f"{path}, row {number + 1}"
        if None in row:
            raise SchemaError(f"{where}: more cells than columns.")
        for column in row:
            if column not in valid:
                raise SchemaError(f"{path}: column {column!r}: {nearest(column, valid)}")
        filled = {column: str(value).strip() for column, value in row.items() if value is not None}
        filled = {column: text for column, text in filled.items() if text}
        if RECORDING not in filled:
            raise SchemaError(f"{where}: has no {RECORDING}.")
        yield where, filled


def _name(path: Path, folder: Path, settings: JobSettings) -> str:
    """Return the name of a recording's folder, which does not change when the tree is moved."""
    place = path.relative_to(folder) if path.is_relative_to(folder) else path.absolute()
    cut = [("at", place.as_posix()), ("cut", settings.extent)]
    digest = hashlib.sha256(repr(cut).encode()).hexdigest()[:8]
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", path.stem).strip("._")[:60] or "recording"
    return f"{plain}-{digest}"
