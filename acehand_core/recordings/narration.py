"""What is done in recordings, and when: tables, narrations and transcripts that the user gives.

Rows of CSV files (also EPIC-KITCHENS's), of JSON (Whisper, whisper.cpp, Ego4D's narrations) and
cues of SRT and WebVTT all become ``Narrated``. Times count from the first frame of the file.
"""

from __future__ import annotations

import csv
import html
import io
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from acehand_core.errors import InputError

#: What ``--task-file`` says instead of a file: each recording has its own beside it.
BESIDE = "beside"
#: Endings of such files, after the recording's name, with its suffix or without; the first counts.
SIDECARS = (".task.txt", ".task.csv", ".task.json", ".json", ".vtt", ".srt")
#: A narration that has one time only is taken for what happens up to so far from it.
NEAR_S = 2.0

#: Columns and entries by what they mean; the first that is there counts.
RECORDING = ("recording", "video_id", "video_uid", "video", "filename", "file")
START = ("start", "start_s", "start_sec", "start_time", "start_timestamp", "video_start_sec")
END = ("end", "end_s", "end_sec", "end_time", "stop", "stop_s", "stop_timestamp", "end_timestamp",
       "video_end_sec")  # fmt: skip
AT = ("timestamp_sec", "narration_timestamp", "timestamp", "time")
TASK = ("task", "narration", "narration_text", "instruction", "text", "label", "description")

_CLOCK = re.compile(r"(?:(\d+):)?(\d{1,2}):(\d{1,2}(?:[.,]\d+)?)$")
_TAG = re.compile(r"</?[a-zA-Z0-9][^<>]*>|\{\\[^{}]*\}")
#: Ego4D: who does it, C the one who wears the camera.
_EGO4D_ACTOR = re.compile(r"#(\w+)\s+(?:\1\b\s*)?")


