"""docs/datasets.md states the readers, options and counts that the code has."""

import re
from pathlib import Path

import pytest

from acehand_core.cli import data
from acehand_core.datasets.readers import arctic, h2o, hoi4d, hot3d, interhand, stills
from acehand_core.datasets.readers import oakink2 as oak
from acehand_core.datasets.readers.base import Item
from acehand_core.datasets.readers.run import READERS
from acehand_core.datasets.readers.splits import (
    PAPER,
    TEST_SHARE,
    compare,
    hashed_split,
)
from acehand_core.settings import leaves

#: The paper's appendix, "Training and evaluation data": segments of 81 frames for evaluation.
PAPER_SEGMENTS = {"arctic": 291, "hot3d": 437, "h2o": 355, "oakink2": 202, "hoi4d": 498}
TEXT = (Path(__file__).resolve().parent.parent / "docs" / "datasets.md").read_text("utf-8")


def rows(header: str) -> list[list[str]]:
    lines = TEXT[TEXT.index(header) :].splitlines()[2:]
    body = lines[: next((i for i, line in enumerate(lines) if not line.startswith("|")), None)]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in body]


def test_every_reader_is_stated_with_its_convention():
    table = {name: row for row in rows("| name | frame") for name in re.findall(r"`(\w+)`", row[0])}
    assert set(table) == set(READERS)
    conventions = {
        "arctic": arctic.CONVENTION,
        "hot3d": hot3d.CONVENTION,
        "hot3d_clips": hot3d.CONVENTION,
        "h2o": h2o.CONVENTION,
        "oakink2": oak.CONVENTION,
        "interhand": interhand.CONVENTION,
        "freihand": stills.FREIHAND_CONVENTION,
        "hoi4d": hoi4d.CONVENTION,
    }
    places = {"mano": "MANO's", "wrist": "the wrist", "middle_knuckle": "joint 9"}
    words = {"vectors": "vectors", "components": "components", "rotations": "quaternions"}
    for name, convention in conventions.items():
        _, frame, fingers, mean, translation, left, views, _ = table[name]
        assert frame.startswith(convention.frame)
        assert words[convention.fingers] in fingers
        assert mean == ("yes" if convention.flat_hand_mean else "no")
        assert translation.startswith(places[convention.translation])
        if name not in ("freihand", "hoi4d"):
            assert (left == "repaired") == bool(convention.left_shapedirs_fixed)
        assert views.startswith(READERS[name].views[0])


def test_every_option_is_stated():
    for command in (data.Convert, data.Segments):
        for leaf in leaves(command):
            flag = leaf.spelled
            if leaf.setting.positional or flag in ("--length", "--stride", "--name", "--overwrite"):
                continue
            assert f"`{flag}" in TEXT or f" {flag} " in TEXT, flag


def test_the_counts_are_the_papers():
    stated = {row[0].lower(): row[1:] for row in rows("| dataset | train clips")}
    assert len(stated) == len(PAPER)
    for name, splits in PAPER.items():
        train, test, segments = stated["re:interhand" if name == "interhand" else name]
        for split, cell in (("train", train), ("test", test)):
            numbers = tuple(int(word) for word in cell.split(",")) if cell else None
            assert numbers == splits.get(split)
        assert segments == str(PAPER_SEGMENTS.get(name, ""))


@pytest.mark.parametrize("name", PAPER)
def test_equal_counts_need_no_explanation_and_others_have_one(name):
    for split, (clips, frames) in PAPER[name].items():
        played = 5 if name in ("freihand", "rhd") else 1
        items = [Item(name, f"a{i}", split, Path("x")) for i in range(min(clips, 50))]
        (entry,) = compare(name, {split: clips}, {split: frames // played}, items)
        assert entry["explanation"] == []
        (entry,) = compare(name, {split: clips - 1}, {split: frames // played}, items)
        assert entry["explanation"]


def test_hashed_splits_do_not_drift_and_have_the_papers_shares():
    for dataset, share in TEST_SHARE.items():
        found = [hashed_split(f"P{i:04d}", dataset) for i in range(4000)]
        assert abs(found.count("test") / 4000 - share) < 0.03
    # These must never change: a recording may not move from training to testing.
    assert hashed_split("P0003_c701bd11", "hot3d") == "train"
    assert hashed_split("scene_01__A001++seq__0", "oakink2") == "train"
