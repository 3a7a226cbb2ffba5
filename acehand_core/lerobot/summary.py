"""What a LeRobot v3 dataset holds, in numbers: counts, tasks, verdicts, sources, sizes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from acehand_core.errors import InputError, nearest
from acehand_core.lerobot import format as layout
from acehand_core.lerobot.edit import opened
from acehand_core.lerobot.stats import QUANTILES


@dataclass(frozen=True, slots=True)
class Summary:
    """A dataset in numbers.

    ``tasks`` has episodes and frames of each task; ``verdicts`` and ``subjects`` count episodes, of
    which "unknown" are those whose report does not say; ``trackers`` and ``licenses``
    are as the episodes' records say; ``videos`` has size and codec of each; ``bytes`` the size of
    everything on disk.
    """

    dataset: str
    robot: str | None
    fps: int
    episodes: int
    frames: int
    seconds: float
    tasks: Mapping[str, Mapping[str, int]]
    verdicts: Mapping[str, int]
    recordings: int
    subjects: Mapping[str, int]
    trackers: Mapping[str, int]
    licenses: tuple[str, ...]
    features: Mapping[str, str]
    videos: Mapping[str, Mapping[str, Any]]
    bytes: int

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``acehand dataset info --json`` prints."""
        return asdict(self)


def summarize(root: Path) -> Summary:
    """Return what a dataset holds. Raises InputError, SchemaError, OutputError (in use)."""
    with opened(root.resolve()) as (info, rows, _):
        tasks: dict[str, Counter[str]] = defaultdict(Counter)
        verdicts, subjects = Counter[str](), Counter[str]()
        trackers, licenses = Counter[str](), Counter[str]()
        recordings = set()
        for row in rows:
            for task in row["tasks"]:
                tasks[task] += Counter(episodes=1, frames=row["length"])
            number = row["episode_index"]
            said = layout.read_report(root, number)
            subjects[said.get("subject", "unknown")] += 1
            verdicts[said.get("verdict", "unknown")] += 1
            record = layout.read_record(root, row) or {}
            trackers[record.get("tracker", "unknown")] += 1
            licenses.update(record.get("licenses", ()))
            recordings.add(record.get("source_sha256") or f"episode {number}")

        features: Mapping[str, Any] = info["features"]
        videos = {}
        for key in layout.video_keys(features):
            height, width, _ = features[key]["shape"]
            codec = features[key].get("info", {}).get("video.codec")
            videos[key] = {"width": width, "height": height, "codec": codec}
        frames = sum(row["length"] for row in rows)
        return Summary(
            dataset=root.resolve().name,
            robot=info["robot_type"],
            fps=info["fps"],
            episodes=len(rows),
            frames=frames,
            seconds=frames / info["fps"],
            tasks={task: dict(counts) for task, counts in tasks.items()},
            verdicts=dict(verdicts),
            recordings=len(recordings),
            subjects=dict(subjects),
            trackers=dict(trackers),
            licenses=tuple(licenses),
            features={
                key: f"{feature['dtype']} {' x '.join(map(str, feature['shape']))}"
                for key, feature in features.items()
            },
            videos=videos,
            bytes=sum(p.stat().st_size for p in root.rglob("*") if p.is_file()),
        )


def exact_quantiles(root: Path, key: str) -> dict[str, dict[str, float]]:
    """Return min, quantiles, max, mean and std over all frames of a feature, by entry.

    All of its values are in memory at once. Quantiles interpolate linearly.

    Raises:
        InputError: no such feature, or it is a video. SchemaError, OutputError: as ``summarize``.
    """
    with opened(root.resolve()) as (info, rows, _):
        features = {k: f for k, f in info["features"].items() if f["dtype"] != "video"}
        if key not in features:
            raise InputError(f"{root}: no feature {key!r} with numbers; {nearest(key, features)}")
        feature = features[key]
        shape, names = feature["shape"], feature["names"]
        files = dict.fromkeys(layout.data_file(row) for row in rows)
        values = np.concatenate(
            [layout.column_values(layout.read_parquet(root / name, [key])[key], shape)
             for name in files]
        )  # fmt: skip

    flat = values.reshape(len(values), -1)
    flat_names = names if isinstance(names, list) and len(names) == flat.shape[1] else None
    out = {}
    for entry in range(flat.shape[1]):
        column = flat[:, entry].astype(np.float64)
        quantiles = np.quantile(column, list(QUANTILES.values()))
        out[flat_names[entry] if flat_names else str(entry)] = {
            "min": float(column.min()),
            **dict(zip(QUANTILES, map(float, quantiles), strict=True)),
            "max": float(column.max()),
            "mean": float(column.mean()),
            "std": float(column.std()),
        }
    return out
