"""Linking of detections to the left and the right hand.

Detections, without duplicates, are linked to tracks by place. With known turns of the camera, a
hand is expected where it would be at rest in the room as well as at its last place in the picture.

A track gets its side from the network's labels, whose errors are correlated; from the direction of
its forearm, if that separates the sides in the rest of the recording; and from the hands just
before and after it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float
from scipy.optimize import linear_sum_assignment

from acehand_core.geometry import rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.hand.skeleton import KNUCKLES
from acehand_core.motion import CameraMotion
from acehand_core.trackers.mediapipe.search import Detection, apart
from acehand_core.types import JointsImage

#: Two detections closer than this share of their size are one hand. (Duplicates of a real clip lie
#: within 0.6, clasped hands on renders beyond 1.)
DUPLICATE_DISTANCE = 0.75
#: Motion of a hand per frame in hand sizes, growth per missed frame, and misses that a track
#: survives, at ``PACE_FPS`` or more. At lower rates hands move further and tracks are shorter.
PACE_FPS, MAX_PACE = 30.0, 3.0
LINK_DISTANCE = 0.9
LINK_GROWTH = 0.15
MAX_MISSES = 8
#: Distance added for a label against the track's last frames: enough to decide where hands cross,
#: too little to break a single track.
OTHER_SIDE, MEMORY = 0.4, 15
#: Log odds, of at least ``MEMORY`` frames before and after, from which a track has gone over to the
#: other hand. (In a real clip such a track took the place of a hand; no rendered one has any.)
OTHER_HAND = 4.0
#: Shorter tracks are noise unless the network is sure. In frames, or seconds if fewer; at most a
#: third of the recording.
MIN_TRACK, MIN_TRACK_S = 3, 0.1
#: Confidence above which all detections of a shorter track keep it.
SHORT_TRACK_CONFIDENCE = 0.9
#: Certainty of a track from which, on a side that is taken, it is another person's hand.
OTHER_PERSON_CERTAINTY = 0.85

#: Correlation of the errors of one track's labels.
LABEL_ERROR_CORRELATION = 0.3
#: Log odds of a forearm straight from one side, and the agreement of forearms and labels that it
#: takes to know the side.
ARM, SURE_VIEW = 3.0, 4.0
#: A camera that turns by so much is worn; forearms are then the wearer's and count more.
WORN_TURN_RAD, WORN_ARM = np.radians(10.0), 5.0
#: Log odds of a hand at the same place just before or after; range in hand sizes, and in frames.
PLACE, NEAR, NEAR_FRAMES = 4.0, 3.0, 30.0

#: Among more than two hands one that is this much less like the wearer's, in this share of its
#: frames (not just in a false moment), is another person's.
OTHERS, OTHERS_SHARE = 1.5, 0.25

Slots = list[list[Detection | None]]  # (T, 2)
Frames = Sequence[Sequence[Detection]]
#: From a hand in frame ``a`` to the same in frame ``b`` after the camera's turn, None if unknown.
Turned = Callable[[Detection, int, int], Detection | None]


def by_turn(camera: Camera, motion: CameraMotion) -> Turned:
    """Return the transfer of hands between frames by the camera's turns."""

    def turned(hand: Detection, a: int, b: int) -> Detection | None:
        pixels = motion.transferred(camera, hand.pixels, a, b)
        return None if pixels is None else replace(hand, pixels=pixels)

    return turned


def is_worn(motion: CameraMotion) -> bool:
    """Whether a camera turns as a head does, not just from a bump."""
    turned = np.linalg.norm(rotations.log(motion.from_first), axis=-1)
    return bool(turned.max() > WORN_TURN_RAD)


def unturned(hand: Detection, a: int, b: int) -> Detection | None:
    """Return None: the camera's turns are unknown."""
    return None


def without_duplicates(detections: Sequence[Detection]) -> list[Detection]:
    """Keep the most confident detection of each hand."""
    kept: list[Detection] = []
    for detection in sorted(detections, key=lambda d: -d.confidence):
        if all(apart(detection, other) > DUPLICATE_DISTANCE for other in kept):
            kept.append(detection)
    return kept


