"""From hand motion to robot trajectory: both hands, their places, limits, and other robots."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest

import retarget
from acehand_core import plugins
from acehand_core.errors import InputError
from acehand_core.geometry import frames, rotations
from acehand_core.motion import Calibration
from acehand_core.types import SIDES
from helpers.makers_files import edited_copy
from helpers.retarget_samples import (
    human_joints,
    motion_of,
    moving_hands,
    random_rigid,
    robot_targets,
    smooth_commands,
)
from retarget.replay import metrics
from retarget.retargeting import retarget_motion
from retarget.robots.hand_spec import limit_violations, speed_violations
from retarget.robots.kinematics import KinematicTree
from retarget.robots.robot import load_robot
from retarget.solve.methods import HandSolution, Retargeter, retargeter_named
from retarget.targets import calibrated, palm_frames

ROBOT = load_robot("inspire")


@pytest.fixture(scope="module")
def both():
    motion = motion_of(moving_hands(40))
    return motion, retarget_motion(motion, ROBOT, base_limits=None)


@pytest.fixture(scope="module")
def hot3d(shared):
    """Half a second of real bimanual motion; its hand model has no thumb CMC."""
    data = np.load(shared / "data" / "hot3d_bimanual_joints.npz")
    motion = motion_of(data["joints_world"], timestamps_ns=data["timestamps_ns"])
    return motion, retarget_motion(motion, ROBOT, base_limits=None)


@pytest.fixture(scope="module")
def human(joints_file):
    joints = np.full((621, 2, 21, 3), np.nan)
    joints[:, 1] = np.load(joints_file)["joints"]
    motion = motion_of(joints, placed=False)
    return motion, retarget_motion(motion, ROBOT)


def assert_sound(trajectory, robot=ROBOT):
    stored = trajectory.commands.astype(np.float32).astype(float)
    for slot, side in enumerate(SIDES):
        hand = robot.hands.get(side)
        if hand is None:
            continue
        for commands in (trajectory.commands[:, slot], stored[:, slot]):
            assert limit_violations(hand, hand.expand(commands)) == 0
            assert speed_violations(hand, commands, trajectory.fps) == 0
        joints = trajectory.joints[:, slot]
        assert np.abs(joints - hand.expand(trajectory.commands[:, slot])).max() < 1e-12
        registers = hand.controller.to_angles(trajectory.registers[:, slot])
        assert np.abs(registers - trajectory.commands[:, slot]).max() < 1e-9
    assert trajectory.limit_violations == trajectory.speed_violations == 0
    assert trajectory.coupling_residual_rad < 1e-6
    assert (trajectory.confidence[~trajectory.active] == 0).all()
    error = np.isfinite(trajectory.tip_error_m).all(-1)
    assert (error == trajectory.active).all()


def constant_offset(motion, trajectory, slot):
    palm = palm_frames(motion.joints_camera[:, slot], SIDES[slot])
    if trajectory.frame == "world":
        palm = motion.T_world_camera @ palm
    offset = (frames.inverse(palm) @ trajectory.T_frame_base[:, slot])[trajectory.active[:, slot]]
    assert np.abs(offset - offset[0]).max() < 1e-9
    return offset[0]


def test_both_hands(both):
    motion, trajectory = both
    assert_sound(trajectory)
    assert trajectory.active.all() and trajectory.frame == "camera"
    assert np.nanmean(trajectory.tip_error_m) < 0.012
    # The left thumb comes within 18.6 mm of the middle finger: the only reason.
    (reason,) = trajectory.verdict.reasons
    assert "left" in reason and "thumb-middle pinch of 3" in reason
    assert trajectory.joint_names == ROBOT.hand("right").joint_names
    assert all(c.residual_m < 0.015 for c in trajectory.calibration)
    assert trajectory.solve_seconds > 0 and trajectory.provenance is motion.provenance


def test_hot3d_both_hands(hot3d):
    """The right hand holds something between thumb, index and middle: the robot closes them."""
    _, trajectory = hot3d
    assert_sound(trajectory)
    assert trajectory.active.all()
    hand = ROBOT.hand("right")
    tips = KinematicTree.of(hand).points(trajectory.joints[:, 1], hand.tip_names)
    assert np.linalg.norm(tips[:, 1] - tips[:, 0], axis=-1).max() < 0.010
    assert np.linalg.norm(tips[:, 2] - tips[:, 0], axis=-1).max() < 0.015
    free = trajectory.tip_error_m.copy()
    free[:, 1, 1:3] = np.nan
    # The grip is held: it must not go into the calibration, so targets stay a little off.
    assert np.nanmean(free) < 0.012
    for report in trajectory.flexion:
        assert np.abs(report.robot_deg - report.human_deg).max() < 15
    assert not any("limit" in reason for reason in trajectory.verdict.reasons)
    assert trajectory.verdict.status != "fail", trajectory.verdict


@pytest.mark.parametrize("side", SIDES)
def test_the_base_of_a_robots_own_hand_is_found(side):
    """Joints made by the robot itself somewhere before the camera: its base is there again."""
    hand, slot = ROBOT.hand(side), SIDES.index(side)
    tree = KinematicTree.of(hand)
    commands = smooth_commands(hand, 40)
    t = np.linspace(0, 1, 40)[:, None]
    base = frames.rigid(rotations.exp(np.concatenate([t, 0.5 - t, 2 * t], 1)),
                        np.concatenate([0.1 * t, -0.1 * t, 0.5 + 0 * t], 1))  # fmt: skip
    local = robot_targets(hand, tree, commands).joints_hand
    local[:, 0] = [0.02, 0.01, 0.03]  # a wrist off the base's origin: the palm frame is turned
    joints = np.full((40, 2, 21, 3), np.nan)
    joints[:, slot] = frames.apply(base, local)
    trajectory = retarget_motion(motion_of(joints), ROBOT)
    found = trajectory.T_frame_base[:, slot]
    assert np.abs(found[:, :3, :3] - base[:, :3, :3]).max() < 0.02
    assert np.abs(found[:, :3, 3] - base[:, :3, 3]).max() < 2e-3
    palm = palm_frames(joints[:, slot], side)[0]
    assert rotations.angle_between(palm[None, :3, :3], base[:1, :3, :3])[0] > 0.1


def test_human_joints(human):
    """Better than the published baseline on the same clip (19.2 mm), within limits."""
    motion, trajectory = human
    assert_sound(trajectory)
    assert trajectory.frame == "none" and trajectory.T_frame_base is None
    hand = ROBOT.hand("right")
    tips = KinematicTree.of(hand).points(trajectory.joints[:, 1], hand.tip_names)
    wanted = motion.joints_camera[:, 1][:, [4, 8, 12, 16, 20]]
    ground = metrics.CommonGround.fit(wanted, tips)
    error = metrics.tip_error(wanted, tips, ground) * 1e3
    assert error.mean() <= 15.0
    # What the trajectory reports is measured from its own calibration, hence a little larger.
    assert error.mean() - 2 < np.nanmean(trajectory.tip_error_m) * 1e3 < error.mean() + 2
    assert (trajectory.joints[:, 0] == ROBOT.hand("left").expand(ROBOT.hand("left").rest)).all()
    assert trajectory.calibration[0] is None and trajectory.replay[0] is None


def test_no_worse_than_the_reported_residual(both):
    motion, trajectory = both
    for slot, side in enumerate(SIDES):
        hand = ROBOT.hand(side)
        tips = KinematicTree.of(hand).points(trajectory.joints[:, slot], hand.tip_names)
        joints = motion.joints_camera[:, slot]
        local = frames.apply(frames.inverse(palm_frames(joints, side)), joints)
        goal = calibrated(local, trajectory.calibration[slot])[:, [4, 8, 12, 16, 20]]
        error = np.linalg.norm(tips - goal, axis=-1)
        assert np.abs(error - trajectory.tip_error_m[:, slot]).max() < 1e-9


def moving_camera(count):
    t = np.arange(count)[:, None] / count
    turn = rotations.exp(np.concatenate([0.3 * t, -0.5 * t, 0.1 * t], axis=1))
    return frames.rigid(turn, np.concatenate([t, 0.2 * t, -0.3 * t], axis=1))


def test_world_frame_and_an_absent_hand_under_a_moving_camera():
    poses = moving_camera(40)
    joints = moving_hands(40)
    joints[:5, 0] = joints[15:25, 0] = np.nan  # the left hand comes late and leaves for a while
    motion = motion_of(joints, T_world_camera=poses)
    trajectory = retarget_motion(motion, ROBOT, base_limits=None)
    assert_sound(trajectory)
    assert trajectory.frame == "world"
    base = trajectory.T_frame_base[:, 0]
    assert (base[:5] == base[5]).all() and (base[15:25] == base[14]).all()
    assert np.abs(base[26] - base[14]).max() > 1e-3
    # Where it is present it is at the camera's pose times its place before the camera.
    there = trajectory.active[:, 0]
    still = dataclasses.replace(motion, T_world_camera=None)
    before_camera = retarget_motion(still, ROBOT, base_limits=None)
    assert before_camera.frame == "camera"
    expected = poses @ before_camera.T_frame_base[:, 0]
    assert np.abs(base - expected)[there].max() < 1e-12
    right = poses @ before_camera.T_frame_base[:, 1]
    assert np.abs(trajectory.T_frame_base[:, 1] - right).max() < 1e-12
    for slot in range(2):
        constant_offset(motion, trajectory, slot)


def test_bases_before_a_camera_that_is_nowhere_stay_where_they_were():
    poses = moving_camera(40)
    poses[30:] = np.nan
    motion = motion_of(moving_hands(40), T_world_camera=poses)
    trajectory = retarget_motion(motion, ROBOT, base_limits=None)
    assert trajectory.frame == "world" and np.isfinite(trajectory.T_frame_base).all()
    np.testing.assert_allclose(
        trajectory.T_frame_base[30:], np.broadcast_to(trajectory.T_frame_base[29], (10, 2, 4, 4))
    )


def test_an_absent_hand_keeps_its_joints_close():
    joints = moving_hands(40)
    joints[20:26, 1] = np.nan
    trajectory = retarget_motion(motion_of(joints), ROBOT)
    assert_sound(trajectory)
    assert (~trajectory.active[20:26, 1]).all() and trajectory.active[:, 0].all()
    whole = retarget_motion(motion_of(moving_hands(40)), ROBOT)
    assert np.abs(trajectory.commands - whole.commands)[:, 1].max() < 0.1


def test_no_hand_at_all():
    motion = motion_of(np.full((6, 2, 21, 3), np.nan))
    trajectory = retarget_motion(motion, ROBOT)
    assert trajectory.verdict.status == "fail"
    assert trajectory.solve_seconds == 0 and trajectory.coupling_residual_rad < 1e-6


@pytest.mark.parametrize("count", [1, 2, 3])
def test_very_short_clips(count):
    trajectory = retarget_motion(motion_of(moving_hands(40)[10 : 10 + count]), ROBOT)
    assert_sound(trajectory)
    assert trajectory.joints.shape == (count, 2, 12)
    assert np.nanmean(trajectory.tip_error_m) < 0.02


def test_where_the_camera_stands_does_not_matter(both):
    motion, trajectory = both
    move = random_rigid(np.random.default_rng(0), 1)
    moved = dataclasses.replace(
        motion, joints_camera=frames.apply(move[:, None], motion.joints_camera)
    )
    other = retarget_motion(moved, ROBOT, base_limits=None)
    assert np.abs(other.commands - trajectory.commands).max() < 1e-6
    assert np.abs(other.T_frame_base - move[:, None] @ trajectory.T_frame_base).max() < 1e-6


def test_filled_frames_do_not_calibrate():
    joints = moving_hands(60)
    clean = retarget_motion(motion_of(joints), ROBOT)
    filled = np.zeros((60, 2), bool)
    filled[20:35] = True
    joints[20:35] = np.stack([human_joints(side, 15) for side in SIDES], axis=1)
    motion = motion_of(joints, filled=filled, observed=~filled, quality=np.where(filled, 0.2, 1.0))
    bent = retarget_motion(motion, ROBOT)
    for one, other in zip(bent.calibration, clean.calibration, strict=True):
        assert rotations.angle_between(one.rotation[None], other.rotation[None])[0] < 0.05
        assert np.abs(one.translation - other.translation).max() < 5e-3


@pytest.mark.parametrize("method", [s for s in plugins.names("methods") if s != "trajectory"])
def test_every_other_method_keeps_the_limits(method):
    pytest.importorskip("dex_retargeting", reason="not installed (extra: dex)")
    rng = np.random.default_rng(0)
    joints = moving_hands(40)
    joints[:, :, 1:] += rng.normal(0, 0.02, joints[:, :, 1:].shape)  # faster than any hand
    joints[10:13, 0] = np.nan
    motion = motion_of(joints)
    trajectory = retarget_motion(motion, ROBOT, method, base_limits=None)
    assert_sound(trajectory)
    assert trajectory.method == method
    for slot in range(2):
        constant_offset(motion, trajectory, slot)
        residual = np.sqrt(np.nanmean(trajectory.tip_error_m[:, slot] ** 2))
        assert trajectory.calibration[slot].residual_m == pytest.approx(residual)


def test_unknown_method():
    with pytest.raises(InputError, match="'dex-vector'"):
        retarget_motion(motion_of(moving_hands(3)), ROBOT, "dex-vectors")


@pytest.mark.few(1)
@pytest.mark.parametrize("side", SIDES)
def test_a_robot_with_one_side(tmp_path, side):
    def drop(root):
        del root["sides"]["left" if side == "right" else "right"]

    robot = load_robot(edited_copy(tmp_path, "inspire", drop))
    slot = SIDES.index(side)
    trajectory = retarget_motion(motion_of(moving_hands(20, sides=(side,))), robot)
    assert_sound(trajectory, robot)
    expected = retarget_motion(motion_of(moving_hands(20, sides=(side,))), ROBOT)
    assert np.abs(trajectory.commands - expected.commands)[:, slot].max() < 1e-9
    with pytest.raises(InputError, match=f"has no {SIDES[1 - slot]} hand"):
        retarget_motion(motion_of(moving_hands(20)), robot)


class Resting:
    """A method of one's own: every hand stays as it is idle."""

    name, calibrates = "resting", False

    def check(self, robot, hands):
        pass

    def calibrate(self, motion, robot, known):
        return {}

    def solve(self, hand, targets, fps, calibration):
        idle = np.tile(hand.rest, (len(targets.weight), 1))
        return HandSolution(idle, Calibration(1.0, np.eye(3), np.zeros(3), 0.0), 0.25)


