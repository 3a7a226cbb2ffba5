"""Detection over the whole recording: which detection is whose hand, and where to look again.

A forward pass covers the recording. Duplicates are removed, detections are linked to tracks by
where they are, and each track takes the side that its frames vote for: a single frame's label may
flip, a track's labels rarely do. Then, only where a slot is empty next to a sighting, the gap is
looked at again: forwards and backwards with lower thresholds, and in enlarged crops around the last
and the next sighting.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import partial

import cv2
import numpy as np
from jaxtyping import UInt8
from scipy.optimize import linear_sum_assignment

from acehand_core.motion import FrameSource
from acehand_core.trackers.mediapipe.detector import Detection, Detector, SegmentCache
from acehand_core.types import ImageRgb, Progress

#: Two detections closer than this share of their size are one hand. (The duplicates of a real
#: clip lie within 0.6; clasped hands measured on renders stay beyond 1.)
DUPLICATE_DISTANCE = 0.75
#: A hand moves less than this share of its size per frame, and a track survives this many misses.
LINK_DISTANCE = 0.9
LINK_GROWTH = 0.15
MAX_MISSES = 8
#: What a label that contradicts the track's last frames adds to the distance: it decides where two
#: hands cross, and is too little to break a track that is alone.
OTHER_SIDE, MEMORY = 0.4, 15
#: Shorter tracks are noise unless the network is sure.
MIN_TRACK = 3
SURE = 0.9
CERTAIN = 0.85

Slots = list[list[Detection | None]]  # (T, 2)


def distance(a: Detection, b: Detection) -> float:
    """Return the mean landmark distance over the mean size."""
    gap = np.linalg.norm(a.pixels - b.pixels, axis=1).mean()
    return float(gap / max(0.5 * (a.size + b.size), 1e-6))


def without_duplicates(detections: Sequence[Detection]) -> list[Detection]:
    """Keep the surer of detections that lie on one hand."""
    kept: list[Detection] = []
    for detection in sorted(detections, key=lambda d: -d.confidence):
        if all(distance(detection, other) > DUPLICATE_DISTANCE for other in kept):
            kept.append(detection)
    return kept


@dataclass(slots=True)
class _Track:
    frames: list[int] = field(default_factory=list)
    detections: list[Detection] = field(default_factory=list)

    def add(self, frame: int, detection: Detection) -> None:
        self.frames.append(frame)
        self.detections.append(detection)

    @property
    def evidence(self) -> float:
        """Log odds of a right hand, summed over frames; each frame's vote is bounded."""
        p = np.clip([d.p_right for d in self.detections], 0.03, 0.97)
        return float(np.sum(np.log(p / (1 - p))))

    @property
    def p_right(self) -> float:
        """Probability of a right hand, averaged over the last frames."""
        return float(np.mean([d.p_right for d in self.detections[-MEMORY:]]))

    @property
    def certainty(self) -> float:
        """Mean probability of the side that the track as a whole votes for."""
        right = np.mean([d.p_right for d in self.detections])
        return float(right if self.evidence > 0 else 1 - right)

    @property
    def sure(self) -> bool:
        """Whether the network is sure of every one of several detections."""
        return min(d.confidence for d in self.detections) > SURE and len(self.frames) > 1

    def distance(self, frame: int, detection: Detection) -> float:
        """Distance of a detection from where the track is expected."""
        last = self.detections[-1].pixels
        step = frame - self.frames[-1]
        if len(self.frames) > 1 and self.frames[-1] - self.frames[-2] <= 2:
            velocity = last.mean(0) - self.detections[-2].pixels.mean(0)
            # Half the velocity: enough to follow, too little to run away in a gap.
            last = last + 0.5 * velocity / (self.frames[-1] - self.frames[-2]) * min(step, 3)
        gap = np.linalg.norm(last - detection.pixels, axis=1).mean()
        return float(gap / max(0.5 * (self.detections[-1].size + detection.size), 1e-6))


def assign_slots(frames: Sequence[Sequence[Detection]]) -> Slots:
    """Return per frame the left and the right hand (or None)."""
    tracks = _link([without_duplicates(detections) for detections in frames])
    if len(frames) >= MIN_TRACK:
        tracks = [t for t in tracks if len(t.frames) >= MIN_TRACK or t.sure]

    slots: Slots = [[None, None] for _ in frames]
    # The clearest evidence chooses first; a later track takes what is left of its side.
    for track in sorted(tracks, key=lambda t: -abs(t.evidence)):
        side = int(track.evidence > 0)
        taken = np.array([slots[frame][side] is not None for frame in track.frames])
        other_free = all(slots[frame][1 - side] is None for frame in track.frames)
        # A hand surely of the taken side is somebody else's; an uncertain one is the other hand.
        if taken.mean() > 0.5 and other_free and track.certainty < CERTAIN:
            side, taken = 1 - side, np.zeros(len(taken), bool)
        if (~taken).sum() < MIN_TRACK <= len(track.frames):
            continue
        for frame, detection, busy in zip(track.frames, track.detections, taken, strict=True):
            if not busy:
                slots[frame][side] = detection

    return slots


