"""Other methods' outputs as predictions, one HandMotion table per segment.

What each writes, and how a user saves what it does not write, is in docs/evaluation.md. HaMeR,
WiLoR and Hamba predict the same dictionary: one npz of crops per segment, a left hand is a mirrored
right one. Dyn-HaMR: the npz of its optimisation, world to camera, mirrored left hands. HaWoR: the
JSON chunks of its camera-space stage.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from acehand_core.ace.evaluation.import_hands import (
    MIRROR,
    Generic,
    Hands,
    every_frame,
    mirrored,
    rest_wrists,
    take,
    to_motion,
)
from acehand_core.ace.evaluation.inputs import SUFFIX, GroundTruth, check_prediction
from acehand_core.ace.evaluation.protocol import HandLibrary
from acehand_core.atomic import check_free
from acehand_core.errors import InputError, SchemaError, nearest
from acehand_core.geometry import frames, rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.hand.mapping import change_frame
from acehand_core.motion import HandMotion
from acehand_core.provenance import Provenance
from acehand_core.recordings.hands_file import write_hand_motion
from acehand_core.safe_files import safe_load_npz
from acehand_core.types import Progress

_RESULT = re.compile(r".*_(\d{6})_.*results\.npz")


def rows(value: np.ndarray, count: int, name: str, where: str) -> np.ndarray:
    """Return the array if its first axis has ``count`` entries. Raises SchemaError."""
    if len(value) != count:
        raise SchemaError(f"{where}: {name!r} has {len(value)} rows; {count} are needed.")
    return value


def flags(value: np.ndarray, name: str, where: str) -> np.ndarray:
    """Return an array of zeros and ones as it is. Raises SchemaError for other numbers."""
    if not np.isin(value, (0, 1)).all():
        raise SchemaError(f"{where}: {name!r} must be 0 or 1.")
    return value


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
    path = _result_file(source, segment)
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
    rest = rest_wrists(betas[:, :1].repeat(2, axis=1), library.get("mano", True))
    rest = rest[np.arange(tracks)[:, None], right.astype(np.int64)]
    turn, trans = change_frame(T_camera_world, turn, trans, rest)
    frame = np.broadcast_to(np.arange(count), (tracks, count))
    valid = np.isfinite(trans).all(-1) & np.isfinite(turn).all((-1, -2))
    hands = Hands(
        frame[valid], right[valid].astype(np.int64), np.ones(int(valid.sum())), turn[valid],
        bend[valid], betas[valid], trans[valid],
    )  # fmt: skip
    return hands, [f"read from {path.name}; spans that it filled in are not marked there"]


def _result_file(source: Path, segment: str) -> Path:
    single, folder = source / f"{segment}.npz", source / segment
    if single.is_file():
        return single

    numbered = [(int(match[1]), p) for p in sorted(folder.rglob("*results.npz"))
                if (match := _RESULT.fullmatch(p.name))]  # fmt: skip
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


_CHUNK = re.compile(r"(\d+)_(\d+)\.json")


def read_hawor(
    source: Path, segment: str, truth: HandMotion, library: HandLibrary
) -> tuple[Hands, list[str]]:
    """Return the hands of ``source/segment/cam_space/{0,1}/<first>_<last>.json``.

    0 is left, 1 right; left hands are true left hands already (repaired shape directions); matrices
    are absolute; ``init_trans`` is MANO's translation in the camera of each frame, metres. The
    world results are not read: filled spans are not marked there.

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

    def joined(name: str) -> np.ndarray:
        return np.concatenate([getattr(part, name) for part in parts])

    hands = Hands(
        joined("frame"), joined("slot"), joined("score"), joined("global_orient"),
        joined("hand_pose"), joined("betas"), joined("translation"),
    )  # fmt: skip
    notes = _focal_note(source / segment / "est_focal.txt", truth)

    short = len(truth) - 1 - int(hands.frame.max(initial=-1))
    if len(hands.frame) and short > 0:
        notes.append(
            f"the last chunk ends {short} frames before a segment does; they count as without hands"
        )

    return hands, notes


