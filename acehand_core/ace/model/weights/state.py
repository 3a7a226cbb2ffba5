"""The internal form of a model's weights, and reports of strict loading.

Internally weights are parts by name, tensors under the names of the running modules
(``state_shapes``), one caption embedding, and the training data. External layouts are converted on
reading and (except the re-packaging) writing, by the tables of their ``WeightsSection`` lists
(``tables``):

- ``official``, ``official_files``: the released checkpoints and their base;
- ``repackaged``: the safetensors re-packaging of them;
- ``own``: our folder, with the names of the running modules.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch
from jaxtyping import Float

from acehand_core.ace.model.config import AS_RELEASED, InferenceConfig, ModelConfig
from acehand_core.ace.model.encoder.sources import TRUNK_SOURCES, TinySource
from acehand_core.ace.model.weights import official
from acehand_core.ace.model.weights.storage import TensorStore, store_of
from acehand_core.ace.model.weights.tables import Shapes, Tensors, WeightsSection, shapes_of
from acehand_core.errors import SchemaError
from acehand_core.user_files import structured

#: The parts that are dicts of tensors.
PARTS = ("vae", "trunk", "adapters", "decoder", "ray_head", "tiny")
#: Valid precisions of stored tensors.
FLOATING = ("bfloat16", "float16", "float32", "float64")
_SHOWN = 8

Caption = Float[torch.Tensor, "tokens text"]

#: "real": pictures of people; "synthetic": rendered pictures; "unknown": not recorded.
Kind = Literal["real", "synthetic", "unknown"]


@dataclass(frozen=True, slots=True)
class ComponentReport:
    """One list of tensors compared with one file.

    ``unused`` are listed in the layout but not part of the model; ``ignored`` are outside the list
    and known to be irrelevant (the VAE's decoder, other keys of a checkpoint). ``wrong`` pairs a
    tensor with the error in its shape or type.
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
        """One sentence per wrong tensor."""
        sentences = []
        for name in self.missing:
            close = difflib.get_close_matches(name, self.unexpected, n=1)
            hint = f" (is it {close[0]!r}?)" if close else ""
            sentences.append(f"tensor {name!r} is missing{hint}")
        sentences += [f"tensor {name!r} is unexpected" for name in self.unexpected]
        return sentences + [f"tensor {name!r} {text}" for name, text in self.wrong]

    def require(self) -> None:
        """Raise SchemaError naming the file and the wrong tensors."""
        if problems := self.problems:
            text, more = "; ".join(problems[:_SHOWN]), len(problems) - _SHOWN
            tail = f"; and {more} more" if more > 0 else ""
            raise SchemaError(f"{self.where}: {self.component}: {text}{tail}.")


@dataclass(frozen=True, slots=True)
class LoadReport:
    """The reports of loading a model; ``filled`` are initialised tensors that the layout lacks."""

    components: tuple[ComponentReport, ...] = ()
    filled: tuple[str, ...] = ()

    @property
    def problems(self) -> list[str]:
        """All problems, each with its file."""
        return [f"{c.where}: {c.component}: {text}" for c in self.components for text in c.problems]

    def to_json(self) -> dict[str, Any]:
        """Return plain types; tensors that were read are counted, the others named."""
        parts = [{**asdict(c), "read": len(c.read)} for c in self.components]
        return {"components": parts, "filled": list(self.filled)}


@dataclass(frozen=True, slots=True)
class LoadedWeights:
    """The tensors that run, without blocks after the tap and unused readouts.

    A part is None if its source lacks it. ``trunk`` has diffusers' names and includes
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
        """Return the available parts by name, without the caption."""
        parts = {name: getattr(self, name) for name in PARTS}
        return {name: tensors for name, tensors in parts.items() if tensors is not None}

    def part(self, name: str) -> Tensors:
        """Return a required part. Raises SchemaError."""
        tensors: Tensors | None = getattr(self, name)
        if tensors is None:
            raise SchemaError(f"the weights have no {name}.")
        return tensors

    def record(self) -> dict[str, Any]:
        """Return sizes, licence, training data and run settings as plain types."""
        return {
            "config": asdict(self.config),
            "licence": self.licence,
            "training_data": training_to_json(self.training_data),
            "inference": asdict(self.inference),
        }


def state_shapes(config: ModelConfig) -> dict[str, Shapes]:
    """Return every name and shape, by part, of a model with this feature source.

    Derived from the lists of the released files and their tables; the trunk ends at its tap and
    includes the layers of its constants. ``test_weights_lists.py``
    compares them with the running modules.
    """
    sections = official.sections(config, retrained=False)
    wan = config.source in TRUNK_SOURCES
    parts: dict[str, Shapes] = {}
    if wan or config.source == "vae_latent":
        parts |= sections["vae"].live()
    if wan:
        parts |= sections["dit"].live()
    if config.source == "wan" and config.trunk.lora_rank:
        parts["adapters"] = sections["backbone_trainable"].live()["adapters"]
    if config.source == "tiny":
        with torch.device("meta"):
            parts["tiny"] = shapes_of(TinySource(config.tiny).state_dict())
    return parts | sections["projectors"].live() | sections["raymap_heads"].live()


def check(section: WeightsSection, store: TensorStore, complete: bool = True) -> ComponentReport:
    """Compare a file with a list; without ``complete`` only needed tensors are required."""
    needed = section.needed or section.runs
    present = sorted(store.shapes.keys() & section.shapes.keys())
    outside = sorted(store.shapes.keys() - section.shapes.keys())
    absent = (name for name in section.shapes if name not in store.shapes)
    wrong = []
    for name in present:
        shape, expected = tuple(store.shapes[name]), tuple(section.shapes[name])
        if shape != expected:
            wrong.append((name, f"has shape {_size(shape)}, not {_size(expected)}"))
        elif store.dtypes[name] not in FLOATING:
            wrong.append((name, f"is {store.dtypes[name]}; valid: {', '.join(FLOATING)}"))

    return ComponentReport(
        component=section.component,
        where=store.where,
        read=tuple(name for name in present if section.runs(name)),
        missing=tuple(name for name in absent if complete or needed(name)),
        unexpected=tuple(name for name in outside if not name.startswith(section.ignored)),
        wrong=tuple(wrong),
        unused=tuple(name for name in present if not section.runs(name)),
        ignored=tuple(name for name in outside if name.startswith(section.ignored)),
    )


def _size(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "scalar"


def compare(
    sections: Mapping[str, WeightsSection], stores: Mapping[str, TensorStore], complete: bool = True
) -> dict[str, ComponentReport]:
    """Return the report of every list with an open file, without reading values."""
    opened = {name: section for name, section in sections.items() if name in stores}
    return {name: check(section, stores[name], complete) for name, section in opened.items()}


def read_parts(
    sections: Mapping[str, WeightsSection],
    stores: Mapping[str, TensorStore],
    reports: Mapping[str, ComponentReport],
) -> dict[str, Tensors]:
    """Check all reports, then return a model's parts; later lists win. Raises SchemaError."""
    for report in reports.values():
        report.require()

    parts: dict[str, Tensors] = {}
    for name, report in reports.items():
        tensors = stores[name].read(report.read)
        for part, canonical in sections[name].read(tensors, stores[name].where).items():
            parts[part] = parts.get(part, {}) | canonical
    return parts


def check_parts(parts: Mapping[str, Tensors], shapes: Mapping[str, Shapes]) -> None:
    """Raise SchemaError naming each missing, unexpected or wrong tensor of a running model."""
    for part in PARTS:
        store = store_of(parts.get(part, {}), "the model")
        check(WeightsSection(part, shapes.get(part, {})), store).require()


def check_caption(config: ModelConfig, caption: torch.Tensor, where: str) -> None:
    """Raise SchemaError for a text embedding of another size."""
    most, width = config.trunk.text_length, config.trunk.text_dim
    if caption.ndim != 2 or caption.shape[1] != width or not 1 <= len(caption) <= most:
        shape = tuple(caption.shape)
        raise SchemaError(f"{where}: caption shape {shape}; valid: (1 to {most}, {width}).")


@dataclass(frozen=True, slots=True)
class TrainingSource:
    """A dataset that a model was trained on.

    ``store_sha256`` is the hash of the store's ``store.json``, ``clips_sha256`` that of the files
    of all its clips; both are empty for datasets known by name only.
    """

    name: str
    kind: Kind
    store_sha256: str = ""
    clips_sha256: str = ""
    clips: int = 0
    license: str = ""

    def __str__(self) -> str:
        extent = f", {self.clips} clips" if self.clips else ""
        store = f", store {self.store_sha256[:12]}" if self.store_sha256 else ""
        return f"{self.name} ({self.kind}{extent}{store})"


#: None: not recorded.
TrainingData = tuple[TrainingSource, ...] | None

#: Of files in a released layout without our record.
RELEASED_TRAINING: TrainingData = (TrainingSource("ACE-Ego-Hand release", "real"),)


def training_kind(data: TrainingData) -> Kind:
    """Return "real" if any dataset is, "synthetic" if all are, else "unknown"."""
    kinds = {source.kind for source in data or ()}
    if "real" in kinds:
        return "real"
    return "synthetic" if kinds == {"synthetic"} else "unknown"


def join_training(*parts: Iterable[TrainingSource]) -> TrainingData:
    """Return the distinct datasets of several trainings in order."""
    return tuple(dict.fromkeys(source for part in parts for source in part))


def describe_training(data: TrainingData) -> str:
    """Return the training data in one line."""
    return f"trained on: {'; '.join(map(str, data or ())) or 'not recorded'}"


def training_to_json(data: TrainingData) -> list[dict[str, Any]] | None:
    """Return plain values for ``training_from_json``."""
    return None if data is None else [asdict(source) for source in data]


def training_from_json(value: Any, where: str) -> TrainingData:
    """Return what ``training_to_json`` wrote; None in older files. Raises SchemaError."""
    if value is None:
        return None
    return structured(tuple[TrainingSource, ...], value, f"{where}: training_data")


def read_record(record: Any, where: str) -> tuple[TrainingData, InferenceConfig]:
    """Return training data and run settings, by default the release's. Raises SchemaError."""
    if not record:
        return RELEASED_TRAINING, AS_RELEASED
    training = training_from_json(record.get("training_data"), where)
    return training, InferenceConfig.from_json(record.get("inference"), f"{where}: inference")
