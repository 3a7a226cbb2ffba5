"""From MANO numbers as a dataset stores them to the camera frame, metres and absolute rotations.

Three things need the user's own MANO files: the mean pose and the principal components (they are
stored there), the rest wrist J0(betas) about which a hand turns when its frame changes, and joints.
Without the files only what is exact is kept; the rest is NaN, which the findings report.
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
    Side,
)

#: Gives the user's MANO with (True) or without repaired left shape directions.
ManoSource = Callable[[bool], ManoHand]
_MIDDLE_KNUCKLE = 9
_BETA_SPREAD = 1e-4  # betas that differ by less are one shape, written with few digits


@dataclass(frozen=True, slots=True)
class CameraHands:
    """Labels in the camera frame; NaN where a hand is absent or a value is not known.

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
        """Return ``count`` frames in which nothing is known; betas are 0."""

        def blank(*shape: int) -> np.ndarray:
            return np.full((count, 2, *shape), np.nan)

        return cls(
            blank(3, 3), blank(15, 3, 3), np.zeros((2, 10)), blank(3), blank(21, 3),
            left_shapedirs_fixed,
        )  # fmt: skip


def to_camera(track: ManoTrack, mano: ManoSource | None) -> CameraHands:
    """Return a dataset's MANO labels in the camera frame.

    With ``mano`` everything is known where a hand is present. Without it: orientations always;
    finger rotations where the dataset stores absolute ones; translations where they are MANO's and
    already in the camera frame; joints never.
    """
    convention = track.convention
    fixed = bool(convention.left_shapedirs_fixed)
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
    for slot, side in enumerate(SIDES):
        rows = np.flatnonzero(track.present[:, slot])
        if len(rows):
            findings += _convert_side(track, hand, slot, side, rows, hands)
    return replace(hands, findings=tuple(findings))


def _convert_side(
    track: ManoTrack, hand: ManoHand | None, slot: int, side: Side, rows: np.ndarray,
    hands: CameraHands,
) -> list[str]:  # fmt: skip
    """Fill one hand's rows of ``hands``; return the findings."""
    findings = []
    orient, betas = track.global_orient[rows, slot], track.betas[rows, slot]
    hands.betas[slot] = np.median(betas, axis=0)
    pose = _finger_rotations(track, hand, slot, side, rows)

    transform = None if track.T_camera_world is None else track.T_camera_world[rows]
    if hand is None:
        camera_orient = orient if transform is None else transform[:, :3, :3] @ orient
        translation = track.translation[rows, slot]
        if transform is not None or track.convention.translation != "mano":
            translation = np.full_like(translation, np.nan)
    else:
        wrist = _rest_wrist(hand, side, betas)
        translation = _model_translation(track, hand, slot, side, rows, pose, wrist)
        camera_orient = orient
        if transform is not None:
            camera_orient, translation = change_frame(transform, orient, translation, wrist)
        joints = hand.joints(side, camera_orient, pose, betas).astype(float) + translation[:, None]
        hands.joints_camera[rows, slot] = joints
        if np.ptp(betas, axis=0).max() > _BETA_SPREAD:
            # A recording has one shape: the wrist stays where the label put it.
            translation = translation + wrist - _rest_wrist(hand, side, hands.betas[slot][None])
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
    track: ManoTrack, hand: ManoHand | None, slot: int, side: Side, rows: np.ndarray
) -> np.ndarray:
    stored, kind = track.fingers[rows, slot], track.convention.fingers
    if kind == "rotations":
        return stored
    if hand is None:
        if kind == "vectors" and track.convention.flat_hand_mean:
            return rotations.exp(stored.reshape(-1, 15, 3))
        return np.full((len(rows), 15, 3, 3), np.nan)
    vectors = stored if kind == "vectors" else hand.expand_pca(side, stored)
    return hand.absolute_pose(side, vectors, track.convention.flat_hand_mean)


def _model_translation(
    track: ManoTrack, hand: ManoHand, slot: int, side: Side, rows: np.ndarray, pose: np.ndarray,
    wrist: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """Return MANO's translation in the frame of the labels."""
    stored, kind = track.translation[rows, slot], track.convention.translation
    if kind == "mano":
        return stored
    if kind == "wrist":
        return stored - wrist
    betas = track.betas[rows, slot]
    joints = hand.joints(side, track.global_orient[rows, slot], pose, betas).astype(float)
    return stored - joints[:, _MIDDLE_KNUCKLE]


def _rest_wrist(
    hand: ManoHand, side: Side, betas: Float[np.ndarray, "N 10"]
) -> Float[np.ndarray, "N 3"]:
    mean, gradients = rest_shape(hand, side)
    return mean[0] + betas @ gradients[:, 0]
