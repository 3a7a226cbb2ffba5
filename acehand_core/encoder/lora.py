"""Low-rank adapters on the ten linear layers of every executed block, through peft.

Live for training; merged for inference (paper section 3.1 and appendix "Architecture").
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from torch import nn

from acehand_core.encoder.trunk import Trunk
from acehand_core.errors import SchemaError, nearest

#: Query, key, value and output of both attentions, and both feed-forward layers.
TARGETS = ("to_q", "to_k", "to_v", "to_out.0", "ffn.net.0.proj", "ffn.net.2")
ADAPTER = "default"


def add_adapters(trunk: Trunk, tensors: Mapping[str, torch.Tensor] | None = None) -> None:
    """Put adapters, float32, on a loaded trunk; without ``tensors`` they start as identities.

    Raises:
        SchemaError: a tensor is missing, unexpected or of another shape.
    """
    config = trunk.config
    lora = LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha,
        lora_dropout=0.0,
        bias="none",
        target_modules=list(TARGETS),
    )
    inject_adapter_in_model(lora, trunk, ADAPTER)
    parameters = dict(adapter_parameters(trunk))
    for parameter in parameters.values():
        parameter.data = parameter.data.float()
    trunk.patch_embedding.requires_grad_(True)
    if tensors is not None:
        _load(parameters, tensors)


def adapter_parameters(trunk: Trunk) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the adapters' parameters under their live names."""
    for name, parameter in trunk.named_parameters():
        if ".lora_A." in name or ".lora_B." in name:
            yield name, parameter


@torch.no_grad()
def merge_adapters(trunk: Trunk) -> None:
    """Add the adapters to their base weights: summed in float32, rounded once, then removed."""
    for name, layer in list(trunk.named_modules()):
        if not isinstance(layer, LoraLayer):
            continue
        base = layer.get_base_layer()
        down, up = layer.lora_A[ADAPTER].weight.float(), layer.lora_B[ADAPTER].weight.float()
        change = layer.scaling[ADAPTER] * (up @ down)
        base.weight.data = (base.weight.float() + change).to(base.weight.dtype)
        parent, _, child = name.rpartition(".")
        trunk.get_submodule(parent)._modules[child] = base


@torch.no_grad()
def _load(parameters: Mapping[str, nn.Parameter], tensors: Mapping[str, torch.Tensor]) -> None:
    for name in tensors:
        if name not in parameters:
            raise SchemaError(f"adapter tensor {name!r} is unexpected; {nearest(name, parameters)}")
    for name, parameter in parameters.items():
        if name not in tensors:
            raise SchemaError(f"adapter tensor {name!r} is missing.")
        if tensors[name].shape != parameter.shape:
            raise SchemaError(
                f"adapter tensor {name!r} has shape {tuple(tensors[name].shape)}; "
                f"{tuple(parameter.shape)} is needed."
            )
        parameter.copy_(tensors[name])
