"""The steps of a batch's worker."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from acehand_core.atomic import DirectoryLock, LockedError, atomic_path, output_errors
from acehand_core.errors import AcehandError, InputError, NoHandError, OutputError
from acehand_core.lerobot import format as layout
from acehand_core.motion import HandMotion
from acehand_core.pipeline.batch.folder import State, Task, TaskResult, write_result
from acehand_core.pipeline.converter import Converter
from acehand_core.pipeline.job import run_job
from acehand_core.pipeline.report import JobReport
from acehand_core.processes import forget_peak, peak_mb
from acehand_core.recordings.hands_file import read_hand_motion, write_hand_motion
from acehand_core.recordings.selection import only_hands
from acehand_core.trackers.choose import CachedTracker
from acehand_core.types import Progress
from retarget.solve.calibration_file import StoredCalibration, calibration_text
from retarget.solve.methods import robot_targets

#: How long a worker waits for one of a killed driver to release a recording's folder.
_LOCK_S = 60.0
CALIBRATION = "calibration.json"


def do(task: Task, progress: Progress) -> TaskResult:
    """Do one step and keep its result. Raises OutputError if its folder cannot be written."""
    with output_errors(task.folder):
        task.folder.mkdir(parents=True, exist_ok=True)
    with _lock(task.folder):
        if (kept := task.kept()) is not None:
            return kept

        started = time.monotonic()
        forget_peak()
        try:
            steps = {"track": _track, "calibrate": _calibrate, "convert": _convert}
            result = steps[task.stage](task, progress)
        except OutputError:
            raise
        except AcehandError as error:
            state: State = "no_hand" if isinstance(error, NoHandError) else "failed"
            result = TaskResult(task.id, task.stage, state, task.key, str(error))
        except Exception as error:  # a bug must not end the batch
            traceback.print_exc()
            reason = f"{type(error).__name__}: {error}"
            result = TaskResult(task.id, task.stage, "failed", task.key, reason)

        seconds = round(time.monotonic() - started, 3)
        result = replace(result, seconds=seconds, peak_mb=peak_mb(os.getpid()))
        write_result(task.result_path, result)
        return result


def _lock(folder: Path) -> DirectoryLock:
    """Return the lock of a recording's folder. Raises LockedError."""
    until = time.monotonic() + _LOCK_S
    while True:
        try:
            return DirectoryLock(folder)
        except LockedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


def _track(task: Task, progress: Progress) -> TaskResult:
    """Track a recording's hands into the cache, for its subject's calibration."""
    source = Converter.of(task.settings, progress).open(task.path)
    recording, tracker = source.recording, source.tracker
    motion = tracker.track(recording, progress)
    if not motion.observed.any():
        raise NoHandError(f"{recording.source}: no hand was found in {len(motion)} frames.")
    path = tracker.path(recording) if isinstance(tracker, CachedTracker) else None
    if path is None:  # hands of a file, or a tracker of another package
        path = task.folder / f"hands-{task.key[:16]}.parquet"
        write_hand_motion(motion, path, overwrite=True)
    return TaskResult(task.id, "track", "done", task.key, hands=str(path))


def _calibrate(task: Task, progress: Progress) -> TaskResult:
    """Fit one calibration to all recordings of a subject."""
    converter = Converter.of(task.settings, progress)
    motions = _motions(task.hands, converter)
    fitted = converter.retargeter.calibrate(motions, converter.robot, {})
    if not fitted:
        raise NoHandError(f"subject {task.id}: no hand could be followed.")
    digest = hashlib.sha256(" ".join(sorted(path.name for path in task.hands)).encode()).hexdigest()
    source = f"subject {task.id}, {len(task.hands)} recordings"
    stored = {side: StoredCalibration(hand, source, digest) for side, hand in fitted.items()}
    text = calibration_text(converter.robot, stored)
    with atomic_path(task.folder / CALIBRATION, overwrite=True) as partial:
        partial.write_text(text, "utf-8")
    return TaskResult(task.id, "calibrate", "done", task.key)


def _motions(paths: Sequence[Path], converter: Converter) -> Iterator[HandMotion]:
    """Yield the hands of a subject's recordings, one in memory at a time."""
    for number, path in enumerate(paths):
        converter.progress("calibrate", number, len(paths))
        motion = only_hands(read_hand_motion(path), converter.settings.hands or "both")
        try:
            for side in converter.robot.hands:
                robot_targets(motion, converter.robot, side)
        except InputError:  # this one lacks what the robot follows
            continue
        yield motion


def _convert(task: Task, progress: Progress) -> TaskResult:
    """Make, or resume, the dataset of a recording's episodes."""
    settings, made_with = task.settings, task.folder / "made_with.txt"
    if not made_with.is_file() or made_with.read_text("utf-8") != task.key:
        with output_errors(task.folder):
            if settings.output.exists():
                shutil.rmtree(settings.output)
            made_with.write_text(task.key, "utf-8")

    report: JobReport = run_job([task.path], replace(settings, existing="resume"), progress)
    for failure in report.failures:
        if isinstance(failure.error, OutputError):
            raise failure.error
    reasons = "; ".join(str(failure.error) for failure in report.failures)
    if report.dataset is None:
        none = all(isinstance(failure.error, NoHandError) for failure in report.failures)
        return TaskResult(task.id, "convert", "no_hand" if none else "failed", task.key, reasons)

    # The report of a resumed run lacks the episodes of earlier runs.
    fps = layout.read_json(settings.output / layout.INFO_PATH)["fps"]
    rows = layout.read_episode_rows(settings.output)
    reports = [layout.read_report(settings.output, row["episode_index"]) for row in rows]
    return TaskResult(
        task.id,
        "convert",
        "done",
        task.key,
        reasons,
        recorded_s=round(sum(row["length"] for row in rows) / fps, 3),
        episodes=tuple({name: r[name] for name in ("verdict", "reasons")} for r in reports),
    )
