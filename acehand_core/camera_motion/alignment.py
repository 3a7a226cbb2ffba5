"""The turn between two frames from all of their pixels, for when points cannot be followed.

Small pictures and a camera that only turns: a guess for what follows points, and all that is known
of frames that are too blurred for them.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from jaxtyping import Bool, Float

from acehand_core.camera_motion.pose import Matrix3
from acehand_core.camera_motion.tracks import Grey, Mask
from acehand_core.geometry import rotations
from acehand_core.geometry.cameras import Camera

#: Widths of the pictures, the first for the search, the last for the result.
_WIDTHS = (40, 80, 160)
#: The search goes so far each way, in steps of so much.
_REACH_DEG, _STEP_DEG = 30.0, 3.0
#: Brightness differences above this are not the camera's doing.
_SCALE = 12.0
_MOST_PIXELS = 1500


@dataclass(frozen=True, slots=True)
class Small:
    """A frame in small sizes, blurred, with what of it may be used."""

    pictures: tuple[Float[np.ndarray, "_ _"], ...]
    usable: tuple[Bool[np.ndarray, "_ _"], ...]


@dataclass(frozen=True, slots=True)
class Turn:
    """``R_before_after``; how alike the two pictures then are (correlation, 0 to 1), and how sure.

    ``overlap``: share of the pixels of the first frame that the second shows as well.
    """

    R: Matrix3
    likeness: float
    overlap: float
    sigma: float


class Aligner:
    """Finds turns between frames of one camera."""

    def __init__(self, camera: Camera) -> None:
        self._cameras = []
        self._rays, self._slopes = [], []
        for width in _WIDTHS:
            width = min(width, camera.width)
            small = camera.rescaled(width, max(1, round(camera.height * width / camera.width)))
            grid = np.stack(np.meshgrid(np.arange(small.width), np.arange(small.height)), -1)
            rays = small.unproject(grid.reshape(-1, 2).astype(float))
            self._cameras.append(small)
            self._rays.append(rays)
            # How a pixel moves as its bearing is turned about each axis.
            step = 1e-4
            turned = [small.project(rays @ rotations.exp(step * axis).T) for axis in np.eye(3)]
            here = grid.reshape(-1, 2)
            self._slopes.append(np.stack([(there - here) / step for there in turned], -1))

    def shrink(self, grey: Grey, usable: Mask) -> Small:
        """Return the small pictures of a frame."""
        pictures, masks = [], []
        for camera in self._cameras:
            size = (camera.width, camera.height)
            small = cv2.resize(grey, size, interpolation=cv2.INTER_AREA)
            pictures.append(cv2.GaussianBlur(small, (0, 0), 1.0).astype(np.float32))
            share = cv2.resize(usable.astype(np.uint8) * 255, size, interpolation=cv2.INTER_AREA)
            masks.append(share > 230)
        return Small(tuple(pictures), tuple(masks))

    def turn(self, before: Small, after: Small, start: Matrix3, search: bool) -> Turn | None:
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
        for level in range(len(self._cameras)):
            result = self._refine(before, after, R, level)
            if result is None:
                return None
            R = result.R
        return result

    def _search(self, before: Small, after: Small, start: Matrix3) -> Matrix3 | None:
        """Return the best of many turns about the picture's own axes, at the smallest size."""
        angles = np.radians(np.arange(-_REACH_DEG, _REACH_DEG + 1e-6, _STEP_DEG))
        picture = before.pictures[0].ravel()
        which = np.flatnonzero(before.usable[0].ravel() & np.isfinite(self._slopes[0]).all((1, 2)))
        if len(which) < 50:
            return None
        best: tuple[float, Matrix3] | None = None
        for pitch in angles:
            for yaw in angles:
                R = rotations.exp(np.array([pitch, yaw, 0.0]))
                got = self._correlation(picture, after, R, 0, which)
                if got is not None and (best is None or got[0] > best[0]):
                    best = (got[0], R)
        got = self._correlation(picture, after, start, 0, which)
        if got is not None and (best is None or got[0] > best[0]):
            return start
        return None if best is None else best[1]

    def _correlation(
        self, picture: np.ndarray, after: Small, R: Matrix3, level: int, which: np.ndarray
    ) -> tuple[float, float] | None:
        """Return how alike the pictures are if the camera turned by R, and the share in both."""
        value, ok = self._sample(after, R, level, which)
        if ok.sum() < 0.25 * len(which):
            return None
        a, b = picture[which[ok]], value[ok]
        a, b = a - a.mean(), b - b.mean()
        return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b) + 1e-9)), float(ok.mean())

    def _sample(
        self, after: Small, R: Matrix3, level: int, which: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the later picture where pixels of the earlier one are, and which are in it."""
        camera = self._cameras[level]
        pixel = camera.project(self._rays[level][which] @ R).astype(np.float32)
        with np.errstate(invalid="ignore"):
            ok = np.all((pixel >= 0) & (pixel <= (camera.width - 1, camera.height - 1)), axis=1)
        at = np.where(ok[:, None], pixel, 0)
        x, y = at[None, :, 0], at[None, :, 1]
        value = cv2.remap(after.pictures[level], x, y, cv2.INTER_LINEAR)[0]
        near = np.round(at).astype(int)
        ok &= after.usable[level][near[:, 1], near[:, 0]]
        return value, ok

    def _refine(self, before: Small, after: Small, R: Matrix3, level: int) -> Turn | None:
        picture = before.pictures[level]
        gx, gy = (
            cv2.Scharr(picture, cv2.CV_32F, 1, 0) / 32,
            cv2.Scharr(picture, cv2.CV_32F, 0, 1) / 32,
        )
        gradient = np.stack([gx.ravel(), gy.ravel()], -1)
        steep = (gradient**2).sum(1)
        fine = before.usable[level].ravel() & np.isfinite(self._slopes[level]).all((1, 2))
        which = np.flatnonzero(fine & (steep > 1.0))
        if len(which) < 60:
            return None
        if len(which) > _MOST_PIXELS:
            which = which[:: -(-len(which) // _MOST_PIXELS)]
        J = np.einsum("ni,nij->nj", gradient[which], self._slopes[level][which])
        value = picture.ravel()[which]
        for _ in range(8):
            there, ok = self._sample(after, R, level, which)
            if ok.sum() < 40:
                return None
            r = (there - value)[ok]
            # One of the two may be brighter.
            r = r - r.mean()
            r = r - np.average(r, weights=1 / (1 + (r / _SCALE) ** 2))
            weight = 1 / (1 + (r / _SCALE) ** 2) ** 2
            slope = J[ok]
            H = (slope * weight[:, None]).T @ slope
            change = np.linalg.solve(H + 1e-6 * np.trace(H) * np.eye(3), slope.T @ (weight * r))
            size = np.linalg.norm(change)
            change *= min(1.0, np.radians(6.0) / max(size, 1e-12))
            R = rotations.exp(change) @ R
            if size < np.radians(0.03):
                break
        got = self._correlation(picture.ravel(), after, R, level, which)
        if got is None:
            return None
        spread = 1.5 * float(np.median(np.abs(r))) + 0.5
        sigma = float(np.sqrt(np.trace(np.linalg.inv(H + 1e-9 * np.eye(3)))) * spread)
        return Turn(R, got[0], got[1], sigma)
