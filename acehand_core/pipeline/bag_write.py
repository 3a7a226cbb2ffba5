"""Writing a dataset, a table of hands or a joints file to a bag: ``acehand bag write``.

Each episode becomes a ``Demonstration``, which becomes messages.
"""

from __future__ import annotations

import contextlib
import json
import threading
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from jaxtyping import Bool, Float

from acehand_core.atomic import check_free
from acehand_core.errors import AcehandError, InputError, Interrupted, SchemaError
from acehand_core.geometry import frames, rotations
from acehand_core.lerobot import format as layout
from acehand_core.lerobot.dataset import read_provenance
from acehand_core.motion import Course, HandMotion
from acehand_core.pipeline.settings import TASK, JobSettings
from acehand_core.recordings.bags.library import LATEST
from acehand_core.recordings.bags.messages import (
    CAMERA_LINK,
    Demonstration,
    PlainMessage,
    diagnostics_messages,
    frame_messages,
    latched_messages,
    trajectory_messages,
)
from acehand_core.recordings.bags.writer import BagWriter, Storage
from acehand_core.recordings.hands_file import read_hand_motion, read_motion_file
from acehand_core.recordings.registry import HandsFile, LeRobotDataset, format_of
from acehand_core.recordings.selection import steady, ticks
from acehand_core.settings import like, setting
from acehand_core.types import SIDES, Progress, Side, TimestampsNs, no_progress
from retarget.retargeting import retarget_motion
from retarget.robots.robot import DEFAULT_ROBOT, Robot, load_robot, load_stored_robot
from retarget.solve.qp import course, lead_s
from retarget.targets import hand_targets

_BASE = 9  # position and six numbers of rotation before the joints of observation.state
_NEEDED = (
    "observation.state",
    "observation.joints.robot",
    "observation.source_timestamp_ns",
    "observation.hand.confidence",
)


def stored_demonstrations(
    dataset: Path,
    wanted: tuple[int, ...] | None = None,
    robot: str | None = None,
    models: Path | None = None,
) -> Iterator[tuple[Demonstration, Robot, TimestampsNs]]:
    """Yield episodes of a dataset with their robot and the stamps of the pictures shown.

    Frames are ``1 / fps`` apart; the stamps may repeat. ``wanted`` None: all. Raises InputError for
    an unknown episode, SchemaError for a dataset of other programs.
    """
    info = layout.read_json(dataset / layout.INFO_PATH)
    features = info.get("features", {})
    if missing := [key for key in _NEEDED if key not in features]:
        raise SchemaError(f"{dataset}: has no {missing[0]!r}, so acehand did not write it.")

    rows = {row["episode_index"]: row for row in layout.read_episode_rows(dataset)}
    for number in wanted or ():
        if number not in rows:
            raise InputError(f"{dataset}: no episode {number}; valid: 0 to {len(rows) - 1}.")

    tasks = layout.read_tasks(dataset)
    for number in sorted(rows) if wanted is None else wanted:
        table = pq.read_table(
            dataset / layout.data_file(rows[number]),
            columns=[*_NEEDED, "episode_index", "task_index"],
            use_threads=False,
        )
        record = json.loads((table.schema.metadata or {}).get(layout.PROVENANCE_KEY, b"{}"))
        name = f"{dataset.name}, episode {number}"
        named = str(info.get("robot_type") or record.get("robot") or "")
        known = load_stored_robot(named, robot, models, name)
        table = table.filter(np.asarray(table["episode_index"]) == number)
        task = tasks[int(table["task_index"][0].as_py())]
        yield _stored(dataset, number, table, info, known, name=name, task=task)


def _stored(
    dataset: Path, number: int, table: Any, info: Mapping[str, Any], robot: Robot, **names: str
) -> tuple[Demonstration, Robot, TimestampsNs]:
    features, fps = info["features"], float(info["fps"])
    state, joints, source_ns, confidence = (
        layout.column_values(table[key], features[key]["shape"]) for key in _NEEDED
    )
    source_ns = source_ns.reshape(-1)
    frame = features["observation.state"].get("info", {}).get("frame", "camera")
    both = state.reshape(len(state), 2, -1).astype(np.float64)
    poses, offset = None, 0
    if frame != "none":
        rotation = rotations.from_6d(both[..., 3:_BASE])
        poses, offset = frames.rigid(rotation, both[..., :3]), _BASE
    report = layout.read_report(dataset, number)
    motion_file = dataset / layout.episode_folder(number) / layout.HANDS
    motion = read_hand_motion(motion_file) if motion_file.is_file() else None
    start_ns = int(source_ns[0] if motion is None else motion.timestamps_ns[0])
    stamps_ns = ticks(start_ns, len(source_ns), fps)
    demo = _demonstration(
        motion,
        robot,
        poses,
        frame,
        stamps_ns=stamps_ns,
        log_ns=stamps_ns,
        fps=fps,
        joint_names=_unsided(features["observation.joints.robot"]["names"]),
        command_joints=_unsided(features["observation.state"]["names"])[offset:],
        joints=joints.reshape(len(joints), 2, -1).astype(np.float64),
        commands=both[..., offset:],
        confidence=confidence.astype(np.float64),
        verdict=str(report.get("verdict", "pass")),
        reasons=tuple(report.get("reasons", ())),
        **names,
    )
    return demo, robot, source_ns


