"""Camera trajectories in the Redwood text format: per frame three integers and a 4x4 matrix."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from acehand_core.data.native.files import read_text
from acehand_core.errors import SchemaError
from acehand_core.types import CameraPoses


def read_log(path: Path) -> CameraPoses:
    """Return the matrices as they stand: by the format's definition camera to world.

    Raises SchemaError with the line.
    """
    lines = [line for line in read_text(path).splitlines() if line.strip()]
    if not lines or len(lines) % 5:
        raise SchemaError(f"{path}: {len(lines)} lines; five per frame are needed.")
    out = np.zeros((len(lines) // 5, 4, 4))
    for frame in range(len(out)):
        for row in range(4):
            number = 5 * frame + row + 1
            try:
                out[frame, row] = [float(word) for word in lines[number].split()]
            except ValueError as error:
                raise SchemaError(f"{path}:{number + 1}: four numbers are needed.") from error
    return out
