"""Joints of an arm along a path: ``follow_path`` and ``refine``.

``sweep`` follows the frames from several postures at once (damped least squares). The best path is
refined over all frames together: Gauss-Newton with a sparse QP (PIQP), with joint ranges and speeds
as bounds and acceleration as a cost. So the arm starts early for a fast stretch, unlike with
differential solvers such as mink's. An ``Avoid`` (``arm_scene.py``) adds distances to keep.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import piqp
import scipy.sparse as sp
from jaxtyping import Bool, Float, Int

from retarget.solve.arm import Arm, ArmJoints, BasePath, pose_points

CHUNK_FRAMES, LOOK_AHEAD = 1024, 64
_DAMPING = 1e-3
_ROUNDS = 8
#: Postures tried at the start of a sweep, and candidate paths kept.
_TRIED, _CANDIDATES = 24, 8
#: Mean errors that differ by no more are equal.
_EQUAL_M = 1e-3
#: Frames further off count less and less, so that one out of reach does not pull the arm away from
#: the others (Geman-McClure).
_FAR_M = 0.1
#: Weights of acceleration per frame^2 and of mid-range, against 1 per m2 of the path.
_SMOOTH, _REST = 1e-2, 1e-6
#: Weight of a missing distance: an arm leaves its path by 2 mm to gain 1 mm.
_AVOID = 9.0

Posture = Float[np.ndarray, "J"]
Active = Bool[np.ndarray, "T"]
Targets = Float[np.ndarray, "T 4 3"]


@dataclass(frozen=True, slots=True, eq=False)
class Shortfalls:
    """N places where an arm lacks distance: by ``shortfall`` (m), with its joint derivatives."""

    frame: Int[np.ndarray, "N"]
    shortfall: Float[np.ndarray, "N"]
    gradient: Float[np.ndarray, "N J"]


#: Returns where joints of these frames bring an arm too close to something.
Avoid = Callable[[ArmJoints, slice], Shortfalls]


def follow_path(
    arm: Arm, path: BasePath, active: Active, fps: float, posture: Posture
) -> ArmJoints:
    """Return joints within ranges and speeds that follow ``path`` (arm frame) where ``active``.

    The path that begins near ``posture`` is preferred unless another one has a smaller error.
    """
    weights = active.astype(float)
    candidates, errors = sweep(
        arm, pose_points(path)[None], weights, arm.speed / fps, posture[None]
    )
    best = int(errors[0].argmin())
    first = 0 if errors[0, 0] <= errors[0, best] + _EQUAL_M * weights.sum() else best
    return refine(arm, candidates[0, first], path, active, fps)


def refine(
    arm: Arm, x: ArmJoints, path: BasePath, active: Active, fps: float, avoid: Avoid | None = None
) -> ArmJoints:
    """Return joints that follow a path better than ``x`` and keep their distances."""
    targets, weights = pose_points(path), active.astype(float)
    joints = np.empty_like(x)
    for first in range(0, len(x), CHUNK_FRAMES):
        stop = min(first + CHUNK_FRAMES, len(x))
        rows = slice(first, min(stop + LOOK_AHEAD, len(x)))
        history = joints[max(0, first - 2) : first]
        refined = _refine(arm, x[rows], targets[rows], weights[rows], rows, history, fps, avoid)
        joints[first:stop] = refined[: stop - first]
    return joints


def descend(arm: Arm, joints: ArmJoints, targets: Targets, rounds: int) -> ArmJoints:
    for _ in range(rounds):
        joints = np.clip(joints + _step(arm, joints, targets), arm.lower, arm.upper)
    return joints


def _step(arm: Arm, joints: ArmJoints, targets: Targets) -> ArmJoints:
    """Return a damped least-squares step per row, of at most half a radian."""
    points, jacobian = arm.points_and_jacobian(joints)
    matrix = jacobian.reshape(len(joints), 12, -1)
    residual = (targets - points).reshape(len(joints), 12, 1)
    transposed = np.swapaxes(matrix, 1, 2)
    normal = transposed @ matrix + _DAMPING * np.eye(matrix.shape[-1])
    step = np.linalg.solve(normal, transposed @ residual)[..., 0]
    return step / np.maximum(np.abs(step).max(axis=1, keepdims=True) / 0.5, 1)


def mean_error(arm: Arm, joints: ArmJoints, targets: Targets) -> Float[np.ndarray, "T"]:
    """Return the mean distance of the four points from their targets, metres."""
    points, _ = arm.points_and_jacobian(joints)
    return np.linalg.norm(points - targets, axis=-1).mean(axis=-1)


def sweep(
    arm: Arm,
    targets: Float[np.ndarray, "N T 4 3"],
    weights: Float[np.ndarray, "T"],
    step: Posture,
    postures: Float[np.ndarray, "N J"],
) -> tuple[Float[np.ndarray, "N W T J"], Float[np.ndarray, "N W"]]:
    """Return candidates along each of N paths, within ranges and speeds, and their errors.

    The first begins near the given posture, the others near random ones, the best first.
    """
    random = np.random.default_rng(1)
    first, stands, count = int(np.argmax(weights > 0)), len(targets), targets.shape[1]
    tried = random.uniform(arm.lower, arm.upper, (stands, _TRIED, len(arm.lower)))
    tried[:, 0] = postures
    joints = tried.reshape(stands * _TRIED, -1)
    goals = np.repeat(targets[:, first], _TRIED, axis=0)
    joints = descend(arm, joints, goals, 40)
    errors = mean_error(arm, joints, goals).reshape(stands, _TRIED)
    errors[:, 0] = -1.0
    best = np.argsort(errors, axis=1, kind="stable")[:, :_CANDIDATES]
    joints = np.take_along_axis(joints.reshape(stands, _TRIED, -1), best[..., None], axis=1)
    joints = joints.reshape(stands * _CANDIDATES, -1)
    candidates, sums = np.empty((count, *joints.shape)), np.zeros(len(joints))

    for frame in range(count):
        if frame > first and weights[frame]:
            low, high = np.maximum(arm.lower, joints - step), np.minimum(arm.upper, joints + step)
            goals = np.repeat(targets[:, frame], _CANDIDATES, axis=0)
            for _ in range(2):
                joints = np.clip(joints + _step(arm, joints, goals), low, high)
            sums += np.minimum(mean_error(arm, joints, goals), _FAR_M)
        candidates[frame] = joints

    shaped = np.moveaxis(candidates, 0, 1).reshape(stands, _CANDIDATES, count, -1)
    return shaped, sums.reshape(stands, _CANDIDATES)


def _refine(
    arm: Arm,
    x: ArmJoints,
    targets: Targets,
    weights: Float[np.ndarray, "T"],
    frames: slice,
    history: Float[np.ndarray, "H J"],
    fps: float,
    avoid: Avoid | None,
) -> ArmJoints:
    """Gauss-Newton over one run of frames that follows ``history``; never worse than ``x``."""
    count, size = x.shape
    done, step = len(history), arm.speed / fps
    nothing = Shortfalls(np.zeros(0, int), np.zeros(0), np.zeros((0, size)))
    eye = sp.eye_array(size)
    total = count + done
    steps = sp.eye_array(total, format="csr")[1:] - sp.eye_array(total, format="csr")[:-1]
    second = sp.kron(steps[1:] - steps[:-1], eye).tocsr()
    first = sp.kron(steps, eye).tocsr()[max(done - 1, 0) * size :]
    smooth = _SMOOTH * (fps / 30) ** 4
    middle = np.tile((arm.lower + arm.upper) / 2, (count, 1))
    x = _within(arm, x, step, history)

    def cost(joints: ArmJoints, near: Shortfalls) -> float:
        points, _ = arm.points_and_jacobian(joints)
        gap = ((points - targets) ** 2).sum((1, 2))
        gap = (gap / (1 + gap / _FAR_M**2)) @ weights
        bend = second @ np.concatenate([history, joints]).reshape(-1)
        close = _AVOID * near.shortfall @ near.shortfall
        return float(gap + close + smooth * bend @ bend + _REST * ((joints - middle) ** 2).sum())

    near = nothing if avoid is None else avoid(x, frames)
    best, trust = cost(x, near), 0.5
    for _ in range(_ROUNDS):
        points, jacobian = arm.points_and_jacobian(x)
        gap = ((points - targets) ** 2).sum((1, 2))
        scale = (np.sqrt(weights) / (1 + gap / _FAR_M**2))[:, None, None]
        rows = jacobian.reshape(count, 12, size) * scale
        residual = (points - targets).reshape(count, 12, 1) * scale
        across = np.swapaxes(rows, 1, 2)
        blocks, slopes = across @ rows, (across @ residual)[..., 0]
        by_joint = near.gradient
        np.add.at(blocks, near.frame, _AVOID * by_joint[:, :, None] * by_joint[:, None])
        np.add.at(slopes, near.frame, _AVOID * near.shortfall[:, None] * by_joint)

        bends = second[:, done * size :]
        whole = np.concatenate([history, x]).reshape(-1)
        hessian = sp.block_diag(blocks, format="csr") + smooth * (bends.T @ bends)
        hessian = (hessian + _REST * sp.eye_array(count * size)).tocsc()
        gradient = slopes.reshape(-1) + smooth * (bends.T @ (second @ whole))
        gradient = gradient + _REST * (x - middle).reshape(-1)
        low = np.maximum(arm.lower - x, -trust).reshape(-1)
        high = np.minimum(arm.upper - x, trust).reshape(-1)
        moves, bound = first @ whole, np.tile(step, first.shape[0] // size)
        solver = piqp.SparseSolver()
        rates = first[:, done * size :].tocsc()
        solver.setup(hessian, gradient, None, None, rates, -bound - moves, bound - moves, low, high)
        solver.solve()
        trial = _within(arm, x + solver.result.x.reshape(x.shape), step, history)
        trial_near = nothing if avoid is None else avoid(trial, frames)
        reached = cost(trial, trial_near)
        if not reached < best:
            trust *= 0.25
            continue
        largest, x, best, near = float(np.abs(trial - x).max()), trial, reached, trial_near
        if largest < 1e-5:
            break
    return x


def _within(
    arm: Arm, joints: ArmJoints, step: Posture, history: Float[np.ndarray, "H J"]
) -> ArmJoints:
    """Return joints exactly within ranges and speeds: solvers exceed them by 1e-8."""
    limited = np.clip(joints, arm.lower, arm.upper)
    previous = history[-1] if len(history) else None
    for row in limited:
        if previous is not None:
            row[:] = np.clip(row, previous - step, previous + step)
        previous = row
    return limited
