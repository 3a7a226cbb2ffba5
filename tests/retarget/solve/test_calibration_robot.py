"""The calibration of a human hand to a robot's: recovered where it is known, bounded where not."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acehand_core.geometry import frames, rotations
from acehand_core.hand import articulation
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.motion import Calibration
from acehand_core.types import SIDES
from helpers.retarget_samples import human_joints, robot_targets, smooth_commands, targets_of
from retarget.robots.kinematics import KinematicTree
from retarget.robots.robot import load_robot
from retarget.solve.calibration import Spread, calibrate, fit, for_subject, robot_calibration
from retarget.solve.costs import Weights
from retarget.targets import LENGTH_RANGE, SCALE_RANGE, palm_frames

HANDS = {side: load_robot("inspire").hand(side) for side in SIDES}
TREES = {side: KinematicTree.of(hand) for side, hand in HANDS.items()}
WEIGHTS = Weights()


def fitted(side, targets):
    return calibrate(HANDS[side], TREES[side], targets, WEIGHTS)


def difference(a, b):
    turn = rotations.angle_between(a.rotation[None], b.rotation[None])[0]
    return turn, np.linalg.norm(a.translation - b.translation), abs(np.log(a.scale / b.scale))


@pytest.mark.parametrize("side", SIDES)
@settings(max_examples=6, deadline=None)
@given(
    turn=st.tuples(*[st.floats(-0.3, 0.3)] * 3),
    shift=st.tuples(*[st.floats(-0.03, 0.03)] * 3),
    scale=st.floats(0.92, 1.28),
)
def test_recovers_a_known_similarity(side, turn, shift, scale):
    known = Calibration(scale, rotations.exp(np.array(turn)), np.array(shift), 0.0)
    targets = robot_targets(HANDS[side], TREES[side], smooth_commands(HANDS[side], 60), known)
    # The wrist is the base's origin too: with it and the knuckles the palm says how it is turned.
    targets.joints_hand[:, 0] = -known.translation @ known.rotation / known.scale
    found = fitted(side, targets)
    turned, moved, scaled = difference(found, known)
    # The pull towards the robot's own calibration is felt: 1.1 mm where all shifts are the largest.
    assert turned < 0.01 and moved < 1.5e-3 and scaled < 0.01
    assert found.residual_m < 5e-4


def test_inactive_frames_are_ignored():
    joints = human_joints("left", 60)
    local = frames.apply(frames.inverse(palm_frames(joints, "left")), joints)
    plain = fitted("left", targets_of("left", local))
    nonsense = np.full((40, 21, 3), np.nan)
    nonsense[::2] = 7.0
    both = np.concatenate([nonsense[:20], local, nonsense[20:]])
    weight = np.r_[np.zeros(20), np.ones(60), np.zeros(20)]
    assert max(difference(fitted("left", targets_of("left", both, weight)), plain)) < 1e-12


@pytest.mark.parametrize("side", SIDES)
def test_noisy_knuckles_do_not_turn_the_hand(side):
    """Four knuckles lie almost on a line: trusted, 1 cm of noise turns the hand by 100 degrees."""
    rng = np.random.default_rng(3)
    targets = robot_targets(HANDS[side], TREES[side], smooth_commands(HANDS[side], 100))
    noisy = targets.joints_hand + rng.normal(0, 0.01, targets.joints_hand.shape)
    found = fitted(side, dataclasses.replace(targets, joints_hand=noisy))
    assert rotations.angle_between(found.rotation[None], np.eye(3)[None])[0] < np.radians(10)


@pytest.mark.parametrize("missing", [[1], [1, 2, 3], [6, 10, 14, 18, 7, 11, 15, 19]])
def test_joints_that_a_tracker_lacks(missing):
    """Without a thumb CMC (HOT3D), any thumb joint but the tip, or any joint between."""
    hand, tree = HANDS["right"], TREES["right"]
    known = Calibration(1.1, rotations.exp(np.array([0.1, 0.1, -0.1])), np.full(3, 0.01), 0.0)
    targets = robot_targets(hand, tree, smooth_commands(hand, 60), known)
    joints = targets.joints_hand.copy()
    joints[:, missing] = np.nan
    found = fitted("right", dataclasses.replace(targets, joints_hand=joints))
    turned, moved, scaled = difference(found, known)
    assert turned < 0.03 and moved < 3e-3 and scaled < 0.03


def test_the_residual_is_what_it_says():
    hand, tree = HANDS["right"], TREES["right"]
    rng = np.random.default_rng(3)
    targets = robot_targets(hand, tree, smooth_commands(hand, 100))
    noisy = targets.joints_hand + rng.normal(0, 0.01, targets.joints_hand.shape)
    found = fitted("right", dataclasses.replace(targets, joints_hand=noisy))
    # Of the 15 tip coordinates per frame 6 are followed; 10 mm of noise stay in the rest.
    assert found.residual_m == pytest.approx(0.01 * np.sqrt(9 / 5), rel=0.25)


@pytest.mark.parametrize("side", SIDES)
def test_a_finger_that_sits_elsewhere_is_anchored(side):
    hand, tree = HANDS[side], TREES[side]
    anchors = np.zeros((5, 3))
    anchors[1] = [0, 0.012, 0]
    known = Calibration(1.0, np.eye(3), np.zeros(3), 0.0, anchors)
    found = fitted(side, robot_targets(hand, tree, smooth_commands(hand, 100), known))
    # The similarity takes the most of it; what it cannot is that one finger's.
    assert 0.001 < found.finger_offsets[1, 1] < 0.012
    others = np.linalg.norm(np.delete(found.finger_offsets, 1, axis=0), axis=1)
    assert others.max() < 0.8 * found.finger_offsets[1, 1]


@pytest.mark.parametrize(("hand_size", "bound"), [(0.5, SCALE_RANGE[1]), (2.0, SCALE_RANGE[0])])
@pytest.mark.parametrize("side", SIDES)
def test_scale_and_lengths_stay_in_range(side, hand_size, bound):
    """A hand of half or twice the size: the scale stops at its bound, all else is fitted."""
    targets = robot_targets(HANDS[side], TREES[side], smooth_commands(HANDS[side], 40))
    sized = dataclasses.replace(targets, joints_hand=targets.joints_hand * hand_size)
    found = fitted(side, sized)
    assert found.scale == pytest.approx(bound, abs=1e-9)
    assert rotations.angle_between(found.rotation[None], np.eye(3)[None])[0] < 0.5
    assert 0.005 < found.residual_m < 0.1
    total = found.scale * found.lengths
    assert (total >= SCALE_RANGE[0] - 1e-9).all() and (total <= SCALE_RANGE[1] + 1e-9).all()
    assert (found.lengths >= LENGTH_RANGE[0] - 1e-9).all()
    assert (found.lengths <= LENGTH_RANGE[1] + 1e-9).all()
    assert np.linalg.norm(found.finger_offsets, axis=1).max() < 0.05


def held(side, bend=0.5, count=15):
    """A hand of 22 equal angles, held, in its palm frame; it trembles by half a millimetre."""
    _, high = articulation.limits()
    pose = articulation.angles_to_pose(np.where(high > 1, bend * high, 0.0), side)
    joints = CapsuleHand().joints(side, np.eye(3), pose, np.zeros(10))
    local = frames.apply(frames.inverse(palm_frames(joints[None], side)), joints[None])
    return local + np.random.default_rng(0).normal(0, 5e-4, (count, 21, 3))


@pytest.mark.parametrize("bend", [0.0, 0.4, 0.8])
@pytest.mark.parametrize("side", SIDES)
def test_what_is_held_says_little(side, bend):
    targets = targets_of(side, held(side, bend))
    known = for_subject(robot_calibration(HANDS[side], TREES[side]), targets)
    turned, moved, scaled = difference(fitted(side, targets), known)
    assert turned < np.radians(4) and moved < 0.006 and scaled < 0.03


@pytest.mark.parametrize("side", SIDES)
def test_a_palm_turns_no_further_than_palms_differ(side):
    """All of the motion says 40 degrees, and hardly anything holds the fit: 15 are allowed."""
    targets = robot_targets(HANDS[side], TREES[side], smooth_commands(HANDS[side], 40))
    start = Calibration(1.0, rotations.exp(np.radians([0.0, 40.0, 0.0])), np.zeros(3), 0.0)
    free = Spread(turn=100.0, place=10.0, size=10.0, offset=0.005, length=0.05)
    found = fit(HANDS[side], TREES[side], targets, WEIGHTS, start, free)
    turned = rotations.angle_between(found.rotation[None], start.rotation[None])[0]
    assert np.degrees(turned) == pytest.approx(15, abs=1e-3)


@pytest.mark.parametrize("size", [0.85, 1.15])
def test_another_subjects_hand_keeps_its_place(size):
    """Bones of another length, the wrist frame of a file that is turned from the palm."""
    joints = held("right")
    robot = Calibration(1.1, rotations.exp(np.array([0.1, 0.0, -0.1])), np.full(3, 0.02), 0.0)
    mean = for_subject(robot, targets_of("right", joints))
    assert mean.scale == pytest.approx(1.1, rel=0.02)
    turn = rotations.exp(np.array([0.3, -0.2, 0.4]))
    other = for_subject(robot, targets_of("right", size * joints @ turn.T))
    assert other.scale == pytest.approx(mean.scale / size, rel=1e-6)
    knuckles = [5, 9, 13, 17]
    for one, points in ((mean, joints), (other, size * joints @ turn.T)):
        moved = one.apply(points[:, knuckles]).mean((0, 1))
        expected = robot.apply(joints[:, knuckles]).mean((0, 1))
        assert np.abs(moved - expected).max() < 1e-3
    assert np.abs(other.rotation @ turn - mean.rotation).max() < 1e-9
