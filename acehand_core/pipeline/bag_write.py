"""A dataset, a table of hands or a joints file into a bag: what ``acehand bag write`` calls.

Episodes of a dataset are read back. Each becomes a ``Demonstration``, from which messages are made.
"""

from __future__ import annotations

import contextlib
import json
import threading
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
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
from acehand_core.lerobot.format import HANDS, REPORT, episode_folder
from acehand_core.motion import Course, HandMotion, RobotTrajectory
from acehand_core.pipeline.settings import JobSettings
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


def load_demonstrations(
    path: Path,
    robot: str | None = None,
    episodes: tuple[int, ...] | None = None,
    models: Path | None = None,
) -> Iterator[tuple[Demonstration, Robot]]:
    """Yield the episodes of a dataset, or a table of hands.

    Their frames are ``1 / fps`` apart, so that the robot keeps its limits; those of a table are
    brought there from their true stamps.

    Args:
        path: dataset's folder, HandMotion .parquet or joints .npz.
        robot: follows the hands of a table; None: inspire. A dataset names its own robot, and one
            that is not packaged is found if it is given here as a robot.yaml.
        episodes: numbers of the wanted episodes; None: all.
        models: the robot's own model file, see ``load_robot``.

    Raises:
        InputError: it is none of these, or has no such episode.
    """
    if (kind := format_of(path)) is LeRobotDataset:
        for episode in read_episodes(path, episodes):
            known = load_stored_robot(episode.robot, robot, models, episode.name)
            yield of_episode(episode, known), known
    elif kind is HandsFile and path.is_file():
        motion = steady(read_motion_file(path, "both"))
        known = load_robot(robot or DEFAULT_ROBOT, models=models)
        trajectory = retarget_motion(motion, known)
        yield demonstration(motion, trajectory, known, path.name, "hand motion"), known
    else:
        raise InputError(
            f"{path}: give a LeRobot dataset, a HandMotion table (.parquet) or a joints file "
            "(.npz). A bag of ours is played by ros2 bag play."
        )


def demonstration(
    motion: HandMotion, trajectory: RobotTrajectory, robot: Robot, name: str, task: str
) -> Demonstration:
    """Return what is told to ROS about a motion and the robot that follows it."""
    poses = trajectory.T_frame_base
    if poses is not None and trajectory.frame == "world" and motion.T_world_camera is not None:
        poses = frames.inverse(motion.T_world_camera)[:, None] @ poses
    verdict = trajectory.verdict

    return Demonstration(
        name=name,
        task=task,
        stamps_ns=trajectory.timestamps_ns,
        log_ns=trajectory.timestamps_ns,
        fps=trajectory.fps,
        robot=robot.name,
        joint_names=trajectory.joint_names,
        command_joints=trajectory.command_joints,
        joints=trajectory.joints,
        commands=trajectory.commands,
        confidence=trajectory.confidence,
        courses=courses(robot, trajectory.commands, motion.known, trajectory.fps),
        T_camera_base=poses,
        T_camera_wrist=_wrists(motion),
        motion=motion,
        camera=motion.camera,
        T_world_camera=motion.T_world_camera,
        world_frame=None if motion.T_world_camera is None else "world",
        **_camera_frame(motion),
        verdict=verdict.status if verdict else "pass",
        reasons=verdict.reasons if verdict else (),
        descriptions=_descriptions(robot),
        base_links=_base_links(robot),
    )


