"""Camera models: pinhole, Brown-Conrady, Kannala-Brandt fisheye and Fisheye624 (Project Aria).

Pixels: integer coordinates are pixel centres, so an image covers -0.5 .. size - 0.5. Camera frame:
OpenCV. All results are float64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Bool, Float

from acehand_core.errors import CalibrationError, nearest
from acehand_core.geometry import distortion
from acehand_core.types import PointsCamera, PointsImage, Rays

CameraModel = Literal["pinhole", "brown_conrady", "kannala_brandt", "fisheye624"]

#: Accepted numbers of coefficients; shorter lists are padded with zeros to the last one.
#: Order: k1 k2 p1 p2 k3 k4 k5 k6; k1..k4; k1..k6 p1 p2 s1..s4.
_COEFFICIENTS = {
    "pinhole": (0,),
    "brown_conrady": (4, 5, 8),
    "kannala_brandt": (4,),
    "fisheye624": (12,),
}
#: Further out a pinhole's pixels are spread over too few of the lens's: at 65 degrees 5.6 times as
#: far apart along the radius as on its axis.
PINHOLE_REACH = math.radians(65.0)
_FIELDS = ("model", "width", "height", "fx", "fy", "cx", "cy", "distortion")


@dataclass(frozen=True, slots=True)
class Camera:
    """One calibrated camera; values belong to an image of ``width`` x ``height`` pixels.

    Raises:
        CalibrationError: an unknown model, a size or focal length that is not positive, a value
            that is not finite, or a number of coefficients the model does not have.
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
        if self.model not in _COEFFICIENTS:
            raise CalibrationError(f"Unknown camera model {self.model!r}; {_valid(self.model)}")
        if self.width < 1 or self.height < 1:
            raise CalibrationError(
                f"Camera size {self.width} x {self.height}: width and height must be at least 1."
            )

        for name in ("fx", "fy", "cx", "cy"):
            if not math.isfinite(getattr(self, name)):
                raise CalibrationError(f"Camera {name} is {getattr(self, name)}; give a number.")

        if self.fx <= 0 or self.fy <= 0:
            raise CalibrationError(
                f"Camera focal lengths fx {self.fx}, fy {self.fy}: pixels above 0 are needed."
            )
        if not all(math.isfinite(value) for value in self.distortion):
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
        """Return a pinhole whose longer image side spans ``fov_degrees``."""
        focal = 0.5 * max(width, height) / math.tan(math.radians(fov_degrees) / 2)
        return cls("pinhole", width, height, focal, focal, (width - 1) / 2, (height - 1) / 2)

    @property
    def K(self) -> Float[np.ndarray, "3 3"]:
        """The matrix of focal lengths and principal point in pixels."""
        return np.array([[self.fx, 0.0, self.cx], [0.0, self.fy, self.cy], [0.0, 0.0, 1.0]])

    @property
    def max_angle(self) -> float:
        """Largest angle to the optical axis that the model describes, in radians.

        A right angle for a pinhole. With distortion it ends where the distortion first stops
        growing outwards: further out, two directions would share a pixel.
        """
        if self.model == "pinhole":
            return math.pi / 2
        limit = distortion.limit(self.model, self.distortion)
        return math.atan(limit) if self.model == "brown_conrady" else limit

    def project(self, points: PointsCamera) -> PointsImage:
        """Return pixels; NaN where a point cannot be seen (behind, or outside ``max_angle``)."""
        flat = np.asarray(points, np.float64).reshape(-1, 3)
        with np.errstate(all="ignore"):
            plane = self._to_plane(flat)
            if self.model != "pinhole":
                plane = distortion.distort(self.model, self.distortion, plane)[0]
            pixels = plane * (self.fx, self.fy) + (self.cx, self.cy)
        pixels[~np.isfinite(pixels).all(axis=-1)] = np.nan
        return pixels.reshape(*points.shape[:-1], 2)

    def unproject(self, pixels: PointsImage) -> Rays:
        """Return unit rays; NaN where the pixel lies outside the model's field of view."""
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
            # On the axis angle / radius is 1 / z in front; straight behind has no direction.
            ratio = np.where(radius > 0, angle / radius, np.where(z > 0, 1 / z, np.nan))
            plane = points[:, :2] * ratio[:, None]
            seen = angle <= self.max_angle

        plane[~seen] = np.nan
        return plane

    def rescaled(self, width: int, height: int) -> Camera:
        """Return the camera of the same view resized to ``width`` x ``height``."""
        sx, sy = width / self.width, height / self.height
        return replace(
            self,
            width=width,
            height=height,
            fx=self.fx * sx,
            fy=self.fy * sy,
            cx=(self.cx + 0.5) * sx - 0.5,
            cy=(self.cy + 0.5) * sy - 0.5,
        )

    def cropped(self, x0: int, y0: int, width: int, height: int) -> Camera:
        """Return the camera of the image part whose first pixel is (x0, y0); it may reach out."""
        return replace(self, width=width, height=height, cx=self.cx - x0, cy=self.cy - y0)

    def rotated(self, degrees: int) -> Camera:
        """Return the camera of the picture turned clockwise by 0, 90, 180 or 270 degrees.

        Exact for every model: tangential and prism terms turn like vectors.
        """
        camera = self
        for _ in range(degrees // 90 % 4):
            k = list(camera.distortion)
            if camera.model == "brown_conrady":  # the vector is (p2, p1)
                k[2:4] = k[3], -k[2]
            elif camera.model == "fisheye624":  # (p1, p2), (s1, s3), (s2, s4)
                k[6:8] = -k[7], k[6]
                k[8:12] = -k[10], -k[11], k[8], k[9]
            camera = Camera(
                camera.model,
                width=camera.height,
                height=camera.width,
                fx=camera.fy,
                fy=camera.fx,
                cx=camera.height - 1 - camera.cy,
                cy=camera.cx,
                distortion=tuple(k),
            )
        return camera

    def pinhole_like(self) -> Camera:
        """Return the pinhole of equal size and focal lengths that looks along the image centre.

        This is the camera of an undistorted image.
        """
        centre_x, centre_y = (self.width - 1) / 2, (self.height - 1) / 2
        return Camera("pinhole", self.width, self.height, self.fx, self.fy, centre_x, centre_y)

    def whole_view(self) -> Camera:
        """Return the pinhole of ``pinhole_like`` that shows all that the lens shows.

        Its focal length is as much shorter as it takes to reach the middle of each edge of the
        image, or ``PINHOLE_REACH`` where the lens sees further.
        """
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
        x, y = pixels[..., 0], pixels[..., 1]
        return np.asarray(
            (x >= -0.5) & (x < self.width - 0.5) & (y >= -0.5) & (y < self.height - 0.5)
        )

    def field_of_view(self) -> tuple[float, float, float]:
        """Return the angles across, down and along the diagonal of the image, in radians.

        NaN where the model does not reach the edge of the image.
        """
        right, bottom = self.width - 0.5, self.height - 0.5
        edges = np.array(
            [[[-0.5, self.cy], [right, self.cy]], [[self.cx, -0.5], [self.cx, bottom]],
             [[-0.5, -0.5], [right, bottom]]]
        )  # fmt: skip
        to_axis = np.arccos(np.clip(self.unproject(edges)[..., 2], -1.0, 1.0))
        across, down, diagonal = to_axis.sum(axis=1).tolist()
        return across, down, diagonal

    def to_json(self) -> dict[str, Any]:
        """Return the content of a camera file."""
        values = {name: getattr(self, name) for name in _FIELDS}
        return values | {"distortion": list(self.distortion)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any], where: str = "") -> Camera:
        """Return the camera of a camera file's content; ``where`` names the file in errors.

        Raises:
            CalibrationError: a field is missing, unknown, of the wrong type or not usable.
        """
        try:
            return cls(**_checked_fields(values))
        except CalibrationError as error:
            raise CalibrationError(f"{where}: {error}" if where else str(error)) from None


