"""The folder of a batch next to its output: results, failures, and data to use again."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from acehand_core import __version__
from acehand_core.atomic import DirectoryLock, atomic_path, output_errors
from acehand_core.errors import InputError, SchemaError
from acehand_core.lerobot.format import INFO_PATH, read_json
from acehand_core.pipeline.batch.manifest import Entry
from acehand_core.pipeline.narration import SIDECAR, sidecar
from acehand_core.pipeline.settings import JobSettings
from acehand_core.settings import file_identity

SCHEMA = "acehand-batch/1"

#: How one step of one recording ended; ``killed`` is tried again.
State = Literal["done", "no_hand", "failed", "quarantined", "killed"]
#: States that ``acehand batch run --retry`` clears.
PROBLEMS: tuple[State, ...] = ("failed", "quarantined")
Stage = Literal["track", "calibrate", "convert"]


@dataclass(frozen=True, slots=True)
class TaskResult:
    """How one step ended.

    Attributes:
        key: of input and settings (``key_of``); another one makes the result out of date.
        reason: what went wrong, or "".
        seconds, recorded_s: duration of the step, and of the episodes.
        episodes: verdict and reasons of each.
        peak_mb: peak memory of the worker; 0: unknown.
        hands: of the stage ``track``, the file of tracked hands, or "".
    """

    id: str
    stage: Stage
    state: State
    key: str
    reason: str = ""
    seconds: float = 0.0
    recorded_s: float = 0.0
    episodes: tuple[dict[str, Any], ...] = ()
    peak_mb: float = 0.0
    hands: str = ""


@dataclass(frozen=True, slots=True)
class Task:
    """One step for a worker. ``path`` and ``settings`` are the recording's.

    In the stage ``calibrate``, ``id`` is the subject and ``hands`` the files of its tracked hands.
    """

    id: str
    stage: Stage
    key: str
    folder: Path
    path: Path
    settings: JobSettings
    hands: tuple[Path, ...] = field(default=())

    @property
    def result_path(self) -> Path:
        """File of the result."""
        return self.folder / f"{self.stage}.json"

    def kept(self) -> TaskResult | None:
        """Return the kept result for this input and these settings, if any."""
        result = read_result(self.result_path)
        if result is None or result.key != self.key:
            return None
        gone = result.hands and not Path(result.hands).is_file()  # the cache was emptied
        return None if gone else result


class BatchFolder:
    """``OUTPUT.batch``.

    ``recordings/ID`` has a dataset of that recording's episodes, the results of its stages, a log
    and ``attempts.jsonl``; ``subjects/NAME`` calibrations shared by a subject's recordings;
    ``cache`` tracked hands; ``batch.json`` the recordings in order.
    """

    def __init__(self, output: Path) -> None:
        output = output.absolute()
        self.output, self.root = output, output.with_name(f"{output.name}.batch")
        self.cache = self.root / "cache"
        self.merged = self.root / "merged.json"

    def recording(self, name: str) -> Path:
        """Return the folder of a recording."""
        return self.root / "recordings" / name

    def subject(self, name: str) -> Path:
        """Return the folder of a subject."""
        digest = hashlib.sha256(name.encode()).hexdigest()[:8]
        plain = "".join(c if c.isalnum() or c in "-_" else "_" for c in name)[:60]
        return self.root / "subjects" / f"{plain}-{digest}"

    def lock(self) -> DirectoryLock:
        """Create the folder and return its lock. Raises LockedError, an OutputError."""
        with output_errors(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
        return DirectoryLock(self.root)

    def begin(self, manifest: Path, entries: Sequence[Entry]) -> None:
        """Write the list of recordings. Raises OutputError."""
        rows = [{"id": e.id, "path": str(e.path), "subject": e.settings.subject} for e in entries]
        batch = {"schema": SCHEMA, "manifest": str(manifest), "recordings": rows}
        write_json(self.root / "batch.json", batch)

    def rows(self) -> list[dict[str, Any]]:
        """Return id, path and subject of each recording. Raises InputError, SchemaError."""
        path = self.root / "batch.json"
        if not path.is_file():
            raise InputError(f"{self.output}: has no batch; {path} is missing.")
        batch = read_json(path)
        if batch.get("schema") != SCHEMA:
            raise SchemaError(f"{path}: schema {batch.get('schema')!r}, not {SCHEMA!r}.")
        rows: list[dict[str, Any]] = batch["recordings"]
        return rows

    def results(self) -> Iterator[tuple[dict[str, Any], TaskResult | None]]:
        """Yield each recording's row and the result of its last stage."""
        for row in self.rows():
            folder = self.recording(row["id"])
            found = read_result(folder / "convert.json")
            if found is None and (tracked := read_result(folder / "track.json")) is not None:
                found = tracked if tracked.state != "done" else None
            yield row, found


