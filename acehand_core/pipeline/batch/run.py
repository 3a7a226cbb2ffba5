"""The driver of a batch: order of steps, results, merging."""

from __future__ import annotations

import hashlib
import queue
import shutil
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from acehand_core.errors import InputError, OutputError
from acehand_core.lerobot import format as layout
from acehand_core.lerobot.columns import frame_of
from acehand_core.lerobot.edit import merge_datasets
from acehand_core.pipeline.batch.engines import Engine
from acehand_core.pipeline.batch.folder import (
    PROBLEMS,
    Attempts,
    BatchFolder,
    Stage,
    Task,
    TaskResult,
    key_of,
    write_json,
)
from acehand_core.pipeline.batch.manifest import Entry
from acehand_core.pipeline.batch.work import CALIBRATION
from acehand_core.pipeline.settings import JobSettings
from acehand_core.recordings.lerobot_video import is_dataset
from acehand_core.types import Progress, no_progress
from retarget.solve.methods import retargeter_named


def run_batch(
    manifest: Path,
    entries: Sequence[Entry],
    folder: BatchFolder,
    open_engine: Callable[[], Engine],
    progress: Progress = no_progress,
    *,
    overwrite: bool = False,
) -> dict[str, TaskResult]:
    """Convert every recording that is not converted yet with the same settings.

    It and its workers may be killed at any moment; called again, it resumes. Returns the results of
    all recordings, by name, in the manifest's order. The merged dataset may ``overwrite`` the
    output.

    Raises LockedError while another driver runs, OutputError if the output exists or nothing can be
    written. Finished recordings stay, after KeyboardInterrupt too.
    """
    with folder.lock():
        folder.begin(manifest, entries)
        run = _Run(folder, {entry.id: entry for entry in entries}, progress)
        first = run.first_tasks()
        if first and not overwrite and not as_left(folder):
            raise OutputError(
                f"{folder.output} exists, and has changed since this batch wrote it, if it did; "
                "choose another `output`, or `existing=overwrite` when the recordings are "
                "converted."
            )
        if first:
            engine = open_engine()
            try:
                run.loop(engine, first)
            finally:
                engine.close()
        run.show()
        return {name: run.results[name] for name in run.entries if name in run.results}


@dataclass(slots=True)
class _Run:
    """State of one run of the driver."""

    folder: BatchFolder
    entries: dict[str, Entry]
    progress: Progress
    results: dict[str, TaskResult] = field(default_factory=dict)
    #: By subject: recordings that are not tracked yet, and the files of hands of the others.
    untracked: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    tracked: dict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))

    def first_tasks(self) -> list[Task]:
        """Return the tasks to start with, without finished ones."""
        tasks = []
        for entry in self.entries.values():
            settings = entry.settings
            shares = settings.subject is not None and settings.calibration is None
            if shares and retargeter_named(settings.method).calibrates:
                self.untracked[str(settings.subject)].add(entry.id)
            else:
                tasks += self._unless_kept(self._task(entry, "convert"))
        for subject in list(self.untracked):
            for name in sorted(self.untracked[subject]):
                tasks += self._unless_kept(self._task(self.entries[name], "track"))
        return tasks

    def loop(self, engine: Engine, tasks: Sequence[Task]) -> None:
        """Run tasks and those that follow. Raises OutputError."""
        running: dict[Future[TaskResult], Task] = {}
        ended: queue.SimpleQueue[Future[TaskResult]] = queue.SimpleQueue()

        def submit(more: Sequence[Task]) -> None:
            for task in more:  # an outdated result must not be merged
                (task.folder / "convert.json").unlink(missing_ok=True)
            for task in more:
                future = engine.submit(task)
                running[future] = task
                future.add_done_callback(ended.put)

        submit(tasks)
        while running:
            self.show()
            try:
                future = ended.get(timeout=1.0)
            except queue.Empty:
                continue

            task = running.pop(future)
            result = self._end(task, future)
            if result.state == "killed":
                self.progress(f"{task.id}: {result.reason}; once more", 0, 0)
                submit([task])
            else:
                submit(self._next(task, result))

    def show(self) -> None:
        """Report the progress."""
        self.progress("recordings", len(self.results), len(self.entries))

    @staticmethod
    def _end(task: Task, future: Future[TaskResult]) -> TaskResult:
        """Return how a task ended; the machine may have died during it."""
        error = future.exception()
        if error is None:
            return future.result()
        if isinstance(error, OutputError) or isinstance(error.__cause__, OutputError):
            raise error
        message = f"its machine ended: {(str(error) or repr(error)).splitlines()[-1]}"
        if (kept := task.kept()) is None:
            Attempts(task.folder).add("end", task.stage, message)
        return kept or TaskResult(task.id, task.stage, "killed", task.key, message)

    def _next(self, task: Task, result: TaskResult) -> list[Task]:
        """Record a result; return the tasks that can start now."""
        if task.stage == "calibrate":
            fitted = task.folder / CALIBRATION if result.state == "done" else None
            if fitted is None:
                message = f"subject {task.id}: {result.reason}; each recording is calibrated alone"
                self.progress(message, 0, 0)
            following = [
                self._task(self.entries[name], "convert", fitted)
                for name in self.tracked.pop(task.id)
            ]
            return [task for follows in following for task in self._unless_kept(follows)]

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

        # In the manifest's order: the fit depends on it.
        ready = self.tracked[subject]
        ordered = [name for name in self.entries if name in ready]
        self.tracked[subject] = {name: ready[name] for name in ordered}
        hands = tuple(Path(ready[name]) for name in ordered)
        first = self.entries[ordered[0]]
        key = "-".join([path.stem[:24] for path in hands] + [key_of(first.path, first.settings)])
        where, settings = self.folder.subject(subject), self._settings(first)
        return self._unless_kept(
            Task(subject, "calibrate", key, where, first.path, settings, hands)
        )

    def _finish(self, name: str, result: TaskResult) -> None:
        self.results[name] = result
        if result.state in PROBLEMS:
            self.progress(f"{self.entries[name].path}: {result.state}: {result.reason}", 0, 0)

    def _unless_kept(self, task: Task) -> list[Task]:
        """Return [task], or the tasks that follow if its result is kept."""
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


