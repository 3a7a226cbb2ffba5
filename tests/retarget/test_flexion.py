"""Fingers bend as the human's: the measure, its gate, and every robot in poses and held grips."""

import mujoco
import numpy as np
import pytest

from acehand_core.hand import articulation
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.types import SIDES
from helpers.retarget_samples import motion_of, moving_hands
from retarget.replay.metrics import bending_fingers, flexion_reach
from retarget.replay.simulate import self_penetration
from retarget.retargeting import retarget_motion
from retarget.robots.kinematics import KinematicTree
from retarget.robots.robot import OURS, load_robot, robot_names

NAMES = [name for name in (*robot_names(), "inspire:other") if name != "panda_gripper"]
FREEDOM = {f.name: i for i, f in enumerate(articulation.freedoms())}
CLOSE_DEG = 15.0
#: Shadow takes ten times as long as the others.
SLOW = [pytest.mark.slow]
#: Degrees at MCP, PIP and DIP: none of these is a pose that calibrations are fitted to.
STRAIGHT, FIST, GRIP, ALONE = (3, 3, 3), (85, 95, 55), (40, 55, 30), (75, 80, 50)
THUMB = {"aside": {"cmc_spread": -25, "cmc_flex": -10, "mcp_flex": 5, "ip_flex": 5},
         "over": {"cmc_spread": 0, "cmc_flex": 16, "cmc_twist": 7, "mcp_flex": 55, "ip_flex": 40},
         "opposed": {}}  # fmt: skip


def pose(thumb="aside", **bends):
    angles = articulation.comfortable().copy()
    for finger in ("index", "middle", "ring", "pinky"):
        triple = bends.get(finger, bends.get("all", STRAIGHT))
        for joint, bend in zip(("mcp", "pip", "dip"), triple, strict=True):
            angles[FREEDOM[f"{finger}_{joint}_flex"]] = np.radians(bend)
    for name, bend in THUMB[thumb].items():
        angles[FREEDOM[f"thumb_{name}"]] = np.radians(bend)
    return angles


POSES = {"flat": pose(), "fist": pose("over", all=FIST), "grip": pose("opposed", all=GRIP)} | {
    f"{finger} alone": pose(**{finger: ALONE}) for finger in ("index", "middle", "ring", "pinky")
}


def held(angles, sides=SIDES, count=15, betas=None):
    """Both hands hold one pose for half a second, 0.5 m before a camera; they tremble a little."""
    rng = np.random.default_rng(0)
    joints = np.full((count, 2, 21, 3), np.nan)
    for side in sides:
        turn = np.broadcast_to(np.eye(3), (count, 3, 3))
        trembling = angles + rng.normal(0, 0.01, (count, 22))
        rotations = articulation.angles_to_pose(trembling, side)
        shape = np.zeros(10) if betas is None else betas
        slot = SIDES.index(side)
        joints[:, slot] = CapsuleHand().joints(side, turn, rotations, shape)
        joints[:, slot] += [0.2 * slot - 0.1, 0.0, 0.5]
    return motion_of(joints)


def robot_bend(hand, joints, finger):
    """The same angle from MuJoCo's kinematics: knuckle to tip in the plane of base x and z."""
    model = mujoco.MjModel.from_xml_path(str(hand.mjcf_path))
    data = mujoco.MjData(model)
    for name, angle in zip(hand.joint_names, joints, strict=True):
        data.qpos[model.joint(hand.full_name(name)).qposadr[0]] = angle
    mujoco.mj_kinematics(model, data)
    frame_of = dict(zip(hand.target_keypoints, hand.target_frames, strict=True))
    start = 1 + 4 * ("thumb", "index", "middle", "ring", "pinky").index(finger)
    knuckle = data.body(hand.full_name(frame_of[start])).xpos
    tip = data.site(hand.full_name(frame_of[start + 3])).xpos
    line = tip - knuckle
    return np.degrees(np.arctan2(line[0], line[2])) % 360


def test_a_grippers_jaws_are_not_judged():
    motion = motion_of(moving_hands(12))
    trajectory = retarget_motion(motion, load_robot("panda_gripper", models=OURS))
    assert trajectory.flexion == (None, None)


