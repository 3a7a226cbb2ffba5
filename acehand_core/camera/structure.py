"""Focal length from a moving camera, and from straight lines.

Motion: robust bundle adjustment of keyframes and homogeneous points for each candidate (Triggs et
al., "Bundle Adjustment, a Modern Synthesis", 2000); the remaining misfit ranks the candidates.
"""

from __future__ import annotations

import copy
import itertools
from typing import Literal

import cv2
import numpy as np
from jaxtyping import Float

from acehand_core.camera.tracks import Gray, Tracks
from acehand_core.geometry import rotations

#: Distance from the image centre by the angle to the axis: tan(angle), or the angle.
Lens = Literal["pinhole", "equidistant"]
Homogeneous = Float[np.ndarray, "N 4"]
#: Steps for the first focal length, and for the others, which start from a neighbour's scene.
_FIRST, _NEXT = 60, 25
#: Factors of the noise before the first adjustment.
_AT_FIRST = (16.0, 6.0, 2.5)
#: Relative gain of a step that ends the adjustment.
_GAIN = 2e-5
#: Least depth of a point, in units of the initial depths.
_NEAR = 1e-3
#: Largest angle of a ray to the axis.
_WIDEST = np.radians(85)

#: End points x0 y0 x1 y1 of segments, in pixels.
Segments = Float[np.ndarray, "L 4"]
#: Least length of a segment as a share of the width of the picture, and largest number of segments.
_SHORTEST, _MOST = 0.04, 100
#: Standard deviation of a segment's end about the line to its vanishing point; share of outliers.
_NOISE_PX, _STRAY = 0.8, 0.4
_PAIRS, _THIRDS, _ROUNDS = 80, 4, 6


