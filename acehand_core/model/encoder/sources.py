"""Feature sources by name: whatever turns a clip into features on the decoder's token grid.

The names are the rows of the paper's table "Feature-source ablation", and "tiny", the small model's
own, whose tokens cover 16 x 16 pixels. A latent frame i stands for
video frame 4i, a token for 32 x 32 pixels of the encoded image: 21 x 15 tokens for 672 x 480.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import nn

from acehand_core.errors import InputError, nearest
from acehand_core.model.config import TinyConfig, TrunkConfig, VaeConfig
from acehand_core.model.encoder.alternatives import Rgb, VaeLatent
from acehand_core.model.encoder.tiny import TinySource
from acehand_core.model.encoder.video_backbones import VideoMae, VJepa2

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


def _wan(settings: SourceSettings) -> nn.Module:
    return _trunk("wan", settings, settings.trunk)


def _wan_frozen(settings: SourceSettings) -> nn.Module:
    """The trunk without adapters; the patch embedding does not learn either."""
    trunk = _trunk("wan_frozen", settings, replace(settings.trunk, lora_rank=0))
    return trunk.requires_grad_(False)


def _trunk(name: str, settings: SourceSettings, config: TrunkConfig) -> nn.Module:
    load = settings.load_trunk
    if load is None:
        # diffusers is heavy and no other source needs it.
        from acehand_core.model.encoder.trunk import Trunk as load
    trunk = load(config)
    trunk.name = name
    return trunk


#: The sources that are a trunk, with its weights.
TRUNK_SOURCES = ("wan", "wan_frozen")
#: Name -> how it is built. ``wan`` is the model, the others are its ablations.
SOURCES: Mapping[str, SourceKind] = MappingProxyType(
    {
        "wan": SourceKind("latents", _wan),
        "wan_frozen": SourceKind("latents", _wan_frozen),
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
