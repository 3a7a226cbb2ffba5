"""Patch tokens: features with where they are in the image and along which ray they look."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import nn
from torch.nn import functional

from acehand_core.decoder.config import DecoderConfig

RayField = Float[torch.Tensor, "B 3 h w"]


def ray_angles(rays: RayField) -> Float[torch.Tensor, "B 2 h w"]:
    """Return azimuth and elevation of each ray, radians; rays need not have unit length."""
    depth = rays[:, 2].abs().clamp_min(1e-6)
    return torch.atan2(rays[:, :2], depth[:, None])


class RayEncoding(nn.Module):
    """Sines and cosines of the ray's angles at doubling frequencies, through an MLP.

    The last layer starts at zero, so the encoding starts as nothing (paper appendix
    "Architecture").
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.frequencies = config.ray_frequencies
        self.projection = nn.Sequential(
            nn.Linear(4 * config.ray_frequencies, config.width),
            nn.GELU(),
            nn.Linear(config.width, config.width),
        )
        nn.init.zeros_(self.projection[2].weight)
        nn.init.zeros_(self.projection[2].bias)

    def forward(self, rays: RayField) -> Float[torch.Tensor, "B P D"]:
        """Return one encoding per patch, in row order."""
        angles = ray_angles(rays).flatten(2)
        scale = 2.0 ** torch.arange(self.frequencies, device=rays.device, dtype=rays.dtype)
        waves = angles[..., None] * scale
        azimuth, elevation = waves.unbind(1)
        parts = [azimuth.sin(), azimuth.cos(), elevation.sin(), elevation.cos()]
        return self.projection(torch.cat(parts, dim=-1))


def resized_grid(
    grid: Float[torch.Tensor, "1 D g g"], height: int, width: int
) -> Float[torch.Tensor, "P D"]:
    """Return the learned grid at the patches, corners on corners."""
    out = functional.interpolate(grid, (height, width), mode="bilinear", align_corners=True)
    return out[0].flatten(1).T
