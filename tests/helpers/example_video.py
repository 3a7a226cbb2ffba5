"""Clips for end-to-end tests, made from the rendered example or from a shared video."""

from __future__ import annotations

import functools

import numpy as np

from acehand_core.recordings.video import open_video
from helpers import EXAMPLES

EXAMPLE = EXAMPLES / "two_hands.mp4"
TRUTH = EXAMPLES / "two_hands_truth.parquet"


@functools.cache
def example_frames(count: int = 12, start: int = 0) -> list[np.ndarray]:
    """Return frames of the rendered clip: two hands over a table."""
    frames = open_video(EXAMPLE).frames
    return list(frames.read(start, start + count))


def empty_frames(count: int = 12, width: int = 320, height: int = 240) -> list[np.ndarray]:
    """Return frames without anything that looks like a hand."""
    ramp = np.linspace(40, 90, width).astype(np.uint8)
    return [np.repeat(np.tile(ramp, (height, 1))[..., None], 3, axis=2) + i for i in range(count)]
