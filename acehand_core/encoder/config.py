"""Sizes of the encoder. The defaults are the released ones; tests use tiny ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from acehand_core.errors import InputError

Precision = Literal["bfloat16", "float32"]

#: Frames per latent after the first, and pixels per latent cell.
TEMPORAL_STRIDE = 4
SPATIAL_STRIDE = 16
#: One decoder token covers this many pixels: the trunk's patches are 2 x 2 latent cells.
TOKEN_PIXELS = 32
#: The same of the tiny encoder (latents of 8 pixels).
TINY_TOKEN_PIXELS = 16


@dataclass(frozen=True, slots=True)
class VaeConfig:
    """The Wan 2.2 video VAE; only its encoder is built."""

    base_dim: int = 160
    z_dim: int = 48


@dataclass(frozen=True, slots=True)
class TrunkConfig:
    """The Wan 2.2 diffusion transformer, read after block ``tap`` (zero-indexed)."""

    dim: int = 3072
    ffn_dim: int = 14336
    num_heads: int = 24
    num_layers: int = 30
    in_channels: int = 148
    out_channels: int = 48
    text_dim: int = 4096
    text_length: int = 512
    freq_dim: int = 256
    tap: int = 15
    #: 0 builds no adapters.
    lora_rank: int = 64
    lora_alpha: float = 64.0
    #: Noise level at which the latents are read; the paper's table "Clean versus noised" tries 0.5.
    sigma: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.tap < self.num_layers:
            raise InputError(f"tap {self.tap}: valid: 0 to {self.num_layers - 1}.")
        if not 0 <= self.sigma <= 1:
            raise InputError(f"sigma {self.sigma}: valid: 0 to 1.")
        if self.dim % self.num_heads or self.dim // self.num_heads % 2:
            raise InputError(f"{self.num_heads} heads do not divide width {self.dim} evenly.")

    @property
    def executed(self) -> int:
        """Number of blocks that run; the others are neither loaded nor allocated."""
        return self.tap + 1


@dataclass(frozen=True, slots=True)
class TinyConfig:
    """The small encoder in place of the Wan ones (``encoder.tiny``); everything in it learns."""

    #: Channels of the encoder's first convolution.
    stem: int = 32
    z_dim: int = 48
    dim: int = 96
    ffn_dim: int = 288
    num_heads: int = 3
    num_layers: int = 2
    #: Off: tokens attend within their own latent frame only, with the same parameters.
    temporal_attention: bool = True

    def __post_init__(self) -> None:
        if self.dim % self.num_heads or self.dim // self.num_heads % 2:
            raise InputError(f"{self.num_heads} heads do not divide width {self.dim} evenly.")
        if self.dim // self.num_heads < 6:
            raise InputError(f"heads of {self.dim // self.num_heads} channels; valid: 6 or more.")
