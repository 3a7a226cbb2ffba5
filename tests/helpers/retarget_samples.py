"""Hand motions and robot-made targets for the retargeting tests."""

from __future__ import annotations

import dataclasses

import numpy as np

from acehand_core.geometry import frames, rotations
from acehand_core.hand import articulation
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.motion import Calibration, HandMotion
from acehand_core.provenance import Provenance
from acehand_core.types import SIDES
from retarget.robots.hand_spec import CommandLimits, limit_violations, speed_violations
from retarget.solve.costs import Weights
from retarget.solve.objective import PoseObjective
from retarget.solve.trajectory import solve_trajectory
from retarget.targets import HandTargets

FPS = 30.0
IDENTITY = Calibration(1.0, np.eye(3), np.zeros(3), 0.0)


def _waves(hand, count, seed, periods):
    """Random shares of the range from 0.05 to 0.95; periods are in frames."""
    rng = np.random.default_rng(seed)
    t = np.arange(count)[:, None]
    waves = np.zeros((count, len(hand.rest)))
    for _ in range(3):
        period, phase = rng.uniform(*periods, waves.shape[1]), rng.uniform(0, 6, waves.shape[1])
        waves += rng.uniform(0.3, 1, waves.shape[1]) * np.sin(2 * np.pi * t / period + phase)
    return 0.5 + 0.45 * waves / np.abs(waves).max(0)


def _within(hand, share, speed, acceleration=None):
    """Commands of these shares, shrunk about their mean to shares of the limits of the rates."""
    commands = hand.command_lower + share * (hand.command_upper - hand.command_lower)
    excess = np.abs(np.diff(commands, axis=0)).max(0, initial=0) * FPS / speed
    if acceleration is not None:
        bend = np.abs(np.diff(commands, 2, axis=0)).max(0) * FPS**2
        excess = np.maximum(excess, bend / acceleration)
    middle = commands.mean(0)
    return middle + (commands - middle) / np.maximum(excess, 1)


def smooth_commands(hand, count, seed=0, speed=0.5):
    """Random commands inside the limits; the fastest joint moves at a share of its limit."""
    return _within(hand, _waves(hand, count, seed, (40, 120)), speed * hand.command_velocity)


def wide_commands(hand, seed=0):
    """Three seconds from 5 to 95 % of every range, or as far as 90 % of the rates' limits allow."""
    share = _waves(hand, 90, seed, (60, 120))
    share = 0.05 + 0.9 * (share - share.min(0)) / np.ptp(share, axis=0)
    return _within(hand, share, 0.9 * hand.command_velocity, 0.9 * hand.command_acceleration)


def assert_within_limits(hand, commands, fps=FPS):
    """Angles, speeds and accelerations are within the hand's limits and couplings are kept."""
    joints = hand.expand(commands)
    assert np.isfinite(commands).all()
    assert limit_violations(hand, joints) == 0 and hand.coupling_residual(joints) < 1e-6
    assert speed_violations(hand, commands, fps) == 0
    bend = np.abs(np.diff(commands, 2, axis=0)) * fps**2
    assert (bend <= hand.command_acceleration * (1 + 1e-6)).all()


def solved(hand, tree, targets, weights=None, start=None, limits=None, calibration=IDENTITY):
    """The trajectory for these targets, from the idle hand if no start is given."""
    objective = PoseObjective(hand, tree, targets, calibration, weights or Weights())
    start = np.tile(hand.rest, (len(objective), 1)) if start is None else start
    return solve_trajectory(objective, limits or CommandLimits.of(hand, FPS), start)


def open_commands(hand, count, seed=0, speed=0.5):
    """Like ``smooth_commands``, but the thumb stays at the palm: nothing touches."""
    commands = smooth_commands(hand, count, seed, speed)
    for name in ("thumb_rotation", "thumb_bend"):
        thumb = hand.command_names.index(name)
        low = hand.command_lower[thumb]
        commands[:, thumb] = low + 0.4 * (commands[:, thumb] - low)
    return commands


