"""Poses of many frames from keypoints, for a known shape (the inner part of ``mapping``).

Both solvers find finger rotations, orientation and wrist of each row by bounded Levenberg-Marquardt
over many small independent problems at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from acehand_core.geometry import rotations
from acehand_core.hand import articulation
from acehand_core.hand.shape import PALM, HandModel
from acehand_core.hand.skeleton import DISTALS, TIPS, TREE_PARENTS, TREE_TO_KEYPOINT
from acehand_core.types import Side

_SMALLEST_DAMPING, _LARGEST_DAMPING = 1e-12, 1e8
_BLOCK = 256  # rows solved together: bounds memory and fits the cache

Array = np.ndarray
#: (unknowns (n, P), rows (n,)) to residuals (n, M) and their Jacobian (n, M, P).
ResidualsAndJacobian = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]

# Priors in metres per radian: weak against a millimetre of joint error, they fix only what the
# joints leave open (twists, unobserved joints).
_ANGLE_PULL = 3e-4
_TURN_PULL = 5e-4


def solve(
    residuals_and_jacobian: ResidualsAndJacobian,
    x0: Float[np.ndarray, "N P"],
    low: Float[np.ndarray, "*rows P"],
    high: Float[np.ndarray, "*rows P"],
    iterations: int = 20,
    tolerance: float = 1e-6,
) -> tuple[Float[np.ndarray, "N P"], Float[np.ndarray, "N"]]:
    """Minimise the sum of squared residuals of every row within ``low <= x <= high``.

    Rows are independent: each has its own damping, undoes its own failed steps, and is not
    evaluated after convergence. An unknown that the gradient pushes out of bounds rests.

    Args:
        residuals_and_jacobian: called with unknowns and the indices of their rows among the N, in
            any selection; must be free of NaN.
        low, high: bounds, (P,) or (N, P), may be infinite; also clip the start ``x0``.
        tolerance: relative change of the cost at which a row has converged.

    Returns:
        The best unknowns and the sum of squared residuals there.
    """
    low, high = np.broadcast_to(low, x0.shape), np.broadcast_to(high, x0.shape)
    x = np.clip(x0, low, high)

    def improve(x: Array, first: int, low: Array, high: Array) -> Array:
        """Improve rows from ``first`` on in place, and return their cost."""
        active = np.arange(len(x))
        cost, gradient, hessian = quadratic(*residuals_and_jacobian(x, first + active))

        damping = np.full(len(x), 1e-3)
        for _ in range(iterations):
            if not len(active):
                break
            bounds = low[active], high[active]
            step = _step(x[active], gradient[active], hessian[active], damping[active], *bounds)
            trial = np.clip(x[active] + step, *bounds)
            at_trial = residuals_and_jacobian(trial, first + active)
            new_cost, new_gradient, new_hessian = quadratic(*at_trial)
            gain = cost[active] - new_cost
            settled = np.abs(gain) <= tolerance * cost[active] + 1e-30
            better = gain > 0
            kept = active[better]
            x[kept], cost[kept] = trial[better], new_cost[better]
            gradient[kept], hessian[kept] = new_gradient[better], new_hessian[better]
            changed = damping[active] * np.where(better, 0.2, 8.0)
            damping[active] = np.maximum(changed, _SMALLEST_DAMPING)
            active = active[~(settled | (damping[active] > _LARGEST_DAMPING))]
        return cost

    cost = np.zeros(len(x))
    for start in range(0, len(x), _BLOCK):
        block = slice(start, start + _BLOCK)
        cost[block] = improve(x[block], start, low[block], high[block])
    return x, cost


def quadratic(residuals: np.ndarray, jacobian: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return the cost, half its gradient and half the Gauss-Newton Hessian."""
    transposed = np.swapaxes(jacobian, 1, 2)
    cost = np.einsum("nm,nm->n", residuals, residuals)
    return cost, (transposed @ residuals[..., None])[..., 0], transposed @ jacobian


def _step(
    x: Array, gradient: Array, hessian: Array, damping: Array, low: Array, high: Array
) -> Array:
    resting = ((x <= low) & (gradient > 0)) | ((x >= high) & (gradient < 0))
    gradient = np.where(resting, 0.0, gradient)
    hessian = hessian * ~(resting[:, :, None] | resting[:, None, :])
    diagonal = np.einsum("npp->np", hessian)  # a view
    # The floor holds unknowns that no residual depends on.
    floor = 1e-12 + 1e-9 * diagonal.max(axis=1, keepdims=True, initial=0)
    diagonal += damping[:, None] * diagonal + floor
    return np.linalg.solve(hessian, -gradient[..., None])[..., 0]


