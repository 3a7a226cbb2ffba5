"""Differentiable hand models in torch: the 21 posed joints of both hands.

Only the 16 joints of the tree and the five fingertips are posed. Meshes come from the numpy models
(``mano``, ``capsule``).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float

from acehand_core.geometry import rotations_torch
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.hand.mano import TIP_VERTICES, ManoHand
from acehand_core.hand.skeleton import KEYPOINT_TO_TREE, TIPS, TREE_PARENTS, TREE_TO_KEYPOINT
from acehand_core.types import SIDES

_FINGERTIP_JOINTS = tuple(KEYPOINT_TO_TREE[tip - 1] for tip in TIPS)


@dataclass(frozen=True, slots=True)
class TorchHands:
    """Both hands of one model; the first axis of every array is the slot, 0 left, 1 right.

    The tree's joints are linear in the betas. A tip is a skin point: linear in betas and finger
    rotations, then skinned. ``mean`` is added to the rotation vectors of the fingers.
    """

    name: Literal["mano", "acehand"]
    tree: Float[torch.Tensor, "2 16 3"]
    tree_shape: Float[torch.Tensor, "2 16 3 10"]
    tips: Float[torch.Tensor, "2 5 3"]
    tips_shape: Float[torch.Tensor, "2 5 3 10"]
    tips_pose: Float[torch.Tensor, "2 5 3 135"]
    tips_weight: Float[torch.Tensor, "2 5 16"]
    mean: Float[torch.Tensor, "2 15 3"]

    @classmethod
    def mano(cls, hand: ManoHand) -> TorchHands:
        """Return the user's MANO, float32."""
        rows: list[tuple[np.ndarray, ...]] = []
        for side in SIDES:
            arrays, tips = hand.arrays[side], list(TIP_VERTICES)
            tree = arrays.J_regressor @ arrays.v_template
            shape = np.einsum("jv,vib->jib", arrays.J_regressor, arrays.shapedirs)
            parts = arrays.v_template, arrays.shapedirs, arrays.posedirs, arrays.weights
            skin = [part[tips] for part in parts]
            rows.append((tree, shape, *skin, arrays.hands_mean.reshape(15, 3)))
        return cls("mano", *_stacked(rows))

    @classmethod
    def acehand(cls) -> TorchHands:
        """Return the default hand, float32."""
        hand = CapsuleHand()
        rows: list[tuple[np.ndarray, ...]] = []
        weight = np.eye(16)[list(_FINGERTIP_JOINTS)]
        for side in SIDES:
            rest = hand.rest_keypoints(side, np.zeros(10))
            shape = np.stack([hand.rest_keypoints(side, b) - rest for b in np.eye(10)], axis=-1)
            tree, tips = list(TREE_TO_KEYPOINT), list(TIPS)
            skin = rest[tips], shape[tips], np.zeros((5, 3, 135)), weight
            rows.append((rest[tree], shape[tree], *skin, np.zeros((15, 3))))
        return cls("acehand", *_stacked(rows))

    def to(self, *args: torch.device | torch.dtype | str) -> TorchHands:
        """Return the hands on another device or in another precision."""
        moved = [getattr(self, f.name).to(*args) for f in fields(self) if f.name != "name"]
        return TorchHands(self.name, *moved)

    def absolute_pose(
        self, hand_pose: Float[torch.Tensor, "B N 2 15 3 3"]
    ) -> Float[torch.Tensor, "B N 2 15 3 3"]:
        """Return finger rotations with the mean pose included.

        As smplx with ``flat_hand_mean=False``: the mean is added to rotation vectors, which is not
        a product of rotations.
        """
        if self.name == "acehand":
            return hand_pose
        return rotations_torch.exp(rotations_torch.log(hand_pose) + self.mean)

    def joints(
        self,
        global_orient: Float[torch.Tensor, "B N 2 3 3"],
        hand_pose: Float[torch.Tensor, "B N 2 15 3 3"],
        betas: Float[torch.Tensor, "B 2 10"],
    ) -> Float[torch.Tensor, "B N 2 21 3"]:
        """Return canonical joints: posed and in camera axes, not yet placed; metres.

        ``hand_pose`` is the network's, relative to the mean. The hand turns about its rest wrist,
        which stays in place (paper section 3.3, J^can).
        """
        fingers = self.absolute_pose(hand_pose)
        turns = torch.cat([global_orient[..., None, :, :], fingers], dim=-3)
        rest = self.tree + torch.einsum("sjib,nsb->nsji", self.tree_shape, betas)
        turned, moved = _chain(turns, rest[:, None])
        eye = torch.eye(3, dtype=fingers.dtype, device=fingers.device)
        bent = (fingers - eye).flatten(-3)
        tips = self.tips + torch.einsum("stib,nsb->nsti", self.tips_shape, betas)[:, None]
        tips = tips + torch.einsum("stip,bnsp->bnsti", self.tips_pose, bent)

        # Linear blend skinning of the tips.
        arms = tips[..., :, None, :] - rest[:, None, :, None]
        carried = (turned[..., None, :, :, :] @ arms[..., None])[..., 0] + moved[..., None, :, :]
        tips = (self.tips_weight[..., None] * carried).sum(-2)
        joints = torch.cat([moved, tips], dim=-2)
        order = [16 + TIPS.index(k) if k in TIPS else KEYPOINT_TO_TREE[k] for k in range(21)]
        return joints[..., order, :]


def _chain(
    turns: Float[torch.Tensor, "B N 2 16 3 3"], rest: Float[torch.Tensor, "B 1 2 16 3"]
) -> tuple[Float[torch.Tensor, "B N 2 16 3 3"], Float[torch.Tensor, "B N 2 16 3"]]:
    """Return rotation and position of every joint of the tree."""
    rotation = [turns[..., 0, :, :]]
    position = [rest[..., 0, :].expand(*turns.shape[:3], 3)]
    for joint, parent in list(enumerate(TREE_PARENTS))[1:]:
        bone = (rest[..., joint, :] - rest[..., parent, :])[..., None]
        rotation.append(rotation[parent] @ turns[..., joint, :, :])
        position.append(position[parent] + (rotation[parent] @ bone)[..., 0])
    return torch.stack(rotation, -3), torch.stack(position, -2)


def _stacked(rows: list[tuple[np.ndarray, ...]]) -> list[torch.Tensor]:
    """Return one float32 tensor per field, left before right."""
    columns = zip(*rows, strict=True)
    return [torch.tensor(np.stack(column), dtype=torch.float32) for column in columns]
