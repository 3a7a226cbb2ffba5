"""Files of one HOT3D sequence folder (Aria or Quest 3), read into arrays as stored.

Times are nanoseconds of one clock; world, device and wrist poses are metres, ``T_a_b`` maps points
of b to a; slot 0 is the left hand. ``recording.vrs`` is not read here.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from acehand_core.ace.labelled.readers import base
from acehand_core.errors import InputError, SchemaError, nearest
from acehand_core.geometry import frames, rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.types import RigidTransform
from acehand_core.user_files import read_json

MANO_FILE = "mano_hand_pose_trajectory.jsonl"
UMETRACK_FILE = "umetrack_hand_pose_trajectory.jsonl"
HEADSET_FILE = "headset_trajectory.csv"
BOXES_FILE = "box2d_hands.csv"
#: Constant cameras of Quest 3; Aria has ``CALIBRATION_FILE``.
CAMERAS_FILE = "camera_models.json"
CALIBRATION_FILE = "mps/slam/online_calibration.jsonl"

#: Masks of hands, see docs/datasets.md; those of objects are not read.
MASKS = (
    "headset_pose_available",
    "hand_pose_available",
    "hand_visible",
    "good_exposure",
    "qa_pass",
)

#: Stream to camera label, width and height. Only the recording has the sizes.
STREAMS = {
    "214-1": ("camera-rgb", 1408, 1408),
    "1201-1": ("camera-slam-left", 640, 480),
    "1201-2": ("camera-slam-right", 640, 480),
}

_BOX_COLUMNS = ("x_min[pixel]", "y_min[pixel]", "x_max[pixel]", "y_max[pixel]")
_POSE_COLUMNS = (*(f"t_wo_{axis}[m]" for axis in "xyz"), *(f"q_wo_{axis}" for axis in "wxyz"))


@dataclass(frozen=True, slots=True)
class HandBoxes:
    """Boxes of whole hands, occluded parts included, in the raw image; may exceed it.

    ``box`` is x_min, y_min, x_max, y_max in pixels, NaN for a hand out of view. ``visibility`` is
    the visible share, 0 to 1.
    """

    stream: tuple[str, ...]
    slot: Int[np.ndarray, "N"]
    timestamps_ns: Int[np.ndarray, "N"]
    box: Float[np.ndarray, "N 4"]
    visibility: Float[np.ndarray, "N"]

    def of_stream(self, stream: str) -> np.ndarray:
        """Return the rows of one stream, in file order."""
        return np.flatnonzero(np.array(self.stream) == stream)


@dataclass(frozen=True, slots=True)
class HandStream:
    """A pose per row and slot: ``T_world_hand`` and its ``numbers``, NaN for an absent hand.

    UmeTrack: wrist pose and 22 joint angles. MANO: global orientation with MANO's translation
    (not the wrist), and 15 principal components without the mean pose. Both hands share ``betas``,
    of MANO with repaired left shape directions; zero without any hand.
    """

    timestamps_ns: Int[np.ndarray, "T"]
    present: Bool[np.ndarray, "T 2"]
    T_world_hand: Float[np.ndarray, "T 2 4 4"]
    numbers: Float[np.ndarray, "T 2 K"]
    betas: Float[np.ndarray, "10"]

    def at(self, timestamps_ns: Int[np.ndarray, "M"]) -> HandStream:
        """Return the rows of exactly these times; hands are absent without a row."""
        rows, exact = find_rows(self.timestamps_ns, timestamps_ns)
        return HandStream(
            timestamps_ns,
            self.present[rows] & exact[:, None],
            np.where(exact[:, None, None, None], self.T_world_hand[rows], np.nan),
            np.where(exact[:, None, None], self.numbers[rows], np.nan),
            self.betas,
        )


def find_rows(
    available: Int[np.ndarray, "N"], times: Int[np.ndarray, "M"]
) -> tuple[Int[np.ndarray, "M"], Bool[np.ndarray, "M"]]:
    """Return the rows of exactly these times, and whether there is one; else any row."""
    rows = np.minimum(np.searchsorted(available, times), len(available) - 1)
    return rows, available[rows] == times


def read_headset(folder: Path) -> tuple[Int[np.ndarray, "T"], Float[np.ndarray, "T 4 4"]]:
    """Return times and ``T_world_device``. Raises SchemaError with file and line."""
    path = folder / HEADSET_FILE
    times, poses = [], []
    for where, row in _csv_rows(path, ("object_uid", "timestamp[ns]", *_POSE_COLUMNS)):
        times.append(_time(row["timestamp[ns]"], where))
        values = base.array([row[name] for name in _POSE_COLUMNS], (7,), f"{where}: pose")
        poses.append(_rigid(values[:3], values[3:], where))
    return _increasing(times, path), np.array(poses)


def read_boxes(folder: Path) -> HandBoxes:
    """Read ``box2d_hands.csv``. Raises SchemaError with file and line."""
    path = folder / BOXES_FILE
    columns = ("stream_id", "hand_index", "timestamp[ns]", *_BOX_COLUMNS, "visibility_ratio[%]")

    streams, slots, times, boxes, visibility = [], [], [], [], []
    for where, row in _csv_rows(path, columns):
        if row["hand_index"] not in ("0", "1"):
            raise SchemaError(f"{where}: hand_index is {row['hand_index']!r}; valid: 0, 1.")
        streams.append(row["stream_id"])
        slots.append(int(row["hand_index"]))
        times.append(_time(row["timestamp[ns]"], where))
        corners = [row[name] for name in _BOX_COLUMNS]
        hidden = not any(corners)
        boxes.append(np.full(4, np.nan) if hidden else base.array(corners, (4,), f"{where}: box"))
        visibility.append(base.array(row["visibility_ratio[%]"], (), f"{where}: visibility"))

    if not streams:
        raise SchemaError(f"{path}: no rows.")
    return HandBoxes(
        tuple(streams), np.array(slots), np.array(times), np.array(boxes), np.array(visibility)
    )


def read_mask(
    folder: Path, name: str, stream: str, times: Int[np.ndarray, "M"]
) -> tuple[Bool[np.ndarray, "M"], Bool[np.ndarray, "M"]] | None:
    """Return one of ``MASKS`` of a stream at these times, and which times have an entry.

    None without the file: masks are optional. Raises SchemaError with file and line.
    """
    path = folder / "masks" / f"mask_{name}.csv"
    if not path.is_file():
        return None
    stated: dict[int, bool] = {}
    for where, row in _csv_rows(path, ("timestamp[ns]", "stream_id", "mask")):
        if row["mask"] not in ("True", "False"):
            raise SchemaError(f"{where}: mask is {row['mask']!r}; valid: True, False.")
        if row["stream_id"] == stream:
            stated[_time(row["timestamp[ns]"], where)] = row["mask"] == "True"
    values = np.array([stated.get(int(time), True) for time in times], bool)
    return values, np.array([int(time) in stated for time in times], bool)


def read_umetrack(folder: Path) -> HandStream:
    """Read UmeTrack's wrists and joint angles. Raises SchemaError with file and line."""
    return _read_hands(folder / UMETRACK_FILE, "joint_angles", 22, with_betas=False)


