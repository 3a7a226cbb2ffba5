"""Finger poses in closed form, and points on a hand's skin and bones with their derivatives."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int

from acehand_core.ace.synthetic.script import Vector
from acehand_core.errors import InputError, nearest
from acehand_core.geometry import rotations
from acehand_core.hand import articulation
from acehand_core.hand.articulation import ANATOMICAL_TO_MODEL, DIRECTIONS, MIRROR
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.hand.skeleton import BONES, FINGERS, KEYPOINT_TO_TREE, TIPS, TREE_TO_KEYPOINT
from acehand_core.types import Betas, Rotation, Side

Angles = Float[np.ndarray, "22"]
#: One angle, or those of a finger from the palm on.
Degrees = float | int | tuple[float | int, ...]
#: Derivatives by the 22 angles, a rotation about the world's axes through the wrist, and a shift.
Slopes = Float[np.ndarray, "M 3 28"]

GESTURES = ("flat", "fist", "point", "two", "spread", "thumb", "claw", "relaxed")

_THUMB_TIP, _INDEX_TIP = TIPS[:2]
#: From a fingertip's keypoint to the skin of its pad: in a pinch, and enclosing; palm thickness.
_PAD_M, _SKIN_M, _PALM_M = 0.0065, 0.008, 0.020

#: Vertices are thinned by these factors, near the fingertips by the second.
_STRIDE, _TIP_STRIDE, _TIP_M = 8, 2, 0.012
_BONE_STEPS = 4


def bend(base: Angles | None = None, /, **degrees: Degrees) -> Angles:
    """Return ``base`` (default: a relaxed hand) with angles replaced, within the limits.

    Names are those of ``articulation.freedoms()``; ``fingers_pip_flex`` sets all four fingers,
    ``index_flex`` a finger's joints from the palm on.
    """
    angles = (articulation.comfortable() if base is None else base).copy()
    for name, value in one_by_one(**degrees).items():
        angles[_indices(name)] = np.radians(value)
    return np.clip(angles, *articulation.limits())


def bend_more(base: Angles, **degrees: float | int) -> Angles:
    """Return ``base`` with named angles changed, within the limits."""
    angles = base.copy()
    for name, value in degrees.items():
        angles[_indices(name)] += np.radians(value)
    return np.clip(angles, *articulation.limits())


def one_by_one(**degrees: Degrees) -> dict[str, float | int]:
    """Return ``bend``'s angles with one number for each name."""
    angles: dict[str, float | int] = {}
    for name, value in degrees.items():
        if isinstance(value, tuple):
            finger = name.removesuffix("_flex")
            joints = ("cmc", "mcp", "ip") if finger == "thumb" else ("mcp", "pip", "dip")
            angles |= {f"{finger}_{joint}_flex": v for joint, v in zip(joints, value, strict=False)}
        else:
            angles[name] = value
    return angles


def _indices(name: str) -> list[int]:
    names = [freedom.name for freedom in articulation.freedoms()]
    finger, _, rest = name.partition("_")
    matching = [f"{f}_{rest}" for f in FINGERS[1:]] if finger == "fingers" else [name]
    if not set(matching) <= set(names):
        raise InputError(f"Unknown angle {name!r}; {nearest(name, names)}")
    return [names.index(n) for n in matching]


def reach(
    side: Side, betas: Betas, start: Angles, targets: Mapping[int, Vector], steps: int = 60
) -> Angles:
    """Return angles near ``start`` that bring keypoints towards ``targets`` (wrist frame, metres).

    Damped Gauss-Newton within the limits.
    """
    rest = CapsuleHand().rest_keypoints(side, betas)
    low, high = articulation.limits()
    keypoints = list(targets)
    goal = np.stack([targets[k] for k in keypoints])

    angles = start.copy()
    for _ in range(steps):
        points, jacobian = articulation.keypoints_with_jacobian(angles[None], side, rest)
        error = (goal - points[0, keypoints]).ravel()
        slope = jacobian[0, keypoints].reshape(-1, articulation.NUM_ANGLES)
        # 5 mm of error weigh as much as 60 degrees from the start.
        pull = 0.005**2
        normal = slope.T @ slope + pull * np.eye(articulation.NUM_ANGLES)
        step = np.linalg.solve(normal, slope.T @ error + pull * (start - angles))
        angles = np.clip(angles + 0.7 * step, low, high)
    return angles


