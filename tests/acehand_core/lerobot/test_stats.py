"""Statistics by arithmetic: of features and videos, merged, exact, and when they are complete."""

from __future__ import annotations

import json
import math
from pathlib import Path

import av
import numpy as np
import pytest

from acehand_core.errors import SchemaError, VideoError
from acehand_core.lerobot import format as layout
from acehand_core.lerobot import stats as statistics
from acehand_core.lerobot.dataset import create
from acehand_core.lerobot.format import FeatureSpec
from acehand_core.lerobot.stats import (
    QUANTILES,
    are_provisional,
    dataset_stats,
    describes,
    episode_stats,
    feature_stats,
    image_stats,
    merge,
    read_stats,
    stat_shape,
    stats_to_json,
)
from helpers import lerobot_samples as samples

GRIP = FeatureSpec("action", "float32", (1,), ("grip",))


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    """A dataset without videos: ``action`` counts 0 to 3 and 0 to 1, so ``index`` 0 to 5."""
    with create(tmp_path / "data", 10, [GRIP], "any") as writer:
        for frames in (4, 2):
            values = np.arange(frames, dtype=np.float32)
            writer.add_episode({"action": values}, "grip", {}, {"source": "numbers"})
    return tmp_path / "data"


def features_of(root: Path) -> dict:
    return json.loads((root / layout.INFO_PATH).read_text())["features"]


def test_stats_of_every_column() -> None:
    """0 to 100, times 1 to 20: quantiles are whole, the variance is (101^2 - 1) / 12."""
    factors = np.arange(1, 21)
    values = np.random.default_rng(0).permutation(101)[:, None] * factors
    stats = feature_stats(values)
    assert stats["count"].tolist() == [101]
    for name, one in {"min": 0, "max": 100, "mean": 50, "std": math.sqrt(850)}.items():
        np.testing.assert_allclose(stats[name], one * factors, rtol=1e-12)
    for name, one in zip(QUANTILES, (1, 10, 50, 90, 99), strict=True):
        np.testing.assert_allclose(stats[name], one * factors, rtol=1e-12)

    flat = feature_stats(np.array([1, 3]))
    assert flat["mean"].tolist() == [2] and flat["count"].tolist() == [2]
    pooled = feature_stats(np.array([[[1.0, 2.0], [3.0, 6.0]], [[5.0, 4.0], [7.0, 0.0]]]))
    assert pooled["mean"].tolist() == [4, 3] and pooled["count"].tolist() == [2]


def test_merging_by_hand() -> None:
    """One frame at 0 and three about 4: variance 1/4 * 3^2 + 3/4 * (2^2 + 1^2)."""
    one = {"min": -1.0, "max": 5.0, "mean": 0.0, "std": 0.0, "count": 1}
    three = {"min": -2.0, "max": 3.0, "mean": 4.0, "std": 2.0, "count": 3}
    parts = [one | dict.fromkeys(QUANTILES, 2.0), three | dict.fromkeys(QUANTILES, 6.0)]
    merged = merge([{name: np.array([value]) for name, value in part.items()} for part in parts])
    expected = {"min": -2, "max": 5, "mean": 3, "std": math.sqrt(6), "count": 4}
    for name, value in (expected | dict.fromkeys(QUANTILES, 5)).items():
        assert merged[name] == pytest.approx(value), name


def test_a_histogram_has_the_stats_of_its_pixels() -> None:
    random = np.random.default_rng(1)
    for pixels in (random.integers(3, 250, 1000), np.array([7]), np.array([0, 255, 255])):
        stats = statistics._histogram_stats(np.bincount(pixels, minlength=256))
        assert (stats["min"], stats["max"]) == (pixels.min(), pixels.max())
        assert stats["mean"] == pytest.approx(pixels.mean())
        assert stats["std"] == pytest.approx(pixels.std())
        for name, quantile in QUANTILES.items():
            assert stats[name] == pytest.approx(np.quantile(pixels, quantile)), name


@pytest.mark.parametrize(
    ("frames", "group", "step"),
    [
        (20, 4, 1),  # 5 key frames are too few: all frames
        (64, 4, 4),  # 16 are enough
        (260, 4, 8),  # of 65 every other one
        (128, 500, 2),  # one key frame: of all, at most 64
        (129, 500, 4),
    ],
)
def test_which_frames_of_a_video_count(tmp_path: Path, frames: int, group: int, step: int) -> None:
    stats = image_stats(samples.video(tmp_path / "a.mp4", frames, 0, group=group))
    grays = np.array([samples.gray(k, 0) for k in range(0, frames, step)]) / 255
    assert stats["count"].tolist() == [len(grays)]
    for name in ("min", "max", "mean", "std"):
        expected = np.full((3, 1, 1), getattr(grays, name)())
        np.testing.assert_allclose(stats[name], expected, atol=0.012, err_msg=name)