@pytest.mark.parametrize("name", NAMES)
def test_the_reach_of_a_finger(name):
    hand = load_robot(name, models=OURS).hand("right")
    reach = flexion_reach(hand, KinematicTree.of(hand))
    fingers = bending_fingers(hand)
    assert set(fingers) == {*hand.fingers} - {"thumb"}
    for k, finger in enumerate(fingers):
        closed = robot_bend(hand, hand.expand(hand.command_upper), finger)
        assert reach[1, k] >= closed - 1e-6
        assert reach[0, k] <= 5


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("name", "label"),
    [
        pytest.param(name, label, marks=SLOW * (name == "shadow" and "alone" in label))
        for name in NAMES for label in POSES
    ],
)  # fmt: skip
def test_a_held_pose_is_taken(name, label):
    """Flat, fist, grip and single fingers, half a second each, on each robot's right hand.

    The human's bend comes from the hand model's joints, the robot's from MuJoCo.
    """
    robot = load_robot(name, models=OURS)
    motion = held(POSES[label], sides=("right",))
    trajectory = retarget_motion(motion, robot)
    hand, report = robot.hand("right"), trajectory.flexion[1]
    reach = dict(zip(report.fingers, flexion_reach(hand, KinematicTree.of(hand)).T, strict=True))
    human = CapsuleHand().joints(
        "right", np.eye(3), articulation.angles_to_pose(POSES[label], "right"), np.zeros(10)
    )
    off = []
    for k, finger in enumerate(report.fingers):
        # In the rest pose the model's fingers point along -x, its palm down -y.
        start = 1 + 4 * ("thumb", "index", "middle", "ring", "pinky").index(finger)
        line = human[start + 3] - human[start]
        bend = np.degrees(np.arctan2(-line[1], -line[0])) % 360
        bend = bend - 360 if bend > 270 else bend
        assert report.human_deg[k] == pytest.approx(bend, abs=12)  # its palm, not its rest axes
        shown = robot_bend(hand, trajectory.joints[7, 1], finger)
        shown = shown - 360 if shown > 270 else shown
        assert report.robot_deg[k] == pytest.approx(shown, abs=3)
        off.append(shown - np.clip(bend, *reach[finger]))
    assert np.abs(off).mean() < CLOSE_DEG, np.round(off)
    assert np.abs(off).max() < 2 * CLOSE_DEG, np.round(off)
    assert report.error_deg.mean() < CLOSE_DEG
    assert self_penetration(hand, trajectory.joints[:, 1]).max() < 1e-3


@pytest.mark.few(1)
@pytest.mark.parametrize("name", NAMES)
def test_the_thumb_wraps_over_a_fist(name):
    """Its tip lies before index and middle finger, outside of them, as the human's does."""
    robot = load_robot(name, models=OURS)
    trajectory = retarget_motion(held(POSES["fist"], sides=("right",)), robot)
    hand = robot.hand("right")
    frames = dict(zip(hand.target_keypoints, hand.target_frames, strict=True))
    names = [frames[4], frames[6], frames[8], frames[14]]
    joints = trajectory.joints[7:8, 1]
    thumb, index_pip, index_tip, ring = KinematicTree.of(hand).points(joints, names)[0]
    assert thumb[0] > index_tip[0] + 0.01
    assert ring[1] < thumb[1] < index_pip[1] + 0.015
    assert self_penetration(hand, joints).max() < 1e-3


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("side", "size"), [("left", -1.5), ("right", 1.5), ("left", 1.5), ("right", -1.5)]
)
def test_a_grip_of_another_hand(side, size):
    """A hand 8 % larger or smaller than the one that robots are calibrated to."""
    betas = np.zeros(10)
    betas[0] = size
    motion = held(POSES["grip"], sides=(side,), betas=betas)
    trajectory = retarget_motion(motion, load_robot("inspire"))
    report = trajectory.flexion[SIDES.index(side)]
    assert np.abs(report.robot_deg - report.human_deg).mean() < CLOSE_DEG


@pytest.mark.slow
@pytest.mark.parametrize("name", ["inspire", "allegro"])
def test_a_real_grip(name, shared):
    """Half a second in which two hands hold something; nothing of it may go into a turned palm."""
    data = np.load(shared / "data" / "hot3d_bimanual_joints.npz")
    motion = motion_of(data["joints_world"], timestamps_ns=data["timestamps_ns"])
    trajectory = retarget_motion(motion, load_robot(name, models=OURS))
    for report in trajectory.flexion:
        assert report.human_deg.mean() > 45
        assert np.abs(report.robot_deg - report.human_deg).mean() < CLOSE_DEG
