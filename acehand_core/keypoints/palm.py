"""The palm is rigid: what is missing of it follows from the rest.

Retargeting needs the wrist and the knuckles of index to pinky in every frame. A knuckle that is
missing is placed by the rigid palm of the same recording; one that is never there by that of the
mean hand, fitted to the others. The wrist is interpolated over short gaps only: knuckles lie nearly
on a line, which says little of the side to which the wrist lies.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float

from acehand_core.geometry import frames, rotations
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.hand.skeleton import PALM
from acehand_core.types import Side

#: The wrist is interpolated, relative to the knuckles, for no longer than this.
WRIST_GAP_S = 0.5
#: What the points of a palm may be off from a rigid one, rms: beyond it nothing is concluded.
RIGID_M = 0.010
#: Points of the palm, the wrist among them, that place the others.
LEAST_POINTS = 3
#: Frames that the rigid palm is made of.
_SAMPLE = 200

PalmPoints = Float[np.ndarray, "T 5 3"]


def completed(
    joints: Float[np.ndarray, "T 21 3"], side: Side, fps: float
) -> tuple[Float[np.ndarray, "T 21 3"], Bool[np.ndarray, "T 21"]]:
    """Return the joints with wrist and knuckles estimated where they can be, and which these are.

    Args:
        joints: metres, in any frame; NaN where a joint is not known.
        side: which hand it is.
        fps: frames per second.
    """
    points = joints[:, PALM]
    known = np.all(np.isfinite(points), axis=-1)
    template = None if known.all() else _template(points, known, side)
    if template is None:
        return joints, np.zeros(joints.shape[:2], bool)
    points = _wrist_bridged(points, known, fps)
    known = np.all(np.isfinite(points), axis=-1)

    # Frames that lack the same points are placed at once.
    able = known[:, 0] & (known.sum(1) >= LEAST_POINTS) & ~known.all(1)
    for pattern in np.unique(known[able], axis=0):
        rows = np.flatnonzero(able & (known == pattern).all(1))
        # The template where each frame's known points are.
        seen = points[rows][:, pattern]
        moves = _moves(np.broadcast_to(template[pattern], seen.shape), seen)
        placed = frames.apply(moves, np.broadcast_to(template, points[rows].shape))
        points[np.ix_(rows, ~pattern)] = placed[:, ~pattern]

    complete = joints.copy()
    complete[:, PALM] = points
    estimated = np.isfinite(complete).all(-1) & ~np.isfinite(joints).all(-1)
    return complete, estimated


def _wrist_bridged(points: PalmPoints, known: Bool[np.ndarray, "T 5"], fps: float) -> PalmPoints:
    """Interpolate short gaps of the wrist, relative to the knuckles that are given."""
    points, given = points.copy(), np.asarray(known.any(0))[1:]
    knuckles = known[:, 1:][:, given].all(1)
    at = np.flatnonzero(known[:, 0] & knuckles)
    gap = np.flatnonzero(~known[:, 0] & knuckles)
    after = np.searchsorted(at, gap)
    inside = (after > 0) & (after < len(at))
    gap, after = gap[inside], after[inside]
    short = at[after] - at[after - 1] - 1 <= WRIST_GAP_S * fps
    gap = gap[short]
    if len(gap) == 0:
        return points

    # The line of knuckles is known throughout; how far the palm is turned about it is interpolated.
    line = points[:, 1:][:, given]
    middle, along = line.mean(1), rotations.unit(line[:, 0] - line[:, -1])
    offset = points[:, 0] - middle
    part = np.sum(offset * along, axis=-1)
    beside = offset - part[:, None] * along
    length = np.linalg.norm(beside, axis=-1)

    toward = np.stack([np.interp(gap, at, column) for column in beside[at].T], axis=1)
    toward = rotations.unit(
        toward - np.sum(toward * along[gap], axis=-1, keepdims=True) * along[gap]
    )
    part, length = np.interp(gap, at, part[at]), np.interp(gap, at, length[at])
    points[gap, 0] = middle[gap] + part[:, None] * along[gap] + length[:, None] * toward
    return points


def _template(
    points: PalmPoints, known: Bool[np.ndarray, "T 5"], side: Side
) -> Float[np.ndarray, "5 3"] | None:
    """Return the rigid palm of a recording, None where it has none."""
    mean = CapsuleHand().rest_keypoints(side, np.zeros(10))[list(PALM)]
    ever = np.asarray(known.any(0))
    whole = np.flatnonzero(known[:, ever].all(1))
    if not ever[0] or ever.sum() < LEAST_POINTS or len(whole) == 0:
        return None

    chosen = whole[np.unique(np.linspace(0, len(whole) - 1, _SAMPLE).round().astype(int))]
    shapes = points[np.ix_(chosen, ever)]
    rigid = shapes[0]
    for _ in range(2):  # the first frame may be a bad one
        moved = frames.apply(_moves(shapes, rigid), shapes)
        rigid = np.median(moved, axis=0)
    rms = np.sqrt(np.mean(np.sum((moved - rigid) ** 2, axis=-1), axis=1))
    if np.median(rms) > RIGID_M:
        return None

    scale, turn, shift = frames.similarity_fit(mean[ever], rigid)
    template = scale * mean @ turn.T + shift
    template[ever] = rigid
    return template


def _moves(
    source: Float[np.ndarray, "T K 3"], target: Float[np.ndarray, "*T K 3"]
) -> Float[np.ndarray, "T 4 4"]:
    """Return the rigid transforms of each frame's points to the target's (Kabsch)."""
    from_, to = source.mean(-2, keepdims=True), target.mean(-2, keepdims=True)
    turn = rotations.project_to_rotation(np.swapaxes(target - to, -1, -2) @ (source - from_))
    return frames.rigid(turn, to[..., 0, :] - (turn @ from_[..., 0, :, None])[..., 0])
