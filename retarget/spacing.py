"""Distances that must not get too small: shapes of the hand that touch, and open fingertips.

Every pair is a capsule's axis with a clearance to another's axis or to a box. Only pairs that the
hand can bring together are looked at. Other shapes are left to the replay, which collides
everything.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from retarget.capsules import Boxes
from retarget.hand_spec import HandSpec
from retarget.kinematics import FrameSet, KinematicTree, Posture
from retarget.pinch import pinch_fingers

#: Contact may press this deep: pads that hold something do. Beyond 1 mm it counts as penetration.
CONTACT_M = 0.0003
#: Pairs further apart than their clearance and this are not looked at in a round.
NEAR_M = 0.010
_SAMPLES = 2048
_GOLDEN_STEPS = 24


@dataclass(frozen=True, slots=True, eq=False)
class Gaps:
    """N pairs of one round that are near: frame, shortfall (m) and its change by the commands."""

    frames: Int[np.ndarray, "N"]
    pairs: Int[np.ndarray, "N"]
    room: Float[np.ndarray, "N"]
    by_command: Float[np.ndarray, "N C"]


@dataclass(frozen=True, slots=True, eq=False)
class _Nearest:
    """Nearest points of N pairs, the direction from the second to the first, and their distance.

    The distance is negative where the first, a point of an axis, is inside the second's box.
    """

    first: Float[np.ndarray, "T N 3"]
    second: Float[np.ndarray, "T N 3"]
    normal: Float[np.ndarray, "T N 3"]
    distance: Float[np.ndarray, "T N"]


class Spacing:
    """Pairs of shapes fixed to links, and how far each pair must stay apart.

    Columns are pairs of capsules, then pairs of a capsule and a box, then pairs of tips.
    """

    def __init__(self, hand: HandSpec, tree: KinematicTree, pinching: Int[np.ndarray, "P"]) -> None:
        """Use the hand's own capsules and boxes, and its thumb with the fingers that can pinch."""
        self.pinching = pinching
        self._tree, self._coupling = tree, hand.coupling
        shapes = tree.capsules
        capsule_frames, tips = shapes.frames(), tree.frames(hand.tip_names)
        # Segment i has its ends at frames 2 i and 2 i + 1; a tip is a segment without length.
        twice = np.repeat(np.arange(len(tips.links)), 2)
        ends = FrameSet(
            np.concatenate([capsule_frames.links, tips.links[twice]]),
            np.concatenate([capsule_frames.offsets, tips.offsets[twice]]),
            np.concatenate([capsule_frames.turns, tips.turns[twice]]),
        )

        pairs, box_pairs = _meeting(hand, tree)
        thumb = len(shapes.radii)
        tip_pairs = np.array([(thumb, thumb + finger) for finger in pinching], int).reshape(-1, 2)
        clearances = (
            shapes.radii[pairs].sum(1) - CONTACT_M,
            shapes.radii[box_pairs[:, 0]] - CONTACT_M,
            np.full(len(tip_pairs), -np.inf),
        )
        self._clearance = np.concatenate(clearances)
        self._boxed = slice(len(pairs), len(pairs) + len(box_pairs))
        self._tips = slice(self._boxed.stop, len(self._clearance))

        # Segments that no pair needs are dropped.
        segments = np.concatenate([pairs.reshape(-1), box_pairs[:, 0], tip_pairs.reshape(-1)])
        used = np.unique(segments)
        rows = np.stack([2 * used, 2 * used + 1], axis=1).reshape(-1)
        self._ends = FrameSet(ends.links[rows], ends.offsets[rows], ends.turns[rows])
        self._pairs = np.searchsorted(used, np.concatenate([pairs, tip_pairs]))
        self._boxed_segments = np.searchsorted(used, box_pairs[:, 0])
        self._boxes, box = shapes.boxes, box_pairs[:, 1]
        of_segment = self._ends.links[::2]
        of_pair = of_segment[self._pairs]
        of_box_pair = np.stack([of_segment[self._boxed_segments], self._boxes.links[box]], axis=1)
        self._links = np.insert(of_pair, self._boxed.start, of_box_pair, axis=0)
        self._box = box

    def __len__(self) -> int:
        return len(self._clearance)

    def clearance(self, apart: Float[np.ndarray, "T P"]) -> Float[np.ndarray, "T N"]:
        """Return the clearance of every pair and frame for the wanted distances of open tips.

        Without columns in ``apart`` the tips may meet anywhere.
        """
        out = np.tile(self._clearance, (len(apart), 1))
        if apart.shape[1]:
            out[:, self._tips] = apart
        return out

    def shortfall(
        self, posture: Posture, clearance: Float[np.ndarray, "T N"]
    ) -> Float[np.ndarray, "T N"]:
        """Return by how much each pair is too close, metres; negative where there is room."""
        return clearance - self._nearest(posture).distance

    def gaps(self, posture: Posture, clearance: Float[np.ndarray, "T N"]) -> Gaps:
        """Return the pairs that are too close or nearly so, linearised."""
        nearest = self._nearest(posture)
        frames, pairs = np.nonzero(nearest.distance < clearance + NEAR_M)
        gradient = np.zeros((len(frames), self._coupling.shape[1]))
        for pair in np.unique(pairs):
            rows = np.flatnonzero(pairs == pair)
            at = posture.at(frames[rows])
            normal = nearest.normal[frames[rows], pair]
            for points, link, sign in zip(
                (nearest.first, nearest.second), self._links[pair], (1, -1), strict=True
            ):
                moved = self._tree.jacobian(
                    at, np.array([link]), points[frames[rows], pair][:, None], self._coupling
                )
                gradient[rows] += sign * np.einsum("nx,nxc->nc", normal, moved[:, 0])
        room = (nearest.distance - clearance)[frames, pairs]
        return Gaps(frames, pairs, room, gradient)

    def _nearest(self, posture: Posture) -> _Nearest:
        ends = posture.points(self._ends)
        a, b = self._pairs.T
        first, second, _, _ = closest_points(ends[:, 2 * a], ends[:, 2 * a + 1], ends[:, 2 * b],
                                             ends[:, 2 * b + 1])  # fmt: skip
        apart = first - second
        distance = np.linalg.norm(apart, axis=-1)
        normal = apart / np.maximum(distance, 1e-9)[..., None]
        if not len(self._box):
            return _Nearest(first, second, normal, distance)

        segment, at = self._boxed_segments, self._boxed.start
        boxed = _near_boxes(
            posture, ends[:, 2 * segment], ends[:, 2 * segment + 1], self._boxes, self._box,
            self._clearance[self._boxed] + NEAR_M,
        )  # fmt: skip
        return _Nearest(*(
            np.concatenate([ours[:, :at], theirs, ours[:, at:]], axis=1)
            for ours, theirs in zip((first, second, normal, distance), boxed, strict=True)
        ))  # fmt: skip


