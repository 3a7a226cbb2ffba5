"""Which triangle of a mesh is seen in each pixel, for all triangles at once in NumPy.

Hand meshes have thousands of triangles of a few pixels each, so a call per triangle costs more
than its pixels do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float32, Int, Int32

from acehand_core.types import Faces

#: Corners are moved no farther outside of the picture than this (px).
_REACH = 8000.0


@dataclass(frozen=True, slots=True, eq=False)
class SeenMesh:
    """The M triangles that face the camera, from the farthest to the nearest, and where they are.

    Attributes:
        corners: of each triangle, in the camera frame, metres.
        depths: of their middles along the axis, metres.
        left, top: of the part of the picture that the mesh covers.
        places: row of ``corners`` seen in each pixel of that part, M where there is none.
    """

    corners: Float32[np.ndarray, "M 3 3"]
    depths: Float32[np.ndarray, "M"]
    left: int
    top: int
    places: Int32[np.ndarray, "h w"]

    @property
    def part(self) -> tuple[slice, slice]:
        """Rows and columns of the picture that ``places`` are of."""
        height, width = self.places.shape
        return slice(self.top, self.top + height), slice(self.left, self.left + width)

    @property
    def normals(self) -> Float32[np.ndarray, "M 3"]:
        """Outward unit vectors of the triangles; 0 where one has no area."""
        first, second = (self.corners[:, k] - self.corners[:, 0] for k in (1, 2))
        # numpy.cross takes four times as long.
        one, two = first[:, [1, 2, 0]], second[:, [2, 0, 1]]
        normals = one * two - first[:, [2, 0, 1]] * second[:, [1, 2, 0]]
        length = np.sqrt(np.einsum("mi,mi->m", normals, normals))
        return normals / np.maximum(length, 1e-12)[:, None]


def seen_mesh(
    vertices: Float[np.ndarray, "V 3"],
    pixels: Float[np.ndarray, "V 2"],
    faces: Faces,
    width: int,
    height: int,
) -> SeenMesh:
    """Return what a picture shows of a closed mesh.

    Args:
        vertices: in the camera frame, metres.
        pixels: where they are seen; a triangle with a corner that is not finite is left out.
        faces: triangles, counter-clockwise seen from outside.
        width, height: of the picture.
    """
    places = np.clip(pixels, -_REACH, _REACH)
    x, y = np.ascontiguousarray(places.T)
    a, b, c = faces.T
    with np.errstate(invalid="ignore"):
        area = (x[b] - x[a]) * (y[c] - y[a]) - (y[b] - y[a]) * (x[c] - x[a])
        facing = faces[area < 0]  # the picture's y axis points down

    points = vertices.astype(np.float32)
    depths = points[:, 2][facing].sum(axis=1) / 3
    order = np.argsort(-depths, kind="stable")
    facing, depths = facing[order], depths[order]
    corners = points[facing]
    if not len(facing):
        return SeenMesh(corners, depths, 0, 0, np.zeros((0, 0), np.int32))

    x, y = x[facing], y[facing]
    left, right = (int(np.clip(edge, 0, width)) for edge in (np.floor(x.min()), x.max() + 1))
    top, bottom = (int(np.clip(edge, 0, height)) for edge in (np.floor(y.min()), y.max() + 1))
    return SeenMesh(
        corners, depths, left, top, _filled(x - left, y - top, right - left, bottom - top)
    )


def _filled(
    x: Float[np.ndarray, "M 3"], y: Float[np.ndarray, "M 3"], width: int, height: int
) -> Int32[np.ndarray, "h w"]:
    """Return the last triangle over each pixel's centre, M where there is none.

    Centres on an edge belong to both of its triangles, so that there are no holes between them.
    """
    order = np.argsort(y, axis=1)
    x, y = (np.take_along_axis(values, order, axis=1).T for values in (x, y))

    # Edges from the upper to the lower corner, as x at row 0 and change per row. Two triangles
    # that share one find the same numbers.
    upper, lower = [0, 1, 0], [1, 2, 2]
    rise = y[lower] - y[upper]
    slope = np.divide(x[lower] - x[upper], rise, out=np.zeros_like(rise), where=rise > 0)
    start = x[upper] - y[upper] * slope

    # The middle corner cuts a triangle into two parts; in each of them a row of pixels reaches
    # from the long edge (the last) to one of the short ones. All parts of all triangles in a row:
    bends_right = x[1] > start[2] + slope[2] * y[1]
    edges = np.stack([start, slope])
    short, long = edges[:, :2], np.broadcast_to(edges[:, 2:], edges[:, :2].shape)
    lefts, rights = (
        np.where(side, long, short).transpose(0, 2, 1).reshape(2, -1)
        for side in (bends_right, ~bends_right)
    )
    rows = np.clip([np.ceil(y[0]), np.ceil(y[1]), np.floor(y[2]) + 1], 0, height).astype(np.int32)
    rows[1] = np.minimum(rows[1], rows[2])
    first, count = rows[:2].T.ravel(), np.diff(rows, axis=0).T.ravel()

    part, row = _runs(first, count)
    begin = np.ceil(lefts[0, part] + row * lefts[1, part])
    end = np.floor(rights[0, part] + row * rights[1, part])
    begin, end = np.clip([begin, end + 1], 0, width).astype(np.int32)
    line, pixel = _runs(row * width + begin, np.maximum(end - begin, 0))

    filled = np.full(height * width, x.shape[1], np.int32)
    filled[pixel] = (part // 2)[line]  # of several the last one stays
    return filled.reshape(height, width)


def _runs(
    first: Int[np.ndarray, "N"], count: Int[np.ndarray, "N"]
) -> tuple[Int[np.ndarray, "K"], Int[np.ndarray, "K"]]:
    """Return ``count`` successive numbers from each ``first`` on, and of which run each is."""
    run = np.repeat(np.arange(len(first), dtype=np.int32), count)
    ends = np.cumsum(count, dtype=np.int32)
    return run, np.arange(len(run), dtype=np.int32) + (first - (ends - count)).astype(np.int32)[run]