@dataclass(slots=True)
class _Track:
    frames: list[int]
    detections: list[Detection]

    @property
    def votes(self) -> float:
        """The equivalent number of independent frames."""
        return len(self.frames) / (1 + LABEL_ERROR_CORRELATION * (len(self.frames) - 1))

    @property
    def evidence(self) -> float:
        """Log odds of a right hand by bounded labels."""
        p = np.clip([d.p_right for d in self.detections], 0.03, 0.97)
        return float(np.mean(np.log(p / (1 - p)))) * self.votes

    def by_side(self, tracks: Sequence[_Track]) -> list[_Track]:
        """Return the track, or its parts before and after it went over to the other hand.

        No other one of ``tracks`` may be of the same side at the same time as a part.
        """
        count = np.arange(1, len(self.frames))
        p = np.clip([d.p_right for d in self.detections], 0.03, 0.97)
        sums = np.cumsum(np.log(p / (1 - p)))
        # The evidence of both parts at each cut.
        before = sums[:-1] / (1 + LABEL_ERROR_CORRELATION * (count - 1))
        after = (sums[-1] - sums[:-1]) / (1 + LABEL_ERROR_CORRELATION * (count[::-1] - 1))
        clear = np.where(before * after < 0, np.minimum(abs(before), abs(after)), 0.0)
        clear[np.minimum(count, count[::-1]) < MEMORY] = 0.0

        if not len(clear) or clear.max() < OTHER_HAND:
            return [self]

        cut = int(np.argmax(clear)) + 1
        halves = slice(cut), slice(cut, None)
        parts = [_Track(self.frames[half], self.detections[half]) for half in halves]
        clash = any(
            part.evidence * other.evidence > 0
            and 2 * len({*part.frames} & {*other.frames}) > len(part.frames)
            for part in parts
            for other in tracks
            if other is not self
        )
        return [self] if clash else parts

    def forearm(self, axis: int) -> float:
        """Return the mean direction to the forearm along x (right) or y (down), -1 to 1."""
        away = [d.pixels[0] - d.pixels[list(KNUCKLES[1:])].mean(0) for d in self.detections]
        return float(np.mean([v[axis] / max(float(np.linalg.norm(v)), 1e-6) for v in away]))

    @property
    def wearer_likeness(self) -> float:
        """Likeness to the wearer's hands: large, with forearms from below."""
        size = np.median([d.size for d in self.detections])
        return float(self.forearm(1) + np.log2(max(size, 1e-6)))

    @property
    def p_right(self) -> float:
        """Mean probability of a right hand over the last frames."""
        return float(np.mean([d.p_right for d in self.detections[-MEMORY:]]))

    @property
    def certainty(self) -> float:
        """Mean probability of the track's side."""
        right = np.mean([d.p_right for d in self.detections])
        return float(right if self.evidence > 0 else 1 - right)

    @property
    def sure(self) -> bool:
        """Whether the network is sure of all of several detections."""
        return (
            min(d.confidence for d in self.detections) > SHORT_TRACK_CONFIDENCE
            and len(self.frames) > 1
        )

    def nearness(self, other: _Track, turned: Turned) -> float:
        """Return the nearness of one's end to the other's start, 0 to 1; 0 if they overlap."""
        first, second = sorted((self, other), key=lambda track: track.frames[0])
        wait = second.frames[0] - first.frames[-1]
        if not 0 < wait < 6 * NEAR_FRAMES:
            return 0.0
        last, then = first.detections[-1], second.detections[0]
        in_room = turned(last, first.frames[-1], second.frames[0])
        off = min(apart(place, then) for place in (last, in_room) if place is not None)
        return max(0.0, 1 - off / NEAR) * float(np.exp(-wait / NEAR_FRAMES))

    def expected(self, frame: int, turned: Turned) -> list[Detection]:
        """Return where the track may continue, by its motion in the picture and in the room."""
        last, at = self.detections[-1], self.frames[-1]
        before, since = last, at
        if len(self.frames) > 1 and at - self.frames[-2] <= 2:
            before, since = self.detections[-2], self.frames[-2]

        ways = [(last, before)]
        in_room, in_room_before = turned(last, at, frame), turned(before, since, frame)
        if in_room is not None and in_room_before is not None:
            ways.append((in_room, in_room_before))
        out = []
        for here, then in ways:
            # Half the velocity: enough to follow, too little to run away in a gap.
            velocity = (here.pixels.mean(0) - then.pixels.mean(0)) / max(at - since, 1)
            out.append(replace(here, pixels=here.pixels + 0.5 * velocity * min(frame - at, 3)))
        return out


def assign_slots(
    frames: Frames, turned: Turned = unturned, worn: bool = False, fps: float = PACE_FPS
) -> Slots:
    """Return the left and the right hand of each frame; ``worn``: the view is the wearer's."""
    pace = min(max(PACE_FPS / fps, 1.0), MAX_PACE)
    linked = _link([without_duplicates(detections) for detections in frames], turned, pace)
    tracks = [part for track in linked for part in track.by_side(linked)]
    shortest = min(MIN_TRACK, math.ceil(MIN_TRACK_S * fps), math.ceil(len(frames) / 3))
    tracks = [t for t in tracks if len(t.frames) >= shortest or t.sure]
    tracks = _of_the_wearer(tracks, len(frames))

    slots: Slots = [[None, None] for _ in frames]
    # The clearest evidence chooses first; later tracks take what is left of their side.
    evidence = _with_arms(tracks, worn)

    while tracks:
        at = int(np.argmax(np.abs(evidence)))
        track, side = tracks.pop(at), int(evidence[at] > 0)
        evidence = np.delete(evidence, at)
        taken = np.array([slots[frame][side] is not None for frame in track.frames])
        other_free = all(slots[frame][1 - side] is None for frame in track.frames)
        # A certain hand of a taken side is another person's, an uncertain one is the other hand.
        if taken.mean() > 0.5 and other_free and track.certainty < OTHER_PERSON_CERTAINTY:
            side, taken = 1 - side, np.zeros(len(taken), bool)
        if (~taken).sum() < shortest <= len(track.frames):
            continue
        for frame, detection, busy in zip(track.frames, track.detections, taken, strict=True):
            if not busy:
                slots[frame][side] = detection
        near = [track.nearness(other, turned) for other in tracks]
        evidence += np.array(near) * (PLACE if side else -PLACE)

    return slots


