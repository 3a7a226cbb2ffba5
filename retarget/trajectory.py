"""The whole trajectory at once: sequential quadratic programming with hard limits.

Each round linearises the pose objective in every frame and solves one sparse QP over all frames,
with acceleration as a cost and angles and speeds as constraints (PIQP, an interior-point solver
that is linear in the number of frames). There is no filter, so there is no lag.
"""

from __future__ import annotations

import numpy as np
import piqp
import scipy.sparse as sp
from jaxtyping import Float

from retarget.limits import CommandLimits, Commands
from retarget.objective import PoseObjective

#: Frames solved together, and how far a chunk looks beyond the frames it keeps.
CHUNK_FRAMES = 1024
LOOK_AHEAD = 64
#: A round moves no joint further: beyond it the linearisation says nothing.
TRUST_RAD = 0.5
ROUNDS = 12
CONVERGED_RAD = 1e-4


def solve_trajectory(
    objective: PoseObjective,
    limits: CommandLimits,
    start: Commands,
    acceleration: float,
) -> Commands:
    """Return commands that minimise the objective and keep every limit exactly.

    Args:
        start: first guess per frame.
        acceleration: weight of squared second differences (rad per frame squared).
    """
    count = len(start)
    out = np.empty_like(start)
    for first in range(0, count, CHUNK_FRAMES):
        stop = min(first + CHUNK_FRAMES, count)
        ahead = min(stop + LOOK_AHEAD, count)
        rows = slice(first, ahead)
        history = out[max(0, first - 2) : first]
        solved = _solve_chunk(objective, limits, start[rows], rows, history, acceleration)
        out[first:stop] = solved[: stop - first]
    return out


def _solve_chunk(
    objective: PoseObjective,
    limits: CommandLimits,
    start: Commands,
    rows: slice,
    history: Float[np.ndarray, "H C"],
    acceleration: float,
) -> Commands:
    """Solve one run of frames that follows ``history`` (up to two finished frames)."""
    previous = history[-1] if len(history) else None
    x = limits.enforce(start, previous)
    smooth, pull = _acceleration_cost(len(x), x.shape[1], history, acceleration)
    rate = _differences(len(x), x.shape[1], previous is not None)
    cost = _cost(objective, x, rows, smooth, pull)
    trust = TRUST_RAD
    for _ in range(ROUNDS):
        residual, jacobian = objective(x, rows)
        step = _solve_qp(residual, jacobian, x, smooth, pull, rate, limits, previous, trust)
        trial = limits.enforce(x + step, previous)
        trial_cost = _cost(objective, trial, rows, smooth, pull)
        if trial_cost > cost:
            trust *= 0.25
            if trust < CONVERGED_RAD:
                break
            continue
        moved = float(np.abs(trial - x).max())
        x, cost = trial, trial_cost
        if moved < CONVERGED_RAD:
            break
    return x


def _solve_qp(
    residual: Float[np.ndarray, "T M"],
    jacobian: Float[np.ndarray, "T M C"],
    x: Commands,
    smooth: sp.csc_array,
    pull: Float[np.ndarray, "N"],
    rate: sp.csc_array,
    limits: CommandLimits,
    previous: Float[np.ndarray, "C"] | None,
    trust: float,
) -> Commands:
    """Return the step that minimises the linearised cost within the limits."""
    transposed = np.swapaxes(jacobian, 1, 2)
    blocks = transposed @ jacobian
    gradient = (transposed @ residual[..., None])[..., 0].reshape(-1)
    flat = x.reshape(-1)
    hessian = (_block_diagonal(blocks) + smooth).tocsc()
    gradient = gradient + smooth @ flat + pull
    low = np.maximum(limits.lower - x, -trust).reshape(-1)
    high = np.minimum(limits.upper - x, trust).reshape(-1)
    solver = piqp.SparseSolver()
    if np.isfinite(limits.step).all() and rate.shape[0]:
        moves = rate @ flat
        if previous is not None:
            moves[: x.shape[1]] -= previous
        bound = np.tile(limits.step, rate.shape[0] // x.shape[1])
        solver.setup(hessian, gradient, None, None, rate, -bound - moves, bound - moves, low, high)
    else:
        solver.setup(hessian, gradient, None, None, None, None, None, low, high)
    status = solver.solve()
    if status != piqp.PIQP_SOLVED and not np.isfinite(solver.result.x).all():
        return np.zeros_like(x)
    return solver.result.x.reshape(x.shape)


def _cost(
    objective: PoseObjective, x: Commands, rows: slice, smooth: sp.csc_array, pull: np.ndarray
) -> float:
    residual, _ = objective(x, rows)
    flat = x.reshape(-1)
    return 0.5 * float((residual**2).sum() + flat @ (smooth @ flat)) + float(pull @ flat)


def _differences(count: int, columns: int, from_history: bool) -> sp.csc_array:
    """Return the matrix of first differences; its first rows step from the finished frame."""
    matrix = sp.eye_array(count, format="csr") - sp.eye_array(count, k=-1, format="csr")
    return sp.kron(matrix if from_history else matrix[1:], sp.eye_array(columns)).tocsc()


def _acceleration_cost(
    count: int, columns: int, history: Float[np.ndarray, "H C"], weight: float
) -> tuple[sp.csc_array, Float[np.ndarray, "N"]]:
    """Return matrix A and vector b of ``x A x / 2 + b x``: second differences, history included."""
    done = len(history)
    total = count + done
    if total < 3:
        return sp.csc_array((count * columns, count * columns)), np.zeros(count * columns)
    second = sp.diags_array([1.0, -2.0, 1.0], offsets=[0, 1, 2], shape=(total - 2, total))
    full = weight * (second.T @ second).tocsr()
    pull = (full[done:, :done] @ history).reshape(-1) if done else np.zeros(count * columns)
    return sp.kron(full[done:, done:], sp.eye_array(columns)).tocsc(), pull


def _block_diagonal(blocks: Float[np.ndarray, "T C C"]) -> sp.csr_array:
    count, size, _ = blocks.shape
    indices = np.arange(count * size).reshape(count, 1, size).repeat(size, 1).reshape(-1)
    indptr = np.arange(0, count * size * size + 1, size)
    return sp.csr_array((blocks.reshape(-1), indices, indptr), shape=(count * size, count * size))
