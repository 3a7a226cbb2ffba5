"""Import of other methods' outputs as predictions, one HandMotion table per segment.

docs/evaluation.md describes the inputs. HaMeR, WiLoR and Hamba: an npz of crops per segment, left
hands as mirrored right ones. Dyn-HaMR: the npz of its optimisation, world frame, mirrored left
hands. HaWoR: the JSON chunks of its camera-space stage.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from acehand_core.ace.evaluation.import_hands import (
    MIRROR,
    Generic,
    Hands,
    every_frame,
    load_segment,
    rest_wrists,
    take,
    to_motion,
    unmirrored,
)
from acehand_core.ace.evaluation.inputs import SUFFIX, GroundTruth, check_prediction
from acehand_core.ace.evaluation.protocol import HandLibrary
from acehand_core.ace.labelled.clips.schema import read_json
from acehand_core.ace.labelled.readers.base import mapping, read_text
from acehand_core.atomic import check_free
from acehand_core.errors import InputError, SchemaError, nearest
from acehand_core.geometry import frames, rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.hand.mapping import change_frame
from acehand_core.motion import HandMotion
from acehand_core.provenance import Provenance
from acehand_core.recordings.hands_file import write_hand_motion
from acehand_core.safe_files import safe_load_npz
from acehand_core.types import Progress, no_progress

_RESULT = re.compile(r".*_(\d{6})_.*results\.npz")


def flags(value: np.ndarray, name: str, where: str) -> np.ndarray:
    """Return an array of zeros and ones as integers. Raises SchemaError for other numbers."""
    if not np.isin(value, (0, 1)).all():
        raise SchemaError(f"{where}: {name!r} must be 0 or 1.")
    return value.astype(np.int64)


def read_dynhamr(
    source: Path, segment: str, truth: HandMotion, library: HandLibrary
) -> tuple[Hands, list[str]]:
    """Return the hands of ``source/segment.npz``, or of the last result in ``source/segment/``.

    B tracks over T frames. All hands are posed by the right MANO; those with ``is_right`` 0 are
    mirrored in x after translation. Camera points are ``cam_R p + cam_t``; hands turn about the
    rest wrist, which needs MANO.

    Raises:
        InputError, SchemaError: the file or an entry is missing or malformed.
        MissingDependencyError: MANO is not configured.
    """
    path = _result_file(source, segment)
    data, where = safe_load_npz(path), str(path)
    orient = take(data, "root_orient", where, (None, None, 3))
    tracks, count = orient.shape[:2]
    every_frame(count, len(truth), "root_orient", where)  # its videos default to 25 per second
    name = "latent_pose" if "latent_pose" in data and "pose_body" not in data else "pose_body"
    pose = take(data, name, where, (tracks, count, 45), (tracks, count, 15, 3))
    right = flags(take(data, "is_right", where, (tracks, count)), "is_right", where)
    left = right == 0
    betas = np.broadcast_to(take(data, "betas", where, (tracks, 10))[:, None], (tracks, count, 10))
    turn = unmirrored(left, rotations.exp(orient))
    bend = unmirrored(left, rotations.exp(pose.reshape(tracks, count, 15, 3)))
    trans = take(data, "trans", where, (tracks, count, 3))
    trans = np.where(left[..., None], trans @ MIRROR, trans)
    T_camera_world = frames.rigid(
        take(data, "cam_R", where, (tracks, count, 3, 3)),
        take(data, "cam_t", where, (tracks, count, 3)),
    )
    rest = rest_wrists(betas[:, :1].repeat(2, axis=1), library.get("mano", True))
    rest = rest[np.arange(tracks)[:, None], right]
    turn, trans = change_frame(T_camera_world, turn, trans, rest)
    frame = np.broadcast_to(np.arange(count), (tracks, count))
    valid = np.isfinite(trans).all(-1) & np.isfinite(turn).all((-1, -2))
    placed = turn[valid], bend[valid], betas[valid], trans[valid]
    hands = Hands(frame[valid], right[valid], np.ones(int(valid.sum())), *placed)
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

    HaMeR, WiLoR and their successors predict (s, tx, ty) of a square crop. A crop of side b at
    scale s sees the hand at depth 2 f / (b s); tx and ty are metres from the box's centre, which is
    offset from the principal point. Depth is metric only with the camera's true focal length, so f
    is the ``camera``'s.

    Args:
        pred_cam: (s, tx, ty) of the network, of the mirrored crop for a left hand.
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
    """Return the hands of ``source/segment.npz`` and assumptions.

    Entries, N hands: ``frame`` (N,) from 0, ``right`` (N,), ``box_center`` (N, 2) and ``box_size``
    (N,) in pixels of the whole image, ``pred_cam`` (N, 3), ``global_orient`` (N[, 1], 3, 3),
    ``hand_pose`` (N, 15, 3, 3), ``betas`` (N, 10); optional ``score`` (N,) and
    ``pred_keypoints_3d`` (N, 21, 3), the model's joints before translation and mirroring.

    Raises:
        InputError, SchemaError: the file or an entry is missing or malformed.
    """
    data, where = load_segment(source, segment)
    frame = take(data, "frame", where, (None,)).astype(np.int64)
    count = len(frame)
    right = flags(take(data, "right", where, (count,)), "right", where)
    left = right == 0
    orient = take(data, "global_orient", where, (count, 3, 3), (count, 1, 3, 3))
    orient = unmirrored(left, orient.reshape(-1, 3, 3))
    pose = unmirrored(left, take(data, "hand_pose", where, (count, 15, 3, 3)))
    betas = take(data, "betas", where, (count, 10))
    assert truth.camera is not None
    notes = ["depths use the ground truth's focal length, not the demo's"]
    camera = truth.camera
    if camera.model != "pinhole":
        camera = camera.pinhole_like()
        notes.append("taken as made on frames undistorted to a pinhole of the same focal length")
    translation = full_translation(
        take(data, "pred_cam", where, (count, 3)), take(data, "box_center", where, (count, 2)),
        take(data, "box_size", where, (count,)), right.astype(float), camera,
    )  # fmt: skip
    joints = None
    if "pred_keypoints_3d" in data:
        joints = take(data, "pred_keypoints_3d", where, (count, 21, 3))
        joints = np.where(left[:, None, None], joints @ MIRROR, joints) + translation[:, None]
    score = take(data, "score", where, (count,)) if "score" in data else np.ones(count)
    return Hands(frame, right, score, orient, pose, betas, translation, joints), notes


_CHUNK = re.compile(r"(\d+)_(\d+)\.json")


def read_hawor(
    source: Path, segment: str, truth: HandMotion, library: HandLibrary
) -> tuple[Hands, list[str]]:
    """Return the hands of ``source/segment/cam_space/{0,1}/<first>_<last>.json``.

    0 is left, 1 right; left hands are true left hands (repaired shape directions); matrices are
    absolute; ``init_trans`` is MANO's translation in each frame's camera, metres. The world results
    are not read: filled spans are not marked there.

    Raises:
        InputError, SchemaError: the folder is missing, or a chunk is malformed.
    """
    folder = source / segment / "cam_space"
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; HaWoR writes cam_space/0 and cam_space/1.")
    shapes = (), (3, 3), (15, 3, 3), (10,), (3,)
    none = np.zeros(0, np.int64)
    empty = none, none, *(np.zeros((0, *shape)) for shape in shapes)
    chunks = [
        _chunk(path, slot)
        for slot in (0, 1)
        for path in sorted((folder / str(slot)).glob("*.json"))
    ]
    columns = zip(empty, *chunks, strict=True)
    frame, slot, score, orient, pose, betas, translation = map(np.concatenate, columns)
    hands = Hands(frame, slot, score, orient, pose, betas, translation)

    # Depths scale with the focal length.
    assert truth.camera is not None
    true, path = 0.5 * (truth.camera.fx + truth.camera.fy), source / segment / "est_focal.txt"
    notes = []
    if path.is_file():
        try:
            used = float(read_text(path).split()[0])
        except (ValueError, IndexError) as error:
            raise SchemaError(f"{path}: one number is needed ({error}).") from error
        if abs(used / true - 1) > 0.01:
            notes.append(f"HaWoR used a focal length of {used:g} px; the camera has {true:g} px")
    else:
        notes.append("no est_focal.txt: whether HaWoR knew the true focal length is not known")

    short = len(truth) - 1 - int(hands.frame.max(initial=-1))
    if len(hands.frame) and short > 0:
        notes.append(
            f"the last chunk ends {short} frames before a segment does; they count as without hands"
        )

    return hands, notes


def _chunk(path: Path, slot: int) -> tuple[np.ndarray, ...]:
    """Return a chunk's hands as the first fields of ``Hands``."""
    span = _CHUNK.fullmatch(path.name)
    if span is None:
        raise SchemaError(f"{path}: HaWoR names chunks <first>_<last>.json.")
    first, last = int(span[1]), int(span[2])
    data, count = mapping(read_json(path), str(path)), last - first + 1

    def entry(name: str, *tail: int) -> np.ndarray:
        return take(data, name, str(path), (1, count, *tail))[0]

    turns = entry("init_root_orient", 3, 3), entry("init_hand_pose", 15, 3, 3)
    placed = *turns, entry("init_betas", 10), entry("init_trans", 3)
    return np.arange(first, last + 1), np.full(count, slot), np.ones(count), *placed


