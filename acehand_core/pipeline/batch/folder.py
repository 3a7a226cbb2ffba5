"""The folder beside a batch's output: what is finished, what went wrong, what may be used again."""

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
from acehand_core.pipeline.settings import JobSettings
from acehand_core.recordings.narration import BESIDE, sidecar
from acehand_core.settings import file_identity

SCHEMA = "acehand-batch/1"

#: How one step of one recording ended. ``killed`` is tried again, the others stand.
State = Literal["done", "no_hand", "failed", "quarantined", "killed"]
#: States that ``acehand batch run --retry`` clears.
PROBLEMS: tuple[State, ...] = ("failed", "quarantined")
Stage = Literal["track", "calibrate", "convert"]


@dataclass(frozen=True, slots=True)
class TaskResult:
    """How one step ended.

    Attributes:
        key: of the input and settings that it was made with: another one makes it out of date.
        reason: what went wrong; "" where nothing did.
        seconds: that it took.
        recorded_s: seconds of the recording that are in the episodes.
        episodes: verdict and its reasons of each.
        peak_mb: largest memory of the worker; 0 where it cannot be measured.
        hands: of the stage ``track``, the file of tracked hands; "" for none.
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

    @property
    def is_problem(self) -> bool:
        """Whether somebody should look at it: of a recording in parts some may have failed, too."""
        return self.state != "done" or bool(self.reason)


@dataclass(frozen=True, slots=True)
class Task:
    """One step that a worker is asked for. ``path`` and ``settings`` are of the recording.

    Of the stage ``calibrate`` ``id`` is the subject, and ``hands`` the files of its tracked hands.
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
        """Where the result is kept."""
        return self.folder / f"{self.stage}.json"

    def kept(self) -> TaskResult | None:
        """Return the result that stands for this input and these settings, if there is one."""
        result = read_result(self.result_path)
        if result is None or result.key != self.key:
            return None
        gone = result.hands and not Path(result.hands).is_file()  # the cache was emptied
        return None if gone else result


class BatchFolder:
    """``OUTPUT.batch``.

    ``recordings/ID`` has a dataset of that recording's episodes, the results of its stages, a log
    and ``attempts.jsonl``; ``subjects/NAME`` calibrations that a subject's recordings share;
    ``cache`` tracked hands; ``batch.json`` the recordings in their order.
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
        """Return the lock of the folder, which is made. Raises LockedError, an OutputError."""
        with output_errors(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
        return DirectoryLock(self.root)

    def begin(self, manifest: Path, entries: Sequence[Entry]) -> None:
        """Write down which recordings there are. Raises OutputError."""
        rows = [{"id": e.id, "path": str(e.path), "subject": e.settings.subject} for e in entries]
        write_json(self.root / "batch.json", {
            "schema": SCHEMA, "manifest": str(manifest), "recordings": rows,
        })  # fmt: skip

    def rows(self) -> list[dict[str, Any]]:
        """Return id, path and subject of each recording, in the manifest's order.

        Raises:
            InputError: there is no batch here. SchemaError: it is damaged or of another version.
        """
        path = self.root / "batch.json"
        if not path.is_file():
            raise InputError(f"{self.output}: no batch was begun for it; there is no {path}.")
        batch = read_json(path)
        if batch.get("schema") != SCHEMA:
            raise SchemaError(f"{path}: schema {batch.get('schema')!r}, not {SCHEMA!r}.")
        rows: list[dict[str, Any]] = batch["recordings"]
        return rows

    def results(self) -> Iterator[tuple[dict[str, Any], TaskResult | None]]:
        """Yield each recording's row and its result: that of the last stage it came to."""
        for row in self.rows():
            folder = self.recording(row["id"])
            found = read_result(folder / "convert.json")
            if found is None and (tracked := read_result(folder / "track.json")) is not None:
                found = tracked if tracked.state != "done" else None
            yield row, found


def key_of(path: Path, settings: JobSettings) -> str:
    """Return a hash of an input, as the file system has it, and of all settings of its episodes.

    Contents are hashed by the worker: the driver only has to see that nothing has changed.
    """
    if path.is_file():
        files = [path]
    elif path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
    else:  # an episode of a dataset
        files = [path.parent / INFO_PATH]
    if settings.task_file == BESIDE:
        with contextlib.suppress(InputError):
            files.append(sidecar(path))
    stats = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    said = {
        "files": stats, "cut": settings.cut, "settings": settings.shaping(settings.fps),
        "version": __version__, "task-file": file_identity(settings.task_file),
        "overlay": settings.overlay, "robot-model": file_identity(settings.robot_model),
        "unchecked": settings.robot_unchecked,
    }  # fmt: skip
    return hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()


def write_result(path: Path, result: TaskResult) -> None:
    """Keep a result. Raises OutputError."""
    write_json(path, asdict(result))


def read_result(path: Path) -> TaskResult | None:
    """Return a kept result; None where there is none, or it is damaged."""
    try:
        content = json.loads(path.read_text("utf-8"))
        return TaskResult(**{**content, "episodes": tuple(content["episodes"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def write_json(path: Path, value: Any) -> None:
    """Write a file of JSON; it appears whole or not at all. Raises OutputError."""
    with atomic_path(path, overwrite=True) as partial:
        partial.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n", "utf-8")


class Attempts:
    """The starts and ends of a recording's steps, one JSON object a line; never rewritten."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "attempts.jsonl"

    def add(self, event: str, stage: Stage, text: str = "") -> None:
        """Note a start, an end (``text``: why it was killed, or "") or a retry."""
        entry = {"event": event, "stage": stage, "text": text, "time": round(time.time(), 3)}
        with output_errors(self._path), self._path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(entry) + "\n")

    def stage(self) -> str:
        """Return what a recording without a result is in, after, or waiting for."""
        *_, last = [{"event": "retry"}, *self._entries()]
        where = {"start": "in", "end": "after"}.get(last["event"])
        return f"{where} {last['stage']}" if where else "waiting"

    def _entries(self) -> Iterator[dict[str, Any]]:
        lines = self._path.read_text("utf-8").splitlines() if self._path.is_file() else []
        for line in lines:
            with contextlib.suppress(ValueError):  # a line that a killed process did not finish
                yield json.loads(line)

    def deaths(self) -> tuple[list[str], int]:
        """Return, since the last retry, why workers died, and how many starts have no end."""
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
    """Let recordings that failed or were quarantined be tried again; return which.

    Raises InputError: there is no batch.
    """
    again = sorted(
        row["id"] for row, result in folder.results() if result and result.state in PROBLEMS
    )
    with folder.lock():
        for name in again:
            where = folder.recording(name)
            stages: tuple[Stage, ...] = ("track", "convert")
            for stage in stages:
                result = read_result(where / f"{stage}.json")
                if result is not None and result.state in PROBLEMS:
                    (where / f"{stage}.json").unlink()
            Attempts(where).add("retry", "convert")
    return again


def summary(folder: BatchFolder) -> dict[str, Any]:
    """Return how far a batch is, and what went wrong. Raises InputError, SchemaError."""
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
        if result.is_problem:
            problems.append(
                {"id": row["id"], "recording": row["path"], "state": state, "reason": result.reason}
            )
    return {
        "output": str(folder.output), "recordings": sum(counts.values()), "states": dict(counts),
        "episodes": sum(verdicts.values()), "verdicts": dict(verdicts),
        "recorded_seconds": round(recorded, 3), "worker_seconds": round(seconds, 3),
        "problems": problems,
    }  # fmt: skip
