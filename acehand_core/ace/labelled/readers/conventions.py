"""Conversion of stored MANO labels to the camera frame, metres and absolute rotations.

Three things need the user's MANO files: mean pose and principal components, the rest wrist
J0(betas) about which a hand turns when its frame changes, and joints. Without the files, what needs
them is NaN and reported in the findings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from acehand_core.ace.labelled.readers.base import ManoTrack
from acehand_core.geometry import rotations
from acehand_core.hand.mano import ManoHand
from acehand_core.hand.mapping import change_frame
from acehand_core.hand.shape import rest_shape
from acehand_core.types import (
    SIDES,
    BothBetas,
    FingerRotations,
    JointsCamera,
    PointCamera,
    RotationsCamera,
)

#: Returns the user's MANO with (True) or without repaired left shape directions.
ManoSource = Callable[[bool], ManoHand]
_MIDDLE_KNUCKLE = 9
_BETA_SPREAD = 1e-4  # rounding of one shape


@dataclass(frozen=True, slots=True)
class CameraHands:
    """Labels in the camera frame; NaN for absent hands and unknown values.

    ``joints_camera = hand(global_orient, hand_pose, betas) + translation`` wherever all are known.
    """

    global_orient: RotationsCamera
    hand_pose: FingerRotations
    betas: BothBetas
    translation: PointCamera
    joints_camera: JointsCamera
    left_shapedirs_fixed: bool
    findings: tuple[str, ...] = ()

    @classmethod
    def unknown(cls, count: int, left_shapedirs_fixed: bool) -> CameraHands:
        """Return ``count`` frames of unknown hands with betas 0."""
        shapes = ((3, 3), (15, 3, 3), (3,), (21, 3))
        orient, pose, place, joints = (np.full((count, 2, *s), np.nan) for s in shapes)
        return cls(orient, pose, np.zeros((2, 10)), place, joints, left_shapedirs_fixed)


def to_camera(track: ManoTrack, mano: ManoSource | None, one_shape: bool = True) -> CameraHands:
    """Return MANO labels in the camera frame.

    Everything is known with ``mano``. Without it: orientations; finger rotations stored as absolute
    ones; MANO translations stored in the camera frame; no joints.

    ``one_shape``: joints of changing betas are those of the median shape; else each of its own,
    and betas the mean.
    """
    fixed = bool(track.convention.left_shapedirs_fixed)
    hand = None if mano is None else mano(fixed)

    findings = []
    if track.convention.left_shapedirs_fixed is None and track.present[:, 0].any():
        findings.append(
            "the dataset does not say whether left betas belong to repaired left shape directions; "
            "they are taken as not repaired."
        )
    if hand is None and track.present.any():
        findings.append(
            "converted without MANO files: joints, and what needs MANO's mean pose or rest wrist, "
            "are missing; run the same command with them to complete the clip."
        )

    if track.T_camera_world is not None:
        rotation = track.T_camera_world[:, :3, :3]
        rotation = rotation[np.isfinite(rotation).all((-1, -2))]
        error = np.abs(rotation @ np.swapaxes(rotation, -1, -2) - np.eye(3)).max(initial=0)
        if error > 1e-3 or (np.linalg.det(rotation) < 0).any():
            findings.append(f"camera poses are not rigid: they are off by up to {error:.3g}.")

    hands = CameraHands.unknown(len(track.present), fixed)
    for slot in range(2):
        rows = np.flatnonzero(track.present[:, slot])
        if len(rows):
            findings += _convert_side(track, hand, slot, rows, hands, one_shape)
    return replace(hands, findings=tuple(findings))


def _convert_side(
    track: ManoTrack, hand: ManoHand | None, slot: int, rows: np.ndarray, hands: CameraHands,
    one_shape: bool,
) -> list[str]:  # fmt: skip
    """Fill one hand's rows of ``hands``; return the findings."""
    findings, side = [], SIDES[slot]
    orient, betas = track.global_orient[rows, slot], track.betas[rows, slot]
    hands.betas[slot] = (np.median if one_shape else np.mean)(betas, axis=0)
    pose = _finger_rotations(track, hand, slot, rows)

    transform = None if track.T_camera_world is None else track.T_camera_world[rows]
    if hand is None:
        camera_orient = orient if transform is None else transform[:, :3, :3] @ orient
        translation = track.translation[rows, slot]
        if transform is not None or track.convention.translation != "mano":
            translation = np.full_like(translation, np.nan)
    else:
        wrist = _rest_wrist(hand, slot, betas)
        translation = track.translation[rows, slot]
        if track.convention.translation == "wrist":
            translation = translation - wrist
        elif track.convention.translation == "middle_knuckle":
            posed = hand.joints(side, orient, pose, betas).astype(float)
            translation = translation - posed[:, _MIDDLE_KNUCKLE]
        camera_orient = orient
        if transform is not None:
            camera_orient, translation = change_frame(transform, orient, translation, wrist)
        joints = hand.joints(side, camera_orient, pose, betas).astype(float) + translation[:, None]
        hands.joints_camera[rows, slot] = joints
        if one_shape and np.ptp(betas, axis=0).max() > _BETA_SPREAD:
            # A recording has one shape: the wrist stays where the label put it.
            translation = translation + wrist - _rest_wrist(hand, slot, hands.betas[slot][None])
            reshaped = hand.joints(side, camera_orient, pose, hands.betas[slot]).astype(float)
            distance = np.linalg.norm(reshaped + translation[:, None] - joints, axis=-1).max()
            hands.joints_camera[rows, slot] = reshaped + translation[:, None]
            findings.append(
                f"{side} betas change over the recording by up to {np.ptp(betas, axis=0).max():.3g}"
                f"; the median shape is used, which moves a joint by at most {distance * 1e3:.2f} "
                "mm."
            )

    hands.global_orient[rows, slot] = camera_orient
    hands.hand_pose[rows, slot] = pose
    hands.translation[rows, slot] = translation

    return findings


def _finger_rotations(
    track: ManoTrack, hand: ManoHand | None, slot: int, rows: np.ndarray
) -> np.ndarray:
    stored, kind = track.fingers[rows, slot], track.convention.fingers
    if kind == "rotations":
        return stored
    if hand is None:
        if kind == "vectors" and track.convention.flat_hand_mean:
            return rotations.exp(stored.reshape(-1, 15, 3))
        return np.full((len(rows), 15, 3, 3), np.nan)
    vectors = stored if kind == "vectors" else hand.expand_pca(SIDES[slot], stored)
    return hand.absolute_pose(SIDES[slot], vectors, track.convention.flat_hand_mean)


def _rest_wrist(
    hand: ManoHand, slot: int, betas: Float[np.ndarray, "N 10"]
) -> Float[np.ndarray, "N 3"]:
    mean, gradients = rest_shape(hand, SIDES[slot])
    return mean[0] + betas @ gradients[:, 0]
