"""Hands fitted to objects: fingers on the surface, nothing inside.

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
from acehand_core.hand.skeleton import FINGERS
from acehand_core.types import RigidTransform, Rotation

#: Metres per unit of cost: a pad off the surface (slightly pressed in), skin inside the object, a
#: bone too near it, skin below the table.
_PAD, _PRESS, _INSIDE, _BONE, _TABLE = 1.2e-4, 3e-4, 3e-4, 5e-4, 5e-4
#: Share of its flesh by which a bone stays away. It keeps fingers out of thin walls: skin that is
#: past them has no cost.
_BONE_SHARE = 0.8
#: Share of a bone's flesh that stays outside the object, in a grasp and on the way.
SOFT = 0.7
_TABLE_CLEAR_M = 0.002
#: Scales of the turn of pads from the surface, and of turn, shift and angles from the start.
_FACING, _TURN, _SHIFT = 0.3, np.radians(16), 0.03
_ANGLE = np.radians([10 if f.kind == "spread" else 30 for f in articulation.freedoms()])
#: Distance of fingertips, as thick as fingers, and its scale.
_APART_M, _APART = 0.0145, 1e-3
_COUPLED = np.radians(20)
_STEPS = 40

#: Residuals and their derivatives.
_Terms = tuple[np.ndarray, np.ndarray]

#: Distance from which the hand approaches, and the distances at which it is checked.
OFF_M = 0.09
_OFF = np.array([0.0, 0.008, 0.018, 0.030, 0.045, 0.065, OFF_M])
_CLEAR_M = 0.003
#: Shares of closing at which the fingers are checked.
_CLOSING = np.array([0.0, 0.3, 0.6, 0.85])[:, None]


@dataclass(frozen=True, slots=True)
class GraspPose:
    """A hand: 22 angles and the wrist's pose in the world."""

    angles: Angles
    R: Rotation
    wrist: Vector


@dataclass(frozen=True, slots=True)
class GraspTarget:
    """The grasp to fit.

    ``fingers``: touching tips, the thumb's (0) first. ``centre``: midpoint of the thumb's pad and
    the mean of the others, in the world, to ``within`` metres along each axis.
    """

    prop: Prop
    T_world_prop: RigidTransform
    fingers: tuple[int, ...]
    centre: Vector
    within: Vector
    #: Offset of the thumb's pad from the line along which the others press.
    level: float = 0.004
    #: For a thin wall: its outward normals at thumb and finger, and its thickness.
    sides: Float[np.ndarray, "K 3"] | None = None
    wall: float = 0.0
    #: False with another hand on the opposite side: ``centre`` is then of the thumb's pad.
    opposed: bool = True


