"""The safetensors re-packaging: one folder of components with both variants.

``dit/`` and ``vae/`` are shared; ``k/`` and ``kfree/`` each hold what was trained. It has its own
layer names, split query, key and value rows, and only the executed blocks. The direct wrist head
and one unused norm are missing and get initial values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from acehand_core.ace.model.config import (
    AS_RELEASED,
    DecoderConfig,
    ModelConfig,
    TrunkConfig,
    VaeConfig,
    Variant,
)
from acehand_core.ace.model.weights import official, state, sums, tables
from acehand_core.ace.model.weights.official_files import (
    CAPTION_KEY,
    choose_variant,
    initial,
    read_caption,
)
from acehand_core.ace.model.weights.storage import TensorStore, open_safetensors
from acehand_core.ace.model.weights.sums import sha256s
from acehand_core.errors import AcehandError, InputError, SchemaError
from acehand_core.user_files import read_object, structured

CAPTION_FILE = f"{CAPTION_KEY}.safetensors"
#: A stored buffer that the running decoder computes.
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
TRUNK = tables.WeightsTable(
    [
        *tables.EMBEDDINGS,
        ("time_modulation.1", "condition_embedder.time_proj"),
        *_LINEARS,
        *tables.under("blocks.*.self_attention", "blocks.*.attn1", _NORMS),
        *tables.under("blocks.*.cross_attention", "blocks.*.attn2", _NORMS),
        ("blocks.*.cross_attention_norm", "blocks.*.norm2"),
    ]
)
ADAPTERS = tables.WeightsTable(
    (f"{theirs}.{side}", f"{ours}.{side}.default")
    for theirs, ours in _LINEARS
    for side in ("lora_A", "lora_B")
)
_RESNET = [
    ("norm1.weight", "norm1.gamma"),
    ("norm2.weight", "norm2.gamma"),
    *tables.same("conv1", "conv2"),
    ("shortcut", "conv_shortcut"),
]
_VAE_PAIRS = [
    *tables.under("down_blocks.*.resnets.*", "encoder.down_blocks.*.resnets.*", _RESNET),
    *tables.under("down_blocks.*.downsampler", "encoder.down_blocks.*.downsampler",
           [("space", "resample.1"), ("time.conv", "time_conv")]),
    *tables.under("mid_block.block_in", "encoder.mid_block.resnets.0", _RESNET),
    *tables.under("mid_block.attention", "encoder.mid_block.attentions.0",
           [("norm.weight", "norm.gamma"), ("qkv", "to_qkv"), ("output", "proj")]),
    *tables.under("mid_block.block_out", "encoder.mid_block.resnets.1", _RESNET),
    ("norm_out.weight", "encoder.norm_out.gamma"),
    ("conv_in", "encoder.conv_in"),
    ("conv_out", "encoder.conv_out"),
    *tables.same("quant_conv"),
]  # fmt: skip
_READ_PATCHES = [*tables.same("query", "key", "value"), ("output", "out_proj")]
DECODER = tables.WeightsTable(
    [
        *tables.same("spatial_encoding", "ray_encoding", "patch_projection", "slot_embedding"),
        *tables.same("hand_token", "joint_token", "register_token", "final_norm", "hand_fuse"),
        *tables.same("layers.*.query_norm", "layers.*.context_norm", "layers.*.temporal"),
        *tables.under("layers.*.spatial", "layers.*.spatial", _READ_PATCHES),
        *tables.same("readout_query_norm", "readout_context_norm"),
        *tables.under("readout", "readout", _READ_PATCHES),
        *tables.same("head_joint_3d", "head_global_orient", "head_hand_pose", "head_camera"),
        *tables.same("head_presence", "head_visible", "head_betas"),
    ],
    fused_inside=r"readout|layers\.\d+\.spatial",
)
RAY_HEAD = tables.WeightsTable(prefix="ray_head.")
#: Their field -> ours, per component.
_DIT = {"latent_channels": "out_channels"} | dict(
    tables.same("in_channels", "dim", "ffn_dim", "num_heads", "freq_dim", "text_dim", "text_length")
)
_VAE = {"base_dim": "base_dim", "z_dim": "z_dim"}
_PROJECTOR = {"feature_dim": "feature_dim", "hidden_dim": "width", "num_heads": "num_heads",
              "ffn_mult": "mlp_ratio", "num_layers": "num_layers",
              "num_registers": "num_registers", "spatial_encoding_size": "spatial_grid",
              "ray_frequency_bands": "ray_frequencies"}  # fmt: skip


def is_repackaged(path: Path) -> bool:
    """Return whether a folder looks like the re-packaging."""
    return (path / "dit" / "config.json").is_file() and (path / "vae" / "config.json").is_file()


def find_variant(path: Path, asked: Variant | None) -> Variant:
    """Return the variant to read. Raises InputError if it is absent or ambiguous."""
    present = [name for name in ("k", "kfree") if (path / name / "projector").is_dir()]
    if asked is not None and asked not in present:
        raise InputError(f"{path}: variant {asked} is not here; valid: {', '.join(present)}.")
    return choose_variant(asked, present[0] if len(present) == 1 else None, str(path))


def read_config(path: Path, variant: Variant) -> ModelConfig:
    """Return the sizes in its config files. Raises SchemaError."""
    adapters = read_object(path / variant / "config.json")
    dit = read_object(path / "dit" / "config.json")
    try:
        executed = int(dit["num_layers"])
        plain = TrunkConfig()
        layers = plain.num_layers if executed == plain.executed else executed
        trunk = TrunkConfig(
            **_fields(TrunkConfig, dit, _DIT),
            num_layers=layers,
            tap=executed - 1,
            lora_rank=int(adapters["rank"]),
            lora_alpha=float(adapters["alpha"]),
        )
        vae = VaeConfig(**_fields(VaeConfig, read_object(path / "vae" / "config.json"), _VAE))
        projector = read_object(path / variant / "projector" / "config.json")
        decoder = DecoderConfig(**_fields(DecoderConfig, projector, _PROJECTOR))
    except (KeyError, TypeError, ValueError, AcehandError) as error:
        raise SchemaError(f"{path}: its config files do not describe a model ({error}).") from error

    return ModelConfig(variant=variant, vae=vae, trunk=trunk, decoder=decoder)


def sections(config: ModelConfig) -> dict[str, tables.WeightsSection]:
    """Return the list of each file."""
    shapes, v = state.state_shapes(config), config.variant
    inside = {part: tables.meta(listed) for part, listed in shapes.items()}

    # Gains of norms are one-dimensional outside and broadcast over an image inside.
    flat = {name: s for name, s in shapes.get("vae", {}).items() if name.endswith(".gamma")}
    lists = {
        # The retrained patch embedding is in the variant's folder.
        "dit/model.safetensors": tables.WeightsSection(
            "dit", {}, {"trunk": TRUNK}, lambda name: not name.startswith(official.PATCH)
        ),
        "vae/model.safetensors": tables.WeightsSection(
            "vae", {}, {"vae": tables.WeightsTable(_VAE_PAIRS, flat=flat)}
        ),
        f"{v}/backbone_delta.safetensors": tables.WeightsSection(
            f"{v}/backbone_delta", {}, {"trunk": tables.PATCH_EMBEDDING, "adapters": ADAPTERS}
        ),
        f"{v}/projector/model.safetensors": tables.WeightsSection(
            f"{v}/projector",
            {},
            {"ray_head": RAY_HEAD, "decoder": DECODER},
            computed=(RAY_FREQUENCIES,),
        ),
    }
    listed = {file: tables.shapes_of(section.write(inside)) for file, section in lists.items()}
    listed[f"{v}/projector/model.safetensors"][RAY_FREQUENCIES] = (config.decoder.ray_frequencies,)

    return {file: replace(section, shapes=listed[file]) for file, section in lists.items()}


def open_repackaged(
    path: Path, variant: Variant
) -> tuple[ModelConfig, dict[str, TensorStore], dict[str, state.ComponentReport]]:
    """Open every file and compare it with its list, without reading values."""
    config = read_config(path, variant)
    lists = sections(config)
    stores = {file: open_safetensors(path / file) for file in lists}
    return config, stores, state.compare(lists, stores)


def load_repackaged(
    path: Path,
    variant: Variant | None = None,
    caption: Path | None = None,
    check_hashes: bool = True,
) -> state.LoadedWeights:
    """Load one variant; missing tensors are initialised. Raises as ``load_weights``."""
    variant = find_variant(path, variant)
    config, stores, reports = open_repackaged(path, variant)
    parts = state.read_parts(sections(config), stores, reports)

    # The re-packaging lacks some tensors: they get their initial values.
    section = official.sections(config)["projectors"]
    drawn = {
        name: initial(name, section.shapes, 0)
        for name in section.shapes
        if "shape_norm" in name or "wrist_cam" in name
    }
    live = section.read(drawn)["decoder"]
    filled = {name: tensor for name, tensor in live.items() if name not in parts["decoder"]}
    parts["decoder"] |= filled

    caption_file = caption or path / CAPTION_FILE
    embedding = read_caption(caption_file)
    state.check_caption(config, embedding, str(caption_file))
    files = {file: path / file for file in stores} | {caption_file.name: caption_file}
    return state.LoadedWeights(
        config,
        **parts,
        caption=embedding,
        report=state.LoadReport(tuple(reports.values()), tuple(filled)),
        licence=sums.RELEASED,
        sha256s=sha256s(files) if check_hashes else {},
        training_data=state.RELEASED_TRAINING,
        inference=AS_RELEASED,
    )


def files_of(path: Path, variant: Variant, caption: Path | None = None) -> list[Path]:
    """Return every file that ``load_repackaged`` reads, the configurations included."""
    parts = ("dit", "vae", variant, f"{variant}/projector")
    names = [*sections(read_config(path, variant)), *(f"{part}/config.json" for part in parts)]
    return [*(path / name for name in names), caption or path / CAPTION_FILE]


def _fields(kind: type, data: Mapping[str, Any], fields: Mapping[str, str]) -> dict[str, Any]:
    values = {ours: data[theirs] for theirs, ours in fields.items() if theirs in data}
    structured(kind, values, "config.json")
    return values
