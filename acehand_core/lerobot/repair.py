"""Repairing LeRobot v3 datasets: after a killed writer, or with damaged files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from acehand_core.atomic import DirectoryLock, abandoned, output_errors
from acehand_core.errors import AcehandError, InputError, SchemaError
from acehand_core.lerobot import format as layout
from acehand_core.lerobot import stats, transaction
from acehand_core.lerobot.assemble import Row, link, write_episodes
from acehand_core.lerobot.check import check_info, check_rows, episode_faults
from acehand_core.lerobot.check_files import late_frames
from acehand_core.lerobot.edit import SET_ASIDE, replace_dataset, unused_files
from acehand_core.lerobot.transaction import STAGING, Transaction, clean_siblings, recover
from acehand_core.lerobot.writer import expected_columns, unusable
from acehand_core.recordings.lerobot_video import is_dataset
from acehand_core.recordings.video_encode import probe_video


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """Planned repair: ``steps``, and ``lost``, one sentence per damaged episode that goes."""

    steps: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()


def repair(root: Path, agree: Callable[[RepairPlan], bool] = lambda plan: True) -> list[str]:
    """Reduce a dataset to its whole episodes; return what was done, [] for nothing.

    Finishes or drops an interrupted addition. If counts and files disagree (a killed recorder, lost
    files), keeps and renumbers whole episodes, moves all other files of episodes to
    ``.unreferenced``, and rewrites counts and statistics. Missing pictures need the recording
    (``check_dataset``).

    ``agree`` is called before episodes are renumbered or go; InputError if it returns False, or
    without a dataset. Raises SchemaError if no episode is whole, OutputError.
    """
    root = root.resolve()
    with output_errors(root):
        done = clean_siblings(root)
        _check_is_dataset(root)
        with DirectoryLock(root):
            outcome = recover(root)
            done += [outcome] if outcome else []
            inventory = _Inventory.of(root)
            if not inventory.is_sound():
                if not agree(inventory.plan()):
                    raise InputError(f"{root}: not repaired; its episodes are unchanged.")
                done += inventory.mend()
            done += _finish_statistics(root)
            for path in _never_completed(root):
                path.unlink()
                done.append(f"removed {path}, which was never completed")
    return done


def plan_repair(root: Path) -> RepairPlan:
    """Return what ``repair`` would do; nothing is changed. Raises InputError, SchemaError."""
    root = root.resolve()
    left = [*abandoned(root, "partial"), *abandoned(root, "replaced")]
    steps = [f"remove or restore {path}" for path in left]
    if steps and not is_dataset(root):
        return RepairPlan(tuple(steps))
    _check_is_dataset(root)
    if (root / STAGING).is_dir():
        return RepairPlan((*steps, "finish or drop an interrupted addition, then look again"))
    inventory = _Inventory.of(root)
    if not inventory.is_sound():
        return RepairPlan((*steps, *inventory.plan().steps), inventory.plan().lost)
    if stats.are_provisional(root, inventory.rows):
        steps.append(f"compute the quantiles of {layout.STATS_PATH} over all frames")
    steps += [f"remove {path}, which was never completed" for path in _never_completed(root)]
    return RepairPlan(tuple(steps))


def _check_is_dataset(root: Path) -> None:
    if not is_dataset(root):
        raise InputError(f"{root} has no {layout.INFO_PATH}; it is not a LeRobot dataset.")


def _never_completed(root: Path) -> list[Path]:
    return sorted((root / layout.EXTRAS).glob("*/.*.partial-*"))


def finish_statistics(root: Path) -> list[str]:
    """Compute quantiles that a stopped writer left as averages; return what was done."""
    root = root.absolute()
    with output_errors(root), DirectoryLock(root):
        recover(root)
        return _finish_statistics(root)


def _finish_statistics(root: Path) -> list[str]:
    rows = layout.read_episode_rows(root)
    if not stats.are_provisional(root, rows):
        return []
    features = layout.read_json(root / layout.INFO_PATH)["features"]
    update = Transaction(root)
    content = stats.stats_to_json(stats.dataset_stats(root, features, rows))
    update.stage("stats.json").write_bytes(layout.to_json_bytes(content))
    update.add("stats.json", layout.STATS_PATH)
    update.commit()
    return [f"{root}: computed the quantiles of {layout.STATS_PATH} over all frames"]


@dataclass(frozen=True, slots=True)
class _Inventory:
    """Inventory of a dataset: ``rows`` of whole episodes, ``lost`` ones with reasons.

    ``aside`` are files and folders that are not of whole episodes alone.
    """

    root: Path
    info: Mapping[str, Any]
    tasks: Sequence[str]
    rows: Sequence[Row]
    lost: Sequence[str]
    aside: Sequence[str]

    @classmethod
    def of(cls, root: Path) -> _Inventory:
        """Check every episode. Raises SchemaError if nothing can be kept."""
        info = layout.read_json(root / layout.INFO_PATH)
        # Only wrong counts can be repaired.
        counted = dict.fromkeys(("total_episodes", "total_frames", "total_tasks"), 1)
        for fault in check_info({**info, **counted, "splits": {"train": "0:1"}}):
            raise SchemaError(f"{root}: cannot be repaired: {fault}.")
        tasks = layout.read_tasks(root)

        whole: dict[int, Row] = {}
        lost = []
        for path in layout.parquet_files(root / "meta/episodes"):
            name = path.relative_to(root).as_posix()
            try:
                listed = layout.read_parquet(path).to_pylist()
            except SchemaError as error:
                lost.append(f"the episodes of {name}: {error}")
                continue
            for row in listed:
                reason = next(_faults(root, info, row, tasks, whole), None)
                if reason is None:
                    whole[row["episode_index"]] = {**row, "path": name}
                else:
                    lost.append(f"episode {row.get('episode_index')}: {reason}")
        rows = [*whole.values()]
        if not rows:
            raise SchemaError(f"{root}: no episode is whole; there is nothing to keep.")

        aside = [*unused_files(root, info, rows), *_partly_used(root, info, rows)]
        unlisted = info["total_episodes"] - len(rows) - len(lost)
        if aside and type(info["total_episodes"]) is int and unlisted > 0:
            lost.append(f"{unlisted} that {layout.INFO_PATH} counts: not in meta/episodes")
        return cls(root, info, tasks, rows, lost, aside)

    def is_sound(self) -> bool:
        """Whether counts, places and files agree."""
        if self.lost or self.aside or any(check_info(self.info)):
            return False
        frames = self.rows[-1]["dataset_to_index"]
        return (
            self.info["total_tasks"] == len(self.tasks)
            and not any(check_rows(self.root, self.info, self.rows, self.tasks))
            and stats.describes(stats.read_stats(self.root), self.info["features"], frames)
            and all(_is_in_place(self.root, row) for row in self.rows)
        )

    def plan(self) -> RepairPlan:
        """Return what ``mend`` would do."""
        moves = [f"move {name} to {SET_ASIDE}" for name in self.aside]
        count, frames = len(self.rows), sum(row["length"] for row in self.rows)
        keep = f"keep {count} whole episodes, {frames} frames, as 0 to {count - 1}"
        return RepairPlan((*moves, keep), tuple(self.lost))

    def mend(self) -> list[str]:
        """Keep the whole episodes, set the rest aside; return what was done. Raises OSError."""

        def fill(base: Path) -> None:
            write_episodes(base, self.info, self.root, self.rows, self.tasks)
            for name in self.aside:
                source, target = self.root / name, Path(name)
                number = 0
                while (self.root / SET_ASIDE / target).exists():
                    number += 1
                    target = Path(name).with_name(f"{Path(name).stem}-{number}{target.suffix}")
                transaction.step(f"set aside {name}")
                for path in [source] if source.is_file() else sorted(source.rglob("*")):
                    if path.is_file():
                        link(path, base / SET_ASIDE / target / path.relative_to(source))

        replace_dataset(self.root, fill)
        frames = sum(row["length"] for row in self.rows)
        done = [f"moved {name} to {SET_ASIDE}" for name in self.aside]
        return [*done, f"{self.root}: kept {len(self.rows)} whole episodes, {frames} frames"]


def _faults(
    root: Path, info: Mapping[str, Any], row: Row, tasks: Sequence[str], before: dict[int, Row]
) -> Iterator[str]:
    """Yield why an episode is not whole; ``before`` has the whole episodes' rows, by number."""
    if odd := unusable(row, expected_columns(info)):
        yield f"unusable values in {', '.join(odd)}"
        return
    if row["episode_index"] in before:
        yield "listed twice"
    last = next(reversed(before.values()), row)
    if layout.data_file(row) < layout.data_file(last):
        yield f"its data, {layout.data_file(row)}, precede those of an earlier episode"
    faults = list(episode_faults(root, info, row, tasks))
    yield from faults
    if faults:
        return

    try:
        own = layout.read_frames(root, row, [*layout.MANDATORY])
        if not np.array_equal(own["frame_index"].to_numpy(), np.arange(row["length"])):
            yield f"{layout.data_file(row)} does not hold its {row['length']} frames"
        named = {tasks.index(task) for task in row["tasks"]}
        if not {*pc.unique(own["task_index"]).to_pylist()} <= named:
            yield f"{layout.data_file(row)} has tasks other than {row['tasks']}"
        for key in layout.video_keys(info["features"]):
            facts = probe_video(root / layout.video_file(row, key))
            if late := len(late_frames(facts, row, key, info["fps"])):
                yield f"{layout.video_file(row, key)} lacks {late} of its frames"
    except (AcehandError, pa.ArrowException) as error:
        yield str(error)


def _is_in_place(root: Path, row: Row) -> bool:
    frames = np.arange(row["dataset_from_index"], row["dataset_to_index"])
    return np.array_equal(layout.read_frames(root, row, ["index"])["index"].to_numpy(), frames)


def _partly_used(root: Path, info: Mapping[str, Any], rows: Sequence[Row]) -> Iterator[str]:
    """Yield the files of these episodes that also hold others."""
    frames = Counter[str]()
    listed = Counter(row["path"] for row in rows)
    for row in rows:
        frames[layout.data_file(row)] += row["length"]
        for key in layout.video_keys(info["features"]):
            frames[layout.video_file(row, key)] += row["length"]

    for name, count in listed.items():
        if layout.read_parquet(root / name, ["episode_index"]).num_rows > count:
            yield name
    for name, count in frames.items():
        if name.endswith(".mp4"):
            stored = len(probe_video(root / name).times_s)
        else:
            stored = layout.read_parquet(root / name, ["episode_index"]).num_rows
        if stored > count:
            yield name
