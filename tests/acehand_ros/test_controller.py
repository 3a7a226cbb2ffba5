"""Trajectories that a controller accepts and a hand can execute, whatever the stamps were."""

from dataclasses import replace

import numpy as np
import pytest

from acehand_core.geometry import frames, rotations
from acehand_core.pipeline.bag_write import courses, load_demonstrations
from acehand_core.recordings.bags.messages import frame_messages, trajectory_messages
from acehand_core.recordings.hands_file import read_motion_file
from acehand_core.recordings.selection import hands_at, poses_at, steady, ticks
from acehand_core.types import SIDES
from acehand_ros.playback import at_rate, rest_of
from helpers.controller_rules import Trajectory, check_controller_takes
from helpers.retarget_samples import moving_hands
from retarget.robots.hand_spec import CommandLimits, speed_violations
from retarget.robots.robot import load_robot
from retarget.solve.qp import course, nearest_path

HAND = load_robot("inspire").hand("right")


def ragged(seed, count, fps=30.0, jitter=0.0, drop=0.0):
    rng = np.random.default_rng(seed)
    at = (np.arange(count) + rng.uniform(-jitter, jitter, count)) / fps
    kept = np.flatnonzero(rng.random(count) >= drop)
    return np.sort(np.round(at[kept] * 1e9).astype(np.int64)), kept


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("hands") / "hands.npz"
    np.savez(path, joints=moving_hands(90), fps=30, frame="camera")
    return path


def test_the_nearest_path_is_the_nearest():
    """Against a general solver (scipy's SLSQP) on a short jump; a feasible path stays."""
    from scipy.optimize import minimize

    limits = CommandLimits.of(HAND, 30.0)
    jump = np.tile(HAND.command_lower, (9, 1))
    jump[4:] = HAND.command_upper
    found = nearest_path(limits, jump, at_rest=True)
    for joint in range(jump.shape[1]):
        step, bend = limits.step[joint], limits.bend[joint]

        def room(x, step=step, bend=bend):
            d, e = np.diff(x), np.diff(np.concatenate([x[:1], x, x[-1:]]), 2)
            return np.concatenate([step - d, step + d, bend - e, bend + e])

        best = minimize(
            lambda x, joint=joint: np.sum((x - jump[:, joint]) ** 2), np.zeros(9) + 0.1,
            bounds=[(limits.lower[joint], limits.upper[joint])] * 9, method="SLSQP",
            constraints={"type": "ineq", "fun": room}, options={"ftol": 1e-12, "maxiter": 500},
        )  # fmt: skip
        np.testing.assert_allclose(found[:, joint], best.x, atol=2e-4)
    still = np.tile(HAND.rest, (5, 1))
    assert nearest_path(limits, still) is still


def test_a_feasible_motion_is_passed_half_a_frame_late():
    """A sine within the limits comes back: halfway between two points lies the command."""
    t = np.arange(120) / 30
    middle, swing = (HAND.command_upper + HAND.command_lower) / 2, HAND.command_upper / 4
    commands = middle - swing * np.cos(2 * np.pi * 0.4 * t)[:, None]
    found = course(HAND, commands, 30.0, 1.0)
    assert len(found.seconds) == 121 and found.seconds[0] == 1.0
    between = (found.positions[1:] + found.positions[:-1]) / 2
    np.testing.assert_allclose(between[2:-2], commands[2:-2], atol=2e-3)
    speed = np.gradient(commands, 1 / 30, axis=0)
    np.testing.assert_allclose(found.velocities[3:-3], speed[3:-2], atol=0.06)


@pytest.mark.few(2)
@pytest.mark.parametrize(("jitter", "drop"), [(0.0, 0.0), (0.0, 0.2), (0.4, 0.0), (0.3, 0.2)])
@pytest.mark.parametrize("rate", [0.5, 1.0, 2.0])
def test_ragged_recordings_become_steady_trajectories(table, tmp_path, jitter, drop, rate):
    motion = read_motion_file(table, "both")
    stamps, kept = ragged(3, len(motion), jitter=jitter, drop=drop)
    lost = motion.at(kept, stamps, motion.fps)
    from acehand_core.recordings.hands_file import write_hand_motion

    write_hand_motion(lost, tmp_path / "lost.parquet")
    demo, robot = next(load_demonstrations(tmp_path / "lost.parquet"))
    assert np.array_equal(demo.stamps_ns, ticks(int(stamps[0]), len(demo), 30.0))
    played = at_rate(demo, robot, rate)
    for slot, side in enumerate(SIDES):
        hand = robot.hand(side)
        assert speed_violations(hand, played.commands[:, slot], demo.fps * rate) == 0
    messages = list(trajectory_messages(rest_of(demo, robot, 0, rate)))
    assert len(messages) == 2
    for message in messages:
        hand = robot.hand("left" if "left" in message.topic else "right")
        check_controller_takes(message.fields, hand)


