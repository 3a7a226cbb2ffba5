"""Hands of another method: conversion to a HandMotion, and the generic file of any method.

The generic file is an npz of MANO parameters, or of 21 joints, per segment (docs/evaluation.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from acehand_core.ace.evaluation.protocol import HandLibrary, rest_pose
from acehand_core.ace.labelled.readers.base import has_shape, numbers
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
    """N hands in one segment. Camera frame, metres; absolute rotations; MANO translations.

    Attributes:
        frame: of the segment, from 0.
        slot: 0 left, 1 right.
        score: of two hands in one slot and frame the higher is kept.
        betas: per hand; the motion has their mean, its joints each hand's.
        joints: 21 keypoints; None: posed by the hand model.
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
    """Return the hands as the motion of a segment, with times, rate and camera of its ground truth.

    Detected hands have presence 1: detection scores are not probabilities of existence. Slots
    without a hand, and rotations and translations of joints alone, are NaN.

    Raises:
        SchemaError: invalid frames or numbers, with ``where``.
        MissingDependencyError: posing joints needs MANO.
    """
    count = len(truth)
    _check(hands, count, where)

    # Per frame and slot the row of the highest score, the first of equals.
    order = np.lexsort((np.arange(len(hands.frame)), -hands.score, hands.slot, hands.frame))
    _, first = np.unique(2 * hands.frame[order] + hands.slot[order], return_index=True)
    keep = order[first]
    slots = hands.slot[keep]
    at = hands.frame[keep], slots

    def blank(*shape: int) -> np.ndarray:
        return np.full((count, 2, *shape), np.nan)

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

    present, score = np.zeros((count, 2), bool), np.zeros((count, 2))
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


def _check(hands: Hands, count: int, where: str) -> None:
    outside = (hands.frame < 0) | (hands.frame >= count)
    if outside.any():
        raise SchemaError(
            f"{where}: 'frame' {hands.frame[outside][0]}; the segment has 0 to {count - 1}."
        )

    for name in ("global_orient", "hand_pose", "betas", "translation", "joints", "score"):
        value = getattr(hands, name)
        if value is not None and not np.isfinite(value).all():
            raise SchemaError(f"{where}: {name!r} has NaN or infinite numbers.")

    matrices = np.concatenate([hands.global_orient[:, None], hands.hand_pose], axis=1)
    off = np.abs(np.swapaxes(matrices, -1, -2) @ matrices - np.eye(3)).max(initial=0.0)
    if off > 1e-2 or (len(matrices) and np.linalg.det(matrices).min() < 0.9):
        raise SchemaError(
            f"{where}: 'global_orient' or 'hand_pose' holds matrices that are not rotations."
        )


def take(
    data: Mapping[str, Any], name: str, where: str, *shapes: tuple[int | None, ...]
) -> np.ndarray:
    """Return an array of one of the shapes, NaN included; None is any length.

    Raises:
        SchemaError: missing, not numbers, or of another shape.
    """
    if name not in data:
        raise SchemaError(f"{where}: {name!r} is missing; {nearest(name, map(str, data))}")
    value = numbers(data[name], f"{where}: {name!r}")
    if any(has_shape(value, shape) for shape in shapes):
        return value
    valid = " or ".join(str(tuple("N" if n is None else n for n in s)) for s in shapes)
    raise SchemaError(f"{where}: {name!r} has shape {value.shape}; {valid} is needed.")


def every_frame(count: int, needed: int, name: str, where: str) -> None:
    """Raise SchemaError unless an entry without frame numbers has all the segment's frames."""
    if count != needed:
        raise SchemaError(
            f"{where}: {name!r} has {count} frames; the segment has {needed}. Every frame needs a "
            "row, in order and at the segment's rate; NaN without a hand."
        )


#: Mirrors x, for left hands seen as right hands by methods with one hand model.
MIRROR = np.diag([-1.0, 1.0, 1.0])


def rest_wrists(betas: Float[np.ndarray, "N 2 10"], model: HandModel) -> Float[np.ndarray, "N 2 3"]:
    """Return J0(betas) of a left and a right hand, metres."""
    flat = np.broadcast_to(np.eye(3), (len(betas), 15, 3, 3))
    eye = np.broadcast_to(np.eye(3), (len(betas), 3, 3))
    wrists = [model.joints(side, eye, flat, betas[:, s])[:, 0] for s, side in enumerate(SIDES)]
    return np.stack(wrists, axis=1)


def unmirrored(
    left: Bool[np.ndarray, "*batch"], rotation: Float[np.ndarray, "*any 3 3"]
) -> Float[np.ndarray, "*any 3 3"]:
    """Return rotations with those of ``left`` hands mirrored in x."""
    flip = left.reshape(left.shape + (1,) * (rotation.ndim - left.ndim))
    return np.where(flip, MIRROR @ rotation @ MIRROR, rotation)


#: Entries that state the convention. docs/evaluation.md describes them.
CONVENTIONS = ("flat_hand_mean", "left", "left_shapedirs_fixed", "translation", "unit",
               "joint_order")  # fmt: skip
#: Keypoints of the 16 joints of MANO's tree, then of the tips thumb to pinky.
_MANO_ORDER = (*TREE_TO_KEYPOINT, 4, 8, 12, 16, 20)


