"""The turn between two frames from all of their pixels, in small pictures.

It holds where no corners could be followed: in blur, fast turns and pictures of edges alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from jaxtyping import Bool, Float, UInt8

from acehand_core.geometry import rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.types import Rotation

#: Widths of the pictures, the first for the search, the last for the result.
_WIDTHS = (40, 80, 160)
#: The search goes so far each way, in steps of so much.
_REACH_DEG, _STEP_DEG = 30.0, 3.0
#: Brightness differences above this are not the camera's doing.
_SCALE = 12.0
_MOST_PIXELS, _SEARCHED_PIXELS = 1500, 400
#: Share of the pixels that must be in both pictures.
_LEAST_SHARED = 0.25
#: A round turns by so much at most, and the last one by so little, rad.
_STRIDE, _CLOSE = np.radians([6.0, 0.03])


@dataclass(frozen=True, slots=True)
class Small:
    """A frame in small sizes, blurred, with what of it may be used."""

    pictures: tuple[Float[np.ndarray, "_ _"], ...]
    usable: tuple[Bool[np.ndarray, "_ _"], ...]


@dataclass(frozen=True, slots=True)
class Turn:
    """``R_before_after``, and how alike the two pictures then are (correlation, 0 to 1).

    ``overlap``: share of the pixels of the first frame that the second shows as well.
    """

    R: Rotation
    likeness: float
    overlap: float


class Aligner:
    """Finds turns between frames of one camera."""

    def __init__(self, camera: Camera) -> None:
        self._camera = camera
        self._sizes: list[tuple[int, int]] = []
        self._rays, self._slopes = [], []
        for width in _WIDTHS:
            width = min(width, camera.width)
            self._sizes.append((width, max(1, round(camera.height * width / camera.width))))
            grid = np.stack(np.meshgrid(*(np.arange(s) for s in self._sizes[-1])), -1)
            here = grid.reshape(-1, 2).astype(float)
            scale = np.array([camera.width, camera.height]) / self._sizes[-1]
            rays = camera.unproject((here + 0.5) * scale - 0.5)
            self._rays.append(rays)
            # How a pixel moves as its bearing is turned about each axis.
            step = 1e-3
            turned = [self._project(rays @ rotations.exp(step * e).T, -1) for e in np.eye(3)]
            back = [self._project(rays @ rotations.exp(-step * e).T, -1) for e in np.eye(3)]
            self._slopes.append((np.stack(turned, -1) - np.stack(back, -1)) / (2 * step))

    def _project(self, rays: Float[np.ndarray, "N 3"], level: int) -> Float[np.ndarray, "N 2"]:
        scale = np.array(self._sizes[level]) / (self._camera.width, self._camera.height)
        return np.asarray((self._camera.project(rays) + 0.5) * scale - 0.5)

    def shrink(self, grey: UInt8[np.ndarray, "H W"], usable: Bool[np.ndarray, "_ _"]) -> Small:
        """Return the small pictures of a frame; ``usable`` may be of a size of its own."""
        pictures, masks = [], []
        for size in self._sizes:
            small = cv2.resize(grey, size, interpolation=cv2.INTER_AREA)
            pictures.append(cv2.GaussianBlur(small, (0, 0), 1.0).astype(np.float32))
            share = cv2.resize(usable.astype(np.uint8) * 255, size, interpolation=cv2.INTER_AREA)
            masks.append(share > 230)
        return Small(tuple(pictures), tuple(masks))

    def turn(self, before: Small, after: Small, start: Rotation, search: bool) -> Turn | None:
        """Return the turn from one frame to the next, near ``start`` or, in a ``search``, anywhere.

        None where there is nothing to see.
        """
        R = start
        if search:
            found = self._search(before, after, start)
            if found is None:
                return None
            R = found
        result = None
        for level in range(0 if search else 1, len(self._sizes)):
            result = self._refine(before, after, R, level)
            if result is None:
                return None
            R = result.R
        return result

    def _search(self, before: Small, after: Small, start: Rotation) -> Rotation | None:
        """Return the best of many turns about the picture's own axes, at the smallest size."""
        picture = before.pictures[0].ravel()
        which = np.flatnonzero(before.usable[0].ravel() & np.isfinite(self._slopes[0]).all((1, 2)))
        if len(which) < 50:
            return None
        which = which[:: -(-len(which) // _SEARCHED_PIXELS)]
        angles = np.radians(np.arange(-_REACH_DEG, _REACH_DEG + 1e-6, _STEP_DEG))
        pitch, yaw = (a.ravel() for a in np.meshgrid(angles, angles))
        tries = rotations.exp(np.stack([pitch, yaw, 0 * yaw], -1))
        likeness = [
            self._likeness(picture, *self._sample(after, R, 0, which), which)[0]
            for R in (start, *tries)
        ]
        best = int(np.argmax(likeness))
        return None if np.isneginf(likeness[best]) else (start, *tries)[best]

    def _likeness(
        self, picture: np.ndarray, value: np.ndarray, ok: np.ndarray, which: np.ndarray
    ) -> tuple[float, float]:
        """Return the correlation of pictures, -inf where too little is in both, and its share."""
        if ok.sum() < _LEAST_SHARED * len(which):
            return -np.inf, 0.0
        a, b = picture[which[ok]], value[ok]
        a, b = a - a.mean(), b - b.mean()
        return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b) + 1e-9)), float(ok.mean())

    def _sample(
        self, after: Small, R: Rotation, level: int, which: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the later picture where pixels of the earlier one are, and which are in it."""
        width, height = self._sizes[level]
        pixel = self._project(self._rays[level][which] @ R, level).astype(np.float32)
        with np.errstate(invalid="ignore"):
            ok = np.all((pixel >= 0) & (pixel <= (width - 1, height - 1)), axis=1)
        at = np.where(ok[:, None], pixel, 0)
        x, y = at[None, :, 0], at[None, :, 1]
        value = cv2.remap(after.pictures[level], x, y, cv2.INTER_LINEAR)[0]
        near = np.round(at).astype(int)
        ok &= after.usable[level][near[:, 1], near[:, 0]]
        return value, ok

    def _refine(self, before: Small, after: Small, R: Rotation, level: int) -> Turn | None:
        """Return the turn near ``R`` under which brightness agrees best, by Gauss and Newton."""
        picture = before.pictures[level]
        slopes = [cv2.Scharr(picture, cv2.CV_32F, *axis).ravel() for axis in ((1, 0), (0, 1))]
        gradient = np.stack(slopes, -1) / 32
        fine = before.usable[level].ravel() & np.isfinite(self._slopes[level]).all((1, 2))
        which = np.flatnonzero(fine & ((gradient**2).sum(1) > 1.0))
        if len(which) < 60:
            return None
        which = which[:: -(-len(which) // _MOST_PIXELS)]
        J = (gradient[which][:, None] @ self._slopes[level][which])[:, 0]
        value = picture.ravel()[which]
        for _ in range(8):
            there, ok = self._sample(after, R, level, which)
            if ok.sum() < 40:
                return None
            # One of the two may be brighter.
            r = (there - value)[ok]
            r = r - r.mean()
            r = r - np.average(r, weights=1 / (1 + (r / _SCALE) ** 2))
            weight = 1 / (1 + (r / _SCALE) ** 2) ** 2
            weighted = J[ok] * weight[:, None]
            H = weighted.T @ J[ok]
            change = np.linalg.solve(H + 1e-6 * np.trace(H) * np.eye(3), weighted.T @ r)
            size = float(np.linalg.norm(change))
            R = rotations.exp(change * min(1.0, _STRIDE / max(size, 1e-12))) @ R
            if size < _CLOSE:
                break
        likeness, overlap = self._likeness(picture.ravel(), there, ok, which)
        return None if np.isneginf(likeness) else Turn(R, likeness, overlap)
