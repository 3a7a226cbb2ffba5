"""The whole trajectory at once: sequential quadratic programming with hard limits.

Each round takes the pose objective to second order in every frame and solves one sparse QP over
all frames, with acceleration and jerk as costs and angles, speeds and accelerations as constraints
(PIQP, an interior-point solver that is linear in the number of frames). There is no filter, so
there is no lag. Long recordings are solved in chunks that look ahead and go on from what is done.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from retarget.limits import CommandLimits, Commands
from retarget.objective import Pose, PoseObjective, Window
from retarget.qp import TrajectoryProgram
from retarget.starts import best_path

#: Frames solved together, and how far a chunk looks beyond the frames it keeps.
CHUNK_FRAMES = 4096
LOOK_AHEAD = 128
#: Finished frames that speed, acceleration and jerk of the next ones depend on.
HISTORY = 3
#: A first guess comes from every STRIDE-th frame.
STRIDE = 4
#: Where some joint has this share of its range to either side of the start, the guess is made from
#: several starts as well, and taken below this share of the cost.
BOTH_WAYS, MUCH_BETTER = 0.1, 0.5
#: A round moves no joint further: beyond it the model says nothing.
TRUST_RAD = 0.5
#: Steps shrink from round to round; the next one is given this much more than the last.
GROWTH = 2.0
ROUNDS = 30
CONVERGED_RAD = 3e-5
COARSE_RAD = 1e-2


def solve_trajectory(objective: PoseObjective, limits: CommandLimits, start: Commands) -> Commands:
    """Return commands that minimise the objective and keep every limit.

    Args:
        objective: over T frames, smoothness weights included.
        limits: for the rate of the frames; without a rate nothing joins the frames.
        start: first guess per frame.
    """
    count = len(start)
    out = np.empty_like(start)
    for first in range(0, count, CHUNK_FRAMES):
        stop = min(first + CHUNK_FRAMES, count)
        rows = slice(first, min(stop + LOOK_AHEAD, count))
        history = out[max(0, first - HISTORY) : first]
        guess = _coarse(objective, limits, start[rows], rows, history)
        solved = _solve(objective, objective.window(rows), limits, guess, history, CONVERGED_RAD)
        out[first:stop] = solved[: stop - first]
    return out


def _coarse(
    objective: PoseObjective,
    limits: CommandLimits,
    start: Commands,
    rows: slice,
    history: Float[np.ndarray, "H C"],
) -> Commands:
    """Return a first guess: every few frames solved, the others in between on a line.

    Links block each other: a thumb that begins under the fingers cannot get over them, and fingers
    not under a thumb. So all is solved with links that pass through each other as well, and from
    there with contact; what ends at the lower cost is kept. Where joints can go both ways from the
    start, a bend the wrong way can be a local minimum too. Then the best path through poses of
    several starts is tried, and kept if it ends at a much lower cost.
    """
    if len(history) and len(start) < 8 * STRIDE:
        return np.tile(history[-1], (len(start), 1))
    stride = STRIDE if limits.fps > 0 and len(start) >= 8 * STRIDE else 1
    if stride == 1 and objective.weights.contact == 0:
        return start
    coarse = slice(rows.start, rows.stop, stride)
    slower = limits.every(stride) if stride > 1 else limits
    window, passing = objective.window(coarse), objective.window(coarse, contact=False)

    def solve(first: Commands, inside: Window = window) -> Commands:
        return _solve(objective, inside, slower, first, history[:0], COARSE_RAD)

    def cost(commands: Commands) -> float:
        return _cost(objective, window, slower, commands)

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
    objective: PoseObjective,
    window: Window,
    limits: CommandLimits,
    start: Commands,
    history: Float[np.ndarray, "H C"],
    converged: float,
) -> Commands:
    """Solve one run of frames that follows ``history``."""
    weights = objective.weights
    smooth = weights.acceleration * limits.fps**4, weights.jerk * limits.fps**6
    program = TrajectoryProgram(len(start), limits, history, *smooth, objective.units)
    contact = weights.contact / weights.length_m**2
    before = history if len(history) else None
    pose = window.at(np.clip(start, limits.lower, limits.upper))
    # A guess that breaks a limit may be cheaper than any motion: the first round always counts.
    kept = limits.kept_by(pose.commands, before)
    trust = np.full(len(start), TRUST_RAD)
    model = None
    for _ in range(ROUNDS):
        model = model or window.quadratic(pose)
        step, solved = program.step(pose.commands, model.gradient, model.hessian, model.gaps,
                                    contact, trust)  # fmt: skip
        if not solved:
            if kept:
                break
            pose, model, kept = window.at(limits.enforce(pose.commands, before)), None, True
            continue
        trial = window.at(np.clip(pose.commands + step, limits.lower, limits.upper))
        worse = _total(program, trial) > _total(program, pose)
        if kept and worse:
            if not _shrink(trust, pose, trial, step):
                break
            continue
        pose, model, kept = trial, None, True
        largest = float(np.abs(step).max())
        if largest < converged:
            break
        trust = np.minimum(trust, max(GROWTH * largest, 10 * converged))
    if limits.kept_by(pose.commands, before):
        return pose.commands
    return limits.enforce(pose.commands, before)


def _cost(
    objective: PoseObjective, window: Window, limits: CommandLimits, commands: Commands
) -> float:
    weights = objective.weights
    smooth = weights.acceleration * limits.fps**4, weights.jerk * limits.fps**6
    program = TrajectoryProgram(len(commands), limits, commands[:0], *smooth, objective.units)
    return _total(program, window.at(commands))


def _total(program: TrajectoryProgram, pose: Pose) -> float:
    return float(pose.cost.sum()) + program.cost(pose.commands)


def _shrink(trust: Float[np.ndarray, "T"], pose: Pose, trial: Pose, step: Commands) -> bool:
    """Shorten the steps of frames that got worse; False where none is left to shorten."""
    reach = np.abs(step).max(1)
    worse = (trial.cost > pose.cost) & (reach > 0)
    if not worse.any():
        worse = reach > 0
    # Not to rounding: the solver fails on bounds of 1e-14.
    trust[worse] = np.maximum(0.25 * reach[worse], 0.1 * CONVERGED_RAD)
    return bool(reach.max() > CONVERGED_RAD)
