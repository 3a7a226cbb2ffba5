"""Several LeRobot v3 datasets as one; what they are made of stays as it is."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from acehand_core.atomic import DirectoryLock, output_errors
from acehand_core.errors import InputError, OutputError
from acehand_core.lerobot.assemble import Assembly, link
from acehand_core.lerobot.dataset import dataset_differences
from acehand_core.lerobot.edit import opened
from acehand_core.lerobot.transaction import built_beside, clean_siblings
from acehand_core.recordings.lerobot_video import is_dataset
from acehand_core.types import Progress, no_progress


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