def read_mano(folder: Path) -> HandStream:
    """Read MANO's orientation, translation, 15 components and betas.

    Raises: SchemaError with file and line, also where betas are not those of the first line.
    """
    return _read_hands(folder / MANO_FILE, "pose", 15, with_betas=True)


def read_calibration(folder: Path, stream: str) -> tuple[list[Camera], RigidTransform]:
    """Return camera and ``T_device_camera`` of one stream's moments from the online calibration.

    Raises: InputError for an unknown stream; SchemaError with file and line.
    """
    if stream not in STREAMS:
        raise InputError(f"HOT3D has no stream {stream!r}; {nearest(stream, STREAMS)}")
    label, width, height = STREAMS[stream]
    cameras, poses = [], []
    for where, line in _json_lines(folder / CALIBRATION_FILE):
        entries = base.get(line, "CameraCalibrations", where)
        if not isinstance(entries, list):
            raise SchemaError(f"{where}: 'CameraCalibrations' must be a list.")
        entries = [e for e in entries if base.get(e, "Label", where) == label]
        if len(entries) != 1:
            raise SchemaError(f"{where}: {len(entries)} calibrations of {label!r}; one is needed.")

        projection = base.get(entries[0], "Projection", where)
        if base.get(projection, "Name", where) != "FisheyeRadTanThinPrism":
            raise SchemaError(
                f"{where}: projection {projection['Name']!r}; valid: FisheyeRadTanThinPrism."
            )
        f, cx, cy, *distortion = map(float, base.entry(projection, "Params", (15,), where))
        cameras.append(Camera("fisheye624", width, height, f, f, cx, cy, tuple(distortion)))

        pose = base.get(entries[0], "T_Device_Camera", where)
        quaternion = base.get(pose, "UnitQuaternion", where)
        if not isinstance(quaternion, list) or len(quaternion) != 2:
            raise SchemaError(f"{where}: UnitQuaternion must be [w, [x, y, z]].")
        w = base.array(quaternion[0], (), f"{where}: UnitQuaternion")
        xyz = base.array(quaternion[1], (3,), f"{where}: UnitQuaternion")
        translation = base.entry(pose, "Translation", (3,), where)
        poses.append(_rigid(translation, np.concatenate([[w], xyz]), where))
    return cameras, np.array(poses)