def courses(
    robot: Robot,
    commands: Float[np.ndarray, "T 2 C"],
    known: Bool[np.ndarray, "T 2"],
    fps: float,
    start: Mapping[Side, Float[np.ndarray, "C"]] | None = None,
) -> dict[Side, Course]:
    """Return what a controller is to do with each hand that appears, from its first frame to last.

    Both begin their clip at the same time after they are started.

    Args:
        start: where each hand is; None: not known.
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


def of_episode(episode: StoredEpisode, robot: Robot) -> Demonstration:
    motion = episode.motion
    known = episode.confidence > 0 if motion is None else motion.known

    poses, world = episode.T_frame_base, None
    if motion is not None and motion.T_world_camera is not None:
        world = motion.T_world_camera
        if poses is not None and episode.frame == "world":
            poses = frames.inverse(world)[:, None] @ poses
    elif episode.frame == "world":
        poses = None  # the camera's place is not stored, so base and camera cannot be joined

    return Demonstration(
        name=episode.name,
        task=episode.task,
        stamps_ns=episode.stamps_ns,
        log_ns=episode.stamps_ns,
        fps=episode.fps,
        robot=robot.name,
        joint_names=episode.joint_names,
        command_joints=episode.command_joints,
        joints=episode.joints,
        commands=episode.commands,
        confidence=episode.confidence,
        courses=courses(robot, episode.commands, known, episode.fps),
        T_camera_base=poses if motion is not None else None,
        T_camera_wrist=None if motion is None else _wrists(motion),
        motion=motion,
        camera=None if motion is None else motion.camera,
        T_world_camera=world,
        world_frame=None if world is None else "world",
        **_camera_frame(motion),
        verdict=episode.verdict,
        reasons=episode.reasons,
        descriptions=_descriptions(robot),
        base_links=_base_links(robot),
    )


def _camera_frame(motion: HandMotion | None) -> dict[str, Any]:
    """Return the frame that the pictures named: then somebody else says where it is."""
    named = "" if motion is None else motion.provenance.settings.get("camera_frame", "")
    return {"camera_frame": named, "publish_camera_tf": False} if named else {}


def seen_by(source: Path, episode: int = 0) -> tuple[str, str | None]:
    """Return the TF frame in which a source's hands are, and the topic of its pictures if any.

    Quick: neither the hands nor the pictures are read. Of a source that cannot be read, the
    defaults: who plays it says what is wrong.
    """
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


def _descriptions(robot: Robot) -> dict[Side, str]:
    return {side: hand.urdf_path.read_text("utf-8") for side, hand in robot.hands.items()}


def _base_links(robot: Robot) -> dict[Side, str]:
    """Return the link of each hand's URDF that no joint moves."""
    links: dict[Side, str] = {}
    for side, text in _descriptions(robot).items():
        root = ElementTree.fromstring(text)
        moved = {child.get("link") for child in root.iterfind(".//joint/child")}
        names = (link.get("name", "") for link in root.findall("link"))
        links[side] = next(name for name in names if name not in moved)
    return links


#: Between episodes of a written bag that would lie on top of each other.
PAUSE_NS = 2_000_000_000


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What to turn into a bag: a dataset's folder, a HandMotion table or a joints file."""

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
        default_text="inspire; of a dataset its own robot.yaml",
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
    """A written bag: messages by topic. ``notes`` name the episodes whose stamps were moved."""

    bag: str
    topics: Mapping[str, int]
    messages: int
    lost_messages: Mapping[str, int]
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``acehand bag write --json`` prints."""
        return asdict(self)


def write_bag(
    options: WriteOptions,
    progress: Progress = no_progress,
    cancel: threading.Event | None = None,
) -> WriteReport:
    """Make a bag of a dataset or of a table of hands.

    Raises:
        InputError: it is neither, or has no such episode. OutputError: the bag cannot be written.
        Interrupted: stopped; nothing was written.
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
                demo, note = _after(demo, end_ns)
                notes += note
                end_ns = int(demo.log_ns[-1]) if end_ns is None else max(end_ns, demo.log_ns[-1])
                write_demonstration(writer, demo, {}, progress)
            if not writer.counts:
                raise InputError(f"{options.source}: there is no episode to write.")
    except KeyboardInterrupt as stop:
        raise Interrupted(WriteReport(str(options.output), {}, 0, {})) from stop

    counts = dict(writer.counts)
    return WriteReport(str(options.output), counts, sum(counts.values()), {}, tuple(notes))


def _after(demo: Demonstration, end_ns: int | None) -> tuple[Demonstration, list[str]]:
    """Return an episode that begins after ``end_ns``, and a note where it had to be moved.

    Every episode of a video begins at stamp 0; in a bag there is one clock for all of them.
    """
    if end_ns is None or min(demo.log_ns[0], demo.stamps_ns[0]) > end_ns:
        return demo, []
    shift = end_ns + PAUSE_NS - int(min(demo.log_ns[0], demo.stamps_ns[0]))
    note = f"{demo.name}: moved on by {shift / 1e9:.3f} s, since another episode has its times"
    return replace(demo, stamps_ns=demo.stamps_ns + shift, log_ns=demo.log_ns + shift), [note]


def write_demonstration(
    writer: BagWriter,
    demo: Demonstration,
    renamed: Mapping[str, str],
    progress: Progress,
) -> None:
    def put(message: PlainMessage) -> None:
        writer.write(message, renamed.get(message.topic))

    for message in latched_messages(demo):
        put(message)
    for message in trajectory_messages(demo):
        put(message)
    for index in range(len(demo)):
        for message in frame_messages(demo, index):
            put(message)
        progress("write messages", index + 1, len(demo))
    for message in diagnostics_messages(demo):
        put(message)


def stoppable(progress: Progress, cancel: threading.Event | None) -> Progress:
    def call(stage: str, done: int, total: int) -> None:
        if cancel is not None and cancel.is_set():
            raise KeyboardInterrupt
        progress(stage, done, total)

    return call
