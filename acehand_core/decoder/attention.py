"""One round of the decoder: read the frame, then exchange over time."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import nn
from torch.nn import functional

from acehand_core.decoder.config import DecoderConfig

Tokens = Float[torch.Tensor, "B F S D"]
Angles = Float[torch.Tensor, "F half"]

_ROTARY_BASE = 10000.0


def rotary_angles(frames: int, head_width: int, device: torch.device) -> Angles:
    """Return the angle of every pair of channels at every latent frame, radians."""
    pair = torch.arange(0, head_width, 2, device=device, dtype=torch.float32)
    speed = 1.0 / (_ROTARY_BASE ** (pair / head_width))
    return torch.arange(frames, device=device, dtype=torch.float32)[:, None] * speed


def rotate(x: Float[torch.Tensor, "B H F S d"], angles: Angles) -> Float[torch.Tensor, "B H F S d"]:
    """Turn adjacent channel pairs by their frame's angles."""
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)


class TemporalLayer(nn.Module):
    """Self-attention over all tokens of all frames, no mask, and an MLP; pre-norm.

    With ``angles`` positions are relative (rotary), so any number of frames will do. Without
    ``temporal_attention`` each frame's tokens attend to each other alone.
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        width, hidden = config.width, config.width * config.mlp_ratio
        self.num_heads = config.num_heads
        self.across_frames = config.temporal_attention
        self.norm1 = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, tokens: Tokens, angles: Angles | None) -> Tokens:
        """Return updated tokens."""
        normed = self.norm1(tokens)
        query, key, value = (
            layer(normed).unflatten(-1, (self.num_heads, -1)).permute(0, 3, 1, 2, 4)
            for layer in (self.query, self.key, self.value)
        )
        if angles is not None:
            query, key = rotate(query, angles), rotate(key, angles)
        if self.across_frames:
            query, key, value = (x.flatten(2, 3) for x in (query, key, value))
        mixed = functional.scaled_dot_product_attention(query, key, value)
        if not self.across_frames:
            mixed = mixed.flatten(2, 3)
        tokens = tokens + self.output(mixed.transpose(1, 2).flatten(2)).view_as(tokens)
        return tokens + self.mlp(self.norm2(tokens))


class Round(nn.Module):
    """Tokens read the patches of their own frame, then each other (paper section 3.2)."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.query_norm = nn.LayerNorm(config.width)
        self.context_norm = nn.LayerNorm(config.width)
        self.spatial = nn.MultiheadAttention(config.width, config.num_heads, batch_first=True)
        self.temporal = TemporalLayer(config)

    def forward(
        self, tokens: Tokens, patches: Float[torch.Tensor, "B F P D"], angles: Angles | None
    ) -> Tokens:
        """Return updated tokens."""
        context = self.context_norm(patches).flatten(0, 1)
        query = self.query_norm(tokens).flatten(0, 1)
        read, _ = self.spatial(query, context, context, need_weights=False)
        return self.temporal(tokens + read.view_as(tokens), angles)
