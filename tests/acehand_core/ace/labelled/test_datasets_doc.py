"""docs/datasets.md states the readers and options that the code has."""

import re

from acehand_core.ace.commands import clips
from acehand_core.ace.labelled.readers import arctic, h2o, hoi4d, hot3d, interhand, stills
from acehand_core.ace.labelled.readers import oakink2 as oak
from acehand_core.ace.labelled.readers.base import TEST_SHARE, hashed_split
from acehand_core.ace.labelled.readers.run import READERS
from acehand_core.cli.console import flag
from acehand_core.settings import leaves
from helpers import ROOT

TEXT = (ROOT / "docs" / "datasets.md").read_text("utf-8")


def rows(header):
    lines = TEXT[TEXT.index(header) :].splitlines()[2:]
    body = lines[: next((i for i, line in enumerate(lines) if not line.startswith("|")), None)]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in body]


def test_every_reader_is_stated_with_its_convention():
    table = {name: row for row in rows("| name | frame") for name in re.findall(r"`(\w+)`", row[0])}
    assert set(table) == set(READERS)
    modules = {"arctic": arctic, "hot3d": hot3d, "hot3d_clips": hot3d, "h2o": h2o, "oakink2": oak,
               "interhand": interhand, "hoi4d": hoi4d}  # fmt: skip
    conventions = {name: module.CONVENTION for name, module in modules.items()}
    conventions["freihand"] = stills.FREIHAND_CONVENTION
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
    for leaf in leaves(clips.ConvertClips):
        option = flag(leaf)
        if not leaf.setting.positional:
            assert f"`{option}" in TEXT or f" {option} " in TEXT, option


def test_hashed_splits_do_not_drift_and_have_the_papers_shares():
    for dataset, share in TEST_SHARE.items():
        found = [hashed_split(f"P{i:04d}", dataset) for i in range(4000)]
        assert abs(found.count("test") / 4000 - share) < 0.03
    # These must never change: a recording may not move from training to testing.
    assert hashed_split("P0003_c701bd11", "hot3d") == "train"
    assert hashed_split("scene_01__A001++seq__0", "oakink2") == "train"
