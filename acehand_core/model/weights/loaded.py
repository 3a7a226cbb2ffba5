"""The tensors of one model under the running model's names, whatever layout they came from.

What strict loading found: missing, unexpected, wrong, and unused by design.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float

from acehand_core.errors import SchemaError
from acehand_core.model.config import AS_RELEASED, InferenceConfig, ModelConfig
from acehand_core.model.weights import layouts, official
from acehand_core.model.weights.layouts import Tensors
from acehand_core.model.weights.storage import TensorStore, store_of
from acehand_core.model.weights.training_data import TrainingData

#: Precisions that a tensor of the model may be stored in.
FLOATING = ("bfloat16", "float16", "float32", "float64")
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class ComponentReport:
    """One list of tensors against one file.

    ``unused`` stand in the list of the layout and are not part of the model; ``ignored`` are
    outside the list and known to be of no use (the VAE's decoder, other keys of a checkpoint).
    ``wrong`` says per tensor what its shape or type is and what it should be.
    """

    component: str
    where: str
    read: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    wrong: tuple[tuple[str, str], ...] = ()
    unused: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    @property
    def problems(self) -> list[str]:
        """One sentence per tensor that is not as it should be."""
        out = []
        for name in self.missing:
            close = difflib.get_close_matches(name, self.unexpected, n=1)
            hint = f" (is it {close[0]!r}?)" if close else ""
            out.append(f"tensor {name!r} is missing{hint}")
        out += [f"tensor {name!r} is unexpected" for name in self.unexpected]
        return out + [f"tensor {name!r} {text}" for name, text in self.wrong]

    def require(self) -> ComponentReport:
        """Return itself, or raise SchemaError naming the file and the tensors."""
        problems = self.problems
        if problems:
            more = len(problems) - _SHOWN
            tail = f"; and {more} more" if more > 0 else ""
            text = "; ".join(problems[:_SHOWN])
            raise SchemaError(f"{self.where}: {self.component}: {text}{tail}.")
        return self


@dataclass(frozen=True, slots=True)
class LoadReport:
    """Everything that was looked at to load one model.

    ``filled`` are tensors of the running model that the layout has no place for; they hold their
    initial values. ``notes`` are sentences on what was assumed.
    """

    components: tuple[ComponentReport, ...] = ()
    filled: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def problems(self) -> list[str]:
        """All problems, each with its file."""
        return [f"{c.where}: {c.component}: {text}" for c in self.components for text in c.problems]

    def to_json(self) -> dict[str, Any]:
        """Return plain types; tensors that were read are counted, the others named."""
        parts = [{**asdict(c), "read": len(c.read)} for c in self.components]
        return {"components": parts, "filled": list(self.filled), "notes": list(self.notes)}


def check(
    component: str,
    where: str,
    shapes: Mapping[str, tuple[int, ...]],
    dtypes: Mapping[str, str],
    expected: Mapping[str, tuple[int, ...]],
    *,
    runs: Callable[[str], bool] = lambda name: True,
    required: Callable[[str], bool] = lambda name: True,
    ignored: Callable[[str], bool] = lambda name: False,
) -> ComponentReport:
    """Compare what a file holds with a list.

    Args:
        shapes, dtypes: by name, as found.
        expected: the list.
        runs: which names of the list are part of the model.
        required: which names of the list may not be missing.
        ignored: which names outside the list are of no use and no harm.
    """
    wrong = []
    for name in sorted(shapes.keys() & expected.keys()):
        if tuple(shapes[name]) != tuple(expected[name]):
            wrong.append((name, f"has shape {_size(shapes[name])}, not {_size(expected[name])}"))
        elif dtypes[name] not in FLOATING:
            wrong.append((name, f"is {dtypes[name]}; valid: {', '.join(FLOATING)}"))
    outside = sorted(shapes.keys() - expected.keys())
    present = sorted(shapes.keys() & expected.keys())
    return ComponentReport(
        component=component,
        where=where,
        read=tuple(name for name in present if runs(name)),
        missing=tuple(n for n in expected if n not in shapes and required(n)),
        unexpected=tuple(name for name in outside if not ignored(name)),
        wrong=tuple(wrong),
        unused=tuple(name for name in present if not runs(name)),
        ignored=tuple(name for name in outside if ignored(name)),
    )


def _size(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "scalar"


Caption = Float[torch.Tensor, "tokens text"]
_MEMORY = "tensors in memory"
_PATCH = "patch_embedding."


@dataclass(frozen=True, slots=True)
class LoadedWeights:
    """Only what runs: blocks after the tap and readouts that are never used are not here.

    A part is None when its source lacks it. ``trunk`` has diffusers' names and includes
    ``condition_embedder.*``; ``vae`` holds the encoder; ``adapters`` have peft's names; ``caption``
    is the text embedding of the one caption, (valid tokens, text width). Precisions are as stored.
    """

    config: ModelConfig
    vae: Tensors | None = None
    trunk: Tensors | None = None
    adapters: Tensors | None = None
    decoder: Tensors | None = None
    ray_head: Tensors | None = None
    caption: Caption | None = None
    report: LoadReport = field(default_factory=LoadReport)
    licence: str = ""
    #: SHA-256 by file name, of every file that was read.
    sha256s: dict[str, str] = field(default_factory=dict)
    #: The whole source "tiny".
    tiny: Tensors | None = None
    #: None where it was not recorded.
    training_data: TrainingData = None
    inference: InferenceConfig = AS_RELEASED

    def parts(self) -> dict[str, Tensors]:
        """Return the parts that are there, by name; the caption is not among them."""
        found = {name: getattr(self, name) for name in PARTS}
        return {name: tensors for name, tensors in found.items() if tensors is not None}

    def cast(self, dtype: torch.dtype) -> LoadedWeights:
        """Return the weights with the frozen parts in another precision.

        What was trained (adapters, patch embedding, decoder, ray head) keeps its own.
        """

        def frozen(tensors: Tensors | None) -> Tensors | None:
            if tensors is None:
                return None
            return {n: t if n.startswith(_PATCH) else t.to(dtype) for n, t in tensors.items()}

        return replace(self, vae=frozen(self.vae), trunk=frozen(self.trunk))


#: The parts of ``LoadedWeights`` that are dicts of tensors.
PARTS = ("vae", "trunk", "adapters", "decoder", "ray_head", "tiny")


@dataclass(frozen=True, slots=True)
class OfficialStores:
    """Opened released files, by the names of the released parts."""

    dit: TensorStore | None = None
    vae: TensorStore | None = None
    projectors: TensorStore | None = None
    raymap_heads: TensorStore | None = None
    backbone_trainable: TensorStore | None = None
    caption: Caption | None = None


def from_official_tensors(
    config: ModelConfig,
    dit: Mapping[str, Any] | None = None,
    vae: Mapping[str, Any] | None = None,
    projectors: Mapping[str, Any] | None = None,
    raymap_heads: Mapping[str, Any] | None = None,
    backbone_trainable: Mapping[str, Any] | None = None,
    caption: Caption | None = None,
) -> LoadedWeights:
    """Return a model's weights from tensors in memory under the released names.

    A part that is None stays None. Tensors that do not run may be absent; unknown names and wrong
    shapes are errors. ``patch_embedding`` of ``backbone_trainable`` replaces that of ``dit``.

    Raises:
        SchemaError: names each missing, unexpected or wrong tensor.
    """

    def store(tensors: Mapping[str, Any] | None, name: str) -> TensorStore | None:
        return None if tensors is None else store_of(tensors, f"{_MEMORY}, {name}")

    stores = OfficialStores(
        store(dit, "dit"), store(vae, "vae"), store(projectors, "projectors"),
        store(raymap_heads, "raymap_heads"), store(backbone_trainable, "backbone_trainable"),
        caption,
    )  # fmt: skip
    return assemble(config, stores, complete=False)


def assemble(config: ModelConfig, stores: OfficialStores, complete: bool = True) -> LoadedWeights:
    """Check every list, then read what runs. ``complete`` also demands what does not run."""
    reports = compare(config, stores, complete)
    for report in reports.values():
        report.require()
    tap = config.trunk.tap
    read = {part: getattr(stores, part).read(r.read) for part, r in reports.items()}
    trunk = adapters = decoder = ray_head = vae = None
    trained = layouts.trunk_from_official(read.get("backbone_trainable", {}))
    if stores.dit is not None:
        patch = {name: t for name, t in trained.items() if name.startswith(_PATCH)}
        trunk = layouts.trunk_from_official(read["dit"]) | patch
    if stores.backbone_trainable is not None and config.trunk.lora_rank:
        adapters = {name: t for name, t in trained.items() if not name.startswith(_PATCH)}
    if stores.vae is not None:
        vae = layouts.vae_from_official(read["vae"])
    if stores.projectors is not None:
        _check_ray_frequencies(stores.projectors, tap, read["projectors"])
        decoder = layouts.decoder_from_official(config.decoder, read["projectors"], tap)
    if stores.raymap_heads is not None:
        ray_head = layouts.ray_head_from_official(read["raymap_heads"], tap)
    if stores.caption is not None:
        check_caption(config, stores.caption, _MEMORY)
    return LoadedWeights(
        config, vae, trunk, adapters, decoder, ray_head, stores.caption,
        LoadReport(tuple(reports.values())),
    )  # fmt: skip


def compare(
    config: ModelConfig, stores: OfficialStores, complete: bool = True
) -> dict[str, ComponentReport]:
    """Return the report of every part that is there; nothing is read."""
    trunk, decoder, tap = config.trunk, config.decoder, config.trunk.tap
    trained = stores.backbone_trainable
    replaced = trained is not None and f"{_PATCH}weight" in trained.shapes

    def runs_in_base(name: str) -> bool:
        return official.runs_in_dit(name, trunk) and not (replaced and name.startswith(_PATCH))

    def runs_in_decoder(name: str) -> bool:
        return official.runs_in_projectors(name.removeprefix(f"l{tap}."), decoder)

    def needed_of_trained(name: str) -> bool:
        return official.runs_in_dit(name, trunk) and not name.startswith(_PATCH)

    rules = {
        "dit": (official.dit(trunk), runs_in_base, runs_in_base),
        "vae": (official.vae(config.vae), _all, _all),
        "projectors": (official.projectors(decoder, tap), runs_in_decoder, runs_in_decoder),
        "raymap_heads": (official.raymap_heads(decoder.feature_dim, tap), _all, _all),
        "backbone_trainable": (
            official.backbone_trainable(trunk),
            lambda name: official.runs_in_dit(name, trunk),
            needed_of_trained,
        ),
    }
    out = {}
    for part, (expected, runs, needed) in rules.items():
        store = getattr(stores, part)
        if store is None:
            continue
        ignored = _vae_decoder if part == "vae" else _none
        out[part] = check(
            part, store.where, store.shapes, store.dtypes, expected,
            runs=runs, required=_all if complete else needed, ignored=ignored,
        )  # fmt: skip
    return out


def check_caption(config: ModelConfig, caption: torch.Tensor, where: str) -> None:
    """Raise SchemaError for a text embedding of another size."""
    most, width = config.trunk.text_length, config.trunk.text_dim
    if caption.ndim != 2 or caption.shape[1] != width or not 1 <= len(caption) <= most:
        raise SchemaError(
            f"{where}: caption embedding of shape {tuple(caption.shape)}; (n, {width}) with n from "
            f"1 to {most} is needed."
        )


def _check_ray_frequencies(store: TensorStore, tap: int, read: Tensors) -> None:
    # The running decoder computes them, so a file with others would be another model.
    name = f"l{tap}.{official.RAY_FREQUENCIES}"
    if name in read:
        found = read[name].float()
        if not torch.equal(found, 2.0 ** torch.arange(len(found))):
            raise SchemaError(
                f"{store.where}: tensor {name!r} is {found.tolist()}; 1, 2, 4, ... is needed."
            )


def _all(name: str) -> bool:
    return True


def _none(name: str) -> bool:
    return False


def _vae_decoder(name: str) -> bool:
    return name.startswith(official.VAE_DECODER_PREFIXES)
