"""Which detection is whose hand: duplicates removed, tracks linked, sides decided per track.

A single frame's label may flip; a track's labels rarely do. So detections are first linked by
where they are, and each track then takes the side that its frames vote for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import linear_sum_assignment

from acehand_core.trackers.mediapipe.detector import Detection

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
        tracks = [t for t in tracks if len(t.frames) >= MIN_TRACK or _sure(t)]

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


def _sure(track: _Track) -> bool:
    return min(d.confidence for d in track.detections) > SURE and len(track.frames) > 1


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
