"""The whole trajectory at once: sequential quadratic programming with hard limits.

Each round takes the pose objective to second order in every frame and solves one sparse QP with
PIQP, an interior-point solver linear in the number of frames. Acceleration and jerk are costs;
angles, speeds and accelerations are constraints. There is no filter, hence no lag. Long recordings
are solved in chunks that look ahead and continue from finished frames.

A finger whose joints bend both ways reaches a point in several ways, and a solver stays in the one
it starts in. ``best_path`` solves every frame alone from several starts and finds, by dynamic
programming, the cheapest sequence of poses for each group of fingers that share residuals.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from jaxtyping import Float, Int
from scipy.sparse import csgraph

from retarget.robots.hand_spec import CommandLimits, Commands
from retarget.solve.collision import CollisionCost, HullCost
from retarget.solve.objective import FrameWindow, PoseObjective, RobotPose
from retarget.solve.qp import History, TrajectoryProgram
from retarget.targets import CommandTarget

#: Frames solved together, and the look-ahead of a chunk beyond the frames it keeps.
CHUNK_FRAMES = 4096
LOOK_AHEAD = 128
#: Finished frames on which speed, acceleration and jerk of the next ones depend.
HISTORY = 3
#: A first guess comes from every STRIDE-th frame.
STRIDE = 4
#: With a joint that has this share of its range on both sides of the start, several starts are
#: tried, and taken below this share of the cost.
BOTH_WAYS, MUCH_BETTER = 0.1, 0.5
#: Largest step of a round, the range of the quadratic model.
TRUST_RAD = 0.5
#: Growth of the trust region over the last step.
GROWTH = 2.0
ROUNDS = 30
CONVERGED_RAD = 3e-5
COARSE_RAD = 1e-2

#: Random starts, besides the given one and the middle of the ranges.
RANDOM_STARTS = 14
#: A pose from another start than the given one wins below this share of the cost.
OTHER_START_BELOW = 0.5
#: Frames solved together, of each start.
START_BLOCK = 128
#: Cost of a step at the speed limit, and of the squared excess in speed limits.
STEP_COST, EXCESS_COST = 0.01, 100.0
START_ROUNDS, START_TRUST, START_CONVERGED_RAD = 15, 0.5, 1e-3


def solve_trajectory(objective: PoseObjective, limits: CommandLimits, start: Commands) -> Commands:
    """Return commands that minimise the objective and keep every limit.

    Args:
        objective: over T frames, with smoothness weights.
        limits: for the rate of the frames; a rate of 0 leaves the frames independent.
        start: first guess per frame.
    """
    count = len(start)
    commands = np.empty_like(start)
    for first in range(0, count, CHUNK_FRAMES):
        stop = min(first + CHUNK_FRAMES, count)
        rows = slice(first, min(stop + LOOK_AHEAD, count))
        history = commands[max(0, first - HISTORY) : first]
        guess = _coarse(objective, limits, start[rows], rows, history)
        solved = _solve(objective.window(rows), limits, guess, history, CONVERGED_RAD)
        commands[first:stop] = solved[: stop - first]
    return commands


def _coarse(
    objective: PoseObjective, limits: CommandLimits, start: Commands, rows: slice, history: History
) -> Commands:
    """Return a first guess: every few frames solved, and lines in between.

    Links block each other: a thumb that starts under the fingers cannot get over them, nor the
    reverse. So a solution that starts without contact competes with the direct one. A joint that
    bends both ways may end in a local minimum, so the best path from several starts competes too.
    """
    if len(history) and len(start) < 8 * STRIDE:
        return np.tile(history[-1], (len(start), 1))
    stride = STRIDE if limits.fps > 0 and len(start) >= 8 * STRIDE else 1
    if stride == 1 and objective.weights.contact == 0:
        return start
    coarse = slice(rows.start, rows.stop, stride)
    slower = limits.every(stride) if stride > 1 else limits
    window = objective.window(coarse)
    passing = objective.without(CollisionCost, HullCost).window(coarse)

    def solve(first: Commands, inside: FrameWindow = window) -> Commands:
        return _solve(inside, slower, first, history[:0], COARSE_RAD)

    def cost(commands: Commands) -> float:
        program = TrajectoryProgram(len(commands), slower, commands[:0], objective)
        return _total(program, window.at(commands))

    solved = solve(start[::stride])
    if objective.weights.contact > 0:
        solved = min(solved, solve(solve(start[::stride], passing)), key=cost)
    room = np.minimum(start - limits.lower, limits.upper - start) / (limits.upper - limits.lower)
    if stride > 1 and room.max() > BOTH_WAYS:
        frames = np.arange(rows.start, rows.stop, stride)
        other = solve(best_path(objective, slower, solved, frames))
        solved = other if cost(other) < MUCH_BETTER * cost(solved) else solved
    places = np.arange(len(start)) / stride
    return np.stack([np.interp(places, np.arange(len(solved)), c) for c in solved.T], axis=1)


def _solve(
    window: FrameWindow, limits: CommandLimits, start: Commands, history: History, converged: float
) -> Commands:
    """Solve one run of frames that follows ``history``."""
    program = TrajectoryProgram(len(start), limits, history, window.problem)
    before = history if len(history) else None
    pose = window.at(np.clip(start, limits.lower, limits.upper))

    # A guess that breaks a limit may be cheaper than any motion: the first round always counts.
    feasible = limits.allows(pose.commands, before)
    trust = np.full(len(start), TRUST_RAD)

    model = None
    for _ in range(ROUNDS):
        model = model or window.quadratic(pose)
        step, solved = program.step(pose.commands, model, trust)
        if not solved:
            if feasible:
                break
            pose, model, feasible = window.at(limits.enforce(pose.commands, before)), None, True
            continue
        trial = window.at(np.clip(pose.commands + step, limits.lower, limits.upper))
        worse = _total(program, trial) > _total(program, pose)
        if feasible and worse:
            if not _shrink(trust, pose, trial, step):
                break
            continue
        pose, model, feasible = trial, None, True
        largest = float(np.abs(step).max())
        if largest < converged:
            break
        trust = np.minimum(trust, max(GROWTH * largest, 10 * converged))

    if limits.allows(pose.commands, before):
        return pose.commands
    return limits.enforce(pose.commands, before)


def _total(program: TrajectoryProgram, pose: RobotPose) -> float:
    return float(pose.cost.sum()) + program.cost(pose.commands)


def _shrink(
    trust: Float[np.ndarray, "T"], pose: RobotPose, trial: RobotPose, step: Commands
) -> bool:
    """Shorten the steps of frames that got worse; False if none is left to shorten."""
    reach = np.abs(step).max(1)
    worse = (trial.cost > pose.cost) & (reach > 0)
    if not worse.any():
        worse = reach > 0
    # Not to rounding: the solver fails on bounds of 1e-14.
    trust[worse] = np.maximum(0.25 * reach[worse], 0.1 * CONVERGED_RAD)
    return bool(reach.max() > CONVERGED_RAD)


def best_path(
    objective: PoseObjective, limits: CommandLimits, start: Commands, frames: Int[np.ndarray, "N"]
) -> Commands:
    """Return a pose per frame, each near its optimum and within reach of the one before.

    Contact and pinches, which join fingers, are left to the solver that continues from here.

    Args:
        limits: between two of ``frames``, the positions of N frames in the objective.
        start: poses that others must beat by ``OTHER_START_BELOW``.
    """
    span = limits.upper - limits.lower
    middle = np.broadcast_to((limits.lower + limits.upper) / 2, start.shape)
    shares = np.random.default_rng(0).uniform(0.1, 0.9, (RANDOM_STARTS, 1, len(span)))
    others = np.broadcast_to(limits.lower + shares * span, (RANDOM_STARTS, *start.shape))

    # Poses from K starts, every frame alone (Levenberg-Marquardt).
    starts = np.stack([start, middle, *others])
    poses = np.empty_like(starts)
    for first in range(0, len(frames), START_BLOCK):
        rows = slice(first, first + START_BLOCK)
        block = starts[:, rows]
        window = _separate_frames(objective, np.tile(frames[rows], len(starts)))
        solved = _descend(window, limits, block.reshape(-1, block.shape[-1]))
        poses[:, rows] = solved.reshape(block.shape)

    # For each group of joints the cheapest path through these poses.
    window = _separate_frames(objective, np.tile(frames, len(poses)))
    residual, jacobian = window.residuals(window.at(poses.reshape(-1, poses.shape[-1])))
    path, depends = np.empty_like(start), np.abs(jacobian).max(0) > 1e-9
    for joints in _groups(depends):
        of_group = depends[:, joints].any(1)
        cost = 0.5 * np.sum(residual[:, of_group] ** 2, axis=1).reshape(poses.shape[:2])
        cost[1:] /= OTHER_START_BELOW
        chosen = _cheapest_path(cost, poses[:, :, joints] / limits.step[joints])
        path[:, joints] = poses[chosen, np.arange(len(frames))][:, joints]
    return path


def _separate_frames(objective: PoseObjective, frames: Int[np.ndarray, "N"]) -> FrameWindow:
    """Return the objective of separate frames, in any order, without contact and pinches."""
    targets, near = objective.targets, objective.near
    only = replace(
        targets,
        joints_hand=targets.joints_hand[frames],
        weight=targets.weight[frames],
        active=targets.active[frames],
        T_camera_hand=None,
        filled=None,
        share=None if targets.share is None else targets.share[frames],
    )
    if near is not None:
        near = CommandTarget(near.commands[frames], near.weight[frames])
    weights = replace(objective.weights, pinch=0.0, contact=0.0)
    return replace(objective, targets=only, near=near, weights=weights).window(slice(None))


def _descend(window: FrameWindow, limits: CommandLimits, commands: Commands) -> Commands:
    """Lower the cost of each frame within the bounds, without speed limits."""
    damping = np.full(len(commands), 1e-3)
    pose = window.at(np.clip(commands, limits.lower, limits.upper))

    diagonal = np.arange(commands.shape[1])
    for _ in range(START_ROUNDS):
        model = window.quadratic(pose, curved=False)
        at_lower = (pose.commands <= limits.lower) & (model.gradient > 0)
        at_upper = (pose.commands >= limits.upper) & (model.gradient < 0)
        free = ~(at_lower | at_upper)
        matrix = model.hessian * (free[:, :, None] & free[:, None, :])
        matrix[:, diagonal, diagonal] += damping[:, None] * matrix[:, diagonal, diagonal] + ~free
        step = -np.linalg.solve(matrix, (model.gradient * free)[..., None])[..., 0]
        step *= np.minimum(1, START_TRUST / np.maximum(np.abs(step).max(1, keepdims=True), 1e-12))
        trial = window.at(np.clip(pose.commands + step, limits.lower, limits.upper))
        better = trial.cost <= pose.cost
        damping = np.where(better, damping / 4, damping * 8)
        if not better.all():
            trial = window.at(np.where(better[:, None], trial.commands, pose.commands))
        largest = np.abs(trial.commands - pose.commands).max(initial=0.0)
        pose = trial
        if better.all() and largest < START_CONVERGED_RAD:
            break

    return pose.commands


def _groups(depends: np.ndarray) -> list[np.ndarray]:
    """Return sets of joints that share no residual with other sets."""
    count, label = csgraph.connected_components(depends.T.astype(int) @ depends)
    return [np.flatnonzero(label == group) for group in range(count)]


def _cheapest_path(
    cost: Float[np.ndarray, "K N"], at: Float[np.ndarray, "K N J"]
) -> Int[np.ndarray, "N"]:
    """Return the indices of the cheapest sequence; ``at`` is in steps at the speed limit."""
    total, before = cost[:, 0], []
    for frame in range(1, cost.shape[1]):
        size = np.abs(at[:, None, frame] - at[None, :, frame - 1])
        change = np.sum(STEP_COST * size**2 + EXCESS_COST * np.maximum(size - 1, 0) ** 2, axis=-1)
        sums = total + change
        before.append(sums.argmin(1))
        total = sums.min(1) + cost[:, frame]
    chosen = [int(total.argmin())]
    for back in reversed(before):
        chosen.append(int(back[chosen[-1]]))
    return np.array(chosen[::-1], int)
