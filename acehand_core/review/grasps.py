"""Simulation of the grasps of an episode of a dataset."""

from __future__ import annotations

from pathlib import Path

from acehand_core.errors import InputError
from acehand_core.lerobot.episode import DatasetReader
from acehand_core.motion import GraspReport
from acehand_core.recordings.objects import read_objects
from acehand_core.review.inspect import robot_of
from retarget.replay.grasps import find_grasps, in_frame, replay_grasps


def check_grasps(dataset: Path, number: int, objects: Path) -> tuple[GraspReport, ...]:
    """Repeat the grasps of an episode with its robot's commands, see ``retarget.replay.grasps``.

    Args:
        objects: file of tracked objects, on the clock of the episode's source.

    Raises:
        InputError: no such episode, robot, hands or grasp, or objects in another frame.
        SchemaError: a damaged file.
    """
    reader, track = DatasetReader(dataset), read_objects(objects)
    episode, robot = reader.read(number), robot_of(reader)
    columns, motion = episode.robot, episode.motion
    if robot is None or columns is None or motion is None:
        raise InputError(f"{dataset}: episode {number} lacks a known robot or its table of hands.")

    joints = in_frame(motion, columns.frame, track)
    grasps = find_grasps(track, episode.source_ns, episode.fps, joints)
    if not grasps:
        names = ", ".join(item.name for item in track.objects)
        raise InputError(f"{dataset}: episode {number}: no hand alone lifts one of {names}.")
    assert columns.T_frame_base is not None
    commands, bases = columns.commands, columns.T_frame_base
    return replay_grasps(robot, grasps, commands, bases, episode.fps, track.up)
