"""One calibration per recording and subject that carries the human hand onto the robot's.

Human and robot hands differ in size and in where their fingers start. Without a calibration a
solver spends its freedom on that constant difference. One similarity is fitted, and per finger a
shift of its root and its length, on frames spread over the recording by variable projection: each
frame's pose is solved, then eliminated from the Gauss-Newton system, so that only what no pose can
follow moves the calibration.

Targets cannot be shrunk until everything fits: the scale, and the scale times the length of each
finger, stay in ``SCALE_RANGE``, and every parameter is pulled towards its start by ``SPREAD``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from acehand_core.geometry import rotations
from acehand_core.hand.skeleton import KNUCKLES, finger_keypoints
from acehand_core.motion import Calibration
from retarget.hand_spec import HandSpec
from retarget.kinematics import KinematicTree
from retarget.limits import CommandLimits, Commands
from retarget.objective import ANCHORS, CALIBRATION_SIZE, LENGTHS, PoseObjective, Weights
from retarget.targets import HandTargets, calibrated
from retarget.trajectory import solve_trajectory

SCALE_RANGE = (0.9, 1.3)
MAX_FRAMES = 160
ROUNDS = 20
CONVERGED = 1e-3
LENGTH_RANGE = (0.9, 1.1)
#: Deviations from the start that cost a frame one unit: rotation, m, log scale; and of each finger
#: from the similarity: m, log length. The first decide what targets leave open and hardly pull on
#: the rest; a finger moves for itself only as far as a hand's anatomy differs.
SPREAD = (10.0, 2.0, 10.0)
FINGER_SPREAD = (0.005, 0.05)
#: Levenberg-Marquardt: share of the diagonal added in each round.
DAMPING = 1e-6


@dataclass(frozen=True, slots=True)
class _Sample:
    """Frames to calibrate on, without their order in time."""

    targets: HandTargets
    limits: CommandLimits


def calibrate(
    hand: HandSpec, tree: KinematicTree, targets: HandTargets, weights: Weights
) -> Calibration:
    """Fit scale, rotation and translation of one hand over the recording.

    Frames count by their weight; those without any, and filled ones, are left out.
    """
    seen = np.flatnonzero(targets.measured)
    chosen = seen[np.unique(np.linspace(0, len(seen) - 1, MAX_FRAMES).round().astype(int))]
    count = len(chosen)
    # Only how frames compare: a tracker that is modest throughout is calibrated alike.
    weight = targets.weight[chosen] / targets.weight[chosen].mean()
    sample = _Sample(
        HandTargets(targets.side, targets.joints_hand[chosen], weight, np.ones(count, bool), None),
        CommandLimits.of(hand, 1.0).without_rate(),
    )
    # Pinches and contact are wishes on top: they must not bend what all frames share.
    weights = replace(weights, pinch=0.0, contact=0.0)
    start = calibration = _from_knuckles(hand, tree, sample.targets)
    commands = np.tile(hand.rest, (count, 1))
    for _ in range(ROUNDS):
        objective = PoseObjective(hand, tree, sample.targets, calibration, weights)
        commands = solve_trajectory(objective, sample.limits, commands)
        step = _step(objective, commands, sample.limits, _deviation(calibration, start))
        calibration = _moved(calibration, step)
        if np.abs(step).max() < CONVERGED:
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
    deviation: Float[np.ndarray, "27"],
) -> Float[np.ndarray, "27"]:
    """Return the step of all parameters, see ``PoseObjective.by_calibration``; within bounds."""
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
    pull = len(commands) / _spread_of_parameters() ** 2
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
        low, high = _bounds(now, step[6])
        inside = np.clip(step, low, high)
        outside = rest & (np.abs(inside - step) > 1e-12)
        # The scale comes first: the range of the lengths depends on it.
        if outside[6]:
            outside[7:] = False
        step[outside] = inside[outside]
        if not outside.any():
            break
        fixed |= outside
    return step


def _bounds(now: Calibration, grown: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the range of a step whose log scale changes by ``grown``."""
    low, high = np.full(CALIBRATION_SIZE, -np.inf), np.full(CALIBRATION_SIZE, np.inf)
    least, most = np.log(SCALE_RANGE)
    low[6], high[6] = least - np.log(now.scale), most - np.log(now.scale)
    scale = np.clip(np.log(now.scale) + grown, least, most)
    lengths = np.log(now.lengths)
    low[LENGTHS] = np.maximum(np.log(LENGTH_RANGE[0]), least - scale) - lengths
    high[LENGTHS] = np.minimum(np.log(LENGTH_RANGE[1]), most - scale) - lengths
    return low, high


def _spread_of_parameters() -> Float[np.ndarray, "27"]:
    turn, place, size = SPREAD
    anchor, length = FINGER_SPREAD
    return np.array([turn] * 3 + [place] * 3 + [size] + [anchor] * 15 + [length] * 5)


def _deviation(now: Calibration, start: Calibration) -> Float[np.ndarray, "27"]:
    turn = rotations.log(now.rotation @ start.rotation.T)
    size = np.log(now.scale / start.scale)
    fingers = now.anchors.reshape(-1), np.log(now.lengths)
    return np.concatenate([turn, now.translation - start.translation, [size], *fingers])


def _moved(calibration: Calibration, step: Float[np.ndarray, "27"]) -> Calibration:
    return Calibration(
        float(calibration.scale * np.exp(step[6])),
        rotations.exp(step[:3]) @ calibration.rotation,
        calibration.translation + step[3:6],
        calibration.residual_m,
        calibration.anchors + step[ANCHORS].reshape(5, 3),
        calibration.lengths * np.exp(step[LENGTHS]),
    )


def _from_knuckles(hand: HandSpec, tree: KinematicTree, sample: HandTargets) -> Calibration:
    """Start from where the fingers begin: they hardly move in either hand.

    Palm and base frame share their axes, so only size and place are taken from the knuckles. They
    lie almost on a line: a turn fitted to them would be mostly noise about that line.
    """
    pairs = [
        (keypoint, frame)
        for keypoint, frame in zip(hand.target_keypoints, hand.target_frames, strict=True)
        if keypoint in KNUCKLES[1:]
    ]
    if len(pairs) < 2:
        return Calibration(1.0, np.eye(3), np.zeros(3), float("nan"))
    human = np.median(sample.joints_hand[:, [k for k, _ in pairs]], axis=0)
    robot = tree.points(hand.expand(hand.rest[None]), [f for _, f in pairs])[0]
    scale = float(np.clip(_spread(robot) / _spread(human), *SCALE_RANGE))
    translation = robot.mean(0) - scale * human.mean(0)
    return Calibration(scale, np.eye(3), translation, float("nan"))


def _spread(points: Float[np.ndarray, "N 3"]) -> float:
    return float(np.linalg.norm(points - points.mean(0)))
