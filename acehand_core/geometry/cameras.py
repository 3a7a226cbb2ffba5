"""Camera models: pinhole, Brown-Conrady, Kannala-Brandt fisheye and Fisheye624 (Project Aria).

Integer pixel coordinates are pixel centres: an image covers -0.5 .. size - 0.5. Camera frame:
OpenCV. Results are float64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Bool, Float

from acehand_core.errors import CalibrationError, nearest
from acehand_core.geometry import distortion
from acehand_core.types import PointsCamera, PointsImage, Rays

CameraModel = Literal["pinhole", "brown_conrady", "kannala_brandt", "fisheye624"]

#: Valid numbers of coefficients, padded with zeros to the last one.
#: Order: k1 k2 p1 p2 k3 k4 k5 k6; k1..k4; k1..k6 p1 p2 s1..s4.
_COEFFICIENTS = {
    "pinhole": (0,),
    "brown_conrady": (4, 5, 8),
    "kannala_brandt": (4,),
    "fisheye624": (12,),
}
#: Largest angle of an undistorted image: there a pinhole's pixels are radially 5.6 times as far
#: apart as on its axis.
PINHOLE_REACH = math.radians(65.0)
_FIELDS = ("model", "width", "height", "fx", "fy", "cx", "cy", "distortion")


@dataclass(frozen=True, slots=True)
class Camera:
    """A calibrated camera for an image of ``width`` x ``height`` pixels.

    Raises CalibrationError for an unknown model or invalid numbers.
    """

    model: CameraModel
    width: int
    height: int
    fx: float
    fy: float
    cx: float
    cy: float
    distortion: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        _check_model(self.model)
        if self.width < 1 or self.height < 1:
            size = f"{self.width} x {self.height}"
            raise CalibrationError(f"Camera size {size}: width and height must be at least 1.")
        for name in ("fx", "fy", "cx", "cy"):
            if not math.isfinite(getattr(self, name)):
                raise CalibrationError(f"Camera {name} is {getattr(self, name)}; give a number.")

        if self.fx <= 0 or self.fy <= 0:
            raise CalibrationError(
                f"Camera focal lengths fx {self.fx}, fy {self.fy}: pixels above 0 are needed."
            )
        if not all(map(math.isfinite, self.distortion)):
            raise CalibrationError(f"Camera distortion {self.distortion} is not finite.")
        counts = _COEFFICIENTS[self.model]
        if len(self.distortion) not in counts:
            raise CalibrationError(
                f"A {self.model} camera has {' or '.join(map(str, counts))} distortion "
                f"coefficients, got {len(self.distortion)}."
            )
        padding = (0.0,) * (counts[-1] - len(self.distortion))
        object.__setattr__(self, "distortion", (*self.distortion, *padding))

    @classmethod
    def nominal(cls, width: int, height: int, fov_degrees: float = 60.0) -> Camera:
        """Return a pinhole with ``fov_degrees`` across the longer side."""
        focal = 0.5 * max(width, height) / math.tan(math.radians(fov_degrees) / 2)
        return cls("pinhole", width, height, focal, focal, (width - 1) / 2, (height - 1) / 2)

    @property
    def K(self) -> Float[np.ndarray, "3 3"]:
        """The intrinsic matrix in pixels."""
        return np.array([[self.fx, 0.0, self.cx], [0.0, self.fy, self.cy], [0.0, 0.0, 1.0]])

    @property
    def max_angle(self) -> float:
        """Largest angle to the axis, in radians, up to which directions have their own pixel."""
        if self.model == "pinhole":
            return math.pi / 2
        limit = distortion.limit(self.model, self.distortion)
        return math.atan(limit) if self.model == "brown_conrady" else limit

    def project(self, points: PointsCamera) -> PointsImage:
        """Return pixels; NaN for points behind the camera or beyond ``max_angle``."""
        flat = np.asarray(points, np.float64).reshape(-1, 3)
        with np.errstate(all="ignore"):
            plane = self._to_plane(flat)
            if self.model != "pinhole":
                plane = distortion.distort(self.model, self.distortion, plane)[0]
            pixels = plane * (self.fx, self.fy) + (self.cx, self.cy)
        pixels[~np.isfinite(pixels).all(axis=-1)] = np.nan
        return pixels.reshape(*points.shape[:-1], 2)

    def unproject(self, pixels: PointsImage) -> Rays:
        """Return unit rays; NaN for pixels outside the model's field of view."""
        flat = np.asarray(pixels, np.float64).reshape(-1, 2)
        plane = (flat - (self.cx, self.cy)) / (self.fx, self.fy)
        plane[~np.isfinite(plane).all(axis=-1)] = np.nan
        if self.model != "pinhole":
            plane = distortion.undistort(self.model, self.distortion, plane)
        if self.model in ("pinhole", "brown_conrady"):
            rays = np.concatenate([plane, np.ones((len(plane), 1))], axis=-1)
            rays /= np.linalg.norm(rays, axis=-1, keepdims=True)
        else:
            angle = np.linalg.norm(plane, axis=-1, keepdims=True)
            rays = np.concatenate([plane * np.sinc(angle / np.pi), np.cos(angle)], axis=-1)
        rays[np.isnan(rays).any(axis=-1)] = np.nan
        return rays.reshape(*pixels.shape[:-1], 3)

    def _to_plane(self, points: np.ndarray) -> np.ndarray:
        """Return (N, 2) lens coordinates of (N, 3) points (see ``geometry.distortion``)."""
        x, y, z = points.T
        radius = np.hypot(x, y)
        if self.model in ("pinhole", "brown_conrady"):
            plane = points[:, :2] / z[:, None]
            seen = z > 0
            if self.model == "brown_conrady":
                seen &= radius <= z * math.tan(self.max_angle)
        else:
            angle = np.arctan2(radius, z)
            # On the axis: 1 / z in front, undefined behind.
            ratio = np.where(radius > 0, angle / radius, np.where(z > 0, 1 / z, np.nan))
            plane = points[:, :2] * ratio[:, None]
            seen = angle <= self.max_angle
        plane[~seen] = np.nan
        return plane

    def all_rays(self) -> Float[np.ndarray, "H W 3"]:
        """Return the unit rays of all pixels; NaN where the lens has none."""
        x, y = np.arange(self.width, dtype=float), np.arange(self.height, dtype=float)
        return self.unproject(np.stack(np.meshgrid(x, y), -1))

    def rescaled(self, width: int, height: int) -> Camera:
        """Return the camera of the same view resized to ``width`` x ``height``."""
        sx, sy = width / self.width, height / self.height
        cx, cy = (self.cx + 0.5) * sx - 0.5, (self.cy + 0.5) * sy - 0.5
        fx, fy = self.fx * sx, self.fy * sy
        return Camera(self.model, width, height, fx, fy, cx, cy, self.distortion)

    def cropped(self, x0: int, y0: int, width: int, height: int) -> Camera:
        """Return the camera of an image part with first pixel (x0, y0), which may lie outside."""
        return replace(self, width=width, height=height, cx=self.cx - x0, cy=self.cy - y0)

    def rotated(self, degrees: int) -> Camera:
        """Return the camera of the image rotated clockwise by 0, 90, 180 or 270 degrees."""
        camera = self
        for _ in range(degrees // 90 % 4):
            k, cx = list(camera.distortion), camera.height - 1 - camera.cy
            # Tangential and prism terms rotate like vectors.
            if camera.model == "brown_conrady":  # (p2, p1)
                k[2:4] = k[3], -k[2]
            elif camera.model == "fisheye624":  # (p1, p2), (s1, s3), (s2, s4)
                k[6:8] = -k[7], k[6]
                k[8:12] = -k[10], -k[11], k[8], k[9]
            size, focal = (camera.height, camera.width), (camera.fy, camera.fx)
            camera = Camera(camera.model, *size, *focal, cx, camera.cx, tuple(k))
        return camera

    def pinhole_like(self) -> Camera:
        """Return the camera of the undistorted image: a pinhole with the axis at its centre."""
        centre_x, centre_y = (self.width - 1) / 2, (self.height - 1) / 2
        return Camera("pinhole", self.width, self.height, self.fx, self.fy, centre_x, centre_y)

    def whole_view(self) -> Camera:
        """Return ``pinhole_like`` with the edges' middles in view, up to ``PINHOLE_REACH``."""
        plain = self.pinhole_like()
        right, bottom = self.width - 0.5, self.height - 0.5
        edges = np.array([[-0.5, self.cy], [right, self.cy], [self.cx, -0.5], [self.cx, bottom]])
        ray = self.unproject(edges)
        angle = np.nan_to_num(np.arccos(ray[:, 2]), nan=self.max_angle)
        reach = np.tan(np.minimum(angle, PINHOLE_REACH)) * [self.fx, self.fx, self.fy, self.fy]
        half = np.array([self.width, self.width, self.height, self.height]) / 2
        share = min(1.0, float((half / reach).min()))
        return replace(plain, fx=share * plain.fx, fy=share * plain.fy)

    def contains(self, pixels: PointsImage) -> Bool[np.ndarray, "*batch"]:
        """Return which pixels lie in the image; False for NaN."""
        inside = (pixels >= -0.5) & (pixels < (self.width - 0.5, self.height - 0.5))
        return np.asarray(inside.all(axis=-1))

    def field_of_view(self) -> tuple[float, float, float]:
        """Return the angles across, down and diagonally, in radians; NaN beyond the model."""
        right, bottom = self.width - 0.5, self.height - 0.5
        edges = np.array(
            [[[-0.5, self.cy], [right, self.cy]], [[self.cx, -0.5], [self.cx, bottom]],
             [[-0.5, -0.5], [right, bottom]]]
        )  # fmt: skip
        rays = self.unproject(edges)
        angle = np.arccos(np.clip(rays.prod(axis=1).sum(axis=-1), -1.0, 1.0))
        beyond = np.arccos(np.clip(rays[..., 2], -1.0, 1.0)).sum(axis=1) > np.pi
        across, down, diagonal = np.where(beyond, 2 * np.pi - angle, angle).tolist()
        return across, down, diagonal

    def to_json(self) -> dict[str, Any]:
        """Return the content of a camera file."""
        return asdict(self) | {"distortion": list(self.distortion)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any], where: str = "") -> Camera:
        """Return the camera of a camera file; ``where`` names it. Raises CalibrationError."""
        try:
            if unknown := [name for name in values if name not in _FIELDS]:
                near = nearest(str(unknown[0]), _FIELDS)
                raise CalibrationError(f"unknown camera field {unknown[0]!r}; {near}")
            if missing := [name for name in _FIELDS[:-1] if name not in values]:
                raise CalibrationError(
                    f"camera field {missing[0]!r} is missing; there is: "
                    f"{', '.join(values) or 'nothing'}. Needed: {', '.join(_FIELDS[:-1])}."
                )
            _check_model(values["model"])
            coefficients = values.get("distortion", [])
            if not isinstance(coefficients, list | tuple):
                raise CalibrationError("'distortion' must be a list of numbers.")
            width, height = (int(_number(values[n], n, whole=True)) for n in ("width", "height"))
            fx, fy, cx, cy = (_number(values[name], name) for name in ("fx", "fy", "cx", "cy"))
            k = tuple(_number(value, "distortion") for value in coefficients)
            return cls(values["model"], width, height, fx, fy, cx, cy, k)
        except (CalibrationError, OverflowError) as error:
            raise CalibrationError(f"{where}: {error}" if where else str(error)) from None


