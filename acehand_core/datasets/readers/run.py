"""A whole dataset into stores of clips, one per split: parallel, resumable, counted.

The datasets that can be read, by name.

Recordings that belong to another split than the one whose store holds their clip.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from acehand_core.datasets.clips import schema
from acehand_core.datasets.clips.schema import CONVERTED_BY, ClipInfo, StoreInfo, clip_id
from acehand_core.datasets.clips.store import ClipStore, ClipWriter, changed_settings
from acehand_core.datasets.readers.arctic import ArcticReader
from acehand_core.datasets.readers.convert import check_mano, convert_item
from acehand_core.datasets.readers.egocentric import EgocentricReader
from acehand_core.datasets.readers.freihand import FreiHandReader
from acehand_core.datasets.readers.h2o import H2OReader
from acehand_core.datasets.readers.hoi4d import Hoi4dReader
from acehand_core.datasets.readers.hot3d_clips import Hot3dClipsReader
from acehand_core.datasets.readers.hot3d_recordings import Hot3dReader
from acehand_core.datasets.readers.interhand import ReInterHandReader
from acehand_core.datasets.readers.oakink2 import OakInk2Reader
from acehand_core.datasets.readers.pictures import ClipOptions
from acehand_core.datasets.readers.protocol import SPLITS, Item, Reader, ReadOptions, Split
from acehand_core.datasets.readers.rhd import RhdReader
from acehand_core.datasets.readers.splits import compare, read_split_file
from acehand_core.errors import AcehandError, InputError, Interrupted, OutputError, nearest

READERS: dict[str, Reader] = {
    reader.name: reader
    for reader in (
        ArcticReader(),
        Hot3dReader(),
        Hot3dClipsReader(),
        H2OReader(),
        OakInk2Reader(),
        ReInterHandReader(),
        FreiHandReader(),
        RhdReader(),
        Hoi4dReader(),
        EgocentricReader(),
        EgocentricReader("holoassist"),
        EgocentricReader("xperience10m"),
    )
}


def find_reader(name: str) -> Reader:
    """Return the reader of a dataset. Raises InputError with the valid names."""
    if name not in READERS:
        raise InputError(f"No dataset {name!r}; {nearest(name, READERS)}")
    return READERS[name]


def leave_other_splits(output: Path, dataset: str, items: Sequence[Item]) -> Counter:
    """Remove from each split's store the clips of recordings that belong to another split.

    A split file, or another rule than at the last conversion, moves recordings. Were their old
    clips left, a recording could be trained on and tested on.

    Args:
        output: the folder of the stores. items: all of the dataset, with their splits.

    Returns: how many clips, by (old split, new split).

    Raises: SchemaError for a store that cannot be read; OutputError.
    """
    wanted = {clip_id(item.name): item.split for item in items}
    moved: Counter = Counter()
    for split in SPLITS:
        if not (output / split / "store.json").is_file():
            continue
        store = ClipStore(output / split)
        if store.info.dataset != dataset:
            continue
        gone = [name for name in store.ids() if wanted.get(name, split) != split]
        if gone:
            ClipWriter(store.root, store.info).remove(gone)
            moved.update((split, wanted[name]) for name in gone)
    return moved


#: Called with the stage, the number done and the number of all.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What to convert.

    Attributes:
        splits: which; empty for all.
        split_file: JSON of split to names that replaces the reader's own splits.
        jobs: processes; more than one needs ``read.open_frames`` to be picklable.
    """

    root: Path
    output: Path
    splits: tuple[Split, ...] = ()
    split_file: Path | None = None
    jobs: int = 1
    clips: ClipOptions = field(default_factory=ClipOptions)
    read: ReadOptions = field(default_factory=ReadOptions)


