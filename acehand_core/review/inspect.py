"""Inspect datasets: every check of every episode, of all of them together, and what that makes."""

from __future__ import annotations

import functools
import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from acehand_core.atomic import atomic_path
from acehand_core.errors import AcehandError, InputError, MissingDependencyError, OutputError
from acehand_core.lerobot import format as layout
from acehand_core.provenance import library_versions
from acehand_core.recordings import lerobot_video
from acehand_core.review.checks import batch_measures, episode_measures
from acehand_core.review.episode import DatasetReader, Episode
from acehand_core.review.pictures import LOOKS, picture_measures
from acehand_core.types import Progress, no_progress
from retarget.replay import clip, judgements
from retarget.replay.clip import hand_length, wrist_paths
from retarget.replay.judgements import (
    JUDGEMENTS,
    Finding,
    Judgements,
    Measure,
    Status,
    findings,
    status_of,
)
from retarget.robots.robot import Robot, load_stored_robot

FORMAT, VERSION = "acehand-inspection", 1


@dataclass(frozen=True, slots=True)
class InspectedEpisode:
    """What was found of one episode.

    ``dataset`` is the place of its dataset in ``Inspection.datasets``. ``facts`` are what the batch
    is compared by (``checks.batch_measures``).
    """

    dataset: int
    number: int
    fingerprint: str
    task: str
    subject: str | None
    source: str
    frames: int
    fps: float
    status: Status
    measures: tuple[Measure, ...]
    findings: tuple[Finding, ...]
    facts: Mapping[str, Any]

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.frames / self.fps

    def to_json(self) -> dict[str, Any]:
        """Return it as report.json holds it."""
        return {
            "dataset": self.dataset, "episode": self.number, "fingerprint": self.fingerprint,
            "task": self.task, "subject": self.subject, "source": self.source,
            "frames": self.frames, "fps": self.fps, "status": self.status,
            "findings": [finding.to_json() for finding in self.findings],
            "measures": [measure.to_json() for measure in self.measures],
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Inspection:
    """All episodes of some datasets, with the limits that they were judged by."""

    datasets: tuple[Path, ...]
    episodes: tuple[InspectedEpisode, ...]
    limits: Judgements
    looks: int

    @property
    def names(self) -> tuple[str, ...]:
        """What the datasets are called; those of one name by their folders, too."""
        names = [path.name for path in self.datasets]
        twice = {name for name, count in Counter(names).items() if count > 1}
        return tuple(
            f"{path.parent.name}-{name}-{place}" if name in twice else name
            for place, (path, name) in enumerate(zip(self.datasets, names, strict=True))
        )

    @property
    def notes(self) -> list[str]:
        """What is the same of all episodes, and is therefore no finding of one."""
        said = [f.text for e in self.episodes for f in e.findings
                if (f.check, f.level) == ("camera", "note")]  # fmt: skip
        return [f"of all {len(said)} episodes {said[0]}"] if said else []

    def count(self, status: Status) -> int:
        """Return how many episodes have that status."""
        return sum(episode.status == status for episode in self.episodes)

    def to_json(self) -> dict[str, Any]:
        """Return the content of report.json."""
        statuses: tuple[Status, ...] = ("accepted", "doubtful", "rejected")

        def counted(name: str) -> dict[str, dict[str, int]]:
            groups: dict[str, dict[str, int]] = {}
            for episode in self.episodes:
                group = str(getattr(episode, name) or "not known")
                entry = groups.setdefault(group, dict.fromkeys(statuses, 0))
                entry[episode.status] += 1
            return groups

        reasons = Counter(
            finding.check
            for episode in self.episodes
            for finding in {f.check: f for f in episode.findings if f.level != "note"}.values()
        )
        return {
            "format": FORMAT, "version": VERSION,
            "datasets": list(self.names),
            "looks": self.looks,
            **{status: self.count(status) for status in statuses},
            "reasons": dict(reasons.most_common()), "notes": self.notes,
            "by_task": counted("task"), "by_subject": counted("subject"),
            "limits": {
                check: {**{level: limit if np.isfinite(limit) else None for level, limit in
                           (("doubtful", limit.doubtful), ("rejected", limit.rejected))},
                        "unit": limit.unit, "meaning": limit.meaning}
                for check, limit in self.limits.items()
            },
            "episodes": [episode.to_json() for episode in self.episodes],
        }  # fmt: skip


def write_json(inspection: Inspection, path: Path) -> None:
    """Write report.json, over an older one.

    Raises:
        OutputError: it cannot be written, or another file has that name.
    """
    if path.exists():
        try:
            ours = json.loads(path.read_text("utf-8"))["format"] == FORMAT
        except (OSError, ValueError, KeyError, TypeError):
            ours = False
        if not ours:
            raise OutputError(f"{path} is no report of acehand inspect; choose another --output.")
    with atomic_path(path, overwrite=True) as partial:
        partial.write_text(json.dumps(inspection.to_json(), indent=1, allow_nan=False) + "\n")


def find_datasets(paths: Sequence[Path]) -> tuple[Path, ...]:
    """Return the datasets that some paths are, or that lie in them up to two folders deep.

    Hidden folders are passed over: what was set aside, and what is being built.

    Raises:
        InputError: a path is no folder, or there is no dataset in it.
    """
    found: dict[Path, None] = {}
    for path in paths:
        if not path.is_dir():
            raise InputError(f"{path}: no such folder; give a LeRobot dataset or a folder of them.")

        inside = [path]
        if not lerobot_video.is_dataset(path):
            inside = sorted(
                place.parent.parent
                for depth in ("*", "*/*")
                for place in path.glob(f"{depth}/{layout.INFO_PATH}")
                if not any(part.startswith(".") for part in place.relative_to(path).parts)
            )

        if not inside:
            raise InputError(f"{path}: no LeRobot dataset, and none lies in it.")
        found.update(dict.fromkeys(place.resolve() for place in inside))
    return tuple(found)


def inspect(
    paths: Sequence[Path],
    limits: Judgements = JUDGEMENTS,
    looks: int = LOOKS,
    work: Path | None = None,
    progress: Progress = no_progress,
) -> Inspection:
    """Check every episode of datasets, or of folders of datasets.

    Args:
        limits: see ``judgements.JUDGEMENTS``.
        looks: how many frames of each episode are searched for hands again; 0: none.
        work: folder in which the measures of each episode are kept, so that the next call takes
            them from there while episode, video and this package's checks are the same.

    Raises:
        InputError: there is no dataset, or it has no hands. MissingDependencyError: ``looks`` needs
            the hand networks.
    """
    datasets = find_datasets(paths)
    readers = [DatasetReader(dataset) for dataset in datasets]
    total, done = sum(len(reader.numbers) for reader in readers), 0

    inspected: list[InspectedEpisode] = []
    for place, reader in enumerate(readers):
        robot = robot_of(reader)
        for number in reader.numbers:
            progress("inspect", done, total)
            inspected.append(_inspected(reader, place, number, robot, looks, work))
            done += 1
    progress("inspect", total, total)

    facts = [{**e.facts, "fingerprint": e.fingerprint, "task": e.task, "subject": e.subject,
              "measures": e.measures} for e in inspected]  # fmt: skip
    # A camera that is known of no episode is said once, of the batch.
    cameras = [m.value for e in inspected for m in e.measures if m.check == "camera"]
    shared = ("camera",) if len(cameras) > 1 and set(cameras) == {1} else ()
    episodes = []
    for episode, compared in zip(inspected, batch_measures(facts), strict=True):
        measures = (*episode.measures, *compared)
        found = tuple(findings(measures, limits, shared))
        episodes.append(
            replace(episode, measures=measures, findings=found, status=status_of(found))
        )
    return Inspection(datasets, tuple(episodes), limits, looks)


def robot_of(reader: DatasetReader) -> Robot | None:
    """Return the robot of a dataset, None where it has none or one that is not known here."""
    label = reader.robot_label
    try:
        return load_stored_robot(label, None, None, str(reader.dataset)) if label else None
    except AcehandError:
        return None


def _inspected(
    reader: DatasetReader,
    place: int,
    number: int,
    robot: Robot | None,
    looks: int,
    work: Path | None,
) -> InspectedEpisode:
    """Measure one episode, or take its measures from ``work``."""
    try:
        episode = reader.read(number)
    except AcehandError as error:
        measure = Measure("unreadable", 1, f"it cannot be read: {error}")
        facts = {"camera": None, "source_size": None, "work": [0.0, 0.0], "hand_length": None}
        return InspectedEpisode(place, number, "", "", None, "", 0, 1.0, "rejected", (measure,),
                                (), facts)  # fmt: skip

    kept = None if work is None else work / f"{episode.fingerprint}.json"
    key = _key(episode, reader.video(number), looks)
    measures = None if kept is None else _read_kept(kept, key)
    if measures is None:
        measures = episode_measures(episode, robot)
        try:
            if (recording := reader.recording(number)) is not None:
                measures += picture_measures(episode, recording, looks)
        except MissingDependencyError:
            raise
        except AcehandError as error:
            measures.append(Measure("unreadable", 1, f"its video cannot be read: {error}"))
        if kept is not None:
            content = {"key": key, "measures": [measure.to_json() for measure in measures]}
            with atomic_path(kept, overwrite=True) as partial:
                partial.write_text(json.dumps(content))

    return InspectedEpisode(
        dataset=place, number=number, fingerprint=episode.fingerprint, task=episode.task,
        subject=episode.subject, source=episode.source, frames=len(episode), fps=episode.fps,
        status="accepted", measures=tuple(measures), findings=(),
        facts={"camera": None if episode.camera is None else episode.camera[0].tolist(),
               "source_size": (episode.origin.get("settings") or {}).get("source_size"),
               "work": wrist_paths(episode), "hand_length": hand_length(episode)},
    )  # fmt: skip


def _read_kept(path: Path, key: str) -> list[Measure] | None:
    """Return the measures that were kept under a key, None where there are none or others."""
    try:
        content = json.loads(path.read_text())
        measures = [Measure(**entry) for entry in content["measures"]]
        return measures if content["key"] == key else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _key(episode: Episode, video: lerobot_video.SourceEpisode | None, looks: int) -> str:
    """Return what measures depend on beside the episode's columns: files, code, settings."""
    digest = hashlib.sha256(_code())
    said = [looks, episode.robot_label, episode.fps, dict(library_versions())]
    digest.update(json.dumps(said).encode())
    files = [episode.folder / name for name in (layout.HANDS, layout.REPORT, layout.CALIBRATION)]
    if video is not None:
        digest.update(repr(video.start_s).encode())
        files.append(video.video)
    for file in files:
        if file.is_file():
            stat = file.stat()
            digest.update(f"{file.name} {stat.st_size} {stat.st_mtime_ns}".encode())
    return digest.hexdigest()


@functools.cache
def _code() -> bytes:
    """Return a hash of the modules whose code makes the measures."""
    digest = hashlib.sha256()
    own = [Path(__file__).with_name(f"{name}.py") for name in ("checks", "episode", "pictures")]
    for file in (*own, Path(clip.__file__), Path(judgements.__file__)):
        digest.update(file.read_bytes())
    return digest.digest()
