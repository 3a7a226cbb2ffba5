"""Sizes and variants of the decoder. The defaults are the paper's model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from acehand_core.errors import InputError

SLOTS = 2
JOINTS = 21
FINGER_JOINTS = 15
BETAS = 10


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """The Bidirectional Spatiotemporal Decoder (paper section 3.2).

    ``spatial_encoding`` to ``temporal_encoding`` are the ablations of the paper's table "Camera and
    decoder ablations".
    """

    feature_dim: int = 3072
    width: int = 384
    num_heads: int = 8
    num_layers: int = 4
    mlp_ratio: int = 4
    num_registers: int = 4
    ray_frequencies: int = 8
    #: Side of the learned grid that is resized to the tokens.
    spatial_grid: int = 16
    spatial_encoding: bool = True
    queries: Literal["joint", "pooled"] = "joint"
    shape_from: Literal["hands", "registers"] = "hands"
    temporal_encoding: Literal["rotary", "absolute"] = "rotary"
    #: Longest clip, in latent frames, that absolute positions are learned for.
    max_latents: int = 64
    #: Off: tokens attend within their own latent frame only, with the same parameters.
    temporal_attention: bool = True

    def __post_init__(self) -> None:
        if self.width % self.num_heads or self.width // self.num_heads % 2:
            raise InputError(f"{self.num_heads} heads do not divide width {self.width} evenly.")

    @property
    def head_width(self) -> int:
        """Hidden width of the readout heads."""
        return max(128, self.width // 2)