def _chunk(path: Path, slot: int) -> Hands:
    span = _CHUNK.fullmatch(path.name)
    if span is None:
        raise SchemaError(f"{path}: HaWoR names chunks <first>_<last>.json.")
    first, last = int(span[1]), int(span[2])
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


Reader = Callable[[Path, str, HandMotion, HandLibrary], tuple[Hands, list[str]]]


@dataclass(frozen=True, slots=True)
class Method:
    """How one method's output is read."""

    read: Reader
    about: str


_FREE = Generic({})
#: Methods by the name that ``acehand evaluate --method`` takes.
METHODS: dict[str, Method] = {
    "hamer": Method(read_crops, "HaMeR: npz of crops per segment"),
    "wilor": Method(read_crops, "WiLoR: npz of crops per segment"),
    "hamba": Method(read_crops, "Hamba: npz of crops per segment, HaMeR's conventions"),
    "hawor": Method(read_hawor, "HaWoR: cam_space JSON, one video folder per segment"),
    "dynhamr": Method(read_dynhamr, "Dyn-HaMR: results npz per segment"),
    "interwild": Method(
        Generic({"flat_hand_mean": False, "left_shapedirs_fixed": True, "left": "true"}),
        "InterWild: generic file, its MANO conventions known",
    ),
    "wildhands": Method(_FREE, "WildHands: generic file"),
    "omnihands": Method(_FREE, "OmniHands: generic file"),
    "egoforce": Method(_FREE, "EgoForce: generic file"),
    "vidihand": Method(_FREE, "ViDiHand: generic file"),
    "mint": Method(_FREE, "MINT: generic file"),
    "generic": Method(_FREE, "any method: npz of MANO parameters or 21 joints"),
}


def import_predictions(
    method: str,
    source: Path,
    truth: GroundTruth,
    output: Path,
    library: HandLibrary,
    overwrite: bool = False,
    progress: Progress = lambda stage, done, total: None,
) -> dict[str, Any]:
    """Write the predictions of every segment; return how many and what had to be assumed.

    Everything is read and checked before the first file is written, and what a stopped run wrote
    is removed, so that the same command can be given again.

    Raises:
        InputError: an unknown method, or a segment without output. SchemaError: output that does
            not have its format. OutputError: a file exists, or cannot be written.
    """
    if method not in METHODS:
        raise InputError(f"no importer is named {method!r}; {nearest(method, METHODS)}")
    if not source.is_dir():
        raise InputError(f"{source}: no such folder of {method}'s output.")
    files = {segment: output / f"{segment}{SUFFIX}" for segment in truth.segments}
    for path in files.values():
        check_free(path, overwrite)
    notes: list[str] = []
    motions = {}
    for done, segment in enumerate(truth.segments):
        progress("importing", done, len(truth.segments))
        target = truth.truth(segment)
        if target.camera is None:
            raise InputError(f"{segment}: the ground truth has no camera, which importing needs.")
        hands, assumed = METHODS[method].read(source, segment, target, library)
        notes += [note for note in assumed if note not in notes]

        where = f"{source}: {segment}"
        settings = {"imported": True}
        provenance = Provenance(segment, None, method, settings=settings, notes=tuple(assumed))
        motion = to_motion(hands, target, library, provenance, where)
        check_prediction(motion, target, where, library)
        motions[segment] = motion

    # All files, or none that was not there before.
    new = [path for path in files.values() if not path.exists()]
    try:
        for segment, motion in motions.items():
            write_hand_motion(motion, files[segment], overwrite)
    except BaseException:
        for path in new:
            path.unlink(missing_ok=True)
        raise
    progress("importing", len(truth.segments), len(truth.segments))
    return {"method": method, "segments": len(truth.segments), "notes": notes}