def opencv_distortion(coefficients: Sequence[float]) -> tuple[CameraModel, tuple[float, ...]]:
    """Return model and coefficients of OpenCV's k1 k2 p1 p2 [k3 [k4 k5 k6 [s1..s4 [tx ty]]]].

    All 0 is a pinhole. Raises CalibrationError for another number, thin prism or tilt.
    """
    if any(coefficients[8:]):
        raise CalibrationError(
            f"thin prism or tilt coefficients {list(coefficients[8:])}; valid: up to 8 "
            "coefficients, k1 k2 p1 p2 k3 k4 k5 k6. Calibrate without them."
        )
    if not any(coefficients):
        return "pinhole", ()
    if len(coefficients[:8]) not in _COEFFICIENTS["brown_conrady"]:
        raise CalibrationError(
            f"{len(coefficients)} distortion coefficients; valid: 4, 5, 8, 12 or 14 in OpenCV's "
            "order k1 k2 p1 p2 k3 k4 k5 k6 s1..s4 tx ty."
        )
    return "brown_conrady", tuple(coefficients[:8])


def _check_model(model: object) -> None:
    """Raise CalibrationError for an unknown model, with the valid names that are like it."""
    if model in get_args(CameraModel):
        return
    name = str(model).lower()
    hint = nearest(name, get_args(CameraModel))
    if "fisheye" in name and not any(digit in name for digit in "0123456789"):
        hint = (
            "it has two meanings, say which: kannala_brandt (4 coefficients: OpenCV's cv2.fisheye, "
            "equidistant in ROS, equi in Kalibr) or fisheye624 (12 coefficients: Project Aria)."
        )
    raise CalibrationError(f"unknown camera model {model!r}; {hint}")


def _number(value: Any, name: str, whole: bool = False) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CalibrationError(f"camera field {name!r} is {value!r}; give a number.")
    if whole and not float(value).is_integer():
        raise CalibrationError(f"camera field {name!r} is {value}; give whole pixels.")
    return float(value)