def _unsided(names: Any) -> tuple[str, ...]:
    """Return the left hand's names without the side."""
    if isinstance(names, Mapping):
        names = next(iter(names.values()))
    names = list(names)[: len(names) // 2]
    return tuple(name.removeprefix("left_") for name in names)


def load_demonstrations(
    path: Path,
    robot: str | None = None,
    episodes: tuple[int, ...] | None = None,
    models: Path | None = None,
) -> Iterator[tuple[Demonstration, Robot]]:
    """Yield the episodes of a dataset, or a table of hands, with their robot.

    Frames are ``1 / fps`` apart, so that the robot keeps its limits; a table is interpolated.

    Args:
        path: dataset folder, HandMotion .parquet or joints .npz.
        robot: follows a table's hands, None: inspire; for a dataset, the robot.yaml of an own
            robot.
        episodes: numbers; None: all.
        models: the robot's model file, see ``load_robot``.

    Raises InputError for another kind of file or an unknown episode.
    """
    if (kind := format_of(path)) is LeRobotDataset:
        for demo, known, _ in stored_demonstrations(path, episodes, robot, models):
            yield demo, known
    elif kind is HandsFile and path.is_file():
        motion = steady(read_motion_file(path, "both"))
        known = load_robot(robot or DEFAULT_ROBOT, models=models)
        trajectory = retarget_motion(motion, known)
        verdict = trajectory.verdict
        demo = _demonstration(
            motion,
            known,
            trajectory.T_frame_base,
            trajectory.frame,
            name=path.name,
            task=TASK,
            stamps_ns=trajectory.timestamps_ns,
            log_ns=trajectory.timestamps_ns,
            fps=trajectory.fps,
            joint_names=trajectory.joint_names,
            command_joints=trajectory.command_joints,
            joints=trajectory.joints,
            commands=trajectory.commands,
            confidence=trajectory.confidence,
            verdict=verdict.status if verdict else "pass",
            reasons=verdict.reasons if verdict else (),
        )
        yield demo, known
    else:
        raise InputError(
            f"{path}: give a LeRobot dataset, a HandMotion table (.parquet) or a joints file "
            "(.npz). Play a bag with ros2 bag play."
        )


def _demonstration(
    motion: HandMotion | None,
    robot: Robot,
    poses: Float[np.ndarray, "T 2 4 4"] | None,
    frame: str,
    **entries: Any,
) -> Demonstration:
    """Return a motion and the robot that follows it; ``poses`` of its bases are in ``frame``."""
    known = entries["confidence"] > 0 if motion is None else motion.known
    world = None if motion is None else motion.T_world_camera
    if motion is None:
        poses = None
    elif poses is not None and frame == "world":  # None: not known in the camera's frame
        poses = None if world is None else frames.inverse(world)[:, None] @ poses
    if motion is not None and (named := motion.provenance.settings.get("camera_frame", "")):
        # Whoever named the pictures' frame publishes its pose too.
        entries |= {"camera_frame": named, "publish_camera_tf": False}
    descriptions = {side: hand.urdf_path.read_text("utf-8") for side, hand in robot.hands.items()}
    return Demonstration(
        robot=robot.name,
        courses=courses(robot, entries["commands"], known, entries["fps"]),
        T_camera_base=poses,
        T_camera_wrist=None if motion is None else _wrists(motion),
        motion=motion,
        camera=None if motion is None else motion.camera,
        T_world_camera=world,
        world_frame=None if world is None else "world",
        descriptions=descriptions,
        base_links={side: _base_link(text) for side, text in descriptions.items()},
        **entries,
    )


def courses(
    robot: Robot,
    commands: Float[np.ndarray, "T 2 C"],
    known: Bool[np.ndarray, "T 2"],
    fps: float,
    start: Mapping[Side, Float[np.ndarray, "C"]] | None = None,
) -> dict[Side, Course]:
    """Return a controller's course for each hand that appears, from its first frame to its last.

    Both begin the same time after the start. ``start`` has the hands' positions, if known.
    """
    made, begin = {}, 1 / fps
    for slot, side in enumerate(SIDES):
        rows = np.flatnonzero(known[:, slot])
        if len(rows):
            hand, seen = robot.hand(side), commands[rows[0] : rows[-1] + 1, slot].astype(float)
            made[side] = course(hand, seen, fps, rows[0] / fps)
            lead = lead_s(hand, made[side].positions[0], (start or {}).get(side))
            begin = max(begin, lead - rows[0] / fps)
    return {side: replace(one, seconds=one.seconds + begin) for side, one in made.items()}


def seen_by(source: Path, episode: int = 0) -> tuple[str, str | None]:
    """Return the TF frame of a source's hands and the topic of its pictures, or the defaults."""
    record: Mapping[str, Any] = {}
    with contextlib.suppress(AcehandError, OSError, LookupError):
        if (kind := format_of(source)) is LeRobotDataset:
            record = read_provenance(source)[episode] or {}
        elif kind is HandsFile and source.is_file():
            record = asdict(read_motion_file(source, "both").provenance)
    said = record.get("settings", {})
    return said.get("camera_frame") or CAMERA_LINK, said.get("image_topic")


def _wrists(motion: HandMotion) -> np.ndarray | None:
    """Return the palm frame of both hands in the camera frame, NaN where absent (T, 2, 4, 4)."""
    if not motion.placed:
        return None
    wrists = np.full((len(motion), 2, 4, 4), np.nan)
    for slot, side in enumerate(SIDES):
        targets = hand_targets(motion, side)
        if targets is not None and targets.T_camera_hand is not None:
            wrists[targets.active, slot] = targets.T_camera_hand[targets.active]
    return wrists


def _base_link(urdf: str) -> str:
    """Return the link of a hand's URDF that no joint moves."""
    root = ElementTree.fromstring(urdf)
    moved = {child.get("link") for child in root.iterfind(".//joint/child")}
    names = (link.get("name", "") for link in root.findall("link"))
    return next(name for name in names if name not in moved)


#: Between episodes of a written bag that would overlap.
PAUSE_NS = 2_000_000_000


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Settings of writing a bag."""

    source: Path = setting(
        ...,
        "LeRobot dataset, HandMotion .parquet or joints .npz",
        metavar="DATASET",
        positional=True,
    )
    output: Path = setting(..., ".mcap file, or folder of a rosbag2", metavar="OUT")
    robot: str | None = setting(
        None,
        "follows a table's hands",
        metavar="NAME|FILE",
        default_text="inspire; of a dataset its robot",
    )
    robot_model: Path | None = like(JobSettings, "robot_model", None)
    episodes: tuple[int, ...] = setting((), "only this episode", flag="episode", repeat=True)
    distro: str = setting(
        LATEST, "whose message definitions, from humble on", metavar="NAME", default_text="newest"
    )
    overwrite: bool = setting(False, "replace what is there")
    storage: Storage = setting("mcap", "of the written bag")


@dataclass(frozen=True, slots=True)
class WriteReport:
    """A written bag, with messages by topic; ``notes`` name episodes with shifted stamps."""

    bag: str
    topics: Mapping[str, int]
    messages: int
    lost_messages: Mapping[str, int]
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``acehand bag write --json`` prints."""
        return asdict(self)


def write_bag(
    options: WriteOptions, progress: Progress = no_progress, cancel: threading.Event | None = None
) -> WriteReport:
    """Write a dataset or a table of hands to a bag.

    Raises InputError for another kind of source or an unknown episode, OutputError. Interrupted
    leaves nothing.
    """
    progress = stoppable(progress, cancel)
    check_free(options.output, options.overwrite)

    try:
        with BagWriter(
            options.output, options.storage, options.overwrite, options.distro
        ) as writer:
            found = load_demonstrations(
                options.source, options.robot, options.episodes or None, options.robot_model
            )
            end_ns, notes = None, []
            for demo, _ in found:
                begin_ns = int(min(demo.log_ns[0], demo.stamps_ns[0]))
                if end_ns is not None and begin_ns <= end_ns:
                    # Every episode of a video begins at stamp 0; a bag has one clock for all.
                    shift = end_ns + PAUSE_NS - begin_ns
                    demo = replace(
                        demo, stamps_ns=demo.stamps_ns + shift, log_ns=demo.log_ns + shift
                    )
                    notes.append(
                        f"{demo.name}: shifted by {shift / 1e9:.3f} s, since another episode has "
                        "its times"
                    )
                end_ns = int(demo.log_ns[-1]) if end_ns is None else max(end_ns, demo.log_ns[-1])
                write_demonstration(writer, demo, {}, progress)
            if not writer.counts:
                raise InputError(f"{options.source}: has no episode.")
    except KeyboardInterrupt as stop:
        raise Interrupted(WriteReport(str(options.output), {}, 0, {})) from stop

    counts = dict(writer.counts)
    return WriteReport(str(options.output), counts, sum(counts.values()), {}, tuple(notes))


def write_demonstration(
    writer: BagWriter, demo: Demonstration, renamed: Mapping[str, str], progress: Progress
) -> None:
    """Write an episode's messages; ``renamed`` has other names for topics."""

    def put(messages: Iterable[PlainMessage]) -> None:
        for message in messages:
            writer.write(message, renamed.get(message.topic))

    put(latched_messages(demo))
    put(trajectory_messages(demo))
    for index in range(len(demo)):
        put(frame_messages(demo, index))
        progress("write messages", index + 1, len(demo))
    put(diagnostics_messages(demo))


def stoppable(progress: Progress, cancel: threading.Event | None) -> Progress:
    def call(stage: str, done: int, total: int) -> None:
        if cancel is not None and cancel.is_set():
            raise KeyboardInterrupt
        progress(stage, done, total)

    return call
