"""Creating, appending to and resuming LeRobotDataset v3.0 datasets.

Each episode is one data file, one video file per camera and one metadata file. A new dataset is
built in a hidden sibling folder and appears with its first whole episode. Every later episode is
staged inside the dataset and placed in this order: our files, videos, data, tasks, stats, episode
row, info.json. The reader takes its length from info.json, so it always sees exactly the finished
episodes; the next writer or ``repair.repair`` finishes or removes what a killed process leaves.

Every episode's record has, under ``JOB``, its input, cut and settings, by which a resumed run finds
finished episodes.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from acehand_core.atomic import DirectoryLock, LockedError, output_errors
from acehand_core.errors import InputError, OutputError, SchemaError
from acehand_core.lerobot import format as layout
from acehand_core.lerobot.format import FeatureSpec
from acehand_core.lerobot.transaction import STAGING, claim, clean_siblings, recover
from acehand_core.lerobot.writer import LeRobotWriter
from acehand_core.recordings.lerobot_video import is_dataset
from acehand_core.safe_files import content_sha256
from acehand_core.types import Existing

#: Entry of an episode's record.
JOB = "job"


def create(
    root: Path,
    fps: int,
    features: Sequence[FeatureSpec],
    robot_type: str,
    *,
    overwrite: bool = False,
) -> LeRobotWriter:
    """Start a dataset; its first complete episode creates or, to ``overwrite``, replaces ``root``.

    Raises OutputError for an existing ``root``, SchemaError for invalid features.
    """
    if fps <= 0:
        raise SchemaError(f"A dataset's rate is a positive whole number, not {fps}.")
    info = layout.new_info(fps, layout.features_json(features), robot_type)
    root = root.absolute()
    with output_errors(root):
        root.parent.mkdir(parents=True, exist_ok=True)
        writer = LeRobotWriter(root, *claim(root), info)
        try:
            if root.exists() and not (root.is_dir() and not any(root.iterdir())):
                if not overwrite:
                    raise OutputError(
                        f"{root} exists; append to it, overwrite it, or choose another folder."
                    )
                if not is_dataset(root):
                    raise OutputError(
                        f"{root} is not a LeRobot dataset, so it is not overwritten; move it away."
                    )
                writer.replaced = DirectoryLock(root)
        except BaseException:
            writer.close()
            raise
        return writer


def open_for_append(
    root: Path, fps: int, features: Sequence[FeatureSpec], robot_type: str
) -> LeRobotWriter:
    """Open a dataset to add episodes; recovers it after an interrupted writer.

    Raises InputError without a dataset, SchemaError naming each difference in layout or for
    inconsistent counts, OutputError while another process writes to it.
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
            writer = LeRobotWriter(root, root, lock, info)
            writer.load()
        except BaseException:
            lock.release()
            raise
    return writer


def dataset_differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """Return the differences of two info.json in what all episodes share, in words."""
    differences = []
    for key in ("codebase_version", "fps", "robot_type", "data_path", "video_path"):
        if ours[key] is not None and ours[key] != theirs.get(key):
            differences.append(f"{key} is {ours[key]!r}, the dataset has {theirs.get(key)!r}")

    mine, its = ours["features"], theirs.get("features", {})
    for keys, others, what in ((mine, its, "has no"), (its, mine, "also has")):
        for key in (key for key in keys if key not in others):
            video = keys[key]["dtype"] == "video"
            flags = " (`keep_views`, `keep_depth`, `robot_video`)" if video else ""
            differences.append(f"the dataset {what} feature {key!r}{flags}")
    for key in (key for key in mine if key in its):
        # A video's encoding, in its info, may differ between episodes.
        encoding = () if mine[key]["dtype"] == "video" else ("info",)
        for part in ("dtype", "shape", "names", *encoding):
            wanted, stored = mine[key].get(part), its[key].get(part)
            if wanted != stored:
                differences.append(f"{part} of {key!r} is {wanted}, the dataset has {stored}")
    return differences


def read_provenance(root: Path) -> list[dict[str, Any] | None]:
    """Return the provenance of each episode (None: not recorded), after ``recover``."""
    root = root.absolute()
    if (root / STAGING).is_dir():
        with output_errors(root), contextlib.suppress(LockedError), DirectoryLock(root):
            recover(root)
    return [layout.read_record(root, row) for row in layout.read_episode_rows(root)]


@dataclass(frozen=True, slots=True)
class EpisodeKey:
    """Origin of one episode, by which a resumed run finds it.

    Attributes:
        input: name, without folder.
        extent: start and duration in seconds (None: to the end); "cut" in the record.
        part: first frame and the one after the last, at the dataset's rate.
        settings: by flag.
        within: ``extent`` of the recording that the episode was cut out of.
        one_of: index and count of the episodes cut out of that recording.
    """

    input: str
    input_sha256: str
    extent: tuple[float, float | None]
    part: tuple[int, int]
    settings: Mapping[str, Any]
    within: tuple[float, float | None] | None = None
    one_of: tuple[int, int] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return its entry of the episode's record."""
        return {"cut" if name == "extent" else name: v for name, v in asdict(self).items()}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> EpisodeKey:
        """Return the key of an episode's record, also of an older version's."""
        values: dict[str, Any] = {}
        for name, value in entry.items():
            values[name] = tuple(value) if isinstance(value, list) else value
        settings = dict(values.pop("settings"))
        if "solver" in settings:
            settings["method"] = settings.pop("solver")
        if "gates" in settings:
            settings["limits"] = settings.pop("gates")
        if settings.get("prior") == "off":
            del settings["prior"]
        return cls(extent=values.pop("cut"), settings=settings, **values)