@dataclass(frozen=True, slots=True)
class Poses:
    """Orientation (N, 3, 3), finger rotations (N, 15, 3, 3) and wrist (N, 3), as the keypoints."""

    global_orient: np.ndarray
    hand_pose: np.ndarray
    wrist: np.ndarray


def acehand_poses(side: Side, rest: np.ndarray, target: np.ndarray, weight: np.ndarray) -> Poses:
    """Fit the 22 angles, the orientation and the wrist of the default hand; see ``free_poses``."""
    comfortable = articulation.comfortable()
    low, high = articulation.limits()

    def chain(angles: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return articulation.keypoints_with_jacobian(angles, side, rest)

    orient = _align_palm(rest, target, weight)
    start = np.tile(comfortable, (len(target), 1))
    pull = np.full(len(comfortable), _ANGLE_PULL)
    angles, orient, wrist = _solve(
        chain, start, comfortable, pull, low, high, orient, target, weight
    )
    return Poses(orient, articulation.angles_to_pose(angles, side), wrist)


def free_poses(
    model: HandModel,
    side: Side,
    rest: np.ndarray,
    betas: np.ndarray,
    target: np.ndarray,
    weight: np.ndarray,
    near: np.ndarray | None = None,
) -> Poses:
    """Fit 15 free rotations, the orientation and the wrist to the keypoints.

    Args:
        rest: keypoints (21, 3) of the flat hand at ``betas`` (10,).
        target: keypoints (N, 21, 3), any finite value where ``weight`` (N, 21) is 0.
        near: finger rotations (N, 15, 3, 3) to stay near.
    """
    count = len(target)
    orient = _align_palm(rest, target, weight)
    rest = np.tile(rest, (count, 1, 1))
    base = _smallest_turns(rest, orient, target, weight) if near is None else near.astype(float)
    wrist, turns = np.zeros((count, 3)), np.zeros((count, 45))
    limit = np.full(45, np.pi)
    shape, eye = np.broadcast_to(betas, (count, 10)), np.broadcast_to(np.eye(3), (count, 3, 3))

    for _ in range(3):
        # Skin deforms, so a tip is not rigid with its last joint: measure it as posed.
        hand_pose = base @ _exp15(turns)
        posed = model.joints(side, eye, hand_pose, shape).astype(float)
        _, world = articulation.pose_keypoints(eye, hand_pose, rest)
        rest = rest.copy()
        for tip, distal in zip(TIPS, DISTALS, strict=True):
            turn = world[:, TREE_TO_KEYPOINT.index(distal)]
            bone = (posed[:, tip] - posed[:, distal])[..., None]
            rest[:, tip] = rest[:, distal] + (np.swapaxes(turn, -1, -2) @ bone)[..., 0]

        def chain(
            turns: np.ndarray, rows: np.ndarray, rest: np.ndarray = rest
        ) -> tuple[np.ndarray, np.ndarray]:
            return _free_chain(base[rows], turns, rest[rows])

        prior = np.zeros(45), np.full(45, _TURN_PULL), -limit, limit
        turns, orient, wrist = _solve(chain, turns, *prior, orient, target, weight)
    return Poses(orient, base @ _exp15(turns), wrist)


def _solve(
    chain: ResidualsAndJacobian,
    start: np.ndarray,
    centre: np.ndarray,
    pull: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    orient: np.ndarray,
    target: np.ndarray,
    weight: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Fit a chain's parameters, a turn of ``orient`` and the wrist; return all three.

    ``chain`` returns wrist-relative keypoints (N, 21, 3) and their derivatives (N, 21, 3, P).
    """
    size = start.shape[1]
    root = np.sqrt(weight)[..., None]
    far = np.full(6, np.inf)

    def evaluate(x: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        turn = x[:, size : size + 3]
        points, derivative = chain(x[:, :size], rows)
        world = rotations.exp(turn) @ orient[rows]
        points = points @ np.swapaxes(world, -1, -2)
        residuals = root[rows] * (points + x[:, None, size + 3 :] - target[rows])
        jacobian = np.zeros((len(x), 63 + size, size + 6))
        body = jacobian[:, :63].reshape(len(x), 21, 3, size + 6)
        body[..., :size] = world[:, None] @ derivative
        body[..., size : size + 3] = (
            -rotations.skew(points) @ rotations.left_jacobian(turn)[:, None]
        )
        body[..., size + 3 :] = np.eye(3)
        body *= root[rows, ..., None]
        jacobian[:, 63:, :size] = np.diag(pull)
        pulled = (x[:, :size] - centre) * pull

        return np.concatenate([residuals.reshape(len(x), 63), pulled], axis=1), jacobian

    points, _ = chain(start, np.arange(len(start)))
    total = np.maximum(weight.sum(axis=1, keepdims=True), 1e-12)
    turned = points @ np.swapaxes(orient, -1, -2)
    wrist = np.einsum("nk,nki->ni", weight, target - turned) / total
    x = np.concatenate([start, np.zeros_like(wrist), wrist], axis=1)
    x, _ = solve(evaluate, x, np.r_[low, -far], np.r_[high, far], iterations=30)
    return x[:, :size], rotations.exp(x[:, size : size + 3]) @ orient, x[:, size + 3 :]


def _free_chain(
    base: np.ndarray, turns: np.ndarray, rest: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return wrist-relative keypoints of ``base @ exp(turns)`` and derivatives by the turns."""
    count = len(turns)
    turns = turns.reshape(count, 15, 3)
    eye = np.broadcast_to(np.eye(3), (count, 3, 3))
    points, world = articulation.pose_keypoints(eye, base @ rotations.exp(turns), rest)
    points = points - points[:, :1]
    axes = base @ rotations.left_jacobian(turns)
    jacobian = np.zeros((count, 21, 3, 45))
    for joint in range(15):
        keypoint = TREE_TO_KEYPOINT[joint + 1]
        moved = slice(keypoint + 1, keypoint + 4 - joint % 3)
        columns = world[:, TREE_PARENTS[joint + 1]] @ axes[:, joint]
        arms = points[:, moved] - points[:, keypoint, None]
        jacobian[:, moved, :, 3 * joint : 3 * joint + 3] = -rotations.skew(arms) @ columns[:, None]
    return points, jacobian


def _smallest_turns(
    rest: np.ndarray, orient: np.ndarray, target: np.ndarray, weight: np.ndarray
) -> np.ndarray:
    """Return the twist-free finger rotations that align each bone with the observed one."""
    count = len(target)
    local = np.tile(np.eye(3), (count, 15, 1, 1))
    world = np.empty((count, 16, 3, 3))
    world[:, 0] = orient

    for joint in range(1, 16):
        keypoint, parent = TREE_TO_KEYPOINT[joint], world[:, TREE_PARENTS[joint]]
        observed = target[:, keypoint + 1] - target[:, keypoint]
        length = np.linalg.norm(observed, axis=-1, keepdims=True)
        known = (weight[:, keypoint] > 0) & (weight[:, keypoint + 1] > 0) & (length[:, 0] > 1e-6)
        bone = rest[:, keypoint + 1] - rest[:, keypoint]
        bone = bone / np.linalg.norm(bone, axis=-1, keepdims=True)
        aim = (np.swapaxes(parent, -1, -2) @ observed[..., None])[..., 0]
        aim = np.where(known[:, None], aim / np.where(length > 1e-6, length, 1), bone)
        local[:, joint - 1] = rotations.between(bone, aim)
        world[:, joint] = parent @ local[:, joint - 1]

    return local


def _align_palm(rest: np.ndarray, target: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return the rotations (N, 3, 3) from the rest palm to the observed palm."""
    share = weight[:, PALM] / np.maximum(weight[:, PALM].sum(1, keepdims=True), 1e-12)
    source, observed = rest[list(PALM)], target[:, PALM]
    source = source - (share @ source)[:, None]
    observed = observed - np.einsum("nk,nki->ni", share, observed)[:, None]
    return rotations.project_to_rotation(np.einsum("nk,nki,nkj->nij", share, observed, source))


def _exp15(turns: np.ndarray) -> np.ndarray:
    return rotations.exp(turns.reshape(-1, 15, 3))
