"""Workers of a batch, and the engines that run them: local processes or a Ray cluster.

A worker gives recordings to a process, which is ended when one takes too long or too much memory or
crashes it. The process is kept for the next recording: starting one takes seconds.
"""

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

#: A recording that ends its worker this often is quarantined.
DEATHS = 2
#: Likewise one whose worker vanished this often with the batch or its machine.
LOST = 5
#: Recordings per process: bounds memory that libraries never free.
RECORDINGS_PER_PROCESS = 100
_POLL_S = 0.2

EngineName = Literal["local", "ray"]


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The engine, and its share of the machines."""

    engine: EngineName = setting("local", "processes of this machine, or a Ray cluster")
    workers: int | None = setting(
        None,
        "maximum number of recordings at once",
        low=1,
        default_text="as many as processors; with ray, as the cluster has room for",
    )
    threads: int = setting(1, "per worker", low=1)
    gpus: float = setting(0.0, "with ray: GPUs to track one recording; 0.5: two share one", low=0.0)
    time_limit_s: float | None = setting(
        None,
        "seconds that one recording may take",
        flag="time-limit",
        metavar="S",
        low=1.0,
        default_text="none",
    )
    stall_limit_s: float = setting(
        900.0,
        "seconds that one recording may go without progress",
        flag="stall-limit",
        metavar="S",
        low=1.0,
    )
    memory_limit_mb: float | None = setting(
        None,
        "MB of memory that one recording may take (Linux)",
        flag="memory-limit",
        metavar="MB",
        low=1.0,
        default_text="none",
    )
    ray_address: str | None = setting(
        None,
        "of a running Ray cluster",
        metavar="ADDRESS",
        default_text="RAY_ADDRESS, else one is started on this machine",
    )


class WorkerError(Exception):
    """A worker ended, or was ended, before it was done; the message says why."""


class Worker:
    """Gives steps to a process, and ends it at the limits of the settings.

    ``close`` may be called from another thread; it does not count against the running step.
    """

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None
        self._lifeline = -1
        self._given = 0
        self._ready = self._closed = False

    def run(self, task: Task) -> TaskResult:
        """Return how a step ended; quarantine one that killed its worker too often."""
        if (kept := task.kept()) is not None:
            return kept
        with output_errors(task.folder):
            task.folder.mkdir(parents=True, exist_ok=True)
        attempts = Attempts(task.folder)
        reasons, lost = attempts.deaths()
        reason = ""
        if len(reasons) >= DEATHS:
            reason = f"ended its worker {len(reasons)} times: {reasons[-1]}"
        elif lost >= LOST:
            reason = f"its batch or machine ended {lost} times during it"
        if reason:
            result = TaskResult(task.id, task.stage, "quarantined", task.key, reason)
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
        """End the process, if any."""
        self._closed = True
        self._end()

    def _ask(self, task: Task) -> TaskResult:
        """Return the process's result of a step. Raises WorkerError, OutputError."""
        if self._given >= RECORDINGS_PER_PROCESS:
            self._end()
        process, pipe = self._started()
        self._given += 1
        settings = self._settings
        started = moved = time.monotonic()
        stage = "start"
        try:
            pipe.send(task)
            while True:
                if pipe.poll(_POLL_S):
                    kind, content = pipe.recv()
                    if kind == "result":
                        return content
                    if kind == "error":
                        raise content
                    stage, moved = content, time.monotonic()
                    if kind == "ready":
                        self._ready, started = True, moved

                now, used = time.monotonic(), peak_mb(process.pid)
                # The start of the process does not count.
                allowed = settings.time_limit_s if self._ready else None
                if allowed is not None and now - started > allowed:
                    raise WorkerError(f"took more than {allowed:g} s (in {stage})")
                if now - moved > settings.stall_limit_s:
                    raise WorkerError(f"no progress for {settings.stall_limit_s:g} s (in {stage})")
                if (limit := settings.memory_limit_mb) is not None and used > limit:
                    raise WorkerError(f"used {used:.0f} MB of {limit:g} MB (in {stage})")
        except (EOFError, OSError) as error:
            code = process.wait()
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            raise WorkerError(f"its process ended with {how} (in {stage})") from error

    def _started(self) -> tuple[subprocess.Popen[bytes], Connection]:
        if self._process is not None and self._pipe is not None and self._process.poll() is None:
            return self._process, self._pipe
        self._end()
        if self._closed:
            raise WorkerError("the batch ended")
        ours, theirs = Pipe()
        reading, self._lifeline = os.pipe()
        # Numerical libraries of several workers would oversubscribe the processors.
        names = (THREADS, "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "LP_NUM_THREADS")
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(theirs.fileno()), str(reading)],
            env={**os.environ, **dict.fromkeys(names, str(self._settings.threads))},
            pass_fds=(theirs.fileno(), reading),
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the driver
        )
        theirs.close()
        os.close(reading)
        self._pipe, self._given, self._ready = ours, 0, False
        return self._process, ours

    def _end(self) -> None:
        # Two threads may get here: each takes what the other has not.
        process, pipe, self._process, self._pipe = self._process, self._pipe, None, None
        lifeline, self._lifeline = self._lifeline, -1
        if process is not None:
            process.kill()
            process.wait()
        if pipe is not None:
            pipe.close()
        if lifeline >= 0:
            os.close(lifeline)


