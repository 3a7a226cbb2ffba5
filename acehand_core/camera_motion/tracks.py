"""Points followed from keyframe to frame by optical flow, and how well their place is known.

Each point is found again as the keyframe that it was found in (its host) shows it, not as the last
frame did, so that errors do not add up. Points on edges serve as well as corners: what is known of
their place is a matrix, from the gradients around them and the noise of the picture.
"""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
from jaxtyping import Bool, Float, UInt8

from acehand_core.camera_motion.lens import Lens

Grey = UInt8[np.ndarray, "H W"]
Mask = Bool[np.ndarray, "H W"]
Pixels = Float[np.ndarray, "N 2"]
Tensors = Float[np.ndarray, "N 2 2"]

#: Side of the patch that is followed, levels of the pyramid.
_SIDE, _LEVELS = 21, 3
_STOP = (cv2.TERM_CRITERIA_EPS | cv2.TERM_CRITERIA_COUNT, 15, 0.02)
#: Pixels about the points that are looked at.
_MARGIN = 60
#: A point that does not come back to where it began, in pixels across its edge, is lost.
_BACK_PX = 0.6
#: The best point of each cell of this size is taken.
_CELL = 20
#: Nothing is known better than this, in pixels.
_FLOOR_PX = 0.3
#: Patches differ by this much at least, in grey levels.
_LEAST_MISFIT = 0.5
#: Smoothing before anything else, in pixels, and what it leaves of white noise in a gradient:
#: 1 / (sqrt(8 pi) sigma^2).
_BLUR = 1.2
_GRADIENT_NOISE = 1 / (np.sqrt(8 * np.pi) * _BLUR**2)
#: Neighbours that share their noise then.
_CORRELATED = 4 * np.pi * _BLUR**2


def noise_of(grey: Grey) -> float:
    """Return the standard deviation of a picture's noise, at least 1, in grey levels."""
    some = grey[::8].astype(np.int16)
    second = some[:, 2:] - 2 * some[:, 1:-1] + some[:, :-2]
    return max(1.0, float(np.median(np.abs(second))) / (0.6745 * np.sqrt(6.0)))


def smooth(grey: Grey) -> Grey:
    """Return the picture as points are followed in it."""
    return np.asarray(cv2.GaussianBlur(grey, (0, 0), _BLUR), np.uint8)


def tensors(smoothed: Grey, pixels: Pixels, noise: float) -> Tensors:
    """Return the summed products of gradients in the patch around each pixel, less noise."""
    half = _SIDE // 2
    gx, gy = (cv2.Sobel(smoothed, cv2.CV_16S, *d, ksize=3) for d in ((1, 0), (0, 1)))
    height, width = smoothed.shape
    at = np.clip(np.round(pixels).astype(int), half, np.array([width, height]) - half - 1)
    reach = np.arange(-half, half + 1, 2)
    rows = at[:, 1, None, None] + reach[:, None]
    columns = at[:, 0, None, None] + reach
    shape = (len(pixels), len(reach) ** 2)
    slope = np.stack([gx[rows, columns].reshape(shape), gy[rows, columns].reshape(shape)], 1)
    slope = slope.astype(float) / 8
    # Every second pixel each way stands for four.
    out = 4 * slope @ np.swapaxes(slope, 1, 2)
    return out - _SIDE**2 * (_GRADIENT_NOISE * noise) ** 2 * np.eye(2)


def square_root_information(tensor: Tensors, misfit: Float[np.ndarray, "N"]) -> Tensors:
    """Return W with ``W.T @ W`` the information on a pixel's place (1 / pixels^2).

    ``misfit``: mean absolute difference of the patches, grey levels.
    """
    deviation = 1.25 * np.maximum(misfit, _LEAST_MISFIT)
    size, axes = np.linalg.eigh(tensor)
    information = np.maximum(size, 0.0) / (_CORRELATED * deviation**2)[:, None]
    information = 1 / (1 / np.maximum(information, 1e-9) + _FLOOR_PX**2)
    return np.asarray(np.sqrt(information)[:, :, None] * np.swapaxes(axes, 1, 2))


