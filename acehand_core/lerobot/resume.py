"""Which episodes of a dataset an interrupted run need not repeat.

The record of every episode keeps, under ``JOB``, what it was made from (content of the input, cut,
part of a recording that is split) and the settings that change its content.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from acehand_core.errors import InputError, OutputError
from acehand_core.files.safe_files import content_sha256
from acehand_core.lerobot import dataset as lerobot
from acehand_core.lerobot import format as layout
from acehand_core.lerobot.extras import HANDS, episode_folder, missing_files

Existing = Literal["refuse", "append", "overwrite", "resume"]

#: Entry of an episode's record.
JOB = "job"


@dataclass(frozen=True, slots=True)
class EpisodeJob:
    """What one episode was made from.

    ``input`` is what the input is called, not where it lies; ``cut`` is start and duration in
    seconds (None: to the end), ``part`` the first frame and the one after the last, at the
    dataset's rate. ``settings`` are named like the flags.
    """

    input: str
    input_sha256: str
    cut: tuple[float, float | None]
    part: tuple[int, int]
    settings: Mapping[str, Any]

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
        records: Iterable[Mapping[str, Any] | None] = lerobot.read_provenance(dataset)
        entries = {n: dict(r[JOB]) for n, r in enumerate(records) if r and JOB in r}
        for entry in entries.values():
            entry["cut"], entry["part"] = tuple(entry["cut"]), tuple(entry["part"])
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

    def check_settings(
        self,
        origins: Sequence[tuple[Path, str]],
        cut: tuple[float, float | None],
        settings: Mapping[str, Any],
    ) -> None:
        """Refuse to resume with other settings than the inputs' finished episodes were made with.

        ``origins``: each input and the hash of its content.

        Raises:
            InputError: names each setting that differs.
        """
        for path, sha256 in origins:
            made = [
                job.settings for job in self.jobs if (job.input_sha256, job.cut) == (sha256, cut)
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


def episode_contents(dataset: Path, numbers: Iterable[int] | None = None) -> dict[int, str]:
    """Return a hash of each episode's data and hands, by number (None: of all).

    Raises:
        InputError: a file cannot be read.
    """
    rows = {row["episode_index"]: row for row in layout.read_episode_rows(dataset)}
    out = {}
    for number in sorted(rows) if numbers is None else numbers:
        files = (layout.data_file(rows[number]), f"{episode_folder(number)}/{HANDS}")
        hashes = [content_sha256(dataset / name) for name in files if (dataset / name).is_file()]
        out[number] = hashlib.sha256(" ".join(hashes).encode()).hexdigest()
    return out


def prepare_output(output: Path, existing: Existing, work_dir: Path) -> FinishedEpisodes:
    """Check the output before any work; return what a resumed run may skip.

    Partial results of an earlier run in ``work_dir`` are kept for a resumed one only.

    Raises:
        InputError: there is nothing to append to. OutputError: the output is taken.
    """
    if existing in ("append", "resume") and lerobot.is_dataset(output):
        return FinishedEpisodes.of(output) if existing == "resume" else FinishedEpisodes()
    if existing == "append":
        raise InputError(f"{output}: there is no LeRobot dataset to append to.")
    if existing == "overwrite" and output.exists() and not lerobot.is_dataset(output):
        raise OutputError(f"{output}: not a LeRobot dataset, so it is not overwritten.")
    if existing in ("refuse", "resume") and output.exists():
        raise OutputError(f"{output} exists; use --append, --overwrite, --resume or another name.")
    if existing != "resume":
        shutil.rmtree(work_dir, ignore_errors=True)
    return FinishedEpisodes()
