"""Joint fit of all frames of a hand to its landmarks, with a smoothness prior.

Each frame weighs by the information of its landmarks, direction by direction; adjacent frames
decide what its own leave open, such as the sign of a tilt. The prior is Whittaker's (1923), squared
second differences, scaled to halve the amplitude at a given frequency at median certainty.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.linalg import LinAlgError, solveh_banded

from acehand_core.geometry import rotations
from acehand_core.hand import articulation
from acehand_core.hand.evidence import Evidence, Pose
from acehand_core.hand.landmark_fit import FrameProblem
from acehand_core.hand.pose_fit import quadratic
from acehand_core.types import Side

_SIZE = FrameProblem.UNKNOWNS
#: Smoothed features: direction from the camera (3), log distance, angles (22), orientation (3).
_FEATURES = 29
#: Information added to every unknown, in units of the unknowns: keeps the system regular.
_FLOOR = 1e-9
_MAX_TRIALS = 6
_ROWS = 256

Turns = Float[np.ndarray, "N 3 3"]
Seconds = Float[np.ndarray, "N"]
Covariances = Float[np.ndarray, "N 28 28"]


@dataclass(frozen=True, slots=True)
class HalfGain:
    """Frequencies in Hz at which the amplitude of a hand's motion is halved."""

    bearing: float
    depth: float
    orient: float
    angle: float


@dataclass(frozen=True, slots=True)
class ClipFit:
    """Poses of N frames and the covariances of their 28 unknowns, in the order of ``FrameProblem``.

    Covariances assume independent landmark errors: ``covariance`` from all frames together,
    ``alone`` from each frame's own landmarks.
    """

    pose: Pose
    covariance: Covariances
    alone: Covariances


def fit_clip(
    pose: Pose,
    evidence: Evidence,
    side: Side,
    rest: Float[np.ndarray, "21 3"],
    seconds: Seconds,
    turns: Turns,
    trust: Float[np.ndarray, "N"],
    half_gain: HalfGain,
    iterations: int = 6,
) -> ClipFit:
    """Fit all frames of one appearance of a hand together.

    Args:
        pose: start, as from ``landmark_fit.refine``.
        seconds: frame times, increasing.
        turns: rotations from the camera frame to the frame of the smoothness prior.
        trust: factor on the information of each frame, above 0.
    """
    smoothness = _Smoothness(seconds, turns) if len(seconds) > 2 else None
    if smoothness is not None:
        frames = FrameProblem(evidence, side, rest, pose.global_orient, use_pixels=True)
        start = frames.start(pose)
        smoothness.set_strength(_system(frames, start, trust), half_gain)
        pose = _solve(frames, start, trust, smoothness, iterations)

    frames = FrameProblem(evidence, side, rest, pose.global_orient, use_pixels=True)
    system = _system(frames, frames.start(pose), trust)
    alone = np.linalg.inv(system.own + _FLOOR * np.eye(_SIZE))
    if smoothness is None:
        return ClipFit(pose, alone, alone)
    return ClipFit(pose, _marginals(*smoothness.normal(system)[:3]), alone)


@dataclass(frozen=True, slots=True)
class _System:
    """Unknowns of all frames, their orientations, and the weighted squares of their residuals."""

    x: Float[np.ndarray, "N 28"]
    orient: Turns
    cost: float
    gradient: Float[np.ndarray, "N 28"]
    own: Covariances  # half the Hessian: J^T J


def _system(frames: FrameProblem, x: np.ndarray, trust: np.ndarray) -> _System:
    # In parts: the derivatives of all frames together would take 28 kB a frame.
    rows = np.split(np.arange(len(x)), range(_ROWS, len(x), _ROWS))
    parts = zip(*(quadratic(*frames(x[part], part)) for part in rows), strict=True)
    cost, gradient, own = (np.concatenate(part) for part in parts)
    weighted = trust[:, None] * gradient, trust[:, None, None] * own
    return _System(x, frames.orient(x), float(trust @ cost), *weighted)


def _solve(
    frames: FrameProblem, x: np.ndarray, trust: np.ndarray, smoothness: _Smoothness, iterations: int
) -> Pose:
    """Levenberg-Marquardt over all frames together, angles within their limits."""
    low, high = frames.limits()
    system, damping = _system(frames, x, trust), 1e-3
    cost = system.cost + smoothness.cost(system)

    for _ in range(iterations):
        diagonal, near, far, gradient = smoothness.normal(system)
        outwards = ((system.x <= low) & (gradient > 0)) | ((system.x >= high) & (gradient < 0))
        for _ in range(_MAX_TRIALS):
            step = _step(diagonal, near, far, gradient, outwards, damping)
            trial = _system(frames, np.clip(system.x + step, low, high), trust)
            trial_cost = trial.cost + smoothness.cost(trial)
            if trial_cost < cost:
                break
            damping *= 10
        else:
            break
        settled = cost - trial_cost < 1e-4 * cost
        system, cost, damping = trial, trial_cost, max(damping * 0.2, 1e-9)
        if settled:
            break

    return frames.pose(system.x)


