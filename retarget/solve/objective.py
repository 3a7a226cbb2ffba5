"""The pose objective: the sum of a list of costs, over all frames or some of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from retarget.robots.hand_spec import Commands
from retarget.solve.collision import CollisionCost, HullCost
from retarget.solve.costs import (
    Cost,
    DirectionCost,
    KeypointCost,
    PairGaps,
    PinchCost,
    PostureCost,
    Problem,
    State,
    VectorCost,
    VectorCosts,
)
from retarget.targets import CALIBRATION_SIZE

#: What a pose costs. Smoothness and limits join frames: they are the trajectory's (``qp.py``).
COSTS: tuple[type[Cost] | type[VectorCost], ...] = (
    KeypointCost,
    DirectionCost,
    PinchCost,
    PostureCost,
    CollisionCost,
    HullCost,
)


@dataclass(frozen=True, slots=True, eq=False)
class RobotPose(State):
    """A state, each cost's residuals, and the total cost of each frame."""

    residuals: tuple[Float[np.ndarray, "T _"], ...]
    cost: Float[np.ndarray, "T"]


@dataclass(frozen=True, slots=True, eq=False)
class Quadratic:
    """The objective around a pose: gradient, convex curvature and near pairs."""

    gradient: Float[np.ndarray, "T C"]
    hessian: Float[np.ndarray, "T C C"]
    gaps: PairGaps


@dataclass(frozen=True, eq=False)
class PoseObjective(Problem):
    """A problem and the costs of its poses."""

    costs: tuple[type[Cost] | type[VectorCost], ...] = COSTS

    def window(self, rows: slice) -> FrameWindow:
        """Return the objective of some frames, with goals computed."""
        return FrameWindow(self, rows)

    def without(self, *costs: type[Cost] | type[VectorCost]) -> PoseObjective:
        """Return the objective without some of its costs."""
        return replace(self, costs=tuple(cost for cost in self.costs if cost not in costs))


class FrameWindow:
    """A ``PoseObjective`` over a run of frames."""

    def __init__(self, objective: PoseObjective, rows: slice) -> None:
        self.problem = objective
        others = (kind for kind in objective.costs if issubclass(kind, Cost))
        kinds: list[type[Cost]] = [VectorCosts, *others]
        costs = (kind.over(objective, rows) for kind in kinds)
        self._costs = [cost for cost in costs if cost is not None]

    def at(self, commands: Commands) -> RobotPose:
        """Evaluate commands."""
        state = State(commands, self.problem.tree.posture(self.problem.hand.expand(commands)))
        residuals = tuple(cost.residual(state) for cost in self._costs)
        total = np.zeros(len(commands))
        for cost, residual in zip(self._costs, residuals, strict=True):
            total += cost.value(state, residual)
        return RobotPose(commands, state.posture, residuals, total)

    def residuals(
        self, pose: RobotPose
    ) -> tuple[Float[np.ndarray, "T M"], Float[np.ndarray, "T M C"]]:
        """Return all residuals and their derivatives; one-sided costs have none."""
        jacobians = [cost.jacobian(pose) for cost in self._costs]
        return np.concatenate(pose.residuals, axis=1), np.concatenate(jacobians, axis=1)

    def quadratic(self, pose: RobotPose, curved: bool = True) -> Quadratic:
        """Return the second-order model; ``curved`` adds the curvature of the motion.

        Without it a solution with large residuals, for targets out of reach, converges linearly.
        """
        count, size = pose.commands.shape
        gradient, hessian = np.zeros((count, size)), np.zeros((count, size, size))
        for cost, residual in zip(self._costs, pose.residuals, strict=True):
            slope, bend = cost.normal(pose, residual)
            gradient += slope
            hessian += bend
        if curved:
            hessian = _convex(hessian + self.curvature(pose), self.problem.weights.rest + 1e-6)
        active = [gaps for cost in self._costs if (gaps := cost.gaps(pose)) is not None]
        return Quadratic(gradient, hessian, PairGaps.of_all(active, size))

    def curvature(self, pose: RobotPose) -> Float[np.ndarray, "T C C"]:
        """Return the residuals' own curvature, which Gauss-Newton leaves out."""
        total = np.zeros((*pose.commands.shape, pose.commands.shape[1]))
        for cost, residual in zip(self._costs, pose.residuals, strict=True):
            if (bend := cost.curvature(pose, residual)) is not None:
                total += bend
        return total

    def by_calibration(self, pose: RobotPose) -> Float[np.ndarray, "T M P"]:
        """Return the residuals' derivatives by the calibration (``targets.named_parameters``)."""
        columns = []
        for cost, residual in zip(self._costs, pose.residuals, strict=True):
            by = cost.by_calibration()
            columns.append(np.zeros((*residual.shape, CALIBRATION_SIZE)) if by is None else by)
        return np.concatenate(columns, axis=1)


def _convex(hessian: Float[np.ndarray, "T C C"], least: float) -> Float[np.ndarray, "T C C"]:
    """Return the matrices with eigenvalues raised to at least ``least``."""
    off = np.abs(hessian).sum(-1)
    diagonal = np.einsum("tcc->tc", hessian)
    # Diagonally dominant rows (Gershgorin) need no eigenvalues: most fingers are independent.
    doubtful = np.flatnonzero((diagonal - (off - np.abs(diagonal)) < least).any(1))
    if len(doubtful):
        values, vectors = np.linalg.eigh(hessian[doubtful])
        clipped = vectors * np.maximum(values, least)[:, None, :]
        hessian[doubtful] = clipped @ np.swapaxes(vectors, 1, 2)
    return hessian
