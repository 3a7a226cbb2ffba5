"""Whether the robot's fingers are bent as the human's: what no fitted frame can hide."""

from __future__ import annotations

import functools

import numpy as np
from jaxtyping import Float

from acehand_core.hand.skeleton import finger_keypoints
from acehand_core.motion import FlexionReport
from retarget import metrics
from retarget.hand_spec import HandSpec
from retarget.kinematics import KinematicTree
from retarget.limits import Commands
from retarget.targets import HandTargets, palm_rotation

_SAMPLES = 4096


def bending_fingers(hand: HandSpec) -> tuple[str, ...]:
    """Return the fingers of a hand that have a knuckle and a tip to compare, without the thumb.

    There are none on a gripper: its jaws follow an opening.
    """
    if hand.follows != "keypoints":
        return ()
    known = hand.target_keypoints
    return tuple(f for f in hand.fingers if f != "thumb" and finger_keypoints(f)[0] in known)


def robot_flexion(
    hand: HandSpec, tree: KinematicTree, commands: Commands
) -> Float[np.ndarray, "T K"]:
    """Return the flexion of the robot's ``bending_fingers``, degrees; see ``metrics.flexion``."""
    fingers = bending_fingers(hand)
    frame_of = dict(zip(hand.target_keypoints, hand.target_frames, strict=True))
    ends = [frame_of[k] for f in fingers for k in (finger_keypoints(f)[0], finger_keypoints(f)[-1])]
    points = tree.points(hand.expand(commands), ends).reshape(len(commands), -1, 2, 3)
    return metrics.flexion(points[:, :, 0], points[:, :, 1])


def human_flexion(hand: HandSpec, targets: HandTargets) -> Float[np.ndarray, "T K"]:
    """Return the flexion of the human fingers that the robot's ``bending_fingers`` follow."""
    joints = targets.joints_hand @ palm_rotation(targets)
    ends = np.array([finger_keypoints(finger) for finger in bending_fingers(hand)])
    return metrics.flexion(joints[:, ends[:, 0]], joints[:, ends[:, -1]])


@functools.lru_cache(maxsize=16)
def flexion_reach(hand: HandSpec, tree: KinematicTree) -> Float[np.ndarray, "2 K"]:
    """Return the least and the largest flexion of each finger over random commands and corners."""
    share = np.random.default_rng(0).random((_SAMPLES, len(hand.rest)))
    share[::2] = share[::2].round()
    commands = hand.command_lower + share * (hand.command_upper - hand.command_lower)
    bent = robot_flexion(hand, tree, commands)
    return np.stack([bent.min(0), bent.max(0)])


def flexion_report(
    hand: HandSpec, tree: KinematicTree, targets: HandTargets, commands: Commands
) -> FlexionReport | None:
    """Compare robot and human over the frames that are followed; None for grippers."""
    fingers, seen = bending_fingers(hand), targets.followed
    if not fingers or not seen.any():
        return None
    human = human_flexion(hand, targets)[seen]
    robot = robot_flexion(hand, tree, commands[seen])
    error = metrics.flexion_error(human, robot, flexion_reach(hand, tree))
    return FlexionReport(fingers, human.mean(0), robot.mean(0), error.mean(0))
