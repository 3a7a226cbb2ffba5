"""One episode on its way into a dataset: checked values, the data table, the metadata row."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from acehand_core.errors import SchemaError
from acehand_core.lerobot.format import (
    MANDATORY,
    PROVENANCE_KEY,
    TOLERANCE_S,
    column_array,
    has_stats,
    to_json,
    video_keys,
)
from acehand_core.lerobot.stats import STAT_NAMES, Stats
from acehand_core.recordings.video_encode import VideoFacts, probe_video


def max_episode_frames(fps: int) -> int:
    """Return the most frames an episode may have.

    Timestamps are stored as float32 seconds. From the power of two on where neighbouring floats
    are more than twice the reader's tolerance apart, rounding alone exceeds it: 2048 s.
    """
    limit = np.float32(1.0)
    while np.spacing(limit) / 2 <= TOLERANCE_S:
        limit *= np.float32(2.0)
    return int(limit) * fps


def check_columns(
    features: Mapping[str, Any], columns: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return the columns as (N, *shape) of the features' dtypes. Raises SchemaError."""
    keys = [k for k, f in features.items() if f["dtype"] != "video" and k not in MANDATORY]
    if set(columns) != set(keys):
        missing, extra = sorted(set(keys) - set(columns)), sorted(set(columns) - set(keys))
        raise SchemaError(f"Columns of an episode: missing {missing}, unknown {extra}.")
    return {key: _checked(key, features[key], np.asarray(columns[key])) for key in keys}


def check_length(frames: int, fps: int) -> None:
    """Refuse an episode that is empty or too long. Raises SchemaError."""
    limit = max_episode_frames(fps)
    if not 0 < frames <= limit:
        raise SchemaError(
            f"An episode at {fps} fps has 1 to {limit} frames, not {frames}; beyond, float32 "
            "timestamps are too coarse for the reader: split the recording."
        )


def _checked(key: str, feature: Mapping[str, Any], value: np.ndarray) -> np.ndarray:
    shape, dtype = tuple(feature["shape"]), np.dtype(feature["dtype"])
    if shape == (1,) and value.ndim == 1:
        value = value[:, None]
    if value.ndim == 0 or value.shape[1:] != shape:
        raise SchemaError(
            f"{key}: shape {value.shape}, expected (N, {', '.join(map(str, shape))})."
        )
    if not np.can_cast(value.dtype, dtype, casting="same_kind"):
        raise SchemaError(f"{key}: values are {value.dtype}, expected {dtype}.")
    value = value.astype(dtype, copy=False)
    if dtype.kind == "f" and not np.isfinite(value).all():
        frame = int(np.argwhere(~np.isfinite(value))[0][0])
        raise SchemaError(f"{key}: NaN or infinite at frame {frame}; every value must be finite.")
    return value


def check_videos(
    features: Mapping[str, Any], videos: Mapping[str, Path], fps: int
) -> dict[str, VideoFacts]:
    """Return what the episode's videos contain. Raises SchemaError or VideoError."""
    keys = video_keys(features)
    if set(videos) != set(keys):
        raise SchemaError(f"An episode needs one video for each of {keys}, got {sorted(videos)}.")

    facts = {key: probe_video(videos[key]) for key in keys}
    for key, fact in facts.items():
        height, width, _ = features[key]["shape"]
        if (fact.width, fact.height) != (width, height):
            raise SchemaError(
                f"{fact.path}: {fact.width} x {fact.height} pixels, but {key} is "
                f"{width} x {height} in this dataset; use a dataset of its own."
            )
        late = np.abs(fact.times_s - np.arange(len(fact.times_s)) / fps) > TOLERANCE_S / 2
        if late.any():
            frame = int(np.argmax(late))
            raise SchemaError(
                f"{fact.path}: frame {frame} is shown at {fact.times_s[frame]:.6f} s, not at "
                f"{frame}/{fps} s; a constant rate from zero is needed."
            )

    return facts


