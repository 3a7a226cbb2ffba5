"""The settings of a training run: dataclasses that are checked when they are built.

The defaults are the paper's standard configuration (section 3.4, appendix "Implementation
Details"). The text below a field is its documentation: docs/training.md has the table of all of
them. ``compose.py`` makes hydra's schema of these classes; nothing here knows hydra.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from acehand_core.ace.labelled.clips.windows import WindowSettings
from acehand_core.ace.model.config import (
    BearingSource,
    Fallback,
    FitGuards,
    ModelConfig,
    Precision,
    RayCells,
    SolveKind,
    TrainedHand,
)
from acehand_core.ace.model.network import SolveOptions
from acehand_core.ace.training.losses import LossWeights
from acehand_core.errors import InputError

#: Seeds of the steps are made from it and must stay below 2**64.
_SEEDS = 2**32


def _above_zero(default: Any) -> Any:
    return field(default=default, metadata={"above": 0})


def _from_zero(default: Any) -> Any:
    return field(default=default, metadata={"least": 0})


def _check(settings: Any) -> None:
    """Raise InputError for a number that is out of its range."""
    for f in fields(settings):
        value = getattr(settings, f.name)
        if "above" in f.metadata and not 0 < value < math.inf:
            raise InputError(f"{f.name} is {value}; above 0, finite.")
        if "least" in f.metadata and not 0 <= value < math.inf:
            raise InputError(f"{f.name} is {value}; 0 or more, finite.")


@dataclass(frozen=True, slots=True)
class StartConfig:
    """Where training starts."""

    weights: str | None = None
    """A whole model to start from: own format, released or re-packaged."""
    base: str | None = None
    """Folder of the released transformer, for a start from the backbone alone."""
    vae: str | None = None
    """File of the released video encoder."""
    caption: str | None = None
    """File of the embedded caption."""
    random: bool = False
    """The backbone gets random numbers; for measuring and for tests."""


@dataclass(frozen=True, slots=True)
class SolverConfig:
    """How hands are placed during training; see ``SolveOptions``."""

    bearings: BearingSource = "intrinsics"
    """Where bearings come from: given intrinsics, the ray field, or a lens fitted to it."""
    solve: SolveKind = "mixed"
    """How a hand is placed by them."""
    fallback: Fallback = "released"
    """Where a refused hand lies: as in the released code, or as the paper has it."""
    fit_guards: FitGuards = "excess"
    """Which fitted pinholes place hands: by the paper's two guards, or by a third one too."""
    ray_cells: RayCells = "centres"
    """Where cells of the ray field are read; the released code reads outer ones on the edges."""

    def options(self) -> SolveOptions:
        """Return the model's own options."""
        return SolveOptions(**asdict(self))


@dataclass(frozen=True, slots=True)
class OptimConfig:
    """AdamW in three groups of learning rates, warm-up, cosine (appendix "Optimization").

    ``clips_per_process`` times ``processes`` times ``accumulation`` is the effective batch. A run
    on another number of processes must keep that product.
    """

    steps: int = _above_zero(20_000)
    """Steps of the whole run."""
    warmup_steps: int = _from_zero(200)
    """Steps over which the rates grow linearly."""
    lr_decoder: float = _above_zero(2e-4)
    """Rate of decoder, heads and whatever starts from scratch."""
    lr_lora: float = _above_zero(1e-4)
    """Rate of the adapters."""
    lr_patch_embedding: float = _above_zero(2e-5)
    """Rate of the transformer's patch embedding."""
    weight_decay: float = _from_zero(1e-2)
    """Decay of all that learns."""
    beta1: float = 0.9
    """Decay of AdamW's first moment."""
    beta2: float = 0.999
    """Decay of AdamW's second moment."""
    gradient_clip: float = _above_zero(1.0)
    """Largest norm of a step's gradient."""
    max_skipped: int = _from_zero(10)
    """Steps in a row that may be skipped for a gradient that is not finite; one more ends it."""
    clips_per_process: int = _above_zero(4)
    """Clips that one process holds at a time."""
    processes: int = _above_zero(16)
    """Processes that must be running."""
    accumulation: int = _above_zero(1)
    """Parts that a process's share of a step is cut into, one after the other."""
    precision: Precision = "bfloat16"
    """Of the frozen backbone; what learns is float32."""
    checkpointing: bool = True
    """Activations of blocks are computed again instead of kept: less memory, more time."""

    def __post_init__(self) -> None:
        _check(self)
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; from 0 to below 1.")
        if self.warmup_steps > self.steps:
            raise InputError(
                f"warmup_steps is {self.warmup_steps} of optim.steps {self.steps}; that many or "
                "fewer."
            )

    @property
    def batch(self) -> int:
        """Clips per step over all processes."""
        return self.clips_per_process * self.processes * self.accumulation