def read_quest_camera(folder: Path, stream: str) -> tuple[Camera, RigidTransform]:
    """Return a stream's camera and ``T_device_camera``. Raises SchemaError with the file."""
    path = folder / CAMERAS_FILE
    entries = read_json(path)
    if not isinstance(entries, list):
        raise SchemaError(f"{path}: a list of cameras is needed, not {type(entries).__name__}.")
    where = f"{path} {stream}"
    cameras = [e for e in entries if base.get(e, "stream_id", str(path)) == stream]
    if len(cameras) != 1:
        raise SchemaError(f"{path}: {len(cameras)} cameras of stream {stream!r}; one is needed.")
    pose = read_pose(base.get(cameras[0], "T_Device_Camera", where), where)
    return fisheye624(cameras[0], where), pose


def fisheye624(value: base.Record, where: str) -> Camera:
    """Return the camera of a HOT3D calibration entry with 15 (one focal length) or 16 numbers.

    Accepts the spelling of recordings (``projectionParams``) and of clips (``projection_params``).
    """
    value = base.mapping(value, where)

    def spelled(camel: str, snake: str) -> str:
        return camel if camel in value else snake

    numbers = base.entry(value, spelled("projectionParams", "projection_params"), (None,), where)
    kind = str(value.get(spelled("projectionModelType", "projection_model_type"), ""))
    if not kind.endswith("FISHEYE624") or len(numbers) not in (15, 16):
        raise SchemaError(
            f"{where}: projection {kind!r} with {len(numbers)} numbers; FISHEYE624 with 15 or 16 "
            "is needed."
        )

    if len(numbers) == 15:
        numbers = np.concatenate([numbers[:1], numbers])
    names = (spelled("imageWidth", "image_width"), spelled("imageHeight", "image_height"))
    width, height = (
        base.integer(base.get(value, name, where), f"{where} {name}") for name in names
    )
    fx, fy, cx, cy, *lens = map(float, numbers)

    return Camera("fisheye624", width, height, fx, fy, cx, cy, tuple(lens))


