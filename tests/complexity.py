"""How much work a call does, counted: times on a busy machine say little."""

from __future__ import annotations

import sys
from collections.abc import Callable


def calls(function: Callable[[], object]) -> int:
    """Return how many functions, Python's and compiled ones, are called while this one runs."""
    count = 0

    def seen(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count
