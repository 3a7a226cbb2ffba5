"""Measures of the comparison: each on motions whose answer is known, or against a literal twin."""

import numpy as np
import pytest

from benchmarks.retargeting import measures
from benchmarks.retargeting.measures import lag_frames, rate_excess
from helpers.retarget_samples import targets_of
from retarget.replay.metrics import CommonGround, tip_error
from retarget.robots.hand_spec import limit_violations
from retarget.robots.kinematics import KinematicTree
from retarget.robots.robot import load_robot
from retarget.solve.methods import solve_dex


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
    found = measures.pinch(human, robot)
    assert found.frames == 3
    assert found.robot_m == pytest.approx((0.010 + 0.020 + 0.012) / 3)
    assert found.recall == pytest.approx(2 / 3)
    # robot under 15 mm while the human is over 50: middle in frame 0, index in frame 3; of 8 pairs
    assert found.false_share == pytest.approx(2 / 8)


def wandering(rng, count):
    return np.cumsum(np.cumsum(rng.normal(size=(count, 5, 3)), axis=0), axis=0)


@pytest.mark.parametrize("lag", [-15, -1, 0, 4, 15])
def test_lag_of_a_delayed_copy_is_positive(lag):
    whole = wandering(np.random.default_rng(4), 200)
    human, robot = whole[40:140], whole[40 - lag : 140 - lag]
    assert lag_frames(human, robot) == lag
    assert lag_frames(human, np.zeros_like(robot)) == 0


@pytest.mark.parametrize("count", [4, 5, 12])
def test_a_short_clip_is_not_matched_by_two_frames_of_it(count):
    """Two frames correlate perfectly with many others: half of the clip must be compared."""
    rng = np.random.default_rng(7)
    for _ in range(20):
        human = wandering(rng, count)
        noisy = human + rng.normal(0, 1, human.shape)
        assert abs(lag_frames(human, noisy)) <= (count - 1) // 2


def test_published_measurements(joints_file):
    """The library's own sequence, already in its operator frame.

    Pinch, jerk, direct error, direction and limits are as published to the last digit. On common
    ground we get 19.4 mm where 19.2 mm is published: the least-squares similarity has that mean;
    the similarity of least mean distance has 19.2.
    """
    pytest.importorskip("dex_retargeting")
    hand = load_robot("inspire").hand("right")
    targets = targets_of("right", np.load(joints_file)["joints"])
    commands = solve_dex(hand, targets, "vector")
    tips = KinematicTree.of(hand).points(hand.expand(commands), hand.tip_names)
    direct = np.linalg.norm(tips - 1.15 * targets.tips, axis=-1) * 1e3
    assert direct.mean() == pytest.approx(28.8, abs=0.1)
    assert np.percentile(direct, 95) == pytest.approx(59.7, abs=0.3)
    plain = CommonGround(1.0, np.eye(3), np.zeros(3))
    angle = measures.direction_error(targets.tips, tips, plain)
    assert np.degrees(angle.mean()) == pytest.approx(8.7, abs=0.1)
    pinch = measures.pinch(targets.tips, tips)
    assert (pinch.frames, pinch.recall) == (32, 0)
    assert pinch.robot_m * 1e3 == pytest.approx(58.0, abs=0.3)
    assert measures.rms_jerk(commands, 30.0) == pytest.approx(397, abs=4)
    fast, ratio = rate_excess(commands, hand.command_velocity, 30.0, 1)
    assert fast == pytest.approx(0.040, abs=0.002) and ratio == pytest.approx(4.0, abs=0.1)
    # The published share counts the six driven joints.
    outside = (commands < hand.command_lower - 1e-6) | (commands > hand.command_upper + 1e-6)
    assert outside.mean() == pytest.approx(0.067, abs=0.002)
    assert limit_violations(hand, hand.expand(commands)) > 0
    ground = CommonGround.fit(targets.tips, tips)
    error = tip_error(targets.tips, tips, ground) * 1e3
    assert ground.scale == 0.9
    assert error.mean() == pytest.approx(19.3, abs=0.3)
    # The filter's lag: 133 ms when published; tip speeds match best one frame late.
    assert lag_frames(targets.tips, tips) >= 1

    commands = solve_dex(hand, targets, "position")
    tips = KinematicTree.of(hand).points(hand.expand(commands), hand.tip_names)
    assert measures.pinch(targets.tips, tips).robot_m * 1e3 == pytest.approx(34.8, abs=0.3)
    assert measures.rms_jerk(commands, 30.0) == pytest.approx(2195, rel=0.01)
    _, ratio = rate_excess(commands, hand.command_velocity, 30.0, 1)
    assert ratio == pytest.approx(17.0, abs=0.2)
