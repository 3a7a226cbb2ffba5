"""HaWoR: the JSON chunks of its camera-space stage, one folder of a video per segment."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np

from acehand_core.errors import InputError, SchemaError
from acehand_core.evaluation.importing.arrays import rows, take
from acehand_core.evaluation.importing.records import Hands
from acehand_core.evaluation.models import HandLibrary
from acehand_core.motion import HandMotion

_CHUNK = re.compile(r"(\d+)_(\d+)\.json")


def read_hawor(
    source: Path, segment: str, truth: HandMotion, library: HandLibrary
) -> tuple[Hands, list[str]]:
    """Return the hands of ``source/segment/cam_space/{0,1}/<first>_<last>.json``.

    0 is left, 1 right; left hands are true left hands already (repaired shape directions); matrices
    are absolute; ``init_trans`` is MANO's translation in the camera of each frame, metres. The
    world results are not read: filled spans cannot be told apart there.

    Raises:
        InputError, SchemaError: no such folder, or a chunk is malformed.
    """
    folder = source / segment / "cam_space"
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; HaWoR writes cam_space/0 and cam_space/1.")
    parts = [
        _chunk(path, slot)
        for slot in (0, 1)
        for path in sorted((folder / str(slot)).glob("*.json"))
    ]
    empty = Hands(
        np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0), np.zeros((0, 3, 3)),
        np.zeros((0, 15, 3, 3)), np.zeros((0, 10)), np.zeros((0, 3)),
    )  # fmt: skip
    parts = [empty, *parts]
    names = ("frame", "slot", "score", "global_orient", "hand_pose", "betas", "translation")
    hands = Hands(*(np.concatenate([getattr(p, name) for p in parts]) for name in names))
    notes = _focal_note(source / segment / "est_focal.txt", truth)
    short = len(truth) - 1 - int(hands.frame.max(initial=-1))
    if len(hands.frame) and short > 0:
        notes.append(
            f"the last chunk ends {short} frames before a segment does; they count as without hands"
        )
    return hands, notes


def _chunk(path: Path, slot: int) -> Hands:
    found = _CHUNK.fullmatch(path.name)
    if found is None:
        raise SchemaError(f"{path}: HaWoR names chunks <first>_<last>.json.")
    first, last = int(found[1]), int(found[2])
    try:
        data = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise SchemaError(f"{path}: not readable JSON ({error}).") from error
    if not isinstance(data, dict):
        raise SchemaError(f"{path}: a JSON object is needed.")
    count, where = last - first + 1, str(path)

    def entry(name: str, *tail: int) -> np.ndarray:
        value = take(data, name, where, (1, None, *tail))[0]
        return rows(value, count, name, where)

    return Hands(
        np.arange(first, last + 1), np.full(count, slot), np.ones(count),
        entry("init_root_orient", 3, 3), entry("init_hand_pose", 15, 3, 3),
        entry("init_betas", 10), entry("init_trans", 3),
    )  # fmt: skip


def _focal_note(path: Path, truth: HandMotion) -> list[str]:
    """Say so where HaWoR took another focal length than the camera's: depths scale with it."""
    assert truth.camera is not None
    true = 0.5 * (truth.camera.fx + truth.camera.fy)
    if not path.is_file():
        return ["no est_focal.txt: whether HaWoR knew the true focal length is not known"]
    try:
        used = float(path.read_text("utf-8").split()[0])
    except (ValueError, IndexError, UnicodeDecodeError) as error:
        raise SchemaError(f"{path}: one number is needed ({error}).") from error
    if abs(used / true - 1) > 0.01:
        return [f"HaWoR used a focal length of {used:g} px; the camera has {true:g} px"]
    return []
