"""The metric scale of a camera path: from hands, whose size is known, or from a known distance.

Two measures that err in different ways must agree. Hands that work on something come down to it,
so that the structure near them is about as far as they are: a hand in the air makes the scene look
too small, never too large. And hands rest in the world now and then, which they do at the right
scale only: a hand that is carried along makes it look smaller still.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from acehand_core.camera_motion.poses import CameraPath
from acehand_core.errors import InputError
from acehand_core.geometry import frames as rigid

#: Of a wrist's distance over that of the structure within a hand's length of it in the picture,
#: this quantile over the frames is so much where hands work on a table: measured on rendered clips
#: of seed 902, spread 6 %.
_QUANTILE, _RATIO, _RATIO_SPREAD = 0.9, 0.85, 0.06
#: Points that are asked for a distance. Hands that are in the picture must be near some this often.
_NEAR, _NEAR_SHARE = 5, 0.3
#: Fewer frames of a hand say nothing.
_FRAMES = 20
#: Wrists are compared over so many frames; their moves count by the root, so that rest does most.
_LAGS, _STILL_M = (3, 8, 15), 0.005
#: The scales that are tried, times the one of distances.
_TRIED = np.geomspace(0.1, 5.0, 118)
#: Hands must be so much calmer in the world than without the camera's movement; and clearly so.
_CALMER, _CLEARLY = 0.97, 0.85
#: How far the two measures may be apart (log), and hands and lags where one of them decides.
_AGREE, _SURE = 0.25, 0.15


@dataclass(frozen=True, slots=True)
class Scale:
    """Metres per unit of a path.

    Attributes:
        value: NaN where it is not known.
        spread: relative standard deviation; NaN where it is not known.
        hands_used: sightings of hands near the structure.
        reason: empty where the value is to be trusted, else why not.
    """

    value: float
    spread: float
    hands_used: int
    reason: str


def metric_scale(
    path: CameraPath,
    wrists: Float[np.ndarray, "T S 3"],
    landmarks: Float[np.ndarray, "T S 21 2"],
) -> Scale:
    """Return the scale at which hands and scene fit together, or why it is not known.

    Args:
        path: that was not refused; its unit of length is unknown.
        wrists: in the camera frame, metres, NaN where not seen.
        landmarks: of the same hands, pixels.

    Raises:
        InputError: not as many frames as the path has.
    """
    count = len(path.T_world_camera)
    if not len(wrists) == len(landmarks) == count:
        raise InputError(
            f"hands of {len(wrists)} and {len(landmarks)} frames; the camera path has {count}."
        )
    if path.reason:
        return _unknown(0, f"there are no camera poses: {path.reason}")
    ratios = _ratios(path, wrists, landmarks)
    if len(ratios) < max(_FRAMES, _NEAR_SHARE * count * wrists.shape[1]):
        return _unknown(len(ratios), "hands are hardly ever near what does not move")
    touching = float(np.quantile(ratios, _QUANTILE)) / _RATIO

    resting, gain, spread = _resting(path, wrists, touching)
    apart = math.log(resting / touching) if math.isfinite(resting) else math.inf
    if gain > _CALMER:
        return _unknown(len(ratios), "hands do not rest in the world, or move with the camera")
    if apart < -_AGREE:
        return _unknown(len(ratios), "hands move with the camera")
    sure = gain < _CLEARLY and spread < _SURE
    if apart > _AGREE and not sure:
        return _unknown(len(ratios), "hands stay above the scene, or move with the camera")
    if sure:
        return Scale(resting, max(spread, _RATIO_SPREAD), len(ratios), "")
    both = math.sqrt(touching * resting)
    return Scale(both, max(_RATIO_SPREAD, abs(apart) / 2), len(ratios), "")


def _unknown(hands: int, reason: str) -> Scale:
    return Scale(math.nan, math.nan, hands, reason)


def _ratios(path: CameraPath, wrists: np.ndarray, landmarks: np.ndarray) -> Float[np.ndarray, "H"]:
    """Return distances of wrists, metres, over those of the structure near them."""
    out = []
    for t in np.flatnonzero(path.known):
        shown = (path.seen[:, 0] <= t) & (path.seen[:, 1] >= t)
        at = rigid.apply(rigid.inverse(path.T_world_camera[t]), path.points[shown])
        pixel, far = path.camera.project(at), np.linalg.norm(at, axis=1)
        for wrist, hand in zip(wrists[t], landmarks[t], strict=True):
            if not (np.isfinite(wrist).all() and np.isfinite(hand).all()):
                continue
            if not path.camera.contains(hand).sum() >= len(hand) / 2:
                continue
            length = 2 * float(np.linalg.norm(hand[9] - hand[0]))
            with np.errstate(invalid="ignore"):
                near = np.linalg.norm(pixel - hand[0], axis=1) < length
            if near.sum() >= _NEAR:
                out.append(float(np.linalg.norm(wrist)) / float(np.median(far[near])))
    return np.array(out)


def _resting(path: CameraPath, wrists: np.ndarray, about: float) -> tuple[float, float, float]:
    """Return the scale at which wrists are calmest, the gain by it (1: none), and its spread.

    Infinite where it is the largest or smallest that was tried.
    """
    R, centre = path.T_world_camera[:, :3, :3], path.T_world_camera[:, :3, 3]
    turned = np.einsum("tij,tsj->tsi", R, wrists)
    tried = about * _TRIED
    costs, bases = [], []
    for lag in _LAGS:
        moves, way = turned[lag:] - turned[:-lag], centre[lag:] - centre[:-lag]
        for hand in range(wrists.shape[1]):
            known = np.isfinite(moves[:, hand]).all(1) & np.isfinite(way).all(1)
            if known.sum() < _FRAMES:
                continue
            all_moves = moves[known, hand] + tried[:, None, None] * way[known]
            size = np.sqrt((all_moves**2).sum(-1) + _STILL_M**2)
            costs.append(np.sqrt(size).sum(1))
            still = np.sqrt((moves[known, hand] ** 2).sum(-1) + _STILL_M**2)
            bases.append(float(np.sqrt(still).sum()))
    if not costs:
        return math.inf, 1.0, math.inf
    total = np.sum(costs, axis=0)
    best = int(np.argmin(total))
    if best in (0, len(tried) - 1):
        return math.inf, 1.0, math.inf
    each = np.log(tried[[int(np.argmin(cost)) for cost in costs]] / tried[best])
    # Half of them are as far off as this: what one hand does for long throws the rest.
    spread = 1.48 * float(np.median(np.abs(each)))
    return float(tried[best]), float(total[best] / sum(bases)), spread


def scaled(path: CameraPath, scale: Scale) -> CameraPath:
    """Return the path in metres.

    Raises:
        InputError: the scale is not known.
    """
    if scale.reason or not (math.isfinite(scale.value) and scale.value > 0):
        raise InputError(
            f"the scale of the camera path is not known: {scale.reason or scale.value}."
        )
    return path.moved(scale.value, np.eye(4))


def scale_of_two_points(
    path: CameraPath, frame: int, pixels: Float[np.ndarray, "2 2"], metres: int | float
) -> Scale:
    """Return the scale from the distance of two points of the scene that one frame shows.

    Each point is as far as the points of the scene next to it in the picture are.

    Raises:
        InputError: the frame has no pose, the distance is not positive, or nothing of the scene
            is known near a point.
    """
    if not (math.isfinite(metres) and metres > 0):
        raise InputError(f"a distance of {metres} m between two points: it must be positive.")
    count = len(path.T_world_camera)
    if not 0 <= frame < count or not path.known[frame]:
        known = np.flatnonzero(path.known)
        valid = f"frames {known[0]} to {known[-1]} have" if len(known) else "none has"
        raise InputError(f"frame {frame} has no camera pose; {valid} one.")
    shown = (path.seen[:, 0] <= frame) & (path.seen[:, 1] >= frame)
    at = rigid.apply(rigid.inverse(path.T_world_camera[frame]), path.points[shown])
    far = np.linalg.norm(at, axis=1)
    direction = at / far[:, None]
    ends = []
    for pixel, ray in zip(pixels, path.camera.unproject(pixels), strict=True):
        apart = np.linalg.norm(direction - ray, axis=1)
        near = np.argsort(apart)[:_NEAR]
        if len(near) < _NEAR or not apart[near].max() < 0.15:
            raise InputError(
                f"pixel {pixel[0]:.0f}, {pixel[1]:.0f} of frame {frame}: nothing is known of the "
                "scene near it; choose a point with texture around it."
            )
        ends.append(_along(ray, at[near], far[near]) * ray)
    length = float(np.linalg.norm(ends[1] - ends[0]))
    if length < 1e-9:
        raise InputError("the two points are one and the same.")
    return Scale(float(metres) / length, 0.05, 0, "")


def _along(ray: np.ndarray, points: np.ndarray, far: np.ndarray) -> float:
    """Return how far along a ray the surface is that passes through points about it."""
    # 1 / distance along a ray is linear in its direction where points lie in a plane.
    direction = points / far[:, None]
    plane, *_ = np.linalg.lstsq(direction, 1 / far, rcond=1e-2)
    inverse = float(plane @ ray)
    usual = float(np.median(far))
    return 1 / inverse if 0.5 < inverse * usual < 2.0 else usual
