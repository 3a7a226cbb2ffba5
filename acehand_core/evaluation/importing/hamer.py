"""HaMeR, WiLoR and Hamba: one npz of crops per segment, dumped before their renderers.

Their demos write pictures and meshes only, so a user saves what the model returned; docs/evaluation
shows how. All three predict the same dictionary; a left hand is a mirrored right one.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from acehand_core.data.safe_files import safe_load_npz
from acehand_core.errors import InputError
from acehand_core.evaluation.importing.arrays import flags, rows, take
from acehand_core.evaluation.importing.crops import MIRROR, full_translation, mirrored
from acehand_core.evaluation.importing.records import Hands
from acehand_core.evaluation.models import HandLibrary
from acehand_core.motion import HandMotion


def read_crops(
    source: Path, segment: str, truth: HandMotion, library: HandLibrary
) -> tuple[Hands, list[str]]:
    """Return the hands of ``source/segment.npz``, and what had to be assumed.

    Entries, N hands: ``frame`` (N,) from 0, ``right`` (N,), ``box_center`` (N, 2) and ``box_size``
    (N,) in pixels of the whole image, ``pred_cam`` (N, 3), ``global_orient`` (N[, 1], 3, 3),
    ``hand_pose`` (N, 15, 3, 3), ``betas`` (N, 10); optional ``score`` (N,) and
    ``pred_keypoints_3d`` (N, 21, 3), the model's joints before any translation or mirroring.

    Raises:
        InputError, SchemaError: there is no such file, or an entry is missing or malformed.
    """
    path = source / f"{segment}.npz"
    if not path.is_file():
        raise InputError(f"{path}: no such file; each segment needs one, also without hands.")
    data, where = safe_load_npz(path), str(path)
    frame = take(data, "frame", where, (None,))
    count = len(frame)

    def entry(name: str, *shapes: tuple[int | None, ...]) -> np.ndarray:
        return rows(take(data, name, where, *shapes), count, name, where)

    right = flags(entry("right", (None,)), "right", where)
    orient = entry("global_orient", (None, 3, 3), (None, 1, 3, 3)).reshape(-1, 3, 3)
    pose = entry("hand_pose", (None, 15, 3, 3))
    left = right == 0
    orient = np.where(left[:, None, None], mirrored(orient), orient)
    pose = np.where(left[:, None, None, None], mirrored(pose), pose)
    assert truth.camera is not None
    notes = ["depths use the ground truth's focal length, not the demo's"]
    camera = truth.camera
    if camera.model != "pinhole":
        camera = camera.pinhole_like()
        notes.append("taken as made on frames undistorted to a pinhole of the same focal length")
    translation = full_translation(
        entry("pred_cam", (None, 3)), entry("box_center", (None, 2)), entry("box_size", (None,)),
        right, camera,
    )  # fmt: skip
    joints = None
    if "pred_keypoints_3d" in data:
        joints = entry("pred_keypoints_3d", (None, 21, 3))
        joints = np.where(left[:, None, None], joints @ MIRROR, joints) + translation[:, None]
    score = entry("score", (None,)) if "score" in data else np.ones(count)
    hands = Hands(
        frame.astype(np.int64), right.astype(np.int64), score, orient, pose,
        entry("betas", (None, 10)), translation, joints,
    )  # fmt: skip
    return hands, notes
