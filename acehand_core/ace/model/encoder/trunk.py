"""The truncated diffusion transformer: clean latents in, features of the tap block out.

Built of diffusers' Wan blocks, without the blocks after the tap and the output head. With one noise
level and one caption, time modulation and text context are constants of the weights (paper section
3.1, equation (encoder)). Low-rank adapters (peft) are on the ten linear layers of every block: live
for training, merged for inference (appendix "Architecture").
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from diffusers.models.transformers.transformer_wan import (
    WanRotaryPosEmbed,
    WanTimeTextImageEmbedding,
    WanTransformerBlock,
)
from jaxtyping import Float
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from acehand_core.ace.model.batch import FeatureSource
from acehand_core.ace.model.config import Precision, TrunkConfig
from acehand_core.ace.model.weights.tables import shapes_of
from acehand_core.errors import SchemaError

_PATCH = (1, 2, 2)
_EPS = 1e-6
_CONDITION = "condition_embedder."

Latents = Float[torch.Tensor, "B 48 F H W"]
Features = Float[torch.Tensor, "B D F h w"]

#: Query, key, value and output of both attentions, and both feed-forward layers.
TARGETS = ("to_q", "to_k", "to_v", "to_out.0", "ffn.net.0.proj", "ffn.net.2")
ADAPTER = "default"


class Trunk(FeatureSource):
    """Blocks 0 to ``tap`` of the transformer, frozen except the patch embedding and adapters.

    ``state_dict`` has diffusers' names. In bfloat16 the frozen weights are rounded, patch embedding
    and adapters stay float32, and activations are rounded as in the release.
    """

    name = "wan"
    needs = "latents"
    modulation: torch.Tensor
    context: torch.Tensor

    def __init__(self, config: TrunkConfig, checkpointing: bool = False) -> None:
        super().__init__()
        self.config, self.feature_dim = config, config.dim
        self.checkpointing = checkpointing
        head = config.dim // config.num_heads
        self.rope = WanRotaryPosEmbed(head, _PATCH, 1024)

        with torch.device("meta"):
            self.patch_embedding = nn.Conv3d(config.in_channels, config.dim, _PATCH, _PATCH)
            norm, sizes = "rms_norm_across_heads", (config.dim, config.ffn_dim, config.num_heads)
            blocks = [WanTransformerBlock(*sizes, norm, True, _EPS) for _ in range(config.executed)]

        # Blocks round as in the release; no-ops in float32. The released stream enters block 0 in
        # bfloat16, so its first norm rounds its output; the norm before cross-attention has rounded
        # weights and rounds its input.
        for block in blocks:
            for attention in (block.attn1, block.attn2):
                attention.register_module("norm_q", _RmsNorm(attention.norm_q.weight))
                attention.register_module("norm_k", _RmsNorm(attention.norm_k.weight))
            block.norm2.register_forward_pre_hook(lambda m, x: x[0].to(m.weight).float())
        first = blocks[0]
        first.norm1.register_forward_hook(lambda m, x, y: y.to(first.scale_shift_table).float())
        self.blocks = nn.ModuleList(blocks)
        self.register_buffer("modulation", None, persistent=False)
        self.register_buffer("context", None, persistent=False)

    @classmethod
    def from_tensors(
        cls,
        config: TrunkConfig,
        tensors: Mapping[str, torch.Tensor],
        caption: Float[torch.Tensor, "tokens text"],
        precision: Precision = "bfloat16",
        device: torch.device | str = "cpu",
    ) -> Trunk:
        """Return the trunk with base weights in diffusers' names, without adapters; strict.

        ``tensors`` include ``condition_embedder.*``, reduced to two constants; ``caption`` is the
        text embedding of the caption's valid tokens.
        """
        trunk = cls(config)
        condition = {k.removeprefix(_CONDITION): v for k, v in tensors.items() if _CONDITION in k}
        body = {k: v for k, v in tensors.items() if _CONDITION not in k}
        trunk.load_state_dict(body, strict=True, assign=True)
        trunk.to(device, getattr(torch, precision)).requires_grad_(False)
        trunk.rope.float()
        trunk.patch_embedding.float().requires_grad_(True)
        trunk.modulation, trunk.context = _constants(
            config, condition, trunk.dtype, caption.to(device)
        )
        return trunk

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the frozen weights and of the arithmetic."""
        return self.blocks[0].get_parameter("scale_shift_table").dtype

    def forward(self, latents: Latents, noise: torch.Generator | None = None) -> Features:
        """Return features after the tap block, float32; ``noise`` is for a ``sigma`` above 0."""
        sigma = self.config.sigma
        if sigma:
            drawn = torch.randn(latents.shape, generator=noise, device=latents.device)
            latents = (1 - sigma) * latents + sigma * drawn

        low = self.dtype != torch.float32
        with torch.autocast(latents.device.type, self.dtype, enabled=low):
            # The 100 control channels are zero, so their weights are skipped.
            weight = self.patch_embedding.weight[:, : latents.shape[1]]
            grid = functional.conv3d(latents, weight, self.patch_embedding.bias, stride=_PATCH)
            # The residual stream is float32; only its start is rounded.
            tokens = grid.flatten(2).transpose(1, 2).contiguous().float()

            rotary = self.rope(latents)
            modulation = self.modulation.expand(len(latents), -1, -1)
            context = self.context.expand(len(latents), -1, -1)
            for block in self.blocks:
                arguments = (tokens, context, modulation, rotary)
                if self.checkpointing and torch.is_grad_enabled():
                    tokens = checkpoint(block, *arguments, use_reentrant=False)
                else:
                    tokens = block(*arguments)

        batch, _, frames, height, width = latents.shape
        grid = tokens.float().transpose(1, 2)
        return grid.reshape(batch, self.config.dim, frames, height // 2, width // 2)


@torch.no_grad()
def _constants(
    config: TrunkConfig,
    tensors: Mapping[str, torch.Tensor],
    dtype: torch.dtype,
    caption: Float[torch.Tensor, "tokens text"],
) -> tuple[Float[torch.Tensor, "1 6 D"], Float[torch.Tensor, "1 T D"]]:
    """Return modulation (float32) and context, from the tensors of ``condition_embedder.*``."""
    with torch.device("meta"):
        embedder = WanTimeTextImageEmbedding(
            config.dim, config.freq_dim, 6 * config.dim, config.text_dim
        )
    embedder.load_state_dict(tensors, strict=True, assign=True)
    embedder.to(caption.device, dtype)

    # Padded before the text layers and not masked after, as released.
    padded = functional.pad(caption.float(), (0, 0, 0, config.text_length - len(caption)))
    with torch.autocast(caption.device.type, dtype, enabled=dtype != torch.float32):
        context = embedder.text_embedder(padded[None].to(dtype))

    embedder.float()  # the time layers run on upcast weights
    time = torch.tensor([config.sigma * 1000.0], device=caption.device)
    hidden = embedder.time_embedder(embedder.timesteps_proj(time))
    modulation = embedder.time_proj(embedder.act_fn(hidden))
    return modulation.view(1, 6, -1), context.to(dtype)


class _RmsNorm(nn.Module):
    """RMS norm in float32, rounded to the input's precision before the gain."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + _EPS)
        return wide.type_as(x) * self.weight


def add_adapters(trunk: Trunk, tensors: Mapping[str, torch.Tensor] | None = None) -> None:
    """Add float32 adapters to a loaded trunk, by default identities. Raises SchemaError."""
    config = trunk.config
    lora = LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha,  # type: ignore[arg-type]  # it is divided by the rank
        lora_dropout=0.0,
        bias="none",
        target_modules=list(TARGETS),
    )
    inject_adapter_in_model(lora, trunk, ADAPTER)

    parameters = dict(adapter_parameters(trunk))
    for parameter in parameters.values():
        parameter.data = parameter.data.float()
    trunk.patch_embedding.requires_grad_(True)

    if tensors is None:
        return
    given, needed = shapes_of(tensors), shapes_of(parameters)
    for name in sorted(given.keys() | needed.keys()):
        if given.get(name) != needed.get(name):
            raise SchemaError(
                f"adapter tensor {name!r} has shape {given.get(name)}; {needed.get(name)} is "
                "needed."
            )
    for name, parameter in parameters.items():
        parameter.data.copy_(tensors[name])


def adapter_parameters(trunk: Trunk) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the adapters' parameters under their live names."""
    for name, parameter in trunk.named_parameters():
        if ".lora_A." in name or ".lora_B." in name:
            yield name, parameter


@torch.no_grad()
def merge_adapters(trunk: Trunk) -> None:
    """Merge the adapters into their base weights: summed in float32, rounded once."""
    for name, layer in list(trunk.named_modules()):
        if not isinstance(layer, LoraLayer):
            continue
        base = layer.get_base_layer()
        down, up = (
            part[ADAPTER].get_parameter("weight").float() for part in (layer.lora_A, layer.lora_B)
        )
        old = base.get_parameter("weight")
        merged = torch.empty_like(old)
        # A few rows at once stay in the CPU's cache. The old weight may be the caller's.
        rows = (tensor.split(64) for tensor in (merged, old, up))
        for into, weight, change in zip(*rows, strict=True):
            into.copy_(torch.addmm(weight.float(), change, down, alpha=layer.scaling[ADAPTER]))
        old.data = merged
        parent, _, child = name.rpartition(".")
        trunk.get_submodule(parent)._modules[child] = base
