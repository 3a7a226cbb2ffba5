"""Crops of a picture in which the landmark network looks for a hand.

Squares that may be turned and mirrored, placed as by "MediaPipe Hands: On-device Real-time Hand
Tracking" (Zhang et al., 2020) and the package's graph descriptions. Through a wide lens they lie in
the image plane of a virtual pinhole camera that looks at the hand. Picture coordinates are pixels,
integer at pixel centres.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import cv2
import numpy as np
from jaxtyping import Float, UInt8

from acehand_core.geometry import rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.types import ImageRgb

CROP_PIXELS = 224
#: Scale and shift along the hand from the box of a palm, and of landmarks, to the hand's crop.
_PALM_SCALE, _PALM_SHIFT = 2.6, -0.5
_HAND_SCALE, _HAND_SHIFT = 2.0, -0.1
#: Landmarks that place the next crop: all but the finger ends.
_STEADY = [0, 1, 2, 3, 5, 6, 9, 10, 13, 14, 17, 18]
_INDEX, _MIDDLE, _RING = 5, 9, 13


@dataclass(frozen=True, slots=True)
class Crop:
    """A square of a picture: centre and side in pixels, turned clockwise by ``angle`` rad.

    The network sees a ``mirrored`` crop left to right. With a ``lens`` the square lies in the image
    plane of a virtual pinhole camera that looks at its centre, with as many pixels there.
    """

    x: float
    y: float
    side: float
    angle: float
    mirrored: bool = False
    lens: Camera | None = None

    def to_picture(self, points: Float[np.ndarray, "*n 2"]) -> Float[np.ndarray, "*n 2"]:
        """Return picture points from shares of the side, counted from the upper left corner.

        NaN beyond the lens.
        """
        centred = (points - 0.5) * self.side
        if self.mirrored:
            centred = centred * [-1.0, 1.0]
        centred = centred @ rotation_2d(self.angle).T
        view = _ray_view(self.lens, self.x, self.y)
        return centred + np.array([self.x, self.y]) if view is None else view.to_picture(centred)

    def picture(
        self, image: ImageRgb, pixels: int = CROP_PIXELS
    ) -> UInt8[np.ndarray, "side side 3"]:
        """Cut the square out of a picture, black beyond it."""
        if self.lens is not None:
            return self._along_ray(image, pixels)
        if self.side > 2 * pixels:
            # Halved first: sampling alone would alias.
            reach = self.side * np.sqrt(0.5) + 2
            left, top = (max(int(c - reach), 0) for c in (self.x, self.y))
            right, bottom = (max(int(c + reach), 0) for c in (self.x, self.y))
            part = image[top:bottom, left:right]
            if min(part.shape[:2]) > 1:
                part = part[: part.shape[0] // 2 * 2, : part.shape[1] // 2 * 2]
                half = cv2.resize(part, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA)
                x, y = (self.x - left) / 2 - 0.25, (self.y - top) / 2 - 0.25
                return replace(self, x=x, y=y, side=self.side / 2).picture(half, pixels)

        corners = np.array([[0.5, 0.5], [pixels - 0.5, 0.5], [0.5, pixels - 0.5]]) / pixels
        square = np.array([[0, 0], [pixels - 1, 0], [0, pixels - 1]], np.float32)
        matrix = cv2.getAffineTransform(square, self.to_picture(corners).astype(np.float32))
        flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        return cv2.warpAffine(image, matrix, (pixels, pixels), flags=flags)

    def _along_ray(self, image: ImageRgb, pixels: int) -> UInt8[np.ndarray, "side side 3"]:
        # Smooth, so it is computed at a few points.
        few, spread = _mesh(pixels)
        points = self.to_picture(np.stack(np.meshgrid(few, few), -1).reshape(-1, 2))
        points = np.where(np.isfinite(points), points, -1e4).reshape(len(few), len(few), 2)
        at = np.einsum("ik,klc,jl->ijc", spread, points, spread, optimize=True)

        # Halved first as often as needed: sampling alone would alias.
        shrink = 2 ** max(int(np.log2(self.side / pixels)), 0)
        size = np.array(image.shape[1::-1])
        first = np.clip(points.min((0, 1)).astype(int) - shrink, 0, size)
        last = np.clip(points.max((0, 1)).astype(int) + 2 * shrink, 0, size)
        last -= (last - first) % shrink
        part = image[first[1] : last[1], first[0] : last[0]]
        if 0 in part.shape:
            return np.zeros((pixels, pixels, 3), np.uint8)

        if shrink > 1:
            share = 1 / shrink
            part = cv2.resize(part, None, fx=share, fy=share, interpolation=cv2.INTER_AREA)
        at = ((at - first + 0.5) / shrink - 0.5).astype(np.float32)
        return cv2.remap(part, at[..., 0], at[..., 1], cv2.INTER_LINEAR)

    def overlap(self, other: Crop) -> float:
        """Return intersection over union, ignoring turns."""
        half = (self.side + other.side) / 2
        wide = min(half - abs(self.x - other.x), self.side, other.side)
        high = min(half - abs(self.y - other.y), self.side, other.side)
        shared = max(wide, 0.0) * max(high, 0.0)
        return shared / (self.side**2 + other.side**2 - shared)


@dataclass(frozen=True, slots=True)
class _RayView:
    """The image plane of a virtual pinhole camera that looks along a pixel's ray.

    Its axes are the lens's, turned the shortest way; its scale is the lens's there.
    """

    lens: Camera
    ray: Float[np.ndarray, "3"]
    axes: Float[np.ndarray, "3 2"]  # per pixel

    def to_picture(self, plane: Float[np.ndarray, "*n 2"]) -> Float[np.ndarray, "*n 2"]:
        return self.lens.project(self.ray + plane @ self.axes.T)

    def from_picture(self, pixels: Float[np.ndarray, "*n 2"]) -> Float[np.ndarray, "*n 2"]:
        rays = self.lens.unproject(pixels)
        per_pixel = self.axes / np.sum(self.axes[:, 0] ** 2)
        return rays @ per_pixel / (rays @ self.ray)[..., None]


@lru_cache(maxsize=64)
def _ray_view(lens: Camera | None, x: float, y: float) -> _RayView | None:
    """Return the view along the ray of a pixel; None without a lens or where it has no ray."""
    if lens is None:
        return None
    ray = lens.unproject(np.array([x, y]))
    axes = rotations.between(np.array([0.0, 0.0, 1.0]), ray)[:, :2]
    near = lens.project(ray + 1e-4 * np.stack([-axes.T, axes.T]))
    (a, b), (c, d) = near[1] - near[0]
    scale = np.sqrt(abs(a * d - b * c)) / 2e-4
    return _RayView(lens, ray, axes / scale) if scale > 0 else None


def crop_of(pixels: Float[np.ndarray, "21 2"], lens: Camera | None = None) -> Crop:
    """Return the crop that follows a hand with these landmarks in the frame before."""
    view = _ray_view(lens, *pixels[_MIDDLE].tolist())
    flat = pixels if view is None else view.from_picture(pixels)
    if not np.isfinite(flat).all():  # it reaches beyond the lens
        view, flat = None, pixels

    towards = (flat[_INDEX] + flat[_RING]) / 4 + flat[_MIDDLE] / 2 - flat[0]
    angle = float(np.arctan2(towards[0], -towards[1]))
    turn = rotation_2d(angle)
    steady = flat[_STEADY]
    upright = steady @ turn
    low, high = upright.min(0), upright.max(0)
    size = high - low
    centre = turn @ ((low + high) / 2 + [0.0, _HAND_SHIFT * size[1]])
    return _crop(view, centre, _HAND_SCALE * float(size.max()), angle)


def palm_crop(points: Float[np.ndarray, "9 2"], around: Crop, lens: Camera | None) -> Crop:
    """Return the crop of a palm's hand, by its box, wrist and middle knuckle."""
    marks, size = around.to_picture(points[[0, 2, 4]]), points[1] * around.side
    view = _ray_view(lens, *marks[0].tolist())
    if view is not None:
        edges = points[0] + np.array([[-0.5, 0.0], [0.5, 0.0], [0.0, -0.5], [0.0, 0.5]]) * points[1]
        flat = view.from_picture(np.concatenate([marks, around.to_picture(edges)]))
        if np.isfinite(flat).all():
            marks, size = flat[:3], np.linalg.norm(flat[[4, 6]] - flat[[3, 5]], axis=1)
        else:
            view = None

    centre, wrist, knuckle = marks
    towards = knuckle - wrist
    angle = float(np.arctan2(towards[0], -towards[1]))
    centre = centre + rotation_2d(angle) @ [0.0, _PALM_SHIFT * size[1]]
    return _crop(view, centre, _PALM_SCALE * float(size.max()), angle)


