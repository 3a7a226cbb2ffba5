"""What cameras and depth tell of one hand, and where its skin is.

``landmark_fit`` and ``clip_fit`` fit poses to it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Int

from acehand_core.geometry import frames, rotations
from acehand_core.hand import articulation
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.hand.skeleton import BONES, PALM
from acehand_core.types import Side

#: Noise of a landmark, as a share of the palm's apparent length.
PIXEL_SIGMA = 0.02
#: Crops share errors: a landmark's error is this many times their spread.
SPREAD_FACTOR = 0.8
KEYPOINT_WEIGHTS = np.array([0.6, 0.3, 0.8, *[1.0] * 18])
#: Readings of the depth of a hand that place it.
LEAST_READINGS = 8
#: Points further behind the skin are hidden by other fingers; nearer ones are seen through a hole
#: between the vertices. Skin around a point's ray counts; a share of the vertices is enough for it.
LEAST_BELOW_M, MOST_BELOW_M, AROUND_M, EVERY_VERTEX = 0.003, 0.05, 0.006, 3
#: Frames posed at once.
_ROWS = 512

PARENTS, CHILDREN = np.array(BONES).T
#: The 41 points of ``SkinDepth`` from 21 landmarks.
SKIN_POINTS = np.concatenate([np.eye(21), (np.eye(21)[PARENTS] + np.eye(21)[CHILDREN]) / 2])

Keypoints = Float[np.ndarray, "N 21 3"]
Bearings = Float[np.ndarray, "N 21 2"]


@dataclass(frozen=True, slots=True)
class SkinDepth:
    """Depth readings of the skin at 41 points of a hand: its landmarks, then its bones' middles.

    ``z`` along the camera's axis, metres; ``sigma`` is infinite where there is no reading.
    ``below``: how far the points are behind the skin; None: by ``thickness``. ``weight``: factor
    on the information of a frame's readings; None: 1.
    """

    z: Float[np.ndarray, "N 41"]
    sigma: Float[np.ndarray, "N 41"]
    below: Float[np.ndarray, "N 41"] | None = None
    weight: Float[np.ndarray, "N"] | None = None

    def rows(self, index: np.ndarray) -> SkinDepth:
        below = None if self.below is None else self.below[index]
        weight = None if self.weight is None else self.weight[index]
        return SkinDepth(self.z[index], self.sigma[index], below, weight)


@dataclass(frozen=True, slots=True)
class OtherView:
    """What another camera sees of the hand: evidence in its own axes, and its place."""

    evidence: Evidence
    T_view_camera: Float[np.ndarray, "4 4"]


@dataclass(frozen=True, slots=True)
class Evidence:
    """Landmarks of one hand in N frames, all known.

    ``bearing`` are (x/z, y/z) of the landmarks; ``direction`` unit bone vectors in camera axes.
    ``spread`` are covariances of the bearings over several crops, None for one. ``offset`` are the
    network's landmarks relative to the hand model's keypoints, fixed to the palm: distal, dorsal,
    radial, as shares of the hand's length. ``seen`` is False in frames in which only another camera
    sees the hand; None: True in all.
    """

    bearing: Bearings
    direction: Float[np.ndarray, "N 20 3"]
    spread: Float[np.ndarray, "N 21 2 2"] | None = None
    offset: Float[np.ndarray, "21 3"] | None = None
    seen: Bool[np.ndarray, "N"] | None = None
    others: tuple[OtherView, ...] = ()
    skin: SkinDepth | None = None

    @classmethod
    def from_landmarks(
        cls,
        bearing: Bearings,
        world: Keypoints,
        spread: Float[np.ndarray, "N 21 2 2"] | None = None,
        offset: Float[np.ndarray, "21 3"] | None = None,
    ) -> Evidence:
        """Turn bones from the crop's axes, along the hand's own ray, to the camera's."""
        centre = rays(bearing.mean(1))
        to_camera = rotations.between(np.broadcast_to([0.0, 0.0, 1.0], centre.shape), centre)
        bones = (world[:, CHILDREN] - world[:, PARENTS]) @ np.swapaxes(to_camera, 1, 2)
        direction = bones / np.linalg.norm(bones, axis=-1, keepdims=True)
        return cls(bearing, direction, spread, offset)

    def rows(self, index: np.ndarray) -> Evidence:
        spread = None if self.spread is None else self.spread[index]
        seen = None if self.seen is None else self.seen[index]
        others = tuple(replace(one, evidence=one.evidence.rows(index)) for one in self.others)
        skin = None if self.skin is None else self.skin.rows(index)
        bearing, direction = self.bearing[index], self.direction[index]
        return Evidence(bearing, direction, spread, self.offset, seen, others, skin)

    @property
    def metric(self) -> Bool[np.ndarray, "N"]:
        """Frames in which the hand's distance is measured: by depth, or by two cameras."""
        depth = np.zeros(len(self.bearing), int)
        if self.skin is not None:
            depth = np.isfinite(self.skin.sigma).sum(1)
        return (self.cameras > 1) | (depth >= LEAST_READINGS)

    @property
    def cameras(self) -> Int[np.ndarray, "N"]:
        """Number of cameras that see the hand."""
        return sum((one.evidence.seen_in.astype(int) for one in self.others), self.seen_in + 0)

    @property
    def seen_in(self) -> Bool[np.ndarray, "N"]:
        """``seen`` as flags."""
        return np.ones(len(self.bearing), bool) if self.seen is None else self.seen

    def landmarks(self, side: Side, rest: Float[np.ndarray, "21 3"]) -> Float[np.ndarray, "21 3"]:
        """Return offsets of landmarks from the keypoints of the unturned hand, metres."""
        if self.offset is None:
            return np.zeros((21, 3))
        length = np.linalg.norm(rest[12] - rest[0])
        offset = self.offset @ articulation.ANATOMICAL_TO_MODEL.T * length
        return offset * articulation.MIRROR if side == "left" else offset

    def with_skin_of(self, pose: Pose, side: Side, betas: Float[np.ndarray, "10"]) -> Evidence:
        """Return the evidence with depth readings of the skin of this hand's mesh.

        Without those at fingers that others hide.
        """
        if self.skin is None:
            return self
        offset = self.landmarks(side, CapsuleHand().rest_keypoints(side, betas))
        below = below_mesh(pose, side, betas, offset)
        sigma = np.where(below < MOST_BELOW_M, self.skin.sigma, np.inf)
        return replace(self, skin=replace(self.skin, sigma=sigma, below=below))

    def whitening(self) -> Float[np.ndarray, "N 21 2 2"]:
        """Return factors that whiten bearing errors, zero in frames that are not seen.

        Landmark errors are isotropic in angle; bearings stretch them off the optical axis, most
        along the radius.
        """
        # At least 1e-6: a hand of zero extent has no noise.
        scale = np.maximum(self.scale, 1e-6)
        own = (PIXEL_SIGMA * scale)[:, None] ** 2 / KEYPOINT_WEIGHTS
        outer = self.bearing[..., :, None] * self.bearing[..., None, :]
        stretch = np.sum(self.bearing**2, axis=-1)[..., None, None] + 1
        covariance = own[..., None, None] * stretch * (np.eye(2) + outer)
        if self.spread is not None:
            covariance = covariance + SPREAD_FACTOR**2 * self.spread
        lower = np.linalg.cholesky(covariance)
        factors = np.linalg.inv(lower)
        return factors if self.seen is None else factors * self.seen[:, None, None, None]

    @property
    def scale(self) -> Float[np.ndarray, "N"]:
        """Apparent length of the palm, rad: wrist to the four knuckles, rms."""
        ray = rays(self.bearing[:, PALM])
        return np.sqrt(np.mean(np.sum((ray[:, 1:] - ray[:, :1]) ** 2, axis=-1), axis=1))


