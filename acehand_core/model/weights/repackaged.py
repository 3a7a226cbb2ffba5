"""The safetensors re-packaging: one folder of components, with the two variants side by side.

``dit/`` and ``vae/`` are shared; ``k/`` and ``kfree/`` each hold what was trained. Layer names are
its own, fused query, key and value rows are split and only the executed blocks are stored. It has
no place for the direct wrist head and one unused norm: ours go into
``<variant>/acehand.safetensors``, which its own reader does not look at.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

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
from acehand_core.model.weights import official, sums
from acehand_core.model.weights.official_export import initial
from acehand_core.model.weights.official_files import CAPTION_KEY, choose_variant, read_caption
from acehand_core.model.weights.state import (
    ComponentReport,
    LoadedWeights,
    LoadReport,
    TrainingData,
    check_caption,
    compare,
    read_parts,
    read_record,
    state_shapes,
)
from acehand_core.model.weights.storage import (
    TensorStore,
    open_safetensors,
    read_json,
    save_safetensors,
)
from acehand_core.model.weights.sums import sha256s, write_sums
from acehand_core.model.weights.tables import (
    EMBEDDINGS,
    PATCH_EMBEDDING,
    Section,
    Table,
    Tensors,
    meta,
    powers_of_two,
    same,
    shapes_of,
    under,
)

CAPTION_FILE = f"{CAPTION_KEY}.safetensors"
_EXTRA = "acehand.safetensors"
_RECORD = "acehand"
#: A buffer that the re-packaging stores and the running decoder computes.
RAY_FREQUENCIES = "ray_encoding.frequency_bands"
_LINEARS = [
    *(
        (f"blocks.*.{attention}.{theirs}", f"blocks.*.{ours}.{projection}")
        for attention, ours in (("self_attention", "attn1"), ("cross_attention", "attn2"))
        for theirs, projection in (
            ("query", "to_q"), ("key", "to_k"), ("value", "to_v"), ("output", "to_out.0")
        )
    ),
    ("blocks.*.feed_forward.0", "blocks.*.ffn.net.0.proj"),
    ("blocks.*.feed_forward.2", "blocks.*.ffn.net.2"),
]  # fmt: skip
_NORMS = [("query_norm", "norm_q"), ("key_norm", "norm_k")]
TRUNK = Table(
    [
        *EMBEDDINGS,
        ("time_modulation.1", "condition_embedder.time_proj"),
        *_LINEARS,
        *under("blocks.*.self_attention", "blocks.*.attn1", _NORMS),
        *under("blocks.*.cross_attention", "blocks.*.attn2", _NORMS),
        ("blocks.*.cross_attention_norm", "blocks.*.norm2"),
    ]
)
ADAPTERS = Table(
    (f"{theirs}.{side}", f"{ours}.{side}.default")
    for theirs, ours in _LINEARS
    for side in ("lora_A", "lora_B")
)
_RESNET = [
    ("norm1.weight", "norm1.gamma"), ("norm2.weight", "norm2.gamma"),
    *same("conv1", "conv2"), ("shortcut", "conv_shortcut"),
]  # fmt: skip
_VAE_PAIRS = [
    *under("down_blocks.*.resnets.*", "encoder.down_blocks.*.resnets.*", _RESNET),
    *under("down_blocks.*.downsampler", "encoder.down_blocks.*.downsampler",
           [("space", "resample.1"), ("time.conv", "time_conv")]),
    *under("mid_block.block_in", "encoder.mid_block.resnets.0", _RESNET),
    *under("mid_block.attention", "encoder.mid_block.attentions.0",
           [("norm.weight", "norm.gamma"), ("qkv", "to_qkv"), ("output", "proj")]),
    *under("mid_block.block_out", "encoder.mid_block.resnets.1", _RESNET),
    ("norm_out.weight", "encoder.norm_out.gamma"),
    ("conv_in", "encoder.conv_in"),
    ("conv_out", "encoder.conv_out"),
    *same("quant_conv"),
]  # fmt: skip
_READ_PATCHES = [*same("query", "key", "value"), ("output", "out_proj")]
DECODER = Table(
    [
        *same("spatial_encoding", "ray_encoding", "patch_projection", "slot_embedding"),
        *same("hand_token", "joint_token", "register_token", "final_norm", "hand_fuse"),
        *same("layers.*.query_norm", "layers.*.context_norm", "layers.*.temporal"),
        *under("layers.*.spatial", "layers.*.spatial", _READ_PATCHES),
        *same("readout_query_norm", "readout_context_norm"),
        *under("readout", "readout", _READ_PATCHES),
        *same("head_joint_3d", "head_global_orient", "head_hand_pose", "head_camera"),
        *same("head_presence", "head_visible", "head_betas"),
    ],
    fused_inside=r"readout|layers\.\d+\.spatial",
)
RAY_HEAD = Table(prefix="ray_head.")
#: What the re-packaging has no place for.
EXTRA = Table(same("shape_norm", "head_wrist"))
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


def sections(config: ModelConfig) -> dict[str, Section]:
    """Return the list of each file, ours for what the re-packaging has no place for included.

    Raises InputError for a decoder that it cannot describe.
    """
    refuse_ablations(config.decoder)
    shapes, v = state_shapes(config), config.variant
    canonical = {part: meta(listed) for part, listed in shapes.items()}

    # Gains of norms are one-dimensional there and broadcast over an image here.
    flat = {name: s for name, s in shapes.get("vae", {}).items() if name.endswith(".gamma")}
    lists = {
        # The retrained patch embedding is in the variant's folder.
        "dit/model.safetensors": Section(
            "dit", {}, {"trunk": TRUNK}, lambda name: not name.startswith(official.PATCH)
        ),
        "vae/model.safetensors": Section("vae", {}, {"vae": Table(_VAE_PAIRS, flat=flat)}),
        f"{v}/backbone_delta.safetensors": Section(
            f"{v}/backbone_delta", {}, {"trunk": PATCH_EMBEDDING, "adapters": ADAPTERS}
        ),
        f"{v}/projector/model.safetensors": Section(
            f"{v}/projector", {}, {"ray_head": RAY_HEAD, "decoder": DECODER},
            computed=(RAY_FREQUENCIES,),
        ),
        f"{v}/{_EXTRA}": Section("extra", {}, {"decoder": EXTRA}),
    }  # fmt: skip
    listed = {file: shapes_of(section.write(canonical)) for file, section in lists.items()}
    listed[f"{v}/projector/model.safetensors"][RAY_FREQUENCIES] = (config.decoder.ray_frequencies,)

    return {file: replace(section, shapes=listed[file]) for file, section in lists.items()}


def refuse_ablations(config: DecoderConfig) -> None:
    """Raise InputError for a decoder other than the paper's, which the re-packaging cannot hold."""
    plain = DecoderConfig()
    ablated = ("spatial_encoding", "queries", "shape_from", "temporal_encoding")
    for field in (*ablated, "temporal_attention"):
        if getattr(config, field) != getattr(plain, field):
            raise InputError(
                f"the re-packaging holds only {field} = {getattr(plain, field)!r}, not "
                f"{getattr(config, field)!r}; valid: the layouts acehand and official."
            )


