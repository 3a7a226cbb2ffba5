"""A long function in a thread of its own: how far it is, how to cancel it, how it ended."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from acehand_core.errors import AcehandError, InputError, Interrupted
from acehand_core.types import Progress
from acehand_ros.parameters import as_parameters

JobState = Literal["idle", "running", "done", "failed", "cancelled"]
#: What a worker runs: gets a progress callback and an event that asks it to stop.
Work = Callable[[Progress, threading.Event], Any]


@dataclass(frozen=True, slots=True)
class JobStatus:
    """Where a job is. ``total`` 0: the stage has no length; ``report``: what it returned.

    ``message`` names parameters, where the commands that do the same name options.
    """

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
        """A snapshot."""
        with self._lock:
            return self._status

    @property
    def running(self) -> bool:
        """Whether a job is at work."""
        return self.status.state == "running"

    def start(self, work: Work) -> None:
        """Start a job.

        Raises:
            InputError: one is running.
        """
        with self._lock:
            if self._status.state == "running":
                raise InputError("A job is already running; cancel it or wait for its end.")
            self._status = JobStatus("running", "starting")
            self._remarks = []
            self._cancel = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(work, self._cancel), name="job")
        self._thread.start()

    def cancel(self) -> bool:
        """Ask the job to stop at its next step; return whether there was one."""
        if not self.running:
            return False
        self._cancel.set()
        return True

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the job's end; return whether it has ended."""
        if self._thread is not None:
            self._thread.join(timeout_s)
            return not self._thread.is_alive()
        return True

    def take_remarks(self) -> list[str]:
        """Return what the job remarked since the last call."""
        with self._lock:
            out, self._remarks = self._remarks, []
        return out

    def _run(self, work: Work, cancel: threading.Event) -> None:
        try:
            report = work(self._progress, cancel)
        except KeyboardInterrupt as stop:
            report = stop.report if isinstance(stop, Interrupted) else None
            self._end("cancelled", "cancelled; what was finished stays", report, None)
        except AcehandError as error:
            self._end("failed", as_parameters(str(error)), None, error)
        except Exception as error:  # the node must live on and say so
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