def rays(bearing: Float[np.ndarray, "*batch 2"]) -> Float[np.ndarray, "*batch 3"]:
    """Return unit vectors of bearings (x/z, y/z)."""
    ray = np.concatenate([bearing, np.ones_like(bearing[..., :1])], axis=-1)
    return np.asarray(ray / np.linalg.norm(ray, axis=-1, keepdims=True))


@dataclass(frozen=True, slots=True)
class Pose:
    """Orientation, angles and wrist of one hand in N frames, camera frame."""

    global_orient: Float[np.ndarray, "N 3 3"]
    angles: Float[np.ndarray, "N 22"]
    wrist: Float[np.ndarray, "N 3"]

    def keypoints(self, side: Side, rest: Float[np.ndarray, "21 3"]) -> Keypoints:
        """Return the 21 keypoints in the camera frame, metres."""
        # In parts: the derivatives, not needed here, are 22 times as large.
        parts = (
            articulation.keypoints_with_jacobian(self.angles[start : start + _ROWS], side, rest)[0]
            for start in range(0, max(len(self.angles), 1), _ROWS)
        )
        chain = np.concatenate(list(parts))
        return chain @ np.swapaxes(self.global_orient, 1, 2) + self.wrist[:, None]

    def rows(self, index: np.ndarray) -> Pose:
        return Pose(self.global_orient[index], self.angles[index], self.wrist[index])

    def where(self, chosen: Bool[np.ndarray, "N"], other: Pose) -> Pose:
        """Return these poses in the chosen frames and ``other``'s elsewhere."""
        row = chosen[:, None]
        orient = np.where(row[..., None], self.global_orient, other.global_orient)
        angles = np.where(row, self.angles, other.angles)
        return Pose(orient, angles, np.where(row, self.wrist, other.wrist))

    def moved(self, T: Float[np.ndarray, "4 4"]) -> Pose:
        """Return the poses in another frame: ``T`` of that frame and the camera."""
        return Pose(T[:3, :3] @ self.global_orient, self.angles, frames.apply(T, self.wrist))


