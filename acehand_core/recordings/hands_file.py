"""Files of hands: a HandMotion table (parquet, lossless), or keypoints in any layout."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from acehand_core.atomic import atomic_path, check_free
from acehand_core.errors import InputError, SchemaError, nearest
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import HandModelName, HandMotion, Recording
from acehand_core.provenance import Agreement, Provenance
from acehand_core.recordings.selection import only_hands
from acehand_core.safe_files import content_sha256
from acehand_core.types import SIDES, Hands

#: Suffixes of files of hands.
SUFFIXES = (".parquet", ".npz", ".npy", ".json", ".jsonl", ".csv")

FORMAT = "acehand.hand_motion"
FORMAT_VERSION = 1
METADATA_KEY = b"acehand"
#: Rows per group, and per read.
BATCH_ROWS = 4096
_BUFFER_BYTES = 1 << 16

#: Arrays of a hand in a frame.
_ARRAYS: dict[str, tuple[int, ...]] = {
    "global_orient": (3, 3),
    "hand_pose": (15, 3, 3),
    "translation": (3,),
    "joints_camera": (21, 3),
    "joints_image": (21, 2),
}
_SCALARS = ("presence", "visible", "quality", "observed", "filled")

#: Suffixes for ``write_hand_motion``.
TABLE_SUFFIXES = (".parquet", ".csv")


def motion_recording(path: Path, motion: HandMotion) -> Recording:
    """Return a file of hands as a recording of them, without pictures."""
    camera = motion.camera
    return Recording(
        source=str(path),
        sha256=content_sha256(path),
        timestamps_ns=motion.timestamps_ns,
        fps=motion.fps,
        width=camera.width if camera else 1280,
        height=camera.height if camera else 720,
        frames=None,
        camera=camera,
        T_world_camera=motion.T_world_camera,
        hands=motion,
    )


def with_hands(recording: Recording, path: Path, motion: HandMotion) -> Recording:
    """Return a recording with the hands of a file, and its camera poses if it has no own.

    Raises InputError unless the file has an entry per frame.
    """
    if len(motion) != len(recording):
        raise InputError(
            f"{path}: holds {len(motion)} frames but {recording.source} has {len(recording)}; a "
            "tracker file needs one entry per frame."
        )
    poses = recording.T_world_camera
    poses = motion.T_world_camera if poses is None else poses
    return replace(recording, hands=motion, T_world_camera=poses)


def refuse_settings(path: Path, **given: bool) -> None:
    """Raise InputError with the given settings, which apply to videos only."""
    names = ", ".join(f"`{name}`" for name, is_given in given.items() if is_given)
    if names:
        raise InputError(
            f"{path} holds hands, so these do not apply to it: {names}. Leave them out, or give "
            "the video."
        )


def read_motion_file(
    path: Path, hands: Hands = "both", as_stored: bool = False, keypoints: str | None = None
) -> HandMotion:
    """Read hands from a HandMotion table (.parquet) or a file of keypoints.

    ``hands`` is also the side of a single hand without one; ``keypoints`` a mapping file or a
    preset. If some frames lack a camera pose, all are dropped, except with ``as_stored``.
    """
    if path.suffix not in SUFFIXES:
        raise InputError(
            f"{path}: a file of hands is a HandMotion table (.parquet), or keypoints "
            f"({', '.join(SUFFIXES)})."
        )
    if path.suffix != ".parquet" or not is_hand_motion(path):
        from acehand_core.recordings.keypoint_files import read_joints_file

        return only_hands(read_joints_file(path, hands, keypoints), hands)
    refuse_settings(path, keypoints=keypoints is not None)
    motion = only_hands(read_hand_motion(path), hands)

    poses = motion.T_world_camera
    missing = 0 if poses is None else int(np.isnan(poses).any((-1, -2)).sum())
    if as_stored or not missing:
        return motion
    note = f"{missing} of {len(motion)} frames have no camera pose: the camera frame is used"
    provenance = replace(motion.provenance, notes=(*motion.provenance.notes, note))
    return replace(motion, T_world_camera=None, provenance=provenance)


def is_hand_motion(path: Path) -> bool:
    """Return whether a parquet is a HandMotion table, or damaged."""
    try:
        return METADATA_KEY in (pq.read_schema(path).metadata or {})
    except (pa.ArrowException, OSError):
        return True


def _vector(length: int) -> pa.DataType:
    return pa.list_(pa.float64(), length)


#: Column, type, content; repeated in docs/formats.md.
COLUMNS: tuple[tuple[str, pa.DataType, str], ...] = (
    ("frame", pa.int64(), "frame of the recording, from 0"),
    ("timestamp_ns", pa.int64(), "capture time, ns"),
    ("hand", pa.string(), "left or right; two rows per frame, left first"),
    ("presence", pa.float64(), "the hand exists, 0 to 1"),
    ("visible", pa.float64(), "share of the hand inside the image, 0 to 1"),
    ("quality", pa.float64(), "one number to weigh or filter by, 0 to 1"),
    ("observed", pa.bool_(), "measured in this frame"),
    ("filled", pa.bool_(), "written by gap filling"),
    ("global_orient", _vector(9), "rotation of the hand, camera frame, row-major"),
    ("hand_pose", _vector(135), "rotations of the 15 finger joints to their parents, row-major"),
    ("translation", _vector(3), "joints_camera = hand(...) + translation, m"),
    ("joints_camera", _vector(63), "21 keypoints, camera frame, m"),
    ("joints_image", _vector(42), "21 keypoints the tracker saw, source pixels; NaN where none"),
    ("T_world_camera", _vector(16), "camera pose, row-major; null where unknown"),
)
#: Optional columns.
OPTIONAL_COLUMNS: tuple[tuple[str, pa.DataType, str], ...] = (
    ("fill_frame", pa.int8(), "in which frame it was filled: 0 not filled, 1 the camera's, "
     "2 one that the camera turns in, 3 the world"),
    ("joint_sigma", _vector(42), "standard deviations of the 21 keypoints, m: across the line of "
     "sight, in each of two directions, and along it"),
    ("evidence", pa.int8(), "what placed it, added up: 1 the camera, 2 another camera of the rig, "
     "4 depth"),
)  # fmt: skip


def to_table(motion: HandMotion) -> pa.Table:
    """Return the motion as a table with metadata."""
    frames = len(motion)
    columns: dict[str, Any] = {
        "frame": np.repeat(np.arange(frames), 2),
        "timestamp_ns": np.repeat(motion.timestamps_ns, 2),
        "hand": list(SIDES) * frames,
    }
    for name in _SCALARS:
        columns[name] = getattr(motion, name).reshape(-1)
    for name in _ARRAYS:
        columns[name] = _fixed(getattr(motion, name).reshape(2 * frames, -1))

    if motion.T_world_camera is None:
        columns["T_world_camera"] = pa.nulls(2 * frames, _vector(16))
    else:
        poses = np.repeat(motion.T_world_camera.reshape(-1, 16), 2, 0)
        columns["T_world_camera"] = _fixed(poses, np.isnan(poses).any(1))

    if motion.fill_frame is not None:
        columns["fill_frame"] = motion.fill_frame.reshape(-1)
    if motion.joint_sigma is not None:
        columns["joint_sigma"] = _fixed(motion.joint_sigma.reshape(2 * frames, -1))
    if motion.evidence is not None:
        columns["evidence"] = motion.evidence.reshape(-1)
    fields = [(name, kind) for name, kind, _ in (*COLUMNS, *OPTIONAL_COLUMNS) if name in columns]

    header = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "fps": motion.fps,
        "hand_model": motion.hand_model,
        "betas": motion.betas.tolist(),
        "left_shapedirs_fixed": motion.left_shapedirs_fixed,
        "placed": motion.placed,
        "camera": motion.camera.to_json() if motion.camera else None,
        "provenance": asdict(motion.provenance),
    }
    metadata = {METADATA_KEY: json.dumps(header, default=_plain).encode()}
    return pa.table(columns, schema=pa.schema(fields, metadata=metadata))


def read_hand_motion(path: Path) -> HandMotion:
    """Read a HandMotion table (.parquet) in constant extra memory. Raises SchemaError."""
    options = {"page_checksum_verification": True, "buffer_size": _BUFFER_BYTES}
    try:
        with pq.ParquetFile(path, **options) as file:
            header = _header(file.schema_arrow)
            columns = _checked_columns(file)
            values = {name: _read(file, name, kind) for name, kind in columns}
        return _motion(values, header, str(path))
    except SchemaError as error:
        raise SchemaError(f"{path}: {error}") from error
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise SchemaError(f"{path}: not a readable parquet file: {error}.") from error
    except (KeyError, TypeError, ValueError) as error:
        raise SchemaError(f"{path}: the 'acehand' metadata is damaged: {error!r}.") from error


def _checked_columns(file: pq.ParquetFile) -> list[tuple[str, pa.DataType]]:
    """Return the columns of the file. Raises SchemaError."""
    schema = file.schema_arrow
    columns = [(name, kind) for name, kind, _ in COLUMNS]
    columns += [(name, kind) for name, kind, _ in OPTIONAL_COLUMNS if name in schema.names]
    for name, kind in columns:
        if name not in schema.names:
            raise SchemaError(f"column {name!r} is missing from the hand motion.")
        if schema.field(name).type != kind:
            raise SchemaError(f"column {name!r} is {schema.field(name).type}; valid: {kind}.")

    if file.metadata.num_rows == 0:
        raise SchemaError("a hand motion needs at least one frame.")
    if file.metadata.num_rows % 2:
        raise SchemaError("rows must alternate left and right, two per frame.")
    return columns


def _read(file: pq.ParquetFile, name: str, kind: pa.DataType) -> np.ndarray:
    """Read one column in batches, to save memory: (rows,) or (rows, width); () if all are null.

    A null camera pose is NaN.
    """
    rows = file.metadata.num_rows
    wide, optional = pa.types.is_fixed_size_list(kind), name == "T_world_camera"
    values, done, nulls = np.empty(0), 0, 0
    for batch in file.iter_batches(BATCH_ROWS, columns=[name], use_threads=False):
        column = batch.column(0)
        column.validate(full=True)
        start, done = done, done + len(column)
        flat = column.flatten() if wide else column  # without the values of null rows
        nulls += (flat.null_count if wide else 0) + (0 if optional else column.null_count)
        if nulls:
            continue  # refused below

        if name == "hand":
            if flat.to_pylist() != [SIDES[row % 2] for row in range(start, done)]:
                raise SchemaError("rows must alternate left and right, two per frame.")
            continue

        part = flat.to_numpy(zero_copy_only=False)
        if not len(part):
            continue
        if not len(values):
            shape = (rows, kind.list_size) if wide else (rows,)
            values = np.full(shape, np.nan) if optional else np.empty(shape, part.dtype)
        present = column.is_valid().to_numpy(zero_copy_only=False)
        values[start:done][present] = part.reshape(-1, *values.shape[1:])

    pa.default_memory_pool().release_unused()  # Arrow would keep it for itself
    if nulls:
        raise SchemaError(f"column {name!r} has {nulls} empty values; none are valid.")
    return values


def _motion(values: dict[str, np.ndarray], header: dict[str, Any], where: str) -> HandMotion:
    stamps, poses = values["timestamp_ns"], values["T_world_camera"]
    if (stamps[::2] != stamps[1::2]).any():
        raise SchemaError("both hands of a frame must have the same timestamp_ns.")
    posed = np.isfinite(poses.reshape(-1, 16)).all(-1)
    if (posed[::2] != posed[1::2]).any():
        raise SchemaError("column 'T_world_camera' is empty for one hand of a frame, not for both.")
    models = get_args(HandModelName)
    if header["hand_model"] not in models:
        model = str(header["hand_model"])
        raise SchemaError(f"hand_model is {model!r}; {nearest(model, models)}")

    arrays: dict[str, Any] = {
        name: values[name].reshape(-1, 2, *_ARRAYS.get(name, ())) for name in (*_SCALARS, *_ARRAYS)
    }
    filled_in, sigma, evidence = (values.get(name) for name, _, _ in OPTIONAL_COLUMNS)
    provenance, camera = header["provenance"], header["camera"]
    lists: dict[str, Any] = {name: tuple(provenance[name]) for name in ("licenses", "notes")}
    lists["agreement"] = tuple(Agreement(**one) for one in provenance.get("agreement", ()))
    return HandMotion(
        **arrays,
        timestamps_ns=stamps[::2],
        fps=float(header["fps"]),
        betas=np.array(header["betas"], float).reshape(2, 10),
        hand_model=header["hand_model"],
        provenance=Provenance(**{**provenance, **lists}),
        left_shapedirs_fixed=bool(header["left_shapedirs_fixed"]),
        camera=Camera.from_json(camera, where) if camera else None,
        T_world_camera=poses.reshape(-1, 4, 4)[::2] if len(poses) else None,
        placed=bool(header["placed"]),
        fill_frame=None if filled_in is None else filled_in.reshape(-1, 2),
        joint_sigma=None if sigma is None else sigma.reshape(-1, 2, 21, 2),
        evidence=None if evidence is None else evidence.reshape(-1, 2),
    )


def _header(schema: pa.Schema) -> dict[str, Any]:
    raw = (schema.metadata or {}).get(METADATA_KEY)
    if raw is None:
        raise SchemaError("no 'acehand' metadata; not a hand motion.")
    try:
        header = json.loads(raw)
    except ValueError as error:
        raise SchemaError(f"damaged metadata: {error}.") from error

    if not isinstance(header, dict):
        raise SchemaError(f"damaged metadata: {type(header).__name__}, not an object.")
    given = header.get("format"), header.get("version")
    if given != (FORMAT, FORMAT_VERSION):
        raise SchemaError(f"{given[0]!r} version {given[1]!r}; valid: {FORMAT!r} {FORMAT_VERSION}.")
    return header


def _plain(value: Any) -> Any:
    """Return a tracker's setting for JSON."""
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else str(value)


