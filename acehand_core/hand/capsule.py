"""The default hand: licence-free, authored here, MANO's tree and rest axes.

Sixteen joints, 21 keypoints, ten betas in standard deviations of published anthropometry, and a
closed mesh with linear blend skinning (built by ``tools/hand_asset``). The origin is the knuckle of
the middle finger: the rest wrist J0 is about 95 mm away from it and moves with the betas.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib import resources

import numpy as np
from jaxtyping import Float, UInt8

from acehand_core.hand import articulation
from acehand_core.hand.articulation import ANATOMICAL_TO_MODEL, MIRROR, pose_keypoints
from acehand_core.hand.skeleton import TREE_TO_KEYPOINT
from acehand_core.types import Betas, Faces, GlobalOrient, HandPose, Keypoints, Side, Vertices


@dataclass(frozen=True, slots=True)
class _Mesh:
    """The mesh of one side, metres; ``shape_directions`` are per unit beta."""

    vertices: Float[np.ndarray, "V 3"]
    shape_directions: Float[np.ndarray, "10 V 3"]
    weights: Float[np.ndarray, "V 16"]
    faces: Faces
    tint: UInt8[np.ndarray, "V 2"]


@functools.cache
def _mesh(side: Side) -> _Mesh:
    with resources.as_file(resources.files(__package__) / "assets/acehand_right.npz") as path:
        data = dict(np.load(path, allow_pickle=False))
    flip = MIRROR if side == "left" else np.ones(3)
    weights = np.zeros((len(data["vertices"]), 16))
    np.put_along_axis(weights, data["joints"].astype(np.intp), data["weights"].astype(float), 1)
    faces = data["faces"].astype(np.int64)
    return _Mesh(
        data["vertices"].astype(float) * flip,
        data["shape_directions"].astype(float) * 1e-3 * flip,
        weights / weights.sum(1, keepdims=True),
        faces[:, ::-1].copy() if side == "left" else faces,
        data["tint"],
    )


@functools.cache
def _template(side: Side) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean rest keypoints (21, 3) and their change per beta (10, 21, 3), metres."""

    def place(proportions: articulation.Proportions) -> np.ndarray:
        points = articulation.rest_keypoints(proportions) @ ANATOMICAL_TO_MODEL.T * 1e-3
        points = points - points[9]
        return points * MIRROR if side == "left" else points

    gradients = np.stack([place(g) for g in articulation.proportion_gradients()])
    return place(articulation.Proportions()), gradients


@functools.lru_cache(maxsize=4)  # a recording has one shape per hand
def _skin(side: Side, betas: bytes) -> Float[np.ndarray, "V 64"]:
    """Return, per vertex, its 16 weights times its homogeneous rest position."""
    rest = CapsuleHand().rest_vertices(side, np.frombuffer(betas))
    homogeneous = np.concatenate([rest, np.ones((len(rest), 1))], axis=1)
    return (_mesh(side).weights[:, :, None] * homogeneous[:, None, :]).reshape(len(rest), 64)


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

    def rest_vertices(self, side: Side, betas: Betas) -> Vertices:
        """Return the mesh of the flat hand in metres; linear in betas."""
        mesh = _mesh(side)
        return mesh.vertices + np.tensordot(betas, mesh.shape_directions, axes=1)

    def vertices(
        self, side: Side, global_orient: GlobalOrient, hand_pose: HandPose, betas: Betas
    ) -> Vertices:
        """Return the posed mesh in metres (see ``HandModel.vertices``)."""
        rest = self.rest_keypoints(side, betas)
        points, world = pose_keypoints(global_orient, hand_pose, rest)
        batch = points.shape[:-2]
        keypoints = list(TREE_TO_KEYPOINT)
        pivots = np.broadcast_to(rest, points.shape)[..., keypoints, :]
        moved = points[..., keypoints, :] - (world @ pivots[..., None])[..., 0]

        # Per bone a 3x4 transform as four rows that multiply (x, y, z, 1) from the right.
        bones = np.concatenate([np.swapaxes(world, -1, -2), moved[..., None, :]], axis=-2)
        bones = bones.reshape(-1, 64, 3)

        skin = _skin(side, betas.astype(float).tobytes())
        flat = skin @ bones.transpose(1, 0, 2).reshape(64, -1)
        skinned = flat.reshape(len(flat), -1, 3).transpose(1, 0, 2)
        return skinned.reshape(*batch, -1, 3)

    def faces(self, side: Side) -> Faces:
        """Return the triangles, counter-clockwise seen from outside."""
        return _mesh(side).faces

    def weights(self, side: Side) -> Float[np.ndarray, "V 16"]:
        """Return the skinning weights; rows sum to one."""
        return _mesh(side).weights

    def tint(self, side: Side) -> Float[np.ndarray, "V 2"]:
        """Return per vertex palmar paleness and a mark, both in 0..1.

        The mark is 0 in a crease or on a flushed knuckle, 0.5 on plain skin and 1 on a nail.
        """
        return _mesh(side).tint / 255.0