class _Smoothness:
    """Weighted second differences of N frames at uneven times."""

    def __init__(self, seconds: Seconds, turns: Turns) -> None:
        step = np.diff(seconds)
        self._frame_s = float(np.median(step))
        before, after = step[:-1] / self._frame_s, step[1:] / self._frame_s
        both = before + after
        # Of three values, and of the two turns between them.
        self._values = 2 / np.stack([before * both, -before * after, after * both])
        self._turns_between = 2 / np.stack([-before * both, after * both])
        self._turns = turns
        self._strength = np.ones(_FEATURES)

    def set_strength(self, system: _System, half_gain: HalfGain) -> None:
        """Scale the second differences to the median certainty of the frames."""
        covariance = np.linalg.inv(system.own + _FLOOR * np.eye(_SIZE))
        slopes = self._slopes(system)
        variance = np.median(np.einsum("nfi,nij,nfj->nf", slopes, covariance, slopes), axis=0)
        variance[:3], variance[26:] = variance[:3].mean(), variance[26:].mean()
        hertz = np.repeat(
            [half_gain.bearing, half_gain.depth, half_gain.angle, half_gain.orient], [3, 1, 22, 3]
        )
        # As in the trackers' ``gaps.smooth``; capped at half the frame rate.
        half = hertz * self._frame_s
        gain = 2 * np.sin(np.pi * np.minimum(half, 0.5)) * np.maximum(1.0, 2 * half)
        self._strength = gain**-2 / np.sqrt(np.maximum(variance, 1e-18))

    def cost(self, system: _System) -> float:
        return float(np.sum(self._bends(system) ** 2))

    def normal(self, system: _System) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return the normal equations of frames and smoothness together.

        Blocks (28, 28) of each frame, of each with the next, and with the one after that (as
        columns); and half the gradient (N, 28).
        """
        bends, slopes = self._bends(system), self._slopes(system) * self._strength[:, None]
        transposed = np.swapaxes(slopes, 1, 2)
        same = transposed @ slopes
        weights, last = self._values, len(slopes) - 2
        diagonal, gradient = system.own + _FLOOR * np.eye(_SIZE), system.gradient.copy()
        near = np.zeros((last + 1, _SIZE, _SIZE))
        for k in range(3):
            part = slice(k, last + k)
            diagonal[part] += weights[k][:, None, None] ** 2 * same[part]
            gradient[part] += weights[k][:, None] * (transposed[part] @ bends[..., None])[..., 0]
            if k < 2:
                pairs = transposed[part] @ slopes[k + 1 : last + k + 1]
                near[part] += (weights[k] * weights[k + 1])[:, None, None] * pairs
        far = (weights[0] * weights[2])[:, None, None] * (transposed[:-2] @ slopes[2:])
        return diagonal, near, far, gradient

    def _bends(self, system: _System) -> Float[np.ndarray, "M 29"]:
        """Return weighted second differences; for the orientation, differences of its turns."""
        ray, far = _rays(system.x)
        direction = (self._turns @ (ray / far)[..., None])[..., 0]
        plain = np.concatenate([direction, system.x[:, 5:6] + np.log(far), system.x[:, 6:]], axis=1)
        last = len(plain) - 2
        second = sum(self._values[k][:, None] * plain[k : last + k] for k in range(3))
        orient = self._turns @ system.orient
        turn = rotations.log(orient[1:] @ np.swapaxes(orient[:-1], 1, 2))
        swing = sum(self._turns_between[k][:, None] * turn[k : last + k] for k in range(2))
        return np.concatenate([second, swing], axis=1) * self._strength

    def _slopes(self, system: _System) -> Float[np.ndarray, "N 29 28"]:
        """Return the derivatives of the smoothed features.

        Turns between frames are small, so orientations turn about one frame's axes.
        """
        ray, far = _rays(system.x)
        unit = ray / far
        by_ray = (np.eye(3) - unit[:, :, None] * unit[:, None, :]) / far[..., None]
        slopes = np.zeros((len(ray), _FEATURES, _SIZE))
        slopes[:, :3, 3:5] = (self._turns @ by_ray)[..., :2]
        slopes[:, 3, 3:5] = ray[:, :2] / far**2
        slopes[:, 3, 5] = 1.0
        slopes[:, 4:26, 6:] = np.eye(22)
        slopes[:, 26:, :3] = self._turns @ rotations.left_jacobian(system.x[:, :3])
        return slopes


def _rays(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (x/z, y/z, 1) of the wrists, and its length (N, 1)."""
    ray = np.concatenate([x[:, 3:5], np.ones((len(x), 1))], axis=1)
    return ray, np.linalg.norm(ray, axis=1, keepdims=True)


