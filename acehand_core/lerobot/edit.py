"""Edit a LeRobot v3 dataset: episodes go, those that stay are numbered anew, tasks are renamed.

The edited dataset is built beside the old one, with hard links to whatever stays as it is, and
takes its place in one step (``transaction.publish``): a reader sees the old dataset or the new one,
and what a killed process leaves is removed or restored by ``repair.repair``. Files keep their
numbers, unused tasks go, as with lerobot's own ``delete_episodes`` and ``modify_tasks``.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from acehand_core.atomic import DirectoryLock, output_errors, sync
from acehand_core.errors import InputError, SchemaError, nearest
from acehand_core.lerobot import format as layout
from acehand_core.lerobot.check import check_info, check_rows, read_rows
from acehand_core.lerobot.stats import dataset_stats, feature_stats, stats_to_json
from acehand_core.lerobot.transaction import STAGING, Step, clean_siblings, publish, recover
from acehand_core.recordings.lerobot_video import is_dataset
from acehand_core.recordings.video_encode import copy_parts, probe_video

#: Folder of a dataset for what is no longer part of it.
SET_ASIDE = ".unreferenced"

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Removal:
    """What ``remove_episodes`` did.

    ``removed`` has the number that each episode had, its frames and tasks. ``set_aside`` is the
    dataset that they are now, relative to the one that they were removed from; None: deleted.
    """

    removed: tuple[dict[str, Any], ...]
    episodes: int
    frames: int
    set_aside: str | None

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``acehand dataset remove --json`` prints."""
        return asdict(self)


def remove_episodes(
    root: Path, episodes: Sequence[int], *, delete: bool = False, on_step: Step | None = None
) -> Removal:
    """Remove episodes by number and number the later ones anew.

    The removed ones are kept as a dataset of their own inside ``.unreferenced``, unless ``delete``.
    ``on_step`` is for tests: it is called with a name before everything that touches the disk.

    Raises:
        InputError: there is no such dataset or episode, or none would be left.
        SchemaError: the dataset needs the repair first. VideoError: a video of several episodes
            cannot be cut. OutputError: it cannot be written or is in use. Nothing has changed.
    """
    root = root.resolve()
    with output_errors(root), _opened(root) as (info, rows, tasks):
        there = {row["episode_index"] for row in rows}
        if unknown := sorted(set(episodes) - there):
            raise InputError(f"{root}: no episode {unknown[0]}; it has 0 to {len(rows) - 1}.")
        kept = [row for row in rows if row["episode_index"] not in episodes]
        gone = [row for row in rows if row["episode_index"] in episodes]
        if not kept:
            raise InputError(f"{root}: no episode would be left; delete the folder instead.")

        place = None if delete else _free(root / SET_ASIDE / "removed").relative_to(root)

        def fill(base: Path, step: Step) -> None:
            Selection(root, info, kept, tasks).write(base, step)
            if place is not None:
                Selection(root, info, gone, tasks).write(base / place, step)

        replace_dataset(root, fill, on_step)

    said = [
        {"episode": r["episode_index"], "frames": r["length"], "tasks": r["tasks"]} for r in gone
    ]
    frames = sum(row["length"] for row in kept)
    return Removal(tuple(said), len(kept), frames, None if place is None else place.as_posix())


