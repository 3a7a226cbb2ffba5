"""What is done in recordings, and when: a table that the user gives.

It has our columns (recording, start, end, task) or those of EPIC-KITCHENS-100. Times count from the
first frame of the file.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from acehand_core.errors import InputError

#: What ``--task-file`` says instead of a file: each recording has its own beside it.
BESIDE = "beside"
#: Ending of such a file, after the recording's name, with its suffix or without.
SIDECAR = ".task.csv"
#: Columns for recording, start, end and task: ours, of which the task alone is needed, and
#: EPIC-KITCHENS-100's.
OURS = ("recording", "start", "end", "task")
EPIC = ("video_id", "start_timestamp", "stop_timestamp", "narration")

_CLOCK = re.compile(r"(?:(\d+):)?(\d{1,2}):(\d{1,2}(?:[.,]\d+)?)$")


@dataclass(frozen=True, slots=True)
class TaskSegment:
    """What is done in a recording from ``start_s`` to ``end_s``; both None: in all of it.

    ``where`` is the file and place, for messages.
    """

    start_s: float | None
    end_s: float | None
    task: str
    where: str


@dataclass(frozen=True, slots=True)
class _Row:
    """An entry as it stands in the file; ``recording`` "": whichever it is read for."""

    recording: str
    start: Any
    end: Any
    task: str
    where: str


@dataclass(frozen=True, slots=True)
class Narration:
    """A file of task text, or the word that each recording has its own beside it."""

    source: str
    rows: Sequence[_Row] = field(default_factory=tuple)

    @classmethod
    def read(cls, source: str) -> Narration:
        """Read ``--task-file``. Raises InputError: it cannot be read or understood."""
        return cls(source) if source == BESIDE else cls(source, _rows(Path(source)))

    def check_inputs(self, inputs: Sequence[Path]) -> None:
        """Raise InputError where a file that names no recording is given for several."""
        if len(inputs) > 1 and any(not row.recording for row in self.rows):
            raise InputError(
                f"{self.source}: does not say which recording each row is of, and there are "
                f"{len(inputs)}: a column {OURS[0]} is needed, or a file beside each of them "
                f"(--task-file {BESIDE})."
            )

    def of(self, recording: Path) -> tuple[TaskSegment, ...]:
        """Return what is said of a recording, in the order of time; of one not named nothing.

        Raises:
            InputError: a time is not one, an end lies before its start, or two rows without times
                have different tasks. With ``BESIDE`` also where there is no file.
        """
        rows = self.rows
        if self.source == BESIDE:
            rows = _rows(sidecar(recording))
        rows = [row for row in rows if _is_of(row.recording, recording)]
        told = sorted(map(_narrated, rows), key=lambda one: (one.start_s or 0.0, one.end_s or 0.0))
        whole = {one.task: one for one in told if one.start_s is None}
        if len(whole) > 1:
            first, second, *_ = whole.values()
            raise InputError(
                f"{first.where} and {second.where}: {len(whole)} tasks of all of "
                f"{recording.name}; times are needed to tell when each is done."
            )
        return tuple(told)


def sidecar(recording: Path) -> Path:
    """Return the file of task text beside a recording. Raises InputError: there is none."""
    for name in (recording.name, recording.stem):
        if (file := recording.with_name(name + SIDECAR)).is_file():
            return file
    raise InputError(
        f"{recording}: --task-file {BESIDE}: there is no {recording.stem}{SIDECAR} beside it."
    )


def task_of(told: Sequence[TaskSegment], start_s: float, end_s: float) -> str | None:
    """Return the task of what happens from one time to another; None where nothing is said of it.

    Of rows with times the one that overlaps most, of several the earliest; else the row that is of
    the whole recording.
    """
    best, most = None, 0.0
    for one in told:
        if one.start_s is not None and one.end_s is not None:
            shared = min(one.end_s, end_s) - max(one.start_s, start_s)
            if shared > most:
                best, most = one.task, shared
    return best or next((one.task for one in told if one.start_s is None), None)


def _is_of(name: str, recording: Path) -> bool:
    """Return whether a name, with folders or not, with suffix or not, is that of a recording."""
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
        raise InputError(f"{row.where}: has one of start and end; both are needed, or neither.")
    if start is not None and end is not None and end < start:
        raise InputError(f"{row.where}: ends at {row.end}, before its start, {row.start}.")
    return TaskSegment(start, end, row.task, row.where)


def _rows(path: Path) -> list[_Row]:
    """Read a table."""
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
        raise InputError(
            f"{path}: is not UTF-8 text (byte {error.start}); save it as UTF-8."
        ) from error
    rows = [row for row in _of_csv(path, text) if row.task]
    if not rows:
        raise InputError(f"{path}: says of no recording what is done in it.")
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
