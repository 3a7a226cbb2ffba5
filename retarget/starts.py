"""First guesses for hands whose joints bend both ways: several poses per frame, and a way through.

Such a finger reaches a fingertip in more than one way, and a solver that starts in the wrong one
stays there. Here every frame is solved alone from several starts. Fingers that share no term are
told apart, and for each the cheapest sequence of poses that its joints can follow is found by
dynamic programming.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from jaxtyping import Float, Int

from retarget.limits import CommandLimits, Commands
from retarget.objective import Follow, PoseObjective, Window

#: Random starts beside the given one and the middle of the ranges.
RANDOM_STARTS = 14
#: A pose from another start than the given one is taken below this share of the cost.
MUCH_BETTER = 0.5
#: Frames solved together, of each start.
BLOCK = 128
#: Cost of a step at the speed limit, and of what it is beyond, squared, in speed limits.
STEP, BEYOND = 0.01, 100.0
ROUNDS, TRUST_RAD, CONVERGED_RAD = 15, 0.5, 1e-3


def best_path(
    objective: PoseObjective, limits: CommandLimits, start: Commands, frames: Int[np.ndarray, "N"]
) -> Commands:
    """Return a pose per frame, each near its optimum and within reach of the one before.

    Contact and pinches, which join fingers, are left to the solver that goes on from here.

    Args:
        objective: over all frames.
        limits: between two of ``frames``.
        start: poses that are taken unless others are much better.
        frames: positions of N frames in the objective, in order.
    """
    span = limits.upper - limits.lower
    middle = np.broadcast_to((limits.lower + limits.upper) / 2, start.shape)
    shares = np.random.default_rng(0).uniform(0.1, 0.9, (RANDOM_STARTS, 1, len(span)))
    others = np.broadcast_to(limits.lower + shares * span, (RANDOM_STARTS, *start.shape))
    poses = _settled(objective, limits, np.stack([start, middle, *others]), frames)
    return _cheapest(objective, limits, poses, frames)


def _alone(objective: PoseObjective, frames: Int[np.ndarray, "N"]) -> Window:
    """Return the objective of single frames, in any order, without contact and pinches."""
    targets, follow = objective.targets, objective.follow
    only = replace(
        targets,
        joints_hand=targets.joints_hand[frames],
        weight=targets.weight[frames],
        active=targets.active[frames],
        T_camera_hand=None,
        filled=None,
    )
    if follow is not None:
        follow = Follow(follow.commands[frames], follow.weight[frames])
    weights = replace(objective.weights, pinch=0.0, contact=0.0)
    return PoseObjective(
        objective.hand, objective.tree, only, objective.calibration, weights, follow
    ).window(slice(None))


def _settled(
    objective: PoseObjective,
    limits: CommandLimits,
    starts: Float[np.ndarray, "K N C"],
    frames: Int[np.ndarray, "N"],
) -> Float[np.ndarray, "K N C"]:
    """Return the poses that K starts lead to, every frame on its own (Levenberg-Marquardt)."""
    out = np.empty_like(starts)
    for first in range(0, len(frames), BLOCK):
        rows = slice(first, first + BLOCK)
        block = starts[:, rows]
        window = _alone(objective, np.tile(frames[rows], len(starts)))
        found = _descend(window, limits, block.reshape(-1, block.shape[-1]))
        out[:, rows] = found.reshape(block.shape)
    return out


def _descend(window: Window, limits: CommandLimits, commands: Commands) -> Commands:
    """Lower the cost of each frame within the bounds; speeds do not count."""
    damping = np.full(len(commands), 1e-3)
    pose = window.at(np.clip(commands, limits.lower, limits.upper))
    diagonal = np.arange(commands.shape[1])
    for _ in range(ROUNDS):
        model = window.quadratic(pose, curved=False)
        at_lower = (pose.commands <= limits.lower) & (model.gradient > 0)
        at_upper = (pose.commands >= limits.upper) & (model.gradient < 0)
        free = ~(at_lower | at_upper)
        matrix = model.hessian * (free[:, :, None] & free[:, None, :])
        matrix[:, diagonal, diagonal] += damping[:, None] * matrix[:, diagonal, diagonal] + ~free
        step = -np.linalg.solve(matrix, (model.gradient * free)[..., None])[..., 0]
        step *= np.minimum(1, TRUST_RAD / np.maximum(np.abs(step).max(1, keepdims=True), 1e-12))
        trial = window.at(np.clip(pose.commands + step, limits.lower, limits.upper))
        better = trial.cost <= pose.cost
        damping = np.where(better, damping / 4, damping * 8)
        if not better.all():
            trial = window.at(np.where(better[:, None], trial.commands, pose.commands))
        moved = np.abs(trial.commands - pose.commands).max(initial=0.0)
        pose = trial
        if better.all() and moved < CONVERGED_RAD:
            break
    return pose.commands


def _cheapest(
    objective: PoseObjective,
    limits: CommandLimits,
    poses: Float[np.ndarray, "K N C"],
    frames: Int[np.ndarray, "N"],
) -> Commands:
    """Return one pose per frame: for each group of joints the cheapest way through the K poses."""
    window = _alone(objective, np.tile(frames, len(poses)))
    residual, jacobian = window.residuals(window.at(poses.reshape(-1, poses.shape[-1])))
    out = np.empty_like(poses[0])
    depends = np.abs(jacobian).max(0) > 1e-9
    for joints in _groups(depends):
        rows = depends[:, joints].any(1)
        cost = 0.5 * np.sum(residual[:, rows] ** 2, axis=1).reshape(poses.shape[:2])
        cost[1:] /= MUCH_BETTER
        chosen = _way(cost, poses[:, :, joints] / limits.step[joints])
        out[:, joints] = poses[chosen, np.arange(len(frames))][:, joints]
    return out


def _groups(depends: np.ndarray) -> list[np.ndarray]:
    """Return sets of joints that share no residual with joints of another set."""
    label = np.arange(depends.shape[1])
    for row in depends:
        together = np.unique(label[row])
        label[np.isin(label, together)] = together[0] if len(together) else 0
    return [np.flatnonzero(label == one) for one in np.unique(label)]


def _way(cost: Float[np.ndarray, "K N"], at: Float[np.ndarray, "K N J"]) -> Int[np.ndarray, "N"]:
    """Return the positions of the cheapest sequence; ``at`` is in steps that the speed allows."""
    total, before = cost[:, 0], []
    for frame in range(1, cost.shape[1]):
        size = np.abs(at[:, None, frame] - at[None, :, frame - 1])
        change = np.sum(STEP * size**2 + BEYOND * np.maximum(size - 1, 0) ** 2, axis=-1)
        ways = total + change
        before.append(ways.argmin(1))
        total = ways.min(1) + cost[:, frame]
    chosen = [int(total.argmin())]
    for back in reversed(before):
        chosen.append(int(back[chosen[-1]]))
    return np.array(chosen[::-1], int)
