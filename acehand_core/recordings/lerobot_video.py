"""Videos of LeRobot datasets (v2.0 to v3.0) as recordings, one per DATASET/episode_000003."""

from __future__ import annotations

import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from acehand_core.errors import InputError, SchemaError, VideoError, nearest
from acehand_core.motion import Recording
from acehand_core.recordings.video import VideoFrames, open_video
from acehand_core.safe_files import content_sha256

_INFO = "meta/info.json"
_NAME = re.compile(r"episode_(\d+)")

#: How lerobot 0.6 quantises depth: metres of the first and last code, shift, and logarithmic.
_DEPTH = {"depth_min": 0.01, "depth_max": 10.0, "shift": 3.5, "use_log": True}


class Latest:
    """A cache of the last values by key."""

    def __init__(self, count: int) -> None:
        self._count, self._values = count, OrderedDict[Hashable, Any]()

    def __call__(self, key: Hashable, make: Callable[[], Any]) -> Any:
        if key not in self._values:
            self._values[key] = make()
            if len(self._values) > self._count:
                self._values.popitem(last=False)
        return self._values[key]


@dataclass(frozen=True, slots=True)
class SourceEpisode:
    """The video of an episode; ``start_s`` is the time of its first frame in the file."""

    dataset: Path
    number: int
    video: Path
    start_s: float
    frames: int
    fps: float
    task: str | None

    @property
    def path(self) -> Path:
        """Its path as an input."""
        return self.dataset / f"episode_{self.number:06d}"


def is_dataset(path: Path) -> bool:
    """Return whether a folder is a LeRobot dataset."""
    return (path / _INFO).is_file()


def is_episode(path: Path) -> bool:
    """Return whether a path is that of an episode of a LeRobot dataset."""
    return _NAME.fullmatch(path.name) is not None and is_dataset(path.parent)


def episode_paths(dataset: Path) -> list[Path]:
    """Return the paths of a dataset's episodes in order. Raises SchemaError."""
    numbers = sorted(_rows(dataset))
    if not numbers:
        raise SchemaError(f"{dataset}: the dataset has no episode.")
    return [dataset / f"episode_{number:06d}" for number in numbers]


def find_episode(path: Path, video_key: str | None = None) -> SourceEpisode:
    """Return the episode of a path.

    Raises:
        InputError: no such episode, no video, or several without a choice.
        SchemaError: invalid tables of the dataset.
    """
    dataset, number = path.parent, int(path.name.removeprefix("episode_"))
    info, rows = _info(dataset), _rows(dataset)
    if number not in rows:
        raise InputError(f"{dataset}: no episode {number}; valid: {min(rows)} to {max(rows)}.")
    key, row = _video_key(dataset, info, video_key), rows[number]
    values: dict[str, Any] = {"video_key": key, "episode_index": number}

    try:
        if _version(dataset, info) >= 3:
            values["chunk_index"] = row[f"videos/{key}/chunk_index"]
            values["file_index"] = row[f"videos/{key}/file_index"]
            start = float(row[f"videos/{key}/from_timestamp"])
        else:
            values["episode_chunk"] = number // int(info["chunks_size"])
            start = 0.0
        video = dataset / str(info["video_path"]).format(**values)
        tasks = [str(task) for task in row.get("tasks") or ()]
        frames, fps = int(row["length"]), float(info["fps"])
        outside = ".." in video.relative_to(dataset).parts
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise SchemaError(f"{dataset}: episode {number}: {error!r} in its meta tables.") from error

    if outside:  # symlinks may: a dataset in a cache consists of them
        raise SchemaError(f"{dataset}: 'video_path' leads out of the dataset: {video}.")
    if frames < 1 or not 0 < fps <= 1000:
        raise SchemaError(f"{dataset}: episode {number}: length {frames}, fps {fps}.")
    return SourceEpisode(dataset, number, video, start, frames, fps, tasks[0] if tasks else None)


def open_episode(
    path: Path, video_key: str | None = None, mirrored: bool = False, kept: Latest | None = None
) -> Recording:
    """Return an episode as a recording; stamps count from its first frame at the dataset's rate.

    ``kept`` caches opened videos, which episodes share. Raises as ``find_episode``, InputError: it
    has depth, and VideoError: its video cannot be read, or lacks one of the episode's frames.
    """
    episode = find_episode(path, video_key)
    if video_key is not None and _is_depth(_info(path.parent)["features"][video_key]):
        raise InputError(f"{path.parent}: `video_key={video_key!r}` has depth; give it as `depth`.")
    return recording_of(episode, mirrored, kept)


def open_depth(path: Path, key: str) -> tuple[Recording, dict[str, float]]:
    """Return the depth video of an episode, and ``_DEPTH`` of it. Raises as ``open_episode``."""
    recording, feature = recording_of(find_episode(path, key)), _info(path.parent)["features"][key]
    if not _is_depth(feature):
        raise SchemaError(f"{path.parent}: {key!r} has colours, no depth; valid: a depth feature.")
    info = feature["info"]
    return recording, {name: info.get(f"video.{name}", usual) for name, usual in _DEPTH.items()}


