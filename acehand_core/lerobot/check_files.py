"""Checking the data and video files of a LeRobot v3 dataset against its metadata."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
from jaxtyping import Float, Int, Shaped

from acehand_core.errors import AcehandError
from acehand_core.lerobot import format as layout
from acehand_core.lerobot.columns import CONFIDENCE, VALID
from acehand_core.lerobot.stats import read_stats
from acehand_core.recordings.video_encode import VideoFacts, probe_video

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DatasetProblem:
    """One fault of a dataset, and its file relative to the root."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


def check_data(
    root: Path, info: Row, rows: Sequence[Row], tasks: Sequence[str]
) -> list[DatasetProblem]:
    """Return the faults of the data files, given sound rows of meta/episodes."""
    problems: list[DatasetProblem] = []
    parts: dict[str, list[np.ndarray]] = defaultdict(list)  # of the index columns
    ranges: dict[str, list[np.ndarray]] = defaultdict(list)
    rows_of: dict[str, tuple[int, int]] = {}
    total = 0
    for path in layout.parquet_files(root / "data"):
        name = path.relative_to(root).as_posix()
        try:
            table = layout.read_parquet(path)
        except AcehandError as error:
            problems.append(DatasetProblem(name, str(error)))
            continue
        faults = [*_schema_faults(table.schema, info["features"])]
        if not faults:
            faults = [*_value_faults(table, info["features"], parts, ranges)]
            faults = faults or [*_absence_faults(table, info["features"])]
            rows_of[name] = (total, total + len(table))
            total += len(table)
        problems += [DatasetProblem(name, fault) for fault in faults]

    if problems:
        return problems
    if total != info["total_frames"]:
        message = f"{total} rows, info.json counts {info['total_frames']}"
        problems.append(DatasetProblem("data", message))
    columns = {key: np.concatenate(values) for key, values in parts.items()}
    for row in rows:
        name = layout.data_file(row)
        problems += [
            DatasetProblem(name, f"episode {row['episode_index']}: {fault}")
            for fault in _episode_faults(
                columns, rows_of.get(name, (0, 0)), row, info["fps"], tasks
            )
        ]
    return problems + _stats_against(root, ranges)


def _schema_faults(schema: pa.Schema, features: Row) -> Iterator[str]:
    keys = [key for key, feature in features.items() if feature["dtype"] != "video"]
    missing, extra = sorted(set(keys) - set(schema.names)), sorted(set(schema.names) - set(keys))
    if missing or extra:
        yield f"columns differ from info.json's features: missing {missing}, unknown {extra}"
        return

    for key in keys:
        feature = features[key]
        if feature["dtype"] not in layout.ARROW_TYPES:
            continue
        # The innermost type and the depth of lists.
        kind, depth = schema.field(key).type, 0
        while hasattr(kind, "value_type"):
            kind, depth = kind.value_type, depth + 1
        axes = 0 if list(feature["shape"]) == [1] else len(feature["shape"])
        if (str(kind), depth) != (str(layout.ARROW_TYPES[feature["dtype"]]), axes):
            yield (
                f"column {key!r} is {schema.field(key).type}, info.json says "
                f"{feature['dtype']} {feature['shape']}"
            )


def _value_faults(
    table: pa.Table,
    features: Row,
    parts: dict[str, list[np.ndarray]],
    ranges: dict[str, list[np.ndarray]],
) -> Iterator[str]:
    for key in table.column_names:
        feature = features[key]
        if feature["dtype"] not in layout.ARROW_TYPES:
            continue
        try:
            values = layout.column_values(table[key], feature["shape"])
        except ValueError as error:
            yield f"column {key!r} does not have shape {feature['shape']}: {error}"
            values = np.zeros((len(table), *feature["shape"]))
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            frame = int(np.argwhere(~np.isfinite(values))[0][0])
            yield f"column {key!r} is NaN or infinite at row {frame}"
        if key in layout.MANDATORY:
            parts[key].append(values[:, 0])
        elif len(values):
            flat = values.reshape(-1, values.shape[-1]).astype(np.float64)
            ranges[key].append(np.stack([flat.min(axis=0), flat.max(axis=0)]))


def _absence_faults(table: pa.Table, features: Row) -> Iterator[str]:
    """Yield contradictions between validity and confidence."""
    if not {VALID.name, CONFIDENCE.name} <= features.keys():
        return
    valid, confidence = (
        layout.column_values(table[column.name], features[column.name]["shape"])
        for column in (VALID, CONFIDENCE)
    )
    if valid.shape == confidence.shape and (~valid & (confidence > 0)).any():
        row, hand = np.argwhere(~valid & (confidence > 0))[0]
        yield (
            f"{CONFIDENCE.name!r} is {confidence[row, hand]:g} at row {row}, where {VALID.name!r} "
            "is false; it must be 0 there"
        )


def _episode_faults(
    columns: Mapping[str, Shaped[np.ndarray, "N"]],
    place: tuple[int, int],
    row: Row,
    fps: int,
    tasks: Sequence[str],
) -> Iterator[str]:
    start, stop = row["dataset_from_index"], row["dataset_to_index"]
    first, last = place
    if not first <= start < stop <= last:
        yield f"frames {start} to {stop} are not in its file, which holds {first} to {last}"
    part = {key: column[start:stop] for key, column in columns.items()}
    count = np.arange(row["length"])
    if len(part["index"]) != row["length"]:
        return  # reported above
    for key, expected in (
        ("index", start + count),
        ("frame_index", count),
        ("episode_index", np.full(row["length"], row["episode_index"])),
    ):
        if (part[key] != expected).any():
            at = int(np.argmax(part[key] != expected))
            yield f"{key} is {part[key][at]} at frame {at}, expected {expected[at]}"

    late = np.abs(part["timestamp"].astype(np.float64) - count / fps) > layout.TOLERANCE_S
    if late.any():
        at = int(np.argmax(late))
        yield f"timestamp is {part['timestamp'][at]} at frame {at}, expected {at}/{fps} s"

    for task in np.unique(part["task_index"]):
        if not 0 <= task < len(tasks) or tasks[task] not in row["tasks"]:
            yield f"task_index {task} is not one of the episode's tasks {row['tasks']}"


