"""The validator finds each kind of damage, and the repair saves what is whole."""

from __future__ import annotations

import json
import shutil
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
from helpers.lerobot_samples import check_every_frame

EGO = samples.EGO
DATA = "data/chunk-000/file-{:03d}.parquet"
ROWS = "meta/episodes/chunk-000/file-{:03d}.parquet"
VIDEO = f"videos/{EGO}/chunk-000/file-{{:03d}}.mp4"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished dataset of three episodes (13, 7 and 5 frames); not to be changed."""
    return samples.write(tmp_path_factory.mktemp("finished") / "data")


@pytest.fixture
def own(dataset: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(dataset, tmp_path / "data")


def edit_json(path: str, **changes: Any) -> Callable[[Path], None]:
    """Return a damage that sets values of a JSON file; keys are joined by two underscores."""

    def damage(root: Path) -> None:
        content = json.loads((root / path).read_text())
        for key, value in changes.items():
            *outer, last = key.split("__")
            place = content
            for part in outer:
                place = place[part.replace("_of_", ".")]
            if value is None:
                del place[last]
            else:
                place[last] = value
        (root / path).write_text(json.dumps(content))

    return damage


def edit_table(path: str, change: Callable[[pa.Table], pa.Table]) -> Callable[[Path], None]:
    """Return a damage that rewrites a parquet file."""

    def damage(root: Path) -> None:
        pq.write_table(change(pq.read_table(root / path, partitioning=None)), root / path)

    return damage


def with_column(key: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable:
    """Return a change of one column of numbers."""

    def apply(table: pa.Table) -> pa.Table:
        values = change(table[key].to_numpy().copy())
        return table.set_column(table.column_names.index(key), key, pa.array(values))

    return apply


def remove(path: str) -> Callable[[Path], None]:
    """Return a damage that removes a file."""
    return lambda root: (root / path).unlink()


def copy(path: str, to: str) -> Callable[[Path], None]:
    """Return a damage that copies a file over another, or to a new name."""
    return lambda root: shutil.copyfile(root / path, root / to)


def cut(path: str, share: float) -> Callable[[Path], None]:
    """Return a damage that keeps only the first part of a file."""

    def damage(root: Path) -> None:
        content = (root / path).read_bytes()
        (root / path).write_bytes(content[: int(len(content) * share)])

    return damage


def new_video(number: int, frames: int, **options: Any) -> Callable[[Path], None]:
    """Return a damage that replaces a video."""
    return lambda root: samples.video(root / VIDEO.format(number), frames, 0, **options) and None


def late_video(root: Path) -> None:
    """Show every frame of the second video 2 ms late."""
    path = root / VIDEO.format(1)
    path.rename(root / "old.mp4")
    with av.open(str(root / "old.mp4")) as old, av.open(str(path), "w") as new:
        stream = new.add_stream_from_template(old.streams.video[0])
        for packet in old.demux(video=0):
            if packet.size:
                shift = round(0.002 / packet.time_base)
                packet.pts, packet.dts = packet.pts + shift, packet.dts + shift
                packet.stream = stream
                new.mux(packet)
    (root / "old.mp4").unlink()


def lose_a_statistic(root: Path) -> None:
    """Leave one column out of every episode's row."""
    for number in range(3):
        edit_table(ROWS.format(number), lambda t: t.drop_columns(["stats/index/q99"]))(root)


def scramble(root: Path) -> None:
    """Overwrite the coded pictures of the first video but leave its tables alone."""
    path = root / VIDEO.format(0)
    content = bytearray(path.read_bytes())
    start = content.index(b"mdat") + 4
    stop = content.index(b"moov") - 4
    assert stop - start > 500
    most = start + (stop - start) * 4 // 5
    content[most:stop] = bytes(stop - most)
    path.write_bytes(content)


