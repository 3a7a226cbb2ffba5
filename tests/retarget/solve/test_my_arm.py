"""The page about arms, followed on a file with the structure of MuJoCo Menagerie's."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from acehand_core.cli import retarget
from acehand_core.cli.main import main as acehand
from helpers import ROOT
from helpers.arm_samples import few_stands, menagerie_arm
from helpers.commands import hands_file
from helpers.retarget_samples import moving_hands
from retarget.solve.arm import load_arm

PAGE = (ROOT / "docs" / "my_arm.md").read_text("utf-8")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    few_stands(monkeypatch, frames=10)


def test_the_file_is_read_as_it_is(tmp_path: Path) -> None:
    """What the page says of meshdir, classes, keyframe and the link that carries the hand."""
    arm = load_arm(menagerie_arm(tmp_path / "arm"))
    assert arm.link == "attachment_site" and len(arm.joint_names) == 7
    assert len(arm.rests) == 2 and arm.rests[1] == pytest.approx([0, 0.3, 0, 0.6, 0, 0.6, 0])
    assert arm.shapeless == () and "2 per second" in arm.notes[0]
    # Seven links of 0.2 m, the first at 0.06 m, the site at 0.17 m of the last.
    assert arm.base_poses(np.zeros((1, 7)))[0, 2, 3] == pytest.approx(0.06 + 6 * 0.2 + 0.17)


@pytest.mark.slow
def test_the_page_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    menagerie_arm(tmp_path / "arm").rename(tmp_path / "arm.xml")
    (tmp_path / "arm" / "assets").rename(tmp_path / "assets")
    hands_file(tmp_path / "joints.npz", joints=moving_hands(8))
    monkeypatch.chdir(tmp_path)
    commands = re.search(r"```sh\n(.*?)```", PAGE, re.DOTALL)[1].splitlines()
    entries = {}
    for line in commands:
        program, *words = shlex.split(line)
        if program == "acehand-retarget":
            assert retarget.main([*words, "--json", "--quiet"]) == 0, line
            episode = json.loads(capsys.readouterr().out.splitlines()[-1])["episodes"][0]
            entries[words[words.index("--output") + 1]] = episode
        else:
            assert acehand([*words, "--no-moving", "--quiet"]) == 0, line

    assert (tmp_path / "pictures" / "strip.png").is_file()
    for name in ("with_arms", "mounted"):
        arms = entries[name]["arm"]
        tables = [np.array(arm["T_frame_table"])[1, 3] for arm in arms.values()]
        bases = [np.array(arm["T_frame_arm"])[1, 3] for arm in arms.values()]
        assert tables == pytest.approx(bases) and bases[0] == pytest.approx(bases[1])
        assert "assumed: a table at the height of the bases (--arm-table)" in arms["left"]["notes"]
        assert all(arm["collision_frames"] == 0 for arm in arms.values())
    # Given: 0.35 m below the camera, upright, on a table that is there.
    stood = np.array(entries["our_stand"]["arm"]["left"]["T_frame_arm"])
    assert stood[:3, 3] == pytest.approx([-0.35, 0.35, 0.5])
    assert stood[:3, 2] == pytest.approx([0, -1, 0], abs=1e-5)
    assert np.array(entries["our_stand"]["arm"]["left"]["T_frame_table"])[1, 3] == 0.35
