"""Feature sources without weights: folded video latents, and the pixels themselves.

Both are rows of the paper's table "Feature-source ablation", which names them and does not define
them; the definitions are ours.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import nn
from torch.nn import functional

from acehand_core.errors import InputError
from acehand_core.model.config import SPATIAL_STRIDE, TEMPORAL_STRIDE, TOKEN_PIXELS

#: Latent cells along one side of a token.
_FOLD = TOKEN_PIXELS // SPATIAL_STRIDE

Frames = Float[torch.Tensor, "B 3 N H W"]


class VaeLatent(nn.Module):
    """Clean normalised latents, the 2 x 2 cells of a token stacked on its channels.

    Channel ``4 c + 2 row + column`` of a token is latent channel c of its cell (row, column).
    Nothing is lost and nothing is learned: a linear layer after it is the trunk's patch embedding.
    """

    name = "vae_latent"
    needs = "latents"

    def __init__(self, z_dim: int = 48) -> None:
        super().__init__()
        self.feature_dim = z_dim * _FOLD**2

    def forward(self, clip: Float[torch.Tensor, "B z F H W"]) -> Float[torch.Tensor, "B C F h w"]:
        """Fold latents. Raises InputError for an odd number of rows or columns."""
        batch, channels, count, height, width = clip.shape
        if height % _FOLD or width % _FOLD:
            raise InputError(f"latents of {width} x {height} cells: both must be even.")
        h, w = height // _FOLD, width // _FOLD
        cells = clip.reshape(batch, channels, count, h, _FOLD, w, _FOLD)
        return cells.permute(0, 1, 4, 6, 2, 3, 5).reshape(batch, self.feature_dim, count, h, w)


class Rgb(nn.Module):
    """The pixels that a token stands for: 4 frames of 32 x 32, averaged down to ``patch`` a side.

    Latent i stands for frames 4i - 3 to 4i, as in the video VAE; latent 0 for frame 0 alone, which
    is taken four times. Channel ``((frame * 3 + colour) * patch + row) * patch + column``, values
    -1..1. With 16 a side a token has 4 * 3 * 16 * 16 = 3072 channels, the trunk's width, so the
    decoder keeps its size.
    """

    name = "rgb"
    needs = "frames"

    def __init__(self, patch: int = 16) -> None:
        """``patch`` divides 32. Raises InputError otherwise."""
        super().__init__()
        if patch < 1 or TOKEN_PIXELS % patch:
            raise InputError(f"an RGB patch of {patch} a side: valid: 1, 2, 4, 8, 16, 32.")
        self.patch = patch
        self.feature_dim = TEMPORAL_STRIDE * 3 * patch**2

    def forward(self, clip: Frames) -> Float[torch.Tensor, "B C F h w"]:
        """Cut a clip into patches. Raises InputError as ``token_grid`` does."""
        count, h, w = token_grid(clip)
        first = 1 - TEMPORAL_STRIDE
        index = torch.arange(first, clip.shape[2], device=clip.device).clamp(min=0)
        scale = TOKEN_PIXELS // self.patch
        pixels = functional.avg_pool3d(clip[:, :, index], (1, scale, scale))
        parts = pixels.reshape(
            len(clip), 3, count, TEMPORAL_STRIDE, h, self.patch, w, self.patch
        ).permute(0, 3, 1, 5, 7, 2, 4, 6)
        return parts.reshape(len(clip), self.feature_dim, count, h, w)


def token_grid(clip: Frames) -> tuple[int, int, int]:
    """Return (latent frames, token rows, token columns) of a clip of frames.

    Raises:
        InputError: not 4k + 1 frames, or a side that is not a multiple of 32 pixels.
    """
    frames, height, width = clip.shape[2:]
    if frames % TEMPORAL_STRIDE != 1:
        raise InputError(f"a clip of {frames} frames: valid: 1, 5, 9, ...")
    if not height or not width or height % TOKEN_PIXELS or width % TOKEN_PIXELS:
        raise InputError(f"frames of {width} x {height}: both must be multiples of {TOKEN_PIXELS}.")
    return 1 + frames // TEMPORAL_STRIDE, height // TOKEN_PIXELS, width // TOKEN_PIXELS
