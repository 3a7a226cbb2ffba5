"""Threads and memory of one process."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TypeVar

#: Environment variable: threads that one process may use.
THREADS = "ACEHAND_THREADS"

Item = TypeVar("Item")
Result = TypeVar("Result")


def thread_count() -> int:
    """Return ``ACEHAND_THREADS``, else the number of processors that this process may use."""
    said = os.environ.get(THREADS, "")
    if said.isdecimal() and int(said) > 0:
        return int(said)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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
