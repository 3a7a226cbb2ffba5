"""Rotations that agree with all turns that were measured between frames.

Turns from frame to frame add up to a drift. Turns between frames far apart that show the same scene
(closures) take it away, and join pieces on both sides of a step that is not known.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import sparse
from scipy.sparse.linalg import spsolve

from acehand_core.camera_motion.pose import Matrix3, angle
from acehand_core.geometry import rotations

#: Errors of steps are alike over about so many frames, and so grow faster than their root.
_ALIKE = 6
#: Closures that are off by more than this many standard deviations lose their weight.
_ROBUST = 3.0
_ROUNDS = 8
#: A closure that leads over a broken step must tell it as well as this, rad.
_BRIDGE_SIGMA = np.radians(1.2)
#: A closure between two pieces has nothing to be checked by: its standard deviation counts for so
#: many.
_UNCHECKED = 1.5
#: So many frames that show nothing are passed over; off by this at least, and this share of a step.
_GAP_FRAMES, _GAP_SIGMA, _GAP_SHARE = 3, np.radians(0.3), 0.3


@dataclass(frozen=True, slots=True)
class Closure:
    """``R_a_b`` between two frames, a before b, and its standard deviation, rad."""

    a: int
    b: int
    R: Matrix3
    sigma: float


def agreed(
    R: Float[np.ndarray, "T 3 3"],
    sigma: Float[np.ndarray, "T"],
    broken: Bool[np.ndarray, "T"],
    empty: Bool[np.ndarray, "T"],
    closures: list[Closure],
) -> tuple[Float[np.ndarray, "T 3 3"], Float[np.ndarray, "T"], Bool[np.ndarray, "T"]]:
    """Return rotations that agree with steps and closures, their sigma and which are broken now.

    Args:
        R: R_reference_camera of T frames, each piece with a reference of its own.
        sigma: of the step to each frame, rad; nothing is known of it where it is ``broken``.
        empty: frames that show nothing and are pieces by themselves.
        closures: turns between two frames each.
    """
    run = np.cumsum(broken)
    R, part = _joined(R, run, closures)
    R = _averaged(R, run, sigma, closures)
    R, sigma, broken = _bridged(R, part, sigma, broken, empty, closures)

    # The first frame of each piece is its reference.
    first = np.flatnonzero(broken | (np.arange(len(R)) == 0))
    start = first[np.cumsum(broken)] if len(R) else first
    return np.swapaxes(R[start], 1, 2) @ R, sigma, broken


def _joined(
    R: Float[np.ndarray, "T 3 3"], run: Int[np.ndarray, "T"], closures: list[Closure]
) -> tuple[Float[np.ndarray, "T 3 3"], Int[np.ndarray, "T"]]:
    """Return rotations in one reference where closures join runs, and the number of that."""
    R, part = R.copy(), run.copy()
    for c in sorted(closures, key=lambda c: c.sigma):
        if part[c.a] != part[c.b]:
            which = part == part[c.b]
            R[which] = R[c.a] @ c.R @ R[c.b].T @ R[which]
            part[which] = part[c.a]
    return R, part


def _averaged(
    R: Float[np.ndarray, "T 3 3"],
    run: Int[np.ndarray, "T"],
    sigma: Float[np.ndarray, "T"],
    closures: list[Closure],
) -> Float[np.ndarray, "T 3 3"]:
    """Return the rotations that fit best, by reweighted least squares over ends of closures."""
    if not closures:
        return R
    nodes = np.unique([n for c in closures for n in (c.a, c.b)])
    path = _path(sigma)
    one = np.flatnonzero(run[nodes[:-1]] == run[nodes[1:]])
    ends = [np.searchsorted(nodes, (c.a, c.b)) for c in closures]
    i, j = np.concatenate([np.stack([one, one + 1], -1), ends]).T
    turns = np.swapaxes(R[nodes[one]], 1, 2) @ R[nodes[one + 1]]
    turns = np.concatenate([turns, [c.R for c in closures]])
    chain = path[nodes[one + 1]] - path[nodes[one]]
    variance = np.concatenate([chain, [c.sigma**2 for c in closures]])
    closes = np.arange(len(variance)) >= len(one)

    drift = np.abs(path[nodes[j]] - path[nodes[i]])
    at, M = R[nodes], len(nodes)
    for number in range(_ROUNDS):
        # In the reference: what each second end is off by, as the first one and the turn have it.
        off = rotations.log(at[j] @ np.swapaxes(turns, 1, 2) @ np.swapaxes(at[i], 1, 2))
        # At first a closure may be off by the drift.
        usual = variance + drift * 0.25**number
        much = np.where(closes, (off**2).sum(1) / (_ROBUST**2 * usual), 0.0)
        weight = 1 / variance / (1 + much) ** 2
        incidence = sparse.csr_matrix(
            (np.repeat([-1.0, 1.0], len(i)), (np.tile(np.arange(len(i)), 2), np.append(i, j))),
            shape=(len(i), M),
        )
        weighted = sparse.diags(weight) @ incidence
        # The whole may turn as it likes; a little weight holds it.
        H = incidence.T @ weighted + 1e-6 * weight.mean() * sparse.eye(M)
        at = rotations.exp(-spsolve(sparse.csc_matrix(H), weighted.T @ off).reshape(M, 3)) @ at
    return _carried(R, run, path, nodes, at)


def _carried(
    R: np.ndarray, run: np.ndarray, path: np.ndarray, nodes: np.ndarray, at: np.ndarray
) -> Float[np.ndarray, "T 3 3"]:
    """Return all rotations, those between two nodes moved as far as ``path`` is between these."""
    R = R.copy()
    moves = at @ np.swapaxes(R[nodes], 1, 2)
    for number in np.unique(run[nodes]):
        of, frames = np.flatnonzero(run[nodes] == number), np.flatnonzero(run == number)
        after = np.searchsorted(nodes[of], frames).clip(0, len(of) - 1)
        a, b = of[np.maximum(after - 1, 0)], of[after]
        share = (path[frames] - path[nodes[a]]) / np.maximum(path[nodes[b]] - path[nodes[a]], 1e-12)
        R[frames] = rotations.slerp(moves[a], moves[b], share.clip(0.0, 1.0)) @ R[frames]
    return R


def _path(sigma: Float[np.ndarray, "T"]) -> Float[np.ndarray, "T"]:
    """Return the variance of each frame's rotation since the first, should all steps be known."""
    return np.asarray(_ALIKE * np.cumsum(sigma**2) + 1e-9 * np.arange(len(sigma)))


