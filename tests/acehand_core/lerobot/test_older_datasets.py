"""Datasets of older versions: features of several axes, and absolute paths of the sources."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from acehand_core.lerobot import format as layout
from acehand_core.lerobot.check import check_dataset
from acehand_core.lerobot.repair import repair
from acehand_core.pipeline.bag_write import load_demonstrations
from acehand_core.recordings.options import RecordingOptions
from acehand_core.recordings.registry import Registry, open_recording
from helpers import lerobot_samples as samples
from helpers import older_datasets
from helpers.commands import GRIPPER, Acehand, Run, video_and_hands
from helpers.lerobot_samples import check_every_frame

COUNT = 6
JOINTS = "observation.hand.joints_camera"


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return video_and_hands(tmp_path_factory.mktemp("inputs"), COUNT)


@pytest.fixture(scope="module")
def new(inputs, tmp_path_factory):
    """A dataset of one episode as it is written today."""
    from acehand_core.cli import retarget

    root = tmp_path_factory.mktemp("new") / "data"
    assert retarget.main([*job(inputs), "--output", str(root), "--quiet"]) == 0
    return root


@pytest.fixture
def old(new, tmp_path):
    """The same as an older version wrote it."""
    return older_datasets.age(shutil.copytree(new, tmp_path / "data"), Path("/home/somebody/takes"))


def job(inputs: list[Path]) -> list[str]:
    video, hands = inputs
    return [str(video), "--tracker", str(hands), "--no-overlay", *GRIPPER]


def joints_of(root: Path) -> np.ndarray:
    """Return the keypoints (T, 2, 21, 3) of a dataset, whichever way they are stored."""
    tables = [pq.read_table(path)[JOINTS] for path in sorted(root.glob("data/*/*.parquet"))]
    return np.array([row for t in tables for row in t.to_pylist()]).reshape(-1, 2, 21, 3)


def test_it_is_sound_and_needs_no_repair(old, new):
    shape = json.loads((old / layout.INFO_PATH).read_text())["features"][JOINTS]["shape"]
    assert shape == [2, 21, 3]
    before = samples.snapshot(old)
    assert check_every_frame(old) == [] and repair(old) == []
    assert samples.snapshot(old) == before
    assert np.array_equal(joints_of(old), joints_of(new))


def test_it_is_added_to_as_it_is(old, new, inputs, capsys):
    features = json.loads((old / layout.INFO_PATH).read_text())["features"]
    assert Run(capsys, *job(inputs), "--append", "--task", "again", "--output", old).code == 0
    assert json.loads((old / layout.INFO_PATH).read_text())["features"] == features
    assert "hand.valid" not in features and check_dataset(old) == []
    names = [pq.read_schema(path).names for path in old.glob("data/*/*.parquet")]
    assert len(names) == 2 and names[0] == names[1] and "hand.valid" not in names[0]
    kinds = {pq.read_schema(path).field(JOINTS).type for path in old.glob("data/*/*.parquet")}
    assert len(kinds) == 1
    assert np.array_equal(joints_of(old), np.tile(joints_of(new), (2, 1, 1, 1)))


def test_its_episodes_are_known_and_completed(old, inputs, capsys):
    before = samples.snapshot(old)
    (old / "acehand" / "episode_000000" / "contact_sheet.png").unlink()
    run = Run(capsys, *job(inputs), "--resume", "--output", old)
    assert run.code == 0 and run.json["skipped"] == [str(inputs[0])]
    assert samples.snapshot(old) == before and check_dataset(old) == []


def test_others_read_it_as_before(old, new, tmp_path, capsys):
    (ours, _), (theirs, _) = next(load_demonstrations(old)), next(load_demonstrations(new))
    assert np.array_equal(ours.joints, theirs.joints) and ours.motion is not None
    assert np.array_equal(ours.T_camera_base, theirs.T_camera_base)
    (path,) = Registry().expand([old])
    assert len(open_recording(path, RecordingOptions())) == COUNT
    # What is made of it does not repeat where its source lay.
    hands = old / "acehand" / "episode_000000" / "hand_motion.parquet"
    calibration = old / "acehand" / "episode_000000" / "calibration.json"
    out = tmp_path / "out"
    assert Run(capsys, hands, "--calibration", calibration, "--output", out, *GRIPPER).code == 0
    assert not [name for name, data in samples.snapshot(out).items() if b"somebody" in data]
    pytest.importorskip("rosbags")
    assert Acehand(capsys, "bag", "write", old, "--output", tmp_path / "bag").code == 0
