"""Points on a hand's skin and along its bones, and how its angles and its wrist move them."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int

from acehand_core.geometry import rotations
from acehand_core.hand import articulation
from acehand_core.hand.articulation import ANATOMICAL_TO_MODEL, DIRECTIONS, MIRROR
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.hand.skeleton import BONES, FINGERS, KEYPOINT_TO_TREE, TIPS, TREE_TO_KEYPOINT
from acehand_core.types import Betas, Rotation, Side

Points = Float[np.ndarray, "N 3"]
#: Derivatives by the 22 angles, a turn about the world's axes through the wrist, and a shift.
Slopes = Float[np.ndarray, "M 3 28"]
Angles = Float[np.ndarray, "22"]

#: Every so many vertices of the mesh; of the fingertips every second one.
_STRIDE, _TIP_STRIDE, _TIP_M = 8, 2, 0.012
_BONE_STEPS = 4


@dataclass(frozen=True)
class Touch:
    """N points of one hand: first those on its skin, then those along its bones.

    ``weighted``: per point its weights of the 16 joints times its homogeneous rest position,
    relative to the wrist. ``pads``: the point of each fingertip that grips, thumb first; ``tips``:
    the bone's end above it. ``flesh``: 0 on the skin; how thick the flesh is around a bone.
    ``finger``: whose last phalanx a point is on, 0 the thumb's; -1 elsewhere.
    """

    side: Side
    betas: bytes
    rest: Float[np.ndarray, "21 3"]
    weighted: Float[np.ndarray, "N 16 4"]
    flesh: Float[np.ndarray, "N"]
    finger: Int[np.ndarray, "N"]
    pads: Int[np.ndarray, "M"]
    tips: Int[np.ndarray, "M"]

    @classmethod
    def of(cls, side: Side, betas: Betas) -> Touch:
        """Return the points of a hand."""
        return _touch(side, betas.tobytes(), _STRIDE, _TIP_STRIDE)

    @property
    def whole(self) -> Touch:
        """The same hand with every vertex of its mesh."""
        return _touch(self.side, self.betas, 1, 1)

    def points(
        self,
        angles: Float[np.ndarray, "T 22"],
        R_world_hand: Float[np.ndarray, "T 3 3"],
        wrist_world: Float[np.ndarray, "T 3"],
    ) -> Float[np.ndarray, "T N 3"]:
        """Return all points in the world, at T times."""
        _, moves, _ = self._moves(angles)
        flat = self.weighted.reshape(-1, 64) @ moves.reshape(-1, 64, 3)
        return flat @ np.swapaxes(R_world_hand, 1, 2) + wrist_world[:, None]

    @functools.cached_property
    def coarse(self) -> Touch:
        """The same hand with fewer points: its bones and a few of its skin."""
        skin = int((self.flesh == 0).sum())
        kept = np.r_[0:skin:5, skin : len(self.flesh)]
        return replace(
            self, weighted=self.weighted[kept], flesh=self.flesh[kept], finger=self.finger[kept],
            pads=self.pads[:0], tips=self.tips[:0],
        )  # fmt: skip

    def slopes(self, angles: Angles, R_world_hand: Rotation, rows: Int[np.ndarray, "M"]) -> Slopes:
        """Return the derivatives of some of the points in the world."""
        keypoints, moves, axes = self._moves(angles[None])
        weighted = self.weighted[rows]
        by_joint = np.matmul(weighted.transpose(1, 0, 2), moves[0]).transpose(1, 0, 2)
        # What an angle moves are the shares of its own joint and of those further out.
        outer = np.concatenate([by_joint, weighted[..., 3:]], -1)[:, 1:].reshape(-1, 5, 3, 4)
        outer = outer[:, :, ::-1].cumsum(2)[:, :, ::-1].reshape(-1, 15, 4)
        outer = outer[:, [f.joint for f in articulation.freedoms()]]
        arms = outer[..., :3] - outer[..., 3:] * keypoints[0, _pivots()]
        of_angles = (rotations.skew(axes[0]) @ arms[..., None])[..., 0]
        local = by_joint.sum(1)
        eye = np.broadcast_to(np.eye(3), (len(local), 3, 3))
        turned = -rotations.skew(local @ R_world_hand.T)
        return np.concatenate([R_world_hand @ of_angles.transpose(0, 2, 1), turned, eye], axis=2)

    def _moves(
        self, angles: Float[np.ndarray, "T 22"]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return keypoints, joints as four rows by which homogeneous points are multiplied, axes.

        The wrist is the origin.
        """
        keypoints, turned, axes = articulation.chain(angles, self.side, self.rest)
        joints = list(TREE_TO_KEYPOINT)
        moved = keypoints[:, joints] - (turned @ self.rest[joints][..., None])[..., 0]
        rows = np.concatenate([np.swapaxes(turned, -1, -2), moved[..., None, :]], axis=-2)
        return keypoints, rows, axes


@functools.cache
def _pivots() -> list[int]:
    return [TREE_TO_KEYPOINT[f.joint + 1] for f in articulation.freedoms()]


@functools.lru_cache(maxsize=32)
def _touch(side: Side, betas: bytes, stride: int, tip_stride: int) -> Touch:
    hand, shape = CapsuleHand(), np.frombuffer(betas)
    rest, vertices = hand.rest_keypoints(side, shape), hand.rest_vertices(side, shape)
    chosen, pads = set(range(0, len(vertices), stride)), []
    for finger, tip in zip(FINGERS, TIPS, strict=True):
        palmar = -ANATOMICAL_TO_MODEL @ np.array(DIRECTIONS[finger][1])
        palmar = palmar * (MIRROR if side == "left" else 1.0) / np.linalg.norm(palmar)
        near = np.flatnonzero(np.linalg.norm(vertices - rest[tip], axis=1) < _TIP_M)
        # The pad: straight below the tip's keypoint, on the side away from the nail.
        arms = vertices[near] - rest[tip]
        sideways = np.linalg.norm(np.cross(arms, palmar), axis=1)
        pads.append(int(near[np.argmin(sideways - 0.5 * arms @ palmar)]))
        chosen |= {*(int(i) for i in near[::tip_stride]), pads[-1]}
    order = sorted(chosen)
    start, stop = np.array(BONES).T
    share = np.arange(1, _BONE_STEPS + 1)[:, None, None] / _BONE_STEPS
    bones = ((1 - share) * rest[start] + share * rest[stop]).reshape(-1, 3)
    # A bone is turned by the joint that it starts at; those of the palm by the wrist.
    joints = np.tile([KEYPOINT_TO_TREE[k] for k in start], _BONE_STEPS)
    weights = np.concatenate([hand.weights(side)[order], np.eye(16)[joints]])
    places = np.concatenate([vertices[order], bones]) - rest[0]
    places = np.concatenate([places, np.ones((len(places), 1))], axis=1)
    flesh = np.linalg.norm(bones[:, None] - vertices[::2], axis=-1).min(1)
    last = len(order) + (_BONE_STEPS - 1) * len(BONES)
    last_joints = weights[:, [KEYPOINT_TO_TREE[tip - 1] for tip in TIPS]]
    return Touch(
        side,
        betas,
        rest - rest[0],
        weights[:, :, None] * places[:, None],
        np.concatenate([np.zeros(len(order)), flesh]),
        np.where(last_joints.max(1) > 0.5, last_joints.argmax(1), -1),
        np.array([order.index(pad) for pad in pads]),
        np.array([last + BONES.index((tip - 1, tip)) for tip in TIPS]),
    )
