"""The driver of a batch: which step comes next, what is done with its end, and the merge."""

from __future__ import annotations

import hashlib
import queue
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from acehand_core.atomic import DirectoryLock
from acehand_core.batch.engines import Engine, Results
from acehand_core.batch.folder import (
    PROBLEMS,
    Attempts,
    BatchFolder,
    Result,
    Stage,
    State,
    Task,
    key_of,
    read_result,
    write_json,
)
from acehand_core.batch.manifest import Entry
from acehand_core.batch.page import write_page
from acehand_core.batch.work import CALIBRATION
from acehand_core.errors import InputError, OutputError
from acehand_core.lerobot import format as layout
from acehand_core.lerobot.combine import merge_datasets
from acehand_core.pipeline.settings import JobSettings
from acehand_core.types import Progress, no_progress
from retarget.solve.methods import retargeter_named

#: Seconds between two versions of the page.
PAGE_S = 5.0


@dataclass(frozen=True, slots=True)
class BatchReport:
    """What became of all recordings: ``results`` by name, in the manifest's order."""

    results: dict[str, Result]
    seconds: float

    @property
    def counts(self) -> dict[str, int]:
        """How many recordings are in each state."""
        return dict(Counter(result.state for result in self.results.values()))


def run_batch(
    manifest: Path,
    entries: Sequence[Entry],
    folder: BatchFolder,
    open_engine: Callable[[Path], Engine],
    progress: Progress = no_progress,
    *,
    overwrite: bool = False,
) -> BatchReport:
    """Convert every recording that is not converted yet with the same settings.

    It may be killed at any moment, as may any worker; called again, it resumes.

    Args:
        open_engine: makes the engine, given a folder for its own files.
        overwrite: a dataset at the output may be replaced by what comes of it.

    Raises:
        LockedError: another driver is at it. OutputError: the output is there, or nothing can be
            written: what is finished stays. KeyboardInterrupt: as is what is finished then.
    """
    folder.begin(manifest, entries)
    with DirectoryLock(folder.root):
        run = _Run(folder, {entry.id: entry for entry in entries}, progress)
        first = run.first_tasks()
        run.before = len(run.results)
        if first and not overwrite and not _as_left(folder):
            raise OutputError(
                f"{folder.output} exists, and this batch did not leave it so; choose another "
                "--output, or --overwrite it when the recordings are converted."
            )
        if first:
            engine = open_engine(folder.root / "engine")
            try:
                run.loop(engine, first)
            finally:
                engine.close()
        run.show(force=True)
        return run.report()


