"""Corners followed through a recording, seen again in keyframes where the picture has moved on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import cv2
import numpy as np
from jaxtyping import Bool, Float, UInt8

#: Pixels of a followed corner in every keyframe, NaN where it was not there.
Tracks = Float[np.ndarray, "K N 2"]
Gray = UInt8[np.ndarray, "H W"]
_CORNERS, _APART = 350, 10
#: How far a corner followed there and back may be from where it began.
_BACK_PX = 0.7
#: A keyframe is where corners have moved so far since the last, in widths of the picture.
_STEP = 0.04
#: Keyframes of one window, and how many of them a corner must be seen in.
_KEYFRAMES, _SEEN = 12, 4
#: A window of fewer corners says nothing.
_FEWEST = 20


@dataclass(frozen=True, slots=True)
class Window:
    """Keyframes of a stretch of the recording. ``frames``: their numbers in what was read."""

    frames: tuple[int, ...]
    tracks: Tracks


def windows(pictures: Iterable[Gray]) -> Iterator[Window]:
    """Yield windows of keyframes; none of a camera that stands still."""
    follower = _Follower()
    for number, picture in enumerate(pictures):
        follower.add(number, picture)
        if len(follower.keyframes) == _KEYFRAMES:
            yield from follower.window()
            follower = _Follower()
            follower.add(number, picture)
    if len(follower.keyframes) >= _SEEN:
        yield from follower.window()


class _Follower:
    """Corners from one picture to the next."""

    def __init__(self) -> None:
        self.keyframes: list[tuple[int, dict[int, np.ndarray]]] = []
        self._before: Gray | None = None
        self._at = np.zeros((0, 2), np.float32)
        self._names = np.zeros(0, int)
        self._next = 0

    def add(self, number: int, picture: Gray) -> None:
        """Follow the corners into a picture; make it a keyframe where they have moved enough."""
        if self._before is not None and len(self._at):
            there, kept = _followed(self._before, picture, self._at)
            back, kept_back = _followed(picture, self._before, there)
            kept &= kept_back & (np.linalg.norm(back - self._at, axis=-1) < _BACK_PX)
            height, width = picture.shape
            kept &= ((there > 2) & (there < (width - 3, height - 3))).all(axis=-1)
            self._at, self._names = there[kept], self._names[kept]
        self._before = picture
        if self._moved(picture.shape[1]):
            self._renew(picture)
            pixels = zip(self._names.tolist(), self._at.astype(float), strict=True)
            self.keyframes.append((number, dict(pixels)))

    def _moved(self, width: int) -> bool:
        if not self.keyframes:
            return True
        last = self.keyframes[-1][1]
        pairs = [
            (last[n], p) for n, p in zip(self._names.tolist(), self._at, strict=True) if n in last
        ]
        if len(pairs) < 20:
            return True  # nearly everything is new
        steps = np.linalg.norm([after - before for before, after in pairs], axis=-1)
        return bool(np.median(steps) > _STEP * width)

    def _renew(self, picture: Gray) -> None:
        """Find new corners where there are none."""
        mask = np.full(picture.shape, 255, np.uint8)
        for x, y in self._at.tolist():
            cv2.circle(mask, (round(x), round(y)), _APART, 0, -1)
        wanted = _CORNERS - len(self._at)
        new = (
            None
            if wanted <= 0
            else cv2.goodFeaturesToTrack(picture, wanted, 0.005, _APART, mask=mask)
        )
        if new is None:
            return
        new = new.reshape(-1, 2)
        names = np.arange(self._next, self._next + len(new))
        self._next += len(new)
        self._at = np.concatenate([self._at, new]).astype(np.float32)
        self._names = np.concatenate([self._names, names])

    def window(self) -> Iterator[Window]:
        """Yield the keyframes with the corners that enough of them see; none of too few corners."""
        counts: dict[int, int] = {}
        for _, pixels in self.keyframes:
            for name in pixels:
                counts[name] = counts.get(name, 0) + 1
        names = [name for name, count in counts.items() if count >= _SEEN]
        if len(names) < _FEWEST:
            return
        tracks = np.full((len(self.keyframes), len(names), 2), np.nan)
        for row, (_, pixels) in enumerate(self.keyframes):
            for column, name in enumerate(names):
                if name in pixels:
                    tracks[row, column] = pixels[name]
        yield Window(tuple(number for number, _ in self.keyframes), tracks)


def _followed(
    before: Gray, after: Gray, at: Float[np.ndarray, "N 2"]
) -> tuple[Float[np.ndarray, "N 2"], Bool[np.ndarray, "N"]]:
    """Return where corners of one picture are in another, and which were found."""
    # What stands in for the result is not looked at.
    there, found, _ = cv2.calcOpticalFlowPyrLK(
        before, after, at, at.copy(), winSize=(21, 21), maxLevel=4
    )
    return np.asarray(there, np.float32), np.asarray(found)[:, 0] > 0
