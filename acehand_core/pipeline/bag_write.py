"""Writing a dataset, a table of hands or a joints file to a bag: ``acehand bag write``.

Each episode becomes a ``Demonstration``, which becomes messages.
"""

from __future__ import annotations

import contextlib
import threading
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from acehand_core.atomic import check_free
from acehand_core.errors import AcehandError, InputError, Interrupted, SchemaError
from acehand_core.lerobot.dataset import read_provenance
from acehand_core.lerobot.episode import DatasetReader, Episode, hands_as_episode
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
from acehand_core.recordings.hands_file import read_motion_file
from acehand_core.recordings.registry import HandsFile, LeRobotDataset, format_of
from acehand_core.recordings.selection import steady, ticks
from acehand_core.settings import like, setting
from acehand_core.types import SIDES, Progress, Side, TimestampsNs, no_progress
from retarget.replay.clip import in_camera
from retarget.retargeting import retarget_motion
from retarget.robots.robot import DEFAULT_ROBOT, Robot, load_robot, load_stored_robot
from retarget.solve.qp import course, lead_s
from retarget.targets import hand_targets

#: Between episodes of a written bag that would overlap.
PAUSE_NS = 2_000_000_000


def stored_demonstrations(
    dataset: Path, wanted: tuple[int, ...] | None, robot: str | None, models: Path | None
) -> Iterator[tuple[Demonstration, Robot, TimestampsNs]]:
    """Yield episodes of a dataset with their robot and the stamps of the pictures shown.

    Frames are ``1 / fps`` apart; the stamps may repeat. ``wanted`` None: all. Raises InputError for
    an unknown episode or a dataset without hands, SchemaError for one without a robot.
    """
    reader = DatasetReader(dataset)
    for number in reader.numbers if wanted is None else wanted:
        episode = reader.read(number)
        if episode.robot is None:
            raise SchemaError(f"{dataset}: has no robot's columns, so acehand did not write it.")
        name = f"{dataset.name}, episode {number}"
        label = episode.robot_label or str(episode.origin.get("robot") or "")
        known = load_stored_robot(label, robot, models, name)
        times = episode.source_ns if episode.motion is None else episode.motion.timestamps_ns
        stamps_ns = ticks(int(times[0]), len(episode), episode.fps)
        demo = _demonstration(episode, known, stamps_ns, name, episode.task)
        yield demo, known, episode.source_ns


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
        episode = hands_as_episode(path, motion, retarget_motion(motion, known), {})
        yield _demonstration(episode, known, motion.timestamps_ns, path.name, TASK), known
    else:
        raise InputError(
            f"{path}: give a LeRobot dataset, a HandMotion table (.parquet) or a joints file "
            "(.npz). Play a bag with ros2 bag play."
        )


def _demonstration(
    episode: Episode, robot: Robot, stamps_ns: TimestampsNs, name: str, task: str
) -> Demonstration:
    """Return an episode at other times; it has columns of the robot."""
    columns, motion = episode.robot, episode.motion
    assert columns is not None
    entries: dict[str, Any] = {}
    if motion is not None:
        entries = {
            "T_camera_base": in_camera(episode),
            "T_camera_wrist": _wrists(motion),
            "camera": motion.camera,
            "T_world_camera": motion.T_world_camera,
            "world_frame": None if motion.T_world_camera is None else "world",
        }
        if named := motion.provenance.settings.get("camera_frame", ""):
            # Whoever named the pictures' frame publishes its pose too.
            entries |= {"camera_frame": named, "publish_camera_tf": False}

    known = episode.confidence > 0 if motion is None else motion.known
    descriptions = {side: hand.urdf_path.read_text("utf-8") for side, hand in robot.hands.items()}
    return Demonstration(
        name=name,
        task=task,
        stamps_ns=stamps_ns,
        log_ns=stamps_ns,
        fps=episode.fps,
        robot=robot.name,
        joint_names=columns.joint_names,
        command_joints=columns.command_joints,
        joints=columns.joints,
        commands=columns.commands,
        confidence=episode.confidence,
        courses=courses(robot, columns.commands, known, episode.fps),
        motion=motion,
        verdict=str(episode.report.get("verdict", "pass")),
        reasons=tuple(episode.report.get("reasons", ())),
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
    by_side, begin = {}, 1 / fps
    for slot, side in enumerate(SIDES):
        rows = np.flatnonzero(known[:, slot])
        if len(rows):
            hand, seen = robot.hand(side), commands[rows[0] : rows[-1] + 1, slot].astype(float)
            by_side[side] = course(hand, seen, fps, rows[0] / fps)
            lead = lead_s(hand, by_side[side].positions[0], (start or {}).get(side))
            begin = max(begin, lead - rows[0] / fps)
    return {side: replace(one, seconds=one.seconds + begin) for side, one in by_side.items()}


def seen_by(source: Path, episode: int = 0) -> tuple[str, str | None]:
    """Return the TF frame of a source's hands and the topic of its pictures, or the defaults."""
    record: Mapping[str, Any] = {}
    with contextlib.suppress(AcehandError, OSError, LookupError):
        if (kind := format_of(source)) is LeRobotDataset:
            record = read_provenance(source)[episode] or {}
        elif kind is HandsFile and source.is_file():
            record = asdict(read_motion_file(source, "both").provenance)
    settings = record.get("settings", {})
    return settings.get("camera_frame") or CAMERA_LINK, settings.get("image_topic")


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
        "robot that follows a table of hands",
        metavar="NAME|FILE",
        default_text="inspire; of a dataset its robot",
    )
    robot_model: Path | None = like(JobSettings, "robot_model", None)
    episodes: tuple[int, ...] = setting((), "only this episode", flag="episode", repeat=True)
    distro: str = setting(
        LATEST,
        "ROS distribution of the message definitions, humble or newer",
        metavar="NAME",
        default_text="newest",
    )
    overwrite: bool = setting(False, "replace existing output")
    storage: Storage = setting("mcap", "storage of the written bag")


@dataclass(frozen=True, slots=True)
class WriteReport:
    """A written bag, with messages by topic; ``notes`` name episodes with shifted stamps."""

    bag: str
    topics: Mapping[str, int]
    messages: int
    lost_messages: Mapping[str, int]
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``acehand bag write`` prints as JSON."""
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
            demonstrations = load_demonstrations(
                options.source, options.robot, options.episodes or None, options.robot_model
            )
            end_ns, notes = None, []
            for demo, _ in demonstrations:
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