def open_repackaged(
    path: Path, variant: Variant
) -> tuple[ModelConfig, dict[str, TensorStore], dict[str, ComponentReport]]:
    """Open every file and compare it with its list; nothing is read."""
    config = read_config(path, variant)
    lists, extra = sections(config), f"{variant}/{_EXTRA}"
    files = [file for file in lists if file != extra or (path / extra).is_file()]
    stores = {file: open_safetensors(path / file) for file in files}
    return config, stores, compare(lists, stores)


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
    parts = read_parts(sections(config), stores, reports)
    filled = _initial_values(config, parts["decoder"])
    parts["decoder"] |= filled

    caption_file = caption or path / CAPTION_FILE
    embedding = read_caption(caption_file)
    check_caption(config, embedding, str(caption_file))
    files = {file: path / file for file in stores} | {caption_file.name: caption_file}
    training, inference = recorded(path, variant)
    return LoadedWeights(
        config,
        **parts,
        caption=embedding,
        report=LoadReport(tuple(reports.values()), tuple(filled)),
        licence=licence_of(path, variant),
        sha256s=sha256s(files) if check_hashes else {},
        training_data=training,
        inference=inference,
    )


def _initial_values(config: ModelConfig, decoder: Tensors) -> Tensors:
    """Return what a decoder lacks and the re-packaging has no place for, at its start values."""
    section = official.sections(config)["projectors"]
    drawn = {
        name: initial(name, section.shapes, 0)
        for name in section.shapes
        if "shape_norm" in name or "wrist_cam" in name
    }
    live = section.read(drawn)["decoder"]
    return {name: tensor for name, tensor in live.items() if name not in decoder}