def test_hands_between_frames_are_where_they_were(table):
    motion = read_motion_file(table, "both")
    t = np.arange(90) / 30
    turn = rotations.exp(np.stack([0.3 * t, 0.8 * t, -0.2 * t], axis=1))
    place = np.stack([0.1 * t, 0.02 + 0.05 * t, 0.5 + 0.03 * t], axis=1)
    whole = replace(
        motion,
        global_orient=np.stack([turn, turn], 1).astype(motion.global_orient.dtype),
        translation=np.stack([place, place], 1).astype(motion.translation.dtype),
    )
    kept = np.flatnonzero(np.arange(90) % 3 != 1)
    lost = whole.at(kept, whole.timestamps_ns[kept], 30.0)
    found = hands_at(lost, whole.timestamps_ns, 30.0)
    np.testing.assert_allclose(found.global_orient, whole.global_orient, atol=1e-5)
    np.testing.assert_allclose(found.translation, whole.translation, atol=1e-5)
    same = hands_at(whole, whole.timestamps_ns, 30.0)
    assert np.array_equal(same.joints_camera, whole.joints_camera) and steady(whole) is whole
    poses = frames.rigid(turn, place)
    found = poses_at(poses[kept], whole.timestamps_ns[kept], whole.timestamps_ns)
    np.testing.assert_allclose(found, poses, atol=1e-6)


def test_across_a_pause_a_hand_is_not_thought_to_move(table):
    motion = read_motion_file(table, "both")
    two = motion.at(np.array([0, 60]), np.array([0, 14 * 10**8]), 30.0)
    found = hands_at(two, np.array([0, 6 * 10**8, 8 * 10**8, 14 * 10**8]), 30.0)
    expected = motion.joints_camera[[0, 0, 60, 60]]
    np.testing.assert_array_equal(found.joints_camera, expected)


def test_in_a_hole_of_more_than_a_second_and_a_half_there_is_no_hand(table):
    motion = read_motion_file(table, "both")
    two = motion.at(np.array([0, 60]), np.array([0, 2 * 10**9]), 30.0)
    found = hands_at(two, np.array([0, 3 * 10**7, 10**8, 19 * 10**8, 2 * 10**9]), 30.0)
    assert found.known[:, 1].tolist() == [True, True, False, False, True]
    assert np.isnan(found.joints_camera[2:4]).all() and (found.presence[2:4] == 0).all()


def test_a_hand_that_is_not_seen_is_not_commanded(tmp_path):
    joints = moving_hands(60)
    joints[:, 0] = np.nan
    joints[:10, 1], joints[50:, 1] = np.nan, np.nan
    np.savez(tmp_path / "hands.npz", joints=joints, fps=30, frame="camera")
    demo, robot = next(load_demonstrations(tmp_path / "hands.npz"))
    (message,) = trajectory_messages(demo)
    assert message.topic == "/right_hand/joint_trajectory"
    topics = [
        {m.topic for m in frame_messages(demo, i) if m.topic.endswith("joint_states")}
        for i in range(60)
    ]
    assert topics == [set()] * 10 + [{"/right_hand/joint_states"}] * 40 + [set()] * 10
    points = Trajectory.of(message.fields)
    assert len(points.at_ns) == 41
    check_controller_takes(message.fields, robot.hand("right"))


def test_both_hands_begin_their_clip_together(table):
    """Though one of them appears a second later, and has less far to go."""
    demo, robot = next(load_demonstrations(table))
    known = demo.known.copy()
    known[:30, 1] = False
    found = courses(robot, demo.commands, known, 30.0)
    apart = found["right"].seconds[0] - found["left"].seconds[0]
    assert apart == pytest.approx(1.0)
    here = {side: demo.courses[side].positions[0] for side in SIDES}
    at_once = courses(robot, demo.commands, demo.known, 30.0, start=here)
    assert at_once["left"].seconds[0] == pytest.approx(1 / 30)


@pytest.mark.slow
def test_the_count_of_the_report_is_of_the_stamps(table):
    """Frames stated to be 1 / 30 s apart that were taken twice as fast are too fast."""
    from retarget.retargeting import retarget_motion

    motion = read_motion_file(table, "both")
    robot = load_robot("inspire")
    assert retarget_motion(motion, robot).speed_violations == 0
    hurried = replace(motion, timestamps_ns=motion.timestamps_ns // 2)
    trajectory = retarget_motion(hurried, robot)
    seconds = np.diff(hurried.timestamps_ns)[:, None, None] / 1e9
    limits = np.stack([robot.hand(side).command_velocity for side in SIDES])
    count = int(
        (np.abs(np.diff(trajectory.commands, axis=0)) / seconds > limits * (1 + 1e-6)).sum()
    )
    assert trajectory.speed_violations == count > 0
    assert trajectory.verdict.status == "fail"
