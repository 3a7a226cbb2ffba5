"""Where the episodes of a run go: one dataset, and beside LeRobot's files what is not LeRobot's."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from jaxtyping import Int

from acehand_core.atomic import atomic_path
from acehand_core.errors import InputError
from acehand_core.export import lerobot
from acehand_core.export.features import IMAGE_KEY, Layout, columns, features
from acehand_core.export.memory import release_memory
from acehand_core.export.report import EpisodeReport, episode_provenance, episode_report
from acehand_core.export.resume import JOB, EpisodeJob, Existing
from acehand_core.export.table import write_hand_motion
from acehand_core.motion import HandMotion, RobotTrajectory

#: Folder of a dataset that holds pictures, hand motions and reports.
EXTRAS = "acehand"


class Destination:
    """The dataset at ``output``; it is opened with the layout of the first input."""

    def __init__(self, output: Path, existing: Existing) -> None:
        self.output = output
        self._existing: Existing = existing
        self._writer: lerobot.LeRobotWriter | None = None
        self._layout: Layout | None = None

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
        specs = features(layout)
        if self._existing in ("append", "resume") and lerobot.is_dataset(self.output):
            self._writer = lerobot.open_for_append(self.output, fps, specs, robot)
        else:
            overwrite = self._existing == "overwrite"
            self._writer = lerobot.create(self.output, fps, specs, robot, overwrite=overwrite)
        self._layout = layout

    def scratch_video(self) -> Path:
        """Return where the next episode's video is to be encoded."""
        assert self._writer is not None
        return self._writer.scratch_video(IMAGE_KEY)

    def store(
        self,
        job: EpisodeJob,
        episode: HandMotion,
        trajectory: RobotTrajectory,
        source_timestamps_ns: Int[np.ndarray, "T"],
        video: Path | None,
        task: str,
        robot_license: str,
    ) -> tuple[EpisodeReport, Path]:
        """Write one episode of T frames; return its report and the folder for its pictures."""
        assert self._writer is not None
        record = episode_provenance(episode, trajectory, robot_license)
        record[JOB] = job.to_json()
        videos = {} if video is None else {IMAGE_KEY: video}
        number = self._writer.add_episode(
            columns(episode, trajectory, source_timestamps_ns), task, videos, record
        )
        release_memory()
        report = episode_report(job.input, episode, trajectory, number)
        folder = self.output / EXTRAS / f"episode_{number:06d}"
        write_hand_motion(episode, folder / "hand_motion.parquet", overwrite=True)
        with atomic_path(folder / "report.json", overwrite=True) as partial:
            text = json.dumps({**report.json, "provenance": record}, indent=2)
            partial.write_text(text + "\n", "utf-8")
        release_memory()  # pictures are drawn next
        return report, folder

    def finish(self) -> None:
        """Complete the dataset's statistics and let go of it. Raises OutputError."""
        if self._writer is not None:
            self._writer.finish()

    def close(self) -> None:
        """Let go of the dataset; finished episodes stay."""
        if self._writer is not None:
            self._writer.close()


def _differences(ours: Layout, theirs: Layout | None) -> str:
    names = ("frame", "hand_model", "image_size", "arm_joints")
    return ", ".join(
        f"{name} is {getattr(ours, name)}, not {getattr(theirs, name)}"
        for name in names
        if getattr(ours, name) != getattr(theirs, name)
    )
