"""Import of other methods' outputs as predictions, one HandMotion table per segment.

docs/evaluation.md describes the inputs. A reader returns hands as its method wrote them;
``readers.conventions`` and the orders and units of ``recordings.keypoints`` convert them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from jaxtyping import Float, Int

from acehand_core.ace.evaluation.inputs import SUFFIX, GroundTruth, check_prediction
from acehand_core.ace.evaluation.protocol import HandLibrary, rest_pose
from acehand_core.ace.labelled.readers.base import (
    Convention,
    ManoTrack,
    has_shape,
    mapping,
    numbers,
    read_text,
)
from acehand_core.ace.labelled.readers.conventions import CameraHands, ManoSource, to_camera
from acehand_core.atomic import check_free
from acehand_core.errors import InputError, SchemaError, nearest
from acehand_core.geometry import rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import HandMotion
from acehand_core.provenance import Provenance
from acehand_core.recordings.hands_file import write_hand_motion
from acehand_core.recordings.keypoints.checks import in_order
from acehand_core.recordings.keypoints.mapping import UNITS_M, naming, order_named
from acehand_core.safe_files import safe_load_npz
from acehand_core.types import SIDES, JointsCamera, PerHand, Progress, Side, no_progress
from acehand_core.user_files import read_json

#: Absolute rotations and MANO translations in the camera frame; left ones of repaired MANO.
_CAMERA = Convention("rotations", True, "mano", True, "camera")
#: Mirrors x, for left hands seen as right hands by methods with one hand model.
_MIRROR = np.diag([-1.0, 1.0, 1.0])
#: Entries of the generic file that state the convention. docs/evaluation.md describes them.
CONVENTIONS = ("flat_hand_mean", "left", "left_shapedirs_fixed", "translation", "unit",
               "joint_order")  # fmt: skip
_RESULT = re.compile(r".*_(\d{6})_.*results\.npz")
_CHUNK = re.compile(r"(\d+)_(\d+)\.json")


@dataclass(frozen=True, slots=True)
class ImportedHands:
    """A method's hands of one segment.

    Attributes:
        present: which hands exist.
        mano: absolute rotations; left hands are left. None: joints alone.
        joints: the method's own; None: posed by MANO.
        score: 0 to 1, the quality of the hands.
        notes: assumptions.
    """

    present: np.ndarray
    mano: ManoTrack | None = None
    joints: JointsCamera | None = None
    score: PerHand | float = 1.0
    notes: tuple[str, ...] = ()


def _motion(
    read: ImportedHands, truth: HandMotion, library: HandLibrary, provenance: Provenance, where: str
) -> HandMotion:
    """Return the motion of a segment, with times, rate and camera of its ground truth.

    Detected hands have presence 1: detection scores are not probabilities of existence. Slots
    without a hand, and rotations and translations of joints alone, are NaN.
    """
    present, mano = read.present, None
    if read.mano is None:
        hands = CameraHands.unknown(len(truth), False)
    else:
        if read.joints is None:  # its errors come first
            library.get("mano", bool(read.mano.convention.left_shapedirs_fixed))
            mano = cast(ManoSource, functools.partial(library.get, "mano"))
        hands = to_camera(read.mano, mano, one_shape=False)
        values = {"global_orient": hands.global_orient, "hand_pose": hands.hand_pose,
                  "translation": hands.translation, "betas": read.mano.betas}  # fmt: skip
        for name, value in values.items():
            _check_finite(value[present], name, where)

        turns = np.concatenate([hands.global_orient[:, :, None], hands.hand_pose], axis=2)[present]
        off = np.abs(np.swapaxes(turns, -1, -2) @ turns - np.eye(3)).max(initial=0.0)
        if off > 1e-2 or np.linalg.det(turns).min(initial=1.0) < 0.9:
            raise SchemaError(
                f"{where}: 'global_orient' or 'hand_pose' holds matrices that are not rotations."
            )

    joints = hands.joints_camera if read.joints is None else read.joints
    _check_finite(joints[present], "joints", where)
    return HandMotion(
        timestamps_ns=truth.timestamps_ns,
        fps=truth.fps,
        presence=present.astype(float),
        visible=present.astype(float),
        quality=np.where(present, np.clip(read.score, 0, 1), 0.0),
        observed=present,
        filled=np.zeros_like(present),
        global_orient=hands.global_orient,
        hand_pose=hands.hand_pose,
        betas=hands.betas,
        translation=hands.translation,
        joints_camera=np.where(present[..., None, None], joints, np.nan),
        joints_image=np.full((len(truth), 2, 21, 2), np.nan),
        hand_model="none" if read.mano is None else "mano",
        left_shapedirs_fixed=hands.left_shapedirs_fixed,
        provenance=provenance,
        camera=truth.camera,
    )


def _check_finite(value: np.ndarray, name: str, where: str) -> None:
    if not np.isfinite(value).all():
        raise SchemaError(f"{where}: {name!r} has NaN or infinite numbers.")


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


def _every_frame(count: int, needed: int, name: str, where: str) -> None:
    """Raise SchemaError unless an entry without frame numbers has all the segment's frames."""
    if count != needed:
        raise SchemaError(
            f"{where}: {name!r} has {count} frames; the segment has {needed}. Every frame needs a "
            "row, in order and at the segment's rate; NaN without a hand."
        )


