"""acehand and lerobot in one environment and one process: what one writes the other reads.

Run like ``test_real_loader``, by a Python that has both (``make test-lerobot`` installs them).
"""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("lerobot", reason="lerobot is not installed here")
pytest.importorskip("acehand_core", reason="acehand is not installed here")
import cv2
import pyarrow.parquet as pq
from lerobot.datasets.lerobot_dataset import LeRobotDataset

from acehand_core.cli import retarget

VIDEO = Path(__file__).parents[2] / "examples" / "two_hands.mp4"
#: What mediapipe declares and does not need.
NOT_NEEDED = ("jax", "jaxlib", "opencv-contrib-python", "sounddevice")


def test_no_requirement_of_either_is_broken():
    done = subprocess.run(
        [sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False
    )
    allowed = tuple(f"requires {name}, which is not installed." for name in NOT_NEEDED)
    lines = (done.stdout + done.stderr).splitlines()
    assert lines and [line for line in lines if not line.endswith(allowed)] in (
        [],
        ["No broken requirements found."],
    )


def test_a_video_becomes_a_dataset_that_lerobot_loads(tmp_path):
    root = tmp_path / "pour"
    job = [str(VIDEO), "--robot", "inspire", "--output", str(root), "--no-overlay", "-q"]
    assert retarget.main([*job, "--duration", "1", "--task", "pour water"]) == 0
    assert retarget.main([*job, "--start", "2", "--append", "--task", "put away"]) == 0

    dataset = LeRobotDataset("local/test", root=root)
    table = pq.read_table(root / "data")
    assert len(dataset) == table.num_rows > 30 and dataset.num_episodes == 2
    for key in ("observation.state", "action"):
        read = np.stack([row[key].numpy() for row in dataset.hf_dataset])
        np.testing.assert_array_equal(read, np.array(table[key].to_pylist(), np.float32))
    first, last = dataset[0], dataset[len(dataset) - 1]
    assert (first["task"], last["task"]) == ("pour water", "put away")

    # The picture is the source's, up to what encoding twice costs.
    found, source = cv2.VideoCapture(str(VIDEO)).read()
    assert found
    (key,) = dataset.meta.video_keys
    picture = first[key].numpy().transpose(1, 2, 0) * 255
    assert np.abs(picture - source[..., ::-1]).mean() < 4
    blank = source.mean((0, 1))[::-1]
    assert np.abs(picture - blank).mean() > 8, "any picture would pass"


def test_a_dataset_that_lerobot_wrote_is_read(tmp_path):
    root = tmp_path / "recorded"
    features = {
        "observation.images.front": {
            "dtype": "video", "shape": (480, 640, 3), "names": ["height", "width", "channels"],
        },
        "action": {"dtype": "float32", "shape": (2,), "names": ["x", "y"]},
    }  # fmt: skip
    written = LeRobotDataset.create("local/test", 30, features, root=root, use_videos=True)
    capture = cv2.VideoCapture(str(VIDEO))
    for _ in range(30):
        image = cv2.resize(capture.read()[1][..., ::-1], (640, 480))
        frame = {"observation.images.front": image, "action": np.zeros(2, np.float32)}
        written.add_frame({**frame, "task": "pour water"})
    written.save_episode()
    written.finalize()

    output = tmp_path / "retargeted"
    job = [str(root), "--robot", "inspire", "--output", str(output), "--no-overlay", "-q"]
    assert retarget.main(job) == 0
    assert len(LeRobotDataset("local/test", root=output)) == 30