@dataclass(frozen=True, slots=True)
class Generic:
    """Reader of the generic file; ``known`` are conventions of a method that its file may omit."""

    known: Mapping[str, Any]

    def __call__(
        self, source: Path, segment: str, truth: HandMotion, library: HandLibrary
    ) -> tuple[Hands, list[str]]:
        """Return the hands of ``source/segment.npz``.

        Raises:
            InputError, SchemaError: the file or an entry is missing, unknown or malformed.
            MissingDependencyError: parameters need MANO.
        """
        data, where = load_segment(source, segment)
        stated = dict(self.known)
        for name in CONVENTIONS:
            if name in data:
                if data[name].size != 1:
                    raise SchemaError(f"{where}: {name!r} must be one value.")
                stated[name] = data[name].item()

        read = _joints if "joints" in data else _parameters
        return read(data, stated, where, len(truth), library), []


def load_segment(source: Path, segment: str) -> tuple[dict[str, np.ndarray], str]:
    """Return the arrays of ``source/segment.npz`` and its path for errors. Raises InputError."""
    path = source / f"{segment}.npz"
    if not path.is_file():
        raise InputError(f"{path}: no such file; each segment needs one, also without hands.")
    return safe_load_npz(path), str(path)


def _choice(stated: Mapping[str, Any], name: str, valid: tuple[str, ...], where: str) -> str:
    """Return a convention, which has no default."""
    if name not in stated:
        raise SchemaError(f"{where}: {name!r} is missing; valid: {', '.join(valid)}.")
    value = str(stated[name]).lower()
    if value not in valid:
        raise SchemaError(f"{where}: {name!r} is {value!r}; {nearest(value, valid)}")
    return value


def _flag(stated: Mapping[str, Any], name: str, where: str) -> bool:
    return _choice(stated, name, ("true", "false", "1", "0"), where) in ("true", "1")


def _present(data: Mapping[str, Any], values: np.ndarray, where: str) -> np.ndarray:
    """Return which hands exist: ``presence`` above one half, else finite values."""
    finite = np.isfinite(values).reshape(*values.shape[:2], -1).all(-1)
    if "presence" not in data:
        return finite
    there = take(data, "presence", where, values.shape[:2]) > 0.5
    if (there & ~finite).any():
        frame, slot = np.argwhere(there & ~finite)[0]
        raise SchemaError(f"{where}: the {SIDES[slot]} hand in frame {frame} has presence but NaN.")
    return there


def _metres(stated: Mapping[str, Any], where: str) -> float:
    return {"m": 1.0, "mm": 1e-3}[_choice(stated, "unit", ("m", "mm"), where)]


def _joints(
    data: Mapping[str, Any], stated: Mapping[str, Any], where: str, frames: int, _: HandLibrary
) -> Hands:
    """Return hands of 21 joints in the camera frame, without rotations."""
    joints = take(data, "joints", where, (None, 2, 21, 3)) * _metres(stated, where)
    every_frame(len(joints), frames, "joints", where)
    if _choice(stated, "joint_order", ("openpose", "mano"), where) == "mano":
        joints = joints[:, :, np.argsort(_MANO_ORDER)]
    there = _present(data, joints, where)
    frame, slot = np.nonzero(there)
    count = len(frame)
    eye = np.eye(3)
    turns = np.broadcast_to(eye, (count, 3, 3)), np.broadcast_to(eye, (count, 15, 3, 3))
    still = np.zeros((count, 10)), np.zeros((count, 3))
    return Hands(frame, slot, np.ones(count), *turns, *still, joints[there], "none", False)


def _parameters(
    data: Mapping[str, Any], stated: Mapping[str, Any], where: str, count: int, library: HandLibrary
) -> Hands:
    """Return hands of MANO parameters, converted to the camera frame and absolute rotations."""
    fixed = _flag(stated, "left_shapedirs_fixed", where)
    model = library.get("mano", fixed)
    orient = take(data, "global_orient", where, (None, 2, 3), (None, 2, 3, 3))
    orient = rotations.exp(orient) if orient.ndim == 3 else orient
    every_frame(len(orient), count, "global_orient", where)
    mirrored = _choice(stated, "left", ("true", "mirrored"), where) == "mirrored"

    pose = take(data, "hand_pose", where, (count, 2, 45), (count, 2, 15, 3), (count, 2, 15, 3, 3))
    if pose.ndim < 5:
        pose = pose.reshape(count, 2, 45)
        if not _flag(stated, "flat_hand_mean", where):
            mean = [rotations.log(rest_pose(model, side)).reshape(45) for side in SIDES]
            pose = pose + np.stack([mean[1] if mirrored else mean[0], mean[1]])
        pose = rotations.exp(pose.reshape(count, 2, 15, 3))

    betas = take(data, "betas", where, (2, 10), (count, 2, 10))
    betas = np.broadcast_to(betas, (count, 2, 10))
    translation = take(data, "transl", where, (count, 2, 3)) * _metres(stated, where)
    there = _present(data, translation, where)

    if mirrored:
        left = np.array([[True, False]])
        orient, pose = unmirrored(left, orient), unmirrored(left, pose)
        translation = np.where(left[..., None], translation @ MIRROR, translation)

    rest = rest_wrists(betas, model)
    if _choice(stated, "translation", ("mano", "wrist"), where) == "wrist":
        translation = translation - rest

    if "T_camera_world" in data:
        T = take(data, "T_camera_world", where, (count, 4, 4))
        T = np.broadcast_to(frames.rigid(T[:, :3, :3], T[:, :3, 3])[:, None], (count, 2, 4, 4))
        orient, translation = change_frame(T, orient, translation, rest)

    frame, slot = np.nonzero(there)
    placed = orient[there], pose[there], betas[there], translation[there]
    return Hands(frame, slot, np.ones(len(frame)), *placed, left_shapedirs_fixed=fixed)
