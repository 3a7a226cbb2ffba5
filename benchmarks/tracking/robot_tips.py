"""Fingertips of a robot that follows tracked hands, against one that follows the true hands.

Both are retargeted alike, each with the calibration that its own hands give. A fingertip is off by
its distance, in the frame of the robot's base, from where the true hand's calibrated fingertip is:
what the robot cannot do counts in both, ``excess`` is what the tracker adds. Counted are the hands
in sight that the robot follows in both, doubtful and filled ones among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from acehand_core.motion import HandMotion
from acehand_core.types import SIDES, PerHand, PerHandFlag
from benchmarks.tracking.score import Truth
from retarget.retargeting import retarget_motion
from retarget.robots.kinematics import KinematicTree
from retarget.robots.robot import Robot
from retarget.solve.methods import robot_targets
from retarget.targets import calibrated


@dataclass(frozen=True, slots=True)
class RobotTips:
    """Mean distance of the fingertips of each robot hand from their goals, mm.

    NaN where either is not followed; ``in_sight`` are all hands that could be.
    """

    by_truth: PerHand
    by_tracker: PerHand
    in_sight: PerHandFlag

    @property
    def excess(self) -> PerHand:
        return self.by_tracker - self.by_truth

    @classmethod
    def of(cls, motion: HandMotion, truth: Truth, robot: Robot) -> RobotTips:
        """Retarget both motions of a clip."""
        runs = retarget_motion(truth.motion, robot), retarget_motion(motion, robot)
        in_sight = truth.present & truth.seen.any(-1) & runs[0].active
        off = np.full((2, *in_sight.shape), np.nan)
        for slot, side in enumerate(SIDES):
            targets, found = robot_targets(truth.motion, robot, side), runs[0].calibration[slot]
            if targets is None or found is None:
                continue
            hand = robot.hand(side)
            goals = replace(targets, joints_hand=calibrated(targets.joints_hand, found))
            for distances, run in zip(off, runs, strict=True):
                tips = KinematicTree.of(hand).points(run.joints[:, slot], hand.tip_names)
                error = np.linalg.norm(tips - goals.tips_of(hand.fingers), axis=-1)
                distances[:, slot] = 1e3 * error.mean(-1)
        off[:, ~(in_sight & runs[1].active)] = np.nan
        return cls(off[0], off[1], in_sight)


def tip_measures(clips: Sequence[RobotTips]) -> dict[str, Any]:
    """Return mean distances over all clips, and the share of hands in sight that are followed."""
    by_truth, by_tracker, in_sight = (
        np.concatenate([getattr(clip, name).ravel() for clip in clips])
        for name in ("by_truth", "by_tracker", "in_sight")
    )
    followed = np.isfinite(by_tracker)
    if not followed.any():
        return {"tips_mm": None, "true_tips_mm": None, "excess_tips_mm": None, "followed": 0.0}
    tips, true = float(by_tracker[followed].mean()), float(by_truth[followed].mean())
    share = float(followed.sum() / in_sight.sum())
    return {"tips_mm": tips, "true_tips_mm": true, "excess_tips_mm": tips - true, "followed": share}
