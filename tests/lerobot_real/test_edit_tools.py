"""lerobot's own edit tools work on our datasets, and what comes out is what was asked for.

Run like ``test_real_loader``: on every dataset in ``$ACEHAND_LEROBOT_DATASETS`` that has more than
one episode and no feature of several axes, on which these tools fail. With
``$ACEHAND_LEROBOT_EDITED`` the edited datasets are left in that folder, for our validator.
"""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("lerobot", reason="lerobot is not installed here")
import torch
from lerobot.datasets import dataset_tools as tools
from lerobot.datasets.lerobot_dataset import LeRobotDataset

if "ACEHAND_LEROBOT_DATASETS" not in os.environ:
    pytest.skip("ACEHAND_LEROBOT_DATASETS names no folder", allow_module_level=True)
FOLDER = Path(os.environ["ACEHAND_LEROBOT_DATASETS"])


def can_be_edited(path):
    info = json.loads(path.read_text())
    shapes = [f["shape"] for f in info["features"].values() if f["dtype"] != "video"]
    return info["total_episodes"] > 1 and all(len(shape) == 1 for shape in shapes)


NAMES = sorted(p.parent.parent.name for p in FOLDER.glob("*/meta/info.json") if can_be_edited(p))


@pytest.fixture(params=NAMES)
def dataset(request):
    return LeRobotDataset("local/test", root=FOLDER / request.param)


@pytest.fixture
def edited(request, dataset, tmp_path):
    """Return where to put an edited dataset."""
    kept = os.environ.get("ACEHAND_LEROBOT_EDITED")
    folder = Path(kept) if kept else tmp_path
    return folder / f"{dataset.root.name}-{request.node.originalname.removeprefix('test_')}"


def columns(dataset, episodes=None):
    """Return every number of the given episodes, end to end."""
    rows = [dataset.hf_dataset[i] for i in range(len(dataset))]
    wanted = range(dataset.num_episodes) if episodes is None else episodes
    rows = [row for number in wanted for row in rows if row["episode_index"] == number]
    keys = [key for key, feature in dataset.features.items() if feature["dtype"] != "video"]
    return {key: torch.stack([row[key] for row in rows]).numpy() for key in keys}


def assert_holds(found, wanted, but=()):
    """Check that two sets of columns are equal, but for what counts frames and episodes."""
    assert set(found) == set(wanted)
    for key in set(found) - {"index", "episode_index", "task_index", *but}:
        assert np.array_equal(found[key], wanted[key]), key


def tasks(dataset, episodes):
    return [dataset.meta.episodes[i]["tasks"] for i in episodes]


def assert_pictures(dataset, source, episodes):
    """Check that each episode shows the pictures of the one it was made from."""
    for number, old in enumerate(episodes):
        first = dataset.meta.episodes[number]["dataset_from_index"]
        before = source.meta.episodes[old]["dataset_from_index"]
        for key in dataset.meta.video_keys:
            assert torch.equal(dataset[first][key], source[before][key])


def test_delete_episodes(dataset, edited):
    left = tools.delete_episodes(dataset, [0], output_dir=edited)
    kept = range(1, dataset.num_episodes)
    assert_holds(columns(left), columns(dataset, kept))
    assert tasks(left, range(len(kept))) == tasks(dataset, kept)
    assert_pictures(left, dataset, kept)


def test_split(dataset, edited):
    last = dataset.num_episodes - 1
    parts = {"train": list(range(last)), "val": [last]}
    for name, made in tools.split_dataset(dataset, parts, output_dir=edited).items():
        assert_holds(columns(made), columns(dataset, parts[name]))
        assert_pictures(made, dataset, parts[name])


def test_merge(dataset, edited):
    merged = tools.merge_datasets([dataset, dataset], "local/merged", output_dir=edited)
    assert merged.num_episodes == 2 * dataset.num_episodes
    twice = list(range(dataset.num_episodes)) * 2
    assert_holds(columns(merged), columns(dataset, twice))
    assert_pictures(merged, dataset, twice)


def test_remove_feature(dataset, edited):
    key = [key for key in dataset.features if key.startswith("observation.")][-1]
    gone = {key} if key in dataset.meta.video_keys else set()
    removed = [key] if gone else [key, "observation.state"]
    less = tools.remove_feature(dataset, removed, output_dir=edited)
    assert set(less.features) == set(dataset.features) - set(removed)
    before = columns(dataset)
    assert_holds(columns(less), {key: before[key] for key in before if key not in removed})


def test_add_features(dataset, edited):
    reward = np.arange(len(dataset), dtype=np.float32)
    goal = np.random.default_rng(0).normal(size=(len(dataset), 3)).astype(np.float32)
    features = {
        "reward": (reward, {"dtype": "float32", "shape": (1,), "names": None}),
        "goal": (goal, {"dtype": "float32", "shape": (3,), "names": ["x", "y", "z"]}),
    }
    more = tools.add_features(dataset, features, output_dir=edited)
    found = columns(more)
    assert np.array_equal(found["reward"].ravel(), reward) and np.array_equal(found["goal"], goal)
    assert_holds({k: v for k, v in found.items() if k not in features}, columns(dataset))


def test_modify_features(dataset, edited):
    flag = np.ones(len(dataset), np.float32)
    features = {"flag": (flag, {"dtype": "float32", "shape": (1,), "names": None})}
    other = tools.modify_features(dataset, features, "action", output_dir=edited)
    before = columns(dataset)
    found = columns(other)
    assert (found.pop("flag") == 1).all()
    assert_holds(found, {key: before[key] for key in before if key != "action"})


def test_modify_tasks(dataset, edited):
    shutil.copytree(dataset.root, edited)
    changed = tools.modify_tasks(LeRobotDataset("local/test", root=edited), new_task="something")
    assert list(changed.meta.tasks.index) == ["something"]
    again = LeRobotDataset("local/test", root=edited)
    assert again[len(again) - 1]["task"] == "something"
    assert_holds(columns(again), columns(dataset))


def test_recompute_stats(dataset, edited):
    shutil.copytree(dataset.root, edited)
    before = json.loads((edited / "meta/stats.json").read_text())
    tools.recompute_stats(LeRobotDataset("local/test", root=edited))
    after = json.loads((edited / "meta/stats.json").read_text())
    for key, values in columns(dataset).items():
        values = values.reshape(len(values), -1).astype(np.float64)
        near = 1e-3 * np.ptp(values, axis=0) + 1e-6 * np.abs(values).max(axis=0)
        exact = {"min": values.min(axis=0), "max": values.max(axis=0), "mean": values.mean(axis=0)}
        for name, wanted in exact.items():
            assert (np.abs(np.array(after[key][name]) - wanted) <= near).all(), (key, name)
            assert np.shape(after[key][name]) == np.shape(before[key][name])
