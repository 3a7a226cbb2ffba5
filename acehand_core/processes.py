"""How much of the machine one process may use, and uses."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path

#: Environment variable: threads that one process may use.
THREADS = "ACEHAND_THREADS"


def thread_count() -> int:
    """Return how many threads of this process may compute at once.

    What ``ACEHAND_THREADS`` says, else the processors that the process may run on.
    """
    said = os.environ.get(THREADS, "")
    if said.isdecimal() and int(said) > 0:
        return int(said)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """Keep NumPy's and SciPy's linear algebra to one thread; also a decorator.

    On many small solves OpenBLAS's threads gain nothing, and on a busy machine they spin while they
    wait for one another. The limit holds for the process; threadpoolctl leaves its control to the
    thread that came first.
    """
    import scipy.linalg  # noqa: F401  # brings a BLAS of its own, which has to be there to be found
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1, "blas"):
        yield


def forget_peak() -> None:
    """Let ``peak_mb`` of this process begin anew."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", "ascii")


def peak_mb(process: int) -> float:
    """Return the largest memory of a process; 0 where the system does not tell (Linux does)."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text("ascii", "replace").splitlines():
            if line.startswith("VmHWM:"):
                return round(int(line.split()[1]) * 1024 / 1e6, 1)
    return 0.0


def release_memory() -> None:
    """Let the allocators give back what they keep for themselves.

    Arrow and the C library hold on to freed blocks. After a long episode that is hundreds of
    megabytes, and the next stage, drawing or writing a bag, would come on top of them.
    """
    import pyarrow as pa

    pa.default_memory_pool().release_unused()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
        if trim is not None:
            trim(0)
