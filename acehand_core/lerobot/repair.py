"""Tidy up after a killed writer, and save what a broken LeRobot v3 dataset still holds."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from acehand_core.atomic import DirectoryLock, abandoned, output_errors
from acehand_core.errors import AcehandError, InputError, SchemaError
from acehand_core.lerobot import format as layout
from acehand_core.lerobot.check import check_info, expected_columns, row_faults, unusable
from acehand_core.lerobot.check_files import late_frames
from acehand_core.lerobot.stats import (
    are_provisional,
    dataset_stats,
    describes,
    read_stats,
    stats_to_json,
)
from acehand_core.lerobot.transaction import Transaction, recover
from acehand_core.recordings.lerobot_video import is_dataset
from acehand_core.recordings.video_encode import probe_video

SET_ASIDE = ".unreferenced"


def clean_siblings(root: Path) -> list[str]:
    """Remove or restore what killed writers left beside ``root``, and say what was done.

    Folders that a running process still holds are left alone. Raises OSError.
    """
    done = []
    for kind in ("partial", "replaced"):
        for path in abandoned(root, kind):
            if kind == "replaced" and not root.exists():
                path.rename(root)
                done.append(f"{root}: restored from {path.name}")
            else:
                shutil.rmtree(path)
                done.append(f"removed {path}")
    return done


def repair(root: Path) -> list[str]:
    """Bring a dataset back to its longest run of whole episodes; return what was done.

    Finishes or drops an interrupted addition. Then, if the counts and the files disagree (a
    recorder was killed, files were lost), keeps the whole episodes from the first on, moves every
    file that no kept episode uses into ``.unreferenced``, and rewrites counts and statistics.
    Quantiles that a stopped writer left as averages are computed. Pictures that are missing need
    the recording: ``check_dataset`` names them. An empty list means that nothing had to be done.
    Raises InputError when ``root`` is not a dataset, SchemaError when no episode is whole,
    OutputError when it cannot be written or is in use.
    """
    root = root.absolute()
    with output_errors(root):
        done = clean_siblings(root)
        if not is_dataset(root):
            raise InputError(f"{root} has no {layout.INFO_PATH}; it is not a LeRobot dataset.")
        with DirectoryLock(root):
            outcome = recover(root)
            done += [outcome] if outcome else []
            done += _keep_whole_episodes(root)
            done += _finish_statistics(root)
            for path in sorted((root / layout.EXTRAS).glob("*/.*.partial-*")):
                path.unlink()
                done.append(f"removed {path}, which was never completed")
    return done


def finish_statistics(root: Path) -> list[str]:
    """Compute the quantiles that a stopped writer left as averages; return what was done.

    Raises SchemaError for a broken dataset, OutputError when it cannot be written or is in use.
    """
    root = root.absolute()
    with output_errors(root), DirectoryLock(root):
        recover(root)
        return _finish_statistics(root)


def _finish_statistics(root: Path) -> list[str]:
    rows = layout.read_episode_rows(root)
    if not are_provisional(root, rows):
        return []
    features = layout.read_json(root / layout.INFO_PATH)["features"]
    transaction = Transaction(root)
    stats = stats_to_json(dataset_stats(root, features, rows))
    transaction.stage("stats.json").write_bytes(layout.to_json_bytes(stats))
    transaction.add("stats.json", layout.STATS_PATH)
    transaction.commit()
    return [f"{root}: computed the quantiles of {layout.STATS_PATH} over all frames"]


def _keep_whole_episodes(root: Path) -> list[str]:
    info = layout.read_json(root / layout.INFO_PATH)
    # Counts are what this mends; anything else wrong with info.json it cannot guess.
    counted = dict.fromkeys(("total_episodes", "total_frames", "total_tasks"), 1)
    for fault in check_info({**info, **counted, "splits": {"train": "0:1"}}):
        raise SchemaError(f"{root}: cannot be repaired: {fault}.")
    tasks = layout.read_tasks(root)
    kept = list(_whole_episodes(root, info, tasks))
    if not kept:
        raise SchemaError(f"{root}: not one episode is whole; there is nothing to keep.")
    done = _set_aside(root, info, kept)
    frames = kept[-1]["dataset_to_index"]
    counts = {
        "total_episodes": len(kept),
        "total_frames": frames,
        "total_tasks": len(tasks),
        "splits": {"train": f"0:{len(kept)}"},
    }
    files = {row["path"] for row in kept} | {layout.data_file(row) for row in kept}
    cut = {name: table for name in sorted(files) if (table := _cut(root / name, len(kept)))}
    is_counted = all(info.get(key) == value for key, value in counts.items())
    if is_counted and not (done or cut) and describes(read_stats(root), info["features"], frames):
        return []

    transaction = Transaction(root)
    for number, (name, table) in enumerate(cut.items()):
        layout.write_parquet(table, transaction.stage(f"cut-{number}.parquet"))
        transaction.add(f"cut-{number}.parquet", name)

    # Data files may still hold rows of dropped episodes here, but only behind the kept ones.
    stats = stats_to_json(dataset_stats(root, info["features"], kept))
    for name, target, content in (
        ("stats.json", layout.STATS_PATH, stats),
        ("info.json", layout.INFO_PATH, {**info, **counts}),
    ):
        transaction.stage(name).write_bytes(layout.to_json_bytes(content))
        transaction.add(name, target)

    transaction.commit()
    return [*done, f"{root}: kept {len(kept)} whole episodes, {frames} frames"]


def _whole_episodes(
    root: Path, info: dict[str, Any], tasks: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Yield the rows of meta/episodes from the first on, as long as everything they name exists."""
    start, expected = 0, expected_columns(info)
    for number, row in enumerate(_readable_rows(root)):
        if unusable(row, expected):
            return
        if any(row_faults(root, info, row, number, start, tasks)):
            return
        if not _files_are_whole(root, info, row):
            return
        yield row
        start = row["dataset_to_index"]


