"""The released layout: every name and shape, for any sizes, and its place in the model.

A released checkpoint holds ``projectors`` (the decoder and unused readouts), ``raymap_heads`` (the
ray head) and ``backbone_trainable`` (adapters, patch embedding, output head); base transformer and
video VAE are separate files. The counts at the released sizes are the paper's (appendix
"Architecture").
"""

from __future__ import annotations

from acehand_core.ace.model.config import (
    BETAS,
    FINGER_JOINTS,
    JOINTS,
    SLOTS,
    DecoderConfig,
    ModelConfig,
    TrunkConfig,
    VaeConfig,
)
from acehand_core.ace.model.weights import tables
from acehand_core.ace.model.weights.tables import Shapes, WeightsSection, WeightsTable

#: Top-level keys of a checkpoint that are read.
CHECKPOINT_KEYS = ("projectors", "raymap_heads", "backbone_trainable")
#: The ten linear layers of a block that carry adapters.
LORA_TARGETS = (
    *(f"{attention}.{part}" for attention in ("self_attn", "cross_attn") for part in "qkvo"),
    "ffn.0",
    "ffn.2",
)
#: The one buffer of ``projectors``; its values are fixed (1, 2, 4, ...).
RAY_FREQUENCIES = "ray_pe.freq_bands"
#: The one layer of the transformer that is trained, besides its adapters.
PATCH = "patch_embedding."
#: Parts of the VAE file that only decoding needs.
VAE_DECODER_PREFIXES = ("decoder.", "conv2.")
_PATCH = (1, 2, 2)
_VAE_MULTIPLIERS = (1, 2, 4, 4)
_VAE_PIXEL_CHANNELS = 12
#: Longest clip, in video frames, of a learned table that the release registers and never reads.
_VIDEO_FRAMES = 256


def sections(config: ModelConfig, retrained: bool = True) -> dict[str, WeightsSection]:
    """Return the lists of a released model, by the names of its parts.

    ``retrained``: ``backbone_trainable`` has a patch embedding, which replaces the base's.
    """
    trunk, decoder, tap = config.trunk, config.decoder, config.trunk.tap

    def runs_in_base(name: str) -> bool:
        return runs_in_dit(name, trunk) and not (retrained and name.startswith(PATCH))

    return {
        "dit": WeightsSection("dit", dit(trunk), {"trunk": tables.TRUNK}, runs_in_base),
        "vae": WeightsSection(
            "vae", vae(config.vae), {"vae": tables.VAE}, ignored=VAE_DECODER_PREFIXES
        ),
        "projectors": WeightsSection(
            "projectors",
            projectors(decoder, tap),
            {"decoder": tables.decoder(decoder, tap)},
            lambda name: runs_in_projectors(name.removeprefix(f"l{tap}."), decoder),
            computed=(f"l{tap}.{RAY_FREQUENCIES}",),
        ),
        "raymap_heads": WeightsSection(
            "raymap_heads",
            raymap_heads(decoder.feature_dim, tap),
            {"ray_head": WeightsTable(prefix=f"l{tap}.")},
        ),
        "backbone_trainable": WeightsSection(
            "backbone_trainable",
            backbone_trainable(trunk),
            {"trunk": tables.PATCH_EMBEDDING, "adapters": tables.TRUNK},
            lambda name: runs_in_dit(name, trunk),
            lambda name: runs_in_dit(name, trunk) and not name.startswith(PATCH),
        ),
    }


def dit(config: TrunkConfig) -> Shapes:
    """Return the base transformer: all blocks, output head and reference convolution."""
    dim, shapes = config.dim, _patch_embedding(config)
    for name, width in (("text", config.text_dim), ("time", config.freq_dim)):
        shapes |= _linear(f"{name}_embedding.0", dim, width)
        shapes |= _linear(f"{name}_embedding.2", dim, dim)
    shapes |= _linear("time_projection.1", 6 * dim, dim)

    for index in range(config.num_layers):
        block = f"blocks.{index}"
        shapes[f"{block}.modulation"] = (1, 6, dim)
        shapes |= _dit_attention(f"{block}.self_attn", dim)
        shapes |= _norm(f"{block}.norm3", dim)
        shapes |= _dit_attention(f"{block}.cross_attn", dim)
        shapes |= _linear(f"{block}.ffn.0", config.ffn_dim, dim)
        shapes |= _linear(f"{block}.ffn.2", dim, config.ffn_dim)

    shapes |= dit_head(config)
    shapes["ref_conv.weight"] = (dim, config.out_channels, *_PATCH[1:])
    shapes["ref_conv.bias"] = (dim,)

    return shapes


def dit_head(config: TrunkConfig) -> Shapes:
    """Return the transformer's own output head, which feature reading never reaches."""
    cells = _PATCH[1] * _PATCH[2]
    return {
        "head.modulation": (1, 2, config.dim),
        **_linear("head.head", config.out_channels * cells, config.dim),
    }


