"""Smoothing in time, in both directions at once, so that there is no lag.

It is penalised least squares (Whittaker 1923): weighted squared distance to the data plus lambda
times squared second differences in time. Its half-gain frequency fixes lambda. Frames without data
have weight zero and are filled in from their neighbours.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import sparse
from scipy.sparse.linalg import splu

from acehand_core.geometry import rotations
from acehand_core.hand import articulation
from acehand_core.hand.landmark_fit import Pose

#: Half-gain frequencies of the smoother. A camera sees bearings well and depth poorly.
BEARING_HZ, DEPTH_HZ, ORIENT_HZ, ANGLE_HZ = 8.0, 2.5, 6.0, 7.0
#: Inside a gap a pull towards equal speed keeps the curve from swinging: it leaves the straight
#: line by at most the speed at the ends times this. (Real and rendered hands with frames withheld
#: are filled best with 0.2 s for bearings and depth, 0.07 s for angles and orientation.)
TENSION_S = 0.13


def spans(
    observed: Bool[np.ndarray, "T"], timestamps_ns: Int[np.ndarray, "T"], max_gap_s: float
) -> list[slice]:
    """Return the frames of each appearance of a hand, from its first to its last sighting.

    One ends where the hand was away for longer than ``max_gap_s``.
    """
    seen = np.flatnonzero(observed)
    if len(seen) == 0:
        return []
    away = (timestamps_ns[seen[1:]] - timestamps_ns[seen[:-1]]) * 1e-9
    frame = np.median(np.diff(timestamps_ns)) * 1e-9 if len(timestamps_ns) > 1 else 0.0
    cuts = np.flatnonzero(away - frame > max_gap_s)
    starts = seen[np.concatenate([[0], cuts + 1])]
    stops = seen[np.concatenate([cuts, [len(seen) - 1]])] + 1
    return [slice(int(a), int(b)) for a, b in zip(starts, stops, strict=True)]


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


def smooth_pose(
    pose: Pose, weights: Float[np.ndarray, "T"], seconds: Float[np.ndarray, "T"]
) -> Pose:
    """Smooth a hand in the camera frame; frames of zero weight are filled."""
    z = pose.wrist[:, 2:]
    bearing = smooth(pose.wrist[:, :2] / z, weights, seconds, BEARING_HZ)
    depth = np.exp(smooth(np.log(z), weights, seconds, DEPTH_HZ))
    angles = smooth(pose.angles, weights, seconds, ANGLE_HZ)
    orient = smooth_rotations(pose.global_orient, weights, seconds, ORIENT_HZ)
    wrist = depth * np.concatenate([bearing, np.ones_like(depth)], axis=1)
    return Pose(orient, np.clip(angles, *articulation.limits()), wrist)


def smooth_turning_pose(
    pose: Pose,
    turns: Float[np.ndarray, "T 3 3"],
    weights: Float[np.ndarray, "T"],
    seconds: Float[np.ndarray, "T"],
) -> Pose:
    """Smooth a hand in a frame that its camera turns in; frames of zero weight are filled.

    Directions from the camera, which may lie anywhere in that frame, take the place of bearings,
    and the distance that of depth: a turn of the camera changes neither.

    Args:
        pose: in the camera frame, as is the result.
        turns: takes vectors of the camera frame to the one in which the hand is to be smooth.
    """
    back = np.swapaxes(turns, 1, 2)
    far = np.linalg.norm(pose.wrist, axis=1, keepdims=True)
    direction = smooth(
        (turns @ (pose.wrist / far)[..., None])[..., 0], weights, seconds, BEARING_HZ
    )
    direction /= np.maximum(np.linalg.norm(direction, axis=1, keepdims=True), 1e-9)
    distance = np.exp(smooth(np.log(far), weights, seconds, DEPTH_HZ))
    angles = smooth(pose.angles, weights, seconds, ANGLE_HZ)
    orient = smooth_rotations(turns @ pose.global_orient, weights, seconds, ORIENT_HZ)
    wrist = distance * (back @ direction[..., None])[..., 0]
    return Pose(back @ orient, np.clip(angles, *articulation.limits()), wrist)
