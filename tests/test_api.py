"""docs/api.md and examples/: they run as they stand, and what they make is right."""

import dataclasses
import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import acehand_core as ah
import retarget
from acehand_core.lerobot.check import check_dataset
from acehand_core.recordings.hands_file import read_hand_motion
from helpers import ROOT
from helpers.example_video import example_frames
from helpers.lerobot_samples import check_every_frame
from helpers.video_fixtures import write_video

EXAMPLE = ROOT / "examples"
FRAMES = 18  # 0.6 s of a clip of 30 frames per second


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Run all blocks of the page, one after the other; return the folder and their names."""
    folder = tmp_path_factory.mktemp("api")
    shutil.copy(EXAMPLE / "two_hands.mp4", folder / "video.mp4")
    truth = read_hand_motion(EXAMPLE / "two_hands_truth.parquet")
    shutil.copytree(EXAMPLE / "own_robot", folder / "own_robot")
    np.save(folder / "keypoints.npy", truth.joints_camera[:20, 1])

    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/api.md").read_text("utf-8"), re.S)
    assert len(blocks) == 5
    names: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for block in blocks:
            exec(block, names)
    return folder, names


@pytest.mark.slow
def test_the_page_makes_whole_datasets(ran):
    folder, names = ran
    for name, fps, frames in (("pour", 30, FRAMES), ("at_20", 20, FRAMES * 20 // 30)):
        assert check_every_frame(folder / name) == []
        rows = pq.read_table(next((folder / name / "data").rglob("*.parquet")))
        assert len(rows) == frames
        times = rows["timestamp"].to_numpy()
        np.testing.assert_allclose(times, np.arange(frames) / fps, atol=1e-6)
    assert (folder / "pour/acehand/episode_000000/overlay.mp4").is_file()
    assert not (folder / "at_20/acehand/episode_000000/overlay.mp4").exists()
    assert names["report"].json["frames"] == FRAMES * 20 // 30


def test_own_keypoints_are_followed(ran):
    _, names = ran
    motion = names["motion"]
    assert motion.known[:, 1].all() and not motion.known[:, 0].any()
    np.testing.assert_array_equal(motion.joints_camera[-1, 1], names["joints"][0])


def test_the_dataset_refuses_what_does_not_belong_together(ran, tmp_path):
    folder, names = ran
    recording, robot = names["recording"], names["robot"]
    motion = names["Replayed"]().track(recording)
    trajectory = retarget.retarget(motion, robot)
    others = ah.motion_from_joints(names["joints"], side="left")
    for hand, fps, hands, message in (
        (robot, 30, motion, "1/30 s"), (robot, 30, others, "times"),
        ("leap", 20, motion, "inspire.*leap"),
    ):  # fmt: skip
        with (
            ah.Dataset.open(tmp_path / "a", hand, fps=fps) as dataset,
            pytest.raises(ah.InputError, match=message),
        ):
            dataset.add(recording, hands, trajectory)
        assert not (tmp_path / "a").exists()
    with pytest.raises(ah.OutputError):
        ah.Dataset.open(folder / "pour", robot)


def test_appending_to_a_dataset(ran, tmp_path, monkeypatch):
    folder, names = ran
    monkeypatch.chdir(folder)  # the recording was opened there
    more = shutil.copytree(folder / "at_20", tmp_path / "more")
    recording, robot = names["recording"], names["robot"]
    table = more / "acehand/episode_000000/hand_motion.parquet"
    motion = ah.track(recording, table)
    np.testing.assert_array_equal(motion.joints_camera, read_hand_motion(table).joints_camera)
    trajectory = retarget.retarget(motion, robot)
    with ah.Dataset.open(more, robot, existing="append") as dataset:
        report = dataset.add(recording, motion, trajectory, task="again", overlay=False)
    assert report.episode_index == 1 and check_dataset(more) == []


def test_names_of_the_api_are_all_there():
    for module in (ah, retarget):
        for name in module.__all__:
            assert getattr(module, name) is not None
        with pytest.raises(AttributeError):
            _ = module.no_such_name


def example(name: str, folder: Path, *words: str | Path) -> list[str]:
    """Run a script of examples/ in a folder; return the lines it prints."""
    done = subprocess.run(
        [sys.executable, EXAMPLE / f"{name}.py", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_own_video(tmp_path):
    write_video(tmp_path / "mine.mp4", example_frames(12))
    lines = example("own_video", tmp_path, "mine.mp4", "--hand-length", "0.19", "--task", "lift")
    assert lines[0] == "my_dataset" and lines[1].startswith("  - ")
    assert check_every_frame(tmp_path / "my_dataset") == []
    rows = pq.read_table(next((tmp_path / "my_dataset/data").rglob("*.parquet")))
    assert len(rows) == 12


def test_own_keypoints(tmp_path):
    lines = example("own_keypoints", tmp_path)
    assert lines[0] == "pass"
    header, *rows = (tmp_path / "registers.csv").read_text().splitlines()
    # The vendor's order, and its registers: 0 to 1000.
    assert header == "pinky,ring,middle,index,thumb_bend,thumb_rotation"
    registers = np.array([row.split(",") for row in rows], int)
    assert registers.shape == (120, 6) and 0 <= registers.min() < registers.max() <= 1000
    # At 2 s the hand holds a block: the four fingers are bent further than at the start.
    assert (registers[60, :4] < registers[0, :4] - 20).all()


def test_own_tracker(tmp_path, monkeypatch):
    lines = example("own_tracker", tmp_path)
    assert lines == [f"{side} hand: in 100% of 120 frames" for side in ("left", "right")] + ["pass"]

    monkeypatch.syspath_prepend(EXAMPLE)
    tracker = importlib.import_module("own_tracker").SkinTracker(ah.TrackerSettings())
    assert isinstance(tracker, ah.Tracker)
    truth = read_hand_motion(EXAMPLE / "two_hands_truth.parquet")
    recording = ah.open_recording(EXAMPLE / "two_hands.mp4", duration_s=0.2)
    motion = ah.track(dataclasses.replace(recording, camera=truth.camera), tracker)
    for side in (0, 1):
        found, true = (m.joints_camera[:6, side].mean(1) for m in (motion, truth))
        off = truth.camera.fx * (found[:, :2] / found[:, 2:] - true[:, :2] / true[:, 2:])
        assert np.linalg.norm(off, axis=1).max() < 50  # pixels; a hand is about 120 wide


def test_own_robot(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    lines = example("own_robot", tmp_path)
    checks, (verdict, *ranges) = lines[:-4], lines[-4:]
    assert len(checks) == 14 and "FAILED" not in "".join(checks) and verdict == "pass"
    # robot.yaml: 0 to 1.4 rad, the thumb -1.2 to 0.3; that is 80.2, -68.8 and 17.2 degrees.
    limits = {"index": (0, 80.2), "middle": (0, 80.2), "thumb": (-68.8, 17.2)}
    for line, (name, (low, high)) in zip(ranges, limits.items(), strict=True):
        least, most = map(int, re.fullmatch(rf"{name}: (-?\d+) to (-?\d+) degrees", line).groups())
        assert low - 0.5 <= least < most - 5 and most <= high + 0.5
