"""Points that are followed through a whole window of frames, and found again when they come back.

Unlike ``odometry``, which needs points for a few frames, a point stays as long as the pictures of
its keyframe are kept: it may be hidden for a while, or the head may look elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from acehand_core.camera_motion import tracks
from acehand_core.camera_motion.alignment import Aligner, Small
from acehand_core.camera_motion.pose import Matrix3, tangents
from acehand_core.camera_motion.tracks import Grey, Mask
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import CameraMotion

#: Points in a picture; new ones in a keyframe, at least.
POINTS, _NEW = 300, 40
#: A point that is not found is looked for in so many frames.
_PATIENCE = 8
#: A keyframe is made when a smaller share of the points is left, when they have moved so far
#: (rad), or after so many frames; but not sooner than after so many.
_REFILL, _MOVED, _KEYFRAME_FRAMES, _SOONEST = 0.7, 0.05, 10, 3
#: Earlier keyframes that are looked at again in each, so many frames apart, if they share so much.
_AGAIN, _APART, _LEAST_OVERLAP = 4, 8, 0.35
#: How alike the pictures must be then, and what share of the points must be there.
_LIKENESS, _FOUND_SHARE, _FOUND = 0.7, 0.25, 8
#: Of points that were found so often.
_OFTEN = 3
#: A point this far from where its host shows it, rad, is worth half as much.
_FORESHORTENED = 0.15


@dataclass(frozen=True, slots=True)
class Tracks:
    """What the F frames of a window show of K points.

    Attributes:
        host: the frame that a point was found in.
        bearing_host: unit vector there, which is the point's by definition.
        frame, point, bearing: N sightings in other frames.
        known: square roots of the information on these bearings, along ``pose.tangents``.
        links: pairs of frames (earlier, later) that have points in common although the rotation
            between them is not known, and the turn of the whole pictures, R_earlier_later.
    """

    host: Int[np.ndarray, "K"]
    bearing_host: Float[np.ndarray, "K 3"]
    frame: Int[np.ndarray, "N"]
    point: Int[np.ndarray, "N"]
    bearing: Float[np.ndarray, "N 3"]
    known: Float[np.ndarray, "N 2 2"]
    links: tuple[tuple[int, int, Matrix3], ...] = ()


class Follower:
    """Follows points through the frames of a window, one call of ``step`` each."""

    def __init__(self, camera: Camera, rotation: CameraMotion) -> None:
        """``rotation``: of the window's frames."""
        self._camera, self._rotation = camera, rotation
        grid = np.stack(np.meshgrid(np.arange(camera.width), np.arange(camera.height)), -1)
        rays = camera.unproject(grid.astype(float))
        self._seen = np.asarray(np.isfinite(rays).all(-1))
        coarse = rays[24::48, 24::48].reshape(-1, 3)
        self._rays = coarse[np.isfinite(coarse).all(1)]
        self._aligner = Aligner(camera)

        self._host = np.zeros(0, int)
        self._pixel, self._tensor = np.zeros((0, 2)), np.zeros((0, 2, 2))
        self._bearing_host = np.zeros((0, 3))
        self._count = np.zeros(0, int)
        #: Points that are looked for, where they are about, and when they were found last.
        self._number, self._last = np.zeros(0, int), np.zeros(0, int)
        self._bearing = np.zeros((0, 3))

        self._pictures: dict[int, Grey] = {}
        self._smalls: dict[int, Small] = {}
        self._key, self._filled = -1, 0
        self._rows: list[tuple[np.ndarray, ...]] = []
        self._links: list[tuple[int, int, Matrix3]] = []

    def step(self, frame: int, grey: Grey, mask: Mask | None) -> None:
        """Take the next frame. ``mask``: pixels that are not to be used."""
        usable = self._seen if mask is None else self._seen & ~mask
        picture, noise = tracks.smooth(grey), tracks.noise_of(grey)
        turn = self._rotation.between(frame - 1, frame) if frame else None
        if turn is None:
            self._keep(np.zeros(len(self._number), bool))
        else:
            self._bearing = self._bearing @ turn
            self._find(frame, self._number, self._bearing, picture, usable, noise)
            self._keep(frame - self._last <= _PATIENCE)
        if self._is_keyframe(frame):
            self._make_keyframe(frame, picture, usable, noise)

    def tracks(self) -> Tracks:
        """Return all that was found."""
        frame, point, bearing, known = (
            np.concatenate(rows) for rows in zip(*self._rows, strict=True)
        ) if self._rows else (
            np.zeros(0, int), np.zeros(0, int), np.zeros((0, 3)), np.zeros((0, 2, 2)),
        )  # fmt: skip
        return Tracks(
            self._host, self._bearing_host, frame, point, bearing, known, tuple(self._links)
        )

    def _keep(self, which: np.ndarray) -> None:
        self._number, self._last = self._number[which], self._last[which]
        self._bearing = self._bearing[which]

    def _is_keyframe(self, frame: int) -> bool:
        since = frame - self._key
        if self._key < 0 or since >= _KEYFRAME_FRAMES or self._rotation.broken[frame]:
            return True
        if since < _SOONEST:
            return False
        here = self._last == frame
        mine = here & (self._host[self._number] == self._key)
        if here.sum() < _REFILL * self._filled or mine.sum() < 8:
            return True
        numbers = self._number[mine]
        way = np.linalg.norm(self._bearing[mine] - self._bearing_host[numbers], axis=1)
        return bool(np.median(way) > _MOVED)

    def _make_keyframe(self, frame: int, picture: Grey, usable: Mask, noise: float) -> None:
        small = self._aligner.shrink(picture, usable)
        self._look_again(frame, small, picture, usable, noise)
        found = self._bearing[self._last == frame]
        taken = self._camera.project(found) if len(found) else np.zeros((0, 2))
        count = max(POINTS - len(found), _NEW)
        pixel = tracks.new_points(picture, usable, taken, count, noise)
        ray = self._camera.unproject(pixel)
        fine = np.isfinite(ray).all(1)
        pixel, ray, n = pixel[fine], ray[fine], int(fine.sum())

        new = len(self._host) + np.arange(n)
        self._host = np.concatenate([self._host, np.full(n, frame)])
        self._pixel = np.concatenate([self._pixel, pixel])
        self._tensor = np.concatenate([self._tensor, tracks.tensors(picture, pixel, noise)])
        self._bearing_host = np.concatenate([self._bearing_host, ray])
        self._count = np.concatenate([self._count, np.zeros(n, int)])
        self._add(new, ray, frame)
        self._pictures[frame], self._smalls[frame] = picture, small
        self._key, self._filled = frame, int((self._last == frame).sum())

    def _add(self, numbers: np.ndarray, bearings: np.ndarray, frame: int) -> None:
        self._keep(~np.isin(self._number, numbers))
        self._number = np.concatenate([self._number, numbers])
        self._bearing = np.concatenate([self._bearing, bearings])
        self._last = np.concatenate([self._last, np.full(len(numbers), frame)])

    def _look_again(
        self, frame: int, small: Small, picture: Grey, usable: Mask, noise: float
    ) -> None:
        """Look for points of earlier keyframes that show much of what this one does."""
        chosen: list[int] = []
        for overlap, key in sorted(self._overlaps(frame), reverse=True):
            if len(chosen) == _AGAIN or overlap < _LEAST_OVERLAP:
                break
            if any(abs(key - other) < _APART for other in chosen):
                continue
            chosen.append(key)
            known = self._rotation.between(key, frame)
            start = np.eye(3) if known is None else known
            turn = self._aligner.turn(self._smalls[key], small, start, search=known is None)
            if turn is None or turn.likeness < _LIKENESS or turn.overlap < _LEAST_OVERLAP:
                continue
            numbers = np.flatnonzero((self._host == key) & (self._count >= _OFTEN))
            numbers = np.setdiff1d(numbers, self._number[self._last == frame])
            guess = self._bearing_host[numbers] @ turn.R
            with np.errstate(invalid="ignore"):
                tried = int(self._camera.contains(self._camera.project(guess)).sum())
            least = max(_FOUND, _FOUND_SHARE * tried)
            found = self._find(frame, numbers, guess, picture, usable, noise, least)
            if found and known is None:
                self._links.append((key, frame, turn.R))

    def _overlaps(self, frame: int) -> list[tuple[float, int]]:
        """Return the share of the picture that each earlier keyframe shows as well."""
        out = []
        for key in self._pictures:
            if frame - key <= _PATIENCE:
                continue
            turn = self._rotation.between(key, frame)
            share = 0.5  # of an unknown turn
            if turn is not None:
                with np.errstate(invalid="ignore"):
                    share = float(
                        self._camera.contains(self._camera.project(self._rays @ turn)).mean()
                    )
            out.append((share, key))
        return out

    def _find(
        self, frame: int, numbers: np.ndarray, guess: np.ndarray, picture: Grey, usable: Mask,
        noise: float, least: int | float = 0,
    ) -> bool:  # fmt: skip
        """Find points near where they are guessed; those that were found are followed from here.

        Nothing is kept where fewer than ``least`` were.
        """
        camera, n = self._camera, len(numbers)
        if n == 0:
            return False
        at = camera.project(guess)
        with np.errstate(invalid="ignore"):
            expected = camera.contains(at)
        pixel, ok, misfit = np.zeros((n, 2)), np.zeros(n, bool), np.zeros(n)
        hosts = self._host[numbers]
        for host in np.unique(hosts[expected]):
            of = np.flatnonzero((hosts == host) & expected)
            pixel[of], ok[of], misfit[of] = tracks.follow(
                self._pictures[int(host)], picture, self._pixel[numbers[of]], at[of],
                self._tensor[numbers[of]],
            )  # fmt: skip
        near = np.clip(np.round(pixel).astype(int), 0, np.array(usable.shape)[::-1] - 1)
        bearing = camera.unproject(pixel)
        ok &= usable[near[:, 1], near[:, 0]] & np.isfinite(bearing).all(1)
        if ok.sum() < max(least, 1):
            return False
        numbers, bearing, pixel = numbers[ok], bearing[ok], pixel[ok]

        information = tracks.square_root_information(
            tracks.tensors(picture, pixel, noise), misfit[ok]
        )
        known = information @ tracks.pixel_per_turn(camera, bearing, tangents(bearing))
        # Far from where its host shows it a patch looks another.
        off = np.linalg.norm(bearing - self._bearing_host[numbers], axis=1) / _FORESHORTENED
        known = known / np.sqrt(1 + off**2)[:, None, None]
        self._rows.append((np.full(len(numbers), frame), numbers, bearing, known))
        self._count[numbers] += 1
        self._add(numbers, bearing, frame)
        return True
