"""Keyframes that are seen again, a second or an hour later: the turn between the two at once."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from jaxtyping import Bool, Float, Int, UInt8

from acehand_core.camera_motion import tracks
from acehand_core.camera_motion.averaging import Closure
from acehand_core.camera_motion.bundle import Done
from acehand_core.camera_motion.odometry import (
    LEAST_LIKENESS,
    LEAST_OVERLAP,
    Observations,
    Odometry,
)
from acehand_core.camera_motion.pose import (
    Bearings,
    Matrix3,
    Points,
    Pose,
    agreed_turn,
    angle,
    fit_pose,
    tangents,
)
from acehand_core.camera_motion.tracks import Grey

#: Keyframes that are kept; above it every second one of the older half is forgotten.
MOST_KEYFRAMES = 400
#: A keyframe is kept after so many frames, or this turn, rad, since the last; what is compared with
#: it lies so many frames apart, and looks elsewhere by less than this.
_APART_FRAMES, _APART = 15, np.radians(8.0)
_AGAIN_FRAMES, _SAME_VIEW = 20, np.radians(30.0)
#: Keyframes of other runs that the first ones of a run are compared with.
_BRIDGES = 4
#: What is known of the turn before the points are asked, rad, and of the way gone since.
_TURN_SIGMA, _MOVED_SIGMA = np.radians(10.0), 1.0
#: Points that must agree, and their share of those that are found.
_LEAST_POINTS, _LEAST_SHARE = 20, 0.5
#: ... and of all points of a keyframe of another run: nothing else says that it shows the same.
_BRIDGE_SHARE = 0.6
#: A closure's standard deviation: so many of its fit's, and at least this, rad.
_FIT_SIGMA, _LEAST_SIGMA = 2.5, np.radians(0.2)
#: Points of a keyframe that are kept, and the quality of its picture as a JPEG.
_POINTS, _QUALITY = 120, 90


@dataclass(frozen=True, slots=True)
class _Keyframe:
    """A frame to come back to: its picture, packed, and its points with inverse distances."""

    frame: int
    run: int
    R: Matrix3
    jpeg: UInt8[np.ndarray, "B"]
    usable: Bool[np.ndarray, "h w"]
    bearing: Float[np.ndarray, "N 3"]
    tensor: Float[np.ndarray, "N 2 2"]
    rho: Float[np.ndarray, "N"]
    variance: Float[np.ndarray, "N"]


class Loops:
    """Remembers keyframes of all runs of unbroken frames, and compares new ones with them."""

    def __init__(self, odometry: Odometry) -> None:
        self._odometry = odometry
        self._kept: list[_Keyframe] = []
        self.closures: list[Closure] = []

    def add(self, done: Done, run: int) -> None:
        """Take a frame that is done with; ``run``: number of its unbroken run."""
        seen = done.seen
        if seen.picture is None or not len(seen.number):
            return
        last = self._kept[-1] if self._kept else None
        soon = last is not None and last.run == run and seen.frame - last.frame < _APART_FRAMES
        if soon and last is not None and angle(last.R.T @ done.pose.R) < _APART:
            return
        for old in self._candidates(done, run):
            closure = self._compare(old, done, run)
            if closure is not None:
                self.closures.append(closure)
        self._keep(done, run)

    def _candidates(self, done: Done, run: int) -> list[_Keyframe]:
        """Return what the frame may show again: the oldest of what looks the same way, to 5 deg."""
        own = [k for k in self._kept if k.run == run]
        apart = {
            k.frame: angle(k.R.T @ done.pose.R)
            for k in own if done.seen.frame - k.frame >= _AGAIN_FRAMES
        }  # fmt: skip
        near = [k for k in own if apart.get(k.frame, np.inf) < _SAME_VIEW]
        near.sort(key=lambda k: (round(apart[k.frame] / np.radians(5.0)), k.frame))
        others = [k for k in self._kept if k.run != run] if len(own) < 2 else []
        return near[:1] + others[-_BRIDGES:]

    def _keep(self, done: Done, run: int) -> None:
        seen, odometry = done.seen, self._odometry
        assert seen.picture is not None and seen.small is not None
        some = np.argsort(done.variance / done.inverse_distance**2)[:_POINTS]
        pixel = odometry.lens.project(seen.bearing[some])
        kept = _Keyframe(
            seen.frame, run, done.pose.R,
            cv2.imencode(".jpg", seen.picture, [cv2.IMWRITE_JPEG_QUALITY, _QUALITY])[1].ravel(),
            seen.small.usable[-1], seen.bearing[some],
            tracks.tensors(seen.picture, pixel, tracks.noise_of(seen.picture)),
            done.inverse_distance[some], done.variance[some],
        )  # fmt: skip
        self._kept.append(kept)
        if len(self._kept) > MOST_KEYFRAMES:
            half = MOST_KEYFRAMES // 2
            self._kept = self._kept[:half:2] + self._kept[half:]

    def _compare(self, old: _Keyframe, done: Done, run: int) -> Closure | None:
        """Return the turn between a keyframe and a frame; None where they have little in common."""
        seen, aligner = done.seen, self._odometry.aligner
        assert seen.small is not None
        picture = np.asarray(cv2.imdecode(old.jpeg, cv2.IMREAD_GRAYSCALE), np.uint8)
        small = aligner.shrink(picture, old.usable)
        start = old.R.T @ done.pose.R if old.run == run else np.eye(3)
        turn = aligner.turn(small, seen.small, start, search=old.run != run)
        if turn is None or turn.likeness < LEAST_LIKENESS or turn.overlap < LEAST_OVERLAP:
            return None
        which, bearing, known = self._found_again(old, picture, seen, turn.R)
        n = len(which)
        if n < _LEAST_POINTS:
            return None

        turned = agreed_turn(old.bearing[which], bearing, known, turn.R)
        points = Points(
            np.broadcast_to(np.eye(3), (n, 3, 3)), np.zeros((n, 3)), old.bearing[which],
            old.rho[which], old.variance[which],
        )  # fmt: skip
        start_pose = Pose(turned, np.zeros(3))
        fit = fit_pose(points, bearing, known, start_pose, _TURN_SIGMA, _MOVED_SIGMA)
        least = _LEAST_SHARE * n if old.run == run else _BRIDGE_SHARE * len(old.bearing)
        if fit.inliers.sum() < max(_LEAST_POINTS, least):
            return None
        sigma = _FIT_SIGMA * np.sqrt(np.trace(fit.covariance[:3, :3]))
        return Closure(old.frame, seen.frame, fit.pose.R, float(np.hypot(sigma, _LEAST_SIGMA)))

    def _found_again(
        self, old: _Keyframe, picture: Grey, seen: Observations, turn: Matrix3
    ) -> tuple[Int[np.ndarray, "N"], Bearings, Float[np.ndarray, "N 2 2"]]:
        """Return which points of a keyframe a frame shows, where, and what is known of that."""
        assert seen.picture is not None and seen.small is not None
        lens = self._odometry.lens
        start = lens.project(old.bearing @ turn)
        which = np.flatnonzero(lens.contains(start))
        if not len(which):
            return which, np.zeros((0, 3)), np.zeros((0, 2, 2))
        shown = lens.warped(picture, turn)
        there, ok, misfit = tracks.follow(
            shown, seen.picture, start[which], start[which], old.tensor[which]
        )
        usable = seen.small.usable[-1]
        at = np.round((there + 0.5) * (usable.shape[1] / lens.width) - 0.5)
        at = np.clip(np.nan_to_num(at).astype(int), 0, np.array(usable.shape)[::-1] - 1)
        bearing = lens.unproject(there)
        ok &= usable[at[:, 1], at[:, 0]] & np.isfinite(bearing).all(1)

        bearing, there = bearing[ok], there[ok]
        tensor = tracks.tensors(seen.picture, there, tracks.noise_of(seen.picture))
        known = tracks.square_root_information(tensor, misfit[ok])
        return which[ok], bearing, known @ tracks.pixel_per_turn(lens, bearing, tangents(bearing))