@dataclass(frozen=True, slots=True)
class FinishedEpisodes:
    """The keys, rate and ``missing`` files, by episode, of the dataset that is resumed."""

    keys: Mapping[int, EpisodeKey] = field(default_factory=dict)
    fps: int | None = None
    missing: Mapping[int, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, dataset: Path) -> FinishedEpisodes:
        """Read a dataset's episodes, without those of other programs."""
        keys, missing = {}, {}
        for number, record in enumerate(read_provenance(dataset)):
            if record is None or JOB not in record:
                continue
            keys[number] = EpisodeKey.from_json(record[JOB])
            if names := layout.missing_files(dataset, number):
                missing[number] = names
        return cls(keys, layout.read_json(dataset / layout.INFO_PATH)["fps"], missing)

    def completed(self, number: int) -> FinishedEpisodes:
        """Return these with all files of one episode."""
        missing = {n: names for n, names in self.missing.items() if n != number}
        return replace(self, missing=missing)

    def numbers_of(self, key: EpisodeKey) -> list[int]:
        """Return the numbers of this episode, by content of its input."""
        same = self.but_for_task(key)
        return [number for number in same if self.keys[number].settings == key.settings]

    def but_for_task(self, key: EpisodeKey) -> list[int]:
        """Return the numbers of episodes that differ in their task at most."""

        def identity(one: EpisodeKey) -> tuple[object, ...]:
            return one.input_sha256, one.extent, one.part, _without_task(one.settings)

        return [number for number, other in self.keys.items() if identity(other) == identity(key)]

    def all_of(
        self, input_sha256: str, within: tuple[float, float | None], settings: Mapping[str, Any]
    ) -> list[tuple[int, EpisodeKey]]:
        """Return the numbered episodes cut from a recording, of any task; [] if incomplete."""
        same = [
            (number, key)
            for number, key in self.keys.items()
            if key.one_of is not None
            and (key.input_sha256, key.within) == (input_sha256, within)
            and _without_task(key.settings) == _without_task(settings)
        ]
        parts = {key.one_of for _, key in same}
        count = same[0][1].one_of[1] if same and same[0][1].one_of else 0
        whole = count > 0 and parts == {(number, count) for number in range(count)}
        return same if whole and not any(n in self.missing for n, _ in same) else []

    def check_settings(
        self,
        origins: Sequence[tuple[Path, str]],
        extent: tuple[float, float | None],
        settings: Mapping[str, Any],
    ) -> None:
        """Refuse settings that differ from those of the inputs' finished episodes.

        ``origins`` are inputs and hashes of their content; ``settings`` lacks "task" if each
        episode has its own. Raises InputError naming each setting that differs.
        """
        for path, sha256 in origins:
            earlier = [
                key.settings if "task" in settings else _without_task(key.settings)
                for key in self.keys.values()
                if (key.input_sha256, key.within or key.extent) == (sha256, extent)
            ]
            if not earlier or settings in earlier:
                continue
            theirs = earlier[-1]
            differences = ", ".join(
                f"`{name.replace('-', '_')}` is {settings.get(name)!r}, not {theirs.get(name)!r}"
                for name in {**settings, **theirs}
                if settings.get(name) != theirs.get(name)
            )
            raise InputError(
                f"{path}: its episode in the dataset was made with other settings: "
                f"{differences}. Resume with the same ones, or add it as another episode with "
                "`existing=append`."
            )


def _without_task(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name != "task"}


def episode_contents(dataset: Path, numbers: Iterable[int] | None = None) -> dict[int, str]:
    """Return a hash of each episode's data and hands. Raises InputError."""
    rows = {row["episode_index"]: row for row in layout.read_episode_rows(dataset)}
    contents = {}
    for number in sorted(rows) if numbers is None else numbers:
        files = (layout.data_file(rows[number]), f"{layout.episode_folder(number)}/{layout.HANDS}")
        hashes = [content_sha256(dataset / name) for name in files if (dataset / name).is_file()]
        contents[number] = hashlib.sha256(" ".join(hashes).encode()).hexdigest()
    return contents


def prepare_output(output: Path, existing: Existing) -> FinishedEpisodes:
    """Check the output before any work; return the episodes that the dataset has.

    Raises InputError if there is nothing to append to, OutputError if the output is taken.
    """
    if existing in ("append", "resume") and is_dataset(output):
        return FinishedEpisodes.of(output)
    if existing == "append":
        raise InputError(f"{output}: there is no LeRobot dataset to append to.")
    if existing == "overwrite" and output.exists() and not is_dataset(output):
        raise OutputError(f"{output}: not a LeRobot dataset, so it is not overwritten.")
    if existing in ("refuse", "resume") and output.exists():
        raise OutputError(
            f"{output} exists; use `existing=append`, `existing=overwrite`, `existing=resume` or "
            "another name."
        )
    return FinishedEpisodes()
