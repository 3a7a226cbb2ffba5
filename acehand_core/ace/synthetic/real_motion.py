"""Recorded motion of real hands as keys of a script.

Reads a HandMotion table, or an npz with ``joints_world`` (T, 2, 21, 3) in metres, z up, and
``timestamps_ns``. Joints are fitted with the default hand: the motion is kept, not the person.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float

from acehand_core.ace.synthetic.script import HandKey, hand_path
from acehand_core.errors import InputError, SchemaError
from acehand_core.geometry import frames, rotations
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.hand.evidence import Evidence
from acehand_core.hand.landmark_fit import articulate
from acehand_core.hand.skeleton import BONES, TIPS
from acehand_core.recordings.hands_file import read_hand_motion
from acehand_core.safe_files import content_sha256, safe_load_npz
from acehand_core.types import SIDES, JointsCamera, TimestampsNs

_THUMB_BASE = 1
_PALM = (0, 5, 9, 13, 17)
_PARENTS, _CHILDREN = (list(column) for column in zip(*BONES, strict=True))
#: Pitch of a camera without a known direction of gravity.
_LOOKING_DOWN = np.radians(45.0)
#: Height of the lowest keypoint above the table.
_ABOVE_M = 0.02
#: Valid distances of a hand's farthest fingertip from its wrist, as for users' joint files.
_TIP_M = (0.02, 0.5)
#: Largest distance between wrists of a person at a table.
_REACH_M = 10.0


@dataclass(frozen=True, slots=True)
class RealMotion:
    """Keys of both hands, z up, side by side along x; none for an absent hand."""

    hands: tuple[tuple[HandKey, ...], tuple[HandKey, ...]]
    duration: float
    sha256: str

    def keys(
        self, rng: np.random.Generator, duration: float
    ) -> tuple[tuple[HandKey, ...], tuple[HandKey, ...]]:
        """Return ``duration`` seconds, cut or back and forth, with random speed, place and side."""
        speed = float(rng.uniform(0.6, 1.2))
        times = np.arange(0, duration + 1e-9, 1 / 30)
        if duration * speed < self.duration:
            source = rng.uniform(0, self.duration - duration * speed) + speed * times
        else:
            # Back and forth with a smooth turn, at the recorded mean speed.
            phase = rng.uniform(0, 2) + times * speed / self.duration
            source = self.duration * 0.5 * (1 - np.cos(np.pi * phase))

        mirrored = bool(rng.random() < 0.5)
        heading = rotations.exp(np.array([0.0, 0.0, rng.normal(0, 0.25)]))
        shift = np.array([rng.normal(0, 0.03), rng.uniform(0.04, 0.16), rng.uniform(0.0, 0.10)])

        hands: list[tuple[HandKey, ...]] = []
        for keys in self.hands:
            moved: list[HandKey] = []
            if keys:
                path = hand_path(keys, source)
                moved = [
                    HandKey(float(t), a, heading @ p[:3, 3] + shift, heading @ p[:3, :3])
                    for t, a, p in zip(times, path.angles, path.T_world_hand, strict=True)
                ]
            hands.append(tuple(moved))

        if mirrored:
            # World and hand axes are mirrored in x, so angles stay.
            flip = np.diag([-1.0, 1.0, 1.0])
            hands = [
                tuple(
                    HandKey(k.time, k.angles, flip @ k.wrist_world, flip @ k.R_world_hand @ flip)
                    for k in keys
                )
                for keys in reversed(hands)
            ]
        return hands[0], hands[1]


def read_real_motion(path: Path) -> RealMotion:
    """Read recorded motion. Raises InputError for none, SchemaError for another file."""
    if not path.is_file():
        raise InputError(f"{path}: no such file; give a HandMotion table or an npz of joints.")
    joints, times = _world_npz(path) if path.suffix == ".npz" else _table(path)
    known = np.isfinite(np.delete(joints, _THUMB_BASE, axis=2)).all((2, 3))
    if not known.any():
        raise InputError(f"{path}: no hand with all joints known.")
    _check_size(path, joints, known)
    joints = _settled(joints, known)
    seconds = (times - times[0]) * 1e-9
    left, right = (_fit(joints[:, slot], known[:, slot], seconds, slot) for slot in (0, 1))
    return RealMotion((left, right), float(seconds[-1]), content_sha256(path))


def _check_size(path: Path, joints: JointsCamera, known: Bool[np.ndarray, "T 2"]) -> None:
    """Raise SchemaError unless joints are hands in metres, within reach of each other."""
    hands = joints[known]
    tips = np.linalg.norm(hands[:, list(TIPS)] - hands[:, :1], axis=-1).max(1)
    low, high = _TIP_M
    strange = (tips < low) | (tips > high)
    if strange.mean() > 0.5:
        raise SchemaError(
            f"{path}: in {strange.sum()} of {len(hands)} hands the farthest fingertip is not {low} "
            f"to {high} m from the wrist (median {np.median(tips):.3g} m); metres are needed."
        )
    spread = np.ptp(hands[:, 0], axis=0).max()
    if spread > _REACH_M:
        raise SchemaError(
            f"{path}: wrists are up to {spread:.3g} m apart; {_REACH_M:g} m or less is needed."
        )


def _world_npz(path: Path) -> tuple[JointsCamera, TimestampsNs]:
    data = safe_load_npz(path)
    joints, times = (data.get(name, np.empty(0)) for name in ("joints_world", "timestamps_ns"))
    if joints.ndim != 4 or joints.shape[1:] != (2, 21, 3) or times.shape != joints.shape[:1]:
        raise SchemaError(
            f"{path}: joints_world {joints.shape} and timestamps_ns {times.shape}; (T, 2, 21, 3) "
            "and (T) are needed."
        )
    if len(times) < 2 or (np.diff(times) <= 0).any():
        raise SchemaError(f"{path}: timestamps_ns must increase, with two frames or more.")
    return joints.astype(float), times.astype(np.int64)


def _table(path: Path) -> tuple[JointsCamera, TimestampsNs]:
    motion = read_hand_motion(path)
    joints = np.where(motion.known[..., None, None], motion.joints_camera, np.nan).astype(float)
    if motion.T_world_camera is not None:
        # A tracked camera gives heights; z is up.
        joints = frames.apply(motion.T_world_camera, joints.reshape(len(joints), 42, 3))
        return joints.reshape(-1, 2, 21, 3), motion.timestamps_ns
    c, s = np.cos(_LOOKING_DOWN), np.sin(_LOOKING_DOWN)
    # Columns: the camera's right, down and forward in the world.
    R = np.stack([[1.0, 0.0, 0.0], [0.0, -s, -c], [0.0, c, -s]], axis=1)
    return joints @ R.T, motion.timestamps_ns


def _settled(joints: JointsCamera, known: Bool[np.ndarray, "T 2"]) -> JointsCamera:
    """Turn about z until the hands are side by side, and centre them over the table."""
    wrists = [joints[known[:, slot], slot, 0] for slot in (0, 1)]
    if len(wrists[0]) and len(wrists[1]):
        across = wrists[1].mean(0) - wrists[0].mean(0)
        turn = -np.arctan2(across[1], across[0])
    else:
        slot = 0 if len(wrists[0]) else 1
        along = (joints[known[:, slot], slot, 9] - wrists[slot]).mean(0)
        turn = np.pi / 2 - np.arctan2(along[1], along[0])
    R = rotations.exp(np.array([0.0, 0.0, turn]))
    joints = joints @ R.T
    seen = joints[known]
    centre = np.nanmean(seen[:, 0], axis=0)
    centre[2] = np.nanmin(seen[..., 2]) - _ABOVE_M
    return joints - centre


def _fit(
    joints: Float[np.ndarray, "T 21 3"],
    known: Bool[np.ndarray, "T"],
    seconds: Float[np.ndarray, "T"],
    slot: int,
) -> tuple[HandKey, ...]:
    """Return the fitted keys; none for fewer than two known frames."""
    if known.sum() < 2:
        return ()
    side = SIDES[slot]
    rest = CapsuleHand().rest_keypoints(side, np.zeros(10))
    joints = _with_thumb_base(joints[known], rest)
    bones = joints[:, _CHILDREN] - joints[:, _PARENTS]
    bones = bones / np.maximum(np.linalg.norm(bones, axis=-1, keepdims=True), 1e-9)
    pose = articulate(Evidence(np.zeros((len(joints), 21, 2)), bones), side, rest)
    return tuple(
        HandKey(float(t), a, wrist, R)
        for t, a, wrist, R in zip(
            seconds[known], pose.angles, joints[:, 0], pose.global_orient, strict=True
        )
    )


def _with_thumb_base(
    joints: Float[np.ndarray, "N 21 3"], rest: Float[np.ndarray, "21 3"]
) -> Float[np.ndarray, "N 21 3"]:
    """Fill unknown thumb bases from the default hand, relative to the palm."""
    palm = list(_PALM)
    base = rest[palm] - rest[palm].mean(0)
    moved = joints[:, palm] - joints[:, palm].mean(1, keepdims=True)
    R = rotations.project_to_rotation(np.einsum("nki,kj->nij", moved, base))
    place = joints[:, 0] + (R @ (rest[_THUMB_BASE] - rest[0]))
    complete = joints.copy()
    missing = ~np.isfinite(complete[:, _THUMB_BASE]).all(-1)
    complete[missing, _THUMB_BASE] = place[missing]
    return complete
