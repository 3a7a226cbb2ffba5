"""Distances that must not get too small: capsules of the hand that touch, and open fingertips.

Every pair is two segments with a clearance between their axes. Only pairs that the hand can bring
together are looked at; palms are boxes, not capsules, and are left to the replay, which collides
everything.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from retarget.hand_spec import HandSpec
from retarget.kinematics import FrameSet, KinematicTree, Posture
from retarget.pinch import pinch_fingers

#: Contact may press this deep: pads that hold something do. Beyond 1 mm it counts as penetration.
CONTACT_M = 0.0003
#: Pairs further apart than their clearance and this are not looked at in a round.
NEAR_M = 0.010
_SAMPLES = 2048


@dataclass(frozen=True, slots=True, eq=False)
class Gaps:
    """N pairs of one round that are near: frame, shortfall (m) and its change by the commands."""

    frames: Int[np.ndarray, "N"]
    pairs: Int[np.ndarray, "N"]
    room: Float[np.ndarray, "N"]
    by_command: Float[np.ndarray, "N C"]


class Spacing:
    """Pairs of segments fixed to links, and how far each pair's axes must stay apart."""

    def __init__(self, hand: HandSpec, tree: KinematicTree, pinching: Int[np.ndarray, "P"]) -> None:
        """Use the hand's own capsules, and its thumb with the fingers that can pinch."""
        self.pinching = pinching
        self._tree, self._coupling = tree, hand.coupling
        capsules = tree.capsules
        pairs = _meeting(hand, tree)
        capsule_frames = capsules.frames()
        tips = tree.frames(hand.tip_names)
        # Segment i has its ends at frames 2 i and 2 i + 1; a tip is a segment without length.
        twice = np.repeat(np.arange(len(tips.links)), 2)
        self._ends = FrameSet(
            np.concatenate([capsule_frames.links, tips.links[twice]]),
            np.concatenate([capsule_frames.offsets, tips.offsets[twice]]),
            np.concatenate([capsule_frames.turns, tips.turns[twice]]),
        )
        thumb = len(capsules.radii)
        tip_pairs = np.array([(thumb, thumb + finger) for finger in pinching], int).reshape(-1, 2)
        self._pairs = np.concatenate([pairs, tip_pairs])
        self._clearance = capsules.radii[pairs].sum(1) - CONTACT_M
        used = np.unique(self._pairs)
        self._compact(used)

    def _compact(self, used: Int[np.ndarray, "S"]) -> None:
        """Drop the segments that no pair needs."""
        rows = np.stack([2 * used, 2 * used + 1], axis=1).reshape(-1)
        ends = self._ends
        self._ends = FrameSet(ends.links[rows], ends.offsets[rows], ends.turns[rows])
        self._pairs = np.searchsorted(used, self._pairs)

    def __len__(self) -> int:
        return len(self._pairs)

    def clearance(self, apart: Float[np.ndarray, "T P"]) -> Float[np.ndarray, "T N"]:
        """Return the clearance of every pair and frame for the wanted distances of open tips.

        Without columns in ``apart`` the tips may meet anywhere.
        """
        out = np.full((len(apart), len(self._pairs)), -np.inf)
        out[:, : len(self._clearance)] = self._clearance
        if apart.shape[1]:
            out[:, len(self._clearance) :] = apart
        return out

    def shortfall(
        self, posture: Posture, clearance: Float[np.ndarray, "T N"]
    ) -> Float[np.ndarray, "T N"]:
        """Return by how much each pair is too close, metres; negative where there is room."""
        first, second, _, _ = self._closest(posture)
        return clearance - np.linalg.norm(first - second, axis=-1)

    def gaps(self, posture: Posture, clearance: Float[np.ndarray, "T N"]) -> Gaps:
        """Return the pairs that are too close or nearly so, linearised."""
        first, second, _, _ = self._closest(posture)
        apart = first - second
        distance = np.linalg.norm(apart, axis=-1)
        frames, pairs = np.nonzero(distance < clearance + NEAR_M)
        size = self._coupling.shape[1]
        gradient = np.zeros((len(frames), size))
        for pair in np.unique(pairs):
            rows = np.flatnonzero(pairs == pair)
            at = posture.at(frames[rows])
            normal = (
                apart[frames[rows], pair] / np.maximum(distance[frames[rows], pair], 1e-9)[:, None]
            )
            for points, end, sign in zip((first, second), self._pairs[pair], (1, -1), strict=True):
                link = self._ends.links[[2 * end]]
                moved = self._tree.jacobian(
                    at, link, points[frames[rows], pair][:, None], self._coupling
                )
                gradient[rows] += sign * np.einsum("nx,nxc->nc", normal, moved[:, 0])
        room = (distance - clearance)[frames, pairs]
        return Gaps(frames, pairs, room, gradient)

    def _closest(self, posture: Posture) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return the nearest points (T, N, 3) of both segments of each pair."""
        ends = posture.points(self._ends)
        a, b = self._pairs.T
        return closest_points(ends[:, 2 * a], ends[:, 2 * a + 1], ends[:, 2 * b],
                              ends[:, 2 * b + 1])  # fmt: skip


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


def _meeting(hand: HandSpec, tree: KinematicTree) -> Int[np.ndarray, "P 2"]:
    """Return the pairs of capsules that come near in random poses, of those that may touch."""
    capsules = tree.capsules
    if not len(capsules.pairs):
        return capsules.pairs
    rng = np.random.default_rng(0)
    span = hand.command_upper - hand.command_lower
    commands = hand.command_lower + span * rng.random((_SAMPLES, len(span)))
    ends = tree.points(hand.expand(commands), capsules.frames())
    a, b = capsules.pairs.T
    first, second, _, _ = closest_points(
        ends[:, 2 * a], ends[:, 2 * a + 1], ends[:, 2 * b], ends[:, 2 * b + 1]
    )
    gap = np.linalg.norm(first - second, axis=-1) - capsules.radii[capsules.pairs].sum(1)
    return capsules.pairs[gap.min(0) < NEAR_M / 2]