def test_of_a_large_picture_every_fourth_pixel_counts(tmp_path: Path) -> None:
    """Black and white columns by turns: none of them is mixed. Sound is no frame."""
    image = np.zeros((320, 640, 3), np.uint8)
    image[:, 1::2] = 255
    path = tmp_path / "a.mp4"
    with av.open(f"file:{path}", "w") as container:
        pictures = container.add_stream("libx264", rate=30, options={"crf": "1"})
        pictures.width, pictures.height, pictures.pix_fmt = 640, 320, "yuv420p"
        sound = container.add_stream("aac", rate=48000)
        silence = av.AudioFrame.from_ndarray(np.zeros((1, 48000), np.float32), "fltp", "mono")
        silence.sample_rate = 48000
        container.mux(sound.encode(silence))
        for _ in range(3):
            container.mux(pictures.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux([*pictures.encode(), *sound.encode()])

    assert statistics._counts(path) == (1, 3)
    for sample in statistics._sample(path, key_frames=False, count=3):
        assert sample.shape == (80, 160, 3)
        assert (np.abs(sample.astype(int) - 128) > 100).all()


def test_more_frames_than_a_file_counts_are_thinned_out(tmp_path: Path) -> None:
    path = samples.video(tmp_path / "a.mp4", 128, 0)
    found = [image.mean() for image in statistics._sample(path, key_frames=False, count=1)]
    assert found == pytest.approx([samples.gray(k, 0) for k in range(0, 128, 2)], abs=3)


def test_a_video_that_cannot_be_decoded_is_named(tmp_path: Path) -> None:
    path = tmp_path / "text.mp4"
    path.write_text("no video")
    with pytest.raises(VideoError, match=r"text\.mp4"):
        image_stats(path)


def test_exact_up_to_a_number_of_frames_then_averages(
    numbers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenth of the way from 0 to 5; or 0.3 of four frames and 4.1 of two, weighted."""
    rows, features = layout.read_episode_rows(numbers), features_of(numbers)
    for limit, expected in ((6, 0.5), (5, (4 * 0.3 + 2 * 4.1) / 6)):
        monkeypatch.setattr(statistics, "EXACT_FRAMES", limit)
        stats = dataset_stats(numbers, features, rows)
        assert set(stats) == set(features)
        assert stats["index"]["q10"] == pytest.approx(expected)
        assert stats["index"]["count"] == 6 and stats["action"]["max"] == 3
    monkeypatch.setattr(statistics, "EXACT_FRAMES", 4)
    first = dataset_stats(numbers, features, rows[:1])
    assert first["index"]["q50"] == pytest.approx(1.5) and first["index"]["count"] == 4


def test_averaged_quantiles_are_provisional(numbers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, path = layout.read_episode_rows(numbers), numbers / layout.STATS_PATH
    assert not are_provisional(numbers, rows) and not are_provisional(numbers, [])

    monkeypatch.setattr(statistics, "EXACT_FRAMES", 1)
    averaged = stats_to_json(dataset_stats(numbers, features_of(numbers), rows))
    path.write_text(json.dumps(averaged))
    assert not are_provisional(numbers, rows)  # too long for exact ones
    monkeypatch.setattr(statistics, "EXACT_FRAMES", 6)
    assert are_provisional(numbers, rows)

    index = averaged.pop("index")
    for broken in ({}, {"index": {}}, {"index": index | {"q10": [0.0, 0.0]}}):
        path.write_text(json.dumps(averaged | broken))
        assert not are_provisional(numbers, rows)
    averaged["index"] = index
    path.write_text(json.dumps(averaged))
    monkeypatch.setattr(layout, "read_record", lambda root, row: None)  # another writer's
    assert not are_provisional(numbers, rows)


def test_which_stats_are_complete() -> None:
    features = {
        "index": {"dtype": "int64", "shape": [1]},
        "joints": {"dtype": "float32", "shape": [21, 3]},
        "ego": {"dtype": "video", "shape": [48, 64, 3]},
    }
    shapes = {"index": (1,), "joints": (3,), "ego": (3, 1, 1)}
    names = ("min", "max", "mean", "std", *QUANTILES)
    for key, feature in features.items():
        assert stat_shape(feature, "count") == (1,)
        assert {stat_shape(feature, name) for name in names} == {shapes[key]}

    stats = {
        key: {name: np.zeros(shape) for name in names} | {"count": np.array([7])}
        for key, shape in shapes.items()
    }
    assert describes(stats, features, 7) and not describes(stats, features, 8)
    for key in features:
        assert not describes(stats | {key: {}}, features, 7)
        assert not describes({k: v for k, v in stats.items() if k != key}, features, 7)
        for name in (*names, "count"):
            assert not describes(stats | {key: stats[key] | {name: np.zeros(2)}}, features, 7)


def test_a_missing_column_is_named_with_its_episode(numbers: Path) -> None:
    row = layout.read_episode_rows(numbers)[1]
    assert episode_stats(row, "action")["max"] == 1
    del row["stats/action/q50"]
    with pytest.raises(SchemaError, match=r"\b1\b.*stats/action/q50"):
        episode_stats(row, "action")


def test_broken_stats_are_no_stats(numbers: Path) -> None:
    path = numbers / layout.STATS_PATH
    stats = read_stats(numbers)
    assert stats["action"]["max"].tolist() == [3] and stats["index"]["max"].dtype == np.float64
    assert stats_to_json(stats) == json.loads(path.read_text())
    for text in ("{", "[]", '{"a": 1}', '{"a": {"max": "x"}}', '{"a": {"max": {}}}'):
        path.write_text(text)
        assert read_stats(numbers) == {}, text
    path.unlink()
    assert read_stats(numbers) == {}
