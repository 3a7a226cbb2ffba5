"""The hand models that predictions and ground truth are posed with."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from acehand_core.errors import MissingDependencyError
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.hand.mano import ManoHand
from acehand_core.hand.shape import HandModel
from acehand_core.motion import HandModelName
from acehand_core.types import SIDES, HandPose, Keypoints, Side


class HandLibrary:
    """Hand models by name, loaded when first asked for.

    Args:
        mano: folder or file of the user's MANO, else $ACEHAND_MANO counts.
        models: models that are there already, by (name, left_shapedirs_fixed).
    """

    def __init__(
        self,
        mano: Path | None = None,
        models: dict[tuple[str, bool], HandModel] | None = None,
    ) -> None:
        self._mano = mano
        self._models: dict[tuple[str, bool], HandModel] = dict(models or {})

    def get(self, name: HandModelName, left_shapedirs_fixed: bool = False) -> HandModel:
        """Return a model. Raises MissingDependencyError for MANO where it is not configured."""
        if name == "acehand":
            left_shapedirs_fixed = False
        key = (name, left_shapedirs_fixed)
        if key not in self._models:
            if name == "acehand":
                self._models[key] = CapsuleHand()
            elif name == "mano":
                from acehand_core.hand.mano import load_mano

                self._models[key] = load_mano(self._mano, left_shapedirs_fixed, "float64")
            else:
                raise ValueError("joints alone have no hand model")
        return self._models[key]

    def find(self, name: HandModelName, left_shapedirs_fixed: bool = False) -> HandModel | None:
        """Return a model, or None for joints alone and for a MANO that is not configured."""
        try:
            return None if name == "none" else self.get(name, left_shapedirs_fixed)
        except MissingDependencyError:
            return None


def rest_pose(model: HandModel, side: Side) -> HandPose:
    """Return zero articulation as the model defines it: MANO's mean pose, else a flat hand."""
    if isinstance(model, ManoHand):
        return model.absolute_pose(side, np.zeros(45), flat_hand_mean=False)
    return np.broadcast_to(np.eye(3), (15, 3, 3)).copy()


def canonical_joints(model: HandModel, side: Side) -> Keypoints:
    """Return the hand that a miss is charged with: (21, 3) metres, at the camera's origin.

    Identity orientation, zero articulation, mean shape, zero translation (paper, "Coverage
    penalty").
    """
    return model.joints(side, np.eye(3), rest_pose(model, side), np.zeros(10)).astype(float)


def both_canonical(model: HandModel) -> Keypoints:
    """Return the canonical hands of both slots, (2, 21, 3)."""
    return np.stack([canonical_joints(model, side) for side in SIDES])
