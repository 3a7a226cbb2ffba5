"""Feature sources by name: clips to features on the decoder's token grid.

The names are the rows of the paper's table "Feature-source ablation" (which does not define them;
video latents and pixels are defined here) and "tiny". Latent frame i represents video frame 4i, a
token 32 x 32 pixels of the encoded image: 21 x 15 tokens for 672 x 480.

"tiny" replaces the Wan encoders by small ones that train on two CPU cores. A causal encoder makes
clean latents in the video VAE's layout (the first frame alone, then one latent per four frames), a
transformer attends to all latents of the clip, and the decoder reads its last block. All of it is
trained, without adapters, caption, noise or cached latents. A latent cell covers 8 x 8 pixels, a
token 16 x 16.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import nn
from torch.nn import functional

from acehand_core.ace.model.batch import FeatureSource
from acehand_core.ace.model.config import (
    SPATIAL_STRIDE,
    TEMPORAL_STRIDE,
    TINY_TOKEN_PIXELS,
    TOKEN_PIXELS,
    ModelConfig,
    TinyConfig,
    TrunkConfig,
)
from acehand_core.ace.model.encoder.video_backbones import Frames, VideoMae, VJepa2, token_grid
from acehand_core.errors import InputError, nearest

#: Returns the trunk of these sizes with its weights. None: a trunk on the meta device.
LoadTrunk = Callable[[TrunkConfig], FeatureSource] | None

#: The sources with trunk weights.
TRUNK_SOURCES = ("wan", "wan_frozen")

#: Latent cells along one side of a token.
_FOLD = TOKEN_PIXELS // SPATIAL_STRIDE

_PATCH = 2
_ROTARY_BASE = 100.0

Latents = Float[torch.Tensor, "B z F rows columns"]
Tokens = Float[torch.Tensor, "B L D"]
Angles = Float[torch.Tensor, "L half"]


@dataclass(frozen=True, slots=True)
class SourceKind:
    """One entry of the registry."""

    needs: Literal["latents", "frames"]
    build: Callable[[ModelConfig, LoadTrunk], FeatureSource]


def make_source(config: ModelConfig, load_trunk: LoadTrunk = None) -> FeatureSource:
    """Return the source of a model. Raises InputError for an unknown name or its weights."""
    return source_kind(config.source).build(config, load_trunk)


def source_kind(name: str) -> SourceKind:
    """Return the registry entry of a source. Raises InputError listing the names."""
    if name not in SOURCES:
        raise InputError(f"unknown feature source {name!r}; {nearest(name, SOURCES)}")
    return SOURCES[name]


def _trunk(model: ModelConfig, load_trunk: LoadTrunk) -> FeatureSource:
    """Return the trunk; "wan_frozen" has no adapters and no trainable patch embedding."""
    frozen = model.source == "wan_frozen"
    config = replace(model.trunk, lora_rank=0) if frozen else model.trunk
    if load_trunk is not None:
        trunk = load_trunk(config)
    else:
        # Imported here because diffusers is heavy and no other source needs it.
        from acehand_core.ace.model.encoder.trunk import Trunk

        trunk = Trunk(config)
    trunk.name = model.source
    return trunk.requires_grad_(False) if frozen else trunk


#: ``wan`` is the model, the others are its ablations.
SOURCES = {
    "wan": SourceKind("latents", _trunk),
    "wan_frozen": SourceKind("latents", _trunk),
    "vjepa2": SourceKind("frames", lambda config, _: VJepa2.from_pretrained()),
    "videomae": SourceKind("frames", lambda config, _: VideoMae.from_pretrained()),
    "vae_latent": SourceKind("latents", lambda config, _: VaeLatent(config.vae.z_dim)),
    "rgb": SourceKind("frames", lambda config, _: Rgb()),
    "tiny": SourceKind("frames", lambda config, _: TinySource(config.tiny)),
}


class VaeLatent(FeatureSource):
    """Clean normalised latents, the 2 x 2 cells of a token stacked on its channels.

    Channel ``4 c + 2 row + column`` of a token is latent channel c of its cell (row, column).
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


class Rgb(FeatureSource):
    """The pixels of a token: 4 frames of 32 x 32, averaged down to 16 x 16.

    As in the video VAE latent i covers frames 4i - 3 to 4i, and latent 0 frame 0 four times.
    Channel ``((frame * 3 + colour) * 16 + row) * 16 + column``, values -1..1: 3072 channels, the
    trunk's width.
    """

    name = "rgb"
    needs = "frames"
    patch = 16
    feature_dim = TEMPORAL_STRIDE * 3 * patch**2

    def forward(self, clip: Frames) -> Float[torch.Tensor, "B C F h w"]:
        """Cut a clip into patches. Raises InputError as ``token_grid``."""
        count, h, w = token_grid(clip)
        first = 1 - TEMPORAL_STRIDE
        index = torch.arange(first, clip.shape[2], device=clip.device).clamp(min=0)
        scale = TOKEN_PIXELS // self.patch
        pixels = functional.avg_pool3d(clip[:, :, index], (1, scale, scale))
        shape = len(clip), 3, count, TEMPORAL_STRIDE, h, self.patch, w, self.patch
        parts = pixels.reshape(shape).permute(0, 3, 1, 5, 7, 2, 4, 6)
        return parts.reshape(len(clip), self.feature_dim, count, h, w)


