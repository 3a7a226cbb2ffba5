"""Checks of keypoints for another order, unit, hand or rate than stated.

A clearly better reading is an error that names it; the rest is a doubt.
"""

from __future__ import annotations

import functools

import numpy as np
from jaxtyping import Float

from acehand_core.errors import SchemaError
from acehand_core.geometry.rotations import unit
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.hand.skeleton import BONES, FINGERS, KNUCKLES, WRIST, finger_keypoints
from acehand_core.recordings.keypoints.mapping import PRESETS, UNITS_M, presets_of
from acehand_core.types import SIDES

#: Proportions: rms of the log of bone lengths relative to the mean hand's, scale removed. Measured
#: hands have 0.1 to 0.25, wrong orders mostly above 0.4. An order up to the first value is not
#: doubted; another up to the second is preferred if it is better by the third, a factor.
UNDOUBTED, PLAUSIBLE, BETTER = 0.3, 0.35, 0.7
#: Mean distance of wrist to knuckles of index to pinky, metres: human, and certainly not.
PALM_M, NO_PALM_M = (0.06, 0.13), (0.045, 0.16)
#: PIP and DIP hardly hyperextend this far.
BENT_RAD = np.radians(30.0)
#: Fewest bones for proportions, and the clip of a bone's log ratio.
LEAST_BONES, LARGEST_RATIO = 8, 2.0
#: Share of bent joints that must bend one way, and their minimum number.
ONE_WAY, LEAST_BENT = 0.95, 20
#: Variation of bone lengths above a tracker's noise.
VARIES = 0.05
#: Largest human speed of fingertips relative to the wrist.
FAST_M_S = 8.0
_SAMPLE = 400

_Hand = Float[np.ndarray, "T 21 3"]


def check_unit(hands: Float[np.ndarray, "T 2 21 3"], unit: str) -> None:
    """Raise SchemaError for lengths that fit a hand only in another unit."""
    with np.errstate(over="ignore", invalid="ignore"):
        knuckles = np.linalg.norm(hands[:, :, KNUCKLES[1:]] - hands[:, :, [WRIST]], axis=-1)
    knuckles = knuckles[(knuckles > 0) & np.isfinite(knuckles)]
    if len(knuckles) == 0:
        return
    size, (low, high) = float(np.median(knuckles)), PALM_M
    if NO_PALM_M[0] <= size <= NO_PALM_M[1]:
        return
    for name, metres in UNITS_M.items():
        if name != unit and low <= size / UNITS_M[unit] * metres <= high:
            raise SchemaError(
                f"the knuckles lie {size:g} m from the wrist, if the unit is {unit}; "
                f"valid: {low} to {high}. Joints must be in metres, or declare their unit: these "
                f"look like {name} (unit: {name})."
            )


def check_order(
    raw: Float[np.ndarray, "T S J 3"], mapped: Float[np.ndarray, "T 2 21 3"], order: str
) -> None:
    """Raise SchemaError for joints that fit a hand only in another order.

    ``raw``: the S hands of the file; ``mapped``: the same in our order; ``order``: in words.
    """
    stated = min((_proportions(mapped[:, slot]) for slot in range(2)), default=np.inf)
    if stated <= UNDOUBTED:
        return
    scores = {}
    for name in presets_of(raw.shape[2]):
        joints = [in_order(raw[:, slot], PRESETS[name]) for slot in range(raw.shape[1])]
        scores[name] = min(_proportions(hand) for hand in joints)
    best = min(scores, key=lambda name: scores[name], default="")
    if best and scores[best] < min(PLAUSIBLE, BETTER * stated):
        raise SchemaError(
            f"in the order {order} the bones are not those of a hand; the joints look "
            f"like {best} order (order: {best}, or `keypoints={best}`)."
        )


def in_order(raw: Float[np.ndarray, "*n J 3"], order: tuple[int | None, ...]) -> np.ndarray:
    """Return joints of a file as our 21, NaN for missing ones."""
    joints = np.full((*raw.shape[:-2], 21, 3), np.nan)
    used = [(keypoint, column) for column, keypoint in enumerate(order) if keypoint is not None]
    keypoints, columns = np.array(used, int).reshape(-1, 2).T
    joints[..., keypoints, :] = raw[..., columns, :]
    return joints


def check_sides(hands: Float[np.ndarray, "T 2 21 3"]) -> None:
    """Raise SchemaError if the fingers bend backwards: the other hand, or mirrored."""
    wrong = [side for slot, side in enumerate(SIDES) if _bends(hands[:, slot], slot) < 0]
    if len(wrong) == 2:
        raise SchemaError(
            "both hands look like the other one: left and right joints are swapped (left comes "
            "first), or one axis points the other way (a left-handed frame, or a mirrored picture)."
        )
    for side in wrong:
        other = SIDES[1 - SIDES.index(side)]
        raise SchemaError(
            f"the joints look like a {other} hand, but are declared as a {side} one: the "
            f"fingers bend out of the palm. Set side: {other} (`hands={other}`); if it is a {side} "
            "hand, one axis points the other way (a left-handed frame, or a mirrored picture)."
        )


