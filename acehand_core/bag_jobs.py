"""Bags in and bags out: what ``acehand bag`` and the ROS nodes call.

Each job takes its options, a progress callback and an event that stops it. ``convert_bag`` makes a
dataset of a bag and, if wanted, a bag with the original topics and ours on the recording's own
clock; ``write_bag`` makes a bag of a dataset or of a table of hands.
"""

from __future__ import annotations

import threading
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from acehand_core.atomic import check_free
from acehand_core.data.bags.bag import Bag, is_bag
from acehand_core.data.bags.episodes import cuts
from acehand_core.data.bags.recording import BagIndex, forget_indexes, index_bag
from acehand_core.data.bags.records import Losses
from acehand_core.data.bags.typestore import DISTROS, LATEST
from acehand_core.errors import InputError, Interrupted, OutputError
from acehand_core.export.bag_messages import (
    OPTICAL,
    SHARED,
    TOPICS,
    Demonstration,
    PlainMessage,
    diagnostics_messages,
    frame_messages,
    joint_trajectory,
    latched_messages,
)
from acehand_core.export.bag_writer import BagWriter, Storage
from acehand_core.export.demonstrations import (
    StoredEpisode,
    read_bag_joints,
    read_episodes,
)
from acehand_core.export.lerobot import is_dataset
from acehand_core.export.memory import release_memory
from acehand_core.export.report import JobReport
from acehand_core.geometry import frames
from acehand_core.motion import HandMotion, Recording, RobotTrajectory
from acehand_core.pipeline import Clip, JobSettings, run_job
from acehand_core.trackers.base import Progress, no_progress
from acehand_core.trackers.choose import is_motion_file
from acehand_core.trackers.files import read_motion_file
from acehand_core.types import SIDES, Side
from retarget.pipeline import retarget_motion
from retarget.robot import Robot, load_robot
from retarget.targets import hand_targets

_REPORT_EVERY = 200


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """How to convert a bag.

    Attributes:
        bag: folder of a rosbag2, .mcap or .db3.
        job: the main job's settings; topics are chosen by ``job.reading.bag``.
        bag_output: where to write a bag with the original topics and ours, or None.
        episodes, episode_topic: see ``data.bags.episodes.cuts``.
        storage: of the written bag. mesh: with the hands' surfaces.
    """

    bag: Path
    job: JobSettings
    bag_output: Path | None = None
    episodes: str = "whole"
    episode_topic: str | None = None
    storage: Storage = "mcap"
    mesh: bool = True


@dataclass(frozen=True, slots=True)
class ConvertReport:
    """A finished conversion. ``topics`` says what was read and how much was written.

    ``lost_messages`` counts by topic what could not be used ("*": of an unknown topic).
    """

    job: JobReport
    bag: str | None
    topics: Mapping[str, Any]
    lost_messages: Mapping[str, int]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``acehand bag convert --json`` prints."""
        return {
            **self.job.to_json(),
            "bag": self.bag,
            "topics": dict(self.topics),
            "lost_messages": dict(self.lost_messages),
            "notes": list(self.notes),
        }


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What to turn into a bag: a dataset's folder, a HandMotion table or a joints file."""

    source: Path
    output: Path
    robot: str = "inspire"
    episodes: tuple[int, ...] | None = None
    storage: Storage = "mcap"
    mesh: bool = True
    overwrite: bool = False
    distro: str = LATEST