def pinch(
    side: Side,
    betas: Betas,
    R_world_hand: Rotation,
    point_world: Vector,
    width: float,
    fingers: int = 1,
) -> tuple[Angles, Vector, float]:
    """Pinch something ``width`` wide at ``point_world`` between thumb and one to three fingers.

    Returns angles, wrist in the world, and heading (about z) from index to thumb.
    """
    start = bend(
        index_flex=(34, 40, 18),
        middle_flex=(30, 34, 14),
        ring_flex=(24, 32, 14),
        pinky_flex=(16, 28, 14),
        thumb_flex=(8, 16, 18),
        thumb_cmc_twist=38,
    )
    rest = CapsuleHand().rest_keypoints(side, betas)
    points = articulation.keypoints_with_jacobian(start[None], side, rest)[0][0]
    middle = 0.5 * (points[_THUMB_TIP] + points[_INDEX_TIP])
    across = R_world_hand @ (points[_THUMB_TIP] - points[_INDEX_TIP])
    across = np.array([across[0], across[1], 0.0])
    across = R_world_hand.T @ across / np.linalg.norm(across)
    half = width / 2 + _PAD_M
    targets = {_THUMB_TIP: middle + half * across, _INDEX_TIP: middle - half * across}

    sideways = np.array([0.0, 0.0, -1.0]) - across * -across[2]
    for number in range(1, fingers):
        shift = 0.017 * number * sideways / np.linalg.norm(sideways)
        targets[TIPS[1 + number]] = targets[_INDEX_TIP] + shift

    angles = reach(side, betas, start, targets, 30)
    x, y, _ = R_world_hand @ across
    return angles, point_world - R_world_hand @ middle, float(np.arctan2(y, x))


def gesture_angles(name: str, rng: np.random.Generator) -> Angles:
    """Return the fingers of a gesture, varied a little."""
    shapes: dict[str, dict[str, Degrees]] = {
        "flat": dict(fingers_flex=(2, 3, 2)),
        "fist": dict(fingers_flex=(78, 96, 60), thumb_flex=(20, 40, 45)),
        "point": dict(
            index_flex=(5, 5),
            middle_flex=(70, 90),
            ring_flex=(75, 90),
            pinky_flex=(75, 85),
            thumb_mcp_flex=35,
            thumb_ip_flex=30,
        ),
        "two": dict(
            index_mcp_spread=10,
            middle_mcp_spread=-8,
            ring_flex=(75, 90),
            pinky_flex=(75, 88),
            thumb_mcp_flex=40,
        ),
        "spread": dict(
            fingers_flex=(0, 4),
            index_mcp_spread=15,
            middle_mcp_spread=3,
            ring_mcp_spread=-8,
            pinky_mcp_spread=-20,
            thumb_cmc_spread=30,
        ),
        "thumb": dict(
            fingers_flex=(72, 92, 50), thumb_cmc_spread=30, thumb_mcp_flex=0, thumb_ip_flex=-10
        ),
        "claw": dict(fingers_flex=(10, 62, 40)),
        "relaxed": {},
    }
    base = bend(**shapes[name])
    return np.clip(base + rng.normal(0, np.radians(5), base.shape), *articulation.limits())


