"""Inspection of datasets: all checks of single episodes and of the batch."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from acehand_core.atomic import atomic_path
from acehand_core.errors import AcehandError, InputError, MissingDependencyError, OutputError
from acehand_core.lerobot import format as layout
from acehand_core.lerobot.check import check_dataset
from acehand_core.lerobot.check_files import DatasetProblem
from acehand_core.lerobot.episode import DatasetReader, Episode
from acehand_core.provenance import code_sha256, library_versions
from acehand_core.recordings import lerobot_video
from acehand_core.review.measures import batch_measures, episode_measures
from acehand_core.review.pictures import LOOKS, picture_measures
from acehand_core.types import Progress, no_progress
from retarget.replay.checks import (
    CHECKS,
    Checks,
    Finding,
    Measure,
    Status,
    findings,
    status_of,
)
from retarget.replay.clip import hand_length, wrist_paths
from retarget.robots.robot import Robot, load_stored_robot

FORMAT, VERSION = "acehand-inspection", 1


@dataclass(frozen=True, slots=True)
class InspectedEpisode:
    """Measures and findings of one episode.

    ``dataset`` is an index of ``Inspection.datasets``; ``facts`` are compared within the batch
    (``measures.batch_measures``).
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

    @classmethod
    def of(
        cls,
        dataset: int,
        episode: Episode,
        measures: Sequence[Measure],
        found: Sequence[Finding],
        facts: Mapping[str, Any],
    ) -> InspectedEpisode:
        """Return the episode with its measures and findings."""
        return cls(
            dataset=dataset, number=episode.number, fingerprint=episode.fingerprint,
            task=episode.task, subject=episode.subject, source=episode.source,
            frames=len(episode), fps=episode.fps, status=status_of(found),
            measures=tuple(measures), findings=tuple(found), facts=facts,
        )  # fmt: skip

    def facts_json(self) -> dict[str, Any]:
        """Return its entry in report.json without measures and findings."""
        same = ("fingerprint", "task", "subject", "source", "frames", "fps", "status")
        facts = {name: getattr(self, name) for name in same}
        return {"dataset": self.dataset, "episode": self.number, **facts}

    def to_json(self) -> dict[str, Any]:
        """Return its entry in report.json."""
        listed = [finding.to_json() for finding in self.findings]
        measures = [measure.to_json() for measure in self.measures]
        return {**self.facts_json(), "findings": listed, "measures": measures}


@dataclass(frozen=True, slots=True)
class Inspection:
    """All episodes of some datasets, with the limits of the checks."""

    datasets: tuple[Path, ...]
    episodes: tuple[InspectedEpisode, ...]
    limits: Checks
    looks: int

    @property
    def names(self) -> tuple[str, ...]:
        """The datasets' names; equal ones with their folders."""
        names = [path.name for path in self.datasets]
        twice = {name for name, count in Counter(names).items() if count > 1}
        return tuple(
            f"{path.parent.name}-{name}-{place}" if name in twice else name
            for place, (path, name) in enumerate(zip(self.datasets, names, strict=True))
        )

    @property
    def notes(self) -> list[str]:
        """What is assumed of episodes, with their number."""
        listed = [finding for episode in self.episodes for finding in episode.findings]
        texts = Counter(f.text for f in listed if f.check == "assumed")
        return [f"of {count} episodes: {text}" for text, count in texts.items()]

    def count(self, status: Status) -> int:
        return sum(episode.status == status for episode in self.episodes)

    def to_json(self) -> dict[str, Any]:
        statuses: tuple[Status, ...] = ("pass", "warn", "fail")

        def counted(name: str) -> dict[str, dict[str, int]]:
            groups: dict[str, dict[str, int]] = {}
            for episode in self.episodes:
                group = str(getattr(episode, name) or "not known")
                entry = groups.setdefault(group, dict.fromkeys(statuses, 0))
                entry[episode.status] += 1
            return groups

        reasons = Counter(
            check
            for episode in self.episodes
            for check in dict.fromkeys(f.check for f in episode.findings if f.level != "note")
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
                           (("warn", limit.warn), ("fail", limit.fail))},
                        "unit": limit.unit, "meaning": limit.meaning}
                for check, limit in self.limits.items()
            },
            "episodes": [episode.to_json() for episode in self.episodes],
        }  # fmt: skip


def write_json(inspection: Inspection, path: Path) -> None:
    """Write report.json, over an older one.

    Raises OutputError: it cannot be written, or another file has that name.
    """
    if path.exists():
        try:
            ours = json.loads(path.read_text("utf-8"))["format"] == FORMAT
        except (OSError, ValueError, KeyError, TypeError):
            ours = False
        if not ours:
            raise OutputError(
                f"{path} is not a report of acehand inspect; choose another `output`."
            )
    with atomic_path(path, overwrite=True) as partial:
        partial.write_text(json.dumps(inspection.to_json(), indent=1, allow_nan=False) + "\n")


