"""Separation of two hands: capsules around their bones.

Capsules lie within the skin of the mean hand, so touching hands do not overlap. Deeply crossed
fingers may stay crossed: no small shift parts them.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from acehand_core.hand.capsule import CapsuleHand
from acehand_core.hand.skeleton import BONES
from acehand_core.types import Side

#: Overlap that skin allows before hands are moved apart, and its softness, metres.
GIVE_M, SHARPNESS_M = 0.004, 0.001
#: Half the thickness of a palm.
_MAX_RADIUS_M = 0.012
_ITERATIONS, _HALVINGS = 20, 5
_PARENTS, _CHILDREN = np.array(BONES).T

Segments = Float[np.ndarray, "*batch 20 2 3"]
Joints = Float[np.ndarray, "N 21 3"]


@dataclass(frozen=True, slots=True)
class PlacedHand:
    """One hand in the N ``frames`` (increasing) where it was seen, camera frame, metres.

    ``sigma``: standard deviations of its position across and along the line of sight.
    """

    frames: Int[np.ndarray, "N"]
    joints: Joints
    sigma: Float[np.ndarray, "N 2"]


@functools.cache
def radii() -> Float[np.ndarray, "20"]:
    """Return the radius around each bone, the lower quartile of its skin distance, metres."""
    hand, flat = CapsuleHand(), np.zeros(10)
    bones = _bones(hand.rest_keypoints("right", flat))
    skin = hand.rest_vertices("right", flat)
    distance, _ = _between(np.repeat(skin[:, None], 2, axis=1), bones)
    nearest = distance.argmin(1)
    quartiles = [np.quantile(distance[nearest == k, k], 0.25) for k in range(len(BONES))]
    return np.minimum(quartiles, _MAX_RADIUS_M)


def overlap(one: Joints, other: Joints) -> Float[np.ndarray, "N"]:
    """Return the deepest overlap of two hands' capsules, metres; negative for a gap."""
    distance, _ = _between(_bones(one), _bones(other))
    reach = radii()[:, None] + radii()
    return np.asarray((reach - distance).max((1, 2)))


def shifts_apart(hands: dict[Side, PlacedHand]) -> dict[Side, Float[np.ndarray, "N 3"]]:
    """Return the shifts of both hands that leave no more overlap than skin gives.

    The least shifts in standard deviations of the hands' positions, so mostly along the line of
    sight. Hands without overlap, or without the other hand, stay.
    """
    shifts = {side: np.zeros((len(hand.frames), 3)) for side, hand in hands.items()}
    if len(hands) < 2:
        return shifts
    left, right = hands.values()
    both = np.stack(np.intersect1d(left.frames, right.frames, return_indices=True)[1:])
    # In blocks: the pairs of bones of one frame take 50 kB.
    for at_left, at_right in np.array_split(both, len(both[0]) // 500 + 1, axis=1):
        near = overlap(left.joints[at_left], right.joints[at_right]) > GIVE_M
        rows = at_left[near], at_right[near]
        pair = [(h.joints[r], h.sigma[r]) for h, r in zip((left, right), rows, strict=True)]

        prior = np.zeros((near.sum(), 6, 6))
        for k, (joints, sigma) in enumerate(pair):
            ray = joints[:, 0] / np.linalg.norm(joints[:, :1], axis=-1)
            along = ray[:, :, None] * ray[:, None]
            across, depth = np.maximum(sigma, 1e-4).T[..., None, None]
            part = slice(3 * k, 3 * k + 3)
            prior[:, part, part] = (np.eye(3) - along) / across**2 + along / depth**2

        moved = _moved(_bones(pair[0][0]), _bones(pair[1][0]), prior)
        for k, side in enumerate(hands):
            shifts[side][rows[k]] = moved[:, 3 * k : 3 * k + 3]
    return shifts


def _moved(
    one: Float[np.ndarray, "N 20 2 3"],
    other: Float[np.ndarray, "N 20 2 3"],
    prior: Float[np.ndarray, "N 6 6"],
) -> Float[np.ndarray, "N 6"]:
    """Return the shifts of both hands by Gauss-Newton; ``prior`` is their inverse covariance."""
    reach = radii()[:, None] + radii() - GIVE_M

    def at(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        distance, away = _between(one + x[:, None, None, :3], other + x[:, None, None, 3:])
        residual = np.maximum(reach - distance, 0).reshape(len(x), reach.size) / SHARPNESS_M
        cost = np.sum(residual**2, axis=1) + np.einsum("ni,nij,nj->n", x, prior, x)
        return residual, away.reshape(len(x), reach.size, 3), cost

    x = np.zeros((len(prior), 6))
    residual, away, cost = at(x)
    for _ in range(_ITERATIONS):
        slope = np.concatenate([-away, away], axis=-1) / SHARPNESS_M
        slope = slope * (residual > 0)[..., None]
        back = np.swapaxes(slope, 1, 2)
        gradient = back @ residual[..., None] + prior @ x[..., None]
        step = -np.linalg.solve(back @ slope + prior, gradient)[..., 0]
        for _ in range(_HALVINGS):
            worse = at(x + step)[2] > cost
            step[worse] *= 0.5
        x = np.where((at(x + step)[2] < cost)[:, None], x + step, x)
        residual, away, cost = at(x)
    return x


def _bones(joints: Float[np.ndarray, "*batch 21 3"]) -> Segments:
    return np.stack([joints[..., _PARENTS, :], joints[..., _CHILDREN, :]], axis=-2)


def _between(
    one: Float[np.ndarray, "*batch A 2 3"], other: Float[np.ndarray, "*batch B 2 3"]
) -> tuple[Float[np.ndarray, "*batch A B"], Float[np.ndarray, "*batch A B 3"]]:
    """Return distances of segments and unit vectors from the second (Ericson, RTCD, 5.1.9)."""
    start, back = one[..., :, None, 0, :], other[..., None, :, 0, :]
    u, v = one[..., :, None, 1, :] - start, other[..., None, :, 1, :] - back
    w = start - back
    a, e = np.maximum((u * u).sum(-1), 1e-18), np.maximum((v * v).sum(-1), 1e-18)
    b, c, f = (u * v).sum(-1), (u * w).sum(-1), (v * w).sum(-1)
    s = np.clip((b * f - c * e) / np.maximum(a * e - b * b, 1e-18), 0, 1)
    t = np.clip((b * s + f) / e, 0, 1)
    s = np.clip((b * t - c) / a, 0, 1)
    gap = w + s[..., None] * u - t[..., None] * v
    distance = np.linalg.norm(gap, axis=-1)
    return distance, gap / np.maximum(distance, 1e-9)[..., None]