@dataclass(slots=True)
class RunReport:
    """What came out: per split clips and frames; findings with how many clips share them.

    Of the frames ``unlabelled`` have no label of any hand; ``left_out`` frames of the dataset have
    no picture where others have one and so are in no clip. ``moved`` counts, by (old split, new
    split), clips that were taken out of the old split's store.
    """

    dataset: str
    output: Path
    clips: Counter = field(default_factory=Counter)
    frames: Counter = field(default_factory=Counter)
    unlabelled: Counter = field(default_factory=Counter)
    left_out: Counter = field(default_factory=Counter)
    kept: int = 0
    moved: Counter = field(default_factory=Counter)
    findings: Counter = field(default_factory=Counter)
    errors: list[dict[str, str]] = field(default_factory=list)
    comparison: list[dict[str, Any]] = field(default_factory=list)

    def add(self, split: str, info: ClipInfo, kept: bool) -> None:
        """Count one clip."""
        self.clips[split] += 1
        self.frames[split] += info.frames
        self.unlabelled[split] += info.source["unlabelled_frames"]
        self.left_out[split] += info.source["left_out_frames"]
        self.kept += kept
        self.findings.update(info.source.get("findings", ()))

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``--json`` prints and ``conversion.json`` holds."""
        return {
            "dataset": self.dataset,
            "output": str(self.output),
            "splits": {
                split: {
                    "clips": self.clips[split],
                    "frames": self.frames[split],
                    "unlabelled_frames": self.unlabelled[split],
                    "left_out_frames": self.left_out[split],
                }
                for split in SPLITS
                if self.clips[split]
            },
            "already_there": self.kept,
            "moved": [
                {"from": old, "to": new, "clips": count}
                for (old, new), count in sorted(self.moved.items())
            ],
            "paper": self.comparison,
            "findings": [
                {"text": text, "clips": count} for text, count in self.findings.most_common(200)
            ],
            "errors": self.errors,
        }

    def to_store(self, root: Path) -> dict[str, Any]:
        """Return what stays with the clips: the same, without the folders where things lie here."""
        below = f"{root}{os.sep}"
        errors = [{**e, "message": e["message"].replace(below, "")} for e in self.errors]
        return {**self.to_json(), "output": self.output.name, "errors": errors}


def run(name: str, options: RunOptions, progress: Progress) -> RunReport:
    """Convert a dataset; what is there already and unchanged is kept.

    A recording that cannot be read, whatever the reason, is reported and the others go on. A clip
    of a recording that now belongs to another split is removed from its old store before anything
    is converted, so that no recording is ever in two splits.

    Raises:
        InputError: unknown dataset, view or split; ``root`` is not that dataset.
        OutputError: the output cannot be written. MissingDependencyError: a package is needed, as
            it is for every recording. Interrupted: with the report of what is done.
    """
    reader = find_reader(name)
    view = options.read.view
    if view is not None and view not in reader.views:
        raise InputError(f"{reader.title} has no view {view!r}; {nearest(view, reader.views)}")
    if options.clips.images == "none":
        options = replace(options, read=replace(options.read, pictures=False))
    check_mano(options.clips.mano)
    every = list_items(reader, options)
    items = _wanted(every, options)
    report = RunReport(name, options.output)
    for split in sorted({item.split for item in items}):
        _say_changed(split, _store_info(reader, split, options), options, progress)
    try:
        report.moved = leave_other_splits(options.output, name, every)
        for done, (item, outcome) in enumerate(_outcomes(reader, items, options), 1):
            if isinstance(outcome, Exception):
                report.errors.append({"source": item.name, "message": str(outcome)})
            else:
                report.add(item.split, *outcome)
            progress(f"convert {name}", done, len(items))
    except KeyboardInterrupt as stop:
        raise Interrupted(report) from stop
    finally:
        for split in sorted({item.split for item in items if report.clips[item.split]}):
            _writer(reader, split, options).write_index()
    report.comparison = compare(name, report.clips, report.frames, items)
    schema.write_json(options.output / f"conversion-{name}.json", report.to_store(options.root))
    return report


def list_items(reader: Reader, options: RunOptions) -> list[Item]:
    """Return every recording with the split it belongs to. Raises InputError."""
    items = list(reader.items(options.root, options.read))
    twice = [name for name, count in Counter(item.name for item in items).items() if count > 1]
    if twice:
        raise InputError(f"{options.root}: two recordings are named {twice[0]!r}.")
    if options.split_file is not None:
        splits = read_split_file(options.split_file, items)
        items = [replace(i, split=splits[i.name]) for i in items if i.name in splits]
    return items


def _wanted(items: Sequence[Item], options: RunOptions) -> list[Item]:
    """Return the recordings that are to be converted. Raises InputError where there is none."""
    wanted = [item for item in items if not options.splits or item.split in options.splits]
    if not wanted:
        there = Counter(item.split for item in items)
        raise InputError(
            f"{options.root}: no recording in {', '.join(options.splits)}; there are "
            + (", ".join(f"{count} in {split}" for split, count in there.items()) or "none")
            + "."
        )
    return wanted


def _outcomes(
    reader: Reader, items: Sequence[Item], options: RunOptions
) -> Iterator[tuple[Item, Any]]:
    """Yield each item with (description, whether it was there), or with what went wrong."""
    if options.jobs <= 1 or len(items) == 1:
        for item in items:
            yield item, _convert(reader, item, options)
        return
    pool = ProcessPoolExecutor(
        options.jobs, mp_context=multiprocessing.get_context("spawn"), initializer=_ignore_ctrl_c
    )
    try:
        waiting: dict[Future, Item] = {}
        rest = iter(items)
        while True:
            # Few at a time: an image dataset has more items than futures should exist.
            for item in rest:
                waiting[pool.submit(_convert, reader, item, options)] = item
                if len(waiting) >= 4 * options.jobs:
                    break
            if not waiting:
                return
            done, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                outcome = future.result()  # first: who ended a process is among all that wait
                yield waiting.pop(future), outcome
    except BrokenProcessPool as error:
        names = ", ".join(item.name for item in waiting.values())
        raise OutputError(
            f"{options.output}: a process that converts was ended from outside (memory may be "
            f"short; fewer --jobs need less) while it was at one of {names}. Converted clips stay, "
            "and the same command goes on."
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _convert(reader: Reader, item: Item, options: RunOptions) -> Any:
    # By name: a reader that came from another process is another object.
    writer = _writer(find_reader(reader.name), item.split, options)
    try:
        return convert_item(reader, item, writer, options.clips, options.read)
    except InputError as error:
        return error
    except AcehandError:  # the disk is full, or a package missing: the same for all recordings
        raise
    except Exception as error:  # files that no reader foresaw must not end the whole conversion
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(frame.filename).name}:{frame.lineno}"
        return InputError(f"could not be read: {type(error).__name__}: {error} (in {where}).")


@functools.lru_cache(maxsize=8)
def _writer(reader: Reader, split: str, options: RunOptions) -> ClipWriter:
    info = _store_info(reader, split, options)
    return ClipWriter(options.output / split, info, other_settings=True)


def _store_info(reader: Reader, split: str, options: RunOptions) -> StoreInfo:
    return StoreInfo(
        dataset=reader.name,
        split=split,
        made_by=CONVERTED_BY,
        license=f"that of {reader.title}",
        settings={
            "images": options.clips.images,
            "width": options.clips.width,
            "quality": options.clips.quality,
            "mano": options.clips.mano is not None,
            "view": options.read.view,
        },
    )


def _say_changed(split: str, info: StoreInfo, options: RunOptions, progress: Progress) -> None:
    changed = changed_settings(options.output / split, info)
    if changed:
        words = f"{split}: other settings than before ({'; '.join(changed)})"
        progress(f"{words}: every clip is made anew", 0, 0)


def _ignore_ctrl_c() -> None:
    """The parent handles Ctrl-C: a clip under way is finished or left out, never half there."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
