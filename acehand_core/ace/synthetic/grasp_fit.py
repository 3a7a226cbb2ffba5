"""Hands fitted to the objects that they take: fingers on the surface, nothing inside it.

World frame of ``layout``: the object stands on the table, z = 0; metres and radians.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from acehand_core.ace.synthetic import layout
from acehand_core.ace.synthetic.hand_geometry import Angles, HandPoints, bend_more
from acehand_core.ace.synthetic.layout import Prop
from acehand_core.ace.synthetic.script import Vector
from acehand_core.geometry import rotations
from acehand_core.hand import articulation
from acehand_core.types import RigidTransform, Rotation

#: What one unit of the fit's cost is: metres of a pad off the surface (pressed in a little), of
#: skin inside the object, of a bone too near it, of skin below the table.
_PAD, _PRESS, _INSIDE, _BONE, _TABLE = 1.2e-4, 3e-4, 3e-4, 5e-4, 5e-4
#: A bone stays away by this share of the flesh around it. It keeps fingers from going through thin
#: walls, which skin that is past them does not feel.
_BONE_SHARE = 0.8
#: What of a bone's flesh the surface may not come nearer than, in a grasp and on the way.
SOFT = 0.7
_TABLE_CLEAR_M = 0.002
#: How far pads may turn from facing the surface, angles and wrist from where they start.
_FACING, _TURN, _SHIFT = 0.3, np.radians(16), 0.03
_ANGLE = np.radians([10 if f.kind == "spread" else 30 for f in articulation.freedoms()])
#: Tips of one hand keep as far apart as fingers are thick.
_APART_M, _APART = 0.0145, 1e-3
_COUPLED = np.radians(20)
_STEPS = 40


@dataclass(frozen=True, slots=True)
class GraspPose:
    """A hand: 22 angles and the wrist in the world."""

    angles: Angles
    R: Rotation
    wrist: Vector


@dataclass(frozen=True, slots=True)
class GraspTarget:
    """How an object is to be held.

    ``fingers``: which tips touch it, the thumb's (0) first. ``centre``: where the middle between
    the thumb's pad and the others' is to be in the world, to ``within`` metres along each axis.
    """

    fingers: tuple[int, ...]
    centre: Vector
    within: Vector
    #: How far the thumb's pad may be beside the line that the others press along.
    level: float = 0.004
    #: Of something thin: which way is out where thumb and finger start, and how thick it is.
    sides: Float[np.ndarray, "K 3"] | None = None
    wall: float = 0.0
    #: False where another hand is opposite: then ``centre`` is for the thumb's pad alone.
    opposed: bool = True


@dataclass(frozen=True, slots=True)
class Grasp:
    """A grasp: how the hand holds, how it opens, and along which way (unit) it comes and goes.

    ``depth``: the deepest point of the hand in the object; ``gap``: the larger of the thumb's and
    the nearest finger's distance to it; ``opposed``: the angle between their contact normals.
    """

    held: GraspPose
    opened: Angles
    before: Vector
    approach: Vector
    T_world_prop: RigidTransform
    depth: float
    gap: float
    opposed: float
    clear: float

    @property
    def good(self) -> bool:
        """Whether thumb and finger touch from both sides and nothing goes into the object."""
        return bool(self.badness < 1.0)

    @property
    def badness(self) -> float:
        """Below 1 where all is well."""
        return max(
            self.depth / 0.0024, self.gap / 0.0015, (np.pi - self.opposed) / np.radians(40),
            1.0 - self.clear / 0.002,
        )  # fmt: skip


def close_hand(
    hand: HandPoints,
    start: GraspPose,
    prop: Prop,
    T_world_prop: RigidTransform,
    target: GraspTarget,
) -> GraspPose:
    """Fit the hand near ``start`` that holds an object as the target asks: damped least squares."""
    low, high = articulation.limits()
    pose = start
    damping = 1e-2
    residual, slope = _cost(hand, pose, start, prop, T_world_prop, target)
    cost = residual @ residual

    for _ in range(_STEPS):
        normal, gradient = slope.T @ slope, slope.T @ residual
        step = -np.linalg.solve(normal + damping * np.diag(np.diag(normal)), gradient)
        # No more than a few degrees and millimetres at once: contacts come and go.
        step *= min(1.0, 0.2 / np.abs(step[:25]).max(), 0.01 / np.abs(step[25:]).max())
        tried = GraspPose(
            np.clip(pose.angles + step[:22], low, high),
            rotations.exp(step[22:25]) @ pose.R,
            pose.wrist + step[25:],
        )
        new, new_slope = _cost(hand, tried, start, prop, T_world_prop, target)
        if new @ new < cost:
            gain = cost - new @ new
            pose, residual, slope, cost = tried, new, new_slope, new @ new
            damping = max(damping / 4, 1e-6)
            if gain < 1e-4 * cost:
                break
        else:
            damping *= 6
            if damping > 1e6:
                break

    # Rounded, so that it is the same wherever the last digits differ.
    R = rotations.exp(np.round(rotations.log(pose.R), 5))
    return GraspPose(np.clip(np.round(pose.angles, 5), low, high), R, np.round(pose.wrist, 6))


def _cost(
    hand: HandPoints,
    pose: GraspPose,
    start: GraspPose,
    prop: Prop,
    T_world_prop: RigidTransform,
    target: GraspTarget,
) -> tuple[np.ndarray, np.ndarray]:
    """Return residuals and their derivatives by angles, turn and shift."""
    points = _points(hand, pose)
    away, outwards = _contacts(hand, points, prop, T_world_prop, target)
    thick = _BONE_SHARE * hand.flesh
    scale = np.where(hand.flesh > 0, _BONE, _INSIDE)
    pads, tips = hand.pads[list(target.fingers)], hand.tips[list(target.fingers)]
    inside = np.setdiff1d(np.flatnonzero(away < thick), pads)
    below = np.flatnonzero((points[:, 2] < _TABLE_CLEAR_M) & (hand.flesh == 0))
    rows = np.concatenate([pads, tips, hand.tips, inside, below])
    slopes = hand.slopes(pose.angles, pose.R, rows)
    n = len(pads)
    of_pads, of_tips, of_all, of_inside, of_below = np.split(
        slopes, np.cumsum([n, n, 5, len(inside)])
    )

    def along(directions: np.ndarray, of: np.ndarray) -> np.ndarray:
        return np.einsum("nc,ncx->nx", directions, of)

    terms = [
        ((away[pads] + _PRESS) / _PAD, along(outwards[pads], of_pads) / _PAD),
        ((away - thick)[inside] / scale[inside],
         along(outwards[inside], of_inside) / scale[inside, None]),
        ((points[below, 2] - _TABLE_CLEAR_M) / _TABLE, of_below[:, 2] / _TABLE),
        _facing(points[pads] - points[tips], outwards[pads], of_pads - of_tips),
        _middle(points[pads], outwards[pads], of_pads, target),
        _apart(points[hand.tips], of_all),
        *_regularisation(pose, start),
    ]  # fmt: skip
    return np.concatenate([t[0] for t in terms]), np.concatenate([t[1] for t in terms])


def _contacts(
    hand: HandPoints,
    points: np.ndarray,
    prop: Prop,
    T_world_prop: RigidTransform,
    target: GraspTarget,
) -> tuple[np.ndarray, np.ndarray]:
    """Return distances and ways out; of a fingertip at a thin wall always on its own side.

    What of it went through the wall is as deep as it is beyond, and not outside again.
    """
    away, outwards = layout.distance(prop, T_world_prop, points)
    if target.sides is not None:
        for finger, side in zip(target.fingers, target.sides, strict=True):
            wrong = (hand.finger == finger) & (outwards @ side < -0.3) & (away < 0.01)
            away[wrong], outwards[wrong] = -away[wrong] - target.wall, -outwards[wrong]
    return away, outwards


def _facing(
    arms: np.ndarray, outwards: np.ndarray, slopes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Pads face the surface: the way from bone to pad is the way into the object."""
    length = np.linalg.norm(arms, axis=1, keepdims=True)
    error = arms / length + outwards
    return error.ravel() / _FACING, slopes.reshape(-1, 28) / np.repeat(length, 3, 1).reshape(
        -1, 1
    ) / _FACING


