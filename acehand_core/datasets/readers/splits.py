"""Which recordings are for testing, and the paper's counts compared with those of a conversion.

Splits are by hash where neither the dataset nor the paper names the recordings. Source of the
counts: the table "Training and evaluation data" of the paper's appendix.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from acehand_core.datasets.readers.base import SPLITS, Item, Split, read_json
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


#: Dataset -> split -> (clips, frames).
PAPER = {
    "arctic": {"train": (267, 184_373), "test": (34, 24_863)},
    "hot3d": {"train": (126, 444_649), "test": (72, 256_870)},
    "h2o": {"train": (114, 68_929), "test": (46, 30_724)},
    "oakink2": {"train": (550, 935_260), "test": (77, 69_371)},
    "interhand": {"train": (43, 21_315)},
    "freihand": {"train": (32_560, 162_800)},
    "rhd": {"train": (41_251, 206_255)},
    "hoi4d": {"test": (166, 49_800)},
}

#: Recordings of ARCTIC's labelled subjects, from its list of archives.
_ARCTIC_SUBJECTS = {
    "s01": 34, "s02": 37, "s04": 31, "s05": 34, "s06": 36, "s07": 29, "s08": 42, "s09": 37,
    "s10": 21,
}  # fmt: skip

#: What is known of each dataset that makes counts differ even with a complete copy.
_WHY = {
    "arctic": "Frames: every picture counts here, labelled or not; the paper does not say how it "
    "treats pictures before the offset, and the authors' own lists drop ten at either end.",
    "hot3d": "The paper's 198 recordings and their split are not published: every labelled "
    "recording of both devices is listed here and split by hash, so neither count can agree "
    "exactly. A split file gives another.",
    "h2o": "Frames: every picture counts, as in the paper (the authors' lists of labelled pictures "
    "have 55742 and 23391). The 24 recordings of val are in none of the paper's columns.",
    "oakink2": "The paper's 627 sequences are split at the sequence level by an unpublished list; "
    "here by hash. Frames: every picture counts, labelled or not.",
    "interhand": "The paper names 10 frames per second and 43 clips but no rule for either; here "
    "a clip is one segment of one capture at every stored frame, and the three captures that the "
    "authors' loader tests on are kept apart as test.",
    "freihand": "The paper repeats each picture in a clip of five frames; here a clip is the one "
    "picture. Of the four versions of a picture one is converted at a time.",
    "rhd": "The paper repeats each picture in a clip of five frames; here a clip is the one "
    "picture. The published training part has 41258 pictures, 7 more than the paper's 41251; "
    "none is left out here, and those in which no joint is visible are counted below.",
    "hoi4d": "The paper tests on 166 sequences of 300 frames and does not name them; every "
    "sequence with a folder of hand poses is converted here.",
}


def compare(
    dataset: str, clips: Mapping[str, int], frames: Mapping[str, int], items: Sequence[Item]
) -> list[dict[str, Any]]:
    """Return one entry per split: ours, the paper's, and every difference explained."""
    entries = []
    for split in sorted({*clips, *PAPER.get(dataset, {})}):
        of_split = [item for item in items if item.split == split]
        if not of_split and not clips.get(split, 0):
            continue
        paper = PAPER.get(dataset, {}).get(split)
        entry: dict[str, Any] = {
            "split": split,
            "clips": clips.get(split, 0),
            "frames": frames.get(split, 0),
            "paper_clips": paper[0] if paper else None,
            "paper_frames": paper[1] if paper else None,
            "explanation": _explain(dataset, split, clips, frames, of_split, paper),
        }
        entries.append(entry)

    return entries


def _explain(
    dataset: str,
    split: str,
    clips: Mapping[str, int],
    frames: Mapping[str, int],
    items: Sequence[Item],
    paper: tuple[int, int] | None,
) -> list[str]:
    ours = clips.get(split, 0)
    if dataset == "hot3d_clips":
        return ["The paper counts whole recordings; clips of five seconds are pieces of them."]
    if paper is None:
        return [f"The paper's table has no {split} column for this dataset."]
    # Still pictures count once here and five times in the paper.
    played = 5 if dataset in ("freihand", "rhd") else 1
    if (ours, frames.get(split, 0) * played) == paper:
        return []

    reasons = []
    if len(items) > ours:
        reasons.append(f"{len(items) - ours} recordings could not be converted; see errors.")
    if dataset == "arctic":
        counts = Counter(item.group for item in items)
        reasons += [
            f"{subject}: {counts[subject]} of {count} sequences are in this copy."
            for subject, count in _ARCTIC_SUBJECTS.items()
            if (subject == "s05") == (split == "test") and counts[subject] != count
        ]
    elif ours < paper[0]:
        reasons.append(f"{paper[0] - ours} clips fewer than in the paper: not in this copy.")
    elif ours > paper[0]:
        reasons.append(f"{ours - paper[0]} clips more than in the paper.")
    reasons.append(_WHY[dataset])
    return reasons