def read_pose(value: base.Record, where: str) -> RigidTransform:
    """Return a pose of a HOT3D calibration entry. Raises SchemaError with ``where``."""
    quaternion = base.entry(value, "quaternion_wxyz", (4,), where)
    rotation = rotations.from_quaternion(quaternion)
    return frames.rigid(rotation, base.entry(value, "translation_xyz", (3,), where))


def _read_hands(path: Path, key: str, count: int, with_betas: bool) -> HandStream:
    times, poses, numbers, betas = [], [], [], None
    for where, line in _json_lines(path):
        times.append(_time(base.get(line, "timestamp_ns", where), where))
        pose, values = np.full((2, 4, 4), np.nan), np.full((2, count), np.nan)
        for name, hand in base.mapping(
            base.get(line, "hand_poses", where), f"{where}: hand_poses"
        ).items():
            if name not in ("0", "1"):
                raise SchemaError(f"{where}: hand {name!r}; valid: '0' left, '1' right.")
            wrist = base.get(hand, "wrist_xform", where)
            translation = base.entry(wrist, "t_xyz", (3,), where)
            pose[int(name)] = _rigid(translation, base.entry(wrist, "q_wxyz", (4,), where), where)
            values[int(name)] = base.entry(hand, key, (count,), where)
            if with_betas:
                shape = base.entry(hand, "betas", (10,), where)
                betas = shape if betas is None else betas
                if not np.array_equal(shape, betas):
                    raise SchemaError(f"{where}: betas differ from the first ones of the file.")
        poses.append(pose)
        numbers.append(values)

    stacked = np.array(poses)
    return HandStream(
        timestamps_ns=_increasing(times, path),
        present=np.isfinite(stacked).all(axis=(-1, -2)),
        T_world_hand=stacked,
        numbers=np.array(numbers),
        betas=np.zeros(10) if betas is None else betas,
    )


def _rigid(translation: np.ndarray, quaternion: np.ndarray, where: str) -> np.ndarray:
    norm = float(np.linalg.norm(quaternion))
    if abs(norm - 1) > 1e-3:
        raise SchemaError(f"{where}: the quaternion has length {norm:.4f}, not 1.")
    return frames.rigid(rotations.from_quaternion(quaternion), translation)


def _lines(path: Path) -> list[str]:
    if not path.exists():
        raise InputError(
            f"{path}: missing. Sequence folders of training participants have it; those of test "
            "participants have no ground truth."
        )
    return base.read_text(path).splitlines()


def _csv_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    reader = csv.reader(_lines(path))
    header = next(reader, [])
    if sorted(header) != sorted(columns):
        odd = sorted(set(header) ^ set(columns)) or header
        raise SchemaError(
            f"{path}:1: wrong columns ({', '.join(odd)}); valid: {', '.join(columns)}."
        )
    for values in reader:
        where = f"{path}:{reader.line_num}"
        if len(values) != len(header):
            raise SchemaError(f"{where}: {len(values)} values for {len(header)} columns.")
        yield where, dict(zip(header, values, strict=True))


def _json_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    lines = _lines(path)
    if not lines:
        raise SchemaError(f"{path}: empty.")
    for number, text in enumerate(lines, 1):
        where = f"{path}:{number}"
        try:
            value = json.loads(text)
        except json.JSONDecodeError as error:
            raise SchemaError(f"{where}: not a JSON object ({error}).") from error
        if not isinstance(value, dict):
            raise SchemaError(f"{where}: not a JSON object.")
        yield where, value


def _time(value: Any, where: str) -> int:
    try:
        return int(np.int64(int(value)))
    except (TypeError, ValueError, OverflowError) as error:
        raise SchemaError(f"{where}: the timestamp {value!r} is not a whole number.") from error


def _increasing(values: list[int], path: Path) -> np.ndarray:
    times = np.array(values, np.int64)
    if len(times) == 0:
        raise SchemaError(f"{path}: no rows.")
    if (np.diff(times) <= 0).any():
        raise SchemaError(f"{path}: timestamps must increase; row {np.argmin(np.diff(times)) + 2}.")
    return times
