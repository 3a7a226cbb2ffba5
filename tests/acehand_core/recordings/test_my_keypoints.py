"""docs/my_keypoints.md: its commands run as they stand, on files of the structure it names."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import yaml

from acehand_core.cli import retarget
from acehand_core.cli.main import main as acehand
from acehand_core.lerobot.check import check_dataset
from acehand_core.recordings.hands_file import read_hand_motion
from acehand_core.recordings.keypoints.mapping import KeypointMap, load_map
from helpers import ROOT
from helpers import keypoint_files as made
from helpers.retarget_samples import moving_hands

PAGE = (ROOT / "docs/my_keypoints.md").read_text("utf-8")
MOVING = moving_hands(20)
BLOCKS = re.findall(r"```sh\n(.*?)```", PAGE, re.S)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the page's commands, in a folder with the files that they name."""
    folder, right = tmp_path_factory.mktemp("keypoints"), MOVING[:, 1]
    np.savez(folder / "joints.npz", joints=MOVING, fps=30)
    np.save(folder / "hands.npy", made.written(right, made.MANO))
    np.save(folder / "mano.npy", 1000 * made.written(right, made.MANO))
    made.avp_npz(folder / "vision_pro.npz", right, "right", 30)
    made.avp_jsonl(folder / "tracking.jsonl", MOVING, 30)
    made.manus_csv(folder / "glove_right.csv", right, 30)
    made.long_csv(folder / "markers.csv", MOVING, 30)
    (folder / "map.yaml").write_text("unit: mm")

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for block in BLOCKS:
            for name, text in re.findall(r"cat > (\S+) <<'YAML'\n(.*?)YAML\n", block, re.S):
                (folder / name).write_text(text)
            lines = [line for line in block.splitlines() if line.startswith("acehand")]
            for number, line in enumerate(lines):
                program, *words = shlex.split(line, comments=True)
                if program == "acehand":
                    assert acehand([*words, "--quiet"]) == 0, line
                    continue
                output = [] if "--output" in words else ["--output", f"short_{number}"]
                assert retarget.main([*words, *output, "--quiet"]) == 0, line
    return folder


@pytest.mark.slow
def test_every_worked_example_gives_the_same_hand(folder: Path) -> None:
    for name in ("from_vision_pro", "from_tracking", "from_mano", "from_glove"):
        assert check_dataset(folder / name) == []
        motion = read_hand_motion(folder / name / "acehand/episode_000000/hand_motion.parquet")
        away = motion.joints_camera[:, 1] - MOVING[:, 1]
        assert np.abs(away).max() < 1e-5 and motion.known[:, 1].all()
        assert motion.placed == (name != "from_glove")
    assert len((folder / "commands.csv").read_text().splitlines()) == 21


def test_the_mapping_of_the_page(tmp_path: Path) -> None:
    block = re.search(r"```yaml\n(.*?)```", PAGE, re.S)
    assert block is not None
    (tmp_path / "m.yaml").write_text(block[1])
    assert load_map(str(tmp_path / "m.yaml")).missing == (-9999.0,)
    named = set(yaml.safe_load(block[1])) | set(
        re.findall(r"`(\w+)`", PAGE.split("For tables also")[1].split("\n\n")[0])
    )
    assert named == {name for name in KeypointMap.__dataclass_fields__ if name != "where"}