def save_repackaged(path: Path, weights: LoadedWeights, overwrite: bool = False) -> None:
    """Write the re-packaging's folder with one variant; it appears whole or not at all.

    Raises:
        InputError: a decoder other than the paper's, or a part is missing.
        OutputError: it exists, or cannot be written.
    """
    config, v = weights.config, weights.config.variant
    refuse_ablations(config.decoder)
    parts = weights.parts()
    lacking = {"vae", "trunk", "decoder", "ray_head"} - parts.keys()
    if lacking or weights.caption is None:
        raise InputError(f"the re-packaging needs {', '.join(sorted(lacking)) or 'a caption'}.")

    files = {file: section.write(parts) for file, section in sections(config).items()}
    bands = config.decoder.ray_frequencies
    files[f"{v}/projector/model.safetensors"][RAY_FREQUENCIES] = powers_of_two(bands)
    files[CAPTION_FILE] = {CAPTION_KEY: weights.caption}
    if files[f"{v}/{_EXTRA}"].keys() & set(weights.report.filled):
        del files[f"{v}/{_EXTRA}"]  # drawn here, not trained

    with atomic_folder(path, overwrite, is_repackaged) as folder:
        for file, tensors in files.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            save_safetensors(folder / file, tensors)
        for file, settings in _configs(weights).items():
            (folder / file).write_text(json.dumps(settings, indent=2) + "\n", "utf-8")
        (folder / "LICENSE.txt").write_text(sums.licence_text(weights.licence), "utf-8")
        write_sums(folder)


def _configs(weights: LoadedWeights) -> dict[str, dict[str, Any]]:
    config = weights.config
    trunk, v = config.trunk, config.variant
    dit = {theirs: getattr(trunk, ours) for theirs, ours in _DIT.items()}

    return {
        "dit/config.json": dit | {"num_layers": trunk.executed},
        "vae/config.json": {theirs: getattr(config.vae, ours) for theirs, ours in _VAE.items()},
        f"{v}/config.json": {
            "rank": trunk.lora_rank, "alpha": trunk.lora_alpha,
            "target_modules": [theirs.removeprefix("blocks.*.") for theirs, _ in _LINEARS],
            _RECORD: weights.record(),
        },
        f"{v}/projector/config.json": {
            theirs: getattr(config.decoder, ours) for theirs, ours in _PROJECTOR.items()
        },
    }  # fmt: skip


def licence_of(path: Path, variant: Variant) -> str:
    """Return the licence that its config states, else the released one."""
    record = read_json(path / variant / "config.json").get(_RECORD)
    return str(record.get("licence")) if isinstance(record, dict) else sums.RELEASED


def files_of(path: Path, variant: Variant, caption: Path | None = None) -> list[Path]:
    """Return every file that ``load_repackaged`` reads, the configurations included."""
    parts = ("dit", "vae", variant, f"{variant}/projector")
    lists, extra = sections(read_config(path, variant)), f"{variant}/{_EXTRA}"
    names = [*lists, *(f"{part}/config.json" for part in parts)]
    files = [path / name for name in names if name != extra or (path / extra).is_file()]
    return [*files, caption or path / CAPTION_FILE]


def recorded(path: Path, variant: Variant) -> tuple[TrainingData, InferenceConfig]:
    """Return what a variant was trained on and how it is to be run. Raises SchemaError."""
    where = path / variant / "config.json"
    record = read_json(where).get(_RECORD)
    return read_record(record if isinstance(record, dict) else None, f"{where}: {_RECORD}")


def _fields(data: Mapping[str, Any], fields: Mapping[str, str]) -> dict[str, Any]:
    values = {ours: data[theirs] for theirs, ours in fields.items() if theirs in data}
    for name, value in values.items():
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"{name} is {value!r}; a whole number is needed")
    return values
