"""Pinches: which a hand can do, when a human does them, and what is then asked of the tips."""

import numpy as np
import pytest
from scipy.optimize import least_squares

from acehand_core.geometry import frames
from acehand_core.hand.skeleton import finger_keypoints
from acehand_core.types import SIDES
from helpers.retarget_samples import robot_targets, smooth_commands, solved, targets_of
from retarget.replay.simulate import self_penetration
from retarget.robots.hand_spec import CommandLimits
from retarget.robots.kinematics import KinematicTree
from retarget.robots.robot import load_robot
from retarget.solve.calibration import calibrate
from retarget.solve.costs import Weights
from retarget.solve.methods import solve_hand
from retarget.solve.pinch import (
    OPEN_M,
    Pinches,
    impossible_pinches,
    missed_pinches,
    pinch_fingers,
    tip_reach,
)
from retarget.targets import calibrated, palm_frames
from tools.gestures import pinching_hand

HANDS = {side: load_robot("inspire").hand(side) for side in SIDES}
TREES = {side: KinematicTree.of(hand) for side, hand in HANDS.items()}
INDEX = np.array([1])


def moving_tips(gap_m, side="right"):
    """Targets whose index tip is this far from the thumb's in each frame; nothing else moves."""
    joints = np.zeros((len(gap_m), 21, 3))
    joints[:] = np.arange(21)[:, None] * [0.0, 0.0, 0.5]
    joints[:, 8] = joints[:, 4] + np.asarray(gap_m)[:, None] * [0.0, 0.6, 0.8]
    return targets_of(side, joints)


def closing(gap_mm):
    targets = moving_tips(np.array(gap_mm, float) / 1e3)
    return Pinches.of(HANDS["right"], targets, INDEX)


@pytest.mark.parametrize("side", SIDES)
def test_reach_of_the_published_hand(side):
    """Published for the right hand, on a grid: 0.8, 12.5, 32.4, 52.7 mm. The left thumb differs."""
    reach = tip_reach(HANDS[side], TREES[side]) * 1e3
    expected = [0, 0.4, 12.5, 32.4, 52.7] if side == "right" else [0, 0.4, 18.6, 38.3, 57.6]
    assert reach == pytest.approx(expected, abs=0.5)
    assert pinch_fingers(HANDS[side], TREES[side]).tolist() == ([1, 2] if side == "right" else [1])


def test_a_pinch_closes_from_first_to_last_touch():
    found = closing([60, 44.9999, 39, 25, 35, 44, 28, 39, 44.9999, 60])
    assert found.closing[:, 0] == pytest.approx([0, 0, 0.16, 1, 1, 1, 1, 0.16, 0, 0], abs=1e-3)
    length = np.linalg.norm(found.vector[:, 0], axis=-1) * 1e3
    assert length == pytest.approx([60, 45, 23.4, 0, 0, 0, 0, 23.4, 45, 60], abs=1e-2)


def test_near_is_not_closed():
    found = closing([60, 39, 31, 31, 45, 60])
    assert not found.closing.any()
    assert found.apart[:, 0] == pytest.approx([OPEN_M, *[-np.inf] * 3, OPEN_M / 2, OPEN_M])


def test_jitter_about_either_distance_does_not_open_or_close():
    closed = closing(20 + 14 * (np.arange(40) % 2))  # 20, 34, 20, 34 ...
    assert (closed.closing[:-1] == 1).all()
    # (The very last frame of a clip is on its way: no touch follows.)
    opened = closing(42 + 10 * (np.arange(40) % 2))
    assert not opened.closing.any()


def test_unknown_frames_neither_close_nor_open():
    found = closing([60, 20, np.nan, np.nan, 20, 60, np.nan])
    assert found.closing[:, 0].tolist() == [0, 1, 0, 0, 1, 0, 0]
    assert not np.isfinite(found.apart[[2, 3, 6], 0]).any()
    assert np.isfinite(found.vector).all()


def pinching(side, finger, count=90):
    """A robot's own motion whose human closes thumb and finger to 0 mm in the middle third."""
    hand, tree = HANDS[side], TREES[side]
    commands = smooth_commands(hand, count, seed=1, speed=0.2)
    targets = robot_targets(hand, tree, commands)
    joints = targets.joints_hand.copy()
    tip = 4 * finger + 4
    share = np.clip(np.minimum(np.arange(count) - 20, 70 - np.arange(count)) / 15, 0, 1)[:, None]
    middle = (joints[:, 4] + joints[:, tip]) / 2
    for keypoint in (4, tip):
        joints[:, keypoint] += share * (middle - joints[:, keypoint])
    return targets_of(side, joints), share[:, 0] == 1


@pytest.mark.parametrize(("side", "finger"), [("left", 1), ("right", 1), ("right", 2)])
def test_a_human_pinch_closes_on_the_robot(side, finger):
    hand, tree = HANDS[side], TREES[side]
    targets, closed = pinching(side, finger)
    commands = solved(hand, tree, targets)
    tips = tree.points(hand.expand(commands), hand.tip_names)
    gap = np.linalg.norm(tips[:, 0] - tips[:, finger], axis=-1)
    assert gap[closed].max() < tip_reach(hand, tree)[finger] + 8e-3
    assert self_penetration(hand, hand.expand(commands)).max() < 1e-3


