"""Names, schemas and tables of the LeRobotDataset v3.0 format, as lerobot 0.6 reads it.

Each episode also has a folder of our own: hands, report and calibration appear together with the
episode. Pictures are drawn afterwards; until all are there, the file ``PENDING`` lists them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from acehand_core.errors import SchemaError

CODEBASE_VERSION = "v3.0"
CHUNK_SIZE = 1000
INFO_PATH = "meta/info.json"
STATS_PATH = "meta/stats.json"
TASKS_PATH = "meta/tasks.parquet"
_FILE = "chunk-{chunk_index:03d}/file-{file_index:03d}"
DATA_PATH = f"data/{_FILE}.parquet"
VIDEO_PATH = f"videos/{{video_key}}/{_FILE}.mp4"
EPISODES_PATH = f"meta/episodes/{_FILE}.parquet"
PROVENANCE_KEY = b"acehand.provenance"

#: The reader refuses a frame further than this from its timestamp.
TOLERANCE_S = 1e-4

FeatureDtype = Literal["float32", "int64", "bool", "video"]
ARROW_TYPES = {"float32": pa.float32(), "int64": pa.int64(), "bool": pa.bool_()}
MANDATORY: dict[str, str] = {
    "timestamp": "float32",
    "frame_index": "int64",
    "episode_index": "int64",
    "index": "int64",
    "task_index": "int64",
}
IMAGE_AXES = ("height", "width", "channels")

#: Folder of the episodes' folders.
EXTRAS = "acehand"
HANDS, REPORT, CALIBRATION = "hand_motion.parquet", "report.json", "calibration.json"
SHEET, OVERLAY = "contact_sheet.png", "overlay.mp4"
PENDING = "pictures_pending.json"

#: Files of every episode; some have an overlay and a calibration.
_ALWAYS = (HANDS, REPORT, SHEET)


@dataclass(frozen=True, slots=True)
class FeatureSpec:
    """One feature of a dataset.

    ``names`` is a sequence of labels for one axis; for more a mapping of axis name to labels, in
    axis order. A video has shape (height, width, 3), or 1 of depth, and its axes' names. ``info``
    is free (unit, frame) and goes into info.json.
    """

    key: str
    dtype: FeatureDtype
    shape: tuple[int, ...]
    names: Sequence[str] | Mapping[str, Sequence[str]]
    info: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        where = f"Feature {self.key!r}"
        if not self.key or "/" in self.key or self.key in MANDATORY:
            raise SchemaError(
                f"{where}: a key is not empty, has no '/', and is none of {', '.join(MANDATORY)}, "
                "which the writer adds."
            )
        problem = shape_problem(self.shape) or names_problem(self.dtype, self.shape, self.names)
        if problem:
            raise SchemaError(f"{where}: {problem}.")

    def to_json(self) -> dict[str, Any]:
        """Return the feature as info.json holds it."""
        names: Any = list(self.names)
        if isinstance(self.names, Mapping):
            names = {axis: list(labels) for axis, labels in self.names.items()}
        entry = {"dtype": self.dtype, "shape": list(self.shape), "names": names}
        return {**entry, "info": json.loads(to_json(self.info))} if self.info else entry


def video_feature(key: str, height: int, width: int) -> FeatureSpec:
    """Return the feature of an RGB video."""
    return FeatureSpec(key, "video", (height, width, 3), IMAGE_AXES)


def shape_problem(shape: Sequence[Any]) -> str | None:
    """Return what is wrong with a feature's shape, or None."""
    if not 1 <= len(shape) <= 5 or not all(isinstance(n, int) and n > 0 for n in shape):
        return f"shape {list(shape)} must have 1 to 5 positive axes"
    return None


def names_problem(dtype: str, shape: Sequence[int], names: Any) -> str | None:
    """Return what is wrong with a feature's names, or None."""
    if dtype == "video":
        if len(shape) != 3 or shape[2] not in (1, 3):
            return f"a video has shape (height, width, 3), of depth 1, not {tuple(shape)}"
        fine = isinstance(names, Sequence) and len(names) == 3
        return None if fine else f"a video's names are {list(IMAGE_AXES)}, not {names}"

    if isinstance(names, Mapping):
        lengths = [len(labels) for labels in names.values()]
        if lengths != list(shape):
            return f"names have {lengths} labels for shape {list(shape)}"
        labels = [list(axis) for axis in names.values()]
    elif isinstance(names, Sequence) and not isinstance(names, str) and len(shape) == 1:
        if len(names) != shape[0]:
            return f"{len(names)} names for {shape[0]} values"
        labels = [list(names)]
    else:
        return f"names must be one label per value, or axis -> labels for {len(shape)} axes"
    repeated = any(len(set(axis)) != len(axis) for axis in labels)
    return "names repeat a label" if repeated else None


def features_json(features: Sequence[FeatureSpec]) -> dict[str, Any]:
    """Return info.json's ``features``: the given and the mandatory ones."""
    entries = {feature.key: feature.to_json() for feature in features}
    if len(entries) != len(features):
        raise SchemaError("Two features have the same key; keys must differ.")
    mandatory = {k: {"dtype": t, "shape": [1], "names": None} for k, t in MANDATORY.items()}
    return entries | mandatory


