"""One calibration per recording and subject that carries the human hand onto the robot's.

Human and robot hands differ in size and in where their fingers start. Without a calibration a
solver spends its freedom on that constant difference. What is known beforehand is the robot's own
calibration, for the mean hand (``robot_calibration.py``); bones and palm make it the subject's.
From there it is fitted to frames spread over the recording, as far as these show different poses: a
grip that is held fits a turned or shifted palm as well as bent fingers.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from jaxtyping import Float

from acehand_core.hand.skeleton import KNUCKLES, PALM, finger_keypoints
from acehand_core.motion import Calibration
from retarget.robots.hand_spec import HandSpec
from retarget.robots.kinematics import KinematicTree
from retarget.solve.calibration_fit import LENGTH_RANGE, SCALE_RANGE, Spread, fit
from retarget.solve.costs import Weights
from retarget.solve.robot_calibration import canonical_joints, robot_calibration
from retarget.solve.targets import HandTargets, palm_rotation

__all__ = ["LENGTH_RANGE", "SCALE_RANGE", "calibrate", "for_subject", "moved_by"]

MAX_FRAMES = 160
#: How firmly a recording in which the fingertips move by ``MOVING_M`` or more is held to its start.
#: Where they move less all of it shrinks with the third power, down to ``LEAST``: with 10 mm of
#: motion a turn of 0.15 rad or a shift of 15 mm then costs as much as fingertips 10 mm off.
SPREAD = Spread(turn=4.0, place=0.4, size=3.0, offset=0.005, length=0.05)
MOVING_M = 0.03
LEAST = 0.0075


def calibrate(
    hand: HandSpec, tree: KinematicTree, targets: HandTargets, weights: Weights
) -> Calibration:
    """Fit scale, rotation and translation of one hand over the recording, and its fingers.

    Frames count by their weight; those without any, and filled ones, are left out.
    """
    seen = np.flatnonzero(targets.measured)
    chosen = seen[np.unique(np.linspace(0, len(seen) - 1, MAX_FRAMES).round().astype(int))]
    joints, weight = targets.joints_hand[chosen], targets.weight[chosen]
    sample = HandTargets(targets.side, joints, weight, np.ones(len(chosen), bool), None)
    start = for_subject(robot_calibration(hand, tree), sample)
    share = np.clip((moved_by(sample) / MOVING_M) ** 3, LEAST, 1.0)
    return fit(hand, tree, sample, weights, start, SPREAD * float(share))


def for_subject(robot: Calibration, targets: HandTargets) -> Calibration:
    """Return a robot's calibration for another hand than the mean one.

    The subject's palm takes the place of the mean palm, its knuckles that of the mean knuckles, and
    its fingers are scaled to their length.
    """
    mean = canonical_joints(targets.side)
    joints = targets.joints_hand
    rotation = robot.rotation @ palm_rotation(targets).T
    scale = float(np.clip(robot.scale * _size_ratio(mean, joints), *SCALE_RANGE))
    wrist_to_knuckles = [np.median(j[:, KNUCKLES[1:]], axis=0) for j in (mean, joints)]
    both = np.isfinite(wrist_to_knuckles).all((0, 2))
    place = robot.translation
    if both.any():
        a, b = (points[both].mean(0) for points in wrist_to_knuckles)
        place = place + robot.scale * robot.rotation @ a - scale * rotation @ b
    return replace(robot, scale=scale, rotation=rotation, translation=place)


def moved_by(targets: HandTargets) -> float:
    """Return how far fingertips are from their mean place in the palm, rms in metres.

    It is that of the finger in the middle of the five: one that moves alone says nothing of the
    palm under the others.
    """
    tips = targets.tips
    away = np.sum((tips - np.average(tips, axis=0, weights=targets.weight)) ** 2, axis=-1)
    return float(np.nanmedian(np.sqrt(np.average(away, axis=0, weights=targets.weight))))


def _size_ratio(mean: Float[np.ndarray, "P 21 3"], joints: Float[np.ndarray, "N 21 3"]) -> float:
    """Return by how much the mean hand's fingers are longer, or its palm without those joints."""
    bones = [
        pair
        for finger in ("index", "middle", "ring", "pinky")
        for pair in zip(finger_keypoints(finger), finger_keypoints(finger)[1:], strict=False)
    ]
    for pairs in (bones, [(0, k) for k in PALM[1:]]):
        ends = np.array(pairs).T
        a, b = (
            np.median(np.linalg.norm(j[:, ends[1]] - j[:, ends[0]], axis=-1), axis=0)
            for j in (mean, joints)
        )
        both = np.isfinite(a) & np.isfinite(b)
        if both.any() and b[both].sum() > 0:
            return float(a[both].sum() / b[both].sum())

    return 1.0
