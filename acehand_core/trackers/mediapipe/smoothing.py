"""Smoothing and gap filling over a whole recording: both directions at once, so no lag.

The smoother is penalised least squares (Whittaker 1923): it minimises weighted squared distance to
the data plus lambda times squared second differences in time. Its half-gain frequency fixes lambda.
Frames without data have weight zero and are written by their neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import sparse
from scipy.sparse.linalg import splu

from acehand_core.geometry import rotations

#: Inside a gap a pull towards equal speed keeps the curve from swinging: it leaves the straight
#: line by at most the speed at the ends times this. (Real and rendered hands with frames withheld
#: are filled best with 0.2 s for bearings and depth, 0.07 s for angles and orientation.)
TENSION_S = 0.13


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

    Straight lines stay as they are, also where part of them is missing.

    Args:
        weights: relative trust, 1 for a normal frame; at least one must be positive.
        cutoff_hz: frequency whose amplitude is halved, at the median frame rate.
    """
    known = weights > 0
    if known.sum() == 1:
        return np.repeat(values[known], len(values), axis=0)
    if len(values) == 2:
        return values.copy()
    step = np.diff(seconds)
    nominal = float(np.median(step))

    # A sine's gain is 1 / (1 + lam (2 sin(pi f nominal))^4); beyond half the frame rate there is
    # nothing to halve, and lam keeps falling.
    half = cutoff_hz * nominal
    root = 2 * np.sin(np.pi * min(half, 0.5)) * max(1.0, 2 * half)
    bends, tension = _penalties(step / nominal, known)
    lam = root**-4
    normal = lam * (bends.T @ bends + tension.T @ tension * (nominal / TENSION_S) ** 2)
    trust = np.zeros(normal.shape[0])  # the unknowns are T values, then one slope per gap
    trust[: len(values)] = weights
    data = np.zeros((len(trust), values.shape[1]))
    data[: len(values)][known] = values[known] * weights[known, None]

    return splu((normal + sparse.diags_array(trust)).tocsc()).solve(data)[: len(values)]


def _penalties(
    step: Float[np.ndarray, "S"], known: Bool[np.ndarray, "T"]
) -> tuple[sparse.sparray, sparse.sparray]:
    """Return what is penalised, rows by (T values, then a slope per gap), steps in frames.

    Everywhere second differences; inside a gap how far a step is from its share of the whole gap.
    """
    count = len(known)
    left = np.flatnonzero(~(known[:-1] & known[1:]))  # the steps that a gap is made of
    gaps, gap = np.unique(np.cumsum(known)[left], return_inverse=True)
    h1, h2, width = step[:-1], step[1:], count + len(gaps)
    bends = sparse.diags_array(
        [2 / (h1 * (h1 + h2)), -2 / (h1 * h2), 2 / (h2 * (h1 + h2))],
        offsets=[0, 1, 2],
        shape=(count - 2, width),
    )
    root = np.sqrt(step[left])
    rows = np.arange(len(left))
    entries = np.concatenate([-1 / root, 1 / root, -root])
    where = np.tile(rows, 3), np.concatenate([left, left + 1, count + gap])
    return bends, sparse.coo_array((entries, where), shape=(len(left), width))


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
