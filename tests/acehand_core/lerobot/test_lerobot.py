"""Datasets are written whole, or not at all: format, statistics, appending, crashes, full disks."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acehand_core.errors import InputError, OutputError, SchemaError, VideoError
from acehand_core.lerobot import format as layout
from acehand_core.lerobot.check import check_dataset
from acehand_core.lerobot.dataset import create, open_for_append, read_provenance
from acehand_core.lerobot.format import FeatureSpec, video_feature
from acehand_core.lerobot.stats import feature_stats
from acehand_core.lerobot.writer import max_episode_frames
from helpers import lerobot_samples as samples
from helpers.lerobot_samples import check_every_frame

EPISODES, MORE, EGO = samples.EPISODES, samples.MORE, samples.EGO


@pytest.fixture
def mp4(tmp_path):
    """A video of 9 frames."""
    return samples.video(tmp_path / "nine.mp4", 9, 0)


def test_a_new_dataset_holds_what_was_added_and_is_sound(dataset):
    assert check_every_frame(dataset) == []
    samples.assert_holds(dataset, list(EPISODES), [0, 1, 2])
    assert [entry["source"] for entry in read_provenance(dataset)] == ["0.mp4", "1.mp4", "2.mp4"]
    assert [path.name for path in dataset.parent.iterdir()] == ["data"]


def test_info_says_what_the_reader_needs(dataset):
    info = json.loads((dataset / layout.INFO_PATH).read_text())
    assert info["codebase_version"] == "v3.0" and info["fps"] == 30
    assert (info["total_episodes"], info["total_frames"], info["total_tasks"]) == (3, 25, 2)
    assert info["splits"] == {"train": "0:3"} and info["robot_type"] == samples.ROBOT
    joints = info["features"]["observation.joints"]
    assert joints["shape"] == [2, 21, 3] and list(joints["names"]) == ["hand", "joint", "axis"]
    assert info["features"]["observation.state"]["info"] == {"unit": "rad"}
    assert info["features"]["timestamp"] == {"dtype": "float32", "shape": [1], "names": None}
    assert info["features"][EGO]["info"] == {
        "video.height": 48, "video.width": 64, "video.codec": "h264", "video.fps": 30,
        "video.pix_fmt": "yuv420p", "video.channels": 3, "has_audio": False, "is_depth_map": False,
    }  # fmt: skip


def test_files_are_one_per_episode_with_exact_times(dataset):
    for number, (_, frames) in enumerate(EPISODES):
        path = dataset / layout.DATA_PATH.format(chunk_index=0, file_index=number)
        metadata = pq.read_metadata(path)
        assert metadata.num_row_groups == 1 and metadata.num_rows == frames
        assert metadata.row_group(0).column(0).compression == "SNAPPY"
        stamps = pq.read_table(path, partitioning=None)["timestamp"].to_numpy()
        assert stamps.dtype == np.float32
        assert np.array_equal(stamps, (np.arange(frames) / 30).astype(np.float32))
    row = layout.read_episode_rows(dataset)[2]
    assert row[f"videos/{EGO}/from_timestamp"] == 0.0
    assert row[f"videos/{EGO}/to_timestamp"] == 5 / 30
    assert row["tasks"] == ["wave"] and row["data/file_index"] == 2


def test_the_task_table_is_a_pandas_frame_indexed_by_task(dataset):
    table = pq.read_table(dataset / layout.TASKS_PATH)
    assert table.column_names == ["task_index", "task"]
    pandas = json.loads(table.schema.metadata[b"pandas"])
    assert pandas["index_columns"] == ["task"]
    assert [column["name"] for column in pandas["columns"]] == ["task_index", "task"]
    assert layout.read_tasks(dataset) == ["wave", "grasp a cup"]


def test_a_dataset_of_several_chunks_reads_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr(layout, "CHUNK_SIZE", 2)
    root = samples.append(samples.write(tmp_path / "data"))
    chunks = sorted(path.parent.name for path in root.glob("data/*/*.parquet"))
    assert chunks == ["chunk-000", "chunk-000", "chunk-001", "chunk-001"]
    assert check_dataset(root) == []
    samples.assert_holds(root, [*EPISODES, MORE], [0, 1, 2, 3])


def test_what_describes_a_dataset_must_be_json(own, mp4):
    spec = FeatureSpec("a", "float32", (1,), ("x",), {"range": (0, 1)})
    assert spec.to_json()["info"] == {"range": [0, 1]}
    with pytest.raises(SchemaError, match="plain JSON"):
        FeatureSpec("a", "float32", (1,), ("x",), {"range": np.zeros(2)}).to_json()
    with (
        open_for_append(own, 30, samples.FEATURES, samples.ROBOT) as writer,
        pytest.raises(SchemaError, match="plain JSON"),
    ):
        writer.add_episode(samples.columns(9, 0), "wave", {EGO: mp4}, {"score": float("nan")})


def test_bad_bytes_in_a_table_are_noticed(own):
    path = own / layout.DATA_PATH.format(chunk_index=0, file_index=0)
    content = bytearray(path.read_bytes())
    content[len(content) // 4] ^= 0x10
    path.write_bytes(content)
    assert [problem.path for problem in check_dataset(own)] == ["data/chunk-000/file-000.parquet"]


@given(
    st.sampled_from(["float32", "int64", "bool"]),
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.integers(0, 5),
)
@settings(max_examples=40, deadline=None)
def test_columns_survive_the_round_trip(dtype, shape, rows):
    values = np.arange(rows * int(np.prod(shape))).reshape(rows, *shape).astype(dtype)
    array = layout.column_array(values, dtype, shape)
    stored = {"float32": pa.float32(), "int64": pa.int64(), "bool": pa.bool_()}[dtype]
    if len(shape) > 1:  # a list per axis
        for _ in shape:
            stored = pa.list_(stored)
    elif shape != [1]:
        stored = pa.list_(stored, shape[0])
    assert array.type == stored
    back = layout.column_values(pa.chunked_array([array]), shape)
    assert back.dtype == values.dtype and np.array_equal(back, values)
    assert np.array_equal(np.array(array.to_pylist(), dtype).reshape(values.shape), values)


def test_integer_stats_do_not_lose_their_spread_at_large_values():
    stats = feature_stats(10**18 + np.arange(1000, dtype=np.int64) * 33_333_333)
    assert stats["std"][0] == pytest.approx(np.arange(1000).std() * 33_333_333, rel=1e-6)


def test_the_longest_episode_keeps_its_timestamps_within_the_readers_tolerance():
    for fps in (24, 30, 50):
        frames = max_episode_frames(fps)
        assert frames / fps == pytest.approx(34.13 * 60, abs=1)
        exact = np.arange(2 * frames) / fps
        off = np.abs(exact.astype(np.float32) - exact)
        assert off[:frames].max() <= 1e-4
    assert off.max() > 1e-4


def test_videos_and_tasks_that_do_not_fit_are_refused(own, mp4, tmp_path):
    fast = samples.video(tmp_path / "fast.mp4", 9, 0, rate=25)
    large = samples.video(tmp_path / "large.mp4", 9, 0, size=(96, 64))
    (tmp_path / "text.mp4").write_text("no video")
    columns = samples.columns(9, 0)
    with open_for_append(own, 30, samples.FEATURES, samples.ROBOT) as writer:
        for videos, task, message in [
            ({EGO: fast}, "wave", "frame 1 is shown at 0.04"), ({EGO: large}, "wave", "96 x 64"),
            ({EGO: tmp_path / "text.mp4"}, "wave", r"text\.mp4"), ({}, "wave", "one video"),
            ({EGO: tmp_path / "absent.mp4"}, "wave", r"absent\.mp4"), ({EGO: mp4}, "  ", "task"),
        ]:  # fmt: skip
            with pytest.raises((SchemaError, VideoError), match=message):
                writer.add_episode(columns, task, videos)
        assert writer.add_episode(columns, "wave", {EGO: mp4}) == 3
    assert mp4.exists(), "a file of the caller's is copied, not moved"
    assert check_every_frame(own) == []


def test_features_the_format_does_not_allow_are_refused():
    for arguments, message in [
        (("a/b", "float32", (2,), ("x", "y")), "no '/'"),
        (("index", "int64", (1,), ("x",)), "timestamp"),
        (("a", "float32", (2,), ("x",)), "1 names for 2"),
        (("a", "float32", (2,), ("x", "x")), "repeat"),
        (("a", "float32", (2, 3), ("x", "y")), "axis -> labels"),
        (("a", "float32", (2, 3), {"u": "xy", "v": "xy"}), r"\[2, 2\] labels"),
        (("a", "float32", (0,), ()), "positive"),
        (("a", "video", (4, 4), ("h", "w")), "height, width, 3"),
    ]:
        with pytest.raises(SchemaError, match=message):
            FeatureSpec(*arguments)


def test_an_episode_is_never_too_long_for_its_timestamps(tmp_path):
    """In a dataset that has no video."""
    feature = FeatureSpec("action", "float32", (1,), ("grip",))
    with create(tmp_path / "data", 1, [feature], "any") as writer:
        with pytest.raises(SchemaError, match="split the recording"):
            writer.add_episode({"action": np.zeros(2049)}, "grip", {})
        with pytest.raises(SchemaError, match="No video feature"):
            writer.scratch_video("ego")
        writer.add_episode({"action": np.zeros(2048)}, "grip", {})
    assert check_dataset(tmp_path / "data") == [] and not (tmp_path / "data" / "videos").exists()


def test_appending_continues_every_count(own):
    before = samples.snapshot(own)
    samples.append(own)
    assert check_every_frame(own) == []
    samples.assert_holds(own, [*EPISODES, MORE], [0, 1, 2, 3])
    assert {name for name, data in samples.snapshot(own).items() if before.get(name) != data} == {
        f"videos/{EGO}/chunk-000/file-003.mp4", "data/chunk-000/file-003.parquet",
        "meta/episodes/chunk-000/file-003.parquet", layout.TASKS_PATH, layout.STATS_PATH,
        layout.INFO_PATH,
    }  # fmt: skip


def test_appending_demands_the_same_features_and_names_each_difference(own):
    features = [*samples.FEATURES[:2], video_feature("observation.images.wrist", 8, 8)]
    features[1] = FeatureSpec("observation.state", "float32", (4,), tuple("abce"), {"unit": "rad"})
    with pytest.raises(SchemaError) as caught:
        open_for_append(own, 25, features, "other")
    for part in (
        "fps is 25, the dataset has 30",
        "robot_type is 'other', the dataset has 'inspire'",
        "names of 'observation.state' is ['a', 'b', 'c', 'e']",
        "the dataset has no feature 'observation.images.wrist'",
        "the dataset also has feature 'observation.joints'",
    ):
        assert part in str(caught.value)
    samples.append(own)  # the failed attempt left no lock


def test_two_writers_at_once_are_refused(own):
    with (
        open_for_append(own, 30, samples.FEATURES, samples.ROBOT),
        pytest.raises(OutputError, match="another process"),
    ):
        open_for_append(own, 30, samples.FEATURES, samples.ROBOT)


def test_existing_folders_are_not_overwritten_by_accident(own, tmp_path):
    before, photos = samples.snapshot(own), tmp_path / "photos"
    with pytest.raises(OutputError, match="exists"):
        samples.write(own)
    photos.mkdir()
    (photos / "one.jpg").write_text("x")
    with pytest.raises(OutputError, match="photos"):
        samples.write(photos, overwrite=True)
    with pytest.raises(InputError, match="photos"):
        samples.append(photos)
    assert samples.snapshot(own) == before and samples.names_in(tmp_path) == ["data", "photos"]


def test_overwriting_keeps_the_old_dataset_until_the_new_one_is_there(own):
    before = samples.snapshot(own)
    with create(own, 30, samples.FEATURES, samples.ROBOT, overwrite=True) as writer:
        samples.video(writer.scratch_video(EGO), 9, 0)
        assert samples.snapshot(own) == before
        samples.add(writer, *MORE, seed=3)
        samples.assert_holds(own, [MORE], [3])
    assert samples.names_in(own.parent) == ["data"] and check_dataset(own) == []


def test_a_dataset_without_episodes_never_appears(tmp_path):
    with create(tmp_path / "a" / "data", 30, samples.FEATURES, samples.ROBOT) as writer:
        samples.video(writer.scratch_video(EGO), 9, 0)
    assert samples.names_in(tmp_path / "a") == []
    with pytest.raises(OutputError, match="closed"):
        writer.add_episode({}, "wave", {})
