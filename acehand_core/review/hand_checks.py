"""Checks of human hands: what no hand does, and what only a fault of tracking looks like."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float

from acehand_core.geometry import rotations
from acehand_core.hand.skeleton import BONES, FINGERS, KNUCKLES, WRIST, finger_keypoints
from acehand_core.lerobot.trim_rules import runs
from acehand_core.review.checks import Measure
from acehand_core.review.episode import Episode
from acehand_core.types import SIDES, Side
from retarget.solve.targets import palm_frames

#: Wrist to middle fingertip of a mean adult hand, m.
ADULT_HAND_M = 0.187
#: What no wrist does: m/s, degrees a second.
FAST_M_S, FAST_DEG_S = 6.0, 2000.0
#: A joint between bones that bends backwards by more is out of its range.
BACKWARDS_RAD = np.radians(30.0)
#: A hand that was measured moves by more than this from frame to frame, if only by noise (m).
STILL_M = 2e-5
#: Hands change places where that explains their paths so much better, and those are so long (m).
SWAP_SHARE, SWAP_M = 0.4, 0.08
#: The share of strong bends that must be out of the palm, over so many seconds, of a wrong side.
OUTWARD, SIDE_S = 0.7, 1.0

_Hand = Float[np.ndarray, "T 21 3"]


def hand_measures(episode: Episode) -> list[Measure]:
    """Measure both hands of an episode."""
    measures = []
    for slot, side in enumerate(SIDES):
        seen = episode.observed[:, slot] & np.isfinite(episode.joints[:, slot]).all((1, 2))
        if seen.sum() < 3:
            continue
        hand = episode.joints[:, slot]
        measures += [
            *_shape(hand, seen, side),
            _jitter(hand, seen, side),
            *_motion(episode, hand, seen, side),
            *_bends(episode, hand, seen, side),
            _frozen(episode, slot),
            _unsure(episode, slot),
            *_place(episode, hand, seen, side),
            *_evidence(episode, slot, seen),
        ]
    return [*measures, *_swaps(episode)]


def hand_length(episode: Episode) -> float | None:
    """Return the length of the hand that is seen more, along its bones (m)."""
    seen = episode.observed & np.isfinite(episode.joints).all((2, 3))
    if not seen.any():
        return None
    slot = int(np.argmax(seen.sum(0)))
    return _length(episode.joints[seen[:, slot], slot])


def _length(hand: Float[np.ndarray, "N 21 3"]) -> float:
    chain = hand[:, [WRIST, *finger_keypoints("middle")]]
    return float(np.median(np.linalg.norm(np.diff(chain, axis=1), axis=-1).sum(1)))


def _shape(hand: _Hand, seen: Bool[np.ndarray, "T"], side: Side) -> list[Measure]:
    length = _length(hand[seen])
    factor = max(length / ADULT_HAND_M, ADULT_HAND_M / max(length, 1e-9))
    parents, children = np.array(BONES).T

    bones = np.linalg.norm(hand[seen][:, children] - hand[seen][:, parents], axis=-1)
    low, middle, high = np.percentile(bones, [10, 50, 90], axis=0)
    spread = (high - low) / 2.563 / np.maximum(middle, 1e-9)  # of a normal distribution: its std
    varies = float(np.median(spread))
    return [
        Measure("hand_size", factor,
                f"the {side} hand is {1e3 * length:.0f} mm long: another unit, or depths that are "
                "off", side),
        Measure("bone_length", varies,
                f"bones of the {side} hand change their length by {varies:.1%}", side),
    ]  # fmt: skip


def _jitter(hand: _Hand, seen: Bool[np.ndarray, "T"], side: Side) -> Measure:
    """Measure noise from frame to frame; white noise has third differences of sqrt(20) times it.

    Smooth motion has hardly any; the median leaves out the moments at which there is more.
    """
    third = np.diff(hand, n=3, axis=0)
    usable = np.lib.stride_tricks.sliding_window_view(seen, 4).all(1) if len(seen) > 3 else seen[:0]
    if not usable.any():
        return Measure("jitter", 0.0, "", side)

    # The median length of a vector of three normal numbers is 1.538 times their deviation.
    size = np.median(np.linalg.norm(third, axis=-1), axis=1) / np.sqrt(20) / 1.538
    value = 1e3 * float(np.median(size[usable]))
    at = int(np.argmax(np.where(usable, size, 0))) + 1
    return Measure("jitter", value, f"joints of the {side} hand jitter by {value:.1f} mm", side, at)


def _motion(
    episode: Episode, hand: _Hand, seen: Bool[np.ndarray, "T"], side: Side
) -> list[Measure]:
    """Measure jumps of the wrist and turns of the palm between frames that follow each other."""
    both = seen[1:] & seen[:-1]
    with np.errstate(invalid="ignore", divide="ignore"):
        palms = palm_frames(hand, side)[:, :3, :3]

    turn = np.degrees(rotations.angle_between(palms[:-1], palms[1:])) * episode.fps
    turn = np.where(both & np.isfinite(turn), turn, 0.0)
    flips, at = int((turn > FAST_DEG_S).sum()), int(np.argmax(turn)) + 1
    measures = [
        Measure("flips", flips,
                f"frames in which the {side} palm turns over: {flips}, at up to {turn.max():.0f} "
                "degrees a second", side, at)
    ]  # fmt: skip
    if episode.placed:
        speed = np.linalg.norm(np.diff(hand[:, WRIST], axis=0), axis=-1) * episode.fps
        speed = np.where(both, speed, 0.0)
        fast, at = int((speed > FAST_M_S).sum()), int(np.argmax(speed)) + 1
        text = f"jumps of the {side} wrist: {fast}, at up to {speed.max():.0f} m/s"
        measures.append(Measure("speed", fast, text, side, at))
    return measures


def _bends(episode: Episode, hand: _Hand, seen: Bool[np.ndarray, "T"], side: Side) -> list[Measure]:
    """Measure which finger joints bend backwards; of most of them at once the side is wrong."""
    sign = 1 if side == "right" else -1
    across = _unit(hand[:, KNUCKLES[1]] - hand[:, KNUCKLES[4]]) * sign
    angles = []
    for finger in FINGERS[1:]:
        bones = _unit(np.diff(hand[:, list(finger_keypoints(finger))], axis=1))
        axis = np.cross(bones[:, :-1], bones[:, 1:])
        into = np.sum(axis * across[:, None], axis=-1)
        angles.append(np.arctan2(into, np.sum(bones[:, :-1] * bones[:, 1:], axis=-1)))

    bent = np.concatenate(angles, axis=1)[seen]
    backwards = bent < -BACKWARDS_RAD
    share = float(backwards.mean())
    frames = np.flatnonzero(seen)
    at = int(frames[np.argmax(backwards.sum(1))])

    # Of the other hand all fingers bend so, in every frame in which they bend at all.
    strong = (np.abs(bent) > BACKWARDS_RAD).sum(1)
    out = np.zeros(len(hand), bool)
    out[frames] = (strong >= 2) & (backwards.sum(1) >= OUTWARD * strong)
    into_palm = np.zeros(len(hand), bool)
    into_palm[frames] = (strong >= 2) & ~out[frames]

    wrong = out.sum() >= SIDE_S * episode.fps and _prevails(out, into_palm, episode.fps)
    other = SIDES[1 - SIDES.index(side)]
    return [
        Measure("bends", share,
                f"{share:.0%} of the {side} hand's finger joints bend backwards", side, at),
        Measure("wrong_side", float(wrong),
                f"the fingers of the {side} hand bend out of its palm: it is a {other} one, or "
                "mirrored", side, int(np.argmax(out))),
    ]  # fmt: skip


def _prevails(out: Bool[np.ndarray, "T"], into: Bool[np.ndarray, "T"], fps: float) -> bool:
    """Tell whether over some ``SIDE_S`` seconds fingers mostly bend out of the palm."""
    window = np.ones(max(round(SIDE_S * fps), 1))
    outward, inward = (np.convolve(flags, window, "same") for flags in (out, into))
    return bool((outward >= OUTWARD * len(window)).any() and (outward > 4 * inward).any())


def _frozen(episode: Episode, slot: int) -> Measure:
    hand, side = episode.joints[:, slot], SIDES[slot]
    measured = episode.valid[:, slot] & ~episode.filled[:, slot]  # whatever its confidence
    with np.errstate(invalid="ignore"):
        still = measured[1:] & measured[:-1] & (np.abs(np.diff(hand, axis=0)).max((1, 2)) < STILL_M)
    first, stop = max(runs(still), key=lambda run: run[1] - run[0], default=(0, 0))
    seconds = (stop - first) / episode.fps
    text = f"the {side} hand is said to be seen, and does not move at all for {seconds:.1f} s"
    return Measure("frozen", seconds, text, side, first)


def _unsure(episode: Episode, slot: int) -> Measure:
    valid, sure = episode.valid[:, slot], episode.observed[:, slot]
    share, side = float((valid & ~sure).sum() / valid.sum()), SIDES[slot]
    text = f"{share:.0%} of the {side} hand's frames are filled in or of confidence 0"
    first, _ = max(runs(valid & ~sure), key=lambda run: run[1] - run[0], default=(0, 0))
    return Measure("unsure", share, text, side, first)


def _place(episode: Episode, hand: _Hand, seen: Bool[np.ndarray, "T"], side: Side) -> list[Measure]:
    if not episode.placed:
        return []
    far = float(np.median(np.linalg.norm(hand[seen, WRIST], axis=-1)))
    text = f"the {side} wrist is {far:.2f} m from the camera: another unit, or a wrong camera"
    return [Measure("distance", far, text, side)]


def _evidence(episode: Episode, slot: int, seen: Bool[np.ndarray, "T"]) -> list[Measure]:
    """Hold joints against the landmarks that the tracker saw."""
    motion, side = episode.motion, SIDES[slot]
    if motion is None or not episode.placed or episode.camera is None:
        return []
    pixels = motion.joints_image[:, slot]
    usable = seen & np.isfinite(pixels).all((1, 2)) & (episode.joints[:, slot, :, 2] > 0).all(1)
    if usable.sum() < 3:
        return []

    projected = project(episode.camera, episode.joints)[:, slot]
    size = extent(pixels)
    away = np.linalg.norm(projected - pixels, axis=-1).mean(1) / np.maximum(size, 1e-6)
    value, at = float(np.median(away[usable])), int(np.argmax(np.where(usable, away, 0)))
    ratio = float(np.median((extent(projected) / np.maximum(size, 1e-6))[usable]))
    factor = max(ratio, 1 / max(ratio, 1e-6))
    return [
        Measure("reprojection", value,
                f"joints of the {side} hand, seen through the camera, are {value:.0%} of its size "
                "from where they were in the picture", side, at),
        Measure("depth_size", factor,
                f"the {side} hand is {ratio:.2f} times as large in the picture as it was seen: its "
                "depth, size and camera do not agree", side, at),
    ]  # fmt: skip


def _swaps(episode: Episode) -> list[Measure]:
    """Count the times at which both hands change places, by what explains their wrists' paths."""
    if not episode.placed:
        return []
    wrist = episode.joints[:, :, WRIST]
    known = episode.valid & np.isfinite(wrist).all(-1)
    both = np.flatnonzero(known.all(1))
    before, after = both[:-1], both[1:]
    near = after - before <= max(round(0.5 * episode.fps), 1)
    before, after = before[near], after[near]
    if not len(before):
        return []

    kept = np.linalg.norm(wrist[after] - wrist[before], axis=-1).sum(1)
    changed = np.linalg.norm(wrist[after][:, ::-1] - wrist[before], axis=-1).sum(1)
    swapped = (changed < SWAP_SHARE * kept) & (kept > SWAP_M)
    count = int(swapped.sum())
    at = int(after[np.argmax(swapped)])
    text = f"swaps of the left and the right hand: {count}"
    return [Measure("identity_swaps", count, text, frame=at)]


