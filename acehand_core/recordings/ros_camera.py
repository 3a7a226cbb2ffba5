"""CameraInfo in files: as camera_calibration writes it, and as ``ros2 topic echo`` prints it.

Sources: sensor_msgs/CameraInfo, camera_calibration_parsers. The values go the way that messages of
a bag go, ``bags.images.camera_of``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

from acehand_core.bags.images import camera_of
from acehand_core.errors import CalibrationError
from acehand_core.geometry.cameras import Camera
from acehand_core.recordings.camera_fields import (
    Make,
    Said,
    field,
    is_mapping_with,
    matrix,
    model_without_name,
    numbers,
    size,
)

#: What to say where a file has the matrices of both pictures.
WHICH = " raw: the picture as the camera gives it; rectified: that of an image_rect topic."


def is_calibration(content: Any) -> bool:
    """Tell whether a content is what camera_calibration writes (ost.yaml)."""
    key = "camera_matrix"
    return is_mapping_with(content, key) and isinstance(content[key], Mapping)


def calibration(content: Any) -> Mapping[str, Make]:
    """Return the cameras of a calibration."""

    def data(key: str) -> list[float]:
        return numbers(field(field(content, key), "data"), f"{key}: data")

    return _cameras(
        {
            "width": content.get("image_width"),
            "height": content.get("image_height"),
            "distortion_model": content.get("distortion_model"),
            "k": data("camera_matrix"),
            "d": data("distortion_coefficients"),
            "p": data("projection_matrix") if "projection_matrix" in content else [],
        }
    )


def is_message(content: Any) -> bool:
    """Tell whether a content is one printed CameraInfo, or the list of several."""
    first = content[0] if isinstance(content, list) and content else content
    return is_mapping_with(first, "distortion_model") and ("k" in first or "K" in first)


def message(content: Any) -> Mapping[str, Make]:
    """Return the cameras of a printed CameraInfo; several in a row have to say the same."""
    messages = [
        {str(key).lower(): value for key, value in entry.items() if key != "header"}
        for entry in (content if isinstance(content, list) else [content])
        if isinstance(entry, Mapping)
    ]
    for number, entry in enumerate(messages, 1):
        if entry != messages[0]:
            raise CalibrationError(
                f"message {number} is of another camera than message 1; keep one of them."
            )
    values = {key: numbers(field(messages[0], key), key) for key in ("k", "d", "p")}
    return _cameras({**messages[0], **values})


def _cameras(info: Mapping[str, Any]) -> Mapping[str, Make]:
    """Return the camera of the raw picture and, where that differs, of the rectified one."""
    k, d, p = info["k"], info["d"], info["p"]
    if k[:1] == [0]:
        raise CalibrationError("the camera is not calibrated: its focal length is 0.")
    matrix(k, "k")
    if p:
        numbers(p, "p", 12)

    # Without distortion and with the same matrix, rectification leaves the picture as it is.
    same = bool(p) and [p[0], p[2], p[5], p[6]] == [k[0], k[2], k[4], k[5]] and not any(d)
    if not p or p[0] <= 0 or same:
        return {"camera": partial(_camera, info, False)}
    return {"raw": partial(_camera, info, False), "rectified": partial(_camera, info, True)}


def _camera(info: Mapping[str, Any], rectified: bool, said: Said) -> Camera:
    k, d = info["k"], info["d"]
    width, height = size((info.get("width"), info.get("height")), said, (k[2], k[5]))
    name = info.get("distortion_model")
    if not name and not rectified:
        model, _ = model_without_name(d, said)
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
    assert camera is not None, "k is not 0"
    return camera
