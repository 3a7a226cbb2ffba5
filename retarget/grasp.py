"""What a gripper should follow: how far the human's thumb and index finger are apart.

A gripper has no fingers to bring to places in the palm. It takes the opening as it is, and its base
stands where the two fingertips are: a frame that moves with the pinch instead of the palm.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from jaxtyping import Float
from scipy import ndimage

from acehand_core.geometry import frames
from acehand_core.hand.skeleton import WRIST, finger_keypoints
from acehand_core.motion import Calibration
from retarget.hand_spec import HandSpec
from retarget.kinematics import KinematicTree
from retarget.targets import HandTargets, bridged

THUMB_TIP, INDEX_TIP = (finger_keypoints(finger)[-1] for finger in ("thumb", "index"))
#: Standard deviation, in seconds, of the smoothing of the directions that the gripper keeps to.
STEADY_S = 0.1
#: A closed pinch has no direction; the thumb's side of the palm then counts as much as this gap.
CLOSED_M = 0.005


def opening_targets(targets: HandTargets, fps: float) -> HandTargets:
    """Return the targets of a gripper: fingertips at half the human opening to either side.

    Their frame takes the place of the palm frame: origin between the fingertips, y to the thumb on
    a right hand and away from it on a left one, z away from the wrist. Wide openings decide its
    direction more than narrow ones. Frames that are active but not followed get directions and
    places from their neighbours.
    """
    joints, active, followed = targets.joints_hand, targets.active, targets.followed
    thumb, index = joints[:, THUMB_TIP], joints[:, INDEX_TIP]
    sign = 1.0 if targets.side == "right" else -1.0
    gap = np.linalg.norm(thumb - index, axis=-1)
    closed = CLOSED_M * np.eye(3)
    across = bridged(sign * (thumb - index), followed)
    along = bridged((thumb + index) / 2 - joints[:, WRIST], followed)
    across = _steadied(across, active, fps) + closed[1]
    along = _steadied(along, active, fps) + closed[2]
    across /= np.linalg.norm(across, axis=-1, keepdims=True)
    along -= np.sum(along * across, axis=-1, keepdims=True) * across
    along /= np.linalg.norm(along, axis=-1, keepdims=True)
    turn = np.stack([np.cross(across, along), across, along], axis=-1)
    middle = np.where(active[:, None], bridged((thumb + index) / 2, followed), 0.0)
    opened = np.full(joints.shape, np.nan)
    opened[:, [THUMB_TIP, INDEX_TIP]] = 0.0
    opened[:, THUMB_TIP, 1], opened[:, INDEX_TIP, 1] = sign * gap / 2, -sign * gap / 2
    opened[~followed] = np.nan
    poses = targets.T_camera_hand
    if poses is not None:
        poses = np.where(active[:, None, None], poses @ frames.rigid(turn, middle), poses)
    return replace(targets, joints_hand=opened, T_camera_hand=poses)


def opening_calibration(hand: HandSpec, tree: KinematicTree, targets: HandTargets) -> Calibration:
    """Return the placement of the gripper: full size, its fingertips around the pinch.

    The residual is what the human opens beyond the gripper's stroke, per fingertip.
    """
    ends = np.stack([hand.command_lower, hand.command_upper])
    tips = tree.points(hand.expand(ends), hand.tip_names)
    stroke = np.linalg.norm(tips[:, 0] - tips[:, 1], axis=-1).max()
    human = targets.tips_of(hand.fingers)[targets.measured]
    beyond = np.maximum(np.linalg.norm(human[:, 0] - human[:, 1], axis=-1) - stroke, 0) / 2
    residual = float(np.sqrt(np.mean(beyond**2)))
    return Calibration(1.0, np.eye(3), tips[0].mean(axis=0), residual)


def _steadied(
    vectors: Float[np.ndarray, "T 3"], active: np.ndarray, fps: float
) -> Float[np.ndarray, "T 3"]:
    known = np.where(active[:, None], vectors, 0.0)
    return ndimage.gaussian_filter1d(known, STEADY_S * fps, axis=0, mode="nearest")
