"""Files of tracked objects (``.json``, docs/grasps.md): shapes, mass and poses over time."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from acehand_core.atomic import atomic_path
from acehand_core.errors import SchemaError
from acehand_core.geometry import frames, rotations
from acehand_core.motion import ObjectPart, ObjectTrack, TrackedObject
from acehand_core.user_files import Text, Valid, read_json, structured, without_header

FORMAT, VERSION = "acehand-objects", 1
#: Of a rubber pad on a hard surface.
_FRICTION = 1.0
_Positive = Annotated[int | float, Valid("a number above 0", lambda value: value > 0)]


@dataclass(frozen=True, slots=True)
class _Entry:
    name: Text
    parts: Annotated[tuple[ObjectPart, ...], Valid("at least one part", lambda parts: bool(parts))]
    mass_kg: _Positive
    timestamps_ns: Any
    poses: Any
    friction: _Positive = _FRICTION


@dataclass(frozen=True, slots=True)
class _File:
    frame: Literal["camera", "world"]
    objects: tuple[_Entry, ...]
    up: tuple[float, float, float] | None = None


def read_objects(path: Path) -> ObjectTrack:
    """Return the objects of a file. Raises InputError, SchemaError: it cannot be used."""
    content = structured(_File, without_header(read_json(path), FORMAT, VERSION, str(path)), path)
    if content.up is None and content.frame == "camera":
        raise SchemaError(f"{path}: `up`, the direction against gravity, is needed in the camera.")
    up = np.array(content.up or (0.0, 0.0, 1.0))
    if not np.linalg.norm(up) > 0:
        raise SchemaError(f"{path}: up is {list(up)}; valid: a direction.")
    objects = tuple(_tracked(entry, path) for entry in content.objects)
    return ObjectTrack(content.frame, rotations.unit(up), objects)


def _tracked(entry: _Entry, path: Path) -> TrackedObject:
    where = f"{path}: {entry.name}"
    try:
        times, rows = np.array(entry.timestamps_ns), np.array(entry.poses, float)
    except (TypeError, ValueError) as error:
        raise SchemaError(f"{where}: `timestamps_ns` and `poses` are lists of numbers.") from error
    if (
        times.dtype.kind != "i"
        or times.ndim != 1
        or not len(times)
        or rows.shape != (len(times), 7)
    ):
        raise SchemaError(
            f"{where}: `timestamps_ns` of shape {times.shape} and `poses` of {rows.shape}; valid: "
            "(N,) whole nanoseconds and (N, 7), x y z qw qx qy qz."
        )
    if (np.diff(times) <= 0).any():
        raise SchemaError(f"{where}: `timestamps_ns` must increase.")
    bad = ~np.isfinite(rows).all(1) | (np.abs(np.linalg.norm(rows[:, 3:], axis=1) - 1) > 1e-3)
    if bad.any():
        raise SchemaError(
            f"{where}: pose {int(np.argmax(bad))} is not finite or no unit quaternion."
        )

    parts = []
    for part in entry.parts:
        if part.mesh is not None:
            file = (path.parent / part.mesh).resolve()
            if not file.is_file():
                raise SchemaError(f"{where}: the mesh {file} does not exist.")
            part = ObjectPart(**asdict(part) | {"mesh": str(file)})
        parts.append(part)
    poses = frames.rigid(rotations.from_quaternion(rows[:, 3:]), rows[:, :3])
    return TrackedObject(
        entry.name, tuple(parts), float(entry.mass_kg), float(entry.friction), times, poses
    )


def write_objects(track: ObjectTrack, path: Path, overwrite: bool = False) -> None:
    """Write a file of objects. Raises OutputError."""
    objects = []
    for item in track.objects:
        poses = item.T_frame_object
        rows = np.concatenate([poses[:, :3, 3], rotations.to_quaternion(poses[:, :3, :3])], axis=1)
        objects.append({
            "name": item.name, "mass_kg": item.mass_kg, "friction": item.friction,
            "parts": [asdict(part) for part in item.parts],
            "timestamps_ns": item.timestamps_ns.tolist(), "poses": rows.round(9).tolist(),
        })  # fmt: skip
    content = {"format": FORMAT, "version": VERSION, "frame": track.frame, "up": track.up.tolist(),
               "objects": objects}  # fmt: skip
    with atomic_path(path, overwrite=overwrite) as partial:
        partial.write_text(json.dumps(content) + "\n", "utf-8")
