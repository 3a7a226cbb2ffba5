"""A focal length from straight lines: the one with which their directions stand at right angles.

Edges of tables, shelves, tiles and boxes mostly have three directions that are square to each
other. For every focal length and picture the three directions are sought that most lines point
to; a wrong focal length bends the corner, and fewer agree.
"""

from __future__ import annotations

import cv2
import numpy as np
from jaxtyping import Float

from acehand_core.camera.structure import Lens, straightened
from acehand_core.camera.tracks import Gray
from acehand_core.geometry import rotations

#: End points x0 y0 x1 y1 of segments, in pixels.
Segments = Float[np.ndarray, "L 4"]
#: The shortest segment in widths of the picture, and how many count in a picture.
_SHORTEST, _MOST = 0.04, 100
#: How far the ends of a segment are off a line to its vanishing point; the share without one.
_NOISE_PX, _STRAY = 0.8, 0.4
_PAIRS, _THIRDS, _ROUNDS = 80, 4, 6


def segments_in(picture: Gray) -> Segments:
    """Return the longest straight segments of a picture."""
    found = cv2.createLineSegmentDetector(cv2.LSD_REFINE_STD).detect(picture)[0]
    if found is None:
        return np.zeros((0, 4))
    segments = found.reshape(-1, 4).astype(float)  # OpenCV 4 has one more axis
    length = np.hypot(segments[:, 2] - segments[:, 0], segments[:, 3] - segments[:, 1])
    order = np.argsort(-length)[:_MOST]
    return segments[order[length[order] >= _SHORTEST * picture.shape[1]]]


def agreement(
    segments: Segments, focals: np.ndarray, rng: np.random.Generator, lens: Lens = "pinhole"
) -> tuple[Float[np.ndarray, "F"], Float[np.ndarray, "F 3 3"]]:
    """Return, of every focal length, the log-likelihood of the segments, and their directions.

    Args:
        segments: (L, 4), relative to the principal point.

    Directions are rows of a rotation, in the camera's frame.
    """
    likely, corners = np.full(len(focals), -np.inf), np.zeros((len(focals), 3, 3))
    ways = (range(len(focals)), range(len(focals) - 2, -1, -1))
    for number, way in enumerate(ways):
        for at in way:
            # Of a lens that bends lines a segment is a chord: its ends lie on the straight line.
            lines = _Lines(
                straightened(segments.reshape(-1, 2, 2), focals[at], lens).reshape(-1, 4)
            )
            tried = [corners[at - 1 if number == 0 else at + 1]] if at != way[0] or number else []
            if number == 0:
                tried.append(lines.guess(focals[at], rng))
            for corner in tried:
                corner, value = lines.refined(corner, focals[at])
                if value > likely[at]:
                    likely[at], corners[at] = value, corner
    return likely, corners


class _Lines:
    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self._middle = (segments[:, :2] + segments[:, 2:]) / 2
        self._half = (segments[:, 2:] - segments[:, :2]) / 2
        self._length = 2 * np.linalg.norm(self._half, axis=1)
        # Without a direction the end of a segment may be anywhere around its middle.
        self._stray = _STRAY * 2 / (np.pi * self._length)

    def guess(self, focal: float, rng: np.random.Generator) -> np.ndarray:
        """Return the likeliest of corners through two lines that meet and a third (3, 3)."""
        count, chance = len(self._segments), self._length / self._length.sum()
        picks = np.stack([rng.choice(count, _PAIRS * _THIRDS, p=chance) for _ in range(3)])
        picks[:2] = np.repeat(picks[:2, :_PAIRS], _THIRDS, axis=1)
        ones = np.ones((count, 1))
        start = np.concatenate([self._segments[:, :2] / focal, ones], axis=1)
        stop = np.concatenate([self._segments[:, 2:] / focal, ones], axis=1)
        normal = np.cross(start, stop)  # of the plane through the camera: its directions lie in it
        first = np.cross(normal[picks[0]], normal[picks[1]])
        second = np.cross(first, normal[picks[2]])
        sizes = np.linalg.norm(first, axis=1), np.linalg.norm(second, axis=1)
        good = (sizes[0] > 1e-9) & (sizes[1] > 1e-9)
        first, second = first[good] / sizes[0][good, None], second[good] / sizes[1][good, None]
        corners = np.stack([first, second, np.cross(first, second)], axis=1)
        values = self._likelihood(self._off(corners, focal)).sum(axis=-1)
        return corners[values.argmax()] if len(corners) else np.eye(3)

    def refined(self, corner: np.ndarray, focal: float) -> tuple[np.ndarray, float]:
        """Return a corner turned to where the lines are likeliest, and their log-likelihood."""
        value = float(self._likelihood(self._off(corner[None], focal)).sum())
        damping = 1e-2
        for _ in range(_ROUNDS):
            off = self._off(corner[None], focal)[0]  # (3, L)
            nearest = np.abs(off).argmin(axis=0)
            lines = np.arange(len(nearest))
            residual = off[nearest, lines]
            inside = np.exp(-0.5 * (residual / _NOISE_PX) ** 2) / (_NOISE_PX * np.sqrt(2 * np.pi))
            weight = (1 - _STRAY) * inside / ((1 - _STRAY) * inside + self._stray)
            turned = corner @ rotations.exp(1e-5 * np.eye(3)).swapaxes(-1, -2)
            J = (self._off(turned, focal)[:, nearest, lines] - residual) / 1e-5  # (3, L)
            H = (J * weight) @ J.T
            H += damping * np.diag(np.diag(H)) + 1e-9 * np.eye(3)
            step = rotations.exp(-np.linalg.solve(H, (J * weight) @ residual))
            new = corner @ step.T
            new_value = float(self._likelihood(self._off(new[None], focal)).sum())
            if new_value <= value:
                damping *= 10
                continue
            gain, corner, value, damping = new_value - value, new, new_value, damping / 5
            if gain < 1e-3:
                break
        return corner, value

    def _off(self, corners: np.ndarray, focal: float) -> Float[np.ndarray, "H 3 L"]:
        """Return how far each segment's end is, in pixels, off the line to each vanishing point."""
        vanishing = corners * (focal, focal, 1.0)
        toward = vanishing[:, :, None, :2] - vanishing[:, :, None, 2:] * self._middle
        cross = toward[..., 0] * self._half[:, 1] - toward[..., 1] * self._half[:, 0]
        # The sign of a direction is free; this way it does not change as the corner turns.
        return cross / np.maximum(np.linalg.norm(toward, axis=-1), 1e-9)

    def _likelihood(self, off: Float[np.ndarray, "H 3 L"]) -> Float[np.ndarray, "H L"]:
        near = np.abs(off).min(axis=1)
        inside = np.exp(-0.5 * (near / _NOISE_PX) ** 2) / (_NOISE_PX * np.sqrt(2 * np.pi))
        return np.log((1 - _STRAY) * inside / 3 + self._stray) - np.log(self._stray)