def _checked_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    for name in values:
        if name not in _FIELDS:
            raise CalibrationError(f"unknown camera field {name!r}; {nearest(str(name), _FIELDS)}")

    if missing := [name for name in _FIELDS[:-1] if name not in values]:
        raise CalibrationError(
            f"camera field {missing[0]!r} is missing; there is: {', '.join(values) or 'nothing'}. "
            f"Needed: {', '.join(_FIELDS[:-1])}."
        )
    if values["model"] not in get_args(CameraModel):
        raise CalibrationError(
            f"unknown camera model {values['model']!r}; {_valid(values['model'])}"
        )

    coefficients = values.get("distortion", [])
    if not isinstance(coefficients, list | tuple):
        raise CalibrationError("'distortion' must be a list of numbers.")
    return {
        "model": values["model"],
        **{name: int(_number(values[name], name, whole=True)) for name in ("width", "height")},
        **{name: _number(values[name], name) for name in ("fx", "fy", "cx", "cy")},
        "distortion": tuple(_number(value, "distortion") for value in coefficients),
    }


def opencv_distortion(coefficients: Sequence[float]) -> tuple[CameraModel, tuple[float, ...]]:
    """Return model and coefficients of OpenCV's k1 k2 p1 p2 [k3 [k4 k5 k6 [s1..s4 [tx ty]]]].

    A pinhole where all of them are 0.

    Raises:
        CalibrationError: another number of them, or a thin prism or tilt, which no model here has.
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


def _valid(model: object) -> str:
    """Return what to write in place of a model that there is not."""
    name = str(model).lower()
    if "fisheye" in name and not any(digit in name for digit in "0123456789"):
        return (
            "it has two meanings, say which: kannala_brandt (4 coefficients: OpenCV's cv2.fisheye, "
            "equidistant in ROS, equi in Kalibr) or fisheye624 (12 coefficients: Project Aria)."
        )
    return nearest(name, get_args(CameraModel))


def _number(value: Any, name: str, whole: bool = False) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CalibrationError(f"camera field {name!r} is {value!r}; give a number.")
    if whole and not float(value).is_integer():
        raise CalibrationError(f"camera field {name!r} is {value}; give whole pixels.")
    return float(value)
