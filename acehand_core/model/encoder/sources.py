"""Feature sources by name: whatever turns a clip into features on the decoder's token grid.

The names are the rows of the paper's table "Feature-source ablation", which does not define them
(those without weights, video latents and pixels, are defined here), and "tiny", the small model's
own, whose tokens cover 16 x 16 pixels. A latent frame i stands for video frame 4i, a token for
32 x 32 pixels of the encoded image: 21 x 15 tokens for 672 x 480.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import nn
from torch.nn import functional

from acehand_core.errors import InputError, nearest
from acehand_core.model.config import (
    SPATIAL_STRIDE,
    TEMPORAL_STRIDE,
    TOKEN_PIXELS,
    TinyConfig,
    TrunkConfig,
    VaeConfig,
)
from acehand_core.model.encoder.tiny import TinySource
from acehand_core.model.encoder.video_backbones import Frames, VideoMae, VJepa2, token_grid

Needs = Literal["latents", "frames"]


@runtime_checkable
class FeatureSource(Protocol):
    """A ``torch.nn.Module`` that gives one feature vector per token and latent frame.

    ``needs`` says what it is called with: "latents", clean and normalised, (B, 48, F, H/16, W/16);
    or "frames", RGB in -1..1, (B, 3, N, H, W) with N = 4 (F - 1) + 1. H and W are multiples of 32.
    """

    name: str
    needs: Needs

    @property
    def feature_dim(self) -> int:
        """Channels C; the decoder's ``feature_dim``."""
        ...

    def __call__(self, clip: Float[torch.Tensor, "B c n H W"]) -> Float[torch.Tensor, "B C F h w"]:
        """Return features, float32; h = H/32 rows and w = W/32 columns."""
        ...


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """What building a source may need; each source takes what concerns it."""

    trunk: TrunkConfig = field(default_factory=TrunkConfig)
    vae: VaeConfig = field(default_factory=VaeConfig)
    #: Returns the trunk of these sizes with its weights. None: one without, on the meta device.
    load_trunk: Callable[[TrunkConfig], nn.Module] | None = None
    #: Folder or hub name of a video transformer's weights; None: the default of the source.
    location: str | None = None
    revision: str | None = None
    #: Whether a video transformer learns too. The paper's stay frozen.
    trained: bool = False
    tiny: TinyConfig = field(default_factory=TinyConfig)


@dataclass(frozen=True, slots=True)
class SourceKind:
    """One entry of the registry."""

    needs: Needs
    build: Callable[[SourceSettings], nn.Module]


def make_source(name: str, settings: SourceSettings | None = None) -> FeatureSource:
    """Return the source called ``name``.

    Raises:
        InputError: there is no such source, or its weights cannot be read.
        SchemaError: its weights are not what they should be.
        MissingDependencyError: transformers is needed and absent.
    """
    return source_kind(name).build(settings or SourceSettings())


def source_kind(name: str) -> SourceKind:
    """Return what is known of a source before it is built. Raises InputError listing the names."""
    if name not in SOURCES:
        raise InputError(f"unknown feature source {name!r}; {nearest(name, SOURCES)}")
    return SOURCES[name]


def _trunk(name: str, settings: SourceSettings) -> nn.Module:
    """Return the trunk; "wan_frozen" has no adapters, and its patch embedding does not learn."""
    load = settings.load_trunk
    if load is None:
        # diffusers is heavy and no other source needs it.
        from acehand_core.model.encoder.trunk import Trunk as load

    frozen = name == "wan_frozen"
    trunk = load(replace(settings.trunk, lora_rank=0) if frozen else settings.trunk)
    trunk.name = name
    return trunk.requires_grad_(False) if frozen else trunk


#: The sources that are a trunk, with its weights.
TRUNK_SOURCES = ("wan", "wan_frozen")
#: Name -> how it is built. ``wan`` is the model, the others are its ablations.
SOURCES: Mapping[str, SourceKind] = MappingProxyType(
    {
        "wan": SourceKind("latents", lambda s: _trunk("wan", s)),
        "wan_frozen": SourceKind("latents", lambda s: _trunk("wan_frozen", s)),
        "vjepa2": SourceKind(
            "frames", lambda s: VJepa2.from_pretrained(s.location, s.revision, s.trained)
        ),
        "videomae": SourceKind(
            "frames", lambda s: VideoMae.from_pretrained(s.location, s.revision, s.trained)
        ),
        "vae_latent": SourceKind("latents", lambda s: VaeLatent(s.vae.z_dim)),
        "rgb": SourceKind("frames", lambda s: Rgb()),
        "tiny": SourceKind("frames", lambda s: TinySource(s.tiny)),
    }
)


#: Latent cells along one side of a token.
_FOLD = TOKEN_PIXELS // SPATIAL_STRIDE


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