@dataclass(frozen=True, slots=True)
class TaskChange:
    """What ``change_task`` did: numbers of the episodes that changed, and all tasks there are."""

    episodes: tuple[int, ...]
    tasks: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``acehand dataset task --json`` prints."""
        return asdict(self)


def change_task(
    root: Path,
    task: str,
    episodes: Sequence[int] = (),
    *,
    old: str | None = None,
    on_step: Step | None = None,
) -> TaskChange:
    """Give episodes another task.

    Args:
        episodes: numbers of those that get it; empty: all.
        old: only where this was the task.
        on_step: as of ``remove_episodes``.

    Raises:
        InputError: the task is empty, or there is no such dataset, episode or old task.
        SchemaError: the dataset needs the repair first. OutputError: it cannot be written or is in
            use. Nothing has changed.
    """
    root = root.resolve()
    if not task.strip():
        raise InputError("The new task is empty; say in a few words what the hands do.")
    with output_errors(root), _opened(root) as (info, rows, tasks):
        if unknown := sorted(set(episodes) - {row["episode_index"] for row in rows}):
            raise InputError(f"{root}: no episode {unknown[0]}; it has 0 to {len(rows) - 1}.")
        if old is not None and old not in tasks:
            raise InputError(f"{root}: no task {old!r}; {nearest(old, tasks)}")

        def renamed(number: int, before: str) -> str:
            meant = (not episodes or number in episodes) and old in (None, before)
            return task if meant else before

        def fill(base: Path, step: Step) -> None:
            Selection(root, info, rows, tasks, renamed).write(base, step)

        changed = tuple(
            row["episode_index"]
            for row in rows
            if any(renamed(row["episode_index"], t) != t for t in row["tasks"])
        )
        if changed:
            replace_dataset(root, fill, on_step)
        return TaskChange(changed, tuple(layout.read_tasks(root)))


@contextlib.contextmanager
def _opened(root: Path) -> Iterator[tuple[dict[str, Any], list[Row], list[str]]]:
    """Yield info.json, the rows of meta/episodes and the tasks of a dataset that nobody writes to.

    Raises InputError, SchemaError, OutputError.
    """
    clean_siblings(root)
    if not is_dataset(root):
        raise InputError(f"{root} has no {layout.INFO_PATH}; it is not a LeRobot dataset.")
    with DirectoryLock(root):
        recover(root)
        info = layout.read_json(root / layout.INFO_PATH)
        tasks = layout.read_tasks(root)
        faults = [*check_info(info)]
        rows = [] if faults else read_rows(root)
        faults = faults or [*check_rows(root, info, rows, tasks)]
        unused = [] if faults else unused_files(root, info, rows)
        if faults or unused:
            fault = faults[0] if faults else f"{unused[0]} belongs to no episode"
            raise SchemaError(f"{root}: {fault}; run acehand dataset repair first.")
        yield info, rows, tasks


def unused_files(root: Path, info: Mapping[str, Any], rows: Sequence[Row]) -> list[str]:
    """Return the reader's files, and the folders beside episodes, that none of these rows uses."""
    used = {row["path"] for row in rows} | {layout.data_file(row) for row in rows}
    for key in layout.video_keys(info["features"]):
        used |= {layout.video_file(row, key) for row in rows}
    used |= {layout.episode_folder(row["episode_index"]) for row in rows}
    return [name for name in _of_episodes(root) if name not in used]


def _of_episodes(root: Path) -> list[str]:
    """Return the files that hold episodes, and the folders beside them, relative to the dataset."""
    patterns = ("data/*/*.parquet", "meta/episodes/*/*.parquet", "videos/*/*/*.mp4")
    paths = [path for pattern in patterns for path in sorted(root.glob(pattern))]
    folders = sorted((root / layout.EXTRAS).glob("episode_*"))
    paths += [path for path in folders if path.name.removeprefix("episode_").isdecimal()]
    return [path.relative_to(root).as_posix() for path in paths]