def recording_of(
    episode: SourceEpisode, mirrored: bool = False, kept: Latest | None = None
) -> Recording:
    """Return a found episode as ``open_episode`` does, without frames that its video lacks."""
    key = "open", mirrored, *_state(episode)
    whole = (kept or Latest(1))(key, lambda: open_video(episode.video, mirrored=mirrored))
    stamps = np.round(np.arange(episode.frames) * 1e9 / episode.fps).astype(np.int64)
    due = stamps + round(episode.start_s * 1e9)
    times = whole.timestamps_ns
    index = np.searchsorted(times[:-1] + np.diff(times) // 2, due)
    away = np.abs(times[index] - due)
    missing, notes = np.flatnonzero(away > 0.5e9 / episode.fps), whole.notes
    if 2 * len(missing) >= len(due):
        raise VideoError(
            f"{episode.path}: {episode.video} has no picture at {due[missing[0]] / 1e9:.3f} s, the "
            f"time of frame {missing[0]}; its pictures end at {times[-1] / 1e9:.3f} s."
        )
    if len(missing):
        stamps, index = np.delete(stamps, missing), np.delete(index, missing)
        notes = (*notes, f"{len(missing)} of {len(due)} frames have no picture: left out")

    frames = whole.frames
    assert isinstance(frames, VideoFrames)
    return replace(
        whole,
        source=str(episode.path),
        name=f"{episode.dataset.name}/{episode.path.name}",
        sha256=_sha256(episode, whole.sha256 or ""),
        timestamps_ns=stamps,
        fps=episode.fps,
        frames=frames.select(index),
        notes=notes,
        task=episode.task,
    )


def episode_sha256(path: Path, video_key: str | None = None, kept: Latest | None = None) -> str:
    """Return the hash of ``open_episode``, without decoding."""
    episode = find_episode(path, video_key)
    key = "sha256", *_state(episode)
    return _sha256(episode, (kept or Latest(1))(key, lambda: content_sha256(episode.video)))


def _state(episode: SourceEpisode) -> tuple[Path, int, int]:
    """Return the state of an episode's video file. Raises VideoError."""
    if not episode.video.is_file():
        raise VideoError(f"{episode.path}: its video {episode.video} does not exist.")
    stat = episode.video.stat()
    return episode.video, stat.st_mtime_ns, stat.st_size


def _sha256(episode: SourceEpisode, video: str) -> str:
    """Return the hash of the episode's part of a video."""
    text = f"{video} {episode.start_s!r} {episode.frames} {episode.fps!r}"
    return hashlib.sha256(text.encode()).hexdigest()


def _info(dataset: Path) -> Mapping[str, Any]:
    path = dataset / _INFO
    try:
        info = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SchemaError(f"{path}: {error}") from error
    if not isinstance(info, dict) or not isinstance(info.get("features"), dict):
        raise SchemaError(f"{path}: an object with 'features' is needed.")
    return info


def _version(dataset: Path, info: Mapping[str, Any]) -> int:
    version = info.get("codebase_version")
    match = re.fullmatch(r"v(\d+)\.\d+", str(version))
    if match is None or int(match[1]) not in (2, 3):
        raise SchemaError(f"{dataset}: LeRobot version {version!r}; valid: v2.0 to v3.0.")
    return int(match[1])


def _video_key(dataset: Path, info: Mapping[str, Any], given: str | None) -> str:
    features = {key: value for key, value in info["features"].items() if isinstance(value, dict)}
    videos = [key for key, value in features.items() if value.get("dtype") == "video"]
    keys = [key for key in videos if not _is_depth(features[key])]
    if given is not None:
        if given in videos:
            return given
        raise InputError(f"{dataset}: `video_key={given!r}` is not a video; {nearest(given, keys)}")
    if len(keys) == 1:
        return keys[0]
    if keys:
        raise InputError(f"{dataset}: several videos; choose by `video_key`: {', '.join(keys)}.")
    images = [key for key, value in features.items() if value.get("dtype") == "image"]
    kind = f"; {images[0]!r} is stored as single images, which are not supported" if images else ""
    raise InputError(f"{dataset}: the dataset has no video{kind}.")


def _is_depth(feature: Mapping[str, Any]) -> bool:
    info = feature.get("info") or {}
    return bool(info.get("is_depth_map") or info.get("video.is_depth_map"))


def _rows(dataset: Path) -> dict[int, Mapping[str, Any]]:
    """Return the episodes' rows by number."""
    info = _info(dataset)
    if _version(dataset, info) >= 3:
        rows = []
        for file in sorted((dataset / "meta" / "episodes").rglob("*.parquet")):
            try:
                # Statistics are most of the table.
                names = [n for n in pq.read_schema(file).names if not n.startswith("stats/")]
                rows += pq.read_table(file, columns=names).to_pylist()
            except (OSError, pa.ArrowException) as error:
                raise SchemaError(f"{file}: {error}") from error
    else:
        file = dataset / "meta" / "episodes.jsonl"
        try:
            rows = [json.loads(line) for line in file.read_text("utf-8").splitlines() if line]
        except (OSError, ValueError) as error:
            raise SchemaError(f"{file}: {error}") from error

    by_number = {}
    for row in rows:
        number = row.get("episode_index") if isinstance(row, dict) else None
        if not isinstance(number, int) or number < 0:
            raise SchemaError(f"{dataset}: a row of its episodes has no 'episode_index'.")
        by_number[number] = row
    return by_number
