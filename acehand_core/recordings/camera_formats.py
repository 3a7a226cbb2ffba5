"""The formats of camera files: one entry of ``FORMATS`` each. Users' view: docs/my_camera.md.

Sources: Kalibr's "Supported models" and "YAML formats"; OpenCV's calibration samples; Project
Aria's "Calibration sensor data"; Gyroflow's lens profiles; OpenImuCameraCalibrator (intrinsics of
Theia); examples of ORB-SLAM3; ROS's sensor_msgs/CameraInfo and camera_calibration.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

from acehand_core.errors import CalibrationError, nearest
from acehand_core.geometry.cameras import Camera, CameraModel, opencv_distortion
from acehand_core.recordings.bags.images import camera_of
from acehand_core.recordings.camera_fields import (
    CameraHints,
    Make,
    by_name,
    check_skew,
    field,
    is_mapping_with,
    matrix,
    model_without_name,
    numbers,
    size,
)
from acehand_core.recordings.colmap import ColmapCameras

_Focal = tuple[float, float, float, float]

_KALIBR = {"radtan", "radial-tangential", "equi", "equidistant", "none"}

_SIDE = r"(?P<before>left|right|)"
_NUMBER = r"(?P<after>left|right|\d*)"
_MATRIX = re.compile(rf"{_SIDE}(cameramatrix|intrinsicmatrix|intrinsics?|mtx|m|k){_NUMBER}")
_DISTORTION = re.compile(
    rf"{_SIDE}(distortion(coefficients|coeffs?)?|dist(coefficients|coeffs?)?|d){_NUMBER}"
)
_SIZES = ("imagesize", "cameraresolution", "resolution", "size")

_THEIA: dict[str, tuple[CameraModel, tuple[str, ...]]] = {
    "PINHOLE": ("pinhole", ()),
    "PINHOLE_RADIAL_TANGENTIAL": (
        "brown_conrady",
        ("radial_distortion_1", "radial_distortion_2", "tangential_distortion_1",
         "tangential_distortion_2", "radial_distortion_3"),
    ),
    "FISHEYE": ("kannala_brandt", tuple(f"radial_distortion_{n}" for n in (1, 2, 3, 4))),
}  # fmt: skip

#: Hint for ROS files that have the matrices of both pictures.
_ROS_WHICH = " raw: the picture as the camera gives it; rectified: that of an image_rect topic."


@dataclass(frozen=True, slots=True)
class CameraFormat:
    """A format of camera files.

    Attributes:
        title: its name.
        told_by: fields that only this format has, for messages.
        recognises: returns something if a file's content is of this format, else nothing.
        cameras: the cameras in a file by name, each made on demand, so that an unreadable one does
            not prevent reading another.
        which: a hint for choosing among several cameras.
        note: a remark on how the content was read; may be empty.
    """

    title: str
    told_by: str
    recognises: Callable[[Any], object]
    cameras: Callable[[Any], Mapping[str, Make]]
    which: str = ""
    note: Callable[[Any], str] = lambda content: ""


def _lens(fisheye: bool, pixels: tuple[int, int], focal: _Focal, d: list[float]) -> Camera:
    """Return the camera of coefficients of cv2.fisheye or cv2.calibrateCamera."""
    if fisheye:
        return Camera("kannala_brandt", *pixels, *focal, tuple(d))
    model, used = opencv_distortion(d)
    return Camera(model, *pixels, *focal, used)


def _single(make: Callable[[Any, CameraHints], Camera]) -> Callable[[Any], Mapping[str, Make]]:
    """Return ``CameraFormat.cameras`` of a format with one camera per file."""
    return lambda content: {"camera": partial(make, content)}


def _is_ours(content: Any) -> bool:
    # An OpenCV calibration may name its product: {"model": "HERO11", "camera_matrix": ...}.
    named = is_mapping_with(content, "model") and not _opencv_matrices(content)
    return named or is_mapping_with(content, "fx")


def _our_camera(content: Any, hints: CameraHints) -> Camera:
    return Camera.from_json({"model": "pinhole", **content})


# Kalibr, and EuRoC's sensor.yaml with the same fields for one camera.


def _kalibr_parts(content: Any) -> dict[str, Any]:
    if not isinstance(content, Mapping):
        return {}
    parts = {key: part for key, part in content.items() if re.fullmatch(r"cam\d+", str(key))}
    if not parts and "intrinsics" in content and "camera_model" in content:
        return {"camera": content}
    return parts


def _kalibr(content: Any) -> Mapping[str, Make]:
    return {name: partial(_kalibr_camera, part) for name, part in _kalibr_parts(content).items()}


def _kalibr_camera(part: Any, hints: CameraHints) -> Camera:
    lens = str(field(part, "camera_model"))
    if lens != "pinhole":
        others = {"omni": "the unified", "eucm": "the extended unified", "ds": "the double sphere"}
        raise CalibrationError(
            f"{lens!r} is {others.get(lens, 'an unknown')} camera model, which is not supported; "
            "valid: pinhole. Calibrate with --models pinhole-equi for a wide lens, or "
            "pinhole-radtan."
        )
    fx, fy, cx, cy = numbers(field(part, "intrinsics"), "intrinsics", 4)
    model = str(field(part, "distortion_model"))
    if model not in _KALIBR:
        raise CalibrationError(
            f"distortion_model {model!r} is not supported; {nearest(model, _KALIBR)}"
        )

    key = "distortion_coefficients" if "distortion_coefficients" in part else "distortion_coeffs"
    d = [] if model == "none" else numbers(field(part, key), key, 4)
    pixels = size(numbers(part.get("resolution", [0, 0]), "resolution", 2), hints, (cx, cy))
    return _lens(model in ("equi", "equidistant"), pixels, (fx, fy, cx, cy), d)


# OpenCV: a FileStorage, or the same names in JSON or YAML.


def _plain(key: object) -> str:
    """Return a key without case and underscores: cameraMatrix, Camera_Matrix, camera_matrix."""
    return str(key).lower().replace("_", "")


def _keys(content: Any, pattern: re.Pattern[str]) -> list[tuple[str, str]]:
    """Return (camera, key) of the lists whose key matches; camera "" is the only one."""
    keys = []
    for key in content if isinstance(content, Mapping) else ():
        match = pattern.fullmatch(_plain(key))
        if match and isinstance(content[key], list):
            keys.append((match["before"] or match["after"], str(key)))
    return keys


def _opencv_matrices(content: Any) -> list[tuple[str, str]]:
    """Return (camera, key) of camera matrices; under a short key the shape must be 3 x 3."""
    return [
        (name, key)
        for name, key in _keys(content, _MATRIX)
        if "matrix" in _plain(key)
        or [len(row) for row in content[key] if isinstance(row, list)] == [3, 3, 3]
    ]


def _opencv(content: Any) -> Mapping[str, Make]:
    matrices, distortions = _opencv_matrices(content), _keys(content, _DISTORTION)
    for pairs in (matrices, distortions):
        for (name, key), (other, key_too) in itertools.combinations(pairs, 2):
            if name == other and content[key] != content[key_too]:
                raise CalibrationError(f"{key!r} and {key_too!r} differ; keep the right one.")
    coefficients = dict(distortions)
    return {
        name or "camera": partial(_opencv_camera, content, key, coefficients.get(name))
        for name, key in matrices
    }


def _opencv_camera(content: Any, key: str, coefficients: str | None, hints: CameraHints) -> Camera:
    fx, fy, cx, cy = matrix(content[key], key)
    values = {_plain(name): value for name, value in content.items()}
    across, down = numbers(next((values[n] for n in _SIZES if n in values), [0, 0]), "size", 2)
    across = values.get("imagewidth", values.get("width", across))
    down = values.get("imageheight", values.get("height", down))
    pixels = size((across, down), hints, (cx, cy))

    if coefficients is None:
        if hints.model == "pinhole":
            return Camera("pinhole", *pixels, fx, fy, cx, cy)
        raise CalibrationError(
            f"no distortion coefficients for {key!r} (distortion_coefficients, dist_coeffs, ...); "
            f"the file has: {', '.join(map(str, content))}. For a camera without distortion: "
            "`acehand camera convert` with `model=pinhole`."
        )
    d = numbers(content[coefficients], coefficients)
    fisheye = values.get("fisheyemodel", values.get("fisheye"))
    if fisheye in (1, "1", "true") or "fisheye" in str(values.get("distortionmodel")):
        return _lens(True, pixels, (fx, fy, cx, cy), d)
    model, d_used = model_without_name(d, hints) if fisheye is None else opencv_distortion(d)
    return Camera(model, *pixels, fx, fy, cx, cy, d_used)


def _colmap(content: ColmapCameras) -> Mapping[str, Make]:
    return by_name((str(entry.number), entry.camera) for entry in content.cameras)


def _aria_lines(content: Any) -> list[Any]:
    lines = content if isinstance(content, list) else [content]
    return [line for line in lines if is_mapping_with(line, "CameraCalibrations")]


def _aria(content: Any) -> Mapping[str, Make]:
    """The cameras of a device calibration, or of the middle line of MPS's online calibration."""
    lines = _aria_lines(content)
    line = lines[len(lines) // 2]
    entries, sizes = line["CameraCalibrations"], line.get("ImageSizes")
    if not isinstance(entries, list) or not entries:
        raise CalibrationError("'CameraCalibrations' must be a list of cameras.")
    if sizes is not None and (not isinstance(sizes, list) or len(sizes) != len(entries)):
        raise CalibrationError(f"'ImageSizes' must have a size for each of {len(entries)} cameras.")
    return by_name(
        (str(field(entry, "Label")), partial(_aria_camera, entry, sizes[at] if sizes else [0, 0]))
        for at, entry in enumerate(entries)
    )


def _aria_camera(entry: Any, image_size: Any, hints: CameraHints) -> Camera:
    projection = field(entry, "Projection")
    name = field(projection, "Name")
    if name != "FisheyeRadTanThinPrism":
        raise CalibrationError(
            f"projection {name!r} is not supported; valid: FisheyeRadTanThinPrism."
        )
    f, cx, cy, *distortion = numbers(field(projection, "Params"), "Params", 15)
    pixels = size(numbers(image_size, "ImageSizes", 2), hints, (cx, cy))
    return Camera("fisheye624", *pixels, f, f, cx, cy, tuple(distortion))


def _aria_note(content: Any) -> str:
    count = len(_aria_lines(content))
    return f"{count} calibrations over time; the middle one is used" if count > 1 else ""


# GoPro: Gyroflow's lens profiles, and OpenImuCameraCalibrator as UMI uses it.


def _gyroflow_camera(content: Any, hints: CameraHints) -> Camera:
    lens = content["fisheye_params"]
    fx, fy, cx, cy = matrix(field(lens, "camera_matrix"), "camera_matrix")
    d = numbers(field(lens, "distortion_coeffs"), "distortion_coeffs")
    for key in ("input_horizontal_stretch", "input_vertical_stretch"):
        if content.get(key) not in (None, 0, 1):
            raise CalibrationError(
                f"{key} {content[key]}: an anamorphic lens, which is not supported."
            )
    if content.get("digital_lens"):
        raise CalibrationError(
            f"digital_lens {content['digital_lens']!r} distorts the picture, which is not "
            "supported; record with Wide or Linear."
        )

    dimension = content.get("calib_dimension") or {"w": 0, "h": 0}
    pixels = size((field(dimension, "w"), field(dimension, "h")), hints, (cx, cy))
    model = str(content.get("distortion_model") or "opencv_fisheye")
    if model not in ("opencv_fisheye", "opencv_standard"):
        valid = nearest(model, ("opencv_fisheye", "opencv_standard"))
        raise CalibrationError(f"distortion_model {model!r} is not supported; {valid}")
    return _lens(model == "opencv_fisheye", pixels, (fx, fy, cx, cy), d)


def _theia_camera(content: Any, hints: CameraHints) -> Camera:
    kind, values = str(content["intrinsic_type"]), field(content, "intrinsics")
    field(values, "principal_pt_x")
    if kind not in _THEIA:
        raise CalibrationError(f"intrinsic_type {kind!r} is not supported; {nearest(kind, _THEIA)}")

    def number(key: str) -> float:
        return numbers(field(values, key), key, 1)[0]

    fx = number("fx" if "fx" in values else "focal_length")
    fy = number("fy") if "fy" in values else fx * number("aspect_ratio")
    check_skew(number("skew") if "skew" in values else 0.0, fx, "intrinsics")
    model, names = _THEIA[kind]
    if model == "pinhole" and any(number(key) for key in values if "distortion" in key):
        raise CalibrationError("a PINHOLE with distortion coefficients; valid: without.")
    d = tuple(number(key) for key in names)
    cx, cy = number("principal_pt_x"), number("principal_pt_y")
    pixels = size((content.get("image_width"), content.get("image_height")), hints, (cx, cy))
    return Camera(model, *pixels, fx, fy, cx, cy, d)


def _orb_slam(content: Any) -> Mapping[str, Make]:
    parts: dict[str, dict[str, Any]] = {}
    for key, value in content.items() if isinstance(content, Mapping) else ():
        if match := re.fullmatch(r"(Camera\d?)\.(\w+)", str(key)):
            parts.setdefault(match[1], {})[match[2]] = value
    both = parts.get("Camera", {})
    return {n: partial(_orb_slam_camera, p, both) for n, p in parts.items() if "fx" in p}


def _orb_slam_camera(
    part: Mapping[str, Any], both: Mapping[str, Any], hints: CameraHints
) -> Camera:
    if (kind := str(both.get("type", "PinHole"))) not in ("PinHole", "Rectified", "KannalaBrandt8"):
        valid = nearest(kind, ("PinHole", "Rectified", "KannalaBrandt8"))
        raise CalibrationError(f"Camera.type {kind!r} is not supported; {valid}")
    fx, fy, cx, cy = (numbers(field(part, key), key, 1)[0] for key in ("fx", "fy", "cx", "cy"))
    names = "k1 k2 k3 k4" if kind == "KannalaBrandt8" else "k1 k2 p1 p2 k3 k4 k5 k6"
    d = [numbers(part.get(name, 0), name, 1)[0] for name in names.split()]
    pixels = size((both.get("width"), both.get("height")), hints, (cx, cy))
    return _lens(kind == "KannalaBrandt8", pixels, (fx, fy, cx, cy), d)


def _is_ros_calibration(content: Any) -> bool:
    """Return whether a content is a file of camera_calibration (ost.yaml)."""
    key = "camera_matrix"
    return is_mapping_with(content, key) and isinstance(content[key], Mapping)


def _ros_calibration(content: Any) -> Mapping[str, Make]:
    def data(key: str) -> list[float]:
        return numbers(field(field(content, key), "data"), f"{key}: data")

    return _ros_cameras(
        {
            "width": content.get("image_width"),
            "height": content.get("image_height"),
            "distortion_model": content.get("distortion_model"),
            "k": data("camera_matrix"),
            "d": data("distortion_coefficients"),
            "p": data("projection_matrix") if "projection_matrix" in content else [],
        }
    )


def _is_ros_message(content: Any) -> bool:
    """Return whether a content is a printed CameraInfo, or a list of them."""
    first = content[0] if isinstance(content, list) and content else content
    return is_mapping_with(first, "distortion_model") and ("k" in first or "K" in first)


def _ros_message(content: Any) -> Mapping[str, Make]:
    """Return the cameras of a printed CameraInfo, or of several equal ones."""
    messages = [
        {str(key).lower(): value for key, value in entry.items() if key != "header"}
        for entry in (content if isinstance(content, list) else [content])
        if isinstance(entry, Mapping)
    ]
    for number, entry in enumerate(messages, 1):
        if entry != messages[0]:
            raise CalibrationError(f"message {number} describes another camera than message 1.")
    values = {key: numbers(field(messages[0], key), key) for key in ("k", "d", "p")}
    return _ros_cameras({**messages[0], **values})


def _ros_cameras(info: Mapping[str, Any]) -> Mapping[str, Make]:
    """Return the camera of the raw picture and, if different, of the rectified one."""
    k, d, p = info["k"], info["d"], info["p"]
    if k[:1] == [0]:
        raise CalibrationError("the camera is not calibrated: its focal length is 0.")
    matrix(k, "k")
    if p:
        numbers(p, "p", 12)
    same = bool(p) and [p[0], p[2], p[5], p[6]] == [k[0], k[2], k[4], k[5]] and not any(d)
    if not p or p[0] <= 0 or same:
        return {"camera": partial(_ros_camera, info, False)}
    return {"raw": partial(_ros_camera, info, False), "rectified": partial(_ros_camera, info, True)}


def _ros_camera(info: Mapping[str, Any], rectified: bool, hints: CameraHints) -> Camera:
    k, d = info["k"], info["d"]
    width, height = size((info.get("width"), info.get("height")), hints, (k[2], k[5]))
    name = info.get("distortion_model")
    if not name and not rectified:
        model, _ = model_without_name(d, hints)
        name = "equidistant" if model == "kannala_brandt" else "rational_polynomial"

    def whole(values: Any, key: str) -> int:
        return int(numbers(values.get(key, 0), key, 1)[0]) if isinstance(values, Mapping) else 0

    region = ("x_offset", "y_offset", "width", "height")
    values = SimpleNamespace(
        width=width,
        height=height,
        distortion_model=name,
        k=k,
        d=d,
        p=info["p"],
        roi=SimpleNamespace(**{key: whole(info.get("roi"), key) for key in region}),
        binning_x=whole(info, "binning_x"),
        binning_y=whole(info, "binning_y"),
    )
    camera = camera_of(values, rectified)
    assert camera is not None  # k is not 0
    return camera


#: All formats; exactly one must recognise a file.
FORMATS: tuple[CameraFormat, ...] = (
    CameraFormat("acehand camera file", "model, fx", _is_ours, _single(_our_camera)),
    CameraFormat(
        "ROS camera calibration",
        "camera_matrix: rows, cols, data",
        _is_ros_calibration,
        _ros_calibration,
        _ROS_WHICH,
    ),
    CameraFormat(
        "ROS CameraInfo message",
        "distortion_model, k, d, p",
        _is_ros_message,
        _ros_message,
        _ROS_WHICH,
    ),
    CameraFormat("Kalibr camchain", "cam0: camera_model, intrinsics", _kalibr_parts, _kalibr),
    CameraFormat(
        "OpenCV calibration",
        "camera_matrix, distortion_coefficients or M1, D1, ...",
        _opencv_matrices,
        _opencv,
    ),
    CameraFormat(
        "COLMAP cameras",
        "cameras.txt or cameras.bin",
        lambda content: isinstance(content, ColmapCameras),
        _colmap,
    ),
    CameraFormat("Aria calibration", "CameraCalibrations", _aria_lines, _aria, note=_aria_note),
    CameraFormat(
        "Gyroflow lens profile",
        "fisheye_params, calib_dimension",
        lambda content: is_mapping_with(content, "fisheye_params"),
        _single(_gyroflow_camera),
    ),
    CameraFormat(
        "OpenImuCameraCalibrator intrinsics",
        "intrinsic_type, intrinsics",
        lambda content: is_mapping_with(content, "intrinsic_type"),
        _single(_theia_camera),
    ),
    CameraFormat("ORB-SLAM settings", "Camera.fx or Camera1.fx", _orb_slam, _orb_slam),
)
