"""Recordings with depth that is worse than described, to measure what that costs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import cv2
import numpy as np

from acehand_core.motion import DepthSource, Recording
from acehand_core.types import DepthImage

#: Size of a hole: the sigma in pixels of the Gaussian that the holes' noise is blurred by.
_HOLE_PX = 6.0


def with_worse_depth(
    recording: Recording, scale: float = 1.0, late_s: float = 0.0, holes: float = 0.0, seed: int = 0
) -> Recording:
    """Return the recording with its depth changed in ways that its description does not say.

    Args:
        scale: factor on all readings; 1.02 is a calibration off by 2 %.
        late_s: by how much the stamps are after the pictures were taken.
        holes: share of every picture without readings, in blotches, besides its own holes.
    """
    depth = recording.depth
    assert depth is not None
    frames = _Worse(depth.frames, scale, holes, seed)
    stamps = depth.timestamps_ns + round(late_s * 1e9)
    return replace(
        recording, depth=replace(depth, frames=frames, timestamps_ns=stamps), sha256=None
    )


@dataclass(frozen=True, slots=True)
class _Worse:
    frames: DepthSource
    scale: float
    holes: float
    seed: int

    def __len__(self) -> int:
        return len(self.frames)

    def at(self, index: int) -> DepthImage:
        read = self.frames.at(index) * np.float32(self.scale)
        if self.holes:
            rng = np.random.default_rng((self.seed, index))
            blotches = cv2.GaussianBlur(rng.standard_normal(read.shape), (0, 0), _HOLE_PX)
            read[blotches < np.quantile(blotches, self.holes)] = np.nan
        return read
