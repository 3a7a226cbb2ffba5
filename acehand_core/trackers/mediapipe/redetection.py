"""Detection over the whole recording in resumable segments, and a second look into gaps.

A forward pass covers the recording, and ``linking`` assigns the detections to hands. Each gap next
to a sighting is searched again, forwards and backwards with lower thresholds: at the hand's last
place, then around it.

Finished segments are kept in a folder, so that an interrupted run resumes. A segment's key is a
hash of the pictures (file and reading), the networks and the settings, never of a name.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from acehand_core.geometry.cameras import Camera
from acehand_core.motion import FrameSource, runs
from acehand_core.processes import SharedProgress, in_threads, release_memory
from acehand_core.recordings.video_encode import ahead
from acehand_core.safe_files import ArrayCache
from acehand_core.trackers.mediapipe.crops import crop_of
from acehand_core.trackers.mediapipe.linking import Slots, Turned, unturned
from acehand_core.trackers.mediapipe.networks import (
    HandNetworks,
    Look,
    at_once,
    end_with,
    hand_networks,
    naming,
)
from acehand_core.trackers.mediapipe.search import (
    MAX_HANDS,
    SAME_HAND,
    SURROUNDINGS,
    Detection,
    Detector,
    apart,
    followed,
    new_hands,
)
from acehand_core.types import ImageRgb, Progress, Quality

#: Frames of one segment, fixed so that results do not depend on the machine. Each begins without
#: known hands: with two in clips of 81 frames one hand in 20 was lost.
SEGMENT_FRAMES = 320

Frames = list[list[Detection]]
#: From a frame's number and picture to its hands, in the order of a segment's frames.
PerFrame = Callable[[int, ImageRgb], list[Detection]]
Begin = Callable[[], PerFrame]

#: Frames without the hand after which a second look ends.
GIVE_UP = 8
#: Numbers of frames without the hand after which its surroundings are searched too.
SEARCHED = (0, 1, 3, 7)
#: Pictures held at once by a thread that walks through gaps.
HELD_BYTES = 150_000_000
#: Largest distance of a second look from the expected place, in hand sizes.
EXPECTED = 1.6
#: Distance of two expected places, in hand sizes, up to which one look is enough.
SAME_PLACE = 0.1


def in_segments(
    frames: FrameSource,
    begin: Begin,
    stage: str,
    progress: Progress,
    cache: SegmentCache,
    least: int = 1,
) -> Frames:
    """Return the hands of every frame; ``begin`` starts each segment that the cache lacks.

    ``least``: number of segments.
    """
    count = len(frames)
    pieces = max(min(least, count), -(-count // SEGMENT_FRAMES))
    edges = np.linspace(0, count, pieces + 1).round().astype(int).tolist()
    shared = SharedProgress(progress, stage, count)

    def detect(segment: tuple[int, int], stop: threading.Event) -> Frames:
        end_with(stop)
        result = cache.get(*segment)
        if result is not None:
            shared.advance(len(result))
            return result

        look, result = begin(), []
        for frame, image in enumerate(ahead(frames.read(*segment)), segment[0]):
            result.append(look(frame, image))
            shared.advance()
        cache.put(*segment, result)
        release_memory()  # kept hands lie scattered between freed pictures
        return result

    return list(itertools.chain(*in_threads(detect, list(itertools.pairwise(edges)))))


class SegmentCache:
    """Detections per segment in a folder, if there is one."""

    def __init__(self, folder: Path | None, key: dict[str, Any]) -> None:
        self._arrays = ArrayCache(folder, "detections", key)

    def get(self, start: int, stop: int) -> list[list[Detection]] | None:
        """Return a finished segment, or None, also for a damaged file."""
        if (data := self._arrays.get(start, stop)) is None:
            return None
        try:
            flat = []
            names = ("pixels", "world", "p_right", "look", "presence", "covariance")
            for pixels, world, p_right, look, presence, covariance in zip(
                *(data[name] for name in names), strict=True
            ):
                known = covariance if np.isfinite(covariance).all() else None
                seen = float(p_right), str(look), float(presence)
                flat.append(Detection(pixels, world, *seen, known))
            ends = np.cumsum(data["count"])
            if len(ends) != stop - start or ends[-1] != len(flat):
                return None
        except (KeyError, ValueError):
            return None

        return [flat[end - count : end] for end, count in zip(ends, data["count"], strict=True)]

    def put(self, start: int, stop: int, frames: list[list[Detection]]) -> None:
        """Write a finished segment. Raises OutputError."""
        flat = [d for detections in frames for d in detections]
        one = np.full((21, 2, 2), np.nan)
        spread = [one if d.covariance is None else d.covariance for d in flat]
        arrays = {
            "count": np.array([len(d) for d in frames]),
            "pixels": np.array([d.pixels for d in flat]).reshape(-1, 21, 2),
            "world": np.array([d.world for d in flat]).reshape(-1, 21, 3),
            "p_right": np.array([d.p_right for d in flat]),
            "look": np.array([d.look for d in flat], dtype="U16"),
            "presence": np.array([d.presence for d in flat]),
            "covariance": np.array(spread).reshape(-1, 21, 2, 2),
        }
        self._arrays.put(start, stop, arrays)


@dataclass(frozen=True, slots=True)
class SightGap:
    """Frames ``start`` to ``stop - 1`` with an empty slot, next to at least one sighting."""

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
    lens: Camera | None = None,
) -> Frames:
    """Detect hands in every frame, in parallel segments."""

    def follower() -> PerFrame:
        detector = Detector(fps, quality, lens)

        def look(frame: int, image: ImageRgb) -> list[Detection]:
            with naming(frame):
                return detector(image, "forward", is_mirrored(frame))

        return look

    return in_segments(frames, follower, "track", progress, cache)


def is_mirrored(frame: int) -> bool:
    """Whether known hands are looked at in a mirrored crop: in every other frame."""
    return frame % 2 == 1


def find_gaps(slots: Slots) -> list[SightGap]:
    """Return the runs of empty frames of each slot next to a sighting."""
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
    lens: Camera | None = None,
) -> list[tuple[int, Detection]]:
    """Return (frame, detection) of hands that the forward pass lost or found late.

    ``detections`` are all, including other people's hands.
    """
    gaps = find_gaps(slots)
    if not gaps:
        return []
    networks = hand_networks().through(lens)
    present = [list(hands) for hands in detections]
    shared = SharedProgress(progress, "look again", len(gaps))
    shared.advance(0)

    def hands_of(group: Sequence[SightGap], stop: threading.Event) -> list[tuple[int, Detection]]:
        end_with(stop)
        hands: list[tuple[int, Detection]] = []
        pictures = _HeldPictures(frames, {})

        for gap in group:
            seen: dict[int, Detection] = {}
            if gap.before is not None:
                search = _Search(networks, gap.slot, "forward again", turned)
                ahead = ((frame, pictures.at(frame)) for frame in range(gap.start, gap.stop))
                search.follow(gap.before, gap.start - 1, ahead, present, seen)
            if gap.after is not None:
                search = _Search(networks, gap.slot, "backward", turned)
                back = pictures.backwards(gap.start, gap.stop)
                search.follow(gap.after, gap.stop, back, present, seen)
            for frame, hand in seen.items():
                present[frame].append(hand)
            hands += seen.items()
            shared.advance()
        return hands

    return list(itertools.chain(*in_threads(hands_of, _independent(gaps))))


def _independent(gaps: Sequence[SightGap]) -> list[list[SightGap]]:
    """Return gaps in groups without common frames: a hand of one gap is not that of another."""
    groups: list[list[SightGap]] = []
    for gap in sorted(gaps, key=lambda gap: gap.start):
        if not groups or gap.start >= max(other.stop for other in groups[-1]):
            groups.append([])
        groups[-1].append(gap)
    return groups


@dataclass(frozen=True, slots=True)
class _HeldPictures:
    """Pictures of a few frames that are looked at repeatedly, by several walks."""

    frames: FrameSource
    held: dict[int, ImageRgb]

    def at(self, frame: int) -> ImageRgb:
        """Return a picture; the latest are held."""
        if frame not in self.held:
            image = self.frames.at(frame)
            while len(self.held) >= max(1, HELD_BYTES // image.nbytes):
                del self.held[next(iter(self.held))]
            self.held[frame] = image
        return self.held[frame]

    def backwards(self, start: int, stop: int) -> Iterator[tuple[int, ImageRgb]]:
        """Yield (frame, picture) from ``stop - 1`` down to ``start``.

        Videos are decoded forwards: a short gap at once, a long one in parts, as a short walk reads
        few.
        """
        count = GIVE_UP if stop - start > 2 * GIVE_UP else stop - start
        while stop > start:
            begin = max(start, stop - count)
            begin = max(begin, stop - max(1, HELD_BYTES // self.at(begin).nbytes))
            part = [(frame, self.at(frame)) for frame in range(begin, stop)]
            count, stop = 2 * count, begin
            while part:
                yield part.pop()


@dataclass(frozen=True, slots=True)
class _Search:
    """A second look for one slot's hand, in one direction."""

    networks: HandNetworks
    slot: int
    look: str
    turned: Turned

    def follow(
        self,
        last: Detection,
        at: int,
        images: Iterable[tuple[int, ImageRgb]],
        present: Sequence[Sequence[Detection]],
        seen: dict[int, Detection],
    ) -> None:
        """Follow a hand from frame ``at`` until it is lost; add to what the other walk has seen."""
        misses = 0
        for frame, image in images:
            match = seen.get(frame)
            if match is None:
                in_room = self.turned(last, at, frame)
                places = [last if in_room is None else in_room]
                if in_room is not None and apart(in_room, last) > SAME_PLACE:
                    places.append(last)
                others = present[frame]
                with naming(frame):
                    match = self._detect(np.ascontiguousarray(image), places, misses, others)
                if match is not None and any(apart(match, other) < SAME_HAND for other in others):
                    match = None

            if match is None:
                misses += 1
                if misses >= GIVE_UP:
                    return
                continue
            seen[frame] = match
            last, at, misses = match, frame, 0

    def _detect(
        self,
        image: ImageRgb,
        places: Sequence[Detection],
        misses: int,
        others: Sequence[Detection],
    ) -> Detection | None:
        """Return the hand at its expected places, or else in their surroundings."""
        crops = [crop_of(place.pixels, self.networks.lens) for place in places]
        looks = at_once(partial(followed, self.networks, image), crops)
        match = self._expected([hand for hand in looks if hand], self.look, places, misses)
        if match is not None or misses not in SEARCHED:
            return match
        around = [replace(crop, side=SURROUNDINGS * crop.side) for crop in crops]
        hands = new_hands(self.networks, image, around, others, MAX_HANDS)
        return self._expected(hands, "surroundings", places, misses)

    def _expected(
        self, hands: Sequence[Look], look: str, places: Sequence[Detection], misses: int
    ) -> Detection | None:
        """Return the hand that matches an expected one in place, size and side, or None."""

        def off(hand: Detection) -> float:
            return min(apart(hand, place) for place in places)

        detections = [Detection(h.pixels, h.world, h.p_right, look, h.presence) for h in hands]
        near = [
            d
            for d in detections
            if off(d) < EXPECTED + 0.1 * misses
            and any(0.5 < d.size / place.size < 2.0 for place in places)
            and (d.p_right if self.slot else 1 - d.p_right) > 0.3
        ]
        return min(near, key=off, default=None)