def replace_dataset(
    root: Path, fill: Callable[[Path, Step], None], on_step: Step | None = None
) -> None:
    """Build a dataset beside ``root`` and let it take its place; on failure nothing has changed.

    ``fill`` writes the episodes to a folder. What is neither theirs nor in their metadata comes
    along as it is. The caller holds the lock of ``root``. Raises OSError.
    """
    step = on_step or (lambda name: None)
    base = root.with_name(f".{root.name}.partial-{os.getpid()}")
    step("begin")
    base.mkdir()
    with DirectoryLock(base):
        try:
            fill(base, step)
            step("link the rest")
            theirs = _of_episodes(root)
            theirs += [layout.INFO_PATH, layout.STATS_PATH, layout.TASKS_PATH, STAGING]
            for path in sorted(root.rglob("*")):
                name = path.relative_to(root).as_posix()
                if f"{name}/".startswith(tuple(f"{t}/" for t in theirs)) or (base / name).exists():
                    continue
                (base / name).parent.mkdir(parents=True, exist_ok=True)
                if path.is_symlink():
                    (base / name).symlink_to(path.readlink())
                elif path.is_file():
                    link(path, base / name)
            for path in base.rglob("*"):
                sync(path)
            publish(base, root, step)
        except BaseException:
            shutil.rmtree(base, ignore_errors=True)
            raise


