"""Several LeRobot v3 datasets as one, and one as several; what they are made of stays as it is."""

from __future__ import annotations

import itertools
import re
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from acehand_core.atomic import DirectoryLock, output_errors
from acehand_core.errors import InputError, OutputError
from acehand_core.lerobot import format as layout
from acehand_core.lerobot.assemble import Assembly, Row, link
from acehand_core.lerobot.dataset import JOB, dataset_differences
from acehand_core.lerobot.edit import opened
from acehand_core.lerobot.format import read_report
from acehand_core.lerobot.transaction import Step, built_beside, clean_siblings
from acehand_core.recordings.lerobot_video import is_dataset
from acehand_core.types import Progress, no_progress

Made = TypeVar("Made")
#: Numbers of episodes by the name of the part that they go to.
Choose = Callable[[Sequence[Row]], dict[str, list[int]]]
#: What episodes that go together share.
By = Literal["task", "subject", "recording"]


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
    on_step: Step | None = None,
) -> Merger:
    """Make one dataset of the episodes of several, in the order given.

    Its bytes depend on the sources and their order alone. What lies in a source beside its episodes
    (its README.md, what was set aside) is left there.

    Args:
        hard_links: videos and files beside episodes become hard links, where the file system has
            them, in place of copies: who changes one inside a source then changes it in both.
        overwrite: replace a dataset at ``output``, when the new one is complete.
        on_step: for tests, called with a name before everything that touches the disk.

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
    place = link if hard_links else copy_file
    with output_errors(output):
        replaced = overwrite and is_dataset(output)
        if replaced:
            DirectoryLock(output).release()  # refused while somebody writes to it
        return new_folder(
            output,
            lambda base, step: _merge(roots, base, place, progress, step),
            on_step,
            replaced,
        )


def _merge(
    roots: Sequence[Path],
    base: Path,
    place: Callable[[Path, Path], None],
    progress: Progress,
    step: Step,
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
                assembly = Assembly(base, info, step, renumber=True, place=place)
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


@dataclass(frozen=True, slots=True)
class Part:
    """One of the datasets that ``split_dataset`` made. ``episodes``: their numbers before."""

    name: str
    episodes: tuple[int, ...]
    frames: int
    tasks: tuple[str, ...]


def split_dataset(
    root: Path,
    output: Path,
    choose: Choose,
    *,
    hard_links: bool = False,
    on_step: Step | None = None,
) -> tuple[Part, ...]:
    """Make a dataset ``output/NAME`` of each part of one, which stays as it is.

    Args:
        choose: returns, of the rows of meta/episodes, the numbers of each part's episodes by name:
            ``by_value``, ``by_shares`` or another.
        hard_links, on_step: as of ``merge_datasets``.

    Raises:
        InputError: there is no such dataset, or a part would have no episode. SchemaError: it needs
            the repair first. OutputError: ``output`` exists or cannot be written.
    """
    root, output = root.resolve(), output.absolute()
    with output_errors(output), opened(root) as (info, rows, tasks):
        chosen = choose(rows)
        if empty := [name for name, numbers in chosen.items() if not numbers]:
            raise InputError(
                f"{root}: no episode would be in {', '.join(empty)}; of {len(rows)} episodes "
                "make fewer parts, or larger ones."
            )

        def fill(base: Path, step: Step) -> tuple[Part, ...]:
            parts = []
            for name, numbers in chosen.items():
                wanted = [row for row in rows if row["episode_index"] in numbers]
                place = link if hard_links else copy_file
                assembly = Assembly(base / name, info, step, renumber=True, place=place)
                assembly.add(root, wanted, tasks)
                assembly.finish()
                kept = tuple(row["episode_index"] for row in wanted)
                parts.append(Part(name, kept, assembly.frames, assembly.tasks))
            return tuple(parts)

        return new_folder(output, fill, on_step)


def by_value(root: Path, by: By) -> Choose:
    """Return what makes a part of each task, subject or recording, named like it.

    An episode whose subject is not known goes by its recording, one whose recording is not known by
    itself. What is returned raises InputError where no subject is known at all.
    """

    def choose(rows: Sequence[Row]) -> dict[str, list[int]]:
        origins = _origins(root, rows)
        if by == "subject":
            _check_subjects(root, origins)
        parts: dict[str, list[int]] = {}
        names: dict[tuple[str, str], str] = {}
        for row, origin in zip(rows, origins, strict=True):
            key = origin.keys(by)[0]
            if key not in names:
                text = origin.input if key[0] == "recording" else key[1]
                plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60] or key[0]
                taken = [*names.values()]
                numbered = (f"{plain}-{n}" for n in itertools.count(2))
                names[key] = next(n for n in itertools.chain([plain], numbered) if n not in taken)
            parts.setdefault(names[key], []).append(row["episode_index"])
        return parts

    return choose


def by_shares(
    root: Path, shares: Mapping[str, float], seed: int, together: By | None = None
) -> Choose:
    """Return what draws episodes for parts of these shares, e.g. {"train": 0.9, "test": 0.1}.

    Episodes of one recording go to the same part, and those of one subject, where it is known: what
    a policy was trained on is not to be what it is tested on. ``together``: "recording" does not
    ask for subjects, "subject" raises InputError where none is known, "task" keeps each task's
    episodes together instead. Raises InputError where shares are not above 0 or do not sum to 1.
    """
    if min(shares.values(), default=0) <= 0 or abs(sum(shares.values()) - 1) > 1e-6:
        said = ", ".join(f"{name}={share:g}" for name, share in shares.items())
        raise InputError(f"Shares of {said} have to be above 0 and to sum to 1.")

    def draw(rows: Sequence[Row]) -> dict[str, list[int]]:
        origins = _origins(root, rows)
        if together == "subject":
            _check_subjects(root, origins)
        groups = _joined([origin.keys(together or "subject") for origin in origins])
        drawn = [[rows[place]["episode_index"] for place in group] for group in groups]
        np.random.default_rng(seed).shuffle(drawn)

        parts: dict[str, list[int]] = {name: [] for name in shares}
        for numbers in drawn:
            lacking = {name: share * len(rows) - len(parts[name]) for name, share in shares.items()}
            parts[max(lacking, key=lambda name: lacking[name])] += numbers
        return parts

    return draw


@dataclass(frozen=True, slots=True)
class _Origin:
    """What an episode shows. ``recording`` tells inputs apart by content, ``input`` names it."""

    task: str
    subject: str | None
    recording: str
    input: str

    def keys(self, by: By) -> list[tuple[str, str]]:
        """Return what it shares with the episodes that go where it goes, the first foremost."""
        if by == "task":
            return [("task", self.task)]
        recording = ("recording", self.recording)
        known = by == "subject" and self.subject is not None
        return [("subject", str(self.subject)), recording] if known else [recording]


def _origins(root: Path, rows: Sequence[Row]) -> list[_Origin]:
    """Return what each episode shows, by its report and the record in its data file."""
    origins = []
    for row in rows:
        alone = f"episode {row['episode_index']}"
        job = (layout.read_record(root, row) or {}).get(JOB, {})
        subject = read_report(root, row["episode_index"]).get("subject")
        content, name = job.get("input_sha256") or alone, job.get("input") or alone
        origins.append(_Origin(row["tasks"][0], subject, content, name))
    return origins


def _check_subjects(root: Path, origins: Sequence[_Origin]) -> None:
    if all(origin.subject is None for origin in origins):
        raise InputError(
            f"{root}: no episode has a subject; acehand-retarget --subject NAME records it. "
            "Valid without: --by task, --by recording."
        )


def _joined(keys: Sequence[Sequence[tuple[str, str]]]) -> list[list[int]]:
    """Return places in a list as groups in which each shares a key with another, in order."""
    group_of: dict[tuple[str, str], int] = {}
    groups: dict[int, list[int]] = {}
    for place, own in enumerate(keys):
        touched = sorted({group_of[key] for key in own if key in group_of})
        first = touched[0] if touched else place
        members = [p for number in touched for p in groups.pop(number)]
        groups[first] = sorted([*members, place])
        for p in groups[first] if len(touched) > 1 else [place]:
            group_of.update(dict.fromkeys(keys[p], first))
    return [groups[number] for number in sorted(groups)]


def new_folder(
    output: Path,
    fill: Callable[[Path, Step], Made],
    on_step: Step | None = None,
    overwrite: bool = False,
) -> Made:
    """Let ``fill`` write a folder that then appears as ``output``; on failure nothing is there.

    Raises OutputError where ``output`` exists, OSError.
    """
    if output.exists() and not overwrite:
        raise OutputError(f"{output} exists; choose a folder that does not.")
    step = on_step or (lambda name: None)
    output.parent.mkdir(parents=True, exist_ok=True)
    clean_siblings(output)
    with built_beside(output, step) as base:
        return fill(base, step)


def copy_file(path: Path, target: Path) -> None:
    """Copy a file to a folder that may not be there yet. Raises OSError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(path, target)
