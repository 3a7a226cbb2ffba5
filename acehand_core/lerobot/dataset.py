"""Write LeRobotDataset v3.0: new datasets, more episodes, and nothing half done.

Each episode is one data file, one video file per camera and one metadata file. A new dataset is
built in a hidden sibling folder and appears with its first whole episode. Every later episode is
staged inside the dataset and put in place in this order: files beside it, videos, data, tasks,
stats, episode row, info.json. The reader takes its length from info.json, so at any moment it sees
exactly the finished episodes; what a killed process leaves behind is finished or removed by the
next writer or by ``repair.repair``.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from acehand_core.atomic import DirectoryLock, LockedError, output_errors
from acehand_core.errors import InputError, OutputError, SchemaError
from acehand_core.lerobot import format as layout
from acehand_core.lerobot.check import check_info
from acehand_core.lerobot.episode import max_episode_frames
from acehand_core.lerobot.format import FeatureSpec, video_feature
from acehand_core.lerobot.repair import clean_siblings, is_dataset
from acehand_core.lerobot.transaction import STAGING, Step, recover
from acehand_core.lerobot.writer import LeRobotWriter

__all__ = [
    "FeatureSpec",
    "LeRobotWriter",
    "create",
    "dataset_differences",
    "is_dataset",
    "max_episode_frames",
    "open_for_append",
    "read_provenance",
    "video_feature",
]


def create(
    root: Path,
    fps: int,
    features: Sequence[FeatureSpec],
    robot_type: str,
    *,
    overwrite: bool = False,
    on_step: Step | None = None,
) -> LeRobotWriter:
    """Start a new dataset; ``root`` appears when its first episode is complete.

    With ``overwrite`` a dataset at ``root`` is replaced at that moment, not before. ``on_step`` is
    for tests: it is called with a name before everything that touches the disk. Raises OutputError
    when ``root`` exists (or, with ``overwrite``, is not a dataset) or cannot be written,
    SchemaError for features that the format does not allow.
    """
    if fps <= 0:
        raise SchemaError(f"A dataset's rate is a positive whole number of frames, not {fps}.")
    info = layout.new_info(fps, layout.features_json(features), robot_type)
    root = root.absolute()
    with output_errors(root):
        root.parent.mkdir(parents=True, exist_ok=True)
        clean_siblings(root)
        _check_free(root, overwrite)
        base = root.with_name(f".{root.name}.partial-{os.getpid()}")
        base.mkdir(exist_ok=True)
        return LeRobotWriter(root, base, info, DirectoryLock(base), on_step)


def open_for_append(
    root: Path,
    fps: int,
    features: Sequence[FeatureSpec],
    robot_type: str,
    *,
    on_step: Step | None = None,
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
            for fault in check_info(info):
                raise SchemaError(f"{root}: cannot append: {fault}; repair it first.")
            ours = layout.new_info(fps, layout.features_json(features), robot_type)
            differences = dataset_differences(ours, info)
            if differences:
                raise SchemaError(f"{root}: cannot append: " + "; ".join(differences) + ".")
            writer = LeRobotWriter(root, root, info, lock, on_step)
            writer.load()
        except BaseException:
            lock.release()
            raise

    return writer


def _check_free(root: Path, overwrite: bool) -> None:
    if not root.exists() or (root.is_dir() and not any(root.iterdir())):
        return
    if not overwrite:
        raise OutputError(f"{root} exists; append to it, overwrite it, or choose another folder.")
    if not is_dataset(root):
        raise OutputError(
            f"{root} is not a LeRobot dataset, so it is not overwritten; move it away."
        )
    DirectoryLock(root).release()


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
        parts = ("dtype", "shape", "names")
        parts += () if mine[key]["dtype"] == "video" else ("info",)
        for part in parts:
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