@dataclass(frozen=True, slots=True)
class Narrated:
    """What is done in a recording from ``start_s`` to ``end_s``.

    ``end_s`` None: said at ``start_s``; both None: all of the recording. ``where`` is the file and
    place, for messages.
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
            if Path(self.source).suffix.lower() == ".txt":
                return
            raise InputError(
                f"{self.source}: does not say which recording each row is of, and there are "
                f"{len(inputs)}: a column {RECORDING[0]} is needed, or a file beside each of them "
                f"(--task-file {BESIDE})."
            )

    def of(self, recording: Path) -> tuple[Narrated, ...]:
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
    names = dict.fromkeys((recording.name, recording.stem))
    files = [recording.with_name(name + ending) for ending in SIDECARS for name in names]
    found = next((file for file in files if file.is_file() and file != recording), None)
    if found is None:
        raise InputError(
            f"{recording}: --task-file {BESIDE}: there is no {recording.stem} with one of the "
            f"endings {', '.join(SIDECARS)} beside it."
        )
    return found


def task_of(told: Sequence[Narrated], start_s: float, end_s: float) -> str | None:
    """Return the task of what happens from one time to another; None where nothing is said of it.

    Of rows with two times the one that overlaps most, of several the earliest. Else of rows with
    one time the nearest to the middle, if it is at most ``NEAR_S`` before or after. Else the row
    that is of the whole recording.
    """
    best, most = None, 0.0
    for one in told:
        if one.start_s is not None and one.end_s is not None:
            shared = min(one.end_s, end_s) - max(one.start_s, start_s)
            if shared > most:
                best, most = one.task, shared
    if best is not None:
        return best

    near = [
        one for one in told
        if one.start_s is not None and one.end_s is None
        and start_s - NEAR_S <= one.start_s <= end_s + NEAR_S
    ]  # fmt: skip
    if near:
        middle = (start_s + end_s) / 2
        return min(near, key=lambda one: abs((one.start_s or 0.0) - middle)).task
    return next((one.task for one in told if one.start_s is None), None)


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


def _narrated(row: _Row) -> Narrated:
    try:
        start, end = (None if v in (None, "") else seconds(v) for v in (row.start, row.end))
    except ValueError as error:
        raise InputError(
            f"{row.where}: {error}; seconds or hours:minutes:seconds from the first frame on are "
            "needed."
        ) from None
    if start is None and end is not None:
        raise InputError(f"{row.where}: has an end, {row.end}, but no start.")
    if start is not None and end is not None and end < start:
        raise InputError(f"{row.where}: ends at {row.end}, before its start, {row.start}.")
    if end == start:  # as Whisper writes words that it found no time for
        end = None
    return Narrated(start, end, row.task, row.where)


def _rows(path: Path) -> list[_Row]:
    """Read a file by its suffix."""
    readers: dict[str, Callable[[Path, str], Iterator[_Row]]] = {
        ".csv": _of_csv, ".tsv": _of_csv, ".json": _of_json, ".srt": _of_cues, ".vtt": _of_cues,
        ".txt": _of_text,
    }  # fmt: skip
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise InputError(
            f"--task-file {path}: a file of task text is one of {', '.join(readers)}, or the word "
            f"{BESIDE}."
        )
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}).") from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: is not UTF-8 text (byte {error.start}); save it as UTF-8."
        ) from error
    rows = [row for row in reader(path, text) if row.task]
    if not rows:
        raise InputError(f"{path}: says of no recording what is done in it.")
    return rows


def _of_text(path: Path, text: str) -> Iterator[_Row]:
    words = text.split()
    if len(text.strip().splitlines()) > 1:
        raise InputError(f"{path}: several lines; a file of task text has one, or times (CSV).")
    yield _Row("", None, None, " ".join(words), str(path))


def _of_csv(path: Path, text: str) -> Iterator[_Row]:
    header = text.partition("\n")[0]
    delimiter = max(",;\t", key=header.count)
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        names = {name.strip().lower(): name for name in reader.fieldnames or () if name}
        columns = _columns(names, f"{path}: its first line")
        for row in reader:
            if None in row:
                raise InputError(f"{path}, line {reader.line_num}: more entries than the header.")
            yield _row({k: row[v] for k, v in names.items()}, columns,
                       f"{path}, line {reader.line_num}")  # fmt: skip
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: {error}.") from error


def _columns(names: Mapping[str, Any], what: str) -> list[str | None]:
    """Return which entries say recording, start, end, one time and task. Raises InputError."""
    found = [next((n for n in kinds if n in names), None)
             for kinds in (RECORDING, START, END, AT, TASK)]  # fmt: skip
    if found[-1] is None:
        raise InputError(
            f"{what} names no task: it has {', '.join(names)}; one of {', '.join(TASK)} is needed, "
            f"and with it {START[0]} and {END[0]}, one time ({AT[0]}), or neither."
        )
    if (found[1] is None) != (found[2] is None):
        given, lacking = (found[1], END) if found[2] is None else (found[2], START)
        raise InputError(f"{what} has {given}, but none of {', '.join(lacking)}.")
    return found


def _row(entry: Mapping[str, Any], columns: Sequence[str | None], where: str) -> _Row:
    recording, start, end, at, task = (entry.get(c) if c else None for c in columns)
    if start in (None, ""):
        start = at
    return _Row(str(recording or "").strip(), start, end, _plain(task), where)


def _plain(text: Any) -> str:
    """Return words without markup, on one line."""
    return " ".join(html.unescape(_TAG.sub("", str(text or ""))).split())


def _of_cues(path: Path, text: str) -> Iterator[_Row]:
    """Yield the cues of SRT or WebVTT; notes, styles and regions have no line with an arrow."""
    lines, number = text.splitlines(), 0
    while number < len(lines):
        line, number = lines[number], number + 1
        if "-->" not in line:
            continue
        where = f"{path}, line {number}"
        first, _, rest = line.partition("-->")
        words = []
        while number < len(lines) and lines[number].strip() and "-->" not in lines[number]:
            words.append(lines[number])
            number += 1
        if not rest.split():
            raise InputError(f"{where}: a cue without an end.")
        if number < len(lines) and "-->" in lines[number] and words:
            number_of_next = words[-1].strip()
            words = words[:-1] if number_of_next.isdigit() else words
        yield _Row("", first.strip(), rest.split()[0], _plain(" ".join(words)), where)


def _of_json(path: Path, text: str) -> Iterator[_Row]:
    try:
        content = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"{path}: is not JSON: {error}.") from error
    if isinstance(content, dict) and isinstance(content.get("videos"), dict):
        content = content["videos"]  # Ego4D's narration.json
    if isinstance(content, dict) and any(map(_is_ego4d, content.values())):
        yield from _of_ego4d(path, content)
        return
    if isinstance(content, dict) and isinstance(task := content.get("task"), str) \
            and "segments" not in content:  # fmt: skip
        yield _Row(_name_in(content), None, None, _plain(task), str(path))
        return

    lists = ("segments", "transcription", "chunks", "tasks", "narrations", "annotations")
    entries = content
    if isinstance(content, dict):
        key = next((key for key in lists if isinstance(content.get(key), list)), None)
        entries = content[key] if key else None
    if not isinstance(entries, list):
        raise InputError(
            f"{path}: neither a transcript of Whisper (segments with start, end, text), Ego4D's "
            "narrations, nor a list of tasks with start and end."
        )
    for number, entry in enumerate(entries):
        where = f"{path}, entry {number}"
        if not isinstance(entry, dict):
            raise InputError(f"{where}: is not an object with start, end and task.")
        entry = _with_times({str(key).lower(): value for key, value in entry.items()}, where)
        yield _row(entry, _columns(entry, where), where)


def _with_times(entry: dict[str, Any], where: str) -> dict[str, Any]:
    """Return an entry with start and end: whisper.cpp has offsets, transformers timestamps."""
    offsets, pair = entry.get("offsets"), entry.get("timestamp")
    try:
        if isinstance(offsets, dict):  # milliseconds
            return entry | {"start": offsets["from"] / 1e3, "end": offsets["to"] / 1e3}
        if isinstance(pair, list):
            start, end = pair
            return entry | {"timestamp": None, "start": start, "end": end}
    except (KeyError, TypeError, ValueError):
        raise InputError(f"{where}: its times are not a start and an end.") from None
    return entry


def _name_in(entry: Mapping[str, Any]) -> str:
    return str(next((entry[name] for name in RECORDING if entry.get(name)), ""))


def _is_ego4d(entry: Any) -> bool:
    return isinstance(entry, dict) and any(str(key).startswith("narration_pass") for key in entry)


def _of_ego4d(path: Path, videos: Mapping[str, Any]) -> Iterator[_Row]:
    """Yield what the one who wears the camera does, by the first pass that has narrations."""
    for uid, passes in videos.items():
        for name in ("narration_pass_1", "narration_pass_2"):
            told = passes.get(name) if isinstance(passes, dict) else None
            narrations = (told.get("narrations") if isinstance(told, dict) else None) or []
            for number, entry in enumerate(narrations):
                where = f"{path}, {uid}, {name} {number}"
                if not isinstance(entry, dict):
                    raise InputError(f"{where}: is not an object with timestamp_sec and text.")
                text = str(entry.get("narration_text", ""))
                actor = _EGO4D_ACTOR.match(text)
                if actor and actor[1].upper() != "C":
                    continue
                words = _plain(text[actor.end() :] if actor else text)
                yield _Row(str(uid), entry.get("timestamp_sec"), None, words, where)
            if narrations:
                break
