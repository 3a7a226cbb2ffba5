"""Dyn-HaMR: the npz of its optimisation, world to camera, mirrored left hands."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from acehand_core.data.safe_files import safe_load_npz
from acehand_core.errors import InputError, SchemaError
from acehand_core.evaluation.importing.arrays import every_frame, flags, rows, take
from acehand_core.evaluation.importing.crops import MIRROR, mirrored
from acehand_core.evaluation.importing.records import Hands
from acehand_core.evaluation.models import HandLibrary
from acehand_core.geometry import frames, rotations
from acehand_core.hand.mapping import change_frame
from acehand_core.motion import HandMotion

_RESULT = re.compile(r".*_(\d{6})_.*results\.npz")


def read_dynhamr(
    source: Path, segment: str, truth: HandMotion, library: HandLibrary
) -> tuple[Hands, list[str]]:
    """Return the hands of ``source/segment.npz``, or of the last result in ``source/segment/``.

    B tracks over T frames. Hands run through the right MANO; those with ``is_right`` 0 are mirrored
    in x after their translation is added. Points of a camera are ``cam_R p + cam_t``, and the turn
    goes about the rest wrist, so MANO is needed.

    Raises:
        InputError, SchemaError: no such file, or an entry is missing or malformed.
        MissingDependencyError: MANO is not configured.
    """
    path = _file(source, segment)
    data, where = safe_load_npz(path), str(path)
    orient = take(data, "root_orient", where, (None, None, 3))
    tracks, count = orient.shape[:2]
    every_frame(count, len(truth), "root_orient", where)  # its videos default to 25 per second
    name = next((n for n in ("pose_body", "latent_pose") if n in data), "pose_body")
    pose = rows(take(data, name, where, (None, count, 45), (None, count, 15, 3)), tracks, name,
                where)  # fmt: skip

    def entry(name: str, *tail: int) -> np.ndarray:
        return rows(take(data, name, where, (None, *tail)), tracks, name, where)

    right = flags(entry("is_right", count), "is_right", where)
    betas = np.broadcast_to(entry("betas", 10)[:, None], (tracks, count, 10))
    left = right == 0
    turn = rotations.exp(orient)
    bend = rotations.exp(pose.reshape(tracks, count, 15, 3))
    turn = np.where(left[..., None, None], mirrored(turn), turn)
    bend = np.where(left[..., None, None, None], mirrored(bend), bend)
    trans = entry("trans", count, 3)
    trans = np.where(left[..., None], trans @ MIRROR, trans)
    T_camera_world = frames.rigid(entry("cam_R", count, 3, 3), entry("cam_t", count, 3))
    turn, trans = change_frame(T_camera_world, turn, trans, _rest_wrists(betas, right, library))
    frame = np.broadcast_to(np.arange(count), (tracks, count))
    valid = np.isfinite(trans).all(-1) & np.isfinite(turn).all((-1, -2))
    hands = Hands(
        frame[valid], right[valid].astype(np.int64), np.ones(int(valid.sum())), turn[valid],
        bend[valid], betas[valid], trans[valid],
    )  # fmt: skip
    return hands, [f"read from {path.name}; spans that it filled in are not marked there"]


def _rest_wrists(betas: np.ndarray, right: np.ndarray, library: HandLibrary) -> np.ndarray:
    """Return J0 of every hand, metres: where a hand of these betas has its wrist at rest."""
    model = library.get("mano", True)
    flat = np.broadcast_to(np.eye(3), (len(betas), 15, 3, 3))
    eye = np.broadcast_to(np.eye(3), (len(betas), 3, 3))
    both = [model.joints(side, eye, flat, betas[:, 0])[:, 0] for side in ("left", "right")]
    return np.where(right[..., None] == 1, both[1][:, None], both[0][:, None])


def _file(source: Path, segment: str) -> Path:
    single, folder = source / f"{segment}.npz", source / segment
    if single.is_file():
        return single
    numbered = [(int(found[1]), p) for p in sorted(folder.rglob("*results.npz"))
                if (found := _RESULT.fullmatch(p.name))]  # fmt: skip
    if not numbered:
        raise InputError(
            f"{single}: no such file, and no <name>_<iteration>_<stage>_results.npz in {folder}."
        )
    stages = {path.parent for _, path in numbered}
    if len(stages) > 1:
        raise SchemaError(
            f"{folder}: results of several stages ({', '.join(sorted(p.name for p in stages))}); "
            f"copy the one to score to {single}."
        )
    return max(numbered)[1]