def runs_in_dit(name: str, config: TrunkConfig) -> bool:
    """Return whether a tensor of the base transformer runs up to the tap block."""
    if name.startswith("blocks."):
        return int(name.split(".")[1]) < config.executed
    return not name.startswith(("head.", "ref_conv."))


def backbone_trainable(config: TrunkConfig) -> Shapes:
    """Return what training changes in the transformer; adapters exist in every block."""
    shapes = _patch_embedding(config) | lora(config)
    return shapes | dit_head(config)


def lora(config: TrunkConfig) -> Shapes:
    """Return the adapters of all blocks; none for rank 0."""
    if not config.lora_rank:
        return {}
    linears = {"ffn.0": (config.ffn_dim, config.dim), "ffn.2": (config.dim, config.ffn_dim)}
    shapes: Shapes = {}
    for index in range(config.num_layers):
        for target in LORA_TARGETS:
            rows, columns = linears.get(target, (config.dim, config.dim))
            stem = f"blocks.{index}.{target}"
            shapes[f"{stem}.lora_A.default.weight"] = (config.lora_rank, columns)
            shapes[f"{stem}.lora_B.default.weight"] = (rows, config.lora_rank)
    return shapes


def vae(config: VaeConfig) -> Shapes:
    """Return the encoder of the video VAE and the layer that makes its moments."""
    widths = [config.base_dim * m for m in _VAE_MULTIPLIERS]
    shapes = _conv("encoder.conv1", widths[0], _VAE_PIXEL_CHANNELS, 3, 3, 3)

    previous = widths[0]
    for stage, width in enumerate(widths):
        stem = f"encoder.downsamples.{stage}.downsamples"
        shapes |= _vae_residual(f"{stem}.0", previous, width)
        shapes |= _vae_residual(f"{stem}.1", width, width)
        if stage < 3:
            shapes |= _conv(f"{stem}.2.resample.1", width, width, 3, 3)
        if stage in (1, 2):
            shapes |= _conv(f"{stem}.2.time_conv", width, width, 3, 1, 1)
        previous = width

    shapes |= _vae_residual("encoder.middle.0", previous, previous)
    shapes["encoder.middle.1.norm.gamma"] = (previous, 1, 1)
    shapes |= _conv("encoder.middle.1.to_qkv", 3 * previous, previous, 1, 1)
    shapes |= _conv("encoder.middle.1.proj", previous, previous, 1, 1)
    shapes |= _vae_residual("encoder.middle.2", previous, previous)
    shapes["encoder.head.0.gamma"] = (previous, 1, 1, 1)
    moments = 2 * config.z_dim
    shapes |= _conv("encoder.head.2", moments, previous, 3, 3, 3)

    return shapes | _conv("conv1", moments, moments, 1, 1, 1)


def projectors(config: DecoderConfig, tap: int) -> Shapes:
    """Return the decoder as released, with all readout variants, most of which never run.

    As in the released code, no spatial encoding drops its grid, pooled queries drop the joint
    tokens and their readout, and absolute positions name the temporal layers as
    ``torch.nn.TransformerEncoderLayer``.
    """
    d, hidden = config.width, config.head_width
    shapes: Shapes = {}
    if config.spatial_encoding:
        shapes["spatial_pe_grid"] = (1, d, config.spatial_grid, config.spatial_grid)
    shapes["latent_temporal_pe"] = (1, config.max_latents, d)
    shapes["video_temporal_pe"] = (1, _VIDEO_FRAMES, d)
    shapes["frame_pool_query"] = (1, 1, d)
    shapes["slot_pool_query"] = (1, SLOTS, d)
    shapes["shape_cls_token"] = (1, 1, d)
    shapes["slot_embed"] = (SLOTS, d)
    shapes[RAY_FREQUENCIES] = (config.ray_frequencies,)
    shapes |= _linear("ray_pe.ray_proj.0", d, 4 * config.ray_frequencies)
    shapes |= _linear("ray_pe.ray_proj.2", d, d)
    shapes |= _linear("input_proj.0", d, config.feature_dim) | _norm("input_proj.1", d)
    shapes |= _attention("spatial_pool", d) | _norm("spatial_pool_norm", d)

    for index in range(config.num_layers):
        shapes |= _encoder_layer(f"temporal_encoder.layers.{index}", config)
    shapes |= _norm("temporal_encoder.norm", d)
    shapes |= _norm("hand_fuse.0", d) | _linear("hand_fuse.1", d, d)

    for name, size in (
        ("global_orient", 6), ("hand_pose", 6 * FINGER_JOINTS), ("cam_trans", 3),
        ("exists_2d", 1), ("exists_3d", 1), ("direct_joints_rootrel", 3 * JOINTS),
        ("direct_wrist_cam", 3), ("direct_joints2d", 2 * JOINTS),
    ):  # fmt: skip
        shapes |= _linear(f"head_{name}.0", hidden, d) | _linear(f"head_{name}.2", size, hidden)

    shapes |= _alternating(config)
    for name in ("head_betas_segment", "head_betas_hand"):
        shapes |= _normed_head(name, d, hidden, BETAS)
    return {f"l{tap}.{name}": shape for name, shape in shapes.items()}


