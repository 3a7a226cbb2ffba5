"""Reading camera files: the format is found by content (``FORMATS``), a camera by ``FILE:NAME``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import yaml

from acehand_core.errors import CalibrationError, nearest
from acehand_core.geometry.cameras import Camera
from acehand_core.recordings.camera_fields import CameraHints
from acehand_core.recordings.camera_formats import FORMATS, CameraFormat
from acehand_core.recordings.colmap import ColmapCameras, is_colmap_text, read_binary, read_text

#: An hour of Aria's online calibration has some 200 MB.
_MAX_BYTES = 512 << 20
#: The YAML parser is slow; a minute of ``ros2 topic echo`` has 1 MB.
_MAX_YAML_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class CameraFile:
    """A camera with its file's format, its name there, and ``names`` of all cameras there."""

    camera: Camera
    format: str
    name: str
    names: tuple[str, ...]
    note: str


def load_camera(path: Path | str) -> Camera:
    """Return the camera of a file, or of ``FILE:NAME``. Raises as ``read_camera``."""
    return read_camera(path).camera


def read_camera(path: Path | str, hints: CameraHints | None = None) -> CameraFile:
    """Return the camera of a file, or of ``FILE:NAME``, with its format.

    Args:
        path: a file of any format, by its content; ``:NAME`` chooses one of several cameras.
        hints: what the file lacks.

    Raises:
        CalibrationError: the file is missing, of no known format, or of two; it has several cameras
            and none is named; a field is missing or invalid; hints are needed, or contradict it.
    """
    hints = hints or CameraHints()
    file, name = file_and_name(str(path))
    content = content_of(file)
    kind = format_of(file, content)
    where = f"{file} ({kind.title})"
    try:
        cameras = kind.cameras(content)
    except CalibrationError as error:
        raise CalibrationError(f"{where}: {error}") from None
    if not cameras:
        raise CalibrationError(f"{where}: no camera in it.")
    if name and name not in cameras:
        raise CalibrationError(f"{where}: no camera {name!r}; {nearest(name, cameras)}")
    if not name and len(cameras) > 1:
        raise CalibrationError(
            f"{where}: {len(cameras)} cameras, {', '.join(cameras)}; say which, for example "
            f"{file}:{next(iter(cameras))}.{kind.which}"
        )

    name = name or next(iter(cameras))
    where = f"{file}:{name}" if len(cameras) > 1 else str(file)
    try:
        camera = cameras[name](hints)
    except CalibrationError as error:
        text = str(error).replace("FILE", where)
        raise CalibrationError(f"{where} ({kind.title}): {text}") from None
    _check_hints(camera, hints, where)
    return CameraFile(camera, kind.title, name, tuple(cameras), kind.note(content))


def file_and_name(text: str) -> tuple[Path, str]:
    """Split ``FILE:NAME``; an existing file with a colon in its name comes first."""
    path = Path(text)
    if not path.exists():
        front, colon, name = text.rpartition(":")
        if colon and Path(front).is_file():
            return Path(front), name
    if path.is_dir():
        raise CalibrationError(f"{path} is a folder; give a camera file.")
    if not path.is_file():
        raise CalibrationError(f"{path} does not exist; give a camera file.")
    return path, ""


def format_of(file: Path, content: Any) -> CameraFormat:
    kinds = [kind for kind in FORMATS if kind.recognises(content)]
    if len(kinds) == 1:
        return kinds[0]
    if kinds:
        titles = " or ".join(kind.title for kind in kinds)
        raise CalibrationError(f"{file} could be {titles}; keep the fields of one of them.")
    first = content[0] if isinstance(content, list) and content else content
    names = ", ".join(map(str, list(first)[:12])) if isinstance(first, Mapping) else "no fields"
    known = "; ".join(f"{kind.title} ({kind.told_by})" for kind in FORMATS)
    raise CalibrationError(
        f"{file} is no known camera file; it has {names}. Supported: {known}. Cameras of HOT3D are "
        "read with its recordings: acehand data convert hot3d."
    )


def _check_hints(camera: Camera, hints: CameraHints, where: str) -> None:
    size = (camera.width, camera.height)
    if hints.size not in (None, size):
        raise CalibrationError(
            f"{where}: `size={hints.size[0]}x{hints.size[1]}`, but the file says {size[0]} x "
            f"{size[1]}. Leave `size` out: a camera is rescaled to its video."
        )
    undistorted = camera.model == "pinhole" and hints.model == "brown_conrady"
    if hints.model not in (None, camera.model) and not undistorted:
        raise CalibrationError(
            f"{where}: `model={hints.model}`, but the file has {camera.model}. Leave `model` out."
        )


