"""Detection over the whole recording, and where to look again.

A forward pass covers the recording. ``linking`` says whose hand each detection is. Then, only where
a slot is empty next to a sighting, the gap is looked at again: forwards and backwards with lower
thresholds, and in enlarged crops around the last and the next sighting.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import cv2
import numpy as np
from jaxtyping import UInt8

from acehand_core.motion import FrameSource
from acehand_core.trackers.mediapipe.detector import Detection, Detector
from acehand_core.trackers.mediapipe.linking import Slots, Turned, distance, unturned
from acehand_core.trackers.mediapipe.segments import Frames, PerFrame, SegmentCache, in_segments
from acehand_core.types import ImageRgb, Progress

LOW_CONFIDENCE = 0.3
#: A look walks at most this far into a gap and gives up after this many frames without the hand.
REACH_S = 3.0
GIVE_UP = 8
#: Frames of known hand that let the network lock on before a gap.
RUN_UP = 3
CROP_SIZES = 3.5  # side of a crop over the hand's rms size
CROP_PIXELS = 448
#: A second look must land this close to where the hand is expected, in hand sizes.
EXPECTED = 1.6


@dataclass(frozen=True, slots=True)
class Gap:
    """Frames ``start`` to ``stop - 1`` in which a slot is empty beside at least one sighting."""

    slot: int
    start: int
    stop: int
    before: Detection | None
    after: Detection | None


def forward_pass(frames: FrameSource, progress: Progress, cache: SegmentCache) -> Frames:
    """Detect hands in every frame, in segments that run side by side."""

    def follower() -> PerFrame:
        detector = Detector()
        return lambda frame, image: detector(image, "forward")

    return in_segments(frames, follower, "track", progress, cache)


def find_gaps(slots: Slots) -> list[Gap]:
    """Return the runs of empty frames of each slot that touch a sighting of that slot."""
    gaps = []
    for slot in (0, 1):
        empty = np.array([pair[slot] is None for pair in slots])
        edges = np.flatnonzero(np.diff(np.concatenate([[0], empty, [0]])))
        for start, stop in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            before = slots[start - 1][slot] if start > 0 else None
            after = slots[stop][slot] if stop < len(slots) else None
            if before is not None or after is not None:
                gaps.append(Gap(slot, start, stop, before, after))
    return gaps


def look_again(
    frames: FrameSource,
    gaps: Sequence[Gap],
    fps: float,
    progress: Progress,
    turned: Turned = unturned,
) -> Iterator[tuple[int, Detection]]:
    """Yield (frame, detection) of hands that the forward pass lost."""
    if not gaps:
        return
    reach = max(GIVE_UP, round(REACH_S * fps))
    low = partial(Detector, detection_confidence=LOW_CONFIDENCE, tracking_confidence=LOW_CONFIDENCE)
    moving, still = low(), low(still=True)
    for index, gap in enumerate(gaps):
        progress("look again", index, len(gaps))
        seen: dict[int, Detection] = {}
        for walk in _walks(gap, reach):
            seen.update(_follow(walk, frames, moving, gap.slot, turned))
        for walk in _walks(gap, reach):
            seen.update(_crops(walk, frames, still, gap.slot, seen, turned))
        yield from seen.items()
    progress("look again", len(gaps), len(gaps))


@dataclass(frozen=True, slots=True)
class _Walk:
    """A way into a gap from the sighting beside it, forwards or backwards."""

    start: int
    stop: int
    backwards: bool
    sighting: Detection

    @property
    def sighted(self) -> int:
        """The frame of the sighting."""
        return self.stop if self.backwards else self.start - 1

    def images(self, frames: FrameSource, run_up: int) -> Iterator[tuple[int, bool, ImageRgb]]:
        """Yield (frame, inside the gap, image) in walking order."""
        if self.backwards:
            stop = min(len(frames), self.stop + run_up)
            for frame, image in zip(
                range(stop - 1, self.start - 1, -1),
                frames.read_reversed(self.start, stop),
                strict=True,
            ):
                yield frame, frame < self.stop, image
        else:
            start = max(0, self.start - run_up)
            for frame, image in zip(
                range(start, self.stop), frames.read(start, self.stop), strict=True
            ):
                yield frame, frame >= self.start, image


def _walks(gap: Gap, reach: int) -> Iterator[_Walk]:
    if gap.before is not None:
        yield _Walk(gap.start, min(gap.stop, gap.start + reach), False, gap.before)
    if gap.after is not None:
        yield _Walk(max(gap.start, gap.stop - reach), gap.stop, True, gap.after)


def _follow(
    walk: _Walk, frames: FrameSource, detector: Detector, slot: int, turned: Turned
) -> Iterator[tuple[int, Detection]]:
    """Track into the gap from its edge; the last sighting moves along."""
    detector.reset()
    last, at, misses = walk.sighting, walk.sighted, 0
    look = "backward" if walk.backwards else "forward again"
    for frame, inside, image in walk.images(frames, RUN_UP):
        found = detector(image, look)
        if not inside:
            continue
        match = _expected(found, [last, turned(last, at, frame)], slot, misses)
        if match is None:
            misses += 1
            if misses >= GIVE_UP:
                return
            continue
        last, at, misses = match, frame, 0
        yield frame, match


def _crops(
    walk: _Walk,
    frames: FrameSource,
    detector: Detector,
    slot: int,
    seen: dict[int, Detection],
    turned: Turned,
) -> Iterator[tuple[int, Detection]]:
    """Look at an enlarged crop around the last sighting where the other walks saw nothing."""
    last, at, misses = walk.sighting, walk.sighted, 0
    for frame, _, image in walk.images(frames, 0):
        if frame in seen:
            last, at, misses = seen[frame], frame, 0
            continue

        in_room = turned(last, at, frame)
        crop, scale, corner = _crop(image, in_room or last)
        hands = [
            replace(d, pixels=(d.pixels + 0.5) / scale - 0.5 + corner)
            for d in detector(crop, "crop")
        ]
        match = _expected(hands, [last, in_room], slot, misses)

        if match is None:
            misses += 1
            if misses >= GIVE_UP:
                return
            continue

        last, at, misses = match, frame, 0
        yield frame, match


def _crop(
    image: ImageRgb, around: Detection
) -> tuple[UInt8[np.ndarray, "h w 3"], np.ndarray, np.ndarray]:
    """Return an enlarged square around a hand, its scales (x, y), and its corner in the image."""
    height, width = image.shape[:2]
    side = int(np.clip(CROP_SIZES * around.size, 32, max(width, height)))
    centre = around.pixels.mean(0)
    corner = np.round(centre - side / 2).astype(int)
    corner = np.maximum(np.minimum(corner, [width - side, height - side]), 0)
    view = image[corner[1] : corner[1] + side, corner[0] : corner[0] + side]
    shape = np.array(view.shape[1::-1])
    size = np.maximum(1, np.round(shape * (CROP_PIXELS / shape.max()))).astype(int)
    crop = cv2.resize(view, size.tolist(), interpolation=cv2.INTER_LINEAR)
    return crop, size / shape, corner  # sizes are whole, so the scales may differ a little


def _expected(
    detections: Sequence[Detection], places: Sequence[Detection | None], slot: int, misses: int
) -> Detection | None:
    """Return the detection that continues a hand: near, as large, not of the other side.

    ``places``: where it is expected.
    """

    def off(found: Detection) -> float:
        return min(distance(found, place) for place in places if place is not None)

    def alike(found: Detection) -> bool:
        return any(0.5 < found.size / place.size < 2.0 for place in places if place is not None)

    near = [
        d
        for d in detections
        if off(d) < EXPECTED + 0.1 * misses
        and alike(d)
        and (d.p_right if slot else 1 - d.p_right) > 0.3
    ]
    return min(near, key=off, default=None)
