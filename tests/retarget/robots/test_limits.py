"""Limits: enforced exactly for any input, and counted right."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from benchmarks.retargeting.measures import rate_excess
from helpers.retarget_samples import smooth_commands
from retarget.robots.hand_spec import (
    ANGLE_EPS,
    CommandLimits,
    _fastest,
    limit_violations,
    speed_violations,
)
from retarget.robots.robot import load_robot

HANDS = {
    f"{side}-{variant}": load_robot("inspire", variant).hand(side)
    for side in ("left", "right")
    for variant in ("default", "other")
}
hand_names = pytest.mark.parametrize("name", HANDS)
wild = hnp.arrays(
    float,
    st.tuples(st.integers(1, 12), st.just(6)),
    elements=st.one_of(
        st.floats(-3, 3), st.floats(allow_nan=False), st.sampled_from([0.0, 1.47, 0.6, 1.308])
    ),
)
rates = st.sampled_from([1.0, 10.0, 24.0, 30.0, 60.0, 240.0])


@hand_names
@settings(max_examples=60, deadline=None)
@given(commands=wild, fps=rates)
def test_enforced_commands_keep_every_limit(name, commands, fps):
    hand = HANDS[name]
    limits = CommandLimits.of(hand, fps)
    kept = limits.enforce(commands)
    assert (kept >= hand.command_lower).all() and (kept <= hand.command_upper).all()
    assert (np.abs(np.diff(kept, axis=0)) * fps <= hand.command_velocity).all()
    assert limit_violations(hand, hand.expand(kept)) == 0
    assert speed_violations(hand, kept, fps) == 0
    assert rate_excess(kept, hand.command_acceleration, fps, 2)[0] == 0
    assert limits.kept_by(kept)
    assert (limits.enforce(kept) == kept).all()


@hand_names
@settings(max_examples=40, deadline=None)
@given(commands=wild, fps=rates)
def test_float32_storage_breaks_no_limit(name, commands, fps):
    """Datasets store float32; a reader recomputes speeds from that."""
    hand = HANDS[name]
    stored = CommandLimits.of(hand, fps).enforce(commands).astype(np.float32)
    read = stored.astype(float)
    assert limit_violations(hand, hand.expand(read)) == 0
    assert speed_violations(hand, read, fps) == 0
    assert rate_excess(read, hand.command_acceleration, fps, 2)[0] == 0


@settings(max_examples=40, deadline=None)
@given(commands=wild, start=hnp.arrays(float, 6, elements=st.floats(0, 1)))
def test_enforce_goes_on_from_a_finished_frame(commands, start):
    hand = HANDS["right-default"]
    limits = CommandLimits.of(hand, 30.0)
    previous = hand.command_lower + start * (hand.command_upper - hand.command_lower)
    kept = limits.enforce(commands, previous[None])
    assert speed_violations(hand, np.concatenate([previous[None], kept]), 30.0) == 0
    assert (kept >= hand.command_lower).all() and (kept <= hand.command_upper).all()


@settings(max_examples=30, deadline=None)
@given(commands=wild, cut=st.integers(1, 11))
def test_two_parts_are_enforced_like_the_whole(commands, cut):
    limits = CommandLimits.of(HANDS["left-default"], 30.0)
    whole = limits.enforce(commands)
    first, second = commands[:cut], commands[cut:]
    kept = limits.enforce(first)
    if len(second):
        kept = np.concatenate([kept, limits.enforce(second, kept[-2:])])
    assert (kept == whole).all()


@hand_names
@pytest.mark.parametrize("seed", range(5))
def test_a_feasible_motion_is_not_touched(name, seed):
    hand = HANDS[name]
    commands = smooth_commands(hand, 60, seed, speed=0.99)
    assert (CommandLimits.of(hand, 30.0).enforce(commands) == commands).all()


def test_the_input_is_not_changed():
    limits = CommandLimits.of(HANDS["right-default"], 30.0)
    commands = np.full((4, 6), 9.0)
    limits.enforce(commands)
    assert (commands == 9.0).all()


def test_without_rate_only_the_bounds_hold():
    hand = HANDS["right-default"]
    limits = CommandLimits.of(hand, 30.0).without_rate()
    commands = np.stack([hand.command_lower, hand.command_upper + 1, hand.command_lower - 1])
    expected = [hand.command_lower, hand.command_upper, hand.command_lower]
    assert (limits.enforce(commands) == expected).all()


def test_command_bounds_keep_coupled_joints_inside():
    """The corners of the command box are the worst case of linear couplings."""
    for hand in HANDS.values():
        for corner in range(64):
            high = [(corner >> i) & 1 for i in range(6)]
            commands = np.where(high, hand.command_upper, hand.command_lower)
            joints = hand.expand(commands)
            assert (joints >= hand.lower - 1e-12).all() and (joints <= hand.upper + 1e-12).all()


@hand_names
def test_angle_violations_against_a_loop(name):
    hand = HANDS[name]
    rng = np.random.default_rng(0)
    joints = hand.lower + rng.uniform(-0.3, 1.3, (30, 12)) * (hand.upper - hand.lower)
    count = 0
    for row in joints:
        for joint_name, angle in zip(hand.joint_names, row, strict=True):
            k = hand.joint_names.index(joint_name)
            count += angle < hand.lower[k] - ANGLE_EPS or angle > hand.upper[k] + ANGLE_EPS
    assert limit_violations(hand, joints) == count > 0


def test_a_coupled_joint_counts():
    hand = HANDS["right-default"]
    joints = hand.expand(hand.rest[None])
    assert limit_violations(hand, joints) == 0
    coupled = hand.joint_names.index("thumb_distal")
    joints[0, coupled] = hand.upper[coupled] + 2e-6
    assert limit_violations(hand, joints) == 1
    joints[0, coupled] = hand.upper[coupled] + 5e-7
    assert limit_violations(hand, joints) == 0


@hand_names
@pytest.mark.parametrize("fps", [10.0, 30.0])
def test_speed_violations_against_a_loop(name, fps):
    hand = HANDS[name]
    rng = np.random.default_rng(1)
    commands = np.cumsum(rng.normal(0, 0.1, (30, 6)), axis=0)
    count = 0
    for before, after in itertools.pairwise(commands):
        for k in range(6):
            count += abs(after[k] - before[k]) * fps > hand.command_velocity[k] * (1 + 1e-6)
    assert speed_violations(hand, commands, fps) == count > 0


def test_one_frame_has_no_speed():
    hand = HANDS["right-default"]
    assert speed_violations(hand, hand.rest[None], 30.0) == 0


def test_speed_violations_at_a_rate_per_step():
    """Of two equal steps only the one within the shorter time is too fast."""
    hand = HANDS["right-default"]
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
    assert ONE.kept_by(column(0, 3, 6)) and ONE.kept_by(column(10, 9, 7, 4))
    for path in ((-0.1, 0), (9, 10.1), (0, 3.1), (3.1, 0), (0, 0, 1.1), (1.1, 0, 0)):
        assert not ONE.kept_by(column(*path)), path
    assert ONE.kept_by(column(3), column(9, 1, 2)) and not ONE.kept_by(column(3), column(9, 2, 1.9))
    assert not ONE.kept_by(column(6), column(2))
    assert ONE.without_rate().kept_by(column(0, 10, 0))
    assert not ONE.without_rate().kept_by(column(0, 10.1))
    # Half of what ``of`` leaves unused is tolerated.
    assert ONE.kept_by(column(0, 3.0001)) and not ONE.kept_by(column(0, 3.0002))
    assert ONE.kept_by(column(0, 0, 1.0004)) and not ONE.kept_by(column(0, 0, 1.0006))


def test_limits_of_a_rate_and_of_every_fourth_frame():
    hand = HANDS["right-default"]
    limits = CommandLimits.of(hand, 20.0)
    np.testing.assert_allclose(limits.step, hand.command_velocity * 0.9999 / 20)
    np.testing.assert_allclose(limits.bend, hand.command_acceleration * 0.999 / 400)
    assert (limits.lower == hand.command_lower).all() and (limits.upper == hand.command_upper).all()
    assert limits.fps == 20.0
    fourth = limits.every(4)
    np.testing.assert_allclose(fourth.step, hand.command_velocity * 0.9999 / 5)
    np.testing.assert_allclose(fourth.bend, hand.command_acceleration * 0.999 / 25)
    assert fourth.fps == 5.0 and limits.without_rate().fps == 0.0
