"""The validator finds each kind of damage, and the repair saves what is whole."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from acehand_core.errors import InputError, SchemaError
from acehand_core.lerobot import format as layout
from acehand_core.lerobot.check import check_dataset
from acehand_core.lerobot.repair import SET_ASIDE, repair
from acehand_core.lerobot.transaction import STAGING
from helpers import lerobot_samples as samples
from helpers.lerobot_samples import DATA, ROWS, VIDEO, check_every_frame

EGO = samples.EGO


def edit_json(path: str, **changes: Any) -> Callable[[Path], None]:
    """Return a damage that sets values of a JSON file; keys are joined by two underscores."""

    def damage(root):
        content = json.loads((root / path).read_text())
        for key, value in changes.items():
            *outer, last = key.split("__")
            place = content
            for part in outer:
                place = place[part.replace("_of_", ".")]
            place[last] = value
            if value is None:
                del place[last]
        (root / path).write_text(json.dumps(content))

    return damage


def edit_table(path: str, change: Callable[[pa.Table], pa.Table]) -> Callable[[Path], None]:
    """Return a damage that rewrites a parquet file."""

    def damage(root):
        pq.write_table(change(pq.read_table(root / path, partitioning=None)), root / path)

    return damage


def column(
    number: int, key: str, change: Callable[[np.ndarray], np.ndarray], files: str = DATA
) -> Callable[[Path], None]:
    """Return a damage to one column of numbers of a data or row file."""

    def apply(table):
        values = change(table[key].to_numpy().copy())
        return table.set_column(table.column_names.index(key), key, pa.array(values))

    return edit_table(files.format(number), apply)


def cut(path: str, share: float | None, to: str = "") -> Callable[[Path], None]:
    """Return a damage that keeps the first part of a file, or nothing, maybe elsewhere."""

    def damage(root):
        content = (root / path).read_bytes()
        if share is None:
            (root / path).unlink()
        else:
            (root / (to or path)).write_bytes(content[: int(len(content) * share)])

    return damage


def new_video(number: int, frames: int, **options: Any) -> Callable[[Path], None]:
    """Return a damage that replaces a video."""
    return lambda root: samples.video(root / VIDEO.format(number), frames, 0, **options) and None


def late_video(root: Path) -> None:
    """Show every frame of the second video 2 ms late."""
    path = root / VIDEO.format(1)
    old = path.rename(root / "old.mp4")
    with av.open(str(old)) as source, av.open(str(path), "w") as new:
        stream = new.add_stream_from_template(source.streams.video[0])
        for packet in filter(lambda packet: packet.size, source.demux(video=0)):
            packet.pts += round(0.002 / packet.time_base)
            packet.dts, packet.stream = packet.pts, stream
            new.mux(packet)
    old.unlink()


def lose_a_statistic(root: Path) -> None:
    """Leave one column out of every episode's row."""
    for number in range(3):
        edit_table(ROWS.format(number), lambda t: t.drop_columns(["stats/index/q99"]))(root)


def scramble(root: Path) -> None:
    """Overwrite the coded pictures of the first video but leave its tables alone."""
    path = root / VIDEO.format(0)
    content = bytearray(path.read_bytes())
    start, stop = content.index(b"mdat") + 4, content.index(b"moov") - 4
    most = start + (stop - start) * 4 // 5
    content[most:stop] = bytes(stop - most)
    path.write_bytes(content)


def ragged(table: pa.Table) -> pa.Table:
    """Give the first frame's matrix a longer row and a shorter one."""
    key = "observation.orient"
    values = table[key].to_pylist()
    values[0][0].append(values[0][1].pop())
    column = pa.array(values, table.schema.field(key).type)
    return table.set_column(table.column_names.index(key), key, column)


def at(index: int, value: float) -> Callable[[np.ndarray], np.ndarray]:
    """Return a change of one entry."""

    def apply(values):
        values[index] = value
        return values

    return apply


