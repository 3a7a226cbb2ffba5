"""Named arrays from a user's file, with their shapes checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from acehand_core.errors import SchemaError, nearest


def take(
    data: Mapping[str, Any], name: str, where: str, *shapes: tuple[int | None, ...]
) -> np.ndarray:
    """Return an array of finite or NaN numbers of one of the shapes; None stands for any length.

    Raises:
        SchemaError: naming ``where`` and the entry: missing, not numbers, or of another shape.
    """
    if name not in data:
        raise SchemaError(f"{where}: {name!r} is missing; {nearest(name, map(str, data))}")
    try:
        value = np.asarray(data[name], np.float64)
    except (TypeError, ValueError) as error:
        raise SchemaError(f"{where}: {name!r} must hold numbers ({error}).") from error
    for shape in shapes:
        fits = zip(value.shape, shape, strict=False)
        if value.ndim == len(shape) and all(n in (m, None) or m is None for m, n in fits):
            return value
    wanted = " or ".join(str(tuple("N" if n is None else n for n in s)) for s in shapes)
    raise SchemaError(f"{where}: {name!r} has shape {value.shape}; {wanted} is needed.")


def rows(value: np.ndarray, count: int, name: str, where: str) -> np.ndarray:
    """Return the array if its first axis has ``count`` entries. Raises SchemaError."""
    if len(value) != count:
        raise SchemaError(f"{where}: {name!r} has {len(value)} rows; {count} are needed.")
    return value


def every_frame(count: int, wanted: int, name: str, where: str) -> None:
    """Raise SchemaError unless an entry with a row per frame has all the segment's frames.

    Such an entry says no frame numbers: with one frame more or less, all would be scored against
    other frames than they were made of.
    """
    if count != wanted:
        raise SchemaError(
            f"{where}: {name!r} has {count} frames; the segment has {wanted}. Every frame needs a "
            "row, in order and at the segment's rate; NaN where there is no hand."
        )


def flags(value: np.ndarray, name: str, where: str) -> np.ndarray:
    """Return an array of zeros and ones as it is. Raises SchemaError for other numbers."""
    if not np.isin(value, (0, 1)).all():
        raise SchemaError(f"{where}: {name!r} must be 0 or 1.")
    return value
