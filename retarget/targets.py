"""Targets of a robot hand: the human hand in its palm frame, or its opening for a gripper.

Palm frame: origin at the wrist, x out of the palm, z from the wrist to the fingers, y towards the
thumb on a right hand and away from it on a left one. Robot base frames follow the same convention.

A gripper follows the opening between thumb and index finger; its frame moves with the pinch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Shaped
from scipy import ndimage

from acehand_core.geometry import frames, rotations
from acehand_core.hand.skeleton import FINGERS, KNUCKLES, PALM, TIPS, WRIST, finger_keypoints
from acehand_core.motion import Calibration, HandMotion
from acehand_core.types import SIDES, Side
from retarget.robots.hand_spec import Commands, HandSpec
from retarget.robots.kinematics import KinematicTree

#: A file's own wrist frame is trusted if the palm's median rotation in it is below this.
STEADY_FRAME_RAD = np.radians(20.0)
#: Gaps of a single joint up to this length are interpolated in the palm frame.
JOINT_GAP_S = 0.5
#: Frames needed to fit how a finger's joints move together, and the damping of the fit.
LEARNING_FRAMES, LEARNING_DAMPING_M = 30, 0.001
#: Standard deviation in the palm (per direction) that halves a joint's share, and the least share.
HALF_SHARE_M, LEAST_SHARE = 0.005, 0.02
#: Fingers unseen in a larger share of the frames are reported.
UNSEEN_SHARE = 0.05
#: Parameters of a calibration and their sizes.
PARAMETERS = dict(rotation=3, translation=3, log_scale=1, finger_offsets=15, log_lengths=5)
CALIBRATION_SIZE = sum(PARAMETERS.values())
SCALE_RANGE = (0.9, 1.3)
LENGTH_RANGE = (0.9, 1.1)

THUMB_TIP, INDEX_TIP = (finger_keypoints(finger)[-1] for finger in ("thumb", "index"))
#: Standard deviation (s) of the smoothing of the gripper's directions.
STEADY_S = 0.1
#: Weight, as an opening, of the palm's directions, which decide when the pinch is closed.
CLOSED_M = 0.005


@dataclass(frozen=True, slots=True, eq=False)
class CommandTarget:
    """Commands to stay near, and the weight of a squared radian (see ``Weights.slide_m``)."""

    commands: Commands
    weight: Float[np.ndarray, "T C"]


@dataclass(frozen=True, slots=True)
class HandTargets:
    """One human hand over T frames, in its palm frame.

    Without a hand ``joints_hand`` is NaN, ``weight`` 0 and ``T_camera_hand`` the identity. In
    ``active`` frames of weight 0 the hand is there but not trusted: the pose is interpolated. A
    single NaN joint has no weight. ``T_camera_hand`` is None without a placement. ``filled`` marks
    frames written by gap filling; None: none. ``share``, 0 to 1, is the weight of each joint
    besides the frame's, by its uncertainty; None: equal.
    """

    side: Side
    joints_hand: Float[np.ndarray, "T 21 3"]
    weight: Float[np.ndarray, "T"]
    active: Bool[np.ndarray, "T"]
    T_camera_hand: Float[np.ndarray, "T 4 4"] | None
    filled: Bool[np.ndarray, "T"] | None = None
    share: Float[np.ndarray, "T 21"] | None = None

    @property
    def usable(self) -> Bool[np.ndarray, "T"]:
        """Frames with a hand and some weight."""
        return self.active & (self.weight > 0)

    @property
    def measured(self) -> Bool[np.ndarray, "T"]:
        """Usable frames not written by gap filling; all usable ones if there are none."""
        usable = self.usable
        seen = usable if self.filled is None else usable & ~self.filled
        return seen if seen.any() else usable

    @property
    def tips(self) -> Float[np.ndarray, "T 5 3"]:
        """Thumb to pinky fingertips."""
        return self.joints_hand[:, TIPS]

    def tips_of(self, fingers: Sequence[str]) -> Float[np.ndarray, "T K 3"]:
        return self.joints_hand[:, [finger_keypoints(finger)[-1] for finger in fingers]]

    def share_of(self, rows: slice, joints: Sequence[int]) -> Float[np.ndarray, "N K"] | float:
        return 1.0 if self.share is None else self.share[rows][:, list(joints)]


def finger_bases(joints: Float[np.ndarray, "T 21 3"]) -> Float[np.ndarray, "T 5 3"]:
    """Return the points from which fingers are stretched: knuckles, for the thumb the wrist."""
    bases = joints[:, KNUCKLES].copy()
    bases[:, 0] = 0.0
    return bases


def calibrated(
    joints: Float[np.ndarray, "T 21 3"], calibration: Calibration
) -> Float[np.ndarray, "T 21 3"]:
    """Return palm-frame keypoints as goals in the robot's base frame."""
    fingers = joints[:, 1:].reshape(-1, 5, 4, 3)
    bases = finger_bases(joints)[:, :, None]
    fingers = bases + calibration.lengths[:, None, None] * (fingers - bases)
    goals = calibration.apply(np.concatenate([joints[:, :1], fingers.reshape(-1, 20, 3)], axis=1))
    goals[:, 1:] += np.repeat(calibration.finger_offsets, 4, axis=0)
    return goals


