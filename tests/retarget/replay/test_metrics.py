"""Metrics: each against a literal twin, and on motions whose answer is known."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acehand_core.geometry import rotations
from benchmarks.retargeting.measures import (
    direction_error,
    lag_frames,
    pinch,
    rate_excess,
    rms_jerk,
)
from retarget.replay import metrics
from retarget.replay.metrics import CommonGround, tip_error

SEEDS = st.integers(0, 2**32 - 1)


def random_tips(rng, count=40):
    return rng.normal((0.03, 0, 0.15), 0.05, (count, 5, 3))


def random_ground(rng, scale):
    return CommonGround(scale, rotations.exp(rng.uniform(-1, 1, 3)), rng.normal(0, 0.05, 3))


def slow_tip_error(human, robot, ground):
    out = np.zeros(human.shape[:2])
    for t in range(len(human)):
        for f in range(human.shape[1]):
            placed = ground.scale * ground.rotation @ human[t, f] + ground.translation
            out[t, f] = sum((robot[t, f] - placed) ** 2) ** 0.5
    return out


@settings(max_examples=30, deadline=None)
@given(seed=SEEDS, scale=st.floats(0.91, 1.29))
def test_common_ground_recovers_a_similarity(seed, scale):
    rng = np.random.default_rng(seed)
    human, known = random_tips(rng), random_ground(rng, scale)
    found = CommonGround.fit(human, known(human))
    assert found.scale == pytest.approx(scale)
    assert np.abs(found.rotation - known.rotation).max() < 1e-9
    assert np.abs(found.translation - known.translation).max() < 1e-9
    assert tip_error(human, known(human), found).max() < 1e-9


@pytest.mark.parametrize(("scale", "clamped"), [(0.5, 0.9), (2.0, 1.3)])
def test_the_scale_is_clamped_and_the_rest_is_still_the_best(scale, clamped):
    rng = np.random.default_rng(0)
    human = random_tips(rng)
    robot = random_ground(rng, scale)(human) + rng.normal(0, 0.003, human.shape)
    found = CommonGround.fit(human, robot)
    assert found.scale == clamped
    best = np.sum(tip_error(human, robot, found) ** 2)
    for _ in range(50):
        other = CommonGround(
            clamped,
            rotations.exp(rng.normal(0, 0.01, 3)) @ found.rotation,
            found.translation + rng.normal(0, 0.001, 3),
        )
        assert np.sum(tip_error(human, robot, other) ** 2) > best


def test_common_ground_skips_what_is_not_known():
    rng = np.random.default_rng(1)
    human, known = random_tips(rng), random_ground(rng, 1.1)
    robot = known(human)
    human[3:9] = np.nan
    human[12, 2, 1] = np.nan
    robot[20, 0] = np.nan
    found = CommonGround.fit(human, robot)
    assert np.abs(found.rotation - known.rotation).max() < 1e-9


@settings(max_examples=20, deadline=None)
@given(seed=SEEDS)
def test_tip_error_against_a_loop(seed):
    rng = np.random.default_rng(seed)
    human, robot, ground = random_tips(rng, 5), random_tips(rng, 5), random_ground(rng, 1.1)
    assert tip_error(human, robot, ground) == pytest.approx(slow_tip_error(human, robot, ground))


def test_tip_error_of_fewer_fingers():
    rng = np.random.default_rng(2)
    human = random_tips(rng)[:, :3]
    ground = CommonGround.fit(human, human + 0.01)
    assert tip_error(human, human + 0.01, ground).shape == (40, 3)


@pytest.mark.parametrize("degrees", [0, 5, 90, 180])
def test_direction_error_is_an_angle(degrees):
    rng = np.random.default_rng(3)
    ground = random_ground(rng, 1.2)
    human = rng.normal(size=(4, 5, 3))
    axis = np.cross(human, rng.normal(size=3))
    axis /= np.linalg.norm(axis, axis=-1, keepdims=True)
    turned = (rotations.exp(np.radians(degrees) * axis) @ human[..., None])[..., 0]
    robot = 3 * turned @ ground.rotation.T  # length and place do not count
    assert np.degrees(direction_error(human, robot, ground)) == pytest.approx(degrees, abs=1e-5)


def gaps(thumb_index, thumb_middle):
    """Tips with the given thumb-index and thumb-middle distances; ring and pinky far away."""
    tips = np.zeros((len(thumb_index), 5, 3))
    tips[:, 1, 0] = thumb_index
    tips[:, 2, 1] = thumb_middle
    tips[:, 3:, 2] = 1.0
    return tips


def test_pinch_of_known_frames():
    # closed pairs: frame 0 index, frame 1 both; frame 2 is neither, frame 3 wide open
    human = gaps([0.020, 0.029, 0.040, 0.060], [0.080, 0.010, 0.031, 0.070])
    robot = gaps([0.010, 0.020, 0.001, 0.014], [0.001, 0.012, 0.001, 0.050])
    found = pinch(human, robot)
    assert found.frames == 3
    assert found.robot_m == pytest.approx((0.010 + 0.020 + 0.012) / 3)
    assert found.recall == pytest.approx(2 / 3)
    # robot under 15 mm while the human is over 50: middle in frame 0, index in frame 3; of 8 pairs
    assert found.false_share == pytest.approx(2 / 8)


def test_thresholds_of_pinch_are_strict():
    human = gaps([0.030, 0.050], [0.05, 0.2])
    robot = gaps([0.0, 0.0], [0.0, 0.015])
    found = pinch(human, robot)
    assert found.frames == 0 and found.false_share == 0
    assert np.isnan(found.robot_m) and np.isnan(found.recall)


def test_ring_and_pinky_pinches_do_not_count():
    human = gaps([0.1], [0.1])
    human[:, 3:] = 0.0
    assert pinch(human, human).frames == 0


@pytest.mark.parametrize("fps", [24.0, 30.0, 120.0])
def test_jerk_of_a_cubic(fps):
    t = np.arange(50) / fps
    commands = np.stack([0.5 * t**3, 2 * t**2 - t], axis=1)
    # third derivatives 3 and 0: rms over both joints
    assert rms_jerk(commands, fps) == pytest.approx(3 / np.sqrt(2), rel=1e-6)


def test_jerk_needs_four_frames():
    assert rms_jerk(np.ones((3, 6)), 30.0) == 0.0


def slow_lag(human, robot):
    def speed(tips):
        return np.array([
            np.mean([np.linalg.norm(tips[t + 1, f] - tips[t, f]) for f in range(5)])
            for t in range(len(tips) - 1)
        ])  # fmt: skip

    a, b = speed(human), speed(robot)
    a, b = a - a.mean(), b - b.mean()
    best, best_score = 0, -np.inf
    for lag in range(-15, 16):
        pairs = [(a[t], b[t + lag]) for t in range(len(a)) if 0 <= t + lag < len(b)]
        x, y = np.array(pairs).T
        score = x @ y / np.sqrt((x @ x) * (y @ y))
        if score > best_score:
            best, best_score = lag, score
    return best


def wandering(rng, count):
    return np.cumsum(np.cumsum(rng.normal(size=(count, 5, 3)), axis=0), axis=0)


@pytest.mark.parametrize("lag", [-15, -7, -1, 0, 1, 4, 15])
def test_lag_of_a_delayed_copy_is_positive(lag):
    whole = wandering(np.random.default_rng(4), 200)
    human, robot = whole[40:140], whole[40 - lag : 140 - lag]
    assert lag_frames(human, robot) == lag
    assert slow_lag(human, robot) == lag


@settings(max_examples=20, deadline=None)
@given(seed=SEEDS)
def test_lag_against_a_loop(seed):
    rng = np.random.default_rng(seed)
    human, robot = wandering(rng, 60), wandering(rng, 60)
    assert lag_frames(human, robot) == slow_lag(human, robot)


def test_lag_of_an_exponential_filter_is_seen():
    human = wandering(np.random.default_rng(5), 300)
    robot = human.copy()
    for t in range(1, len(robot)):
        robot[t] = robot[t - 1] + 0.2 * (human[t] - robot[t - 1])
    assert lag_frames(human, robot) >= 2


@pytest.mark.parametrize("count", [1, 2, 3, 6, 60])
def test_a_hand_that_does_not_move_has_no_lag(count):
    rng = np.random.default_rng(6)
    still = np.zeros((count, 5, 3))
    assert lag_frames(still, still) == 0
    assert lag_frames(wandering(rng, count), still) == 0


@pytest.mark.parametrize("count", [4, 5, 8, 12])
def test_a_short_clip_is_not_matched_by_two_frames_of_it(count):
    """Two frames correlate perfectly with many others: half of the clip must be compared."""
    rng = np.random.default_rng(7)
    for _ in range(20):
        human = wandering(rng, count)
        assert lag_frames(human, human) == 0
        noisy = human + rng.normal(0, 1, human.shape)
        assert abs(lag_frames(human, noisy)) <= (count - 1) // 2


def slow_excess(commands, limit, fps, order):
    over, total, largest = 0, 0, 0.0
    for k in range(commands.shape[1]):
        q = list(commands[:, k])
        for _ in range(order):
            q = [(after - before) * fps for before, after in itertools.pairwise(q)]
        for value in q:
            total += 1
            over += abs(value) > limit[k] * (1 + 1e-6)
            largest = max(largest, abs(value) / limit[k])
    return over / total, largest


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("fps", [10.0, 30.0])
def test_rate_excess_against_a_loop(order, fps):
    rng = np.random.default_rng(8)
    commands = np.cumsum(rng.normal(0, 0.1, (30, 6)), axis=0)
    limit = rng.uniform(1, 4, 6) * 0.1 * fps**order
    share, largest = rate_excess(commands, limit, fps, order)
    assert (share, largest) == pytest.approx(slow_excess(commands, limit, fps, order))
    assert 0 < share < 1 < largest


def test_rates_of_too_few_frames():
    assert rate_excess(np.ones((1, 6)), np.ones(6), 30.0, 1) == (0.0, 0.0)
    assert rate_excess(np.ones((2, 6)), np.ones(6), 30.0, 2) == (0.0, 0.0)


def test_scale_range_is_the_published_one():
    assert metrics.SCALE_RANGE == (0.9, 1.3)
