"""Bring episodes of a LeRobot v3 dataset back that were removed or trimmed."""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from acehand_core.atomic import output_errors
from acehand_core.errors import InputError, SchemaError, nearest
from acehand_core.lerobot import format as layout
from acehand_core.lerobot.assemble import Assembly, Row
from acehand_core.lerobot.edit import REMOVED, SET_ASIDE, opened, replace_dataset
from acehand_core.lerobot.transaction import Step
from acehand_core.lerobot.trim import pieces_of


@dataclass(frozen=True, slots=True)
class Restoring:
    """What ``restore_episodes`` did.

    ``restored`` are the numbers that the episodes have now, ``replaced`` those that their pieces
    had.
    """

    restored: tuple[int, ...]
    replaced: tuple[int, ...]
    episodes: int
    frames: int

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``acehand dataset restore --json`` prints."""
        return asdict(self)


def restore_episodes(root: Path, name: str, on_step: Step | None = None) -> Restoring:
    """Bring episodes back that were removed or trimmed; pieces of theirs go.

    Each gets the number back that it had, or the last one where there are fewer now. The dataset in
    ``.unreferenced`` goes.

    Args:
        name: of the dataset in ``.unreferenced``, such as "trimmed-000".

    Raises:
        InputError: there is no such dataset. SchemaError: one of the two needs the repair first, or
            they do not fit. OutputError: it cannot be written or is in use. Nothing has changed.
    """
    root = root.resolve()
    place = f"{SET_ASIDE}/{name}"
    there = sorted(path.parent.name for path in (root / SET_ASIDE).glob(f"*/{REMOVED}"))
    if name not in there:
        listed = nearest(name, there) if there else "nothing was set aside."
        raise InputError(f"{root}: no {name!r} in {SET_ASIDE}; {listed}")
    with output_errors(root), opened(root) as (info, rows, tasks):
        with opened(root / place) as (own_info, own_rows, own_tasks):
            if own_info["features"].keys() != info["features"].keys():
                raise SchemaError(f"{root / place}: its features are not those of {root} now.")
            record = layout.read_json(root / place / REMOVED)
            numbers = [entry.get("episode") for entry in record.get("removed", ())]
            if len(numbers) != len(own_rows) or not all(isinstance(n, int) for n in numbers):
                raise SchemaError(f"{root / place / REMOVED} does not name its episodes.")

            replaced = tuple(
                row["episode_index"] for row in rows
                if record.get("id") is not None and record["id"] in [
                    piece.get("id") for piece in
                    pieces_of(root / layout.episode_folder(row["episode_index"]))
                ]
            )  # fmt: skip
            order: list[tuple[Path, Row]] = [
                (root, row) for row in rows if row["episode_index"] not in replaced
            ]
            for number, row in sorted(zip(numbers, own_rows, strict=True), key=lambda p: p[0]):
                order.insert(min(number, len(order)), (root / place, row))

            def fill(base: Path, step: Step) -> None:
                used = {task for _, row in order for task in row["tasks"]}
                known = [task for task in dict.fromkeys([*tasks, *own_tasks]) if task in used]
                assembly = Assembly(base, info, step, renumber=True, tasks=known)
                for source, group in itertools.groupby(order, key=lambda entry: entry[0]):
                    listed = [row for _, row in group]
                    assembly.add(source, listed, tasks if source == root else own_tasks)
                assembly.finish()

            replace_dataset(root, fill, on_step, without=place)
        frames = sum(row["length"] for _, row in order)
        now = tuple(n for n, (source, _) in enumerate(order) if source != root)
        return Restoring(now, replaced, len(order), frames)
