"""Values at the start of training of every tensor of a checkpoint, by its released name.

They fill what a running model does not hold when a checkpoint is written. Each value depends on the
seed and the name alone.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Mapping

import torch

from acehand_core.weights import official

#: Last layers that start from fixed values: (end of the stem, biases or None for zeros).
_FIXED = (
    ("head_cam_trans.2", (0.0, 0.0, -0.693)),
    ("head_exists_2d.2", (-1.0,)),
    ("head_exists_3d.2", (-1.0,)),
    ("head_direct_wrist_cam.2", (0.0, 0.0, 0.5)),
    ("head_betas_segment.3", None),
    ("head_betas_hand.3", None),
    ("ray_pe.ray_proj.2", None),
)
_ZERO = ("head.", "patch_embedding.")
_TOKENS = ("_pe", "_pe_grid", "_query", "_token", "slot_embed")
_TOKEN_DEVIATION = 0.02


def initial(name: str, shapes: Mapping[str, tuple[int, ...]], seed: int) -> torch.Tensor:
    """Return the initial value of a tensor, float32.

    Adapters start as identities: A like a linear layer, B zero (paper, appendix "Optimization").
    The ray head is zero, learned tokens and tables are normal with deviation 0.02, the rest starts
    as PyTorch's layers do. Tensors of the transformer other than its adapters are zero.

    Args:
        shapes: the list the tensor stands in; the sizes of its neighbours decide its scale.
    """
    shape, stem, kind = shapes[name], *name.rpartition(".")[::2]
    bare = re.sub(r"^l\d+\.", "", name)
    # The layers of an unused stack start as copies of one.
    key = re.sub(r"temporal_encoder\.layers\.\d+", "temporal_encoder.layers.0", name)
    noise = torch.Generator().manual_seed(zlib.crc32(key.encode()) ^ seed)
    if bare.endswith(_TOKENS):
        return torch.randn(shape, generator=noise) * _TOKEN_DEVIATION
    if bare == official.RAY_FREQUENCIES:
        return 2.0 ** torch.arange(shape[0], dtype=torch.float32)
    if bare in ("weight", "bias") or bare.startswith(_ZERO) or ".lora_B." in name:
        return torch.zeros(shape)
    for end, biases in _FIXED:
        if stem.endswith(end):
            is_bias = kind == "bias" and biases is not None
            return torch.tensor(biases) if is_bias else torch.zeros(shape)
    if kind.startswith("in_proj"):
        bound = math.sqrt(6 / sum(shape)) if kind.endswith("weight") else 0.0
        return _uniform(shape, bound, noise)
    weight = shapes.get(f"{stem}.weight", shape)
    if len(weight) == 1:
        return torch.ones(shape) if kind == "weight" else torch.zeros(shape)
    if kind == "bias" and stem.endswith("out_proj"):
        return torch.zeros(shape)
    return _uniform(shape, 1 / math.sqrt(math.prod(weight[1:])), noise)


def _uniform(shape: tuple[int, ...], bound: float, noise: torch.Generator) -> torch.Tensor:
    return torch.rand(shape, generator=noise) * (2 * bound) - bound