def _stats_against(root: Path, ranges: Mapping[str, list[np.ndarray]]) -> list[DatasetProblem]:
    """Compare stats.json's extremes with the data, which reveals stale statistics."""
    stats = read_stats(root)  # {} if broken: the check of the metadata reports it
    problems = []
    for key, parts in ranges.items():
        low = np.min([part[0] for part in parts], axis=0)
        high = np.max([part[1] for part in parts], axis=0)
        slack = 1e-6 + 1e-5 * np.maximum(np.abs(low), np.abs(high))
        for name, value in (("min", low), ("max", high)):
            stored = stats.get(key, {}).get(name, value)
            if stored.shape == value.shape and (np.abs(stored - value) > slack).any():
                text = f"{key}: {name} is not that of the data"
                problems.append(DatasetProblem(layout.STATS_PATH, text))
    return problems


def check_videos(root: Path, info: Row, rows: Sequence[Row]) -> Iterator[DatasetProblem]:
    """Yield the faults of the video files, given sound rows of meta/episodes."""
    for key in layout.video_keys(info["features"]):
        episodes: dict[str, list[Row]] = defaultdict(list)
        for row in rows:
            episodes[layout.video_file(row, key)].append(row)
        for name, users in episodes.items():
            try:
                facts = probe_video(root / name)
                faults = [*_video_faults(facts, info, key, users)]
                if not faults:
                    faults = [*_decoding_faults(facts, info["fps"], key, users)]
            except AcehandError as error:
                faults = [str(error)]
            yield from (DatasetProblem(name, fault) for fault in faults)


def _video_faults(facts: VideoFacts, info: Row, key: str, users: Sequence[Row]) -> Iterator[str]:
    feature = info["features"][key]
    names = list(feature["names"] or layout.IMAGE_AXES)
    axes = dict(zip(names, feature["shape"], strict=True))
    size = (axes.get("width"), axes.get("height"))
    if None not in size and size != (facts.width, facts.height):
        yield f"{facts.width} x {facts.height} pixels, info.json says {size[0]} x {size[1]}"
    frames = sum(row["length"] for row in users)
    if len(facts.times_s) != frames:
        yield f"{len(facts.times_s)} frames, its episodes have {frames}"
    if not facts.starts_with_key_frame:
        yield "does not start with a key frame"
    for row in users:
        late = late_frames(facts, row, key, info["fps"])
        if len(late):
            yield (
                f"episode {row['episode_index']}: {len(late)} of {row['length']} frames are not "
                f"within {layout.TOLERANCE_S} s of their time, the first is frame {late[0]}"
            )


def late_frames(facts: VideoFacts, row: Row, key: str, fps: int) -> Int[np.ndarray, "N"]:
    """Return the frames of an episode that the reader would not find in its video."""
    due, times = _due(row, key, fps), facts.times_s
    if not len(times):
        return np.arange(len(due))
    after = np.searchsorted(times, due).clip(0, len(times) - 1)
    before = (after - 1).clip(0)
    distance = np.minimum(np.abs(times[after] - due), np.abs(times[before] - due))
    return np.flatnonzero(distance > layout.TOLERANCE_S)


def _due(row: Row, key: str, fps: int) -> Float[np.ndarray, "T"]:
    """Return when the reader looks for the episode's frames, in seconds of the file."""
    stamps = (np.arange(row["length"]) / fps).astype(np.float32).astype(np.float64)
    return row[f"videos/{key}/from_timestamp"] + stamps


def _decoding_faults(facts: VideoFacts, fps: int, key: str, users: Sequence[Row]) -> Iterator[str]:
    for row in users:
        stamps = _due(row, key, fps)[[0, -1]]
        if missed := _undecodable(facts.path, stamps):
            yield (
                f"episode {row['episode_index']}: {len(missed)} of {len(stamps)} frames tried "
                f"cannot be decoded, the first at {missed[0]:.6f} s"
            )


def _undecodable(path: Path, stamps: Float[np.ndarray, "N"]) -> list[float]:
    """Return those of the increasing times at which no frame is decoded."""
    missed: list[float] = []
    tried = 0
    try:
        with av.open(f"file:{path}", metadata_errors="ignore") as container:
            stream = container.streams.video[0]
            assert stream.time_base is not None
            frames: Iterator[av.VideoFrame] | None = None
            shown = -np.inf
            for stamp in stamps:
                # Seek only where that saves decoding: to the first, and to a far last one.
                if frames is None or stamp - shown > 2.0:
                    offset = round(stamp / stream.time_base) - 1
                    container.seek(max(offset, 0), backward=True, stream=stream)
                    frames = container.decode(stream)
                while shown < stamp - layout.TOLERANCE_S:
                    frame = next(frames, None)
                    if frame is None:
                        break
                    if frame.pts is not None and not frame.is_corrupt:
                        shown = float(frame.pts * stream.time_base)
                if abs(shown - stamp) > layout.TOLERANCE_S:
                    missed.append(float(stamp))
                tried += 1
    except (OSError, av.FFmpegError):
        missed += stamps[tried:].tolist()
    return missed
