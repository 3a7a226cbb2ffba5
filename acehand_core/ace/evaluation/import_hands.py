"""Hands as another method detected them, any number per frame, and how they become a HandMotion.

``Generic`` reads the file that any method can write: an npz of MANO parameters, or of 21 joints,
per segment. Arrays of a user's file are read with their shapes checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from acehand_core.ace.evaluation.protocol import HandLibrary, rest_pose
from acehand_core.errors import InputError, SchemaError, nearest
from acehand_core.geometry import frames, rotations
from acehand_core.hand.mapping import change_frame
from acehand_core.hand.shape import HandModel
from acehand_core.hand.skeleton import TREE_TO_KEYPOINT
from acehand_core.motion import HandModelName, HandMotion
from acehand_core.provenance import Provenance
from acehand_core.safe_files import safe_load_npz
from acehand_core.types import SIDES


@dataclass(frozen=True, slots=True)
class Hands:
    """N hands in one segment. Camera frame, metres; rotations absolute; MANO translations.

    Attributes:
        frame: of the segment, from 0. slot: 0 left, 1 right. score: of two hands in one slot and
            frame the higher stays.
        betas: per hand; the motion gets their mean, its joints every frame's own.
        joints: 21 keypoints, or None to have the hand model pose them.
    """

    frame: Int[np.ndarray, "N"]
    slot: Int[np.ndarray, "N"]
    score: Float[np.ndarray, "N"]
    global_orient: Float[np.ndarray, "N 3 3"]
    hand_pose: Float[np.ndarray, "N 15 3 3"]
    betas: Float[np.ndarray, "N 10"]
    translation: Float[np.ndarray, "N 3"]
    joints: Float[np.ndarray, "N 21 3"] | None = None
    hand_model: HandModelName = "mano"
    left_shapedirs_fixed: bool = True


def to_motion(
    hands: Hands, truth: HandMotion, library: HandLibrary, provenance: Provenance, where: str
) -> HandMotion:
    """Return the hands as the motion of a segment; slots without a hand are NaN and absent.

    Times, rate and camera are those of the segment's ground truth. A hand that is there is
    present: these methods' detection scores are not probabilities of existence. Of joints alone
    rotations and translation stay NaN.

    Raises:
        SchemaError: naming ``where``: a frame or number that cannot be.
        MissingDependencyError: joints are to be posed and MANO is not configured.
    """
    frames = len(truth)
    _check(hands, frames, where)

    # Per frame and slot the row of the highest score, of equals the first.
    order = np.lexsort((np.arange(len(hands.frame)), -hands.score, hands.slot, hands.frame))
    _, first = np.unique(2 * hands.frame[order] + hands.slot[order], return_index=True)
    keep = order[first]
    slots = hands.slot[keep]
    at = hands.frame[keep], slots

    def blank(*shape: int) -> np.ndarray:
        return np.full((frames, 2, *shape), np.nan)

    orient, pose, translation, joints = blank(3, 3), blank(15, 3, 3), blank(3), blank(21, 3)
    if hands.hand_model != "none":
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

    present, score = np.zeros((frames, 2), bool), np.zeros((frames, 2))
    present[at], score[at] = True, np.clip(hands.score[keep], 0, 1)
    return HandMotion(
        timestamps_ns=truth.timestamps_ns,
        fps=truth.fps,
        presence=present.astype(float),
        visible=present.astype(float),
        quality=score,
        observed=present,
        filled=np.zeros_like(present),
        global_orient=orient,
        hand_pose=pose,
        betas=betas,
        translation=translation,
        joints_camera=joints,
        joints_image=blank(21, 2),
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
        if value.ndim == len(shape) and all(
            length in (None, actual) for actual, length in zip(value.shape, shape, strict=True)
        ):
            return value
    valid = " or ".join(str(tuple("N" if n is None else n for n in s)) for s in shapes)
    raise SchemaError(f"{where}: {name!r} has shape {value.shape}; {valid} is needed.")


def every_frame(count: int, needed: int, name: str, where: str) -> None:
    """Raise SchemaError unless an entry with a row per frame has all the segment's frames.

    Such an entry says no frame numbers: with one frame more or less, all would be scored against
    other frames than they were made of.
    """
    if count != needed:
        raise SchemaError(
            f"{where}: {name!r} has {count} frames; the segment has {needed}. Every frame needs a "
            "row, in order and at the segment's rate; NaN where there is no hand."
        )


#: Mirrors x: left hands were seen as right hands by methods that own one hand model.
MIRROR = np.diag([-1.0, 1.0, 1.0])


def rest_wrists(betas: Float[np.ndarray, "N 2 10"], model: HandModel) -> Float[np.ndarray, "N 2 3"]:
    """Return J0, metres: where a left and a right hand of these betas have their wrist at rest."""
    flat = np.broadcast_to(np.eye(3), (len(betas), 15, 3, 3))
    eye = np.broadcast_to(np.eye(3), (len(betas), 3, 3))
    wrists = [model.joints(side, eye, flat, betas[:, s])[:, 0] for s, side in enumerate(SIDES)]
    return np.stack(wrists, axis=1)


def mirrored(rotation: Float[np.ndarray, "*batch 3 3"]) -> Float[np.ndarray, "*batch 3 3"]:
    """Return the rotation of the mirrored hand: y and z of its rotation vector change sign."""
    return MIRROR @ rotation @ MIRROR


#: Entries that say what the numbers mean. docs/evaluation.md describes them.
CONVENTIONS = ("flat_hand_mean", "left", "left_shapedirs_fixed", "translation", "unit",
               "joint_order")  # fmt: skip
#: The 16 joints of MANO's tree, then the tips thumb to pinky, as keypoints.
_MANO_ORDER = (*TREE_TO_KEYPOINT, 4, 8, 12, 16, 20)


@dataclass(frozen=True, slots=True)
class Generic:
    """Reads the generic format; ``known`` are conventions of a method that its file may omit."""

    known: Mapping[str, Any]

    def __call__(
        self, source: Path, segment: str, truth: HandMotion, library: HandLibrary
    ) -> tuple[Hands, list[str]]:
        """Return the hands of ``source/segment.npz``.

        Raises:
            InputError, SchemaError: no such file, or an entry is missing, unknown or malformed.
            MissingDependencyError: parameters need MANO and it is not configured.
        """
        path = source / f"{segment}.npz"
        if not path.is_file():
            raise InputError(f"{path}: no such file; every segment needs one.")
        data = safe_load_npz(path)

        says = dict(self.known)
        for name in CONVENTIONS:
            if name in data:
                value = np.asarray(data[name])
                if value.size != 1:
                    raise SchemaError(f"{path}: {name!r} must be one value.")
                says[name] = value.item()

        if "joints" in data:
            return _joints(data, says, str(path), len(truth)), []
        return _parameters(data, says, str(path), len(truth), library), []


def _choice(says: Mapping[str, Any], name: str, valid: tuple[str, ...], where: str) -> str:
    """Return a convention that must be stated; the first valid value is not a default."""
    if name not in says:
        raise SchemaError(f"{where}: {name!r} must say which it is; valid: {', '.join(valid)}.")
    value = str(says[name]).lower()
    if value not in valid:
        raise SchemaError(f"{where}: {name!r} is {value!r}; {nearest(value, valid)}")
    return value


def _flag(says: Mapping[str, Any], name: str, where: str) -> bool:
    return _choice(says, name, ("true", "false", "1", "0"), where) in ("true", "1")


def _present(data: Mapping[str, Any], values: np.ndarray, where: str) -> np.ndarray:
    """Return which hands are there: ``presence`` above one half, else what is not NaN."""
    finite = np.isfinite(values).reshape(*values.shape[:2], -1).all(-1)
    if "presence" not in data:
        return finite
    there = take(data, "presence", where, values.shape[:2]) > 0.5
    if (there & ~finite).any():
        frame, slot = np.argwhere(there & ~finite)[0]
        raise SchemaError(f"{where}: the {SIDES[slot]} hand in frame {frame} has presence but NaN.")
    return there


def _metres(says: Mapping[str, Any], where: str) -> float:
    return {"m": 1.0, "mm": 1e-3}[_choice(says, "unit", ("m", "mm"), where)]


def _joints(data: Mapping[str, Any], says: Mapping[str, Any], where: str, frames: int) -> Hands:
    """Return 21 joints in the camera frame; rotations stay unknown."""
    joints = take(data, "joints", where, (None, 2, 21, 3)) * _metres(says, where)
    every_frame(len(joints), frames, "joints", where)
    if _choice(says, "joint_order", ("openpose", "mano"), where) == "mano":
        joints = joints[:, :, np.argsort(_MANO_ORDER)]
    there = _present(data, joints, where)
    frame, slot = np.nonzero(there)
    count = len(frame)
    return Hands(
        frame, slot, np.ones(count), np.broadcast_to(np.eye(3), (count, 3, 3)),
        np.broadcast_to(np.eye(3), (count, 15, 3, 3)), np.zeros((count, 10)),
        np.zeros((count, 3)), joints[there], hand_model="none", left_shapedirs_fixed=False,
    )  # fmt: skip


def _parameters(
    data: Mapping[str, Any], says: Mapping[str, Any], where: str, count: int, library: HandLibrary
) -> Hands:
    """Return MANO parameters brought to absolute rotations and MANO translations in the camera."""
    fixed = _flag(says, "left_shapedirs_fixed", where)
    model = library.get("mano", fixed)
    orient = take(data, "global_orient", where, (None, 2, 3), (None, 2, 3, 3))
    orient = rotations.exp(orient) if orient.ndim == 3 else orient
    every_frame(len(orient), count, "global_orient", where)

    pose = take(data, "hand_pose", where, (count, 2, 45), (count, 2, 15, 3), (count, 2, 15, 3, 3))
    if pose.ndim < 5:
        pose = pose.reshape(count, 2, 45)
        if not _flag(says, "flat_hand_mean", where):
            mean = [rotations.log(rest_pose(model, side)).reshape(45) for side in SIDES]
            if _choice(says, "left", ("true", "mirrored"), where) == "mirrored":
                mean[0] = mean[1]
            pose = pose + np.stack(mean)
        pose = rotations.exp(pose.reshape(count, 2, 15, 3))

    betas = take(data, "betas", where, (2, 10), (count, 2, 10))
    betas = np.broadcast_to(betas, (count, 2, 10))
    translation = take(data, "transl", where, (count, 2, 3)) * _metres(says, where)
    there = _present(data, translation, where)

    if _choice(says, "left", ("true", "mirrored"), where) == "mirrored":
        orient, pose, translation = orient.copy(), pose.copy(), translation.copy()
        orient[:, 0], pose[:, 0] = mirrored(orient[:, 0]), mirrored(pose[:, 0])
        translation[:, 0] = translation[:, 0] @ MIRROR

    rest = rest_wrists(betas, model)
    if _choice(says, "translation", ("mano", "wrist"), where) == "wrist":
        translation = translation - rest

    if "T_camera_world" in data:
        T = take(data, "T_camera_world", where, (count, 4, 4))
        T = np.broadcast_to(frames.rigid(T[:, :3, :3], T[:, :3, 3])[:, None], (count, 2, 4, 4))
        orient, translation = change_frame(T, orient, translation, rest)

    frame, slot = np.nonzero(there)
    return Hands(
        frame, slot, np.ones(len(frame)), orient[there], pose[there], betas[there],
        translation[there], left_shapedirs_fixed=fixed,
    )  # fmt: skip
