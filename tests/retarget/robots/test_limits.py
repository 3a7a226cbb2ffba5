"""Limits: enforced exactly for any input, and counted right."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from helpers.retarget_samples import assert_within_limits, smooth_commands
from retarget.robots.hand_spec import (
    ANGLE_EPS,
    CommandLimits,
    _fastest,
    limit_violations,
    speed_violations,
)
from retarget.robots.robot import load_robot

INSPIRE = load_robot("inspire").hand("right")
wild = hnp.arrays(
    float,
    st.tuples(st.integers(1, 12), st.just(6)),
    elements=st.one_of(
        st.floats(-3, 3), st.floats(allow_nan=False), st.sampled_from([0.0, 1.47, 0.6, 1.308])
    ),
)
rates = st.sampled_from([1.0, 10.0, 24.0, 30.0, 60.0, 240.0])


@settings(max_examples=60, deadline=None)
@given(commands=wild, fps=rates)
def test_enforced_commands_keep_every_limit(hand, commands, fps):
    limits = CommandLimits.of(hand, fps)
    kept = limits.enforce(commands)
    assert (kept >= hand.command_lower).all() and (kept <= hand.command_upper).all()
    assert (np.abs(np.diff(kept, axis=0)) * fps <= hand.command_velocity).all()
    assert_within_limits(hand, kept, fps)
    # Datasets store float32; a reader recomputes speeds from that.
    assert_within_limits(hand, kept.astype(np.float32).astype(float), fps)
    assert limits.allows(kept)
    assert (limits.enforce(kept) == kept).all()


@settings(max_examples=30, deadline=None)
@given(commands=wild, cut=st.integers(1, 11))
def test_two_parts_are_enforced_like_the_whole(right, commands, cut):
    limits = CommandLimits.of(right, 30.0)
    whole = limits.enforce(commands)
    first, second = commands[:cut], commands[cut:]
    kept = limits.enforce(first)
    if len(second):
        kept = np.concatenate([kept, limits.enforce(second, kept[-2:])])
    assert (kept == whole).all()


@pytest.mark.parametrize("seed", range(5))
def test_a_feasible_motion_is_not_touched(hand, seed):
    commands = smooth_commands(hand, 60, seed, speed=0.99)
    assert (CommandLimits.of(hand, 30.0).enforce(commands) == commands).all()


def test_command_bounds_keep_coupled_joints_inside(hand):
    corners = np.array(list(itertools.product([False, True], repeat=6)))
    joints = hand.expand(np.where(corners, hand.command_upper, hand.command_lower))
    assert (joints >= hand.lower - 1e-12).all() and (joints <= hand.upper + 1e-12).all()


def test_angle_violations_against_a_loop(hand):
    rng = np.random.default_rng(0)
    joints = hand.lower + rng.uniform(-0.3, 1.3, (30, 12)) * (hand.upper - hand.lower)
    count = sum(
        angle < hand.lower[k] - ANGLE_EPS or angle > hand.upper[k] + ANGLE_EPS
        for row in joints
        for k, angle in enumerate(row)
    )
    assert limit_violations(hand, joints) == count > 0


@pytest.mark.parametrize("fps", [10.0, 30.0])
def test_speed_violations_against_a_loop(hand, fps):
    rng = np.random.default_rng(1)
    commands = np.cumsum(rng.normal(0, 0.1, (30, 6)), axis=0)
    count = sum(
        abs(after[k] - before[k]) * fps > hand.command_velocity[k] * (1 + 1e-6)
        for before, after in itertools.pairwise(commands)
        for k in range(6)
    )
    assert speed_violations(hand, commands, fps) == count > 0


def test_one_frame_has_no_speed():
    hand = INSPIRE
    assert speed_violations(hand, hand.rest[None], 30.0) == 0


def test_speed_violations_at_a_rate_per_step():
    """Of two equal steps only the one within the shorter time is too fast."""
    hand = INSPIRE
    step = hand.command_velocity / 30
    commands = hand.command_lower + step * np.arange(3)[:, None]
    assert speed_violations(hand, commands, np.array([30.0, 60.0])) == 6
    assert speed_violations(hand, commands, np.array([15.0, 30.0])) == 0


#: One joint from 0 to 10 by at most 3 per frame, steps that differ by at most 1.
ONE = CommandLimits(*(np.array([value]) for value in (0.0, 10.0, 3.0, 1.0)), 1.0)


def column(*values):
    return np.array(values, float)[:, None]


def test_the_fastest_step_that_can_still_stop():
    """4 + 3 + 2 + 1 is 10, 4 + 2 is 6, and 3.25 + 2.25 + 1.25 + 0.25 is 7."""
    room = np.array([10.0, 6.0, 7.0, 0.0, -1.0, 0.9, 2.9])
    bend = np.array([1.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    np.testing.assert_allclose(_fastest(room, bend), [4.0, 4.0, 3.25, 0.0, 0.0, 0.9, 1.95])


def test_commands_are_enforced_by_hand():
    """Full speed, then the step that stops at the bound, then always 1 less; and back down."""
    ways = column(0, 3, 6, 25 / 3, 29 / 3, 10)
    wanted = column(0, 12, 12, 12, 12, 12)
    np.testing.assert_allclose(ONE.enforce(wanted), ways)
    np.testing.assert_allclose(ONE.enforce(10 - wanted), 10 - ways)
    # Two frames of history have a speed, 1 here, so the next step is 0 to 2; one has none. From 5,
    # 8/3 + 5/3 + 2/3 ends at the bound.
    np.testing.assert_allclose(ONE.enforce(column(9, 9), column(7, 2, 3)), column(5, 23 / 3))
    np.testing.assert_allclose(ONE.enforce(column(0), column(7, 2, 3)), column(3))
    np.testing.assert_allclose(ONE.enforce(column(9), column(3)), column(6))


def test_which_commands_keep_limits():
    assert ONE.allows(column(0, 3, 6)) and ONE.allows(column(10, 9, 7, 4))
    for path in ((-0.1, 0), (9, 10.1), (0, 3.1), (3.1, 0), (0, 0, 1.1), (1.1, 0, 0)):
        assert not ONE.allows(column(*path)), path
    assert ONE.allows(column(3), column(9, 1, 2)) and not ONE.allows(column(3), column(9, 2, 1.9))
    assert not ONE.allows(column(6), column(2))
    assert ONE.without_rate().allows(column(0, 10, 0))
    assert not ONE.without_rate().allows(column(0, 10.1))
    # Half of what ``of`` leaves unused is tolerated.
    assert ONE.allows(column(0, 3.0001)) and not ONE.allows(column(0, 3.0002))
    assert ONE.allows(column(0, 0, 1.0004)) and not ONE.allows(column(0, 0, 1.0006))


def test_limits_of_a_rate_and_of_every_fourth_frame():
    hand = INSPIRE
    limits = CommandLimits.of(hand, 20.0)
    np.testing.assert_allclose(limits.step, hand.command_velocity * 0.9999 / 20)
    np.testing.assert_allclose(limits.bend, hand.command_acceleration * 0.999 / 400)
    assert (limits.lower == hand.command_lower).all() and (limits.upper == hand.command_upper).all()
    assert limits.fps == 20.0
    fourth = limits.every(4)
    np.testing.assert_allclose(fourth.step, hand.command_velocity * 0.9999 / 5)
    np.testing.assert_allclose(fourth.bend, hand.command_acceleration * 0.999 / 25)
    assert fourth.fps == 5.0 and limits.without_rate().fps == 0.0
