"""The same hands in several cameras: at the same times, with the same sides.

Each camera of a rig is tracked alone. Hands of two cameras are the same if the rays of their
landmarks meet, before both cameras, in a hand of plausible size. A spurious hand of one camera is
left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Int

from acehand_core.geometry import frames
from acehand_core.geometry.cameras import Camera
from acehand_core.hand.evidence import rays
from acehand_core.motion import neighbours, runs
from acehand_core.trackers.mediapipe import pnp
from acehand_core.trackers.mediapipe.linking import Slots, landmarks_of
from acehand_core.trackers.mediapipe.search import Detection
from acehand_core.types import RigidTransform, TimestampsNs

#: Wrist to the middle finger's knuckle, metres: of a mean hand, and what two cameras may see.
PALM_M, LEAST_PALM_M, MOST_PALM_M = 0.095, 0.045, 0.16
#: Median gap between rays, over that length, up to which two hands are one.
SAME_HAND = 0.25
#: Error of a landmark, and its share of the angle between cameras from which size is unobservable.
LANDMARK_RAD, WEAK = 0.01, 0.25
#: Hands of a camera are one appearance over gaps of up to so many frames; its unmatched frames take
#: the side of matched ones up to so many frames away.
APPEARANCE_GAP, NEIGHBOURS = 8, 60
#: A hand that no other camera confirms, although one should see it in this share of its frames, is
#: spurious, unless its presence is above this and only one other should see it, or it is a short
#: part of an appearance. (16 rendered clips: spurious up to 0.73, real ones that the other camera
#: misses 0.88; no photographs have either.)
EXPECTED_SHARE, SURE_PRESENCE, SHORT_FRAMES = 0.5, 0.8, 15
#: A hand changes its side only if the other one is free in this share of the frames.
MOSTLY_FREE = 0.8
#: Frames interpolated over, in periods of the camera.
MOST_PERIODS = 2.5
#: Largest offset of a clock that is searched, also to explain a view that does not fit, frames that
#: decide, and the share to which the gap between rays must fall.
MOST_OFFSET_S, WIDE_OFFSET_S, OFFSET_FRAMES, OFFSET_GAIN = 0.5, 2.0, 150, 0.7


@dataclass(frozen=True, slots=True)
class ViewTrack:
    """The hands that a camera of the rig sees, alone, at its own times."""

    camera: Camera
    T_camera_view: RigidTransform
    timestamps_ns: TimestampsNs
    slots: Slots

    def at(self, times: TimestampsNs) -> Slots:
        """Return its hands at other times, interpolated between adjacent frames."""
        own = self.timestamps_ns
        period = float(np.median(np.diff(own))) if len(own) > 1 else np.inf
        before, after, share = neighbours(own, times)
        wait = own[after] - own[before]
        away = np.abs(times - own[np.where(share < 0.5, before, after)])

        out: Slots = []
        for number, (a, b, part) in enumerate(zip(before, after, share, strict=True)):
            pair: list[Detection | None] = [None, None]
            for slot in (0, 1):
                one, two = self.slots[a][slot], self.slots[b][slot]
                if part and one is not None and two is not None:
                    if wait[number] <= MOST_PERIODS * period:
                        pair[slot] = _between(one, two, float(part))
                # Out of its time range, or with one neighbour: the nearer one, if it is near.
                elif away[number] <= 0.25 * period:
                    pair[slot] = one if part < 0.5 else two
            out.append(pair)
        return out


def _between(one: Detection, two: Detection, share: float) -> Detection:
    def mixed(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a + share * (b - a)

    covariance = None
    if one.covariance is not None and two.covariance is not None:
        covariance = mixed(one.covariance, two.covariance)
    return replace(
        one if share < 0.5 else two,
        pixels=mixed(one.pixels, two.pixels),
        world=mixed(one.world, two.world),
        presence=min(one.presence, two.presence),
        covariance=covariance,
    )


def estimated_offset(
    camera: Camera, slots: Slots, times: TimestampsNs, view: ViewTrack, wide: bool = False
) -> float | None:
    """Return by how many seconds a view's clock is late; None if moving hands do not show it.

    ``wide`` searches further.
    """
    seen = np.flatnonzero(_present(slots).any(1))
    seen = seen[:: max(1, len(seen) // OFFSET_FRAMES)]
    clock = view.timestamps_ns
    if len(seen) == 0 or len(clock) < 2:
        return None

    own, landmarks = landmark_rays(camera, landmarks_of(slots)[seen]), landmarks_of(view.slots)
    step = float(np.median(np.diff(clock))) / 4
    count = int((WIDE_OFFSET_S if wide else MOST_OFFSET_S) * 1e9 / step)

    gaps = {}
    for number in range(-count, count + 1):
        at = times[seen] + round(number * step)
        after = np.clip(np.searchsorted(clock, at), 1, len(clock) - 1)
        share = (at - clock[after - 1]) / (clock[after] - clock[after - 1])
        share[(share < 0) | (share > 1)] = np.nan  # outside of the view's time
        step_by_frame = landmarks[after] - landmarks[after - 1]
        shifted = landmarks[after - 1] + share[:, None, None, None] * step_by_frame
        known = np.isfinite(shifted).all((2, 3)).any(1)
        if known.sum() >= max(10, len(seen) // 3):
            view_rays = landmark_rays(view.camera, shifted[known])
            gap = _gaps(own[known], view_rays, view.T_camera_view)
            gaps[number] = float(np.minimum(gap.min((1, 2)), 2 * SAME_HAND).mean())
    if 0 not in gaps:
        return None

    best = min(gaps, key=lambda number: gaps[number])
    late = best * step * 1e-9
    return late if abs(best) >= 2 and gaps[best] < OFFSET_GAIN * gaps[0] else None


def same_hands(
    camera: Camera, slots: Slots, times: TimestampsNs, views: Sequence[ViewTrack]
) -> tuple[Slots, list[Slots]]:
    """Return the hands of the first camera, and those of the others at its times, with one side.

    An appearance of a hand that other cameras should confirm, and do not, is left out.
    """
    own = landmark_rays(camera, landmarks_of(slots))
    seen = [view.at(times) for view in views]
    view_rays = [
        landmark_rays(view.camera, landmarks_of(one)) for view, one in zip(views, seen, strict=True)
    ]
    gaps = [_gaps(own, r, v.T_camera_view) for r, v in zip(view_rays, views, strict=True)]
    matches = [_matched(gap, _present(one)) for gap, one in zip(gaps, seen, strict=True)]

    present = _present(slots)
    confirmed, expected = np.zeros((2, len(slots), 2), int)
    for view, match in zip(views, matches, strict=True):
        T_view_camera = frames.inverse(view.T_camera_view)
        expected += in_view_of(own, T_view_camera, view.camera)
        for slot in (0, 1):
            confirmed[:, slot] += (match == slot).any(1)
    kept = _not_spurious(present, confirmed, expected, slots)
    slots = [
        [h if k else None for h, k in zip(p, f, strict=True)]
        for p, f in zip(slots, kept.tolist(), strict=True)
    ]

    exchanged = _exchanged(slots, seen, matches)
    slots = [pair[::-1] if t else pair for pair, t in zip(slots, exchanged.tolist(), strict=True)]
    others = []
    for view, other, one, match in zip(views, view_rays, seen, matches, strict=True):
        confirmed = (match >= 0).astype(int)
        expected = in_view_of(other, view.T_camera_view, camera).astype(int)
        real = _not_spurious(_present(one), confirmed, expected, one)
        match = np.where(exchanged[:, None] & (match >= 0), 1 - match, match)
        others.append(_by_side(one, slots, match, real))
        _separate(slots, others[-1], match)
    return slots, others


def _present(slots: Slots) -> Bool[np.ndarray, "T 2"]:
    return np.array([[hand is not None for hand in pair] for pair in slots])


def landmark_rays(
    camera: Camera, pixels: Float[np.ndarray, "N *k 21 2"]
) -> Float[np.ndarray, "N *k 21 3"]:
    """Return unit rays of landmarks, NaN where there is no hand or none before the camera."""
    return rays(pnp.bearings(camera, pixels.reshape(-1, 21, 2))).reshape(*pixels.shape[:-1], 3)


def _gaps(
    own: Float[np.ndarray, "T 2 21 3"],
    other: Float[np.ndarray, "T 2 21 3"],
    T_camera_view: RigidTransform,
) -> Float[np.ndarray, "T 2 2"]:
    """Return the median gap between the rays of each pair of hands over their palm; or infinity.

    Infinite where the rays meet behind a camera, or in a hand of another size. Axes: frame, the
    first camera's slot, the view's slot.
    """
    u = own[:, :, None]
    v = (other @ T_camera_view[:3, :3].T)[:, None]
    base = T_camera_view[:3, 3]
    # The points p = s u and q = base + t v that are nearest to each other.
    uv, ub, vb = np.sum(u * v, -1), np.sum(u * base, -1), np.sum(v * base, -1)
    with np.errstate(divide="ignore", invalid="ignore"):
        s, t = (ub - uv * vb) / (1 - uv**2), (uv * ub - vb) / (1 - uv**2)
        p, q = s[..., None] * u, base + t[..., None] * v
        gap = np.median(np.linalg.norm(p - q, axis=-1), axis=-1)

        middle = (p + q) / 2
        palm = np.linalg.norm(middle[..., 9, :] - middle[..., 0, :], axis=-1)
        fits = (np.median(s, -1) > 0) & (np.median(t, -1) > 0)
        fits &= (palm > LEAST_PALM_M) & (palm < MOST_PALM_M)
        gap = np.where(fits, gap / np.maximum(palm, LEAST_PALM_M), np.inf)

        # Of cameras too close to each other to tell a hand's size, at a mean hand's distance.
        far = PALM_M / np.linalg.norm(u[..., 9, :] - u[..., 0, :], axis=-1)
        apart = np.linalg.norm(far[..., None, None] * (u - v) - base, axis=-1)
        close = np.median(apart, axis=-1) / PALM_M
        gap = np.where(LANDMARK_RAD * far > WEAK * np.linalg.norm(base), close, gap)
        return np.where(np.isfinite(gap), gap, np.inf)


def _matched(
    gaps: Float[np.ndarray, "T 2 2"], present: Bool[np.ndarray, "T 2"]
) -> Int[np.ndarray, "T 2"]:
    """Return the first camera's slot of each of the view's hands, -1 for none."""
    ways = np.array([[-1, -1], [0, -1], [1, -1], [-1, 0], [-1, 1], [0, 1], [1, 0]])
    costs = np.full((len(gaps), len(ways)), SAME_HAND)
    for number, way in enumerate(ways):
        cost = np.zeros(len(gaps))
        for slot, to in enumerate(way):
            cost += gaps[:, to, slot] if to >= 0 else SAME_HAND * present[:, slot]
        costs[:, number] = cost
    return ways[np.argmin(costs, axis=1)]


def in_view_of(
    hands: Float[np.ndarray, "T S 21 3"], T_other_camera: RigidTransform, other: Camera
) -> Bool[np.ndarray, "T S"]:
    """Return the hands that are wholly in another camera's picture, if they are of mean size."""
    angle = np.linalg.norm(hands[:, :, 9] - hands[:, :, 0], axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        place = hands * (PALM_M / angle)[..., None, None]
        pixels = other.project(frames.apply(T_other_camera, place))
    return np.asarray(other.contains(pixels).all(-1))


def _not_spurious(
    present: Bool[np.ndarray, "T 2"],
    confirmed: Int[np.ndarray, "T 2"],
    expected: Int[np.ndarray, "T 2"],
    slots: Slots,
) -> Bool[np.ndarray, "T 2"]:
    """Return the hands of a camera without its spurious ones."""
    kept = present.copy()
    for slot in (0, 1):
        for start, stop in _appearances(present[:, slot]):
            rows = np.arange(start, stop)[present[start:stop, slot]]
            alone = confirmed[rows, slot] == 0
            for first, last in runs(alone):
                part = rows[first:last]
                if not alone.all() and len(part) <= SHORT_FRAMES:
                    continue
                hands = [slots[frame][slot] for frame in part.tolist()]
                presence = np.mean([hand.presence for hand in hands if hand is not None])
                could = [(expected[part, slot] >= count).mean() for count in (1, 2)]
                sure = presence > SURE_PRESENCE and could[1] < EXPECTED_SHARE
                if could[0] >= EXPECTED_SHARE and not sure:
                    kept[part, slot] = False
    return kept


def _appearances(present: Bool[np.ndarray, "T"]) -> list[tuple[int, int]]:
    """Return start and stop of each appearance, short gaps included."""
    out: list[tuple[int, int]] = []
    for start, stop in runs(present):
        if out and start - out[-1][1] <= APPEARANCE_GAP:
            start = out.pop()[0]
        out.append((start, stop))
    return out


def _exchanged(
    slots: Slots, seen: Sequence[Slots], matches: Sequence[Int[np.ndarray, "T 2"]]
) -> Bool[np.ndarray, "T"]:
    """Return the frames in which all cameras together say that the hands' sides are exchanged."""
    votes = np.zeros((len(slots), 2))  # for the slot's own side
    for frame, pair in enumerate(slots):
        for slot, hand in enumerate(pair):
            if hand is None:
                continue
            votes[frame, slot] += 2 * hand.confidence - 1
            for one, match in zip(seen, matches, strict=True):
                for view_slot in np.flatnonzero(match[frame] == slot).tolist():
                    same = one[frame][view_slot]
                    assert same is not None
                    sign = 1 if view_slot == slot else -1
                    votes[frame, slot] += (2 * same.confidence - 1) * sign

    exchanged = np.zeros(len(slots), bool)
    for start, stop in _appearances(np.asarray(_present(slots).any(1))):
        exchanged[start:stop] = votes[start:stop].sum() < 0
    return exchanged


def _by_side(
    own: Slots, slots: Slots, match: Int[np.ndarray, "T 2"], real: Bool[np.ndarray, "T 2"]
) -> Slots:
    """Return a view's hands in the slots of the first camera's.

    A hand that the first camera does not see takes the side that it has in frames nearby in which
    it is matched, else its own.
    """
    out: Slots = [[None, None] for _ in own]
    for slot in (0, 1):
        known = np.flatnonzero(match[:, slot] >= 0)
        for frame, pair in enumerate(own):
            hand, side = pair[slot], int(match[frame, slot])
            if hand is None or not real[frame, slot]:
                continue
            if side < 0:
                side = slot
                if len(known):
                    near = known[np.argmin(np.abs(known - frame))]
                    if abs(near - frame) <= NEIGHBOURS:
                        side = int(match[near, slot])
            if out[frame][side] is None or match[frame, slot] >= 0:
                out[frame][side] = hand
    return out


def _separate(slots: Slots, view_slots: Slots, match: Int[np.ndarray, "T 2"]) -> None:
    """Give different hands of two cameras on one side different sides, in place.

    The one that is less sure of its side takes the other one where that is free, else the view's
    is left out.
    """
    for side in (0, 1):
        clash = np.array(
            [
                pair[side] is not None and other[side] is not None and not (row == side).any()
                for pair, other, row in zip(slots, view_slots, match, strict=True)
            ]
        )
        for start, stop in _appearances(clash):
            rows = [frame for frame in range(start, stop) if clash[frame]]
            sure = [
                np.mean([hand.confidence for frame in rows if (hand := one[frame][side])])
                for one in (slots, view_slots)
            ]
            weaker = slots if sure[0] < sure[1] else view_slots
            others = [(slots[frame][1 - side], view_slots[frame][1 - side]) for frame in rows]
            free = np.mean([pair == (None, None) for pair in others])
            for frame in rows:
                if free < MOSTLY_FREE:
                    view_slots[frame][side] = None
                elif weaker[frame][1 - side] is None:
                    weaker[frame] = weaker[frame][::-1]
