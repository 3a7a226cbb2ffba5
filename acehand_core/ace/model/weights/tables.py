"""Translation of tensor names: one table per list of tensors of an external layout.

A ``WeightsTable`` maps the names of an external list to those of one part of the internal form
(``state``), both ways, including split, fused and flattened tensors. A ``WeightsSection`` is one
external list (a file, or a part of a checkpoint) with the tables of its parts; ``read`` and
``write`` convert every layout.

Values are copied only where rows are fused. Lists of names and shapes come from the same code, run
on ``meta`` tensors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import torch

from acehand_core.ace.model.config import DecoderConfig
from acehand_core.errors import SchemaError

Shapes = dict[str, tuple[int, ...]]
Tensors = dict[str, torch.Tensor]
#: Stems outside and inside; ``*`` is a number that both share. A stem matches whole dotted parts at
#: the start of a name.
Pairs = Iterable[tuple[str, str]]

_ROWS = ("query", "key", "value")

_VAE_RESIDUAL = [
    ("residual.0", "norm1"), ("residual.2", "conv1"), ("residual.3", "norm2"),
    ("residual.6", "conv2"), ("shortcut", "conv_shortcut"),
]  # fmt: skip
_DOWN = "encoder.downsamples.*.downsamples"


def meta(shapes: Mapping[str, tuple[int, ...]]) -> Tensors:
    """Return ``meta`` tensors of these shapes."""
    return {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}


def shapes_of(tensors: Mapping[str, torch.Tensor]) -> Shapes:
    """Return the shapes of tensors."""
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


class WeightsTable:
    """Names of an external list <-> names of one part of the internal form.

    Args:
        pairs: stems outside and inside, the first match counts; default all names unchanged.
        prefix: of every name outside.
        fused_outside, fused_inside: stems inside (patterns) with fused query, key and value rows on
            one side and three tensors on the other.
        flat: tensors that are one-dimensional outside, with their shapes inside.
    """

    def __init__(
        self,
        pairs: Pairs = (),
        *,
        prefix: str = "",
        fused_outside: str = "",
        fused_inside: str = "",
        flat: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        pairs = list(pairs) or [("", "")]
        self._inwards = [(_pattern(outside), inside) for outside, inside in pairs]
        self._outwards = [(_pattern(inside), outside) for outside, inside in pairs]
        self._prefix, self._flat = prefix, flat or {}
        self._fused_outside, self._fused_inside = fused_outside, fused_inside

    def inside(self, name: str) -> str | None:
        """Return the internal name, or None if the table lacks it."""
        if not name.startswith(self._prefix):
            return None
        return _renamed(self._inwards, name.removeprefix(self._prefix))

    def outside(self, name: str) -> str | None:
        """Return the external name, or None if the table lacks it."""
        renamed = _renamed(self._outwards, name)
        return None if renamed is None else self._prefix + renamed

    def fit_inside(self, tensors: Tensors) -> Tensors:
        """Return renamed tensors with rows split, fused and shaped as inside."""
        tensors = _fuse_rows(_split_rows(tensors, self._fused_outside), self._fused_inside)
        return {n: t.reshape(self._flat[n]) if n in self._flat else t for n, t in tensors.items()}

    def fit_outside(self, tensors: Tensors) -> Tensors:
        """Undo ``fit_inside``."""
        flat = {n: t.reshape(-1) if n in self._flat else t for n, t in tensors.items()}
        return _fuse_rows(_split_rows(flat, self._fused_inside), self._fused_outside)


def _pattern(stem: str) -> re.Pattern[str]:
    number = re.escape(stem).replace(r"\*", r"(\d+)")
    return re.compile(number + r"(?=\.|$)" if stem else "")


def _renamed(rules: list[tuple[re.Pattern[str], str]], name: str) -> str | None:
    for pattern, target in rules:
        match = pattern.match(name)
        if match:
            for number in match.groups():
                target = target.replace("*", number, 1)
            return target + name[match.end() :]
    return None


def _split_rows(tensors: Tensors, stems: str) -> Tensors:
    """Replace fused query, key and value rows under the matching stems by three tensors."""
    fused = re.compile(rf"({stems})\.in_proj_(weight|bias)")
    split = {}
    for name, tensor in tensors.items():
        match = fused.fullmatch(name)
        if match is None:
            split[name] = tensor
            continue
        for part, rows in zip(_ROWS, tensor.chunk(3), strict=True):
            split[f"{match[1]}.{part}.{match[2]}"] = rows
    return split


def _fuse_rows(tensors: Tensors, stems: str) -> Tensors:
    """Undo ``_split_rows``."""
    part = re.compile(rf"({stems})\.query\.(weight|bias)")
    fused = dict(tensors)
    for name in tensors:
        match = part.fullmatch(name)
        if match is not None:
            rows = [fused.pop(f"{match[1]}.{which}.{match[2]}") for which in _ROWS]
            fused[f"{match[1]}.in_proj_{match[2]}"] = torch.cat(rows)
    return fused


@dataclass(frozen=True, slots=True)
class WeightsSection:
    """One list of tensors of an external layout, and its mapping to the internal form.

    ``tables`` are by part of the internal form; the first that has a name takes it. Only names that
    ``runs`` accepts are read; an incomplete list must have those that ``needed`` (default ``runs``)
    accepts. ``computed`` tensors (1, 2, 4, ...) are compared and dropped.
    """

    component: str  # in reports
    shapes: Shapes
    tables: Mapping[str, WeightsTable] = field(default_factory=dict)
    runs: Callable[[str], bool] = lambda name: True
    needed: Callable[[str], bool] | None = None
    ignored: tuple[str, ...] = ()  # prefixes of irrelevant names outside the list
    computed: tuple[str, ...] = ()

    def read(
        self, tensors: Mapping[str, torch.Tensor], where: str = "tensors"
    ) -> dict[str, Tensors]:
        """Return tensors of the list by part, in the internal form. Raises SchemaError."""
        parts: dict[str, Tensors] = {}
        for name, tensor in tensors.items():
            if name in self.computed:
                if not torch.equal(tensor.float(), powers_of_two(len(tensor))):
                    values = tensor.float().tolist()
                    raise SchemaError(f"{where}: tensor {name!r} is {values}; valid: 1, 2, 4, ...")
                continue
            places = ((part, table.inside(name)) for part, table in self.tables.items())
            part, inside = next((place for place in places if place[1] is not None), ("", None))
            if inside is None or inside in parts.setdefault(part, {}):
                raise SchemaError(f"{where}: tensor {name!r} has no place in the model.")
            parts[part][inside] = tensor
        return {part: self.tables[part].fit_inside(named) for part, named in parts.items()}

    def write(self, parts: Mapping[str, Tensors]) -> Tensors:
        """Return a model's tensors of the list under its names; others are omitted."""
        written = {}
        for part, table in self.tables.items():
            for name, tensor in table.fit_outside(parts.get(part, {})).items():
                outside = table.outside(name)
                if outside is not None:
                    written[outside] = tensor
        return written

    def live(self) -> dict[str, Shapes]:
        """Return the names and shapes that run of the list, by part of the internal form."""
        running = {n: s for n, s in self.shapes.items() if self.runs(n) and n not in self.computed}
        return {part: shapes_of(tensors) for part, tensors in self.read(meta(running)).items()}


