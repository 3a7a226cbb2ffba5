"""What the writer puts into its tables, by hand, and what it refuses to append to."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from acehand_core.errors import OutputError, SchemaError
from acehand_core.lerobot import format as layout
from acehand_core.lerobot import writer as writers
from acehand_core.lerobot.dataset import create, open_for_append
from acehand_core.lerobot.format import FeatureSpec
from acehand_core.lerobot.stats import STAT_NAMES
from acehand_core.lerobot.writer import expected_columns, index_columns, unusable
from acehand_core.recordings.video_encode import probe_video
from helpers import lerobot_samples as samples

GRIP = FeatureSpec("action", "float32", (1,), ("grip",))
STATE = FeatureSpec("state", "int64", (2,), ("a", "b"))


def add(root: Path, *tasks: str) -> Path:
    """Add episodes of 3 frames at 10 fps, the first of a new dataset if there is none."""
    writer = open_for_append(root, 10, [GRIP, STATE], "any") if root.exists() else None
    with writer or create(root, 10, [GRIP, STATE], "any") as writer:
        for task in tasks:
            columns = {"action": np.array([0.0, 1.0, 5.0]), "state": np.arange(6).reshape(3, 2)}
            writer.add_episode(columns, task, {})
    return root


def test_index_columns_by_hand() -> None:
    columns = index_columns(3, 10, episode=2, first=7, task=1)
    expected = {"timestamp": [0.0, 0.1, 0.2], "frame_index": [0, 1, 2], "episode_index": [2, 2, 2]}
    expected |= {"index": [7, 8, 9], "task_index": [1, 1, 1]}
    assert set(columns) == set(expected)
    for key, values in expected.items():
        kind = np.float32 if key == "timestamp" else np.int64
        assert columns[key].dtype == kind, key
        assert np.array_equal(columns[key], np.array(values, kind)), key


def test_a_row_of_the_episode_table_by_hand(tmp_path: Path) -> None:
    root = add(tmp_path / "data", "grip", "let go")
    add(root, "let go")
    rows = layout.read_episode_rows(root)
    assert [row["tasks"] for row in rows] == [["grip"], ["let go"], ["let go"]]
    assert [row["length"] for row in rows] == [3, 3, 3]
    assert [row["dataset_from_index"] for row in rows] == [0, 3, 6]
    assert [row["dataset_to_index"] for row in rows] == [3, 6, 9]
    for place in ("data", "meta/episodes"):
        numbers = [(row[f"{place}/chunk_index"], row[f"{place}/file_index"]) for row in rows]
        assert numbers == [(0, 0), (0, 1), (0, 2)]
    assert rows[1]["stats/action/mean"] == [2.0] and rows[1]["stats/state/max"] == [4.0, 5.0]
    assert rows[1]["stats/action/count"] == [3] and rows[2]["stats/index/min"] == [6.0]

    types = pq.read_schema(root / "meta/episodes/chunk-000/file-000.parquet")
    for key, kind in (("count", pa.int64()), ("min", pa.float64()), ("q99", pa.float64())):
        assert types.field(f"stats/action/{key}").type == pa.list_(kind)
    assert types.field("tasks").type == pa.list_(pa.string())

    info = json.loads((root / layout.INFO_PATH).read_text())
    assert (info["total_episodes"], info["total_frames"], info["total_tasks"]) == (3, 9, 2)
    assert info["splits"] == {"train": "0:3"}
    table = pq.read_table(root / "data/chunk-000/file-002.parquet", partitioning=None)
    assert table["task_index"].to_pylist() == [1, 1, 1]
    assert table.column_names == list(info["features"])


def test_which_columns_the_episode_table_must_have() -> None:
    features = {
        "ego": {"dtype": "video"},
        "action": {"dtype": "float32"},
        "note": {"dtype": "string"},  # another writer's
    }
    assert expected_columns({"features": features}) == {
        "episode_index", "tasks", "length", "dataset_from_index", "dataset_to_index",
        "videos/ego/from_timestamp", "videos/ego/to_timestamp",
        *(f"{place}/{kind}_index" for place in ("data", "meta/episodes", "videos/ego")
          for kind in ("chunk", "file")),
        *(f"stats/{key}/{name}" for key in ("ego", "action") for name in STAT_NAMES),
    }  # fmt: skip


@pytest.mark.parametrize(("key", "value"), [
    *(("tasks", value) for value in ("grip", None)),
    *(("length", value) for value in (-1, None, 3.0, True)),
    *(("videos/ego/to_timestamp", value) for value in (None, 1, math.inf)),
    *(("stats/action/min", value) for value in (1.0, [None])),
])  # fmt: skip
def test_values_that_no_row_can_have(key: str, value: object) -> None:
    row = {"tasks": ["grip"], "length": 0, "videos/ego/to_timestamp": 0.1,
           "stats/action/min": [1.0]}  # fmt: skip
    assert unusable(row, set(row)) == []
    assert unusable(row | {key: value}, set(row)) == [key]
    assert unusable(row | {key: value}, set(row) - {key}) == []
    assert unusable({k: v for k, v in row.items() if k != key}, set(row)) == [key]


def test_a_damaged_dataset_is_not_appended_to(tmp_path: Path) -> None:
    root = add(tmp_path / "data", "grip")
    path = root / layout.INFO_PATH
    info = json.loads(path.read_text())
    for change, numbers in (
        ({"total_episodes": 2, "splits": {"train": "0:2"}}, r"\b2 episodes.*\b1 and 3\b"),
        ({"total_frames": 4}, r"\b4 frames.*\b1 and 3\b"),
    ):
        path.write_text(json.dumps(info | change))
        with pytest.raises(SchemaError, match=numbers):
            add(root, "grip")
    path.write_text(json.dumps(info))

    (episodes,) = (root / "meta/episodes").rglob("*.parquet")
    table = pq.read_table(episodes, partitioning=None)
    pq.write_table(table.drop_columns(["length", "stats/action/q50"]), episodes)
    with pytest.raises(SchemaError, match=r"\['length', 'stats/action/q50'\]"):
        add(root, "grip")


def test_lost_statistics_are_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = add(tmp_path / "data", "grip")
    path = root / layout.STATS_PATH
    whole = json.loads(path.read_text())
    path.unlink()
    columns = {"action": np.array([0.0, 1.0, 9.0]), "state": np.arange(6).reshape(3, 2)}
    with open_for_append(root, 10, [GRIP, STATE], "any") as writer:
        writer.add_episode(columns, "grip", {})
        stats = json.loads(path.read_text())["action"]
        assert (stats["count"], stats["max"]) == ([6], [9.0])
        assert stats["mean"] == pytest.approx([16 / 6])
    stats = json.loads(path.read_text())
    assert stats["action"]["count"] == [6] and stats["index"]["max"] == [5.0]
    assert stats["action"]["q50"] == whole["action"]["q50"] == [1.0]

    monkeypatch.setattr(writers, "dataset_stats", None)  # what is there is read
    add(root)


def test_a_videos_facts_are_those_of_the_first_episode(tmp_path: Path) -> None:
    path = samples.video(tmp_path / "a.mp4", 3, 0)
    facts = {samples.EGO: probe_video(path)}
    with create(tmp_path / "data", 30, samples.FEATURES, "any") as writer:
        for kept, codec in ((None, "h264"), ({"video.codec": "av1"}, "av1")):
            if kept:
                writer._info["features"][samples.EGO]["info"] = kept
            before = json.dumps(writer._info)
            info = writer._next_info(3, "wave", facts)
            assert info["features"][samples.EGO]["info"]["video.codec"] == codec
            assert (info["total_episodes"], info["total_frames"], info["total_tasks"]) == (1, 3, 1)
            assert json.dumps(writer._info) == before  # the episode may still fail


def test_further_files_of_an_episode_are_placed(tmp_path: Path) -> None:
    root = tmp_path / "data"
    with create(root, 10, [GRIP], "any") as writer:
        staged = writer.scratch("note.txt")
        staged.write_text("by hand")
        columns = {"action": np.zeros((3, 1), np.float32)}
        assert writer.add_episode(columns, "grip", {}, extras={"meta/note.txt": staged}) == 0
        assert (writer.total_episodes, writer.total_frames) == (1, 3)
    assert (root / "meta/note.txt").read_text() == "by hand"
    with pytest.raises(OutputError, match="data"):
        writer.scratch("more.txt")
    writer.close()  # once more does no harm


def test_of_columns_the_shape_and_kind_must_fit(tmp_path: Path) -> None:
    good = {"action": np.zeros(3), "state": np.zeros((3, 2), np.int64)}
    bad = {
        "state": [(np.zeros(3, np.int64), r"\(3,\)"), (np.zeros((3, 2)), "float64.*int64")],
        "action": [
            (np.array(1.0), r"\(\)"),
            (np.zeros((3, 2)), r"\(3, 2\)"),
            (np.array([0.0, 1.0, np.inf]), "frame 2"),
        ],
    }
    with create(tmp_path / "data", 10, [GRIP, STATE], "any") as writer:
        for key, values in bad.items():
            for value, named in values:
                with pytest.raises(SchemaError, match=rf"{key}.*{named}"):
                    writer.add_episode(good | {key: value}, "grip", {})
        with pytest.raises(SchemaError, match=r"\['state'\].*\['more'\]"):
            writer.add_episode({"action": np.zeros(3), "more": np.zeros(3)}, "grip", {})
        with pytest.raises(SchemaError, match="length"):
            writer.add_episode(good | {"action": np.zeros(2)}, "grip", {})
        with pytest.raises(SchemaError, match=r"\b0\b"):
            writer.add_episode({"action": np.zeros(0), "state": np.zeros((0, 2), int)}, "a", {})
        writer.add_episode(good, "grip", {})
