"""Mesh and skeleton of hands over a picture, captions and contact sheets, drawn on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from jaxtyping import Float, Float32, Int, Int32

from acehand_core.atomic import atomic_path
from acehand_core.errors import OutputError
from acehand_core.hand.shape import HandModel
from acehand_core.hand.skeleton import BONES, TIPS, WRIST
from acehand_core.motion import HandMotion
from acehand_core.types import SIDES, Faces, ImageRgb, Picture

# A rasteriser for all triangles at once: hand meshes have thousands of triangles of a few pixels
# each, so a call per triangle costs more than its pixels.

#: Corners are clipped to this distance outside of the picture (px).
_REACH = 8000.0

#: RGB, distinct to most colour-blind eyes.
HAND_COLOURS = {"left": (86, 156, 233), "right": (236, 140, 54)}
FINGER_COLOURS = ((230, 85, 85), (240, 175, 60), (110, 200, 90), (80, 170, 230), (180, 110, 220))
_MESH_OPACITY = 0.55
_LIGHT = (np.array([0.3, -0.5, -0.8]) / np.linalg.norm([0.3, -0.5, -0.8])).astype(np.float32)
_SHADES = 32
_TEXT = (245, 245, 245)
_PANEL = (24, 26, 30)
_HEADER = 30
#: Dashes of the bones of a doubtful hand.
DASHES = ((0.0, 0.2), (0.4, 0.6), (0.8, 1.0))
#: Legend of pictures with standard deviations.
LEGEND = "circle: +-1 sd   +-mm: fingertips across/along sight   dashed: doubtful   pale: filled in"


@dataclass(frozen=True, slots=True, eq=False)
class SeenMesh:
    """The M triangles that face the camera, from far to near, and their pixels.

    Attributes:
        corners: of each triangle, in the camera frame, metres.
        depths: of their centres along the axis, metres.
        left, top: of the part of the picture that the mesh covers.
        places: index of the triangle in each pixel of that part, M for none.
    """

    corners: Float32[np.ndarray, "M 3 3"]
    depths: Float32[np.ndarray, "M"]
    left: int
    top: int
    places: Int32[np.ndarray, "h w"]

    @property
    def part(self) -> tuple[slice, slice]:
        """Rows and columns of ``places`` in the picture."""
        height, width = self.places.shape
        return slice(self.top, self.top + height), slice(self.left, self.left + width)

    @property
    def normals(self) -> Float32[np.ndarray, "M 3"]:
        """Outward unit vectors of the triangles; 0 for one without area."""
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
    """Return the visible triangles of a closed mesh.

    Args:
        vertices: in the camera frame, metres.
        pixels: of the vertices; triangles with a corner that is not finite are left out.
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
    """Return the last triangle over each pixel's centre, M for none.

    Centres on an edge belong to both of its triangles, so there are no holes.
    """
    order = np.argsort(y, axis=1)
    x, y = (np.take_along_axis(values, order, axis=1).T for values in (x, y))

    # Edges from the upper to the lower corner, as x at row 0 and slope; the same numbers for both
    # triangles of an edge.
    upper, lower = [0, 1, 0], [1, 2, 2]
    rise = y[lower] - y[upper]
    slope = np.divide(x[lower] - x[upper], rise, out=np.zeros_like(rise), where=rise > 0)
    start = x[upper] - y[upper] * slope

    # The middle corner cuts a triangle into two parts; in each, a row of pixels reaches from the
    # long edge (the last) to a short one. All parts of all triangles in a row:
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
    """Return the run of each number, and ``count`` successive numbers from each ``first`` on."""
    run = np.repeat(np.arange(len(first), dtype=np.int32), count)
    ends = np.cumsum(count, dtype=np.int32)
    return run, np.arange(len(run), dtype=np.int32) + (first - (ends - count)).astype(np.int32)[run]


