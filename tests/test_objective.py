"""The pose objective: its value term by term, and its Jacobians against finite differences."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from retarget_samples import FPS, IDENTITY, robot_targets, smooth_commands

from acehand_core.geometry import rotations
from acehand_core.hand.skeleton import DISTALS, INTERMEDIATES, TIPS
from acehand_core.motion import Calibration
from acehand_core.types import SIDES
from retarget.kinematics import KinematicTree
from retarget.limits import CommandLimits
from retarget.objective import PoseObjective, Weights
from retarget.robot import load_robot
from retarget.trajectory import solve_trajectory

WEIGHTS = Weights(tip=1.3, link=0.4, rest=0.2, length_m=0.01)
CALIBRATION = Calibration(
    1.1, rotations.exp(np.array([0.2, -0.1, 0.3])), np.array([0.01, -0.02, 0.03]), 0.0
)


@pytest.fixture(scope="module", params=SIDES)
def hand(request):
    return load_robot("inspire").hand(request.param)


@pytest.fixture(scope="module")
def tree(hand):
    return KinematicTree.of(hand)


@pytest.fixture(scope="module")
def targets(hand, tree):
    """Six frames, far from any pose; one joint missing, one frame without weight."""
    rng = np.random.default_rng(0)
    made = robot_targets(hand, tree, smooth_commands(hand, 6), CALIBRATION)
    joints = made.joints_hand + rng.normal(0, 0.02, made.joints_hand.shape)
    joints[2, 6] = np.nan  # index PIP
    weight = np.array([1.0, 0.3, 1.0, 0.0, 0.05, 1.0])
    return dataclasses.replace(made, joints_hand=joints, weight=weight, active=weight > 0)


@pytest.fixture(scope="module")
def objective(hand, tree, targets):
    return PoseObjective(hand, tree, targets, CALIBRATION, WEIGHTS)


@pytest.fixture(scope="module")
def commands(hand):
    return smooth_commands(hand, 6, seed=3)


def slow_cost(hand, tree, targets, calibration, weights, commands):
    """The sum of squares, term by term."""
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
            goal = calibration.scale * calibration.rotation @ human + calibration.translation
            distance = np.linalg.norm(points[frame, k] - goal) / weights.length_m
            total += pull * targets.weight[frame] * distance**2
    return total


def test_value(hand, tree, targets, objective, commands):
    residual, _ = objective(commands)
    expected = slow_cost(hand, tree, targets, CALIBRATION, WEIGHTS, commands)
    assert np.sum(residual**2) == pytest.approx(expected, rel=1e-12)


def test_jacobian_by_commands(hand, objective, commands):
    _, jacobian = objective(commands)
    step = 1e-6
    for column in range(len(hand.rest)):
        move = step * np.eye(len(hand.rest))[column]
        numeric = (objective(commands + move)[0] - objective(commands - move)[0]) / (2 * step)
        assert jacobian[..., column] == pytest.approx(numeric, abs=1e-6)


def test_jacobian_by_similarity(hand, tree, targets, objective, commands):
    analytic = objective.by_similarity()
    step = 1e-6

    def moved(row, sign):
        delta = sign * step * np.eye(7)[row]
        calibration = Calibration(
            CALIBRATION.scale * np.exp(delta[6]),
            rotations.exp(delta[:3]) @ CALIBRATION.rotation,
            CALIBRATION.translation + delta[3:6],
            0.0,
        )
        return PoseObjective(hand, tree, targets, calibration, WEIGHTS)(commands)[0]

    for row in range(7):
        numeric = (moved(row, 1) - moved(row, -1)) / (2 * step)
        assert analytic[..., row] == pytest.approx(numeric, abs=2e-6)


def test_missing_joints_and_weightless_frames_pull_nothing(hand, objective, commands):
    residual, jacobian = objective(commands)
    terms = len(hand.rest)
    assert np.isfinite(residual).all() and np.isfinite(jacobian).all()
    assert not residual[3, :-terms].any() and not jacobian[3, :-terms].any()
    zero_in_frame_2 = (residual[2, :-terms].reshape(-1, 3) == 0).all(1).sum()
    assert zero_in_frame_2 == 1


def test_a_run_of_frames(objective, commands):
    residual, jacobian = objective(commands)
    part, part_jacobian = objective(commands[2:5], slice(2, 5))
    assert part == pytest.approx(residual[2:5], abs=0)
    assert part_jacobian == pytest.approx(jacobian[2:5], abs=0)
    assert len(objective) == 6


def test_links_can_be_switched_off(hand, tree, targets, commands):
    residual, _ = PoseObjective(
        hand, tree, targets, CALIBRATION, dataclasses.replace(WEIGHTS, link=0.0)
    )(commands)
    assert residual.shape[1] == 3 * 5 + len(hand.rest)


def test_knuckles_belong_to_the_calibration(hand, tree, targets, commands):
    moved = targets.joints_hand.copy()
    moved[:, [1, 5, 9, 13, 17]] += 0.1
    other = dataclasses.replace(targets, joints_hand=moved)
    value = [PoseObjective(hand, tree, t, CALIBRATION, WEIGHTS)(commands)[0]
             for t in (targets, other)]  # fmt: skip
    assert value[0] == pytest.approx(value[1], abs=0)


@pytest.mark.parametrize("factor", [0.5, 2.0, 8.0])
def test_smoothing_does_not_depend_on_the_frame_rate(hand, tree, factor):
    """The same noisy motion at another rate: the solution bends as much, in rad/s^2."""
    weights = Weights()
    count = 61
    slow = smooth_commands(hand, count)
    slow[30:] = slow[30]  # it stops at once: only smoothing rounds this off

    def solved(commands, fps):
        targets = robot_targets(hand, tree, commands)
        objective = PoseObjective(hand, tree, targets, IDENTITY, weights)
        limits = CommandLimits.of(hand, fps)
        return solve_trajectory(objective, limits, commands, weights.acceleration * fps**4)

    fine_times = np.arange(int((count - 1) * factor) + 1) / factor
    fine = np.stack([np.interp(fine_times, np.arange(count), c) for c in slow.T], axis=1)
    at_30, at_other = solved(slow, FPS), solved(fine, FPS * factor)
    common = np.stack([np.interp(np.arange(count), fine_times, c) for c in at_other.T], axis=1)
    assert np.abs(common - at_30).max() < 0.01
