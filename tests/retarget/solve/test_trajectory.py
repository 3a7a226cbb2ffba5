"""The trajectory solver: it recovers what a robot did, keeps limits, and does not lag."""

import dataclasses
import tracemalloc

import numpy as np
import pytest
from scipy import optimize

from helpers.retarget_samples import (
    FPS,
    IDENTITY,
    assert_within_limits,
    noisy_targets,
    open_commands,
    robot_targets,
    smooth_commands,
)
from helpers.retarget_samples import solved as solve
from retarget.replay.simulate import self_penetration
from retarget.robots.hand_spec import CommandLimits
from retarget.solve import trajectory
from retarget.solve.costs import Weights
from retarget.solve.objective import PoseObjective

WEIGHTS = Weights()
ROUGH = dataclasses.replace(WEIGHTS, acceleration=0.0, jerk=0.0)


@pytest.mark.few(4)
@pytest.mark.parametrize("seed", range(3))
def test_recovers_the_robots_own_motion(hand, tree, seed):
    commands = open_commands(hand, 90, seed)
    assert self_penetration(hand, hand.expand(commands)).max() == 0
    solved = solve(hand, tree, robot_targets(hand, tree, commands))
    assert np.abs(solved - commands).max() < 0.03
    assert_within_limits(hand, solved)


@pytest.mark.few(3)
@pytest.mark.parametrize("seed", range(3))
def test_infeasible_targets_break_no_limit(hand, tree, seed):
    solved = solve(hand, tree, noisy_targets(hand, tree, 60, seed), weights=ROUGH)
    assert_within_limits(hand, solved)
    speed = np.abs(np.diff(solved, axis=0)) * FPS / hand.command_velocity
    assert speed.max() > 0.999  # the limits were what stopped it


@pytest.mark.parametrize("fps", [5.0, 30.0, 240.0])
def test_limits_hold_at_any_rate(right, right_tree, fps):
    limits = CommandLimits.of(right, fps)
    solved = solve(right, right_tree, noisy_targets(right, right_tree, 40), limits=limits)
    assert_within_limits(right, solved, fps)


def test_a_jump_is_met_half_way_by_both_sides(right, right_tree):
    """A target faster than the hand: it leaves early and arrives late, unlike any filter."""
    commands = np.tile(right.rest, (41, 1))
    index = right.command_names.index("index")
    commands[:, index] = np.where(np.arange(41) < 20.5, 0.2, 1.2)
    weights = dataclasses.replace(WEIGHTS, acceleration=1e-3 / FPS**4, jerk=0.0)
    solved = solve(right, right_tree, robot_targets(right, right_tree, commands), weights)
    step = right.command_velocity[index] / FPS
    assert np.abs(np.diff(solved[:, index])).max() == pytest.approx(step, rel=1e-3)
    moving = np.flatnonzero(np.abs(np.diff(solved[:, index])) > 0.01)
    assert moving.min() < 19 and moving.max() > 21
    middle = np.interp(0.7, solved[:, index], np.arange(41))
    assert middle == pytest.approx(20.5, abs=0.7)


@pytest.mark.few(3)
def test_zero_lag(hand, tree):
    wave = 0.5 + 0.4 * np.sin(2 * np.pi * np.arange(150) / 40)[:, None]
    commands = hand.command_lower + wave * (hand.command_upper - hand.command_lower)
    commands[:, hand.command_names.index("thumb_bend")] = 0.2  # too slow for this wave
    commands[:, hand.command_names.index("thumb_rotation")] = 0.5
    solved = solve(hand, tree, robot_targets(hand, tree, commands))
    for finger in ("pinky", "ring", "middle", "index"):
        k = hand.command_names.index(finger)
        a, b = commands[30:120, k], solved[:, k]
        score = [np.corrcoef(a, b[30 + lag : 120 + lag])[0, 1] for lag in range(-15, 16)]
        assert np.argmax(score) - 15 == 0


def test_chunks_agree_with_one_solve(right, right_tree, monkeypatch):
    rng = np.random.default_rng(0)
    targets = robot_targets(right, right_tree, open_commands(right, 300, speed=0.9))
    targets = dataclasses.replace(
        targets, joints_hand=targets.joints_hand + rng.normal(0, 0.003, (300, 21, 3))
    )
    whole = solve(right, right_tree, targets)
    monkeypatch.setattr(trajectory, "CHUNK_FRAMES", 70)
    parts = solve(right, right_tree, targets)
    assert_within_limits(right, parts)
    # The look ahead lets even the frames at the cuts (70, 140, ...) agree.
    assert np.abs(parts - whole).max() < 1e-4