@pytest.mark.parametrize("side", SIDES)
def test_a_human_gap_stays_open_on_the_robot(side):
    """Targets that would bring the robot's tips together while the human's are 60 mm apart."""
    hand, tree = HANDS[side], TREES[side]
    closed = np.tile(hand.rest, (30, 1))
    for name, angle in (("index", 0.82), ("thumb_bend", 0.295), ("thumb_rotation", 1.17)):
        closed[:, hand.command_names.index(name)] = angle
    joints = robot_targets(hand, tree, closed).joints_hand
    joints[:, 8] = joints[:, 4] + [0.0, 0.0, 0.052]
    gaps = []
    for pinch in (0.0, Weights().pinch):
        # The links hold the pose that the tips contradict.
        weights = Weights(tip=0.02, link=1.0, pinch=pinch)
        found = solved(hand, tree, targets_of(side, joints), weights, start=closed)
        tips = tree.points(hand.expand(found), hand.tip_names)
        gaps.append(np.linalg.norm(tips[:, 0] - tips[:, 1], axis=-1).min())
    assert gaps[0] < OPEN_M - 1.5e-3  # there was something to hold apart
    assert gaps[1] > OPEN_M - 1e-4


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("side", "finger", "nearest_mm"),
    [("right", "ring", 32.4), ("right", "pinky", 52.7), ("left", "middle", 18.6)],
)
def test_a_pinch_out_of_reach_comes_as_near_as_it_can(side, finger, nearest_mm):
    hand, tree = HANDS[side], TREES[side]
    hands = pinching_hand(side, finger, 30.0, touches=1)
    targets = targets_of(side, frames.apply(frames.inverse(palm_frames(hands, side)), hands))
    calibration = calibrate(hand, tree, targets, Weights())
    commands = solve_hand(hand, tree, targets, calibration, CommandLimits.of(hand, 30.0))
    tips = tree.points(hand.expand(commands), hand.tip_names)
    human = targets.tips_of(hand.fingers)
    k = hand.fingers.index(finger)
    touching = np.linalg.norm(human[:, k] - human[:, 0], axis=-1) < 0.001
    apart = np.linalg.norm(tips[touching, k] - tips[touching, 0], axis=-1) * 1e3
    assert touching.sum() > 3
    assert apart.min() > nearest_mm - 0.5

    # Both tips go as near to where the human's touch as another solver gets them.
    places = calibrated(targets.joints_hand, calibration)[touching][0]
    goals = places[[finger_keypoints("thumb")[-1], finger_keypoints(finger)[-1]]]
    names = [hand.tip_names[0], hand.tip_names[k]]

    def off(command):
        return (tree.points(hand.expand(command[None]), names)[0] - goals).ravel() * 1e3

    bounds = hand.command_lower - 1e-9, hand.command_upper + 1e-9
    starts = np.random.default_rng(0).uniform(*bounds, (10, len(hand.rest)))
    best = min((least_squares(off, one, bounds=bounds) for one in starts), key=lambda r: r.cost)
    thumb, other = tree.points(hand.expand(best.x[None]), names)[0]
    assert apart[0] == pytest.approx(np.linalg.norm(thumb - other) * 1e3, abs=1)

    (note,) = impossible_pinches(hand, tree, targets)
    assert f"thumb-{finger}" in note and side in note
    assert f"{nearest_mm:.0f} mm" in note


def test_a_pinch_within_reach_is_no_news():
    hand = load_robot("inspire").hand("right")
    hands = pinching_hand("right", "index", 30.0, touches=1)
    targets = targets_of("right", frames.apply(frames.inverse(palm_frames(hands, "right")), hands))
    assert impossible_pinches(hand, KinematicTree.of(hand), targets) == ()


@pytest.fixture(scope="module")
def closing_hand():
    """Commands of a right hand that closes thumb and index from frame 20 to 39, and its targets."""
    hand = HANDS["right"]
    commands = np.tile(hand.rest, (60, 1))
    for name, angle in (("index", 0.83), ("thumb_bend", 0.30), ("thumb_rotation", 1.18)):
        commands[20:40, hand.command_names.index(name)] = angle
    joints = np.tile(np.arange(21)[:, None] * [0.0, 0.0, 0.5], (60, 1, 1))
    joints[:, 8] = joints[:, 4] + [0.0, 0.0, 0.1]
    joints[20:40, 8] = joints[20:40, 4] + [0.0, 0.0, 0.005]
    return commands, targets_of("right", joints)


@pytest.mark.parametrize(("late", "missed"), [(0, False), (9, False), (11, True), (30, True)])
def test_a_pinch_that_is_closed_in_under_half_of_its_frames_is_missed(closing_hand, late, missed):
    """Published: at these angles the tips are 0.8 mm apart."""
    (commands, targets), hand, tree = closing_hand, HANDS["right"], TREES["right"]
    notes = missed_pinches(hand, tree, targets, np.roll(commands, late, axis=0))
    assert len(notes) == missed
    if missed:
        thumb, index = tree.points(hand.expand(commands[:1]), ["thumb_tip", "index_tip"])[0]
        assert "right" in notes[0] and "1 of 1 thumb-index" in notes[0] and "20 to 39" in notes[0]
        assert f"up to {np.linalg.norm(thumb - index) * 1e3:.0f} mm" in notes[0]


def test_every_missed_pinch_counts_and_the_first_are_named():
    gap = np.tile(np.repeat([0.08, 0.005], 3), 7)
    hand, tree = HANDS["right"], TREES["right"]
    commands = np.tile(hand.rest, (len(gap), 1))
    (note,) = missed_pinches(hand, tree, moving_tips(gap), commands)
    assert "misses 7 of 7 thumb-index" in note
    assert "3 to 5, 9 to 11, 15 to 17, 21 to 23, 27 to 29 and 2 more" in note