def _bridged(
    R: np.ndarray,
    part: np.ndarray,
    sigma: np.ndarray,
    broken: np.ndarray,
    empty: np.ndarray,
    closures: list[Closure],
) -> tuple[Float[np.ndarray, "T 3 3"], Float[np.ndarray, "T"], Bool[np.ndarray, "T"]]:
    """Return all without the broken steps that closures over them tell well enough.

    Of frames between that show nothing a few are passed over at an even pace.
    """
    path, shown = _path(np.where(broken, 1.0, sigma)), np.flatnonzero(~empty)
    R, sigma, broken = R.copy(), sigma.copy(), broken.copy()
    for a, b in pairwise(shown):
        over = [c for c in closures if c.a <= a and b <= c.b]
        gap = b - a - 1
        if not broken[a + 1 : b + 1].any() or part[a] != part[b] or not over or gap > _GAP_FRAMES:
            continue
        variance = min(
            (_UNCHECKED * c.sigma) ** 2 + path[c.b] - path[b] + path[a] - path[c.a]
            + angle(c.R.T @ R[c.a].T @ R[c.b]) ** 2
            for c in over
        )  # fmt: skip
        if gap:
            step = angle(R[a].T @ R[b]) / (gap + 1)
            variance += _GAP_SIGMA**2 + (_GAP_SHARE * step) ** 2
        if variance < _BRIDGE_SIGMA**2:
            share = np.arange(1, gap + 1) / (gap + 1)
            R[a + 1 : b] = rotations.slerp(R[[a] * gap], R[[b] * gap], share)
            sigma[a + 1 : b + 1], broken[a + 1 : b + 1] = np.sqrt(variance), False
    return R, sigma, broken
