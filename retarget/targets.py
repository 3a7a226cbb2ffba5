"""What a robot hand is to track: the human hand in its own palm frame, or how far it is open.

Palm frame: origin at the wrist, x out of the palm, z from the wrist to the fingers, y to the thumb
on a right hand and away from it on a left one. A robot's base frame follows the same convention.

A gripper has no fingers to bring to places in the palm. It takes the opening between thumb and
index finger as it is, and its base stands where the two fingertips are: a frame that moves with the
pinch instead of the palm.
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

#: Largest typical wobble of the palm within a file's own wrist frame for that frame to be trusted.
STEADY_FRAME_RAD = np.radians(20.0)
#: A joint that is missing for no longer than this moves on a line in the palm meanwhile.
JOINT_GAP_S = 0.5
#: Frames that show how a finger's joints move together, and by how much noise that is damped.
LEARNING_FRAMES, LEARNING_DAMPING_M = 30, 0.001
#: A joint known this well relative to the palm (standard deviation per direction) counts half as
#: much as one that is known exactly; no joint counts less than the share.
HALF_SHARE_M, LEAST_SHARE = 0.005, 0.02
#: A robot's finger without anything to follow in a greater share of the frames is named.
UNSEEN_SHARE = 0.05


#: What a calibration is fitted in, and how many numbers each parameter has.
PARAMETERS = {
    "rotation": 3,
    "translation": 3,
    "log_scale": 1,
    "finger_offsets": 15,
    "log_lengths": 5,
}
CALIBRATION_SIZE = sum(PARAMETERS.values())
SCALE_RANGE = (0.9, 1.3)
LENGTH_RANGE = (0.9, 1.1)


@dataclass(frozen=True, slots=True, eq=False)
class CommandTarget:
    """Commands to stay near, and the weight of a squared radian (see ``Weights.slide_m``)."""

    commands: Commands
    weight: Float[np.ndarray, "T C"]


@dataclass(frozen=True, slots=True)
class HandTargets:
    """One human hand over T frames, in its palm frame.

    Where the hand is not known ``joints_hand`` is NaN, ``weight`` 0 and ``T_camera_hand`` the
    identity. A single joint that is NaN weighs nothing; the others count as always. Where it is
    there (``active``) but nothing of it can be trusted, the first two hold as well, and
    ``T_camera_hand`` is on the way between its neighbours. ``T_camera_hand`` is None without a
    placement. ``filled`` marks frames that gap filling wrote; None: there are none. ``share``, 0 to
    1, is what each joint counts beside the frame's weight, by how well it is known; None: alike.
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
        """Frames that say something: the hand is there and its joints have some weight."""
        return self.active & (self.weight > 0)

    @property
    def measured(self) -> Bool[np.ndarray, "T"]:
        """Usable frames that gap filling did not write; all usable ones where it wrote all."""
        usable = self.usable
        seen = usable if self.filled is None else usable & ~self.filled
        return seen if seen.any() else usable

    @property
    def tips(self) -> Float[np.ndarray, "T 5 3"]:
        """Thumb to pinky fingertips."""
        return self.joints_hand[:, TIPS]

    def tips_of(self, fingers: Sequence[str]) -> Float[np.ndarray, "T K 3"]:
        """Return the tips of the named fingers: a robot may have fewer than five."""
        return self.joints_hand[:, [finger_keypoints(finger)[-1] for finger in fingers]]

    def share_of(self, rows: slice, joints: Sequence[int]) -> Float[np.ndarray, "N K"] | float:
        """Return what the named joints count in some frames."""
        return 1.0 if self.share is None else self.share[rows][:, list(joints)]


def finger_bases(joints: Float[np.ndarray, "T 21 3"]) -> Float[np.ndarray, "T 5 3"]:
    """Return the point from which a calibration stretches each finger, in the palm frame.

    It is the knuckle; the thumb's is the wrist: not every hand model has a joint at its root.
    """
    bases = joints[:, KNUCKLES].copy()
    bases[:, 0] = 0.0
    return bases


def calibrated(
    joints: Float[np.ndarray, "T 21 3"], calibration: Calibration
) -> Float[np.ndarray, "T 21 3"]:
    """Return keypoints of the palm frame where the robot's should be, in its base frame."""
    fingers = joints[:, 1:].reshape(-1, 5, 4, 3)
    bases = finger_bases(joints)[:, :, None]
    fingers = bases + calibration.lengths[:, None, None] * (fingers - bases)
    goals = calibration.apply(np.concatenate([joints[:, :1], fingers.reshape(-1, 20, 3)], axis=1))
    goals[:, 1:] += np.repeat(calibration.finger_offsets, 4, axis=0)
    return goals


