"""What a good robot pose is: links and tips near their calibrated human counterparts.

Residuals come with their Jacobians by the driven joints; coupled joints are eliminated.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from acehand_core.geometry import rotations
from acehand_core.hand.skeleton import DISTALS, INTERMEDIATES, TIPS
from acehand_core.motion import Calibration
from retarget.kinematics import KinematicTree
from retarget.robot import HandSpec
from retarget.targets import HandTargets


@dataclass(frozen=True, slots=True)
class Weights:
    """Pull of each term on a frame. Positions count in units of ``length_m``, angles in radians.

    ``acceleration`` weighs squared rad/s^2, so that a motion is smoothed alike at any frame rate:
    the default passes a finger up to about 5 Hz. ``rest`` keeps joints that no target moves near
    the idle hand.
    """

    tip: float = 1.0
    link: float = 0.1
    rest: float = 0.02
    acceleration: float = 7.5e-5
    length_m: float = 0.01


class PoseObjective:
    """Distances of a hand's frames from their targets, for all T frames at once."""

    def __init__(
        self,
        hand: HandSpec,
        tree: KinematicTree,
        targets: HandTargets,
        calibration: Calibration,
        weights: Weights,
    ) -> None:
        rows = [i for i, k in enumerate(hand.target_keypoints) if _pull(k, weights) > 0]
        keypoints = [hand.target_keypoints[i] for i in rows]
        self._hand, self._tree, self._weights = hand, tree, weights
        self._frames = tree.frames([hand.target_frames[i] for i in rows])
        human = targets.joints_hand[:, keypoints]
        known = np.isfinite(human).all(-1)
        human = np.where(known[..., None], human, 0.0)
        self._goal = calibration.apply(human)
        self._turned = self._goal - calibration.translation
        pull = np.array([_pull(k, weights) for k in keypoints])
        self._scale = np.sqrt(pull * targets.weight[:, None] * known) / weights.length_m

    def __len__(self) -> int:
        return len(self._goal)

    def __call__(
        self, commands: Float[np.ndarray, "T C"], rows: slice = slice(None)
    ) -> tuple[Float[np.ndarray, "T M"], Float[np.ndarray, "T M C"]]:
        """Return residuals and their derivatives for a run of frames."""
        points, by_joint = self._tree.points_and_jacobian(self._hand.expand(commands), self._frames)
        scale = self._scale[rows][..., None]
        residual = ((points - self._goal[rows]) * scale).reshape(len(commands), -1)
        by_command = (by_joint * scale[..., None]) @ self._hand.coupling
        jacobian = by_command.reshape(*residual.shape, -1)
        idle = np.sqrt(self._weights.rest)
        residual = np.concatenate([residual, idle * (commands - self._hand.rest)], axis=1)
        eye = np.zeros((len(commands), commands.shape[1], commands.shape[1]))
        eye[:] = idle * np.eye(commands.shape[1])
        return residual, np.concatenate([jacobian, eye], axis=1)

    def by_similarity(self) -> Float[np.ndarray, "T M 7"]:
        """Return the residuals' derivatives by (rotation vector, translation, log scale)."""
        turned = self._turned
        columns = np.zeros((*turned.shape, 7))
        columns[..., :3] = rotations.skew(turned)
        columns[..., 3:6] = -np.eye(3)
        columns[..., 6] = -turned
        columns = (columns * self._scale[..., None, None]).reshape(len(turned), -1, 7)
        idle = np.zeros((len(turned), len(self._hand.rest), 7))
        return np.concatenate([columns, idle], axis=1)


def _pull(keypoint: int, weights: Weights) -> float:
    """Tips pull most; joints in between shape the finger; knuckles belong to the calibration."""
    if keypoint in TIPS:
        return weights.tip
    return weights.link if keypoint in (*INTERMEDIATES, *DISTALS) else 0.0
