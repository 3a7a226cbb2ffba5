"""Layers with depth, and cameras to look at hands with: under the source camera or from outside.

A layer is what one thing looks like by itself; ``stack`` puts layers over a picture so that in
every pixel the nearer one covers the farther.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from jaxtyping import Float, Float32, Int, UInt8

from acehand_core.drawing.overlay import paint_mesh
from acehand_core.motion import Camera
from acehand_core.types import ImageRgb

DepthImage = Float32[np.ndarray, "H W"]
Line = Float[np.ndarray, "_ 3"]

#: A layer is hidden when the scene is nearer than it by this much.
_BEHIND_M = 0.01
_FIELD_OF_VIEW = 35.0
_FRUSTUM_M = 0.08


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """Straight alpha, and metres along the viewing axis (infinite where nothing is)."""

    rgba: UInt8[np.ndarray, "H W 4"]
    depth: DepthImage

    def hidden_by(self, scene: DepthImage) -> Layer:
        """Return the layer without what lies behind a scene; 0 or NaN: the depth is not known."""
        behind = (scene > 0) & (self.depth > scene + _BEHIND_M)
        rgba = self.rgba.copy()
        rgba[behind, 3] = 0
        return Layer(rgba, np.where(behind, np.float32(np.inf), self.depth))


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """A pinhole camera somewhere in the frame of the hands."""

    camera: Camera
    T_view_frame: Float[np.ndarray, "4 4"]

    def pixels(self, points: Float[np.ndarray, "*N 3"]) -> Float[np.ndarray, "*N 2"]:
        """Return where points of the frame are seen; NaN behind the camera."""
        return self.camera.project(moved(self.T_view_frame, points))


def mesh_layer(
    view: View,
    vertices: Float[np.ndarray, "V 3"],
    faces: Int[np.ndarray, "F 3"],
    colour: tuple[int, int, int],
    opacity: float = 1.0,
) -> Layer:
    """Return a lit mesh, vertices in the frame of the hands."""
    seen = moved(view.T_view_frame, vertices)
    pixels = view.camera.project(seen)
    size = (view.camera.height, view.camera.width)
    rgba = np.zeros((*size, 4), np.uint8)
    depth = np.full(size, np.inf, np.float32)
    colours = np.zeros((*size, 3), np.uint8)
    paint_mesh(colours, seen, pixels, faces, colour)
    _paint_depth(depth, seen, pixels, faces)
    rgba[..., :3] = colours
    rgba[..., 3] = np.where(np.isfinite(depth), round(255 * opacity), 0)
    return Layer(rgba, depth)


def _paint_depth(
    depth: np.ndarray, seen: np.ndarray, pixels: np.ndarray, faces: np.ndarray
) -> None:
    """Paint the mean depth of every triangle that faces the camera, far ones first."""
    corners = seen[faces]
    normals = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    shown = np.isfinite(pixels[faces]).all((1, 2)) & (np.sum(normals * corners[:, 0], axis=1) < 0)
    middle = corners[shown][..., 2].mean(1)
    points = (np.clip(pixels[faces[shown]].astype(float), -8000, 8000) * 16).round()
    triangles = points.astype(np.int32)
    for index in np.argsort(-middle):
        cv2.fillConvexPoly(depth, triangles[index], float(middle[index]), cv2.LINE_8, 4)


def stack(background: ImageRgb, layers: Sequence[Layer]) -> ImageRgb:
    """Return the layers over a picture, in every pixel from the farthest to the nearest."""
    if not layers:
        return background.copy()
    depths = np.stack([layer.depth for layer in layers])
    out = background.astype(np.float32)
    order = np.argsort(-depths, axis=0, kind="stable")
    colours = np.stack([layer.rgba for layer in layers])
    for place in order:
        top = np.take_along_axis(colours, place[None, ..., None], axis=0)[0]
        alpha = top[..., 3:].astype(np.float32) / 255
        out += alpha * (top[..., :3] - out)
    return np.clip(out + 0.5, 0, 255).astype(np.uint8)


def outside_view(
    points: Float[np.ndarray, "N 3"],
    forward: Float[np.ndarray, "3"],
    up: Float[np.ndarray, "3"],
    width: int,
    height: int,
) -> View:
    """Return a fixed third-person view that shows all points.

    The viewer stands to the right and above of somebody who looks along ``forward``, turned back
    to the points.
    """
    up = up / np.linalg.norm(up)
    forward = forward - (forward @ up) * up
    if np.linalg.norm(forward) < 1e-6:  # straight up or down: any side will do
        forward = np.roll(up, 1) - (np.roll(up, 1) @ up) * up
    forward = forward / np.linalg.norm(forward)
    right = np.cross(forward, up)
    looking = -(0.75 * right + 0.55 * up - 0.2 * forward)
    looking /= np.linalg.norm(looking)
    x = np.cross(looking, up)
    x /= np.linalg.norm(x)
    turn = np.stack([x, np.cross(looking, x), looking])
    camera = Camera.nominal(width, height, _FIELD_OF_VIEW)
    middle = (points.min(0) + points.max(0)) / 2
    seen = (points - middle) @ turn.T
    wide = np.abs(seen[:, :2]) * (camera.fx, camera.fy) / (0.46 * np.array([width, height]))
    distance = float((wide.max(axis=1) - seen[:, 2]).max())
    distance = max(distance, 0.3)
    pose = np.eye(4)
    pose[:3, :3], pose[:3, 3] = turn, np.array([0, 0, distance]) - turn @ middle

    return View(camera, pose)


def moved(
    transform: Float[np.ndarray, "4 4"], points: Float[np.ndarray, "*N 3"]
) -> Float[np.ndarray, "*N 3"]:
    """Return points in the target frame of one rigid transform."""
    return points @ transform[:3, :3].T + transform[:3, 3]


def draw_lines(
    image: ImageRgb, view: View, lines: Sequence[Line], colour: tuple[int, int, int]
) -> None:
    """Draw lines of the frame into a picture; parts behind the camera are left out."""
    width = max(1, round(max(image.shape[:2]) / 640))
    for line in lines:
        pixels = view.pixels(line)
        known = np.isfinite(pixels).all(1)
        points = (np.clip(np.nan_to_num(pixels), -8000, 8000) * 16).round().astype(int).tolist()
        for i in range(len(line) - 1):
            if known[i] and known[i + 1]:
                cv2.line(image, points[i], points[i + 1], colour, width, cv2.LINE_AA, 4)


def camera_lines(camera: Camera, T_frame_camera: Float[np.ndarray, "4 4"]) -> list[Line]:
    """Return the outline of a camera's pyramid."""
    plain = camera.pinhole_like()
    size = np.array([plain.width, plain.height])
    pixels = np.array([[0, 0], [1, 0], [1, 1], [0, 1], [0, 0]]) * size - 0.5
    rays = (pixels - [plain.cx, plain.cy]) / [plain.fx, plain.fy]
    far = np.concatenate([rays, np.ones((5, 1))], axis=1) * _FRUSTUM_M
    outline = moved(T_frame_camera, far)
    eye = T_frame_camera[:3, 3]
    return [outline, *(np.stack([eye, corner]) for corner in outline[:4])]


def ground_lines(
    points: Float[np.ndarray, "N 3"], up: Float[np.ndarray, "3"], spacing: float = 0.1
) -> list[Line]:
    """Return a grid below all points, across ``up``."""
    up = up / np.linalg.norm(up)
    across = np.cross(up, [1.0, 0.0, 0.0] if abs(up[0]) < 0.9 else [0.0, 1.0, 0.0])
    across /= np.linalg.norm(across)
    along = np.cross(up, across)
    frame = np.stack([across, along, up])
    local = points @ frame.T
    low, high = local.min(0) - 0.1, local.max(0) + 0.1
    level = low[2]
    xs = np.arange(np.floor(low[0] / spacing), np.ceil(high[0] / spacing) + 1) * spacing
    ys = np.arange(np.floor(low[1] / spacing), np.ceil(high[1] / spacing) + 1) * spacing
    lines = [np.array([[x, ys[0], level], [x, ys[-1], level]]) for x in xs]
    lines += [np.array([[xs[0], y, level], [xs[-1], y, level]]) for y in ys]
    return [line @ frame for line in lines]