def _step(
    diagonal: np.ndarray,
    near: np.ndarray,
    far: np.ndarray,
    gradient: np.ndarray,
    resting: np.ndarray,
    damping: float,
) -> np.ndarray:
    """Return the damped step (N, 28); unknowns resting at a bound stay."""
    count, free = len(diagonal), ~resting
    # The columns of the matrix of each frame's unknowns, as rows: blocks with its own unknowns,
    # with the next frame's, and with those of the frame after that.
    columns, moving = np.zeros((count, _SIZE, 3 * _SIZE)), np.zeros((count, 3 * _SIZE), bool)
    for reach, blocks in enumerate((diagonal, near, far)):
        part = slice(reach * _SIZE, (reach + 1) * _SIZE)
        columns[: count - reach, :, part] = blocks
        moving[: count - reach, part] = free[reach:]
    columns *= free[:, :, None] & moving[:, None]
    at = np.einsum("nii->ni", columns[..., :_SIZE])  # a view
    at += damping * at
    at[resting] = 1.0

    # The lower band, with (i, j) at [i - j, j].
    band = np.zeros((count, _SIZE, 3 * _SIZE))
    for j in range(_SIZE):
        band[:, j, : 3 * _SIZE - j] = columns[:, j, j:]
    matrix, right = band.reshape(-1, 3 * _SIZE).T, np.where(resting, 0.0, -gradient).ravel()
    try:
        step = solveh_banded(matrix, right, overwrite_ab=True, lower=True, check_finite=False)
    except LinAlgError:
        return np.zeros((count, _SIZE))
    return step.reshape(count, _SIZE)


def _marginals(diagonal: np.ndarray, near: np.ndarray, far: np.ndarray) -> Covariances:
    """Return the diagonal blocks of the inverse of a matrix of such blocks.

    In pairs of frames the matrix is block tridiagonal: one elimination forwards, one pass back.
    """
    count = len(diagonal)
    if count % 2:
        last = np.zeros((1, _SIZE, _SIZE))
        diagonal = np.concatenate([diagonal, np.eye(_SIZE)[None]])
        near, far = np.concatenate([near, last]), np.concatenate([far, last])
    pairs, one, two = len(diagonal) // 2, slice(_SIZE), slice(_SIZE, None)
    own = np.zeros((pairs, 2 * _SIZE, 2 * _SIZE))
    own[:, one, one], own[:, two, two] = diagonal[::2], diagonal[1::2]
    own[:, one, two], own[:, two, one] = near[::2], np.swapaxes(near[::2], 1, 2)
    to_next, end = np.zeros((pairs - 1, 2 * _SIZE, 2 * _SIZE)), 2 * pairs - 2
    to_next[:, one, one], to_next[:, two, two] = far[:end:2], far[1:end:2]
    to_next[:, two, one] = near[1:end:2]

    # In place: inverses of the pairs' matrices, and the gains of their couplings.
    own[0] = np.linalg.inv(own[0])
    for k in range(pairs - 1):
        gain = own[k] @ to_next[k]
        own[k + 1] = np.linalg.inv(own[k + 1] - to_next[k].T @ gain)
        to_next[k] = gain
    for k in range(pairs - 2, -1, -1):
        own[k] += to_next[k] @ own[k + 1] @ to_next[k].T

    marginal = np.empty((2 * pairs, _SIZE, _SIZE))
    marginal[::2], marginal[1::2] = own[:, one, one], own[:, two, two]
    return marginal[:count]


def joint_slopes(
    pose: Pose, side: Side, rest: Float[np.ndarray, "21 3"]
) -> Float[np.ndarray, "N 21 3 28"]:
    """Return the derivatives of joints, camera frame, metres, by the 28 unknowns of a frame."""
    chain, by_angle = articulation.keypoints_with_jacobian(pose.angles, side, rest)
    arms = chain @ np.swapaxes(pose.global_orient, 1, 2)
    slopes = np.zeros((*arms.shape, _SIZE))
    slopes[..., :3] = -rotations.skew(arms)
    slopes[:, :, 0, 3] = slopes[:, :, 1, 4] = pose.wrist[:, 2:]
    slopes[..., 5] = pose.wrist[:, None]
    slopes[..., 6:] = pose.global_orient[:, None] @ by_angle
    return slopes