def powers_of_two(count: int) -> torch.Tensor:
    """Return 1, 2, 4, ...: the frequencies of the ray encoding, stored by some layouts."""
    return 2.0 ** torch.arange(count, dtype=torch.float32)


def same(*stems: str) -> Pairs:
    """Return pairs of equal stems."""
    return [(stem, stem) for stem in stems]


def under(outside: str, inside: str, pairs: Pairs) -> Pairs:
    """Return pairs below a stem on each side."""
    return [(f"{outside}.{a}", f"{inside}.{b}") for a, b in pairs]


#: The patch embedding of the transformer, stored with the trained tensors.
PATCH_EMBEDDING = WeightsTable(same("patch_embedding"))

# --- the released layout ---

#: Common names of the released transformer and its re-packaging.
EMBEDDINGS = [
    *same("patch_embedding"),
    ("text_embedding.0", "condition_embedder.text_embedder.linear_1"),
    ("text_embedding.2", "condition_embedder.text_embedder.linear_2"),
    ("time_embedding.0", "condition_embedder.time_embedder.linear_1"),
    ("time_embedding.2", "condition_embedder.time_embedder.linear_2"),
    ("blocks.*.modulation", "blocks.*.scale_shift_table"),
]
_ATTENTION = [
    ("q", "to_q"), ("k", "to_k"), ("v", "to_v"), ("o", "to_out.0"), *same("norm_q", "norm_k")
]  # fmt: skip
#: The transformer, adapters included (their suffixes are the same).
TRUNK = WeightsTable(
    [
        *EMBEDDINGS,
        ("time_projection.1", "condition_embedder.time_proj"),
        *under("blocks.*.self_attn", "blocks.*.attn1", _ATTENTION),
        *under("blocks.*.cross_attn", "blocks.*.attn2", _ATTENTION),
        ("blocks.*.norm3", "blocks.*.norm2"),
        ("blocks.*.ffn.0", "blocks.*.ffn.net.0.proj"),
        ("blocks.*.ffn.2", "blocks.*.ffn.net.2"),
        ("head.modulation", "scale_shift_table"),
        ("head.head", "proj_out"),
        *same("ref_conv"),
    ]
)

