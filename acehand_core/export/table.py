"""Tables of hands as files: parquet and csv of a HandMotion, npz of joints alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from acehand_core.atomic import atomic_path, check_free
from acehand_core.data.hand_table import BATCH_ROWS, COLUMNS, to_table
from acehand_core.errors import InputError
from acehand_core.motion import HandMotion

#: What ``write_hand_motion`` writes.
TABLE_SUFFIXES = (".parquet", ".csv")


def check_table_path(path: Path, overwrite: bool, suffixes: tuple[str, ...]) -> None:
    """Check a file that is to be written, before any work.

    Raises:
        InputError: its name ends in none of ``suffixes``. OutputError: it exists.
    """
    if path.suffix not in suffixes:
        raise InputError(f"{path}: hands are written as {' or '.join(suffixes)}.")
    check_free(path, overwrite)


def write_hand_motion(motion: HandMotion, path: Path, overwrite: bool = False) -> None:
    """Write ``.parquet`` (read back by ``read_hand_motion``), or ``.csv`` for people.

    The file appears whole or not at all.

    Raises:
        InputError: another suffix. OutputError: it exists, or cannot be written.
    """
    check_table_path(path, overwrite, TABLE_SUFFIXES)
    table = to_table(motion)
    with atomic_path(path, overwrite) as partial:
        if path.suffix == ".parquet":
            # A group of rows is held in memory until all of it is compressed.
            pq.write_table(
                table, partial, compression="zstd", write_page_checksum=True,
                row_group_size=BATCH_ROWS,
            )  # fmt: skip
        else:
            pa_csv.write_csv(_flat(table), partial)


def write_joints_file(motion: HandMotion, path: Path, overwrite: bool = False) -> None:
    """Write the joints of both hands as an npz that ``--tracker FILE`` reads.

    Raises:
        OutputError: it exists, or cannot be written.
    """
    with atomic_path(path, overwrite) as partial, partial.open("wb") as file:
        np.savez_compressed(
            file,
            joints=motion.joints_camera,
            timestamps_ns=motion.timestamps_ns,
            fps=motion.fps,
            confidence=motion.quality,
            frame="camera" if motion.placed else "wrist",
        )


def _flat(table: pa.Table) -> pa.Table:
    """Return the table with one csv column per number."""
    columns: dict[str, Any] = {}
    for name, kind, _ in COLUMNS:
        column = table[name].combine_chunks()
        if not pa.types.is_fixed_size_list(kind):
            columns[name] = column
            continue
        if column.null_count:
            continue
        rows = column.flatten().to_numpy(zero_copy_only=False).reshape(-1, kind.list_size)
        for index in range(kind.list_size):
            columns[f"{name}_{index}"] = rows[:, index]
    return pa.table(columns)