@dataclass(frozen=True, slots=True)
class Painter:
    """Painter of one recording's hands; ``model`` None: without mesh.

    A doubtful hand has only dashed bones. Wrist and fingertips of others have a circle with the
    standard deviation across the line of sight as radius, if known.
    """

    motion: HandMotion
    model: HandModel | None

    def __call__(self, image: ImageRgb, frame: int) -> None:
        """Draw mesh and skeleton of both hands into an image."""
        slots = [s for s in (0, 1) if self.motion.known[frame, s]]
        # The nearer hand covers the farther one.
        for slot in sorted(slots, key=lambda s: -self.motion.joints_camera[frame, s, 0, 2]):
            self._mesh(image, frame, slot)
        for slot in slots:
            self._skeleton(image, frame, slot)

    def _mesh(self, image: ImageRgb, frame: int, slot: int) -> None:
        motion, camera = self.motion, self.motion.camera
        if self.model is None or camera is None or not motion.placed or self._doubtful(frame, slot):
            return
        vertices = hand_vertices(self.model, motion, frame, slot)
        size, faces = (image.shape[1], image.shape[0]), self.model.faces(SIDES[slot])
        mesh = seen_mesh(vertices, camera.project(vertices), faces, *size)
        opacity = _MESH_OPACITY * (1.0 if motion.observed[frame, slot] else 0.5)
        if mesh.places.size:
            below = image[mesh.part]
            layer = lit(mesh, HAND_COLOURS[SIDES[slot]])
            mixed = cv2.addWeighted(layer, opacity, below, 1 - opacity, 0)
            cv2.copyTo(mixed, (mesh.places < len(mesh.depths)).astype(np.uint8), below)

    def _skeleton(self, image: ImageRgb, frame: int, slot: int) -> None:
        motion, dashed = self.motion, self._doubtful(frame, slot)
        if motion.camera is None or not motion.placed:
            draw_skeleton(image, motion.joints_image[frame, slot], dashed)
            return
        joints = motion.joints_camera[frame, slot]
        pixels = motion.camera.project(joints)
        draw_skeleton(image, pixels, dashed)
        if motion.joint_sigma is not None and not dashed:
            per_radian = (motion.camera.fx + motion.camera.fy) / 2
            across = motion.joint_sigma[frame, slot, :, 0] / np.linalg.norm(joints, axis=-1)
            draw_circles(image, pixels, per_radian * across)

    def _doubtful(self, frame: int, slot: int) -> bool:
        motion = self.motion
        return bool(motion.observed[frame, slot] and motion.quality[frame, slot] == 0)


def hand_vertices(
    model: HandModel, motion: HandMotion, frame: int, slot: int
) -> Float[np.ndarray, "V 3"]:
    """Return the mesh of one hand in one frame, in the camera frame."""
    pose = motion.global_orient[frame, slot], motion.hand_pose[frame, slot], motion.betas[slot]
    return model.vertices(SIDES[slot], *pose) + motion.translation[frame, slot]


def lit(mesh: SeenMesh, colour: tuple[int, int, int]) -> ImageRgb:
    """Return a lit mesh in the part that it covers, on black."""
    light = 0.45 + 0.55 * np.clip(mesh.normals @ _LIGHT, 0, 1)
    shade = np.clip(light * _SHADES, 0, _SHADES).astype(np.uint8)
    palette = np.zeros((256, 1, 3), np.uint8)
    palette[: _SHADES + 1, 0] = np.arange(_SHADES + 1)[:, None] * colour // _SHADES
    return cv2.applyColorMap(np.append(shade, np.uint8(255))[mesh.places], palette)


def subpixels(pixels: Float[np.ndarray, "N 2"]) -> Int[np.ndarray, "N 2"]:
    """Return points for OpenCV with four fractional bits, clipped; 0 if not finite."""
    return (np.clip(np.nan_to_num(pixels), -8000, 8000) * 16).round().astype(np.int32)


def draw_skeleton(image: ImageRgb, pixels: Float[np.ndarray, "21 2"], dashed: bool = False) -> None:
    """Draw the known bones, one colour per finger; ``dashed`` with hollow joints."""
    width = max(1, round(max(image.shape[:2]) / 640))
    finite = np.isfinite(pixels).all(1)
    bones = [bone for bone in BONES if finite[list(bone)].all()]
    start, end = (pixels[[bone[i] for bone in bones]] for i in (0, 1))
    for dash in DASHES if dashed else ((0.0, 1.0),):
        ends = (subpixels((1 - share) * start + share * end).tolist() for share in dash)
        for first, last, (_, child) in zip(*ends, bones, strict=True):
            cv2.line(image, first, last, _colour(child), width, cv2.LINE_AA, 4)
    points, filling = subpixels(pixels).tolist(), 1 if dashed else -1
    for joint in np.flatnonzero(finite).tolist():
        size = 16 * (width + 1)
        cv2.circle(image, points[joint], size, _colour(joint), filling, cv2.LINE_AA, 4)


