"""Adding whole episodes to a LeRobot v3 dataset: checked values, data tables, metadata rows."""

from __future__ import annotations

import contextlib
import copy
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from acehand_core.atomic import DirectoryLock, output_errors
from acehand_core.errors import OutputError, SchemaError, nearest
from acehand_core.lerobot import format as layout
from acehand_core.lerobot import transaction
from acehand_core.lerobot.stats import (
    EXACT_FRAMES,
    STAT_NAMES,
    FeatureStats,
    Stats,
    are_provisional,
    dataset_stats,
    describes,
    feature_stats,
    image_stats,
    merge,
    read_stats,
    stats_to_json,
)
from acehand_core.lerobot.transaction import Transaction, publish
from acehand_core.recordings.video_encode import VideoFacts, probe_video


class LeRobotWriter:
    """Writer of one dataset; as a context manager it calls ``finish``, on an error ``close``."""

    def __init__(self, root: Path, base: Path, lock: DirectoryLock, info: dict[str, Any]) -> None:
        self.root = root
        self._base = base  # root, or its hidden sibling before the first episode
        self._info = info
        self._lock = lock
        self.replaced: DirectoryLock | None = None  # of a dataset that the first episode replaces
        self._tasks: list[str] = []
        self._stats: FeatureStats = {}
        names = ["data", *(f"videos/{key}" for key in self._video_keys), "meta/episodes"]
        self._next_files = dict.fromkeys(names, (0, 0))
        self._added = 0
        self._closed = False
        self._transaction = Transaction(base)

    @property
    def total_episodes(self) -> int:
        """Number of finished episodes."""
        return self._info["total_episodes"]

    @property
    def total_frames(self) -> int:
        """Number of frames of the finished episodes."""
        return self._info["total_frames"]

    def load(self) -> None:
        """Read tasks, statistics and file numbers of the dataset. Raises SchemaError."""
        rows = layout.read_episode_rows(self.root)
        expected = expected_columns(self._info)
        odd = sorted({key for row in rows for key in unusable(row, expected)})
        if odd:
            raise SchemaError(f"{self.root}: meta/episodes is damaged at {odd}; repair it first.")
        ends = rows[-1]["dataset_to_index"] if rows else 0
        if len(rows) != self.total_episodes or ends != self.total_frames:
            raise SchemaError(
                f"{self.root}: info.json counts {self.total_episodes} episodes and "
                f"{self.total_frames} frames, meta/episodes {len(rows)} and {ends}; "
                "repair it first."
            )
        self._tasks = layout.read_tasks(self.root)
        for name in self._next_files:
            used = [(row[f"{name}/chunk_index"], row[f"{name}/file_index"]) for row in rows]
            self._next_files[name] = layout.next_file(used, self._info["chunks_size"])
        self._stats = read_stats(self.root)
        if not describes(self._stats, self._info["features"], self.total_frames):
            self._stats = dataset_stats(self.root, self._info["features"], rows)

    def scratch_video(self, key: str) -> Path:
        """Return a staging path for the next episode's video; ``add_episode`` moves the file."""
        if key not in self._video_keys:
            raise SchemaError(f"No video feature {key!r}; {nearest(key, self._video_keys)}")
        return self.scratch(f"{key}.mp4")

    def scratch(self, name: str) -> Path:
        """Return a staging path for a file of the next episode."""
        self._check_open()
        with output_errors(self.root):
            return self._transaction.stage(name)

    def add_episode(
        self,
        columns: Mapping[str, np.ndarray],
        task: str,
        videos: Mapping[str, Path],
        provenance: Mapping[str, Any] | None = None,
        extras: Mapping[str, Path] | None = None,
    ) -> int:
        """Add one episode of N frames and return its index; on any error nothing has changed.

        Args:
            columns: every feature that is not a video, (N, *shape).
            videos: the encoded mp4 of every video feature, N frames at k / fps.
            provenance: JSON, kept in the data file.
            extras: further files written to ``scratch``, by their place in the dataset.

        Raises SchemaError or VideoError for data that do not fit, OutputError.
        """
        self._check_open()
        try:
            values, facts = self._check(columns, task, videos)
            with output_errors(self.root):
                for target, path in (extras or {}).items():
                    self._transaction.add(path.name, target)
                info, stats = self._stage(values, task, facts, provenance)
                self._transaction.commit()
        except BaseException:
            with contextlib.suppress(OSError):
                self._transaction.clear()
            if self._transaction.is_stuck:
                self.close()
            raise

        self._info, self._stats, self._added = info, stats, self._added + 1
        if task not in self._tasks:
            self._tasks.append(task)
        for name, used in self._next_files.items():
            self._next_files[name] = layout.next_file([used], info["chunks_size"])

        if self._base != self.root:
            try:
                with output_errors(self.root):
                    publish(self._base, self.root, self.replaced is not None)
            except BaseException:
                self.close()
                raise
            self._base = self.root
            self._transaction = Transaction(self.root)
        return self.total_episodes - 1

    def finish(self) -> None:
        """Write exact quantiles over all frames and release the dataset."""
        try:
            rows = layout.read_episode_rows(self.root) if self.total_episodes else []
            added = self._added and self.total_frames <= EXACT_FRAMES
            if added or are_provisional(self.root, rows):
                stats = dataset_stats(self.root, self._info["features"], rows)
                with output_errors(self.root):
                    self._stage_bytes("stats", layout.STATS_PATH, stats_to_json(stats))
                    self._transaction.commit()
        finally:
            self.close()

    def close(self) -> None:
        """Release the dataset; an unfinished episode or a dataset without episodes is removed."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(OSError):
            self._transaction.clear()
            if self._base != self.root and self._base.exists():
                shutil.rmtree(self._base)
        self._lock.release()
        if self.replaced is not None:
            self.replaced.release()

    def __enter__(self) -> LeRobotWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.finish() if kind is None else self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise OutputError(f"{self.root}: the dataset was closed; open it again to append.")

    @property
    def _video_keys(self) -> list[str]:
        return layout.video_keys(self._info["features"])

    def _check(
        self, columns: Mapping[str, np.ndarray], task: str, videos: Mapping[str, Path]
    ) -> tuple[dict[str, np.ndarray], dict[str, VideoFacts]]:
        fps = self._info["fps"]
        if not task.strip():
            raise SchemaError("An episode needs a task, as in 'pour water'.")
        values = _check_columns(self._info["features"], columns)
        facts = _check_videos(self._info["features"], videos, fps)
        lengths = {key: len(value) for key, value in values.items()}
        lengths |= {key: len(fact.times_s) for key, fact in facts.items()}
        if len(set(lengths.values())) != 1:
            raise SchemaError(f"Columns and videos of an episode differ in length: {lengths}.")
        frames, limit = next(iter(lengths.values())), max_episode_frames(fps)
        if not 0 < frames <= limit:
            raise SchemaError(
                f"An episode at {fps} fps has 1 to {limit} frames, not {frames}; split the "
                "recording: beyond, float32 timestamps are too coarse for the reader."
            )
        number = [*self._tasks, task].index(task)
        indices = index_columns(frames, fps, self.total_episodes, self.total_frames, number)
        return values | indices, facts

    def _stage(
        self,
        values: dict[str, np.ndarray],
        task: str,
        facts: Mapping[str, VideoFacts],
        provenance: Mapping[str, Any] | None,
    ) -> tuple[dict[str, Any], FeatureStats]:
        """Write the episode's files to the staging folder, in the order of placing."""
        features = self._info["features"]
        episode = {key: self._stage_video(key, fact) for key, fact in facts.items()}
        self._stage_table("data", layout.DATA_PATH, _data_table(features, values, provenance))
        episode |= {key: feature_stats(value) for key, value in values.items()}
        episode = {key: episode[key] for key in features}
        if task not in self._tasks:
            self._stage_table("tasks", layout.TASKS_PATH, layout.tasks_table([*self._tasks, task]))
        stats = episode
        if self._stats:
            stats = {key: merge([self._stats[key], stat]) for key, stat in episode.items()}
        self._stage_bytes("stats", layout.STATS_PATH, stats_to_json(stats))
        frames = len(values["index"])
        info = self._next_info(frames, task, facts)
        place = {
            "episode_index": self.total_episodes,
            "tasks": [task],
            "length": frames,
            "dataset_from_index": self.total_frames,
            "dataset_to_index": info["total_frames"],
            "fps": info["fps"],
        }
        row = _episode_table(place, episode, self._next_files)
        self._stage_table("meta/episodes", layout.EPISODES_PATH, row)
        self._stage_bytes("info", layout.INFO_PATH, info)
        return info, stats

    def _next_info(self, frames: int, task: str, facts: Mapping[str, VideoFacts]) -> dict[str, Any]:
        info = copy.deepcopy(self._info)
        for key, fact in facts.items():
            known = info["features"][key].get("info", {})
            if "video.codec" not in known:
                info["features"][key]["info"] = {**fact.info(info["fps"]), **known}
        info["total_episodes"] += 1
        info["total_frames"] += frames
        info["total_tasks"] = len({*self._tasks, task})
        info["splits"] = {"train": f"0:{info['total_episodes']}"}
        return info

    def _stage_video(self, key: str, fact: VideoFacts) -> Stats:
        stats = image_stats(fact.path)
        transaction.step(f"stage {key}")
        staged = self._transaction.stage(f"{key}.mp4")
        if fact.path.absolute() != staged:
            shutil.copyfile(fact.path, staged)
        chunk, file = self._next_files[f"videos/{key}"]
        target = layout.VIDEO_PATH.format(video_key=key, chunk_index=chunk, file_index=file)
        self._transaction.add(staged.name, target)
        return stats

    def _stage_table(self, name: str, template: str, table: pa.Table) -> None:
        transaction.step(f"stage {name}")
        staged = self._transaction.stage(name.replace("/", "-") + ".parquet")
        layout.write_parquet(table, staged)
        chunk, file = self._next_files.get(name, (0, 0))
        self._transaction.add(staged.name, template.format(chunk_index=chunk, file_index=file))

    def _stage_bytes(self, name: str, target: str, content: Mapping[str, Any]) -> None:
        transaction.step(f"stage {name}")
        staged = self._transaction.stage(f"{name}.json")
        staged.write_bytes(layout.to_json_bytes(content))
        self._transaction.add(staged.name, target)


