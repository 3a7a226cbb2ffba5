"""The palm frame, and what a hand motion asks of a robot."""

import numpy as np
import pytest

from acehand_core.geometry import frames, rotations
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.types import SIDES
from helpers.retarget_samples import human_joints, motion_of, moving_hands, random_rigid
from retarget.targets import hand_targets, palm_frames


def flat_hand(side):
    return CapsuleHand().rest_keypoints(side, np.zeros(10))


@pytest.mark.parametrize("side", SIDES)
def test_palm_frame_of_the_flat_hand(side):
    """MANO's rest hand: fingers along +-x, palm down (-y), thumb to +z."""
    joints = flat_hand(side)
    frame = palm_frames(joints[None], side)[0]
    assert frame[:3, 3] == pytest.approx(joints[0])
    x, y, z = frame[:3, :3].T
    to_fingers, to_thumb = joints[9] - joints[0], joints[2] - joints[0]
    assert z @ to_fingers > 0.99 * np.linalg.norm(to_fingers)
    assert x @ [0, -1, 0] > 0.95
    assert (y @ to_thumb > 0.02) if side == "right" else (y @ to_thumb < -0.02)
    assert np.linalg.det(frame[:3, :3]) == pytest.approx(1)


def test_left_is_the_mirror_image_of_right():
    mirror = np.diag([-1.0, 1, 1])
    right = human_joints("right", 5)
    frame = palm_frames(right, "right")
    mirrored = palm_frames(right @ mirror, "left")
    # The y axis turns over: towards the thumb on a right hand, away from it on a left one.
    expected = mirror @ frame[:, :3, :3] @ np.diag([1.0, -1, 1])
    assert np.abs(mirrored[:, :3, :3] - expected).max() < 1e-12


def test_placed_targets_are_the_joints_in_the_palm_frame():
    joints = moving_hands(20)
    motion = motion_of(joints)
    for slot, side in enumerate(SIDES):
        targets = hand_targets(motion, side)
        assert targets.active.all() and (targets.weight == 1).all()
        back = frames.apply(targets.T_camera_hand, targets.joints_hand)
        assert np.abs(back - joints[:, slot]).max() < 1e-12
        assert np.abs(targets.joints_hand[:, 0]).max() < 1e-12
        assert targets.tips == pytest.approx(targets.joints_hand[:, [4, 8, 12, 16, 20]])
        some = targets.tips_of(("thumb", "ring"))
        assert some == pytest.approx(targets.joints_hand[:, [4, 16]])


def test_a_wrist_frame_is_kept_but_for_one_rotation():
    """A file in its own wrist frame: its noise does not become rotation of the whole hand."""
    rng = np.random.default_rng(1)
    joints = np.full((50, 2, 21, 3), np.nan)
    joints[:, 1] = human_joints("right", 50) + rng.normal(0, 0.003, (50, 21, 3))
    targets = hand_targets(motion_of(joints, placed=False), "right")
    assert targets.T_camera_hand is None
    # One rotation explains all frames ...
    source = joints[:, 1] - joints[:, 1, :1]
    _, turn, _ = frames.similarity_fit(source.reshape(-1, 3), targets.joints_hand.reshape(-1, 3))
    assert np.abs(source @ turn.T - targets.joints_hand).max() < 1e-9
    # ... and it brings the palm to the convention, on average.
    local = palm_frames(targets.joints_hand, "right")[:, :3, :3]
    mean = rotations.project_to_rotation(local.mean(0))
    assert np.abs(mean - np.eye(3)).max() < 1e-9


def test_a_file_that_only_calls_itself_wrist_frame_is_turned_frame_by_frame():
    """Joints relative to the wrist but in camera axes: the hand turns a lot in them."""
    rng = np.random.default_rng(2)
    joints = np.full((50, 2, 21, 3), np.nan)
    joints[:, 0] = frames.apply(random_rigid(rng, 50), human_joints("left", 50))
    targets = hand_targets(motion_of(joints, placed=False), "left")
    local = palm_frames(targets.joints_hand, "left")
    assert np.abs(local - np.eye(4)).max() < 1e-9


def test_weight_is_the_quality():
    quality = np.tile([[1.0, 0.0]], (5, 1))
    quality[1] = 0.4
    quality[3, 1] = 1e-3
    motion = motion_of(moving_hands(5), quality=quality)
    assert hand_targets(motion, "left").weight == pytest.approx([1, 0.4, 1, 1, 1])
    assert hand_targets(motion, "right").weight == pytest.approx([0, 0.4, 0, 1e-3, 0])
    assert hand_targets(motion_of(moving_hands(5), quality=np.zeros((5, 2))), "left") is None


