"""The default hand: licence-free, authored here, MANO's tree and rest axes.

Sixteen joints, 21 keypoints, ten betas in standard deviations of published anthropometry, and a
closed skinned mesh. The origin is the knuckle of the middle finger, so the rest wrist J0 is about
95 mm away from it and moves with betas.
"""

from __future__ import annotations

import functools

import numpy as np

from acehand_core.hand import anthropometry
from acehand_core.hand.articulation import ANATOMICAL_TO_MODEL, MIRROR, pose_keypoints
from acehand_core.types import Betas, GlobalOrient, HandPose, Keypoints, Side


@functools.cache
def _template(side: Side) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean rest keypoints (21, 3) and their change per beta (10, 21, 3), metres."""

    def place(proportions: anthropometry.Proportions) -> np.ndarray:
        points = anthropometry.rest_keypoints(proportions) @ ANATOMICAL_TO_MODEL.T * 1e-3
        points = points - points[9]
        return points * MIRROR if side == "left" else points

    gradients = np.stack([place(g) for g in anthropometry.proportion_gradients()])
    return place(anthropometry.Proportions()), gradients


class CapsuleHand:
    """The default ``HandModel``, named "acehand"."""

    name = "acehand"

    def rest_keypoints(self, side: Side, betas: Betas) -> Keypoints:
        """Return the 21 keypoints of the flat hand; linear in betas."""
        mean, gradients = _template(side)
        return mean + np.tensordot(betas, gradients, axes=1)

    def hand_length(self, betas: Betas) -> float:
        """Return wrist to middle fingertip of the flat hand in metres (187 mm at zero betas)."""
        rest = self.rest_keypoints("right", betas)
        return float(np.linalg.norm(rest[12] - rest[0]))

    def joints(
        self, side: Side, global_orient: GlobalOrient, hand_pose: HandPose, betas: Betas
    ) -> Keypoints:
        """Return the 21 posed keypoints in metres (see ``HandModel.joints``)."""
        points, _ = pose_keypoints(global_orient, hand_pose, self.rest_keypoints(side, betas))
        return points