INFO, STATS, TASKS = layout.INFO_PATH, layout.STATS_PATH, layout.TASKS_PATH
STATE, NS = "features__observation_of_state", "observation.ns"
DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "no info": (cut(INFO, None), "is missing"),
    "info cut off": (cut(INFO, 0.5), "cannot be read as JSON"),
    "version": (edit_json(INFO, codebase_version="v2.1"), "expected 'v3.0'"),
    "rate": (edit_json(INFO, fps=29.97), "fps must be a positive whole number"),
    "splits": (edit_json(INFO, splits={"train": "0:2"}), "splits are"),
    "names": (edit_json(INFO, **{f"{STATE}__names": ["a", "b"]}), "2 names, expected 4"),
    "shape": (edit_json(INFO, **{f"{STATE}__shape": [4, "x"]}), "whole numbers"),
    "mandatory": (edit_json(INFO, features__timestamp=None), "'timestamp' must exist"),
    "template": (edit_json(INFO, video_path="{video_key}.mp4"), "video_path is"),
    "frames": (edit_json(INFO, total_frames=24), "end at frame 25, info.json counts 24"),
    "episodes": (edit_json(INFO, total_episodes=2, splits={"train": "0:2"}), "3 episodes, info"),
    "no tasks": (cut(TASKS, None), "cannot be read as parquet"),
    "task order": (edit_table(TASKS, lambda t: t.take([1, 0])), "task_index must count"),
    "task count": (edit_table(TASKS, lambda t: t.slice(0, 1)), "1 tasks, info.json counts 2"),
    "no stats": (cut(STATS, None), "is missing"),
    "stats of a feature": (edit_json(STATS, action_of_x=1, index=None), "index: min, max"),
    "stale stats": (edit_json(STATS, observation_of_state__max=[9.0] * 4), "max is not that"),
    "stats shape": (edit_json(STATS, index__mean=12.0), "mean has shape ()"),
    "quantiles": (edit_json(STATS, index__q10=[23.0]), "q10 exceeds q50"),
    "stats count": (edit_json(STATS, index__count=[24]), "count is 24, the episodes have 25"),
    "no row": (cut(ROWS.format(1), None), "episode_index is 2"),
    "row twice": (cut(ROWS.format(0), 1, ROWS.format(1)), "episode_index is 0"),
    "row cut off": (cut(ROWS.format(1), 0.9), "cannot be read as parquet"),
    "row columns": (edit_table(ROWS.format(1), lambda t: t.drop_columns(["length"])), "['length']"),
    "row stats": (lose_a_statistic, "columns are missing: stats/index/q99"),
    "row length": (column(1, "length", at(0, 8), ROWS), "length 8"),
    "row time": (column(2, f"videos/{EGO}/to_timestamp", at(0, 0.1), ROWS), "5 frames at 30 fps"),
    "row place": (column(2, "meta/episodes/file_index", at(0, 1), ROWS), "as its own file"),
    "row task": (
        edit_table(
            ROWS.format(2),
            lambda t: t.set_column(1, "tasks", pa.array([["sleep"]], pa.list_(pa.string()))),
        ),
        "tasks ['sleep']",
    ),
    "no data": (cut(DATA.format(1), None), "file-001.parquet is missing"),
    "data cut off": (cut(DATA.format(1), 0.9), "cannot be read as parquet"),
    "orphan data": (cut(DATA.format(2), 1, DATA.format(9)), "30 rows, info.json counts 25"),
    "column lost": (edit_table(DATA.format(1), lambda t: t.drop_columns([NS])), f"['{NS}']"),
    "column type": (column(1, "timestamp", lambda v: v.astype(np.float64)), "is double"),
    "ragged": (edit_table(DATA.format(1), ragged), "does not have shape [2, 6]"),
    "index": (column(1, "index", at(3, 99)), "index is 99 at frame 3"),
    "frame_index": (column(1, "frame_index", lambda v: v[::-1]), "frame_index is 6 at frame 0"),
    "timestamp": (column(1, "timestamp", at(2, np.float32(0.067))), "timestamp is 0.067"),
    "nan": (column(1, "timestamp", at(2, np.nan)), "NaN or infinite"),
    "task_index": (column(1, "task_index", at(0, 0)), "task_index 0"),
    "no video": (cut(VIDEO.format(1), None), "file-001.mp4 is missing"),
    "video cut off": (cut(VIDEO.format(1), 0.5), "cannot be read as a video"),
    "short video": (new_video(1, 6), "6 frames, its episodes have 7"),
    "slow video": (new_video(1, 7, rate=29), "6 of 7 frames are not within"),
    "small video": (new_video(1, 7, size=(32, 32)), "32 x 32 pixels, info.json says 64 x 48"),
    "late video": (late_video, "7 of 7 frames are not within"),
    "scrambled video": (scramble, "cannot be decoded"),
    "interrupted": (lambda root: (root / STAGING).mkdir(), "run the repair"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_the_validator_finds(own, name):
    assert check_every_frame(own) == []
    damage, message = DAMAGES[name]
    damage(own)
    problems = [str(problem) for problem in check_dataset(own)]
    assert any(message in problem for problem in problems), problems
    assert len(problems) <= 4, "one fault is not reported many times"


@pytest.mark.few(3)
@pytest.mark.parametrize(("name", "kept"), [
    ("no row", 2), ("row cut off", 2), ("no data", 2), ("no stats", 3), ("data cut off", 2),
    ("video cut off", 2), ("short video", 2), ("frames", 3), ("episodes", 3), ("orphan data", 3),
    ("stats count", 3),
])  # fmt: skip
def test_the_repair_keeps_the_whole_episodes_and_loses_no_file(own, name, kept):
    DAMAGES[name][0](own)
    count = len(samples.snapshot(own))
    done = repair(own)
    assert f"kept {kept} whole episodes" in done[-1]
    assert check_every_frame(own) == []
    assert len(layout.read_episode_rows(own)) == kept
    assert len(samples.snapshot(own)) == count + (name == "no stats")
    assert (own / SET_ASIDE).exists() == (kept < 3 or name == "orphan data")
    assert repair(own) == []
    samples.append(own)
    assert check_every_frame(own) == []


@pytest.mark.parametrize(
    "name", ["version", "episodes", "no row", "row stats", "no tasks", "names"]
)
def test_a_damaged_dataset_is_not_appended_to(own, name):
    DAMAGES[name][0](own)
    with pytest.raises(SchemaError):
        samples.append(own)


def test_the_repair_gives_up_when_nothing_is_whole(own):
    for number in range(3):
        (own / DATA.format(number)).unlink()
    with pytest.raises(SchemaError, match="episode is whole"):
        repair(own)
    (own / INFO).unlink()
    with pytest.raises(InputError, match="not a LeRobot dataset"):
        repair(own)
