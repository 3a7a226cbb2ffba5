"""A LeRobot v3 dataset in numbers, and its card: README.md on the Hugging Face Hub."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from acehand_core.errors import InputError, nearest
from acehand_core.lerobot import format as layout
from acehand_core.lerobot.columns import CONFIDENCE, ROBOT_JOINTS
from acehand_core.lerobot.edit import opened
from acehand_core.lerobot.rules import entries_of
from acehand_core.lerobot.stats import QUANTILES

#: Measures of the reports in the card, with their meaning.
MEASURES = {
    "coverage.left": "share of frames in which the left hand was seen",
    "coverage.right": "share of frames in which the right hand was seen",
    "filled_share": "share of known hands that were filled in",
    "doubtful_share": "share of known hands that are doubtful",
    "reprojection_px.median": "fitted joints from 2D evidence, px",
    "tip_sigma_mm.across": "fingertips' standard deviation across the line of sight, mm",
    "tip_sigma_mm.along": "fingertips' standard deviation along it, mm",
    "tip_error_mm.mean": "robot's fingertips from the human's, mm",
}
NO_CONSENT = (
    "It is not recorded whether the people in the recordings agreed to their publication. Ask them "
    "before you publish this dataset."
)


@dataclass(frozen=True, slots=True)
class Summary:
    """A dataset in numbers.

    Attributes:
        tasks: episodes and frames of each.
        verdicts, subjects, trackers: episodes of each; "unknown": not recorded.
        videos: size and codec of each.
        bytes: size on disk.
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


def summarize(root: Path) -> Summary:
    """Return a dataset in numbers. Raises InputError, SchemaError, OutputError (in use)."""
    with opened(root.resolve()) as (info, rows, _):
        tasks: dict[str, Counter[str]] = defaultdict(Counter)
        verdicts, subjects = Counter[str](), Counter[str]()
        trackers, licenses = Counter[str](), Counter[str]()
        recordings = set()
        for row in rows:
            for task in row["tasks"]:
                tasks[task] += Counter(episodes=1, frames=row["length"])
            number = row["episode_index"]
            report = layout.read_report(root, number)
            subjects[report.get("subject", "unknown")] += 1
            verdicts[report.get("verdict", "unknown")] += 1
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
    """Return min, quantiles (linear), max, mean and std of a feature, by entry.

    Raises InputError for an unknown feature or a video, else as ``summarize``.
    """
    with opened(root.resolve()) as (info, rows, _):
        features = {k: f for k, f in info["features"].items() if f["dtype"] != "video"}
        if key not in features:
            raise InputError(f"{root}: no feature {key!r} with numbers; {nearest(key, features)}")
        feature = features[key]
        shape, names = feature["shape"], feature["names"]
        files = dict.fromkeys(layout.data_file(row) for row in rows)
        tables = (layout.read_parquet(root / name, [key]) for name in files)
        values = np.concatenate([layout.column_values(table[key], shape) for table in tables])

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


def card(root: Path, license_id: str | None = None, consent: str | None = None) -> str:
    """Return the card of a dataset (Markdown with a YAML head). Raises as ``summarize``.

    Args:
        license_id: the dataset's licence, by the Hub's name; None: "other".
        consent: of the people in the recordings, in a sentence.
    """
    summary = summarize(root)
    with opened(root.resolve()) as (info, rows, _):
        entries = [entries_of(root, info, row) for row in rows]
        records = [layout.read_record(root, row) or {} for row in rows]

    head = {
        "license": license_id or "other",
        "task_categories": ["robotics"],
        "tags": ["LeRobot", "acehand", *([summary.robot] if summary.robot else [])],
        "configs": [{"config_name": "default", "data_files": "data/*/*.parquet"}],
    }
    seconds = summary.seconds
    lasting = f"{seconds / 60:.1f} minutes" if seconds >= 120 else f"{seconds:.1f} seconds"
    parts = [
        f"---\n{yaml.safe_dump(head, sort_keys=False)}---",
        f"# {summary.dataset}",
        f"{_kind(summary)}: {summary.episodes} episodes of {summary.recordings} recordings"
        f"{_people(summary)}, {summary.frames} frames at {summary.fps} per second, {lasting}.",
        "## Tasks",
        _table(("task", "episodes", "frames"), (
            (task, counts["episodes"], counts["frames"]) for task, counts in summary.tasks.items()
        )),
        "## Quality",
        _quality(summary, entries),
        "## How it was made",
        _making(records),
        "## Licences",
        "\n- ".join((f"- recordings: {license_id or 'not recorded'}", *summary.licenses)),
        "## People",
        consent or NO_CONSENT,
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _kind(summary: Summary) -> str:
    """Return the kind of dataset, as the card's first words."""
    if ROBOT_JOINTS.name in summary.features:
        origin = "made of recordings of human hands by acehand"
        return f"Demonstrations of the robot hand {summary.robot}, {origin}"
    found = ", with human hands that acehand found" if CONFIDENCE.name in summary.features else ""
    return f"Episodes of {summary.robot or 'an unnamed robot'}{found}"


def _people(summary: Summary) -> str:
    """Return the number of subjects, without their names."""
    known = [name for name in summary.subjects if name != "unknown"]
    if not known:
        return ""
    more = " and others" if "unknown" in summary.subjects else ""
    return f" of {len(known)} subject{'s' if len(known) > 1 else ''}{more}"


def _quality(summary: Summary, entries: Sequence[Mapping[str, Any]]) -> str:
    """Return the verdicts, and quantiles over episodes of their reports' measures."""
    judged = ", ".join(f"{count} {verdict}" for verdict, count in summary.verdicts.items())
    rows = []
    for entry, meaning in MEASURES.items():
        values = [e[entry] for e in entries if isinstance(e.get(entry), int | float)]
        if values:
            quantiles = np.quantile(values, [0.1, 0.5, 0.9])
            rows.append((meaning, *(f"{q:.3g}" for q in quantiles), len(values)))
    sentence = f"Verdicts of episodes: {judged}."
    if not rows:
        return sentence
    names = ("of an episode", "10 %", "median", "90 %", "episodes")
    intro = "The tracker's own measures, none of them against ground truth"
    return f"{sentence} {intro}:\n\n{_table(names, rows)}"


def _making(records: Sequence[Mapping[str, Any]]) -> str:
    """Return trackers with their weights, and the settings shared by all episodes."""
    used = dict.fromkeys(
        (str(r.get("tracker", "unknown")), str(r.get("weights", "unknown"))) for r in records
    )
    lines = [f"- tracker {tracker}; weights: {weights}" for tracker, weights in used]
    settings = [(record.get("job") or {}).get("settings") or {} for record in records]
    shared = {
        key: value
        for key, value in settings[0].items()
        if value is not None
        and key != "subject"
        and all(other.get(key) == value for other in settings)
    }
    lines += [f"- {key}: `{value}`" for key, value in shared.items()]
    notes = dict.fromkeys(note for record in records for note in record.get("notes", ()))
    return "\n".join([*lines, *(f"- {note}" for note in notes)])


def _table(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a Markdown table; bars within entries are escaped."""
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join(
        "| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines
    )
