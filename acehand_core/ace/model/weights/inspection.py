"""Contents of weights: counts, and checks of names, shapes and precisions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from acehand_core.ace.model.config import AS_RELEASED, InferenceConfig, ModelConfig, Variant
from acehand_core.ace.model.weights import official, official_files, own, repackaged, state, sums
from acehand_core.ace.model.weights.load import Layout, detect, find_checkpoint
from acehand_core.ace.model.weights.storage import TensorStore, store_of
from acehand_core.ace.model.weights.tables import Shapes
from acehand_core.safe_files import content_sha256

_MODELS = ("acehand", "repackaged", "official")


@dataclass(frozen=True, slots=True)
class Part:
    """One list of tensors."""

    name: str
    where: str
    tensors: int
    parameters: int
    dtypes: dict[str, int]
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WeightsInspection:
    """The contents of a path."""

    layout: Layout
    config: ModelConfig | None
    licence: str
    parts: tuple[Part, ...]
    report: state.LoadReport
    #: Problems beyond single tensors.
    others: tuple[str, ...] = ()
    #: Of a whole model; None if not recorded.
    trained_on: state.TrainingData = None
    inference: InferenceConfig = AS_RELEASED

    @property
    def problems(self) -> list[str]:
        """One sentence per problem."""
        return [*self.report.problems, *self.others]

    @property
    def variant(self) -> str | None:
        """The variant; None for a piece that serves both."""
        return self.config.variant if self.config and self.layout in _MODELS else None

    def to_json(self) -> dict[str, Any]:
        """Return plain types."""
        return {
            "layout": self.layout,
            "variant": self.variant,
            "tap": self.config.trunk.tap if self.config and self.variant else None,
            "config": asdict(self.config) if self.config else None,
            "licence": self.licence,
            "training_data": state.training_to_json(self.trained_on),
            "inference": asdict(self.inference),
            "parts": [asdict(part) for part in self.parts],
            "report": self.report.to_json(),
            "problems": self.problems,
        }


def inspect(path: Path, variant: Variant | None = None) -> WeightsInspection:
    """Inspect a path without reading values. Raises InputError, SchemaError or UnsafeFileError."""
    layout = detect(path)
    if layout == "acehand":
        manifest = own.read_manifest(path)
        stores, reports = own.open_own(manifest)
        caption = path / own.CAPTION_FILE
        if caption.name in manifest.files:
            stores[caption.name] = _caption_store(caption)
        report = state.LoadReport(tuple(reports.values()), manifest.filled)
        return WeightsInspection(
            layout,
            manifest.config,
            manifest.licence,
            _parts(stores),
            report,
            others=tuple(own.unlisted_files(manifest)),
            trained_on=manifest.training_data,
            inference=manifest.inference,
        )

    if layout == "repackaged":
        variant = repackaged.find_variant(path, variant)
        config, stores, reports = repackaged.open_repackaged(path, variant)
        stores["caption"] = _caption_store(path / repackaged.CAPTION_FILE)
        report = state.LoadReport(tuple(reports.values()))
        return WeightsInspection(
            layout,
            config,
            sums.RELEASED,
            _parts(stores),
            report,
            trained_on=state.RELEASED_TRAINING,
        )

    if layout == "official":
        return _checkpoint(find_checkpoint(path, variant))
    return _piece(path, layout)


def damaged(inspection: WeightsInspection, path: Path) -> list[str]:
    """Read every file; name those with another SHA-256 than in ``config.json`` or our record."""
    if inspection.layout == "acehand":
        files = own.read_manifest(path).files
        stated = {str(path / name): entry["sha256"] for name, entry in files.items()}
    else:
        stated = sums.sha256s({f: Path(f) for part in inspection.parts for f in part.files})
    wrong = [file for file, digest in stated.items() if content_sha256(Path(file)) != digest]
    return [f"{file}: SHA-256 is not {stated[file]}: damaged or changed." for file in wrong]


def _checkpoint(path: Path) -> WeightsInspection:
    opened = official_files.open_checkpoint(path)
    # The contents do not depend on the variant.
    variant: Variant = "kfree" if opened.variant == "kfree" else "k"
    config = official_files.checkpoint_config(opened, variant)
    reports = state.compare(official_files.released_sections(config, opened.parts), opened.parts)
    keys = state.ComponentReport("checkpoint", str(path), ignored=opened.ignored)
    licence = str(opened.record.get("licence") or sums.CHECKPOINT)
    report = state.LoadReport((keys, *reports.values()))
    trained_on, inference = opened.recorded()

    return WeightsInspection(
        "official",
        config,
        licence,
        _parts(opened.parts),
        report,
        trained_on=trained_on,
        inference=inference,
    )


def _piece(path: Path, layout: Layout) -> WeightsInspection:
    if layout == "caption":
        parts = _parts({"caption": _caption_store(path)})
        return WeightsInspection(layout, None, sums.BASE, parts, state.LoadReport())

    opened: dict[str, TensorStore] = {}
    if layout == "wan-base":
        opened["dit"] = official_files.open_base(path)
        if (path / official_files.VAE_FILE).is_file():
            opened["vae"] = official_files.open_vae(path / official_files.VAE_FILE)
    else:
        opened["vae"] = official_files.open_vae(path)
    config = ModelConfig()
    report = state.LoadReport(
        tuple(state.compare(official_files.released_sections(config, opened), opened).values())
    )
    return WeightsInspection(layout, config, sums.BASE, _parts(opened), report)


def _caption_store(path: Path) -> TensorStore:
    caption = {official_files.CAPTION_KEY: official_files.read_caption(path)}
    return store_of(caption, str(path), (path,))


def _parts(stores: Mapping[str, TensorStore]) -> tuple[Part, ...]:
    return tuple(
        Part(
            name.removesuffix(".safetensors").removesuffix("/model"),
            store.where,
            len(store.shapes),
            sum(math.prod(shape) for shape in store.shapes.values()),
            dict(sorted(Counter(store.dtypes.values()).items())),
            tuple(map(str, store.files)),
        )
        for name, store in stores.items()
    )


@dataclass(frozen=True, slots=True)
class ModuleRow:
    """One line of the table: a number of parameters in a number of tensors."""

    name: str
    parameters: int
    tensors: int
    what: str


def account(config: ModelConfig) -> dict[str, ModuleRow]:
    """Count the parameters of a model with ``source`` "wan", by name; nothing is allocated.

    Registered counts come from the lists of the released files, live counts from the running
    modules. At the released sizes they are the paper's (appendix "Architecture").
    """
    trunk, decoder, tap = config.trunk, config.decoder, config.trunk.tap
    trained = official.backbone_trainable(trunk)
    lora = official.lora(trunk)
    patch = _where(trained, lambda name: name.startswith(official.PATCH))
    head, stem = official.dit_head(trunk), f"l{tap}."
    registered = official.projectors(decoder, tap)
    registered = _where(registered, lambda name: not name.endswith(official.RAY_FREQUENCIES))
    used = _where(registered, lambda n: official.runs_in_projectors(n.removeprefix(stem), decoder))
    rays = official.raymap_heads(decoder.feature_dim, tap)
    executed = _where(lora, lambda name: official.runs_in_dit(name, trunk))
    live = state.state_shapes(config)
    learned = [live[part] for part in ("adapters", "decoder", "ray_head") if part in live]
    learned.append(_where(live.get("trunk", {}), lambda name: name.startswith(official.PATCH)))
    last = trunk.num_layers - 1

    rows = (
        _row("dit", f"base transformer, blocks 0 to {last}, and its head", official.dit(trunk)),
        _row("vae_encoder", "video VAE, encoder and moments", official.vae(config.vae)),
        _row("patch_embedding", "retrained", patch),
        _row("lora", "adapters of all blocks", lora),
        _row("lora_executed", f"adapters of blocks 0 to {tap}", executed),
        _row("decoder_registered", "decoder with readouts that never run", registered),
        _row("decoder_used", "decoder as run", used),
        _row("ray_head", "", rays),
        _row("output_head", "the transformer's own, never reached", head),
        _row("optimiser", "in the released optimiser", lora, registered, patch, head, rays),
        _row("reached_by_gradient", "trainable, all trained here", executed, used, patch, rays),
        _row("live_trained", "trained in the running model", *learned),
        _row("live", "running model with the layers of the trunk's constants", *live.values()),
    )
    return {row.name: row for row in rows}


def table(rows: Mapping[str, ModuleRow]) -> list[str]:
    """Return the table as lines of text."""
    width = max(map(len, rows))
    return [
        f"{row.name:<{width}}  {row.parameters:>13,}  {row.tensors:>4} tensors  {row.what}".rstrip()
        for row in rows.values()
    ]


def _row(name: str, what: str, *parts: Shapes) -> ModuleRow:
    parameters = sum(math.prod(shape) for part in parts for shape in part.values())
    return ModuleRow(name, parameters, sum(map(len, parts)), what)


def _where(shapes: Shapes, keep: Callable[[str], bool]) -> Shapes:
    return {name: shape for name, shape in shapes.items() if keep(name)}
