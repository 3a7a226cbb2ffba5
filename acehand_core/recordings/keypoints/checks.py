"""Likely mistakes in keypoints: another order, unit, hand or rate than was said.

Each check knows what all human hands have in common, whatever their pose: the proportions of their
bones, the size of the palm, the way the fingers bend. Where another reading fits that clearly, and
the stated one does not, it is a mistake and is named. What is merely odd is a doubt.
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

#: Proportions: rms of the log of bone lengths against the mean hand's, its size aside. Hands that
#: were measured have 0.1 to 0.25, joints in another order mostly above 0.4. Up to the first value
#: an order is not doubted; up to the second it is taken for the right one, where it fits better
#: than the stated one by the third, a factor.
UNDOUBTED, PLAUSIBLE, BETTER = 0.3, 0.35, 0.7
#: Wrist to the knuckles of index to pinky, mean, metres: of people, and beyond doubt not.
PALM_M, NO_PALM_M = (0.06, 0.13), (0.045, 0.16)
#: PIP and DIP bend into the palm; backwards they hardly reach this.
BENT_RAD = np.radians(30.0)
#: Bones whose proportions say something, and beyond which one of them counts no more.
LEAST_BONES, LARGEST_RATIO = 8, 2.0
#: Share of the bent joints that must bend one way, and how many must be bent at all.
ONE_WAY, LEAST_BENT = 0.95, 20
#: Variation of bone lengths that is more than a tracker's noise.
VARIES = 0.05
#: Fingertips relative to the wrist, metres per second, that people do not exceed.
FAST_M_S = 8.0
_SAMPLE = 400

_Hand = Float[np.ndarray, "T 21 3"]


def check_unit(source: str, hands: Float[np.ndarray, "T 2 21 3"], unit: str) -> None:
    """Refuse lengths that only another unit makes those of a hand.

    Raises:
        SchemaError: names the unit that they look like.
    """
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
                f"{source}: the knuckles lie {size:g} m from the wrist, if the unit is {unit}; "
                f"valid: {low} to {high}. Joints must be in metres, or say their unit: these look "
                f"like {name} (unit: {name})."
            )


def check_order(
    source: str, raw: Float[np.ndarray, "T S J 3"], mapped: Float[np.ndarray, "T 2 21 3"], said: str
) -> None:
    """Refuse joints that are a hand only in another order.

    Args:
        source: what messages call the file.
        raw: the S hands as they stand in the file.
        mapped: the same in the order of this project.
        said: the order that was stated, for the message.

    Raises:
        SchemaError: names the order that they look like.
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
            f"{source}: in the order {said} the bones are not those of a hand; the joints look "
            f"like {best} order (order: {best}, or --keypoints {best})."
        )


def in_order(raw: Float[np.ndarray, "*n J 3"], order: tuple[int | None, ...]) -> np.ndarray:
    """Return joints of a file as the 21 of this project, NaN where it has none."""
    joints = np.full((*raw.shape[:-2], 21, 3), np.nan)
    for column, keypoint in enumerate(order):
        if keypoint is not None:
            joints[..., keypoint, :] = raw[..., column, :]
    return joints


def check_sides(source: str, hands: Float[np.ndarray, "T 2 21 3"]) -> None:
    """Refuse hands whose fingers bend backwards: they are the other hand, or mirrored.

    Raises:
        SchemaError: names the hand.
    """
    wrong = [side for slot, side in enumerate(SIDES) if _bends(hands[:, slot], slot) < 0]
    if len(wrong) == 2:
        raise SchemaError(
            f"{source}: both hands look like the other one: the left and the right joints are "
            "swapped (left comes first), or one axis points the other way (a left-handed frame, or "
            "a mirrored picture)."
        )
    for side in wrong:
        other = SIDES[1 - SIDES.index(side)]
        raise SchemaError(
            f"{source}: the joints look like a {other} hand, but are said to be a {side} one: the "
            f"fingers bend out of the palm. Say side: {other} (--hands {other}); if it is a {side} "
            "hand, one axis points the other way (a left-handed frame, or a mirrored picture)."
        )


def doubts(hands: Float[np.ndarray, "T 2 21 3"], times_ns: np.ndarray) -> list[str]:
    """Return a sentence for everything that is odd, but may be so."""
    found = []
    for slot, side in enumerate(SIDES):
        hand = hands[:, slot]
        varies, proportions = _variation(hand), _proportions(hand)
        if varies > VARIES:
            found.append(
                f"the bone lengths of the {side} hand vary by {varies:.0%}: joints of several "
                "people, or depths that were guessed from a picture?"
            )
        if PLAUSIBLE < proportions < np.inf:
            found.append(
                f"the bones of the {side} hand are not in a hand's proportions: is the order of "
                "the joints right?"
            )
        if len(times_ns) > 1 and (fast := _tip_speed(hand, times_ns)) > FAST_M_S:
            found.append(
                f"the {side} fingertips move at up to {fast:.0f} m/s within the hand: is the "
                "frame rate right?"
            )
    return found


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
    """Return how far bones are from the mean hand's proportions; infinite for too few bones."""
    # The bone at the thumb's root differs from one definition of that joint to the next.
    lengths = _lengths(hand)[:, 1:]
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.log(lengths / _mean_lengths()[1:])
    known = np.isfinite(ratio)
    if known.any(0).sum() < LEAST_BONES:
        return np.inf
    away = ratio[known] - np.median(ratio[known])
    return float(np.sqrt(np.mean(np.clip(away, -LARGEST_RATIO, LARGEST_RATIO) ** 2)))


def _variation(hand: _Hand) -> float:
    """Return how much a typical bone's length varies over time, relative to it."""
    lengths = _lengths(hand)
    spreads = []
    for bone in lengths.T:
        bone = bone[np.isfinite(bone) & (bone > 0)]
        if len(bone) > 1:
            low, middle, high = np.percentile(bone, [10, 50, 90])
            spreads.append((high - low) / 2.563 / middle)  # as wide as of a normal distribution
    return float(np.median(spreads)) if spreads else 0.0


def _bends(hand: _Hand, slot: int) -> int:
    """Return 1 where the fingers bend into the palm, -1 out of it, 0 where neither is clear."""
    rows = np.unique(np.linspace(0, len(hand) - 1, _SAMPLE).round().astype(int))
    hand = hand[rows]
    # On a right hand fingers turn about the axis to the thumb's side.
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