def ragged(table: pa.Table) -> pa.Table:
    """Give the first frame's matrix a longer row and a shorter one."""
    values = table["observation.orient"].to_pylist()
    values[0][0].append(values[0][1].pop())
    column = pa.array(values, table.schema.field("observation.orient").type)
    return table.set_column(
        table.column_names.index("observation.orient"), "observation.orient", column
    )


def at(index: int, value: float) -> Callable[[np.ndarray], np.ndarray]:
    """Return a change of one entry."""

    def apply(values: np.ndarray) -> np.ndarray:
        values[index] = value
        return values

    return apply


INFO, STATS, TASKS = layout.INFO_PATH, layout.STATS_PATH, layout.TASKS_PATH
STATE = "features__observation_of_state"
DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "no info": (remove(INFO), "is missing"),
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
    "no tasks": (remove(TASKS), "cannot be read as parquet"),
    "task order": (edit_table(TASKS, lambda t: t.take([1, 0])), "task_index must count"),
    "task count": (edit_table(TASKS, lambda t: t.slice(0, 1)), "1 tasks, info.json counts 2"),
    "no stats": (remove(STATS), "is missing"),
    "stats of a feature": (edit_json(STATS, action_of_x=1, index=None), "index: min, max"),
    "stale stats": (edit_json(STATS, observation_of_state__max=[9.0] * 4), "max is not that"),
    "stats shape": (edit_json(STATS, index__mean=12.0), "mean has shape ()"),
    "quantiles": (edit_json(STATS, index__q10=[23.0]), "q10 exceeds q50"),
    "stats count": (edit_json(STATS, index__count=[24]), "count is 24, the episodes have 25"),
    "no row": (remove(ROWS.format(1)), "episode_index is 2"),
    "row twice": (copy(ROWS.format(0), ROWS.format(1)), "episode_index is 0"),
    "row cut off": (cut(ROWS.format(1), 0.9), "cannot be read as parquet"),
    "row columns": (
        edit_table(ROWS.format(1), lambda t: t.drop_columns(["length"])),
        "columns ['length'] differ",
    ),
    "row stats": (lose_a_statistic, "columns are missing: stats/index/q99"),
    "row length": (edit_table(ROWS.format(1), with_column("length", at(0, 8))), "length 8"),
    "row time": (
        edit_table(ROWS.format(2), with_column(f"videos/{EGO}/to_timestamp", at(0, 0.1))),
        "is not 5 frames at 30 fps",
    ),
    "row place": (
        edit_table(ROWS.format(2), with_column("meta/episodes/file_index", at(0, 1))),
        "as its own file",
    ),
    "row task": (
        edit_table(
            ROWS.format(2),
            lambda t: t.set_column(1, "tasks", pa.array([["sleep"]], pa.list_(pa.string()))),
        ),
        "tasks ['sleep']",
    ),
    "no data": (remove(DATA.format(1)), "file-001.parquet is missing"),
    "data cut off": (cut(DATA.format(1), 0.9), "cannot be read as parquet"),
    "orphan data": (copy(DATA.format(2), DATA.format(9)), "30 rows, info.json counts 25"),
    "column lost": (
        edit_table(DATA.format(1), lambda t: t.drop_columns(["observation.ns"])),
        "missing ['observation.ns']",
    ),
    "column type": (
        edit_table(DATA.format(1), with_column("timestamp", lambda v: v.astype(np.float64))),
        "column 'timestamp' is double",
    ),
    "ragged": (edit_table(DATA.format(1), ragged), "does not have shape [2, 6]"),
    "index": (
        edit_table(DATA.format(1), with_column("index", at(3, 99))),
        "index is 99 at frame 3",
    ),
    "frame_index": (
        edit_table(DATA.format(1), with_column("frame_index", lambda v: v[::-1])),
        "frame_index is 6 at frame 0",
    ),
    "timestamp": (
        edit_table(DATA.format(1), with_column("timestamp", at(2, np.float32(0.067)))),
        "timestamp is 0.067",
    ),
    "nan": (edit_table(DATA.format(1), with_column("timestamp", at(2, np.nan))), "NaN or infinite"),
    "task_index": (
        edit_table(DATA.format(1), with_column("task_index", at(0, 0))),
        "task_index 0 is not one of the episode's tasks",
    ),
    "no video": (remove(VIDEO.format(1)), "file-001.mp4 is missing"),
    "video cut off": (cut(VIDEO.format(1), 0.5), "cannot be read as a video"),
    "short video": (new_video(1, 6), "6 frames, its episodes have 7"),
    "slow video": (new_video(1, 7, rate=29), "6 of 7 frames are not within"),
    "small video": (new_video(1, 7, size=(32, 32)), "32 x 32 pixels, info.json says 64 x 48"),
    "late video": (late_video, "7 of 7 frames are not within"),
    "scrambled video": (scramble, "cannot be decoded"),
    "interrupted": (lambda root: (root / STAGING).mkdir(), "run the repair"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_the_validator_finds(own: Path, name: str) -> None:
    assert check_every_frame(own) == []
    damage, message = DAMAGES[name]
    damage(own)
    problems = [str(problem) for problem in check_dataset(own)]
    assert any(message in problem for problem in problems), problems
    assert len(problems) <= 4, "one fault is not reported many times"


def test_a_folder_that_is_no_dataset(tmp_path: Path) -> None:
    assert [problem.path for problem in check_dataset(tmp_path)] == [INFO]
    with pytest.raises(InputError, match="not a LeRobot dataset"):
        repair(tmp_path)


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("no row", 2),
        ("row cut off", 2),
        ("no data", 2),
        ("data cut off", 2),
        ("video cut off", 2),
        ("short video", 2),
        ("no stats", 3),
        ("frames", 3),
        ("episodes", 3),
        ("orphan data", 3),
        ("stats count", 3),
    ],
)
def test_the_repair_keeps_the_whole_episodes_and_loses_no_file(
    own: Path, name: str, kept: int
) -> None:
    DAMAGES[name][0](own)
    count = len([path for path in own.rglob("*") if path.is_file()])
    done = repair(own)
    assert f"kept {kept} whole episodes" in done[-1]
    assert check_every_frame(own) == []
    assert len(layout.read_episode_rows(own)) == kept
    after = len([path for path in own.rglob("*") if path.is_file()])
    assert after == count + (name == "no stats")
    assert (own / SET_ASIDE).exists() == (kept < 3 or name == "orphan data")
    assert repair(own) == []
    samples.append(own)
    assert check_every_frame(own) == []


