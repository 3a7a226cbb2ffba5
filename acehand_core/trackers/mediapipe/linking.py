"""Which detection is whose hand.

Duplicates are removed, and detections are linked to tracks by where they are. A head that turns
moves everything in the picture: where its turns are known, a hand is expected where it would be if
it had stayed in the room, as well as where it was in the picture.

A track takes its side from all that is known of it: the network's labels, which are wrong together
when they are wrong; from where its forearm comes, where that tells the sides apart in the rest of
the recording; and which hand was there just before or is there just after it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Bool, Float
from scipy.optimize import linear_sum_assignment

from acehand_core.geometry import rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.hand.skeleton import KNUCKLES
from acehand_core.motion import CameraMotion
from acehand_core.trackers.mediapipe.search import Detection, apart

#: Two detections closer than this share of their size are one hand. (The duplicates of a real
#: clip lie within 0.6; clasped hands measured on renders stay beyond 1.)
DUPLICATE_DISTANCE = 0.75
#: A hand moves less than this share of its size per frame, and a track survives this many misses;
#: both at ``PACE_FPS`` or more: at lower rates it moves further, and fewer frames make a track.
PACE_FPS, MAX_PACE = 30.0, 3.0
LINK_DISTANCE = 0.9
LINK_GROWTH = 0.15
MAX_MISSES = 8
#: What a label that contradicts the track's last frames adds to the distance: it decides where two
#: hands cross, and is too little to break a track that is alone.
OTHER_SIDE, MEMORY = 0.4, 15
#: Shorter tracks are noise unless the network is sure. In frames, and seconds if that is less.
MIN_TRACK, MIN_TRACK_S = 3, 0.1
SURE = 0.9
CERTAIN = 0.85

#: Labels of one track are wrong together: a share of what makes one wrong is common to all.
ALIKE = 0.3
#: What a forearm straight from one side says, against log odds of labels; and how much agreement of
#: forearms and labels elsewhere it takes to know which side.
ARM, SURE_VIEW = 3.0, 4.0
#: A camera that turns by so much is worn: then forearms are the wearer's, and say as much more.
WORN_TURN_RAD, WORN_ARM = np.radians(10.0), 5.0
#: What a hand says of one at the same place a moment before or after; in hand sizes, and frames.
PLACE, NEAR, NEAR_FRAMES = 4.0, 3.0, 30.0

#: Of more than two hands at once one that is this much less like the wearer's is somebody else's,
#: where it is so in this share of its frames: something false, for a moment, tells of nothing.
OTHERS, OTHERS_SHARE = 1.5, 0.25

Slots = list[list[Detection | None]]  # (T, 2)
#: From a hand in frame ``a`` to the same one in frame ``b``, if only the camera turned; or None.
Turned = Callable[[Detection, int, int], Detection | None]


def by_turn(camera: Camera, motion: CameraMotion) -> Turned:
    """Return what finds hands again by the camera's turns; None where they are not known."""

    def turned(hand: Detection, a: int, b: int) -> Detection | None:
        pixels = motion.transferred(camera, hand.pixels, a, b)
        return None if pixels is None else replace(hand, pixels=pixels)

    return turned


def is_worn(motion: CameraMotion) -> bool:
    """Whether a camera turns as a head does, not only as one that is bumped into."""
    turned = np.linalg.norm(rotations.log(motion.from_first), axis=-1)
    return bool(turned.max() > WORN_TURN_RAD)


def unturned(hand: Detection, a: int, b: int) -> Detection | None:
    """Say nothing of the camera's turns."""
    return None


