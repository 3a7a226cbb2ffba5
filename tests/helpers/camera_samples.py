"""Camera files as others write them, fabricated with the structure of real ones."""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import yaml

#: What COLMAP numbers its models as in cameras.bin.
COLMAP_MODELS = {
    "SIMPLE_PINHOLE": 0, "PINHOLE": 1, "SIMPLE_RADIAL": 2, "RADIAL": 3, "OPENCV": 4,
    "OPENCV_FISHEYE": 5, "FULL_OPENCV": 6, "FOV": 7, "SIMPLE_RADIAL_FISHEYE": 8,
    "RADIAL_FISHEYE": 9, "RAD_TAN_THIN_PRISM_FISHEYE": 11, "SIMPLE_FISHEYE": 14, "FISHEYE": 15,
}  # fmt: skip


@dataclass(frozen=True)
class Lens:
    """Numbers of a camera that a file is made of; ``d`` in the order of whoever writes it."""

    width: int = 1280
    height: int = 720
    fx: float = 612.5
    fy: float = 615.25
    cx: float = 633.75
    cy: float = 368.5
    d: tuple[float, ...] = ()

    @property
    def K(self) -> np.ndarray:
        return np.array([[self.fx, 0, self.cx], [0, self.fy, self.cy], [0, 0, 1.0]])


