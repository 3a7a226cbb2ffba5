"""Workers of a batch, and where they run: processes of this machine, or a Ray cluster."""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from typing import Any, Literal, Protocol, runtime_checkable

from acehand_core.atomic import output_errors
from acehand_core.errors import InputError, MissingDependencyError, OutputError
from acehand_core.pipeline.batch.folder import Attempts, Task, TaskResult, write_result
from acehand_core.processes import THREADS, peak_mb, thread_count
from acehand_core.settings import setting

# A worker process, and who watches over it.
#
# Recordings are converted in a process of their own, which is ended where one takes too long, too
# much memory or the whole process down. It stays for the next recording: starting one takes
# seconds.

#: A recording that ends its worker so often is not tried again.
DEATHS = 2
#: As often, a recording's worker may have vanished with the batch or its machine.
LOST = 5
#: Recordings that one process converts, so that memory that libraries never give back stays small.
RECORDINGS_PER_PROCESS = 100
_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Limits:
    """What a worker may use for one recording; None: any.

    Attributes:
        stall_s: seconds without any progress.
        threads: that compute at once.
    """

    time_s: float | None
    stall_s: float
    memory_mb: float | None
    threads: int


class WorkerError(Exception):
    """A worker ended, or was ended, before it was done; the message says why."""


class Worker:
    """Gives steps to a process, starts it where there is none, and ends it at its limits.

    ``close`` may be called from another thread; what runs then is not blamed.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None
        self._lifeline = -1
        self._given = 0
        self._ready = self._closed = False

    def run(self, task: Task) -> TaskResult:
        """Return how a step ended. One that killed its worker too often is quarantined.

        Raises:
            OutputError: nothing can be written, whatever the recording.
        """
        if (kept := task.kept()) is not None:
            return kept
        with output_errors(task.folder):
            task.folder.mkdir(parents=True, exist_ok=True)
        attempts = Attempts(task.folder)
        reasons, lost = attempts.deaths()
        said = ""
        if len(reasons) >= DEATHS:
            said = f"ended its worker {len(reasons)} times: {reasons[-1]}"
        elif lost >= LOST:
            said = f"its batch or machine ended {lost} times during it"
        if said:
            result = TaskResult(task.id, task.stage, "quarantined", task.key, said)
            write_result(task.result_path, result)
            return result

        attempts.add("start", task.stage)
        try:
            result = self._ask(task)
        except WorkerError as death:
            self._end()
            if self._closed:
                raise
            attempts.add("end", task.stage, str(death))
            return TaskResult(task.id, task.stage, "killed", task.key, str(death))
        attempts.add("end", task.stage)
        return result

    def close(self) -> None:
        """End the process, if there is one."""
        self._closed = True
        self._end()

    def _ask(self, task: Task) -> TaskResult:
        """Let the process do it; return what it says. Raises WorkerError, OutputError."""
        if self._given >= RECORDINGS_PER_PROCESS:
            self._end()
        process, pipe = self._started()
        self._given += 1
        limits = self._limits
        started = moved = time.monotonic()
        stage = "start"
        try:
            pipe.send(task)
            while True:
                if pipe.poll(_POLL_S):
                    kind, said = pipe.recv()
                    if kind == "result":
                        return said
                    if kind == "error":
                        raise said
                    stage, moved = said, time.monotonic()
                    if kind == "ready":
                        self._ready, started = True, moved

                now, used = time.monotonic(), peak_mb(process.pid)
                # The start of a process is not the recording's.
                allowed = limits.time_s if self._ready else None
                if allowed is not None and now - started > allowed:
                    raise WorkerError(f"took more than {allowed:g} s (in {stage})")
                if now - moved > limits.stall_s:
                    raise WorkerError(f"no progress for {limits.stall_s:g} s (in {stage})")
                if limits.memory_mb is not None and used > limits.memory_mb:
                    raise WorkerError(f"used {used:.0f} MB of {limits.memory_mb:g} MB (in {stage})")
        except (EOFError, OSError) as error:
            code = process.wait()
            how = f"exit code {code}"
            if code < 0:
                how = f"signal {signal.Signals(-code).name}"
            raise WorkerError(f"its process ended with {how} (in {stage})") from error

    def _started(self) -> tuple[subprocess.Popen[bytes], Connection]:
        if self._process is not None and self._pipe is not None and self._process.poll() is None:
            return self._process, self._pipe
        self._end()
        if self._closed:
            raise WorkerError("the batch ended")
        ours, theirs = Pipe()
        reading, self._lifeline = os.pipe()
        # Threads of numerical libraries would fight over the processors with other workers.
        names = (THREADS, "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "LP_NUM_THREADS")
        environment = {**os.environ, **dict.fromkeys(names, str(self._limits.threads))}
        command = [sys.executable, "-m", __name__, str(theirs.fileno()), str(reading)]
        self._process = subprocess.Popen(
            command, env=environment, pass_fds=(theirs.fileno(), reading),
            stdin=subprocess.DEVNULL, start_new_session=True,  # Ctrl-C is for the driver
        )  # fmt: skip
        theirs.close()
        os.close(reading)
        self._pipe, self._given, self._ready = ours, 0, False
        return self._process, ours

    def _end(self) -> None:
        # Two threads may come here: what one has taken the other does not see.
        process, pipe, self._process, self._pipe = self._process, self._pipe, None, None
        lifeline, self._lifeline = self._lifeline, -1
        if process is not None:
            process.kill()
            process.wait()
        if pipe is not None:
            pipe.close()
        if lifeline >= 0:
            os.close(lifeline)


class _Reporter:
    """Sends progress, twice a second at most."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe, self._last, self._lock = pipe, 0.0, threading.Lock()

    def __call__(self, stage: str, done: int, total: int) -> None:
        with self._lock:
            if (now := time.monotonic()) - self._last >= 0.5 or total == 0:
                self._last = now
                self._pipe.send(("progress", stage))


