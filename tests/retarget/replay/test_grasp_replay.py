"""Grasp replay against mechanics: what a gripper holds follows from friction, force and weight."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from acehand_core.geometry import frames, rotations
from acehand_core.motion import ObjectPart, ObjectTrack, TrackedObject
from retarget import load_robot
from retarget.replay.grasps import Grasp, GraspScene, find_grasps, replay_grasp, upright

FPS, FRAMES = 30, 75
UP = np.array([0.0, 0.0, 1.0])
CLOSED, LIFTED = 20, 45
DOWN = rotations.exp(np.array([np.pi, 0.0, 0.0]))
GRIPPER = load_robot("panda_gripper").hand("right")
TIMES = np.round(np.arange(FRAMES) / FPS * 1e9).astype(np.int64)


def lifted(height: float = 0.1) -> np.ndarray:
    """Heights over the frames: at rest, then up."""
    return np.interp(np.arange(FRAMES), [CLOSED + 5, LIFTED], [0.0, height])


def box(mass: float = 0.1, friction: float = 1.0) -> TrackedObject:
    poses = np.tile(np.eye(4), (FRAMES, 1, 1))
    poses[:, :3, 3] = np.stack([0 * lifted(), 0 * lifted(), 0.03 + lifted()], axis=1)
    part = ObjectPart("box", (0.02, 0.015, 0.03))
    return TrackedObject("box", (part,), mass, friction, TIMES, poses)


def bases(item: TrackedObject, aside: float = 0.0) -> np.ndarray:
    """Gripper that points down on the box, its fingertips around the middle."""
    tip = 0.1034  # base to fingertips
    place = item.T_frame_object[:, :3, 3] + [aside, 0.0, tip + 0.005]
    return frames.rigid(DOWN, place)


def commands(closed: float = 0.0, opens_at: int = FRAMES) -> np.ndarray:
    wide = GRIPPER.command_upper[0]
    at = [0, 8, CLOSED, opens_at - 1, opens_at + 5]
    return np.interp(np.arange(FRAMES), at, [wide, wide, closed, closed, wide])[:, None]


def replayed(item: TrackedObject, drive: np.ndarray, aside: float = 0.0, turned: bool = False):
    grasp = Grasp(item, 1, CLOSED + 5, FRAMES - 1, item.T_frame_object)
    up, T_frame_base = np.eye(4), bases(item, aside)
    if turned:  # the same in a frame whose -y is up
        T = frames.rigid(rotations.exp(np.array([np.pi / 2, 0.0, 0.0])), np.array([0.4, 0.2, 0.9]))
        grasp = replace(grasp, T_frame_object=T @ grasp.T_frame_object)
        T_frame_base, up = T @ T_frame_base, upright(T[:3, 2])
    scene = GraspScene(GRIPPER, item)
    return replay_grasp(scene, grasp, drive, T_frame_base, FPS, up)


def test_a_gripper_lifts_a_box() -> None:
    report = replayed(box(), commands())
    assert report.fault is None and report.held and report.lifted
    assert report.position_error_m < 0.005 and report.slip_m < 0.002
    # Friction carries the weight: the two fingers press with at least m g / friction.
    assert report.force_n > 0.1 * 9.81 / 1.0
    assert report.penetration_m < 0.002


@pytest.mark.parametrize(
    ("item", "drive", "aside", "fault"),
    [
        (box(friction=0.002), commands(), 0.0, ("not lifted", "dropped")),
        (box(mass=40.0), commands(), 0.0, ("not lifted", "dropped")),
        (box(), commands(closed=GRIPPER.command_upper[0]), 0.0, ("not touched", "not lifted")),
        (box(), commands(opens_at=50), 0.0, ("dropped",)),
        (box(), commands(), 0.1, ("not touched",)),
    ],
    ids=["slippery", "heavy", "open", "opens", "aside"],
)
def test_what_a_gripper_cannot_hold(
    item: TrackedObject, drive: np.ndarray, aside: float, fault: tuple[str, ...]
) -> None:
    report = replayed(item, drive, aside)
    assert report.fault in fault and not report.held


def test_friction_decides_at_the_weight_that_it_carries() -> None:
    """Coulomb: two fingers of force F carry 2 F friction; F is the actuator's."""
    force = replayed(box(), commands()).force_n  # of both fingers
    carried = force * 0.3 / 9.81
    assert replayed(box(0.7 * carried, 0.3), commands()).held
    assert not replayed(box(1.5 * carried, 0.3), commands()).held