def _link(frames: Sequence[Sequence[Detection]]) -> list[_Track]:
    """Link detections of neighbouring frames by place (Hungarian assignment)."""
    done: list[_Track] = []
    active: list[_Track] = []
    for frame, detections in enumerate(frames):
        done += [t for t in active if frame - t.frames[-1] > MAX_MISSES + 1]
        active = [t for t in active if frame - t.frames[-1] <= MAX_MISSES + 1]
        unused = set(range(len(detections)))
        if active and detections:
            cost = np.array([[t.distance(frame, d) for d in detections] for t in active])
            reach = np.array([LINK_DISTANCE + LINK_GROWTH * (frame - t.frames[-1]) for t in active])
            other_side = np.array(
                [[abs(t.p_right - d.p_right) for d in detections] for t in active]
            )
            cost = np.where(cost <= reach[:, None], cost + OTHER_SIDE * other_side, 1e3)
            for row, column in zip(*linear_sum_assignment(cost), strict=True):
                if cost[row, column] < 1e3:
                    active[row].add(frame, detections[column])
                    unused.discard(int(column))
        for index in sorted(unused):
            track = _Track()
            track.add(frame, detections[index])
            active.append(track)

    return done + active


#: Frames of one forward segment. Fixed, so that a result does not depend on the machine.
SEGMENT_FRAMES = 320
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

Frames = list[list[Detection]]


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
        with Detector() as detector:
            while not stop.is_set():
                with lock:
                    job = next(jobs, None)
                if job is None:
                    return

                result = cache.get(*job)
                if result is None:
                    detector.reset()
                    result = []
                    for image in frames.read(*job):
                        if stop.is_set():
                            return
                        result.append(detector(image, "forward"))
                        with lock:
                            done += 1
                            progress("track", done, count)
                    cache.put(*job, result)
                else:
                    with lock:
                        done += job[1] - job[0]
                        progress("track", done, count)

                detections[job[0] : job[1]] = result

    jobs = iter(segments)
    workers = min(len(segments), os.cpu_count() or 1)
    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(work, jobs) for _ in range(workers)]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            stop.set()
    for future in futures:
        future.result()
    return detections


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
    frames: FrameSource, gaps: Sequence[Gap], fps: float, progress: Progress
) -> Iterator[tuple[int, Detection]]:
    """Yield (frame, detection) of hands that the forward pass lost."""
    if not gaps:
        return
    reach = max(GIVE_UP, round(REACH_S * fps))
    low = partial(Detector, detection_confidence=LOW_CONFIDENCE, tracking_confidence=LOW_CONFIDENCE)
    with low() as moving, low(still=True) as still:
        for index, gap in enumerate(gaps):
            progress("look again", index, len(gaps))
            seen: dict[int, Detection] = {}
            for walk in _walks(gap, reach):
                seen.update(_follow(walk, frames, moving, gap.slot))
            for walk in _walks(gap, reach):
                seen.update(_crops(walk, frames, still, gap.slot, seen))
            yield from seen.items()
        progress("look again", len(gaps), len(gaps))


@dataclass(frozen=True, slots=True)
class _Walk:
    """A way into a gap from the sighting beside it, forwards or backwards."""

    start: int
    stop: int
    backwards: bool
    sighting: Detection

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
    walk: _Walk, frames: FrameSource, detector: Detector, slot: int
) -> Iterator[tuple[int, Detection]]:
    """Track into the gap from its edge; the last sighting moves along."""
    detector.reset()
    last, misses = walk.sighting, 0
    look = "backward" if walk.backwards else "forward again"
    for frame, inside, image in walk.images(frames, RUN_UP):
        match = _expected(detector(image, look), last, slot, misses)
        if not inside:
            continue
        if match is None:
            misses += 1
            if misses >= GIVE_UP:
                return
            continue
        last, misses = match, 0
        yield frame, match


def _crops(
    walk: _Walk, frames: FrameSource, detector: Detector, slot: int, seen: dict[int, Detection]
) -> Iterator[tuple[int, Detection]]:
    """Look at an enlarged crop around the last sighting where the other walks saw nothing."""
    last, misses = walk.sighting, 0
    for frame, _, image in walk.images(frames, 0):
        if frame in seen:
            last, misses = seen[frame], 0
            continue

        crop, scale, corner = _crop(image, last)
        hands = [
            replace(d, pixels=(d.pixels + 0.5) / scale - 0.5 + corner)
            for d in detector(crop, "crop")
        ]
        match = _expected(hands, last, slot, misses)

        if match is None:
            misses += 1
            if misses >= GIVE_UP:
                return
            continue

        last, misses = match, 0
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
    detections: Sequence[Detection], last: Detection, slot: int, misses: int
) -> Detection | None:
    """Return the detection that continues ``last``: near, as large, not of the other side."""
    near = [
        d
        for d in detections
        if distance(d, last) < EXPECTED + 0.1 * misses
        and 0.5 < d.size / last.size < 2.0
        and (d.p_right if slot else 1 - d.p_right) > 0.3
    ]
    return min(near, key=lambda d: distance(d, last), default=None)