@dataclass(slots=True)
class _Run:
    """What one run of the driver knows of its recordings."""

    folder: BatchFolder
    entries: dict[str, Entry]
    progress: Progress
    results: dict[str, Result] = field(default_factory=dict)
    begun: float = field(default_factory=time.monotonic)
    shown: float = 0.0
    before: int = 0
    #: Of each subject: recordings whose hands are not tracked yet, and files of those that are.
    untracked: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    tracked: dict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))

    def first_tasks(self) -> list[Task]:
        """Return what can be begun with; what is finished already is taken over."""
        tasks = []
        for entry in self.entries.values():
            if not self._shares(entry):
                tasks += self._unless_kept(self._task(entry, "convert"))
                continue
            self.untracked[str(entry.settings.subject)].add(entry.id)
        for subject in list(self.untracked):
            for name in sorted(self.untracked[subject]):
                tasks += self._unless_kept(self._task(self.entries[name], "track"))
        return tasks

    def loop(self, engine: Engine, tasks: Sequence[Task]) -> None:
        """Do tasks and those that follow from their ends. Raises OutputError."""
        running: dict[Future[Results], tuple[Task, ...]] = {}
        ended: queue.SimpleQueue[Future[Results]] = queue.SimpleQueue()

        def submit(more: Sequence[Task]) -> None:
            for task in more:  # of other settings or an older file: not to be merged
                (task.folder / "convert.json").unlink(missing_ok=True)
            for given, future in engine.submit(more):
                running[future] = given
                future.add_done_callback(ended.put)

        submit(tasks)
        while running:
            self.show()
            try:
                future = ended.get(timeout=1.0)
            except queue.Empty:
                continue

            given = running.pop(future)
            for task, result in zip(given, self._ends(given, future), strict=True):
                if result.state == "killed":
                    self.progress(f"{task.id}: {result.reason}; once more", 0, 0)
                    submit([task])
                else:
                    submit(self._next(task, result))

    def report(self) -> BatchReport:
        """Return what became of the recordings."""
        ordered = {name: self.results[name] for name in self.entries if name in self.results}
        return BatchReport(ordered, time.monotonic() - self.begun)

    def show(self, force: bool = False) -> None:
        """Show how far it is, on the terminal and, now and then, on the page."""
        self.progress("recordings", len(self.results), len(self.entries))
        if force or time.monotonic() - self.shown > PAGE_S:
            self.shown = time.monotonic()
            write_page(
                self.folder, self.report().results, len(self.entries), self.before,
                self.shown - self.begun,
            )  # fmt: skip

    def _ends(self, given: Sequence[Task], future: Future[Results]) -> Results:
        """Return how tasks ended; a job or machine that died took the unfinished ones along."""
        error = future.exception()
        if error is None:
            return future.result()
        if isinstance(error, OutputError) or isinstance(error.__cause__, OutputError):
            raise error
        ends = []
        said = f"its job or machine ended: {(str(error) or repr(error)).splitlines()[-1]}"
        for task in given:
            if (kept := task.kept()) is None:
                Attempts(task.folder).add("end", task.stage, said)
            ends.append(kept or Result(task.id, task.stage, "killed", task.key, said))
        return tuple(ends)

    def _next(self, task: Task, result: Result) -> list[Task]:
        """Note an end; return what can be done now."""
        if task.stage == "calibrate":
            fitted = task.folder / CALIBRATION if result.state == "done" else None
            if fitted is None:
                said = f"subject {task.id}: {result.reason}; each recording is calibrated alone"
                self.progress(said, 0, 0)
            names = self.tracked.pop(task.id)
            return [t for n in names for t in self._unless_kept(
                self._task(self.entries[n], "convert", fitted))]  # fmt: skip

        if task.stage == "convert":
            self._finish(task.id, result)
            return []

        subject = str(self.entries[task.id].settings.subject)
        self.untracked[subject].discard(task.id)
        if result.state == "done":
            self.tracked[subject][task.id] = result.hands
        else:
            self._finish(task.id, result)
        if self.untracked[subject] or not self.tracked[subject]:
            return []

        # In the manifest's order, so that the fit depends on nothing else.
        ready = self.tracked[subject]
        ordered = [name for name in self.entries if name in ready]
        self.tracked[subject] = {name: ready[name] for name in ordered}
        hands = tuple(Path(ready[name]) for name in ordered)
        first = self.entries[ordered[0]]
        key = "-".join([path.stem[:24] for path in hands] + [key_of(first.path, first.settings)])
        return self._unless_kept(Task(
            subject, "calibrate", key, self.folder.subject(subject), first.path,
            self._settings(first), hands,
        ))  # fmt: skip

    def _finish(self, name: str, result: Result) -> None:
        self.results[name] = result
        if result.state in PROBLEMS:
            self.progress(f"{self.entries[name].path}: {result.state}: {result.reason}", 0, 0)

    def _unless_kept(self, task: Task) -> list[Task]:
        """Return a task as a list, or what follows where its result is kept already."""
        kept = task.kept()
        return [task] if kept is None else self._next(task, kept)

    def _task(self, entry: Entry, stage: Stage, calibration: Path | None = None) -> Task:
        settings = self._settings(entry, calibration)
        where = self.folder.recording(entry.id)
        return Task(entry.id, stage, key_of(entry.path, settings), where, entry.path, settings)

    def _settings(self, entry: Entry, calibration: Path | None = None) -> JobSettings:
        settings = entry.settings
        return replace(
            settings,
            output=self.folder.recording(entry.id) / "dataset",
            cache=settings.cache or self.folder.cache,
            calibration=calibration or settings.calibration,
        )

    @staticmethod
    def _shares(entry: Entry) -> bool:
        """Whether a recording takes the calibration of its subject."""
        settings = entry.settings
        calibrates = retargeter_named(settings.method).calibrates
        return settings.subject is not None and settings.calibration is None and calibrates


def retry(folder: BatchFolder, names: Sequence[str] = ()) -> list[str]:
    """Let recordings that failed or were quarantined be tried again; return which.

    Args:
        names: of recordings, or their paths; empty: all of them.

    Raises:
        InputError: there is no batch, no such recording, or it has no problem.
    """
    problems: dict[str, str] = {}
    for row, result in folder.results():
        if result is not None and result.state in PROBLEMS:
            problems |= {row["id"]: row["id"], row["path"]: row["id"]}
    if unknown := [name for name in names if name not in problems]:
        raise InputError(
            f"{unknown[0]}: no recording of that name failed or was quarantined; acehand batch "
            "status lists those that did."
        )

    again = sorted({problems[name] for name in names or problems})
    with DirectoryLock(folder.root):
        for name in again:
            where = folder.recording(name)
            stages: tuple[Stage, ...] = ("track", "convert")
            for stage in stages:
                result = read_result(where / f"{stage}.json")
                if result is not None and result.state in PROBLEMS:
                    (where / f"{stage}.json").unlink()
            Attempts(where).add("retry", "convert")
    return again


