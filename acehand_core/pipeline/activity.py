"""What the hands of a recording do, frame by frame: there or not, moving or still, closed or open.

Speeds are slopes over half a second, in a frame from which the camera's turn is removed where it is
known, and only what exceeds the tracker's noise counts. Whether a hand holds something cannot be
told from the hand alone; that fingertips meet can.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float
from scipy import ndimage

from acehand_core.hand.skeleton import PALM, TIPS
from acehand_core.motion import CameraMotion, HandMotion

#: Speeds are slopes of straight lines through so much of the motion.
WINDOW_S = 0.5
#: How far the slope over ``WINDOW_S`` may be off, as a multiple of ``joint_sigma / WINDOW_S``,
#: across the line of sight (in each direction) and along it: measured on rendered clips.
NOISE_ACROSS, NOISE_ALONG = 1.3, 0.7
#: Only what exceeds so many standard deviations is speed.
SIGNIFICANT = 2.5
#: Of a hand less of which is inside the picture the noise is so many times as large: measured on a
#: rendered head that turns, which puts hands at rest partly out of view.
PARTLY_VISIBLE, PARTLY_NOISE = 0.9, 4.0
#: A window that shows less of its frames than this says nothing.
_LEAST_SHARE = 0.5
#: Thumb and another fingertip nearer than this are closed (m).
CLOSED_M = 0.04
#: Movement that goes no further than this in all is jitter (m).
JITTER_PATH_M = 0.02


@dataclass(frozen=True, slots=True)
class Activity:
    """What both hands do over T frames.

    Attributes:
        seconds: since the first frame.
        present: a hand is there, seen or filled in.
        judged: a hand is seen so well that its speed is known.
        speed: m/s of the faster hand, beyond the noise; NaN where it is not judged.
        moving: a hand moves.
        closed: the tip of a thumb is near another fingertip, or fingertips of both hands meet.
        noise: m/s across the line of sight that count as none, ``SIGNIFICANT`` standard deviations,
            the median of all frames; NaN where no hand was seen.
    """

    seconds: Float[np.ndarray, "T"]
    present: Bool[np.ndarray, "T"]
    judged: Bool[np.ndarray, "T"]
    speed: Float[np.ndarray, "T"]
    moving: Bool[np.ndarray, "T"]
    closed: Bool[np.ndarray, "T"]
    noise: float


def activity(
    motion: HandMotion, turns: CameraMotion | None, moves: float, rests: float
) -> Activity:
    """Return what the hands of a recording do.

    Args:
        turns: how the camera turned; None: as if it had not. Where ``motion`` has camera poses too
            a hand moves only if it does so both in the world and before the camera: neither one at
            rest while the head moves nor one that is carried along counts.
        moves, rests: m/s; a hand begins to move above the first and rests below the second.
    """
    seconds = (motion.timestamps_ns - motion.timestamps_ns[0]) * 1e-9
    points, sigma = _points(motion), _sigma(motion)
    usable = np.isfinite(points).all(-1) & (motion.observed & (motion.quality > 0))[..., None]
    points = np.where(usable[..., None], points, np.nan)
    distance = np.linalg.norm(points, axis=-1, keepdims=True)
    rays = points / np.where(distance > 0, distance, 1.0)

    rotations = np.broadcast_to(np.eye(3), (len(motion), 3, 3))
    piece = np.zeros(len(motion), int)
    if turns is not None:
        rotations, piece = turns.rotations, np.cumsum(turns.doubtful)
    turned = np.einsum("tij,tspj->tspi", rotations, points)
    slope, spread = _slopes(seconds, turned, usable, piece)
    noise = _noise(turned, sigma, spread) * _out_of_view(motion)[..., None, None]
    speed = _beyond_noise(slope, np.einsum("tij,tspj->tspi", rotations, rays), noise)

    if (poses := motion.T_world_camera) is not None:
        known = np.isfinite(poses).all((1, 2))
        poses = np.where(known[:, None, None], poses, np.eye(4))
        axes = poses[:, :3, :3]
        world = np.einsum("tij,tspj->tspi", axes, points) + poses[:, None, None, :3, 3]
        slope, _ = _slopes(seconds, world, usable & known[:, None, None], np.zeros_like(piece))
        there = _beyond_noise(slope, np.einsum("tij,tspj->tspi", axes, rays), noise)
        speed = np.fmin(speed, there)

    hands = _of_hands(speed)
    moving = np.zeros(len(motion), bool)
    for slot in range(hands.shape[1]):
        moving |= _moves(seconds, hands[:, slot], moves, rests)
    judged = np.isfinite(hands).any(1)
    fastest = np.where(judged, np.nanmax(np.nan_to_num(hands, nan=-1.0), axis=1), np.nan)
    across = noise[..., 0][np.isfinite(noise[..., 0])]
    return Activity(
        seconds=seconds,
        present=np.asarray(motion.known.any(1)),
        judged=judged,
        speed=fastest,
        moving=moving,
        closed=_closed(motion, points[:, :, 1:]),
        noise=float(SIGNIFICANT * np.median(across)) if len(across) else float("nan"),
    )


def _points(motion: HandMotion) -> Float[np.ndarray, "T 2 6 3"]:
    """Return the middle of each palm and the five fingertips, camera frame."""
    joints = motion.joints_camera
    return np.concatenate([joints[:, :, PALM].mean(2, keepdims=True), joints[:, :, TIPS]], axis=2)


def _sigma(motion: HandMotion) -> Float[np.ndarray, "T 2 6 2"]:
    """Return standard deviations of ``_points`` across and along the line of sight, 0 where none.

    The joints of a palm are off alike, so their mean is no better known than one of them.
    """
    sigma = motion.joint_sigma
    if sigma is None:
        return np.zeros((len(motion), 2, 6, 2))
    palm = sigma[:, :, PALM].mean(2, keepdims=True)
    return np.nan_to_num(np.concatenate([palm, sigma[:, :, TIPS]], axis=2))


def _out_of_view(motion: HandMotion) -> Float[np.ndarray, "T 2"]:
    """Return how many times as large the noise of a hand is, by what of it the window shows."""
    frames = 2 * round(WINDOW_S / 2 * motion.fps) + 1
    shown = ndimage.minimum_filter1d(motion.visible, frames, axis=0, mode="nearest")
    return np.where(shown < PARTLY_VISIBLE, PARTLY_NOISE, 1.0)


def _slopes(
    seconds: Float[np.ndarray, "T"],
    points: Float[np.ndarray, "T 2 6 3"],
    usable: Bool[np.ndarray, "T 2 6"],
    piece: np.ndarray,
) -> tuple[Float[np.ndarray, "T 2 6 3"], Float[np.ndarray, "T 2 6"]]:
    """Return the slopes of lines through a window about each frame, m/s, and the root of the sum of
    its squared times, s: noise of the points divided by it is that of the slope.

    NaN where the frame is not usable or too few of its window are. No window crosses from one piece
    of the camera's motion to the next.
    """
    count = len(seconds)
    step = float(np.median(np.diff(seconds))) if count > 1 else WINDOW_S
    half = max(WINDOW_S / 2, step) + step / 4
    reach = min(int(half / step), count - 1)
    known = np.where(usable[..., None], points, 0.0)
    n, t, tt = (np.zeros(usable.shape) for _ in range(3))
    x, tx = np.zeros(points.shape), np.zeros(points.shape)
    frames = np.arange(count)
    for lag in range(-reach, reach + 1):
        other = np.clip(frames + lag, 0, count - 1)
        delta = seconds[other] - seconds
        near = (frames + lag == other) & (np.abs(delta) <= half)
        counts = usable[other] & (near & (piece[other] == piece))[:, None, None]
        delta = np.where(counts, delta[:, None, None], 0.0)
        n, t, tt = n + counts, t + delta, tt + delta**2
        x += np.where(counts[..., None], known[other], 0.0)
        tx += delta[..., None] * known[other]

    enough = usable & (n >= max(2.0, _LEAST_SHARE * (2 * reach + 1)))
    mean = t / np.maximum(n, 1)
    square = np.where(enough, tt - n * mean**2, np.nan)
    return (tx - mean[..., None] * x) / square[..., None], np.sqrt(square)


def _noise(
    points: Float[np.ndarray, "T 2 6 3"],
    sigma: Float[np.ndarray, "T 2 6 2"],
    spread: Float[np.ndarray, "T 2 6"],
) -> Float[np.ndarray, "T 2 6 2"]:
    """Return standard deviations of the slopes, m/s: across the line of sight and along it.

    Two parts: what the tracker says that joints may be off by, and jitter from frame to frame, by
    third differences, in which movement hardly shows.
    """
    jitter = np.zeros(points.shape[1:3])
    if len(points) > 3:
        third = np.abs(np.diff(points, 3, axis=0))
        for hand, point in np.ndindex(jitter.shape):
            values = third[:, hand, point][np.isfinite(third[:, hand, point])]
            # Of white noise third differences have 1 + 9 + 9 + 1 times its variance.
            jitter[hand, point] = 1.4826 * np.median(values) / np.sqrt(20) if len(values) else 0.0
    white = (jitter / spread)[..., None]
    return np.hypot(white, np.array([NOISE_ACROSS, NOISE_ALONG]) * sigma / WINDOW_S)


def _beyond_noise(
    slope: Float[np.ndarray, "T 2 6 3"],
    rays: Float[np.ndarray, "T 2 6 3"],
    noise: Float[np.ndarray, "T 2 6 2"],
) -> Float[np.ndarray, "T 2 6"]:
    """Return speeds, of which only what exceeds the noise in either direction counts."""
    along = (slope * rays).sum(-1)
    across = np.sqrt(np.maximum((slope**2).sum(-1) - along**2, 0))
    limit = SIGNIFICANT * noise
    return np.hypot(
        np.maximum(across - limit[..., 0], 0), np.maximum(np.abs(along) - limit[..., 1], 0)
    )


def _of_hands(speed: Float[np.ndarray, "T 2 6"]) -> Float[np.ndarray, "T 2"]:
    """Return the speed of each hand: of its palm, or of its second fastest fingertip if faster.

    One tip alone may be a mistake of the tracker.
    """
    second = np.sort(np.nan_to_num(speed[:, :, 1:], nan=-1.0), axis=2)[:, :, -2]
    return np.fmax(speed[:, :, 0], np.where(second >= 0, second, np.nan))


def _moves(
    seconds: Float[np.ndarray, "T"], speed: Float[np.ndarray, "T"], moves: float, rests: float
) -> Bool[np.ndarray, "T"]:
    """Return where a hand moves: faster than ``rests`` about a moment of more than ``moves``."""
    known = np.nan_to_num(speed)
    labels, count = ndimage.label(known > rests)
    out = np.zeros(len(speed), bool)
    steps = np.diff(seconds, append=seconds[-1:])
    for (inside,) in ndimage.find_objects(labels, max_label=count):
        path = float((known[inside] * steps[inside]).sum())
        out[inside] = known[inside].max() > moves and path > JITTER_PATH_M
    return out


def _closed(motion: HandMotion, tips: Float[np.ndarray, "T 2 5 3"]) -> Bool[np.ndarray, "T"]:
    """Return where fingertips meet, over half a window's median."""
    thumb = np.linalg.norm(tips[:, :, 1:] - tips[:, :, :1], axis=-1).min(-1)
    nearest = np.nan_to_num(thumb, nan=np.inf).min(1)
    if motion.placed:
        both = np.linalg.norm(tips[:, 0, :, None] - tips[:, 1, None], axis=-1).min((1, 2))
        nearest = np.minimum(nearest, np.nan_to_num(both, nan=np.inf))
    near = (nearest < CLOSED_M).astype(np.uint8)
    reach = max(1, round(WINDOW_S / 4 * motion.fps))
    return ndimage.median_filter(near, size=2 * reach + 1, mode="nearest").astype(bool)
