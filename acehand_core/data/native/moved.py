"""Recordings that belong to another split than the one whose store holds their clip."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from acehand_core.data.clips.schema import clip_id
from acehand_core.data.clips.store import ClipStore, ClipWriter
from acehand_core.data.native.protocol import SPLITS, Item


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
