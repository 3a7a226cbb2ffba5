"""What weights hold, counted, and whether names, shapes and precisions are right."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from acehand_core.ace.model.config import AS_RELEASED, InferenceConfig, ModelConfig, Variant
from acehand_core.ace.model.weights import official, own, repackaged, sums
from acehand_core.ace.model.weights.load import Layout, detect, find_checkpoint
from acehand_core.ace.model.weights.official_files import (
    CAPTION_KEY,
    VAE_FILE,
    checkpoint_config,
    open_base,
    open_checkpoint,
    open_vae,
    read_caption,
    released_sections,
)
from acehand_core.ace.model.weights.state import (
    RELEASED_TRAINING,
    ComponentReport,
    LoadReport,
    TrainingData,
    compare,
    state_shapes,
    training_to_json,
)
from acehand_core.ace.model.weights.storage import TensorStore, store_of
from acehand_core.ace.model.weights.tables import Shapes, meta


@dataclass(frozen=True, slots=True)
class Part:
    """One list of tensors of what was looked at."""

    name: str
    where: str
    tensors: int
    parameters: int
    dtypes: dict[str, int]


@dataclass(frozen=True, slots=True)
class WeightsInspection:
    """What a path holds."""

    layout: Layout
    config: ModelConfig | None
    licence: str
    parts: tuple[Part, ...]
    report: LoadReport
    #: What is wrong beyond single tensors.
    others: tuple[str, ...] = ()
    #: Of a whole model; None where it was not recorded.
    trained_on: TrainingData = None
    #: How to run it; what is not recorded is as released.
    inference: InferenceConfig = AS_RELEASED

    @property
    def problems(self) -> list[str]:
        """A sentence for everything that is not right."""
        return [*self.report.problems, *self.others]

    @property
    def variant(self) -> str | None:
        """Which configuration it serves; None for a piece that serves both."""
        return self.config.variant if self.config and self.layout in _MODELS else None

    def to_json(self) -> dict[str, Any]:
        """Return plain types."""
        return {
            "layout": self.layout,
            "variant": self.variant,
            "tap": self.config.trunk.tap if self.config and self.variant else None,
            "config": self.config.to_json() if self.config else None,
            "licence": self.licence,
            "training_data": training_to_json(self.trained_on),
            "inference": self.inference.to_json(),
            "parts": [asdict(part) for part in self.parts],
            "report": self.report.to_json(),
            "problems": self.problems,
        }


_MODELS = ("acehand", "repackaged", "official")


def inspect(path: Path, variant: Variant | None = None) -> WeightsInspection:
    """Look at a path without reading values.

    Raises InputError, SchemaError or UnsafeFileError when it is nothing known or cannot be opened.
    """
    layout = detect(path)
    if layout == "acehand":
        return _own(path)
    if layout == "repackaged":
        return _repackaged(path, variant)
    if layout == "official":
        return _checkpoint(find_checkpoint(path, variant))
    return _piece(path, layout)


def _own(path: Path) -> WeightsInspection:
    manifest = own.read_manifest(path)
    stores, reports = own.open_own(manifest)
    caption = path / own.CAPTION_FILE
    if caption.name in manifest.files:
        stores[caption.name] = _caption_store(caption)
    return WeightsInspection(
        "acehand", manifest.config, manifest.licence, _parts(stores),
        LoadReport(tuple(reports.values()), manifest.filled),
        tuple(own.unlisted_files(manifest)), manifest.training_data, manifest.inference,
    )  # fmt: skip


def _repackaged(path: Path, variant: Variant | None) -> WeightsInspection:
    variant = repackaged.find_variant(path, variant)
    config, stores, reports = repackaged.open_repackaged(path, variant)
    stores["caption"] = _caption_store(path / repackaged.CAPTION_FILE)
    return WeightsInspection(
        "repackaged", config, sums.RELEASED, _parts(stores), LoadReport(tuple(reports.values())),
        trained_on=RELEASED_TRAINING,
    )  # fmt: skip


def _checkpoint(path: Path) -> WeightsInspection:
    opened = open_checkpoint(path)
    # Which variant it is does not change what it holds; one is needed.
    variant: Variant = "kfree" if opened.variant == "kfree" else "k"
    config = checkpoint_config(opened, variant)
    reports = compare(released_sections(config, opened.parts), opened.parts)
    keys = ComponentReport("checkpoint", str(path), ignored=opened.ignored)
    training, inference = opened.recorded()
    return WeightsInspection(
        "official", config, str(opened.record.get("licence") or sums.CHECKPOINT),
        _parts(opened.parts), LoadReport((keys, *reports.values())), trained_on=training,
        inference=inference,
    )  # fmt: skip


def _piece(path: Path, layout: Layout) -> WeightsInspection:
    if layout == "caption":
        parts = _parts({"caption": _caption_store(path)})
        return WeightsInspection(layout, None, sums.BASE, parts, LoadReport())

    opened: dict[str, TensorStore] = {}
    if layout == "wan-base":
        opened["dit"] = open_base(path)
        if (path / VAE_FILE).is_file():
            opened["vae"] = open_vae(path / VAE_FILE)
    else:
        opened["vae"] = open_vae(path)
    config = ModelConfig()
    report = LoadReport(tuple(compare(released_sections(config, opened), opened).values()))
    return WeightsInspection(layout, config, sums.BASE, _parts(opened), report)


def _caption_store(path: Path) -> TensorStore:
    return store_of({CAPTION_KEY: read_caption(path)}, str(path))


def _parts(stores: Mapping[str, TensorStore]) -> tuple[Part, ...]:
    return tuple(
        Part(
            name.removesuffix(".safetensors").removesuffix("/model"),
            store.where,
            len(store.shapes),
            sum(math.prod(shape) for shape in store.shapes.values()),
            dict(sorted(Counter(store.dtypes.values()).items())),
        )
        for name, store in stores.items()
    )


# The parameters of a model counted.
#
# Registered counts come from the lists of the released files, on the meta device; live counts from
# what runs here. At the released sizes they are the paper's (appendix "Architecture").


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