@pytest.mark.parametrize(
    "name", ["version", "episodes", "no row", "row stats", "no tasks", "names"]
)
def test_a_damaged_dataset_is_not_appended_to(own: Path, name: str) -> None:
    DAMAGES[name][0](own)
    with pytest.raises(SchemaError):
        samples.append(own)


def test_the_repair_gives_up_when_nothing_is_whole(own: Path) -> None:
    for number in range(3):
        (own / DATA.format(number)).unlink()
    with pytest.raises(SchemaError, match="episode is whole"):
        repair(own)


def test_the_repair_cuts_files_that_several_episodes_share(own: Path) -> None:
    # As lerobot writes them: all episodes in one data file and one table of episodes.
    for pattern, place in ((DATA, "data"), (ROWS, "meta/episodes")):
        tables = [pq.read_table(own / pattern.format(k), partitioning=None) for k in range(3)]
        pq.write_table(pa.concat_tables(tables), own / pattern.format(0))
        for k in (1, 2):
            (own / pattern.format(k)).unlink()
        zeros = with_column(f"{place}/file_index", np.zeros_like)
        numbered = sorted(own.glob("meta/episodes/*/*.parquet"))
        for path in numbered:
            edit_table(path.relative_to(own).as_posix(), zeros)(own)
    assert check_every_frame(own) == []
    (own / VIDEO.format(2)).unlink()
    assert "kept 2 whole episodes, 20 frames" in repair(own)[-1]
    assert check_every_frame(own) == []