def test_between_two_known_frames_it_moves_evenly(right, right_tree):
    """No acceleration: with nothing else to follow the way between two poses is straight."""
    ends = open_commands(right, 90)[[10, 60]]
    commands = np.linspace(ends[0], ends[1], 21)
    targets = robot_targets(right, right_tree, commands)
    weight = np.zeros(21)
    weight[[0, 20]] = 1
    joints = np.where(weight[:, None, None] > 0, targets.joints_hand, np.nan)
    sparse = dataclasses.replace(targets, joints_hand=joints, weight=weight, active=weight > 0)
    slow = CommandLimits.of(right, 5.0)
    solved = solve(right, right_tree, sparse, weights=Weights(rest=0.0), limits=slow)
    assert np.abs(solved - commands).max() < 2e-3


def test_a_fingertip_that_is_known_badly_bends_no_finger(right, right_tree):
    """The index, for five frames, is where it is not; its share says so."""
    commands = open_commands(right, 60)
    targets = robot_targets(right, right_tree, commands)
    joints, share = targets.joints_hand.copy(), np.ones((60, 21))
    joints[28:33, 6:9] += 0.03
    share[28:33, 6:9] = 0.02
    error = []
    for known in (None, share):
        bent = dataclasses.replace(targets, joints_hand=joints, share=known)
        solved = solve(right, right_tree, bent)
        assert_within_limits(right, solved)
        error.append(np.abs(solved - commands).max(0))
    index = right.command_names.index("index")
    assert error[1][index] < 0.5 * error[0][index]
    others = np.delete(error[1], index)
    assert others.max() < 0.02


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_as_cheap_as_a_slow_independent_solver(right, right_tree, seed):
    """Twelve noisy frames: SLSQP on the same cost, with rates as constraints, from two starts."""
    count, columns = 12, 6
    rng = np.random.default_rng(seed)
    commands = open_commands(right, count, seed, speed=1.0)
    targets = robot_targets(right, right_tree, commands)
    targets = dataclasses.replace(
        targets, joints_hand=targets.joints_hand + rng.normal(0, 0.02, targets.joints_hand.shape)
    )
    objective = PoseObjective(right, right_tree, targets, IDENTITY, WEIGHTS)
    window = objective.window(slice(None))
    limits = CommandLimits.of(right, FPS)
    first, second, third = (np.diff(np.eye(count), order, axis=0) for order in (1, 2, 3))
    bends = WEIGHTS.acceleration * FPS**4, WEIGHTS.jerk * FPS**6

    def cost(x):
        x = x.reshape(count, columns)
        pose = window.at(x)
        value, gradient = pose.cost.sum(), window.quadratic(pose).gradient.copy()
        for weight, matrix in zip(bends, (second, third), strict=True):
            value += 0.5 * weight * np.sum((matrix @ x) ** 2)
            gradient += weight * matrix.T @ (matrix @ x)
        return value / 100, gradient.reshape(-1) / 100

    rates = []
    for matrix, limit in ((first, limits.step), (second, limits.bend)):
        wide, bound = np.kron(matrix, np.eye(columns)), np.tile(limit, len(matrix))
        for sign in (1, -1):
            rates.append(
                {"type": "ineq", "fun": lambda x, b=bound, w=wide, s=sign: b + s * (w @ x),
                 "jac": lambda x, w=wide, s=sign: s * w}
            )  # fmt: skip
    bounds = optimize.Bounds(np.tile(limits.lower, count), np.tile(limits.upper, count))
    ours = solve(right, right_tree, targets)
    assert_within_limits(right, ours)
    slow = [
        optimize.minimize(
            cost, limits.enforce(start).reshape(-1), jac=True, method="SLSQP", bounds=bounds,
            constraints=rates, options={"maxiter": 300, "ftol": 1e-12},
        ).fun
        for start in (np.tile(right.rest, (count, 1)), commands)
    ]  # fmt: skip
    assert cost(ours.reshape(-1))[0] <= min(slow) * (1 + 1e-4)


def test_the_start_hardly_matters(right, right_tree):
    targets = robot_targets(right, right_tree, smooth_commands(right, 60))
    idle = solve(right, right_tree, targets)
    closed = solve(right, right_tree, targets, start=np.tile(right.command_upper, (60, 1)))
    assert np.abs(idle - closed).max() < 1e-3


@pytest.mark.slow
def test_an_hour_needs_the_memory_of_minutes(right, right_tree, monkeypatch):
    """Three times the frames in chunks of one size: what the solver itself takes stays the same."""
    monkeypatch.setattr(trajectory, "CHUNK_FRAMES", 50)
    monkeypatch.setattr(trajectory, "LOOK_AHEAD", 14)

    def peak(count):
        commands = open_commands(right, count)
        targets = robot_targets(right, right_tree, commands)
        tracemalloc.start()
        solved = solve(right, right_tree, targets)
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert np.abs(solved - commands).max() < 0.03
        return used - 2 * commands.nbytes  # start and answer

    peak(60)  # the first call loads modules and buffers
    # Pinches are found over the whole clip: a few numbers per frame.
    assert peak(300) < 1.1 * peak(100) + 200 * 400
