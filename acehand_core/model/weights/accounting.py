"""Sizes of a model read off the tensors of released files, and its parameters counted.

Every size is voted on by several tensors, so that one tensor of a wrong shape is reported as the
odd one out and does not mislead. What shapes cannot tell (numbers of heads, scale of the adapters)
comes from the base's ``config.json`` or is the released value, and is then noted.

Registered counts come from the lists of the released files, on the meta device; live counts from
what runs here. At the released sizes they are the paper's (appendix "Architecture").
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from acehand_core.errors import AcehandError, SchemaError
from acehand_core.model.config import DecoderConfig, ModelConfig, TrunkConfig, VaeConfig, Variant
from acehand_core.model.weights import official
from acehand_core.model.weights.state import state_shapes
from acehand_core.model.weights.tables import Shapes, meta

_DEFAULT_TAP = TrunkConfig().tap


def infer(
    variant: Variant, lists: Mapping[str, Shapes], base_config: Mapping[str, Any] | None = None
) -> tuple[ModelConfig, tuple[str, ...]]:
    """Return the sizes that the lists agree on, and notes on what was assumed.

    Args:
        lists: by the names of the released parts; parts without one keep the released sizes.
        base_config: the ``config.json`` of the base transformer.

    Raises:
        SchemaError: the sizes do not make a model.
    """
    base, tap, decoder = base_config or {}, None, DecoderConfig()

    try:
        if "projectors" in lists:
            taps = Counter(int(n) for n in _numbers(lists["projectors"], r"l(\d+)\."))
            tap = taps.most_common(1)[0][0] if taps else _DEFAULT_TAP
            decoder = _decoder(lists["projectors"], tap)
        config = ModelConfig(
            variant=variant,
            vae=_vae(lists["vae"]) if "vae" in lists else VaeConfig(),
            # The base comes last: where the two disagree, it is right.
            trunk=_trunk(lists.get("backbone_trainable", {}) | lists.get("dit", {}), base, tap),
            decoder=decoder,
        )
    except AcehandError as error:
        raise SchemaError(f"the tensors do not describe a model: {error}") from error

    notes = []
    if config.trunk.dim != TrunkConfig().dim and "num_heads" not in base:
        notes.append(f"{config.trunk.num_heads} heads of the transformer are assumed")
    if config.decoder.width != DecoderConfig().width:
        notes.append(f"{config.decoder.num_heads} heads of the decoder are assumed")
    return config, tuple(notes)


def _trunk(shapes: Shapes, base: Mapping[str, Any], tap: int | None) -> TrunkConfig:
    plain = TrunkConfig(tap=0)
    if not shapes:
        return replace(plain, tap=_DEFAULT_TAP if tap is None else tap)
    layers = 1 + max((int(n) for n in _numbers(shapes, r"blocks\.(\d+)\.")), default=0)
    norms = [(rf"blocks\.\d+\.{a}_attn\.norm_[qk]\.weight", 0) for a in ("self", "cross")]
    adapted = [(r"blocks\.\d+\..*_attn\..\.lora_B\.default\.weight", 0)]
    rank = _vote(shapes, [(r"blocks\.\d+\..*\.lora_A\.default\.weight", 0)], 0)
    head = [(r"head\.head\.bias", 0), (r"head\.head\.weight", 0)]
    cells = _vote(shapes, head, 4 * plain.out_channels)
    dim = _vote(shapes, [*norms, *adapted, (r"patch_embedding\..*", 0)], plain.dim)
    patch = [(r"patch_embedding\.weight", 1)]
    time = [(r"time_embedding\.0\.weight", 1)]
    feed = [(r"blocks\.\d+\.ffn\.0\.(bias|lora_B\.default\.weight)", 0)]
    dim = _given(base, "dim", dim)

    return TrunkConfig(
        dim=dim,
        ffn_dim=_given(base, "ffn_dim", _vote(shapes, feed, plain.ffn_dim)),
        num_heads=_given(base, "num_heads", max(1, dim * plain.num_heads // plain.dim)),
        num_layers=_given(base, "num_layers", layers),
        in_channels=_given(base, "in_dim", _vote(shapes, patch, plain.in_channels)),
        out_channels=_given(base, "out_dim", max(1, cells // 4)),
        text_dim=_vote(shapes, [(r"text_embedding\.0\.weight", 1)], plain.text_dim),
        text_length=_given(base, "text_len", plain.text_length),
        freq_dim=_given(base, "freq_dim", _vote(shapes, time, plain.freq_dim)),
        tap=min(_DEFAULT_TAP, layers - 1) if tap is None else tap,
        lora_rank=rank,
        lora_alpha=float(rank),
    )


def _vae(shapes: Shapes) -> VaeConfig:
    plain = VaeConfig()
    base = [(r"encoder\.conv1\.(weight|bias)", 0),
            (r"encoder\.downsamples\.0\.downsamples\.\d\.residual\.\d\..*", 0)]  # fmt: skip
    moments = [(r"conv1\.(weight|bias)", 0), (r"encoder\.head\.2\.(weight|bias)", 0)]
    return VaeConfig(
        base_dim=_vote(shapes, base, plain.base_dim),
        z_dim=_vote(shapes, moments, 2 * plain.z_dim) // 2,
    )


def _decoder(shapes: Shapes, tap: int) -> DecoderConfig:
    shapes = {name.removeprefix(f"l{tap}."): shape for name, shape in shapes.items()}
    plain, encoder = DecoderConfig(), r"alternating_encoder"
    width = _vote(shapes, [(rf"{encoder}\.(.*norm|layers\.\d+\.norm_k?[qv])\.(weight|bias)", 0)],
                  plain.width)  # fmt: skip
    wide = [(rf"{encoder}\.layers\.\d+\.temporal\.(mlp\.0|linear1)\.bias", 0)]
    layers = [int(n) for n in _numbers(shapes, rf"{encoder}\.layers\.(\d+)\.")]
    rotary = any(re.fullmatch(rf"{encoder}\.layers\.\d+\.temporal\.q\.weight", n) for n in shapes)

    return DecoderConfig(
        feature_dim=_vote(shapes, [(r"input_proj\.0\.weight", 1)], plain.feature_dim),
        width=width,
        num_heads=plain.num_heads,
        num_layers=1 + max(layers, default=plain.num_layers - 1),
        mlp_ratio=_vote(shapes, wide, plain.mlp_ratio * width) // width,
        num_registers=_vote(shapes, [(rf"{encoder}\.register_token", 1)], plain.num_registers),
        ray_frequencies=_vote(shapes, [(r"ray_pe\.freq_bands", 0)], plain.ray_frequencies),
        spatial_grid=_vote(shapes, [("spatial_pe_grid", 2)], plain.spatial_grid),
        spatial_encoding=any(name.startswith("spatial_pe") for name in shapes),
        queries="joint" if any("joint_token" in n or "readout" in n for n in shapes) else "pooled",
        temporal_encoding="rotary" if rotary else "absolute",
        max_latents=_vote(shapes, [("latent_temporal_pe", 1)], plain.max_latents),
    )


def _numbers(shapes: Iterable[str], pattern: str) -> list[str]:
    return [match[1] for name in shapes if (match := re.match(pattern, name))]


def _vote(shapes: Shapes, rules: list[tuple[str, int]], default: int) -> int:
    """Return the most frequent size along an axis of the tensors whose whole name matches."""
    sizes = Counter(
        shape[axis]
        for pattern, axis in rules
        for name, shape in shapes.items()
        if len(shape) > axis and re.fullmatch(pattern, name)
    )
    return sizes.most_common(1)[0][0] if sizes else default


def _given(base: Mapping[str, Any], name: str, default: int) -> int:
    value = base.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise SchemaError(f"config.json: {name} is {value!r}; a positive whole number is needed.")
    return value


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: a number of parameters in a number of tensors."""

    name: str
    parameters: int
    tensors: int
    what: str