def landmarks_of(slots: Slots) -> JointsImage:
    """Return the landmarks of both hands, NaN for none."""
    landmarks = np.full((len(slots), 2, 21, 2), np.nan)
    for frame, pair in enumerate(slots):
        for slot, hand in enumerate(pair):
            if hand is not None:
                landmarks[frame, slot] = hand.pixels
    return landmarks


def frames_with_others(frames: Frames, slots: Slots) -> int:
    """Return the number of frames with hands besides the two in the slots."""
    count = 0
    for detections, pair in zip(frames, slots, strict=True):
        taken = [hand for hand in pair if hand is not None]
        others = (all(apart(d, hand) > DUPLICATE_DISTANCE for hand in taken) for d in detections)
        count += len(without_duplicates(detections)) > 2 and any(others)
    return count


def _of_the_wearer(tracks: Sequence[_Track], count: int) -> list[_Track]:
    """Leave out other people's hands in frames with more than two."""
    at_once, better = np.zeros((2, count), int)
    for track in tracks:
        at_once[track.frames] += 1

    kept: list[_Track] = []
    best = np.full(count, -np.inf)
    for track in sorted(tracks, key=lambda t: -t.wearer_likeness):
        crowd = at_once[track.frames] > 2
        own = track.wearer_likeness
        left_out = (better[track.frames] >= 2) | (own < best[track.frames] - OTHERS)
        share = OTHERS_SHARE * len(track.frames)
        if (left_out & crowd).sum() > max(share, 0.5 * crowd.sum()):
            continue
        kept.append(track)
        better[track.frames] += 1
        best[track.frames] = np.maximum(best[track.frames], own)
    return [track for track in tracks if any(track is k for k in kept)]


def side_by_view(frames: Frames, fps: float = PACE_FPS) -> Bool[np.ndarray, "T"]:
    """Return the frames in which the sides of hands depend on whether the camera is worn."""
    ways = (assign_slots(frames, worn=worn, fps=fps) for worn in (False, True))
    differ = [a[0] is not b[0] or a[1] is not b[1] for a, b in zip(*ways, strict=True)]
    return np.array(differ, bool)


def _with_arms(tracks: Sequence[_Track], worn: bool) -> Float[np.ndarray, "N"]:
    """Return the evidence of each track for a right hand, by labels and forearm.

    Right forearms come from the right in the wearer's view, from the left in that of a person
    opposite; the labels of both hands over the recording decide which it is.
    """
    labels = np.array([track.evidence for track in tracks])
    arms = np.array([track.forearm(0) * track.votes for track in tracks])
    return labels + arms * (WORN_ARM if worn else ARM * np.tanh(_view(tracks)))


def _view(tracks: Sequence[_Track]) -> float:
    """Return the view that labels indicate: positive the wearer's, 0 unknown."""
    labels = np.array([track.evidence for track in tracks])
    arms = np.array([track.forearm(0) for track in tracks])
    # Forearms from one side for both hands are no evidence.
    agree = [float((labels * arms)[which].sum()) for which in (labels > 0, labels < 0)]
    return min(agree, key=abs) / SURE_VIEW if agree[0] * agree[1] > 0 else 0.0


def _link(frames: Frames, turned: Turned, pace: float) -> list[_Track]:
    """Link detections of consecutive frames by place (Hungarian assignment)."""
    done: list[_Track] = []
    active: list[_Track] = []
    for frame, detections in enumerate(frames):
        done += [t for t in active if frame - t.frames[-1] > MAX_MISSES + 1]
        active = [t for t in active if frame - t.frames[-1] <= MAX_MISSES + 1]
        unused = set(range(len(detections)))
        if active and detections:
            places = [t.expected(frame, turned) for t in active]
            cost = np.array([[min(apart(p, d) for p in at) for d in detections] for at in places])
            waits = np.array([frame - t.frames[-1] for t in active])
            reach = pace * (LINK_DISTANCE + LINK_GROWTH * waits)
            labels = [[abs(t.p_right - d.p_right) for d in detections] for t in active]
            cost = np.where(cost <= reach[:, None], cost + OTHER_SIDE * np.array(labels), 1e3)
            for row, column in zip(*linear_sum_assignment(cost), strict=True):
                if cost[row, column] < 1e3:
                    active[row].frames.append(frame)
                    active[row].detections.append(detections[column])
                    unused.discard(int(column))
        active += [_Track([frame], [detections[index]]) for index in sorted(unused)]
    return done + active
