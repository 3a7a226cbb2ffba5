"""Detection over the whole recording, and where to look again.

A forward pass covers the recording. ``linking`` says whose hand each detection is. Then, only where
a slot is empty next to a sighting, the gap is looked at again: forwards and backwards with lower
thresholds, where the hand was in the frame beside, then around that place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from acehand_core.motion import FrameSource, runs
from acehand_core.trackers.mediapipe.detector import MAX_HANDS, Detection, Detector
from acehand_core.trackers.mediapipe.linking import Slots, Turned, unturned
from acehand_core.trackers.mediapipe.networks import HandNetworks, crop_of, hand_networks, naming
from acehand_core.trackers.mediapipe.search import (
    SAME_HAND,
    SURROUNDINGS,
    apart,
    followed,
    new_hands,
)
from acehand_core.trackers.mediapipe.segments import Frames, PerFrame, SegmentCache, in_segments
from acehand_core.types import ImageRgb, Progress, Quality

#: Another look gives up after this many frames without the hand.
GIVE_UP = 8
#: Pictures that a walk backwards holds at once, from its first few on.
HELD_BYTES = 400_000_000
#: A second look must land this close to where the hand is expected, in hand sizes.
EXPECTED = 1.6


@dataclass(frozen=True, slots=True)
class SightGap:
    """Frames ``start`` to ``stop - 1`` in which a slot is empty beside at least one sighting."""

    slot: int
    start: int
    stop: int
    before: Detection | None
    after: Detection | None


def forward_pass(
    frames: FrameSource,
    fps: float,
    progress: Progress,
    cache: SegmentCache,
    quality: Quality = "balanced",
) -> Frames:
    """Detect hands in every frame, in segments that run side by side."""

    def follower() -> PerFrame:
        detector = Detector(fps, quality)
        return lambda frame, image: detector(image, "forward")

    return in_segments(frames, follower, "track", progress, cache)


def find_gaps(slots: Slots) -> list[SightGap]:
    """Return the runs of empty frames of each slot that touch a sighting of that slot."""
    gaps = []
    for slot in (0, 1):
        empty = np.array([pair[slot] is None for pair in slots])
        for start, stop in runs(empty):
            before = slots[start - 1][slot] if start > 0 else None
            after = slots[stop][slot] if stop < len(slots) else None
            if before is not None or after is not None:
                gaps.append(SightGap(slot, start, stop, before, after))
    return gaps


def look_again(
    frames: FrameSource,
    detections: Frames,
    slots: Slots,
    progress: Progress,
    turned: Turned = unturned,
) -> Iterator[tuple[int, Detection]]:
    """Yield (frame, detection) of hands that the forward pass lost, or found late.

    Args:
        detections: all that were seen, other people's hands too.
    """
    gaps = find_gaps(slots)
    if not gaps:
        return
    networks = hand_networks()
    present = [list(hands) for hands in detections]
    for index, gap in enumerate(gaps):
        progress("look again", index, len(gaps))
        seen: dict[int, Detection] = {}
        for backwards, sighting in ((False, gap.before), (True, gap.after)):
            if sighting is not None:
                walk = _Walk(gap, backwards, sighting)
                _follow(walk, frames, networks, present, turned, seen)
        for frame, hand in seen.items():
            present[frame].append(hand)
        yield from seen.items()
    progress("look again", len(gaps), len(gaps))


@dataclass(frozen=True, slots=True)
class _Walk:
    """A way into a gap from the sighting beside it, forwards or backwards."""

    gap: SightGap
    backwards: bool
    sighting: Detection

    @property
    def sighted(self) -> int:
        """The frame of the sighting."""
        return self.gap.stop if self.backwards else self.gap.start - 1

    def images(self, frames: FrameSource) -> Iterator[tuple[int, ImageRgb]]:
        """Yield (frame, image) in walking order."""
        start, stop = self.gap.start, self.gap.stop
        if self.backwards:
            yield from _backwards(frames, start, stop)
        else:
            yield from zip(range(start, stop), frames.read(start, stop), strict=True)


def _backwards(frames: FrameSource, start: int, stop: int) -> Iterator[tuple[int, ImageRgb]]:
    """Yield (frame, image) from ``stop - 1`` down to ``start``.

    Few pictures are read at a time at first, since most walks end soon.
    """
    count = GIVE_UP
    while stop > start:
        begin = max(start, stop - count)
        held = list(enumerate(frames.read(begin, stop), begin))
        count, stop = min(2 * count, max(1, HELD_BYTES // held[0][1].nbytes)), begin
        while held:
            yield held.pop()


def _follow(
    walk: _Walk,
    frames: FrameSource,
    networks: HandNetworks,
    present: Sequence[Sequence[Detection]],
    turned: Turned,
    seen: dict[int, Detection],
) -> None:
    """Follow a hand into the gap until it is lost; add to ``seen`` what the other walk did not."""
    last, at, misses = walk.sighting, walk.sighted, 0
    look = "backward" if walk.backwards else "forward again"
    for frame, image in walk.images(frames):
        match = seen.get(frame)
        if match is None:
            in_room = turned(last, at, frame)
            places = [last] if in_room is None else [last, in_room]
            with naming(frame):
                match = _found(networks, np.ascontiguousarray(image), places, look, walk, misses)
            if match is not None and any(
                apart(match, other) < SAME_HAND for other in present[frame]
            ):
                match = None

        if match is None:
            misses += 1
            if misses >= GIVE_UP:
                return
            continue
        seen[frame] = match
        last, at, misses = match, frame, 0


def _found(
    networks: HandNetworks,
    image: ImageRgb,
    places: Sequence[Detection],
    look: str,
    walk: _Walk,
    misses: int,
) -> Detection | None:
    """Return the hand that is expected at some places: there, or else in their surroundings."""
    crops = [crop_of(place.pixels) for place in places]
    hands = [hand for crop in crops if (hand := followed(networks, image, crop)) is not None]
    found = [Detection(h.pixels, h.world, h.p_right, look, h.presence) for h in hands]
    match = _expected(found, places, walk.gap.slot, misses)
    if match is not None:
        return match

    around = [replace(crop, side=SURROUNDINGS * crop.side) for crop in crops]
    hands = new_hands(networks, image, around, [], MAX_HANDS)
    found = [Detection(h.pixels, h.world, h.p_right, "surroundings", h.presence) for h in hands]
    return _expected(found, places, walk.gap.slot, misses)


def _expected(
    detections: Sequence[Detection], places: Sequence[Detection], slot: int, misses: int
) -> Detection | None:
    """Return the detection that continues a hand: near, as large, not of the other side.

    ``places``: where it is expected.
    """

    def off(found: Detection) -> float:
        return min(apart(found, place) for place in places)

    def alike(found: Detection) -> bool:
        return any(0.5 < found.size / place.size < 2.0 for place in places)

    near = [
        d
        for d in detections
        if off(d) < EXPECTED + 0.1 * misses
        and alike(d)
        and (d.p_right if slot else 1 - d.p_right) > 0.3
    ]
    return min(near, key=off, default=None)