#: The encoder of the video VAE.
VAE = WeightsTable(
    [
        ("encoder.conv1", "encoder.conv_in"),
        (f"{_DOWN}.2.resample.1", "encoder.down_blocks.*.downsampler.resample.1"),
        (f"{_DOWN}.2.time_conv", "encoder.down_blocks.*.downsampler.time_conv"),
        *under(f"{_DOWN}.*", "encoder.down_blocks.*.resnets.*", _VAE_RESIDUAL),
        *under("encoder.middle.0", "encoder.mid_block.resnets.0", _VAE_RESIDUAL),
        *under(
            "encoder.middle.1", "encoder.mid_block.attentions.0", same("norm", "to_qkv", "proj")
        ),
        *under("encoder.middle.2", "encoder.mid_block.resnets.1", _VAE_RESIDUAL),
        ("encoder.head.0", "encoder.norm_out"),
        ("encoder.head.2", "encoder.conv_out"),
        ("conv1", "quant_conv"),
    ]
)


def decoder(config: DecoderConfig, tap: int) -> WeightsTable:
    """Return the table of ``projectors``: the decoder of the features of block ``tap``."""
    layer = [("norm_q", "query_norm"), ("norm_kv", "context_norm"), ("cross_attn", "spatial")]
    rotary = [
        *same("norm1", "norm2"), ("mlp.0", "mlp.0"), ("mlp.3", "mlp.2"),
        ("q", "query"), ("k", "key"), ("v", "value"), ("proj", "output"),
    ]  # fmt: skip
    absolute = [
        *same("norm1", "norm2"), ("linear1", "mlp.0"), ("linear2", "mlp.2"),
        ("self_attn.out_proj", "output"), ("self_attn.in_proj_weight", "in_proj_weight"),
        ("self_attn.in_proj_bias", "in_proj_bias"),
    ]  # fmt: skip
    temporal = rotary if config.temporal_encoding == "rotary" else absolute
    encoder = [
        *same("hand_token", "joint_token", "register_token", "final_norm", "shape_norm"),
        ("readout_qnorm", "readout_query_norm"),
        ("readout_kvnorm", "readout_context_norm"),
        ("readout_attn", "readout"),
        *same("head_joint_3d"),
        *under("layers.*", "layers.*", layer),
        *under("layers.*.temporal", "layers.*.temporal", temporal),
    ]
    shape = "head_betas_hand" if config.shape_from == "hands" else "head_betas_segment"

    return WeightsTable(
        [
            ("spatial_pe_grid", "spatial_encoding"),
            ("latent_temporal_pe", "temporal_encoding"),
            ("slot_embed", "slot_embedding"),
            ("ray_pe.ray_proj", "ray_encoding.projection"),
            ("input_proj", "patch_projection"),
            *same("hand_fuse", "head_global_orient", "head_hand_pose"),
            ("head_cam_trans", "head_camera"),
            ("head_exists_2d", "head_visible"),
            ("head_exists_3d", "head_presence"),
            ("head_direct_wrist_cam", "head_wrist"),
            ("head_direct_joints_rootrel", "head_joints_relative"),
            ("head_direct_joints2d", "head_anchors"),
            (shape, "head_betas"),
            *((f"alternating_encoder.{a}", b) for a, b in encoder),
        ],
        prefix=f"l{tap}.",
        fused_outside="" if config.temporal_encoding == "rotary" else r"layers\.\d+\.temporal",
    )