def named_parameters(values: Shaped[np.ndarray, "*n 27"]) -> dict[str, Shaped[np.ndarray, "*n _"]]:
    """Split the last axis into named views of a calibration's parameters, or derivatives by them.

    ``rotation`` is a rotation vector in the base frame; ``translation`` and ``finger_offsets`` (all
    fingers in a row) are in metres.
    """
    ends = np.cumsum([*PARAMETERS.values()])
    return dict(zip(PARAMETERS, np.split(values, ends[:-1], axis=-1), strict=True))


def palm_frames(joints: Float[np.ndarray, "N 21 3"], side: Side) -> Float[np.ndarray, "N 4 4"]:
    """Return the palm frame of each hand in the frame of its joints, NaN without a palm."""
    spokes = joints[:, KNUCKLES[1:]] - joints[:, :1]
    with np.errstate(divide="ignore", invalid="ignore"):
        spokes = spokes / np.linalg.norm(spokes, axis=-1, keepdims=True)
        along = spokes.mean(1)
        # The normal of wrist, index and pinky knuckle points out of the palm on a right hand.
        normal = np.cross(spokes[:, 0], spokes[:, 3]) * (1 if side == "right" else -1)
        normal /= np.linalg.norm(normal, axis=-1, keepdims=True)
        along = along - np.sum(along * normal, axis=-1, keepdims=True) * normal
        along /= np.linalg.norm(along, axis=-1, keepdims=True)

    rotation = np.stack([normal, np.cross(along, normal), along], axis=-1)
    return frames.rigid(rotation, joints[:, WRIST])


def palm_rotation(targets: HandTargets) -> Float[np.ndarray, "3 3"]:
    """Return the mean palm in the frame of the targets' joints; the identity if unknown."""
    seen = targets.usable
    palms = palm_frames(targets.joints_hand[seen], targets.side)[:, :3, :3]
    known = np.isfinite(palms).all((1, 2))
    if not known.any():
        return np.eye(3)
    mean = np.average(palms[known], axis=0, weights=targets.weight[seen][known])
    return rotations.project_to_rotation(mean)


def hand_targets(motion: HandMotion, side: Side) -> HandTargets | None:
    """Return one hand of a motion as targets, None if it never appears with quality above 0.

    A frame is active if the palm (wrist, index to pinky knuckles) and a fingertip are known. Other
    joints may be missing: gaps up to ``JOINT_GAP_S`` are interpolated in the palm frame, longer
    ones are estimated from the finger's other joints, else the joint stays NaN. The motion's
    quality weighs the frames. A frame of quality 0 is treated as a filled gap: active, its joints
    unused, its pose interpolated.
    """
    slot = SIDES.index(side)
    joints = motion.joints_camera[:, slot]
    finite = np.isfinite(joints).all(-1)
    palm_known = finite[:, [WRIST, *KNUCKLES[1:]]].all(1)
    active = motion.known[:, slot] & palm_known & finite[:, TIPS].any(1)
    palms = palm_frames(joints, side)
    active &= np.isfinite(palms).all((1, 2))  # some trackers write zeros for a missing hand
    weight = np.where(active, motion.quality[:, slot].astype(float), 0.0)
    usable = weight > 0
    if not usable.any():
        return None

    poses = np.where(active[:, None, None], palms, np.eye(4))
    if motion.placed:
        poses[active] = bridged_poses(poses, usable)[active]
    else:
        poses[usable] = _steadied(poses[usable], weight[usable])

    local = np.full(joints.shape, np.nan)
    local[usable] = frames.apply(frames.inverse(poses[usable]), joints[usable])
    _fill_short_gaps(local, usable, motion.fps)
    _estimate_from_fingers(local)
    filled, share = motion.filled[:, slot], None
    if motion.joint_sigma is not None:
        sigma = palm_sigma(motion.joint_sigma[:, slot])  # NaN: hardly anything is known
        share = np.maximum(np.nan_to_num(1 / (1 + (sigma / HALF_SHARE_M) ** 2)), LEAST_SHARE)

    return HandTargets(
        side=side,
        joints_hand=local,
        weight=weight,
        active=active,
        T_camera_hand=poses if motion.placed else None,
        filled=filled if filled.any() else None,
        share=share,
    )