def draw_circles(
    image: ImageRgb, pixels: Float[np.ndarray, "21 2"], radius: Float[np.ndarray, "21"]
) -> None:
    """Draw circles (radius in pixels) around wrist and fingertips of a hand."""
    points, largest = subpixels(pixels).tolist(), max(image.shape[:2])
    for joint in (WRIST, *TIPS):
        if np.isfinite(pixels[joint]).all() and 0 < radius[joint] < largest:
            size = round(16 * radius[joint])
            cv2.circle(image, points[joint], size, _colour(joint), 1, cv2.LINE_AA, 4)


def _colour(joint: int) -> tuple[int, int, int]:
    return FINGER_COLOURS[(joint - 1) // 4] if joint else _TEXT


def put_caption(image: ImageRgb, text: str, below: bool = False) -> None:
    """Write a line into the upper left corner of a picture, or a smaller one ``below``."""
    size = max(0.4, image.shape[0] / 1100)
    left, bottom = round(12 * size), round(32 * size)
    if below:
        size, bottom = 0.8 * size, image.shape[0] - round(12 * size)
    for shift, colour in ((1, _PANEL), (0, _TEXT)):  # a shadow, readable on any picture
        place = (left + shift, bottom + shift)
        cv2.putText(image, text, place, cv2.FONT_HERSHEY_SIMPLEX, size, colour, 1, cv2.LINE_AA)


def header(labels: Sequence[str], width: int, gap: int = 0) -> Picture:
    """Return a line of labels, centred over columns of ``width`` pixels."""
    band = np.full((_HEADER, len(labels) * (width + gap) - gap, 3), _PANEL, np.uint8)
    for index, label in enumerate(labels):
        (needed, _), _ = cv2.getTextSize(label, cv2.FONT_HERSHEY_SIMPLEX, 0.6, 1)
        size = 0.6 * min(1.0, 0.94 * width / max(needed, 1))
        left = round(index * (width + gap) + (width - needed * size / 0.6) / 2)
        cv2.putText(band, label, (left, 20), cv2.FONT_HERSHEY_SIMPLEX, size, _TEXT, 1, cv2.LINE_AA)
    return band


def contact_sheet(pictures: Sequence[ImageRgb], columns: int, title: str) -> Picture:
    """Return pictures of one size in a grid below a title."""
    height, width = pictures[0].shape[:2]
    rows = -(-len(pictures) // columns)
    lines = title.splitlines()
    gap, head = 6, 16 + 24 * len(lines)
    sheet = np.empty((head + rows * (height + gap), columns * (width + gap) + gap, 3), np.uint8)
    sheet[:] = _PANEL
    for row, line in enumerate(lines):
        place = (gap + 4, 27 + 24 * row)
        cv2.putText(sheet, line, place, cv2.FONT_HERSHEY_SIMPLEX, 0.6, _TEXT, 1, cv2.LINE_AA)
    for index, picture in enumerate(pictures):
        row, column = divmod(index, columns)
        top, left = head + row * (height + gap), gap + column * (width + gap)
        sheet[top : top + height, left : left + width] = picture
    return sheet


def shrunk(picture: ImageRgb, width: int) -> Picture:
    """Return a picture shrunk to a width."""
    size = (width, round(picture.shape[0] * width / picture.shape[1]))
    return cv2.resize(picture, size, interpolation=cv2.INTER_AREA)


def write_png(image: ImageRgb, path: Path) -> None:
    """Write a PNG atomically. Raises OutputError."""
    done, data = cv2.imencode(".png", cv2.cvtColor(image, cv2.COLOR_RGB2BGR))
    if not done:
        raise OutputError(f"{path}: the picture could not be encoded.")
    with atomic_path(path, overwrite=True) as partial:
        partial.write_bytes(data.tobytes())