def _readable_rows(root: Path) -> Iterator[dict[str, Any]]:
    for path in layout.parquet_files(root / "meta/episodes"):
        try:
            table = layout.read_parquet(path)
        except SchemaError:
            return  # what follows would be misplaced by one file
        for row in table.to_pylist():
            yield {**row, "path": path.relative_to(root).as_posix()}


def _files_are_whole(root: Path, info: dict[str, Any], row: dict[str, Any]) -> bool:
    try:
        table = layout.read_parquet(root / layout.data_file(row), ["index", "episode_index"])
        own = table.filter(pc.equal(table["episode_index"], row["episode_index"]))["index"]
        frames = np.arange(row["dataset_from_index"], row["dataset_to_index"])
        if not np.array_equal(own.to_numpy(), frames):
            return False
        for key in layout.video_keys(info["features"]):
            facts = probe_video(root / layout.video_file(row, key))
            if len(late_frames(facts, row, key, info["fps"])):
                return False
    except (AcehandError, pa.ArrowException):
        return False
    return True


def _set_aside(root: Path, info: dict[str, Any], kept: Sequence[dict[str, Any]]) -> list[str]:
    """Move the files that no kept episode uses out of the reader's sight."""
    used = {row["path"] for row in kept} | {layout.data_file(row) for row in kept}
    for key in layout.video_keys(info["features"]):
        used |= {layout.video_file(row, key) for row in kept}
    files = [*root.glob("data/*/*.parquet"), *root.glob("meta/episodes/*/*.parquet")]
    files += root.glob("videos/*/*/*.mp4")
    done = []
    for path in sorted(files):
        name = path.relative_to(root).as_posix()
        if name not in used:
            target = root / SET_ASIDE / name
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)
            done.append(f"moved {name} to {SET_ASIDE}")

    # The files beside dropped episodes too: the next of that number must not get them.
    for path in sorted((root / layout.EXTRAS).glob("episode_*")):
        number = path.name.removeprefix("episode_")
        if not number.isdecimal() or int(number) < len(kept):
            continue
        target = root / SET_ASIDE / layout.EXTRAS / path.name
        if target.exists():
            shutil.rmtree(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)
        done.append(f"moved {layout.EXTRAS}/{path.name} to {SET_ASIDE}")
    return done


def _cut(path: Path, episodes: int) -> pa.Table | None:
    """Return the rows of the first episodes, or None when the file holds no others."""
    numbers = layout.read_parquet(path, ["episode_index"])["episode_index"]
    if not len(numbers) or pc.max(numbers).as_py() < episodes:
        return None
    table = layout.read_parquet(path)
    return table.filter(pc.less(table["episode_index"], episodes))