def project(
    camera: Float[np.ndarray, "T 6"], joints: Float[np.ndarray, "T *n 3"]
) -> Float[np.ndarray, "T *n 2"]:
    """Return where points of the camera frame are in the picture of a pinhole, in pixels."""
    shape = (len(camera),) + (1,) * (joints.ndim - 2)
    fx, fy, cx, cy = (camera[:, k].reshape(shape) for k in range(4))
    with np.errstate(divide="ignore", invalid="ignore"):
        x, y = joints[..., 0] / joints[..., 2], joints[..., 1] / joints[..., 2]
    return np.stack([fx * x + cx, fy * y + cy], axis=-1)


def extent(pixels: Float[np.ndarray, "*n 21 2"]) -> Float[np.ndarray, "*n"]:
    """Return the rms distance of a hand's landmarks from their mean."""
    away = pixels - pixels.mean(-2, keepdims=True)
    return np.asarray(np.sqrt((away**2).sum(-1).mean(-1)))


def wrist_paths(episode: Episode) -> Sequence[float]:
    """Return how far the left and the right wrist went while they were seen (m)."""
    wrist = episode.joints[:, :, WRIST]
    seen = episode.observed[1:] & episode.observed[:-1]
    step = np.linalg.norm(np.diff(wrist, axis=0), axis=-1)
    return [float(v) for v in np.where(seen & np.isfinite(step), step, 0).sum(0)]


def _unit(vectors: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
