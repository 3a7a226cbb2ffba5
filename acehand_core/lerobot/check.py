"""Checking any LeRobot v3.0 dataset of numbers and videos against what its reader relies on."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from acehand_core.errors import AcehandError, SchemaError
from acehand_core.lerobot import columns
from acehand_core.lerobot import format as layout
from acehand_core.lerobot import stats as stats_of
from acehand_core.lerobot.check_files import DatasetProblem, check_data, check_videos
from acehand_core.lerobot.stats import QUANTILES, STAT_NAMES, are_provisional, stat_shape
from acehand_core.lerobot.transaction import STAGING
from acehand_core.lerobot.writer import expected_columns, unusable
from retarget.robots.robot import load_stored_robot

Row = Mapping[str, Any]
T = TypeVar("T")
#: Difference of statistics, of pixels in 0..1, that no other decoder or encoding explains.
_OTHER_PICTURES = 0.02


def check_dataset(root: Path) -> list[DatasetProblem]:
    """Return every fault of the dataset at ``root``; [] if it is sound.

    Compares packet times of all video frames with the data, and decodes both ends of each episode.
    A broken info.json or episode table hides later faults.
    """
    problems: list[DatasetProblem] = []
    if (root / STAGING).exists():
        problems.append(DatasetProblem(STAGING, "an addition was interrupted; run the repair"))
    info = _guarded(problems, layout.INFO_PATH, lambda: layout.read_json(root / layout.INFO_PATH))
    if info is None:
        return problems
    faults = list(check_info(info))
    if faults:
        return problems + faults
    tasks = _guarded(problems, layout.TASKS_PATH, lambda: layout.read_tasks(root))
    if tasks is not None:
        if len(tasks) != info["total_tasks"]:
            text = f"{len(tasks)} tasks, info.json counts {info['total_tasks']}"
            problems.append(DatasetProblem(layout.TASKS_PATH, text))
        if len(set(tasks)) != len(tasks):
            problems.append(DatasetProblem(layout.TASKS_PATH, "the same task is listed twice"))
    rows = _guarded(problems, "meta/episodes", lambda: read_rows(root))
    if rows is None:
        return problems
    faults = list(check_rows(root, info, rows, tasks))
    problems += faults
    path = layout.STATS_PATH
    stats = _guarded(problems, path, lambda: layout.read_json(root / path))
    for key, feature in info["features"].items():
        if stats is not None and layout.has_stats(feature):
            found = _stat_faults(stats.get(key), feature, rows[-1]["dataset_to_index"])
            problems += [DatasetProblem(path, f"{key}: {message}") for message in found]
    if faults:
        return problems
    problems += check_data(root, info, rows, tasks or [])
    problems += check_videos(root, info, rows)
    problems += _guarded(problems, "data", lambda: list(_check_finished(root, rows))) or []
    problems += _guarded(problems, "data", lambda: list(_check_ours(root, info, rows))) or []
    return problems


def _guarded(problems: list[DatasetProblem], path: str, read: Callable[[], T]) -> T | None:
    try:
        return read()
    except AcehandError as error:
        problems.append(DatasetProblem(path, str(error)))
        return None


def check_info(info: Row) -> Iterator[DatasetProblem]:
    """Yield the faults of info.json."""

    def problem(message: str) -> DatasetProblem:
        return DatasetProblem(layout.INFO_PATH, message)

    if not str(info.get("codebase_version")).startswith("v3."):
        yield problem(f"codebase_version is {info.get('codebase_version')!r}, expected 'v3.0'")
    for key in ("fps", "total_episodes", "total_frames", "total_tasks", "chunks_size"):
        if type(info.get(key)) is not int or info[key] < 1:
            yield problem(f"{key} must be a positive whole number, not {info.get(key)!r}")
    if info.get("data_path") != layout.DATA_PATH:
        yield problem(f"data_path is {info.get('data_path')!r}, expected {layout.DATA_PATH!r}")
    if info.get("splits") != {"train": f"0:{info.get('total_episodes')}"}:
        yield problem(f"splits are {info.get('splits')}, expected all episodes in train")
    features = info.get("features")
    if not isinstance(features, Mapping):
        yield problem("features must be an object of key -> dtype, shape, names")
        return
    for key, feature in features.items():
        if fault := _feature_fault(key, feature):
            yield problem(f"feature {key!r}: {fault}")
    for key, dtype in layout.MANDATORY.items():
        feature = features.get(key)
        if not feature or feature.get("dtype") != dtype or list(feature.get("shape", [])) != [1]:
            yield problem(f"feature {key!r} must exist as {dtype} of shape [1]")
    videos = any(isinstance(f, Mapping) and f.get("dtype") == "video" for f in features.values())
    if videos and info.get("video_path") != layout.VIDEO_PATH:
        yield problem(f"video_path is {info.get('video_path')!r}, expected {layout.VIDEO_PATH!r}")


def _feature_fault(key: str, feature: Any) -> str | None:
    if not isinstance(feature, Mapping) or not {"dtype", "shape", "names"} <= set(feature):
        return "must be an object with dtype, shape and names"
    shape, names = feature["shape"], feature["names"]
    if "/" in key:
        return "a key has no '/'"
    if not isinstance(shape, Sequence) or layout.shape_problem(shape):
        return f"shape {shape} must be a list of positive whole numbers"
    if names is None:
        return None
    groups = list(names.values()) if isinstance(names, Mapping) else [names]
    if not all(isinstance(g, list) and all(isinstance(x, str) for x in g) for g in groups):
        return f"names {names} must be labels"

    if isinstance(names, Mapping):  # axis -> labels, or one group of labels for a vector
        lengths = [len(labels) for labels in groups]
        fits = lengths == list(shape) or (len(shape) == 1 and sum(lengths) == shape[0])
        return None if fits else f"names have {lengths} labels for shape {list(shape)}"
    expected = len(shape) if feature["dtype"] in ("video", "image") else shape[0]
    return None if len(names) == expected else f"{len(names)} names, expected {expected}"


def read_rows(root: Path) -> list[Row]:
    """Return the rows of meta/episodes, each with its file as "path". Raises SchemaError."""
    rows: list[Row] = []
    first: dict[str, Any] | None = None
    for path in layout.parquet_files(root / "meta/episodes"):
        table = layout.read_parquet(path)
        columns = dict(zip(table.column_names, table.schema.types, strict=True))
        first = first or columns
        differing = sorted(key for key in {*first, *columns} if first.get(key) != columns.get(key))
        if differing:
            raise SchemaError(f"{path}: columns {differing} differ from those of the first file.")
        name = path.relative_to(root).as_posix()
        rows += [{**row, "path": name} for row in table.to_pylist()]
    if not rows:
        raise SchemaError(f"{root / 'meta/episodes'} holds no episode.")
    return rows


def check_rows(
    root: Path, info: Row, rows: Sequence[Row], tasks: Sequence[str] | None
) -> Iterator[DatasetProblem]:
    """Yield the faults of meta/episodes, given the rows of ``read_rows``."""
    expected = expected_columns(info)
    missing = sorted(expected - set(rows[0]))
    if missing:
        yield DatasetProblem(rows[0]["path"], f"columns are missing: {', '.join(missing)}")
        return

    for number, row in enumerate(rows):
        if odd := unusable(row, expected):
            text = f"episode {number}: unusable values in {', '.join(odd)}"
            yield DatasetProblem(row["path"], text)
            return

    if len(rows) != info["total_episodes"]:
        yield DatasetProblem(
            "meta/episodes", f"{len(rows)} episodes, info.json counts {info['total_episodes']}"
        )

    start = 0
    for number, row in enumerate(rows):
        for message in _row_faults(root, info, row, number, start, tasks):
            yield DatasetProblem(row["path"], f"episode {number}: {message}")
        start = row["dataset_to_index"]
    if start != info["total_frames"]:
        text = f"episodes end at frame {start}, info.json counts {info['total_frames']}"
        yield DatasetProblem("meta/episodes", text)


def _row_faults(
    root: Path, info: Row, row: Row, number: int, start: int, tasks: Sequence[str] | None
) -> Iterator[str]:
    """Yield the faults of row ``number`` of meta/episodes, due to start at frame ``start``."""
    if row["episode_index"] != number:
        yield f"episode_index is {row['episode_index']}; the reader looks up by position"
    length = row["dataset_to_index"] - row["dataset_from_index"]
    if row["dataset_from_index"] != start or length != row["length"]:
        yield (
            f"covers frames {row['dataset_from_index']} to {row['dataset_to_index']} with length "
            f"{row['length']}; it must start at {start}"
        )

    own = layout.EPISODES_PATH.format(
        chunk_index=row["meta/episodes/chunk_index"], file_index=row["meta/episodes/file_index"]
    )
    if own != row["path"]:
        yield f"records {own} as its own file"
    yield from episode_faults(root, info, row, tasks)


def episode_faults(root: Path, info: Row, row: Row, tasks: Sequence[str] | None) -> Iterator[str]:
    """Yield the faults of a row of meta/episodes, except of its position."""
    if row["length"] < 1:
        yield "has no frames"
    unknown = [task for task in row["tasks"] if tasks is not None and task not in tasks]
    if unknown or not row["tasks"]:
        yield f"tasks {row['tasks']} are not all in {layout.TASKS_PATH}"

    files = [layout.data_file(row)]
    for key in layout.video_keys(info["features"]):
        files.append(layout.video_file(row, key))
        begin, end = (row[f"videos/{key}/{edge}_timestamp"] for edge in ("from", "to"))
        if begin < 0 or abs(end - begin - row["length"] / info["fps"]) > layout.TOLERANCE_S:
            yield f"{key}: {begin} s to {end} s is not {row['length']} frames at {info['fps']} fps"
    yield from (f"{name} is missing" for name in files if not (root / name).is_file())


def _check_finished(root: Path, rows: Sequence[Row]) -> Iterator[DatasetProblem]:
    """Yield what our writer, interrupted, has not finished."""
    if are_provisional(root, rows):
        yield DatasetProblem(
            layout.STATS_PATH,
            "quantiles are averages over the episodes: the writer was stopped before it computed "
            "them; run the repair, or the same command with `existing=resume`",
        )
    if not (root / layout.EXTRAS).is_dir():
        return  # published without, or edited by lerobot's tools, which drop it
    for number, row in enumerate(rows):
        names = layout.missing_files(root, number)
        if names and layout.read_record(root, row) is not None:
            yield DatasetProblem(
                layout.episode_folder(number),
                f"unfinished: {', '.join(names)}, since the writer was stopped; they need the "
                "recording: run the command that made the episode again, with `existing=resume`",
            )


def _check_ours(root: Path, info: Row, rows: Sequence[Row]) -> Iterator[DatasetProblem]:
    """Yield contradictions to what our writer recorded: robot, names, statistics of videos."""
    label, features = str(info.get("robot_type")), info["features"]
    records = {number: layout.read_record(root, row) or {} for number, row in enumerate(rows)}
    ours = {number: str(record["robot"]) for number, record in records.items() if "robot" in record}
    robots = {*ours.values()}
    if robots - {label}:
        text = f"robot_type is {label!r}, but episodes are of {', '.join(sorted(robots))}"
        yield DatasetProblem(layout.INFO_PATH, text)
    for key in _misnamed(label, features) if robots == {label} else ():
        text = f"names of {key!r} are not those of the robot {label!r}, in its order"
        yield DatasetProblem(layout.INFO_PATH, text)

    videos = [key for key in layout.video_keys(features) if not layout.is_depth(features[key])]
    users = Counter(layout.video_file(row, key) for row in rows for key in videos)
    for number, key in itertools.product(ours, videos):
        if users[name := layout.video_file(rows[number], key)] == 1:
            now, then = stats_of.image_stats(root / name), stats_of.episode_stats(rows[number], key)
            gaps = [np.abs(now[n] - then[n]).max() for n in ("mean", "std", *QUANTILES)]
            if max(gaps) > _OTHER_PICTURES:
                yield DatasetProblem(name, f"episode {number}: statistics of other pictures")


def _misnamed(label: str, features: Row) -> Iterator[str]:
    """Yield the features whose names are not those that our writer gives them."""
    state, action = (features.get(column.name, {}) for column in (columns.STATE, columns.ACTION))
    if action.get("names") != state.get("names"):
        yield columns.ACTION.name
    with contextlib.suppress(AcehandError):  # a robot of the user's
        hand = next(iter(load_stored_robot(label, None, None, "").hands.values()))
        names = hand.joint_names, hand.command_names, hand.command_joints
        expected = columns.Layout(*names, columns.frame_of(features), "acehand", None)
        for spec in columns.features(expected, features):
            stored = features.get(spec.key, {}).get("names")
            if spec.key != columns.ACTION.name and stored not in (None, spec.to_json()["names"]):
                yield spec.key


def _stat_faults(content: Any, feature: Row, frames: int) -> Iterator[str]:
    content = content if isinstance(content, Mapping) else {}
    if missing := [name for name in STAT_NAMES if name not in content]:
        yield f"{', '.join(missing)} missing"
        return
    try:
        stats = {name: np.asarray(content[name], dtype=np.float64) for name in STAT_NAMES}
    except (TypeError, ValueError):
        yield "its statistics are not all lists of numbers"
        return
    for name, value in stats.items():
        # lerobot pools axes, except in datasets whose first episode has one frame.
        if value.shape not in (stat_shape(feature, name), tuple(feature["shape"])):
            yield f"{name} has shape {value.shape}, expected {stat_shape(feature, name)}"
            return
        if not np.isfinite(value).all():
            yield f"{name} is not finite"
            return

    slack = 1e-6 + 1e-6 * np.maximum(np.abs(stats["min"]), np.abs(stats["max"]))
    order = ["min", *QUANTILES, "max"]
    for low, high in [*itertools.pairwise(order), ("min", "mean"), ("mean", "max")]:
        if (stats[low] > stats[high] + slack).any():
            yield f"{low} exceeds {high}"
    if (stats["std"] < 0).any():
        yield "std is negative"
    if layout.is_depth(feature):
        return
    if feature["dtype"] == "video":
        if (stats["min"] < -1e-6).any() or (stats["max"] > 1 + 1e-6).any():
            yield "pixel statistics must lie in 0..1"
    elif stats["count"][0] != frames:
        yield f"count is {int(stats['count'][0])}, the episodes have {frames} frames"
