"""Fits a calibration: what carries one human hand onto a robot's, by variable projection.

Each frame's pose is solved, then eliminated from the Gauss-Newton system, so that only what no pose
can follow moves the calibration. Every parameter is pulled towards its start. Targets cannot be
shrunk until everything fits: the scale, and the scale times the length of each finger, stay in
``SCALE_RANGE``. The palm cannot be turned until everything fits: the rotation stays within
``TURN_RAD`` of its start.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from acehand_core.geometry import rotations
from acehand_core.hand.skeleton import finger_keypoints
from acehand_core.motion import Calibration
from retarget.robots.hand_spec import CommandLimits, Commands, HandSpec
from retarget.robots.kinematics import KinematicTree
from retarget.solve.costs import Weights
from retarget.solve.objective import PoseObjective
from retarget.solve.targets import CALIBRATION_SIZE, HandTargets, calibrated, named_parameters
from retarget.solve.trajectory import solve_trajectory

SCALE_RANGE = (0.9, 1.3)
LENGTH_RANGE = (0.9, 1.1)
#: How far a palm frame that five points span may be turned from the robot's base.
TURN_RAD = np.radians(15.0)
ROUNDS = 20
CONVERGED = 1e-3
#: Levenberg-Marquardt: share of the diagonal added in each round.
DAMPING = 1e-6


@dataclass(frozen=True, slots=True)
class Spread:
    """Deviations from the start that cost a frame one unit, as 10 mm of a fingertip do.

    Rotation (rad), translation (m) and log scale of the hand; offset (m) and log length of each
    finger.
    """

    turn: float
    place: float
    size: float
    offset: float
    length: float

    def __mul__(self, share: float) -> Spread:
        return Spread(*(share * value for value in dataclasses.astuple(self)))

    def of_parameters(self) -> Float[np.ndarray, "27"]:
        """Return one value per parameter, see ``targets.named_parameters``."""
        values = np.empty(CALIBRATION_SIZE)
        spread = named_parameters(values)
        spread["rotation"][:], spread["translation"][:] = self.turn, self.place
        spread["log_scale"][:] = self.size
        spread["finger_offsets"][:], spread["log_lengths"][:] = self.offset, self.length
        return values


@dataclass(frozen=True, slots=True)
class _Sample:
    """Frames to calibrate on, without their order in time."""

    targets: HandTargets
    limits: CommandLimits


def fit(
    hand: HandSpec,
    tree: KinematicTree,
    targets: HandTargets,
    weights: Weights,
    start: Calibration,
    spread: Spread,
    first: Calibration | None = None,
) -> Calibration:
    """Fit all parameters to frames of some weight; their order does not matter.

    Args:
        hand, tree: the robot hand.
        targets: frames to fit to. Only how their weights compare counts: a tracker that is modest
            throughout is calibrated alike.
        weights: of the objective; its pinches and contacts are left out.
        start: what every parameter is pulled to.
        spread: how firmly.
        first: where the fit begins, if not there.
    """
    count = len(targets.weight)
    weight = targets.weight / targets.weight.mean()
    sample = _Sample(
        HandTargets(targets.side, targets.joints_hand, weight, np.ones(count, bool), None),
        CommandLimits.of(hand, 1.0).without_rate(),
    )

    # Pinches and contact are wishes on top: they must not bend what all frames share.
    weights = replace(weights, pinch=0.0, contact=0.0)
    pull = count / spread.of_parameters() ** 2
    calibration = first or start

    commands = np.tile(hand.rest, (count, 1))
    for _ in range(ROUNDS):
        objective = PoseObjective(hand, tree, sample.targets, calibration, weights)
        commands = solve_trajectory(objective, sample.limits, commands)
        deviation = _difference(calibration, start)
        step = _step(objective, commands, sample.limits, pull, deviation)
        before, calibration = calibration, _moved(calibration, step, start)
        if np.abs(_difference(calibration, before)).max() < CONVERGED:
            break

    tips = tree.points(hand.expand(commands), hand.tip_names)
    goal = calibrated(sample.targets.joints_hand, calibration)
    gap = tips - goal[:, [finger_keypoints(finger)[-1] for finger in hand.fingers]]
    squared = np.nanmean(np.sum(gap**2, axis=-1), axis=1)
    residual = float(np.sqrt(np.average(squared, weights=weight)))

    return replace(calibration, residual_m=residual)


def _step(
    objective: PoseObjective,
    commands: Commands,
    limits: CommandLimits,
    pull: Float[np.ndarray, "27"],
    deviation: Float[np.ndarray, "27"],
) -> Float[np.ndarray, "27"]:
    """Return the step of all parameters, see ``targets.named_parameters``; within bounds."""
    residual, by_command = objective(commands)
    # A joint at its limit cannot answer a change of the targets.
    free = (commands > limits.lower + 1e-6) & (commands < limits.upper - 1e-6)
    by_command = by_command * free[:, None, :]
    transposed = np.swapaxes(by_command, 1, 2)
    normal = transposed @ by_command + 1e-9 * np.eye(commands.shape[1])

    def unanswered(columns: np.ndarray) -> np.ndarray:
        return columns - by_command @ np.linalg.solve(normal, transposed @ columns)

    columns = unanswered(objective.by_calibration())
    residual = unanswered(residual[..., None])[..., 0]
    hessian = np.einsum("nrb,nrc->bc", columns, columns)
    gradient = np.einsum("nrb,nr->b", columns, residual) + pull * deviation
    hessian += DAMPING * np.diag(np.diag(hessian)) + np.diag(pull)
    return _bounded_step(hessian, gradient, objective.calibration)


def _bounded_step(
    hessian: Float[np.ndarray, "P P"], gradient: Float[np.ndarray, "P"], now: Calibration
) -> Float[np.ndarray, "P"]:
    """Minimise the quadratic model; sizes that would leave their range stop at its end."""
    step = np.zeros(len(gradient))
    fixed = np.zeros(len(gradient), bool)
    for _ in range(len(gradient)):
        rest = ~fixed
        pushed = gradient[rest] + hessian[np.ix_(rest, fixed)] @ step[fixed]
        step[rest] = -np.linalg.solve(hessian[np.ix_(rest, rest)], pushed)
        low, high = _bounds(now, float(named_parameters(step)["log_scale"][0]))
        inside = np.clip(step, low, high)
        outside = rest & (np.abs(inside - step) > 1e-12)
        # The scale comes first: the range of the lengths depends on it.
        too_far = named_parameters(outside)
        if too_far["log_scale"].any():
            too_far["log_lengths"][:] = False
        step[outside] = inside[outside]
        if not outside.any():
            break
        fixed |= outside

    return step


def _bounds(now: Calibration, grown: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the range of a step whose log scale changes by ``grown``."""
    low, high = np.full(CALIBRATION_SIZE, -np.inf), np.full(CALIBRATION_SIZE, np.inf)
    named_low, named_high = named_parameters(low), named_parameters(high)
    least, most = np.log(SCALE_RANGE)
    named_low["log_scale"][:] = least - np.log(now.scale)
    named_high["log_scale"][:] = most - np.log(now.scale)
    scale = np.clip(np.log(now.scale) + grown, least, most)
    lengths = np.log(now.lengths)
    named_low["log_lengths"][:] = np.maximum(np.log(LENGTH_RANGE[0]), least - scale) - lengths
    named_high["log_lengths"][:] = np.minimum(np.log(LENGTH_RANGE[1]), most - scale) - lengths
    return low, high


def _difference(now: Calibration, start: Calibration) -> Float[np.ndarray, "27"]:
    turn = rotations.log(now.rotation @ start.rotation.T)
    size = np.log(now.scale / start.scale)
    offsets = (now.finger_offsets - start.finger_offsets).reshape(-1)
    lengths = np.log(now.lengths / start.lengths)
    return np.concatenate([turn, now.translation - start.translation, [size], offsets, lengths])


def _moved(
    calibration: Calibration, step: Float[np.ndarray, "27"], start: Calibration
) -> Calibration:
    by = named_parameters(step)
    turn = rotations.log(rotations.exp(by["rotation"]) @ calibration.rotation @ start.rotation.T)
    turn *= min(1.0, TURN_RAD / max(float(np.linalg.norm(turn)), 1e-12))
    return Calibration(
        float(calibration.scale * np.exp(by["log_scale"][0])),
        rotations.exp(turn) @ start.rotation,
        calibration.translation + by["translation"],
        calibration.residual_m,
        calibration.finger_offsets + by["finger_offsets"].reshape(5, 3),
        calibration.lengths * np.exp(by["log_lengths"]),
    )