def data_table(
    features: Mapping[str, Any],
    columns: Mapping[str, np.ndarray],
    provenance: Mapping[str, Any] | None,
) -> pa.Table:
    """Return the data file's table, columns in the order of ``features``. Raises SchemaError."""
    keys = [key for key, feature in features.items() if feature["dtype"] != "video"]
    table = pa.table(
        {
            key: column_array(columns[key], features[key]["dtype"], features[key]["shape"])
            for key in keys
        }
    )
    if provenance is None:
        return table
    return table.replace_schema_metadata({PROVENANCE_KEY: to_json(provenance)})


def index_columns(
    frames: int, fps: int, episode: int, first: int, task: int
) -> dict[str, np.ndarray]:
    """Return the mandatory columns of an episode whose first frame is frame ``first`` of all."""
    count = np.arange(frames, dtype=np.int64)
    return {
        "timestamp": (count / fps).astype(np.float32),
        "frame_index": count,
        "episode_index": np.full(frames, episode, np.int64),
        "index": first + count,
        "task_index": np.full(frames, task, np.int64),
    }


def episode_table(
    place: Mapping[str, Any], stats: Mapping[str, Stats], files: Mapping[str, tuple[int, int]]
) -> pa.Table:
    """Return the one-row table of meta/episodes.

    ``place`` holds episode_index, tasks, length, dataset_from_index, dataset_to_index and fps;
    ``files`` the (chunk, file) of "data", "meta/episodes" and "videos/<key>".
    """
    row: dict[str, pa.Array] = {
        "episode_index": pa.array([place["episode_index"]], pa.int64()),
        "tasks": pa.array([place["tasks"]], pa.list_(pa.string())),
        "length": pa.array([place["length"]], pa.int64()),
    }

    def put_file(name: str) -> None:
        row[f"{name}/chunk_index"] = pa.array([files[name][0]], pa.int64())
        row[f"{name}/file_index"] = pa.array([files[name][1]], pa.int64())

    put_file("data")
    for name in ("dataset_from_index", "dataset_to_index"):
        row[name] = pa.array([place[name]], pa.int64())
    for name in files:
        if name.startswith("videos/"):
            put_file(name)
            row[f"{name}/from_timestamp"] = pa.array([0.0], pa.float64())
            row[f"{name}/to_timestamp"] = pa.array([place["length"] / place["fps"]], pa.float64())
    for key, stat in stats.items():
        for name in STAT_NAMES:
            value = stat[name]
            kind = pa.int64() if name == "count" else pa.float64()
            for _ in range(value.ndim):
                kind = pa.list_(kind)
            row[f"stats/{key}/{name}"] = pa.array([value.tolist()], kind)
    put_file("meta/episodes")
    return pa.table(row)


def expected_columns(info: Mapping[str, Any]) -> set[str]:
    """Return the columns that meta/episodes needs."""
    expected = {"episode_index", "tasks", "length", "dataset_from_index", "dataset_to_index"}
    places = ["data", "meta/episodes"]
    places += [f"videos/{key}" for key in video_keys(info["features"])]
    expected |= {f"{place}/{part}_index" for place in places for part in ("chunk", "file")}
    expected |= {f"{place}/{edge}_timestamp" for place in places[2:] for edge in ("from", "to")}
    measured = [key for key, feature in info["features"].items() if has_stats(feature)]
    expected |= {f"stats/{key}/{name}" for key in measured for name in STAT_NAMES}
    return expected


def unusable(row: Mapping[str, Any], expected: set[str]) -> list[str]:
    """Return the expected columns that a row lacks or has without a sensible value."""
    return sorted(key for key in expected if key not in row or not _is_fit(key, row[key]))


def _is_fit(key: str, value: Any) -> bool:
    if key == "tasks":
        return isinstance(value, list)
    if key.startswith("stats/"):
        return isinstance(value, list) and None not in value
    if key.endswith("_timestamp"):
        return isinstance(value, float) and math.isfinite(value)
    return type(value) is int and value >= 0