@functools.lru_cache(maxsize=8)
def spacing_of(hand: HandSpec, tree: KinematicTree) -> Spacing:
    """Return what must stay apart in a hand; which pairs can meet is found out once."""
    return Spacing(hand, tree, pinch_fingers(hand, tree))


def closest_points(
    a: Float[np.ndarray, "*n 3"],
    b: Float[np.ndarray, "*n 3"],
    c: Float[np.ndarray, "*n 3"],
    d: Float[np.ndarray, "*n 3"],
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the nearest points of segments a-b and c-d, and their shares of the way along.

    The pair inside both segments if there is one; else the nearest of the four pairs of an end
    and its foot on the other segment, which is exact because the distance is convex.
    """
    u, v, w = b - a, d - c, a - c
    uu, vv, uv = (np.maximum(np.sum(x * y, -1), 0) if x is y else np.sum(x * y, -1)
                  for x, y in ((u, u), (v, v), (u, v)))  # fmt: skip
    uw, vw = np.sum(u * w, -1), np.sum(v * w, -1)
    tiny = 1e-18
    determinant = uu * vv - uv * uv
    s = (uv * vw - vv * uw) / np.maximum(determinant, tiny)
    t = (uu * vw - uv * uw) / np.maximum(determinant, tiny)
    inside = (determinant > 1e-9 * uu * vv + tiny) & (s >= 0) & (s <= 1) & (t >= 0) & (t <= 1)
    zero, one = np.zeros_like(uu), np.ones_like(uu)
    vs, us = np.maximum(vv, tiny), np.maximum(uu, tiny)
    choices = [
        (s, t),
        (zero, np.clip(vw / vs, 0, 1)),
        (one, np.clip((vw + uv) / vs, 0, 1)),
        (np.clip(-uw / us, 0, 1), zero),
        (np.clip((uv - uw) / us, 0, 1), one),
    ]
    best_s, best_t, best = s, t, np.where(inside, -1.0, np.inf)
    for s_try, t_try in choices[1:]:
        gap = w + s_try[..., None] * u - t_try[..., None] * v
        distance = np.sum(gap * gap, -1)
        better = distance < best
        best_s, best_t = np.where(better, s_try, best_s), np.where(better, t_try, best_t)
        best = np.where(better, distance, best)
    return a + best_s[..., None] * u, c + best_t[..., None] * v, best_s, best_t


def nearest_to_boxes(
    a: Float[np.ndarray, "*n 3"],
    b: Float[np.ndarray, "*n 3"],
    axes: Float[np.ndarray, "*n 3 3"],
    centres: Float[np.ndarray, "*n 3"],
    halves: Float[np.ndarray, "*n 3"],
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return where segments a-b are nearest to boxes, or deepest inside.

    Columns of ``axes`` are a box's axes. The signed distance to a box is convex along a segment, so
    its least value is found by golden section.

    Returns:
        The point of the segment, the nearest point of the box's surface, the direction out of the
        box there (*n, 3) and the signed distance (*n), negative inside.
    """
    local_a, local_b = (np.einsum("...x,...xi->...i", end - centres, axes) for end in (a, b))
    along = local_b - local_a

    def distance(share: np.ndarray) -> np.ndarray:
        return _signed_distance(local_a + share[..., None] * along, halves)

    low, high = np.zeros(a.shape[:-1]), np.ones(a.shape[:-1])
    golden = (math.sqrt(5) - 1) / 2
    for _ in range(_GOLDEN_STEPS):
        left, right = high - golden * (high - low), low + golden * (high - low)
        lower = distance(left) <= distance(right)
        low, high = np.where(lower, low, left), np.where(lower, right, high)
    tries = np.stack([np.zeros_like(low), np.ones_like(low), (low + high) / 2])
    best = np.argmin([distance(share) for share in tries], axis=0)
    share = np.take_along_axis(tries, best[None], axis=0)[0]

    point = local_a + share[..., None] * along
    beyond = np.abs(point) - halves
    outside = np.maximum(beyond, 0)
    length = np.linalg.norm(outside, axis=-1)[..., None]
    # Inside, the way out is through the nearest face.
    out = np.where(length > 1e-9, outside / np.maximum(length, 1e-9), np.eye(3)[beyond.argmax(-1)])
    normal = np.einsum("...i,...xi->...x", out * np.where(point < 0, -1, 1), axes)
    signed = _signed_distance(point, halves)
    place = a + share[..., None] * (b - a)
    return place, place - signed[..., None] * normal, normal, signed


def _signed_distance(
    points: Float[np.ndarray, "*n 3"], halves: Float[np.ndarray, "*n 3"]
) -> Float[np.ndarray, "*n"]:
    """Return the distance of points from a box about the origin, negative inside."""
    beyond = np.abs(points) - halves
    return np.linalg.norm(np.maximum(beyond, 0), axis=-1) + np.minimum(beyond.max(-1), 0)


def _near_boxes(
    posture: Posture,
    starts: Float[np.ndarray, "T N 3"],
    stops: Float[np.ndarray, "T N 3"],
    boxes: Boxes,
    which: Int[np.ndarray, "N"],
    within: Float[np.ndarray, "N"],
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return ``nearest_to_boxes`` of each segment and its box, in the base frame.

    Of pairs that are surely further apart than ``within`` only a lower bound of the distance is
    told: few are near, and the search along the segment costs more than all else here.
    """
    axes = np.swapaxes(posture.turns[boxes.links] @ boxes.turns[:, None], 0, 1)[:, which]
    centres = posture.points(boxes.frames())[:, which]
    halves = np.broadcast_to(boxes.halves[which], centres.shape)

    middle, half = (starts + stops) / 2, np.linalg.norm(stops - starts, axis=-1) / 2
    local = np.einsum("tnx,tnxi->tni", middle - centres, axes)
    distance = _signed_distance(local, halves) - half
    first, second, normal = middle.copy(), middle.copy(), np.zeros_like(middle)

    near = distance < within
    first[near], second[near], normal[near], distance[near] = nearest_to_boxes(
        starts[near], stops[near], axes[near], centres[near], halves[near]
    )
    return first, second, normal, distance


def _meeting(
    hand: HandSpec, tree: KinematicTree
) -> tuple[Int[np.ndarray, "P 2"], Int[np.ndarray, "R 2"]]:
    """Return the pairs of capsules, and of a capsule and a box, that random poses bring near.

    Pairs that no pose parts are left out: nothing could be done about them.
    """
    shapes = tree.capsules
    rng = np.random.default_rng(0)
    span = hand.command_upper - hand.command_lower
    commands = hand.command_lower + span * rng.random((_SAMPLES, len(span)))
    posture = tree.posture(hand.expand(commands))
    ends = posture.points(shapes.frames())
    starts, stops = ends[:, ::2], ends[:, 1::2]

    a, b = shapes.pairs.T
    first, second, _, _ = closest_points(starts[:, a], stops[:, a], starts[:, b], stops[:, b])
    between = np.linalg.norm(first - second, axis=-1) - shapes.radii[shapes.pairs].sum(1)

    capsule, box = shapes.box_pairs.T
    radii = shapes.radii[capsule]
    *_, distance = _near_boxes(
        posture, starts[:, capsule], stops[:, capsule], shapes.boxes, box, radii + NEAR_M / 2
    )
    from_box = distance - radii
    return tuple(
        pairs[(gap.min(0) < NEAR_M / 2) & (gap.max(0) > 0)]
        for pairs, gap in ((shapes.pairs, between), (shapes.box_pairs, from_box))
    )
