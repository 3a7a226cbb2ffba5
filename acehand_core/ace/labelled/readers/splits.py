"""Which recordings are for testing: by hash where neither the dataset nor the paper names them."""

from __future__ import annotations

import hashlib
from pathlib import Path

from acehand_core.ace.labelled.readers.base import SPLITS, Item, Split, read_json
from acehand_core.errors import InputError, SchemaError, nearest

#: Share of recordings for testing, as in the paper's table: 72 of 198, 77 of 627.
TEST_SHARE = {"hot3d": 72 / 198, "oakink2": 77 / 627}
VERSION = 1


def hashed_split(recording: str, dataset: str) -> Split:
    """Return a recording's split from a hash of its name.

    It does not change when recordings are added or missing. The paper splits HOT3D by recording and
    OakInk2 by sequence but does not say which; the shares are its own.
    """
    digest = hashlib.sha256(f"acehand split {VERSION} {dataset} {recording}".encode()).digest()
    return "test" if int.from_bytes(digest[:8]) / 2**64 < TEST_SHARE[dataset] else "train"


def read_split_file(path: Path, items: list[Item]) -> dict[str, Split]:
    """Return item name to split from a user's own JSON: split to a list of item names.

    Raises: SchemaError for another form; InputError for a name that is not in the dataset or is
        given twice.
    """
    content = read_json(path)
    if not isinstance(content, dict) or not set(content) <= set(SPLITS):
        raise SchemaError(f"{path}: must be an object of lists under {', '.join(SPLITS)}.")
    known = {item.name for item in items}

    split_of: dict[str, Split] = {}
    for split, names in content.items():
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise SchemaError(f"{path}: {split!r} must be a list of names of recordings.")
        for name in names:
            if name not in known:
                raise InputError(f"{path}: no recording {name!r}; {nearest(str(name), known)}")
            if name in split_of:
                raise InputError(f"{path}: {name!r} is listed twice.")
            split_of[name] = split

    return split_of
