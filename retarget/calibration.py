"""One similarity per recording and subject that carries the human hand onto the robot's.

Human and robot hands differ in size and in where their fingers start. Without a calibration a
solver spends its freedom on that constant difference. The similarity is fitted on frames spread
over the recording by variable projection: each frame's pose is solved, then eliminated from the
Gauss-Newton system, so that only what no pose can follow moves the similarity. The scale is
bounded: targets cannot be shrunk until everything fits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from acehand_core.geometry import rotations
from acehand_core.hand.skeleton import KNUCKLES
from acehand_core.motion import Calibration
from retarget.kinematics import KinematicTree
from retarget.limits import CommandLimits, Commands
from retarget.objective import PoseObjective, Weights
from retarget.robot import HandSpec
from retarget.targets import HandTargets
from retarget.trajectory import solve_trajectory

SCALE_RANGE = (0.9, 1.3)
MAX_FRAMES = 160
ROUNDS = 12
CONVERGED = 1e-3
#: Pull of the similarity towards its start, per frame: decides what the targets leave open.
DAMPING = 1e-3


@dataclass(frozen=True, slots=True)
class _Sample:
    """Frames to calibrate on, without their order in time."""

    targets: HandTargets
    limits: CommandLimits


def calibrate(
    hand: HandSpec, tree: KinematicTree, targets: HandTargets, weights: Weights
) -> Calibration:
    """Fit scale, rotation and translation of one hand over the recording."""
    active = np.flatnonzero(targets.active)
    chosen = active[np.unique(np.linspace(0, len(active) - 1, MAX_FRAMES).round().astype(int))]
    count = len(chosen)
    sample = _Sample(
        HandTargets(
            targets.side, targets.joints_hand[chosen], np.ones(count), np.ones(count, bool), None
        ),
        CommandLimits.of(hand, 1.0).without_rate(),
    )
    # Pinches and contact are wishes on top: they must not bend what all frames share.
    weights = replace(weights, pinch=0.0, contact=0.0)
    calibration = _from_knuckles(hand, tree, sample.targets)
    commands = np.tile(hand.rest, (count, 1))
    for _ in range(ROUNDS):
        objective = PoseObjective(hand, tree, sample.targets, calibration, weights)
        commands = solve_trajectory(objective, sample.limits, commands)
        step = _similarity_step(objective, commands, sample.limits, calibration.scale)
        calibration = _moved(calibration, step)
        if np.abs(step).max() < CONVERGED:
            break
    tips = tree.points(hand.expand(commands), hand.tip_names)
    goal = calibration.apply(sample.targets.tips_of(hand.fingers))
    return Calibration(
        calibration.scale,
        calibration.rotation,
        calibration.translation,
        float(np.sqrt(np.nanmean(np.sum((tips - goal) ** 2, axis=-1)))),
    )


def _similarity_step(
    objective: PoseObjective, commands: Commands, limits: CommandLimits, scale: float
) -> Float[np.ndarray, "7"]:
    """Return the step of (rotation vector, translation, log scale); the scale stays in range."""
    residual, by_command = objective(commands)
    by_similarity = objective.by_similarity()
    # A joint at its limit cannot answer a change of the targets.
    free = (commands > limits.lower + 1e-6) & (commands < limits.upper - 1e-6)
    by_command = by_command * free[:, None, :]
    transposed = np.swapaxes(by_command, 1, 2)
    normal = transposed @ by_command + 1e-9 * np.eye(commands.shape[1])

    def unanswered(columns: np.ndarray) -> np.ndarray:
        return columns - by_command @ np.linalg.solve(normal, transposed @ columns)

    by_similarity = unanswered(by_similarity)
    residual = unanswered(residual[..., None])[..., 0]
    hessian = np.einsum("nrb,nrc->bc", by_similarity, by_similarity)
    gradient = np.einsum("nrb,nr->b", by_similarity, residual)
    hessian += DAMPING * np.diag(np.diag(hessian)) + 1e-9 * np.eye(7)
    step = -np.linalg.solve(hessian, gradient)
    low, high = np.log(SCALE_RANGE) - np.log(scale)
    if not low <= step[6] <= high:
        step[6] = np.clip(step[6], low, high)
        step[:6] = -np.linalg.solve(hessian[:6, :6], gradient[:6] + hessian[:6, 6] * step[6])
    return step


def _moved(calibration: Calibration, step: Float[np.ndarray, "7"]) -> Calibration:
    return Calibration(
        float(calibration.scale * np.exp(step[6])),
        rotations.exp(step[:3]) @ calibration.rotation,
        calibration.translation + step[3:6],
        calibration.residual_m,
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