@dataclass(frozen=True, slots=True)
class Grasp:
    """A fitted grasp: hand, opened angles, and unit direction of approach.

    ``depth``: of the hand's deepest point in the object; ``gap``: the larger distance of thumb and
    nearest finger; ``opposed``: angle between their contact normals.
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
        """Whether thumb and finger touch from both sides and nothing penetrates."""
        return bool(self.badness < 1.0)

    @property
    def badness(self) -> float:
        """Defects relative to their limits, at the worst: good below 1."""
        return max(
            self.depth / 0.0024,
            self.gap / 0.0015,
            (np.pi - self.opposed) / np.radians(40),
            1.0 - self.clear / 0.002,
        )


def _close_hand(hand: HandPoints, start: GraspPose, target: GraspTarget) -> GraspPose:
    """Fit the grasping hand near ``start`` by damped least squares."""
    low, high = articulation.limits()
    pose, damping = start, 1e-2
    residual, slope = _cost(hand, pose, start, target)
    cost = residual @ residual

    for _ in range(_STEPS):
        normal, gradient = slope.T @ slope, slope.T @ residual
        step = -np.linalg.solve(normal + damping * np.diag(np.diag(normal)), gradient)
        # Limited to a few degrees and millimetres: contacts come and go.
        step *= min(1.0, 0.2 / np.abs(step[:25]).max(), 0.01 / np.abs(step[25:]).max())
        tried = GraspPose(
            np.clip(pose.angles + step[:22], low, high),
            rotations.exp(step[22:25]) @ pose.R,
            pose.wrist + step[25:],
        )
        new, new_slope = _cost(hand, tried, start, target)
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

    # Rounded: independent of the last digits.
    R = rotations.exp(np.round(rotations.log(pose.R), 5))
    return GraspPose(np.clip(np.round(pose.angles, 5), low, high), R, np.round(pose.wrist, 6))


def _cost(hand: HandPoints, pose: GraspPose, start: GraspPose, target: GraspTarget) -> _Terms:
    """Return residuals and their derivatives by angles, turn and shift."""
    points = _points(hand, pose)
    away, outwards = _contacts(hand, points, target)
    thick = _BONE_SHARE * hand.flesh
    scale = np.where(hand.flesh > 0, _BONE, _INSIDE)
    pads, tips = hand.pads[list(target.fingers)], hand.tips[list(target.fingers)]
    inside = np.setdiff1d(np.flatnonzero(away < thick), pads)
    below = np.flatnonzero((points[:, 2] < _TABLE_CLEAR_M) & (hand.flesh == 0))
    rows = np.concatenate([pads, tips, hand.tips, inside, below])
    slopes = hand.slopes(pose.angles, pose.R, rows)
    counts = [len(pads), len(pads), 5, len(inside)]
    of_pads, of_tips, of_all, of_inside, of_below = np.split(slopes, np.cumsum(counts))

    def along(directions: np.ndarray, of: np.ndarray) -> np.ndarray:
        return np.einsum("nc,ncx->nx", directions, of)

    terms = [
        ((away[pads] + _PRESS) / _PAD, along(outwards[pads], of_pads) / _PAD),
        (
            (away - thick)[inside] / scale[inside],
            along(outwards[inside], of_inside) / scale[inside, None],
        ),
        ((points[below, 2] - _TABLE_CLEAR_M) / _TABLE, of_below[:, 2] / _TABLE),
        _facing(points[pads] - points[tips], outwards[pads], of_pads - of_tips),
        _middle(points[pads], outwards[pads], of_pads, target),
        _apart(points[hand.tips], of_all),
        *_regularisation(pose, start),
    ]
    return np.concatenate([t[0] for t in terms]), np.concatenate([t[1] for t in terms])


def _contacts(hand: HandPoints, points: np.ndarray, target: GraspTarget) -> _Terms:
    """Return distances and normals; past a thin wall a fingertip is deeper, not outside."""
    away, outwards = layout.distance(target.prop, target.T_world_prop, points)
    if target.sides is not None:
        for finger, side in zip(target.fingers, target.sides, strict=True):
            wrong = (hand.finger == finger) & (outwards @ side < -0.3) & (away < 0.01)
            away[wrong], outwards[wrong] = -away[wrong] - target.wall, -outwards[wrong]
    return away, outwards


def _facing(arms: np.ndarray, outwards: np.ndarray, slopes: np.ndarray) -> _Terms:
    """Pads face the surface: from bone to pad is into the object."""
    length = np.linalg.norm(arms, axis=1, keepdims=True)
    slope = slopes.reshape(-1, 28) / np.repeat(length, 3, 1).reshape(-1, 1) / _FACING
    return (arms / length + outwards).ravel() / _FACING, slope


def _middle(
    pads: np.ndarray, outwards: np.ndarray, slopes: np.ndarray, target: GraspTarget
) -> _Terms:
    """Thumb and fingers are opposite, level, and their middle is at the target's centre."""
    within = target.within[:, None]
    if not target.opposed:
        return (pads[0] - target.centre) / target.within, slopes[0] / within
    fingers, finger_slopes = pads[1:].mean(0), slopes[1:].mean(0)
    error = (0.5 * (pads[0] + fingers) - target.centre) / target.within

    # They press along one horizontal line; an offset would turn the object in the hand.
    line = (outwards[0] - outwards[1:].mean(0)) * np.array([1.0, 1.0, 0.0])
    line = line / max(float(np.linalg.norm(line)), 1e-3)
    across = np.eye(3) - np.outer(line, line)
    level = across @ (pads[0] - fingers) / target.level
    slope = 0.5 * (slopes[0] + finger_slopes) / within
    level_slope = across @ (slopes[0] - finger_slopes) / target.level
    return np.concatenate([error, level]), np.concatenate([slope, level_slope])


def _apart(tips: np.ndarray, slopes: np.ndarray) -> _Terms:
    first, second = np.triu_indices(5, 1)
    arms = tips[first] - tips[second]
    length = np.maximum(np.linalg.norm(arms, axis=1), 1e-6)
    near = length < _APART_M
    slope = np.einsum("nc,ncx->nx", arms / length[:, None], slopes[first] - slopes[second])
    return (length - _APART_M)[near] / _APART, slope[near] / _APART