def key_of(path: Path, settings: JobSettings) -> str:
    """Return a hash of an input's file names, sizes and times, and of its episodes' settings.

    The worker hashes contents; the driver only detects changes.
    """
    if path.is_file():
        files = [path]
    elif path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
    else:  # an episode of a dataset
        files = [path.parent / INFO_PATH]
    if settings.task_file == SIDECAR:
        with contextlib.suppress(InputError):
            files.append(sidecar(path))
    rigs = settings.reading.rigs
    for place in [*map(Path, rigs.views.values()), *filter(None, [rigs.depth])]:
        files += sorted(place.iterdir()) if place.is_dir() else [place] * place.exists()
    stats = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    facts = {
        "files": stats,
        "cut": settings.extent,
        "settings": settings.shaping(settings.fps),
        "version": __version__,
        "task-file": file_identity(settings.task_file),
        "overlay": settings.overlay,
        "robot-model": file_identity(settings.robot_model),
        "unchecked": settings.robot_unchecked,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


def write_result(path: Path, result: TaskResult) -> None:
    """Keep a result. Raises OutputError."""
    write_json(path, asdict(result))


def read_result(path: Path) -> TaskResult | None:
    """Return a kept result; None: missing or damaged."""
    try:
        content = json.loads(path.read_text("utf-8"))
        return TaskResult(**{**content, "episodes": tuple(content["episodes"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file, whole or not at all. Raises OutputError."""
    with atomic_path(path, overwrite=True) as partial:
        partial.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n", "utf-8")


class Attempts:
    """Append-only log of the starts and ends of a recording's steps, as JSON lines."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "attempts.jsonl"

    def add(self, event: str, stage: Stage, text: str = "") -> None:
        """Note a start, an end (``text``: why it was killed, or "") or a retry."""
        entry = {"event": event, "stage": stage, "text": text, "time": round(time.time(), 3)}
        with output_errors(self._path), self._path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(entry) + "\n")

    def stage(self) -> str:
        """Return the state of a recording without a result: in or after a stage, or waiting."""
        *_, last = [{"event": "retry"}, *self._entries()]
        where = {"start": "in", "end": "after"}.get(last["event"])
        return f"{where} {last['stage']}" if where else "waiting"

    def _entries(self) -> Iterator[dict[str, Any]]:
        lines = self._path.read_text("utf-8").splitlines() if self._path.is_file() else []
        for line in lines:
            with contextlib.suppress(ValueError):  # an unfinished line of a killed process
                yield json.loads(line)

    def deaths(self) -> tuple[list[str], int]:
        """Return, since the last retry, why workers died and how many starts have no end."""
        reasons: list[str] = []
        lost = begun = 0
        for entry in self._entries():
            if entry["event"] == "retry":
                reasons, lost, begun = [], 0, 0
            elif entry["event"] == "start":
                lost, begun = lost + begun, 1
            else:
                begun = 0
                reasons += [entry["text"]] if entry["text"] else []
        return reasons, lost


def retry(folder: BatchFolder) -> list[str]:
    """Clear failed and quarantined results; return the recordings. Raises InputError."""
    again = sorted(
        row["id"] for row, result in folder.results() if result and result.state in PROBLEMS
    )
    with folder.lock():
        for name in again:
            where = folder.recording(name)
            for path in (where / "track.json", where / "convert.json"):
                result = read_result(path)
                if result is not None and result.state in PROBLEMS:
                    path.unlink()
            Attempts(where).add("retry", "convert")
    return again


def summary(folder: BatchFolder) -> dict[str, Any]:
    """Return a batch's progress and problems. Raises InputError, SchemaError."""
    counts: Counter[str] = Counter()
    verdicts: Counter[str] = Counter()
    problems = []
    recorded = seconds = 0.0
    for row, result in folder.results():
        state = result.state if result else Attempts(folder.recording(row["id"])).stage()
        counts[state] += 1
        if result is None:
            continue
        verdicts.update(episode["verdict"] for episode in result.episodes)
        recorded, seconds = recorded + result.recorded_s, seconds + result.seconds
        if state != "done" or result.reason:
            outcome = {"state": state, "reason": result.reason}
            problems.append({"id": row["id"], "recording": row["path"], **outcome})
    return {
        "output": str(folder.output),
        "recordings": sum(counts.values()),
        "states": dict(counts),
        "episodes": sum(verdicts.values()),
        "verdicts": dict(verdicts),
        "recorded_seconds": round(recorded, 3),
        "worker_seconds": round(seconds, 3),
        "problems": problems,
    }
