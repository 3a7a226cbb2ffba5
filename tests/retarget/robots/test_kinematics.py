"""Forward kinematics against published points, MuJoCo, pinocchio and finite differences."""

import mujoco
import numpy as np
import pytest

from acehand_core.errors import InputError
from helpers.call_counts import calls
from retarget.robots.kinematics import KinematicTree
from retarget.robots.robot import load_robot

# Tips in the base frame, metres, thumb to pinky. Left fingers are the right ones with y negated.
ALL_ZERO = np.array([[0.0438, 0.1127, 0.1186], [0.0011, 0.0290, 0.2137], [0.0010, 0.0070, 0.2171],
                     [0.0009, -0.0163, 0.2135], [0.0013, -0.0387, 0.2037]])  # fmt: skip
ALL_MAX = np.array([[0.0205, 0.0204, 0.1514], [0.0379, 0.0247, 0.0928], [0.0382, 0.0070, 0.0903],
                    [0.0379, -0.0100, 0.0929], [0.0367, -0.0277, 0.0994]])  # fmt: skip
LEFT_THUMB = {"zero": (0.0331, -0.1151, 0.1189), "max": (0.0205, -0.0208, 0.1518)}


def random_joints(hand, count, seed=0):
    rng = np.random.default_rng(seed)
    return hand.lower + (hand.upper - hand.lower) * rng.random((count, len(hand.lower)))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("pose", ["zero", "max"])
def test_published_tips(side, pose):
    hand = load_robot("inspire").hand(side)
    commands = hand.command_lower if pose == "zero" else hand.command_upper
    tips = KinematicTree.of(hand).points(hand.expand(commands[None]), hand.tip_names)[0]
    expected = (ALL_ZERO if pose == "zero" else ALL_MAX).copy()
    if side == "left":
        expected[:, 1] *= -1
        expected[0] = LEFT_THUMB[pose]
    # The published points are rounded to 0.1 mm, left fingers mirrored to 0.1 mm.
    assert np.abs(tips - expected).max() < (1.6e-4 if side == "left" else 1e-4)


def test_mujoco_agrees(hand, tree):
    model = mujoco.MjModel.from_xml_path(str(hand.mjcf_path))
    data = mujoco.MjData(model)
    names = sorted({*hand.target_frames, *hand.tip_names, "base"})
    joints = random_joints(hand, 20)
    ours = tree.poses(joints, names)
    for row, angles in enumerate(joints):
        for name, angle in zip(hand.joint_names, angles, strict=True):
            data.joint(hand.full_name(name)).qpos = angle
        mujoco.mj_forward(model, data)
        for k, name in enumerate(names):
            full = hand.full_name(name)
            tip = name in hand.tip_names
            theirs = data.site(full) if tip else data.body(full)
            assert np.abs(ours[row, k, :3, 3] - theirs.xpos).max() < 1e-12
            assert np.abs(ours[row, k, :3, :3] - theirs.xmat.reshape(3, 3)).max() < 1e-12


def test_jacobian_agrees_with_differences(hand, tree):
    joints = random_joints(hand, 5, seed=2)
    frames = (*hand.tip_names, *hand.target_frames)
    points, jacobian = tree.points_and_jacobian(joints, frames)
    assert np.array_equal(points, tree.points(joints, frames))
    step = 1e-6
    for column in range(len(hand.joint_names)):
        shift = step * np.eye(len(hand.joint_names))[column]
        change = tree.points(joints + shift, frames) - tree.points(joints - shift, frames)
        assert np.abs(jacobian[..., column] - change / (2 * step)).max() < 1e-9


def test_unknown_frame_is_named(tree):
    with pytest.raises(InputError, match="'index_tip'"):
        tree.points(np.zeros((1, 12)), ["index_tp"])


def test_a_clip_takes_no_more_calls_than_a_frame():
    hand = load_robot("inspire").hand("right")
    tree = KinematicTree.of(hand)
    frames = tree.frames((*hand.tip_names, *hand.target_frames[:5]))
    few, clip = random_joints(hand, 2), random_joints(hand, 621)
    assert calls(lambda: tree.points_and_jacobian(clip, frames)) <= calls(
        lambda: tree.points_and_jacobian(few, frames)
    )