def _regularisation(pose: GraspPose, start: GraspPose) -> list[_Terms]:
    """Stay near the start, and bend the two outer joints of each finger together."""
    eye = np.eye(28)
    turn = rotations.log(pose.R @ start.R.T)
    names = [f.name for f in articulation.freedoms()]
    outer, inner = (
        [names.index(f"{f}_{joint}_flex") for f in FINGERS[1:]] for joint in ("dip", "pip")
    )
    bends = pose.angles[outer] - 0.6 * pose.angles[inner]
    return [
        ((pose.angles - start.angles) / _ANGLE, eye[:22] / _ANGLE[:, None]),
        (turn / _TURN, eye[22:25] / _TURN),
        ((pose.wrist - start.wrist) / _SHIFT, eye[25:] / _SHIFT),
        (bends / _COUPLED, (eye[outer] - 0.6 * eye[inner]) / _COUPLED),
    ]


def _points(hand: HandPoints, pose: GraspPose) -> np.ndarray:
    return hand.points(pose.angles[None], pose.R[None], pose.wrist[None])[0]


# --- approach -----------------------------------------------------------------------------------


def fit_grasp(
    hand: HandPoints,
    start: GraspPose,
    target: GraspTarget,
    openings: Sequence[dict[str, float]],
    ways: Sequence[Vector],
) -> Grasp:
    """Return a fitted grasp with its approach.

    ``openings``: changes of angles in degrees that open the hand, tried in order; ``ways``:
    directions of approach in the world. Takes the first clear combination, or the clearest.
    """
    held = _close_hand(hand, start, target)
    depth, gap, opposed = _judge(hand.whole, held, target)

    best = None
    for degrees in openings:
        opened = bend_more(held.angles, **degrees)
        points = _points(hand, GraspPose(opened, held.R, held.wrist))
        for way in ways:
            way = way / np.linalg.norm(way)
            for first in (0, 2):
                off = held.wrist - _OFF[first] * way
                grasp = Grasp(held, opened, off, way, target.T_world_prop, depth, gap, opposed, 0.0)
                offs = _OFF[max(first, 1) :]
                clear = _clearance(hand, points - offs[:, None, None] * way, target)
                if best is not None and clear <= best.clear:
                    continue
                # Fingers that close may be a millimetre inside.
                closing = hand.points(
                    (1 - _CLOSING) * opened + _CLOSING * held.angles,
                    np.repeat(held.R[None], len(_CLOSING), 0),
                    (1 - _CLOSING) * off + _CLOSING * held.wrist,
                )
                clear = min(clear, 0.001 + _CLEAR_M + _clearance(hand, closing, target))
                if best is None or clear > best.clear:
                    best = replace(grasp, clear=clear)
                if clear >= _CLEAR_M:
                    return best

    assert best is not None
    return best


def _judge(hand: HandPoints, held: GraspPose, target: GraspTarget) -> tuple[float, float, float]:
    away, outwards = _contacts(hand, _points(hand, held), target)
    pads = hand.pads[list(target.fingers)]
    gaps = np.abs(away[pads])
    nearest = 1 + int(gaps[1:].argmin())
    deep = max(0.0, -(away - SOFT * hand.flesh).min())

    # A finger presses against the thumb, or against the other hand across a large box.
    against, pressed = outwards[pads[0]], outwards[pads[nearest]]
    if not target.opposed:
        against = target.T_world_prop[:3, 0] * (1.0 if hand.side == "left" else -1.0)
        pressed = outwards[hand.tips[target.fingers[nearest]]]
    opposed = float(np.arccos(np.clip(against @ pressed, -1, 1)))
    return deep, float(max(gaps[0], gaps[nearest])), opposed


def _clearance(hand: HandPoints, points: Float[np.ndarray, "T N 3"], target: GraspTarget) -> float:
    """Return the least distance to the object; points below the table count ten times."""
    flesh, points = np.tile(hand.flesh, len(points)), points.reshape(-1, 3)
    away, _ = layout.distance(target.prop, target.T_world_prop, points)
    under = min(0.0, float(points[flesh == 0, 2].min()))
    return float((away - SOFT * flesh).min()) + 10 * under
