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
    """A state, each cost's residuals there, and what each frame costs."""

    residuals: tuple[Float[np.ndarray, "T _"], ...]
    cost: Float[np.ndarray, "T"]


@dataclass(frozen=True, slots=True, eq=False)
class Quadratic:
    """The objective around a pose: slope, convex curvature, and pairs that are near."""

    gradient: Float[np.ndarray, "T C"]
    hessian: Float[np.ndarray, "T C C"]
    gaps: PairGaps


@dataclass(frozen=True, eq=False)
class PoseObjective(Problem):
    """A problem and the costs of its poses."""

    costs: tuple[type[Cost] | type[VectorCost], ...] = COSTS

    def window(self, rows: slice) -> FrameWindow:
        """Return the objective of some frames, goals computed."""
        return FrameWindow(self, rows)

    def without(self, *costs: type[Cost] | type[VectorCost]) -> PoseObjective:
        """Return the objective less some of its costs."""
        return replace(self, costs=tuple(cost for cost in self.costs if cost not in costs))


class FrameWindow:
    """A ``PoseObjective`` over a run of frames."""

    def __init__(self, objective: PoseObjective, rows: slice) -> None:
        """Prepare every cost for these frames."""
        self._hand, self._tree = objective.hand, objective.tree
        self._least = objective.weights.rest + 1e-6
        others = (kind for kind in objective.costs if issubclass(kind, Cost))
        kinds: list[type[Cost]] = [VectorCosts, *others]
        costs = (kind.over(objective, rows) for kind in kinds)
        self._costs = [cost for cost in costs if cost is not None]

    def at(self, commands: Commands) -> RobotPose:
        """Evaluate commands."""
        state = State(commands, self._tree.posture(self._hand.expand(commands)))
        residuals = tuple(cost.residual(state) for cost in self._costs)
        total = np.zeros(len(commands))
        for cost, residual in zip(self._costs, residuals, strict=True):
            total += cost.value(state, residual)
        return RobotPose(commands, state.posture, residuals, total)

    def residuals(
        self, pose: RobotPose
    ) -> tuple[Float[np.ndarray, "T M"], Float[np.ndarray, "T M C"]]:
        """Return all residuals of a pose and their derivatives; one-sided costs have none."""
        jacobians = [cost.jacobian(pose) for cost in self._costs]
        return np.concatenate(pose.residuals, axis=1), np.concatenate(jacobians, axis=1)

    def quadratic(self, pose: RobotPose, curved: bool = True) -> Quadratic:
        """Return the objective's second-order model, with the curvature of the motion or without.

        Targets that no pose meets leave large residuals; without the curvature of the motion the
        solution is then approached by a constant share per round only.
        """
        count, size = pose.commands.shape
        gradient, hessian = np.zeros((count, size)), np.zeros((count, size, size))
        for cost, residual in zip(self._costs, pose.residuals, strict=True):
            slope, bend = cost.normal(pose, residual)
            gradient += slope
            hessian += bend
        if curved:
            hessian += self.curvature(pose)
            hessian = _convex(hessian, self._least)
        active = [gaps for cost in self._costs if (gaps := cost.gaps(pose)) is not None]
        return Quadratic(gradient, hessian, PairGaps.of_all(active, size))

    def curvature(self, pose: RobotPose) -> Float[np.ndarray, "T C C"]:
        """Return the curvature of the residuals, times them: what Gauss and Newton leave out."""
        count, size = pose.commands.shape
        total = np.zeros((count, size, size))
        for cost, residual in zip(self._costs, pose.residuals, strict=True):
            bend = cost.curvature(pose, residual)
            if bend is not None:
                total += bend
        return total

    def by_calibration(self, pose: RobotPose) -> Float[np.ndarray, "T M P"]:
        """Return the residuals' derivatives by the calibration (``targets.named_parameters``)."""
        columns = [
            np.zeros((*residual.shape, CALIBRATION_SIZE)) if by is None else by
            for by, residual in zip(
                (cost.by_calibration() for cost in self._costs), pose.residuals, strict=True
            )
        ]
        return np.concatenate(columns, axis=1)


def _convex(hessian: Float[np.ndarray, "T C C"], least: float) -> Float[np.ndarray, "T C C"]:
    """Return the matrices with eigenvalues of at least ``least``."""
    off = np.abs(hessian).sum(-1)
    diagonal = np.einsum("tcc->tc", hessian)
    # Rows that dominate (Gershgorin) need no eigenvalues: most fingers are independent.
    doubtful = np.flatnonzero((diagonal - (off - np.abs(diagonal)) < least).any(1))
    if len(doubtful):
        values, vectors = np.linalg.eigh(hessian[doubtful])
        clipped = vectors * np.maximum(values, least)[:, None, :]
        hessian[doubtful] = clipped @ np.swapaxes(vectors, 1, 2)
    return hessian
