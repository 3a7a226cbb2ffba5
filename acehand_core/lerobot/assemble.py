"""Assembling a dataset from episodes of others, without encoding videos again."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from acehand_core.errors import SchemaError
from acehand_core.lerobot import format as layout
from acehand_core.lerobot import transaction
from acehand_core.lerobot.stats import dataset_stats, feature_stats, stats_to_json
from acehand_core.recordings.video_encode import copy_parts, probe_video

#: Episodes per file of rows, when files are renumbered.
ROWS_TOGETHER = 1000

Row = Mapping[str, Any]


class Assembly:
    """Writer of a dataset whose episodes are numbered in the order in which they are added.

    Args:
        renumber: also renumber files, as is needed for several datasets; else they keep their
            names, as with lerobot's ``delete_episodes``.
        place: puts an unchanged file into the dataset; None: ``link``.
        tasks: the first tasks.
    """

    def __init__(
        self,
        target: Path,
        info: Mapping[str, Any],
        *,
        renumber: bool = False,
        place: Callable[[Path, Path], None] | None = None,
        tasks: Sequence[str] = (),
    ) -> None:
        self._target = target
        self._info = info
        self._renumber = renumber
        self._place = place or link
        self._tasks: list[str] = [*tasks]
        self._rows: list[dict[str, Any]] = []
        self._schema: dict[str, pa.Schema] = {}  # of the files of rows
        names = ["data", *(f"videos/{key}" for key in self._video_keys)]
        self._next_files = dict.fromkeys(names, (0, 0))

    @property
    def episodes(self) -> int:
        """Number of episodes so far."""
        return len(self._rows)

    @property
    def frames(self) -> int:
        """Number of frames so far."""
        return self._rows[-1]["dataset_to_index"] if self._rows else 0

    @property
    def tasks(self) -> tuple[str, ...]:
        """Tasks so far, in the order of task_index."""
        return tuple(self._tasks)

    def add(self, root: Path, rows: Sequence[Row], tasks: Sequence[str]) -> None:
        """Add episodes of a dataset; ``tasks`` are all of ``root``.

        Each row of meta/episodes has its file as "path"; they are in the order of their data.
        Raises SchemaError for a file that contradicts its rows, VideoError for one that cannot be
        cut, OSError.
        """
        theirs = sorted({task for row in rows for task in row["tasks"]}, key=tasks.index)
        self._tasks = list(dict.fromkeys([*self._tasks, *theirs]))

        added: list[dict[str, Any]] = []
        start = self.frames
        for number, row in enumerate(rows, self.episodes):
            stop = start + row["length"]
            counts = {"dataset_from_index": start, "dataset_to_index": stop}
            added.append({**row, "episode_index": number, **counts})
            start = stop
        if self._renumber:
            self._renumber_files(added)

        self._write_data(root, rows, added, tasks)
        for key in self._video_keys:
            self._write_videos(root, rows, added, key)
        for old, new in zip(rows, added, strict=True):
            if new["path"] not in self._schema:
                self._schema[new["path"]] = layout.read_parquet(root / old["path"]).schema
            self._link_extras(root, old["episode_index"], new["episode_index"])
        self._rows += added

    def finish(self) -> None:
        """Write episode rows, tasks, statistics and counts. Raises SchemaError, OSError."""
        for name, places in _grouped([row["path"] for row in self._rows]).items():
            transaction.step(f"write {name}")
            chunk, file = (int(p.split("-")[1]) for p in Path(name).with_suffix("").parts[-2:])
            own = {"meta/episodes/chunk_index": chunk, "meta/episodes/file_index": file}
            listed = [{**self._rows[place], **own} for place in places]
            self._write_table(pa.Table.from_pylist(listed, self._schema[name]), name)

        transaction.step(f"write {layout.INFO_PATH}")
        self._write_table(layout.tasks_table(self._tasks), layout.TASKS_PATH)
        stats = stats_to_json(dataset_stats(self._target, self._info["features"], self._rows))
        (self._target / layout.STATS_PATH).write_bytes(layout.to_json_bytes(stats))
        counts = {
            "total_episodes": self.episodes,
            "total_frames": self.frames,
            "total_tasks": len(self._tasks),
            "splits": {"train": f"0:{self.episodes}"},
        }
        info = layout.to_json_bytes({**self._info, **counts})
        (self._target / layout.INFO_PATH).write_bytes(info)

    @property
    def _video_keys(self) -> list[str]:
        return layout.video_keys(self._info["features"])

    def _renumber_files(self, added: Sequence[dict[str, Any]]) -> None:
        """Number the files of these rows after the existing ones."""
        size = self._info["chunks_size"]
        for name, following in self._next_files.items():
            chunk, file = f"{name}/chunk_index", f"{name}/file_index"
            for places in _grouped([f"{row[chunk]} {row[file]}" for row in added]).values():
                for place in places:
                    added[place][chunk], added[place][file] = following
                following = layout.next_file([following], size)
            self._next_files[name] = following

        for row in added:
            number = divmod(row["episode_index"] // ROWS_TOGETHER, size)
            row["path"] = layout.EPISODES_PATH.format(chunk_index=number[0], file_index=number[1])

    def _write_data(
        self, root: Path, rows: Sequence[Row], added: Sequence[dict[str, Any]], tasks: Sequence[str]
    ) -> None:
        """Write the data files; put statistics of changed columns into ``added``."""
        for name, places in _grouped([layout.data_file(row) for row in rows]).items():
            target = layout.data_file(added[places[0]])
            transaction.step(f"write {target}")
            table = layout.read_parquet(root / name)
            parts = []
            for old, new in ((rows[place], added[place]) for place in places):
                number = old["episode_index"]
                part = table.filter(pc.equal(table["episode_index"], number))
                if len(part) != new["length"]:
                    raise SchemaError(
                        f"{root / name}: {len(part)} frames of episode {number}, "
                        f"meta/episodes has {new['length']}; run `acehand dataset check` with "
                        "`repair`."
                    )
                task_of = {tasks.index(task): self._tasks.index(task) for task in old["tasks"]}
                if strange := {*pc.unique(part["task_index"]).to_pylist()} - {*task_of}:
                    raise SchemaError(
                        f"{root / name}: task_index {strange.pop()} is not one of the tasks of "
                        f"episode {number}, {old['tasks']}."
                    )
                parts.append(_renumbered(part, new, task_of))

            written = pa.concat_tables(parts)
            if written.equals(table):
                self._place(root / name, self._target / target)
            else:
                self._write_table(written, target)

    def _write_videos(
        self, root: Path, rows: Sequence[Row], added: Sequence[dict[str, Any]], key: str
    ) -> None:
        """Link the videos, or cut those shared with other episodes; update times in ``added``."""
        begin, end = f"videos/{key}/from_timestamp", f"videos/{key}/to_timestamp"
        fps = self._info["fps"]
        for name, places in _grouped([layout.video_file(row, key) for row in rows]).items():
            target = layout.video_file(added[places[0]], key)
            transaction.step(f"write {target}")
            own = sorted((added[place] for place in places), key=lambda row: row[begin])
            if len(probe_video(root / name).times_s) == sum(row["length"] for row in own):
                self._place(root / name, self._target / target)
                continue
            (self._target / target).parent.mkdir(parents=True, exist_ok=True)
            parts = [(row[begin], row["length"]) for row in own]
            copy_parts(root / name, parts, self._target / target, fps)
            frames = 0
            for row in own:
                row[begin], row[end] = frames / fps, (frames + row["length"]) / fps
                frames += row["length"]

    def _link_extras(self, root: Path, old: int, new: int) -> None:
        """Link our files of an episode; write its number into its report."""
        before, after = (layout.episode_folder(number) for number in (old, new))
        transaction.step(f"write {after}")
        for path in sorted((root / before).rglob("*")):
            place = self._target / after / path.relative_to(root / before)
            if path.name == layout.REPORT and old != new:
                report = {**layout.read_json(path), "episode_index": new}
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(json.dumps(report, indent=2) + "\n", "utf-8")
            elif path.is_file():
                self._place(path, place)

    def _write_table(self, table: pa.Table, name: str) -> None:
        (self._target / name).parent.mkdir(parents=True, exist_ok=True)
        layout.write_parquet(table, self._target / name)


def _renumbered(part: pa.Table, row: dict[str, Any], task_of: Mapping[int, int]) -> pa.Table:
    """Return an episode's frames with the indices of its new row; put their statistics into it."""
    counted = {
        "episode_index": np.full(len(part), row["episode_index"]),
        "index": np.arange(row["dataset_from_index"], row["dataset_to_index"]),
        "task_index": np.array([task_of[i] for i in part["task_index"].to_pylist()]),
    }
    for key, values in counted.items():
        field = part.schema.field(key)
        column = pa.array(values, field.type)
        part = part.set_column(part.schema.get_field_index(key), field, column)
        stats = feature_stats(values)
        row |= {f"stats/{key}/{stat}": value.tolist() for stat, value in stats.items()}
    return part


def write_episodes(
    target: Path, info: Mapping[str, Any], root: Path, rows: Sequence[Row], tasks: Sequence[str]
) -> None:
    """Write episodes of the dataset ``root`` as a dataset. See ``Assembly.add``."""
    assembly = Assembly(target, info)
    assembly.add(root, rows, tasks)
    assembly.finish()


def link(path: Path, target: Path, hard: bool = True) -> None:
    """Hard-link a file, or copy it where that is not possible or wanted. Raises OSError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if hard and not path.is_symlink():  # a relative one would break
        with contextlib.suppress(OSError):  # no hard links there, or another user's file
            target.hardlink_to(path)
            return
    shutil.copy2(path, target)


def _grouped(names: Sequence[str]) -> dict[str, list[int]]:
    """Return the positions of each name in a list."""
    places: dict[str, list[int]] = defaultdict(list)
    for place, name in enumerate(names):
        places[name].append(place)
    return places
