"""How an arm moves so that its hand follows a path: where it stands, and its joints in every frame.

1. ``place_arm`` searches where the arm's base stands: from positions around the path at several
   distances and headings, those from which most of the path can be reached, then nearby ones.
2. ``follow_path`` sweeps through the frames from several postures at once (damped least squares),
   and refines the best sweep over all frames together: Gauss-Newton with a sparse QP (PIQP) in
   which ranges and speeds of the joints are bounds and acceleration is a cost.

A differential solver that steps from frame to frame, such as mink's, would not know that a fast
stretch is coming; here the arm starts early. Collisions are not looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import piqp
import scipy.sparse as sp
from jaxtyping import Bool, Float

from acehand_core.geometry import frames, rotations
from acehand_core.motion import ArmMotion
from acehand_core.types import RigidTransform
from retarget.arm import Arm, ArmJoints, pose_points

BasePath = Float[np.ndarray, "T 4 4"]

#: A frame is reached when the hand's base is this near.
REACHED_M, REACHED_RAD = 0.005, np.radians(3.0)
#: Arms that carry two hands stand at least this far apart.
APART_M = 0.4
CHUNK_FRAMES, LOOK_AHEAD = 1024, 64
_DAMPING = 1e-3
#: Placements whose way through at most so many frames is tried.
_TRIED_WAYS, _TRIED_FRAMES = 8, 120
_ROUNDS = 8
#: Frames that stay farther off than this count less and less: one that is out of reach must not
#: pull the arm away from others (Geman-McClure).
_FAR_M = 0.1
#: Weights beside that of the path (1 per m2): acceleration per frame^2, and the middle of ranges.
_SMOOTH, _REST = 1e-2, 1e-6


@dataclass(frozen=True, slots=True)
class _Reach:
    """How well a batch of N placements follows K poses; the better, the higher."""

    share: Float[np.ndarray, "N"]
    error_m: Float[np.ndarray, "N"]
    joints: Float[np.ndarray, "N K J"]

    @property
    def score(self) -> Float[np.ndarray, "N"]:
        return self.share - 0.2 * np.minimum(self.error_m / 0.1, 1)


def solve_arm(
    arm: Arm,
    poses: BasePath,
    active: Bool[np.ndarray, "T"],
    fps: float,
    up: Sequence[float],
    others: Sequence[RigidTransform] = (),
) -> ArmMotion:
    """Return an arm's motion that brings the hand's base to ``poses`` where ``active``.

    Args:
        poses: ``T_frame_base`` of the hand, metres.
        up: direction in that frame in which the arm's base z axis points.
        others: ``T_frame_arm`` of arms that stand already.
    """
    T_frame_arm, posture = place_arm(arm, poses[active], fps, np.array(up, float), others)
    path = frames.inverse(T_frame_arm) @ poses
    joints = follow_path(arm, path, active, fps, posture)
    reached_poses = arm.base_poses(joints)
    off = np.linalg.norm((reached_poses - path)[:, :3, 3], axis=1)
    turned = rotations.angle_between(reached_poses[:, :3, :3], path[:, :3, :3])
    return ArmMotion(
        model=arm.path.name,
        link=arm.link,
        joint_names=arm.joint_names,
        T_frame_arm=T_frame_arm,
        joints=joints,
        reached=active & (off <= REACHED_M) & (turned <= REACHED_RAD),
        position_error_m=np.where(active, off, np.nan),
        rotation_error_rad=np.where(active, turned, np.nan),
        notes=arm.notes,
    )


def place_arm(
    arm: Arm,
    poses: BasePath,
    fps: float,
    up: Float[np.ndarray, "3"],
    others: Sequence[RigidTransform] = (),
) -> tuple[RigidTransform, Float[np.ndarray, "J"]]:
    """Return where the arm's base stands, and a posture for the first pose.

    Deterministic. The arm stands upright along ``up``; ``APART_M`` from any of the ``others``.
    """
    random = np.random.default_rng(0)
    reach = _reach_m(arm, random)
    few = poses[np.unique(np.linspace(0, len(poses) - 1, 5).round().astype(int))]
    many = poses[np.unique(np.linspace(0, len(poses) - 1, 24).round().astype(int))]
    stands = _apart(_around(poses[:, :3, 3].mean(0), reach, up), others)
    coarse = _try(arm, stands, few, random, starts=2, rounds=12)
    best = stands[np.argsort(-coarse.score, kind="stable")[:8]]
    near = np.concatenate([best, *(_jittered(best, up, random) for _ in range(3))])
    near = _apart(near, others)
    fine = _try(arm, near, many, random, starts=4, rounds=30)
    # Each pose alone says nothing of the way between them.
    stride = -(-len(poses) // _TRIED_FRAMES)
    path, ends = poses[::stride], []
    for index in np.argsort(-fine.score, kind="stable")[:_TRIED_WAYS]:
        targets = pose_points(frames.inverse(near[index]) @ path)
        step, weights = arm.speed * stride / fps, np.ones(len(path))
        way = _sweep(arm, targets, weights, step, fine.joints[index, 0])
        missed = _error(arm, way, targets)
        ends.append((-(missed <= REACHED_M).mean(), missed.mean(), index, way[0]))
    _, _, index, posture = min(ends, key=lambda end: end[:2])
    return near[index], posture


def follow_path(
    arm: Arm,
    path: BasePath,
    active: Bool[np.ndarray, "T"],
    fps: float,
    posture: Float[np.ndarray, "J"],
) -> ArmJoints:
    """Return joints within ranges and speeds that follow ``path`` (arm frame) where ``active``."""
    step = arm.speed / fps
    targets = pose_points(path)
    weights = active.astype(float)
    start = _sweep(arm, targets, weights, step, posture)
    out = np.empty_like(start)
    for first in range(0, len(start), CHUNK_FRAMES):
        stop = min(first + CHUNK_FRAMES, len(start))
        rows = slice(first, min(stop + LOOK_AHEAD, len(start)))
        history = out[max(0, first - 2) : first]
        solved = _refine(arm, start[rows], targets[rows], weights[rows], step, history, fps)
        out[first:stop] = solved[: stop - first]
    return out


def _reach_m(arm: Arm, random: np.random.Generator) -> float:
    joints = random.uniform(arm.lower, arm.upper, (500, len(arm.lower)))
    return float(np.linalg.norm(arm.base_poses(joints)[:, :3, 3], axis=1).max())


def _around(
    middle: Float[np.ndarray, "3"], reach: float, up: Float[np.ndarray, "3"]
) -> Float[np.ndarray, "N 4 4"]:
    """Return upright poses around a point, heading to it and to the sides."""
    upright = rotations.between(np.array([0.0, 0.0, 1.0]), up / np.linalg.norm(up))
    out = []
    for distance in (0.45, 0.6, 0.75):
        for height in (-0.6, -0.3, 0.0, 0.3):
            for side in np.arange(0, 2 * np.pi, np.pi / 6):
                level = np.sqrt(1 - height**2)
                away = np.array([level * np.cos(side), level * np.sin(side), height])
                for heading in (0, np.pi / 2, np.pi, -np.pi / 2):
                    turn = rotations.exp(np.array([0, 0, side + np.pi + heading]))
                    place = middle + upright @ (away * distance * reach)
                    out.append(frames.rigid(upright @ turn, place))
    return np.stack(out)


def _jittered(
    stands: Float[np.ndarray, "N 4 4"], up: Float[np.ndarray, "3"], random: np.random.Generator
) -> Float[np.ndarray, "N 4 4"]:
    out = stands.copy()
    out[:, :3, 3] += random.normal(0, 0.06, (len(stands), 3))
    turn = rotations.exp(random.normal(0, 0.3, (len(stands), 1)) * (up / np.linalg.norm(up)))
    out[:, :3, :3] = turn @ out[:, :3, :3]
    return out


def _apart(
    stands: Float[np.ndarray, "N 4 4"], others: Sequence[RigidTransform]
) -> Float[np.ndarray, "M 4 4"]:
    keep = np.ones(len(stands), bool)
    for other in others:
        keep &= np.linalg.norm(stands[:, :3, 3] - other[:3, 3], axis=1) >= APART_M
    return stands[keep]


def _try(
    arm: Arm,
    stands: Float[np.ndarray, "N 4 4"],
    poses: Float[np.ndarray, "K 4 4"],
    random: np.random.Generator,
    starts: int,
    rounds: int,
) -> _Reach:
    """Return how well each placement reaches the poses, from several postures each."""
    goals = frames.inverse(stands)[:, None] @ poses
    flat = np.repeat(goals.reshape(-1, 4, 4), starts, axis=0)
    postures = random.uniform(0.25, 0.75, (starts, len(arm.lower)))
    postures[0] = 0.5
    joints = arm.lower + (arm.upper - arm.lower) * np.tile(postures, (len(flat) // starts, 1))
    joints = _descend(arm, joints, pose_points(flat), rounds)
    error = _error(arm, joints, pose_points(flat)).reshape(len(stands), len(poses), starts)
    pick = error.argmin(axis=-1)[..., None]
    error = np.take_along_axis(error, pick, -1)[..., 0]
    shaped = joints.reshape(len(stands), len(poses), starts, -1)
    chosen = np.take_along_axis(shaped, pick[..., None], 2)[:, :, 0]
    return _Reach((error <= REACHED_M).mean(axis=1), error.mean(axis=1), chosen)


def _descend(
    arm: Arm, joints: ArmJoints, targets: Float[np.ndarray, "T 4 3"], rounds: int
) -> ArmJoints:
    for _ in range(rounds):
        joints = np.clip(joints + _step(arm, joints, targets), arm.lower, arm.upper)
    return joints


def _step(arm: Arm, joints: ArmJoints, targets: Float[np.ndarray, "T 4 3"]) -> ArmJoints:
    """Return one damped least-squares step per row, of at most half a radian."""
    points, jacobian = arm.points_and_jacobian(joints)
    matrix = jacobian.reshape(len(joints), 12, -1)
    residual = (targets - points).reshape(len(joints), 12, 1)
    transposed = np.swapaxes(matrix, 1, 2)
    normal = transposed @ matrix + _DAMPING * np.eye(matrix.shape[-1])
    step = np.linalg.solve(normal, transposed @ residual)[..., 0]
    return step / np.maximum(np.abs(step).max(axis=1, keepdims=True) / 0.5, 1)


def _error(
    arm: Arm, joints: ArmJoints, targets: Float[np.ndarray, "T 4 3"]
) -> Float[np.ndarray, "T"]:
    """Return the mean distance of the four points from theirs, metres."""
    points, _ = arm.points_and_jacobian(joints)
    return np.linalg.norm(points - targets, axis=-1).mean(axis=-1)


def _sweep(
    arm: Arm,
    targets: Float[np.ndarray, "T 4 3"],
    weights: Float[np.ndarray, "T"],
    step: Float[np.ndarray, "J"],
    posture: Float[np.ndarray, "J"],
) -> ArmJoints:
    """Return the best of several sweeps through the frames, each within ranges and speeds."""
    random = np.random.default_rng(1)
    first = int(np.argmax(weights > 0))
    others = random.uniform(arm.lower, arm.upper, (23, len(posture)))
    joints = np.concatenate([posture[None], others])
    joints = _descend(arm, joints, np.repeat(targets[first : first + 1], 24, axis=0), 40)
    goals = np.repeat(targets[first : first + 1], len(joints), axis=0)
    joints = joints[np.argsort(_error(arm, joints, goals), kind="stable")[:8]]
    ways = np.empty((len(targets), *joints.shape))
    errors = np.zeros(len(joints))
    for frame, goal in enumerate(targets):
        if frame > first and weights[frame]:
            low, high = np.maximum(arm.lower, joints - step), np.minimum(arm.upper, joints + step)
            goals = np.repeat(goal[None], len(joints), axis=0)
            for _ in range(2):
                joints = np.clip(joints + _step(arm, joints, goals), low, high)
            errors += _error(arm, joints, goals)
        ways[frame] = joints
    return ways[:, int(errors.argmin())]


def _refine(
    arm: Arm,
    x: ArmJoints,
    targets: Float[np.ndarray, "T 4 3"],
    weights: Float[np.ndarray, "T"],
    step: Float[np.ndarray, "J"],
    history: Float[np.ndarray, "H J"],
    fps: float,
) -> ArmJoints:
    """Gauss-Newton over one run of frames that follows ``history``; never worse than ``x``."""
    count, size = x.shape
    done = len(history)
    eye = sp.eye_array(size)
    total = count + done
    steps = sp.eye_array(total, format="csr")[1:] - sp.eye_array(total, format="csr")[:-1]
    second = sp.kron(steps[1:] - steps[:-1], eye).tocsr()
    first = sp.kron(steps, eye).tocsr()[max(done - 1, 0) * size :]
    smooth = _SMOOTH * (fps / 30) ** 4
    middle = np.tile((arm.lower + arm.upper) / 2, (count, 1))
    x = _within(arm, x, step, history)

    def cost(joints: ArmJoints) -> float:
        points, _ = arm.points_and_jacobian(joints)
        gap = ((points - targets) ** 2).sum((1, 2))
        gap = (gap / (1 + gap / _FAR_M**2)) @ weights
        bend = second @ np.concatenate([history, joints]).reshape(-1)
        return float(gap + smooth * bend @ bend + _REST * ((joints - middle) ** 2).sum())

    best, trust = cost(x), 0.5
    for _ in range(_ROUNDS):
        points, jacobian = arm.points_and_jacobian(x)
        gap = ((points - targets) ** 2).sum((1, 2))
        scale = (np.sqrt(weights) / (1 + gap / _FAR_M**2))[:, None, None]
        rows = jacobian.reshape(count, 12, size) * scale
        residual = (points - targets).reshape(count, 12, 1) * scale
        across = np.swapaxes(rows, 1, 2)
        bends = second[:, done * size :]
        whole = np.concatenate([history, x]).reshape(-1)
        hessian = sp.block_diag(across @ rows, format="csr") + smooth * (bends.T @ bends)
        hessian = (hessian + _REST * sp.eye_array(count * size)).tocsc()
        gradient = (across @ residual).reshape(-1) + smooth * (bends.T @ (second @ whole))
        gradient = gradient + _REST * (x - middle).reshape(-1)
        low = np.maximum(arm.lower - x, -trust).reshape(-1)
        high = np.minimum(arm.upper - x, trust).reshape(-1)
        moves, bound = first @ whole, np.tile(step, first.shape[0] // size)
        solver = piqp.SparseSolver()
        rates = first[:, done * size :].tocsc()
        if first.shape[0]:
            solver.setup(hessian, gradient, None, None, rates, -bound - moves, bound - moves,
                         low, high)  # fmt: skip
        else:
            solver.setup(hessian, gradient, None, None, None, None, None, low, high)
        solver.solve()
        trial = _within(arm, x + solver.result.x.reshape(x.shape), step, history)
        reached = cost(trial)
        if not reached < best:
            trust *= 0.25
            continue
        moved, x, best = float(np.abs(trial - x).max()), trial, reached
        if moved < 1e-5:
            break
    return x


def _within(
    arm: Arm, joints: ArmJoints, step: Float[np.ndarray, "J"], history: Float[np.ndarray, "H J"]
) -> ArmJoints:
    """Return joints within ranges and speeds exactly: solvers leave a rest of 1e-8."""
    out = np.clip(joints, arm.lower, arm.upper)
    previous = history[-1] if len(history) else None
    for row in out:
        if previous is not None:
            row[:] = np.clip(row, previous - step, previous + step)
        previous = row
    return out
