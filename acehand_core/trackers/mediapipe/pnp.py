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
    w = valid * (1.0 if weights is None else weights)
    seen = np.where(valid[..., None], bearing, 0.0)
    count = len(joints)
    rotation = np.broadcast_to(np.eye(3), (count, 3, 3)).copy()
    translation = translation.copy()
    damping = np.full(count, 1e-3)
    residual, jacobian = _rigid_system(rotation, translation, joints, seen, w)
    cost = np.sum(residual**2, axis=1)

    solvable = valid.sum(1) >= 4
    for _ in range(iterations):
        normal = np.swapaxes(jacobian, 1, 2) @ jacobian
        gradient = (np.swapaxes(jacobian, 1, 2) @ residual[..., None])[..., 0]
        diagonal = np.einsum("nii->ni", normal)
        damped = normal + np.eye(6) * (damping[:, None] * diagonal + 1e-12)[:, None]
        step = -np.linalg.solve(damped, gradient[..., None])[..., 0]
        new_rotation = rotations.exp(step[:, :3]) @ rotation
        new_translation = translation + step[:, 3:]
        new_residual, new_jacobian = _rigid_system(new_rotation, new_translation, joints, seen, w)
        new_cost = np.sum(new_residual**2, axis=1)
        better = solvable & (new_cost < cost)
        rotation[better], translation[better] = new_rotation[better], new_translation[better]
        residual[better], jacobian[better] = new_residual[better], new_jacobian[better]
        cost = np.where(better, new_cost, cost)
        damping = np.clip(np.where(better, damping * 0.2, damping * 8), 1e-9, 1e9)

    return rotation, translation


def _rigid_system(
    rotation: np.ndarray, translation: np.ndarray, joints: Joints, bearing: Bearings, w: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return residuals (N, 2K) of bearings and derivatives (N, 2K, 6) by rotation, translation."""
    turned = (joints - joints[:, :1]) @ np.swapaxes(rotation, 1, 2)
    points = turned + joints[:, :1] + translation[:, None]
    z = np.maximum(points[..., 2], MIN_DEPTH_M)
    predicted = points[..., :2] / z[..., None]
    root = np.sqrt(w)[..., None]
    residual = root * (predicted - bearing)
    d_point = np.zeros((*points.shape[:2], 2, 3))
    d_point[..., 0, 0] = d_point[..., 1, 1] = 1 / z
    d_point[..., :, 2] = -predicted / z[..., None]
    jacobian = np.concatenate([d_point @ -rotations.skew(turned), d_point], axis=-1)
    jacobian *= root[..., None]
    count = len(points)
    return residual.reshape(count, -1), jacobian.reshape(count, -1, 6)
