"""Pictures to check a camera by eye: before and after undistortion, straight lines."""

from __future__ import annotations

import math

import cv2
import numpy as np
from jaxtyping import Float

from acehand_core.drawing.overlay import header, shrunk, subpixels
from acehand_core.geometry.cameras import Camera
from acehand_core.recordings.cameras import undistortion_maps
from acehand_core.types import ImageRgb, Picture

_DARK, _LINE, _AXIS = (24, 26, 30), (210, 214, 220), (240, 140, 40)
#: Squares of the grid across the undistorted picture.
_SQUARES = 16
#: Largest angle of the grid to the optical axis; further out its lines crowd together.
_EDGE = math.radians(72)
_MAX_WIDTH = 960
#: Colours of three orthogonal directions; segments within 2 degrees of one get it.
_DIRECTIONS = ((230, 60, 60), (60, 200, 90), (70, 130, 250))
_PARALLEL = math.sin(math.radians(2))


def before_and_after(camera: Camera, image: ImageRgb | None) -> Picture:
    """Return a frame of ``camera`` (None: a grid of straight lines) next to it undistorted."""
    before = grid_seen_by(camera) if image is None else image
    after = before
    if camera.model != "pinhole":
        after = cv2.remap(
            before, *undistortion_maps(camera, camera.whole_view()), interpolation=cv2.INTER_LINEAR
        )

    width = min(_MAX_WIDTH, camera.width)
    labels = [f"before: {camera.model}", "after: undistorted"]
    pictures = np.hstack([shrunk(before, width), shrunk(after, width)])
    return np.vstack([header(labels, width), pictures])


def grid_seen_by(camera: Camera) -> ImageRgb:
    """Return a plane of squares across the optical axis as a camera sees it."""
    image = np.full((camera.height, camera.width, 3), _DARK, np.uint8)
    thick = max(1, round(camera.width / 500))
    step = camera.width / camera.fx / _SQUARES
    lines = np.arange(-2 * _SQUARES, 2 * _SQUARES + 1)
    along = np.tan(np.linspace(-_EDGE, _EDGE, 721))

    for number in sorted(lines, key=lambda line: line == 0):
        across = np.full_like(along, number * step)
        colour = _LINE if number else _AXIS
        for x, y in ((along, across), (across, along)):
            pixels = camera.project(np.stack([x, y, np.ones_like(x)], axis=-1))
            seen = np.isfinite(pixels).all(axis=-1) & (np.hypot(x, y) <= math.tan(_EDGE))
            for run in np.split(np.arange(len(x)), np.flatnonzero(np.diff(seen)) + 1):
                if seen[run[0]]:
                    points = [subpixels(pixels[run])]
                    cv2.polylines(image, points, False, colour, thick, cv2.LINE_AA, 4)
    return image


def lines_in(
    image: ImageRgb,
    segments: Float[np.ndarray, "L 4"],
    camera: Camera | None,
    directions: Float[np.ndarray, "3 3"] | None,
) -> Picture:
    """Return a picture with its straight segments (x0 y0 x1 y1, px) coloured by direction.

    ``directions`` are rows in the frame of ``camera``; without them, and in other directions,
    segments are grey.
    """
    drawn = image.copy()
    thick = max(1, round(image.shape[1] / 400))
    for segment in segments:
        colour = _LINE
        if camera is not None and directions is not None:
            colour = _colour_of(segment, camera, directions)
        start, stop = (subpixels(segment[None, at : at + 2])[0] for at in (0, 2))
        cv2.line(drawn, start.tolist(), stop.tolist(), colour, thick, cv2.LINE_AA, 4)

    width = min(_MAX_WIDTH, image.shape[1])
    known = camera is not None and directions is not None
    label = "lines of one colour are parallel" if known else "straight lines"
    return np.vstack([header([label], width), shrunk(drawn, width)])


def _colour_of(
    segment: Float[np.ndarray, "4"], camera: Camera, directions: Float[np.ndarray, "3 3"]
) -> tuple[int, int, int]:
    middle, along = (segment[:2] + segment[2:]) / 2, segment[2:] - segment[:2]
    vanishing = directions @ camera.K.T
    toward = vanishing[:, :2] - vanishing[:, 2:] * middle
    cross = toward[:, 0] * along[1] - toward[:, 1] * along[0]
    sizes = np.linalg.norm(toward, axis=1) * np.linalg.norm(along)
    off = np.abs(cross) / np.maximum(sizes, 1e-9)
    nearest = int(off.argmin())
    return _DIRECTIONS[nearest] if off[nearest] < _PARALLEL else _LINE
