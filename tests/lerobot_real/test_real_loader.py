"""The unmodified lerobot reads our datasets, adds to them, and writes one for our validator.

Run by a Python that has lerobot (``test_lerobot_loader.py`` does): it opens every dataset in
the folder ``$ACEHAND_LEROBOT_DATASETS``. ``NAME.npz`` next to a dataset, if there, holds what must
come out of it. Nothing of ours is imported.
"""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("lerobot", reason="lerobot is not installed here")
import torch
from lerobot.datasets.compute_stats import get_feature_stats
from lerobot.datasets.lerobot_dataset import LeRobotDataset

if "ACEHAND_LEROBOT_DATASETS" not in os.environ:
    pytest.skip("ACEHAND_LEROBOT_DATASETS names no folder", allow_module_level=True)
FOLDER = Path(os.environ["ACEHAND_LEROBOT_DATASETS"])
NAMES = sorted(path.parent.parent.name for path in FOLDER.glob("*/meta/info.json"))
STATS = {"min", "max", "mean", "std", "count", "q01", "q10", "q50", "q90", "q99"}


@pytest.fixture(scope="module", params=NAMES)
def dataset(request):
    return LeRobotDataset("local/test", root=FOLDER / request.param)


@pytest.fixture
def expected(dataset):
    path = dataset.root.with_suffix(".npz")
    return dict(np.load(path)) if path.exists() else None


def numbers(dataset):
    return [key for key, feature in dataset.features.items() if feature["dtype"] != "video"]


def columns(dataset):
    """Return every column of the frames that count, as the reader's tensors."""
    rows = [dataset.hf_dataset[i] for i in range(len(dataset))]
    return {key: torch.stack([row[key] for row in rows]).numpy() for key in numbers(dataset)}


def test_counts_agree(dataset):
    info = json.loads((dataset.root / "meta/info.json").read_text())
    assert len(dataset) == info["total_frames"] > 0
    assert dataset.num_episodes == info["total_episodes"]
    lengths = [dataset.meta.episodes[i]["length"] for i in range(dataset.num_episodes)]
    assert sum(lengths) == len(dataset)


def test_every_frame_comes_out_in_its_place(dataset, expected):
    seen = 0
    for episode in range(dataset.num_episodes):
        row = dataset.meta.episodes[episode]
        for frame in range(row["length"]):
            item = dataset[seen]
            assert item["index"] == seen and item["frame_index"] == frame
            assert item["episode_index"] == episode
            assert abs(item["timestamp"].item() - frame / dataset.fps) < 1e-4
            assert [item["task"]] == row["tasks"]
            for key in dataset.meta.video_keys:
                height, width, _ = dataset.features[key]["shape"]
                if key in dataset.meta.depth_keys:
                    assert item[key].dtype == torch.float32  # millimetres
                    assert np.array_equal(item[key].numpy(), expected["depth"][None, seen])
                    continue
                assert item[key].shape == (3, height, width)
                assert item[key].dtype == torch.float32 and 0 <= item[key].min() <= 1
                if expected is not None and "gray" in expected:
                    grey = item[key].mean().item() * 255
                    assert abs(grey - expected["gray"][seen]) < 4, f"frame {seen} of {key}"
            seen += 1
    assert seen == len(dataset)


def test_values_are_those_written(dataset, expected):
    if expected is None:
        pytest.skip("nothing to compare with")
    for key, found in columns(dataset).items():
        assert np.isfinite(found).all(), key
        if key in expected:
            wanted = expected[key][: len(dataset)].reshape(found.shape)
            assert found.dtype == wanted.dtype and np.array_equal(found, wanted), key
    tasks = [dataset[i]["task"] for i in range(len(dataset))]
    assert tasks == expected["task"][: len(dataset)].tolist()


def test_every_vector_has_names(dataset):
    for key, feature in dataset.features.items():
        names = dataset.meta.names[key]
        if key in ("timestamp", "frame_index", "episode_index", "index", "task_index"):
            continue
        if isinstance(names, dict):
            assert tuple(len(labels) for labels in names.values()) == feature["shape"], key
        elif feature["dtype"] == "video":
            assert list(names) == ["height", "width", "channels"]
        else:
            assert len(names) == feature["shape"][0], key


