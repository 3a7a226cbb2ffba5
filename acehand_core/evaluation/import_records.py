"""Hands as another method found them, any number per frame, and how they become a HandMotion.

Arrays of a user's file are read with their shapes checked; crops become whole images and mirrored
right hands left ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from acehand_core.errors import SchemaError, nearest
from acehand_core.evaluation.protocol import HandLibrary
from acehand_core.geometry.cameras import Camera
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

    # Per frame and slot the row of the highest score, of equals the first.
    order = np.lexsort((np.arange(len(hands.frame)), -hands.score, hands.slot, hands.frame))
    keys = np.stack([hands.frame[order], hands.slot[order]])
    first = np.ones(len(order), bool)
    first[1:] = (np.diff(keys, axis=1) != 0).any(0)
    keep = order[first]

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
    present = np.zeros((frames, 2), bool)
    filled = np.zeros((frames, 2), bool)
    score = np.zeros((frames, 2))
    present[at], score[at] = True, np.clip(hands.score[keep], 0, 1)
    if hands.filled is not None:
        filled[at] = hands.filled[keep]
    return HandMotion(
        timestamps_ns=truth.timestamps_ns,
        fps=truth.fps,
        presence=present.astype(float),
        visible=present.astype(float),
        quality=score,
        observed=present & ~filled,
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
    matrices = np.concatenate([hands.global_orient[:, None], hands.hand_pose], axis=1)
    off = np.abs(np.swapaxes(matrices, -1, -2) @ matrices - np.eye(3)).max(initial=0.0)

    if off > 1e-2 or (len(matrices) and np.linalg.det(matrices).min() < 0.9):
        raise SchemaError(
            f"{where}: 'global_orient' or 'hand_pose' holds matrices that are not rotations."
        )


def take(
    data: Mapping[str, Any], name: str, where: str, *shapes: tuple[int | None, ...]
) -> np.ndarray:
    """Return an array of finite or NaN numbers of one of the shapes; None stands for any length.

    Raises:
        SchemaError: naming ``where`` and the entry: missing, not numbers, or of another shape.
    """
    if name not in data:
        raise SchemaError(f"{where}: {name!r} is missing; {nearest(name, map(str, data))}")
    try:
        value = np.asarray(data[name], np.float64)
    except (TypeError, ValueError) as error:
        raise SchemaError(f"{where}: {name!r} must hold numbers ({error}).") from error
    for shape in shapes:
        fits = zip(value.shape, shape, strict=False)
        if value.ndim == len(shape) and all(n in (m, None) or m is None for m, n in fits):
            return value
    valid = " or ".join(str(tuple("N" if n is None else n for n in s)) for s in shapes)
    raise SchemaError(f"{where}: {name!r} has shape {value.shape}; {valid} is needed.")


def rows(value: np.ndarray, count: int, name: str, where: str) -> np.ndarray:
    """Return the array if its first axis has ``count`` entries. Raises SchemaError."""
    if len(value) != count:
        raise SchemaError(f"{where}: {name!r} has {len(value)} rows; {count} are needed.")
    return value


def every_frame(count: int, wanted: int, name: str, where: str) -> None:
    """Raise SchemaError unless an entry with a row per frame has all the segment's frames.

    Such an entry says no frame numbers: with one frame more or less, all would be scored against
    other frames than they were made of.
    """
    if count != wanted:
        raise SchemaError(
            f"{where}: {name!r} has {count} frames; the segment has {wanted}. Every frame needs a "
            "row, in order and at the segment's rate; NaN where there is no hand."
        )


def flags(value: np.ndarray, name: str, where: str) -> np.ndarray:
    """Return an array of zeros and ones as it is. Raises SchemaError for other numbers."""
    if not np.isin(value, (0, 1)).all():
        raise SchemaError(f"{where}: {name!r} must be 0 or 1.")
    return value


#: Mirrors x: left hands were seen as right hands by methods that own one hand model.
MIRROR = np.diag([-1.0, 1.0, 1.0])


def full_translation(
    pred_cam: Float[np.ndarray, "N 3"],
    box_center: Float[np.ndarray, "N 2"],
    box_size: Float[np.ndarray, "N"],
    right: Float[np.ndarray, "N"],
    camera: Camera,
) -> Float[np.ndarray, "N 3"]:
    """Return the translation of the hand model in the camera frame, metres.

    HaMeR, WiLoR and what follows them predict (s, tx, ty) of a square crop. A crop of side b at
    scale s sees the hand at depth 2 f / (b s); tx and ty are metres beside the box's centre, whose
    own offset follows from its distance to the principal point. The hand's size is the hand
    model's, so the depth is metric only with the camera's true focal length: it is taken from
    ``camera``, not from the file.

    Args:
        pred_cam: (s, tx, ty) as the network gave it, of the mirrored crop for a left hand.
        box_center, box_size: pixels of the whole image; the side after enlarging.
        right: 1 for right hands, 0 for left.
        camera: a pinhole.
    """
    sign = 2 * right - 1
    focal = 0.5 * (camera.fx + camera.fy)
    size = box_size * pred_cam[:, 0] + 1e-9
    offset = box_center - (camera.cx, camera.cy)
    x = sign * pred_cam[:, 1] + 2 * offset[:, 0] / size
    y = pred_cam[:, 2] + 2 * offset[:, 1] / size
    return np.stack([x, y, 2 * focal / size], axis=1)


def mirrored(rotation: Float[np.ndarray, "*batch 3 3"]) -> Float[np.ndarray, "*batch 3 3"]:
    """Return the rotation of the mirrored hand: y and z of its rotation vector change sign."""
    return MIRROR @ rotation @ MIRROR
