"""Parameters, gradients and moments split over processes (torch FSDP2), and their whole values.

The sharding is torch's own ``fully_shard``, which runs on any backend; accelerate, which sets up
the processes, would apply it to GPUs alone. Checkpoints hold whole tensors either way, so a run may
change between sharded and replicated. torch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils import _pytree

from acehand_core.batch import Readout
from acehand_core.model import AceModel

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
