"""The parameters of a model counted.

Registered counts come from the lists of the released files, on the meta device; live counts from
what runs here. At the released sizes they are the paper's (appendix "Architecture").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from acehand_core.ace.model.config import ModelConfig
from acehand_core.ace.model.weights import official
from acehand_core.ace.model.weights.state import state_shapes
from acehand_core.ace.model.weights.tables import Shapes, meta


@dataclass(frozen=True, slots=True)
class ModuleRow:
    """One line of the table: a number of parameters in a number of tensors."""

    name: str
    parameters: int
    tensors: int
    what: str


@dataclass(frozen=True, slots=True)
class Accounting:
    """The table. Names are stable: a program may look rows up by them."""

    rows: tuple[ModuleRow, ...]

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


def _row(name: str, shapes: Shapes, what: str) -> ModuleRow:
    tensors = meta(shapes)
    return ModuleRow(name, sum(tensor.numel() for tensor in tensors.values()), len(tensors), what)


def _sum(name: str, what: str, *parts: Shapes) -> ModuleRow:
    rows = [_row("", part, "") for part in parts]
    return ModuleRow(name, sum(r.parameters for r in rows), sum(r.tensors for r in rows), what)


def _where(shapes: Shapes, keep: Callable[[str], bool]) -> Shapes:
    return {name: shape for name, shape in shapes.items() if keep(name)}