def runs_in_projectors(name: str, config: DecoderConfig) -> bool:
    """Return whether a tensor of ``projectors`` (without its ``l<tap>.``) is part of the model.

    ``alternating_encoder.shape_norm`` is counted as in the paper, although its result is unused
    with shapes from the hands.
    """
    unused = {"video_temporal_pe", "frame_pool_query", "slot_pool_query", "shape_cls_token",
              "spatial_pool", "spatial_pool_norm", "temporal_encoder"}  # fmt: skip
    if config.temporal_encoding == "rotary":
        unused.add("latent_temporal_pe")
    if config.queries == "joint":
        unused |= {"head_direct_joints_rootrel", "head_direct_joints2d"}
    hands = config.shape_from == "hands"
    unused.add("head_betas_segment" if hands else "head_betas_hand")
    return name.split(".")[0] not in unused


def raymap_heads(feature_dim: int, tap: int) -> Shapes:
    """Return the ray head, a 1 x 1 x 1 convolution from features to three coordinates."""
    return {f"l{tap}.weight": (3, feature_dim, 1, 1, 1), f"l{tap}.bias": (3,)}


def _alternating(config: DecoderConfig) -> Shapes:
    d, stem = config.width, "alternating_encoder"
    shapes: Shapes = {f"{stem}.hand_token": (1, SLOTS, d)}
    shapes[f"{stem}.register_token"] = (1, config.num_registers, d)

    if config.queries == "joint":
        shapes[f"{stem}.joint_token"] = (1, SLOTS * JOINTS, d)
        shapes |= _norm(f"{stem}.readout_qnorm", d) | _norm(f"{stem}.readout_kvnorm", d)
        shapes |= _attention(f"{stem}.readout_attn", d)
        shapes |= _normed_head(f"{stem}.head_joint_3d", d, config.head_width, 3)

    for index in range(config.num_layers):
        layer = f"{stem}.layers.{index}"
        shapes |= _norm(f"{layer}.norm_q", d) | _norm(f"{layer}.norm_kv", d)
        shapes |= _attention(f"{layer}.cross_attn", d)
        if config.temporal_encoding == "absolute":
            shapes |= _encoder_layer(f"{layer}.temporal", config)
        else:
            name, wide = f"{layer}.temporal", config.mlp_ratio * d
            shapes |= _norm(f"{name}.norm1", d)
            for part in ("q", "k", "v", "proj"):
                shapes |= _linear(f"{name}.{part}", d, d)
            shapes |= _norm(f"{name}.norm2", d)
            shapes |= _linear(f"{name}.mlp.0", wide, d) | _linear(f"{name}.mlp.3", d, wide)

    return shapes | _norm(f"{stem}.final_norm", d) | _norm(f"{stem}.shape_norm", d)


def _encoder_layer(name: str, config: DecoderConfig) -> Shapes:
    d, wide = config.width, config.mlp_ratio * config.width
    shapes = _attention(f"{name}.self_attn", d)
    shapes |= _linear(f"{name}.linear1", wide, d) | _linear(f"{name}.linear2", d, wide)
    return shapes | _norm(f"{name}.norm1", d) | _norm(f"{name}.norm2", d)


def _patch_embedding(config: TrunkConfig) -> Shapes:
    return _conv("patch_embedding", config.dim, config.in_channels, *_PATCH)


def _linear(name: str, rows: int, columns: int) -> Shapes:
    return {f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)}


def _conv(name: str, out: int, into: int, *kernel: int) -> Shapes:
    return {f"{name}.weight": (out, into, *kernel), f"{name}.bias": (out,)}


def _norm(name: str, width: int) -> Shapes:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def _attention(name: str, width: int) -> Shapes:
    fused = {f"{name}.in_proj_weight": (3 * width, width), f"{name}.in_proj_bias": (3 * width,)}
    return fused | _linear(f"{name}.out_proj", width, width)


def _normed_head(name: str, width: int, hidden: int, size: int) -> Shapes:
    shapes = _norm(f"{name}.0", width) | _linear(f"{name}.1", hidden, width)
    return shapes | _linear(f"{name}.3", size, hidden)


def _dit_attention(name: str, dim: int) -> Shapes:
    shapes: Shapes = {}
    for part in "qkvo":
        shapes |= _linear(f"{name}.{part}", dim, dim)
    return shapes | {f"{name}.norm_q.weight": (dim,), f"{name}.norm_k.weight": (dim,)}


def _vae_residual(name: str, into: int, out: int) -> Shapes:
    shapes: Shapes = {f"{name}.residual.0.gamma": (into, 1, 1, 1)}
    shapes |= _conv(f"{name}.residual.2", out, into, 3, 3, 3)
    shapes[f"{name}.residual.3.gamma"] = (out, 1, 1, 1)
    shapes |= _conv(f"{name}.residual.6", out, out, 3, 3, 3)
    return shapes if into == out else shapes | _conv(f"{name}.shortcut", out, into, 1, 1, 1)
