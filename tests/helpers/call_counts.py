"""How much work a call does, counted: times on a busy machine say little."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

OURS = ("acehand_core", "retarget")


def calls(function: Callable[[], object]) -> int:
    """Return how many calls the project's own code makes and answers while this one runs.

    Calls of the checks that tests put before every function are not counted.
    """
    count = 0

    def seen(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        if event in ("call", "c_call"):
            # For a compiled function the frame is the caller's.
            count += any(f"/{package}/" in frame.f_code.co_filename for package in OURS)

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count
