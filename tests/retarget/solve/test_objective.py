"""The pose objective: its value term by term, and its Jacobians against finite differences."""

import dataclasses

import numpy as np
import pytest

from acehand_core.geometry import rotations
from acehand_core.hand.skeleton import DISTALS, INTERMEDIATES, TIPS
from acehand_core.motion import Calibration
from acehand_core.types import SIDES
from helpers.retarget_samples import FPS, robot_targets, smooth_commands, solved
from retarget.robots.hand_spec import CommandLimits
from retarget.robots.kinematics import KinematicTree
from retarget.robots.robot import load_robot
from retarget.solve.costs import Cost, VectorCost, VectorTerm, Weights
from retarget.solve.objective import COSTS, PoseObjective

WEIGHTS = Weights(tip=1.3, link=0.4, direction=0.7, pinch=3.0, rest=0.2, length_m=0.01)
CALIBRATION = Calibration(
    1.1, rotations.exp(np.array([0.2, -0.1, 0.3])), np.array([0.01, -0.02, 0.03]), 0.0,
    finger_offsets=np.random.default_rng(5).normal(0, 0.01, (5, 3)),
    lengths=np.array([0.95, 1.05, 1.1, 0.9, 1.02]),
)  # fmt: skip


@pytest.fixture(scope="module", params=SIDES)
def hand(request):
    return load_robot("inspire").hand(request.param)


@pytest.fixture(scope="module")
def tree(hand):
    return KinematicTree.of(hand)


@pytest.fixture(scope="module")
def targets(hand, tree):
    """Six frames, far from any pose; one joint missing, one frame without weight.

    Thumb and index are closed in the first frame and on the way apart in the second.
    """
    rng = np.random.default_rng(0)
    made = robot_targets(hand, tree, smooth_commands(hand, 6), CALIBRATION)
    joints = made.joints_hand + rng.normal(0, 0.02, made.joints_hand.shape)
    joints[2, 6] = np.nan  # index PIP
    joints[0, 8], joints[1, 8] = joints[0, 4] + [0, 0.02, 0], joints[1, 4] + [0.04, 0, 0]
    joints[1:, 12] += [0, 0, 0.1]
    weight = np.array([1.0, 0.3, 1.0, 0.0, 0.05, 1.0])
    return dataclasses.replace(made, joints_hand=joints, weight=weight, active=weight > 0)


@pytest.fixture(scope="module")
def objective(hand, tree, targets):
    return PoseObjective(hand, tree, targets, CALIBRATION, WEIGHTS)


@pytest.fixture(scope="module")
def commands(hand):
    return smooth_commands(hand, 6, seed=3)


def slow_cost(hand, tree, targets, calibration, weights, commands):
    points = tree.points(hand.expand(commands), hand.target_frames)
    total = weights.rest * np.sum((commands - hand.rest) ** 2)
    for frame in range(len(commands)):
        for k, keypoint in enumerate(hand.target_keypoints):
            human = targets.joints_hand[frame, keypoint]
            if np.isnan(human).any():
                continue
            if keypoint in TIPS:
                pull = weights.tip
            elif keypoint in INTERMEDIATES or keypoint in DISTALS:
                pull = weights.link
            else:
                pull = 0.0
            finger = (keypoint - 1) // 4
            root = targets.joints_hand[frame, 1 + 4 * finger] if finger else np.zeros(3)
            human = root + calibration.lengths[finger] * (human - root)
            goal = calibration.scale * calibration.rotation @ human + calibration.translation
            goal = goal + calibration.finger_offsets[finger]
            distance = np.linalg.norm(points[frame, k] - goal) / weights.length_m
            total += pull * share_of(targets, frame, keypoint) * distance**2
        total += slow_directions(hand, tree, targets, calibration, weights, points[frame], frame)
    tips = tree.points(hand.expand(commands), hand.tip_names)
    human = targets.joints_hand[1, 8] - targets.joints_hand[1, 4]
    most = calibration.scale * calibration.rotation @ human * 2 / 3  # 40 mm
    apart = tips[:2, 1] - tips[:2, 0]
    # The wanted vector grows, and the pull fades with the square, from 30 to 45 mm.
    for frame, gap, closing in ((0, apart[0], 1), (1, apart[1] - most, 1 / 9)):
        # Shares of 1 / (1 + v) stand for variances v, and those of two tips add up.
        shares = np.ones(2) if targets.share is None else targets.share[frame, [4, 8]]
        pull = weights.pinch * targets.weight[frame] / (1 + np.sum(1 / shares - 1))
        total += pull * closing * np.sum((gap / weights.length_m) ** 2)
    return total


def share_of(targets, frame, keypoint):
    return targets.weight[frame] * (1 if targets.share is None else targets.share[frame, keypoint])


