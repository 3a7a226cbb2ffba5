"""Measures of commands that only comparisons need; others: ``retarget.replay.metrics``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from retarget.replay.metrics import PINCH_ROBOT_M, CommonGround, Tips

PINCH_HUMAN_M = 0.030
OPEN_HUMAN_M = 0.050
LAG_FRAMES = 15
RATE_EPS = 1e-6


def direction_error(
    human: Float[np.ndarray, "T V 3"], robot: Float[np.ndarray, "T V 3"], ground: CommonGround
) -> Float[np.ndarray, "T V"]:
    """Angle in radians between robot vectors and rotated human vectors."""
    a = human @ ground.rotation.T
    cosine = np.sum(a * robot, axis=-1) / (
        np.linalg.norm(a, axis=-1) * np.linalg.norm(robot, axis=-1)
    )
    return np.arccos(np.clip(cosine, -1, 1))


@dataclass(frozen=True, slots=True)
class Pinch:
    """Frames with the human thumb within 30 mm of index or middle, and what the robot did."""

    frames: int
    robot_m: float
    recall: float
    false_share: float


def pinch(human: Tips, robot: Tips) -> Pinch:
    """Score thumb-index and thumb-middle pinches (the pairs an Inspire hand can close)."""
    human_gap = np.linalg.norm(human[:, :1] - human[:, 1:3], axis=-1)
    robot_gap = np.linalg.norm(robot[:, :1] - robot[:, 1:3], axis=-1)
    closed = human_gap < PINCH_HUMAN_M
    gaps = robot_gap[closed]
    false = (robot_gap < PINCH_ROBOT_M) & (human_gap > OPEN_HUMAN_M)
    return Pinch(
        frames=int(closed.sum()),
        robot_m=float(gaps.mean()) if len(gaps) else float("nan"),
        recall=float((gaps < PINCH_ROBOT_M).mean()) if len(gaps) else float("nan"),
        false_share=float(false.mean()),
    )


def rms_jerk(commands: Float[np.ndarray, "T C"], fps: float) -> float:
    """Rms third difference times fps cubed, rad/s^3."""
    if len(commands) < 4:
        return 0.0
    return float(np.sqrt(np.mean(np.diff(commands, 3, axis=0) ** 2)) * fps**3)


def rate_excess(
    commands: Float[np.ndarray, "T C"], limit: Float[np.ndarray, "C"], fps: float, order: int
) -> tuple[float, float]:
    """Compare a derivative (1: speed, 2: acceleration) with its limit.

    Returns:
        The share of joint-frames above the limit, and the largest ratio to it.
    """
    if len(commands) <= order:
        return 0.0, 0.0
    ratio = np.abs(np.diff(commands, order, axis=0)) * fps**order / limit
    return float((ratio > 1 + RATE_EPS).mean()), float(ratio.max())


def lag_frames(human: Tips, robot: Tips) -> int:
    """Frames by which the robot's tip speed best matches the human's, within +-15.

    Positive: the robot is late. Of equal matches the smallest lag counts. At least half of the
    clip is compared at any lag.
    """
    if len(human) < 3:
        return 0
    a = np.linalg.norm(np.diff(human, axis=0), axis=-1).mean(1)
    b = np.linalg.norm(np.diff(robot, axis=0), axis=-1).mean(1)
    a, b = a - a.mean(), b - b.mean()
    reach = min(LAG_FRAMES, len(a) // 2)
    best, best_score = 0, -np.inf
    for lag in sorted(range(-reach, reach + 1), key=abs):
        early, late = max(0, -lag), max(0, lag)
        x, y = a[early : len(a) - late], b[late : len(b) - early]
        score = float(x @ y) / np.sqrt(max(float(x @ x) * float(y @ y), 1e-18))
        if score > best_score:
            best, best_score = lag, score
    return best