def profile(
    tracks: Tracks,
    focals: Float[np.ndarray, "F"],
    lens: Lens = "pinhole",
    noise_px: float = 0.5,
) -> Float[np.ndarray, "F"]:
    """Return each focal length's misfit: the sum over sightings of log(1 + (off / noise)^2).

    Args:
        tracks: (K, N, 2) pixels relative to the principal point, NaN for points out of view.
        focals: in pixels, ascending; ``noise_px``: standard deviation of a sighting.
    """
    middle = len(focals) // 2
    # From a large noise down: otherwise a scene that fits some tracks well is never left.
    start = _Scene(tracks, focals[middle], lens)
    for times in (*_AT_FIRST, 1.0):
        start.noise = times * noise_px
        start.adjust(focals[middle], _FIRST // 3 if times > 1 else _FIRST)

    misfits = np.full(len(focals), np.inf)
    misfits[middle] = start.adjust(focals[middle], _FIRST)
    # Outwards from the middle and back from the ends: the deeper of two minima counts.
    for way in (range(middle + 1, len(focals)), range(middle - 1, -1, -1)):
        scene = start.copy()
        for at in way:
            misfits[at] = scene.adjust(focals[at], _NEXT)
        for at in [*way[::-1][1:], middle]:
            misfits[at] = min(misfits[at], scene.adjust(focals[at], _NEXT))
    return misfits


class _Scene:
    """Poses of K keyframes and N points: camera = R point[:3] + point[3] t."""

    def __init__(self, tracks: Tracks, focal: float, lens: Lens) -> None:
        """Start from a camera that only turns, and points at depth 1 in their first keyframe."""
        self._seen, self._lens = np.isfinite(tracks[..., 0]), lens
        self._pixels = np.where(self._seen[..., None], tracks, 0.0)
        plane = straightened(tracks, focal, lens) / focal
        self._R, self._t = _turns(plane), np.zeros((len(tracks), 3))
        first = np.argmax(self._seen, axis=0)
        ahead = plane[first, np.arange(tracks.shape[1])]
        rays = np.concatenate([ahead, np.ones((len(ahead), 1))], axis=1)
        world = np.einsum("nji,nj->ni", self._R[first], rays)
        self._points: Homogeneous = np.concatenate([world, np.ones((len(world), 1))], axis=1)
        self._damping, self.noise = 1e-3, 1.0

    def copy(self) -> _Scene:
        scene = copy.copy(self)
        scene._damping = 1e-3
        return scene

    def adjust(self, focal: float, steps: int) -> float:
        """Adjust by up to ``steps`` Levenberg-Marquardt steps; return the misfit."""
        misfit = self._misfit(focal, self._R, self._t, self._points)
        self._damping = min(self._damping, 1e-2)
        for _ in range(steps):
            pose, point = self._step(focal)
            points = self._points + point
            points = points / np.linalg.norm(points[:, :3], axis=1, keepdims=True)
            new = rotations.exp(pose[:, :3]) @ self._R, self._t + pose[:, 3:], points
            new_misfit = self._misfit(focal, *new)
            if not new_misfit < misfit:
                self._damping *= 8
                if self._damping > 1e5:
                    break
                continue
            gain, misfit = misfit - new_misfit, new_misfit
            self._R, self._t, self._points = new
            self._damping = max(self._damping / 4, 1e-8)
            if gain < _GAIN * misfit:
                break
        return misfit

    def _misfit(self, focal: float, R: np.ndarray, t: np.ndarray, points: Homogeneous) -> float:
        off, _, _ = self._off(focal, R, t, points)
        return float(np.log1p((off**2).sum(axis=-1) / self.noise**2)[self._seen].sum())

    def _off(
        self, focal: float, R: np.ndarray, t: np.ndarray, points: Homogeneous
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return misfits in pixels (K, N, 2), points in the camera (K, N, 3), their depths."""
        camera = points[:, :3] @ R.swapaxes(1, 2) + points[:, 3:] * t[:, None]
        depth = np.maximum(camera[..., 2], _NEAR)
        plane = camera[..., :2] / depth[..., None]
        if self._lens == "equidistant":
            plane = plane * _shrink(plane)[0]
        return focal * plane - self._pixels, camera, depth

    def _step(self, focal: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the step of poses (K, 6: turn, shift) and points (N, 4), by Schur complement."""
        views, count = self._seen.shape
        off, camera, depth = self._off(focal, self._R, self._t, self._points)
        weight = self._seen / (1 + (off**2).sum(axis=-1) / self.noise**2) / self.noise**2

        J_camera = np.zeros((views, count, 2, 3))
        J_camera[..., 0, 0] = J_camera[..., 1, 1] = focal / depth
        J_camera[..., :2, 2] = -focal * camera[..., :2] / depth[..., None] ** 2
        if self._lens == "equidistant":
            plane = camera[..., :2] / depth[..., None]
            shrink, slope = _shrink(plane)
            bend = plane[..., :, None] * plane[..., None, :] * slope[..., None]
            J_camera = (shrink[..., None] * np.eye(2) + bend) @ J_camera

        far = self._points[:, 3]
        turned = camera - far[:, None] * self._t[:, None]
        J_pose = np.concatenate(
            [-J_camera @ rotations.skew(turned), J_camera * far[:, None, None]], axis=-1
        )
        pose_point = np.concatenate([self._R, self._t[..., None]], axis=-1)  # (K, 3, 4)
        J_point = J_camera @ pose_point[:, None]

        heavy = J_pose.swapaxes(-1, -2) * weight[..., None, None]
        U, g_pose = (heavy @ J_pose).sum(axis=1), (heavy @ off[..., None]).sum(axis=1)[..., 0]
        W = heavy @ J_point  # (K, N, 6, 4)
        heavy = J_point.swapaxes(-1, -2) * weight[..., None, None]
        V, g_point = (heavy @ J_point).sum(axis=0), (heavy @ off[..., None]).sum(axis=0)[..., 0]

        U += self._damping * (U * np.eye(6) + 1e-3 * np.eye(6))
        U[0] += 1e12 * np.eye(6)  # the first keyframe is the world
        size = np.trace(V, axis1=1, axis2=2)[:, None, None] + 1e-9
        V += self._damping * (V * np.eye(4)) + 1e-6 * size * np.eye(4)  # one of four is free
        V_inverse = np.linalg.inv(V)

        WV = W @ V_inverse
        rows = (6 * views, -1)
        S = -WV.transpose(0, 2, 1, 3).reshape(rows) @ W.transpose(0, 2, 1, 3).reshape(rows).T
        diagonal = S.reshape(views, 6, views, 6)
        diagonal[np.arange(views), :, np.arange(views)] += U
        right = (WV @ g_point[..., None]).sum(axis=1)[..., 0] - g_pose
        pose = np.linalg.solve(S, right.ravel()).reshape(views, 6)
        back = g_point + np.einsum("knij,ki->nj", W, pose)
        return pose, -(V_inverse @ back[..., None])[..., 0]


def straightened(pixels: np.ndarray, focal: float, lens: Lens) -> np.ndarray:
    """Return the pixels (..., 2), about the axis, of a pinhole with the same focal length."""
    if lens == "pinhole":
        return pixels
    angle = np.linalg.norm(pixels, axis=-1, keepdims=True) / focal
    angle = np.clip(angle, 1e-9, _WIDEST)
    return pixels * np.tan(angle) / angle


def _shrink(plane: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return atan(r) / r of points (..., 2) at radius r, and its derivative divided by r."""
    square = np.maximum((plane**2).sum(axis=-1, keepdims=True), 1e-12)
    radius = np.sqrt(square)
    shrink = np.arctan(radius) / radius
    # The series near the axis, where the difference cancels.
    slope = np.where(square < 1e-6, -2 / 3, (1 / (1 + square) - shrink) / square)
    return shrink, slope


def _turns(plane: Float[np.ndarray, "K N 2"]) -> Float[np.ndarray, "K 3 3"]:
    """Return rotations from the first keyframe into each that best align the rays, robustly."""
    rays = rotations.unit(np.concatenate([plane, np.ones((*plane.shape[:2], 1))], axis=2))
    R = [np.eye(3)]
    for before, after in itertools.pairwise(rays):
        both = np.isfinite(before[:, 0]) & np.isfinite(after[:, 0])
        a, b = before[both], after[both]
        weight, turn = np.ones(len(a)), np.eye(3)
        for _ in range(8 if len(a) else 0):
            u, _, vt = np.linalg.svd((b * weight[:, None]).T @ a)
            turn = u @ np.diag([1, 1, np.linalg.det(u @ vt)]) @ vt
            off = np.linalg.norm(b - a @ turn.T, axis=1)
            weight = 1 / (1 + (off / max(float(np.median(off)), 1e-5)) ** 2)
        R.append(turn @ R[-1])
    return np.stack(R)


# Straight lines: edges of furniture, tiles and boxes mostly have three perpendicular directions.
# For each focal length and picture the best three are sought; a wrong focal length distorts their
# right angles, and fewer lines agree.


def segments_in(picture: Gray) -> Segments:
    """Return the longest straight segments of a picture."""
    lines = cv2.createLineSegmentDetector(cv2.LSD_REFINE_STD).detect(picture)[0]
    if lines is None:
        return np.zeros((0, 4))
    segments = lines.reshape(-1, 4).astype(float)  # OpenCV 4 has one more axis
    length = np.hypot(segments[:, 2] - segments[:, 0], segments[:, 3] - segments[:, 1])
    order = np.argsort(-length)[:_MOST]
    return segments[order[length[order] >= _SHORTEST * picture.shape[1]]]


def agreement(
    segments: Segments, focals: np.ndarray, rng: np.random.Generator, lens: Lens = "pinhole"
) -> tuple[Float[np.ndarray, "F"], Float[np.ndarray, "F 3 3"]]:
    """Return log-likelihood and directions (rows, camera frame) per focal length.

    ``segments``: (L, 4), relative to the principal point.
    """
    likely, corners = np.full(len(focals), -np.inf), np.zeros((len(focals), 3, 3))
    count = len(focals)
    order = [(at, at - 1) for at in range(count)] + [(at, at + 1) for at in range(count - 1)[::-1]]
    for at, neighbour in order:
        # With a fisheye a segment is a chord: its ends lie on the straight line.
        ends = straightened(segments.reshape(-1, 2, 2), focals[at], lens)
        lines = _Lines(ends.reshape(-1, 4))
        tried = [] if neighbour < 0 else [corners[neighbour]]
        if neighbour < at:
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
        # An outlier's end may be anywhere around its middle.
        self._stray = _STRAY * 2 / (np.pi * self._length)

    def guess(self, focal: float, rng: np.random.Generator) -> np.ndarray:
        """Return the best of random triples (3, 3): two lines that meet, and a third."""
        count, chance = len(self._segments), self._length / self._length.sum()
        picks = np.stack([rng.choice(count, _PAIRS * _THIRDS, p=chance) for _ in range(3)])
        picks[:2] = np.repeat(picks[:2, :_PAIRS], _THIRDS, axis=1)
        ones = np.ones((count, 1))
        start = np.concatenate([self._segments[:, :2] / focal, ones], axis=1)
        stop = np.concatenate([self._segments[:, 2:] / focal, ones], axis=1)
        normal = np.cross(start, stop)  # of the plane through camera and line
        first = np.cross(normal[picks[0]], normal[picks[1]])
        second = np.cross(first, normal[picks[2]])

        sizes = np.linalg.norm(first, axis=1), np.linalg.norm(second, axis=1)
        good = (sizes[0] > 1e-9) & (sizes[1] > 1e-9)
        first, second = first[good] / sizes[0][good, None], second[good] / sizes[1][good, None]
        corners = np.stack([first, second, np.cross(first, second)], axis=1)
        values = self._likelihood(self._off(corners, focal)).sum(axis=-1)
        return corners[values.argmax()] if len(corners) else np.eye(3)

    def refined(self, corner: np.ndarray, focal: float) -> tuple[np.ndarray, float]:
        """Return a triple rotated to the largest log-likelihood, and that."""
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
        """Return distances in pixels of segment ends to the lines to each vanishing point."""
        vanishing = corners * (focal, focal, 1.0)
        toward = vanishing[:, :, None, :2] - vanishing[:, :, None, 2:] * self._middle
        cross = toward[..., 0] * self._half[:, 1] - toward[..., 1] * self._half[:, 0]
        # Signed, though a direction's sign is free: continuous as the triple rotates.
        return cross / np.maximum(np.linalg.norm(toward, axis=-1), 1e-9)

    def _likelihood(self, off: Float[np.ndarray, "H 3 L"]) -> Float[np.ndarray, "H L"]:
        near = np.abs(off).min(axis=1)
        inside = np.exp(-0.5 * (near / _NOISE_PX) ** 2) / (_NOISE_PX * np.sqrt(2 * np.pi))
        return np.log((1 - _STRAY) * inside / 3 + self._stray) - np.log(self._stray)