@dataclass(frozen=True, slots=True)
class SourceConfig:
    """One dataset that is trained on, or validated on."""

    root: str | None = None
    """Folder of its store of clips."""
    weight: float = _from_zero(1.0)
    """Share of the steps, relative to the other sources; 0 leaves it out."""
    encode_width: int = _from_zero(0)
    """Width that its pictures are encoded at, rounded to whole tokens; 0 keeps the stored one."""

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True, slots=True)
class DataConfig:
    """What is trained on. A source of weight 0 is left out; every other one needs its ``root``."""

    sources: dict[str, SourceConfig] = field(default_factory=dict)
    """The datasets, by name."""
    window: WindowSettings = field(default_factory=WindowSettings)
    """What is cut out of a clip, see `acehand_core/ace/labelled/clips/windows.py`."""
    workers: int = _from_zero(4)
    """Processes that read ahead."""
    latent_cache: str | None = None
    """Folder of encoded recordings, for sources of features that read latents."""
    leave_out: list[str] | None = None
    """Clips that are not trained on, each as SOURCE/CLIP."""

    def __post_init__(self) -> None:
        _check(self)
        for name in self.leave_out or ():
            if name.partition("/")[0] not in self.sources:
                raise InputError(
                    f"leave_out: {name!r}; valid: SOURCE/CLIP with a source of {[*self.sources]}."
                )

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
    """Windows of other recordings, judged by the distance of wrist-aligned joints."""

    sources: dict[str, SourceConfig] = field(default_factory=dict)
    """The datasets, by name; without a root a source is left out."""
    every: int = _above_zero(500)
    """Steps between validations."""
    windows: int = _above_zero(32)
    """Windows, drawn once for the whole run."""

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True, slots=True)
class LogConfig:
    """What is written while a run lasts; TensorBoard's files always are."""

    every: int = _above_zero(10)
    """Steps between lines of metrics.jsonl."""
    wandb: bool = False
    """Write to wandb too, where it is installed."""

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """What is kept of a run: the newest checkpoints, and the best by validation."""

    every: int = _above_zero(500)
    """Steps between checkpoints."""
    keep_last: int = _above_zero(2)
    """How many of the newest stay."""
    keep_best: int = _from_zero(1)
    """How many of the best by validation stay."""
    whole: bool = False
    """Each holds the whole model in our weights format, the frozen backbone included."""

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """A whole run."""

    name: str = "standard"
    """Name of the run in logs."""
    seed: int = 0
    """Of all that is drawn."""
    run: str = "runs/standard"
    """Folder of the run; given again, it resumes from its newest checkpoint."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train; auto takes a GPU if there is one."""
    hand: TrainedHand = "mano"
    """Hand model whose rotations are learned."""
    mano: str | None = None
    """Folder of MANO_LEFT.pkl and MANO_RIGHT.pkl, for hand mano."""
    left_shapedirs_fixed: bool = False
    """MANO's left shape directions are corrected; left shapes of other sources teach nothing."""
    start: StartConfig = field(default_factory=StartConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    """Sizes of the model and its source of features, see `acehand_core/ace/model/config.py`."""
    solver: SolverConfig = field(default_factory=SolverConfig)
    losses: LossWeights = field(default_factory=LossWeights)
    optim: OptimConfig = field(default_factory=OptimConfig)
    data: DataConfig = field(default_factory=DataConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    log: LogConfig = field(default_factory=LogConfig)
    checkpoints: CheckpointConfig = field(default_factory=CheckpointConfig)

    def __post_init__(self) -> None:
        if not 0 <= self.seed < _SEEDS:
            raise InputError(f"seed is {self.seed}; valid: 0 to {_SEEDS - 1}.")
        if not self.run.strip():
            raise InputError("run is empty; give run=FOLDER.")
        if self.solver.bearings != "intrinsics":
            return

        if self.model.variant == "kfree":
            raise InputError(
                "solver.bearings is 'intrinsics' with model.variant 'kfree'; valid: pinhole, rays, "
                "radial."
            )

        if self.losses.fit > 0:
            raise InputError(
                f"losses.fit is {self.losses.fit} with solver.bearings 'intrinsics', which fit no "
                "pinhole; set losses.fit=0, or use experiment=kfree."
            )

    def to_json(self) -> dict[str, Any]:
        """Return plain types."""
        return asdict(self)
