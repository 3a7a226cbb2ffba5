"""Threads and memory of one process, and work in several."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    FIRST_EXCEPTION,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TypeVar

from acehand_core.errors import OutputError
from acehand_core.types import Progress

#: Environment variable: threads that one process may use.
THREADS = "ACEHAND_THREADS"

Item = TypeVar("Item")
Result = TypeVar("Result")


def thread_count() -> int:
    """Return ``ACEHAND_THREADS``, else the number of processors that this process may use."""
    threads = os.environ.get(THREADS, "")
    if threads.isdecimal() and int(threads) > 0:
        return int(threads)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class SharedProgress:
    """Progress of one stage that several threads advance."""

    def __init__(self, progress: Progress, stage: str, total: int) -> None:
        self._progress, self._stage, self._total = progress, stage, total
        self._done, self._lock = 0, threading.Lock()

    def advance(self, by: int = 1) -> None:
        """Report ``by`` more as done."""
        with self._lock:
            self._done += by
            self._progress(self._stage, self._done, self._total)


def in_threads(
    work: Callable[[Item, threading.Event], Result], items: Sequence[Item]
) -> list[Result]:
    """Return the results of ``work`` for all items, with as many threads as may be used.

    Once its event is set, by an error of another item or Ctrl-C, ``work`` must end, by any error.
    """
    stop = threading.Event()
    with ThreadPoolExecutor(thread_count()) as pool:
        futures = [pool.submit(work, item, stop) for item in items]
        try:
            ended, _ = wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)
        for future in ended:  # one of them has stopped the others
            future.result()
    return [future.result() for future in futures]


def in_processes(
    work: Callable[[Item], Result],
    items: Sequence[Item],
    count: int,
    named: Callable[[Item], str],
    output: Path,
    start: Callable[[], None],
) -> Iterator[tuple[Item, Result]]:
    """Yield each item with the result of ``work``, as they are done, from ``count`` processes.

    Processes call ``start`` first. Ctrl-C reaches this process alone: files stay whole.

    Raises:
        OutputError: a process was killed; it names ``output`` and the items that are lost.
    """
    # Not forked: children would share the parent's OpenGL.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(count, len(items)), context, _start_process, (start,))
    waiting: dict[Future[Result], Item] = {}
    rest = iter(items)
    try:
        while True:
            for item in rest:  # few at a time, of maybe very many
                waiting[pool.submit(work, item)] = item
                if len(waiting) >= 4 * count:
                    break
            if not waiting:
                return
            done, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                result = future.result()  # before the pop: the error names all that wait
                yield waiting.pop(future), result
    except BrokenProcessPool as error:
        lost = [item for f, item in waiting.items() if not f.done() or f.exception() is not None]
        raise OutputError(
            f"{output}: a process was killed (memory may be short; fewer processes need less). Not "
            f"done: {', '.join(map(named, lost))} and those after; finished ones stay, and the "
            "same command resumes."
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _start_process(start: Callable[[], None]) -> None:
    """Ignore Ctrl-C, and exit with the parent, which cannot end its processes when killed."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)  # files are written atomically: nothing to clean up


def in_background() -> None:
    """Let this thread, and those that it starts, run when others wait (on Linux)."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit NumPy's and SciPy's linear algebra to one thread; also a decorator.

    On many small solves OpenBLAS's threads gain nothing, and on a busy machine they spin while they
    wait for one another. The limit is per process; with several threads, threadpoolctl follows the
    one that came first.
    """
    import scipy.linalg  # noqa: F401  # its BLAS must be loaded to be found
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1, "blas"):
        yield


def forget_peak() -> None:
    """Reset ``peak_mb`` of this process."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", "ascii")


def peak_mb(process: int) -> float:
    """Return the peak memory of a process in MB; 0 where the system does not report it."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text("ascii", "replace").splitlines():
            if line.startswith("VmHWM:"):
                return round(int(line.split()[1]) * 1024 / 1e6, 1)
    return 0.0


def release_memory() -> None:
    """Return freed memory to the system.

    After a long episode Arrow and the C library hold hundreds of megabytes of freed blocks, which
    would add to the peak of drawing or of writing a bag.
    """
    import pyarrow as pa

    pa.default_memory_pool().release_unused()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
        if trim is not None:
            trim(0)
