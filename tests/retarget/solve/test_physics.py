"""The second pass, and commands that are sent ahead of the hand's latency."""

import dataclasses

import numpy as np
import pytest

from helpers.retarget_samples import FPS, IDENTITY, robot_targets, smooth_commands
from retarget.replay.simulate import play, second_pass, sent_commands, unfollowed
from retarget.robots.hand_spec import CommandLimits
from retarget.robots.kinematics import KinematicTree
from retarget.robots.robot import load_robot
from retarget.solve.costs import Weights
from retarget.solve.methods import solve_hand

HAND = load_robot("inspire").hand("right")
TREE = KinematicTree.of(HAND)
INDEX = HAND.command_names.index("index")


def through_the_thumb(count=60):
    commands = np.tile(HAND.command_lower, (count, 1))
    commands[:, HAND.command_names.index("thumb_rotation")] = 0.8
    commands[:, HAND.command_names.index("thumb_bend")] = 0.6
    commands[:, INDEX] = np.clip(np.arange(count) / FPS - 0.3, 0, 1) * 1.47
    return commands


def test_what_could_not_be_followed_is_lowered():
    """Without contact in the solver the index is sent into the thumb; the replay knows better."""
    targets = robot_targets(HAND, TREE, through_the_thumb())
    blind = Weights(contact=0.0, pinch=0.0)
    limits = CommandLimits.of(HAND, FPS)

    def solve(follow=None):
        return solve_hand(HAND, TREE, targets, IDENTITY, limits, blind, follow)

    first = solve()
    lowered = second_pass(HAND, first, FPS, targets.active, solve)
    before, after = (play(HAND, c, FPS, targets.active, "off").report for c in (first, lowered))
    assert before.rms_tracking_rad > 0.1
    assert after.rms_tracking_rad < 0.6 * before.rms_tracking_rad
    assert after.commanded_penetration_mm < 0.7 * before.commanded_penetration_mm
    assert limits.allows(lowered)
    assert np.abs(lowered - first)[:15].max() < 1e-3  # where nothing touched all is as it was


def test_what_is_followed_is_left_alone():
    commands = smooth_commands(HAND, 60, speed=0.9)
    commands[:, HAND.command_names.index("thumb_rotation")] = 0

    def never(follow):
        raise AssertionError("nothing to lower")

    active = np.ones(60, bool)
    assert second_pass(HAND, commands, FPS, active, never) is commands


def test_lag_is_no_failure_to_follow():
    ramp = np.linspace(0, 1, 31)[:, None] * np.ones(6)  # 1 rad/s
    active = np.ones(31, bool)
    late = np.concatenate([np.repeat(ramp[:1], 2, axis=0), ramp[:-2]])
    turns = np.zeros(6, bool)
    assert not unfollowed(ramp, late, active, FPS, turns).any()
    stuck = np.minimum(ramp, 0.5)
    found = unfollowed(ramp, stuck, active, FPS, turns)
    assert not found[:16].any() and (found[-5:] == 1).all()
    assert not unfollowed(ramp, stuck, ~active, FPS, turns).any()


def test_a_joint_that_slides_has_a_limit_in_metres():
    """8 mm off its command: nothing for a finger in radians, not followed for a jaw."""
    commands = np.zeros((20, 2))
    slides = np.array([True, False])
    for away, share in ((0.0029, 0.0), (0.0045, 0.5), (0.008, 1.0)):
        found = unfollowed(commands, commands + away, np.ones(20, bool), FPS, slides)
        assert found[:, 0] == pytest.approx(np.full(20, share)) and not found[:, 1].any()


def test_a_gripper_reports_metres():
    hand = load_robot("panda_gripper").hand("right")
    wide = np.full((30, 1), 0.03)
    blocked = play(hand, wide, FPS, np.ones(30, bool), "off").report
    assert blocked.rms_tracking_rad == 0 and blocked.rms_tracking_m < 1e-3
    jump = np.where(np.arange(30)[:, None] < 10, 0.0, 0.04) * np.ones((30, 1))  # faster than it is
    report = play(hand, jump, FPS, np.ones(30, bool), "off").report
    assert report.rms_tracking_rad == 0 and report.rms_tracking_m > 0.003
    fingers = play(HAND, smooth_commands(HAND, 20), FPS, np.ones(20, bool), "off").report
    assert fingers.rms_tracking_m == 0 and fingers.rms_tracking_rad > 0


def test_commands_sent_ahead_arrive_in_time():
    t = np.arange(90) / FPS
    commands = np.tile(HAND.command_lower, (90, 1))
    commands[:, INDEX] = 0.7 - 0.6 * np.cos(2 * np.pi * t / 2)
    active = np.ones(90, bool)
    rms = {
        latency: play(HAND, commands, FPS, active, latency).report.rms_tracking_rad
        for latency in ("off", "on", "ahead")
    }
    assert rms["on"] > 2 * rms["off"]
    assert rms["ahead"] == pytest.approx(rms["off"], rel=0.1)


def test_sent_commands_keep_every_limit():
    limits = CommandLimits.of(HAND, FPS)
    rng = np.random.default_rng(1)
    wild = rng.uniform(HAND.command_lower, HAND.command_upper, (60, 6))
    commands = limits.enforce(wild)
    sent = sent_commands(HAND, commands, FPS, "ahead")
    assert (np.abs(np.diff(sent, axis=0)) <= limits.step * (1 + 1e-9)).all()
    assert (sent >= HAND.command_lower).all() and (sent <= HAND.command_upper).all()
    # The end is a stop, which may be harder than the hand can brake; all before keeps to it.
    bends = np.abs(np.diff(sent, 2, axis=0))[:-3]
    assert (bends <= np.abs(np.diff(commands, 2, axis=0)).max(0) + 1e-9).all()
    assert sent_commands(HAND, commands, FPS, "on") is commands
    prompt = dataclasses.replace(HAND, latency_s=0.0)
    assert sent_commands(prompt, commands, FPS, "ahead") is commands
