"""Tiny models with random weights, for tests that need no reference data."""

from __future__ import annotations

from typing import Any

import torch

from acehand_core.ace.model.config import DecoderConfig, ModelConfig, TrunkConfig, VaeConfig
from acehand_core.ace.model.encoder.trunk import Trunk
from acehand_core.ace.model.encoder.vae import VideoEncoder
from acehand_core.ace.model.weights.state import LoadedWeights, state_shapes

VAE = VaeConfig(base_dim=16)
TRUNK = TrunkConfig(
    dim=48, ffn_dim=64, num_heads=2, num_layers=5, text_dim=32, text_length=16, tap=2,
    lora_rank=4, lora_alpha=4.0,
)  # fmt: skip
MODEL = ModelConfig(
    vae=VAE, trunk=TRUNK,
    decoder=DecoderConfig(feature_dim=48, width=32, num_heads=2, num_layers=1),
)  # fmt: skip


def random_tensors(shapes: dict[str, torch.Tensor], seed: int = 0) -> dict[str, torch.Tensor]:
    """Return random float32 tensors of the shapes of a state dict; gains are near one."""
    generator = torch.Generator().manual_seed(seed)
    out = {}
    for name, value in shapes.items():
        drawn = torch.randn(value.shape, generator=generator)
        if ("norm" in name and value.ndim <= 1) or name.endswith("gamma"):
            out[name] = 1 + 0.1 * drawn if not name.endswith("bias") else 0.1 * drawn
        else:
            out[name] = drawn / max(1, value[0].numel() if value.ndim > 1 else 10) ** 0.5
    return out


def encoder(seed: int = 0) -> VideoEncoder:
    """Return a video encoder in float32."""
    return VideoEncoder.from_tensors(
        VAE, random_tensors(VideoEncoder(VAE).vae.state_dict(), seed), "float32"
    )


def trunk_tensors(config: TrunkConfig = TRUNK, seed: int = 0) -> dict[str, torch.Tensor]:
    """Return base weights of a trunk under live names."""
    shapes = dict(Trunk(config).state_dict())
    with torch.device("meta"):
        condition = condition_shapes(config)
    return random_tensors({**shapes, **condition}, seed)


def condition_shapes(config: TrunkConfig) -> dict[str, torch.Tensor]:
    """Return the shapes of the time and text layers under live names."""
    dim, text = config.dim, config.text_dim
    sizes = {
        "text_embedder.linear_1": (dim, text),
        "text_embedder.linear_2": (dim, dim),
        "time_embedder.linear_1": (dim, config.freq_dim),
        "time_embedder.linear_2": (dim, dim),
        "time_proj": (6 * dim, dim),
    }
    out = {}
    for name, size in sizes.items():
        out[f"condition_embedder.{name}.weight"] = torch.empty(size)
        out[f"condition_embedder.{name}.bias"] = torch.empty(size[0])
    return out


def trunk(config: TrunkConfig = TRUNK, precision: str = "float32", seed: int = 0) -> Trunk:
    """Return a trunk without adapters."""
    caption = torch.randn(5, config.text_dim, generator=torch.Generator().manual_seed(seed + 1))
    return Trunk.from_tensors(config, trunk_tensors(config, seed), caption, precision)


def weights(config: ModelConfig = MODEL, **fields: Any) -> LoadedWeights:
    """Return random weights; hands are always there: presence is well above the gate."""
    parts = {
        part: random_tensors({name: torch.empty(shape) for name, shape in shapes.items()})
        for part, shapes in state_shapes(config).items()
    }
    parts["decoder"]["head_presence.2.bias"] += 5
    parts["decoder"]["head_visible.2.bias"] += 5
    caption = torch.randn(5, config.trunk.text_dim, generator=torch.Generator().manual_seed(0))
    return LoadedWeights(config, **parts, caption=caption, sha256s={"a": "b"}, **fields)
