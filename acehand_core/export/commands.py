"""Robot commands as a table that a hand's own program can play back."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from acehand_core.atomic import atomic_path
from acehand_core.errors import OutputError
from acehand_core.motion import RobotTrajectory
from acehand_core.types import SIDES, Side


def write_commands(
    trajectory: RobotTrajectory,
    path: Path,
    sides: Sequence[Side] = SIDES,
    whole: bool = False,
    overwrite: bool = False,
) -> tuple[str, ...]:
    """Write ``.csv``: one row per frame, one column per command in the vendor's order and unit.

    The first column is ``time_s`` from the first frame on. Only hands that appear are written;
    where one is absent for a while its last pose stands, and ``{side}_active`` is 0.

    Args:
        whole: the controller takes whole numbers; values are rounded.

    Returns:
        The columns.

    Raises:
        OutputError: another suffix, no such hand, or the file exists or cannot be written.
    """
    if path.suffix != ".csv":
        raise OutputError(f"{path}: commands are written as .csv.")
    slots = [SIDES.index(side) for side in sides]
    slots = [slot for slot in slots if trajectory.active[:, slot].any()]
    if not slots:
        raise OutputError(f"{path}: no {' or '.join(sides)} hand appears, so nothing is written.")
    names = ["time_s"]
    columns = [(trajectory.timestamps_ns - trajectory.timestamps_ns[0]) / 1e9]
    for slot in slots:
        names += [f"{SIDES[slot]}_{name}" for name in (*trajectory.command_names, "active")]
        columns += [*trajectory.registers[:, slot].T, trajectory.active[:, slot]]
    with (
        atomic_path(path, overwrite) as partial,
        partial.open("w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        for time, *values in zip(*columns, strict=True):
            writer.writerow([f"{time:.6f}", *(_text(value, whole) for value in values)])
    return tuple(names)


def _text(value: float | bool | np.bool_, whole: bool) -> str:
    if whole or isinstance(value, np.bool_):
        return str(round(float(value)))
    return f"{value:.6g}"
