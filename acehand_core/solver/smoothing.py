"""Smoothing and gap filling over a whole recording: both directions at once, so no lag.

The smoother is penalised least squares (Whittaker 1923): it minimises weighted squared distance to
the data plus lambda times squared second differences in time. Its half-gain frequency fixes lambda.
Frames without data have weight zero and are written by their neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.linalg import solveh_banded

from acehand_core.geometry import rotations

#: Inside a gap a pull towards equal steps keeps the curve from swinging; it takes over at this
#: many frames.
TENSION_FRAMES = 10.0


@dataclass(frozen=True, slots=True)
class Span:
    """Frames ``start`` to ``stop - 1`` between the first and last sighting of one appearance."""

    start: int
    stop: int


def spans(
    observed: Bool[np.ndarray, "T"], timestamps_ns: Int[np.ndarray, "T"], max_gap_s: float
) -> list[Span]:
    """Split the sightings of a hand where it was away for longer than ``max_gap_s``."""
    seen = np.flatnonzero(observed)
    if len(seen) == 0:
        return []
    away = (timestamps_ns[seen[1:]] - timestamps_ns[seen[:-1]]) * 1e-9
    frame = np.median(np.diff(timestamps_ns)) * 1e-9 if len(timestamps_ns) > 1 else 0.0
    cuts = np.flatnonzero(away - frame > max_gap_s)
    starts = seen[np.concatenate([[0], cuts + 1])]
    stops = seen[np.concatenate([cuts, [len(seen) - 1]])] + 1
    return [Span(int(a), int(b)) for a, b in zip(starts, stops, strict=True)]


def smooth(
    values: Float[np.ndarray, "T D"],
    weights: Float[np.ndarray, "T"],
    seconds: Float[np.ndarray, "T"],
    cutoff_hz: float,
) -> Float[np.ndarray, "T D"]:
    """Smooth columns over uneven times; values of zero weight are ignored and replaced.

    Args:
        weights: relative trust, 1 for a normal frame; at least one must be positive.
        cutoff_hz: frequency whose amplitude is halved.
    """
    count = len(values)
    if count < 3:
        filled = np.average(values, axis=0, weights=weights)
        return np.where(weights[:, None] > 0, values, filled)
    step = np.diff(seconds)
    nominal = float(np.median(step))
    lam = (1 / (2 * np.pi * cutoff_hz * nominal)) ** 4
    h1, h2 = step[:-1] / nominal, step[1:] / nominal
    second = np.stack([2 / (h1 * (h1 + h2)), -2 / (h1 * h2), 2 / (h2 * (h1 + h2))])
    second *= np.sqrt(lam)
    bands = np.zeros((3, count))  # lower form: diagonal, first, second
    bands[0] = weights + 1e-9
    bands[0, :-2] += second[0] ** 2
    bands[0, 1:-1] += second[1] ** 2
    bands[0, 2:] += second[2] ** 2
    bands[1, :-2] += second[0] * second[1]
    bands[1, 1:-1] += second[1] * second[2]
    bands[2, :-2] += second[0] * second[2]
    gap = (weights[:-1] == 0) | (weights[1:] == 0)
    tension = gap * lam / TENSION_FRAMES**2 / (step / nominal) ** 2
    bands[0, :-1] += tension
    bands[0, 1:] += tension
    bands[1, :-1] -= tension
    data = np.where(weights[:, None] > 0, values, 0.0) * weights[:, None]
    return solveh_banded(bands, data, lower=True)


def smooth_rotations(
    rotation: Float[np.ndarray, "T 3 3"],
    weights: Float[np.ndarray, "T"],
    seconds: Float[np.ndarray, "T"],
    cutoff_hz: float,
) -> Float[np.ndarray, "T 3 3"]:
    """Smooth rotations as unit quaternions of one sign; frames of zero weight are ignored."""
    q = rotations.to_quaternion(rotation)
    known = np.flatnonzero(weights > 0)
    aligned = q[known]
    flips = np.cumprod(np.where(np.sum(aligned[1:] * aligned[:-1], axis=1) < 0, -1.0, 1.0))
    aligned[1:] *= flips[:, None]
    q = np.zeros_like(q)
    q[known] = aligned
    return rotations.from_quaternion(smooth(q, weights, seconds, cutoff_hz))
