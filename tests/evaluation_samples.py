"""Hands made up for tests of the evaluation."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from acehand_core.geometry import rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.motion import HandMotion, Provenance
from acehand_core.types import SIDES

CAMERA = Camera("pinhole", 320, 240, 300.0, 300.0, 159.5, 119.5)
FLAT = np.tile(np.eye(3), (15, 1, 1))


@dataclass(frozen=True)
class SmallHand:
    """The default hand with a mesh of its own 21 joints: boxes a test can work out, and quickly."""

    name: str = "acehand"

    def joints(self, side, global_orient, hand_pose, betas):
        return CapsuleHand().joints(side, global_orient, hand_pose, betas)

    def vertices(self, side, global_orient, hand_pose, betas):
        return self.joints(side, global_orient, hand_pose, betas)

    def faces(self, side):
        return CapsuleHand().faces(side)


def motion_of(
    translation, orient=None, pose=None, betas=None, presence=None, camera=CAMERA, model=None,
    anchors=None, settings=None, fps=30.0,
) -> HandMotion:  # fmt: skip
    """A motion of the default hand: translation (T, 2, 3) with NaN where no hand is emitted."""
    translation = np.asarray(translation, float)
    frames = len(translation)
    there = np.isfinite(translation).all(-1)
    gone = ~there
    model = model or CapsuleHand()
    betas = np.zeros((2, 10)) if betas is None else np.asarray(betas, float)
    orient = np.tile(np.eye(3), (frames, 2, 1, 1)) if orient is None else np.array(orient, float)
    pose = np.tile(FLAT, (frames, 2, 1, 1, 1)) if pose is None else np.array(pose, float)
    joints = np.stack(
        [model.joints(SIDES[s], orient[:, s], pose[:, s], betas[s]) for s in (0, 1)], axis=1
    )
    joints = joints + translation[:, :, None]
    orient[gone], pose[gone] = np.nan, np.nan
    presence = there.astype(float) if presence is None else np.asarray(presence, float)
    known = there & (presence > 0.5)
    image = np.full((frames, 2, 21, 2), np.nan) if anchors is None else np.asarray(anchors, float)
    return HandMotion(
        timestamps_ns=(np.arange(frames) * 1e9 / fps).astype(np.int64),
        fps=fps,
        presence=presence,
        visible=known.astype(float),
        quality=known.astype(float),
        observed=known,
        filled=np.zeros((frames, 2), bool),
        global_orient=orient,
        hand_pose=pose,
        betas=betas,
        translation=translation,
        joints_camera=joints,
        joints_image=image,
        hand_model="acehand",
        provenance=Provenance("made up", None, "test", settings=settings or {}),
        camera=camera,
    )


def still(frames, left=(-0.1, 0.0, 0.6), right=(0.1, 0.0, 0.6)) -> np.ndarray:
    """Translations of hands that stay; None for a hand that is not there."""
    gone = (np.nan,) * 3
    return np.tile([left or gone, right or gone], (frames, 1, 1)).astype(float)


def random_pair(seed, frames=4, camera=CAMERA):
    """A ground truth and a prediction of it with every kind of error, any of them out of sight."""
    rng = np.random.default_rng(seed)

    def place(spread):
        out = rng.normal(0, spread, (frames, 2, 3)) + np.array([0, 0, 0.5])
        out[rng.random((frames, 2)) < 0.15, 2] *= -1  # behind the camera
        return out

    def turn(*shape, scale):
        return rotations.exp(rng.normal(0, scale, (*shape, 3)))

    spread = rng.choice([0.05, 0.1, 0.5])
    truth_at = place(spread)
    truth_at[rng.random((frames, 2)) < 0.2] = np.nan
    orient, pose = turn(frames, 2, scale=1.0), turn(frames, 2, 15, scale=0.3)
    # A hand that is not given is absent, there without a label, or of unknown presence.
    presence = np.where(np.isnan(truth_at[..., 0]), rng.choice([0, 0, 0.5, 1], (frames, 2)), 1)
    truth = motion_of(truth_at, orient, pose, rng.normal(0, 1, (2, 10)), presence, camera)
    near = np.where(np.isnan(truth_at), place(spread), truth_at)
    near = near + rng.normal(0, rng.choice([0.01, 0.03, 0.1]), near.shape)
    if rng.random() < 0.3:
        near = near[:, ::-1].copy()  # hands exchanged
    near[rng.random((frames, 2)) < 0.2] = np.nan
    presence = np.where(np.isnan(near[..., 0]), 0.0, rng.choice([0.2, 0.9, 0.9, 0.9], (frames, 2)))
    anchors = rng.normal(100, 40, (frames, 2, 21, 2))
    anchors[rng.random((frames, 2, 21)) < 0.3] = np.nan
    guess = motion_of(
        near, orient @ turn(frames, 2, scale=0.3), pose @ turn(frames, 2, 15, scale=0.1),
        rng.normal(0, 1, (2, 10)), presence, camera, anchors=anchors,
    )  # fmt: skip
    return guess, truth


def renamed(motion: HandMotion, **changes) -> HandMotion:
    """The motion with other fields."""
    return replace(motion, **changes)