def new_info(fps: int, features: Mapping[str, Any], robot_type: str) -> dict[str, Any]:
    """Return info.json of a dataset without episodes."""
    videos = any(feature["dtype"] == "video" for feature in features.values())
    return {
        "codebase_version": CODEBASE_VERSION,
        "fps": fps,
        "features": dict(features),
        "total_episodes": 0,
        "total_frames": 0,
        "total_tasks": 0,
        "chunks_size": CHUNK_SIZE,
        "data_files_size_in_mb": 100,
        "video_files_size_in_mb": 200,
        "data_path": DATA_PATH,
        "video_path": VIDEO_PATH if videos else None,
        "robot_type": robot_type,
        "splits": {},
    }


def to_json_bytes(content: Mapping[str, Any]) -> bytes:
    """Return strict JSON (no NaN), indented."""
    return (to_json(content, indent=4) + "\n").encode()


def to_json(content: Mapping[str, Any], indent: int | None = None) -> str:
    """Return strict JSON. Raises SchemaError for values that JSON cannot represent."""
    try:
        return json.dumps(dict(content), indent=indent, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise SchemaError(f"Dataset metadata must be plain JSON without NaN: {error}.") from error


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises SchemaError naming the file."""
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        raise SchemaError(f"{path} is missing; a LeRobot v3 dataset needs it.") from None
    except (OSError, ValueError) as error:
        raise SchemaError(f"{path} cannot be read as JSON: {error}.") from error
    if not isinstance(content, dict):
        raise SchemaError(f"{path} must contain a JSON object.")
    return content


def read_parquet(path: Path, columns: list[str] | None = None) -> pa.Table:
    """Read one parquet file. Raises SchemaError naming it."""
    try:
        table = pq.read_table(
            path, columns=columns, partitioning=None, page_checksum_verification=True
        )
        table.validate()
        table.schema.names  # noqa: B018  raises if a damaged file's names are not text
        return table
    except (OSError, ValueError, pa.ArrowException) as error:
        raise SchemaError(f"{path} cannot be read as parquet: {error}.") from error


def read_frames(
    root: Path, row: Mapping[str, Any], columns: Sequence[str] | None = None
) -> pa.Table:
    """Return the frames of a row of meta/episodes. Raises SchemaError, ArrowException."""
    names = None if columns is None else [*dict.fromkeys([*columns, "episode_index"])]
    table = read_parquet(root / data_file(row), names)
    return table.filter(pc.equal(table["episode_index"], row["episode_index"]))


def write_parquet(table: pa.Table, path: Path) -> None:
    """Write one snappy row group, with page checksums, which ``read_parquet`` verifies."""
    pq.write_table(
        table, path, compression="snappy", row_group_size=len(table), write_page_checksum=True
    )


def video_keys(features: Mapping[str, Any]) -> list[str]:
    """Return the keys of the video features."""
    return [key for key, feature in features.items() if feature["dtype"] == "video"]


def is_depth(feature: Mapping[str, Any]) -> bool:
    """Return whether a feature is a video of depth."""
    info = feature.get("info")
    return isinstance(info, Mapping) and info.get("is_depth_map") is True


def has_stats(feature: Mapping[str, Any]) -> bool:
    """Return whether a feature is numbers or a video: other writers also store text and images."""
    return feature["dtype"] in ARROW_TYPES or feature["dtype"] == "video"


def column_array(values: np.ndarray, dtype: str, shape: Sequence[int]) -> pa.Array:
    """Return N values of the given shape as a data column."""
    frames = len(values)
    flat = np.ascontiguousarray(values).reshape(-1)
    array: pa.Array = pa.array(flat, type=ARROW_TYPES[dtype])
    if list(shape) == [1]:
        return array
    if len(shape) == 1:
        return pa.FixedSizeListArray.from_arrays(array, shape[0])
    for axis in reversed(range(len(shape))):
        rows = frames * int(np.prod(shape[:axis], dtype=np.int64))
        offsets = np.arange(rows + 1, dtype=np.int32) * shape[axis]
        array = pa.ListArray.from_arrays(pa.array(offsets, type=pa.int32()), array)
    return array


def column_values(column: pa.ChunkedArray, shape: Sequence[int]) -> np.ndarray:
    """Return a data column as an array (N, *shape). Raises ValueError if it does not fit."""
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks else pa.array([], type=column.type)
    rows = len(array)
    axes = [] if list(shape) == [1] else list(shape)
    for length in axes:
        if array.null_count or not (np.asarray(array.value_lengths()) == length).all():
            raise ValueError(f"not every list has {length} entries")
        array = array.flatten()
    if array.null_count:
        raise ValueError("there are empty values")
    return array.to_numpy(zero_copy_only=False).reshape(rows, *shape)


def tasks_table(tasks: Sequence[str]) -> pa.Table:
    """Return tasks.parquet: a pandas frame indexed by ``task``, built without pandas."""
    indices = pa.array(range(len(tasks)), pa.int64())
    table = pa.table({"task_index": indices, "task": pa.array(list(tasks), pa.string())})
    keys = ("name", "field_name", "pandas_type", "numpy_type", "metadata")
    index, number, text = (
        dict(zip(keys, (column[0], *column), strict=True))
        for column in (
            (None, "unicode", "object", {"encoding": "UTF-8"}),
            ("task_index", "int64", "int64", None),
            ("task", "unicode", "object", None),
        )
    )
    pandas = {
        "index_columns": ["task"],
        "column_indexes": [index],
        "columns": [number, text],
        "creator": {"library": "pyarrow", "version": pa.__version__},
        "pandas_version": "2.0.0",
    }
    return table.replace_schema_metadata({"pandas": json.dumps(pandas)})


def read_tasks(root: Path) -> list[str]:
    """Return the tasks in task_index order. Raises SchemaError."""
    path = root / TASKS_PATH
    table = read_parquet(path)
    # The name that pandas gives an unnamed index; the reader takes both.
    label = "task" if "task" in table.column_names else "__index_level_0__"
    if not {label, "task_index"} <= set(table.column_names):
        raise SchemaError(f"{path} has columns {table.column_names}; it needs task, task_index.")
    if table["task_index"].to_pylist() != list(range(table.num_rows)):
        raise SchemaError(f"{path}: task_index must count 0, 1, 2, ...: readers use positions.")
    return table[label].to_pylist()


def parquet_files(folder: Path) -> list[Path]:
    """Return the files that the reader loads from ``folder``, in its order."""
    return sorted(folder.glob("*/*.parquet"))


def read_episode_rows(root: Path) -> list[dict[str, Any]]:
    """Return the rows of meta/episodes in the reader's order. Raises SchemaError."""
    rows: list[dict[str, Any]] = []
    for path in parquet_files(root / "meta/episodes"):
        rows.extend(read_parquet(path).to_pylist())
    return rows


def data_file(row: Mapping[str, Any]) -> str:
    """Return the data file of an episode, relative to the dataset."""
    return DATA_PATH.format(chunk_index=row["data/chunk_index"], file_index=row["data/file_index"])


def read_record(root: Path, row: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the provenance that our writer stored of an episode; None: no such record.

    It is in the data file and the report: lerobot's ``modify_tasks`` drops the former. Raises
    SchemaError for an unreadable file.
    """
    path = root / data_file(row)
    try:
        content = (pq.read_schema(path).metadata or {}).get(PROVENANCE_KEY)
        stored = None if content is None else json.loads(content)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise SchemaError(f"{path} cannot be read as parquet: {error}.") from error
    return read_report(root, row["episode_index"]).get("provenance") if stored is None else stored


def read_report(root: Path, number: int) -> dict[str, Any]:
    """Return an episode's report, or {}. Raises SchemaError for an unreadable file."""
    path = root / episode_folder(number) / REPORT
    return read_json(path) if path.is_file() else {}


def video_file(row: Mapping[str, Any], key: str) -> str:
    """Return a video file of an episode, relative to the dataset."""
    return VIDEO_PATH.format(
        video_key=key,
        chunk_index=row[f"videos/{key}/chunk_index"],
        file_index=row[f"videos/{key}/file_index"],
    )


def next_file(used: Sequence[tuple[int, int]], chunk_size: int = CHUNK_SIZE) -> tuple[int, int]:
    """Return the (chunk, file) indices that follow the last of those used."""
    if not used:
        return 0, 0
    chunk, file = max(used)
    return (chunk + 1, 0) if file >= chunk_size - 1 else (chunk, file + 1)


def episode_folder(number: int) -> str:
    """Return the folder of an episode, relative to the dataset."""
    return f"{EXTRAS}/episode_{number:06d}"


def pending_bytes(pictures: Sequence[str]) -> bytes:
    """Return the content of ``PENDING``."""
    return (json.dumps({"pictures": list(pictures)}) + "\n").encode()


def partial_files(folder: Path) -> list[Path]:
    """Return the partial files of a killed process in a folder."""
    return sorted(folder.glob(".*.partial-*"))


def missing_files(dataset: Path, number: int) -> tuple[str, ...]:
    """Return the names of files that our interrupted writer left out.

    Of writers before ``PENDING``: files that every episode has, and an overlay that was begun.
    """
    folder = dataset / episode_folder(number)
    names = [name for name in _ALWAYS if not (folder / name).is_file()]
    names += [OVERLAY for path in partial_files(folder) if path.name.startswith(f".{OVERLAY}.")]
    pending = folder / PENDING
    if pending.is_file():
        try:
            pictures = json.loads(pending.read_text("utf-8"))["pictures"]
            names += [name for name in pictures if name in (SHEET, OVERLAY)]
        except (OSError, ValueError, TypeError, KeyError):  # damaged
            names.append(SHEET)
    return tuple(name for name in (*_ALWAYS, OVERLAY) if name in names)