class TinySource(FeatureSource):
    """Feature source "tiny": frames in, (B, dim, F, H/16, W/16) out."""

    name = "tiny"
    needs = "frames"

    def __init__(self, config: TinyConfig | None = None) -> None:
        super().__init__()
        self.config = config or TinyConfig()
        self.feature_dim = self.config.dim
        self.encoder = TinyVideoEncoder(self.config)
        self.trunk = TinyTrunk(self.config)

    def forward(self, clip: Frames) -> Float[torch.Tensor, "B C F h w"]:
        """Return features, float32. Raises InputError as ``token_grid`` of 16 pixels."""
        return self.trunk(self.encoder(clip)).float()


class TinyVideoEncoder(nn.Module):
    """RGB in -1..1 to latents; latent i depends on frames 0 to 4i alone."""

    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        stem, z = config.stem, config.z_dim
        # 2 x 2 pixels become channels first, as in the Wan VAE.
        self.first = nn.Conv2d(3 * _PATCH**2, stem, 3, stride=2, padding=1)
        # Four frames and 2 x 2 cells at once; the next layer mixes over time.
        stride = TEMPORAL_STRIDE
        self.down = nn.Conv3d(stem, z, (stride, 3, 3), stride=(stride, 2, 2), padding=(0, 1, 1))
        self.causal = CausalBlock(z)

    def forward(self, clip: Frames) -> Latents:
        token_grid(clip, TINY_TOKEN_PIXELS)  # checks the size
        x = functional.pixel_unshuffle(clip.transpose(1, 2).flatten(0, 1), _PATCH)
        x = functional.gelu(self.first(x))
        x = x.unflatten(0, (len(clip), clip.shape[2])).transpose(1, 2)
        # The first frame fills a whole group, as in ``Rgb``.
        x = torch.cat([x[:, :, :1].expand(-1, -1, TEMPORAL_STRIDE - 1, -1, -1), x], dim=2)
        return self.causal(self.down(x))


class CausalBlock(nn.Module):
    """A residual 3 x 3 x 3 convolution over a latent and the two before it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        # Over channels alone: a norm over time would let latents see the future.
        self.norm = nn.LayerNorm(channels)
        self.conv = nn.Conv3d(channels, channels, 3, padding=(0, 1, 1))

    def forward(self, x: Latents) -> Latents:
        y = functional.gelu(self.norm(x.movedim(1, -1)).movedim(-1, 1))
        y = torch.cat([y[:, :, :1].expand(-1, -1, 2, -1, -1), y], dim=2)
        return x + self.conv(y)


class TinyTrunk(nn.Module):
    """Patches of 2 x 2 latent cells, then blocks of attention over the whole clip."""

    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.config = config
        self.patch_embedding = nn.Conv3d(config.z_dim, config.dim, (1, 2, 2), (1, 2, 2))
        self.blocks = nn.ModuleList(TinyBlock(config) for _ in range(config.num_layers))

    def forward(self, latents: Latents) -> Float[torch.Tensor, "B D F h w"]:
        """Return the output of the last block."""
        grid = self.patch_embedding(latents)
        frames, height, width = grid.shape[2:]
        tokens = grid.flatten(2).transpose(1, 2)
        angles = rotary_angles(frames, height, width, self.config, grid.device)
        for block in self.blocks:
            tokens = block(tokens, angles, None if self.config.temporal_attention else frames)
        return tokens.transpose(1, 2).unflatten(2, (frames, height, width))


class TinyBlock(nn.Module):
    """Pre-norm self-attention with rotary positions, then an MLP."""

    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.norm1 = nn.LayerNorm(config.dim)
        self.qkv = nn.Linear(config.dim, 3 * config.dim)
        self.output = nn.Linear(config.dim, config.dim)
        self.norm2 = nn.LayerNorm(config.dim)
        self.ffn = nn.Sequential(
            nn.Linear(config.dim, config.ffn_dim),
            nn.GELU(approximate="tanh"),
            nn.Linear(config.ffn_dim, config.dim),
        )

    def forward(self, tokens: Tokens, angles: Angles, frames: int | None) -> Tokens:
        """Return updated tokens; ``frames`` limits attention to within each of that many frames."""
        parts = self.qkv(self.norm1(tokens)).unflatten(-1, (3, self.num_heads, -1))
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        query, key = rotate(query, angles), rotate(key, angles)
        if frames is not None:
            query, key, value = (x.unflatten(2, (frames, -1)) for x in (query, key, value))
        mixed = functional.scaled_dot_product_attention(query, key, value)
        if frames is not None:
            mixed = mixed.flatten(2, 3)
        tokens = tokens + self.output(mixed.transpose(1, 2).flatten(2))
        return tokens + self.ffn(self.norm2(tokens))


def rotary_angles(
    frames: int, height: int, width: int, config: TinyConfig, device: torch.device
) -> Angles:
    """Return the angle of every channel pair of every token, radians; shared as in Wan."""
    half = config.dim // config.num_heads // 2
    space = half // 3
    parts = []
    for axis, pairs in enumerate((half - 2 * space, space, space)):
        speed = _ROTARY_BASE ** -(torch.arange(pairs, device=device) / pairs)
        size = (frames, height, width)[axis]
        shape = [1, 1, 1, pairs]
        shape[axis] = size
        turn = (torch.arange(size, device=device)[:, None] * speed).reshape(shape)
        parts.append(turn.expand(frames, height, width, pairs))
    return torch.cat(parts, dim=-1).flatten(0, 2)


def rotate(x: Float[torch.Tensor, "B H L d"], angles: Angles) -> Float[torch.Tensor, "B H L d"]:
    """Turn channel i with channel i + d/2 by their token's angles."""
    a, b = x.chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)