@dataclass(frozen=True, slots=True)
class WriteReport:
    """A written bag: messages by topic."""

    bag: str
    topics: Mapping[str, int]
    messages: int
    lost_messages: Mapping[str, int]

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``acehand bag write --json`` prints."""
        return asdict(self)


def convert_bag(
    options: ConvertOptions,
    progress: Progress = no_progress,
    cancel: threading.Event | None = None,
) -> ConvertReport:
    """Make a dataset of a bag and, if wanted, a bag with the original topics and ours.

    Raises:
        InputError: the bag, its topics or the episodes are not usable: nothing was written.
        OutputError: a place to write to is taken.
        Interrupted: stopped; its report is a ``ConvertReport`` of what was finished.
    """
    if options.bag_output is not None:
        check_free(options.bag_output, options.job.existing == "overwrite")
        _check_not_inside(options)
    progress = _stoppable(progress, cancel)
    try:
        progress("index the bag", 0, 1)
        index = index_bag(options.bag, options.job.reading.bag)
        progress("index the bag", 1, 1)
        return _convert(options, index, progress)
    except Interrupted:
        raise
    except KeyboardInterrupt as stop:
        nothing = JobReport(None, 0.0, 0.0, ())
        raise Interrupted(ConvertReport(nothing, None, {}, {}, ())) from stop
    finally:
        forget_indexes()


def _convert(options: ConvertOptions, index: BagIndex, progress: Progress) -> ConvertReport:
    clips = [Clip(c.start, c.stop, c.task) for c in
             cuts(index, options.episodes, options.episode_topic)]  # fmt: skip
    job = replace(options.job, split=_split(options, clips))

    def report(done: JobReport, written: Mapping[str, int] | None, passed: Losses) -> ConvertReport:
        lost = index.losses.by_topic | passed.by_topic
        return ConvertReport(
            job=done,
            bag=None if written is None else str(options.bag_output),
            topics={**index.topics, "written": dict(written or {})},
            lost_messages=dict(lost),
            notes=(*index.losses.sentences(), *passed.remarks),
        )

    try:
        done = run_job([options.bag], job, progress)
    except Interrupted as stop:
        raise Interrupted(report(stop.report, None, Losses())) from stop
    passed = Losses()
    release_memory()
    if options.bag_output is None or done.dataset is None or job.dry_run:
        return report(done, None, passed)
    try:
        written = _write_beside(options, options.bag_output, index, done, progress, passed)
    except KeyboardInterrupt as stop:
        raise Interrupted(report(done, None, passed)) from stop
    return report(done, written, passed)


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
    progress = _stoppable(progress, cancel)
    check_free(options.output, options.overwrite)
    try:
        with BagWriter(
            options.output, options.storage, options.overwrite, options.distro
        ) as writer:
            for demo in load_demonstrations(options.source, options.robot, options.episodes):
                _write_demonstration(writer, demo, options.mesh, {}, progress)
            if not writer.counts:
                raise InputError(f"{options.source}: there is no episode to write.")
    except KeyboardInterrupt as stop:
        raise Interrupted(WriteReport(str(options.output), {}, 0, {})) from stop
    return WriteReport(str(options.output), dict(writer.counts), sum(writer.counts.values()), {})


def load_demonstrations(
    path: Path, robot: str = "inspire", episodes: tuple[int, ...] | None = None
) -> Iterator[Demonstration]:
    """Yield the episodes of a dataset, a table of hands, or a bag with our joint states.

    Args:
        path: dataset's folder, HandMotion .parquet, joints .npz, or bag.
        robot: follows the hands of a table; a dataset names its own.
        episodes: numbers of the wanted episodes; None: all.

    Raises:
        InputError: it is none of these, or has no such episode.
    """
    if is_dataset(path):
        for episode in read_episodes(path, episodes):
            yield _of_episode(episode, load_robot(robot if episode.robot == "" else episode.robot))
    elif is_motion_file(path) and path.is_file():
        motion = read_motion_file(path, "both")
        trajectory = retarget_motion(motion, load_robot(robot))
        yield demonstration(motion, trajectory, load_robot(robot), str(path), "hand motion")
    elif path.exists() and is_bag(path):
        demo = read_bag_joints(path)
        known = load_robot(robot)
        yield replace(demo, descriptions=_descriptions(known), base_links=_base_links(known))
    else:
        raise InputError(
            f"{path}: give a LeRobot dataset, a HandMotion table (.parquet), a joints file (.npz) "
            "or a bag with joint states of ours."
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
        robot=robot.name,
        joint_names=trajectory.joint_names,
        command_joints=trajectory.command_joints,
        joints=trajectory.joints,
        commands=trajectory.commands,
        confidence=trajectory.confidence,
        T_camera_base=poses,
        T_camera_wrist=_wrists(motion),
        motion=motion,
        camera=motion.camera,
        T_world_camera=motion.T_world_camera,
        world_frame=None if motion.T_world_camera is None else "world",
        verdict=verdict.status if verdict else "pass",
        reasons=verdict.reasons if verdict else (),
        descriptions=_descriptions(robot),
        base_links=_base_links(robot),
    )


def _of_episode(episode: StoredEpisode, robot: Robot) -> Demonstration:
    motion = episode.motion
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
        robot=robot.name,
        joint_names=episode.joint_names,
        command_joints=episode.command_joints,
        joints=episode.joints,
        commands=episode.commands,
        confidence=episode.confidence,
        T_camera_base=poses if motion is not None else None,
        T_camera_wrist=None if motion is None else _wrists(motion),
        motion=motion,
        camera=None if motion is None else motion.camera,
        T_world_camera=world,
        world_frame=None if world is None else "world",
        verdict=episode.verdict,
        reasons=episode.reasons,
        descriptions=_descriptions(robot),
        base_links=_base_links(robot),
    )


def _wrists(motion: HandMotion) -> np.ndarray | None:
    """Return the palm frame of both hands in the camera frame, NaN where absent (T, 2, 4, 4)."""
    if not motion.placed:
        return None
    out = np.full((len(motion), 2, 4, 4), np.nan)
    for slot, side in enumerate(SIDES):
        targets = hand_targets(motion, side)
        if targets is not None and targets.T_camera_hand is not None:
            out[targets.active, slot] = targets.T_camera_hand[targets.active]
    return out


def _descriptions(robot: Robot) -> dict[Side, str]:
    return {side: hand.urdf_path.read_text("utf-8") for side, hand in robot.hands.items()}


def _base_links(robot: Robot) -> dict[Side, str]:
    """Return the link of each hand's URDF that no joint moves."""
    out: dict[Side, str] = {}
    for side, text in _descriptions(robot).items():
        root = ElementTree.fromstring(text)
        moved = {joint.find("child").get("link") for joint in root.iter("joint")
                 if joint.find("child") is not None}  # fmt: skip
        out[side] = next(
            link.get("name") for link in root.findall("link") if link.get("name") not in moved
        )
    return out


