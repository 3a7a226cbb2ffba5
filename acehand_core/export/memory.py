"""Memory that was freed goes back to the system between the stages of a long job."""

from __future__ import annotations

import ctypes
import sys

import pyarrow as pa


def release_memory() -> None:
    """Let the allocators give back what they keep for themselves.

    Arrow and the C library hold on to freed blocks. After a long episode that is hundreds of
    megabytes, and the next stage, drawing or writing a bag, would come on top of them.
    """
    pa.default_memory_pool().release_unused()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
        if trim is not None:
            trim(0)
