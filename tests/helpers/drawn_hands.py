"""Right hands that move and rest at known times, for tests of cutting recordings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from acehand_core.hand.capsule import CapsuleHand
from acehand_core.motion import HandMotion
from helpers.retarget_samples import FPS, motion_of

FLAT = CapsuleHand().joints("right", np.eye(3)[None], np.tile(np.eye(3), (1, 15, 1, 1)),
                            np.zeros(10))[0]  # fmt: skip


def eased(seconds: np.ndarray, moves: Sequence[tuple[float, float]]) -> np.ndarray:
    """Return 0 to 1 and back, in minimum-jerk moves from one time to another; at rest between."""
    out = np.zeros(len(seconds))
    for number, (start, end) in enumerate(moves):
        s = np.clip((seconds - start) / (end - start), 0, 1)
        out += (-1) ** number * (10 * s**3 - 15 * s**4 + 6 * s**5)
    return out


def drawn(
    lasts: float,
    moves: Sequence[tuple[float, float]],
    away: Sequence[tuple[float, float]] = (),
    fps: float = FPS,
    far: float = 0.3,
) -> HandMotion:
    """Return a right hand that goes 30 cm sideways and back; ``away`` are times without it."""
    seconds = np.arange(round(lasts * fps)) / fps
    places = np.array([-0.1, 0.1, 0.45]) + far * eased(seconds, moves)[:, None] * [1.0, 0.0, 0.0]
    joints = np.full((len(places), 2, 21, 3), np.nan)
    joints[:, 1] = FLAT - FLAT[0] + places[:, None]
    for start, end in away:
        joints[(seconds >= start) & (seconds < end)] = np.nan
    return motion_of(joints, fps=float(fps))