def test_joints_count_by_how_well_they_are_known_in_the_palm():
    """Millimetres by hand: a share of 1 / (1 + v / 25), v the mean variance of three directions."""
    common = np.tile([3.0, 40.0], (5, 21, 1))  # of the hand's place: not of its fingers
    sigma = common.copy()
    sigma[1, 8, 1] = np.hypot(40, 15)  # v = 15^2 / 3 = 75
    sigma[2, 8, 0] = np.hypot(3, 10)  # v = 2 * 10^2 / 3
    sigma[3, [0, 5, 9, 13, 17], 1] = np.hypot(40, 15)  # the whole palm, so all fingers with it
    sigma[4, 8] = 900.0
    motion = motion_of(moving_hands(5), joint_sigma=1e-3 * np.stack([common, sigma], axis=1))
    assert hand_targets(motion, "left").share == pytest.approx(np.ones((5, 21)))
    share = hand_targets(motion, "right").share
    assert share[0] == pytest.approx(np.ones(21))
    assert share[1:3, 8] == pytest.approx([1 / 4, 1 / (1 + 200 / 75)])
    assert share[1:3, :8] == pytest.approx(np.ones((2, 8)))
    assert share[3, [4, 8]] == pytest.approx([1 / 4] * 2)
    assert share[3, 9] == pytest.approx(1 / 7)
    assert share[4, 8] == 0.02


def test_a_span_of_quality_0_is_bridged():
    """A hand that travels and turns evenly: nothing of the frames themselves is used."""
    turn = np.linspace(0, 1, 20)[:, None]
    move = frames.rigid(rotations.exp(turn * [0.2, 0.8, -0.5]), turn * [0.2, 0, 0.1])
    joints = np.full((20, 2, 21, 3), np.nan)
    joints[:, 1] = frames.apply(move, np.tile(human_joints("right"), (20, 1, 1)))
    clean = hand_targets(motion_of(joints), "right")
    quality = np.zeros((20, 2))
    quality[:, 1] = 1
    quality[6:12, 1] = 0
    joints[6:12, 1] = moving_hands(20)[6:12, 1]
    targets = hand_targets(motion_of(joints, quality=quality), "right")
    assert targets.active.all() and targets.usable.tolist() == (quality[:, 1] > 0).tolist()
    assert np.isnan(targets.joints_hand[6:12]).all()
    away = targets.T_camera_hand - clean.T_camera_hand
    assert np.abs(away[:, :3, :3]).max() < 1e-9
    assert np.abs(away[:, :3, 3]).max() < 5e-3  # the wrist goes along an arc


def test_a_frame_without_the_joints_it_needs_is_not_active():
    joints = moving_hands(8)
    joints[2, 1] = np.nan
    joints[3, 1, 0] = np.nan  # wrist
    joints[4, 1, 9] = np.nan  # a knuckle
    joints[5, 1, [4, 8, 12, 16, 20]] = np.nan  # all tips
    joints[6:, 1, [1, 7]] = np.nan  # thumb CMC and a DIP: both can be missed
    targets = hand_targets(motion_of(joints), "right")
    assert targets.active.tolist() == [True, True, False, False, False, False, True, True]
    assert (targets.weight > 0).tolist() == targets.active.tolist()
    assert np.isnan(targets.joints_hand[2:6]).all()
    assert (targets.T_camera_hand[2:6] == np.eye(4)).all()
    missing = np.isnan(targets.joints_hand[6]).any(-1)
    assert np.flatnonzero(missing).tolist() == [1, 7]


def test_joints_that_span_no_palm_are_not_used():
    """Zeros where a hand is missing, as some trackers write them, and a hand flat as a line."""
    joints = moving_hands(6)
    joints[1, 0] = 0.0
    joints[3, 0] = np.linspace(0, 0.2, 21)[:, None] * [1.0, 0.0, 0.0]
    targets = hand_targets(motion_of(joints), "left")
    assert targets.active.tolist() == [True, False, True, False, True, True]
    assert np.isfinite(targets.T_camera_hand).all()
    assert hand_targets(motion_of(np.zeros((4, 2, 21, 3))), "left") is None


def test_joints_of_an_unknown_hand_are_not_used():
    joints = moving_hands(6)
    known = np.ones((6, 2), bool)
    known[3, 0] = False
    targets = hand_targets(motion_of(joints, observed=known), "left")
    assert not targets.active[3] and np.isnan(targets.joints_hand[3]).all()
