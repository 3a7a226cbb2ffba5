"""What a training run is made of. Checked when it is built, before anything is loaded.

Field by field as ``acehand-train --cfg job`` prints it. The defaults are the paper's standard
configuration (section 3.4, appendix "Implementation Details"). hydra composes these; nothing below
the entry point knows it.
"""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

from acehand_core.datasets.clips.windows import WindowSettings
from acehand_core.errors import InputError, nearest
from acehand_core.model.config import ModelConfig
from acehand_core.model.network import SolveOptions
from acehand_core.training.losses import LossWeights

_CHOICES = {
    "bearings": ("intrinsics", "rays", "pinhole", "radial"),
    "solve": ("mixed", "rigid", "inverse", "direct"),
    "fallback": ("released", "paper"),
    "fit_guards": ("paper", "excess"),
    "ray_cells": ("edges", "centres"),
    "precision": ("bfloat16", "float32"),
    "parallel": ("ddp", "fsdp"),
    "hand": ("mano", "acehand"),
    "device": ("auto", "cpu", "cuda"),
}
#: Seeds of the steps are made from it and must stay below 2**64.
_SEEDS = 2**32


def _choose(where: str, name: str, value: str) -> None:
    if value not in _CHOICES[name]:
        full = f"{where}.{name}" if where else name
        raise InputError(f"{full} is {value!r}; {nearest(value, _CHOICES[name])}")


def _positive(where: str, config: Any, *names: str, zero: bool = False) -> None:
    for name in names:
        value = getattr(config, name)
        full = f"{where}.{name}" if where else name
        if not (0 < value < math.inf or (zero and value == 0)):
            raise InputError(f"{full} is {value}; {'0 or more' if zero else 'above 0'}, finite.")


@dataclass(frozen=True, slots=True)
class StartConfig:
    """Where training starts.

    Attributes:
        weights: a whole model to go on from (own format, released or re-packaged), or null.
        base, vae, caption: pieces of the released backbone, for a start from scratch.
        random: the backbone gets random numbers; for measuring and for tests.
    """

    weights: str | None = None
    base: str | None = None
    vae: str | None = None
    caption: str | None = None
    random: bool = False


@dataclass(frozen=True, slots=True)
class SolverConfig:
    """How hands are placed during training; see ``model.SolveOptions``.

    The released code reads rays with their outer cells on the "edges"; they are taught at their
    centres, and read there unless it is to be repeated.
    """

    bearings: str = "intrinsics"
    solve: str = "mixed"
    fallback: str = "released"
    fit_guards: str = "excess"
    ray_cells: str = "centres"

    def __post_init__(self) -> None:
        for f in fields(self):
            _choose("solver", f.name, getattr(self, f.name))

    def options(self) -> SolveOptions:
        """Return the model's own options."""
        return SolveOptions(**asdict(self))


@dataclass(frozen=True, slots=True)
class OptimConfig:
    """AdamW in three groups of learning rates, warm-up, cosine (appendix "Optimization").

    ``clips_per_process`` of ``processes`` times ``accumulation`` make the effective batch. A run on
    another number of processes must keep that product: ``accumulation`` is there for it.
    ``parallel``: every process holds the whole model ("ddp") or a share of it ("fsdp").
    """

    steps: int = 20_000
    warmup_steps: int = 200
    lr_decoder: float = 2e-4
    lr_lora: float = 1e-4
    lr_patch_embedding: float = 2e-5
    weight_decay: float = 1e-2
    beta1: float = 0.9
    beta2: float = 0.999
    gradient_clip: float = 1.0
    clips_per_process: int = 4
    processes: int = 16
    accumulation: int = 1
    precision: str = "bfloat16"
    parallel: str = "ddp"
    checkpointing: bool = True

    def __post_init__(self) -> None:
        _choose("optim", "precision", self.precision)
        _choose("optim", "parallel", self.parallel)
        _positive("optim", self, "steps", "lr_decoder", "lr_lora", "lr_patch_embedding",
                  "gradient_clip", "clips_per_process", "processes", "accumulation")  # fmt: skip
        _positive("optim", self, "warmup_steps", "weight_decay", zero=True)
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"optim.{name} is {getattr(self, name)}; from 0 to below 1.")
        if self.warmup_steps > self.steps:
            raise InputError(
                f"optim.warmup_steps is {self.warmup_steps} of optim.steps {self.steps}; that many "
                "or fewer."
            )

    @property
    def batch(self) -> int:
        """Clips per step over all processes."""
        return self.clips_per_process * self.processes * self.accumulation


@dataclass(frozen=True, slots=True)
class SourceConfig:
    """One dataset: a store of clips, its weight, and the width its pictures are encoded at.

    ``encode_width`` 0 keeps the stored size; sides are rounded to whole tokens.
    """

    root: str | None = None
    weight: float = 1.0
    encode_width: int = 0

    def __post_init__(self) -> None:
        _positive("", self, "weight", "encode_width", zero=True)


@dataclass(frozen=True, slots=True)
class DataConfig:
    """What is trained on. A source of weight 0 is left out; every other one needs its ``root``."""

    sources: dict[str, SourceConfig] = field(default_factory=dict)
    window: WindowSettings = field(default_factory=WindowSettings)
    workers: int = 4
    latent_cache: str | None = None

    def __post_init__(self) -> None:
        _positive("data", self, "workers", zero=True)

    def used(self) -> dict[str, SourceConfig]:
        """Return the sources that take part. Raises InputError where a root is missing."""
        used = {name: source for name, source in self.sources.items() if source.weight > 0}
        missing = [name for name, source in used.items() if not source.root]
        if missing or not used:
            raise InputError(
                f"data.sources: no root for {', '.join(missing) or 'any source'}; give "
                f"data.sources.{missing[0] if missing else 'NAME'}.root=FOLDER of a store of "
                "clips, or weight=0 to leave it out."
            )
        return used