def doubts(hands: Float[np.ndarray, "T 2 21 3"], times_ns: np.ndarray) -> list[str]:
    """Return a sentence for every doubt."""
    sentences = []
    for slot, side in enumerate(SIDES):
        hand = hands[:, slot]
        varies, proportions = _variation(hand), _proportions(hand)
        if varies > VARIES:
            sentences.append(
                f"the bone lengths of the {side} hand vary by {varies:.0%}: joints of several "
                "people, or depths that were guessed from a picture?"
            )
        if PLAUSIBLE < proportions < np.inf:
            sentences.append(
                f"the bones of the {side} hand are not in a hand's proportions: is the order of "
                "the joints right?"
            )
        if len(times_ns) > 1 and (fast := _tip_speed(hand, times_ns)) > FAST_M_S:
            sentences.append(
                f"the {side} fingertips move at up to {fast:.0f} m/s within the hand: is the "
                "frame rate right?"
            )
    return sentences


@functools.cache
def _mean_lengths() -> Float[np.ndarray, "20"]:
    joints = CapsuleHand().rest_keypoints("right", np.zeros(10))
    return np.array([np.linalg.norm(joints[child] - joints[parent]) for parent, child in BONES])


def _lengths(hand: _Hand) -> Float[np.ndarray, "N 20"]:
    rows = np.unique(np.linspace(0, len(hand) - 1, _SAMPLE).round().astype(int))
    parents, children = np.array(BONES).T
    with np.errstate(over="ignore", invalid="ignore"):
        return np.linalg.norm(hand[np.ix_(rows, children)] - hand[np.ix_(rows, parents)], axis=-1)


def _proportions(hand: _Hand) -> float:
    """Return the deviation from the mean hand's proportions; infinite for too few bones."""
    # Definitions of the thumb's root differ.
    lengths = _lengths(hand)[:, 1:]
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.log(lengths / _mean_lengths()[1:])
    known = np.isfinite(ratio)
    if known.any(0).sum() < LEAST_BONES:
        return np.inf
    away = ratio[known] - np.median(ratio[known])
    return float(np.sqrt(np.mean(np.clip(away, -LARGEST_RATIO, LARGEST_RATIO) ** 2)))


def _variation(hand: _Hand) -> float:
    """Return the relative variation of a typical bone's length over time."""
    lengths = _lengths(hand)
    spreads = []
    for bone in lengths.T:
        bone = bone[np.isfinite(bone) & (bone > 0)]
        if len(bone) > 1:
            low, middle, high = np.percentile(bone, [10, 50, 90])
            spreads.append((high - low) / 2.563 / middle)  # sigma of a normal distribution
    return float(np.median(spreads)) if spreads else 0.0


def _bends(hand: _Hand, slot: int) -> int:
    """Return 1 if the fingers bend into the palm, -1 out of it, 0 if unclear."""
    rows = np.unique(np.linspace(0, len(hand) - 1, _SAMPLE).round().astype(int))
    hand = hand[rows]
    # Fingers of a right hand turn about the axis to the thumb's side.
    knuckles = [k for k in KNUCKLES[1:] if np.isfinite(hand[:, k]).all(-1).any()]
    if len(knuckles) < 2:
        return 0
    with np.errstate(invalid="ignore", divide="ignore"):
        across = unit(hand[:, knuckles[0]] - hand[:, knuckles[-1]])
        turns = []
        for finger in FINGERS[1:]:
            bones = unit(np.diff(hand[:, list(finger_keypoints(finger))], axis=1))
            axis = np.cross(bones[:, :-1], bones[:, 1:])
            turns.append(np.sum(axis * across[:, None], axis=-1))
    bent = np.concatenate(turns, axis=1) * (1 if slot == 1 else -1)
    strong = bent[np.abs(bent) > np.sin(BENT_RAD)]
    if len(strong) < LEAST_BENT:
        return 0
    into = float((strong > 0).mean())
    return 1 if into >= ONE_WAY else -1 if into <= 1 - ONE_WAY else 0


def _tip_speed(hand: _Hand, times_ns: np.ndarray) -> float:
    """Return the 99th percentile of the fingertips' speed about the wrist, m/s."""
    tips = hand[:, [finger_keypoints(finger)[-1] for finger in FINGERS]] - hand[:, [WRIST]]
    speed = np.linalg.norm(np.diff(tips, axis=0), axis=-1) / (np.diff(times_ns)[:, None] / 1e9)
    speed = speed[np.isfinite(speed)]
    return float(np.percentile(speed, 99)) if len(speed) else 0.0