def _flags(data: Mapping[str, Any], name: str, where: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return zeros and ones as integers."""
    value = take(data, name, where, shape)
    if not np.isin(value, (0, 1)).all():
        raise SchemaError(f"{where}: {name!r} must be 0 or 1.")
    return value.astype(np.int64)


def _slots(
    count: int, frame: Int[np.ndarray, "N"], slot: Int[np.ndarray, "N"],
    score: Float[np.ndarray, "N"], where: str, *rows: np.ndarray,
) -> tuple[np.ndarray, ...]:  # fmt: skip
    """Return which hands exist, (T, 2), and N rows as (T, 2, ...), NaN without a hand.

    Of two hands in one slot and frame the one of the higher score stays, the first of equals.
    """
    outside = (frame < 0) | (frame >= count)
    if outside.any():
        raise SchemaError(
            f"{where}: 'frame' {frame[outside][0]}; the segment has 0 to {count - 1}."
        )
    _check_finite(score, "score", where)
    order = np.lexsort((-score, slot, frame))
    _, first = np.unique(2 * frame[order] + slot[order], return_index=True)
    keep = order[first]
    at = frame[keep], slot[keep]

    present = np.zeros((count, 2), bool)
    present[at] = True
    filled = [np.full((count, 2, *values.shape[1:]), np.nan) for values in rows]
    for values, row in zip(filled, rows, strict=True):
        values[at] = row[keep]
    return present, *filled


def _unmirrored(track: ManoTrack) -> ManoTrack:
    """Return a track whose left hands are stored as mirrored right ones with true left hands."""
    orient, fingers = track.global_orient.copy(), track.fingers.copy()
    translation = track.translation.copy()
    orient[:, 0] = _MIRROR @ orient[:, 0] @ _MIRROR
    fingers[:, 0] = _MIRROR @ fingers[:, 0] @ _MIRROR
    translation[:, 0] = translation[:, 0] @ _MIRROR
    return replace(track, global_orient=orient, fingers=fingers, translation=translation)


def read_dynhamr(source: Path, segment: str, truth: HandMotion, _: HandLibrary) -> ImportedHands:
    """Return the hands of ``source/segment.npz``, or of the last result in ``source/segment/``.

    B tracks over T frames. All hands are posed by the right MANO; those with ``is_right`` 0 are
    mirrored in x after translation. Camera points are ``cam_R p + cam_t``.

    Raises:
        InputError, SchemaError: the file or an entry is missing or malformed.
    """
    path = _result_file(source, segment)
    data, where = safe_load_npz(path), str(path)
    orient = take(data, "root_orient", where, (None, None, 3))
    tracks, count = orient.shape[:2]
    _every_frame(count, len(truth), "root_orient", where)  # its videos default to 25 per second
    name = "latent_pose" if "latent_pose" in data and "pose_body" not in data else "pose_body"
    pose = take(data, name, where, (tracks, count, 45), (tracks, count, 15, 3))
    trans = take(data, "trans", where, (tracks, count, 3))
    betas = take(data, "betas", where, (tracks, 10))[:, None].repeat(count, axis=1)

    T_camera_world = np.tile(np.eye(4), (tracks, count, 1, 1))
    T_camera_world[..., :3, :3] = take(data, "cam_R", where, (tracks, count, 3, 3))
    T_camera_world[..., :3, 3] = take(data, "cam_t", where, (tracks, count, 3))
    if not np.array_equal(T_camera_world, T_camera_world[:1].repeat(tracks, 0), equal_nan=True):
        raise SchemaError(f"{where}: 'cam_R' or 'cam_t' differs between tracks of one video.")

    known = np.isfinite(trans).all(-1) & np.isfinite(orient).all(-1)
    track, frame = np.nonzero(known & np.isfinite(T_camera_world).all((-1, -2)))
    slot = _flags(data, "is_right", where, (tracks, count))[track, frame]
    turns = rotations.exp(orient), rotations.exp(pose.reshape(tracks, count, 15, 3))
    rows = [value[track, frame] for value in (*turns, betas, trans)]
    hands = *_slots(count, frame, slot, np.ones(len(frame)), where, *rows), T_camera_world[0]

    mano = _unmirrored(ManoTrack(replace(_CAMERA, frame="world"), *hands))
    note = f"read from {path.name}; spans that it filled in are not marked there"
    return ImportedHands(mano.present, mano, notes=(note,))


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
    right: Int[np.ndarray, "N"],
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


def read_crops(source: Path, segment: str, truth: HandMotion, _: HandLibrary) -> ImportedHands:
    """Return the hands of ``source/segment.npz``, N crops of single hands.

    Entries: ``frame`` (N,) from 0, ``right`` (N,), ``box_center`` (N, 2) and ``box_size`` (N,) in
    pixels of the whole image, ``pred_cam`` (N, 3), ``global_orient`` (N[, 1], 3, 3), ``hand_pose``
    (N, 15, 3, 3), ``betas`` (N, 10); optional ``score`` (N,) and ``pred_keypoints_3d`` (N, 21, 3),
    the model's joints before translation and mirroring.

    Raises:
        InputError, SchemaError: the file or an entry is missing or malformed.
    """
    data, where = _load_segment(source, segment)
    frame = take(data, "frame", where, (None,)).astype(np.int64)
    count = len(frame)
    right = _flags(data, "right", where, (count,))
    orient = take(data, "global_orient", where, (count, 3, 3), (count, 1, 3, 3)).reshape(-1, 3, 3)
    pose = take(data, "hand_pose", where, (count, 15, 3, 3))
    betas = take(data, "betas", where, (count, 10))
    assert truth.camera is not None
    notes = ["depths use the ground truth's focal length, not the demo's"]
    camera = truth.camera

    if camera.model != "pinhole":
        camera = camera.pinhole_like()
        notes.append("taken as made on frames undistorted to a pinhole of the same focal length")
    translation = full_translation(
        take(data, "pred_cam", where, (count, 3)), take(data, "box_center", where, (count, 2)),
        take(data, "box_size", where, (count,)), right, camera,
    )  # fmt: skip

    # Left hands are mirrored right ones before translation.
    sign = np.where(right[:, None] == 1, 1.0, (-1.0, 1.0, 1.0))
    flip = np.einsum("ni,nj->nij", sign, sign)
    rows = [orient * flip, pose * flip[:, None], betas, translation]
    if "pred_keypoints_3d" in data:
        joints = take(data, "pred_keypoints_3d", where, (count, 21, 3))
        rows.append(joints * sign[:, None] + translation[:, None])
    score = take(data, "score", where, (count,)) if "score" in data else np.ones(count)
    present, *hands, scores = _slots(len(truth), frame, right, score, where, *rows, score)

    return ImportedHands(
        present=present,
        mano=ManoTrack(_CAMERA, present, *hands[:4]),
        joints=hands[4] if len(hands) > 4 else None,
        score=scores,
        notes=tuple(notes),
    )


def read_hawor(source: Path, segment: str, truth: HandMotion, _: HandLibrary) -> ImportedHands:
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
    none = np.zeros(0, np.int64)
    chunks = [(none, none, *(np.zeros((0, *s)) for s in ((3, 3), (15, 3, 3), (10,), (3,))))]
    chunks += [
        _chunk(path, slot)
        for slot in (0, 1)
        for path in sorted((folder / str(slot)).glob("*.json"))
    ]
    frame, slot, *rows = map(np.concatenate, zip(*chunks, strict=True))
    where = f"{source}: {segment}"
    present, *hands = _slots(len(truth), frame, slot, np.ones(len(frame)), where, *rows)

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

    short = len(truth) - 1 - int(frame.max(initial=-1))
    if len(frame) and short > 0:
        notes.append(
            f"the last chunk ends {short} frames before a segment does; they count as without hands"
        )

    return ImportedHands(present, ManoTrack(_CAMERA, present, *hands), notes=tuple(notes))


def _chunk(path: Path, slot: int) -> tuple[np.ndarray, ...]:
    """Return frame, slot, orientation, pose, betas and translation of a chunk's hands."""
    span = _CHUNK.fullmatch(path.name)
    if span is None:
        raise SchemaError(f"{path}: HaWoR names chunks <first>_<last>.json.")
    first, last = int(span[1]), int(span[2])
    data, count = mapping(read_json(path), str(path)), last - first + 1
    shapes = {"init_root_orient": (3, 3), "init_hand_pose": (15, 3, 3), "init_betas": (10,),
              "init_trans": (3,)}  # fmt: skip
    rows = [take(data, name, str(path), (1, count, *tail))[0] for name, tail in shapes.items()]
    return np.arange(first, last + 1), np.full(count, slot), *rows


def read_generic(
    source: Path, segment: str, truth: HandMotion, library: HandLibrary, **known: str | bool
) -> ImportedHands:
    """Return the hands of the npz ``source/segment.npz``; its file may omit what is ``known``.

    Raises:
        InputError, SchemaError: the file or an entry is missing, unknown or malformed.
        MissingDependencyError: the mean pose needs MANO.
    """
    data, where = _load_segment(source, segment)
    stated: dict[str, Any] = dict(known)
    for name in CONVENTIONS:
        if name in data:
            if data[name].size != 1:
                raise SchemaError(f"{where}: {name!r} must be one value.")
            stated[name] = data[name].item()
    metres = UNITS_M[_choice(stated, "unit", UNITS_M, where)]

    if "joints" in data:
        with naming(where):
            order = order_named(str(stated.get("joint_order", "")), "'joint_order'")
        if len(set(order) - {None}) < 21:
            raise SchemaError(f"{where}: 'joint_order' {stated['joint_order']!r} lacks keypoints.")
        joints = take(data, "joints", where, (None, 2, len(order), 3)) * metres
        _every_frame(len(joints), len(truth), "joints", where)
        joints = in_order(joints, order)
        return ImportedHands(_present(data, joints, where), joints=joints)

    fixed = _flag(stated, "left_shapedirs_fixed", where)
    orient = take(data, "global_orient", where, (None, 2, 3), (None, 2, 3, 3))
    orient = rotations.exp(orient) if orient.ndim == 3 else orient
    count = len(orient)
    _every_frame(count, len(truth), "global_orient", where)
    mirrored = _choice(stated, "left", ("true", "mirrored"), where) == "mirrored"

    pose = take(data, "hand_pose", where, (count, 2, 45), (count, 2, 15, 3), (count, 2, 15, 3, 3))
    if pose.ndim < 5:
        pose = pose.reshape(count, 2, 15, 3)
        if not _flag(stated, "flat_hand_mean", where):
            model = library.get("mano", fixed)
            sides: tuple[Side, Side] = ("right", "right") if mirrored else SIDES
            pose = pose + np.stack([rotations.log(rest_pose(model, side)) for side in sides])
        pose = rotations.exp(pose)

    betas = take(data, "betas", where, (2, 10), (count, 2, 10))
    betas = np.broadcast_to(betas, (count, 2, 10))
    translation = take(data, "transl", where, (count, 2, 3)) * metres
    present = _present(data, translation, where)
    place = _choice(stated, "translation", ("mano", "wrist"), where)
    T = take(data, "T_camera_world", where, (count, 4, 4)) if "T_camera_world" in data else None
    convention = Convention(
        "rotations", True, "wrist" if place == "wrist" else "mano", fixed,
        "camera" if T is None else "world",
    )  # fmt: skip
    track = ManoTrack(convention, present, orient, pose, betas, translation, T)
    return ImportedHands(present, _unmirrored(track) if mirrored else track)


def _load_segment(source: Path, segment: str) -> tuple[dict[str, np.ndarray], str]:
    """Return the arrays of ``source/segment.npz`` and its path for errors. Raises InputError."""
    path = source / f"{segment}.npz"
    if not path.is_file():
        raise InputError(f"{path}: no such file; each segment needs one, also without hands.")
    return safe_load_npz(path), str(path)


def _choice(stated: Mapping[str, Any], name: str, valid: Collection[str], where: str) -> str:
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
    present = take(data, "presence", where, values.shape[:2]) > 0.5
    if (present & ~finite).any():
        frame, slot = np.argwhere(present & ~finite)[0]
        raise SchemaError(f"{where}: the {SIDES[slot]} hand in frame {frame} has presence but NaN.")
    return present


Reader = Callable[[Path, str, HandMotion, HandLibrary], ImportedHands]

#: Readers of methods by the name that ``acehand evaluate --method`` takes.
METHODS: Mapping[str, Reader] = {
    "hamer": read_crops,
    "wilor": read_crops,
    "hamba": read_crops,  # built on HaMeR
    "hawor": read_hawor,
    "dynhamr": read_dynhamr,
    "interwild": functools.partial(
        read_generic, flat_hand_mean=False, left_shapedirs_fixed=True, left="true"
    ),
    **dict.fromkeys(
        ("wildhands", "omnihands", "egoforce", "vidihand", "mint", "generic"), read_generic
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
        read = METHODS[method](source, segment, target, library)
        notes += [note for note in read.notes if note not in notes]

        where = f"{source}: {segment}"
        settings = {"imported": True}
        provenance = Provenance(segment, None, method, settings=settings, notes=read.notes)
        motion = _motion(read, target, library, provenance, where)
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
