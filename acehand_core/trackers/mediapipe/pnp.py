"""Placement of a hand before a camera from 2D evidence: mixed PnP and full rigid PnP.

Bearings are pairs (x/z, y/z) of rays, so any camera model works. Joints are canonical: oriented to
the camera, but not placed. All frames are solved at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from acehand_core.geometry import rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.hand.pose_fit import solve

#: Gates of the paper's appendix "Architecture": a voting joint is at least 5 cm before the camera,
#: its anchor 2 % of the image inside; six votes are needed; the refit residual may reach the larger
#: of 15 px and a quarter of the hand's 2D diagonal.
MIN_DEPTH_M = 0.05
IMAGE_MARGIN = 0.02
MIN_VOTES = 6
MAX_RMS_PX = 15.0
MAX_RMS_DIAGONAL = 0.25

Joints = Float[np.ndarray, "N K 3"]
Bearings = Float[np.ndarray, "N K 2"]
Pixels = Float[np.ndarray, "N K 2"]
Places = Float[np.ndarray, "N 3"]


@dataclass(frozen=True, slots=True)
class MixedPnP:
    """Translations in metres, and those that passed the gates."""

    translation: Places
    accepted: Bool[np.ndarray, "N"]
    votes: Bool[np.ndarray, "N K"]
    rms_px: Float[np.ndarray, "N"]


def bearings(camera: Camera, pixels: Pixels) -> Bearings:
    """Return (x/z, y/z) of each pixel's ray; NaN outside the field of view or beyond 90 degrees."""
    rays = camera.unproject(pixels)
    depth = rays[..., 2:]
    return rays[..., :2] / np.where(depth > 1e-6, depth, np.nan)


def mixed_pnp(
    joints: Joints, depth: Float[np.ndarray, "N"], anchors: Pixels, camera: Camera
) -> MixedPnP:
    """Solve the in-plane translation in closed form for a given depth of the hand's origin.

    Paper, section "Ray-Based Camera Solver", equation (pnp): perspective is linear in the in-plane
    shift, ``t_x = sum m/z (b - X/z) / sum m/z^2``. Where a gate fails, the wrist (joint 0) lies on
    its ray; without one the translation is NaN.

    Args:
        joints: canonical joints, metres, camera axes.
        depth: t_z per row, metres.
        anchors: 2D evidence in pixels of ``camera``, NaN for none.
    """
    bearing = bearings(camera, anchors)
    z_raw = joints[..., 2] + depth[:, None]
    z = np.maximum(z_raw, MIN_DEPTH_M)
    size = np.array([camera.width, camera.height])
    margin = IMAGE_MARGIN * size
    inside = ((anchors > margin - 0.5) & (anchors < size - 0.5 - margin)).all(-1)
    votes = (z_raw >= MIN_DEPTH_M) & inside & np.isfinite(bearing).all(-1)
    weight = votes / z**2
    offset = np.where(votes[..., None], bearing - joints[..., :2] / z[..., None], 0.0)
    numerator = np.sum(votes[..., None] / z[..., None] * offset, axis=1)
    shift = numerator / np.maximum(weight.sum(1), 1e-12)[:, None]
    translation = np.concatenate([shift, depth[:, None]], axis=1)

    projected = camera.project(joints + translation[:, None])
    error2 = np.sum((projected - anchors) ** 2, axis=-1)
    count = np.maximum(votes.sum(1), 1)
    rms = np.sqrt(np.where(votes, error2, 0.0).sum(1) / count)

    # The diagonal of the box of the voting anchors.
    low = np.where(votes[..., None], anchors, np.inf).min(1)
    high = np.where(votes[..., None], anchors, -np.inf).max(1)
    box = np.where(votes.any(1, keepdims=True), high - low, 0.0)
    limit = np.maximum(MAX_RMS_PX, MAX_RMS_DIAGONAL * np.linalg.norm(box, axis=1))
    accepted = (votes.sum(1) >= MIN_VOTES) & (rms <= limit)

    wrist = bearing[:, 0] * z[:, :1] - joints[:, 0, :2]
    translation[~accepted, :2] = wrist[~accepted]
    return MixedPnP(translation, accepted, votes, rms)


def weak_perspective_depth(
    joints: Joints, anchors: Pixels, camera: Camera
) -> Float[np.ndarray, "N"]:
    """Return the depth of the origin at which the hand is as large as its 2D evidence.

    The depth of the joints' middle is the ratio of the spreads of joints and bearings.
    """
    bearing = bearings(camera, anchors)
    valid = np.isfinite(bearing).all(-1, keepdims=True)
    count = np.maximum(valid.sum(1, keepdims=True), 1)
    flat = np.where(valid, joints[..., :2], 0.0)
    seen = np.where(valid, bearing, 0.0)
    flat = np.where(valid, flat - flat.sum(1, keepdims=True) / count, 0.0)
    seen = np.where(valid, seen - seen.sum(1, keepdims=True) / count, 0.0)
    middle = np.sum(np.where(valid[..., 0], joints[..., 2], 0.0), axis=1) / count[:, 0, 0]
    spread = np.maximum(np.sum(seen**2, axis=(1, 2)), 1e-12)
    return np.sum(flat * seen, axis=(1, 2)) / spread - middle


def rigid_pnp(
    joints: Joints,
    bearing: Bearings,
    translation: Places,
    weights: Float[np.ndarray, "N K"] | None = None,
    iterations: int = 10,
) -> tuple[Float[np.ndarray, "N 3 3"], Float[np.ndarray, "N 3"]]:
    """Turn and place rigid joints to meet their bearings (NaN for none); Levenberg-Marquardt.

    Returns R and t of ``x_camera = R (joints - joints[0]) + joints[0] + t``. Rows with fewer than
    four bearings keep their start.
    """
    valid = np.isfinite(bearing).all(-1)
    solvable = valid.sum(1, keepdims=True) >= 4
    root = np.sqrt(valid * solvable * (1.0 if weights is None else weights))[..., None]
    seen = np.where(valid[..., None], bearing, 0.0)
    arms = joints - joints[:, :1]

    def system(x: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        turned = arms[rows] @ np.swapaxes(rotations.exp(x[:, :3]), 1, 2)
        points = turned + joints[rows, :1] + x[:, None, 3:]
        z = np.maximum(points[..., 2], MIN_DEPTH_M)
        predicted = points[..., :2] / z[..., None]
        by_point = np.zeros((*points.shape[:2], 2, 3))
        by_point[..., 0, 0] = by_point[..., 1, 1] = 1 / z
        by_point[..., :, 2] = -predicted / z[..., None]
        by_turn = -rotations.skew(turned) @ rotations.left_jacobian(x[:, :3])[:, None]
        jacobian = np.concatenate([by_point @ by_turn, by_point], axis=-1)
        residual = root[rows] * (predicted - seen[rows])
        count = len(x)
        return residual.reshape(count, -1), (root[rows, ..., None] * jacobian).reshape(count, -1, 6)

    start, free = np.concatenate([np.zeros_like(translation), translation], 1), np.full(6, np.inf)
    x, _ = solve(system, start, -free, free, iterations)
    return rotations.exp(x[:, :3]), x[:, 3:]