def slow_directions(hand, tree, targets, calibration, weights, points, frame):
    place = {keypoint: k for k, keypoint in enumerate(hand.target_keypoints)}
    total = 0.0
    for start, end in ((3, 4), (6, 8), (10, 12), (14, 16), (18, 20)):
        human = targets.joints_hand[frame, end] - targets.joints_hand[frame, start]
        if np.isfinite(human).all():
            wanted = calibration.rotation @ human / np.linalg.norm(human)
            robot = points[place[end]] - points[place[start]]
            off = np.sum((robot / np.linalg.norm(robot) - wanted) ** 2)
            total += weights.direction * share_of(targets, frame, end) * off
    return total


def evaluated(objective, commands, rows=slice(None)):
    window = objective.window(rows)
    return window.residuals(window.at(commands))


@pytest.mark.parametrize("known", ["alike", "unequally"])
def test_value(hand, tree, targets, commands, known):
    if known == "unequally":
        share = np.random.default_rng(1).uniform(0.02, 1, (6, 21))
        targets = dataclasses.replace(targets, share=share)
    residual, _ = evaluated(PoseObjective(hand, tree, targets, CALIBRATION, WEIGHTS), commands)
    expected = slow_cost(hand, tree, targets, CALIBRATION, WEIGHTS, commands)
    assert np.sum(residual**2) == pytest.approx(expected, rel=1e-12)


def test_jacobian_by_commands(hand, objective, commands):
    _, jacobian = evaluated(objective, commands)
    for column, move in enumerate(1e-6 * np.eye(len(hand.rest))):
        ahead, behind = (evaluated(objective, commands + sign * move)[0] for sign in (1, -1))
        assert jacobian[..., column] == pytest.approx((ahead - behind) / 2e-6, abs=1e-6)


def test_jacobian_by_calibration(hand, tree, targets, objective, commands):
    window = objective.window(slice(None))
    analytic = window.by_calibration(window.at(commands))
    step = 1e-6

    def moved(row, sign):
        delta = sign * step * np.eye(27)[row]
        calibration = Calibration(
            CALIBRATION.scale * np.exp(delta[6]),
            rotations.exp(delta[:3]) @ CALIBRATION.rotation,
            CALIBRATION.translation + delta[3:6],
            0.0,
            CALIBRATION.finger_offsets + delta[7:22].reshape(5, 3),
            CALIBRATION.lengths * np.exp(delta[22:]),
        )
        objective = PoseObjective(hand, tree, targets, calibration, WEIGHTS)
        return evaluated(objective, commands)[0]

    for row in range(27):
        numeric = (moved(row, 1) - moved(row, -1)) / (2 * step)
        assert analytic[..., row] == pytest.approx(numeric, abs=2e-6)
        assert np.abs(numeric).max() > 0.1  # every parameter moves something


def assert_slopes(window, commands):
    """Hold a window's gradient and curvature against central differences of its cost."""
    model = window.quadratic(window.at(commands), curved=False)
    curvature = model.hessian + window.curvature(window.at(commands))
    step, count = 1e-5, commands.shape[1]
    for column in range(count):
        move = step * np.eye(count)[column]
        ahead, behind = window.at(commands + move), window.at(commands - move)
        slope = (ahead.cost - behind.cost) / (2 * step)
        assert model.gradient[:, column] == pytest.approx(slope, rel=1e-6, abs=1e-4)
        gradients = [window.quadratic(p, curved=False).gradient for p in (ahead, behind)]
        bend = (gradients[0] - gradients[1]) / (2 * step)
        assert curvature[:, column] == pytest.approx(bend, rel=1e-5, abs=1e-3)


def test_gradient_and_curvature(hand, tree, targets, commands):
    weights = dataclasses.replace(WEIGHTS, contact=0.0)
    window = PoseObjective(hand, tree, targets, CALIBRATION, weights).window(slice(None))
    assert_slopes(window, commands)


def test_the_model_is_convex(hand, tree, targets, commands):
    window = PoseObjective(hand, tree, targets, CALIBRATION, WEIGHTS).window(slice(None))
    pose = window.at(commands)
    full = window.quadratic(pose, curved=False).hessian + window.curvature(pose)
    values = np.linalg.eigvalsh(full)
    assert values.min() < -1  # these targets are far away: there is something to do
    convex = window.quadratic(pose).hessian
    assert np.linalg.eigvalsh(convex).min() > 0
    # At the pose that the targets came from nothing is bent, so nothing may be changed.
    exact = robot_targets(hand, tree, commands, CALIBRATION)
    window = PoseObjective(hand, tree, exact, CALIBRATION, WEIGHTS).window(slice(None))
    plain = window.quadratic(window.at(commands), curved=False).hessian
    assert window.quadratic(window.at(commands)).hessian == pytest.approx(plain, abs=1e-6)