def palm_sigma(sigma: Float[np.ndarray, "T 21 2"]) -> Float[np.ndarray, "T 21"]:
    """Return standard deviations of joints in the palm, metres per direction (rms of three).

    An error common to all joints, mostly along the line of sight, moves the hand but no fingertip
    in its palm, so each variance is reduced by that of the best known joint. The rest is added to
    the mean rest of wrist and knuckles, as if independent. That is too much if the whole palm is
    rotated, which standard deviations of joints cannot show.

    Args:
        sigma: ``HandMotion.joint_sigma`` of one hand, metres across and along the line of sight.
    """
    variance = sigma**2
    own = variance - np.fmin.reduce(variance, axis=1, keepdims=True)
    across, along = np.moveaxis(own + own[:, PALM].mean(axis=1, keepdims=True), -1, 0)
    return np.asarray(np.sqrt((2 * across + along) / 3))


def _fill_short_gaps(
    joints: Float[np.ndarray, "T 21 3"], usable: Bool[np.ndarray, "T"], fps: float
) -> None:
    """Interpolate, in place, short gaps of single joints."""
    finite = np.isfinite(joints).all(-1)
    missing = usable[:, None] & ~finite
    for joint in np.flatnonzero(missing.any(0)):
        known, frames_without = np.flatnonzero(finite[:, joint]), np.flatnonzero(missing[:, joint])
        after = np.searchsorted(known, frames_without)
        inside = (after > 0) & (after < len(known))
        after, frames_without = after[inside], frames_without[inside]
        short = known[after] - known[after - 1] - 1 <= JOINT_GAP_S * fps
        filled = frames_without[short]
        joints[filled, joint] = bridged(joints[:, joint], finite[:, joint])[filled]


def _estimate_from_fingers(joints: Float[np.ndarray, "T 21 3"]) -> None:
    """Estimate, in place, joints missing for long from the others of their finger.

    A damped linear fit over the frames with all joints; below ``LEARNING_FRAMES`` there is none.
    """
    finite = np.isfinite(joints).all(-1)
    for finger in FINGERS:
        chain = [k for k in finger_keypoints(finger) if finite[:, k].any()]
        for joint in chain:
            others = [k for k in chain if k != joint]
            wanted = ~finite[:, joint] & finite[:, others].all(1)
            learned = finite[:, chain].all(1)
            if not others or not wanted.any() or learned.sum() < LEARNING_FRAMES:
                continue

            inputs = joints[:, others].reshape(len(joints), -1)
            middle, place = inputs[learned].mean(0), joints[learned, joint].mean(0)
            away = inputs[learned] - middle
            normal = away.T @ away + LEARNING_DAMPING_M**2 * len(away) * np.eye(away.shape[1])
            follows = np.linalg.solve(normal, away.T @ (joints[learned, joint] - place))
            joints[wanted, joint] = place + (inputs[wanted] - middle) @ follows


def unseen_fingers(hand: HandSpec, targets: HandTargets) -> tuple[str, ...]:
    """Report robot fingers without a tip in over ``UNSEEN_SHARE`` of the frames."""
    known = np.isfinite(targets.joints_hand[targets.usable]).all(-1)
    notes = []
    for finger in hand.fingers:
        _, *moving, tip = finger_keypoints(finger)
        share = 1 - known[:, tip].mean()
        name = f"the {targets.side} {finger}"
        if not known[:, [*moving, tip]].any():
            notes.append(f"{name} is never known: the robot's keeps its idle pose")
        elif share > UNSEEN_SHARE:
            notes.append(
                f"{name} fingertip is unknown in {share:.0%} of the frames, where only its other "
                "known joints are followed"
            )
    return tuple(notes)


def bridged(values: Float[np.ndarray, "T D"], known: Bool[np.ndarray, "T"]) -> np.ndarray:
    """Interpolate unknown values linearly; the ends take the nearest known value."""
    at = np.flatnonzero(known)
    if len(at) in (0, len(known)):
        return values
    return np.stack([np.interp(np.arange(len(known)), at, c[at]) for c in values.T], axis=1)