def content_of(file: Path) -> Any:
    """Return a file's content: mappings and lists, or COLMAP's cameras."""
    if file.stat().st_size > _MAX_BYTES:
        raise CalibrationError(f"{file} is too large for a camera file ({_MAX_BYTES >> 20} MB).")
    data = file.read_bytes()
    if b"\0" in data[:4096]:
        return _colmap(file, data)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CalibrationError(
            f"{file} is neither text nor COLMAP's cameras.bin ({error})."
        ) from None

    start = text.lstrip()[:200]
    if start.startswith(("%YAML:1.0", "<?xml", "<opencv_storage")) or "opencv-matrix" in text:
        return _file_storage(file, text)
    if is_colmap_text(text):
        return _colmap(file, text)
    if start.startswith(("[LEFT_CAM_", "[RIGHT_CAM_")):
        raise CalibrationError(
            f"{file} is from a ZED, for unrectified pictures of several sizes. Write that of "
            'your video as JSON: {"model": "brown_conrady", "width": .., "height": .., "fx": .., '
            '"fy": .., "cx": .., "cy": .., "distortion": [k1, k2, p1, p2, k3]}.'
        )
    return json_of(file, text) if start[:1] in ("{", "[") else _yaml(file, text)


def _colmap(file: Path, data: bytes | str) -> ColmapCameras:
    try:
        return read_binary(data) if isinstance(data, bytes) else read_text(data)
    except CalibrationError as error:
        raise CalibrationError(f"{file}: {error}") from None


def json_of(file: Path, text: str) -> Any:
    """Return one JSON value, or the values of JSON lines."""
    try:
        return json.loads(text)
    except RecursionError:
        raise CalibrationError(f"{file} is nested too deeply for a camera file.") from None
    except ValueError as error:
        lines = [line for line in text.splitlines() if line.strip()]
        try:
            values = [json.loads(line) for line in lines]
        except (ValueError, RecursionError):
            values = []
        if len(values) > 1:
            return values
        raise CalibrationError(f"{file} is not JSON ({error}); give a camera file.") from None


def _yaml(file: Path, text: str) -> Any:
    """Return one YAML document, or a list of several."""
    if len(text) > _MAX_YAML_BYTES:
        raise CalibrationError(f"{file} is too large for a camera file in YAML.")
    try:
        documents = [entry for entry in yaml.safe_load_all(text) if entry is not None]
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        reason = re.sub(r"\s+", " ", str(error))
        raise CalibrationError(f"{file} is not YAML ({reason}); give a camera file.") from None
    return documents[0] if len(documents) == 1 else documents


def _file_storage(file: Path, text: str) -> Any:
    """Return an OpenCV FileStorage (YAML, XML or JSON), its matrices as lists of rows."""
    try:
        storage = cv2.FileStorage(text, cv2.FILE_STORAGE_READ | cv2.FILE_STORAGE_MEMORY)
        return _plain(storage.root())
    except CalibrationError as error:
        raise CalibrationError(f"{file} has {error}") from None
    except (cv2.error, SystemError, RecursionError) as error:
        reason = (getattr(error, "err", "") or str(error)).strip()
        raise CalibrationError(f"{file} is not an OpenCV FileStorage ({reason}).") from None


def _plain(node: cv2.FileNode) -> Any:
    """Return a FileStorage node as Python values."""
    if node.isMap():
        values = {name: _plain(node.getNode(name)) for name in node.keys()}  # noqa: SIM118
        return _rows(values) if {"rows", "cols", "data"} <= set(values) else values
    if node.isSeq():
        return [_plain(node.at(index)) for index in range(node.size())]
    if node.isInt():
        return int(node.real())
    return node.real() if node.isReal() else node.string()


def _rows(matrix: Mapping[str, Any]) -> list[list[Any]]:
    """Return the rows of a matrix, the channels ("2f": found corners) of a column in sequence."""
    rows, columns, data = matrix["rows"], matrix["cols"], matrix["data"]
    if not isinstance(data, list) or not all(isinstance(n, int) for n in (rows, columns)):
        raise CalibrationError("a matrix whose rows, cols or data are not numbers.")
    channels = re.match(r"\d+", str(matrix.get("dt")))
    columns *= int(channels[0]) if channels else 1
    if len(data) != rows * columns:
        raise CalibrationError(f"a matrix of {rows} x {columns} that holds {len(data)} numbers.")
    return [data[row * columns : (row + 1) * columns] for row in range(rows)]
