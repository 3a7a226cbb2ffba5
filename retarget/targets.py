"""What the robot should follow: the human hand in its own palm frame.

Palm frame: origin at the wrist, x out of the palm, z from the wrist to the fingers, y to the thumb
on a right hand and away from it on a left one. A robot's base frame follows the same convention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from acehand_core.geometry import frames, rotations
from acehand_core.hand.skeleton import KNUCKLES, TIPS, WRIST, finger_keypoints
from acehand_core.motion import Calibration, HandMotion
from acehand_core.types import SIDES, Side

#: Largest typical wobble of the palm within a file's own wrist frame for that frame to be trusted.
STEADY_FRAME_RAD = np.radians(20.0)


@dataclass(frozen=True, slots=True)
class HandTargets:
    """One human hand over T frames, in its palm frame.

    Where the hand is not known ``joints_hand`` is NaN, ``weight`` 0 and ``T_camera_hand`` the
    identity. Where it is there (``active``) but nothing of it can be trusted, the first two hold as
    well, and ``T_camera_hand`` is on the way between its neighbours. ``T_camera_hand`` is None
    without a placement. ``filled`` marks frames that gap filling wrote; None: there are none.
    """

    side: Side
    joints_hand: Float[np.ndarray, "T 21 3"]
    weight: Float[np.ndarray, "T"]
    active: Bool[np.ndarray, "T"]
    T_camera_hand: Float[np.ndarray, "T 4 4"] | None
    filled: Bool[np.ndarray, "T"] | None = None

    @property
    def followed(self) -> Bool[np.ndarray, "T"]:
        """Frames that say something: the hand is there and its joints have some weight."""
        return self.active & (self.weight > 0)

    @property
    def measured(self) -> Bool[np.ndarray, "T"]:
        """Followed frames that gap filling did not write; all followed ones where it wrote all."""
        followed = self.followed
        seen = followed if self.filled is None else followed & ~self.filled
        return seen if seen.any() else followed

    @property
    def tips(self) -> Float[np.ndarray, "T 5 3"]:
        """Thumb to pinky fingertips."""
        return self.joints_hand[:, TIPS]

    def tips_of(self, fingers: Sequence[str]) -> Float[np.ndarray, "T K 3"]:
        """Return the tips of the named fingers: a robot may have fewer than five."""
        return self.joints_hand[:, [finger_keypoints(finger)[-1] for finger in fingers]]


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
    out = calibration.apply(np.concatenate([joints[:, :1], fingers.reshape(-1, 20, 3)], axis=1))
    out[:, 1:] += np.repeat(calibration.anchors, 4, axis=0)
    return out


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
    seen = targets.followed
    with np.errstate(divide="ignore", invalid="ignore"):
        palms = palm_frames(targets.joints_hand[seen], targets.side)[:, :3, :3]
    known = np.isfinite(palms).all((1, 2))
    if not known.any():
        return np.eye(3)
    mean = np.average(palms[known], axis=0, weights=targets.weight[seen][known])
    return rotations.project_to_rotation(mean)


def hand_targets(motion: HandMotion, side: Side) -> HandTargets | None:
    """Return one hand of a motion as targets, or None where it never appears.

    A frame is active where the wrist, knuckles and tips are known; a missing joint in between is
    carried as NaN and gets no weight later. Frames weigh by the motion's quality. One of quality 0
    is treated as a gap that is filled: it stays active, its joints are not used, and its pose is
    taken from the frames around it. A hand without any better frame does not appear.
    """
    slot = SIDES.index(side)
    joints = motion.joints_camera[:, slot]
    needed = [WRIST, *KNUCKLES[1:], *TIPS]
    active = motion.known[:, slot] & np.isfinite(joints[:, needed]).all((1, 2))
    with np.errstate(divide="ignore", invalid="ignore"):
        palms = palm_frames(joints, side)
    active &= np.isfinite(palms).all((1, 2))  # some trackers write zeros for a missing hand
    weight = np.where(active, motion.quality[:, slot].astype(float), 0.0)
    followed = weight > 0
    if not followed.any():
        return None
    poses = np.where(active[:, None, None], palms, np.eye(4))
    if motion.placed:
        poses[active] = bridged_poses(poses, followed)[active]
    else:
        poses[followed] = _steadied(poses[followed], weight[followed])
    local = np.full(joints.shape, np.nan)
    local[followed] = frames.apply(frames.inverse(poses[followed]), joints[followed])
    filled = motion.filled[:, slot]
    return HandTargets(
        side=side,
        joints_hand=local,
        weight=weight,
        active=active,
        T_camera_hand=poses if motion.placed else None,
        filled=filled if filled.any() else None,
    )


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
    out = frames.rigid(start @ rotations.exp(way), bridged(poses[:, :3, 3], known))
    out[at] = poses[at]
    return out


def _steadied(
    poses: Float[np.ndarray, "N 4 4"], weight: Float[np.ndarray, "N"]
) -> Float[np.ndarray, "N 4 4"]:
    """Use one palm rotation where joints already come in a wrist frame.

    Its tracker's wrist frame is steadier than one rebuilt from five noisy points; only the axes
    convention is unknown, and that is one rotation for all frames.
    """
    mean = rotations.project_to_rotation(np.average(poses[:, :3, :3], axis=0, weights=weight))
    wobble = rotations.angle_between(np.broadcast_to(mean, poses[:, :3, :3].shape),
                                     poses[:, :3, :3])  # fmt: skip
    if np.median(wobble) > STEADY_FRAME_RAD:
        return poses
    return frames.rigid(np.broadcast_to(mean, poses[:, :3, :3].shape), poses[:, :3, 3])
