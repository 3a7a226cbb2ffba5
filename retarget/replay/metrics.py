"""How well a robot hand tracks a human one.

Every method is scored after one similarity of the human tips (scale 0.9 to 1.3) fitted to its own
output over all frames. Flexion is compared without any fit: no frame can hide unbent fingers.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from acehand_core.geometry import frames
from acehand_core.hand.skeleton import finger_keypoints
from acehand_core.motion import FlexionReport
from retarget.robots.hand_spec import Commands, HandSpec
from retarget.robots.kinematics import KinematicTree
from retarget.targets import SCALE_RANGE, HandTargets, palm_rotation

#: Nearer tips are a closed pinch.
PINCH_ROBOT_M = 0.015
_SAMPLES = 4096

Tips = Float[np.ndarray, "T K 3"]  # thumb first
PerFinger = Float[np.ndarray, "T K"]


@dataclass(frozen=True, slots=True)
class CommonGround:
    """The similarity ``x_robot = scale R x_human + t`` fitted to a method's own output."""

    scale: float
    rotation: Float[np.ndarray, "3 3"]
    translation: Float[np.ndarray, "3"]

    @classmethod
    def fit(cls, human: Tips, robot: Tips) -> CommonGround:
        """Fit over frames and tips that are finite in both."""
        a, b = human.reshape(-1, 3), robot.reshape(-1, 3)
        ok = np.isfinite(a).all(1) & np.isfinite(b).all(1)
        return cls(*frames.similarity_fit(a[ok], b[ok], scale_range=SCALE_RANGE))

    def __call__(self, human: Float[np.ndarray, "*n 3"]) -> Float[np.ndarray, "*n 3"]:
        return self.scale * human @ self.rotation.T + self.translation


def flexion(
    knuckle: Float[np.ndarray, "*n 3"], tip: Float[np.ndarray, "*n 3"]
) -> Float[np.ndarray, "*n"]:
    """Return the flexion of fingers in degrees: the angle of knuckle to tip against +z.

    Points are in a human's palm or a robot's base frame. The angle lies in the plane of palm normal
    and finger direction, so spread is not flexion: 0 is straight, positive into the palm, -90 to
    270. It needs no joint in between, so hands of any number of joints compare.
    """
    line = tip - knuckle
    return np.mod(np.degrees(np.arctan2(line[..., 0], line[..., 2])) + 90, 360) - 90


def flexion_error(human: PerFinger, robot: PerFinger, reach: Float[np.ndarray, "2 K"]) -> PerFinger:
    """Return the difference of flexion in degrees, ``human`` clipped to the robot's ``reach``."""
    return np.abs(robot - np.clip(human, *reach))


def tip_error(human: Tips, robot: Tips, ground: CommonGround) -> PerFinger:
    """Return the distance of each robot tip from its human tip on common ground, metres."""
    return np.linalg.norm(robot - ground(human), axis=-1)


def bending_fingers(hand: HandSpec) -> tuple[str, ...]:
    """Return the fingers with knuckle and tip, without the thumb; none for a gripper."""
    if hand.tracks != "keypoints":
        return ()
    known = hand.target_keypoints
    return tuple(f for f in hand.fingers if f != "thumb" and finger_keypoints(f)[0] in known)


def robot_flexion(hand: HandSpec, tree: KinematicTree, commands: Commands) -> PerFinger:
    """Return the flexion of the robot's ``bending_fingers``, degrees."""
    fingers = bending_fingers(hand)
    frame_of = hand.frame_of_keypoint
    ends = [frame_of[k] for f in fingers for k in (finger_keypoints(f)[0], finger_keypoints(f)[-1])]
    points = tree.points(hand.expand(commands), ends).reshape(len(commands), -1, 2, 3)
    return flexion(points[:, :, 0], points[:, :, 1])


def human_flexion(hand: HandSpec, targets: HandTargets) -> PerFinger:
    """Return the flexion of the human fingers behind the robot's ``bending_fingers``, degrees."""
    joints = targets.joints_hand @ palm_rotation(targets)
    ends = np.array([finger_keypoints(finger) for finger in bending_fingers(hand)])
    return flexion(joints[:, ends[:, 0]], joints[:, ends[:, -1]])


@functools.lru_cache(maxsize=16)
def flexion_reach(hand: HandSpec, tree: KinematicTree) -> Float[np.ndarray, "2 K"]:
    """Return least and largest flexion of each finger over random commands and corners."""
    share = np.random.default_rng(0).random((_SAMPLES, len(hand.rest)))
    share[::2] = share[::2].round()
    bent = robot_flexion(hand, tree, hand.commands_at(share))
    return np.stack([bent.min(0), bent.max(0)])


def flexion_report(
    hand: HandSpec, tree: KinematicTree, targets: HandTargets, commands: Commands
) -> FlexionReport | None:
    """Compare robot and human over the frames that know a finger; None without such fingers."""
    fingers, seen = bending_fingers(hand), targets.usable
    if not fingers or not seen.any():
        return None
    human = human_flexion(hand, targets)[seen]
    known = np.isfinite(human)
    shown = known.any(0)
    if not shown.any():
        return None

    robot = np.where(known, robot_flexion(hand, tree, commands[seen]), np.nan)
    error = flexion_error(human, robot, flexion_reach(hand, tree))
    names = tuple(finger for finger, one in zip(fingers, shown, strict=True) if one)
    return FlexionReport(names, *(np.nanmean(v[:, shown], 0) for v in (human, robot, error)))
