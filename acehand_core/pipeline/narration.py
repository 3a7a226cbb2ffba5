"""Task text of recordings: a table with our columns or those of EPIC-KITCHENS-100.

Times count from the first frame of the file.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path, PurePath
from typing import Any
from unicodedata import normalize

from acehand_core.errors import InputError

#: Value of ``task_file`` for a file next to each recording.
SIDECAR = "sidecar"
#: Ending of such a file, after the recording's name with or without suffix.
SIDECAR_SUFFIX = ".task.csv"
#: Columns for recording, start, end and task: ours (only the task is mandatory) and
#: EPIC-KITCHENS-100's.
OURS = ("recording", "start", "end", "task")
EPIC = ("video_id", "start_timestamp", "stop_timestamp", "narration")

_CLOCK = re.compile(r"(?:(\d+):(?=[0-5]?\d:))?(\d{1,2}):([0-5]?\d(?:[.,]\d+)?)$")


@dataclass(frozen=True, slots=True)
class TaskSegment:
    """The task from ``start_s`` to ``end_s`` of a recording; both None: of all of it.

    ``where`` is the file and line, for messages.
    """

    start_s: float | None
    end_s: float | None
    task: str
    where: str


def task_of(segments: Sequence[TaskSegment], start_s: float, end_s: float) -> str | None:
    """Return the task from one time to another; None without a row for it.

    The row with times that overlaps most, the earliest of several; else that of all of it.
    """
    best, most = None, 0.0
    for one in segments:
        if one.start_s is not None and one.end_s is not None:
            shared = min(one.end_s, end_s) - max(one.start_s, start_s)
            if shared > most:
                best, most = one.task, shared
    return best or next((one.task for one in segments if one.start_s is None), None)


@dataclass(frozen=True, slots=True)
class _Row:
    """A row as in the file; ``recording`` "": of any recording."""

    recording: str
    start: Any
    end: Any
    task: str
    where: str


@dataclass(frozen=True, slots=True)
class Narration:
    """A file of task text, or ``SIDECAR``."""

    source: str
    rows: Sequence[_Row] = field(default_factory=tuple)

    @classmethod
    def read(cls, source: str) -> Narration:
        """Read ``task_file``. Raises InputError."""
        return cls(source) if source == SIDECAR else cls(source, _rows(Path(source)))

    def check_inputs(self, inputs: Sequence[Path]) -> None:
        """Raise InputError for several inputs and rows without recording."""
        if len(inputs) > 1 and any(not row.recording for row in self.rows):
            raise InputError(
                f"{self.source}: {len(inputs)} recordings need a column {OURS[0]}, or a file next "
                f"to each (`task_file={SIDECAR}`)."
            )

    def of(self, recording: Path) -> tuple[TaskSegment, ...]:
        """Return the task text of a recording, in order of time.

        Raises InputError for an invalid time, an end before its start, two rows without times and
        different tasks, or, with ``SIDECAR``, a missing file.
        """
        rows = self.rows
        if self.source == SIDECAR:
            rows = _rows(sidecar(recording))
        rows = [row for row in rows if _is_of(row.recording, recording)]
        texts = sorted(map(_narrated, rows), key=lambda one: (one.start_s or 0.0, one.end_s or 0.0))
        whole = {one.task: one for one in texts if one.start_s is None}
        if len(whole) > 1:
            first, second, *_ = whole.values()
            raise InputError(
                f"{first.where} and {second.where}: {len(whole)} tasks for the whole of "
                f"{recording.name}; give the times of each."
            )
        return tuple(texts)

    def since(self, recording: Path, start_s: float) -> tuple[TaskSegment, ...]:
        """Return ``of`` in seconds from ``start_s``, without rows that end before it."""
        return tuple(
            one
            if one.start_s is None or one.end_s is None
            else replace(one, start_s=max(one.start_s - start_s, 0.0), end_s=one.end_s - start_s)
            for one in self.of(recording)
            if one.end_s is None or one.end_s > start_s or start_s == 0
        )

    def fitting(
        self, recording: Path, extent: tuple[float, float | None], duration_s: float, by_rows: bool
    ) -> tuple[tuple[TaskSegment, ...], list[str]]:
        """Return ``since`` within a recording, and notes about the other rows.

        Args:
            extent: start and duration of what is read of the file, seconds.
            duration_s: of what was read.
            by_rows: each row becomes an episode.

        Raises InputError if all rows begin after the recording's end.
        """
        tasks = self.since(recording, extent[0])
        if not tasks:
            return (), [f"{recording}: `task_file={self.source}` has no row for it"]
        notes = []
        beyond = [one for one in tasks if one.start_s is not None and one.start_s >= duration_s]
        if len(beyond) == len(tasks) and extent == (0.0, None):
            raise InputError(
                f"{beyond[0].where}: begins at {beyond[0].start_s:g} s, but {recording} lasts "
                f"{duration_s:.1f} s: its rows belong to another recording."
            )
        if beyond and extent[1] is None:
            notes.append(
                f"{recording}: {len(beyond)} of {len(tasks)} rows begin after its end, "
                f"{duration_s:.1f} s ({beyond[0].where})"
            )
        timed = [one for one in tasks if one.start_s is not None]
        crossed = sum((a.end_s or 0) > (b.start_s or 0) for a, b in pairwise(timed))
        if crossed and by_rows:
            notes.append(
                f"{recording}: {crossed} rows overlap the next: its frames are in both episodes"
            )
        return tuple(one for one in tasks if one not in beyond), notes


def sidecar(recording: Path) -> Path:
    """Return the file of task text next to a recording. Raises InputError if missing."""
    for name in (recording.name, recording.stem):
        if (file := recording.with_name(name + SIDECAR_SUFFIX)).is_file():
            return file
    raise InputError(
        f"{recording}: `task_file={SIDECAR}` needs {recording.stem}{SIDECAR_SUFFIX} next to it."
    )


def _is_of(name: str, recording: Path) -> bool:
    """Return whether a name is a recording's: with or without folders, suffix, accents apart."""
    if not name:
        return True
    parts = PurePath(normalize("NFC", name.replace("\\", "/"))).parts
    recording = Path(normalize("NFC", str(recording.absolute())))
    ending = recording.parts[-len(parts) :]
    return parts == ending or parts == (*ending[:-1], recording.stem)


