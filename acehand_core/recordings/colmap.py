"""COLMAP's cameras.txt and cameras.bin.

Source: src/colmap/sensor/models.h of COLMAP. Its pixel coordinates begin at the picture's corner,
so that the first pixel's centre is (0.5, 0.5); ours is (0, 0).
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from acehand_core.errors import CalibrationError, nearest
from acehand_core.geometry.cameras import Camera, CameraModel

#: The parameters of each model by its number in cameras.bin; those after the principal point are
#: coefficients.
_MODELS: dict[int, tuple[str, str]] = {
    0: ("SIMPLE_PINHOLE", "f cx cy"),
    1: ("PINHOLE", "fx fy cx cy"),
    2: ("SIMPLE_RADIAL", "f cx cy k1"),
    3: ("RADIAL", "f cx cy k1 k2"),
    4: ("OPENCV", "fx fy cx cy k1 k2 p1 p2"),
    5: ("OPENCV_FISHEYE", "fx fy cx cy k1 k2 k3 k4"),
    6: ("FULL_OPENCV", "fx fy cx cy k1 k2 p1 p2 k3 k4 k5 k6"),
    7: ("FOV", "fx fy cx cy omega"),
    8: ("SIMPLE_RADIAL_FISHEYE", "f cx cy k1"),
    9: ("RADIAL_FISHEYE", "f cx cy k1 k2"),
    10: ("THIN_PRISM_FISHEYE", "fx fy cx cy k1 k2 p1 p2 k3 k4 sx1 sy1"),
    11: ("RAD_TAN_THIN_PRISM_FISHEYE", "fx fy cx cy k0 k1 k2 k3 k4 k5 p0 p1 s0 s1 s2 s3"),
    12: ("SIMPLE_DIVISION", "f cx cy k"),
    13: ("DIVISION", "fx fy cx cy k"),
    14: ("SIMPLE_FISHEYE", "f cx cy"),
    15: ("FISHEYE", "fx fy cx cy"),
    16: ("EUCM", "fx fy cx cy alpha beta"),
    17: ("EQUIRECTANGULAR", "w h"),
}
_PARAMETERS = dict(_MODELS.values())

#: The models that ours can stand for, each exactly.
_OURS: dict[str, CameraModel] = {
    "SIMPLE_PINHOLE": "pinhole",
    "PINHOLE": "pinhole",
    "SIMPLE_RADIAL": "brown_conrady",
    "RADIAL": "brown_conrady",
    "OPENCV": "brown_conrady",
    "FULL_OPENCV": "brown_conrady",
    "OPENCV_FISHEYE": "kannala_brandt",
    "SIMPLE_RADIAL_FISHEYE": "kannala_brandt",
    "RADIAL_FISHEYE": "kannala_brandt",
    "SIMPLE_FISHEYE": "kannala_brandt",
    "FISHEYE": "kannala_brandt",
    "RAD_TAN_THIN_PRISM_FISHEYE": "fisheye624",
}
_TEXT_LINE = re.compile(r"\s*\d+\s+[A-Z_]{3,}\s+\d+\s+\d+\s")


@dataclass(frozen=True, slots=True)
class ColmapCamera:
    """One entry of COLMAP's list. ``number`` is its CAMERA_ID, ``values`` are in its own order."""

    number: int
    model: str
    width: int
    height: int
    values: tuple[float, ...]

    def camera(self) -> Camera:
        """Return it as ours. Raises CalibrationError: a model that ours cannot stand for."""
        if self.model not in _OURS:
            raise CalibrationError(
                f"COLMAP's {self.model} is not read; {nearest(self.model, _OURS)} Reconstruct with "
                "--ImageReader.camera_model OPENCV or OPENCV_FISHEYE."
            )
        names = _PARAMETERS[self.model].split()
        if len(self.values) != len(names):
            raise CalibrationError(
                f"COLMAP's {self.model} has {len(names)} parameters ({' '.join(names)}), got "
                f"{len(self.values)}."
            )

        fx, fy, cx, cy, *distortion = (
            self.values if names[0] == "fx" else (self.values[0], *self.values)
        )
        model = _OURS[self.model]
        least = {"pinhole": 0, "brown_conrady": 4, "kannala_brandt": 4, "fisheye624": 12}[model]
        distortion += [0.0] * (least - len(distortion))
        return Camera(model, self.width, self.height, fx, fy, cx - 0.5, cy - 0.5, tuple(distortion))


@dataclass(frozen=True, slots=True)
class ColmapCameras:
    """The cameras of a reconstruction."""

    cameras: tuple[ColmapCamera, ...]


def is_colmap_text(text: str) -> bool:
    """Tell whether a text's first line that is no comment is a camera of COLMAP."""
    lines = (line for line in text.splitlines() if line.strip() and not line.startswith("#"))
    return _TEXT_LINE.match(next(lines, "")) is not None


def read_text(text: str) -> ColmapCameras:
    """Return the cameras of a cameras.txt: ``CAMERA_ID MODEL WIDTH HEIGHT PARAMS...`` by line.

    Raises:
        CalibrationError: names the line.
    """
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

    Little endian: their number (uint64), then each one's CAMERA_ID (uint32), model (int32), width
    and height (uint64) and parameters (double).

    Raises:
        CalibrationError: it is cut off or too long, or has a model that COLMAP does not number so.
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
            name, parameters = _MODELS[model]
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
            f"neither text nor COLMAP's cameras.bin: {len(data) - at} bytes follow the last of "
            f"{len(cameras)} cameras."
        )
    return ColmapCameras(tuple(cameras))
