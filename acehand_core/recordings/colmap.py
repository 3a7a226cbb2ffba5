"""COLMAP's cameras.txt and cameras.bin.

Source: src/colmap/sensor/models.h of COLMAP. The centre of its first pixel is (0.5, 0.5), ours
(0, 0).
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from acehand_core.errors import CalibrationError, nearest
from acehand_core.geometry.cameras import Camera, CameraModel

#: Number in cameras.bin -> name, parameters, our exact equivalent. The parameters after the
#: principal point are coefficients.
_MODELS: dict[int, tuple[str, str, CameraModel | None]] = {
    0: ("SIMPLE_PINHOLE", "f cx cy", "pinhole"),
    1: ("PINHOLE", "fx fy cx cy", "pinhole"),
    2: ("SIMPLE_RADIAL", "f cx cy k1", "brown_conrady"),
    3: ("RADIAL", "f cx cy k1 k2", "brown_conrady"),
    4: ("OPENCV", "fx fy cx cy k1 k2 p1 p2", "brown_conrady"),
    5: ("OPENCV_FISHEYE", "fx fy cx cy k1 k2 k3 k4", "kannala_brandt"),
    6: ("FULL_OPENCV", "fx fy cx cy k1 k2 p1 p2 k3 k4 k5 k6", "brown_conrady"),
    7: ("FOV", "fx fy cx cy omega", None),
    8: ("SIMPLE_RADIAL_FISHEYE", "f cx cy k1", "kannala_brandt"),
    9: ("RADIAL_FISHEYE", "f cx cy k1 k2", "kannala_brandt"),
    10: ("THIN_PRISM_FISHEYE", "fx fy cx cy k1 k2 p1 p2 k3 k4 sx1 sy1", None),
    11: (
        "RAD_TAN_THIN_PRISM_FISHEYE",
        "fx fy cx cy k0 k1 k2 k3 k4 k5 p0 p1 s0 s1 s2 s3",
        "fisheye624",
    ),
    12: ("SIMPLE_DIVISION", "f cx cy k", None),
    13: ("DIVISION", "fx fy cx cy k", None),
    14: ("SIMPLE_FISHEYE", "f cx cy", "kannala_brandt"),
    15: ("FISHEYE", "fx fy cx cy", "kannala_brandt"),
    16: ("EUCM", "fx fy cx cy alpha beta", None),
    17: ("EQUIRECTANGULAR", "w h", None),
}
_BY_NAME = {name: (parameters.split(), model) for name, parameters, model in _MODELS.values()}
_TEXT_LINE = re.compile(r"\s*\d+\s+[A-Z_]{3,}\s+\d+\s+\d+\s")


@dataclass(frozen=True, slots=True)
class ColmapCamera:
    """One camera: CAMERA_ID and COLMAP's parameters."""

    number: int
    model: str
    width: int
    height: int
    values: tuple[float, ...]

    def camera(self, _: object = None) -> Camera:
        """Return our camera; no hints are needed. Raises CalibrationError: no exact equivalent."""
        names, model = _BY_NAME.get(self.model, ([], None))
        if model is None:
            read = [name for name, (_, ours) in _BY_NAME.items() if ours is not None]
            raise CalibrationError(
                f"COLMAP's {self.model} is not supported; {nearest(self.model, read)} Reconstruct "
                "with --ImageReader.camera_model OPENCV or OPENCV_FISHEYE."
            )
        if len(self.values) != len(names):
            raise CalibrationError(
                f"COLMAP's {self.model} has {len(names)} parameters ({' '.join(names)}), got "
                f"{len(self.values)}."
            )

        values = self.values if names[0] == "fx" else (self.values[0], *self.values)
        fx, fy, cx, cy, *distortion = values
        least = {"pinhole": 0, "brown_conrady": 4, "kannala_brandt": 4, "fisheye624": 12}[model]
        distortion += [0.0] * (least - len(distortion))
        return Camera(model, self.width, self.height, fx, fy, cx - 0.5, cy - 0.5, tuple(distortion))


@dataclass(frozen=True, slots=True)
class ColmapCameras:
    """The cameras of a reconstruction."""

    cameras: tuple[ColmapCamera, ...]


def is_colmap_text(text: str) -> bool:
    """Return whether a text's first line, comments aside, is a camera of COLMAP."""
    lines = (line for line in text.splitlines() if line.strip() and not line.startswith("#"))
    return _TEXT_LINE.match(next(lines, "")) is not None


def read_text(text: str) -> ColmapCameras:
    """Return the cameras of a cameras.txt. Raises CalibrationError with the line."""
    cameras = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            identity, model, width, height, *values = line.split()
            camera = ColmapCamera(
                int(identity), model, int(width), int(height), tuple(map(float, values))
            )
        except ValueError:
            raise CalibrationError(
                f"line {number} of COLMAP's cameras is {line[:60]!r}; "
                "valid: CAMERA_ID MODEL WIDTH HEIGHT and numbers."
            ) from None
        cameras.append(camera)
    return ColmapCameras(tuple(cameras))


def read_binary(data: bytes) -> ColmapCameras:
    """Return the cameras of a cameras.bin.

    Little endian: number of cameras (uint64), then of each CAMERA_ID (uint32), model (int32), width
    and height (uint64) and parameters (double).

    Raises CalibrationError: cut off, too long, or an unknown model.
    """
    cameras: list[ColmapCamera] = []
    at = 8
    try:
        (count,) = struct.unpack_from("<Q", data)
        for _ in range(count):
            identity, model, width, height = struct.unpack_from("<IiQQ", data, at)
            if model not in _MODELS:
                raise CalibrationError(
                    f"neither text nor COLMAP's cameras.bin: camera {len(cameras) + 1} has model "
                    f"{model}; valid: 0 to {max(_MODELS)}."
                )
            name, parameters, _ = _MODELS[model]
            layout = f"<{len(parameters.split())}d"
            values = struct.unpack_from(layout, data, at + 24)
            at += 24 + struct.calcsize(layout)
            cameras.append(ColmapCamera(identity, name, width, height, values))
    except struct.error:
        raise CalibrationError(
            f"COLMAP's cameras.bin is cut off after {len(cameras)} of {count} cameras."
            if len(data) >= 8
            else "neither text nor COLMAP's cameras.bin: too short."
        ) from None
    if at != len(data):
        raise CalibrationError(
            f"neither text nor COLMAP's cameras.bin: {len(data) - at} bytes after the last of "
            f"{len(cameras)} cameras."
        )
    return ColmapCameras(tuple(cameras))
