"""Frame after frame: the turn from whole pictures, points followed from keyframes."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import cv2
import numpy as np
from jaxtyping import Bool, Float, Int, UInt8

from acehand_core.camera_motion import tracks
from acehand_core.camera_motion.alignment import Aligner, Small, Turn
from acehand_core.camera_motion.lens import Lens
from acehand_core.camera_motion.masks import DarkBorder
from acehand_core.camera_motion.pose import Bearings, Matrix3, angle, tangents
from acehand_core.camera_motion.tracks import Grey, Mask
from acehand_core.geometry.cameras import Camera

#: Points that are followed at once.
POINTS = 200
#: A keyframe is made when a smaller share of the points is left, or after so many frames.
_REFILL, _KEYFRAME_FRAMES = 0.6, 10
#: Keyframes whose points are still followed; and for so many frames at most.
_HOSTS, _OLDEST = 5, 24
#: A point this far from where its host shows it, rad, is worth half as much.
_FORESHORTENED = 0.15
#: What is known of points is worth so much in blurred frames, where their errors are alike.
_BLURRED = 0.5
#: A keyframe is shown as the camera would see it now, to within this turn, rad.
_WARP = np.radians(3.0)
#: Frames that turn by more than this at 30 fps, rad, are blurred: points are followed in pictures
#: two and four times smaller.
_FAST = np.radians([3.0, 8.0])
#: Two small pictures that are less alike than this, or share less, are not of one scene.
_LEAST_LIKENESS, _LEAST_OVERLAP = 0.6, 0.25
#: Below this the turn is looked for everywhere, not only near the last one.
_SURE_LIKENESS = 0.75


@dataclass(frozen=True, slots=True)
class Observations:
    """What one frame shows: points by number, their host, bearings there, before and here.

    ``known``: square roots of the information on the bearings, along ``pose.tangents`` of them.
    ``turn``: R_before_frame as whole pictures tell it, for a camera that does not move otherwise;
    None where they are not of one scene. Earlier points are gone then. ``scale``: points were
    followed in pictures so many times smaller, since it is blurred.
    """

    frame: int
    number: Int[np.ndarray, "N"]
    host: Int[np.ndarray, "N"]
    host_bearing: Float[np.ndarray, "N 3"]
    before: Float[np.ndarray, "N 3"]
    bearing: Float[np.ndarray, "N 3"]
    known: Float[np.ndarray, "N 2 2"]
    turn: Matrix3 | None
    scale: int = 1


@dataclass(frozen=True, slots=True)
class _Followed:
    """Points that are followed: where their hosts show them, and the bearing in the last frame."""

    number: Int[np.ndarray, "N"]
    host: Int[np.ndarray, "N"]
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
    np.zeros(0, int), np.zeros(0, int), np.zeros((0, 2, 2)), np.zeros((0, 3)), np.zeros((0, 3))
)


class _Host:
    """A keyframe, and as a camera would see it that has turned by ``R_shown`` since."""

    def __init__(self, lens: Lens, picture: Grey) -> None:
        self._lens, self._picture = lens, picture
        self.R_since = self.R_shown = np.eye(3)
        self._full, self._scale, self._shown = picture, 1, picture

    def shown(self, turn: Matrix3, scale: int) -> Grey:
        """Return the keyframe as the camera sees it after a turn, nearly, so much smaller."""
        self.R_since = self.R_since @ turn
        stale = angle(self.R_shown.T @ self.R_since) > _WARP
        if stale:
            self.R_shown = self.R_since
            self._full = self._lens.warped(self._picture, self.R_shown)
        if stale or scale != self._scale:
            self._scale, self._shown = scale, smaller(self._full, scale)
        return self._shown


class Odometry:
    """Follows points through the frames of one camera, one call of ``step`` each."""

    def __init__(self, camera: Camera, fps: float) -> None:
        self._fps = fps
        self._lens = lens = Lens(camera)
        grid = np.stack(np.meshgrid(np.arange(camera.width), np.arange(camera.height)), -1)
        self._seen = np.asarray(np.isfinite(lens.unproject(grid.astype(float))).all(-1))
        self._aligner, self._border = Aligner(lens), DarkBorder()
        self._small: Small | None = None
        self._turn = np.eye(3)
        self._count = 0
        self._followed, self._hosts = _NOTHING, dict[int, _Host]()
        self._since, self._filled = 0, 0

    def step(self, frame: int, grey: Grey, mask: Mask | None) -> Observations:
        """Take the next frame. ``mask``: pixels that are not to be used."""
        usable = self._seen & ~self._border.add(grey)
        if mask is not None:
            usable &= ~mask
        picture, noise = tracks.smooth(grey), tracks.noise_of(grey)
        small = self._aligner.shrink(picture, usable)
        turn = None if self._small is None else self._turn_to(small)
        self._small = small

        before, known, scale = np.zeros((0, 3)), np.zeros((0, 2, 2)), 1
        if turn is None:
            self._followed, self._turn = _NOTHING, np.eye(3)
        else:
            self._turn = turn.R
            # What a camera turns in a thirtieth of a second tells how blurred it is.
            scale = int(2 ** np.searchsorted(_FAST, angle(turn.R) * self._fps / 30.0))
            before, known = self._follow(picture, usable, noise, turn.R, scale)
        shown = self._followed

        self._since += 1
        few = len(shown) < _REFILL * self._filled
        if few or self._since >= _KEYFRAME_FRAMES or turn is None:
            self._make_keyframe(frame, picture, usable, noise)
        return Observations(
            frame, shown.number, shown.host, shown.host_bearing, before, shown.bearing, known,
            None if turn is None else turn.R, scale,
        )  # fmt: skip

    def _turn_to(self, small: Small) -> Turn | None:
        before = self._small
        assert before is not None
        turn = self._aligner.turn(before, small, self._turn, search=False)
        if turn is None or turn.likeness < _SURE_LIKENESS:
            other = self._aligner.turn(before, small, self._turn, search=True)
            if other is not None and (turn is None or other.likeness > turn.likeness):
                turn = other
        if turn is None or turn.likeness < _LEAST_LIKENESS or turn.overlap < _LEAST_OVERLAP:
            return None
        return turn

    def _follow(
        self, picture: Grey, usable: Mask, noise: float, turn: Matrix3, scale: int
    ) -> tuple[Bearings, Float[np.ndarray, "N 2 2"]]:
        """Find the points again; return bearings of before, and what is known of those now."""
        small = smaller(picture, scale)
        pixel, ok, misfit = self._found(small, turn, scale)
        at = np.clip(np.round(pixel).astype(int), 0, np.array(usable.shape)[::-1] - 1)
        seen = self._lens.unproject(pixel)
        ok &= usable[at[:, 1], at[:, 0]] & np.isfinite(seen).all(1)

        kept, seen, pixel = self._followed.pick(ok), seen[ok], pixel[ok]
        self._followed = replace(kept, bearing=seen)
        tensor = tracks.tensors(small, (pixel + 0.5) / scale - 0.5, noise / scale)
        information = tracks.square_root_information(tensor, misfit[ok]) / scale
        known = information @ tracks.pixel_per_turn(self._lens, seen, tangents(seen))
        known *= 1.0 if scale == 1 else _BLURRED
        # Far from where its host shows it a patch looks another: foreshortened, larger or smaller.
        off = np.linalg.norm(seen - kept.host_bearing, axis=1) / _FORESHORTENED
        return kept.bearing, known / np.sqrt(1 + off**2)[:, None, None]

    def _found(
        self, small: Grey, turn: Matrix3, scale: int
    ) -> tuple[Float[np.ndarray, "N 2"], Bool[np.ndarray, "N"], Float[np.ndarray, "N"]]:
        """Return where the points are now, which were found, and how much their patches differ."""
        followed, n = self._followed, len(self._followed)
        pixel, ok, misfit = np.zeros((n, 2)), np.zeros(n, bool), np.zeros(n)
        guess = self._lens.project(followed.bearing @ turn)
        expected = self._lens.contains(guess)
        for number, host in self._hosts.items():
            shown = host.shown(turn, scale)
            of = np.flatnonzero((followed.host == number) & expected)
            start = self._lens.project(followed.host_bearing[of] @ host.R_shown)
            inside = self._lens.contains(start)
            of, start = of[inside], start[inside]
            if len(of):
                there, ok[of], misfit[of] = tracks.follow(
                    shown, small, (start + 0.5) / scale - 0.5, (guess[of] + 0.5) / scale - 0.5,
                    followed.tensor[of],
                )  # fmt: skip
                pixel[of] = (there + 0.5) * scale - 0.5
        return pixel, ok, misfit

    def _make_keyframe(self, frame: int, picture: Grey, usable: Mask, noise: float) -> None:
        old = self._followed
        taken = self._lens.project(old.bearing) if len(old) else np.zeros((0, 2))
        count = max(POINTS - len(old), 20)
        pixel = tracks.new_points(picture, usable, taken, count, noise)
        ray = self._lens.unproject(pixel)
        fine = np.isfinite(ray).all(1)
        pixel, ray, n = pixel[fine], ray[fine], int(fine.sum())
        tensor = tracks.tensors(picture, pixel, noise)
        new = _Followed(self._count + np.arange(n), np.full(n, frame), tensor, ray, ray)
        self._count += n
        followed = old.with_more(new)
        self._hosts[frame] = _Host(self._lens, picture)
        young = [h for h in sorted(set(followed.host.tolist())) if frame - h < _OLDEST][-_HOSTS:]
        self._hosts = {h: self._hosts[h] for h in young}
        self._followed = followed.pick(np.isin(followed.host, young))
        self._since, self._filled = 0, len(self._followed)


def smaller(picture: Grey, scale: int) -> UInt8[np.ndarray, "h w"]:
    """Return a picture so many times smaller each way."""
    if scale == 1:
        return picture
    size = (picture.shape[1] // scale, picture.shape[0] // scale)
    return np.asarray(cv2.resize(picture, size, interpolation=cv2.INTER_AREA), np.uint8)
