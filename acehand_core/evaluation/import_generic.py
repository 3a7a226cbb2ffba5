"""Any method: an npz or parquet of MANO parameters, or of 21 joints, per segment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from acehand_core.errors import InputError, SchemaError, nearest
from acehand_core.evaluation.import_records import MIRROR, Hands, every_frame, mirrored, take
from acehand_core.evaluation.protocol import HandLibrary, rest_pose
from acehand_core.files.safe_files import safe_load_npz
from acehand_core.geometry import frames, rotations
from acehand_core.hand.mapping import change_frame
from acehand_core.hand.skeleton import TREE_TO_KEYPOINT
from acehand_core.motion import HandMotion
from acehand_core.types import SIDES

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
        """Return the hands of ``source/segment.npz`` or ``.parquet``.

        Raises:
            InputError, SchemaError: no such file, or an entry is missing, unknown or malformed.
            MissingDependencyError: parameters need MANO and it is not configured.
        """
        path = source / f"{segment}.npz"
        if not path.is_file():
            path = source / f"{segment}.parquet"
        if not path.is_file():
            raise InputError(f"{path}: no such file, nor {segment}.npz; every segment needs one.")
        data = safe_load_npz(path) if path.suffix == ".npz" else _read_parquet(path, len(truth))

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
    """Return a convention that must be said; the first valid value is no default."""
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
    eye = np.full((count, 3, 3), np.nan)
    return Hands(
        frame, slot, np.ones(count), np.broadcast_to(np.eye(3), eye.shape),
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

    flat = np.broadcast_to(np.eye(3), (count, 15, 3, 3))
    eye = np.broadcast_to(np.eye(3), (count, 3, 3))
    rest = np.stack(
        [model.joints(side, eye, flat, betas[:, s])[:, 0] for s, side in enumerate(SIDES)], axis=1
    )
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


def _read_parquet(path: Path, count: int) -> dict[str, Any]:
    """Return columns ``frame``, ``hand`` and lists of numbers as arrays (T, 2, ...).

    Conventions stand in the key-value metadata under their names.
    """
    try:
        table = pq.read_table(path)
        columns = {name: table[name].to_pylist() for name in table.column_names}
    except (OSError, pa.ArrowException) as error:
        raise SchemaError(f"{path}: not a readable parquet file ({error}).") from error

    for name in ("frame", "hand"):
        if name not in columns:
            raise SchemaError(f"{path}: column {name!r} is missing.")

    frame = take({"frame": columns.pop("frame")}, "frame", str(path), (None,)).astype(np.int64)
    hand = columns.pop("hand")
    for row, (f, side) in enumerate(zip(frame, hand, strict=True)):
        if side not in SIDES or not 0 <= f < count:
            raise SchemaError(
                f"{path}: row {row} is of hand {side!r} in frame {f}; valid: left or right, "
                f"0 to {count - 1}."
            )

    slot = np.array([SIDES.index(side) for side in hand], np.int64)
    if len({(f, s) for f, s in zip(frame, slot, strict=True)}) < len(frame):
        raise SchemaError(f"{path}: a hand has two rows in one frame.")
    out: dict[str, Any] = {}
    presence = np.zeros((count, 2))
    presence[frame, slot] = 1

    for name, values in columns.items():
        flat = take({name: values}, name, str(path), (None,), (None, None))
        whole = np.full((count, 2, *flat.shape[1:]), np.nan)
        whole[frame, slot] = flat
        out[name] = whole

    out.setdefault("presence", presence)
    if "joints" in out:
        whole = out["joints"]
        if whole.ndim != 3 or whole.shape[2] != 63:
            have = f"lists of {whole.shape[2]}" if whole.ndim == 3 else "single"
            raise SchemaError(
                f"{path}: column 'joints' holds {have} numbers; lists of 63 are needed, x, y and z "
                "of 21 joints."
            )
        out["joints"] = whole.reshape(count, 2, 21, 3)

    out["presence"] = np.nan_to_num(out["presence"])
    if "betas" in out:
        out["betas"] = np.nan_to_num(out["betas"])

    for key, value in (table.schema.metadata or {}).items():
        if key.decode("utf-8", "replace") in CONVENTIONS:
            out[key.decode()] = value.decode("utf-8", "replace")
    return out
