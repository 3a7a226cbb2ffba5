"""Detection over the whole recording, in segments that are kept, and where to look again.

A forward pass covers the recording. ``linking`` says whose hand each detection is. Then, only where
a slot is empty next to a sighting, the gap is looked at again: forwards and backwards with lower
thresholds, where the hand was in the frame beside, then around that place.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from acehand_core.errors import InputError, OutputError
from acehand_core.motion import FrameSource, runs
from acehand_core.processes import thread_count
from acehand_core.safe_files import safe_load_npz
from acehand_core.trackers.mediapipe.linking import Slots, Turned, unturned
from acehand_core.trackers.mediapipe.networks import HandNetworks, crop_of, hand_networks, naming
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

# Long passes over a recording: segments that run side by side, and are kept.
#
# Partial results are kept in a folder, so that an interrupted run resumes where it stopped. A
# segment's key is a hash of the pictures (file and how it was read), the networks and the settings:
# never of a name.

#: Frames of one segment. Fixed, so that a result does not depend on the machine.
SEGMENT_FRAMES = 320

Frames = list[list[Detection]]
#: From a frame's number and picture to its hands; called for the frames of a segment in order.
PerFrame = Callable[[int, ImageRgb], list[Detection]]


def in_segments(
    frames: FrameSource,
    begin: Callable[[], PerFrame],
    stage: str,
    progress: Progress,
    cache: SegmentCache,
) -> Frames:
    """Return the hands of every frame.

    Args:
        begin: makes what looks at one segment; segments know nothing of each other.
        stage: what the progress is called.
        cache: segments in it are not looked at.
    """
    count = len(frames)
    pieces = max(1, -(-count // SEGMENT_FRAMES))
    edges = np.linspace(0, count, pieces + 1).round().astype(int)
    segments = list(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True))
    detections: Frames = [[] for _ in range(count)]
    stop = threading.Event()
    lock = threading.Lock()
    done = 0

    def work(jobs: Iterator[tuple[int, int]]) -> None:
        nonlocal done
        while not stop.is_set():
            with lock:
                job = next(jobs, None)
            if job is None:
                return

            result = cache.get(*job)
            if result is None:
                look, result = begin(), []
                for frame, image in enumerate(frames.read(*job), job[0]):
                    if stop.is_set():
                        return
                    with naming(frame):
                        result.append(look(frame, image))
                    with lock:
                        done += 1
                        progress(stage, done, count)
                cache.put(*job, result)
            else:
                with lock:
                    done += job[1] - job[0]
                    progress(stage, done, count)

            detections[job[0] : job[1]] = result

    jobs = iter(segments)
    workers = min(len(segments), thread_count())
    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(work, jobs) for _ in range(workers)]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            stop.set()
    for future in futures:
        future.result()
    return detections


class SegmentCache:
    """Detections per segment in a folder; with no folder nothing is kept."""

    def __init__(self, folder: Path | None, key: dict[str, Any]) -> None:
        self._folder = folder
        digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
        self._prefix = f"detections-{digest[:24]}"

    def get(self, start: int, stop: int) -> list[list[Detection]] | None:
        """Return a finished segment, or None. A damaged file counts as absent."""
        path = self._path(start, stop)
        if path is None or not path.is_file():
            return None

        try:
            data = safe_load_npz(path)
            known = np.isfinite(data["covariance"]).all((1, 2, 3))
            flat = [
                Detection(
                    pixels, world, float(p_right), str(look), float(presence),
                    covariance if several else None,
                )
                for pixels, world, p_right, look, presence, covariance, several in zip(
                    data["pixels"], data["world"], data["p_right"], data["look"],
                    data["presence"], data["covariance"], known, strict=True,
                )
            ]  # fmt: skip
            ends = np.cumsum(data["count"])
            if len(ends) != stop - start or ends[-1] != len(flat):
                return None
        except (InputError, EOFError, KeyError, ValueError):
            return None

        return [flat[end - count : end] for end, count in zip(ends, data["count"], strict=True)]

    def put(self, start: int, stop: int, frames: list[list[Detection]]) -> None:
        """Write a finished segment; it appears whole or not at all.

        Raises OutputError when the folder cannot be written.
        """
        path = self._path(start, stop)
        if path is None:
            return
        flat = [d for detections in frames for d in detections]
        one = np.full((21, 2, 2), np.nan)

        partial = path.with_suffix(f".{os.getpid()}.partial")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with partial.open("wb") as file:
                np.savez_compressed(
                    file,
                    count=np.array([len(d) for d in frames]),
                    pixels=np.array([d.pixels for d in flat]).reshape(-1, 21, 2),
                    world=np.array([d.world for d in flat]).reshape(-1, 21, 3),
                    p_right=np.array([d.p_right for d in flat]),
                    look=np.array([d.look for d in flat], dtype="U16"),
                    presence=np.array([d.presence for d in flat]),
                    covariance=np.array(
                        [one if d.covariance is None else d.covariance for d in flat]
                    ).reshape(-1, 21, 2, 2),
                )
            partial.replace(path)
        except OSError as error:
            raise OutputError(
                f"{path.parent}: partial results cannot be written: {error.strerror or error}."
            ) from error

    def _path(self, start: int, stop: int) -> Path | None:
        if self._folder is None:
            return None
        return self._folder / f"{self._prefix}-{start:09d}-{stop:09d}.npz"


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
