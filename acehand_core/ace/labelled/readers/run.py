"""Conversion of a dataset to stores of clips, one per split: parallel and resumable.

``READERS`` lists the readers.
"""

from __future__ import annotations

import operator
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from acehand_core.ace.labelled.clips import schema
from acehand_core.ace.labelled.clips.schema import ClipInfo, clip_id
from acehand_core.ace.labelled.clips.store import ClipStore, ClipWriter, changed_settings
from acehand_core.ace.labelled.readers.arctic import ArcticReader
from acehand_core.ace.labelled.readers.base import (
    SPLITS,
    Item,
    NativeRecording,
    Reader,
    ReadOptions,
    read_split_file,
    safe_name,
)
from acehand_core.ace.labelled.readers.convert import ItemConverter, RunOptions
from acehand_core.ace.labelled.readers.h2o import H2OReader
from acehand_core.ace.labelled.readers.hoi4d import Hoi4dReader
from acehand_core.ace.labelled.readers.hot3d import Hot3dReader
from acehand_core.ace.labelled.readers.hot3d_clips import Hot3dClipsReader
from acehand_core.ace.labelled.readers.interhand import ReInterHandReader
from acehand_core.ace.labelled.readers.oakink2 import OakInk2Reader
from acehand_core.ace.labelled.readers.stills import FreiHandReader, RhdReader
from acehand_core.errors import InputError, Interrupted, nearest
from acehand_core.processes import in_processes
from acehand_core.recordings.camera_files import load_camera
from acehand_core.recordings.cameras import fit_camera_to
from acehand_core.recordings.video import EXTENSIONS, open_video
from acehand_core.types import Progress

#: Of a process of the pool.
_here: ItemConverter


class EgocentricReader:
    """``Reader`` of unlabelled video; each of ``NAMES`` has the same layout."""

    NAMES = ("egocentric", "holoassist", "xperience10m")
    title = "egocentric video"
    views = ("video",)

    def __init__(self, name: str = NAMES[0]) -> None:
        self.name = name

    def items(self, root: Path, options: ReadOptions) -> Sequence[Item]:
        """List videos, by path."""
        videos = [
            p for p in sorted(root.rglob("*")) if p.suffix.lower() in EXTENSIONS and p.is_file()
        ]
        if not videos:
            raise InputError(f"{root}: it has no video ({', '.join(EXTENSIONS)}).")

        names = [safe_name(*p.relative_to(root).with_suffix("").parts) for p in videos]
        items = []
        for name, path in zip(names, videos, strict=True):
            if names.count(name) > 1:  # files that differ in suffix alone
                name = safe_name(name, path.suffix[1:])
            items.append(Item(self.name, name, "test", path, {"root": str(root)}))
        return items

    def sources(self, item: Item) -> Sequence[Path]:
        camera = _camera_file(item)
        return [item.path] if camera is None else [item.path, camera]

    def read(self, item: Item, options: ReadOptions) -> NativeRecording:
        """Open one video; frames are read on demand."""
        recording = open_video(item.path)
        size = recording.width, recording.height
        path = _camera_file(item)
        camera, note = None, "no camera file; the camera is not known."
        if path is not None:
            camera = fit_camera_to(load_camera(path), *size)
            note = f"camera: {path.relative_to(item.key['root'])}."

        return NativeRecording(
            item=item,
            timestamps_ns=recording.timestamps_ns,
            fps=recording.fps,
            size=size,
            frames=recording.frames,
            camera=camera,
            present=np.zeros((len(recording), 2), bool),
            slots=(False, False),
            plain=True,
            licences=("unlabelled video: its own terms",),
            findings=(*recording.notes, note),
        )


def _camera_file(item: Item) -> Path | None:
    root = Path(item.key["root"])
    names = [item.path.with_suffix(".camera.json")]
    for folder in item.path.parents:
        names.append(folder / "camera.json")
        if folder == root:
            break
    return next((path for path in names if path.is_file()), None)


#: Readers by their name on the command line.
READERS: dict[str, Callable[[], Reader]] = {
    reader.name: reader
    for reader in (
        ArcticReader,
        Hot3dReader,
        Hot3dClipsReader,
        H2OReader,
        OakInk2Reader,
        ReInterHandReader,
        FreiHandReader,
        RhdReader,
        Hoi4dReader,
    )
} | {name: partial(EgocentricReader, name) for name in EgocentricReader.NAMES}


def find_reader(name: str) -> Reader:
    """Return a new reader of a dataset. Raises InputError for an unknown name."""
    if name not in READERS:
        raise InputError(f"No dataset {name!r}; {nearest(name, READERS)}")
    return READERS[name]()


def leave_other_splits(
    output: Path, dataset: str, items: Sequence[Item]
) -> Counter[tuple[str, str]]:
    """Remove clips of recordings that now belong to another split; count them by (old, new).

    Otherwise a recording could be both trained on and tested on.

    Args:
        output: the folder of the stores.
        items: all of the dataset, with their splits.

    Raises: SchemaError for an unreadable store; OutputError.
    """
    split_of = {clip_id(item.name): item.split for item in items}
    changed: Counter[tuple[str, str]] = Counter()
    for split in SPLITS:
        if not (output / split / "store.json").is_file():
            continue
        store = ClipStore(output / split)
        if store.info.dataset != dataset:
            continue
        moved = [name for name in store.ids() if split_of.get(name, split) != split]
        if moved:
            ClipWriter(store.root, store.info).remove(moved)
            changed.update((split, split_of[name]) for name in moved)
    return changed


