"""Detection over the whole recording in resumable segments, and a second look into gaps.

A forward pass covers the recording, and ``linking`` assigns the detections to hands. Each gap next
to a sighting is searched again, forwards and backwards with lower thresholds: at the hand's last
place, then around it.

Finished segments are kept in a folder, so that an interrupted run resumes. A segment's key is a
hash of the pictures (file and reading), the networks and the settings, never of a name.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from acehand_core.errors import InputError, OutputError
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import FrameSource, runs
from acehand_core.processes import thread_count
from acehand_core.safe_files import safe_load_npz
from acehand_core.trackers.mediapipe.crops import crop_of
from acehand_core.trackers.mediapipe.linking import Slots, Turned, unturned
from acehand_core.trackers.mediapipe.networks import (
    HandNetworks,
    Look,
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

#: Frames of one segment, fixed so that results do not depend on the machine.
SEGMENT_FRAMES = 320

Frames = list[list[Detection]]
#: From a frame's number and picture to its hands, in the order of a segment's frames.
PerFrame = Callable[[int, ImageRgb], list[Detection]]
Begin = Callable[[], PerFrame]


def in_segments(
    frames: FrameSource, begin: Begin, stage: str, progress: Progress, cache: SegmentCache
) -> Frames:
    """Return the hands of every frame; ``begin`` starts each segment that the cache lacks."""
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
        end_with(stop)
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
            ended, _ = wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            stop.set()
    for future in (*ended, *futures):  # first the one that stopped the others
        future.result()
    return detections


class SegmentCache:
    """Detections per segment in a folder, if there is one."""

    def __init__(self, folder: Path | None, key: dict[str, Any]) -> None:
        self._folder = folder
        digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
        self._prefix = f"detections-{digest[:24]}"

    def get(self, start: int, stop: int) -> list[list[Detection]] | None:
        """Return a finished segment, or None, also for a damaged file."""
        path = self._path(start, stop)
        if path is None or not path.is_file():
            return None

        try:
            data, flat = safe_load_npz(path), []
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
        except (InputError, EOFError, KeyError, ValueError):
            return None

        return [flat[end - count : end] for end, count in zip(ends, data["count"], strict=True)]

    def put(self, start: int, stop: int, frames: list[list[Detection]]) -> None:
        """Write a finished segment atomically. Raises OutputError."""
        path = self._path(start, stop)
        if path is None:
            return
        flat = [d for detections in frames for d in detections]
        one = np.full((21, 2, 2), np.nan)
        spread = [one if d.covariance is None else d.covariance for d in flat]
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
                    covariance=np.array(spread).reshape(-1, 21, 2, 2),
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


#: Frames without the hand after which a second look ends.
GIVE_UP = 8
#: Pictures held at once by a long walk backwards.
HELD_BYTES = 400_000_000
#: Largest distance of a second look from the expected place, in hand sizes.
EXPECTED = 1.6


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
        return lambda frame, image: detector(image, "forward")

    return in_segments(frames, follower, "track", progress, cache)


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
    found: Frames,
    slots: Slots,
    progress: Progress,
    turned: Turned = unturned,
    lens: Camera | None = None,
) -> Iterator[tuple[int, Detection]]:
    """Yield (frame, detection) of hands that the forward pass lost or found late.

    ``found`` are all detections, including other people's hands.
    """
    gaps = find_gaps(slots)
    if not gaps:
        return
    networks = hand_networks().through(lens)
    present = [list(hands) for hands in found]
    for index, gap in enumerate(gaps):
        progress("look again", index, len(gaps))
        seen: dict[int, Detection] = {}
        if gap.before is not None:
            search = _Search(networks, gap.slot, "forward again", turned)
            ahead = enumerate(frames.read(gap.start, gap.stop), gap.start)
            search.follow(gap.before, gap.start - 1, ahead, present, seen)
        if gap.after is not None:
            search = _Search(networks, gap.slot, "backward", turned)
            back = _backwards(frames, gap.start, gap.stop)
            search.follow(gap.after, gap.stop, back, present, seen)
        for frame, hand in seen.items():
            present[frame].append(hand)
        yield from seen.items()
    progress("look again", len(gaps), len(gaps))


def _backwards(frames: FrameSource, start: int, stop: int) -> Iterator[tuple[int, ImageRgb]]:
    """Yield (frame, image) from ``stop - 1`` down to ``start``; short walks read few."""
    count = GIVE_UP
    while stop > start:
        begin = max(start, stop - count)
        held = list(enumerate(frames.read(begin, stop), begin))
        count, stop = min(2 * count, max(1, HELD_BYTES // held[0][1].nbytes)), begin
        while held:
            yield held.pop()


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
                places = [last] if in_room is None else [last, in_room]
                with naming(frame):
                    match = self._found(np.ascontiguousarray(image), places, misses)
                others = present[frame]
                if match is not None and any(apart(match, other) < SAME_HAND for other in others):
                    match = None

            if match is None:
                misses += 1
                if misses >= GIVE_UP:
                    return
                continue
            seen[frame] = match
            last, at, misses = match, frame, 0

    def _found(self, image: ImageRgb, places: Sequence[Detection], misses: int) -> Detection | None:
        """Return the hand at its expected places, or else in their surroundings."""
        crops = [crop_of(place.pixels, self.networks.lens) for place in places]
        hands = [h for crop in crops if (h := followed(self.networks, image, crop)) is not None]
        match = self._expected(hands, self.look, places, misses)
        if match is not None:
            return match
        around = [replace(crop, side=SURROUNDINGS * crop.side) for crop in crops]
        hands = new_hands(self.networks, image, around, [], MAX_HANDS)
        return self._expected(hands, "surroundings", places, misses)

    def _expected(
        self, hands: Sequence[Look], look: str, places: Sequence[Detection], misses: int
    ) -> Detection | None:
        """Return the hand that continues one expected at some places: near, as large, same side."""

        def off(found: Detection) -> float:
            return min(apart(found, place) for place in places)

        found = [Detection(h.pixels, h.world, h.p_right, look, h.presence) for h in hands]
        near = [
            d
            for d in found
            if off(d) < EXPECTED + 0.1 * misses
            and any(0.5 < d.size / place.size < 2.0 for place in places)
            and (d.p_right if self.slot else 1 - d.p_right) > 0.3
        ]
        return min(near, key=off, default=None)
