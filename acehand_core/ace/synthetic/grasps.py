"""Grasps by kind of object: pinched, held by the rim, enclosed, or held by the side."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from acehand_core.ace.synthetic.grasp_fit import Grasp, GraspPose, GraspTarget, fit_grasp
from acehand_core.ace.synthetic.hand_geometry import HandPoints, bend, enclose, one_by_one, pinch
from acehand_core.ace.synthetic.layout import Prop
from acehand_core.ace.synthetic.script import Body, Vector, bent_within_limits, hand_rotation
from acehand_core.geometry import frames, rotations
from acehand_core.types import Betas, RigidTransform, Rotation, Side

_Z = np.array([0.0, 0.0, 1.0])
_TRIES = 3
#: Lower cans are taken from above: a hand around them would lie on the table.
_TALL_M = 0.105
_BEND = np.radians(45)

#: Changes of angles, in degrees, that open a pinch, an enclosing grasp and a side grasp.
_PINCH_OPEN = one_by_one(fingers_flex=(-14, -12), thumb_flex=(-10, -8, -8), thumb_cmc_spread=6)
_AROUND_OPEN = one_by_one(
    fingers_flex=(-20, -24, -14), thumb_flex=(-12, -12, -12), thumb_cmc_spread=8
)
_SIDE_OPEN = one_by_one(fingers_mcp_flex=-10, thumb_flex=(-14, -14, -10), thumb_cmc_spread=10)


def facing(
    side: Side, rng: np.random.Generator, fingers: tuple[float, ...], back: tuple[float, ...]
) -> Rotation:
    """Return an orientation, given as for a right hand, with a random shake of some degrees."""
    mirror = np.array([1.0 if side == "right" else -1.0, 1.0, 1.0])
    shake = rotations.exp(rng.normal(0, np.radians(7), 3))
    return shake @ hand_rotation(side, mirror * np.array(fingers), mirror * np.array(back))


def choose_grasp(
    side: Side, betas: Betas, body: Body, rng: np.random.Generator, prop: Prop, at: Vector
) -> Grasp:
    """Return the grasp of an object that stands at ``at`` on the table, the best of some tries."""
    how = {"box": _pinched, "ball": _pinched, "mug": _by_rim, "bowl": _by_rim}.get(
        prop.kind, _around if prop.size[1] > _TALL_M else _pinched
    )
    return _best(lambda: how(side, betas, body, rng, prop, at))


def choose_side_grasp(
    side: Side, betas: Betas, rng: np.random.Generator, prop: Prop, T_world_prop: RigidTransform
) -> Grasp:
    """Return the grasp of a large box's side: fingers on the side, thumb on top."""
    return _best(lambda: _beside(side, betas, rng, prop, T_world_prop))


def _best(attempt: Callable[[], Grasp]) -> Grasp:
    grasps: list[Grasp] = []
    while len(grasps) < _TRIES and not (grasps and grasps[-1].good):
        grasps.append(attempt())
    return min(grasps, key=lambda grasp: grasp.badness)


def _pinched(
    side: Side, betas: Betas, body: Body, rng: np.random.Generator, prop: Prop, at: Vector
) -> Grasp:
    middle = at + _half_height(prop) * _Z
    R = facing(side, rng, (-0.30, 0.93, -0.35), (0.25, 0.3, 1.0))
    R = bent_within_limits(side, R, middle - body.elbow(side, middle), _BEND)
    return pinch_from_above(side, betas, R, prop, at)


def pinch_from_above(
    side: Side, betas: Betas, R_world_hand: Rotation, prop: Prop, at: Vector
) -> Grasp:
    """Return the pinch of a box, ball or can at ``at`` on the table, by one or two fingers."""
    width, half = prop.size[0], _half_height(prop)
    middle = at + half * _Z
    # Slightly below the top, a ball at its widest.
    point = middle + _Z * {"ball": 0.0, "can": half - 0.018}.get(prop.kind, 0.35 * half)
    long = 2 * prop.size[1] > 0.036 if prop.kind == "box" else width > 0.026
    count = 2 if long else 1
    angles, wrist, heading = pinch(side, betas, R_world_hand, point, 2 * width, count)
    standing = at if prop.kind == "can" else middle
    pose = frames.rigid(rotations.exp(heading * _Z), standing)
    target = GraspTarget(prop, pose, tuple(range(count + 1)), point, np.full(3, 0.004))
    return _fitted(side, betas, GraspPose(angles, R_world_hand, wrist), target)


def _half_height(prop: Prop) -> float:
    return {"ball": prop.size[0], "can": 0.5 * prop.size[1]}.get(prop.kind, prop.size[2])


