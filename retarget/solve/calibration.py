"""Calibration: the map from a human hand onto a robot's, per recording and subject.

Human and robot hands differ in size and finger origins; without a calibration a solver spends its
freedom on that constant difference.

``fit`` is variable projection: each frame's pose is solved, then eliminated from the Gauss-Newton
system, so only what no pose can reach changes the calibration. Every parameter is pulled towards
its start. The scale, and the scale times each finger's length, stay in ``SCALE_RANGE`` and the
rotation within ``ROTATION_RAD`` of its start, so targets cannot shrink or turn until all fits.

A held grip fits a rotated or shifted palm as well as bent fingers. So the fit starts from the
robot's own calibration, fitted by ``fit_robot`` to canonical poses of the mean hand with straight
and bent fingers (``human_poses.json``, from ``python -m tools.gestures``) and adapted to the
subject's bones and palm. ``acehand robots calibrate`` stores it as ``calibration.json`` next to the
robot.yaml, with a fingerprint; where that differs, as with a user's model, it is fitted again.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.resources
import itertools
import json
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass, replace

import numpy as np
from jaxtyping import Float

from acehand_core.errors import InputError
from acehand_core.geometry import rotations
from acehand_core.hand.skeleton import FINGERS, KNUCKLES, PALM, finger_keypoints
from acehand_core.motion import Calibration
from acehand_core.types import Side
from retarget.robots.hand_spec import CommandLimits, Commands, HandSpec
from retarget.robots.kinematics import KinematicTree
from retarget.solve.calibration_file import StoredCalibration, calibrations_for
from retarget.solve.costs import Weights
from retarget.solve.objective import PoseObjective
from retarget.solve.trajectory import solve_trajectory
from retarget.targets import (
    CALIBRATION_SIZE,
    LENGTH_RANGE,
    PARAMETERS,
    SCALE_RANGE,
    HandTargets,
    calibrated,
    named_parameters,
    palm_frames,
    palm_rotation,
)

#: Largest turn of a palm frame, which five points span, from the robot's base.
ROTATION_RAD = np.radians(15.0)
ROUNDS = 20
CONVERGED = 1e-3
#: Levenberg-Marquardt: share of the diagonal added in each round.
DAMPING = 1e-6
MAX_FRAMES = 160
#: Frames of each of several recordings of a subject, at least.
LEAST_FRAMES = 8
SOURCE = "canonical poses"

_Joints = Float[np.ndarray, "N 21 3"]
_Share = Float[np.ndarray, "N 21"]
_Parameters = Float[np.ndarray, "27"]

MOVING_M = 0.03
LEAST_SPREAD = 0.0075


@dataclass(frozen=True, slots=True)
class Spread:
    """Deviations from the start that cost a frame one unit, as 10 mm of a fingertip do.

    Rotation (rad), translation (m) and log scale of the hand, offset (m) and log length of fingers.
    """

    turn: float
    place: float
    size: float
    offset: float
    length: float

    def __mul__(self, share: float) -> Spread:
        return Spread(*(share * value for value in astuple(self)))


#: For fingertips that move by ``MOVING_M`` or more. Below, it shrinks with the third power, down to
#: ``LEAST_SPREAD``: at 10 mm of motion 0.15 rad or 15 mm cost as much as fingertips 10 mm off.
HAND_SPREAD = Spread(turn=4.0, place=0.4, size=3.0, offset=0.005, length=0.05)
#: One similarity for all fingers: size and place are free, palm frame and base share their axes.
ROBOT_SPREAD = Spread(turn=0.1, place=0.1, size=0.5, offset=1e-4, length=1e-3)


def calibrate(
    hand: HandSpec, tree: KinematicTree, targets: HandTargets, weights: Weights
) -> Calibration:
    """Fit one hand over the measured frames by their weights and shares."""
    sample = sampled(targets)
    start = for_subject(robot_calibration(hand, tree), sample)
    share = np.clip((tip_motion(sample) / MOVING_M) ** 3, LEAST_SPREAD, 1.0)
    return fit(hand, tree, sample, weights, start, HAND_SPREAD * float(share))


def sampled(targets: HandTargets, frames: int = MAX_FRAMES) -> HandTargets:
    """Return up to ``frames`` measured frames, evenly chosen, without their order in time."""
    seen = np.flatnonzero(targets.measured)
    chosen = seen[np.unique(np.linspace(0, len(seen) - 1, frames).round().astype(int))]
    share = None if targets.share is None else targets.share[chosen]
    return _unordered(targets.side, targets.joints_hand[chosen], targets.weight[chosen], share)


def pooled(recordings: Sequence[HandTargets]) -> HandTargets:
    """Return equally many frames of each recording of a subject's hand; no share counts as 1."""
    each = max(LEAST_FRAMES, MAX_FRAMES // len(recordings))
    samples = [sampled(targets, each) for targets in recordings]
    shares = [np.ones((len(s.weight), 21)) if s.share is None else s.share for s in samples]
    return _unordered(
        samples[0].side,
        np.concatenate([s.joints_hand for s in samples]),
        np.concatenate([s.weight for s in samples]),
        None if all(s.share is None for s in samples) else np.concatenate(shares),
    )


def _unordered(
    side: Side, joints: _Joints, weight: Float[np.ndarray, "N"], share: _Share | None = None
) -> HandTargets:
    """Return frames without an order in time and a place before a camera."""
    return HandTargets(side, joints, weight, np.ones(len(joints), bool), None, share=share)


def for_subject(robot: Calibration, targets: HandTargets) -> Calibration:
    """Return a robot's calibration, made for the mean hand, for a subject's palm and fingers."""
    mean, joints = canonical_joints(targets.side), targets.joints_hand
    rotation = robot.rotation @ palm_rotation(targets).T
    scale = float(np.clip(robot.scale * _size_ratio(mean, joints), *SCALE_RANGE))
    translation = robot.translation

    wrist_to_knuckles = [np.median(j[:, KNUCKLES[1:]], axis=0) for j in (mean, joints)]
    both = np.isfinite(wrist_to_knuckles).all((0, 2))
    if both.any():
        a, b = (points[both].mean(0) for points in wrist_to_knuckles)
        translation = translation + robot.scale * robot.rotation @ a - scale * rotation @ b
    return replace(robot, scale=scale, rotation=rotation, translation=translation)


def tip_motion(targets: HandTargets) -> float:
    """Return the rms distance of fingertips from their mean position in the palm, metres.

    It is the median over the fingers, since the motion of one hardly constrains the palm. An
    unknown finger counts as the next one.
    """
    away = np.full(5, np.nan)
    for finger, tips in enumerate(np.moveaxis(targets.tips, 1, 0)):
        known = np.isfinite(tips).all(-1) & (targets.weight > 0)
        if known.any():
            tips, weight = tips[known], targets.weight[known]
            squared = np.sum((tips - np.average(tips, axis=0, weights=weight)) ** 2, axis=-1)
            away[finger] = np.sqrt(np.average(squared, weights=weight))
    given = np.flatnonzero(np.isfinite(away))
    return float(np.median(np.interp(range(5), given, away[given]))) if len(given) else 0.0


def _size_ratio(mean: Float[np.ndarray, "P 21 3"], joints: _Joints) -> float:
    """Return the size of the mean hand's fingers, else palm, over the subject's."""
    bones = [pair for f in FINGERS[1:] for pair in itertools.pairwise(finger_keypoints(f))]
    for pairs in (bones, [(0, k) for k in PALM[1:]]):
        start, end = np.array(pairs).T
        lengths = (np.linalg.norm(j[:, end] - j[:, start], axis=-1) for j in (mean, joints))
        a, b = map(_known_median, lengths)
        both = np.isfinite(a) & np.isfinite(b)
        if both.any() and b[both].sum() > 0:
            return float(a[both].sum() / b[both].sum())
    return 1.0


def _known_median(values: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "D"]:
    """Return the median of each column's finite values, NaN for none."""
    return np.array(
        [np.median(c[np.isfinite(c)]) if np.isfinite(c).any() else np.nan for c in values.T]
    )


@functools.lru_cache(maxsize=16)
def robot_calibration(hand: HandSpec, tree: KinematicTree) -> Calibration:
    """Return a robot's own calibration, stored or fitted. Raises SchemaError for a broken file."""
    stored = stored_calibration(hand)
    if stored is not None and stored.sha256 == fingerprint(hand, tree):
        return stored.calibration
    return fit_robot(hand, tree)


def stored_calibration(hand: HandSpec) -> StoredCalibration | None:
    """Return the calibration stored next to the robot.yaml, whatever it was fitted to."""
    path = hand.calibration_path
    if path is None or not path.is_file():
        return None
    try:
        return calibrations_for(path, hand.robot, hand.variant).get(hand.side)
    except InputError:  # a folder copied for another robot
        return None


def fitted_robot(hand: HandSpec, tree: KinematicTree) -> StoredCalibration:
    """Return a robot's own calibration, fitted now, with its origin."""
    return StoredCalibration(fit_robot(hand, tree), SOURCE, fingerprint(hand, tree))


def fit_robot(hand: HandSpec, tree: KinematicTree) -> Calibration:
    """Fit a robot hand to the canonical poses."""
    joints = canonical_joints(hand.side)
    targets = _unordered(hand.side, joints, np.ones(len(joints)))
    start = _from_knuckles(hand, tree, joints)
    fitted = fit(hand, tree, targets, Weights(), start, ROBOT_SPREAD)
    # The robot's own is a similarity: offsets and lengths of fingers are the subject's.
    return replace(fitted, finger_offsets=np.zeros((5, 3)), lengths=np.ones(5))


def fingerprint(hand: HandSpec, tree: KinematicTree) -> str:
    """Return the SHA-256 of poses, settings and kinematics; lengths count to 0.01 mm."""
    commands = np.stack([hand.command_lower, hand.rest, hand.command_upper])
    points = tree.points(hand.expand(commands), hand.target_frames)
    # Stored fingerprints have the former name, and lack costs added since: those without weight.
    spread = repr(ROBOT_SPREAD).replace("offset=", "anchor=")
    weights = ", ".join(f"{name}={value!r}" for name, value in asdict(Weights()).items() if value)
    settings = (spread, f"Weights({weights})", hand.target_keypoints, hand.fingers)
    digest = hashlib.sha256(repr((settings, _poses())).encode())
    for values in (commands, hand.coupling, points):
        digest.update((np.round(values * 1e5).astype(np.int64)).tobytes())
    return digest.hexdigest()


def canonical_joints(side: Side) -> Float[np.ndarray, "P 21 3"]:
    """Return the canonical poses of the mean hand in its palm frame, metres."""
    right = np.array(list(_poses().values()))
    poses = palm_frames(right, "right")
    local = (right - poses[:, None, :3, 3]) @ poses[:, :3, :3]
    return local if side == "right" else local * np.array([1.0, -1.0, 1.0])


@functools.cache
def _poses() -> dict[str, list[list[float]]]:
    file = importlib.resources.files("retarget").joinpath("human_poses.json")
    return json.loads(file.read_text(encoding="utf-8"))


def _from_knuckles(hand: HandSpec, tree: KinematicTree, joints: _Joints) -> Calibration:
    """Return a start from the knuckles, which hardly move in either hand: size and place only."""
    scale, translation = 1.0, np.zeros(3)
    frame_of = hand.frame_of_keypoint
    knuckles = [keypoint for keypoint in frame_of if keypoint in KNUCKLES[1:]]
    if len(knuckles) >= 2:
        human = np.median(joints[:, knuckles], axis=0)
        robot = tree.points(hand.expand(hand.rest[None]), [frame_of[k] for k in knuckles])[0]
        size = [np.linalg.norm(points - points.mean(0)) for points in (robot, human)]
        scale = float(np.clip(size[0] / size[1], *SCALE_RANGE))
        translation = robot.mean(0) - scale * human.mean(0)
    return Calibration(scale, np.eye(3), translation, float("nan"))


def fit(
    hand: HandSpec,
    tree: KinematicTree,
    targets: HandTargets,
    weights: Weights,
    start: Calibration,
    spread: Spread,
) -> Calibration:
    """Fit all parameters to frames in any order.

    Args:
        targets: frames to fit to; only ratios of their weights count, and smaller shares leave more
            to the start.
        weights: of the objective, without its pinches and contacts.
        start: the start, to which ``spread`` pulls every parameter.
    """
    count = len(targets.weight)
    weight = targets.weight / targets.weight.mean()
    targets = _unordered(targets.side, targets.joints_hand, weight, targets.share)
    limits = CommandLimits.of(hand, 1.0).without_rate()

    # Pinches and contact must not bend what all frames share.
    weights = replace(weights, pinch=0.0, contact=0.0)
    pull = count / np.repeat(astuple(spread), tuple(PARAMETERS.values())) ** 2
    calibration = start

    commands = np.tile(hand.rest, (count, 1))
    for _ in range(ROUNDS):
        objective = PoseObjective(hand, tree, targets, calibration, weights)
        commands = solve_trajectory(objective, limits, commands)
        step = _step(objective, commands, pull, _difference(calibration, start))
        before, calibration = calibration, _stepped(calibration, step, start)
        if np.abs(_difference(calibration, before)).max() < CONVERGED:
            break

    goals = replace(targets, joints_hand=calibrated(targets.joints_hand, calibration))
    gap = tree.points(hand.expand(commands), hand.tip_names) - goals.tips_of(hand.fingers)
    seen = np.isfinite(gap).all(-1).any(1)
    squared = np.nanmean(np.sum(gap[seen] ** 2, axis=-1), axis=1)
    residual = float(np.sqrt(np.average(squared, weights=targets.weight[seen])))
    return replace(calibration, residual_m=residual)


def _step(
    objective: PoseObjective, commands: Commands, pull: _Parameters, deviation: _Parameters
) -> _Parameters:
    """Return the step of all parameters (``targets.named_parameters``), within bounds."""
    window = objective.window(slice(None))
    pose = window.at(commands)
    residual, by_command = window.residuals(pose)
    # A joint at its limit cannot respond to the targets.
    hand = objective.hand
    free = (commands > hand.command_lower + 1e-6) & (commands < hand.command_upper - 1e-6)
    by_command = by_command * free[:, None, :]
    transposed = np.swapaxes(by_command, 1, 2)
    normal = transposed @ by_command + 1e-9 * np.eye(commands.shape[1])

    def unreachable(columns: np.ndarray) -> np.ndarray:
        return columns - by_command @ np.linalg.solve(normal, transposed @ columns)

    columns = unreachable(window.by_calibration(pose))
    residual = unreachable(residual[..., None])[..., 0]
    hessian = np.einsum("nrb,nrc->bc", columns, columns)
    gradient = np.einsum("nrb,nr->b", columns, residual) + pull * deviation
    hessian += DAMPING * np.diag(np.diag(hessian)) + np.diag(pull)
    return _bounded_step(hessian, gradient, objective.calibration)


def _bounded_step(
    hessian: Float[np.ndarray, "P P"], gradient: Float[np.ndarray, "P"], now: Calibration
) -> Float[np.ndarray, "P"]:
    """Minimise the quadratic model; sizes stop at the end of their range."""
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
    """Return the range of a step for a change of the log scale by ``grown``."""
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


def _difference(now: Calibration, start: Calibration) -> _Parameters:
    turn = rotations.log(now.rotation @ start.rotation.T)
    size = np.log(now.scale / start.scale)
    offsets = (now.finger_offsets - start.finger_offsets).reshape(-1)
    lengths = np.log(now.lengths / start.lengths)
    return np.concatenate([turn, now.translation - start.translation, [size], offsets, lengths])


def _stepped(calibration: Calibration, step: _Parameters, start: Calibration) -> Calibration:
    by = named_parameters(step)
    turn = rotations.log(rotations.exp(by["rotation"]) @ calibration.rotation @ start.rotation.T)
    turn *= min(1.0, ROTATION_RAD / max(float(np.linalg.norm(turn)), 1e-12))
    return Calibration(
        float(calibration.scale * np.exp(by["log_scale"][0])),
        rotations.exp(turn) @ start.rotation,
        calibration.translation + by["translation"],
        calibration.residual_m,
        calibration.finger_offsets + by["finger_offsets"].reshape(5, 3),
        calibration.lengths * np.exp(by["log_lengths"]),
    )