@dataclass(slots=True)
class ReaderReport:
    """Results of a conversion: clips and frames per split, findings by number of clips.

    ``unlabelled`` frames have no label of any hand; ``left_out`` are labels without a picture in
    recordings with pictures; ``kept`` clips were unchanged; ``changed_split`` counts clips removed
    from a store, by (old split, new split).
    """

    dataset: str
    output: Path
    clips: Counter[str] = field(default_factory=Counter)
    frames: Counter[str] = field(default_factory=Counter)
    unlabelled: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    kept: int = 0
    changed_split: Counter[tuple[str, str]] = field(default_factory=Counter)
    findings: Counter[str] = field(default_factory=Counter)
    errors: list[dict[str, str]] = field(default_factory=list)

    def add(self, split: str, info: ClipInfo, kept: bool) -> None:
        """Count one clip."""
        self.clips[split] += 1
        self.frames[split] += info.frames
        self.unlabelled[split] += info.source["unlabelled_frames"]
        self.left_out[split] += info.source["left_out_frames"]
        self.kept += kept
        self.findings.update(info.source.get("findings", ()))

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        counts = {
            "clips": self.clips,
            "frames": self.frames,
            "unlabelled_frames": self.unlabelled,
            "left_out_frames": self.left_out,
        }
        return {
            "dataset": self.dataset,
            "output": str(self.output),
            "splits": {
                split: {name: count[split] for name, count in counts.items()}
                for split in SPLITS
                if self.clips[split]
            },
            "already_there": self.kept,
            "moved": [
                {"from": old, "to": new, "clips": count}
                for (old, new), count in sorted(self.changed_split.items())
            ],
            "findings": [
                {"text": text, "clips": count} for text, count in self.findings.most_common(200)
            ],
            "errors": self.errors,
        }


def run(name: str, options: RunOptions, progress: Progress) -> ReaderReport:
    """Convert a dataset; unchanged clips are kept.

    Unreadable recordings are reported and do not stop the others. Clips of recordings that now
    belong to another split are removed first, so no recording is ever in two splits.

    Raises:
        InputError: unknown dataset, view or split; ``root`` is not that dataset.
        OutputError: the output cannot be written. MissingDependencyError: a package is missing.
            Interrupted: with the report so far.
    """
    reader = find_reader(name)
    view = options.read.view
    if view is not None and view not in reader.views:
        raise InputError(f"{reader.title} has no view {view!r}; {nearest(view, reader.views)}")
    if options.clips.images == "none":
        options = replace(options, read=replace(options.read, pictures=False))
    converter = ItemConverter(reader, options)

    every = list_items(reader, options)
    items = [item for item in every if not options.splits or item.split in options.splits]
    if not items:
        counts = Counter(item.split for item in every)
        raise InputError(
            f"{options.root}: no recording in {', '.join(options.splits)}; there are "
            + (", ".join(f"{count} in {split}" for split, count in counts.items()) or "none")
            + "."
        )

    report = ReaderReport(name, options.output)
    for split in sorted({item.split for item in items}):
        changed = changed_settings(options.output / split, converter.store_info(split))
        if changed:
            words = f"{split}: other settings than before ({'; '.join(changed)})"
            progress(f"{words}: every clip is converted again", 0, 0)

    try:
        report.changed_split = leave_other_splits(options.output, name, every)
        for done, (item, outcome) in enumerate(_outcomes(converter, items), 1):
            if isinstance(outcome, Exception):
                report.errors.append({"source": item.name, "message": str(outcome)})
            else:
                report.add(item.split, *outcome)
            progress(f"convert {name}", done, len(items))
    except KeyboardInterrupt as stop:
        raise Interrupted(report) from stop
    finally:
        for split in sorted({item.split for item in items if report.clips[item.split]}):
            converter.writer(split).write_index()

    # Without absolute folders.
    below = f"{options.root}{os.sep}"
    errors = [{**e, "message": e["message"].replace(below, "")} for e in report.errors]
    kept = {**report.to_json(), "output": options.output.name, "errors": errors}
    schema.write_json(options.output / f"conversion-{name}.json", kept)
    return report


def list_items(reader: Reader, options: RunOptions) -> list[Item]:
    """Return every recording with its split. Raises InputError."""
    items = list(reader.items(options.root, options.read))
    twice = [name for name, count in Counter(item.name for item in items).items() if count > 1]
    if twice:
        raise InputError(f"{options.root}: two recordings are named {twice[0]!r}.")
    if options.split_file is not None:
        splits = read_split_file(options.split_file, items)
        items = [replace(i, split=splits[i.name]) for i in items if i.name in splits]
    return items


def _outcomes(converter: ItemConverter, items: Sequence[Item]) -> Iterator[tuple[Item, Any]]:
    """Return each item with the result of ``ItemConverter.convert``."""
    options = converter.options
    if options.jobs <= 1 or len(items) == 1:
        return ((item, converter.convert(item)) for item in items)
    start = partial(_start_process, converter.reader.name, options)
    return in_processes(
        _convert_here, items, options.jobs, operator.attrgetter("name"), options.output, start
    )


def _start_process(name: str, options: RunOptions) -> None:
    global _here
    _here = ItemConverter(find_reader(name), options)


def _convert_here(item: Item) -> Any:
    return _here.convert(item)
