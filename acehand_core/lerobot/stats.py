"""Statistics of a LeRobot v3 dataset: per episode, merged, and exact over all frames.

Every statistic is float64: [1] of a scalar feature, [D] of a vector; a feature of more axes is
pooled over all but the last, as in lerobot. Images have (3, 1, 1) in [0, 1], depth (1, 1, 1) in
millimetres.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
from jaxtyping import Int

from acehand_core.errors import SchemaError, VideoError
from acehand_core.lerobot import format as layout
from acehand_core.recordings.video_encode import DEPTH_FORMAT
from acehand_core.recordings.video_index import rgb_options

QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
STAT_NAMES = ("min", "max", "mean", "std", "count", *QUANTILES)

#: Frames of a video sampled for its statistics, and their longer side in pixels.
SAMPLED_FRAMES = 64
SAMPLED_SIDE = 160
FEW_KEY_FRAMES = 16
#: Above this many frames (memory) quantiles remain averages of the episodes' quantiles.
EXACT_FRAMES = 50_000
COLUMNS_AT_ONCE = 16
#: Rounding tolerance of a quantile of the frame index.
_INDEX_SLACK = 0.01

Stats = dict[str, np.ndarray]
FeatureStats = dict[str, Stats]


def feature_stats(values: np.ndarray) -> Stats:
    """Return the statistics of a feature's values (N, *shape), ``count`` [N].

    std is the population's; quantiles interpolate linearly between order statistics.
    """
    flat = values.reshape(len(values), -1) if values.ndim == 1 else values
    flat = flat.reshape(-1, flat.shape[-1])
    # A few columns at a time: copies of ten minutes of hands would take 100 MB.
    parts = []
    for first in range(0, flat.shape[1], COLUMNS_AT_ONCE):
        some = flat[:, first : first + COLUMNS_AT_ONCE].astype(np.float64)
        rows = [some.min(axis=0), some.max(axis=0), some.mean(axis=0), some.std(axis=0)]
        parts.append([*rows, *np.quantile(some, list(QUANTILES.values()), axis=0)])

    names = ("min", "max", "mean", "std", *QUANTILES)
    joined = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    stats = dict(zip(names, joined, strict=True)) | {"count": np.array([len(values)])}
    return {name: stats[name] for name in STAT_NAMES}


def image_stats(path: Path) -> Stats:
    """Return the statistics of an encoded video, each but ``count`` (3, 1, 1) in [0, 1].

    Of depth (12-bit grey) they are (1, 1, 1) in its counts.

    Samples at most ``SAMPLED_FRAMES`` key frames, or all frames if few are key frames, subsampled
    to ``SAMPLED_SIDE``. Raises VideoError when the file cannot be decoded.
    """
    try:
        keys, frames = _counts(path)
        samples = _sample(path, key_frames=True, count=keys) if keys >= FEW_KEY_FRAMES else []
        if len(samples) < FEW_KEY_FRAMES:
            samples = _sample(path, key_frames=False, count=frames)
    except (OSError, av.FFmpegError) as error:
        raise VideoError(f"{path} cannot be decoded: {error}.") from error

    if not samples:
        raise VideoError(f"{path}: no frame can be decoded.")
    if samples[0].ndim == 2:
        counts = feature_stats(np.concatenate([image.ravel() for image in samples])[:, None])
        stats = {name: value.reshape(1, 1, 1) for name, value in counts.items()}
        return stats | {"count": np.array([len(samples)])}
    channels = [
        _histogram_stats(
            np.sum([np.bincount(image[..., c].ravel(), minlength=256) for image in samples], axis=0)
        )
        for c in range(3)
    ]
    stats = {
        name: np.array([stat[name] for stat in channels]).reshape(3, 1, 1) / 255.0
        for name in channels[0]
    }
    return stats | {"count": np.array([len(samples)])}


def merge(parts: Sequence[Stats]) -> Stats:
    """Return the statistics of several parts; quantiles are weighted averages, as in lerobot."""
    counts = np.array([float(part["count"][0]) for part in parts])
    weights = (counts / counts.sum()).reshape(-1, *[1] * parts[0]["mean"].ndim)
    means = np.stack([part["mean"] for part in parts])
    mean = (weights * means).sum(axis=0)
    spread = np.stack([part["std"] for part in parts]) ** 2 + (means - mean) ** 2
    merged = {
        "min": np.min([part["min"] for part in parts], axis=0),
        "max": np.max([part["max"] for part in parts], axis=0),
        "mean": mean,
        "std": np.sqrt((weights * spread).sum(axis=0)),
        "count": np.array([int(counts.sum())]),
    }
    for name in QUANTILES:
        merged[name] = (weights * np.stack([part[name] for part in parts])).sum(axis=0)
    return merged


def dataset_stats(
    root: Path, features: Mapping[str, Any], episodes: Sequence[Mapping[str, Any]]
) -> FeatureStats:
    """Return the statistics over the given rows of meta/episodes.

    Up to ``EXACT_FRAMES`` frames they are exact, but for images; beyond, merged.
    """
    total = sum(row["length"] for row in episodes)
    exact = [key for key, feature in features.items() if feature["dtype"] in layout.ARROW_TYPES]
    if total > EXACT_FRAMES:
        exact = []
    tables = [
        layout.read_parquet(path, exact) for path in layout.parquet_files(root / "data") if exact
    ]
    stats: FeatureStats = {}
    for key, feature in features.items():
        if key in exact:
            values = [layout.column_values(table[key], feature["shape"]) for table in tables]
            stats[key] = feature_stats(np.concatenate(values)[:total])
        else:
            stats[key] = merge([episode_stats(row, key) for row in episodes])
    return stats


def are_provisional(root: Path, episodes: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether our writer was stopped before it computed the exact quantiles.

    ``index`` counts 0, 1, 2, ..., so its quantiles are known; averages over two or more episodes
    miss the first. lerobot's tools average too, but drop our record from the last data file (those
    that add, delete or copy) or do not change this feature (``recompute_stats``).
    """
    frames = episodes[-1]["dataset_to_index"] if episodes else 0
    stats = read_stats(root).get("index", {})
    if not 0 < frames <= EXACT_FRAMES or any(
        name not in stats or stats[name].shape != (1,) for name in QUANTILES
    ):
        return False
    off = [abs(stats[name].item() - share * (frames - 1)) for name, share in QUANTILES.items()]
    return max(off) > _INDEX_SLACK and layout.read_record(root, episodes[-1]) is not None


