"""Quest 3 sequences of HOT3D: cameras that do not change over the recording."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from acehand_core.data.native.files import array, get, integer, mapping, read_json
from acehand_core.data.native.hot3d import StreamPoses, headset_poses, moments
from acehand_core.data.native.hot3d_files import HandBoxes, read_headset
from acehand_core.errors import SchemaError
from acehand_core.geometry import frames, rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.types import RigidTransform

CAMERAS_FILE = "camera_models.json"


def read_quest_camera(folder: Path, stream: str) -> tuple[Camera, RigidTransform]:
    """Return a stream's camera and ``T_device_camera``. Raises SchemaError with the file."""
    path = folder / CAMERAS_FILE
    entries = read_json(path)
    if not isinstance(entries, list):
        raise SchemaError(f"{path}: a list of cameras is needed, not {type(entries).__name__}.")
    where = f"{path} {stream}"
    found = [e for e in entries if get(e, "stream_id", str(path)) == stream]
    if len(found) != 1:
        raise SchemaError(f"{path}: {len(found)} cameras of stream {stream!r}; one is needed.")
    return fisheye624(found[0], where), _pose(get(found[0], "T_Device_Camera", where), where)


def fisheye624(entry: dict, where: str) -> Camera:
    """Return the camera of a HOT3D calibration entry with 15 (one focal length) or 16 numbers.

    Accepts the spelling of recordings (``projectionParams``) and of clips (``projection_params``).
    """
    entry = mapping(entry, where)
    spelled = "projectionParams" if "projectionParams" in entry else "projection_params"
    numbers = array(get(entry, spelled, where), (None,), f"{where} {spelled}")
    kind = str(entry.get("projectionModelType", entry.get("projection_model_type", "")))
    if not kind.endswith("FISHEYE624") or len(numbers) not in (15, 16):
        raise SchemaError(
            f"{where}: projection {kind!r} with {len(numbers)} numbers; FISHEYE624 with 15 or 16 "
            "is needed."
        )
    if len(numbers) == 15:
        numbers = np.concatenate([numbers[:1], numbers])
    width, height = (
        integer(get(entry, name, where), f"{where} {name}")
        for name in (
            "imageWidth" if "imageWidth" in entry else "image_width",
            "imageHeight" if "imageHeight" in entry else "image_height",
        )
    )
    fx, fy, cx, cy, *lens = map(float, numbers)
    return Camera("fisheye624", width, height, fx, fy, cx, cy, tuple(lens))


def stream_poses(folder: Path, stream: str, boxes: HandBoxes) -> tuple[StreamPoses, list[str]]:
    """Return the moments of a stream, its camera at each, and where it was; and what was found.

    Raises: as ``hot3d.stream_poses``.
    """
    camera, T_device_camera = read_quest_camera(folder, stream)
    headset = read_headset(folder)
    times = moments(boxes, stream)
    T_world_device, notes = headset_poses(folder, headset, times)
    return StreamPoses(times, (camera,) * len(times), T_world_device @ T_device_camera), notes


def _pose(value: dict, where: str) -> RigidTransform:
    quaternion = array(get(value, "quaternion_wxyz", where), (4,), f"{where} quaternion_wxyz")
    translation = array(get(value, "translation_xyz", where), (3,), f"{where} translation_xyz")
    return frames.rigid(rotations.from_quaternion(quaternion), translation)


read_pose = _pose
