"""How much of the machine one process may use."""

from __future__ import annotations

import os

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
