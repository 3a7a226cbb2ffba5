"""Write LeRobotDataset v3.0: new datasets, more episodes, resumed ones, and nothing half done.

Each episode is one data file, one video file per camera and one metadata file. A new dataset is
built in a hidden sibling folder and appears with its first whole episode. Every later episode is
staged inside the dataset and put in place in this order: files beside it, videos, data, tasks,
stats, episode row, info.json. The reader takes its length from info.json, so at any moment it sees
exactly the finished episodes; what a killed process leaves behind is finished or removed by the
next writer or by ``repair.repair``.

The record of every episode keeps, under ``JOB``, what it was made from (content of the input, cut,
part of a recording that is split) and the settings that change its content: so a resumed run knows
which episodes it need not repeat.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from acehand_core.atomic import DirectoryLock, LockedError, output_errors
from acehand_core.errors import InputError, OutputError, SchemaError
from acehand_core.lerobot import format as layout
from acehand_core.lerobot.format import (
    HANDS,
    FeatureSpec,
    episode_folder,
    missing_files,
)
from acehand_core.lerobot.transaction import STAGING, clean_siblings, recover
from acehand_core.lerobot.writer import LeRobotWriter
from acehand_core.recordings.lerobot_video import is_dataset
from acehand_core.safe_files import content_sha256
from acehand_core.types import Existing


def create(
    root: Path,
    fps: int,
    features: Sequence[FeatureSpec],
    robot_type: str,
    *,
    overwrite: bool = False,
) -> LeRobotWriter:
    """Start a new dataset; ``root`` appears when its first episode is complete.

    With ``overwrite`` a dataset at ``root`` is replaced at that moment, not before. Raises
    OutputError when ``root`` exists (or, with ``overwrite``, is not a dataset) or cannot be
    written, SchemaError for features that the format does not allow.
    """
    if fps <= 0:
        raise SchemaError(f"A dataset's rate is a positive whole number of frames, not {fps}.")
    info = layout.new_info(fps, layout.features_json(features), robot_type)
    root = root.absolute()
    with output_errors(root):
        root.parent.mkdir(parents=True, exist_ok=True)
        clean_siblings(root)
        if root.exists() and not (root.is_dir() and not any(root.iterdir())):
            if not overwrite:
                raise OutputError(
                    f"{root} exists; append to it, overwrite it, or choose another folder."
                )
            if not is_dataset(root):
                raise OutputError(
                    f"{root} is not a LeRobot dataset, so it is not overwritten; move it away."
                )
            DirectoryLock(root).release()  # refused while somebody writes to it
        base = root.with_name(f".{root.name}.partial-{os.getpid()}")
        base.mkdir(exist_ok=True)
        return LeRobotWriter(root, base, info, DirectoryLock(base))


def open_for_append(
    root: Path,
    fps: int,
    features: Sequence[FeatureSpec],
    robot_type: str,
) -> LeRobotWriter:
    """Open a dataset to add episodes, after tidying up behind an interrupted writer.

    Raises InputError when there is no dataset, SchemaError when features, fps or robot differ (each
    difference is named) or its counts contradict each other, OutputError when another process
    writes to it.
    """
    root = root.absolute()
    with output_errors(root):
        clean_siblings(root)
        if not is_dataset(root):
            raise InputError(
                f"{root} is not a LeRobot dataset; start a new one instead of appending."
            )
        lock = DirectoryLock(root)
        try:
            recover(root)
            info = layout.read_json(root / layout.INFO_PATH)
            from acehand_core.lerobot.check import check_info

            for fault in check_info(info):
                raise SchemaError(f"{root}: cannot append: {fault}; repair it first.")
            ours = layout.new_info(fps, layout.features_json(features), robot_type)
            differences = dataset_differences(ours, info)
            if differences:
                raise SchemaError(f"{root}: cannot append: " + "; ".join(differences) + ".")
            writer = LeRobotWriter(root, root, info, lock)
            writer.load()
        except BaseException:
            lock.release()
            raise

    return writer


def dataset_differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """Say how two info.json contents differ in what every episode of a dataset shares."""
    differences = []
    for key in ("codebase_version", "fps", "robot_type", "data_path", "video_path"):
        if ours[key] is not None and ours[key] != theirs.get(key):
            differences.append(f"{key} is {ours[key]!r}, the dataset has {theirs.get(key)!r}")

    mine, its = ours["features"], theirs.get("features", {})
    differences += [f"the dataset has no feature {key!r}" for key in mine if key not in its]
    differences += [f"the dataset also has feature {key!r}" for key in its if key not in mine]

    for key in (key for key in mine if key in its):
        # What a video's info says about its encoding may differ between episodes.
        encoding = () if mine[key]["dtype"] == "video" else ("info",)
        for part in ("dtype", "shape", "names", *encoding):
            if mine[key].get(part) != its[key].get(part):
                differences.append(
                    f"{part} of {key!r} is {mine[key].get(part)}, "
                    f"the dataset has {its[key].get(part)}"
                )

    return differences


def read_provenance(root: Path) -> list[dict[str, Any] | None]:
    """Return what ``add_episode`` recorded of the origin of each episode (None: nothing).

    An addition that was interrupted is finished or dropped first, so that a later
    ``open_for_append`` finds these episodes and no others. Raises SchemaError, OutputError.
    """
    root = root.absolute()
    if (root / STAGING).is_dir():
        with output_errors(root), contextlib.suppress(LockedError), DirectoryLock(root):
            recover(root)
    return [layout.read_record(root, row) for row in layout.read_episode_rows(root)]


#: Entry of an episode's record.
JOB = "job"


@dataclass(frozen=True, slots=True)
class EpisodeJob:
    """What one episode was made from.

    ``input`` is what the input is called, not where it lies; ``cut`` is start and duration in
    seconds (None: to the end), ``part`` the first frame and the one after the last, at the
    dataset's rate. ``settings`` are named like the flags. Of an episode that was cut out of a
    longer recording ``within`` is the cut of all that was read of it, ``one_of`` which of how many
    it is, from 0; a recording whose episodes are all there need not be cut again.
    """

    input: str
    input_sha256: str
    cut: tuple[float, float | None]
    part: tuple[int, int]
    settings: Mapping[str, Any]
    within: tuple[float, float | None] | None = None
    one_of: tuple[int, int] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the entry ``JOB`` of an episode's record."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class FinishedEpisodes:
    """The episodes of the dataset that is resumed, and its rate; empty where nothing is.

    ``missing`` has, by episode, the files that an interrupted run left out beside it.
    """

    jobs: tuple[EpisodeJob, ...] = ()
    fps: int | None = None
    numbers: tuple[int, ...] = ()
    missing: dict[int, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, dataset: Path) -> FinishedEpisodes:
        """Read what a dataset holds; episodes of other programs are left out."""
        records: Iterable[Mapping[str, Any] | None] = read_provenance(dataset)
        entries = {n: dict(r[JOB]) for n, r in enumerate(records) if r and JOB in r}
        for entry in entries.values():
            for name in ("cut", "part", "within", "one_of"):
                if (value := entry.get(name)) is not None:
                    entry[name] = tuple(value)
            settings = dict(entry["settings"])
            # What --method was called when the dataset was made; a setting that changed nothing.
            if "solver" in settings:
                settings["method"] = settings.pop("solver")
            if settings.get("prior") == "off":
                del settings["prior"]
            entry["settings"] = settings
        jobs = tuple(EpisodeJob(**entry) for entry in entries.values())
        missing = {number: missing_files(dataset, number) for number in entries}
        missing = {number: names for number, names in missing.items() if names}
        fps = layout.read_json(dataset / layout.INFO_PATH)["fps"]
        return cls(jobs, fps, tuple(entries), missing)

    def numbers_of(self, job: EpisodeJob) -> list[int]:
        """Return the numbers of this episode, whatever its input is called and wherever it lay."""
        return [
            number
            for number, other in zip(self.numbers, self.jobs, strict=True)
            if (job.input_sha256, job.cut, job.part, job.settings)
            == (other.input_sha256, other.cut, other.part, other.settings)
        ]

    def all_of(
        self, input_sha256: str, within: tuple[float, float | None], settings: Mapping[str, Any]
    ) -> list[tuple[int, EpisodeJob]]:
        """Return the episodes that a recording was cut into, with their numbers, if all are there.

        Whatever their tasks are; empty where one or a file beside one is not there.
        """
        found = [
            (number, job)
            for number, job in zip(self.numbers, self.jobs, strict=True)
            if job.one_of is not None
            and (job.input_sha256, job.within) == (input_sha256, within)
            and _without_task(job.settings) == _without_task(settings)
        ]
        there = {job.one_of for _, job in found}
        count = found[0][1].one_of[1] if found and found[0][1].one_of else 0
        whole = count > 0 and there == {(number, count) for number in range(count)}
        return found if whole and not any(n in self.missing for n, _ in found) else []

    def of_other_task(self, job: EpisodeJob) -> int | None:
        """Return the number of an episode that differs in nothing but its task, if there is one."""
        return next(
            (
                number
                for number, other in zip(self.numbers, self.jobs, strict=True)
                if (job.input_sha256, job.cut, job.part)
                == (other.input_sha256, other.cut, other.part)
                and _without_task(job.settings) == _without_task(other.settings)
            ),
            None,
        )

    def check_settings(
        self,
        origins: Sequence[tuple[Path, str]],
        cut: tuple[float, float | None],
        settings: Mapping[str, Any],
    ) -> None:
        """Refuse to resume with other settings than the inputs' finished episodes were made with.

        ``origins``: each input and the hash of its content. ``settings`` without "task": each
        episode has its own.

        Raises:
            InputError: names each setting that differs.
        """
        for path, sha256 in origins:
            made = [
                job.settings if "task" in settings else _without_task(job.settings)
                for job in self.jobs
                if (job.input_sha256, job.within or job.cut) == (sha256, cut)
            ]
            if not made or settings in made:
                continue

            theirs = made[-1]
            differences = ", ".join(
                f"--{name} is {settings.get(name)!r}, not {theirs.get(name)!r}"
                for name in {**settings, **theirs}
                if settings.get(name) != theirs.get(name)
            )
            raise InputError(
                f"{path}: its episode in the dataset was made with other settings: "
                f"{differences}. Resume with the same ones, or --append it as another episode."
            )


def _without_task(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name != "task"}


def episode_contents(dataset: Path, numbers: Iterable[int] | None = None) -> dict[int, str]:
    """Return a hash of each episode's data and hands, by number (None: of all).

    Raises:
        InputError: a file cannot be read.
    """
    rows = {row["episode_index"]: row for row in layout.read_episode_rows(dataset)}
    contents = {}
    for number in sorted(rows) if numbers is None else numbers:
        files = (layout.data_file(rows[number]), f"{episode_folder(number)}/{HANDS}")
        hashes = [content_sha256(dataset / name) for name in files if (dataset / name).is_file()]
        contents[number] = hashlib.sha256(" ".join(hashes).encode()).hexdigest()
    return contents


def prepare_output(output: Path, existing: Existing, work_dir: Path) -> FinishedEpisodes:
    """Check the output before any work; return the episodes that a run goes on from.

    Partial results of an earlier run in ``work_dir`` are kept for a resumed one only.

    Raises:
        InputError: there is nothing to append to. OutputError: the output is taken.
    """
    if existing in ("append", "resume") and is_dataset(output):
        return FinishedEpisodes.of(output)
    if existing == "append":
        raise InputError(f"{output}: there is no LeRobot dataset to append to.")
    if existing == "overwrite" and output.exists() and not is_dataset(output):
        raise OutputError(f"{output}: not a LeRobot dataset, so it is not overwritten.")
    if existing in ("refuse", "resume") and output.exists():
        raise OutputError(f"{output} exists; use --append, --overwrite, --resume or another name.")
    if existing != "resume":
        shutil.rmtree(work_dir, ignore_errors=True)
    return FinishedEpisodes()
