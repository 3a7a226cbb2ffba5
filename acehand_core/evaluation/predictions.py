"""A folder of predictions: one HandMotion table per segment, checked before anything is scored."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from acehand_core.errors import InputError, SchemaError, nearest
from acehand_core.evaluation.models import HandLibrary
from acehand_core.motion import HandMotion
from acehand_core.recordings.hand_table import read_hand_motion
from acehand_core.types import SIDES

SUFFIX = ".parquet"
#: Joints and parameters of one hand may differ by this much: toolkits take other vertices as
#: fingertips and methods may change a hand's shape from frame to frame.
AGREEMENT_M = 0.03
_FIELDS = ("joints_camera", "global_orient", "hand_pose", "translation")


def find_predictions(folder: Path, segments: Collection[str]) -> dict[str, Path]:
    """Return the file of every segment; subfolders count, their names do not.

    Raises:
        InputError: no such folder, a segment without a file or with two, or a file of a segment
            that the list does not have. Each names the file or segment.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder of predictions.")
    found: dict[str, Path] = {}
    for path in sorted(folder.rglob(f"*{SUFFIX}")):
        name = path.name.removesuffix(SUFFIX)
        if name in found:
            raise InputError(
                f"{path}: segment {name!r} is predicted twice; the other file is {found[name]}."
            )
        found[name] = path
    missing = [name for name in segments if name not in found]
    unknown = [name for name in found if name not in set(segments)]
    if missing:
        hint = f" Unknown there: {', '.join(unknown[:3])}." if unknown else ""
        raise InputError(
            f"{folder}: {len(missing)} of {len(segments)} segments have no prediction, the first "
            f"is {missing[0]!r}; {missing[0]}{SUFFIX} is needed. Segments without any hand need a "
            f"file too.{hint}"
        )
    if unknown:
        raise InputError(
            f"{found[unknown[0]]}: no segment of the list is named {unknown[0]!r}; "
            f"{nearest(unknown[0], list(segments)[:8])}"
        )
    return found


def read_prediction(path: Path, truth: HandMotion, library: HandLibrary) -> HandMotion:
    """Read and check the prediction of one segment.

    Raises:
        SchemaError: naming file and field: not a HandMotion table, another number of frames,
            frames missing or out of order, other timestamps, joints relative to the wrist, NaN in
            a hand that is there, or joints that do not belong to the parameters (which also
            finds hands in the wrong slot).
    """
    motion = read_hand_motion(path)
    _check_frames(path)
    check_prediction(motion, truth, str(path), library)
    return motion


def check_prediction(
    motion: HandMotion, truth: HandMotion, where: str, library: HandLibrary
) -> None:
    """Raise SchemaError, naming ``where`` and the field, unless the motion can be scored."""
    if len(motion) != len(truth):
        raise SchemaError(
            f"{where}: 'frame' has {len(motion)} frames; the segment has {len(truth)}."
        )
    _check_times(motion, truth, where)
    if not motion.placed:
        raise SchemaError(
            f"{where}: 'placed' is false: joints are relative to the wrist. The protocol projects "
            "hands; joints in the camera frame are needed."
        )
    _check_numbers(motion, where)
    model = library.find(motion.hand_model, motion.left_shapedirs_fixed)
    if model is None:
        return
    for slot, side in enumerate(SIDES):
        rows = np.flatnonzero(np.isfinite(motion.joints_camera[:, slot]).all((-1, -2)))
        if not len(rows):
            continue
        posed = model.joints(
            side, motion.global_orient[rows, slot], motion.hand_pose[rows, slot],
            motion.betas[slot],
        ) + motion.translation[rows, slot, None]  # fmt: skip
        distance = np.linalg.norm(posed - motion.joints_camera[rows, slot], axis=-1).max(-1)
        worst = int(distance.argmax())
        if distance[worst] > AGREEMENT_M:
            raise SchemaError(
                f"{where}: 'joints_camera' of the {side} hand in frame {rows[worst]} is "
                f"{1e3 * distance[worst]:.0f} mm from what global_orient, hand_pose, betas and "
                f"translation give for a {side} {motion.hand_model} hand (at most "
                f"{1e3 * AGREEMENT_M:.0f} mm): another side, hand model, mean pose or frame."
            )


def _check_frames(path: Path) -> None:
    """Check the numbers of the frames, which the table's reader does not need."""
    try:
        frames = pq.read_table(path, columns=["frame"])["frame"].to_numpy()[::2]
    except pa.ArrowException as error:
        raise SchemaError(f"{path}: 'frame' cannot be read: {error}.") from error
    wrong = np.flatnonzero(np.diff(frames) != 1)
    if len(wrong):
        row = int(wrong[0])
        raise SchemaError(
            f"{path}: 'frame' jumps from {frames[row]} to {frames[row + 1]}; every frame of the "
            "segment is needed, in order."
        )


def _check_times(motion: HandMotion, truth: HandMotion, where: str) -> None:
    """Times must agree after the first frame's is taken away, to half a frame."""
    offset = (motion.timestamps_ns - motion.timestamps_ns[0]) - (
        truth.timestamps_ns - truth.timestamps_ns[0]
    )
    late = np.flatnonzero(np.abs(offset) > 0.5e9 / truth.fps)
    if len(late):
        raise SchemaError(
            f"{where}: 'timestamp_ns' of frame {late[0]} is {offset[late[0]] * 1e-6:.1f} ms from "
            "the segment's; these are not the segment's frames."
        )


def _check_numbers(motion: HandMotion, where: str) -> None:
    """A hand is either wholly there or wholly NaN, and an active one is there."""
    names = _FIELDS[:1] if motion.hand_model == "none" else _FIELDS
    whole = np.ones(motion.presence.shape, bool)
    for name in names:
        finite = np.isfinite(getattr(motion, name)).reshape(*whole.shape, -1)
        partly = finite.any(-1) & ~finite.all(-1)
        if partly.any():
            _refuse(where, name, partly, "is NaN in part")
        whole &= finite.all(-1)
    active = motion.presence > 0.5
    for name in names:
        gone = ~np.isfinite(getattr(motion, name)).reshape(*whole.shape, -1).all(-1)
        if (gone & active).any():
            _refuse(where, name, gone & active, "is NaN while presence is above 0.5")
        stray = gone & np.isfinite(motion.joints_camera).all((-1, -2))
        if stray.any():
            _refuse(where, name, stray, "is NaN while joints_camera is known")
    if motion.hand_model != "none" and not np.isfinite(motion.betas).all():
        raise SchemaError(f"{where}: 'betas' has NaN.")


def _refuse(where: str, name: str, rows: np.ndarray, what: str) -> None:
    frame, slot = np.argwhere(rows)[0]
    raise SchemaError(f"{where}: {name!r} of the {SIDES[slot]} hand in frame {frame} {what}.")