def _by_rim(
    side: Side, betas: Betas, body: Body, rng: np.random.Generator, prop: Prop, at: Vector
) -> Grasp:
    """Pinch the rim between thumb and index, one of them inside."""
    radius, height, wall = prop.size
    if prop.kind == "bowl":
        wall = 0.07 * radius
    R = facing(side, rng, (-0.30, 0.93, -0.45), (0.25, 0.4, 1.0))
    top = at + height * _Z
    R = bent_within_limits(side, R, top - body.elbow(side, top), _BEND)
    rim = top - 0.012 * _Z
    angles, wrist, heading = pinch(side, betas, R, rim, wall)

    # The other fingers stay up, over the rim.
    angles = bend(angles, middle_flex=(6, 22), ring_flex=(2, 22), pinky_flex=(0, 20))
    thumb = np.array([np.cos(heading), np.sin(heading), 0.0])
    # The object stays in place: the hand moves to the rim.
    inside = 1.0 if rng.random() < 0.7 else -1.0
    to_rim = -inside * thumb * (radius - 0.5 * wall)
    turn = heading + (0.0 if inside > 0 else np.pi) + rng.uniform(-1.3, 1.3)
    pose = frames.rigid(rotations.exp(turn * _Z), at)
    within, sides = np.array([0.003, 0.003, 0.004]), np.stack([thumb, -thumb])
    target = GraspTarget(prop, pose, (0, 1), rim + to_rim, within, sides=sides, wall=wall)
    return _fitted(side, betas, GraspPose(angles, R, wrist + to_rim), target)


def _around(
    side: Side, betas: Betas, body: Body, rng: np.random.Generator, prop: Prop, at: Vector
) -> Grasp:
    """Enclose it from the side, the thumb against the fingers."""
    radius, height, _ = prop.size
    centre = at + _Z * max(min(0.45 * height, 0.10), 0.057)
    R = facing(side, rng, (-0.45, 0.9, 0.0), (0.85, 0.45, 0.15))
    R = bent_within_limits(side, R, centre - body.elbow(side, centre), _BEND)
    angles, middle = enclose(side, betas, radius)
    pose = frames.rigid(rotations.exp(rng.uniform(-3, 3) * _Z), at)
    start = GraspPose(angles, R, centre - R @ middle)
    within = np.array([0.003, 0.003, 0.02])
    return _fitted(
        side, betas, start, GraspTarget(prop, pose, (0, 1, 2), centre, within, level=0.01)
    )


def _beside(
    side: Side, betas: Betas, rng: np.random.Generator, prop: Prop, T_world_prop: RigidTransform
) -> Grasp:
    outwards = 1.0 if side == "right" else -1.0
    wide, _, half = prop.size
    roll = np.interp(half, [0.03, 0.07], [0.7, 0.25])
    R = facing(side, rng, (-0.15, 1.0, -0.05), (1.0, 0.15, float(roll)))
    angles = bend(
        fingers_flex=(22, 18, 8), thumb_flex=(5, 15, 15), thumb_cmc_twist=30, thumb_cmc_spread=10
    )
    corner = T_world_prop[:3, 3] + np.array([outwards * wide, 0.0, half])

    # The index knuckle next to the upper edge, the thumb over it.
    knuckle = HandPoints.of(side, betas).rest[5]
    place = corner + np.array([outwards * 0.022, -0.045 + rng.uniform(-0.01, 0.01), -0.012])
    start = GraspPose(angles, R, place - R @ knuckle)
    thumb = corner + np.array([-outwards * 0.012, rng.uniform(-0.03, 0.0), 0.0])
    within = np.array([0.01, 0.02, 0.004])
    target = GraspTarget(prop, T_world_prop, (0, 1, 2), thumb, within, opposed=False)
    return _fitted(side, betas, start, target)


def _fitted(side: Side, betas: Betas, start: GraspPose, target: GraspTarget) -> Grasp:
    prop = target.prop
    along = start.R[:, 0] * (1.0 if side == "left" else -1.0)
    palm = -start.R[:, 1]
    if not target.opposed:
        base, scales = _SIDE_OPEN, [1.0, 1.6, 0.6]
        inwards = np.array([1.0 if side == "left" else -1.0, 0.0, 0.0])
        ways = [inwards, inwards - 0.4 * _Z, inwards - _Z, inwards + 0.4 * along]
    elif prop.kind in ("can", "bottle") and prop.size[1] > _TALL_M:
        base, scales = _AROUND_OPEN, [1.0, 1.5, 2.0, 0.7]
        ways = [along + palm, along + 0.5 * palm, 0.5 * along + palm, along, palm]
        ways = [way * np.array([1.0, 1.0, 0.0]) for way in ways] + ways
    else:
        base, scales = _PINCH_OPEN, [1.0, 1.6, 0.6, 2.2]
        ways = [-_Z + 0.3 * along, -_Z, palm, -_Z + 0.8 * along, along + palm]

    openings = [{name: scale * value for name, value in base.items()} for scale in scales]
    return fit_grasp(HandPoints.of(side, betas), start, target, openings, ways)
