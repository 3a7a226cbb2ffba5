"""Hands made up for tests of the evaluation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from acehand_core.hand.capsule import CapsuleHand


@dataclass(frozen=True)
class SmallHand:
    """The default hand with a mesh of its own 21 joints: boxes a test can work out, and quickly."""

    name: str = "acehand"

    def joints(self, side, global_orient, hand_pose, betas):
        return CapsuleHand().joints(side, global_orient, hand_pose, betas)

    def vertices(self, side, global_orient, hand_pose, betas):
        return self.joints(side, global_orient, hand_pose, betas)

    def faces(self, side):
        return CapsuleHand().faces(side)


def still(frames, left=(-0.1, 0.0, 0.6), right=(0.1, 0.0, 0.6)) -> np.ndarray:
    """Translations of hands that stay; None for a hand that is not there."""
    gone = (np.nan,) * 3
    return np.tile([left or gone, right or gone], (frames, 1, 1)).astype(float)
