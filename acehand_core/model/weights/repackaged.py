"""The safetensors re-packaging: one folder of components, with the two variants side by side.

``dit/`` and ``vae/`` are shared; ``k/`` and ``kfree/`` each hold what was trained. Layer names are
its own, fused query, key and value rows are split and only the executed blocks are stored. It has
no place for the direct wrist head and one unused norm: ours go into
``<variant>/acehand.safetensors``, which its own reader does not look at.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from acehand_core.atomic import atomic_folder
from acehand_core.errors import AcehandError, InputError, SchemaError
from acehand_core.model.config import (
    DecoderConfig,
    InferenceConfig,
    ModelConfig,
    TrunkConfig,
    VaeConfig,
    Variant,
)
from acehand_core.model.weights import layouts, names, storage, training_data
from acehand_core.model.weights.loaded import (
    ComponentReport,
    LoadedWeights,
    LoadReport,
    check,
    check_caption,
)
from acehand_core.model.weights.official import projectors
from acehand_core.model.weights.official_export import initial
from acehand_core.model.weights.official_files import CAPTION_KEY, choose_variant, read_caption
from acehand_core.model.weights.storage import (
    TensorStore,
    open_safetensors,
    read_json,
    save_safetensors,
    sha256s,
    write_sums,
)
from acehand_core.model.weights.training_data import TrainingData

CAPTION_FILE = f"{CAPTION_KEY}.safetensors"
_EXTRA = "acehand.safetensors"
_RECORD = "acehand"
_LORA_TARGETS = (
    *(
        f"{attention}.{part}"
        for attention in ("self_attention", "cross_attention")
        for part in ("query", "key", "value", "output")
    ),
    "feed_forward.0",
    "feed_forward.2",
)
#: Their field -> ours, per component.
_DIT = {"in_channels": "in_channels", "latent_channels": "out_channels", "dim": "dim",
        "ffn_dim": "ffn_dim", "num_heads": "num_heads", "freq_dim": "freq_dim",
        "text_dim": "text_dim", "text_length": "text_length"}  # fmt: skip
_VAE = {"base_dim": "base_dim", "z_dim": "z_dim"}
_PROJECTOR = {"feature_dim": "feature_dim", "hidden_dim": "width", "num_heads": "num_heads",
              "ffn_mult": "mlp_ratio", "num_layers": "num_layers",
              "num_registers": "num_registers", "spatial_encoding_size": "spatial_grid",
              "ray_frequency_bands": "ray_frequencies"}  # fmt: skip


def is_repackaged(path: Path) -> bool:
    """Whether a folder looks like the re-packaging."""
    return (path / "dit" / "config.json").is_file() and (path / "vae" / "config.json").is_file()


def find_variant(path: Path, asked: Variant | None) -> Variant:
    """Return the variant to read. Raises InputError when there are two and none is asked for."""
    present = [name for name in ("k", "kfree") if (path / name / "projector").is_dir()]
    if asked is not None and asked not in present:
        raise InputError(f"{path}: variant {asked} is not here; valid: {', '.join(present)}.")
    return choose_variant(asked, present[0] if len(present) == 1 else None, str(path))


def read_config(path: Path, variant: Variant) -> ModelConfig:
    """Return the sizes that its config files state. Raises SchemaError."""
    adapters = read_json(path / variant / "config.json")
    if isinstance(adapters.get(_RECORD), dict):
        where = f"{path / variant / 'config.json'}: {_RECORD}: config"
        return ModelConfig.from_json(adapters[_RECORD].get("config"), where)
    dit = read_json(path / "dit" / "config.json")
    try:
        executed = int(dit["num_layers"])
        plain = TrunkConfig()
        layers = plain.num_layers if executed == plain.executed else executed
        trunk = TrunkConfig(
            **_fields(dit, _DIT), num_layers=layers, tap=executed - 1,
            lora_rank=int(adapters["rank"]), lora_alpha=float(adapters["alpha"]),
        )  # fmt: skip
        vae = VaeConfig(**_fields(read_json(path / "vae" / "config.json"), _VAE))
        projector = read_json(path / variant / "projector" / "config.json")
        decoder = DecoderConfig(**_fields(projector, _PROJECTOR))
    except (KeyError, TypeError, ValueError, AcehandError) as error:
        raise SchemaError(f"{path}: its config files do not describe a model ({error}).") from error
    return ModelConfig(variant=variant, vae=vae, trunk=trunk, decoder=decoder)


def open_repackaged(
    path: Path, variant: Variant
) -> tuple[ModelConfig, dict[str, TensorStore], dict[str, ComponentReport]]:
    """Open every file and compare it with its list; nothing is read."""
    config = read_config(path, variant)
    stores, reports = {}, {}
    for file, expected in layouts.repackaged(config).items():
        store = open_safetensors(path / file)
        reports[file] = check(
            file.removesuffix("/model.safetensors").removesuffix(".safetensors"),
            store.where, store.shapes, store.dtypes, expected,
            runs=_all if not file.startswith("dit/") else _all_but_patch_embedding,
        )  # fmt: skip
        stores[file] = store
    extra = f"{variant}/{_EXTRA}"
    if (path / extra).is_file():
        live = layouts.live_decoder(config.decoder)
        expected = {n: s for n, s in live.items() if n.startswith(names.NOT_REPACKAGED)}
        store = stores[extra] = open_safetensors(path / extra)
        reports[extra] = check("extra", store.where, store.shapes, store.dtypes, expected)
    return config, stores, reports


def load_repackaged(
    path: Path,
    variant: Variant | None = None,
    caption: Path | None = None,
    check_hashes: bool = True,
) -> LoadedWeights:
    """Load one variant of the re-packaging, strictly.

    What it has no place for is filled with initial values and listed in the report.

    Raises:
        SchemaError: names each missing, unexpected or wrong tensor and its file.
        InputError: a file is missing, or the variant is not known.
    """
    variant = find_variant(path, variant)
    config, stores, reports = open_repackaged(path, variant)
    for report in reports.values():
        report.require()
    read = {file: stores[file].read(report.read) for file, report in reports.items()}
    delta = layouts.delta_from_repackaged(read[f"{variant}/backbone_delta.safetensors"])
    patch = {name: t for name, t in delta.items() if name.startswith("patch_embedding.")}
    projector = read[f"{variant}/projector/model.safetensors"]
    _check_frequencies(stores[f"{variant}/projector/model.safetensors"], projector)
    decoder, ray_head = layouts.decoder_from_repackaged(projector)
    decoder |= read.get(f"{variant}/{_EXTRA}", {})
    filled = _filled(config, decoder)
    caption_file = caption or path / CAPTION_FILE
    embedding = read_caption(caption_file)
    check_caption(config, embedding, str(caption_file))
    files = {file: path / file for file in stores} | {caption_file.name: caption_file}
    return LoadedWeights(
        config,
        layouts.vae_from_repackaged(config.vae, read["vae/model.safetensors"]),
        layouts.trunk_from_repackaged(read["dit/model.safetensors"]) | patch,
        {n: t for n, t in delta.items() if n not in patch} if config.trunk.lora_rank else None,
        decoder | filled,
        ray_head,
        embedding,
        LoadReport(tuple(reports.values()), tuple(filled)),
        licence_of(path, variant),
        sha256s(files) if check_hashes else {},
        training_data=training_data_of(path, variant),
        inference=inference_of(path, variant),
    )


def save_repackaged(path: Path, weights: LoadedWeights, overwrite: bool = False) -> None:
    """Write the re-packaging's folder with one variant; it appears whole or not at all.

    Raises:
        InputError: a decoder other than the paper's, or a part is missing.
        OutputError: it exists, or cannot be written.
    """
    config, v = weights.config, weights.config.variant
    layouts.refuse_ablations(config.decoder)
    lacking = {"vae", "trunk", "decoder", "ray_head"} - weights.parts().keys()
    if lacking or weights.caption is None:
        raise InputError(f"the re-packaging needs {', '.join(sorted(lacking)) or 'a caption'}.")
    projector, extra = layouts.decoder_to_repackaged(weights.decoder, weights.ray_head)
    bands = config.decoder.ray_frequencies
    projector[names.REPACKAGED_RAY_FREQUENCIES] = 2.0 ** torch.arange(bands).float()
    patch = {n: t for n, t in weights.trunk.items() if n.startswith("patch_embedding.")}
    files = {
        "dit/model.safetensors": layouts.trunk_to_repackaged(weights.trunk),
        "vae/model.safetensors": layouts.vae_to_repackaged(weights.vae),
        f"{v}/backbone_delta.safetensors": layouts.delta_to_repackaged(
            patch | (weights.adapters or {})
        ),
        f"{v}/projector/model.safetensors": projector,
        CAPTION_FILE: {CAPTION_KEY: weights.caption},
    }
    if not extra.keys() & set(weights.report.filled):
        files[f"{v}/{_EXTRA}"] = extra
    with atomic_folder(path, overwrite, is_repackaged) as folder:
        for file, tensors in files.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            save_safetensors(folder / file, tensors)
        for file, settings in _configs(weights).items():
            (folder / file).write_text(json.dumps(settings, indent=2) + "\n", "utf-8")
        (folder / "LICENSE.txt").write_text(storage.text(weights.licence), "utf-8")
        write_sums(folder)


def _all(name: str) -> bool:
    return True


def _all_but_patch_embedding(name: str) -> bool:
    # The retrained one stands in the variant's folder.
    return not name.startswith("patch_embedding.")


def _configs(weights: LoadedWeights) -> dict[str, dict[str, Any]]:
    config = weights.config
    trunk, v = config.trunk, config.variant
    record = {
        "config": config.to_json(),
        "licence": weights.licence,
        "training_data": training_data.to_json(weights.training_data),
        "inference": weights.inference.to_json(),
    }
    dit = {theirs: getattr(trunk, ours) for theirs, ours in _DIT.items()}
    return {
        "dit/config.json": dit | {"num_layers": trunk.executed},
        "vae/config.json": {theirs: getattr(config.vae, ours) for theirs, ours in _VAE.items()},
        f"{v}/config.json": {
            "rank": trunk.lora_rank, "alpha": trunk.lora_alpha,
            "target_modules": list(_LORA_TARGETS),
            _RECORD: record,
        },
        f"{v}/projector/config.json": {
            theirs: getattr(config.decoder, ours) for theirs, ours in _PROJECTOR.items()
        },
    }  # fmt: skip


def licence_of(path: Path, variant: Variant) -> str:
    """Return the licence that its config states, else the released one."""
    record = read_json(path / variant / "config.json").get(_RECORD)
    return str(record.get("licence")) if isinstance(record, dict) else storage.RELEASED


def files_of(path: Path, variant: Variant, caption: Path | None = None) -> list[Path]:
    """Return every file that ``load_repackaged`` reads, the configurations included."""
    parts = ("dit", "vae", variant, f"{variant}/projector")
    needed = [*layouts.repackaged(read_config(path, variant)), *(f"{p}/config.json" for p in parts)]
    extra = path / variant / _EXTRA
    files = [path / name for name in needed] + ([extra] if extra.is_file() else [])
    return [*files, caption or path / CAPTION_FILE]


def training_data_of(path: Path, variant: Variant) -> TrainingData:
    """Return what a variant was trained on: as our record says, else it is the released one."""
    where = path / variant / "config.json"
    record = read_json(where).get(_RECORD)
    if not isinstance(record, dict):
        return training_data.RELEASED
    return training_data.from_json(record.get("training_data"), f"{where}: {_RECORD}")


def inference_of(path: Path, variant: Variant) -> InferenceConfig:
    """Return how a variant is to be run: as our record says."""
    where = path / variant / "config.json"
    record = read_json(where).get(_RECORD)
    recorded = record.get("inference") if isinstance(record, dict) else None
    return InferenceConfig.from_json(recorded, f"{where}: {_RECORD}: inference")


def _fields(data: Mapping[str, Any], fields: Mapping[str, str]) -> dict[str, int]:
    found = {ours: data[theirs] for theirs, ours in fields.items() if theirs in data}
    for name, value in found.items():
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"{name} is {value!r}; a whole number is needed")
    return found


def _filled(config: ModelConfig, decoder: layouts.Tensors) -> layouts.Tensors:
    tap = config.trunk.tap
    lists = projectors(config.decoder, tap)
    drawn = {n: initial(n, lists, 0) for n in lists if "shape_norm" in n or "wrist_cam" in n}
    live = layouts.decoder_from_official(config.decoder, drawn, tap)
    return {name: tensor for name, tensor in live.items() if name not in decoder}


def _check_frequencies(store: TensorStore, projector: layouts.Tensors) -> None:
    found = projector[names.REPACKAGED_RAY_FREQUENCIES].float()
    if not torch.equal(found, 2.0 ** torch.arange(len(found))):
        raise SchemaError(
            f"{store.where}: tensor {names.REPACKAGED_RAY_FREQUENCIES!r} is {found.tolist()}; "
            "1, 2, 4, ... is needed."
        )