def ros_calibration(path: Path, lens: Lens, model: str | None, p: Sequence[float] = ()) -> Path:
    """ost.yaml as camera_calibration prints it."""

    def matrix(name: str, rows: int, values: Sequence[float]) -> str:
        numbers = ", ".join(f"{value:.9f}" for value in values)
        return f"{name}:\n  rows: {rows}\n  cols: {len(values) // rows}\n  data: [{numbers}]"

    k = lens.K
    lines = [
        f"image_width: {lens.width}\nimage_height: {lens.height}\ncamera_name: narrow_stereo",
        matrix("camera_matrix", 3, k.ravel()),
        *([] if model is None else [f"distortion_model: {model}"]),
        matrix("distortion_coefficients", 1, lens.d),
        matrix("rectification_matrix", 3, np.eye(3).ravel()),
        matrix("projection_matrix", 3, p or [*k[0], 0, *k[1], 0, *k[2], 0]),
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def echoed(message: Any, indent: str = "") -> str:
    """A message as ``ros2 topic echo`` prints it: arrays as blocks, one number a line."""
    lines = []
    names = [name for name in vars(type(message))["__dataclass_fields__"] if name[0] != "_"]
    for name in names:
        value = getattr(message, name)
        if hasattr(type(value), "__dataclass_fields__"):
            lines.append(f"{indent}{name}:\n{echoed(value, indent + '  ')}")
        elif isinstance(value, np.ndarray):
            block = "".join(f"\n{indent}- {float(number)!r}" for number in value)
            lines.append(f"{indent}{name}:{block or ' []'}")
        elif isinstance(value, bool):
            lines.append(f"{indent}{name}: {str(value).lower()}")
        else:
            lines.append(f"{indent}{name}: {value or (repr('') if value == '' else value)}")
    return "\n".join(lines)


def kalibr(path: Path, cameras: Mapping[str, tuple[Lens, str, str]]) -> Path:
    """A camchain; of each camera the lens, its camera_model and its distortion_model."""
    extra = {"omni": [1.7], "ds": [-0.2, 0.6], "eucm": [0.6, 1.1]}
    chain = {
        name: {
            "cam_overlaps": [],
            "camera_model": model,
            "distortion_coeffs": list(lens.d),
            "distortion_model": distortion,
            "intrinsics": [*extra.get(model, []), lens.fx, lens.fy, lens.cx, lens.cy],
            "resolution": [lens.width, lens.height],
            "rostopic": f"/{name}/image_raw",
        }
        for name, (lens, model, distortion) in cameras.items()
    }
    path.write_text(yaml.safe_dump(chain, default_flow_style=None, width=1000))
    return path


def euroc(path: Path, lens: Lens) -> Path:
    """sensor.yaml of a camera of EuRoC."""
    lines = [
        f"sensor_type: camera\nT_BS:\n  cols: 4\n  rows: 4\n  data: {np.eye(4).ravel().tolist()}",
        f"rate_hz: 20\nresolution: [{lens.width}, {lens.height}]\ncamera_model: pinhole",
        f"intrinsics: {[lens.fx, lens.fy, lens.cx, lens.cy]} #fu, fv, cu, cv",
        "distortion_model: radial-tangential",
        f"distortion_coefficients: {list(lens.d)}",
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def file_storage(path: Path, values: Mapping[str, Any]) -> Path:
    """What OpenCV's own FileStorage writes, YAML, XML or JSON by the name; pairs as its Size."""
    storage = cv2.FileStorage(str(path), cv2.FILE_STORAGE_WRITE)
    for name, value in values.items():
        if isinstance(value, tuple):
            storage.startWriteStruct(name, cv2.FILE_NODE_SEQ)
            for entry in value:
                storage.write("", entry)
            storage.endWriteStruct()
        else:
            storage.write(name, value)
    storage.release()
    return path


def opencv(path: Path, lens: Lens, **more: Any) -> Path:
    """A calibration as OpenCV's calibration sample writes it; None leaves a field out."""
    values = {
        "calibration_time": "Mon Jan  5 2026",
        "image_width": lens.width,
        "image_height": lens.height,
        "flags": 0,
        "fisheye_model": 0,
        "camera_matrix": lens.K,
        "distortion_coefficients": np.array(lens.d)[:, None],
        "image_points": np.zeros((2, 4, 2), np.float32),
    } | more
    return file_storage(path, {name: value for name, value in values.items() if value is not None})


#: Number, model, width, height and parameters.
ColmapCameras = Sequence[tuple[int, str, int, int, Sequence[float]]]


def colmap_text(path: Path, cameras: ColmapCameras) -> Path:
    """cameras.txt with the comment that COLMAP writes."""
    lines = [
        "# Camera list with one line of data per camera:",
        "#   CAMERA_ID, MODEL, WIDTH, HEIGHT, PARAMS[]",
        f"# Number of cameras: {len(cameras)}",
        *(" ".join(map(str, [*start, *map(float, values)])) for *start, values in cameras),
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def colmap_binary(path: Path, cameras: ColmapCameras) -> Path:
    """cameras.bin."""
    data = struct.pack("<Q", len(cameras))
    for number, model, width, height, values in cameras:
        data += struct.pack("<IiQQ", number, COLMAP_MODELS[model], width, height)
        data += struct.pack(f"<{len(values)}d", *values)
    path.write_bytes(data)
    return path


def aria_line(cameras: Mapping[str, tuple[Sequence[float], tuple[int, int]]], sizes: bool) -> Any:
    """One calibration of an Aria device: of each camera its 15 parameters and its size."""
    line: dict[str, Any] = {"tracking_timestamp_us": 149302610, "ImuCalibrations": []}
    if sizes:
        line["ImageSizes"] = [list(size) for _, size in cameras.values()]
    pose = {"Translation": [0, 0, 0], "UnitQuaternion": [1, [0, 0, 0]]}
    line["CameraCalibrations"] = [
        {
            "Calibrated": True,
            "Projection": {"Params": list(parameters), "Name": "FisheyeRadTanThinPrism"},
            "T_Device_Camera": pose,
            "SerialNumber": "0",
            "Label": label,
        }
        for label, (parameters, _) in cameras.items()
    ]
    return line


def gyroflow(path: Path, lens: Lens, **more: Any) -> Path:
    """A lens profile of Gyroflow."""
    size = {"w": lens.width, "h": lens.height}
    fisheye = {
        "RMS_error": 0.27,
        "camera_matrix": lens.K.tolist(),
        "distortion_coeffs": list(lens.d),
        "radial_distortion_limit": None,
    }
    values = {"name": "GoPro_HERO11 Black_Wide_16by9", "camera_model": "HERO11 Black", "fps": 59.94}
    values |= {"calib_dimension": size, "orig_dimension": size, "input_horizontal_stretch": 1.0}
    values |= {"fisheye_params": fisheye, "distortion_model": None, "digital_lens": None}
    path.write_text(json.dumps(values | more, indent=2))
    return path


def theia(path: Path, lens: Lens, kind: str, names: Sequence[str]) -> Path:
    """Intrinsics as OpenImuCameraCalibrator writes them and UMI keeps them."""
    intrinsics = {
        "aspect_ratio": lens.fy / lens.fx,
        "focal_length": lens.fx,
        "principal_pt_x": lens.cx,
        "principal_pt_y": lens.cy,
        "skew": 0.0,
        **dict(zip(names, lens.d, strict=True)),
    }
    values = {"final_reproj_error": 0.29, "fps": 59.94, "nr_calib_images": 59}
    values |= {"image_height": lens.height, "image_width": lens.width}
    values |= {"intrinsic_type": kind, "intrinsics": intrinsics, "stabelized": False}
    path.write_text(json.dumps(values, indent=4))
    return path


def orb_slam(path: Path, cameras: Mapping[str, Lens], kind: str) -> Path:
    """Settings of ORB-SLAM3, as its examples have them, with one camera or two."""
    names = ("k1", "k2", "k3", "k4") if kind == "KannalaBrandt8" else ("k1", "k2", "p1", "p2", "k3")
    lines = ["%YAML:1.0", "", 'File.version: "1.0"', f'Camera.type: "{kind}"', ""]
    for name, lens in cameras.items():
        values = {"fx": lens.fx, "fy": lens.fy, "cx": lens.cx, "cy": lens.cy}
        values |= dict(zip(names, lens.d, strict=False))
        lines += [f"{name}.{key}: {value!r}" for key, value in values.items()]
        lines += [f"Camera.width: {lens.width}", f"Camera.height: {lens.height}"]
    lines = list(dict.fromkeys(lines))
    lines += ["Camera.fps: 20", "Camera2.overlappingEnd: 511", "Viewer.PointSize:2"]
    path.write_text("\n".join(lines) + "\n")
    return path
