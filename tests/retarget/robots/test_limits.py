"""Limits: enforced exactly for any input, and counted right."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from helpers.retarget_samples import assert_within_limits, smooth_commands
from retarget.robots.hand_spec import ANGLE_EPS, CommandLimits, limit_violations, speed_violations

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
    assert limits.kept_by(kept)
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
