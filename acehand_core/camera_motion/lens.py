"""A camera's projection from tables: a wide lens is asked a thousand times a frame."""

from __future__ import annotations

import cv2
import numpy as np
from jaxtyping import Bool, Float, UInt8

from acehand_core.geometry.cameras import Camera
from acehand_core.types import Rotation

#: Pixels between the nodes of the table of rays, and nodes across that of pixels.
_STEP_PX, _NODES = 4, 385
#: Pixels between places where a turned picture's map is exact.
_MESH_PX = 8
#: Directions further than this from the axis, rad, are not looked at.
_WIDEST = np.radians(140.0)


class Lens:
    """Pixels and rays of a camera, to some hundredths of a pixel.

    Both tables are of stereographic coordinates of a ray, (x, y) / (1 + z), between which and
    pixels nothing bends much.
    """

    def __init__(self, camera: Camera) -> None:
        self.width, self.height = camera.width, camera.height
        self._mesh: np.ndarray | None = None
        self._exact = camera if camera.model == "pinhole" else None
        if self._exact is not None:
            return
        counts = [-(-(s + 1) // _STEP_PX) + 1 for s in (self.width, self.height)]
        grid = np.stack(np.meshgrid(*(np.arange(n) * _STEP_PX - 1.0 for n in counts)), -1)
        rays = camera.unproject(grid)
        self._rays = rays[..., :2] / (1 + rays[..., 2:])

        self._reach = float(np.tan(min(camera.max_angle + 0.02, _WIDEST) / 2))
        line = np.linspace(-self._reach, self._reach, _NODES)
        self._pixels = camera.project(_unfolded(np.stack(np.meshgrid(line, line), -1)))

    def project(self, rays: Float[np.ndarray, "*batch 3"]) -> Float[np.ndarray, "*batch 2"]:
        """Return pixels of unit rays; NaN where a ray cannot be seen."""
        if self._exact is not None:
            return self._exact.project(rays)
        with np.errstate(divide="ignore", invalid="ignore"):
            folded = rays[..., :2] / (1 + rays[..., 2:])
        return _between(self._pixels, (folded / self._reach + 1) * (0.5 * (_NODES - 1)))

    def unproject(self, pixels: Float[np.ndarray, "*batch 2"]) -> Float[np.ndarray, "*batch 3"]:
        """Return unit rays; NaN outside the lens's field of view or the picture."""
        if self._exact is not None:
            return self._exact.unproject(pixels)
        return _unfolded(_between(self._rays, (pixels + 1) / _STEP_PX))

    def contains(self, pixels: Float[np.ndarray, "*batch 2"]) -> Bool[np.ndarray, "*batch"]:
        """Return which pixels lie in the picture; NaN does not."""
        with np.errstate(invalid="ignore"):
            inside = (pixels >= -0.5) & (pixels <= (self.width - 0.5, self.height - 0.5))
        return np.asarray(inside.all(-1))

    def warped(self, picture: UInt8[np.ndarray, "H W"], R: Rotation) -> UInt8[np.ndarray, "H W"]:
        """Return what a camera sees that has turned by R since ``picture``."""
        size = (self.width, self.height)
        if self._exact is not None:
            K = self._exact.K
            H, flags = K @ R @ np.linalg.inv(K), cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
            out = cv2.warpPerspective(picture, H, size, None, flags, cv2.BORDER_REPLICATE)
            return np.asarray(out, np.uint8)
        if self._mesh is None:
            line = (np.arange(0, s + _MESH_PX, _MESH_PX) for s in size)
            self._mesh = self.unproject(np.stack(np.meshgrid(*line), -1).astype(float))
        at = np.nan_to_num(self.project(self._mesh @ R.T), nan=-1e4).astype(np.float32)
        # The map changes slowly: exact at the nodes of a mesh, linear in between.
        grow = np.array([[_MESH_PX, 0, 0], [0, _MESH_PX, 0]], np.float32)
        at = cv2.warpAffine(at, grow, size, borderMode=cv2.BORDER_REPLICATE)
        x, y = at[..., 0], at[..., 1]
        out = cv2.remap(picture, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        return np.asarray(out, np.uint8)


def _unfolded(folded: Float[np.ndarray, "*batch 2"]) -> Float[np.ndarray, "*batch 3"]:
    square = (folded**2).sum(-1, keepdims=True)
    return np.concatenate([2 * folded, 1 - square], -1) / (1 + square)


def _between(
    table: Float[np.ndarray, "H W 2"], at: Float[np.ndarray, "*batch 2"]
) -> Float[np.ndarray, "*batch 2"]:
    """Return values of a table between its nodes, at columns and rows; NaN outside of it."""
    last = np.array(table.shape[1::-1]) - 1
    with np.errstate(invalid="ignore"):
        inside = ((at >= 0) & (at <= last)).all(-1, keepdims=True)
        low = np.where(inside, np.minimum(at, last - 1), 0).astype(int)
    x, y = low[..., 0], low[..., 1]
    u, v = np.split(np.where(inside, at - low, np.nan), 2, -1)
    upper = (1 - u) * table[y, x] + u * table[y, x + 1]
    lower = (1 - u) * table[y + 1, x] + u * table[y + 1, x + 1]
    return np.asarray((1 - v) * upper + v * lower)
