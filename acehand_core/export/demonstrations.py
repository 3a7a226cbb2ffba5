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
from acehand_core.data.bags.times import frame_times
from acehand_core.data.bags.typestore import decode
from acehand_core.data.hand_table import read_hand_motion
from acehand_core.errors import InputError, SchemaError
from acehand_core.export import lerobot_format as layout
from acehand_core.export.bag_messages import JOINT_STATE, JOINT_TRAJECTORY, STRING, Demonstration
from acehand_core.export.extras import HANDS, REPORT, episode_folder
from acehand_core.export.resume import JOB
from acehand_core.geometry import frames, rotations
from acehand_core.motion import HandMotion
from acehand_core.types import SIDES, TimestampsNs

#: Time of receipt and positions of joint states, by stamp and how often it came before.
_Rows = dict[tuple[int, int], tuple[int, np.ndarray]]
_BASE = 9  # position and six numbers of rotation before the joints of observation.state


@dataclass(frozen=True, slots=True, eq=False)
class StoredEpisode:
    """One episode of T frames of a dataset. Stamps are the source's own.

    ``motion`` is the table kept beside it, or None where that is missing.
    """

    name: str
    task: str
    robot: str
    stamps_ns: TimestampsNs
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


def read_episodes(
    dataset: Path, wanted: tuple[int, ...] | None, source_sha256: str | None = None
) -> Iterator[StoredEpisode]:
    """Yield episodes of a dataset, one in memory at a time.

    Args:
        wanted: their numbers; None: all.
        source_sha256: only those that were made from the file or bag of that content.

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
        if source_sha256 is not None and record.get(JOB, {}).get("input_sha256") != source_sha256:
            continue
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
    return StoredEpisode(
        name=f"{dataset.name}, episode {number}",
        task=tasks[int(table["task_index"][0].as_py())],
        robot=str(info.get("robot_type") or record.get("robot") or ""),
        stamps_ns=column("observation.source_timestamp_ns").reshape(-1),
        joint_names=_unsided(names),
        command_joints=_unsided(state_names)[offset:],
        joints=joints.reshape(len(joints), 2, -1).astype(np.float64),
        commands=commands.astype(np.float64),
        confidence=column("observation.hand.confidence").astype(np.float64),
        frame=frame,
        T_frame_base=poses,
        motion=read_hand_motion(motion_file) if motion_file.is_file() else None,
        verdict=str(report.get("verdict", "pass")),
        reasons=tuple(report.get("reasons", ())),
    )


def read_bag_joints(path: Path) -> Demonstration:
    """Return what a bag of ours says about the robot: joint states of both hands, and commands.

    Raises:
        InputError: the bag has no joint states of ours.
    """
    with Bag(path) as bag:
        topics = bag.topics
        states = {f"/{side}_hand/joint_states" for side in SIDES}
        other = {f"/acehand{name}" for name in states}
        wanted = other if other <= topics.keys() else states
        wanted = {n for n in wanted if n in topics and topics[n].msgtype == JOINT_STATE}
        if len(wanted) != 2:
            raise InputError(
                f"{path}: no joint states of both hands; valid: {', '.join(sorted(states))}."
            )
        rows: dict[str, _Rows] = {side: {} for side in SIDES}
        seen: Counter[tuple[str, int]] = Counter()
        names: dict[str, list[str]] = {}
        commands: list[str] = []
        task = "hand motion"
        trajectories = {n for n, t in topics.items() if t.msgtype == JOINT_TRAJECTORY}
        extra = {n for n in topics if n.endswith("/acehand/task") and topics[n].msgtype == STRING}
        for message in bag.messages(wanted | trajectories | extra, Losses()):
            content = decode(message.data, topics[message.topic].msgtype)
            if message.topic in extra:
                task = content.data or task
                continue
            if message.topic in trajectories:
                commands = commands or list(content.joint_names)
                continue
            side = "left" if "left_hand" in message.topic else "right"
            stamp = content.header.stamp.sec * 10**9 + content.header.stamp.nanosec
            names.setdefault(side, list(content.name))
            # Where the clock was set back, a stamp comes more than once.
            rows[side][stamp, seen[side, stamp]] = (
                message.log_ns, np.array(content.position, np.float64)
            )  # fmt: skip
            seen[side, stamp] += 1
    return _from_states(path, rows, names, commands, task)


def _from_states(
    path: Path,
    rows: Mapping[str, _Rows],
    names: Mapping[str, list[str]],
    commands: list[str],
    task: str,
) -> Demonstration:
    both = [key for key in rows["left"] if key in rows["right"]]
    if not both:
        raise InputError(f"{path}: no joint states of both hands at one time.")
    joint_names = tuple(name.removeprefix("left_") for name in names["left"])
    if [f"right_{name}" for name in joint_names] != names["right"]:
        raise InputError(f"{path}: the hands' joint names differ: {names}.")
    logs = np.array([rows["left"][key][0] for key in both], np.int64)
    times = frame_times(np.array([stamp for stamp, _ in both], np.int64), logs)
    joints = np.stack([[rows[side][both[i]][1] for side in SIDES] for i in times.order])
    driven = tuple(n.split("_", 1)[1] for n in commands) or joint_names
    columns = [joint_names.index(name) for name in driven if name in joint_names]
    return Demonstration(
        name=str(path),
        task=task,
        stamps_ns=times.timestamps_ns,
        log_ns=logs[times.order],
        robot="",
        joint_names=joint_names,
        command_joints=tuple(joint_names[i] for i in columns),
        joints=joints,
        commands=joints[:, :, columns],
        confidence=np.ones((len(joints), 2)),
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
