"""Episodes read back: from a dataset, or from a bag that holds our joint states."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from jaxtyping import Float

from acehand_core.data.bags.bag import Bag
from acehand_core.data.bags.records import Losses
from acehand_core.data.bags.times import frame_rate, frame_times
from acehand_core.data.bags.typestore import decode
from acehand_core.data.hand_table import read_hand_motion
from acehand_core.data.selection import ticks
from acehand_core.errors import InputError, SchemaError
from acehand_core.export import lerobot_format as layout
from acehand_core.export.bag_messages import JOINT_STATE, STRING, Demonstration
from acehand_core.export.extras import HANDS, REPORT, episode_folder
from acehand_core.geometry import frames, rotations
from acehand_core.motion import HandMotion
from acehand_core.types import SIDES, TimestampsNs

#: Time of receipt and positions of joint states, by stamp and how often it came before.
_Rows = dict[tuple[int, int], tuple[int, np.ndarray]]
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


def read_bag_joints(path: Path) -> Demonstration:
    """Return what a bag of ours says about the robot: joint states of both hands.

    All joints count as commands; which are driven, the robot says.

    Raises:
        InputError: the bag has no joint states of ours.
    """
    with Bag(path) as bag:
        topics = bag.topics
        states = {f"/{side}_hand/joint_states" for side in SIDES}
        other = {f"/acehand{name}" for name in states}
        wanted = other if other & topics.keys() else states
        wanted = {n for n in wanted if n in topics and topics[n].msgtype == JOINT_STATE}
        if not wanted:
            raise InputError(
                f"{path}: no joint states of a hand; valid: {', '.join(sorted(states))}."
            )
        rows: dict[str, _Rows] = {side: {} for side in SIDES}
        seen: Counter[tuple[str, int]] = Counter()
        names: dict[str, list[str]] = {}
        task = "hand motion"
        extra = {n for n in topics if n.endswith("/acehand/task") and topics[n].msgtype == STRING}
        for message in bag.messages(wanted | extra, Losses()):
            content = decode(message.data, topics[message.topic].msgtype)
            if message.topic in extra:
                task = content.data or task
                continue
            side = "left" if "left_hand" in message.topic else "right"
            stamp = content.header.stamp.sec * 10**9 + content.header.stamp.nanosec
            names.setdefault(side, list(content.name))
            # Where the clock was set back, a stamp comes more than once.
            rows[side][stamp, seen[side, stamp]] = (
                message.log_ns, np.array(content.position, np.float64)
            )  # fmt: skip
            seen[side, stamp] += 1
    return _from_states(path, rows, names, task)


def _from_states(
    path: Path,
    rows: Mapping[str, _Rows],
    names: Mapping[str, list[str]],
    task: str,
) -> Demonstration:
    """Return both hands at a steady rate; where one says nothing, it is absent and keeps still."""
    every = sorted(set(rows["left"]) | set(rows["right"]), key=lambda key: (_log(rows, key), key))
    if not every:
        raise InputError(f"{path}: its topics of joint states are empty.")
    unsided = {s: tuple(n.removeprefix(f"{s}_") for n in names[s]) for s in SIDES if s in names}
    joint_names = next(iter(unsided.values()))
    if any(other != joint_names for other in unsided.values()):
        raise InputError(f"{path}: the hands' joint names differ: {dict(names)}.")
    logs = np.array([_log(rows, key) for key in every], np.int64)
    times = frame_times(np.array([stamp for stamp, _ in every], np.int64), logs)
    fps = frame_rate(times.timestamps_ns)
    first = int(times.timestamps_ns[0])
    count = 1 + round(float(times.timestamps_ns[-1] - first) * fps / 1e9)
    at = ticks(first, count, fps)

    joints, said = np.zeros((count, 2, len(joint_names))), np.zeros((count, 2), bool)
    for slot, side in enumerate(SIDES):
        there = [i for i, row in enumerate(times.order) if every[row] in rows[side]]
        if not there:
            continue
        stamps = times.timestamps_ns[there]
        values = np.stack([rows[side][every[times.order[i]]][1] for i in there])
        joints[:, slot] = np.stack([np.interp(at, stamps, column) for column in values.T], axis=1)
        middles = stamps[:-1] + np.diff(stamps) // 2
        nearest = stamps[np.searchsorted(middles, at)]
        said[:, slot] = np.abs(at - nearest) <= 0.75e9 / fps
    return Demonstration(
        name=str(path),
        task=task,
        stamps_ns=at,
        log_ns=at,
        fps=fps,
        robot="",
        joint_names=joint_names,
        command_joints=joint_names,
        joints=joints,
        commands=joints,
        confidence=said.astype(float),
    )


def _log(rows: Mapping[str, _Rows], key: tuple[int, int]) -> int:
    """Return when the first of both hands' messages of one stamp was received."""
    return min(rows[side][key][0] for side in SIDES if key in rows[side])


def _poses(values: Float[np.ndarray, "T 2 9"]) -> Float[np.ndarray, "T 2 4 4"]:
    values = values.astype(np.float64)
    return frames.rigid(rotations.from_6d(values[..., 3:]), values[..., :3])


def _unsided(names: Any) -> tuple[str, ...]:
    """Return the left hand's names without the side."""
    if isinstance(names, Mapping):
        names = next(iter(names.values()))
    names = list(names)[: len(names) // 2]
    return tuple(name.removeprefix("left_") for name in names)