def _crop(view: _RayView | None, centre: np.ndarray, side: float, angle: float) -> Crop:
    """Return a crop by its centre and side in a ray's view, or in the picture."""
    if view is None:
        return Crop(float(centre[0]), float(centre[1]), max(side, 1.0), angle)
    x, y = view.to_picture(centre).tolist()
    if not np.isfinite(x + y):
        x, y = view.to_picture(np.zeros(2)).tolist()
    own_view = _ray_view(view.lens, x, y)
    if own_view is not None:
        side *= float(np.linalg.norm(view.axes[:, 0]) / np.linalg.norm(own_view.axes[:, 0]))
    return Crop(x, y, max(side, 1.0), angle, lens=view.lens)


@lru_cache(maxsize=2)
def _mesh(pixels: int) -> tuple[Float[np.ndarray, "M"], Float[np.ndarray, "side M"]]:
    """Return points along a crop's side, in its shares, and the interpolation to its pixels."""
    few, at = np.linspace(0.5, pixels - 0.5, 15), np.arange(pixels) + 0.5
    spread = np.clip(1 - np.abs(at[:, None] - few) / (few[1] - few[0]), 0, None)
    return few / pixels, spread


def rotation_2d(angle: float) -> Float[np.ndarray, "2 2"]:
    """Return the matrix that turns picture points clockwise."""
    c, s = np.cos(angle), np.sin(angle)
    return np.array([[c, -s], [s, c]])