def named_parameters(values: Shaped[np.ndarray, "*n 27"]) -> dict[str, Shaped[np.ndarray, "*n _"]]:
    """Return views of the last axis: values of a calibration's parameters, or derivatives by them.

    ``rotation`` is a rotation vector in the base frame, ``translation`` in metres; offsets (m) of
    all fingers follow each other.
    """
    named, first = {}, 0
    for name, size in PARAMETERS.items():
        named[name] = values[..., first : first + size]
        first += size
    return named


def palm_frames(joints: Float[np.ndarray, "N 21 3"], side: Side) -> Float[np.ndarray, "N 4 4"]:
    """Return the palm frame of each hand in the frame its joints are given in.

    NaN where wrist and knuckles do not span a palm.
    """
    spokes = joints[:, KNUCKLES[1:]] - joints[:, :1]
    spokes = spokes / np.linalg.norm(spokes, axis=-1, keepdims=True)
    along = spokes.mean(1)
    # The normal of the fan of knuckles, index to pinky: out of the palm on a right hand.
    normal = np.cross(spokes[:, 0], spokes[:, 3]) * (1 if side == "right" else -1)
    normal /= np.linalg.norm(normal, axis=-1, keepdims=True)
    along = along - np.sum(along * normal, axis=-1, keepdims=True) * normal
    along /= np.linalg.norm(along, axis=-1, keepdims=True)
    rotation = np.stack([normal, np.cross(along, normal), along], axis=-1)
    return frames.rigid(rotation, joints[:, WRIST])


def palm_rotation(targets: HandTargets) -> Float[np.ndarray, "3 3"]:
    """Return the mean palm in the frame of the targets' joints, the identity where none is known.

    That frame is the palm frame; a file's own wrist frame may be turned from it.
    """
    seen = targets.usable
    with np.errstate(divide="ignore", invalid="ignore"):
        palms = palm_frames(targets.joints_hand[seen], targets.side)[:, :3, :3]
    known = np.isfinite(palms).all((1, 2))
    if not known.any():
        return np.eye(3)
    mean = np.average(palms[known], axis=0, weights=targets.weight[seen][known])
    return rotations.project_to_rotation(mean)


def hand_targets(motion: HandMotion, side: Side) -> HandTargets | None:
    """Return one hand of a motion as targets, or None where it never appears.

    A frame is active where the palm (wrist and the knuckles of index to pinky) and a fingertip are
    known. Any other joint may be missing: for up to ``JOINT_GAP_S`` it is interpolated in the palm
    frame, for longer it is estimated from the finger's other joints, and where these are missing
    too it is NaN and gets no weight. Frames weigh by the motion's quality. One of quality 0
    is treated as a gap that is filled: it stays active, its joints are not used, and its pose is
    taken from the frames around it. A hand without any better frame does not appear.
    """
    slot = SIDES.index(side)
    joints = motion.joints_camera[:, slot]
    finite = np.isfinite(joints).all(-1)
    palm_known = finite[:, [WRIST, *KNUCKLES[1:]]].all(1)
    active = motion.known[:, slot] & palm_known & finite[:, TIPS].any(1)
    with np.errstate(divide="ignore", invalid="ignore"):
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

    What all joints are off by alike, mostly along the line of sight, moves the hand and no
    fingertip in its palm. As much is taken off each variance as even the joint that is known best
    has. What is left to a joint and, on average, to wrist and knuckles adds up, as if they erred
    independently. It is too much where the whole palm is turned: standard deviations of single
    joints do not tell a hand that is turned from fingers that are bent.

    Args:
        sigma: ``HandMotion.joint_sigma`` of one hand, metres across the line of sight and along it.
    """
    variance = sigma**2
    own = variance - np.fmin.reduce(variance, axis=1, keepdims=True)
    across, along = np.moveaxis(own + own[:, PALM].mean(axis=1, keepdims=True), -1, 0)
    out: Float[np.ndarray, "T 21"] = np.sqrt((2 * across + along) / 3)
    return out


def _fill_short_gaps(
    joints: Float[np.ndarray, "T 21 3"], usable: Bool[np.ndarray, "T"], fps: float
) -> None:
    """Interpolate, in place, single joints that are missing between frames that know them."""
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
    """Estimate, in place, joints that are missing for long from the others of their finger.

    The joints of a finger move together. How a joint follows from the others is fitted (linear,
    damped) to the frames that know all of them; fewer than ``LEARNING_FRAMES`` say too little.
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
    """Say which fingers of the robot lack their tip in over ``UNSEEN_SHARE`` of the frames."""
    known = np.isfinite(targets.joints_hand[targets.usable]).all(-1)
    notes = []
    for finger in hand.fingers:
        _, *moving, tip = finger_keypoints(finger)
        share = 1 - known[:, tip].mean()
        if not known[:, [*moving, tip]].any():
            notes.append(
                f"the {targets.side} {finger} is never known: the robot's keeps its idle pose"
            )
        elif share > UNSEEN_SHARE:
            notes.append(
                f"the {targets.side} {finger} fingertip is not known in {share:.0%} of the frames; "
                "there only its other joints are followed, where they are known"
            )
    return tuple(notes)


