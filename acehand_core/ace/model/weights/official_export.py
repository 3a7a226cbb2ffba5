"""Export of a checkpoint in the released layout.

Tensors that the running model lacks are initialised as in training, each from the seed and its
released name alone.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from acehand_core.ace.model.encoder.sources import TRUNK_SOURCES
from acehand_core.ace.model.weights import official
from acehand_core.ace.model.weights.official_files import RECORD, open_base
from acehand_core.ace.model.weights.state import LoadedWeights, check, check_parts, state_shapes
from acehand_core.ace.model.weights.sums import SUMS_FILE, licence_text, write_sums
from acehand_core.ace.model.weights.tables import Tensors, WeightsSection, powers_of_two
from acehand_core.atomic import atomic_folder, atomic_path
from acehand_core.errors import InputError

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
    The ray head is zero, learned tokens and tables are normal with deviation 0.02, the rest as
    PyTorch's layers. Other tensors of the transformer are zero. ``shapes``: the list of the tensor;
    its scale depends on its neighbours' sizes.
    """
    shape, stem, kind = shapes[name], *name.rpartition(".")[::2]
    bare = re.sub(r"^l\d+\.", "", name)

    # The layers of an unused stack start as copies of one.
    key = re.sub(r"temporal_encoder\.layers\.\d+", "temporal_encoder.layers.0", name)
    noise = torch.Generator().manual_seed(zlib.crc32(key.encode()) ^ seed)
    if bare.endswith(_TOKENS):
        return torch.randn(shape, generator=noise) * _TOKEN_DEVIATION
    if bare == official.RAY_FREQUENCIES:
        return powers_of_two(shape[0])
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


def save_official(
    output: Path,
    weights: LoadedWeights,
    base: Path | None = None,
    seed: int = 0,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write a folder with a checkpoint in the released layout, and the caption.

    The frozen base transformer and VAE are not written. Returns the report of the export. Raises as
    ``export_official``.
    """
    if weights.trunk is None:
        raise InputError("the released layout needs a model with a transformer.")
    with atomic_folder(output, overwrite, _is_official) as folder:
        name = f"ace_ego_hand_{weights.config.variant}.pt"
        report = export_official(folder / name, weights, base, seed)
        if weights.caption is not None:
            torch.save({"embed": weights.caption.detach().clone()}, folder / "caption_embed.pt")
        (folder / "LICENSE.txt").write_text(licence_text(weights.licence), "utf-8")
        write_sums(folder)
    return report


def _is_official(path: Path) -> bool:
    return (path / SUMS_FILE).is_file() and any(path.glob("ace_ego_hand_*.pt"))


def export_official(
    path: Path,
    weights: LoadedWeights,
    base: Path | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Write ``ace_ego_hand_*.pt``, atomically; return a report of its tensors' origins.

    The released layout also has adapters after the tap, unused readouts (both as at the start of
    training) and the output head of the base (from ``base``, else zeros). The report, also stored
    under the key ``acehand``, holds the seed, the number ``from_model``, and by name those
    ``from_base`` and ``drawn``, of which ``zero`` are all zeros, and ``filled_live``, which the
    model's own source lacked.

    Raises:
        InputError: a feature source outside the layout.
        SchemaError: names each missing, unexpected or wrong tensor.
        OutputError: it exists, or cannot be written.
    """
    config = weights.config
    if config.source not in TRUNK_SOURCES:
        raise InputError(f"source {config.source!r}: the released layout holds only wan.")
    parts = _trained_parts(weights)
    head: Tensors = {}
    if base is not None:
        store, wanted = open_base(base), official.dit_head(config.trunk)
        store = replace(store, shapes={n: s for n, s in store.shapes.items() if n in wanted})
        check(WeightsSection("head", wanted), store).require()
        # Released checkpoints keep everything trainable in float32.
        head = {name: store.fetch(name).float() for name in wanted}

    data: dict[str, Any] = {}
    from_model, drawn, zero = 0, [], []
    sections = official.sections(config)
    for name in official.CHECKPOINT_KEYS:
        shapes, data[name] = sections[name].shapes, {}
        given = sections[name].write(parts)
        from_model += len(given)
        for tensor, shape in shapes.items():
            value = given.get(tensor, head.get(tensor))
            if value is None:
                value = initial(tensor, shapes, seed)
                drawn.append(f"{name}: {tensor}")
                if not value.any():
                    zero.append(f"{name}: {tensor}")
            # A clone, since a view would be saved with its whole storage.
            data[name][tensor] = value.detach().clone().reshape(shape)

    report = {
        "seed": seed,
        "from_model": from_model,
        "from_base": list(head),
        "drawn": drawn,
        "zero": zero,
        "filled_live": list(weights.report.filled),
    }
    data[RECORD] = {"format": 1, **weights.record(), **report}
    with atomic_path(path) as temporary:
        torch.save(data, temporary)
    return report


def _trained_parts(weights: LoadedWeights) -> dict[str, Tensors]:
    """Return a model's part of a checkpoint, checked: of the trunk its patch embedding."""

    def patch(tensors: Mapping[str, Any]) -> dict[str, Any]:
        return {n: value for n, value in tensors.items() if n.startswith(official.PATCH)}

    trained = ("trunk", "adapters", "decoder", "ray_head")
    shapes = state_shapes(weights.config)
    listed = {part: shapes[part] for part in trained if part in shapes}
    parts = {part: tensors for part, tensors in weights.parts().items() if part in trained}
    listed["trunk"], parts["trunk"] = patch(listed["trunk"]), patch(parts.get("trunk", {}))
    check_parts(parts, listed)
    return parts