def skin_points(landmarks: Float[np.ndarray, "*batch 21 D"]) -> Float[np.ndarray, "*batch 41 D"]:
    """Return the points of ``SkinDepth``."""
    return SKIN_POINTS @ landmarks


def thickness(
    orient: Float[np.ndarray, "N 3 3"], side: Side, rest: Float[np.ndarray, "21 3"]
) -> Float[np.ndarray, "N 41"]:
    """Return about how far the points of ``SkinDepth`` lie behind the skin, metres.

    That of the flat mean hand towards its back and palm, in the share in which each is seen.
    """
    share = (1 - orient[:, 2:, 1]) / 2  # 1 where the back faces the camera
    back, palm = _thickness()
    size = np.linalg.norm(rest[12] - rest[0]) / CapsuleHand().hand_length(np.zeros(10))
    return (share * back + (1 - share) * palm) * size


def below_mesh(
    pose: Pose, side: Side, betas: Float[np.ndarray, "10"], offset: Float[np.ndarray, "21 3"]
) -> Float[np.ndarray, "N 41"]:
    """Return how far the points of ``SkinDepth`` lie behind the skin along the camera's axis.

    ``offset`` are those of landmarks from keypoints of the unturned hand, metres.
    """
    hand = CapsuleHand()
    rest = hand.rest_keypoints(side, betas)
    landmarks = pose.keypoints(side, rest) + offset @ np.swapaxes(pose.global_orient, 1, 2)
    points = skin_points(landmarks)

    below = np.empty(points.shape[:2])
    for start in range(0, len(points), _ROWS):
        part = slice(start, start + _ROWS)
        turns = articulation.angles_to_pose(pose.angles[part], side)
        mesh = hand.vertices(side, pose.global_orient[part], turns, betas)[:, ::EVERY_VERTEX]
        mesh = (mesh + (pose.wrist[part, None] - rest[0])).astype(np.float32)
        for row, (vertices, point) in enumerate(zip(mesh, points[part], strict=True), start):
            z = point[:, None, 2].astype(np.float32)
            # Squared distances from the points' rays, as products of matrices.
            flat, at = vertices[:, :2] / vertices[:, 2:], (point[:, :2] / z).astype(np.float32)
            away = (flat**2).sum(1) - 2 * at @ flat.T + (at**2).sum(1)[:, None]
            front = np.where(away < (AROUND_M / z) ** 2, vertices[:, 2], np.inf).min(1)
            below[row] = point[:, 2] - front
    simple = thickness(pose.global_orient, side, rest)
    return np.where(np.isfinite(below) & (below > LEAST_BELOW_M), below, simple)


@functools.cache
def _thickness() -> tuple[Float[np.ndarray, "41"], Float[np.ndarray, "41"]]:
    """Return the distances of the flat mean hand's skin above and below its points, metres."""
    hand = CapsuleHand()
    points = SKIN_POINTS @ hand.rest_keypoints("right", np.zeros(10))
    away = hand.rest_vertices("right", np.zeros(10)) - points[:, None]
    near = np.hypot(away[..., 0], away[..., 2]) < 0.004
    height = np.where(near, away[..., 1], np.nan)
    return np.nanmax(height, axis=1), -np.nanmin(height, axis=1)