def _split(options: ConvertOptions, clips: list[Clip]) -> Callable[[Recording], list[Clip]] | None:
    """Return how the main job cuts the bag; None where it takes it whole."""
    reading = options.job.reading
    if options.episodes == "whole":
        return None
    if reading.start_s is not None or reading.duration_s is not None:
        raise InputError("--start and --duration do not go with --episodes; cut by a times.csv.")

    def split(recording: Recording) -> list[Clip]:
        return clips

    return split


def _write_beside(
    options: ConvertOptions,
    output: Path,
    index: BagIndex,
    done: JobReport,
    progress: Progress,
    losses: Losses,
) -> dict[str, int]:
    """Write the original topics as they are, and what the dataset's episodes of this bag say."""
    # A resumed run has episodes of earlier runs, too; one that appends must not repeat them.
    numbers = tuple(e.episode_index for e in done.episodes if e.episode_index is not None)
    wanted = None if done.skipped else numbers
    with Bag(options.bag) as bag:
        distro = bag.distro if bag.distro in DISTROS else LATEST
        overwrite = options.job.existing == "overwrite"
        topics = bag.topics
        with BagWriter(output, options.storage, overwrite, distro) as writer:
            for topic in topics.values():
                writer.add_topic(topic)
            total = max(sum(bag.counts.values()), 1)
            for count, message in enumerate(bag.messages(None, losses)):
                writer.write_raw(
                    message.topic, topics[message.topic].msgtype, message.log_ns, message.data
                )
                if count % _REPORT_EVERY == 0:
                    progress("copy the bag", min(count, total - 1), total)
            progress("copy the bag", total, total)
            renamed = _renamed(topics)
            if renamed:
                losses.remark(f"topics taken already, written as {', '.join(renamed.values())}")
            for episode in read_episodes(options.job.output, wanted, index.sha256):
                robot = load_robot(episode.robot or options.job.robot)
                demo = _on_clock(_of_episode(episode, robot), index)
                del episode
                release_memory()
                _write_demonstration(writer, demo, options.mesh, renamed, progress)
        return dict(writer.counts)