def max_episode_frames(fps: int) -> int:
    """Return the maximum length of an episode.

    Timestamps are float32 seconds: from 2048 s on, rounding alone exceeds the reader's tolerance.
    """
    limit = np.float32(1.0)
    while np.spacing(limit) / 2 <= layout.TOLERANCE_S:
        limit *= np.float32(2.0)
    return int(limit) * fps


def _check_columns(
    features: Mapping[str, Any], columns: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return the columns as (N, *shape) of the features' dtypes. Raises SchemaError."""
    keys = [k for k, f in features.items() if f["dtype"] != "video" and k not in layout.MANDATORY]
    if set(columns) != set(keys):
        missing, extra = sorted(set(keys) - set(columns)), sorted(set(columns) - set(keys))
        raise SchemaError(f"Columns of an episode: missing {missing}, unknown {extra}.")
    return {key: _checked(key, features[key], np.asarray(columns[key])) for key in keys}


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


def _check_videos(
    features: Mapping[str, Any], videos: Mapping[str, Path], fps: int
) -> dict[str, VideoFacts]:
    """Return the facts of the episode's videos. Raises SchemaError or VideoError."""
    keys = layout.video_keys(features)
    if set(videos) != set(keys):
        raise SchemaError(f"An episode needs one video for each of {keys}, got {sorted(videos)}.")
    facts = {key: probe_video(videos[key]) for key in keys}
    for key, fact in facts.items():
        height, width, _ = features[key]["shape"]
        if (fact.width, fact.height) != (width, height):
            raise SchemaError(
                f"{fact.path}: {fact.width} x {fact.height} pixels, but {key} is "
                f"{width} x {height} in this dataset; use a separate dataset."
            )
        late = np.abs(fact.times_s - np.arange(len(fact.times_s)) / fps) > layout.TOLERANCE_S / 2
        if late.any():
            frame = int(np.argmax(late))
            raise SchemaError(
                f"{fact.path}: frame {frame} is shown at {fact.times_s[frame]:.6f} s, not at "
                f"{frame}/{fps} s; the rate must be constant, starting at 0 s."
            )
    return facts


def _data_table(
    features: Mapping[str, Any],
    columns: Mapping[str, np.ndarray],
    provenance: Mapping[str, Any] | None,
) -> pa.Table:
    """Return the data file's table, columns in the order of ``features``. Raises SchemaError."""
    table = pa.table(
        {
            key: layout.column_array(columns[key], feature["dtype"], feature["shape"])
            for key, feature in features.items()
            if feature["dtype"] != "video"
        }
    )
    if provenance is None:
        return table
    return table.replace_schema_metadata({layout.PROVENANCE_KEY: layout.to_json(provenance)})


def index_columns(
    frames: int, fps: int, episode: int, first: int, task: int
) -> dict[str, np.ndarray]:
    """Return the mandatory columns of an episode; ``first``: frame of the dataset it starts at."""
    count = np.arange(frames, dtype=np.int64)
    return {
        "timestamp": (count / fps).astype(np.float32),
        "frame_index": count,
        "episode_index": np.full(frames, episode, np.int64),
        "index": first + count,
        "task_index": np.full(frames, task, np.int64),
    }


def _episode_table(
    place: Mapping[str, Any], stats: Mapping[str, Stats], files: Mapping[str, tuple[int, int]]
) -> pa.Table:
    """Return the one-row table of meta/episodes.

    ``place`` has the indices, tasks, length and fps; ``files`` the (chunk, file) of "data",
    "meta/episodes" and "videos/<key>".
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
    """Return the columns that meta/episodes must have."""
    expected = {"episode_index", "tasks", "length", "dataset_from_index", "dataset_to_index"}
    places = ["data", "meta/episodes"]
    places += [f"videos/{key}" for key in layout.video_keys(info["features"])]
    expected |= {f"{place}/{part}_index" for place in places for part in ("chunk", "file")}
    expected |= {f"{place}/{edge}_timestamp" for place in places[2:] for edge in ("from", "to")}
    measured = [key for key, feature in info["features"].items() if layout.has_stats(feature)]
    expected |= {f"stats/{key}/{name}" for key in measured for name in STAT_NAMES}
    return expected


def unusable(row: Mapping[str, Any], expected: set[str]) -> list[str]:
    """Return the expected columns that a row lacks or that hold no sensible value."""
    return sorted(key for key in expected if key not in row or not _is_fit(key, row[key]))


def _is_fit(key: str, value: Any) -> bool:
    if key == "tasks":
        return isinstance(value, list)
    if key.startswith("stats/"):
        return isinstance(value, list) and None not in value
    if key.endswith("_timestamp"):
        return isinstance(value, float) and math.isfinite(value)
    return type(value) is int and value >= 0
