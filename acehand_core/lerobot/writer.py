"""Put whole episodes into a LeRobot v3 dataset, or nothing."""

from __future__ import annotations

import contextlib
import copy
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
from acehand_core.lerobot.episode import (
    check_columns,
    check_length,
    check_videos,
    data_table,
    episode_table,
    expected_columns,
    index_columns,
    unusable,
)
from acehand_core.lerobot.stats import (
    EXACT_FRAMES,
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
from acehand_core.recordings.video_encode import VideoFacts


class LeRobotWriter:
    """Adds episodes to one dataset. Made by ``lerobot.create`` and ``open_for_append``.

    As a context manager, leaving it without an error calls ``finish``, else ``close``: finished
    episodes stay either way.
    """

    def __init__(self, root: Path, base: Path, info: dict[str, Any], lock: DirectoryLock) -> None:
        self.root = root
        self._base = base  # where files go: root, or the hidden sibling before it appears
        self._info = info
        self._lock = lock
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
        """Take over tasks, statistics and file numbers from the dataset. Raises SchemaError."""
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
        """Return a path beside the dataset to encode the next episode's video to.

        A file here is moved, not copied, by ``add_episode``.
        """
        if key not in self._video_keys:
            raise SchemaError(f"No video feature {key!r}; {nearest(key, self._video_keys)}")
        return self.scratch(f"{key}.mp4")

    def scratch(self, name: str) -> Path:
        """Return a path beside the dataset for a file that goes with the next episode."""
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

        ``columns`` holds every feature that is not a video as (N, *shape), ``videos`` the encoded
        mp4 of every video feature, N frames at k / fps. ``provenance`` (JSON) is kept in the data
        file. ``extras`` are further files that appear with the episode, by their place in the
        dataset; each was written to ``scratch``. Raises SchemaError or VideoError for data that
        does not fit, OutputError when it cannot be written.
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
            # Let the dataset appear; on failure the writer is closed and nothing has changed.
            try:
                with output_errors(self.root):
                    publish(self._base, self.root)
            except BaseException:
                self.close()
                raise
            self._base = self.root
            self._transaction = Transaction(self.root)

        return self.total_episodes - 1

    def finish(self) -> None:
        """Write exact quantiles over all frames and close the dataset."""
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
        """Let go of the dataset; an unfinished episode and a dataset without episodes vanish."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(OSError):
            self._transaction.clear()
            if self._base != self.root and self._base.exists():
                shutil.rmtree(self._base)
        self._lock.release()

    def __enter__(self) -> LeRobotWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.finish()
        else:
            self.close()

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
            raise SchemaError("An episode needs a task: a sentence that says what is done.")
        values = check_columns(self._info["features"], columns)
        facts = check_videos(self._info["features"], videos, fps)
        lengths = {key: len(value) for key, value in values.items()}
        lengths |= {key: len(fact.times_s) for key, fact in facts.items()}
        if len(set(lengths.values())) != 1:
            raise SchemaError(f"Columns and videos of an episode differ in length: {lengths}.")
        check_length(next(iter(lengths.values())), fps)
        frames = next(iter(lengths.values()))
        tasks = [*self._tasks, task]
        indices = index_columns(
            frames, fps, self.total_episodes, self.total_frames, tasks.index(task)
        )

        return values | indices, facts

    def _stage(
        self,
        values: dict[str, np.ndarray],
        task: str,
        facts: Mapping[str, VideoFacts],
        provenance: Mapping[str, Any] | None,
    ) -> tuple[dict[str, Any], FeatureStats]:
        """Write every file of the episode to the staging folder, in the order of placing."""
        features = self._info["features"]
        episode: FeatureStats = {}
        for key, fact in facts.items():
            episode[key] = self._stage_video(key, fact)
        self._stage_table("data", layout.DATA_PATH, data_table(features, values, provenance))
        episode |= {key: feature_stats(value) for key, value in values.items()}
        episode = {key: episode[key] for key in features}
        if task not in self._tasks:
            self._stage_table("tasks", layout.TASKS_PATH, layout.tasks_table([*self._tasks, task]))
        stats = episode
        if self._stats:
            stats = {key: merge([self._stats[key], stat]) for key, stat in episode.items()}
        self._stage_bytes("stats", layout.STATS_PATH, stats_to_json(stats))
        info = self._next_info(len(values["index"]), task, facts)
        place = {
            "episode_index": self.total_episodes,
            "tasks": [task],
            "length": len(values["index"]),
            "dataset_from_index": self.total_frames,
            "dataset_to_index": info["total_frames"],
            "fps": info["fps"],
        }
        row = episode_table(place, episode, self._next_files)
        self._stage_table("meta/episodes", layout.EPISODES_PATH, row)
        self._stage_bytes("info", layout.INFO_PATH, info)

        return info, stats

    def _next_info(self, frames: int, task: str, facts: Mapping[str, VideoFacts]) -> dict[str, Any]:
        info = copy.deepcopy(self._info)
        for key, fact in facts.items():
            known = info["features"][key].get("info", {})
            if "video.codec" not in known:
                info["features"][key]["info"] = {**known, **fact.info(info["fps"])}
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