def _on_clock(demo: Demonstration, index: BagIndex) -> Demonstration:
    """Return the episode with the header stamps and receipt times of the frames it shows.

    A frame that the dataset shows twice is said once.
    """
    at = np.searchsorted(index.timestamps_ns, demo.stamps_ns)
    at = np.minimum(at, len(index.timestamps_ns) - 1)
    if not np.array_equal(index.timestamps_ns[at], demo.stamps_ns):
        raise InputError(f"{index.path}: has no frame at a time that the dataset names.")
    keep = np.concatenate([[True], np.diff(at) > 0])
    at = at[keep]
    if not keep.all():  # else nothing is copied: a long episode's hands are large
        demo = _frames_of(demo, np.flatnonzero(keep))
    return replace(
        demo,
        stamps_ns=index.header_ns[at],
        log_ns=index.log_ns[at],
        camera_frame=index.frame_id or OPTICAL,
        # Whoever named the camera's frame says where it is.
        publish_camera_tf=not index.frame_id,
        T_world_camera=None if index.world is not None else demo.T_world_camera,
    )


def _frames_of(demo: Demonstration, keep: np.ndarray) -> Demonstration:
    names = ("stamps_ns", "log_ns", "joints", "commands", "confidence", "T_camera_base",
             "T_camera_wrist", "T_world_camera")  # fmt: skip
    values = {name: getattr(demo, name) for name in names}
    taken = {name: None if value is None else value[keep] for name, value in values.items()}
    motion = demo.motion
    if motion is not None:
        motion = motion.at(keep, motion.timestamps_ns[keep], motion.fps)
    return replace(demo, motion=motion, **taken)


def _write_demonstration(
    writer: BagWriter,
    demo: Demonstration,
    mesh: bool,
    renamed: Mapping[str, str],
    progress: Progress,
) -> None:
    def put(message: PlainMessage) -> None:
        writer.write(message, renamed.get(message.topic))

    for message in latched_messages(demo):
        put(message)
    for slot in range(2):  # one at a time: over a long episode they are large
        put(joint_trajectory(demo, slot))
    for index in range(len(demo)):
        for message in frame_messages(demo, index, mesh):
            put(message)
        progress("write messages", index + 1, len(demo))
    for message in diagnostics_messages(demo):
        put(message)


def _renamed(topics: Mapping[str, Any]) -> dict[str, str]:
    """Return other names for topics of ours that the bag has already."""
    out = {}
    for name in TOPICS:
        if name not in topics:
            continue
        if name in SHARED and topics[name].msgtype == TOPICS[name].msgtype:
            continue
        new = f"/acehand{name}"
        while new in topics:
            new += "_"
        out[name] = new
    return out


def _stoppable(progress: Progress, cancel: threading.Event | None) -> Progress:
    def call(stage: str, done: int, total: int) -> None:
        if cancel is not None and cancel.is_set():
            raise KeyboardInterrupt
        progress(stage, done, total)

    return call


def _check_not_inside(options: ConvertOptions) -> None:
    assert options.bag_output is not None
    output, bag = options.bag_output.absolute(), options.bag.absolute()
    if output == bag or output.is_relative_to(bag):
        raise OutputError(f"{options.bag_output}: lies in the bag that is read; choose another.")
