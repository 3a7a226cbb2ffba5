"""Rigid transforms as 4x4 matrices. ``T_a_b`` maps points of frame b to frame a."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from acehand_core.types import RigidTransform


def rigid(
    rotation: Float[np.ndarray, "*#batch 3 3"], translation: Float[np.ndarray, "*#batch 3"]
) -> RigidTransform:
    """Return the transform ``x -> rotation @ x + translation``; leading axes broadcast."""
    batch = np.broadcast_shapes(rotation.shape[:-2], translation.shape[:-1])
    transform = np.zeros((*batch, 4, 4), np.result_type(rotation, translation))
    transform[..., :3, :3] = rotation
    transform[..., :3, 3] = translation
    transform[..., 3, 3] = 1
    return transform


def inverse(transform: RigidTransform) -> RigidTransform:
    """Return the inverse of a rigid transform."""
    rotation = np.swapaxes(transform[..., :3, :3], -1, -2)
    return rigid(rotation, -(rotation @ transform[..., :3, 3:])[..., 0])


def apply(
    transform: RigidTransform, points: Float[np.ndarray, "*points 3"]
) -> Float[np.ndarray, "*moved 3"]:
    """Return the points in the target frame: one, or with more axes a set, per transform."""
    extra = points.ndim - transform.ndim
    if extra < 0:
        return (transform[..., :3, :3] @ points[..., None])[..., 0] + transform[..., :3, 3]
    transform = transform.reshape(*transform.shape[:-2], *(1,) * extra, 4, 4)
    return points @ np.swapaxes(transform[..., :3, :3], -1, -2) + transform[..., None, :3, 3]


def similarity_fit(
    source: Float[np.ndarray, "N 3"],
    target: Float[np.ndarray, "N 3"],
    weights: Float[np.ndarray, "N"] | None = None,
    scale_range: tuple[float, float] | None = None,
) -> tuple[float, Float[np.ndarray, "3 3"], Float[np.ndarray, "3"]]:
    """Fit ``target = scale * R @ source + t`` by weighted least squares; return scale, R, t.

    ``scale_range``: (1, 1) for a rigid fit. Clamping is exact: R does not depend on the scale.

    Source: Umeyama, "Least-squares estimation of transformation parameters between two point
    patterns", 1991.
    """
    w = np.ones(len(source)) if weights is None else np.asarray(weights, float)
    w = w / w.sum()
    mean_source, mean_target = w @ source, w @ target
    a, b = source - mean_source, target - mean_target
    u, singular, vt = np.linalg.svd((b * w[:, None]).T @ a)
    flip = np.ones(3)
    flip[2] = np.sign(np.linalg.det(u @ vt)) or 1.0
    rotation = (u * flip) @ vt
    scale = float((singular * flip).sum() / max(float(w @ (a * a).sum(1)), 1e-18))
    if scale_range is not None:
        scale = float(np.clip(scale, *scale_range))
    return scale, rotation, mean_target - scale * rotation @ mean_source
