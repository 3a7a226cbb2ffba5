"""Episodes read back: from a dataset, or from a bag that holds our joint states."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from jaxtyping import Float

from acehand_core.bags.bag import Bag
from acehand_core.bags.images import CAMERA_INFO, camera_of
from acehand_core.bags.library import decode
from acehand_core.bags.messages import JOINT_STATE, OPTICAL, POSE, POSES, STRING, TF, Demonstration
from acehand_core.bags.records import DroppedMessages
from acehand_core.errors import InputError, SchemaError
from acehand_core.geometry import frames, rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.lerobot import format as layout
from acehand_core.lerobot.format import HANDS, REPORT, episode_folder
from acehand_core.motion import HandMotion
from acehand_core.provenance import Provenance
from acehand_core.recordings.bag import frame_rate, frame_times
from acehand_core.recordings.hands_file import read_hand_motion
from acehand_core.recordings.selection import hands_at, poses_at, ticks
from acehand_core.types import SIDES, JointsCamera, TimestampsNs

#: Time of receipt and positions of joint states, by stamp and how often it came before.
_Rows = dict[tuple[int, int], tuple[int, np.ndarray]]
JOINTS = 21
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
    """Return what a bag of ours says: joint states of both hands, and the human hands if there.

    All joints count as commands; which are driven, the robot says. Wrists (and with them the frame
    of the camera), 21 joints, the robots' places at the wrists and the camera's calibration are
    read where the bag has them; surfaces and the camera's place in the world are not.

    Raises:
        InputError: the bag has no joint states of ours. CalibrationError: its camera is none.
    """
    with Bag(path) as bag:
        topics = bag.topics
        states = {f"/{side}_hand/joint_states" for side in SIDES}
        before = "/acehand" if {f"/acehand{name}" for name in states} & topics.keys() else ""
        wanted = {f"{before}{name}" for name in states}
        wanted = {n for n in wanted if n in topics and topics[n].msgtype == JOINT_STATE}

        if not wanted:
            raise InputError(
                f"{path}: no joint states of a hand; valid: {', '.join(sorted(states))}."
            )

        kinds = {"joint_states": JOINT_STATE, "wrist_pose": POSE, "joints": POSES}
        places = {f"{before}/{side}_hand/{name}": (side, name) for side in SIDES for name in kinds}
        places = {n: p for n, p in places.items() if n in topics}
        places = {n: p for n, p in places.items() if topics[n].msgtype == kinds[p[1]]}
        extra = {n for n in topics if n.endswith("/acehand/task") and topics[n].msgtype == STRING}
        info = f"{before}/acehand/camera_info"
        extra |= {info} if info in topics and topics[info].msgtype == CAMERA_INFO else set()
        extra |= {"/tf"} if "/tf" in topics and topics["/tf"].msgtype == TF else set()

        read = _Read()
        for message in bag.messages(places.keys() | extra, DroppedMessages()):
            content = decode(message.data, topics[message.topic].msgtype)
            if message.topic == "/tf":
                read.add_bases(content)
            elif message.topic == info:
                read.camera = read.camera or camera_of(content)
            elif message.topic in extra:
                read.task = content.data or read.task
            else:
                read.add(*places[message.topic], content, message.log_ns)

    return _from_states(path, read)


def read_wrist_frame(path: Path) -> str | None:
    """Return the frame in which a bag of ours has its wrists, or None: it has no wrist.

    Raises:
        InputError: it is no bag.
    """
    with Bag(path) as bag:
        wanted = {
            name
            for name, topic in bag.topics.items()
            if topic.msgtype == POSE and name.endswith("_hand/wrist_pose")
        }
        for message in bag.messages(wanted, DroppedMessages()) if wanted else ():
            return str(decode(message.data, POSE).header.frame_id)
    return None


#: A header's stamp, and how often it came before: where the clock was set back, more than once.
_Key = tuple[int, int]


class _Read:
    """What a bag said of each hand, by key; ``names`` are those of the joint states."""

    def __init__(self) -> None:
        self.rows: dict[str, _Rows] = {side: {} for side in SIDES}
        self.names: dict[str, list[str]] = {}
        self.wrists: dict[str, dict[_Key, np.ndarray]] = {side: {} for side in SIDES}
        self.hands: dict[str, dict[_Key, np.ndarray]] = {side: {} for side in SIDES}
        self.bases: dict[str, dict[_Key, np.ndarray]] = {side: {} for side in SIDES}
        self.task, self.camera_frame = "hand motion", ""
        self.camera: Camera | None = None
        self._seen: Counter[tuple[str, str, int]] = Counter()

    def add(self, side: str, name: str, content: Any, log_ns: int) -> None:
        key = self._key(side, name, content.header.stamp)
        if name == "joint_states":
            self.names.setdefault(side, list(content.name))
            self.rows[side][key] = log_ns, np.array(content.position, np.float64)
        elif name == "wrist_pose":
            self.camera_frame = self.camera_frame or content.header.frame_id
            self.wrists[side][key] = _rigid(content.pose.position, content.pose.orientation)
        elif len(content.poses) == JOINTS:
            points = [(p.position.x, p.position.y, p.position.z) for p in content.poses]
            self.hands[side][key] = np.array(points, np.float64)

    def add_bases(self, content: Any) -> None:
        for one in content.transforms:
            side, _, wrist = one.header.frame_id.partition("_")
            if side in SIDES and wrist == "wrist":
                key = self._key(side, "base", one.header.stamp)
                self.bases[side][key] = _rigid(one.transform.translation, one.transform.rotation)

    def _key(self, side: str, name: str, stamp: Any) -> _Key:
        at = stamp.sec * 10**9 + stamp.nanosec
        self._seen[side, name, at] += 1
        return at, self._seen[side, name, at] - 1


def _rigid(position: Any, turn: Any) -> Float[np.ndarray, "4 4"]:
    quaternion = np.array([turn.w, turn.x, turn.y, turn.z], np.float64)
    place = np.array([position.x, position.y, position.z], np.float64)
    return frames.rigid(rotations.from_quaternion(quaternion), place)


def _from_states(path: Path, read: _Read) -> Demonstration:
    """Return both hands at a steady rate; where one says nothing, it is absent and keeps still."""
    rows, names = read.rows, read.names
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

    keys = [every[row] for row in times.order]
    found = times.timestamps_ns
    wrists = bases = None
    if any(read.wrists.values()):
        seen = _per_frame(read.wrists, keys, (4, 4))
        wrists = poses_at(seen, found, at)
        wrists[~said] = np.nan
        if any(read.bases.values()):
            bases = poses_at(seen @ _per_frame(read.bases, keys, (4, 4)), found, at)
    motion = None
    if any(read.hands.values()):
        motion = _hands(
            path, _per_frame(read.hands, keys, (JOINTS, 3)), found, fps, wrists is not None
        )
        known = said.astype(float)
        motion = replace(
            hands_at(motion, at, fps), observed=said, filled=np.zeros_like(said),
            presence=known, visible=known, quality=known,
        )  # fmt: skip
    frame = read.camera_frame or OPTICAL
    return Demonstration(
        T_camera_base=bases,
        T_camera_wrist=wrists,
        motion=motion,
        camera=read.camera,
        camera_frame=frame,
        publish_camera_tf=frame == OPTICAL,
        name=str(path),
        task=read.task,
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


def _per_frame(
    said: Mapping[str, Mapping[_Key, np.ndarray]], keys: Sequence[_Key], shape: tuple[int, ...]
) -> np.ndarray:
    """Return what was said of each hand at each frame (N, 2, *shape), NaN where nothing was."""
    out = np.full((len(keys), 2, *shape), np.nan)
    for slot, side in enumerate(SIDES):
        for row, key in enumerate(keys):
            if key in said[side]:
                out[row, slot] = said[side][key]
    return out


def _hands(
    path: Path, joints: JointsCamera, stamps_ns: TimestampsNs, fps: float, placed: bool
) -> HandMotion:
    """Return the human hands of joints alone: rotations and what pictures showed are not known."""
    count, known = len(joints), np.isfinite(joints).all((-1, -2))
    return HandMotion(
        timestamps_ns=stamps_ns,
        fps=fps,
        presence=known.astype(float),
        visible=known.astype(float),
        quality=known.astype(float),
        observed=known,
        filled=np.zeros_like(known),
        global_orient=np.full((count, 2, 3, 3), np.nan),
        hand_pose=np.full((count, 2, 15, 3, 3), np.nan),
        betas=np.zeros((2, 10)),
        translation=np.full((count, 2, 3), np.nan),
        joints_camera=joints,
        joints_image=np.full((count, 2, JOINTS, 2), np.nan),
        hand_model="none",
        provenance=Provenance(path.name, None, "bag"),
        placed=placed,
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
