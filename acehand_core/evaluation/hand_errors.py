"""Errors of one hand against another, many hands at once. Metres in, the unit of the table out."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float

from acehand_core.geometry import rotations

Hands = Float[np.ndarray, "N 21 3"]
PerRow = Float[np.ndarray, "N"]


def mpjpe_mm(predicted: Hands, truth: Hands) -> PerRow:
    """Return the mean distance of the joints, each hand relative to its own wrist."""
    a, b = predicted - predicted[:, :1], truth - truth[:, :1]
    return 1e3 * np.linalg.norm(a - b, axis=-1).mean(-1)


def pa_mm(predicted: Hands, truth: Hands) -> PerRow:
    """Return the mean distance after the best rotation, translation and scale of the prediction.

    A prediction whose joints coincide has no size to scale: it is compared as a point.
    """
    a = predicted - predicted.mean(1, keepdims=True)
    b = truth - truth.mean(1, keepdims=True)
    u, singular, vt = np.linalg.svd(np.swapaxes(b, 1, 2) @ a)
    flip = np.ones((len(a), 3))
    flip[:, 2] = np.where(np.linalg.det(u @ vt) < 0, -1.0, 1.0)
    rotation = (u * flip[:, None]) @ vt
    size = (a**2).sum((1, 2))
    scale = np.where(size > 1e-12, (singular * flip).sum(1) / np.where(size > 1e-12, size, 1), 0.0)
    aligned = scale[:, None, None] * (a @ np.swapaxes(rotation, 1, 2))
    return 1e3 * np.linalg.norm(aligned - b, axis=-1).mean(-1)


def epe_px(
    predicted: Float[np.ndarray, "N 21 2"],
    truth: Float[np.ndarray, "N 21 2"],
    counted: Bool[np.ndarray, "N 21"],
    diagonal: float,
) -> Float[np.ndarray, "N 21"]:
    """Return the distance of every counted joint in pixels, NaN of the others.

    A joint that the prediction puts nowhere in the image plane (behind the camera) is charged the
    image diagonal, like a joint of a missed hand.
    """
    distance = np.linalg.norm(predicted - truth, axis=-1)
    distance = np.where(np.isfinite(distance), distance, diagonal)
    return np.where(counted, distance, np.nan)


def go_deg(predicted: Float[np.ndarray, "N 3 3"], truth: Float[np.ndarray, "N 3 3"]) -> PerRow:
    """Return the geodesic angle between two orientations."""
    return np.degrees(rotations.angle_between(predicted, truth)).reshape(len(predicted))


def jitter_runs(
    assembled: Float[np.ndarray, "T 21 3"], matched: Bool[np.ndarray, "T"]
) -> list[tuple[float, int]]:
    """Return, per run of three or more matched frames, its mean second difference and their number.

    In mm per frame squared, mean over joints. ``assembled`` are joints relative to the wrist plus
    the translation, metres; frames that are not matched end a run and are not read.
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[False], matched, [False]]).astype(int)))
    out = []
    for start, stop in edges.reshape(-1, 2):
        if stop - start >= 3:
            second = np.linalg.norm(np.diff(assembled[start:stop], 2, axis=0), axis=-1)
            out.append((1e3 * float(second.mean()), int(stop - start - 2)))
    return out
