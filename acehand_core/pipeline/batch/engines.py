"""Where workers run: processes of this machine, or a Ray cluster."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from acehand_core.errors import InputError, MissingDependencyError
from acehand_core.pipeline.batch.folder import Task, TaskResult
from acehand_core.pipeline.batch.worker import Limits, Worker
from acehand_core.processes import thread_count
from acehand_core.settings import setting

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
