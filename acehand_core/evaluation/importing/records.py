"""Hands as another method found them, any number per frame, and how they become a HandMotion."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from acehand_core.errors import SchemaError
from acehand_core.evaluation.models import HandLibrary
from acehand_core.motion import HandModelName, HandMotion, Provenance
from acehand_core.types import SIDES, JointsImage


@dataclass(frozen=True, slots=True)
class Hands:
    """N hands in one segment. Camera frame, metres; rotations absolute; MANO translations.

    Attributes:
        frame: of the segment, from 0. slot: 0 left, 1 right. score: of two hands in one slot and
            frame the higher stays.
        betas: per hand; the motion gets their mean, its joints every frame's own.
        joints: 21 keypoints, or None to have the hand model pose them.
        filled: written by gap filling rather than seen.
    """

    frame: Int[np.ndarray, "N"]
    slot: Int[np.ndarray, "N"]
    score: Float[np.ndarray, "N"]
    global_orient: Float[np.ndarray, "N 3 3"]
    hand_pose: Float[np.ndarray, "N 15 3 3"]
    betas: Float[np.ndarray, "N 10"]
    translation: Float[np.ndarray, "N 3"]
    joints: Float[np.ndarray, "N 21 3"] | None = None
    filled: Bool[np.ndarray, "N"] | None = None
    hand_model: HandModelName = "mano"
    left_shapedirs_fixed: bool = True


def to_motion(
    hands: Hands,
    truth: HandMotion,
    library: HandLibrary,
    provenance: Provenance,
    where: str,
    joints_image: JointsImage | None = None,
) -> HandMotion:
    """Return the hands as the motion of a segment; slots without a hand are NaN and absent.

    Times, rate and camera are those of the segment's ground truth. A hand that is there is
    present: these methods' detection scores are no probabilities of existence.

    Raises:
        SchemaError: naming ``where``: a frame or number that cannot be.
        MissingDependencyError: joints are to be posed and MANO is not configured.
    """
    frames = len(truth)
    _check(hands, frames, where)
    keep = _best(hands)
    slots = hands.slot[keep]
    at = hands.frame[keep], slots

    def blank(*shape: int) -> np.ndarray:
        return np.full((frames, 2, *shape), np.nan)

    orient, pose, translation, joints = blank(3, 3), blank(15, 3, 3), blank(3), blank(21, 3)
    orient[at], pose[at] = hands.global_orient[keep], hands.hand_pose[keep]
    translation[at] = hands.translation[keep]
    betas = np.zeros((2, 10))
    if hands.joints is not None:
        joints[at] = hands.joints[keep]
    for slot, side in enumerate(SIDES):
        rows = keep[slots == slot]
        if not len(rows):
            continue
        betas[slot] = hands.betas[rows].mean(0)
        if hands.joints is None:
            model = library.get(hands.hand_model, hands.left_shapedirs_fixed)
            posed = model.joints(
                side, hands.global_orient[rows], hands.hand_pose[rows], hands.betas[rows]
            )
            joints[hands.frame[rows], slot] = posed + hands.translation[rows, None]
    there = np.zeros((frames, 2), bool)
    filled = np.zeros((frames, 2), bool)
    score = np.zeros((frames, 2))
    there[at], score[at] = True, np.clip(hands.score[keep], 0, 1)
    if hands.filled is not None:
        filled[at] = hands.filled[keep]
    return HandMotion(
        timestamps_ns=truth.timestamps_ns,
        fps=truth.fps,
        presence=there.astype(float),
        visible=there.astype(float),
        quality=score,
        observed=there & ~filled,
        filled=filled,
        global_orient=orient,
        hand_pose=pose,
        betas=betas,
        translation=translation,
        joints_camera=joints,
        joints_image=np.full((frames, 2, 21, 2), np.nan) if joints_image is None else joints_image,
        hand_model=hands.hand_model,
        left_shapedirs_fixed=hands.left_shapedirs_fixed,
        provenance=provenance,
        camera=truth.camera,
    )


def _check(hands: Hands, frames: int, where: str) -> None:
    outside = (hands.frame < 0) | (hands.frame >= frames)
    if outside.any():
        raise SchemaError(
            f"{where}: 'frame' {hands.frame[outside][0]}; the segment has 0 to {frames - 1}."
        )
    for name in ("global_orient", "hand_pose", "betas", "translation", "joints", "score"):
        value = getattr(hands, name)
        if value is not None and not np.isfinite(value).all():
            raise SchemaError(f"{where}: {name!r} has values that are not finite.")
    if hands.hand_model == "none":
        return
    turns = np.concatenate([hands.global_orient[:, None], hands.hand_pose], axis=1)
    off = np.abs(np.swapaxes(turns, -1, -2) @ turns - np.eye(3)).max(initial=0.0)
    if off > 1e-2 or (len(turns) and np.linalg.det(turns).min() < 0.9):
        raise SchemaError(
            f"{where}: 'global_orient' or 'hand_pose' holds matrices that are no rotations."
        )


def _best(hands: Hands) -> Int[np.ndarray, "M"]:
    """Return per frame and slot the row of the highest score, of equals the first."""
    order = np.lexsort((np.arange(len(hands.frame)), -hands.score, hands.slot, hands.frame))
    keys = np.stack([hands.frame[order], hands.slot[order]])
    first = np.ones(len(order), bool)
    first[1:] = (np.diff(keys, axis=1) != 0).any(0)
    return order[first]