def test_stats_have_the_shapes_and_values_of_lerobots_own(dataset):
    assert set(dataset.meta.stats) == set(dataset.features)
    frames = int(dataset.meta.stats["index"]["count"][0])
    # Killed between stats.json and info.json, the last episode is counted in one of them only.
    assert frames >= len(dataset)
    for key, stats in dataset.meta.stats.items():
        assert set(stats) == STATS, key
    for key, found in columns(dataset).items():
        if frames > len(dataset):
            continue
        own = get_feature_stats(found, axis=0, keepdims=found.ndim == 1)
        ours = dataset.meta.stats[key]
        # Time stamps of 1e18 ns leave float64 no digits below a hundred.
        near = 1e-3 * np.ptp(found.astype(np.float64)) + 1e-9
        near = max(near, 16 * np.spacing(np.abs(found.astype(np.float64)).max()))
        for name, value in own.items():
            assert ours[name].shape == value.shape, (key, name)
            if name.startswith("q"):
                # Estimated from a histogram there, and averaged over episodes in a dataset whose
                # writer was killed before it closed it: the order is what must hold.
                # lerobot's own lie 1e-10 outside.
                assert (ours["min"] - near <= ours[name]).all()
                assert (ours[name] <= ours["max"] + near).all()
            else:
                if name == "std":  # lerobot subtracts large squares in float32: exact values here
                    exact = found.astype(np.float64)
                    value = exact.std(axis=tuple(range(max(1, found.ndim - 1))))
                np.testing.assert_allclose(
                    ours[name], value, atol=near, rtol=1e-6, err_msg=f"{key} {name}"
                )
    for key in dataset.meta.video_keys:
        mean = dataset.meta.stats[key]["mean"]
        if key in dataset.meta.depth_keys:
            assert mean.shape == (1, 1, 1) and 300 < mean < 600
            continue
        assert mean.shape == (3, 1, 1) and (mean >= 0).all() and (mean <= 1).all()


def test_windows_around_a_frame_stay_in_its_episode(dataset):
    steps = [-1 / dataset.fps, 0.0, 1 / dataset.fps]
    keys = [key for key in dataset.features if key.startswith(("observation.state", "action"))]
    keys += dataset.meta.video_keys
    windows = LeRobotDataset(
        "local/test", root=dataset.root, delta_timestamps={key: steps for key in keys}
    )
    last = dataset.meta.episodes[0]["length"] - 1
    for index in {0, last // 2, last}:
        item = windows[index]
        for key in keys:
            assert item[key].shape[0] == 3
            pads = [index == 0, False, index == last]
            assert item[f"{key}_is_pad"].tolist() == pads
            for offset in (-1, 0, 1):
                near = dataset[min(max(index + offset, 0), last)]
                assert torch.equal(item[key][offset + 1], near[key])


def test_one_episode_can_be_loaded_alone(dataset):
    last = dataset.num_episodes - 1
    alone = LeRobotDataset("local/test", root=dataset.root, episodes=[last])
    start = dataset.meta.episodes[last]["dataset_from_index"]
    assert len(alone) == dataset.meta.episodes[last]["length"]
    assert alone[0]["index"] == start and alone[len(alone) - 1]["index"] == start + len(alone) - 1


def test_batches_load(dataset):
    loader = torch.utils.data.DataLoader(dataset, batch_size=4, shuffle=True)
    assert sum(len(batch["index"]) for batch in loader) == len(dataset)


def add_episodes(dataset, count):
    features = {k: f for k, f in dataset.features.items() if k in numbers(dataset)}
    for episode in range(count):
        for frame in range(6):
            values = {
                key: np.full(feature["shape"], frame + episode).astype(feature["dtype"])
                for key, feature in features.items()
                if key not in ("timestamp", "frame_index", "episode_index", "index", "task_index")
            }
            for key in dataset.meta.video_keys:
                values[key] = np.full(dataset.features[key]["shape"], 20 * frame, np.uint8)
            dataset.add_frame(values | {"task": "recorded"})
        dataset.save_episode()
    dataset.finalize()


@pytest.mark.skipif("finished" not in NAMES, reason="no dataset called finished")
def test_lerobot_can_record_into_our_dataset(tmp_path):
    root = shutil.copytree(FOLDER / "finished", tmp_path / "data")
    before = len(LeRobotDataset("local/test", root=root))
    add_episodes(LeRobotDataset.resume("local/test", root=root), 2)
    after = LeRobotDataset("local/test", root=root)
    assert len(after) == before + 12 and after[len(after) - 1]["task"] == "recorded"
    if "ACEHAND_LEROBOT_KEEP" in os.environ:
        shutil.copytree(root, Path(os.environ["ACEHAND_LEROBOT_KEEP"]) / "resumed")


@pytest.mark.skipif(
    "ACEHAND_LEROBOT_KEEP" not in os.environ, reason="ACEHAND_LEROBOT_KEEP is not set"
)
@pytest.mark.skipif("finished" not in NAMES, reason="no dataset called finished")
def test_lerobot_writes_a_dataset_of_the_same_features():
    ours = LeRobotDataset("local/test", root=FOLDER / "finished")
    root = Path(os.environ["ACEHAND_LEROBOT_KEEP"]) / "recorded"
    features = {key: ours.features[key] for key in ours.features}
    theirs = LeRobotDataset.create("local/test", ours.fps, features, root, ours.meta.robot_type)
    add_episodes(theirs, 3)
    assert len(LeRobotDataset("local/test", root=root)) == 18
