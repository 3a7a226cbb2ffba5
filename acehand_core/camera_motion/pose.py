"""A camera's pose from bearings to points whose inverse distance is roughly known.

Frames: ``R``, ``centre`` are of a camera in the reference frame of its piece, in units of a usual
distance of the scene, which nothing here knows. Bearings are unit vectors in the camera frame.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from acehand_core.geometry import rotations

Vector = Float[np.ndarray, "3"]
Matrix3 = Float[np.ndarray, "3 3"]
Bearings = Float[np.ndarray, "N 3"]
#: A first guess that so many bearings agree with is good enough.
_ENOUGH = 0.7


def angle(R: Matrix3) -> float:
    """Return by how much a rotation turns, rad."""
    return float(np.linalg.norm(rotations.log(R)))


@dataclass(frozen=True, slots=True)
class Pose:
    """A camera in the reference frame: points of it are ``R @ x + centre``."""

    R: Matrix3
    centre: Vector


@dataclass(frozen=True, slots=True)
class Points:
    """N points, each a bearing of the frame it was found in (its host) and an inverse distance.

    ``variance``: of the inverse distance.
    """

    R_host: Float[np.ndarray, "N 3 3"]
    centre_host: Float[np.ndarray, "N 3"]
    bearings: Float[np.ndarray, "N 3"]
    inverse_distance: Float[np.ndarray, "N"]
    variance: Float[np.ndarray, "N"]

    def places(self, pose: Pose) -> Float[np.ndarray, "N 3"]:
        """Return the points in the camera frame of ``pose``, scaled by their inverse distances."""
        world = np.einsum("nij,nj->ni", self.R_host, self.bearings)
        world = world + self.inverse_distance[:, None] * (self.centre_host - pose.centre)
        return world @ pose.R


@dataclass(frozen=True, slots=True)
class PoseFit:
    """A pose, which bearings agree with it, and its covariance (turn, rad; centre)."""

    pose: Pose
    inliers: Bool[np.ndarray, "N"]
    covariance: Float[np.ndarray, "6 6"]
    #: Better inverse distances and their variances; those of outliers are unchanged.
    inverse_distance: Float[np.ndarray, "N"]
    variance: Float[np.ndarray, "N"]


def tangents(bearings: Bearings) -> Float[np.ndarray, "N 2 3"]:
    """Return two unit vectors across each bearing."""
    x, y, z = bearings.T
    # Duff et al., "Building an orthonormal basis, revisited", JCGT 2017.
    sign = np.where(z >= 0, 1.0, -1.0)
    a = -1.0 / (sign + z)
    b = x * y * a
    first = np.stack([1 + sign * x * x * a, sign * b, -sign * x], axis=-1)
    return np.stack([first, np.stack([b, sign + y * y * a, -y], axis=-1)], axis=1)


def direction_slopes(
    across: Float[np.ndarray, "N 2 3"], places: Float[np.ndarray, "N 3"]
) -> tuple[Bearings, Float[np.ndarray, "N 2 3"]]:
    """Return the unit directions of points, and the derivatives of ``across @ direction``."""
    length = np.linalg.norm(places, axis=1)
    unit = places / length[:, None]
    along = np.einsum("nij,nj->ni", across, unit)
    return unit, (across - along[..., None] * unit[:, None]) / length[:, None, None]


def fit_pose(
    points: Points,
    seen: Bearings,
    known: Float[np.ndarray, "N 2 2"],
    start: Pose,
    turn_sigma: float,
    step_sigma: float,
    rounds: int = 7,
) -> PoseFit:
    """Fit the pose of a camera that sees ``points`` along ``seen``; up to half may be wrong.

    Args:
        points: N points.
        seen: (N, 3) their bearings in the camera.
        known: (N, 2, 2) square roots of the information on these, along ``tangents(seen)``.
        start: about where the camera is.
        turn_sigma, step_sigma: how well, in radians and units of the usual distance.
        rounds: of reweighted least squares; the scale of what counts as wrong shrinks with them.
    """
    across = known @ tangents(seen)
    prior = np.repeat([turn_sigma**-2, step_sigma**-2], 3)
    pose, scale = start, 8.0
    for _ in range(rounds):
        J, r, by_distance, residual = _linearised(points, seen, across, pose)
        size = np.linalg.norm(r, axis=1)
        middle = float(np.partition(size, len(size) // 2)[len(size) // 2])
        scale = max(2.0, min(scale, 1.5 * middle))
        weight = 1 / (1 + (size / scale) ** 2) ** 2  # Geman and McClure's

        flat = J.reshape(-1, 6)
        weighted = flat * np.repeat(weight, 2)[:, None]
        off = np.concatenate([rotations.log(start.R.T @ pose.R), pose.centre - start.centre])
        H = weighted.T @ flat + np.diag(prior + 1e-6)
        change = -np.linalg.solve(H, weighted.T @ r.reshape(-1) + prior * off)
        pose = Pose(pose.R @ rotations.exp(change[:3]), pose.centre + change[3:])
        if np.abs(change).max() < 3e-5 and scale <= 2.0:
            break

    # What the residuals say of the distances, each by itself.
    inliers = size < 4.0
    variance = 1 / (1 / points.variance + (by_distance**2).sum(1))
    shift = -variance * (by_distance * residual).sum(1)
    better = np.clip(points.inverse_distance + shift, 0.01, 30.0)
    return PoseFit(
        pose,
        inliers,
        np.linalg.inv(H),
        np.where(inliers, better, points.inverse_distance),
        np.where(inliers, variance, points.variance),
    )


def _linearised(
    points: Points, seen: Bearings, across: Float[np.ndarray, "N 2 3"], pose: Pose
) -> tuple[Float[np.ndarray, "N 2 6"], np.ndarray, np.ndarray, np.ndarray]:
    """Return derivatives of residuals with the pose, and residuals, both whitened.

    Also by the inverse distances (N, 2), and the residuals as they are (N, 2).
    """
    moved = points.places(pose)
    unit, slope = direction_slopes(across, moved)
    residual = (across @ (unit - seen)[..., None])[..., 0]

    # Of the unit direction: with the camera's turn, with its centre, with the distance.
    by_turn = slope @ rotations.skew(moved)
    by_centre = -points.inverse_distance[:, None, None] * (slope @ pose.R.T)
    by_distance = (slope @ ((points.centre_host - pose.centre) @ pose.R)[..., None])[..., 0]

    # The distance's uncertainty is a covariance of rank one: residuals along it count less.
    strength = (by_distance**2).sum(1)
    axis = by_distance / np.sqrt(np.maximum(strength, 1e-300))[:, None]
    shrink = 1 - 1 / np.sqrt(1 + points.variance * strength)
    white = np.eye(2) - shrink[:, None, None] * axis[:, :, None] * axis[:, None]
    J = white @ np.concatenate([by_turn, by_centre], axis=2)
    return J, (white @ residual[..., None])[..., 0], by_distance, residual


def agreed_turn(
    before: Bearings,
    after: Bearings,
    known: Float[np.ndarray, "N 2 2"],
    start: Matrix3,
    tries: int = 80,
) -> Matrix3:
    """Return the turn R_before_after that most bearings agree with, or ``start`` where that is it.

    Args:
        before, after: (N, 3) bearings of the same points in two frames.
        known: (N, 2, 2) square roots of the information on those after, along their ``tangents``.
        start: a first guess.
        tries: how many pairs of points are asked; always the same ones for the same numbers.
    """
    if len(after) < 4:
        return start
    across = known @ tangents(after)
    size = ((across @ (before @ start - after)[..., None])[..., 0] ** 2).sum(1)
    if (size < 4.0**2).mean() > _ENOUGH:
        return start

    # Corners are asked: what is known least well of a point is still known.
    least = np.linalg.svd(known, compute_uv=False)[:, 1]
    clear = np.flatnonzero(least > 0.25 * np.quantile(least, 0.95))
    if len(clear) < 4:
        return start
    rng = np.random.default_rng(len(after))
    i, j = rng.choice(clear, (2, tries))
    apart = np.linalg.norm(np.cross(before[i], before[j]), axis=1) > 0.1
    i, j = i[apart], j[apart]
    R = _triad(before[i], before[j]) @ np.swapaxes(_triad(after[i], after[j]), 1, 2)
    R = np.concatenate([start[None], R])

    off = np.einsum("mji,nj->mni", R, before) - after
    r = np.einsum("nij,mnj->mni", across, off)
    s = (r**2).sum(-1) / 4.0**2
    return np.asarray(R[np.argmin((s / (1 + s)).sum(1))])


def _triad(a: Bearings, b: Bearings) -> Float[np.ndarray, "N 3 3"]:
    """Return axes made of two directions, (N, 3, 3) columns."""
    z = np.cross(a, b)
    z /= np.maximum(np.linalg.norm(z, axis=-1, keepdims=True), 1e-12)
    middle = a + b
    middle = middle / np.linalg.norm(middle, axis=-1, keepdims=True)
    return np.stack([middle, np.cross(z, middle), z], axis=-1)