def merge(
    folder: BatchFolder,
    *,
    per_layout: bool = False,
    overwrite: bool = False,
    progress: Progress = no_progress,
) -> None:
    """Merge all finished recordings into one dataset, in the manifest's order.

    Its bytes depend on recordings and settings, not on workers. Videos are hard links to those of
    the batch's folder.

    Args:
        per_layout: one dataset per size and rate, in folders of the output.
        overwrite: replace any dataset at the output, also one changed since this batch wrote it.

    Raises InputError if nothing is finished or recordings differ in size or rate, OutputError if
    the output has changed since this batch wrote it or cannot be written.
    """
    keys = {
        row["id"]: result.key
        for row, result in folder.results()
        if result is not None and result.state == "done"
    }
    if not keys:
        raise InputError(f"{folder.output}: no recording is finished: there is nothing to merge.")

    groups: dict[str, list[str]] = defaultdict(list)
    for name in keys:
        groups[_layout_of(folder.recording(name) / "dataset")].append(name)
    if len(groups) > 1 and not per_layout:
        kinds = "; ".join(f"{len(names)} of {kind}" for kind, names in groups.items())
        raise InputError(
            f"{folder.output}: the recordings do not fit into one dataset: {kinds}. Run the same "
            "command with `image_size` and `fps` (hands are not tracked again), or with "
            "`per_layout` for a dataset of each."
        )
    if per_layout and is_dataset(folder.output):
        raise OutputError(f"{folder.output} is a dataset and cannot hold others; move it away.")

    known = layout.read_json(folder.merged) if folder.merged.is_file() else {}
    datasets, ours = known.get("datasets", {}), as_left(folder)
    if ours and per_layout:  # a size that no recording has any more
        for name in datasets.keys() - {k.replace(" ", "-") for k in groups}:
            shutil.rmtree(folder.output / name, ignore_errors=True)

    for kind, names in groups.items():
        target = folder.output / kind.replace(" ", "-") if per_layout else folder.output
        content = [[name, keys[name]] for name in names]
        if ours and target.exists() and datasets.get(target.name) == content:
            continue
        sources = [folder.recording(name) / "dataset" for name in names]
        merge_datasets(
            sources, target, hard_links=True, overwrite=overwrite or ours, progress=progress
        )
        datasets[target.name] = content
        write_json(folder.merged, {"datasets": datasets, "files": _listing(folder.output)})


def as_left(folder: BatchFolder) -> bool:
    """Return whether the output is unchanged since the batch wrote it, or missing."""
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
    """Return size, rate and frame of a dataset, in words."""
    info: dict[str, Any] = layout.read_json(dataset / layout.INFO_PATH)
    videos = layout.video_keys(info["features"])
    sizes = [info["features"][key]["shape"] for key in videos]
    size = " ".join(f"{shape[1]}x{shape[0]}" for shape in sizes) or "no pictures"
    frame = frame_of(info["features"])
    return f"{size} {info['fps']}fps" + ("" if frame == "camera" else f" {frame}")
