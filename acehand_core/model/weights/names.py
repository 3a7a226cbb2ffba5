"""Names of tensors in the released files, in the running model and in the re-packaging.

Every table is a list of pairs of stems; ``*`` stands for a number that both sides share. A stem
matches a whole number of dotted parts at the start of a name, the rest is kept. All tables read
both ways. Splitting, fusing and reshaping is in ``layouts``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from acehand_core.model.config import DecoderConfig

Pairs = Iterable[tuple[str, str]]


class Renaming:
    """A two-way map between the names of two layouts."""

    def __init__(self, pairs: Pairs) -> None:
        pairs = list(pairs)
        self._forward = [(_pattern(left), right) for left, right in pairs]
        self._backward = [(_pattern(right), left) for left, right in pairs]

    def forward(self, name: str) -> str | None:
        """Return the name in the second layout, or None for one the first does not have."""
        return _apply(self._forward, name)

    def backward(self, name: str) -> str | None:
        """Return the name in the first layout, or None for one the second does not have."""
        return _apply(self._backward, name)


def _pattern(stem: str) -> re.Pattern[str]:
    return re.compile(re.escape(stem).replace(r"\*", r"(\d+)") + r"(?=\.|$)")


def _apply(rules: list[tuple[re.Pattern[str], str]], name: str) -> str | None:
    for pattern, target in rules:
        found = pattern.match(name)
        if found:
            for number in found.groups():
                target = target.replace("*", number, 1)
            return target + name[found.end() :]
    return None


def _same(*stems: str) -> Pairs:
    return [(stem, stem) for stem in stems]


def _under(left: str, right: str, pairs: Pairs) -> Pairs:
    return [(f"{left}.{a}", f"{right}.{b}") for a, b in pairs]


_LIVE_ATTENTION = [
    ("q", "to_q"), ("k", "to_k"), ("v", "to_v"), ("o", "to_out.0"), *_same("norm_q", "norm_k")
]  # fmt: skip
#: Released transformer -> running trunk, adapters included (their suffixes are the same).
DIT = Renaming(
    [
        *_same("patch_embedding"),
        ("text_embedding.0", "condition_embedder.text_embedder.linear_1"),
        ("text_embedding.2", "condition_embedder.text_embedder.linear_2"),
        ("time_embedding.0", "condition_embedder.time_embedder.linear_1"),
        ("time_embedding.2", "condition_embedder.time_embedder.linear_2"),
        ("time_projection.1", "condition_embedder.time_proj"),
        ("blocks.*.modulation", "blocks.*.scale_shift_table"),
        *_under("blocks.*.self_attn", "blocks.*.attn1", _LIVE_ATTENTION),
        *_under("blocks.*.cross_attn", "blocks.*.attn2", _LIVE_ATTENTION),
        ("blocks.*.norm3", "blocks.*.norm2"),
        ("blocks.*.ffn.0", "blocks.*.ffn.net.0.proj"),
        ("blocks.*.ffn.2", "blocks.*.ffn.net.2"),
        ("head.modulation", "scale_shift_table"),
        ("head.head", "proj_out"),
        *_same("ref_conv"),
    ]
)

_REPACKAGED_ATTENTION = [
    ("q", "query"), ("k", "key"), ("v", "value"), ("o", "output"),
    ("norm_q", "query_norm"), ("norm_k", "key_norm"),
]  # fmt: skip
#: Released transformer -> re-packaged ``dit/``.
DIT_REPACKAGED = Renaming(
    [
        *_same("patch_embedding", "text_embedding.*", "time_embedding.*", "blocks.*.modulation"),
        ("time_projection.1", "time_modulation.1"),
        *_under("blocks.*.self_attn", "blocks.*.self_attention", _REPACKAGED_ATTENTION),
        *_under("blocks.*.cross_attn", "blocks.*.cross_attention", _REPACKAGED_ATTENTION),
        ("blocks.*.norm3", "blocks.*.cross_attention_norm"),
        ("blocks.*.ffn.*", "blocks.*.feed_forward.*"),
    ]
)

_VAE_RESIDUAL = [
    ("residual.0", "norm1"), ("residual.2", "conv1"), ("residual.3", "norm2"),
    ("residual.6", "conv2"), ("shortcut", "conv_shortcut"),
]  # fmt: skip
_DOWN = "encoder.downsamples.*.downsamples"
#: Released VAE -> running VAE (its encoder).
VAE = Renaming(
    [
        ("encoder.conv1", "encoder.conv_in"),
        (f"{_DOWN}.2.resample.1", "encoder.down_blocks.*.downsampler.resample.1"),
        (f"{_DOWN}.2.time_conv", "encoder.down_blocks.*.downsampler.time_conv"),
        *_under(f"{_DOWN}.*", "encoder.down_blocks.*.resnets.*", _VAE_RESIDUAL),
        *_under("encoder.middle.0", "encoder.mid_block.resnets.0", _VAE_RESIDUAL),
        *_under("encoder.middle.1", "encoder.mid_block.attentions.0",
                _same("norm", "to_qkv", "proj")),
        *_under("encoder.middle.2", "encoder.mid_block.resnets.1", _VAE_RESIDUAL),
        ("encoder.head.0", "encoder.norm_out"),
        ("encoder.head.2", "encoder.conv_out"),
        ("conv1", "quant_conv"),
    ]
)  # fmt: skip

_REPACKAGED_RESNET = [
    ("norm1.gamma", "norm1.weight"), ("norm2.gamma", "norm2.weight"),
    *_same("conv1", "conv2"), ("conv_shortcut", "shortcut"),
]  # fmt: skip
#: Running VAE -> re-packaged ``vae/``.
VAE_REPACKAGED = Renaming(
    [
        *_under("encoder.down_blocks.*.resnets.*", "down_blocks.*.resnets.*", _REPACKAGED_RESNET),
        *_under("encoder.down_blocks.*.downsampler", "down_blocks.*.downsampler",
                [("resample.1", "space"), ("time_conv", "time.conv")]),
        *_under("encoder.mid_block.resnets.0", "mid_block.block_in", _REPACKAGED_RESNET),
        *_under("encoder.mid_block.attentions.0", "mid_block.attention",
                [("norm.gamma", "norm.weight"), ("to_qkv", "qkv"), ("proj", "output")]),
        *_under("encoder.mid_block.resnets.1", "mid_block.block_out", _REPACKAGED_RESNET),
        ("encoder.norm_out.gamma", "norm_out.weight"),
        ("encoder.conv_in", "conv_in"),
        ("encoder.conv_out", "conv_out"),
        *_same("quant_conv"),
    ]
)  # fmt: skip


def decoder(config: DecoderConfig) -> Renaming:
    """Return the map from ``projectors`` (without ``l<tap>.``) to the running decoder."""
    layer = [("norm_q", "query_norm"), ("norm_kv", "context_norm"), ("cross_attn", "spatial")]
    rotary = [
        *_same("norm1", "norm2"), ("mlp.0", "mlp.0"), ("mlp.3", "mlp.2"),
        ("q", "query"), ("k", "key"), ("v", "value"), ("proj", "output"),
    ]  # fmt: skip
    absolute = [
        *_same("norm1", "norm2"), ("linear1", "mlp.0"), ("linear2", "mlp.2"),
        ("self_attn.out_proj", "output"), ("self_attn.in_proj_weight", "in_proj_weight"),
        ("self_attn.in_proj_bias", "in_proj_bias"),
    ]  # fmt: skip
    temporal = rotary if config.temporal_encoding == "rotary" else absolute
    encoder = [
        *_same("hand_token", "joint_token", "register_token", "final_norm", "shape_norm"),
        ("readout_qnorm", "readout_query_norm"),
        ("readout_kvnorm", "readout_context_norm"),
        ("readout_attn", "readout"),
        *_same("head_joint_3d"),
        *_under("layers.*", "layers.*", layer),
        *_under("layers.*.temporal", "layers.*.temporal", temporal),
    ]
    shape = "head_betas_hand" if config.shape_from == "hands" else "head_betas_segment"
    return Renaming(
        [
            ("spatial_pe_grid", "spatial_encoding"),
            ("latent_temporal_pe", "temporal_encoding"),
            ("slot_embed", "slot_embedding"),
            ("ray_pe.ray_proj", "ray_encoding.projection"),
            ("input_proj", "patch_projection"),
            *_same("hand_fuse", "head_global_orient", "head_hand_pose"),
            ("head_cam_trans", "head_camera"),
            ("head_exists_2d", "head_visible"),
            ("head_exists_3d", "head_presence"),
            ("head_direct_wrist_cam", "head_wrist"),
            ("head_direct_joints_rootrel", "head_joints_relative"),
            ("head_direct_joints2d", "head_anchors"),
            (shape, "head_betas"),
            *((f"alternating_encoder.{a}", b) for a, b in encoder),
        ]
    )


#: Running decoder -> re-packaged projector, where one name differs.
DECODER_REPACKAGED = Renaming(
    [
        ("readout.out_proj", "readout.output"),
        ("layers.*.spatial.out_proj", "layers.*.spatial.output"),
    ]
)
#: A buffer that the re-packaging stores and the running decoder computes.
REPACKAGED_RAY_FREQUENCIES = "ray_encoding.frequency_bands"
#: Parts of the running decoder that the re-packaging leaves out.
NOT_REPACKAGED = ("shape_norm", "head_wrist")