def robot_targets(hand, tree, commands, calibration=IDENTITY):
    """Return the targets that these commands meet exactly; joints a robot lacks are NaN."""
    points = tree.points(hand.expand(commands), hand.target_frames)
    joints = np.full((len(commands), 21, 3), np.nan)
    keypoints = np.array(hand.target_keypoints)
    points = points - calibration.finger_offsets[(keypoints - 1) // 4]
    joints[:, keypoints] = (
        (points - calibration.translation) @ calibration.rotation / calibration.scale
    )
    joints[:, 0] = 0.0
    for finger, length in enumerate(calibration.lengths):
        root = joints[:, [1 + 4 * finger]] if finger else 0.0
        chain = slice(1 + 4 * finger, 5 + 4 * finger)
        joints[:, chain] = root + (joints[:, chain] - root) / length
    return targets_of(hand.side, joints)


def targets_of(side, joints, weight=None):
    count = len(joints)
    weight = np.ones(count) if weight is None else weight
    return HandTargets(side, joints, weight, weight > 0, None)


def noisy_targets(hand, tree, count, seed=0):
    """Targets that no hand can follow: a new random place for every joint in every frame."""
    rng = np.random.default_rng(seed)
    targets = robot_targets(hand, tree, np.tile(hand.rest, (count, 1)))
    return dataclasses.replace(
        targets, joints_hand=targets.joints_hand + rng.normal(0, 0.08, targets.joints_hand.shape)
    )


def human_joints(side, count=1, seed=0):
    """Return the default hand in random poses, (count, 21, 3), wrist where the model puts it."""
    rng = np.random.default_rng(seed)
    low, high = articulation.limits()
    angles = rng.uniform(0.3 * low, 0.3 * high, (count, 22))
    turn = np.broadcast_to(np.eye(3), (count, 3, 3))
    pose = articulation.angles_to_pose(angles, side)
    return CapsuleHand().joints(side, turn, pose, np.zeros(10))


def moving_hands(count=40, sides=SIDES):
    """Return (count, 2, 21, 3): default hands that close and open before a camera, and travel."""
    low, high = articulation.limits()
    out = np.full((count, 2, 21, 3), np.nan)
    phase = np.sin(2 * np.pi * np.arange(count) / 60)[:, None]
    for slot, side in enumerate(SIDES):
        if side not in sides:
            continue
        angles = np.where(high > 1, 0.25 * high * (1 + phase), 0.1 * phase * (high - low))
        turn = rotations.exp(np.concatenate([0.4 * phase, -0.2 * phase, 0.6 * phase], axis=1))
        joints = CapsuleHand().joints(
            side, turn, articulation.angles_to_pose(angles, side), np.zeros(10)
        )
        place = np.concatenate([0.05 * phase + 0.2 * slot - 0.1, 0.03 * phase, 0.5 + 0 * phase], 1)
        out[:, slot] = joints + place[:, None]
    return out


def motion_of(joints, fps=FPS, **changes):
    """Return a HandMotion of joints (T, 2, 21, 3); a slot that is NaN throughout is absent."""
    count = len(joints)
    known = np.isfinite(joints).any((2, 3))
    unknown = {
        name: np.full((count, 2, *shape), np.nan)
        for name, shape in {
            "global_orient": (3, 3), "hand_pose": (15, 3, 3), "translation": (3,),
            "joints_image": (21, 2),
        }.items()
    }  # fmt: skip
    motion = HandMotion(
        timestamps_ns=np.round(np.arange(count) * 1e9 / fps).astype(np.int64),
        fps=fps,
        presence=known.astype(float),
        visible=known.astype(float),
        quality=known.astype(float),
        observed=known,
        filled=np.zeros_like(known),
        betas=np.zeros((2, 10)),
        joints_camera=joints,
        hand_model="none",
        provenance=Provenance("test", None, "test"),
        **unknown,
    )
    return dataclasses.replace(motion, **changes)


def random_rigid(rng, count):
    return frames.rigid(rotations.exp(rng.uniform(-2, 2, (count, 3))), rng.normal(size=(count, 3)))