def _fixed(rows: np.ndarray, unknown: np.ndarray | None = None) -> pa.Array:
    flat = pa.array(np.ascontiguousarray(rows, np.float64).reshape(-1))
    mask = None if unknown is None or not unknown.any() else pa.array(unknown)
    return pa.FixedSizeListArray.from_arrays(flat, rows.shape[1], mask=mask)


def check_table_path(path: Path, overwrite: bool, suffixes: tuple[str, ...]) -> None:
    """Check an output path. Raises InputError: another suffix; OutputError: it exists."""
    if path.suffix not in suffixes:
        raise InputError(f"{path}: hands are written as {' or '.join(suffixes)}.")
    check_free(path, overwrite)


def write_hand_motion(motion: HandMotion, path: Path, overwrite: bool = False) -> None:
    """Write ``.parquet`` (for ``read_hand_motion``), or ``.csv`` for people, atomically.

    Raises InputError: another suffix; OutputError: it exists, or cannot be written.
    """
    check_table_path(path, overwrite, TABLE_SUFFIXES)
    table = to_table(motion)
    with atomic_path(path, overwrite) as partial:
        if path.suffix == ".parquet":
            options = {"compression": "zstd", "write_page_checksum": True}
            # Dictionaries of numbers that hardly repeat would take a fifth more space.
            options["use_dictionary"] = ["hand"]
            pq.write_table(table, partial, row_group_size=BATCH_ROWS, **options)
        else:
            columns: dict[str, Any] = {}  # one per number
            for name, kind in zip(table.schema.names, table.schema.types, strict=True):
                column = table[name].combine_chunks()
                if not pa.types.is_fixed_size_list(kind):
                    columns[name] = column
                elif not column.null_count:
                    rows = column.flatten().to_numpy(zero_copy_only=False)
                    for index, numbers in enumerate(rows.reshape(-1, kind.list_size).T):
                        columns[f"{name}_{index}"] = numbers
            pa_csv.write_csv(pa.table(columns), partial)


def write_joints_file(motion: HandMotion, path: Path, overwrite: bool = False) -> None:
    """Write the joints of both hands as an npz for ``tracker=FILE``. Raises OutputError."""
    with atomic_path(path, overwrite) as partial, partial.open("wb") as file:
        np.savez_compressed(
            file,
            joints=motion.joints_camera,
            timestamps_ns=motion.timestamps_ns,
            fps=motion.fps,
            confidence=motion.quality,
            frame="camera" if motion.placed else "wrist",
        )