def follow(
    host: Grey, frame: Grey, points: Pixels, guess: Pixels, tensor: Tensors
) -> tuple[Pixels, Bool[np.ndarray, "N"], Float[np.ndarray, "N"]]:
    """Return where points of ``host`` are in ``frame``, near ``guess``, and which were found.

    Also returned: how much each patch differs from its host's, mean grey levels.
    """
    # Only what lies about the points is looked at: of most keyframes few are left.
    height, width = frame.shape
    low = np.floor(np.minimum(points, guess).min(0)).astype(int) - _MARGIN
    high = np.ceil(np.maximum(points, guess).max(0)).astype(int) + _MARGIN
    corner = np.clip(low, 0, (width, height)) // 4 * 4
    part = np.s_[corner[1] : max(high[1], 1), corner[0] : max(high[0], 1)]
    host, frame = host[part], frame[part]
    start, guessed = ((at - corner).astype(np.float32) for at in (points, guess))
    options: dict[str, Any] = {
        "winSize": (_SIDE, _SIDE), "criteria": _STOP, "flags": cv2.OPTFLOW_USE_INITIAL_FLOW,
        "minEigThreshold": 1e-6,
    }  # fmt: skip
    there, found, misfit = cv2.calcOpticalFlowPyrLK(
        host, frame, start, guessed.copy(), maxLevel=_LEVELS - 1, **options
    )
    # Back with the guess's own shift, so that a wrong point has no help to come home.
    home = start + (there - guessed)
    back, found_back, _ = cv2.calcOpticalFlowPyrLK(
        frame, host, there, home.copy(), maxLevel=1, **options
    )
    where = there + corner.astype(np.float32)
    ok = (where > 2).all(1) & (where < (width - 3, height - 3)).all(1)
    ok &= (found[:, 0] > 0) & (found_back[:, 0] > 0)
    off = (back - start).astype(float)
    across = np.einsum("ni,nij,nj->n", off, tensor, off)
    ok &= across < _BACK_PX**2 * np.trace(tensor, axis1=1, axis2=2)
    ok &= np.linalg.norm(off, axis=1) < 10 * _BACK_PX
    with np.errstate(invalid="ignore"):  # of points that were not found there is anything
        return where.astype(float), ok, misfit[:, 0].astype(float)


def new_points(
    smoothed: Grey, usable: Mask, taken: Pixels, count: int, noise: float
) -> Float[np.ndarray, "M 2"]:
    """Return up to ``count`` points worth following in the usable part, away from those taken."""
    gx, gy = (cv2.Sobel(smoothed, cv2.CV_32F, *d, ksize=3, scale=1 / 8) for d in ((1, 0), (0, 1)))
    a, b, c = (cv2.boxFilter(v, -1, (9, 9), normalize=False) for v in (gx * gx, gx * gy, gy * gy))
    # Twice the eigenvalues; edges count, but ten corners go before ten edges.
    middle, apart = a + c, np.sqrt((a - c) ** 2 + 4 * b * b)
    score = (middle - apart) + 0.05 * (middle + apart)
    free = cv2.erode(usable.astype(np.uint8), np.ones((9, 9), np.uint8), borderValue=0)
    edge = 6
    free[:edge], free[-edge:], free[:, :edge], free[:, -edge:] = 0, 0, 0, 0
    for x, y in np.round(taken).astype(int):
        cv2.circle(free, (int(x), int(y)), _CELL * 2 // 3, 0, -1)
    score[free == 0] = 0

    rows, columns = (size // _CELL for size in score.shape)
    if not rows or not columns:
        return np.zeros((0, 2))
    squares = score[: rows * _CELL, : columns * _CELL].reshape(rows, _CELL, columns, _CELL)
    cells = squares.transpose(0, 2, 1, 3).reshape(rows * columns, -1)
    best = cells.argmax(1)
    height = cells[np.arange(len(cells)), best]
    least = 2 * 81 * (_GRADIENT_NOISE * noise) ** 2
    order = np.argsort(-height)[:count]
    order = order[height[order] > least]
    y = order // columns * _CELL + best[order] // _CELL
    x = order % columns * _CELL + best[order] % _CELL
    return np.stack([x, y], axis=-1).astype(float)


def pixel_per_turn(camera: Lens, bearings: np.ndarray, across: np.ndarray) -> Tensors:
    """Return how a pixel moves as its bearing does, along two unit vectors across it."""
    step = 1e-3
    here = camera.project(bearings)
    moved = [camera.project(bearings + step * across[:, i]) for i in (0, 1)]
    return np.stack([(there - here) / step for there in moved], axis=-1)
