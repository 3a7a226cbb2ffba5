"""Pinches of the human's thumb and fingers, and the distances that robot tips should keep.

Detection has hysteresis but no direction of time: a pinch is a stretch of tips within ``RELEASE_M``
of each other that come within ``CLOSE_M``. From the first to the last such frame the robot's tips
should meet; before and after the goal distance grows with the human's and the pull fades. Beyond,
they must stay apart. The two jaws of a gripper are tips too.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from acehand_core.motion import runs
from retarget.replay.metrics import PINCH_ROBOT_M
from retarget.robots.hand_spec import HandSpec
from retarget.robots.kinematics import KinematicTree
from retarget.targets import HandTargets

CLOSE_M = 0.030
RELEASE_M = 0.045
#: Fingers whose tip cannot come nearer do not pinch; the limit of a closed pinch in scoring.
REACH_M = PINCH_ROBOT_M
#: Distance of an open finger from the thumb, and of the human's over which it grows.
OPEN_M = 0.018
OPENING_M = (0.040, 0.050)
#: Pinches that a message lists.
LISTED = 5
_SAMPLES, _REFINEMENTS = 512, 8


@dataclass(frozen=True, slots=True)
class Pinches:
    """Goal vectors from the thumb to each of the P fingers that can pinch.

    ``fingers`` are positions in ``HandSpec.tip_names``. ``closing`` is the share of the pull, 0
    (open) to 1 (closed). ``vector`` (human palm frame, not scaled) is zero where closed, the
    human's at the release distance. ``apart`` is the least distance of the tips, -inf for none.
    """

    fingers: Int[np.ndarray, "P"]
    closing: Float[np.ndarray, "T P"]
    vector: Float[np.ndarray, "T P 3"]
    apart: Float[np.ndarray, "T P"]

    @classmethod
    def of(cls, hand: HandSpec, targets: HandTargets, fingers: Int[np.ndarray, "P"]) -> Pinches:
        """Find the pinches of a human hand; unknown frames are open."""
        tips = targets.tips_of(hand.fingers)
        vector = tips[:, fingers] - tips[:, :1] if len(fingers) else np.zeros((len(tips), 0, 3))
        gap = np.linalg.norm(vector, axis=-1)
        share = np.stack([_opening(column) for column in gap.T], axis=1) if gap.size else gap
        known = np.isfinite(gap)
        closing = np.where(known, 1 - share, 0.0)
        start, end = OPENING_M
        least = np.where(known, OPEN_M * np.clip((gap - start) / (end - start), 0, 1), 0.0)
        vector = np.where(known[..., None], vector * share[..., None], 0.0)
        return cls(fingers, closing**2, vector, np.where(least > 0, least, -np.inf))


@functools.lru_cache(maxsize=8)
def tip_reach(hand: HandSpec, tree: KinematicTree) -> Float[np.ndarray, "K"]:
    """Return how near each fingertip comes to the thumb's, metres, within joint limits.

    0 for the thumb itself, infinite without a thumb. Contact between links is ignored.
    """
    if not _has_thumb(hand):
        return np.full(len(hand.tip_names), np.inf)
    nearest = np.zeros(len(hand.tip_names))
    rng = np.random.default_rng(0)
    span = hand.command_upper - hand.command_lower
    start = hand.command_lower + span * rng.random((_SAMPLES, len(span)))

    for k in range(1, len(nearest)):
        frames = [hand.tip_names[0], hand.tip_names[k]]
        commands, spread = start, span / 2
        for _ in range(_REFINEMENTS):
            points = tree.points(hand.expand(commands), frames)
            gap = np.linalg.norm(points[:, 0] - points[:, 1], axis=-1)
            best = commands[np.argmin(gap)]
            nearest[k] = gap.min()
            spread = spread / 2
            near = best + spread * rng.uniform(-1, 1, start.shape)
            commands = np.clip(near, hand.command_lower, hand.command_upper)
            commands[0] = best
    return nearest


def pinch_fingers(hand: HandSpec, tree: KinematicTree) -> Int[np.ndarray, "P"]:
    """Return the fingers, as positions in ``tip_names``, that can pinch with the thumb."""
    reach = tip_reach(hand, tree)
    return np.array([k for k in range(1, len(reach)) if reach[k] < REACH_M], int)


def impossible_pinches(
    hand: HandSpec, tree: KinematicTree, targets: HandTargets
) -> tuple[str, ...]:
    """Name the human's pinches that this hand cannot close; their tips come as near as possible."""
    if not _has_thumb(hand):
        return ()
    reach, tips = tip_reach(hand, tree), targets.tips_of(hand.fingers)
    notes = []
    for k in np.flatnonzero(reach >= REACH_M):
        gap = np.linalg.norm(tips[:, k] - tips[:, 0], axis=-1)
        if count := int((_opening(gap) == 0).sum()):
            notes.append(
                f"the {hand.side} hand cannot close the thumb-{hand.fingers[k]} pinch of {count} "
                f"frames; its tips stay at least {reach[k] * 1e3:.0f} mm apart"
            )
    return tuple(notes)


def missed_pinches(
    hand: HandSpec, tree: KinematicTree, targets: HandTargets, commands: Float[np.ndarray, "T C"]
) -> tuple[str, ...]:
    """Name the human's pinches that the commands miss, though this hand can close them.

    Robot tips are then ``PINCH_ROBOT_M`` or more apart in over half of a pinch's frames, as when
    the hand is too slow.
    """
    pinches = Pinches.of(hand, targets, pinch_fingers(hand, tree))
    points = tree.points(hand.expand(commands), hand.tip_names)
    notes = []
    for column, k in enumerate(pinches.fingers):
        apart = np.linalg.norm(points[:, k] - points[:, 0], axis=-1)
        closed = runs(pinches.closing[:, column] == 1)
        missed = [run for run in closed if np.mean(apart[slice(*run)] >= PINCH_ROBOT_M) > 0.5]
        if not missed:
            continue
        listed = ", ".join(f"{start} to {stop - 1}" for start, stop in missed[:LISTED])
        more = f" and {len(missed) - LISTED} more" if len(missed) > LISTED else ""
        widest = max(apart[slice(*run)].max() for run in missed)
        notes.append(
            f"the {hand.side} hand misses {len(missed)} of {len(closed)} thumb-{hand.fingers[k]} "
            f"pinches (frames {listed}{more}); its tips stay up to {widest * 1e3:.0f} mm apart"
        )
    return tuple(notes)


def _has_thumb(hand: HandSpec) -> bool:
    """Whether a hand has a thumb to pinch with; one jaw of a gripper counts as such."""
    return len(hand.fingers) > 1 and hand.fingers[0] == "thumb"


def _opening(gap: Float[np.ndarray, "T"]) -> Float[np.ndarray, "T"]:
    """Return 0 in closed pinches, 1 outside of pinches, and values in between on the way."""
    opening = np.ones(len(gap))
    for start, stop in runs(~(gap > RELEASE_M)):  # an unknown frame neither opens nor closes
        near = gap[start:stop]
        closed = start + np.flatnonzero(near < CLOSE_M)
        if len(closed):
            share = np.nan_to_num((near - CLOSE_M) / (RELEASE_M - CLOSE_M), nan=1.0)
            opening[start:stop] = np.clip(share, 0.0, 1.0)
            opening[closed[0] : closed[-1] + 1] = 0.0
    return opening