def enclose(side: Side, betas: Betas, radius: float) -> tuple[Angles, Vector]:
    """Return angles around a cylinder along the hand's z, and its axis relative to the wrist."""
    rest = CapsuleHand().rest_keypoints(side, betas)
    closing = [
        bend(
            fingers_flex=(10 + 58 * c, 14 + 82 * c, 6 + 48 * c),
            thumb_flex=(-6 + 30 * c, 8 + 34 * c, 8 + 40 * c),
            thumb_cmc_twist=38.0,
            thumb_cmc_spread=14 - 10 * c,
        )
        for c in np.linspace(0.05, 1.0, 20).tolist()  # from open to around a pencil
    ]
    angles = np.stack(closing)
    points, _ = articulation.keypoints_with_jacobian(angles, side, rest)
    knuckle = points[:, [5, 9, 13]].mean(1) + np.array([0.0, _SKIN_M - _PALM_M, 0.0])
    ring = np.stack(
        [knuckle, *(points[:, [k, k + 4, k + 8]].mean(1) for k in (6, 7, 8)), points[:, 4]], axis=1
    )
    fits = [_circle(section[:, :2]) for section in ring]
    radii = np.array([fit[2] for fit in fits]) - _SKIN_M
    best = int(np.argmin(np.abs(radii - radius)))
    middle = np.array([fits[best][0], fits[best][1], points[best, [5, 9, 13], 2].mean()])

    # The thumb opposite the fingertips.
    tips = (points[best, [8, 12]].mean(0) - middle) * np.array([1.0, 1.0, 0.0])
    thumb = middle - (radius + _SKIN_M) * tips / np.linalg.norm(tips)
    thumb[2] = points[best, 8, 2]
    return reach(side, betas, angles[best], {_THUMB_TIP: thumb}, 20), middle


def _circle(points: np.ndarray) -> tuple[float, float, float]:
    """Fit centre and radius of a circle to points (N, 2), algebraically."""
    rows = np.concatenate([2 * points, np.ones((len(points), 1))], axis=1)
    x, y, rest = np.linalg.lstsq(rows, (points**2).sum(1), rcond=None)[0]
    return float(x), float(y), float(np.sqrt(max(rest + x * x + y * y, 1e-8)))


