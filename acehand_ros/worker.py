"""A job in a thread, and its state on /diagnostics and in the log."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from acehand_core.errors import AcehandError, InputError, Interrupted
from acehand_core.recordings.bags.messages import PlainMessage, header_of, status_of
from acehand_core.types import Progress
from acehand_ros.messages import DIAGNOSTICS
from acehand_ros.parameters import as_parameters

OK, WARN, ERROR = 0, 1, 2
_PROGRESS_S = 5.0
_LEVELS = {"idle": OK, "running": OK, "done": OK, "cancelled": WARN, "failed": ERROR}

JobState = Literal["idle", "running", "done", "failed", "cancelled"]
#: A job; it gets a progress callback and an event that requests cancellation.
Work = Callable[[Progress, threading.Event], Any]


def diagnostics(
    name: str,
    level: int,
    message: str,
    values: Mapping[str, Any],
    now_ns: int,
    more: Sequence[Mapping[str, Any]] = (),
) -> PlainMessage:
    """Return a DiagnosticArray with a node's status, followed by ``more``."""
    status = status_of(level, name, message, "acehand", values)
    fields = {"header": header_of(now_ns, ""), "status": [status, *more]}
    return PlainMessage(DIAGNOSTICS, "diagnostic_msgs/msg/DiagnosticArray", now_ns, fields)


def job_diagnostics(
    name: str, status: JobStatus, now_ns: int, more: Sequence[Mapping[str, Any]] = ()
) -> PlainMessage:
    """Return a DiagnosticArray with a job's progress or result, followed by ``more``."""
    values: dict[str, Any] = {"state": status.state}
    message = status.message or status.stage or status.state
    if status.stage:
        values["stage"] = status.stage
    if status.total:
        values |= {"done": status.done, "total": status.total}
        values["percent"] = f"{100 * status.done / status.total:.0f}"
        message = status.message or f"{status.stage}: {status.done} of {status.total}"

    level = _LEVELS[status.state]
    if status.report is not None:
        values |= report_values(status.report)
        if status.state == "done" and values.get("failures"):
            level = WARN if values["episodes"] else ERROR
            message = values["failures"]
    return diagnostics(name, level, message, values, now_ns, more)


def report_values(report: Any) -> dict[str, Any]:
    """Return a ConvertReport's contents as short texts."""
    job = report.job
    values: dict[str, Any] = {
        "dataset": job.dataset or "none",
        "bag": report.bag or "none",
        "episodes": len(job.episodes),
        "verdicts": ", ".join(episode.verdict for episode in job.episodes),
        "seconds": f"{job.seconds:.1f}",
        "lost_messages": sum(report.lost_messages.values()),
    }
    if job.failures:
        values["failures"] = as_parameters(" ".join(str(failure.error) for failure in job.failures))
    return values


class JobLog:
    """Logs a worker's progress and result."""

    def __init__(self, log: Any, worker: JobWorker) -> None:
        self._log, self._worker = log, worker
        self._logged, self._logged_s = worker.status, 0.0

    def update(self) -> bool:
        """Log a new stage, or its progress every few seconds; return whether the job has ended."""
        status, logged = self._worker.status, self._logged
        for remark in self._worker.take_remarks():
            self._log.info(remark)
        if status.state == "running":
            text = None
            if status.stage != logged.stage or logged.state != "running":
                text = status.stage
            elif status.total and time.monotonic() - self._logged_s > _PROGRESS_S:
                text = f"{status.stage}: {100 * status.done / status.total:.0f} %"
            if text is not None:
                self._log.info(text)
                self._logged, self._logged_s = status, time.monotonic()
            return False

        if status.state == "idle" or status == logged:
            return False
        self._logged = status
        self._end(status)
        return True

    def _end(self, status: JobStatus) -> None:
        report = status.report
        if report is None:
            if status.state == "failed":  # rclpy raises if one line logs at two levels
                self._log.error(status.message)
            else:
                self._log.info(status.message)
            return

        count, values = len(report.job.episodes), report_values(report)
        if count or not report.job.failures:
            count_text = f"{count} episode{'' if count == 1 else 's'}"
            verdicts = f" ({values['verdicts']})" if count else ""
            bag = f", bag {report.bag}" if report.bag else ""
            self._log.info(
                f"{status.message}: {count_text}{verdicts}, dataset {values['dataset']}{bag}, "
                f"{values['seconds']} s"
            )

        episodes = report.job.episodes
        reasons = [reason for episode in episodes for reason in episode.reasons]
        notes = [note for episode in episodes for note in episode.json["notes"]]
        for note in dict.fromkeys((*reasons, *notes, *report.notes)):
            if note in (*reasons, *report.losses):
                self._log.warning(as_parameters(note))
            else:
                self._log.info(as_parameters(note))
        if values["lost_messages"]:
            topics = ", ".join(f"{name} {n}" for name, n in report.lost_messages.items())
            self._log.warning(f"unusable messages: {topics}")
        for failure in report.job.failures:
            self._log.error(f"failed: {as_parameters(str(failure.error))}")


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The state of a job. ``total`` 0: a stage without length; ``report``: the job's result."""

    state: JobState = "idle"
    stage: str = ""
    done: int = 0
    total: int = 0
    message: str = ""
    report: Any = None
    error: BaseException | None = None


class JobWorker:
    """Runs one job at a time. ``status`` may be read from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._status = JobStatus()
        self._remarks: list[str] = []
        self._cancel = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def status(self) -> JobStatus:
        with self._lock:
            return self._status

    @property
    def running(self) -> bool:
        return self.status.state == "running"

    def start(self, work: Work) -> None:
        """Start a job; InputError if one is running."""
        with self._lock:
            if self._status.state == "running":
                raise InputError("A job is already running; cancel it or wait for its end.")
            self._status = JobStatus("running", "starting")
            self._remarks = []
            self._cancel = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(work, self._cancel), name="job")
        self._thread.start()

    def cancel(self) -> bool:
        """Cancel the job at its next step; return whether one was running."""
        if not self.running:
            return False
        self._cancel.set()
        return True

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the end of the job; return whether it has ended."""
        if self._thread is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def take_remarks(self) -> list[str]:
        """Return the job's remarks since the last call."""
        with self._lock:
            out, self._remarks = self._remarks, []
        return out

    def _run(self, work: Work, cancel: threading.Event) -> None:
        try:
            report = work(self._progress, cancel)
        except KeyboardInterrupt as stop:
            report = stop.report if isinstance(stop, Interrupted) else None
            self._end("cancelled", "cancelled; finished episodes stay", report, None)
        except AcehandError as error:
            self._end("failed", as_parameters(str(error)), None, error)
        except Exception as error:  # the node lives on and reports it
            self._end("failed", f"{type(error).__name__}: {error}", None, error)
        else:
            self._end("done", "done", report, None)

    def _progress(self, stage: str, done: int, total: int) -> None:
        with self._lock:
            if total == 0:
                self._remarks.append(as_parameters(stage))
            else:
                self._status = replace(self._status, stage=stage, done=done, total=total)

    def _end(self, state: JobState, message: str, report: Any, error: BaseException | None) -> None:
        with self._lock:
            self._status = replace(
                self._status, state=state, message=message, report=report, error=error
            )
