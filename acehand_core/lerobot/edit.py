"""Removing episodes of a LeRobot v3 dataset, and merging datasets.

The new dataset is built next to the old one, with hard links to unchanged files, and replaces it in
one step (``transaction.publish``): a reader sees the old or the new dataset, and ``repair.repair``
cleans up after a killed process. Episodes are renumbered, files keep their numbers and unused tasks
go, as with lerobot's ``delete_episodes``.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from acehand_core.atomic import DirectoryLock, output_errors
from acehand_core.errors import InputError, OutputError, SchemaError
from acehand_core.lerobot import format as layout
from acehand_core.lerobot import transaction
from acehand_core.lerobot.assemble import Assembly, Row, link, write_episodes
from acehand_core.lerobot.check import check_info, check_rows, read_rows
from acehand_core.lerobot.dataset import dataset_differences
from acehand_core.lerobot.rules import Rule, broken_rules
from acehand_core.lerobot.transaction import STAGING, built_sibling, clean_siblings, recover
from acehand_core.recordings.lerobot_video import is_dataset
from acehand_core.types import Progress, no_progress

#: Folder of a dataset for files and episodes removed from it.
SET_ASIDE = ".unreferenced"
#: In a dataset of removed episodes: their numbers and the reasons.
REMOVED = "removed.json"

#: info.json, the rows of meta/episodes and the tasks of a dataset.
Content = tuple[dict[str, Any], list[Row], list[str]]


@dataclass(frozen=True, slots=True)
class Removal:
    """Result of ``remove_episodes``.

    Attributes:
        removed: number, frames, tasks and broken rules of each.
        episodes, frames: that stay.
        set_aside: relative path of the removed episodes' dataset; None: deleted.
    """

    removed: tuple[dict[str, Any], ...]
    episodes: int
    frames: int
    set_aside: str | None


def remove_episodes(
    root: Path,
    episodes: Sequence[int] | Mapping[int, Sequence[str]],
    *,
    delete: bool = False,
    dry_run: bool = False,
) -> Removal:
    """Remove episodes by number, in a mapping with reasons, and renumber later ones.

    Args:
        delete: do not keep the removed ones as a dataset in ``.unreferenced``.
        dry_run: return what would be removed, and change nothing.

    Raises InputError for an unknown episode or if none would be left, SchemaError for a dataset
    that needs repair, VideoError if a shared video cannot be cut, OutputError. Nothing has changed
    then.
    """
    root = root.resolve()
    with output_errors(root), opened(root) as content:
        numbers = {row["episode_index"] for row in content[1]}
        if unknown := sorted(set(episodes) - numbers):
            raise InputError(f"{root}: no episode {unknown[0]}; it has 0 to {len(numbers) - 1}.")
        reasons = episodes if isinstance(episodes, Mapping) else dict.fromkeys(episodes, ())
        return _remove(root, content, reasons, delete, dry_run)


def filter_episodes(
    root: Path, rules: Sequence[Rule], *, delete: bool = False, dry_run: bool = False
) -> Removal:
    """Remove episodes that break rules: see ``remove_episodes``.

    Raises InputError also for a rule about an entry that no episode has.
    """
    root = root.resolve()
    with output_errors(root), opened(root) as content:
        info, rows, _ = content
        broken = broken_rules(root, info, rows, rules)
        return _remove(root, content, broken, delete, dry_run or not broken)


def _remove(
    root: Path, content: Content, removed: Mapping[int, Sequence[str]], delete: bool, dry_run: bool
) -> Removal:
    """Remove episodes, by number with the reasons of each; the caller holds the lock."""
    info, rows, tasks = content
    kept = [row for row in rows if row["episode_index"] not in removed]
    gone = [row for row in rows if row["episode_index"] in removed]
    removals = tuple(
        {
            "episode": row["episode_index"],
            "frames": row["length"],
            "tasks": row["tasks"],
            "reasons": list(removed[row["episode_index"]]),
        }
        for row in gone
    )
    frames = sum(row["length"] for row in kept)
    if dry_run:
        return Removal(removals, len(kept), frames, None)
    if not kept:
        raise InputError(f"{root}: no episode would be left; delete the folder instead.")
    place = None if delete else free_name(root / SET_ASIDE / "removed").relative_to(root)

    def fill(base: Path) -> None:
        write_episodes(base, info, root, kept, tasks)
        if place is not None:
            write_episodes(base / place, info, root, gone, tasks)
            (base / place / REMOVED).write_bytes(layout.to_json_bytes({"removed": removals}))

    replace_dataset(root, fill)
    return Removal(removals, len(kept), frames, None if place is None else place.as_posix())


@contextlib.contextmanager
def opened(root: Path) -> Iterator[Content]:
    """Lock a sound dataset; yield info.json, rows and tasks. Raises as ``remove_episodes``."""
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
            raise SchemaError(f"{root}: {fault}; run `acehand dataset check` with `repair` first.")
        yield info, rows, tasks


def unused_files(root: Path, info: Mapping[str, Any], rows: Sequence[Row]) -> list[str]:
    """Return the files and folders of episodes that none of these rows uses."""
    used = {row["path"] for row in rows} | {layout.data_file(row) for row in rows}
    for key in layout.video_keys(info["features"]):
        used |= {layout.video_file(row, key) for row in rows}
    used |= {layout.episode_folder(row["episode_index"]) for row in rows}
    return [name for name in _of_episodes(root) if name not in used]


def _of_episodes(root: Path) -> list[str]:
    """Return the files and folders of episodes, relative to the dataset."""
    patterns = ("data/*/*.parquet", "meta/episodes/*/*.parquet", "videos/*/*/*.mp4")
    paths = [path for pattern in patterns for path in sorted(root.glob(pattern))]
    folders = sorted((root / layout.EXTRAS).glob("episode_*"))
    paths += [path for path in folders if path.name.removeprefix("episode_").isdecimal()]
    return [path.relative_to(root).as_posix() for path in paths]


def replace_dataset(root: Path, fill: Callable[[Path], None]) -> None:
    """Build a dataset and replace ``root``, locked by the caller, or change nothing.

    ``fill`` writes episodes and metadata to a folder; all other files are linked. Raises OSError.
    """
    with built_sibling(root, replaces=True) as base:
        fill(base)
        transaction.step("link the rest")
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


def free_name(path: Path) -> Path:
    """Return a free name: with the first unused number behind it."""
    number = 0
    while (numbered := path.with_name(f"{path.name}-{number:03d}")).exists():
        number += 1
    return numbered


@dataclass(frozen=True, slots=True)
class Merger:
    """Result of ``merge_datasets``, with the first episode and count of each source."""

    sources: tuple[dict[str, Any], ...]
    episodes: int
    frames: int
    tasks: tuple[str, ...]


def merge_datasets(
    sources: Sequence[Path],
    output: Path,
    *,
    hard_links: bool = False,
    overwrite: bool = False,
    progress: Progress = no_progress,
) -> Merger:
    """Merge the episodes of datasets into one, in the order given.

    Its bytes depend only on the sources and their order. Files outside of episodes are not copied.

    Args:
        hard_links: link unchanged files, if the file system can: changes to one then show in both.
        overwrite: replace a dataset at ``output`` when the new one is complete.

    Raises InputError for no source, one named twice, or other layouts (each difference is named),
    SchemaError for one that needs repair, OutputError.
    """
    if not sources:
        raise InputError("There is nothing to merge; name the datasets.")
    roots, output = [source.resolve() for source in sources], output.absolute()
    if twice := [root for root, count in Counter(roots).items() if count > 1]:
        raise InputError(f"{twice[0]} is given twice.")
    place = partial(link, hard=hard_links)
    with output_errors(output), contextlib.ExitStack() as locks:
        replaces = overwrite and is_dataset(output)
        if replaces and output.resolve() not in roots:  # those are locked one at a time
            locks.enter_context(DirectoryLock(output))
        elif not replaces and output.exists():
            raise OutputError(f"{output} exists; choose a folder that does not.")
        output.parent.mkdir(parents=True, exist_ok=True)
        with built_sibling(output, replaces) as base:
            assembly: Assembly | None = None
            shared: dict[str, Any] = {}
            merged = []
            for number, root in enumerate(roots):
                progress("merge", number, len(roots))
                with opened(root) as (info, rows, tasks):
                    if assembly is None:
                        shared = info
                        assembly = Assembly(base, info, renumber=True, place=place)
                    if differences := dataset_differences(info, shared):
                        raise InputError(
                            f"{root} does not fit {roots[0]}, here called the dataset: "
                            f"{'; '.join(differences)}."
                        )
                    first = assembly.episodes
                    assembly.add(root, rows, tasks)
                    merged.append({"dataset": str(root), "first": first, "episodes": len(rows)})
            assert assembly is not None
            assembly.finish()
            progress("merge", len(roots), len(roots))
    return Merger(tuple(merged), assembly.episodes, assembly.frames, assembly.tasks)
