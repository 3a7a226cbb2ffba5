"""Task text of recordings over time: a csv table of ours, or of EPIC-KITCHENS-100."""

from __future__ import annotations

import contextlib
import csv
import io
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from acehand_core.errors import InputError

#: ``--task-file beside``: each recording has its own file next to it.
BESIDE = "beside"
#: Suffix of such a file, after the recording's name with or without its own.
SIDECAR = ".task.csv"
#: Columns for recording, start, end and task (required): ours and EPIC-KITCHENS-100's.
OURS = ("recording", "start", "end", "task")
EPIC = ("video_id", "start_timestamp", "stop_timestamp", "narration")

_CLOCK = re.compile(r"(?:(\d+):)?(\d{1,2}):(\d{1,2}(?:[.,]\d+)?)$")


@dataclass(frozen=True, slots=True)
class TaskSegment:
    """The task from ``start_s`` to ``end_s``, None: of the whole recording; ``where``: its line."""

    start_s: float | None
    end_s: float | None
    task: str
    where: str


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of the file; ``recording`` "": any."""

    recording: str
    start: Any
    end: Any
    task: str
    where: str


@dataclass(frozen=True, slots=True)
class Narration:
    """A file of task text, or ``BESIDE``."""

    source: str
    rows: Sequence[_Row] = field(default_factory=tuple)

    @classmethod
    def read(cls, source: str) -> Narration:
        """Read ``--task-file``. Raises InputError: unreadable or invalid."""
        return cls(source) if source == BESIDE else cls(source, _rows(Path(source)))

    def check_inputs(self, inputs: Sequence[Path]) -> None:
        """Raise InputError for several recordings and a file that names none."""
        if len(inputs) > 1 and any(not row.recording for row in self.rows):
            raise InputError(
                f"{self.source}: no recording named, for {len(inputs)} recordings; add a column "
                f"{OURS[0]}, or put a file next to each of them (--task-file {BESIDE})."
            )

    def of(self, recording: Path) -> tuple[TaskSegment, ...]:
        """Return the segments of a recording by time; none for one that is not named.

        Raises:
            InputError: an invalid time, an end before its start, different tasks without times, or
                no file (``BESIDE``).
        """
        rows = _rows(sidecar(recording)) if self.source == BESIDE else self.rows
        found = (_narrated(row) for row in rows if _is_of(row.recording, recording))
        segments = sorted(found, key=lambda one: (one.start_s or 0.0, one.end_s or 0.0))
        whole = {one.task: one for one in segments if one.start_s is None}
        if len(whole) > 1:
            first, second, *_ = whole.values()
            raise InputError(
                f"{first.where} and {second.where}: {len(whole)} tasks for all of "
                f"{recording.name}; give their start and end."
            )
        return tuple(segments)


def sidecar(recording: Path) -> Path:
    """Return the file of task text next to a recording. Raises InputError."""
    for name in (recording.name, recording.stem):
        if (file := recording.with_name(name + SIDECAR)).is_file():
            return file
    raise InputError(f"{recording}: --task-file {BESIDE}: no {recording.stem}{SIDECAR} next to it.")


def task_of(segments: Sequence[TaskSegment], start_s: float, end_s: float) -> str | None:
    """Return the task of an interval, or None.

    It is that of the first segment with the largest overlap, else that of the whole recording.
    """
    best, most = None, 0.0
    for one in segments:
        if one.start_s is not None and one.end_s is not None:
            shared = min(one.end_s, end_s) - max(one.start_s, start_s)
            if shared > most:
                best, most = one.task, shared
    return best or next((one.task for one in segments if one.start_s is None), None)


def _is_of(name: str, recording: Path) -> bool:
    """Return whether a name, maybe with folders and suffix, is that of a recording."""
    if not name:
        return True
    parts = PurePath(name.replace("\\", "/")).parts
    ending = recording.absolute().parts[-len(parts) :]
    return parts == ending or parts == (*ending[:-1], recording.stem)


def seconds(value: Any) -> float:
    """Return a time in seconds: a number, or hours:minutes:seconds. Raises ValueError."""
    text = str(value).strip()
    if match := _CLOCK.match(text):
        hours, minutes, rest = match.groups()
        return 3600 * int(hours or 0) + 60 * int(minutes) + float(rest.replace(",", "."))
    with contextlib.suppress(ValueError):
        if 0 <= (number := float(text)) < math.inf:
            return number
    raise ValueError(f"{text!r} is not a time")


def _narrated(row: _Row) -> TaskSegment:
    try:
        start, end = (None if v in (None, "") else seconds(v) for v in (row.start, row.end))
    except ValueError as error:
        text = "valid: seconds or hours:minutes:seconds from the first frame"
        raise InputError(f"{row.where}: {error}; {text}.") from None
    if (start is None) != (end is None):
        raise InputError(f"{row.where}: has one of start and end; give both or neither.")
    if start is not None and end is not None and end < start:
        raise InputError(f"{row.where}: ends at {row.end}, before its start, {row.start}.")
    return TaskSegment(start, end, row.task, row.where)


def _rows(path: Path) -> list[_Row]:
    if path.suffix.lower() != ".csv":
        raise InputError(
            f"--task-file {path}: give a .csv with the columns {', '.join(OURS)}, or "
            f"EPIC-KITCHENS-100's ({', '.join(EPIC)}), or the word {BESIDE}."
        )
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}).") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 (byte {error.start}); save it as UTF-8.") from error

    rows = [row for row in _of_csv(path, text) if row.task]
    if not rows:
        raise InputError(f"{path}: has no task text.")
    return rows


def _of_csv(path: Path, text: str) -> Iterator[_Row]:
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        names = reader.fieldnames or ()
        columns = EPIC if {*EPIC} <= {*names} else OURS
        if ("task" not in names and columns == OURS) or ("start" in names) != ("end" in names):
            raise InputError(
                f"{path}: its first line has {', '.join(names) or 'nothing'}; valid, separated by "
                f"commas: {OURS[-1]}, with it {OURS[0]}, {OURS[1]} and {OURS[2]}; or "
                f"EPIC-KITCHENS-100's {', '.join(EPIC)}."
            )
        for row in reader:
            where = f"{path}, line {reader.line_num}"
            if None in row:
                raise InputError(f"{where}: more entries than the header.")
            recording, start, end, task = (row.get(column) or "" for column in columns)
            yield _Row(recording.strip(), start, end, " ".join(task.split()), where)
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: {error}.") from error
