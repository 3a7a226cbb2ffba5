"""Quadratic programs over a run of frames: smooth, within limits, clear of contact, at rest."""

from __future__ import annotations

import numpy as np
import piqp
import scipy.sparse as sp
from jaxtyping import Float

from acehand_core.motion import Course
from retarget.robots.hand_spec import CommandLimits, Commands, HandSpec
from retarget.solve.costs import PairGaps, Problem
from retarget.solve.objective import Quadratic

#: Of slopes and of the duality gap. Small acceleration weights alone hold idle frames: at the
#: solver's default of 1e-8 they end up to 2 mrad off.
TOLERANCE = 1e-9

History = Float[np.ndarray, "H C"]


class TrajectoryProgram:
    """The constant part of a run of frames: smoothness and limits.

    ``history`` holds up to three finished frames before it.
    """

    def __init__(
        self, count: int, limits: CommandLimits, history: History, problem: Problem
    ) -> None:
        """Build the matrices; smoothness weighs squared differences in the problem's units."""
        weights, units = problem.weights, problem.units
        size = len(limits.lower)
        self._shape, self._limits = (count, size), limits
        done = len(history)
        total = count + done
        smooth = sp.csr_array((total, total))
        acceleration, jerk = weights.acceleration * limits.fps**4, weights.jerk * limits.fps**6
        for order, weight in ((2, acceleration), (3, jerk)):
            if weight > 0 and total > order:
                matrix = _differences(total, order)
                smooth = smooth + weight * (matrix.T @ matrix)

        smooth = smooth.tocsr()
        share = units**-2.0
        self._smooth = sp.kron(smooth[done:, done:], sp.diags_array(share)).tocsc()
        pull = np.asarray(smooth[done:, :done] @ history) if done else np.zeros(self._shape)
        self._pull = pull * share

        rows, past, bounds = [sp.csr_array((0, count * size))], [np.zeros(0)], [np.zeros(0)]
        for order, limit in ((1, limits.step), (2, limits.bend)):
            if limits.fps > 0 and np.isfinite(limit).any() and total > order:
                matrix = _differences(total, order).tocsr()[max(0, done - order) :]
                rows.append(sp.kron(matrix[:, done:], sp.eye_array(size)))
                past.append(np.asarray(matrix[:, :done] @ history).reshape(-1))
                bounds.append(np.tile(limit, matrix.shape[0]))

        self._rates = sp.vstack(rows).tocsr()
        self._past, self._bounds = np.concatenate(past), np.concatenate(bounds)

    def cost(self, x: Commands) -> float:
        """Return the cost of the motion alone."""
        flat = x.reshape(-1)
        return 0.5 * float(flat @ (self._smooth @ flat)) + float(np.sum(self._pull * x))

    def step(
        self, x: Commands, model: Quadratic, trust: Float[np.ndarray, "T"]
    ) -> tuple[Commands, bool]:
        """Return the step from ``x`` that minimises the model within limits, and if it was found.

        Near pairs that it leaves too close cost their weight. ``trust``: the largest step of a
        joint in each frame, rad.
        """
        flat = x.reshape(-1)
        blocks = sp.bsr_array((model.hessian, np.arange(len(x)), np.arange(len(x) + 1)))
        quadratic = blocks.tocsr() + self._smooth
        linear = model.gradient.reshape(-1) + self._smooth @ flat + self._pull.reshape(-1)
        low = np.maximum(self._limits.lower - x, -trust[:, None])
        high = np.minimum(self._limits.upper - x, trust[:, None])
        gaps = model.gaps.within_reach(low, high)
        size, extra = x.size, len(gaps.room)
        low, high = low.reshape(-1), high.reshape(-1)

        now = self._past + self._rates @ flat
        # Rows that no step within the trust region can break are left out.
        reach = abs(self._rates) @ np.repeat(trust, x.shape[1])
        tight = np.flatnonzero(np.abs(now) + reach > self._bounds)
        rows, bounds, now = self._rates[tight], self._bounds[tight], now[tight]
        least, most = -bounds - now, bounds - now

        if extra:
            # Slack in units of 1 / sqrt(weight) keeps all variables at similar sizes.
            unit, free = 1 / np.sqrt(gaps.weight), np.full(extra, np.inf)
            quadratic = sp.block_diag((quadratic, sp.eye_array(extra)))
            linear = np.concatenate([linear, np.zeros(extra)])
            low, high = np.concatenate([low, np.zeros(extra)]), np.concatenate([high, free])
            wider = sp.hstack([rows, sp.csc_array((rows.shape[0], extra))])
            rows = sp.vstack([wider, _gap_rows(gaps, x.shape, unit)])
            least, most = np.concatenate([least, -gaps.room]), np.concatenate([most, free])

        solver = piqp.SparseSolver()
        settings = solver.settings
        settings.eps_abs = settings.eps_duality_gap_abs = TOLERANCE
        settings.eps_rel = settings.eps_duality_gap_rel = TOLERANCE / 10
        solver.setup(quadratic.tocsc(), linear, None, None, rows.tocsc(), least, most, low, high)
        solved = solver.solve() == piqp.PIQP_SOLVED
        step = np.asarray(solver.result.x[:size]).reshape(x.shape)
        return (step if solved else np.zeros_like(x)), solved