@dataclass(frozen=True, slots=True)
class Accounting:
    """The table. Names are stable: a program may look rows up by them."""

    rows: tuple[Row, ...]

    def __getitem__(self, name: str) -> int:
        return {row.name: row.parameters for row in self.rows}[name]

    def to_json(self) -> dict[str, Any]:
        """Return plain types."""
        return {"rows": [asdict(row) for row in self.rows]}


def account(config: ModelConfig) -> Accounting:
    """Count a model that reads the transformer (``source`` "wan"); nothing is allocated."""
    trunk, decoder, tap = config.trunk, config.decoder, config.trunk.tap
    trained = official.backbone_trainable(trunk)
    lora = official.lora(trunk)
    patch = _where(trained, lambda name: name.startswith("patch_embedding."))
    head = official.dit_head(trunk)
    registered = _where(
        official.projectors(decoder, tap), lambda name: not name.endswith(official.RAY_FREQUENCIES)
    )
    used = _where(
        registered, lambda n: official.runs_in_projectors(n.removeprefix(f"l{tap}."), decoder)
    )
    rays = official.raymap_heads(decoder.feature_dim, tap)
    executed = _where(lora, lambda name: official.runs_in_dit(name, trunk))
    live = state_shapes(config)
    last = trunk.num_layers - 1

    return Accounting(
        (
            _row("dit", official.dit(trunk), f"base transformer, blocks 0 to {last}, and its head"),
            _row("vae_encoder", official.vae(config.vae), "video VAE, encoder and moments"),
            _row("patch_embedding", patch, "retrained"),
            _row("lora", lora, "adapters of all blocks"),
            _row("lora_executed", executed, f"adapters of blocks 0 to {tap}"),
            _row("decoder_registered", registered, "decoder with readouts that never run"),
            _row("decoder_used", used, "decoder as run"),
            _row("ray_head", rays, ""),
            _row("output_head", head, "the transformer's own, never reached"),
            _sum("optimiser", "given to the released optimiser",
                 lora, registered, patch, head, rays),
            _sum("reached_by_gradient", "able to learn, and all that learns here",
                 executed, used, patch, rays),
            _sum("live_trained", "held here with a gradient",
                 *(live[part] for part in ("adapters", "decoder", "ray_head") if part in live),
                 _where(live.get("trunk", {}), lambda name: name.startswith("patch_embedding."))),
            _sum("live", "held here in all, with the layers of the trunk's constants",
                 *live.values()),
        )
    )  # fmt: skip


def table(accounting: Accounting) -> list[str]:
    """Return the table as lines of text."""
    width = max(len(row.name) for row in accounting.rows)
    return [
        f"{row.name:<{width}}  {row.parameters:>13,}  {row.tensors:>4} tensors  {row.what}".rstrip()
        for row in accounting.rows
    ]


def _row(name: str, shapes: Shapes, what: str) -> Row:
    tensors = meta(shapes)
    return Row(name, sum(tensor.numel() for tensor in tensors.values()), len(tensors), what)


def _sum(name: str, what: str, *parts: Shapes) -> Row:
    rows = [_row("", part, "") for part in parts]
    return Row(name, sum(r.parameters for r in rows), sum(r.tensors for r in rows), what)


def _where(shapes: Shapes, keep: Callable[[str], bool]) -> Shapes:
    return {name: shape for name, shape in shapes.items() if keep(name)}