def main(pipe_number: int, lifeline: int) -> None:
    """Do what the pipe asks for, until it is closed."""

    def end_with_parent() -> None:
        os.read(lifeline, 1)  # returns when the other end is gone
        os._exit(1)  # results appear whole or not at all, so nothing is to be tidied up

    threading.Thread(target=end_with_parent, daemon=True).start()
    faulthandler.enable()
    from acehand_core.pipeline.batch.work import do

    pipe = Connection(pipe_number)
    pipe.send(("ready", "start"))
    while True:
        try:
            task: Task = pipe.recv()
        except EOFError:
            return
        try:
            task.folder.mkdir(parents=True, exist_ok=True)
            log = os.open(task.folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.close(log)
            pipe.send(("result", do(task, _Reporter(pipe))))
        except OutputError as error:
            pipe.send(("error", error))
        except OSError as error:
            said = OutputError(f"{task.folder}: cannot write: {error.strerror or error}.")
            pipe.send(("error", said))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))


EngineName = Literal["local", "ray"]


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Which engine does the work, and with how much of the machines."""

    engine: EngineName = setting("local", "processes of this machine, or a Ray cluster")
    workers: int | None = setting(
        None, "recordings at once, at most", low=1,
        default_text="as many as processors; with ray, as the cluster has room for",
    )  # fmt: skip
    threads: int = setting(1, "that one worker computes with", low=1)
    gpus: float = setting(
        0.0, "with ray: GPUs that tracking one recording takes; 0.5: two share one",
        low=0.0,
    )  # fmt: skip
    time_limit_s: float | None = setting(
        None, "seconds that one recording may take", flag="time-limit", metavar="S", low=1.0,
        default_text="none",
    )  # fmt: skip
    stall_limit_s: float = setting(
        900.0, "seconds that one recording may go without progress", flag="stall-limit",
        metavar="S", low=1.0,
    )  # fmt: skip
    memory_limit_mb: float | None = setting(
        None, "MB of memory that one recording may take (Linux)", flag="memory-limit",
        metavar="MB", low=1.0, default_text="none",
    )  # fmt: skip
    ray_address: str | None = setting(
        None, "of a Ray cluster that runs", metavar="ADDRESS",
        default_text="RAY_ADDRESS, else one is started on this machine",
    )  # fmt: skip

    @property
    def limits(self) -> Limits:
        """What a worker may use for one recording."""
        return Limits(self.time_limit_s, self.stall_limit_s, self.memory_limit_mb, self.threads)


@runtime_checkable
class Engine(Protocol):
    """Does tasks in any order."""

    def submit(self, task: Task) -> Future[TaskResult]:
        """Take a task.

        The future raises OutputError where nothing can be written, and anything where a machine
        died: then what is kept of the task counts.
        """
        ...

    def close(self) -> None:
        """End all that runs."""
        ...


def open_engine(settings: EngineSettings) -> Engine:
    """Return an engine.

    Raises:
        MissingDependencyError: its package is not installed. InputError: it cannot be reached.
    """
    return RayEngine(settings) if settings.engine == "ray" else LocalEngine(settings)


class LocalEngine:
    """Worker processes of this machine, a thread watching over each."""

    def __init__(self, settings: EngineSettings) -> None:
        count = settings.workers or max(1, thread_count() // settings.threads)
        self._pool = ThreadPoolExecutor(count, "worker", self._begin)
        self._limits, self._own = settings.limits, threading.local()
        self._workers: list[Worker] = []

    def _begin(self) -> None:
        self._own.worker = Worker(self._limits)
        self._workers.append(self._own.worker)

    def submit(self, task: Task) -> Future[TaskResult]:
        """Take a task: see ``Engine``."""
        return self._pool.submit(lambda: self._own.worker.run(task))

    def close(self) -> None:
        """End all that runs."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers:
            worker.close()
        self._pool.shutdown(wait=True)


