"""Where workers run: processes of this machine, a Ray cluster, or jobs of Slurm."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from acehand_core.batch.folder import Result, Task
from acehand_core.batch.worker import Limits, Worker
from acehand_core.errors import InputError, MissingDependencyError
from acehand_core.processes import thread_count
from acehand_core.settings import setting

EngineName = Literal["local", "ray", "slurm"]
Results = tuple[Result, ...]
_POLL_S = 1.0


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Which engine does the work, and with how much of the machines."""

    engine: EngineName = setting(
        "local", "processes of this machine, a Ray cluster, or jobs of Slurm"
    )
    workers: int | None = setting(
        None, "recordings at once, at most", low=1,
        default_text="as many as processors; with ray, as the cluster has room for",
    )  # fmt: skip
    threads: int = setting(1, "that one worker computes with", low=1)
    gpus: float = setting(
        0.0, "with ray and slurm: GPUs that tracking one recording takes; 0.5: two share one",
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
    slurm: dict[str, str] | None = setting(
        None, "parameters of submitit, e.g. slurm_partition=gpu,timeout_min=240",
        metavar="NAME=VALUE,...", parse=lambda text: parse_pairs(text),
    )  # fmt: skip
    slurm_cluster: Literal["slurm", "local", "debug"] = setting(
        "slurm", "slurm, or submitit's stand-ins for a test on this machine"
    )

    @property
    def limits(self) -> Limits:
        """What a worker may use for one recording."""
        return Limits(self.time_limit_s, self.stall_limit_s, self.memory_limit_mb, self.threads)


def parse_pairs(text: str) -> dict[str, str]:
    """Return {"a": "1", "b": "x"} of "a=1,b=x". Raises ValueError."""
    pairs = {}
    for entry in text.split(","):
        name, equals, value = entry.strip().partition("=")
        if not equals or not name:
            raise ValueError(f"{entry!r} is not NAME=VALUE")
        pairs[name] = value
    return pairs


@runtime_checkable
class Engine(Protocol):
    """Does tasks in any order."""

    def submit(self, tasks: Sequence[Task]) -> list[tuple[tuple[Task, ...], Future[Results]]]:
        """Take tasks; return futures and which tasks each is of.

        A future raises OutputError where nothing can be written, and anything where a machine or a
        job died: then what is kept of its tasks counts.
        """
        ...

    def close(self) -> None:
        """End all that runs."""
        ...


def open_engine(settings: EngineSettings, folder: Path) -> Engine:
    """Return an engine; ``folder`` is for its own files.

    Raises:
        MissingDependencyError: its package is not installed. InputError: it cannot be reached.
    """
    if settings.engine == "ray":
        return RayEngine(settings)
    return SlurmEngine(settings, folder) if settings.engine == "slurm" else LocalEngine(settings)


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

    def submit(self, tasks: Sequence[Task]) -> list[tuple[tuple[Task, ...], Future[Results]]]:
        """Take tasks: see ``Engine``."""

        def run(task: Task) -> Results:
            return (self._own.worker.run(task),)

        return [((task,), self._pool.submit(run, task)) for task in tasks]

    def close(self) -> None:
        """End all that runs."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers:
            worker.close()
        self._pool.shutdown(wait=True)


def run_tasks(tasks: Sequence[Task], limits: Limits) -> Results:
    """Do tasks one after the other, in a process of a cluster. Raises OutputError."""
    worker = _worker(limits)
    return tuple(worker.run(task) for task in tasks)


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
        self._run = ray.remote(max_retries=3)(run_tasks)
        self._given: list[Any] = []

    def submit(self, tasks: Sequence[Task]) -> list[tuple[tuple[Task, ...], Future[Results]]]:
        """Take tasks: see ``Engine``."""
        futures: list[tuple[tuple[Task, ...], Future[Results]]] = []
        for task in tasks:
            # A subject's recordings are tracked before they are converted.
            tracks = task.stage == "track" or (
                task.stage == "convert" and task.settings.subject is None
            )
            gpus = self._settings.gpus if tracks else 0.0
            options = self._run.options(num_cpus=self._settings.threads, num_gpus=gpus)
            given = options.remote([task], self._settings.limits)
            self._given.append(given)
            futures.append(((task,), given.future()))
        return futures

    def close(self) -> None:
        """End all that runs."""
        for given in self._given:
            with contextlib.suppress(Exception):
                self._ray.cancel(given, force=True)
        self._ray.shutdown()


class SlurmEngine:
    """Jobs of Slurm, each of which does a share of the recordings, through submitit."""

    def __init__(self, settings: EngineSettings, folder: Path) -> None:
        try:
            import submitit
        except ImportError as error:
            raise MissingDependencyError(
                f"--engine slurm needs submitit ({error}); pip install '.[slurm]' in the checkout."
            ) from error
        self._settings = settings
        parameters: dict[str, Any] = {"cpus_per_task": settings.threads, "timeout_min": 24 * 60}
        if settings.gpus:
            parameters["gpus_per_node"] = math.ceil(settings.gpus)
        if settings.workers:
            parameters["slurm_array_parallelism"] = settings.workers
        said = settings.slurm or {}
        parameters |= {n: int(v) if v.isdecimal() else v for n, v in said.items()}
        try:
            self._executor = submitit.AutoExecutor(folder, cluster=settings.slurm_cluster)
            self._executor.update_parameters(**parameters)
        except (RuntimeError, NameError, TypeError, ValueError) as error:
            raise InputError(f"--engine slurm: {error}.") from error
        self._jobs: list[tuple[Any, Future[Results]]] = []
        self._closed = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def submit(self, tasks: Sequence[Task]) -> list[tuple[tuple[Task, ...], Future[Results]]]:
        """Take tasks: see ``Engine``. One job does several, so that a queue is not flooded."""
        if not tasks:
            return []
        each = math.ceil(len(tasks) / (4 * (self._settings.workers or 64)))
        shares = [tuple(tasks[i : i + each]) for i in range(0, len(tasks), each)]
        limits = [self._settings.limits] * len(shares)
        jobs = self._executor.map_array(run_tasks, shares, limits)
        futures: list[tuple[tuple[Task, ...], Future[Results]]] = []
        for share, job in zip(shares, jobs, strict=True):
            future: Future[Results] = Future()
            self._jobs.append((job, future))
            futures.append((share, future))
        return futures

    def _watch(self) -> None:
        while not self._closed.wait(_POLL_S):
            for job, future in self._jobs:
                if future.done() or not job.done():
                    continue
                try:
                    future.set_result(job.result())
                except Exception as error:
                    future.set_exception(error)

    def close(self) -> None:
        """End all that runs."""
        self._closed.set()
        for job, future in self._jobs:
            if not future.done():
                with contextlib.suppress(Exception):
                    job.cancel()