def without_duplicates(detections: Sequence[Detection]) -> list[Detection]:
    """Keep the surer of detections that lie on one hand."""
    kept: list[Detection] = []
    for detection in sorted(detections, key=lambda d: -d.confidence):
        if all(apart(detection, other) > DUPLICATE_DISTANCE for other in kept):
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
    def votes(self) -> float:
        """How many frames that know nothing of each other would say as much."""
        return len(self.frames) / (1 + ALIKE * (len(self.frames) - 1))

    @property
    def evidence(self) -> float:
        """Log odds of a right hand by the labels; each frame's vote is bounded."""
        p = np.clip([d.p_right for d in self.detections], 0.03, 0.97)
        return float(np.mean(np.log(p / (1 - p)))) * self.votes

    @property
    def arm(self) -> float:
        """From where in the picture the forearm comes: 1 right, -1 left."""
        away = [d.pixels[0] - d.pixels[list(KNUCKLES[1:])].mean(0) for d in self.detections]
        return float(np.mean([v[0] / max(float(np.linalg.norm(v)), 1e-6) for v in away]))

    @property
    def wearer_likeness(self) -> float:
        """How much a hand is as the wearer's are: its forearm from below, and large."""
        away = [d.pixels[0] - d.pixels[list(KNUCKLES[1:])].mean(0) for d in self.detections]
        down = np.mean([v[1] / max(float(np.linalg.norm(v)), 1e-6) for v in away])
        return float(down + np.log2(max(np.median([d.size for d in self.detections]), 1e-6)))

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

    def nearness(self, other: _Track, turned: Turned) -> float:
        """Return how near two tracks are, 0 to 1: one's end and the other's beginning.

        0 of tracks at the same time, or long after each other.
        """
        first, second = sorted((self, other), key=lambda track: track.frames[0])
        wait = second.frames[0] - first.frames[-1]
        if not 0 < wait < 6 * NEAR_FRAMES:
            return 0.0
        last, then = first.detections[-1], second.detections[0]
        in_room = turned(last, first.frames[-1], second.frames[0])
        off = min(apart(place, then) for place in (last, in_room) if place is not None)
        return max(0.0, 1 - off / NEAR) * float(np.exp(-wait / NEAR_FRAMES))

    def expected(self, frame: int, turned: Turned) -> list[Detection]:
        """Return where the track may go on: by its way in the picture, and by that in the room."""
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
    frames: Sequence[Sequence[Detection]],
    turned: Turned = unturned,
    worn: bool = False,
    fps: float = PACE_FPS,
) -> Slots:
    """Return per frame the left and the right hand (or None).

    Args:
        turned: where hands are expected by the camera's turns.
        worn: whether the camera moves as one on a head does, so that the view is the wearer's.
    """
    pace = min(max(PACE_FPS / fps, 1.0), MAX_PACE)
    tracks = _link([without_duplicates(detections) for detections in frames], turned, pace)
    shortest = min(MIN_TRACK, math.ceil(MIN_TRACK_S * fps), len(frames))
    tracks = [t for t in tracks if len(t.frames) >= shortest or t.sure]
    tracks = _of_the_wearer(tracks, len(frames))

    slots: Slots = [[None, None] for _ in frames]
    # The clearest evidence chooses first; a later track takes what is left of its side.
    evidence = _with_arms(tracks, worn)
    while tracks:
        at = int(np.argmax(np.abs(evidence)))
        track, side = tracks.pop(at), int(evidence[at] > 0)
        evidence = np.delete(evidence, at)
        taken = np.array([slots[frame][side] is not None for frame in track.frames])
        other_free = all(slots[frame][1 - side] is None for frame in track.frames)
        # A hand surely of the taken side is somebody else's; an uncertain one is the other hand.
        if taken.mean() > 0.5 and other_free and track.certainty < CERTAIN:
            side, taken = 1 - side, np.zeros(len(taken), bool)
        if (~taken).sum() < shortest <= len(track.frames):
            continue
        for frame, detection, busy in zip(track.frames, track.detections, taken, strict=True):
            if not busy:
                slots[frame][side] = detection
        near = [track.nearness(other, turned) for other in tracks]
        evidence += np.array(near) * (PLACE if side else -PLACE)

    return slots


def frames_with_others(frames: Sequence[Sequence[Detection]], slots: Slots) -> int:
    """Return in how many frames hands are seen beside the two in the slots."""
    count = 0
    for detections, pair in zip(frames, slots, strict=True):
        taken = [hand for hand in pair if hand is not None]
        count += len(without_duplicates(detections)) > 2 and any(
            all(apart(d, hand) > DUPLICATE_DISTANCE for hand in taken) for d in detections
        )
    return count


def _of_the_wearer(tracks: Sequence[_Track], count: int) -> list[_Track]:
    """Leave out other people's hands where more than two are seen at once."""
    order = sorted(tracks, key=lambda t: -t.wearer_likeness)
    at_once = np.zeros(count, int)
    for track in tracks:
        at_once[track.frames] += 1
    kept: list[_Track] = []
    best = np.full(count, -np.inf)
    better = np.zeros(count, int)
    for track in order:
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


def side_by_view(
    frames: Sequence[Sequence[Detection]], fps: float = PACE_FPS
) -> Bool[np.ndarray, "T"]:
    """Return in which frames hands are on other sides if the camera is worn than if it stands."""
    stands, worn = (assign_slots(frames, worn=which, fps=fps) for which in (False, True))
    differ = [
        any(a is not b for a, b in zip(*pairs, strict=True))
        for pairs in zip(stands, worn, strict=True)
    ]
    return np.array(differ, bool)


def _with_arms(tracks: Sequence[_Track], worn: bool) -> Float[np.ndarray, "N"]:
    """Return the evidence of each track for a right hand, with what its forearm adds.

    In the wearer's own view right forearms come from the right, in that of somebody opposite from
    the left: which it is, the labels of both hands say over the whole recording.
    """
    labels = np.array([track.evidence for track in tracks])
    arms = np.array([track.arm * track.votes for track in tracks])
    return labels + arms * (WORN_ARM if worn else ARM * np.tanh(_view(tracks)))


def _view(tracks: Sequence[_Track]) -> float:
    """Return whose view the hands are in by their labels: positive the wearer's, 0 nobody knows."""
    labels = np.array([track.evidence for track in tracks])
    arms = np.array([track.arm for track in tracks])
    # Arms that come from one side for both hands say nothing.
    agree = [float((labels * arms)[which].sum()) for which in (labels > 0, labels < 0)]
    return min(agree, key=abs) / SURE_VIEW if agree[0] * agree[1] > 0 else 0.0


def _link(frames: Sequence[Sequence[Detection]], turned: Turned, pace: float) -> list[_Track]:
    """Link detections of neighbouring frames by place (Hungarian assignment)."""
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
