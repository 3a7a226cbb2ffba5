"""Hand model parameters from keypoints, and conversion between hand models.

Two models share no parameters, only the 21 keypoints: a conversion poses one model, fits the other
and reports the remaining distance.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from acehand_core.geometry import frames
from acehand_core.hand import shape
from acehand_core.hand.landmark_fit import spread_rows
from acehand_core.hand.pose_fit import Poses, acehand_poses, free_poses
from acehand_core.hand.shape import PALM, HandModel
from acehand_core.processes import one_blas_thread
from acehand_core.types import RigidTransform, Side

_SHAPE_ROWS = 100  # frames that the shape is refined on


@dataclass(frozen=True, slots=True)
class HandFit:
    """``model.joints(side, global_orient, hand_pose, betas) + translation`` for N rows.

    ``error_m`` is the mean distance from the observed joints, in metres. Rows with fewer than three
    observed palm joints are NaN throughout.
    """

    global_orient: Float[np.ndarray, "N 3 3"]
    hand_pose: Float[np.ndarray, "N 15 3 3"]
    betas: Float[np.ndarray, "10"]
    translation: Float[np.ndarray, "N 3"]
    error_m: Float[np.ndarray, "N"]


@one_blas_thread()
def fit_to_joints(
    model: HandModel,
    side: Side,
    joints: Float[np.ndarray, "N 21 3"],
    betas: Float[np.ndarray, "10"] | None = None,
    weights: Float[np.ndarray, "N 21"] | None = None,
    near: Float[np.ndarray, "N 15 3 3"] | None = None,
) -> HandFit:
    """Fit a hand model to keypoints, with one shape for all rows.

    The default hand ("acehand") stays within its anatomical limits. Other models have 15 free
    rotations with a weak prior, since joints do not show twist: ``near``, else the smallest turns
    that lay their bones along the observed ones.

    Args:
        joints: metres, any frame; NaN where not observed.
        betas: the shape; default fitted to the lengths between joints.
        weights: weight of each joint, default 1.
        near: finger rotations to start from and stay near; ignored for "acehand".
    """
    seen = np.isfinite(joints).all(axis=-1)
    weight = np.where(seen, 1.0 if weights is None else weights, 0.0)
    usable = (weight[:, PALM] > 0).sum(axis=1) >= 3
    target = np.where(seen[..., None], joints, 0.0)[usable]
    weight = weight[usable]
    mean, gradients = shape.rest_shape(model, side)
    start = None if near is None else near[usable]

    def fit_pose(betas: np.ndarray, rows: slice | np.ndarray) -> Poses:
        rest = shape.shaped(mean, gradients, betas)
        if model.name == "acehand":
            return acehand_poses(side, rest, target[rows], weight[rows])
        prior = None if start is None else start[rows]
        return free_poses(model, side, rest, betas, target[rows], weight[rows], prior)

    if betas is None:
        betas = shape.shape_from_lengths(mean, gradients, target, weight)
        some = spread_rows(len(target), _SHAPE_ROWS)
        for _ in range(2):
            pose, seen_at = fit_pose(betas, some), (target[some], weight[some])
            placed = pose.global_orient, pose.hand_pose, pose.wrist
            betas = shape.refine_shape(mean, gradients, betas, *placed, *seen_at)
    pose = fit_pose(betas, slice(None))

    # Put the usable rows back among the others; the error is that of the model itself.
    every = np.broadcast_to(betas, (len(weight), 10))
    posed = model.joints(side, pose.global_orient, pose.hand_pose, every).astype(float)
    translation = pose.wrist - posed[:, 0]
    distance = np.linalg.norm(posed + translation[:, None] - joints[usable], axis=-1)
    observed = weight > 0
    error = np.where(observed, distance, 0).sum(1) / np.maximum(observed.sum(1), 1)

    def spread(value: np.ndarray) -> np.ndarray:
        rows = np.full((len(usable), *value.shape[1:]), np.nan)
        rows[usable] = value
        return rows

    turns = spread(pose.global_orient), spread(pose.hand_pose)
    return HandFit(*turns, betas, spread(translation), spread(error))


def convert(
    source: HandModel,
    target: HandModel,
    side: Side,
    global_orient: Float[np.ndarray, "N 3 3"],
    hand_pose: Float[np.ndarray, "N 15 3 3"],
    betas: Float[np.ndarray, "10"],
    translation: Float[np.ndarray, "N 3"],
) -> HandFit:
    """Return the target model's parameters for a motion of the source model."""
    betas = np.broadcast_to(betas, (len(global_orient), 10))
    joints = source.joints(side, global_orient, hand_pose, betas) + translation[:, None]
    return fit_to_joints(target, side, joints.astype(float), near=hand_pose)


def change_frame(
    T_new_old: RigidTransform,
    global_orient: Float[np.ndarray, "*batch 3 3"],
    translation: Float[np.ndarray, "*batch 3"],
    rest_wrist: Float[np.ndarray, "*batch 3"],
) -> tuple[Float[np.ndarray, "*batch 3 3"], Float[np.ndarray, "*batch 3"]]:
    """Return a hand's orientation and translation in another frame.

    The hand turns about its rest wrist ``J0(betas)``: the wrist ``J0 + translation`` transforms as
    a point, the translation alone does not. Betas and finger rotations stay.
    """
    wrist = frames.apply(T_new_old, translation + rest_wrist)
    return T_new_old[..., :3, :3] @ global_orient, wrist - rest_wrist