def test_contact_is_part_of_the_cost(hand, tree, targets):
    """Thumb through the index: the cost is that of the depth; its gap opens along the gradient."""
    closed = np.clip([[0, 0, 0, 1.0, 0.45, 1.0]] * 6, hand.command_lower, hand.command_upper)
    objective = PoseObjective(hand, tree, targets, CALIBRATION, WEIGHTS)
    window = objective.window(slice(None))
    free = dataclasses.replace(WEIGHTS, contact=0.0)
    without = PoseObjective(hand, tree, targets, CALIBRATION, free).window(slice(None))
    pose = window.at(closed)
    gaps = window.quadratic(pose).gaps
    deep = gaps.frames[gaps.room < 0]
    assert len(deep)
    paid = np.zeros(6)
    np.add.at(paid, deep, 0.5 * WEIGHTS.contact * (gaps.room[gaps.room < 0] / 0.01) ** 2)
    assert pose.cost - without.at(closed).cost == pytest.approx(paid)
    assert not len(without.quadratic(without.at(closed)).gaps.room)


def test_missing_joints_and_weightless_frames_pull_nothing(hand, objective, commands):
    residual, jacobian = evaluated(objective, commands)
    terms = len(hand.rest)
    assert np.isfinite(residual).all() and np.isfinite(jacobian).all()
    assert not residual[3, :-terms].any() and not jacobian[3, :-terms].any()
    zero = (residual[:, :-terms].reshape(6, -1, 3) == 0).all(-1).sum(1)
    # Open pinches: all but the index finger's. A joint that is missing takes its link and its
    # direction along.
    idle = len(objective.pinches.fingers) - 1
    assert idle == (1 if hand.side == "right" else 0)  # the left middle finger cannot pinch
    assert (zero - idle)[[0, 1, 2, 4, 5]].tolist() == [0, 0, 3, 1, 1]
    assert zero[3] == len(residual[0, :-terms]) // 3


@pytest.mark.few(2)
@pytest.mark.parametrize("factor", [0.5, 2.0, 8.0])
def test_smoothing_does_not_depend_on_the_frame_rate(hand, tree, factor):
    """The same noisy motion at another rate: the solution bends as much, in rad/s^2."""
    count = 61
    slow = smooth_commands(hand, count)
    slow[30:] = slow[30]  # it stops at once: only smoothing rounds this off

    def at_rate(commands, fps):
        targets, limits = robot_targets(hand, tree, commands), CommandLimits.of(hand, fps)
        return solved(hand, tree, targets, start=commands, limits=limits)

    fine_times = np.arange(int((count - 1) * factor) + 1) / factor
    fine = np.stack([np.interp(fine_times, np.arange(count), c) for c in slow.T], axis=1)
    at_30, at_other = at_rate(slow, FPS), at_rate(fine, FPS * factor)
    common = np.stack([np.interp(np.arange(count), fine_times, c) for c in at_other.T], axis=1)
    # Where it stops the acceleration limit decides, on another grid of frames.
    assert np.abs(common - at_30).max() < 0.02


class Sines(Cost):
    """A cost of one's own: the sine of every joint should be that of 0.3 rad."""

    WEIGHT = 40.0

    @classmethod
    def over(cls, problem, rows):
        return cls()

    def residual(self, state):
        return self.WEIGHT * (np.sin(state.commands) - np.sin(0.3))

    def jacobian(self, state):
        return self.WEIGHT * np.cos(state.commands)[..., None] * np.eye(state.commands.shape[1])

    def curvature(self, state, residual):
        bend = -self.WEIGHT * np.sin(state.commands) * residual
        return bend[..., None] * np.eye(state.commands.shape[1])


class TipsApart(VectorCost):
    """Another: the index fingertip is from the middle one where the human's is."""

    scaled, translated = 1.0, 0.0

    def terms(self):
        return [VectorTerm(self.problem.hand.tip_names[1], self.problem.hand.tip_names[2], 500.0)]

    def human(self, rows):
        joints = self.problem.targets.joints_hand[rows]
        return joints[:, [8]] - joints[:, [12]], 1.0


def test_a_new_cost_is_one_class_and_one_entry(hand, tree, targets, commands):
    problem = hand, tree, targets, CALIBRATION, dataclasses.replace(WEIGHTS, contact=0.0)
    plain = PoseObjective(*problem).window(slice(None))
    window = PoseObjective(*problem, costs=(*COSTS, Sines, TipsApart)).window(slice(None))
    pose = window.at(commands)

    tips = tree.points(hand.expand(commands), hand.tip_names)
    human = targets.joints_hand[:, 8] - targets.joints_hand[:, 12]
    gap = tips[:, 1] - tips[:, 2] - 1.1 * human @ CALIBRATION.rotation.T
    paid = 0.5 * 500 * targets.weight * np.sum(gap**2, axis=1)
    paid += 0.5 * 1600 * np.sum((np.sin(commands) - np.sin(0.3)) ** 2, axis=1)
    assert pose.cost - plain.at(commands).cost == pytest.approx(paid)

    assert_slopes(window, commands)
    residual, jacobian = window.residuals(pose)
    assert 0.5 * np.sum(residual**2, axis=1) == pytest.approx(pose.cost)
    assert residual.shape == jacobian.shape[:2]
