"""Parameters, gradients and moments split over processes (torch FSDP2), and their whole values.

The sharding is torch's own ``fully_shard``, which runs on any backend; accelerate, which sets up
the processes, would apply it to GPUs alone. Checkpoints hold whole tensors either way, so a run may
change between sharded and replicated. torch.

Groups of parameters and the learning rate of a step (paper, appendix "Optimization").
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils import _pytree

from acehand_core.model.batch import Readout
from acehand_core.model.encoder.sources import TRUNK_SOURCES
from acehand_core.model.network import AceModel
from acehand_core.training.config import OptimConfig

#: Lists of layers that are gathered one layer at a time.
_LAYERS = ("blocks", "layers")


def shard(model: AceModel, device: torch.device, processes: int) -> None:
    """Split a model's parameters over all processes, in place; make the optimiser afterwards."""
    # The backward hooks look for tensors in what the model returns.
    if Readout not in _pytree.SUPPORTED_NODES:
        _pytree.register_dataclass(Readout)
    model.to(device)
    mesh = init_device_mesh(device.type, (processes,))
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.ModuleList) and name.rpartition(".")[2] in _LAYERS:
            for layer in module:
                fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def settle(model: nn.Module) -> None:
    """Let go of gathered parameters, so that a model's parameters are the optimiser's again."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return a whole tensor on the CPU. For a sharded one all processes must ask."""
    tensor = tensor.detach()
    full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return full.cpu().contiguous()


def like(value: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Return a whole tensor laid out as a parameter is: on its device, split as it is."""
    moved = value.to(parameter.device)
    if isinstance(parameter, DTensor):
        # Every process has read the same checkpoint: nothing needs to be sent.
        mesh, placements = parameter.device_mesh, parameter.placements
        return distribute_tensor(moved, mesh, placements, src_data_rank=None)
    return moved


@contextlib.contextmanager
def unsynchronised(accelerator: Any, model: nn.Module) -> Iterator[None]:
    """Let gradients add up without exchanging them."""
    parts = [module for module in model.modules() if isinstance(module, FSDPModule)]
    if not parts:
        with accelerator.no_sync(model):
            yield
        return
    for part in parts:
        part.set_requires_gradient_sync(False, recurse=False)
    try:
        yield
    finally:
        for part in parts:
            part.set_requires_gradient_sync(True, recurse=False)


GROUPS = ("decoder", "lora", "patch_embedding")


def group_of(name: str, source: str) -> str:
    """Return the group of a parameter of ``AceModel`` by its name.

    Adapters; the patch embedding of the pretrained transformer; and all that starts from scratch:
    decoder, heads, ray head, and sources that learn as a whole.
    """
    if source in TRUNK_SOURCES and ".lora_" in name:
        return "lora"
    if source in TRUNK_SOURCES and "patch_embedding" in name:
        return "patch_embedding"
    return "decoder"


def trained(model: AceModel) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield what learns, by name."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            yield name, parameter


def make_optimizer(model: AceModel, config: OptimConfig) -> torch.optim.AdamW:
    """Return AdamW over what learns, in named groups; rates are set before every step."""
    groups: dict[str, list[nn.Parameter]] = {name: [] for name in GROUPS}
    for name, parameter in trained(model):
        groups[group_of(name, model.config.source)].append(parameter)
    rows = [
        {"params": parameters, "name": name, "lr": rate(config, name, 0)}
        for name, parameters in groups.items()
        if parameters
    ]
    return torch.optim.AdamW(
        rows, betas=(config.beta1, config.beta2), weight_decay=config.weight_decay
    )


def factor(config: OptimConfig, step: int) -> float:
    """Return what all rates are multiplied by at a step, the first being 0.

    Linear up to 1 over the warm-up (the first step already moves), then half a cosine to 0 at the
    last step.
    """
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    length = max(1, config.steps - config.warmup_steps)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - config.warmup_steps) / length)))


def rate(config: OptimConfig, group: str, step: int) -> float:
    """Return the learning rate of a group at a step."""
    return getattr(config, f"lr_{group}") * factor(config, step)