@dataclass(frozen=True)
class HandPoints:
    """N points of one hand: on its skin, then along its bones.

    ``weighted``: weights of the 16 joints times the homogeneous rest position relative to the
    wrist. ``pads``: the gripping point of each fingertip, thumb first; ``tips``: the end of the
    bone above. ``flesh``: thickness of the flesh around a bone, 0 on the skin. ``finger``: the
    finger of a point on a last phalanx, 0 the thumb; -1 elsewhere.
    """

    side: Side
    betas: bytes
    rest: Float[np.ndarray, "21 3"]
    weighted: Float[np.ndarray, "N 16 4"]
    flesh: Float[np.ndarray, "N"]
    finger: Int[np.ndarray, "N"]
    pads: Int[np.ndarray, "M"]
    tips: Int[np.ndarray, "M"]

    @classmethod
    def of(cls, side: Side, betas: Betas) -> HandPoints:
        """Return the points of a hand."""
        return _touch(side, betas.tobytes(), _STRIDE, _TIP_STRIDE)

    @property
    def whole(self) -> HandPoints:
        """The same hand with all vertices of its mesh."""
        return _touch(self.side, self.betas, 1, 1)

    def points(
        self,
        angles: Float[np.ndarray, "T 22"],
        R_world_hand: Float[np.ndarray, "T 3 3"],
        wrist_world: Float[np.ndarray, "T 3"],
    ) -> Float[np.ndarray, "T N 3"]:
        """Return all points in the world, at T times."""
        _, moves, _ = self._moves(angles)
        flat = self.weighted.reshape(-1, 64) @ moves.reshape(-1, 64, 3)
        return flat @ np.swapaxes(R_world_hand, 1, 2) + wrist_world[:, None]

    @functools.cached_property
    def coarse(self) -> HandPoints:
        """The same hand with fewer points: all bones, a fifth of the skin."""
        skin = int((self.flesh == 0).sum())
        kept = np.r_[0:skin:5, skin : len(self.flesh)]
        return replace(
            self, weighted=self.weighted[kept], flesh=self.flesh[kept], finger=self.finger[kept],
            pads=self.pads[:0], tips=self.tips[:0],
        )  # fmt: skip

    def slopes(self, angles: Angles, R_world_hand: Rotation, rows: Int[np.ndarray, "M"]) -> Slopes:
        """Return the derivatives of some points in the world."""
        keypoints, moves, axes = self._moves(angles[None])
        weighted = self.weighted[rows]
        by_joint = np.matmul(weighted.transpose(1, 0, 2), moves[0]).transpose(1, 0, 2)
        # An angle moves the shares of its joint and of all joints further out.
        shares = np.concatenate([by_joint, weighted[..., 3:]], -1)[:, 1:].reshape(-1, 5, 3, 4)
        outer = shares[:, :, ::-1].cumsum(2)[:, :, ::-1].reshape(-1, 15, 4)
        outer = outer[:, [f.joint for f in articulation.freedoms()]]
        pivots = [TREE_TO_KEYPOINT[f.joint + 1] for f in articulation.freedoms()]
        arms = outer[..., :3] - outer[..., 3:] * keypoints[0, pivots]
        of_angles = (rotations.skew(axes[0]) @ arms[..., None])[..., 0]
        local = by_joint.sum(1)
        eye = np.broadcast_to(np.eye(3), (len(local), 3, 3))
        turned = -rotations.skew(local @ R_world_hand.T)
        return np.concatenate([R_world_hand @ of_angles.transpose(0, 2, 1), turned, eye], axis=2)

    def _moves(
        self, angles: Float[np.ndarray, "T 22"]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return keypoints, joint matrices (4 x 3, for homogeneous rows) and axes; wrist origin."""
        keypoints, turned, axes = articulation.chain(angles, self.side, self.rest)
        joints = list(TREE_TO_KEYPOINT)
        moved = keypoints[:, joints] - (turned @ self.rest[joints][..., None])[..., 0]
        rows = np.concatenate([np.swapaxes(turned, -1, -2), moved[..., None, :]], axis=-2)
        return keypoints, rows, axes


@functools.lru_cache(maxsize=32)
def _touch(side: Side, betas: bytes, stride: int, tip_stride: int) -> HandPoints:
    hand, shape = CapsuleHand(), np.frombuffer(betas)
    rest, vertices = hand.rest_keypoints(side, shape), hand.rest_vertices(side, shape)
    chosen, pads = set(range(0, len(vertices), stride)), []

    for finger, tip in zip(FINGERS, TIPS, strict=True):
        palmar = -ANATOMICAL_TO_MODEL @ np.array(DIRECTIONS[finger][1])
        palmar = palmar * (MIRROR if side == "left" else 1.0) / np.linalg.norm(palmar)
        near = np.flatnonzero(np.linalg.norm(vertices - rest[tip], axis=1) < _TIP_M)
        # The pad: palmar of the tip's keypoint.
        arms = vertices[near] - rest[tip]
        sideways = np.linalg.norm(np.cross(arms, palmar), axis=1)
        pads.append(int(near[np.argmin(sideways - 0.5 * arms @ palmar)]))
        chosen |= {*(int(i) for i in near[::tip_stride]), pads[-1]}

    order = sorted(chosen)
    start, stop = np.array(BONES).T
    share = np.arange(1, _BONE_STEPS + 1)[:, None, None] / _BONE_STEPS
    bones = ((1 - share) * rest[start] + share * rest[stop]).reshape(-1, 3)

    # A bone moves with the joint at its start, those of the palm with the wrist.
    joints = np.tile([KEYPOINT_TO_TREE[k] for k in start], _BONE_STEPS)
    weights = np.concatenate([hand.weights(side)[order], np.eye(16)[joints]])
    places = np.concatenate([vertices[order], bones]) - rest[0]
    places = np.concatenate([places, np.ones((len(places), 1))], axis=1)
    flesh = np.linalg.norm(bones[:, None] - vertices[::2], axis=-1).min(1)
    last = len(order) + (_BONE_STEPS - 1) * len(BONES)
    last_joints = weights[:, [KEYPOINT_TO_TREE[tip - 1] for tip in TIPS]]

    return HandPoints(
        side,
        betas,
        rest - rest[0],
        weights[:, :, None] * places[:, None],
        np.concatenate([np.zeros(len(order)), flesh]),
        np.where(last_joints.max(1) > 0.5, last_joints.argmax(1), -1),
        np.array([order.index(pad) for pad in pads]),
        np.array([last + BONES.index((tip - 1, tip)) for tip in TIPS]),
    )