def main(pipe_number: int, lifeline: int) -> None:
    """Do the tasks from the pipe until it is closed."""

    def end_with_parent() -> None:
        os.read(lifeline, 1)  # returns when the parent has ended
        os._exit(1)  # results appear whole or not at all

    threading.Thread(target=end_with_parent, daemon=True).start()
    faulthandler.enable()
    from acehand_core.pipeline.batch.work import do

    pipe = Connection(pipe_number)
    last, lock = 0.0, threading.Lock()

    def report(stage: str, done: int, total: int) -> None:
        """Send progress, at most twice a second."""
        nonlocal last
        with lock:
            if (now := time.monotonic()) - last >= 0.5 or total == 0:
                last = now
                pipe.send(("progress", stage))

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
            pipe.send(("result", do(task, report)))
        except OutputError as error:
            pipe.send(("error", error))
        except OSError as error:
            failure = OutputError(f"{task.folder}: cannot write: {error.strerror or error}.")
            pipe.send(("error", failure))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))


@runtime_checkable
class Engine(Protocol):
    """Runs tasks in any order."""

    def submit(self, task: Task) -> Future[TaskResult]:
        """Take a task.

        The future raises OutputError if nothing can be written, and any error if a machine died:
        then the task's kept result counts.
        """
        ...

    def close(self) -> None:
        """End all running tasks."""
        ...


def open_engine(settings: EngineSettings) -> Engine:
    """Return an engine. Raises MissingDependencyError, InputError if Ray cannot be reached."""
    return RayEngine(settings) if settings.engine == "ray" else LocalEngine(settings)


class LocalEngine:
    """Worker processes of this machine, each with its thread."""

    def __init__(self, settings: EngineSettings) -> None:
        count = settings.workers or max(1, thread_count() // settings.threads)
        self._pool = ThreadPoolExecutor(count, "worker", self._begin)
        self._settings, self._own = settings, threading.local()
        self._workers: list[Worker] = []

    def _begin(self) -> None:
        self._own.worker = Worker(self._settings)
        self._workers.append(self._own.worker)

    def submit(self, task: Task) -> Future[TaskResult]:
        """Take a task: see ``Engine``."""
        return self._pool.submit(lambda: self._own.worker.run(task))

    def close(self) -> None:
        """End all running tasks."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers:
            worker.close()
        self._pool.shutdown(wait=True)


#: The worker of a process of a Ray cluster, which gets one task after the other.
_worker = functools.lru_cache(maxsize=1)(Worker)


def run_task(task: Task, settings: EngineSettings) -> TaskResult:
    """Do a task in a process of a cluster. Raises OutputError."""
    return _worker(settings).run(task)


class RayEngine:
    """Tasks of Ray. Only tracking takes GPUs."""

    def __init__(self, settings: EngineSettings) -> None:
        try:
            import ray
        except ImportError as error:
            raise MissingDependencyError(
                f"`engine=ray` needs Ray ({error}); pip install '.[ray]' in the checkout."
            ) from error
        self._ray, self._settings = ray, settings
        address = {"address": settings.ray_address} if settings.ray_address else {}
        on_cluster = bool(address or os.environ.get("RAY_ADDRESS"))  # a cluster knows its size
        room = None if on_cluster or not settings.workers else settings.workers * settings.threads
        try:
            ray.init(
                **address,
                num_cpus=room,
                ignore_reinit_error=True,
                log_to_driver=False,
                include_dashboard=False,
                logging_level="ERROR",
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise InputError(f"`engine=ray`: cannot start or reach Ray: {error}.") from error
        # Ray repeats tasks of a dead machine; ``Worker`` handles dead processes.
        self._run = ray.remote(max_retries=3)(run_task)
        self._given: list[Any] = []

    def submit(self, task: Task) -> Future[TaskResult]:
        """Take a task: see ``Engine``."""
        settings = self._settings
        # A subject's recordings are tracked before they are converted.
        own = task.stage == "convert" and task.settings.subject is None
        gpus = settings.gpus if own or task.stage == "track" else 0.0
        options = self._run.options(num_cpus=settings.threads, num_gpus=gpus)
        given = options.remote(task, settings)
        self._given.append(given)
        future: Future[TaskResult] = given.future()
        return future

    def close(self) -> None:
        """End all running tasks."""
        for given in self._given:
            with contextlib.suppress(Exception):
                self._ray.cancel(given, force=True)
        self._ray.shutdown()
