"""Frame after frame: the turn from whole pictures, points followed from keyframes."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from jaxtyping import Float, Int

from acehand_core.camera_motion import tracks
from acehand_core.camera_motion.alignment import Aligner, Small
from acehand_core.camera_motion.pose import Matrix3, tangents
from acehand_core.camera_motion.tracks import Grey, Mask
from acehand_core.geometry.cameras import Camera

#: Points that are followed at once.
POINTS = 200
#: A keyframe is made when a smaller share of the points is left, or after so many frames.
_REFILL, _KEYFRAME_FRAMES = 0.7, 10
#: Keyframes whose points are still followed; and for so many frames at most.
_HOSTS, _OLDEST = 5, 24
#: A point this far from where its host shows it, rad, is worth half as much.
_FORESHORTENED = 0.15
#: Two small pictures that are less alike than this, or share less, are not of one scene.
LEAST_LIKENESS, LEAST_OVERLAP = 0.6, 0.25
#: Below this the turn is looked for everywhere, not only near the last one.
_SURE_LIKENESS = 0.75


@dataclass(frozen=True, slots=True)
class Observations:
    """What one frame shows: points by number, their host, bearings there, before and here.

    ``known``: square roots of the information on the bearings, along ``pose.tangents`` of them.
    ``turn``: R_before_frame as whole pictures tell it, for a camera that does not move otherwise;
    None where they are not of one scene. Earlier points are gone then.
    """

    frame: int
    number: Int[np.ndarray, "N"]
    host: Int[np.ndarray, "N"]
    host_bearing: Float[np.ndarray, "N 3"]
    before: Float[np.ndarray, "N 3"]
    bearing: Float[np.ndarray, "N 3"]
    known: Float[np.ndarray, "N 2 2"]
    turn: Matrix3 | None


@dataclass(frozen=True, slots=True)
class _Followed:
    """Points that are followed: where their hosts show them, and the bearing in the last frame."""

    number: Int[np.ndarray, "N"]
    host: Int[np.ndarray, "N"]
    pixel: Float[np.ndarray, "N 2"]
    tensor: Float[np.ndarray, "N 2 2"]
    host_bearing: Float[np.ndarray, "N 3"]
    bearing: Float[np.ndarray, "N 3"]

    def pick(self, which: np.ndarray) -> _Followed:
        return _Followed(*(getattr(self, f.name)[which] for f in fields(self)))

    def with_more(self, other: _Followed) -> _Followed:
        return _Followed(
            *(np.concatenate([getattr(self, f.name), getattr(other, f.name)]) for f in fields(self))
        )

    def __len__(self) -> int:
        return len(self.number)


_NOTHING = _Followed(
    np.zeros(0, int), np.zeros(0, int), np.zeros((0, 2)), np.zeros((0, 2, 2)), np.zeros((0, 3)),
    np.zeros((0, 3)),
)  # fmt: skip


class Odometry:
    """Follows points through the frames of one camera, one call of ``step`` each."""

    def __init__(self, camera: Camera) -> None:
        self._camera = camera
        grid = np.stack(np.meshgrid(np.arange(camera.width), np.arange(camera.height)), -1)
        self._seen = np.asarray(np.isfinite(camera.unproject(grid.astype(float))).all(-1))
        self._aligner = Aligner(camera)
        self._small: Small | None = None
        self._turn = np.eye(3)
        self._count = 0
        self._followed, self._hosts = _NOTHING, dict[int, Grey]()
        self._since, self._filled = 0, 0

    def step(self, frame: int, grey: Grey, mask: Mask | None) -> Observations:
        """Take the next frame. ``mask``: pixels that are not to be used."""
        usable = self._seen if mask is None else self._seen & ~mask
        picture, noise = tracks.smooth(grey), tracks.noise_of(grey)
        small = self._aligner.shrink(picture, usable)
        turn = None if self._small is None else self._turn_to(small)
        self._small = small

        before, known = np.zeros((0, 3)), np.zeros((0, 2, 2))
        if turn is None:
            self._followed, self._turn = _NOTHING, np.eye(3)
        else:
            self._turn = turn
            before, known = self._follow(picture, usable, noise, turn)
        shown = self._followed

        self._since += 1
        if len(shown) < _REFILL * self._filled or self._since >= _KEYFRAME_FRAMES or turn is None:
            self._make_keyframe(frame, picture, usable, noise)
        return Observations(
            frame, shown.number, shown.host, shown.host_bearing, before, shown.bearing, known, turn
        )

    def _turn_to(self, small: Small) -> Matrix3 | None:
        before = self._small
        assert before is not None
        turn = self._aligner.turn(before, small, self._turn, search=False)
        if turn is None or turn.likeness < _SURE_LIKENESS:
            other = self._aligner.turn(before, small, self._turn, search=True)
            if other is not None and (turn is None or other.likeness > turn.likeness):
                turn = other
        if turn is None or turn.likeness < LEAST_LIKENESS or turn.overlap < LEAST_OVERLAP:
            return None
        return turn.R

    def _follow(
        self, picture: Grey, usable: Mask, noise: float, turn: Matrix3
    ) -> tuple[np.ndarray, np.ndarray]:
        """Find the points again; return bearings of before, and what is known of those now."""
        followed = self._followed
        guess = self._camera.project(followed.bearing @ turn)
        with np.errstate(invalid="ignore"):
            expected = self._camera.contains(guess)
        n = len(followed)
        pixel, ok, misfit = np.zeros((n, 2)), np.zeros(n, bool), np.zeros(n)
        for host, shown in self._hosts.items():
            of = np.flatnonzero((followed.host == host) & expected)
            if len(of):
                pixel[of], ok[of], misfit[of] = tracks.follow(
                    shown, picture, followed.pixel[of], guess[of], followed.tensor[of]
                )
        at = np.clip(np.round(pixel).astype(int), 0, np.array(usable.shape)[::-1] - 1)
        seen = self._camera.unproject(pixel)
        ok &= usable[at[:, 1], at[:, 0]] & np.isfinite(seen).all(1)

        kept, seen, pixel = followed.pick(ok), seen[ok], pixel[ok]
        self._followed = _Followed(
            kept.number, kept.host, kept.pixel, kept.tensor, kept.host_bearing, seen
        )
        information = tracks.square_root_information(
            tracks.tensors(picture, pixel, noise), misfit[ok]
        )
        known = information @ tracks.pixel_per_turn(self._camera, seen, tangents(seen))
        # Far from where its host shows it a patch looks another: foreshortened, larger or smaller.
        off = np.linalg.norm(seen - kept.host_bearing, axis=1) / _FORESHORTENED
        return kept.bearing, known / np.sqrt(1 + off**2)[:, None, None]

    def _make_keyframe(self, frame: int, picture: Grey, usable: Mask, noise: float) -> None:
        old = self._followed
        taken = self._camera.project(old.bearing) if len(old) else np.zeros((0, 2))
        count = max(POINTS - len(old), 20)
        pixel = tracks.new_points(picture, usable, taken, count, noise)
        ray = self._camera.unproject(pixel)
        fine = np.isfinite(ray).all(1)
        pixel, ray, n = pixel[fine], ray[fine], int(fine.sum())
        tensor = tracks.tensors(picture, pixel, noise)
        new = _Followed(
            self._count + np.arange(n), np.full(n, frame), pixel, tensor, ray, ray
        )  # fmt: skip
        self._count += n
        followed = old.with_more(new)
        self._hosts[frame] = picture
        young = [h for h in sorted(set(followed.host.tolist())) if frame - h < _OLDEST][-_HOSTS:]
        self._hosts = {h: self._hosts[h] for h in young}
        self._followed = followed.pick(np.isin(followed.host, young))
        self._since, self._filled = 0, len(self._followed)