def test_a_method_of_ones_own():
    trajectory = retarget_motion(motion_of(moving_hands(20)), ROBOT, Resting())
    assert trajectory.method == "resting" and trajectory.solve_seconds == 0.5
    for slot, side in enumerate(SIDES):
        assert (trajectory.commands[:, slot] == ROBOT.hand(side).rest).all()
    for name in plugins.names("methods"):
        method = retargeter_named(name)
        assert isinstance(method, Retargeter) and method.name == name


def test_the_public_names_bring_their_modules_when_they_are_used():
    code = (
        "import sys, retarget\n"
        "heavy = {'numpy', 'mujoco', 'torch', 'mediapipe', 'dex_retargeting', 'cv2', 'pinocchio'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
        "robot = retarget.load_robot('inspire')\n"
        "import retarget.robots.kinematics, retarget.replay.simulate\n"
        "print(robot.label, sorted(heavy & set(sys.modules)))\n"
    )
    out = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert out == "[]\ninspire ['numpy']\n"
    assert set(retarget.__all__) == set(retarget._PUBLIC) <= set(dir(retarget))
    assert all(callable(getattr(retarget, name)) for name in retarget.__all__)
    with pytest.raises(AttributeError, match="no attribute 'retargett'"):
        _ = retarget.retargett


def test_the_public_api_gives_a_verdict():
    motion = motion_of(moving_hands(20, sides=("right",)))
    robot = retarget.load_robot("inspire")
    known = retarget.calibrate(motion, robot)
    trajectory = retarget.retarget(motion, robot, calibrations=known)
    assert set(known) == {"right"} and trajectory.calibration == (None, known["right"])
    assert f"{trajectory.verdict}" == trajectory.verdict.status and not trajectory.verdict.reasons
