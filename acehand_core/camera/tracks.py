"""Corner tracks in windows of keyframes, refined by their keyframe of origin against drift."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from jaxtyping import Bool, Float, UInt8

#: Pixels of N corners in K keyframes, NaN where a corner is not seen.
Tracks = Float[np.ndarray, "K N 2"]
Gray = UInt8[np.ndarray, "H W"]
#: Pixels (2,) in a keyframe by corner.
_Evidence = dict[int, np.ndarray]
_CORNERS, _APART = 350, 10
#: Smoothing of pictures, in pixels.
_SMOOTH_PX = 0.8
#: Largest forward-backward error: from the frame before, and from the keyframe of origin; and the
#: largest correction by the latter.
_BACK_PX, _HOST_BACK_PX, _HOST_MOVES_PX = 2.1, 0.5, 2.0
#: Median motion of corners between keyframes, in widths of the picture.
_STEP = 0.02
#: Keyframes of a window, new ones before the next window, and the fewest.
_KEYFRAMES, _NEW, _FEW = 14, 7, 5
#: Fewest keyframes of a corner, and most corners of a window: the longest tracks.
_SEEN, _MOST = 3, 120
#: Fewest corners of a window, and fewest that successive keyframes share.
_FEWEST, _SHARED = 20, 8


@dataclass(frozen=True, slots=True)
class TrackWindow:
    """Keyframes of a stretch of pictures; ``frames`` are their numbers."""

    frames: tuple[int, ...]
    tracks: Tracks


def windows(pictures: Iterable[Gray]) -> Iterator[TrackWindow]:
    """Yield windows of keyframes that overlap by half; none for a camera at rest."""
    follower, stretch, new = _Follower(), list[tuple[int, _Evidence]](), 0
    for number, picture in enumerate(pictures):
        seen = follower.follow(picture)
        if stretch and len(seen.keys() & stretch[-1][1].keys()) < _SHARED:
            yield from _window(stretch, new)
            stretch, new = [], 0

        if stretch:
            last = stretch[-1][1]
            steps = [np.linalg.norm(seen[name] - last[name]) for name in seen.keys() & last.keys()]
            if not np.median(steps) > _STEP * picture.shape[1]:
                continue

        stretch = [*stretch, (number, follower.with_more(number))][-_KEYFRAMES:]
        new += 1
        if len(stretch) == _KEYFRAMES and new >= _NEW:
            yield from _window(stretch, new)
            new = 0
    yield from _window(stretch, new)


def _window(stretch: list[tuple[int, _Evidence]], new: int) -> Iterator[TrackWindow]:
    """Yield the window of some keyframes, unless they have too few new frames or tracks."""
    if len(stretch) < _FEW or (len(stretch) == _KEYFRAMES and new < _NEW // 2):
        return
    counts = Counter(name for _, pixels in stretch for name in pixels)
    names = [name for name, count in counts.most_common() if count >= _SEEN]
    if len(names) < _FEWEST:
        return
    tracks = np.full((len(stretch), min(len(names), _MOST), 2), np.nan)
    for row, (_, pixels) in enumerate(stretch):
        for column, name in enumerate(names[:_MOST]):
            if name in pixels:
                tracks[row, column] = pixels[name]
    yield TrackWindow(tuple(number for number, _ in stretch), tracks)


class _Follower:
    """Tracks corners through pictures; ``host``: the keyframe in which a corner was detected."""

    def __init__(self) -> None:
        self._picture: Gray | None = None
        self._at, self._host_at = np.zeros((0, 2), np.float32), np.zeros((0, 2), np.float32)
        self._names, self._host = np.zeros(0, int), np.zeros(0, int)
        self._hosts: dict[int, Gray] = {}
        self._next = 0

    def follow(self, picture: Gray) -> _Evidence:
        before = self._picture
        picture = np.asarray(cv2.GaussianBlur(picture, (0, 0), _SMOOTH_PX), np.uint8)
        self._picture = picture
        if before is not None and len(self._at):
            points, kept = _forward_backward(before, picture, self._at, self._at, _BACK_PX, 4)
            height, width = picture.shape
            kept &= ((points > 3) & (points < (width - 4, height - 4))).all(axis=-1)
            self._pick(points, kept)

            points, kept = self._at.copy(), np.zeros(len(self._at), bool)
            for host in np.unique(self._host).tolist():
                of = np.flatnonzero(self._host == host)
                points[of], kept[of] = _forward_backward(
                    self._hosts[host], picture, self._host_at[of], self._at[of], _HOST_BACK_PX, 1
                )
            kept &= np.linalg.norm(points - self._at, axis=-1) < _HOST_MOVES_PX
            self._pick(points, kept)
        return self._seen()

    def with_more(self, number: int) -> _Evidence:
        """Add new corners between the others, with this picture as host."""
        picture, wanted = self._picture, _CORNERS - len(self._at)
        assert picture is not None
        mask = np.full(picture.shape, 255, np.uint8)
        for x, y in self._at.tolist():
            cv2.circle(mask, (round(x), round(y)), _APART, 0, -1)
        new = None
        if wanted > 0:
            new = cv2.goodFeaturesToTrack(picture, wanted, 0.005, _APART, mask=mask)
        corners = np.zeros((0, 2), np.float32) if new is None else new.reshape(-1, 2)

        count = len(corners)
        self._at = np.concatenate([self._at, corners])
        self._host_at = np.concatenate([self._host_at, corners])
        self._names = np.concatenate([self._names, np.arange(self._next, self._next + count)])
        self._host = np.concatenate([self._host, np.full(count, number)])
        self._next += count

        used = set(self._host.tolist())
        hosts = self._hosts | {number: picture}
        self._hosts = {host: shown for host, shown in hosts.items() if host in used}
        return self._seen()

    def _seen(self) -> _Evidence:
        return dict(zip(self._names.tolist(), self._at.astype(float), strict=True))

    def _pick(self, at: np.ndarray, kept: np.ndarray) -> None:
        self._at, self._host_at = at[kept], self._host_at[kept]
        self._names, self._host = self._names[kept], self._host[kept]


def _forward_backward(
    before: Gray,
    after: Gray,
    at: Float[np.ndarray, "N 2"],
    guess: Float[np.ndarray, "N 2"],
    back_px: float,
    level: int,
) -> tuple[Float[np.ndarray, "N 2"], Bool[np.ndarray, "N"]]:
    """Track points from one picture to another; also return which pass the forward-backward check.

    ``guess``: initial places in the other picture.
    """
    options: dict[str, Any] = {
        "winSize": (21, 21),
        "maxLevel": level,
        "flags": cv2.OPTFLOW_USE_INITIAL_FLOW,
    }
    tracked, status, _ = cv2.calcOpticalFlowPyrLK(before, after, at, guess.copy(), **options)
    # With the guess's shift, so that a wrong point gets no help.
    start = tracked if guess is at else at + (tracked - guess)
    back, back_status, _ = cv2.calcOpticalFlowPyrLK(after, before, tracked, start.copy(), **options)
    kept = (status[:, 0] > 0) & (back_status[:, 0] > 0)
    kept &= np.linalg.norm(back - at, axis=-1) < back_px
    return np.asarray(tracked, np.float32), kept
