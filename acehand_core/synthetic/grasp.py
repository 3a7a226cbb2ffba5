"""Finger angles by name, angles that reach given points, and where the wrist is in a pinch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

from acehand_core.errors import InputError, nearest
from acehand_core.hand import articulation
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.hand.skeleton import FINGERS, TIPS
from acehand_core.synthetic.script import Vector
from acehand_core.types import Betas, Rotation, Side

Angles = Float[np.ndarray, "22"]

_THUMB_TIP, _INDEX_TIP = TIPS[:2]
#: From a fingertip's keypoint to the skin of its pad.
_PAD_M = 0.0065
#: The same where fingers lie around something, and from a knuckle to the skin of the palm.
_SKIN_M, _PALM_M = 0.008, 0.020


def bend(base: Angles | None = None, **degrees: float | int) -> Angles:
    """Return ``base`` (default: a relaxed hand) with named angles replaced.

    Names are those of ``articulation.freedoms()``, for example ``index_pip_flex``;
    ``fingers_pip_flex`` sets the four fingers.
    """
    out = (articulation.comfortable() if base is None else base).copy()
    for name, value in degrees.items():
        out[_indices(name)] = np.radians(value)
    return np.clip(out, *articulation.limits())


def bend_more(base: Angles, **degrees: float | int) -> Angles:
    """Return ``base`` with named angles changed by so much, within the limits."""
    out = base.copy()
    for name, value in degrees.items():
        out[_indices(name)] += np.radians(value)
    return np.clip(out, *articulation.limits())


def _indices(name: str) -> list[int]:
    names = [freedom.name for freedom in articulation.freedoms()]
    finger, _, rest = name.partition("_")
    wanted = [f"{f}_{rest}" for f in FINGERS[1:]] if finger == "fingers" else [name]
    if not set(wanted) <= set(names):
        raise InputError(f"Unknown angle {name!r}; {nearest(name, names)}")
    return [names.index(one) for one in wanted]


def reach(
    side: Side, betas: Betas, start: Angles, targets: Mapping[int, Vector], steps: int = 60
) -> Angles:
    """Return angles near ``start`` that bring keypoints to ``targets`` (wrist frame, metres).

    Damped Gauss-Newton within the limits of ``articulation``; what cannot be reached is approached.
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
        # 5 mm of error weigh as much as about 60 degrees away from the start.
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
    """Grip something ``width`` wide at ``point_world`` between thumb and index, level.

    With two or three ``fingers`` the next ones lie beside the index.

    Returns:
        angles, the wrist in the world, and the heading (about z) of the line from index to thumb.
    """
    start = bend(
        index_mcp_flex=34, index_pip_flex=40, index_dip_flex=18, middle_mcp_flex=30,
        middle_pip_flex=34, middle_dip_flex=14, ring_mcp_flex=24, ring_pip_flex=32,
        ring_dip_flex=14, pinky_mcp_flex=16, pinky_pip_flex=28, pinky_dip_flex=14,
        thumb_cmc_twist=38, thumb_cmc_flex=8, thumb_mcp_flex=16, thumb_ip_flex=18,
    )  # fmt: skip
    points = _keypoints(side, betas, start)
    middle = 0.5 * (points[_THUMB_TIP] + points[_INDEX_TIP])
    across = R_world_hand @ (points[_THUMB_TIP] - points[_INDEX_TIP])
    across = np.array([across[0], across[1], 0.0])
    across = R_world_hand.T @ across / np.linalg.norm(across)
    half = width / 2 + _PAD_M
    targets = {_THUMB_TIP: middle + half * across, _INDEX_TIP: middle - half * across}
    beside = np.array([0.0, 0.0, -1.0]) - across * -across[2]
    for number in range(1, fingers):
        shift = 0.017 * number * beside / np.linalg.norm(beside)
        targets[TIPS[1 + number]] = targets[_INDEX_TIP] + shift
    angles = reach(side, betas, start, targets, 30)
    x, y, _ = R_world_hand @ across
    return angles, point_world - R_world_hand @ middle, float(np.arctan2(y, x))


def closing(amount: float) -> Angles:
    """Return a hand closed by ``amount``: 0 open, 1 around a pencil."""
    c = amount
    return bend(
        fingers_mcp_flex=10 + 58 * c, fingers_pip_flex=14 + 82 * c, fingers_dip_flex=6 + 48 * c,
        thumb_cmc_twist=38.0, thumb_cmc_spread=14 - 10 * c, thumb_cmc_flex=-6 + 30 * c,
        thumb_mcp_flex=8 + 34 * c, thumb_ip_flex=8 + 40 * c,
    )  # fmt: skip


def enclose(side: Side, betas: Betas, radius: float) -> tuple[Angles, Vector]:
    """Return angles around something round, and its middle relative to the wrist, hand axes.

    Its axis runs across the palm, from the little finger to the thumb's side (the hand's z).
    """
    rest = CapsuleHand().rest_keypoints(side, betas)
    amounts = np.linspace(0.05, 1.0, 20)
    angles = np.stack([closing(float(a)) for a in amounts])
    points, _ = articulation.keypoints_with_jacobian(angles, side, rest)
    knuckle = points[:, [5, 9, 13]].mean(1) + np.array([0.0, _SKIN_M - _PALM_M, 0.0])
    ring = np.stack(
        [knuckle, *(points[:, [k, k + 4, k + 8]].mean(1) for k in (6, 7, 8)), points[:, 4]], axis=1
    )
    fits = [_circle(one[:, :2]) for one in ring]
    radii = np.array([fit[2] for fit in fits]) - _SKIN_M
    best = int(np.argmin(np.abs(radii - radius)))
    middle = np.array([fits[best][0], fits[best][1], points[best, [5, 9, 13], 2].mean()])
    # The thumb against the fingertips, on the other side.
    tips = (points[best, [8, 12]].mean(0) - middle) * np.array([1.0, 1.0, 0.0])
    thumb = middle - (radius + _SKIN_M) * tips / np.linalg.norm(tips)
    thumb[2] = points[best, 8, 2]
    return reach(side, betas, angles[best], {_THUMB_TIP: thumb}, 20), middle


def _circle(points: np.ndarray) -> tuple[float, float, float]:
    """Fit centre and radius to points (N, 2), algebraically."""
    rows = np.concatenate([2 * points, np.ones((len(points), 1))], axis=1)
    x, y, rest = np.linalg.lstsq(rows, (points**2).sum(1), rcond=None)[0]
    return float(x), float(y), float(np.sqrt(max(rest + x * x + y * y, 1e-8)))


def _keypoints(side: Side, betas: Betas, angles: Angles) -> Float[np.ndarray, "21 3"]:
    """Wrist-relative keypoints for identity orientation."""
    rest = CapsuleHand().rest_keypoints(side, betas)
    return articulation.keypoints_with_jacobian(angles[None], side, rest)[0][0]
