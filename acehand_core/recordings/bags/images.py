"""Image and CompressedImage to RGB, CameraInfo to Camera and back; for rosbags and rclpy."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace
from typing import Any

import cv2
import numpy as np

from acehand_core.errors import CalibrationError, SchemaError, nearest
from acehand_core.geometry.cameras import Camera, CameraModel, opencv_distortion
from acehand_core.types import ImageRgb

CAMERA_INFO = "sensor_msgs/msg/CameraInfo"

IMAGE = "sensor_msgs/msg/Image"
COMPRESSED_IMAGE = "sensor_msgs/msg/CompressedImage"

#: Encoding -> (bytes per pixel, stored channels, OpenCV's conversion to RGB).
_PACKED: dict[str, tuple[int, int, int | None]] = {
    "rgb8": (3, 3, None),
    "bgr8": (3, 3, cv2.COLOR_BGR2RGB),
    "8UC3": (3, 3, cv2.COLOR_BGR2RGB),
    "rgba8": (4, 4, cv2.COLOR_RGBA2RGB),
    "bgra8": (4, 4, cv2.COLOR_BGRA2RGB),
    "8UC4": (4, 4, cv2.COLOR_BGRA2RGB),
    "mono8": (1, 1, cv2.COLOR_GRAY2RGB),
    "8UC1": (1, 1, cv2.COLOR_GRAY2RGB),
    "bayer_rggb8": (1, 1, cv2.COLOR_BayerRGGB2RGB),
    "bayer_bggr8": (1, 1, cv2.COLOR_BayerBGGR2RGB),
    "bayer_gbrg8": (1, 1, cv2.COLOR_BayerGBRG2RGB),
    "bayer_grbg8": (1, 1, cv2.COLOR_BayerGRBG2RGB),
    "yuv422_yuy2": (2, 2, cv2.COLOR_YUV2RGB_YUY2),
    "yuyv": (2, 2, cv2.COLOR_YUV2RGB_YUY2),
    "yuv422": (2, 2, cv2.COLOR_YUV2RGB_UYVY),
    "uyvy": (2, 2, cv2.COLOR_YUV2RGB_UYVY),
}
#: 16 bits per channel: the upper 8 are taken.
_DEEP = {name.replace("8", "16"): name for name in _PACKED if name.endswith("8")}
#: A luma plane above a chroma plane of half its height.
_PLANAR = {"nv12": cv2.COLOR_YUV2RGB_NV12, "nv21": cv2.COLOR_YUV2RGB_NV21}
ENCODINGS = (*_PACKED, *_DEEP, *_PLANAR)
#: Depth maps, not pictures.
DEPTH_ENCODINGS = ("16UC1", "32FC1", "64FC1", "16SC1")
_AS_STORED = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION


def camera_of(message: Any, rectified: bool = False) -> Camera | None:
    """Return the camera of a CameraInfo, with its ROI and binning; None: not calibrated.

    ``rectified`` takes the projection matrix P without distortion. Raises CalibrationError.
    """
    k, p, d = (
        [float(value) for value in getattr(message, n, getattr(message, n.upper(), ()))]
        for n in "kpd"
    )
    if rectified and p and p[0] > 0:
        k = [p[0], 0, p[2], 0, p[5], p[6], 0, 0, 1]
    if not k or k[0] == 0:
        return None

    model: CameraModel = "pinhole"
    coefficients: tuple[float, ...] = ()
    if not rectified:
        model, coefficients = _distortion(str(message.distortion_model), d)
    width, height = int(message.width), int(message.height)
    camera = Camera(model, width, height, k[0], k[4], k[2], k[5], coefficients)
    roi = message.roi
    if roi.width and roi.height and (roi.width, roi.height) != (width, height):
        camera = camera.cropped(roi.x_offset, roi.y_offset, roi.width, roi.height)
    across, down = max(int(message.binning_x), 1), max(int(message.binning_y), 1)
    if (across, down) != (1, 1):  # columns and rows that do not fill a bin are cut off
        width, height = camera.width // across, camera.height // down
        camera = camera.cropped(0, 0, width * across, height * down).rescaled(width, height)
    return camera


def _distortion(name: str, d: list[float]) -> tuple[CameraModel, tuple[float, ...]]:
    if name in ("equidistant", "fisheye"):
        return "kannala_brandt", tuple(d) if any(d) else (0.0,) * 4
    if not any(d):
        return "pinhole", ()
    if name in ("plumb_bob", "rational_polynomial", "Brown Conrady"):
        # OpenCV's order under any name, as in image_geometry and RealSense's viewer.
        try:
            return opencv_distortion(d)
        except CalibrationError as error:
            raise CalibrationError(f"CameraInfo: {name} with {error}") from None
    valid = nearest(name, ("plumb_bob", "rational_polynomial", "equidistant", "fisheye"))
    raise CalibrationError(f"CameraInfo: distortion model {name!r}; {valid}")


def camera_info_fields(camera: Camera) -> dict[str, Any]:
    """Return a CameraInfo without header. Raises CalibrationError: ROS lacks the model."""
    names = {
        "pinhole": ("plumb_bob", 5),
        "brown_conrady": ("rational_polynomial", 8),
        "kannala_brandt": ("equidistant", 4),
    }
    if camera.model not in names:
        raise CalibrationError(f"ROS has no CameraInfo for a {camera.model} camera.")
    model, count = names[camera.model]
    values = (*camera.distortion, *(0.0,) * count)[:count]
    fx, fy, cx, cy = camera.fx, camera.fy, camera.cx, camera.cy

    return {
        "height": camera.height,
        "width": camera.width,
        "distortion_model": model,
        "d": [float(value) for value in values],
        "k": [fx, 0.0, cx, 0.0, fy, cy, 0.0, 0.0, 1.0],
        "r": [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0],
        "p": [fx, 0.0, cx, 0.0, 0.0, fy, cy, 0.0, 0.0, 0.0, 1.0, 0.0],
        "binning_x": 0,
        "binning_y": 0,
        "roi": {"x_offset": 0, "y_offset": 0, "height": 0, "width": 0, "do_rectify": False},
    }


def same_camera(a: Camera, b: Camera) -> bool:
    """Return whether two cameras agree to a hundredth of a pixel."""
    near = all(abs(getattr(a, n) - getattr(b, n)) < 0.01 for n in ("fx", "fy", "cx", "cy"))
    return near and replace(a, fx=b.fx, fy=b.fy, cx=b.cx, cy=b.cy) == b


def check_image(message: Any, msgtype: str) -> tuple[int, int]:
    """Return (width, height) of a picture without decoding. Raises SchemaError: not complete."""
    if msgtype == COMPRESSED_IMAGE:
        data = bytes(message.data)
        kind = message.format
        if "compressedDepth" in kind:
            raise SchemaError(f"format {kind!r} holds distances, not a picture")
        if data[:2] not in (b"\xff\xd8", b"\x89P"):
            raise SchemaError(f"format {kind!r}: neither jpeg nor png")
        try:
            return _check_png(data) if data[:2] == b"\x89P" else _check_jpeg(data)
        except (struct.error, IndexError) as error:
            raise SchemaError(f"a picture of format {kind!r} that is cut off") from error

    encoding = message.encoding
    if encoding in DEPTH_ENCODINGS:
        raise SchemaError(f"encoding {encoding!r} holds distances, not a picture")
    if encoding not in ENCODINGS:
        raise SchemaError(f"encoding {encoding!r}; {nearest(encoding, ENCODINGS)}")
    width, height = int(message.width), int(message.height)
    if width < 1 or height < 1:
        raise SchemaError(f"an image of {width} x {height} pixels")
    if "bayer" in encoding and min(width, height) < 3:  # OpenCV leaves it black
        raise SchemaError(f"{width} x {height} pixels of {encoding}; it needs 3 x 3")
    rows, row, step = _layout(message)
    if step < row or len(message.data) < step * (rows - 1) + row:
        raise SchemaError(
            f"{len(message.data)} bytes for {width} x {height} pixels of {encoding} with rows of "
            f"{step} bytes"
        )
    return width, height


def _layout(message: Any) -> tuple[int, int, int]:
    """Return rows, bytes of a row and its step with padding; some drivers leave the step empty."""
    encoding = message.encoding
    row = int(message.width) * _PACKED.get(_DEEP.get(encoding, encoding), (1, 1, None))[0]
    row *= 2 if encoding in _DEEP else 1
    height = int(message.height)
    return height * 3 // 2 if encoding in _PLANAR else height, row, int(message.step) or row


def decode_image(message: Any, msgtype: str) -> ImageRgb:
    """Return the picture of an Image or CompressedImage as stored. Raises SchemaError."""
    width, height = check_image(message, msgtype)
    if msgtype == COMPRESSED_IMAGE:
        try:
            bgr = cv2.imdecode(np.frombuffer(message.data, np.uint8), _AS_STORED)
        except cv2.error as error:
            raise SchemaError(f"a damaged {message.format!r} picture: {error.err}") from error
        if bgr is None:
            raise SchemaError(f"a damaged {message.format!r} picture")
        return cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB)

    encoding = message.encoding
    raw = np.frombuffer(message.data, np.uint8)
    rows, row, step = _layout(message)
    kind = _DEEP.get(encoding, encoding)
    _, channels, conversion = _PACKED.get(kind, (1, 1, _PLANAR.get(kind)))
    if len(raw) < step * rows:  # the last row may lack its padding
        raw = np.concatenate([raw, np.zeros(step * rows - len(raw), np.uint8)])
    pixels = raw[: step * rows].reshape(rows, step)[:, :row]
    if encoding in _DEEP:
        pixels = pixels[:, 0 if message.is_bigendian else 1 :: 2]
    pixels = np.ascontiguousarray(pixels).reshape(rows, width, channels)
    if channels == 1:
        pixels = pixels[..., 0]

    try:
        return pixels.copy() if conversion is None else cv2.cvtColor(pixels, conversion)
    except cv2.error as error:
        raise SchemaError(f"{width} x {height} pixels of {encoding}: {error.err}") from error


def _check_jpeg(data: bytes) -> tuple[int, int]:
    at, size = 2, None
    while size is None:
        marker, code = data[at], data[at + 1]
        if marker != 0xFF:
            raise SchemaError("a damaged jpeg")
        if code == 0xFF:
            at += 1
            continue
        # Start of frame, without the tables among its codes.
        if 0xC0 <= code <= 0xCF and code not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack_from(">HH", data, at + 5)
            size = width, height
        at += 2 + struct.unpack_from(">H", data, at + 2)[0]

    # Some cameras pad after the end mark.
    if data.rfind(b"\xff\xd9", max(at, len(data) - 4096)) < 0:
        raise SchemaError("a jpeg that is cut off")
    return size


def _check_png(data: bytes) -> tuple[int, int]:
    at, size, kind = 8, (0, 0), b""
    while kind != b"IEND":
        length, kind = struct.unpack_from(">I4s", data, at)
        (crc,) = struct.unpack_from(">I", data, at + 8 + length)
        if zlib.crc32(memoryview(data)[at + 4 : at + 8 + length]) != crc:
            raise SchemaError("a damaged png")
        if kind == b"IHDR":
            size = struct.unpack_from(">II", data, at + 8)
        at += 12 + length
    return int(size[0]), int(size[1])