def bridged_poses(
    poses: Float[np.ndarray, "T 4 4"], known: Bool[np.ndarray, "T"]
) -> Float[np.ndarray, "T 4 4"]:
    """Interpolate unknown poses at constant speeds, see ``bridged``."""
    at = np.flatnonzero(known)
    if len(at) in (0, len(known)):
        return poses
    place = np.interp(np.arange(len(known)), at, np.arange(len(at)))
    first = np.floor(place).astype(int)
    before, after = at[first], at[np.minimum(first + 1, len(at) - 1)]
    start, end = poses[before, :3, :3], poses[after, :3, :3]
    turn = rotations.log(np.swapaxes(start, 1, 2) @ end) * (place - first)[:, None]
    bridge = frames.rigid(start @ rotations.exp(turn), bridged(poses[:, :3, 3], known))
    bridge[at] = poses[at]
    return bridge


def _steadied(
    poses: Float[np.ndarray, "N 4 4"], weight: Float[np.ndarray, "N"]
) -> Float[np.ndarray, "N 4 4"]:
    """Use one palm rotation if joints already come in a wrist frame.

    That frame is steadier than one rebuilt from five noisy points; only its axes are unknown.
    """
    palms = poses[:, :3, :3]
    mean = rotations.project_to_rotation(np.average(palms, axis=0, weights=weight))
    steady = np.broadcast_to(mean, palms.shape)
    if np.median(rotations.angle_between(steady, palms)) > STEADY_FRAME_RAD:
        return poses
    return frames.rigid(steady, poses[:, :3, 3])


def opening_targets(targets: HandTargets, fps: float) -> HandTargets:
    """Return the targets of a gripper: fingertips at half the human opening to either side.

    Their frame replaces the palm frame: origin between the fingertips, y to the thumb on a right
    hand and away from it on a left one, z away from the wrist. Wide openings weigh more in its
    direction. Active frames without usable tips are interpolated.
    """
    joints, active = targets.joints_hand, targets.active
    thumb, index = joints[:, THUMB_TIP], joints[:, INDEX_TIP]
    usable = targets.usable & np.isfinite(thumb + index).all(-1)
    sign = 1.0 if targets.side == "right" else -1.0
    gap = np.linalg.norm(thumb - index, axis=-1)

    def smooth(vectors: np.ndarray) -> np.ndarray:
        known = np.where(active[:, None], bridged(vectors, usable), 0.0)
        return ndimage.gaussian_filter1d(known, STEADY_S * fps, axis=0, mode="nearest")

    across = smooth(sign * (thumb - index)) + CLOSED_M * np.eye(3)[1]
    along = smooth((thumb + index) / 2 - joints[:, WRIST]) + CLOSED_M * np.eye(3)[2]
    across /= np.linalg.norm(across, axis=-1, keepdims=True)
    along -= np.sum(along * across, axis=-1, keepdims=True) * across
    along /= np.linalg.norm(along, axis=-1, keepdims=True)
    turn = np.stack([np.cross(across, along), across, along], axis=-1)
    middle = np.where(active[:, None], bridged((thumb + index) / 2, usable), 0.0)

    opened = np.full(joints.shape, np.nan)
    opened[:, [THUMB_TIP, INDEX_TIP]] = 0.0
    opened[:, THUMB_TIP, 1], opened[:, INDEX_TIP, 1] = sign * gap / 2, -sign * gap / 2
    opened[~usable] = np.nan
    poses = targets.T_camera_hand
    if poses is not None:
        poses = np.where(active[:, None, None], poses @ frames.rigid(turn, middle), poses)
    return replace(targets, joints_hand=opened, T_camera_hand=poses)


def opening_calibration(hand: HandSpec, tree: KinematicTree, targets: HandTargets) -> Calibration:
    """Return a gripper's calibration: scale 1, origin between its open fingertips.

    The residual is the human opening beyond the gripper's stroke, per fingertip.
    """
    ends = np.stack([hand.command_lower, hand.command_upper])
    tips = tree.points(hand.expand(ends), hand.tip_names)
    stroke = np.linalg.norm(tips[:, 0] - tips[:, 1], axis=-1).max()
    human = targets.tips_of(hand.fingers)[targets.measured]
    beyond = np.maximum(np.linalg.norm(human[:, 0] - human[:, 1], axis=-1) - stroke, 0) / 2
    residual = float(np.sqrt(np.nanmean(beyond**2)))
    return Calibration(1.0, np.eye(3), tips[0].mean(axis=0), residual)
