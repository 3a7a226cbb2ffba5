"""Where the episodes of a run go: one dataset, and beside LeRobot's files what is not LeRobot's.

Memory that was freed goes back to the system between the stages of a long job.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Int

from acehand_core.atomic import DirectoryLock, atomic_path, output_errors, sync
from acehand_core.errors import InputError
from acehand_core.lerobot import dataset, extras
from acehand_core.lerobot.features import (
    IMAGE_KEY,
    VALID_KEY,
    Layout,
    columns,
    features,
    of_same_shape,
)
from acehand_core.lerobot.format import INFO_PATH, read_json
from acehand_core.lerobot.repair import finish_statistics
from acehand_core.lerobot.resume import JOB, EpisodeJob, Existing
from acehand_core.motion import HandMotion, RobotTrajectory
from acehand_core.pipeline.report import EpisodeReport, episode_provenance, episode_report
from acehand_core.recordings.hand_table import write_hand_motion


def release_memory() -> None:
    """Let the allocators give back what they keep for themselves.

    Arrow and the C library hold on to freed blocks. After a long episode that is hundreds of
    megabytes, and the next stage, drawing or writing a bag, would come on top of them.
    """
    pa.default_memory_pool().release_unused()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
        if trim is not None:
            trim(0)


class Destination:
    """The dataset at ``output``; it is opened with the layout of the first input."""

    def __init__(self, output: Path, existing: Existing) -> None:
        self.output = output
        self._existing: Existing = existing
        self._writer: dataset.LeRobotWriter | None = None
        self._layout: Layout | None = None
        self._shapes: dict[str, tuple[int, ...]] = {}

    @property
    def has_episodes(self) -> bool:
        """Whether there is a dataset with at least one episode."""
        return self._writer is not None and self._writer.total_episodes > 0

    def open(self, layout: Layout, fps: int, robot: str, source: str) -> None:
        """Open the dataset, or check that an input called ``source`` fits the open one.

        Raises:
            InputError: it does not fit. OutputError: the dataset cannot be written.
        """
        if self._writer is not None:
            if layout != self._layout:
                raise InputError(
                    f"{source} does not fit the dataset of this run: "
                    f"{_differences(layout, self._layout)}; give it an --output of its own."
                )
            return
        if self._existing in ("append", "resume") and dataset.is_dataset(self.output):
            stored = read_json(self.output / INFO_PATH).get("features")
            specs = of_same_shape(layout, stored if isinstance(stored, Mapping) else {})
            self._writer = dataset.open_for_append(self.output, fps, specs, robot)
        else:
            overwrite, specs = self._existing == "overwrite", features(layout)
            self._writer = dataset.create(self.output, fps, specs, robot, overwrite=overwrite)
        self._layout = layout
        self._shapes = {spec.key: spec.shape for spec in specs}

    def scratch_video(self) -> Path:
        """Return where the next episode's video is to be encoded."""
        assert self._writer is not None
        return self._writer.scratch_video(IMAGE_KEY)

    def store(
        self,
        job: EpisodeJob,
        source: str,
        episode: HandMotion,
        trajectory: RobotTrajectory,
        source_timestamps_ns: Int[np.ndarray, "T"],
        video: Path | None,
        task: str,
        robot_license: str,
        calibration: str | None,
        pictures: Sequence[str],
    ) -> tuple[EpisodeReport, Path]:
        """Write one episode of T frames; return its report and the folder for its pictures.

        Args:
            source: the input as it was given; files name it by ``job.input``.
            calibration: text of the file that is kept, if there is one.
            pictures: names of those that will be drawn; the episode counts as unfinished until
                ``pictures_done``.
        """
        assert self._writer is not None
        record = _record(job, episode, trajectory, robot_license)
        videos = {} if video is None else {IMAGE_KEY: video}
        number = self._writer.total_episodes
        report = episode_report(source, episode, trajectory, number)
        content = {extras.REPORT: _report_bytes(report, job, record)}
        if calibration is not None:
            content[extras.CALIBRATION] = calibration.encode()
        if pictures:
            content[extras.PENDING] = extras.pending_bytes(pictures)
        staged = {name: self._writer.scratch(name) for name in (extras.HANDS, *content)}
        with output_errors(self.output):
            for name, data in content.items():
                staged[name].write_bytes(data)
        write_hand_motion(episode, staged[extras.HANDS], overwrite=True)
        release_memory()
        values = columns(episode, trajectory, source_timestamps_ns)
        values = {
            key: value.reshape(len(value), *self._shapes[key])
            for key, value in values.items()
            if key != VALID_KEY or key in self._shapes  # of_same_shape says why
        }
        folder = extras.episode_folder(number)
        beside = {f"{folder}/{name}": path for name, path in staged.items()}
        self._writer.add_episode(values, task, videos, record, beside)
        del values
        release_memory()  # pictures are drawn next
        return report, self.output / folder

    def held(self) -> contextlib.AbstractContextManager[object]:
        """Keep other writers away from the dataset. Raises LockedError, an OutputError."""
        return contextlib.nullcontext() if self._writer else DirectoryLock(self.output)

    def complete(
        self,
        job: EpisodeJob,
        number: int,
        episode: HandMotion,
        trajectory: RobotTrajectory,
        robot_license: str,
        calibration: str | None,
    ) -> Path:
        """Write what an episode lacks beside its data; return the folder for its pictures.

        Raises:
            OutputError: it cannot be written.
        """
        folder = self.output / extras.episode_folder(number)
        with output_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for path in extras.partial_files(folder):
                path.unlink()
        if not (folder / extras.HANDS).is_file():
            write_hand_motion(episode, folder / extras.HANDS)
        if not (folder / extras.REPORT).is_file():
            record = _record(job, episode, trajectory, robot_license)
            report = episode_report(job.input, episode, trajectory, number)
            _write(folder / extras.REPORT, _report_bytes(report, job, record))
        if calibration is not None and not (folder / extras.CALIBRATION).is_file():
            _write(folder / extras.CALIBRATION, calibration.encode())
        return folder

    def pictures_done(self, folder: Path) -> None:
        """Note that an episode has all of its pictures. Raises OutputError."""
        with output_errors(folder):
            (folder / extras.PENDING).unlink(missing_ok=True)
            sync(folder)

    def finish(self) -> None:
        """Complete the dataset's statistics and let go of it. Raises OutputError."""
        if self._writer is not None:
            self._writer.finish()
        elif self._existing == "resume" and dataset.is_dataset(self.output):
            finish_statistics(self.output)

    def close(self) -> None:
        """Let go of the dataset; finished episodes stay."""
        if self._writer is not None:
            self._writer.close()


def _record(
    job: EpisodeJob, episode: HandMotion, trajectory: RobotTrajectory, robot_license: str
) -> dict[str, Any]:
    return {**episode_provenance(episode, trajectory, robot_license), JOB: job.to_json()}


def _report_bytes(report: EpisodeReport, job: EpisodeJob, record: Mapping[str, Any]) -> bytes:
    content = {**report.json, "source": job.input, "provenance": record}
    return (json.dumps(content, indent=2) + "\n").encode()


def _write(path: Path, content: bytes) -> None:
    with atomic_path(path) as partial:
        partial.write_bytes(content)


def _differences(ours: Layout, theirs: Layout | None) -> str:
    names = ("frame", "hand_model", "image_size", "arm_joints")
    return ", ".join(
        f"{name} is {getattr(ours, name)}, not {getattr(theirs, name)}"
        for name in names
        if getattr(ours, name) != getattr(theirs, name)
    )