def run_task(task: Task, limits: Limits) -> TaskResult:
    """Do a task in a process of a cluster. Raises OutputError."""
    return _worker(limits).run(task)


@functools.lru_cache(maxsize=1)
def _worker(limits: Limits) -> Worker:
    """Return the worker of this process: Ray gives it one task after the other."""
    return Worker(limits)


class RayEngine:
    """Tasks of Ray. Tracking takes the GPUs that were asked for, the other steps none."""

    def __init__(self, settings: EngineSettings) -> None:
        try:
            import ray
        except ImportError as error:
            raise MissingDependencyError(
                f"--engine ray needs Ray ({error}); pip install '.[ray]' in the checkout."
            ) from error
        self._ray, self._settings = ray, settings
        address = {"address": settings.ray_address} if settings.ray_address else {}
        there = bool(address or os.environ.get("RAY_ADDRESS"))  # a cluster knows its own size
        room = None if there or not settings.workers else settings.workers * settings.threads
        try:
            ray.init(
                **address, num_cpus=room, ignore_reinit_error=True, log_to_driver=False,
                include_dashboard=False, logging_level="ERROR",
            )  # fmt: skip
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise InputError(f"--engine ray: cannot start or reach Ray: {error}.") from error
        # Ray runs a task again whose machine died; what a recording does to its worker is ours.
        self._run = ray.remote(max_retries=3)(run_task)
        self._given: list[Any] = []

    def submit(self, task: Task) -> Future[TaskResult]:
        """Take a task: see ``Engine``."""
        # A subject's recordings are tracked before they are converted.
        tracks = task.stage == "track" or (
            task.stage == "convert" and task.settings.subject is None
        )
        gpus = self._settings.gpus if tracks else 0.0
        options = self._run.options(num_cpus=self._settings.threads, num_gpus=gpus)
        given = options.remote(task, self._settings.limits)
        self._given.append(given)
        future: Future[TaskResult] = given.future()
        return future

    def close(self) -> None:
        """End all that runs."""
        for given in self._given:
            with contextlib.suppress(Exception):
                self._ray.cancel(given, force=True)
        self._ray.shutdown()