def link(path: Path, target: Path) -> None:
    """Let a file appear in another folder, too; copied where that cannot be. Raises OSError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        if not path.is_symlink():  # a relative one would lead elsewhere from there
            target.hardlink_to(path)
            return
    except OSError:  # a file system without hard links, or somebody else's file
        pass
    shutil.copy2(path, target)


def _free(path: Path) -> Path:
    """Return a name that nothing has: with the first free number behind it."""
    number = 0
    while (numbered := path.with_name(f"{path.name}-{number:03d}")).exists():
        number += 1
    return numbered


@dataclass(frozen=True, slots=True)
class Selection:
    """Episodes of a dataset that become a dataset, numbered from 0 on.

    ``rows`` are theirs of meta/episodes in the order of their data, each with its file as "path";
    ``tasks`` are all of ``root``. ``renamed`` gives the task that an episode (by its number in
    ``root``) has in place of another.
    """

    root: Path
    info: Mapping[str, Any]
    rows: Sequence[Row]
    tasks: Sequence[str]
    renamed: Callable[[int, str], str] = lambda number, task: task

    def write(self, target: Path, step: Step) -> None:
        """Write the dataset to a folder; what stays as it is becomes a hard link.

        Raises SchemaError for a file that does not hold what its rows say, VideoError for one that
        cannot be cut, OSError.
        """
        pairs = [(row["episode_index"], task) for row in self.rows for task in row["tasks"]]
        pairs.sort(key=lambda pair: self.tasks.index(pair[1]))
        tasks = list(dict.fromkeys(self.renamed(*pair) for pair in pairs))
        rows: list[dict[str, Any]] = []
        start = 0
        for number, row in enumerate(self.rows):
            named = [self.renamed(row["episode_index"], task) for task in row["tasks"]]
            changes = {"episode_index": number, "tasks": list(dict.fromkeys(named))}
            stop = start + row["length"]
            rows.append({**row, **changes, "dataset_from_index": start, "dataset_to_index": stop})
            start = stop

        self._write_data(target, rows, tasks, step)
        for key in layout.video_keys(self.info["features"]):
            self._write_videos(target, rows, key, step)
        self._write_rows(target, rows, step)
        for old, new in zip(self.rows, rows, strict=True):
            self._link_extras(target, old["episode_index"], new["episode_index"], step)

        step(f"write {layout.INFO_PATH}")
        (target / "meta").mkdir(exist_ok=True)
        layout.write_parquet(layout.tasks_table(tasks), target / layout.TASKS_PATH)
        stats = stats_to_json(dataset_stats(target, self.info["features"], rows))
        (target / layout.STATS_PATH).write_bytes(layout.to_json_bytes(stats))
        counts = {
            "total_episodes": len(rows),
            "total_frames": rows[-1]["dataset_to_index"],
            "total_tasks": len(tasks),
            "splits": {"train": f"0:{len(rows)}"},
        }
        (target / layout.INFO_PATH).write_bytes(layout.to_json_bytes({**self.info, **counts}))

    def _write_data(
        self, target: Path, rows: Sequence[dict[str, Any]], tasks: Sequence[str], step: Step
    ) -> None:
        """Write the data files; put the statistics of what changes in them into ``rows``."""
        for name, places in _grouped([layout.data_file(row) for row in rows]).items():
            step(f"write {name}")
            table = layout.read_parquet(self.root / name)
            parts = []
            for old, new in ((self.rows[place], rows[place]) for place in places):
                number = old["episode_index"]
                part = table.filter(pc.equal(table["episode_index"], number))
                if len(part) != new["length"]:
                    raise SchemaError(
                        f"{self.root / name}: {len(part)} frames of episode {number}, "
                        f"meta/episodes says {new['length']}; run acehand dataset repair first."
                    )
                task_of = {
                    self.tasks.index(task): tasks.index(self.renamed(number, task))
                    for task in old["tasks"]
                }
                if strange := {*pc.unique(part["task_index"]).to_pylist()} - {*task_of}:
                    raise SchemaError(
                        f"{self.root / name}: task_index {strange.pop()} is none of the tasks "
                        f"of episode {number}, {old['tasks']}."
                    )
                counted = {
                    "episode_index": np.full(len(part), new["episode_index"]),
                    "index": np.arange(new["dataset_from_index"], new["dataset_to_index"]),
                    "task_index": np.array([task_of[i] for i in part["task_index"].to_pylist()]),
                }
                for key, values in counted.items():
                    field = part.schema.field(key)
                    column = pa.array(values, field.type)
                    part = part.set_column(part.schema.get_field_index(key), field, column)
                    stats = feature_stats(values)
                    new |= {f"stats/{key}/{stat}": value.tolist() for stat, value in stats.items()}
                parts.append(part)

            written = pa.concat_tables(parts)
            if written.equals(table):
                link(self.root / name, target / name)
            else:
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                layout.write_parquet(written, target / name)

    def _write_videos(
        self, target: Path, rows: Sequence[dict[str, Any]], key: str, step: Step
    ) -> None:
        """Link the videos, or cut those that other episodes share; put new times into ``rows``."""
        begin, end = f"videos/{key}/from_timestamp", f"videos/{key}/to_timestamp"
        fps = self.info["fps"]
        for name, places in _grouped([layout.video_file(row, key) for row in rows]).items():
            step(f"write {name}")
            own = sorted((rows[place] for place in places), key=lambda row: row[begin])
            if len(probe_video(self.root / name).times_s) == sum(row["length"] for row in own):
                link(self.root / name, target / name)
                continue
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            parts = [(row[begin], row["length"]) for row in own]
            copy_parts(self.root / name, parts, target / name, fps)
            frames = 0
            for row in own:
                row[begin], row[end] = frames / fps, (frames + row["length"]) / fps
                frames += row["length"]

    def _write_rows(self, target: Path, rows: Sequence[Row], step: Step) -> None:
        for name, places in _grouped([row["path"] for row in rows]).items():
            step(f"write {name}")
            schema = layout.read_parquet(self.root / name).schema
            chunk, file = (int(p.split("-")[1]) for p in Path(name).with_suffix("").parts[-2:])
            own = {"meta/episodes/chunk_index": chunk, "meta/episodes/file_index": file}
            table = pa.Table.from_pylist([{**rows[place], **own} for place in places], schema)
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            layout.write_parquet(table, target / name)

    def _link_extras(self, target: Path, old: int, new: int, step: Step) -> None:
        """Link the files beside an episode; its report names its number."""
        before, after = (layout.episode_folder(number) for number in (old, new))
        step(f"write {after}")
        for path in sorted((self.root / before).rglob("*")):
            place = target / after / path.relative_to(self.root / before)
            if path.name == layout.REPORT and old != new:
                report = {**layout.read_json(path), "episode_index": new}
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(json.dumps(report, indent=2) + "\n", "utf-8")
            elif path.is_file():
                link(path, place)


def _grouped(names: Sequence[str]) -> dict[str, list[int]]:
    """Return where each name is in a list, by name."""
    places: dict[str, list[int]] = defaultdict(list)
    for place, name in enumerate(names):
        places[name].append(place)
    return places
