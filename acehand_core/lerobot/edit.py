"""Edit a LeRobot v3 dataset: episodes go, those that stay are numbered anew; several become one.

The edited dataset is built beside the old one, with hard links to whatever stays as it is, and
takes its place in one step (``transaction.publish``): a reader sees the old dataset or the new one,
and what a killed process leaves is removed or restored by ``repair.repair``. Files keep their
numbers, unused tasks go, as with lerobot's own ``delete_episodes``.
"""

from __future__ import annotations

import contextlib
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
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
from acehand_core.lerobot.transaction import STAGING, built_beside, clean_siblings, recover
from acehand_core.recordings.lerobot_video import is_dataset
from acehand_core.types import Progress, no_progress

#: Folder of a dataset for what is no longer part of it.
SET_ASIDE = ".unreferenced"
#: In a dataset of removed episodes: which they were, and why.
REMOVED = "removed.json"

#: info.json, the rows of meta/episodes and the tasks of a dataset.
Content = tuple[dict[str, Any], list[Row], list[str]]


@dataclass(frozen=True, slots=True)
class Removal:
    """What ``remove_episodes`` did.

    ``removed`` has the number that each episode had, its frames and tasks, and the rules that it
    broke. ``set_aside`` is the dataset that they are now, relative to the one that they were
    removed from; None: deleted.
    """

    removed: tuple[dict[str, Any], ...]
    episodes: int
    frames: int
    set_aside: str | None

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``acehand dataset filter --json`` prints."""
        return asdict(self)


def remove_episodes(
    root: Path,
    episodes: Sequence[int] | Mapping[int, Sequence[str]],
    *,
    delete: bool = False,
    dry_run: bool = False,
) -> Removal:
    """Remove episodes by number, of a mapping with the reasons, and number the later ones anew.

    The removed ones are kept as a dataset of their own inside ``.unreferenced``, unless ``delete``.
    ``dry_run``: say what would be removed, and change nothing.

    Raises:
        InputError: there is no such dataset or episode, or none would be left.
        SchemaError: the dataset needs the repair first. VideoError: a video of several episodes
            cannot be cut. OutputError: it cannot be written or is in use. Nothing has changed.
    """
    root = root.resolve()
    with output_errors(root), opened(root) as content:
        there = {row["episode_index"] for row in content[1]}
        if unknown := sorted(set(episodes) - there):
            raise InputError(f"{root}: no episode {unknown[0]}; it has 0 to {len(there) - 1}.")
        reasons = episodes if isinstance(episodes, Mapping) else dict.fromkeys(episodes, ())
        return _remove(root, content, reasons, delete, dry_run)


def filter_episodes(
    root: Path,
    rules: Sequence[Rule],
    *,
    delete: bool = False,
    dry_run: bool = False,
) -> Removal:
    """Remove the episodes that break rules; ``removed`` has the reasons of each.

    Arguments and errors as of ``remove_episodes``.

    Args:
        dry_run: say what would be removed, and change nothing.

    Raises:
        InputError: also where no episode has an entry that a rule names.
    """
    root = root.resolve()
    with output_errors(root), opened(root) as content:
        info, rows, _ = content
        broken = broken_rules(root, info, rows, rules)
        return _remove(root, content, broken, delete, dry_run or not broken)


def _remove(
    root: Path,
    content: Content,
    removed: Mapping[int, Sequence[str]],
    delete: bool,
    dry_run: bool,
) -> Removal:
    """Remove episodes, by number with the reasons of each; the caller holds the lock."""
    info, rows, tasks = content
    kept = [row for row in rows if row["episode_index"] not in removed]
    gone = [row for row in rows if row["episode_index"] in removed]
    said, frames = _said(rows, removed), sum(row["length"] for row in kept)
    if dry_run:
        return Removal(said, len(kept), frames, None)
    if not kept:
        raise InputError(f"{root}: no episode would be left; delete the folder instead.")
    place = None if delete else free_name(root / SET_ASIDE / "removed").relative_to(root)

    def fill(base: Path) -> None:
        write_episodes(base, info, root, kept, tasks)
        if place is not None:
            write_episodes(base / place, info, root, gone, tasks)
            (base / place / REMOVED).write_bytes(layout.to_json_bytes({"removed": said}))

    replace_dataset(root, fill)
    return Removal(said, len(kept), frames, None if place is None else place.as_posix())


def _said(rows: Sequence[Row], removed: Mapping[int, Sequence[str]]) -> tuple[dict[str, Any], ...]:
    return tuple(
        {"episode": row["episode_index"], "frames": row["length"], "tasks": row["tasks"],
         "reasons": list(removed[row["episode_index"]])}
        for row in rows if row["episode_index"] in removed
    )  # fmt: skip


@contextlib.contextmanager
def opened(root: Path) -> Iterator[Content]:
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
            raise SchemaError(f"{root}: {fault}; run acehand dataset check --repair first.")
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


def replace_dataset(root: Path, fill: Callable[[Path], None]) -> None:
    """Build a dataset beside ``root`` and let it take its place; on failure nothing has changed.

    ``fill`` writes the episodes to a folder. What is neither theirs nor in their metadata comes
    along as it is. The caller holds the lock of ``root``. Raises OSError.
    """
    with built_beside(root) as base:
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
    """Return a name that nothing has: with the first free number behind it."""
    number = 0
    while (numbered := path.with_name(f"{path.name}-{number:03d}")).exists():
        number += 1
    return numbered


@dataclass(frozen=True, slots=True)
class Merger:
    """What ``merge_datasets`` made: where the episodes of each source are now, and how many."""

    sources: tuple[dict[str, Any], ...]
    episodes: int
    frames: int
    tasks: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``acehand dataset merge --json`` prints."""
        return asdict(self)