def bridged(values: Float[np.ndarray, "T D"], known: Bool[np.ndarray, "T"]) -> np.ndarray:
    """Return values on a line between those that are known, and the nearest at the ends."""
    at = np.flatnonzero(known)
    if len(at) in (0, len(known)):
        return values
    return np.stack([np.interp(np.arange(len(known)), at, c[at]) for c in values.T], axis=1)


def bridged_poses(
    poses: Float[np.ndarray, "T 4 4"], known: Bool[np.ndarray, "T"]
) -> Float[np.ndarray, "T 4 4"]:
    """Return poses that move and turn evenly between those that are known, see ``bridged``."""
    at = np.flatnonzero(known)
    if len(at) in (0, len(known)):
        return poses
    place = np.interp(np.arange(len(known)), at, np.arange(len(at)))
    first = np.floor(place).astype(int)
    before, after = at[first], at[np.minimum(first + 1, len(at) - 1)]
    start, end = poses[before, :3, :3], poses[after, :3, :3]
    way = rotations.log(np.swapaxes(start, 1, 2) @ end) * (place - first)[:, None]
    bridge = frames.rigid(start @ rotations.exp(way), bridged(poses[:, :3, 3], known))
    bridge[at] = poses[at]
    return bridge


def _steadied(
    poses: Float[np.ndarray, "N 4 4"], weight: Float[np.ndarray, "N"]
) -> Float[np.ndarray, "N 4 4"]:
    """Use one palm rotation where joints already come in a wrist frame.

    Its tracker's wrist frame is steadier than one rebuilt from five noisy points; only the axes
    convention is unknown, and that is one rotation for all frames.
    """
    palms = poses[:, :3, :3]
    mean = rotations.project_to_rotation(np.average(palms, axis=0, weights=weight))
    steady = np.broadcast_to(mean, palms.shape)
    if np.median(rotations.angle_between(steady, palms)) > STEADY_FRAME_RAD:
        return poses
    return frames.rigid(steady, poses[:, :3, 3])


THUMB_TIP, INDEX_TIP = (finger_keypoints(finger)[-1] for finger in ("thumb", "index"))
#: Standard deviation, in seconds, of the smoothing of the directions that the gripper keeps to.
STEADY_S = 0.1
#: A closed pinch has no direction; the thumb's side of the palm then counts as much as this gap.
CLOSED_M = 0.005


def opening_targets(targets: HandTargets, fps: float) -> HandTargets:
    """Return the targets of a gripper: fingertips at half the human opening to either side.

    Their frame takes the place of the palm frame: origin between the fingertips, y to the thumb on
    a right hand and away from it on a left one, z away from the wrist. Wide openings decide its
    direction more than narrow ones. Frames that are active but not usable, or lack one of the two
    tips, get directions and places from their neighbours.
    """
    joints, active = targets.joints_hand, targets.active
    thumb, index = joints[:, THUMB_TIP], joints[:, INDEX_TIP]
    usable = targets.usable & np.isfinite(thumb + index).all(-1)
    sign = 1.0 if targets.side == "right" else -1.0
    gap = np.linalg.norm(thumb - index, axis=-1)
    closed = CLOSED_M * np.eye(3)
    across = bridged(sign * (thumb - index), usable)
    along = bridged((thumb + index) / 2 - joints[:, WRIST], usable)
    across = _smoothed(across, active, fps) + closed[1]
    along = _smoothed(along, active, fps) + closed[2]
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
    """Return the placement of the gripper: full size, its fingertips around the pinch.

    The residual is what the human opens beyond the gripper's stroke, per fingertip.
    """
    ends = np.stack([hand.command_lower, hand.command_upper])
    tips = tree.points(hand.expand(ends), hand.tip_names)
    stroke = np.linalg.norm(tips[:, 0] - tips[:, 1], axis=-1).max()
    human = targets.tips_of(hand.fingers)[targets.measured]
    beyond = np.maximum(np.linalg.norm(human[:, 0] - human[:, 1], axis=-1) - stroke, 0) / 2
    residual = float(np.sqrt(np.nanmean(beyond**2)))
    return Calibration(1.0, np.eye(3), tips[0].mean(axis=0), residual)


def _smoothed(
    vectors: Float[np.ndarray, "T 3"], active: np.ndarray, fps: float
) -> Float[np.ndarray, "T 3"]:
    known = np.where(active[:, None], vectors, 0.0)
    return ndimage.gaussian_filter1d(known, STEADY_S * fps, axis=0, mode="nearest")