def nearest_path(limits: CommandLimits, commands: Commands, at_rest: bool = False) -> Commands:
    """Return the least-squares nearest commands that keep every limit, joint by joint.

    ``at_rest``: with rest before the first command and after the last.
    """
    if not at_rest and limits.allows(commands):
        return commands
    count = len(commands)
    nearest = np.clip(commands, limits.lower, limits.upper)
    if count < 2:
        return nearest
    first = _differences(count, 1)
    rows = [first, _differences(count, 2)] if count > 2 else [first]
    rows += [first[[0, -1]]] if at_rest else []

    matrix = sp.vstack(rows).tocsc()
    for joint, goal in enumerate(commands.T):
        bends = matrix.shape[0] - (count - 1)
        bound = np.repeat([limits.step[joint], limits.bend[joint]], [count - 1, bends])
        low, high = np.full(count, limits.lower[joint]), np.full(count, limits.upper[joint])
        solver = piqp.SparseSolver()
        solver.settings.eps_abs = solver.settings.eps_duality_gap_abs = TOLERANCE
        identity = sp.eye_array(count).tocsc()
        solver.setup(identity, -goal, None, None, matrix, -bound, bound, low, high)
        # Holding still keeps every limit, so there is always a solution.
        if solver.solve() != piqp.PIQP_SOLVED:
            raise ArithmeticError("The nearest path within limits was not found.")
        nearest[:, joint] = np.asarray(solver.result.x)
    return nearest


def course(hand: HandSpec, commands: Commands, fps: float, begin_s: float) -> Course:
    """Return commands ``1 / fps`` apart as a trajectory from rest to rest (``nearest_path``).

    Points lie halfway between commands and have the speed from one to the next. The speed of a
    cubic through such points changes linearly, so speed and acceleration keep their limits in
    between. The first point is at ``begin_s``; command k is passed half a frame after point k.
    """
    path = nearest_path(CommandLimits.of(hand, fps), commands, at_rest=True)
    path = np.concatenate([path[:1], path, path[-1:]])
    return Course(
        seconds=begin_s + np.arange(len(path) - 1) / fps,
        positions=(path[1:] + path[:-1]) / 2,
        velocities=np.diff(path, axis=0) * fps,
    )


def lead_s(
    hand: HandSpec, first: Float[np.ndarray, "C"], start: Float[np.ndarray, "C"] | None = None
) -> float:
    """Return the time from rest at ``start`` (None: anywhere) to rest at the first point."""
    far = np.maximum(hand.command_upper - first, first - hand.command_lower)
    reach = far if start is None else np.abs(first - start)
    # A cubic from rest to rest over D in T has at most speed 1.5 D / T, acceleration 6 D / T^2.
    times = 1.5 * reach / hand.command_velocity, np.sqrt(6 * reach / hand.command_acceleration)
    return float(np.max(times))


def _gap_rows(gaps: PairGaps, shape: tuple[int, int], unit: Float[np.ndarray, "N"]) -> sp.csc_array:
    """Return the matrix of ``by_command @ step + unit * slack``."""
    extra, size = gaps.by_command.shape
    entries = gaps.by_command[:, None], gaps.frames, np.arange(extra + 1)
    by_step = sp.bsr_array(entries, shape=(extra, shape[0] * size)).tocsr()
    by_step.eliminate_zeros()
    return sp.hstack([by_step, sp.diags_array(unit)], format="csc")


def _differences(count: int, order: int) -> sp.csr_array:
    """Return the matrix of differences of an order between consecutive frames."""
    weights = {1: [-1.0, 1.0], 2: [1.0, -2.0, 1.0], 3: [-1.0, 3.0, -3.0, 1.0]}[order]
    shape = (count - order, count)
    return sp.diags_array(weights, offsets=list(range(order + 1)), shape=shape).tocsr()
