"""Episodes of a dataset read back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from jaxtyping import Float

from acehand_core.errors import InputError, SchemaError
from acehand_core.geometry import frames, rotations
from acehand_core.lerobot import format as layout
from acehand_core.lerobot.format import HANDS, REPORT, episode_folder
from acehand_core.motion import HandMotion
from acehand_core.recordings.hands_file import read_hand_motion
from acehand_core.recordings.selection import ticks
from acehand_core.types import TimestampsNs

_BASE = 9  # position and six numbers of rotation before the joints of observation.state


@dataclass(frozen=True, slots=True, eq=False)
class StoredEpisode:
    """One episode of T frames of a dataset.

    ``stamps_ns`` are ``1 / fps`` apart, as the robot executes it; ``source_ns`` are the stamps of
    the pictures that the frames show, which may repeat.
    ``motion`` is the table kept beside it, or None where that is missing.
    """

    name: str
    task: str
    robot: str
    fps: float
    stamps_ns: TimestampsNs
    source_ns: TimestampsNs
    joint_names: tuple[str, ...]
    command_joints: tuple[str, ...]
    joints: Float[np.ndarray, "T 2 Q"]
    commands: Float[np.ndarray, "T 2 C"]
    confidence: Float[np.ndarray, "T 2"]
    frame: str
    T_frame_base: Float[np.ndarray, "T 2 4 4"] | None
    motion: HandMotion | None
    verdict: str
    reasons: tuple[str, ...]


def read_episodes(dataset: Path, wanted: tuple[int, ...] | None) -> Iterator[StoredEpisode]:
    """Yield episodes of a dataset, one in memory at a time.

    Args:
        wanted: their numbers; None: all.

    Raises:
        InputError: there is no such episode. SchemaError: it is no dataset of ours.
    """
    info = layout.read_json(dataset / layout.INFO_PATH)
    features = info.get("features", {})
    needed = ("observation.state", "observation.joints.robot", "observation.source_timestamp_ns",
              "observation.hand.confidence")  # fmt: skip
    if missing := [key for key in needed if key not in features]:
        raise SchemaError(f"{dataset}: has no {missing[0]!r}, so it was not written by acehand.")

    rows = {row["episode_index"]: row for row in layout.read_episode_rows(dataset)}
    for number in wanted or ():
        if number not in rows:
            raise InputError(f"{dataset}: no episode {number}; valid: 0 to {len(rows) - 1}.")

    tasks = layout.read_tasks(dataset)
    for number in sorted(rows) if wanted is None else wanted:
        table = pq.read_table(
            dataset / layout.data_file(rows[number]),
            columns=[*needed, "episode_index", "task_index"], use_threads=False,
        )  # fmt: skip
        record = json.loads((table.schema.metadata or {}).get(layout.PROVENANCE_KEY, b"{}"))
        yield _episode(dataset, number, table, features, record, tasks, info)


def _episode(
    dataset: Path,
    number: int,
    table: Any,
    features: Mapping[str, Any],
    record: Mapping[str, Any],
    tasks: list[str],
    info: Mapping[str, Any],
) -> StoredEpisode:
    table = table.filter(np.asarray(table["episode_index"]) == number)

    def column(key: str) -> np.ndarray:
        return layout.column_values(table[key], features[key]["shape"])

    state, joints = column("observation.state"), column("observation.joints.robot")
    half = state.shape[1] // 2
    frame = features["observation.state"].get("info", {}).get("frame", "camera")
    poses, offset = None, 0
    if frame != "none":
        poses, offset = _poses(state.reshape(-1, 2, half)[..., :_BASE]), _BASE
    commands = state.reshape(-1, 2, half)[..., offset:]
    extras = dataset / episode_folder(number)
    motion_file, report_file = extras / HANDS, extras / REPORT
    report = layout.read_json(report_file) if report_file.is_file() else {}
    names = features["observation.joints.robot"]["names"]
    state_names = features["observation.state"]["names"]
    motion = read_hand_motion(motion_file) if motion_file.is_file() else None
    source_ns = column("observation.source_timestamp_ns").reshape(-1)
    start_ns = int(source_ns[0] if motion is None else motion.timestamps_ns[0])
    return StoredEpisode(
        name=f"{dataset.name}, episode {number}",
        task=tasks[int(table["task_index"][0].as_py())],
        robot=str(info.get("robot_type") or record.get("robot") or ""),
        fps=float(info["fps"]),
        stamps_ns=ticks(start_ns, len(source_ns), float(info["fps"])),
        source_ns=source_ns,
        joint_names=_unsided(names),
        command_joints=_unsided(state_names)[offset:],
        joints=joints.reshape(len(joints), 2, -1).astype(np.float64),
        commands=commands.astype(np.float64),
        confidence=column("observation.hand.confidence").astype(np.float64),
        frame=frame,
        T_frame_base=poses,
        motion=motion,
        verdict=str(report.get("verdict", "pass")),
        reasons=tuple(report.get("reasons", ())),
    )


def _poses(values: Float[np.ndarray, "T 2 9"]) -> Float[np.ndarray, "T 2 4 4"]:
    values = values.astype(np.float64)
    return frames.rigid(rotations.from_6d(values[..., 3:]), values[..., :3])


def _unsided(names: Any) -> tuple[str, ...]:
    """Return the left hand's names without the side."""
    if isinstance(names, Mapping):
        names = next(iter(names.values()))
    names = list(names)[: len(names) // 2]
    return tuple(name.removeprefix("left_") for name in names)