def seconds(value: Any) -> float:
    """Return a time in seconds: a number, or hours:minutes:seconds. Raises ValueError."""
    text = str(value).strip()
    if match := _CLOCK.match(text):
        hours, minutes, rest = match.groups()
        number = 3600 * int(hours or 0) + 60 * int(minutes) + float(rest.replace(",", "."))
    else:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise ValueError(f"{text!r} is not a time")
    return number


def _narrated(row: _Row) -> TaskSegment:
    try:
        start, end = (None if v in (None, "") else seconds(v) for v in (row.start, row.end))
    except ValueError as error:
        raise InputError(
            f"{row.where}: {error}; seconds or hours:minutes:seconds from the first frame on are "
            "needed."
        ) from None
    if (start is None) != (end is None):
        raise InputError(f"{row.where}: has only one of start and end; give both or neither.")
    if start is not None and end is not None and end < start:
        raise InputError(f"{row.where}: ends at {row.end}, before its start, {row.start}.")
    return TaskSegment(start, end, row.task, row.where)


def _rows(path: Path) -> list[_Row]:
    """Return the rows of a table that have a task."""
    if path.suffix.lower() != ".csv":
        raise InputError(
            f"`task_file={path}`: give a .csv with the columns {', '.join(OURS)}, or "
            f"EPIC-KITCHENS-100's ({', '.join(EPIC)}), or the word {SIDECAR}."
        )
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}).") from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: is not UTF-8 text (byte {error.start}); save it as UTF-8."
        ) from error
    rows = [row for row in _of_csv(path, text) if row.task]
    if not rows:
        raise InputError(f"{path}: has no task.")
    return rows


def _of_csv(path: Path, text: str) -> Iterator[_Row]:
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        names = reader.fieldnames = [name.strip() for name in reader.fieldnames or ()]
        columns = EPIC if {*EPIC} <= {*names} else OURS
        odd = ("start" in names) != ("end" in names) or max(map(names.count, columns)) > 1
        if odd or ("task" not in names and columns == OURS):
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
