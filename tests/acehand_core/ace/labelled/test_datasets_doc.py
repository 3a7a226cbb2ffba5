"""docs/datasets.md states the readers, options and counts that the code has."""

import re

from acehand_core.ace.commands import clips
from acehand_core.ace.labelled.readers import arctic, h2o, hoi4d, hot3d, interhand, stills
from acehand_core.ace.labelled.readers import oakink2 as oak
from acehand_core.ace.labelled.readers.base import TEST_SHARE, hashed_split
from acehand_core.ace.labelled.readers.run import READERS
from acehand_core.settings import leaves
from helpers import ROOT

#: The paper's appendix, "Training and evaluation data": dataset -> split -> (clips, frames).
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
#: Its segments of 81 frames for evaluation.
PAPER_SEGMENTS = {"arctic": 291, "hot3d": 437, "h2o": 355, "oakink2": 202, "hoi4d": 498}
TEXT = (ROOT / "docs" / "datasets.md").read_text("utf-8")


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
    for leaf in leaves(clips.Convert):
        flag = leaf.spelled
        if not leaf.setting.positional:
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


def test_hashed_splits_do_not_drift_and_have_the_papers_shares():
    for dataset, share in TEST_SHARE.items():
        found = [hashed_split(f"P{i:04d}", dataset) for i in range(4000)]
        assert abs(found.count("test") / 4000 - share) < 0.03
    # These must never change: a recording may not move from training to testing.
    assert hashed_split("P0003_c701bd11", "hot3d") == "train"
    assert hashed_split("scene_01__A001++seq__0", "oakink2") == "train"
