"""Smooth base poses with limited acceleration, which a wrist can follow.

Each robot base follows the human palm, in the camera frame or, with camera poses, in the world. One
sparse QP (PIQP) per chunk of frames finds small corrections c of that motion for both hands,
rotations linearised about the frame's axes:

    min  sum w |c|^2 + s |second difference of the corrected motion|^2 + r |c_left - c_right|^2
    s.t. |second difference| <= limit

The last term keeps the hands' relative pose: both make a correction. There is no filter, hence no
lag. Frames without a hand stay as they are and separate the spans around them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import piqp
import scipy.sparse as sp
from jaxtyping import Float

from acehand_core.geometry import rotations
from acehand_core.types import PerHand, PerHandFlag

BasePoses = Float[np.ndarray, "T 2 4 4"]
Vectors = Float[np.ndarray, "T 2 3"]
Turns = Float[np.ndarray, "M 2 3 3"]

#: Frames solved together, and the look-ahead of a chunk beyond the frames it keeps.
CHUNK_FRAMES = 2048
LOOK_AHEAD = 64
#: Rounds of linearising rotations; positions need one.
_ROUNDS = 10
#: Weight of a frame of quality 0, such as a filled one.
_LEAST_WEIGHT = 0.05


@dataclass(frozen=True, slots=True)
class BaseLimits:
    """Limits of a wrist's acceleration (length of the vector) and weights of its smoothing.

    The defaults are assumed: above deliberate motion, below the 60 m/s2 at which others reject a
    clip. Smoothing halves a motion at ``cutoff_hz``; ``together`` weighs the relative pose of the
    hands against the place of each.
    """

    acceleration: float = 25.0
    angular_acceleration: float = 150.0
    cutoff_hz: float = 6.0
    together: float = 3.0


def smooth_bases(
    poses: BasePoses,
    active: PerHandFlag,
    weights: PerHand,
    fps: float,
    limits: BaseLimits = BaseLimits(),
) -> BasePoses:
    """Return base poses (``T_frame_base``, metres) within the limits; ``weights`` are 0 to 1."""
    smooth = poses.copy()
    for first in range(0, len(poses), CHUNK_FRAMES):
        stop = min(first + CHUNK_FRAMES, len(poses))
        # Two finished frames before the chunk give its velocity.
        rows = slice(max(0, first - 2), min(stop + LOOK_AHEAD, len(poses)))
        fixed = first - rows.start
        window = _Window(active[rows], weights[rows], fps, fixed, limits)
        start = smooth[rows].copy()
        solved = _smooth_rotations(window, start[..., :3, :3], poses[rows, :, :3, :3])
        smooth[first:stop, :, :3, :3] = solved[fixed : fixed + stop - first]
        solved = _smooth_positions(window, start[..., :3, 3])
        smooth[first:stop, :, :3, 3] = solved[fixed : fixed + stop - first]
    return np.where(active[..., None, None], smooth, poses)


@dataclass(frozen=True, slots=True, eq=False)
class _Window:
    """A run of frames solved together, of which the first ``fixed`` are finished."""

    active: PerHandFlag
    weights: PerHand
    fps: float
    fixed: int
    limits: BaseLimits

    def solve(
        self, turns: Turns, second: Float[np.ndarray, "N 2 3"], offset: Vectors, acceleration: float
    ) -> Vectors:
        """Return the corrections.

        Args:
            turns: rotation from each frame to the next (identities for positions), M = T - 1.
            second: second difference of the motion without corrections, N = T - 2.
            offset: corrections of earlier rounds.
            acceleration: the limit, per second squared.
        """
        operator = _second_differences(turns, self.active)
        bends = np.concatenate([second[:, hand].reshape(-1) for hand in (0, 1)])
        free = np.zeros(offset.shape, bool)
        free[self.fixed :] = self.active[self.fixed :, :, None]
        columns = np.flatnonzero(np.moveaxis(free, 1, 0).reshape(-1))
        rows = np.flatnonzero(np.diff(operator.indptr))
        operator, bends = operator[rows][:, columns].tocsc(), bends[rows]
        if len(columns) == 0:
            return np.zeros_like(offset)
        pull = self._data_cost(columns)
        smooth = 1.0 / (2 * np.pi * self.limits.cutoff_hz / self.fps) ** 4
        hessian = (pull + smooth * (operator.T @ operator)).tocsc()
        earlier = np.moveaxis(offset, 1, 0).reshape(-1)[columns]
        gradient = pull @ earlier + smooth * (operator.T @ bends)

        # Per axis, so that the length of the vector keeps the limit.
        bound = np.full(len(rows), acceleration / np.sqrt(3) / self.fps**2)
        solver = piqp.SparseSolver()
        solver.setup(hessian, gradient, None, None, operator, -bound - bends, bound - bends)
        solver.solve()
        flat = np.zeros(free.size)
        flat[columns] = solver.result.x
        return np.moveaxis(flat.reshape(2, len(offset), 3), 0, 1)

    def _data_cost(self, columns: np.ndarray) -> sp.csr_array:
        """Return the matrix of weights of corrections and of their difference between hands."""
        weight = np.maximum(self.weights, _LEAST_WEIGHT) * self.active
        both = np.repeat(self.active.all(axis=1), 3) * self.limits.together
        own = [np.repeat(weight[:, hand], 3) + both for hand in (0, 1)]
        # The small number keeps frames without a hand from making the matrix singular.
        left, right = (sp.diags_array(weights + 1e-9) for weights in own)
        between = sp.diags_array(-both)
        matrix = sp.block_array([[left, between], [between, right]], format="csr")
        return sp.csr_array(matrix[columns][:, columns])


def _smooth_positions(window: _Window, places: Vectors) -> Vectors:
    if len(places) < 3:
        return places
    turns = np.broadcast_to(np.eye(3), (len(places) - 1, 2, 3, 3))
    second = np.diff(places, n=2, axis=0)
    nothing = np.zeros_like(places)
    return places + window.solve(turns, second, nothing, window.limits.acceleration)


def _smooth_rotations(
    window: _Window, start: Float[np.ndarray, "T 2 3 3"], measured: Float[np.ndarray, "T 2 3 3"]
) -> Float[np.ndarray, "T 2 3 3"]:
    if len(start) < 3:
        return start
    current = start
    for _ in range(_ROUNDS):
        # From each frame to the next, about the frame's axes.
        turns = current[1:] @ np.swapaxes(current[:-1], -1, -2)
        second = np.diff(rotations.log(turns), axis=0)
        offset = rotations.log(current @ np.swapaxes(measured, -1, -2))
        step = window.solve(turns, second, offset, window.limits.angular_acceleration)
        current = rotations.exp(step) @ current
        if np.abs(step).max() < 1e-4:
            break
    return current


def _second_differences(turns: Turns, active: PerHandFlag) -> sp.csr_array:
    """Return the matrix from corrections, left hand first, to changes of second differences.

    With rotation D from frame t to t + 1, corrections c turn the velocity by ``c[t + 1] - D c[t]``.
    Rows of frames without a hand are empty.
    """
    count = len(turns) + 1
    blocks = []
    for hand in (0, 1):
        step = turns[:, hand]
        whole = active[:-2, hand] & active[1:-1, hand] & active[2:, hand]
        parts = (step[:-1], -np.eye(3) - step[1:], np.broadcast_to(np.eye(3), step[1:].shape))
        entries = np.stack(parts, axis=1) * whole[:, None, None, None]
        columns = np.arange(count - 2)[:, None] + np.arange(3)
        matrix = sp.bsr_array(
            (entries.reshape(-1, 3, 3), columns.reshape(-1), 3 * np.arange(count - 1)),
            shape=(3 * (count - 2), 3 * count),
        ).tocsr()
        matrix.eliminate_zeros()
        blocks.append(matrix)

    return sp.csr_array(sp.block_diag(blocks, format="csr"))