@dataclass(frozen=True, slots=True)
class ValidationConfig:
    """Windows of other recordings; none without ``sources``.

    They are judged by the distance of wrist-aligned joints, and the losses are written too.
    """

    sources: dict[str, SourceConfig] = field(default_factory=dict)
    every: int = 500
    windows: int = 32

    def __post_init__(self) -> None:
        _positive("validation", self, "every", "windows")


@dataclass(frozen=True, slots=True)
class LogConfig:
    """TensorBoard always, wandb where it is installed and asked for; pictures every so often."""

    every: int = 10
    pictures_every: int = 1000
    pictures: int = 4
    wandb: bool = False

    def __post_init__(self) -> None:
        _positive("log", self, "every", "pictures_every", "pictures")


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """Every so many steps; the newest ``keep_last`` and the ``keep_best`` by validation stay.

    ``whole``: each holds the whole model in our weights format, the frozen backbone included. Else
    it holds what learns; ``weights/`` is written at the end, and ``acehand weights export RUN``
    makes them of any checkpoint.
    """

    every: int = 500
    keep_last: int = 2
    keep_best: int = 1
    whole: bool = False

    def __post_init__(self) -> None:
        _positive("checkpoints", self, "every", "keep_last")
        _positive("checkpoints", self, "keep_best", zero=True)


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """A whole run. ``model`` are the fields of ``weights.config.ModelConfig``."""

    name: str = "standard"
    seed: int = 0
    #: Folder of the run; the same one again goes on from its newest checkpoint.
    run: str = "runs/standard"
    device: str = "auto"
    hand: str = "mano"
    #: Folder of MANO_LEFT.pkl and MANO_RIGHT.pkl, for hand "mano".
    mano: str | None = None
    #: Which left shape directions MANO has; left shapes of sources of the other kind are not used.
    left_shapedirs_fixed: bool = False
    start: StartConfig = field(default_factory=StartConfig)
    model: dict[str, Any] = field(default_factory=lambda: ModelConfig().to_json())
    solver: SolverConfig = field(default_factory=SolverConfig)
    losses: LossWeights = field(default_factory=LossWeights)
    optim: OptimConfig = field(default_factory=OptimConfig)
    data: DataConfig = field(default_factory=DataConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    log: LogConfig = field(default_factory=LogConfig)
    checkpoints: CheckpointConfig = field(default_factory=CheckpointConfig)

    def __post_init__(self) -> None:
        _choose("", "hand", self.hand)
        _choose("", "device", self.device)
        if not 0 <= self.seed < _SEEDS:
            raise InputError(f"seed is {self.seed}; valid: 0 to {_SEEDS - 1}.")
        if not self.run.strip():
            raise InputError("run is empty; give run=FOLDER.")
        for f in fields(self.losses):
            value = getattr(self.losses, f.name)
            if isinstance(value, float) and not math.isfinite(value):
                raise InputError(f"losses.{f.name} is {value}; a finite number is needed.")
        model = self.model_config()
        if self.solver.bearings == "intrinsics" and model.variant == "kfree":
            raise InputError(
                "solver.bearings is 'intrinsics' with model.variant 'kfree'; valid: pinhole, rays, "
                "radial."
            )
        if self.losses.fit > 0 and self.solver.bearings == "intrinsics":
            raise InputError(
                f"losses.fit is {self.losses.fit} with solver.bearings 'intrinsics', which fit no "
                "pinhole; set losses.fit=0, or use experiment=kfree."
            )

    def model_config(self) -> ModelConfig:
        """Return the model's sizes. Raises SchemaError naming the field."""
        return ModelConfig.from_json(dict(self.model), "model")

    def to_json(self) -> dict[str, Any]:
        """Return plain types."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> TrainConfig:
        """Return a configuration of plain types. Raises InputError naming field and valid value."""
        return _read(cls, data, "")


def _read(kind: type, data: Any, where: str) -> Any:
    """Build a dataclass of a mapping, checking names and types all the way down."""
    if not isinstance(data, Mapping):
        raise InputError(f"{where or 'configuration'}: {data!r}; a group of settings is needed.")
    hints, values = get_type_hints(kind), {}
    for name, value in data.items():
        full = f"{where}.{name}" if where else str(name)
        if name not in hints:
            raise InputError(f"unknown setting {full!r}; {nearest(str(name), hints)}")
        values[name] = _value(hints[name], value, full)
    try:
        return kind(**values)
    except InputError as error:
        if kind not in (SourceConfig, WindowSettings):
            raise
        # These know their own fields, not where they stand.
        raise InputError(f"{where}.{error}") from error


def _value(hint: Any, value: Any, where: str) -> Any:
    if is_dataclass(hint):
        return _read(hint, value, where)
    if get_origin(hint) is dict:
        if not isinstance(value, Mapping):
            raise InputError(f"{where}: {value!r}; a group of settings is needed.")
        inner = get_args(hint)[1]
        return {str(k): _value(inner, v, f"{where}.{k}") for k, v in value.items()}
    if hint is Any:
        return value
    kinds = get_args(hint) if get_origin(hint) is types.UnionType else (hint,)
    if float in kinds and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not any(type(value) is kind for kind in kinds):
        names = " or ".join("null" if k is type(None) else k.__name__ for k in kinds)
        raise InputError(f"{where}: {value!r} is not of type {names}.")
    return value