def merge_datasets(
    sources: Sequence[Path],
    output: Path,
    *,
    hard_links: bool = False,
    overwrite: bool = False,
    progress: Progress = no_progress,
) -> Merger:
    """Make one dataset of the episodes of several, in the order given.

    Its bytes depend on the sources and their order alone. What lies in a source beside its episodes
    (its README.md, what was set aside) is left there.

    Args:
        hard_links: videos and files beside episodes become hard links, where the file system has
            them, in place of copies: who changes one inside a source then changes it in both.
        overwrite: replace a dataset at ``output``, when the new one is complete.

    Raises:
        InputError: there is no source, one is none or comes twice, or they do not fit together
            (each difference is named). SchemaError: one needs the repair first.
        OutputError: ``output`` exists or cannot be written, or a source is in use.
    """
    if not sources:
        raise InputError("There is nothing to merge; name the datasets.")
    roots, output = [source.resolve() for source in sources], output.absolute()
    if twice := [root for root, count in Counter(roots).items() if count > 1]:
        raise InputError(f"{twice[0]} is named twice; its episodes would be in there twice.")
    place = link if hard_links else _copied
    with output_errors(output):
        if overwrite and is_dataset(output):
            DirectoryLock(output).release()  # refused while somebody writes to it
        elif output.exists():
            raise OutputError(f"{output} exists; choose a folder that does not.")
        output.parent.mkdir(parents=True, exist_ok=True)
        clean_siblings(output)
        with built_beside(output) as base:
            return _merge(roots, base, place, progress)


def _merge(
    roots: Sequence[Path],
    base: Path,
    place: Callable[[Path, Path], None],
    progress: Progress,
) -> Merger:
    """Write the merged dataset to a folder."""
    assembly: Assembly | None = None
    shared: dict[str, Any] = {}
    said = []
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
            said.append({"dataset": str(root), "first": first, "episodes": len(rows)})

    assert assembly is not None
    assembly.finish()
    progress("merge", len(roots), len(roots))
    return Merger(tuple(said), assembly.episodes, assembly.frames, assembly.tasks)


def _copied(path: Path, target: Path) -> None:
    """Copy a file to a folder that may not be there yet. Raises OSError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(path, target)