def episode_stats(row: Mapping[str, Any], key: str) -> Stats:
    """Return a feature's statistics in a row of meta/episodes. Raises SchemaError."""
    try:
        return {name: np.array(row[f"stats/{key}/{name}"]) for name in STAT_NAMES}
    except KeyError as error:
        raise SchemaError(
            f"Episode {row.get('episode_index')}: meta/episodes has no column {error}."
        ) from None


def stat_shape(feature: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """Return the shape of one statistic of a feature of info.json."""
    if name == "count":
        return (1,)
    if layout.is_depth(feature):
        return (1, 1, 1)
    return (3, 1, 1) if feature["dtype"] == "video" else (feature["shape"][-1],)


def describes(stats: Mapping[str, Stats], features: Mapping[str, Any], frames: int) -> bool:
    """Return whether statistics are complete and cover this many frames."""
    shapes_fit = all(
        name in stats.get(key, {}) and stats[key][name].shape == stat_shape(feature, name)
        for key, feature in features.items()
        for name in STAT_NAMES
    )
    return shapes_fit and int(stats["index"]["count"][0]) == frames


def stats_to_json(stats: Mapping[str, Stats]) -> dict[str, Any]:
    """Return stats.json's content."""
    return {
        key: {name: value.tolist() for name, value in stat.items()} for key, stat in stats.items()
    }


def read_stats(root: Path) -> FeatureStats:
    """Return the content of stats.json, {} if it is broken: it can be computed again."""
    try:
        return {
            key: {name: np.asarray(value, dtype=np.float64) for name, value in stat.items()}
            for key, stat in layout.read_json(root / layout.STATS_PATH).items()
        }
    except (SchemaError, AttributeError, TypeError, ValueError):
        return {}


def _counts(path: Path) -> tuple[int, int]:
    """Return the numbers of key frames and of frames of a video, without decoding."""
    with av.open(f"file:{path}", metadata_errors="ignore") as container:
        stream = container.streams.video[0]
        keys = [packet.is_keyframe for packet in container.demux(stream) if packet.size]
        return sum(keys), len(keys)


def _sample(path: Path, key_frames: bool, count: int) -> list[np.ndarray]:
    """Return some of the ``count`` expected frames, evenly spread."""
    images: list[np.ndarray] = []
    stride = 1
    while -(-count // stride) > SAMPLED_FRAMES:
        stride *= 2
    with av.open(f"file:{path}", metadata_errors="ignore") as container:
        stream = container.streams.video[0]
        stream.thread_type = "AUTO"
        if key_frames:
            stream.codec_context.skip_frame = "NONKEY"
        for number, frame in enumerate(container.decode(stream)):
            if number % stride:
                continue
            scale = max(1, round(max(frame.width, frame.height) / SAMPLED_SIDE))
            if frame.format.name == DEPTH_FORMAT:
                images.append(frame.to_ndarray()[::scale, ::scale])
                continue
            small = frame.reformat(
                width=max(1, frame.width // scale),
                height=max(1, frame.height // scale),
                interpolation="POINT",
                **rgb_options(frame),
            )
            images.append(small.to_ndarray())
            if len(images) > SAMPLED_FRAMES:  # more than expected: bound the memory
                images = images[::2]
                stride *= 2
    return images


def _histogram_stats(counts: Int[np.ndarray, "256"]) -> dict[str, float]:
    """Return ``feature_stats`` of pixel values 0..255 given by their counts."""
    total = int(counts.sum())
    values = np.arange(256.0)
    present = np.flatnonzero(counts)
    mean = float(counts @ values) / total
    cumulative = np.cumsum(counts)

    def order_statistic(rank: int) -> float:
        return float(np.searchsorted(cumulative, rank, side="right"))

    stats = {
        "min": float(present[0]),
        "max": float(present[-1]),
        "mean": mean,
        "std": float(np.sqrt(counts @ (values - mean) ** 2 / total)),
    }
    for name, quantile in QUANTILES.items():
        position = quantile * (total - 1)
        low = order_statistic(int(position))
        high = order_statistic(min(int(position) + 1, total - 1))
        stats[name] = low + (high - low) * (position - int(position))
    return stats
