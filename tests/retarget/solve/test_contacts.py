"""Contact-aware retargeting: fingertips on the object, limits kept, other motion untouched."""

from __future__ import annotations

from dataclasses import replace

import mujoco
import numpy as np
import pytest

from acehand_core.ace.synthetic.episode import SynthOptions, make_episode
from acehand_core.ace.synthetic.rendering import objects_of, truth_of
from acehand_core.errors import InputError
from acehand_core.geometry import rotations
from acehand_core.motion import HandMotion, ObjectTrack, RobotTrajectory
from acehand_core.types import SIDES
from retarget import load_robot, retarget
from retarget.replay.grasps import Grasp, GraspScene, find_grasps, in_frame, upright
from retarget.solve import contacts

ROBOT = load_robot("inspire")


@pytest.fixture(scope="module")
def clip() -> tuple[HandMotion, ObjectTrack]:
    """A rendered person's true hands, of which each lifts an object."""
    posed, motion = truth_of(make_episode(1, 2, SynthOptions(frames=161, fast=True)))
    track = objects_of(posed)
    assert track is not None
    return motion, track


@pytest.fixture(scope="module")
def plain(clip: tuple[HandMotion, ObjectTrack]) -> RobotTrajectory:
    return retarget(clip[0], ROBOT, objects=clip[1], contacts=False)


@pytest.fixture(scope="module")
def aware(clip: tuple[HandMotion, ObjectTrack]) -> RobotTrajectory:
    return retarget(clip[0], ROBOT, objects=clip[1])


@pytest.fixture(scope="module")
def grasps(clip: tuple[HandMotion, ObjectTrack]) -> tuple[Grasp, ...]:
    motion, track = clip
    joints = in_frame(motion, "world", track)
    return find_grasps(track, motion.timestamps_ns, motion.fps, joints)


def test_fingers_that_close_on_objects_hold_them(
    plain: RobotTrajectory, aware: RobotTrajectory
) -> None:
    # A box and a bottle. Plain fingertips pass in front of the box, and the bottle slips.
    assert [report.held for report in plain.grasps] == [False, False]
    assert [report.fault for report in aware.grasps] == [None, None]
    assert any("grasps fail" in reason for reason in plain.verdict.reasons)
    assert not any("grasps fail" in reason for reason in aware.verdict.reasons)


def test_limits_hold_and_the_base_moves_little(
    plain: RobotTrajectory, aware: RobotTrajectory
) -> None:
    assert aware.limit_violations == aware.speed_violations == 0
    step = np.linalg.norm(aware.T_frame_base[..., :3, 3] - plain.T_frame_base[..., :3, 3], axis=-1)
    turn = rotations.angle_between(aware.T_frame_base[..., :3, :3], plain.T_frame_base[..., :3, :3])
    # The corners of the box of shifts and turns, and what smoothing adds.
    assert 0.001 < step.max() < np.sqrt(3) * contacts.SHIFT_M * 1.05
    assert turn.max() < np.sqrt(3) * contacts.TURN_RAD * 1.05


def test_motion_far_from_grasps_is_the_same(
    aware: RobotTrajectory, plain: RobotTrajectory, grasps: tuple[Grasp, ...]
) -> None:
    near = np.zeros(len(plain), bool)
    for grasp in grasps:
        near[max(0, grasp.first - 30) : grasp.last + 30] = True
    assert np.abs(aware.commands - plain.commands)[~near].max(initial=0.0) < 0.02


def test_motion_without_grasps_is_the_same_to_the_bit(
    clip: tuple[HandMotion, ObjectTrack],
) -> None:
    motion, track = clip
    resting = replace(track, objects=tuple(
        replace(item, T_frame_object=np.tile(item.T_frame_object[0], (len(motion), 1, 1)))
        for item in track.objects
    ))  # fmt: skip
    one, other = retarget(motion, ROBOT), retarget(motion, ROBOT, objects=resting)
    for name in ("commands", "joints", "registers", "T_frame_base"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    assert other.grasps == ()


def test_fitted_fingertips_touch_in_mujocos_own_contacts(
    clip: tuple[HandMotion, ObjectTrack], plain: RobotTrajectory, grasps: tuple[Grasp, ...]
) -> None:
    motion, track = clip
    joints = in_frame(motion, "world", track)
    for grasp in grasps:
        hand, bases = ROBOT.hand(SIDES[grasp.slot]), plain.T_frame_base[:, grasp.slot]
        scene, up = GraspScene(hand, grasp.object), upright(track.up)
        fitted = contacts.fit_contacts(
            scene, grasp, plain.commands[:, grasp.slot], bases, joints, motion.fps, up
        )
        assert fitted is not None and fitted.closing.any()

        scene.model.geom_margin[:] = 0.002
        mujoco.mj_forward(scene.model, scene.data)
        pairs = scene.data.contact.geom
        touching = np.isin(pairs, scene.object_geoms).any(1)
        touched = set(pairs[touching].ravel().tolist())
        tips = [bool(touched & set(scene.fingertip(finger))) for finger in range(5)]
        assert tips[0] and any(tips[1:])  # the thumb, and a finger that opposes it
        assert scene.data.contact.dist[touching].min() > -0.002


def test_a_grip_from_the_first_frame_on_is_never_opened(grasps: tuple[Grasp, ...]) -> None:
    hand, count = ROBOT.hand("right"), len(hand_names := ROBOT.hand("right").command_names)
    touch = hand.commands_at(np.full(count, 0.5))
    fitted = contacts.Contacts(touch, np.eye(4), np.ones(count))
    static = replace(grasps[0], first=0, last=60)
    planned, _ = contacts.plan_grasp(hand, static, fitted, np.tile(touch, (100, 1)), 30.0)
    assert (planned[:61] >= touch).all(), hand_names
    coming = replace(grasps[0], first=30, last=60)
    planned, _ = contacts.plan_grasp(hand, coming, fitted, np.tile(touch, (100, 1)), 30.0)
    assert (planned[20:24] < touch).all() and (planned[32:60] > touch).all()


def test_objects_in_another_frame_are_refused(clip: tuple[HandMotion, ObjectTrack]) -> None:
    motion, track = clip
    with pytest.raises(InputError, match="camera_poses"):
        retarget(replace(motion, T_world_camera=None), ROBOT, objects=track)