@dataclass(frozen=True, slots=True)
class Merged:
    """A dataset that ``merge`` made, or found as it would have made it."""

    dataset: Path
    recordings: int
    episodes: int
    unchanged: bool


def merge(
    folder: BatchFolder,
    *,
    per_layout: bool = False,
    overwrite: bool = False,
    progress: Progress = no_progress,
) -> tuple[Merged, ...]:
    """Make one dataset of all finished recordings, in the manifest's order.

    Its bytes depend on the recordings and the settings, not on the workers. Videos are hard links
    to those of the batch's folder.

    Args:
        per_layout: one dataset for each size and rate, in folders of the output.
        overwrite: replace a dataset that is there, also one that this batch did not leave so.

    Raises:
        InputError: nothing is finished, or recordings of several sizes or rates do not fit into one
            dataset. OutputError: the output is there and not as the batch left it, or cannot be
            written.
    """
    finished = [
        (row["id"], result.key)
        for row, result in folder.results()
        if result is not None and result.state == "done"
    ]
    if not finished:
        raise InputError(
            f"{folder.output}: no recording is finished, so there is nothing to merge."
        )

    groups: dict[str, list[str]] = defaultdict(list)
    keys = dict(finished)
    for name, _ in finished:
        groups[_layout_of(folder.recording(name) / "dataset")].append(name)
    if len(groups) > 1 and not per_layout:
        kinds = "; ".join(f"{len(names)} of {kind}" for kind, names in groups.items())
        raise InputError(
            f"{folder.output}: the recordings do not fit into one dataset: {kinds}. Run the same "
            "command with --image-size and --fps (hands are not tracked again), or take one "
            "dataset for each: --per-layout."
        )

    known = layout.read_json(folder.merged) if folder.merged.is_file() else {}
    ours, made = _as_left(folder), []
    for kind, names in groups.items():
        target = folder.output / kind.replace(" ", "-") if per_layout else folder.output
        content = [[name, keys[name]] for name in names]
        before = known.get("datasets", {}).get(target.name)
        if ours and target.exists() and before == content:
            info = layout.read_json(target / layout.INFO_PATH)
            made.append(Merged(target, len(names), info["total_episodes"], True))
            continue
        sources = [folder.recording(name) / "dataset" for name in names]
        merger = merge_datasets(
            sources, target, hard_links=True, overwrite=overwrite or ours, progress=progress
        )
        datasets = {**known.get("datasets", {}), target.name: content}
        known = {"datasets": datasets, "files": _listing(folder.output)}
        write_json(folder.merged, known)
        made.append(Merged(target, len(names), merger.episodes, False))
    return tuple(made)


def _as_left(folder: BatchFolder) -> bool:
    """Whether the output is as the batch left it, or not there: then it may be replaced."""
    if not folder.output.exists():
        return True
    if not folder.merged.is_file():
        return False
    return bool(layout.read_json(folder.merged)["files"] == _listing(folder.output))


def _listing(root: Path) -> str:
    """Return a hash of the names, sizes and times of a folder's files."""
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        if path.is_file():
            stat = path.stat()
            name = path.relative_to(root).as_posix()
            digest.update(f"{name} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _layout_of(dataset: Path) -> str:
    """Return what the episodes of a dataset share with those of no other kind, for people."""
    info: dict[str, Any] = layout.read_json(dataset / layout.INFO_PATH)
    videos = layout.video_keys(info["features"])
    sizes = [info["features"][key]["shape"] for key in videos]
    size = " ".join(f"{shape[1]}x{shape[0]}" for shape in sizes) or "no pictures"
    frame = info["features"]["observation.state"].get("info", {}).get("frame", "camera")
    return f"{size} {info['fps']}fps" + ("" if frame == "camera" else f" {frame}")


def summary(folder: BatchFolder) -> dict[str, Any]:
    """Return how far a batch is, and what went wrong. Raises InputError, SchemaError."""
    counts: Counter[str] = Counter()
    verdicts: Counter[str] = Counter()
    problems = []
    recorded = seconds = 0.0
    for row, result in folder.results():
        state: State | str = "waiting" if result is None else result.state
        counts[state] += 1
        if result is None:
            continue
        verdicts.update(episode["verdict"] for episode in result.episodes)
        recorded, seconds = recorded + result.recorded_s, seconds + result.seconds
        if result.state in (*PROBLEMS, "no_hand"):
            problems.append(
                {"id": row["id"], "recording": row["path"], "state": state, "reason": result.reason}
            )
    return {
        "output": str(folder.output), "recordings": sum(counts.values()), "states": dict(counts),
        "episodes": sum(verdicts.values()), "verdicts": dict(verdicts),
        "recorded_seconds": round(recorded, 3), "worker_seconds": round(seconds, 3),
        "problems": problems,
    }  # fmt: skip
