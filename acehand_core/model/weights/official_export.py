"""Writing a checkpoint in the released layout; what the running model lacks is filled in.

Values at the start of training of every tensor of a checkpoint, by its released name.

They fill what a running model does not hold when a checkpoint is written. Each value depends on the
seed and the name alone.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from acehand_core.atomic import atomic_path
from acehand_core.errors import InputError, SchemaError
from acehand_core.model.config import AS_RELEASED, InferenceConfig, ModelConfig
from acehand_core.model.weights import layouts, official, training_data
from acehand_core.model.weights.loaded import Caption, check
from acehand_core.model.weights.official_files import RECORD, open_base
from acehand_core.model.weights.storage import store_of
from acehand_core.model.weights.training_data import TrainingData

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


Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class ExportReport:
    """What a written checkpoint holds, by where it came from.

    ``from_model`` were trained, ``from_base`` are the base's output head, ``drawn`` are initial
    values (by part), of which ``zero`` are all zeros. ``filled_live`` are tensors of the running
    model that its own source did not have.
    """

    seed: int
    from_model: int
    from_base: tuple[str, ...]
    drawn: tuple[str, ...]
    zero: tuple[str, ...]
    filled_live: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain types."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}


def export_official(
    path: Path,
    config: ModelConfig,
    *,
    trunk: Tensors,
    adapters: Tensors | None,
    decoder: Tensors,
    ray_head: Tensors,
    base: Path | None = None,
    seed: int = 0,
    licence: str = "",
    filled_live: tuple[str, ...] = (),
    trained_on: TrainingData = None,
    inference: InferenceConfig = AS_RELEASED,
    overwrite: bool = False,
) -> ExportReport:
    """Write ``ace_ego_hand_*.pt`` from the tensors of a running model, under its own names.

    The released layout registers more than runs: adapters after the tap (A as drawn at the start
    of training, B zero), readouts that are never selected (as drawn at the start of training) and
    the output head of the base (taken from ``base``, else zeros). A record under the key
    ``acehand`` says so. The file appears whole or not at all.

    Args:
        trunk: only its patch embedding is part of a checkpoint; the base is frozen.
        base: folder of Wan2.2-Fun-5B-Control.
        trained_on, inference: go into the record.

    Raises:
        InputError: a feature source that the layout cannot hold.
        SchemaError: names each missing, unexpected or wrong tensor.
        OutputError: it exists, or cannot be written.
    """
    if config.source not in layouts.WAN_SOURCES:
        raise InputError(f"source {config.source!r}: the released layout holds only wan.")
    live = _live(config, trunk, adapters, decoder, ray_head)
    head = _base_head(config, base)
    data: dict[str, Any] = {}
    drawn, zero = [], []
    for part, shapes in _lists(config).items():
        tensors = {}
        for name, shape in shapes.items():
            given = live[part].get(name, head.get(name))
            if given is None:
                given = initial(name, shapes, seed)
                drawn.append(f"{part}: {name}")
                if not given.any():
                    zero.append(f"{part}: {name}")
            # A clone, because a view would be saved with everything it looks into.
            tensors[name] = given.detach().clone().reshape(shape)
        data[part] = tensors
    report = ExportReport(
        seed, sum(map(len, live.values())), tuple(head), tuple(drawn), tuple(zero), filled_live
    )
    data[RECORD] = {
        "format": 1, "config": config.to_json(), "licence": licence,
        "training_data": training_data.to_json(trained_on),
        "inference": inference.to_json(), **report.to_json()
    }  # fmt: skip
    with atomic_path(path, overwrite) as temporary:
        torch.save(data, temporary)
    return report


def export_caption(path: Path, caption: Caption, overwrite: bool = False) -> None:
    """Write ``caption_embed.pt`` as the release reads it. Raises OutputError."""
    with atomic_path(path, overwrite) as temporary:
        torch.save({"embed": caption.detach().clone()}, temporary)


def _lists(config: ModelConfig) -> dict[str, official.Shapes]:
    tap = config.trunk.tap
    return {
        "projectors": official.projectors(config.decoder, tap),
        "raymap_heads": official.raymap_heads(config.decoder.feature_dim, tap),
        "backbone_trainable": official.backbone_trainable(config.trunk),
    }


def _live(
    config: ModelConfig, trunk: Tensors, adapters: Tensors | None, decoder: Tensors, ray: Tensors
) -> dict[str, layouts.Tensors]:
    patch = {name: t for name, t in trunk.items() if name.startswith("patch_embedding.")}
    expected = layouts.live_parts(config)
    expected["trunk"] = {n: s for n, s in expected["trunk"].items() if n in patch}
    parts = {"trunk": patch, "adapters": adapters or {}, "decoder": decoder, "ray_head": ray}
    for part, tensors in parts.items():
        store = store_of(tensors, "the model")
        check(part, store.where, store.shapes, store.dtypes, expected.get(part, {})).require()
    if len(patch) != 2:
        raise SchemaError("the model: trunk: the patch embedding (weight and bias) is missing.")
    tap = config.trunk.tap
    return {
        "projectors": layouts.decoder_to_official(config.decoder, decoder, tap),
        "raymap_heads": layouts.ray_head_to_official(ray, tap),
        "backbone_trainable": layouts.trunk_to_official(patch | dict(adapters or {})),
    }


def _base_head(config: ModelConfig, base: Path | None) -> layouts.Tensors:
    if base is None:
        return {}
    store, shapes = open_base(base), official.dit_head(config.trunk)
    found = {name: shape for name, shape in store.shapes.items() if name in shapes}
    check("head", store.where, found, store.dtypes, shapes).require()
    # Released checkpoints keep everything trainable in float32.
    return {name: store.fetch(name).float() for name in shapes}