def _middle(
    pads: np.ndarray, outwards: np.ndarray, slopes: np.ndarray, target: GraspTarget
) -> tuple[np.ndarray, np.ndarray]:
    """The thumb is opposite the fingers, level, and their middle is at the target's centre."""
    if not target.opposed:
        return (pads[0] - target.centre) / target.within, slopes[0] / target.within[:, None]
    error = 0.5 * (pads[0] + pads[1:].mean(0)) - target.centre
    slope = 0.5 * (slopes[0] + slopes[1:].mean(0))

    # They press along one horizontal line; what is across it would turn the object in the hand.
    line = (outwards[0] - outwards[1:].mean(0)) * np.array([1.0, 1.0, 0.0])
    line = line / max(float(np.linalg.norm(line)), 1e-3)
    across = np.eye(3) - np.outer(line, line)

    return (
        np.concatenate(
            [error / target.within, across @ (pads[0] - pads[1:].mean(0)) / target.level]
        ),
        np.concatenate(
            [
                slope / target.within[:, None],
                across @ (slopes[0] - slopes[1:].mean(0)) / target.level,
            ]
        ),
    )


def _apart(tips: np.ndarray, slopes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    first, second = np.triu_indices(5, 1)
    arms = tips[first] - tips[second]
    length = np.maximum(np.linalg.norm(arms, axis=1), 1e-6)
    near = length < _APART_M
    slope = np.einsum("nc,ncx->nx", arms / length[:, None], slopes[first] - slopes[second])
    return (length - _APART_M)[near] / _APART, slope[near] / _APART


def _regularisation(pose: GraspPose, start: GraspPose) -> list[tuple[np.ndarray, np.ndarray]]:
    """Stay near the start, and bend the two outer joints of a finger together."""
    eye = np.eye(28)
    turn = rotations.log(pose.R @ start.R.T)
    names = [f.name for f in articulation.freedoms()]
    outer = [names.index(f"{f}_dip_flex") for f in ("index", "middle", "ring", "pinky")]
    inner = [names.index(f"{f}_pip_flex") for f in ("index", "middle", "ring", "pinky")]
    bends = pose.angles[outer] - 0.6 * pose.angles[inner]
    return [
        ((pose.angles - start.angles) / _ANGLE, eye[:22] / _ANGLE[:, None]),
        (turn / _TURN, eye[22:25] / _TURN),
        ((pose.wrist - start.wrist) / _SHIFT, eye[25:] / _SHIFT),
        (bends / _COUPLED, (eye[outer] - 0.6 * eye[inner]) / _COUPLED),
    ]


def _points(hand: HandPoints, pose: GraspPose) -> np.ndarray:
    return hand.points(pose.angles[None], pose.R[None], pose.wrist[None])[0]


# --- coming and going ---------------------------------------------------------------------------

#: How far the hand stands off before it comes in, and at how many places between it is looked at.
OFF_M = 0.09
_OFF = np.array([0.0, 0.008, 0.018, 0.030, 0.045, 0.065, OFF_M])
_CLEAR_M = 0.003


def fit_grasp(
    hand: HandPoints,
    start: GraspPose,
    prop: Prop,
    T_world_prop: RigidTransform,
    target: GraspTarget,
    openings: Sequence[dict[str, float]],
    ways: Sequence[Vector],
) -> Grasp:
    """Return a fitted grasp and how the hand comes to it.

    ``openings``: by how many degrees which angles change as the hand opens, tried one after the
    other; ``ways``: directions in the world that it may come along. The first way that is clear is
    taken, or the clearest.
    """
    held = close_hand(hand, start, prop, T_world_prop, target)
    depth, gap, opposed = _judge(hand.whole, held, prop, T_world_prop, target)

    best = None
    for degrees in openings:
        opened = bend_more(held.angles, **degrees)
        points = _points(hand, GraspPose(opened, held.R, held.wrist))
        for way in ways:
            way = way / np.linalg.norm(way)
            for first in (0, 2):
                grasp = Grasp(
                    held, opened, held.wrist - _OFF[first] * way, way, T_world_prop, depth, gap,
                    opposed, 0.0,
                )  # fmt: skip
                offs = _OFF[max(first, 1) :]
                moved = (points - offs[:, None, None] * grasp.approach).reshape(-1, 3)
                clear = _clearance(np.tile(hand.flesh, len(offs)), moved, prop, grasp.T_world_prop)
                if best is not None and clear <= best.clear:
                    continue
                clear = min(clear, _clear_closing(hand, prop, grasp))
                if best is None or clear > best.clear:
                    best = replace(grasp, clear=clear)
                if clear >= _CLEAR_M:
                    return best

    assert best is not None
    return best


def _judge(
    hand: HandPoints, held: GraspPose, prop: Prop, T_world_prop: RigidTransform, target: GraspTarget
) -> tuple[float, float, float]:
    """Return depth, gap and opposition of a grasp."""
    points = _points(hand, held)
    away, outwards = _contacts(hand, points, prop, T_world_prop, target)
    pads = hand.pads[list(target.fingers)]
    gaps = np.abs(away[pads])
    nearest = 1 + int(gaps[1:].argmin())
    deep = max(0.0, -(away - SOFT * hand.flesh).min())

    # What a finger presses against: the thumb, or the other hand at a large box's far side.
    against, pressed = outwards[pads[0]], outwards[pads[nearest]]
    if not target.opposed:
        against = T_world_prop[:3, 0] * (1.0 if hand.side == "left" else -1.0)
        pressed = outwards[hand.tips[target.fingers[nearest]]]
    opposed = float(np.arccos(np.clip(against @ pressed, -1, 1)))
    return deep, float(max(gaps[0], gaps[nearest])), opposed


def _clear_closing(hand: HandPoints, prop: Prop, grasp: Grasp) -> float:
    """Return how far fingers stay out of the object as they close; a millimetre in is allowed."""
    share = np.array([0.0, 0.3, 0.6, 0.85])[:, None]
    held = grasp.held
    points = hand.points(
        (1 - share) * grasp.opened + share * held.angles,
        np.repeat(held.R[None], len(share), 0),
        (1 - share) * grasp.before + share * held.wrist,
    )
    flesh = np.tile(hand.flesh, len(share))
    return 0.001 + _CLEAR_M + _clearance(flesh, points.reshape(-1, 3), prop, grasp.T_world_prop)


def _clearance(
    flesh: np.ndarray, points: np.ndarray, prop: Prop, T_world_prop: RigidTransform
) -> float:
    away, _ = layout.distance(prop, T_world_prop, points)
    under = min(0.0, float(points[flesh == 0, 2].min()))
    return float((away - SOFT * flesh).min()) + 10 * under