def find_datasets(paths: Sequence[Path]) -> tuple[Path, ...]:
    """Return the datasets at some paths, or up to two folders below them, hidden ones excepted.

    Raises InputError: a path is not a folder, or has no dataset.
    """
    datasets: dict[Path, None] = {}
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
            raise InputError(f"{path}: neither a LeRobot dataset nor a folder of them.")
        datasets.update(dict.fromkeys(place.resolve() for place in inside))
    return tuple(datasets)


def inspect(
    paths: Sequence[Path],
    limits: Checks = CHECKS,
    looks: int = LOOKS,
    work: Path | None = None,
    progress: Progress = no_progress,
) -> Inspection:
    """Check every episode of datasets, or of folders of datasets.

    Args:
        limits: see ``checks.CHECKS``.
        looks: frames per episode in which hands are detected again.
        work: cache of measures; they count while episode, video and checks are the same.

    Raises InputError: there is no dataset, or it has no hands. MissingDependencyError: ``looks``
    needs the hand networks.
    """
    datasets = find_datasets(paths)
    readers = [DatasetReader(dataset) for dataset in datasets]
    total, done = sum(len(reader.numbers) for reader in readers), 0

    inspected: list[InspectedEpisode] = []
    for place, reader in enumerate(readers):
        robot, problems = robot_of(reader), check_dataset(reader.dataset)
        for number in reader.numbers:
            progress("inspect", done, total)
            one = _inspected(reader, place, number, robot, looks, work)
            checked = _checked(problems, number, reader.files(number))
            inspected.append(replace(one, measures=(*one.measures, checked)))
            done += 1
    progress("inspect", total, total)

    named = "fingerprint", "task", "subject", "measures"
    facts = [{**e.facts, **{name: getattr(e, name) for name in named}} for e in inspected]
    episodes = []
    for episode, compared in zip(inspected, batch_measures(facts), strict=True):
        measures = (*episode.measures, *compared)
        found = tuple(findings(measures, limits))
        episodes.append(
            replace(episode, measures=measures, findings=found, status=status_of(found))
        )
    return Inspection(datasets, tuple(episodes), limits, looks)


def robot_of(reader: DatasetReader) -> Robot | None:
    """Return the robot of a dataset; None without one, or for an unknown one."""
    label = reader.robot_label
    try:
        return load_stored_robot(label, None, None, str(reader.dataset)) if label else None
    except AcehandError:
        return None


def _checked(problems: Sequence[DatasetProblem], number: int, files: Collection[str]) -> Measure:
    """Measure what ``check_dataset`` found of one episode, and of the dataset as a whole."""
    folders, other = ("data/", "videos/", layout.EXTRAS), rf"episode (?!{number}:)\d+:"
    own = [p for p in problems if p.path in files or not p.path.startswith(folders)]
    own = [problem for problem in own if not re.match(other, problem.message)]
    sidecars_only = all(p.path.startswith((layout.EXTRAS, layout.STATS_PATH)) for p in own)
    text = f"acehand dataset check: {'; '.join(map(str, own))}"
    return Measure("dataset_check", bool(own) * (1 if sidecars_only else 2), text)


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
        unknown = {"camera": None, "source_size": None, "work": [0.0, 0.0], "hand_length": None}
        return InspectedEpisode(
            place, number, "", "", None, "", 0, 1.0, "fail", (measure,), (), unknown
        )

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

    facts: dict[str, Any] = {
        "camera": None if episode.camera is None else episode.camera[0].tolist(),
        "source_size": (episode.origin.get("settings") or {}).get("source_size"),
        "work": wrist_paths(episode),
        "hand_length": hand_length(episode),
    }
    return InspectedEpisode.of(place, episode, measures, (), facts)


def _read_kept(path: Path, key: str) -> list[Measure] | None:
    """Return the cached measures of a key, or None."""
    try:
        content = json.loads(path.read_text())
        measures = [Measure(**entry) for entry in content["measures"]]
        return measures if content["key"] == key else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _key(episode: Episode, video: lerobot_video.SourceEpisode | None, looks: int) -> str:
    """Return a hash of the files, code and settings on which measures depend."""
    digest = hashlib.sha256()
    code = code_sha256("acehand_core/**/*.py", "retarget/**/*.py", "r*/**/*.yaml")
    inputs = [code, looks, episode.robot_label, episode.fps, dict(library_versions())]
    digest.update(json.dumps(inputs).encode())
    files = [episode.folder / name for name in (layout.HANDS, layout.REPORT, layout.CALIBRATION)]
    if video is not None:
        digest.update(repr(video.start_s).encode())
        files.append(video.video)
    for file in files:
        if file.is_file():
            stat = file.stat()
            digest.update(f"{file.name} {stat.st_size} {stat.st_mtime_ns}".encode())
    return digest.hexdigest()
