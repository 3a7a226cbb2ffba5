"""The interface of hand models, and one shape for many frames from pose-invariant distances."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from acehand_core.hand.articulation import pose_keypoints
from acehand_core.hand.skeleton import BONES, KNUCKLES, WRIST
from acehand_core.types import Betas, Faces, GlobalOrient, HandPose, Keypoints, Side, Vertices

Shape = Float[np.ndarray, "10"]
RestKeypoints = Float[np.ndarray, "21 3"]
RestGradients = Float[np.ndarray, "10 21 3"]

#: Keypoints that move with the wrist's rotation alone.
PALM = (WRIST, *KNUCKLES)
#: Pairs of keypoints whose distance no pose changes: bones and the palm.
RIGID_PAIRS = np.array(sorted({*BONES, *((a, b) for a in PALM for b in PALM if a < b)}))
#: Length error in metres equal to one standard deviation of a beta: a weak prior, as two models
#: differ by millimetres.
_BETA_PULL = 1e-3


@runtime_checkable
class HandModel(Protocol):
    """A parametric hand: rotations and shape in, joints and mesh out.

    ``global_orient`` turns the hand about its rest wrist J0(betas), which is not the origin;
    ``hand_pose`` holds the rotation of each finger joint relative to its parent in MANO's order,
    mean pose included. No translation is added.
    """

    @property
    def name(self) -> str:
        """ "mano" or "acehand"; parameters of two models must never be mixed."""
        ...

    def joints(
        self, side: Side, global_orient: GlobalOrient, hand_pose: HandPose, betas: Betas
    ) -> Keypoints:
        """Return the 21 keypoints in metres; leading axes broadcast."""
        ...

    def vertices(
        self, side: Side, global_orient: GlobalOrient, hand_pose: HandPose, betas: Betas
    ) -> Vertices:
        """Return the skinned mesh in metres; all poses share one shape, betas (10,)."""
        ...

    def faces(self, side: Side) -> Faces:
        """Return the triangles, counter-clockwise seen from outside."""
        ...


def rest_shape(model: HandModel, side: Side) -> tuple[RestKeypoints, RestGradients]:
    """Return the keypoints of the flat hand and their constant gradients by betas."""
    betas = np.concatenate([np.zeros((1, 10)), np.eye(10)])
    flat = np.broadcast_to(np.eye(3), (11, 15, 3, 3))
    rest = model.joints(side, flat[:, 0], flat, betas).astype(float)
    return rest[0], rest[1:] - rest[0]


def shaped(mean: RestKeypoints, gradients: RestGradients, betas: Shape) -> RestKeypoints:
    """Return the flat hand's keypoints at ``betas``."""
    return mean + np.tensordot(betas, gradients, axes=1)


def shape_from_lengths(
    mean: RestKeypoints,
    gradients: RestGradients,
    joints: Float[np.ndarray, "N 21 3"],
    weights: Float[np.ndarray, "N 21"],
) -> Shape:
    """Return betas that fit the median observed distances of rigid pairs; zeros without any."""
    first, second = RIGID_PAIRS.T
    seen = (weights[:, first] > 0) & (weights[:, second] > 0)
    known = seen.any(axis=0)
    if not known.any():
        return np.zeros(10)
    first, second = first[known], second[known]
    lengths = np.linalg.norm(joints[:, first] - joints[:, second], axis=-1)
    observed = np.nanmedian(np.where(seen[:, known], lengths, np.nan), axis=0)

    betas = np.zeros(10)
    for _ in range(10):
        rest = shaped(mean, gradients, betas)
        bone = rest[first] - rest[second]
        length = np.linalg.norm(bone, axis=-1)
        jacobian = np.einsum("ki,bki->kb", bone, gradients[:, first] - gradients[:, second])
        betas = betas + _step(jacobian / length[:, None], observed - length, betas)

    return betas


def refine_shape(
    mean: RestKeypoints,
    gradients: RestGradients,
    betas: Shape,
    global_orient: Float[np.ndarray, "N 3 3"],
    hand_pose: Float[np.ndarray, "N 15 3 3"],
    wrist: Float[np.ndarray, "N 3"],
    joints: Float[np.ndarray, "N 21 3"],
    weights: Float[np.ndarray, "N 21"],
) -> Shape:
    """Return betas that fit the joints under given rotations: linear least squares."""

    def from_wrist(rest: np.ndarray) -> np.ndarray:
        points, _ = pose_keypoints(
            global_orient, hand_pose, np.broadcast_to(rest, (len(joints), 21, 3))
        )
        return points - points[:, :1]

    root = np.sqrt(weights / max(len(joints), 1))[..., None]
    residual = root * (joints - wrist[:, None] - from_wrist(shaped(mean, gradients, betas)))
    jacobian = np.stack([root * from_wrist(gradient) for gradient in gradients], axis=-1)
    return betas + _step(jacobian.reshape(-1, 10), residual.ravel(), betas)


def _step(jacobian: np.ndarray, residual: np.ndarray, betas: np.ndarray) -> np.ndarray:
    """Return the least-squares step with a prior that pulls betas towards zero."""
    hessian = jacobian.T @ jacobian + _BETA_PULL**2 * np.eye(10)
    return np.linalg.solve(hessian, jacobian.T @ residual - _BETA_PULL**2 * betas)
