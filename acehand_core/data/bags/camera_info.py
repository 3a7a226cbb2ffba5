"""sensor_msgs/CameraInfo to a Camera and back.

Functions take any object with the message's fields, from rosbags or from rclpy.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from acehand_core.errors import CalibrationError, nearest
from acehand_core.geometry.cameras import Camera

CAMERA_INFO = "sensor_msgs/msg/CameraInfo"
_MODELS = ("plumb_bob", "rational_polynomial", "equidistant", "fisheye")


def camera_of(message: Any, rectified: bool = False) -> Camera | None:
    """Return the camera of a CameraInfo, or None where it says that there is no calibration.

    Region of interest and binning are applied. With ``rectified`` the projection matrix P counts,
    without distortion.

    Raises:
        CalibrationError: an unknown distortion model, or values that describe no camera.
    """
    k = [float(value) for value in getattr(message, "k", getattr(message, "K", ()))]
    p = [float(value) for value in getattr(message, "p", getattr(message, "P", ()))]
    d = [float(value) for value in getattr(message, "d", getattr(message, "D", ()))]
    if rectified and p[0] > 0:
        k, d = [p[0], 0, p[2], 0, p[5], p[6], 0, 0, 1], []
    if not k or k[0] == 0:
        return None
    model, coefficients = _distortion(str(message.distortion_model), [] if rectified else d)
    width, height = int(message.width), int(message.height)
    camera = Camera(model, width, height, k[0], k[4], k[2], k[5], tuple(coefficients))
    roi = message.roi
    if roi.width and roi.height and (roi.width, roi.height) != (width, height):
        camera = camera.cropped(roi.x_offset, roi.y_offset, roi.width, roi.height)
    across, down = max(int(message.binning_x), 1), max(int(message.binning_y), 1)
    if (across, down) != (1, 1):
        camera = camera.rescaled(camera.width // across, camera.height // down)
    return camera


def _distortion(name: str, d: list[float]) -> tuple[Any, list[float]]:
    if not any(d):
        if name in ("equidistant", "fisheye"):
            return "kannala_brandt", [0.0] * 4
        return "pinhole", []
    if name in ("equidistant", "fisheye"):
        return "kannala_brandt", d
    if name == "plumb_bob":
        return "brown_conrady", d[:5]
    if name == "rational_polynomial":
        if any(d[8:]):
            raise CalibrationError(
                "CameraInfo: rational_polynomial with thin prism or tilt coefficients "
                f"{d[8:]}; valid: up to 8 coefficients. Calibrate without them, or give --camera."
            )
        return "brown_conrady", d[:8]
    raise CalibrationError(f"CameraInfo: distortion model {name!r}; {nearest(name, _MODELS)}")


def camera_info_fields(camera: Camera) -> dict[str, Any]:
    """Return the fields of a CameraInfo, without its header.

    Raises:
        CalibrationError: ROS has no name for this camera's model.
    """
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
    """Tell whether two cameras agree to a hundredth of a pixel."""
    near = all(abs(getattr(a, n) - getattr(b, n)) < 0.01 for n in ("fx", "fy", "cx", "cy"))
    return near and replace(a, fx=b.fx, fy=b.fy, cx=b.cx, cy=b.cy) == b
