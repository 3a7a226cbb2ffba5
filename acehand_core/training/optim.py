"""Groups of parameters and the learning rate of a step (paper, appendix "Optimization")."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import nn

from acehand_core.encoder.sources import TRUNK_SOURCES
from acehand_core.model import AceModel
from acehand_core.training.config import OptimConfig

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
