"""Bounded Levenberg-Marquardt for many small independent problems at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

_SMALLEST_DAMPING, _LARGEST_DAMPING = 1e-12, 1e8
_BLOCK = 256  # rows worked on together: bounds memory and fits the cache

#: (unknowns (n, P), rows (n,)) to residuals (n, M) and their Jacobian (n, M, P).
ResidualsAndJacobian = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True, slots=True)
class Solution:
    """The best unknowns found, the sum of squared residuals there, and which rows settled."""

    x: Float[np.ndarray, "N P"]
    cost: Float[np.ndarray, "N"]
    converged: Bool[np.ndarray, "N"]


def solve(
    residuals_and_jacobian: ResidualsAndJacobian,
    x0: Float[np.ndarray, "N P"],
    low: Float[np.ndarray, "*rows P"],
    high: Float[np.ndarray, "*rows P"],
    iterations: int = 20,
    tolerance: float = 1e-6,
) -> Solution:
    """Minimise the sum of squared residuals of every row within ``low <= x <= high``.

    Rows share nothing: each has its own damping, a step that does not lower a row's cost is undone
    for that row alone, and a row that has converged is not evaluated again. An unknown at a bound
    that the gradient pushes outwards rests for that step.

    Args:
        residuals_and_jacobian: called with unknowns and the indices of their rows among the N, in
            any selection; free of NaN: give an unobserved residual weight 0.
        x0: start, clipped into the bounds.
        low, high: bounds, (P,) or (N, P), infinite where there is none.
        iterations: most steps taken.
        tolerance: a row has converged when a step changes its cost by less than this share.
    """
    low, high = np.broadcast_to(low, x0.shape), np.broadcast_to(high, x0.shape)
    x = np.clip(x0, low, high)
    cost = np.zeros(len(x))
    converged = np.zeros(len(x), bool)
    for start in range(0, len(x), _BLOCK):
        block = slice(start, min(start + _BLOCK, len(x)))
        cost[block], converged[block] = _solve_block(
            residuals_and_jacobian, x[block], start, low[block], high[block], iterations, tolerance
        )
    return Solution(x, cost, converged)


def _solve_block(
    residuals_and_jacobian: ResidualsAndJacobian,
    x: np.ndarray,
    first: int,
    low: np.ndarray,
    high: np.ndarray,
    iterations: int,
    tolerance: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Improve ``x`` in place; return the cost and which rows converged."""
    active = np.arange(len(x))
    cost, gradient, hessian = _quadratic(*residuals_and_jacobian(x, first + active))
    damping = np.full(len(x), 1e-3)
    for _ in range(iterations):
        if not len(active):
            break
        bounds = low[active], high[active]
        step = _step(x[active], gradient[active], hessian[active], damping[active], *bounds)
        trial = np.clip(x[active] + step, *bounds)
        new_cost, new_gradient, new_hessian = _quadratic(
            *residuals_and_jacobian(trial, first + active)
        )
        gain = cost[active] - new_cost
        settled = np.abs(gain) <= tolerance * cost[active] + 1e-30
        better = gain > 0
        kept = active[better]
        x[kept], cost[kept] = trial[better], new_cost[better]
        gradient[kept], hessian[kept] = new_gradient[better], new_hessian[better]
        damping[active] = np.maximum(
            damping[active] * np.where(better, 0.2, 8.0), _SMALLEST_DAMPING
        )
        active = active[~(settled | (damping[active] > _LARGEST_DAMPING))]
    converged = np.ones(len(x), bool)
    converged[active] = False
    return cost, converged


def _quadratic(residuals: np.ndarray, jacobian: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return the cost, half its gradient, and half the Gauss-Newton Hessian."""
    transposed = np.swapaxes(jacobian, 1, 2)
    cost = np.einsum("nm,nm->n", residuals, residuals)
    return cost, (transposed @ residuals[..., None])[..., 0], transposed @ jacobian


def _step(
    x: np.ndarray,
    gradient: np.ndarray,
    hessian: np.ndarray,
    damping: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
) -> np.ndarray:
    resting = ((x <= low) & (gradient > 0)) | ((x >= high) & (gradient < 0))
    gradient = np.where(resting, 0.0, gradient)
    hessian = hessian * ~(resting[:, :, None] | resting[:, None, :])
    diagonal = np.einsum("npp->np", hessian)  # a view
    # A floor keeps unknowns that no residual sees where they are.
    floor = 1e-12 + 1e-9 * diagonal.max(axis=1, keepdims=True, initial=0)
    diagonal += damping[:, None] * diagonal + floor
    return np.linalg.solve(hessian, -gradient[..., None])[..., 0]