def test_the_frame_does_not_matter() -> None:
    report, turned = (replayed(box(), commands(), turned=flag) for flag in (False, True))
    assert turned.fault is None
    assert turned.position_error_m == pytest.approx(report.position_error_m, abs=1e-3)


def test_an_object_has_its_mass() -> None:
    item = TrackedObject(
        "two", (ObjectPart("sphere", (0.02,)), ObjectPart("sphere", (0.02,), (0.1, 0.0, 0.0))),
        0.4, 1.0, TIMES[:1], np.eye(4)[None],
    )  # fmt: skip
    model = GraspScene(GRIPPER, item).model
    body = model.body("object").id
    assert model.body_mass[body] == pytest.approx(0.4)
    # Two solid balls: 2/5 m r^2 along the line between them.
    assert model.body_inertia[body].min() == pytest.approx(0.4 * 0.4 * 0.02**2, rel=1e-6)


def human(slot: int, item: TrackedObject, near: float = 0.02) -> np.ndarray:
    """A hand whose joints keep their place in the object's frame; the other is far."""
    joints = np.full((FRAMES, 2, 21, 3), 5.0)
    local = np.zeros((21, 3))
    local[0] = [0.0, -0.15, 0.1]
    local[1:] = [near + 0.03, 0.0, 0.0]
    joints[:, slot] = frames.apply(item.T_frame_object, np.tile(local, (FRAMES, 1, 1)))
    return joints


@pytest.mark.parametrize("slot", [0, 1])
def test_a_grasp_is_found(slot: int) -> None:
    item = box()
    (grasp,) = find_grasps(ObjectTrack("world", UP, (item,)), TIMES, FPS, human(slot, item))
    assert grasp.slot == slot
    assert abs(grasp.first - (CLOSED + 5)) <= 3 and abs(grasp.last - LIFTED) <= 3


def test_pauses_in_the_air_belong_to_a_grasp() -> None:
    item = box()
    height = np.interp(np.arange(FRAMES), [10, 20, 40, 50], [0.0, 0.1, 0.1, 0.0])
    item.T_frame_object[:, 2, 3] = 0.03 + height
    (grasp,) = find_grasps(ObjectTrack("world", UP, (item,)), TIMES, FPS, human(1, item))
    assert abs(grasp.first - 10) <= 3 and abs(grasp.last - 50) <= 3


def test_two_grasps_with_the_object_put_down_between() -> None:
    item = box()
    height = np.interp(np.arange(FRAMES), [5, 15, 25, 45, 55, 65], [0.0, 0.1, 0.0, 0.0, 0.1, 0.0])
    item.T_frame_object[:, 2, 3] = 0.03 + height
    grasps = find_grasps(ObjectTrack("world", UP, (item,)), TIMES, FPS, human(1, item))
    assert len(grasps) == 2 and grasps[0].last < 35 < grasps[1].first


@pytest.mark.parametrize("case", ["pushed", "both hands", "no hand", "unknown poses"])
def test_no_grasp(case: str) -> None:
    item = box()
    joints = human(1, item)
    if case == "pushed":
        item.T_frame_object[:, :3, 3] = item.T_frame_object[:, [2, 1, 0], 3]
        joints = human(1, item)
    elif case == "both hands":
        joints[:, 0] = joints[:, 1]
    elif case == "no hand":
        joints[:] = np.nan
    else:
        item.T_frame_object[CLOSED + 8 : LIFTED] = np.nan
    assert find_grasps(ObjectTrack("world", UP, (item,)), TIMES, FPS, joints) == ()


def test_upright_cylinders_stay_where_they_stand() -> None:
    """MuJoCo 4.0 throws some up after a few steps on an exactly level plane."""
    part = ObjectPart("cylinder", (0.03426271473243498, 0.0632), (0.0, 0.0, 0.0632))
    item = TrackedObject("can", (part,), 0.15, 1.0, TIMES[:1], np.eye(4)[None])
    scene, far = GraspScene(GRIPPER, item), frames.rigid(DOWN, np.array([0.5, 0.5, 0.8]))
    for angle in np.linspace(-3, 3, 41):
        turn = rotations.exp(np.array([0.0, 0.0, angle]))
        scene.start(GRIPPER.rest, far, frames.rigid(turn, np.array([0.14766, 0.14655, 0.0])))
        scene.advance(np.tile(GRIPPER.rest, (2, 1)), np.stack([far, far]), 1 / FPS)
        assert scene.state().T_object[2, 2] > 1 - 1e-9, angle
