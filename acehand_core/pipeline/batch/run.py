"""The driver of a batch: which step comes next, and what follows from how one ended."""

from __future__ import annotations

import queue
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path

from acehand_core.errors import OutputError
from acehand_core.pipeline.batch.engines import Engine
from acehand_core.pipeline.batch.folder import (
    PROBLEMS,
    Attempts,
    BatchFolder,
    Stage,
    Task,
    TaskResult,
    key_of,
)
from acehand_core.pipeline.batch.manifest import Entry
from acehand_core.pipeline.batch.merge import as_left
from acehand_core.pipeline.batch.work import CALIBRATION
from acehand_core.pipeline.settings import JobSettings
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

    It may be killed at any moment, as may any worker; called again, it resumes. Returned is what
    became of all of them, by name, in the manifest's order.

    Args:
        open_engine: makes the engine.
        overwrite: a dataset at the output may be replaced by what comes of it.

    Raises:
        LockedError: another driver is at it. OutputError: the output is there, or nothing can be
            written: what is finished stays. KeyboardInterrupt: as is what is finished then.
    """
    with folder.lock():
        folder.begin(manifest, entries)
        run = _Run(folder, {entry.id: entry for entry in entries}, progress)
        first = run.first_tasks()
        if first and not overwrite and not as_left(folder):
            raise OutputError(
                f"{folder.output} exists, and this batch did not leave it so; choose another "
                "--output, or --overwrite it when the recordings are converted."
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
    """What one run of the driver knows of its recordings."""

    folder: BatchFolder
    entries: dict[str, Entry]
    progress: Progress
    results: dict[str, TaskResult] = field(default_factory=dict)
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
        running: dict[Future[TaskResult], Task] = {}
        ended: queue.SimpleQueue[Future[TaskResult]] = queue.SimpleQueue()

        def submit(more: Sequence[Task]) -> None:
            for task in more:  # of other settings or an older file: not to be merged
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
        """Show how far it is."""
        self.progress("recordings", len(self.results), len(self.entries))

    @staticmethod
    def _end(task: Task, future: Future[TaskResult]) -> TaskResult:
        """Return how a task ended; a machine that died took an unfinished one along."""
        error = future.exception()
        if error is None:
            return future.result()
        if isinstance(error, OutputError) or isinstance(error.__cause__, OutputError):
            raise error
        said = f"its machine ended: {(str(error) or repr(error)).splitlines()[-1]}"
        if (kept := task.kept()) is None:
            Attempts(task.folder).add("end", task.stage, said)
        return kept or TaskResult(task.id, task.stage, "killed", task.key, said)

    def _next(self, task: Task, result: TaskResult) -> list[Task]:
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

    def _finish(self, name: str, result: TaskResult) -> None:
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