Reader = Callable[[Path, str, HandMotion, HandLibrary], tuple[Hands, list[str]]]

#: Readers of methods by the name that ``acehand evaluate --method`` takes.
METHODS: Mapping[str, Reader] = {
    "hamer": read_crops,
    "wilor": read_crops,
    "hamba": read_crops,  # built on HaMeR
    "hawor": read_hawor,
    "dynhamr": read_dynhamr,
    "interwild": Generic({"flat_hand_mean": False, "left_shapedirs_fixed": True, "left": "true"}),
    **dict.fromkeys(
        ("wildhands", "omnihands", "egoforce", "vidihand", "mint", "generic"), Generic({})
    ),
}


def import_predictions(
    method: str,
    source: Path,
    truth: GroundTruth,
    output: Path,
    library: HandLibrary,
    overwrite: bool = False,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Write the predictions of every segment; return their number and assumptions.

    All segments are read and checked before the first file is written. Files of an interrupted run
    are removed, so the same command can be repeated.

    Raises:
        InputError: an unknown method, or a segment without output. SchemaError: malformed output.
        OutputError: a file exists, or cannot be written.
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
        hands, assumed = METHODS[method](source, segment, target, library)
        notes += [note for note in assumed if note not in notes]

        where = f"{source}: {segment}"
        settings = {"imported": True}
        provenance = Provenance(segment, None, method, settings=settings, notes=tuple(assumed))
        motion = to_motion(hands, target, library, provenance, where)
        check_prediction(motion, target, where, library)
        motions[segment] = motion

    # All files, or none of the new ones.
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
