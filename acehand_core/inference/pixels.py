"""In place of the video VAE, for feature sources that read frames: pixels on the latents' grid.

The stream has the form of the VAE's, so windows are cut alike: entry i holds the frames that
latent i stands for.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, UInt8

from acehand_core.encoder.config import TEMPORAL_STRIDE

Packed = UInt8[torch.Tensor, "4 3 k H W"]


class PixelEncoder:
    """Frames in, the same frames out in groups of four."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self._device = device

    def stream(self) -> PixelStream:
        """Start a clip."""
        return PixelStream(self._device)


class PixelStream:
    """One clip: the first frame alone, four times over, then groups of four."""

    def __init__(self, device: torch.device | str) -> None:
        self._device = device
        self._waiting: UInt8[np.ndarray, "n H W 3"] | None = None

    def push(self, frames: UInt8[np.ndarray, "n H W 3"]) -> Packed:
        """Take frames in order; return the groups that are complete."""
        if self._waiting is None:
            frames = np.concatenate([frames[:1]] * (TEMPORAL_STRIDE - 1) + [frames])
        else:
            frames = np.concatenate([self._waiting, frames])
        whole = len(frames) // TEMPORAL_STRIDE * TEMPORAL_STRIDE
        self._waiting = frames[whole:].copy()
        groups = torch.from_numpy(frames[:whole].copy()).to(self._device)
        groups = groups.unflatten(0, (-1, TEMPORAL_STRIDE)) if whole else groups[:, None][:0]
        return groups.expand(-1, TEMPORAL_STRIDE, -1, -1, -1).permute(1, 4, 0, 2, 3)

    def finish(self) -> Packed:
        """Return nothing: frames that do not fill a group are dropped, as by the VAE."""
        assert self._waiting is not None
        height, width = self._waiting.shape[1:3]
        return torch.empty((4, 3, 0, height, width), dtype=torch.uint8, device=self._device)


def unpack(packed: Packed) -> Float[torch.Tensor, "3 N H W"]:
    """Return the video frames of a window, RGB in -1..1: N = 4 (k - 1) + 1."""
    frames = packed.permute(1, 2, 0, 3, 4).flatten(1, 2)
    return frames[:, TEMPORAL_STRIDE - 1 :].float() / 255 * 2 - 1
