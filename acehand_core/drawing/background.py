"""What a person hides in a frame, from other frames of the recording.

Frames are aligned by homographies between their features: exact where only the camera turns or the
scene is a plane, as most of what hands work on is. Pixels that no frame shows are blended from the
edge of the hole.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import cv2
import numpy as np
from jaxtyping import Bool, Float, Float32, UInt8

from acehand_core.motion import FrameSource
from acehand_core.types import ImageRgb, Picture

#: Seconds between the frames that are looked into, and how many are kept in memory.
_STEP_S, _KEPT = 0.5, 24
#: Views of a pixel that are enough: the median of three ignores what moved through one.
_ENOUGH = 3
#: How clear a frame's pixels are: background, or maybe the person or its shadow (0: the person).
LIT, DOUBTFUL = 255, 128
#: Features of a picture, the longest side in which they are found (px), and the least matches.
_FEATURES, _FEATURE_SIDE, _LEAST_MATCHES = 800, 640, 24
#: Ratio of the distances of the best and the second match; how far a match may be off (px).
_DISTINCT, _OFF_PX = 0.8, 2.0
#: A camera that moves less (px) stands still.
_STILL_PX = 0.7
#: Width of the rim whose colours are compared (px), and a difference there (0..255) that is not of
#: the light.
_RIM_PX, _MOVED = 9, 48.0
#: The light changes slowly: it is compared in blocks of so many pixels.
_COARSE = 4
#: Of the pyramid: the weight from which a pixel needs no coarser level, and what counts as none.
_TRUSTED, _TINY = 0.3, 1e-4

Hole = Bool[np.ndarray, "H W"]
Clear = UInt8[np.ndarray, "H W"]
Homography = Float[np.ndarray, "3 3"]


@dataclass(frozen=True, slots=True, eq=False)
class _Look:
    """One frame: the picture, what of it is background, and its features."""

    image: ImageRgb
    clear: Clear
    points: Float[np.ndarray, "N 2"]
    descriptors: UInt8[np.ndarray, "N 32"] | None


@dataclass(frozen=True, slots=True, eq=False)
class Filled:
    """A picture without the person.

    Attributes:
        unseen: pixels of the hole that no frame shows.
    """

    image: Picture
    unseen: Hole


class Background:
    """The background of a recording behind holes in its frames."""

    def __init__(
        self, frames: FrameSource, clear_of: Callable[[ImageRgb, int], Clear], fps: float
    ) -> None:
        """``clear_of`` returns what of a frame is background."""
        self._frames, self._clear_of = frames, clear_of
        self._step = max(1, round(_STEP_S * fps))
        self._orb = cv2.ORB.create(_FEATURES, fastThreshold=8)
        self._matcher = cv2.BFMatcher(cv2.NORM_HAMMING)
        self._looks = functools.lru_cache(_KEPT)(self._look_at)

    def fill(self, image: ImageRgb, hole: Hole, frame: int) -> Filled:
        """Return a frame without what ``hole`` marks."""
        left, top, width, height = cv2.boundingRect(hole.astype(np.uint8))
        if not width:
            return Filled(image, hole)
        left, top = max(left - _RIM_PX, 0), max(top - _RIM_PX, 0)
        box = np.s_[top : top + height + 2 * _RIM_PX, left : left + width + 2 * _RIM_PX]
        inside = np.nonzero(hole[box])
        rim = np.nonzero(_rim(hole[box]))
        shift = np.array([[1.0, 0, -left], [0, 1, -top], [0, 0, 1]])

        own = self._look(image, np.where(hole, np.uint8(0), np.uint8(LIT)))
        counts, part = np.zeros(len(inside[0]), int), image[box]
        values = np.full((_ENOUGH, len(counts), 3), np.nan, np.float32)
        spare = np.full((len(counts), 3), np.nan, np.float32)
        for key in self._others(frame):
            other = self._looks(key)
            T_own_other = self._aligned(own, other)
            if T_own_other is None:
                continue
            T, size = shift @ T_own_other, part.shape[1::-1]
            clear = cv2.warpPerspective(other.clear, T, size, flags=cv2.INTER_NEAREST)
            lit = (clear[inside] == LIT) & (counts < _ENOUGH)
            doubtful = (clear[inside] == DOUBTFUL) & np.isnan(spare[:, 0]) & (counts == 0)
            if not (lit | doubtful).any():
                continue
            view = cv2.warpPerspective(other.image, T, size, flags=cv2.INTER_LINEAR)
            around = tuple(axis[clear[rim] > 0] for axis in rim)
            seen = view[inside] + _difference(part, view, around)[inside]
            values[counts[lit], lit] = seen[lit]
            spare[doubtful] = seen[doubtful]
            counts += lit
            if (counts >= _ENOUGH).all():
                break

        alone = (counts == 0) & np.isfinite(spare[:, 0])
        values[0, alone] = spare[alone]
        counts += alone
        filled, unseen = image.copy(), np.zeros_like(hole)
        known, missing = (
            tuple(axis[chosen] for axis in inside) for chosen in (counts > 0, counts == 0)
        )
        filled[box][known] = _median(values[:, counts > 0]).clip(0, 255).round()
        unseen[box][missing] = True
        if len(missing[0]):
            filled[box] = blended(filled[box], unseen[box])
        return Filled(filled, unseen)

    def _others(self, frame: int) -> Iterator[int]:
        """Yield frames to look into: both directions, close ones first, far ones in long steps.

        Far ones are the same for many frames, so that they are read once.
        """
        count, step = len(self._frames), self._step
        while True:
            before, after = (frame // step - 1) * step, (frame // step + 1) * step
            sides = [key for key in (after, before) if 0 <= key < count]
            yield from sorted(sides, key=lambda key: abs(key - frame))
            if before < 0 and after >= count:
                return
            step *= 2

    def _look_at(self, frame: int) -> _Look:
        image = self._frames.at(frame)
        return self._look(image, self._clear_of(image, frame))

    def _look(self, image: ImageRgb, clear: Clear) -> _Look:
        scale = min(1.0, _FEATURE_SIDE / max(image.shape[:2]))
        size = round(image.shape[1] * scale), round(image.shape[0] * scale)
        grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
        grey = cv2.resize(grey, size, interpolation=cv2.INTER_AREA)
        where = cv2.resize(clear, size, interpolation=cv2.INTER_NEAREST)
        points, descriptors = self._orb.detectAndCompute(grey, where)
        places = np.array([point.pt for point in points], float).reshape(-1, 2)
        stretch = np.array([image.shape[1] / size[0], image.shape[0] / size[1]])
        return _Look(image, clear, (places + 0.5) * stretch - 0.5, descriptors)

    def _aligned(self, own: _Look, other: _Look) -> Homography | None:
        """Return the homography from another frame's pixels to a frame's; None: not found."""
        if own.descriptors is None or other.descriptors is None:
            return None
        pairs = self._matcher.knnMatch(other.descriptors, own.descriptors, k=2)
        good = [p[0] for p in pairs if len(p) == 2 and p[0].distance < _DISTINCT * p[1].distance]
        if len(good) < _LEAST_MATCHES:
            return None
        source = other.points[[match.queryIdx for match in good]]
        target = own.points[[match.trainIdx for match in good]]
        moved = np.linalg.norm(target - source, axis=1)
        if np.median(moved) < _STILL_PX:
            return np.eye(3)
        T, inliers = cv2.findHomography(source, target, cv2.USAC_MAGSAC, _OFF_PX)
        return None if T is None or inliers.sum() < _LEAST_MATCHES else T


def _rim(inside: Hole) -> Hole:
    grown = cv2.dilate(inside.astype(np.uint8), np.ones((_RIM_PX, _RIM_PX), np.uint8)) > 0
    return grown & ~inside


def _difference(
    image: Picture, view: Picture, rim: tuple[np.ndarray, ...]
) -> Float32[np.ndarray, "h w 3"]:
    """Return by how much a picture is brighter than a view.

    It continues smoothly from the rim's rows and columns into the hole; what moved does not count.
    """
    height, width = (max(1, side // _COARSE) for side in view.shape[:2])
    difference = image[rim].astype(np.float32) - view[rim]
    alike = np.abs(difference).max(axis=-1, initial=0) < _MOVED
    if not alike.any():
        return np.zeros(view.shape, np.float32)
    rows, columns = (axis[alike] // _COARSE for axis in rim)
    cells = np.minimum(rows, height - 1) * width + np.minimum(columns, width - 1)
    weight, *total = (
        np.bincount(cells, values, height * width).reshape(height, width).astype(np.float32)
        for values in (np.ones(len(cells)), *difference[alike].T)
    )
    smooth = _spread(np.stack(total, axis=-1), weight)
    return cv2.resize(smooth, view.shape[1::-1], interpolation=cv2.INTER_LINEAR)


def _median(values: Float[np.ndarray, "V N 3"]) -> Float[np.ndarray, "N 3"]:
    """Return the median of each pixel's views; NaN is none, and there is at least one."""
    ordered = np.sort(values, axis=0)  # NaN last
    count = np.isfinite(values[..., 0]).sum(axis=0)
    row = np.arange(values.shape[1])
    return (ordered[(count - 1) // 2, row] + ordered[count // 2, row]) / 2


def blended(image: Picture, hole: Hole) -> Picture:
    """Return a picture with a hole filled smoothly from around it."""
    weight = (~hole).astype(np.float32)
    smooth = _spread(image * weight[..., None], weight)
    return np.where(hole[..., None], smooth.clip(0, 255).round(), image).astype(np.uint8)


def _spread(
    total: Float32[np.ndarray, "h w 3"], weight: Float32[np.ndarray, "h w"]
) -> Float32[np.ndarray, "h w 3"]:
    """Return weighted means, spread by a pyramid to where there is no weight."""
    totals, weights = [total], [weight]
    while min(weights[-1].shape) > 2:
        totals.append(cv2.pyrDown(totals[-1]))
        weights.append(cv2.pyrDown(weights[-1]))

    smooth = totals[-1] / np.maximum(weights[-1], _TINY)[..., None]
    for own, known in zip(totals[-2::-1], weights[-2::-1], strict=True):
        coarse = cv2.pyrUp(smooth, dstsize=known.shape[::-1])
        share = np.minimum(known / _TRUSTED, 1)[..., None]
        smooth = share * own / np.maximum(known, _TINY)[..., None] + (1 - share) * coarse
    return smooth
