"""Settings of a training run, composed by hydra; defaults are the paper's (section 3.4, appendix).

The text below a field is its documentation, listed in docs/training.md.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import GenericAlias
from typing import Any, Literal, get_args, get_origin, get_type_hints

from acehand_core.ace.labelled.clips.windows import WindowSettings
from acehand_core.ace.model import config as models
from acehand_core.ace.model.network import SolveOptions
from acehand_core.ace.training.losses import LossWeights
from acehand_core.errors import InputError, nearest
from acehand_core.user_files import structured

CONF = Path(__file__).with_name("conf")
#: Seeds of steps are derived from the run's and must stay below 2**64.
_SEEDS = 2**32


def _above_zero(default: Any) -> Any:
    return field(default=default, metadata={"above": 0})


def _from_zero(default: Any) -> Any:
    return field(default=default, metadata={"least": 0})


class _Checked:
    """Settings with ranges. Raises InputError for a number out of its range."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for f in fields(self):  # type: ignore[arg-type]
            value = getattr(self, f.name)
            if "above" in f.metadata and not 0 < value < math.inf:
                raise InputError(f"{f.name} is {value}; above 0, finite.")
            if "least" in f.metadata and not 0 <= value < math.inf:
                raise InputError(f"{f.name} is {value}; 0 or more, finite.")


@dataclass(frozen=True, slots=True)
class StartConfig:
    """Initial weights."""

    weights: str | None = None
    """Whole model: acehand's format, released or re-packaged."""
    base: str | None = None
    """Folder of the released transformer, to start from the backbone alone."""
    vae: str | None = None
    """File of the released video encoder."""
    caption: str | None = None
    """File of the embedded caption."""
    random: bool = False
    """Random backbone, for measurements and tests."""


@dataclass(frozen=True, slots=True)
class SolverConfig:
    """Placement of hands during training; see ``SolveOptions``."""

    bearings: models.BearingSource = "intrinsics"
    """Source of bearings: given intrinsics, the ray field, or a lens fitted to it."""
    solve: models.SolveKind = "mixed"
    """Placement from bearings."""
    fallback: models.Fallback = "released"
    """Placement of a rejected hand: as in the released code or as in the paper."""
    fit_guards: models.FitGuards = "excess"
    """Guards that a fitted pinhole must pass: the paper's two, or a third too."""
    ray_cells: models.RayCells = "centres"
    """Position of ray-field cells; the released code reads outer ones on the edges."""

    def options(self) -> SolveOptions:
        """Return the model's options."""
        return SolveOptions(**asdict(self))


@dataclass(frozen=True, slots=True)
class OptimConfig(_Checked):
    """AdamW with three learning rates, warm-up and cosine decay (appendix "Optimization").

    A resumed run must keep ``clips_per_process`` times ``processes`` times ``accumulation``.
    """

    steps: int = _above_zero(20_000)
    """Steps of the whole run."""
    warmup_steps: int = _from_zero(200)
    """Steps of linear warm-up."""
    lr_decoder: float = _above_zero(2e-4)
    """Rate of decoder, heads and all other parts trained from scratch."""
    lr_lora: float = _above_zero(1e-4)
    """Rate of the adapters."""
    lr_patch_embedding: float = _above_zero(2e-5)
    """Rate of the transformer's patch embedding."""
    weight_decay: float = _from_zero(1e-2)
    """Weight decay of all trained parameters."""
    beta1: float = 0.9
    """Decay of AdamW's first moment."""
    beta2: float = 0.999
    """Decay of AdamW's second moment."""
    gradient_clip: float = _above_zero(1.0)
    """Largest norm of a step's gradient."""
    max_skipped: int = _from_zero(10)
    """Consecutive steps that may be skipped for a gradient that is not finite."""
    clips_per_process: int = _above_zero(4)
    """Clips per process and part."""
    processes: int = _above_zero(16)
    """Processes that must be running."""
    accumulation: int = _above_zero(1)
    """Parts of a process's share of a step, computed one after the other."""
    precision: models.Precision = "bfloat16"
    """Precision of the frozen backbone; trained parameters are float32."""
    checkpointing: bool = True
    """Recompute the activations of blocks: less memory, more time."""

    def __post_init__(self) -> None:
        _Checked.__post_init__(self)
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; from 0 to below 1.")
        if self.warmup_steps > self.steps:
            raise InputError(
                f"warmup_steps is {self.warmup_steps} of optim.steps {self.steps}; valid: up to "
                "that many."
            )

    @property
    def batch(self) -> int:
        """Clips per step over all processes."""
        return self.clips_per_process * self.processes * self.accumulation


@dataclass(frozen=True, slots=True)
class SourceConfig(_Checked):
    """A dataset to train or validate on."""

    root: str | None = None
    """Folder of its store of clips."""
    weight: float = _from_zero(1.0)
    """Share of the steps, relative to the other sources; 0 leaves it out."""
    encode_width: int = _from_zero(0)
    """Width of encoded pictures, rounded to whole tokens; 0 keeps the stored one."""


@dataclass(frozen=True, slots=True)
class DataConfig(_Checked):
    """Training data. Every source needs a ``root`` unless its weight is 0."""

    sources: dict[str, SourceConfig] = field(default_factory=dict)
    """The datasets, by name."""
    window: WindowSettings = field(default_factory=WindowSettings)
    """Windows cut out of a clip, see `acehand_core/ace/labelled/clips/windows.py`."""
    workers: int = _from_zero(4)
    """Processes that read ahead."""
    latent_cache: str | None = None
    """Folder of encoded recordings, for feature sources that read latents."""
    leave_out: list[str] | None = None
    """Clips to leave out, each as SOURCE/CLIP."""

    def __post_init__(self) -> None:
        _Checked.__post_init__(self)
        for name in self.leave_out or ():
            if name.partition("/")[0] not in self.sources:
                raise InputError(
                    f"leave_out: {name!r}; valid: SOURCE/CLIP with a source of {[*self.sources]}."
                )

    def used(self) -> dict[str, SourceConfig]:
        """Return the sources with a weight. Raises InputError for one without a root."""
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
class ValidationConfig(_Checked):
    """Windows of other recordings, scored by the distance of wrist-aligned joints."""

    sources: dict[str, SourceConfig] = field(default_factory=dict)
    """The datasets, by name; one without a root is left out."""
    every: int = _above_zero(500)
    """Steps between validations."""
    windows: int = _above_zero(32)
    """Windows, drawn once per run."""


@dataclass(frozen=True, slots=True)
class LogConfig(_Checked):
    """Logs, besides TensorBoard's."""

    every: int = _above_zero(10)
    """Steps between lines of metrics.jsonl."""
    wandb: bool = False
    """Log to wandb too; needs the package."""


@dataclass(frozen=True, slots=True)
class CheckpointConfig(_Checked):
    """Checkpoints to keep: the newest, and the best by validation."""

    every: int = _above_zero(500)
    """Steps between checkpoints."""
    keep_last: int = _above_zero(2)
    """Number of newest checkpoints to keep."""
    keep_best: int = _from_zero(1)
    """Number of best checkpoints to keep."""
    whole: bool = False
    """Store the whole model in each, in acehand's format, with the frozen backbone."""


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """A whole run."""

    name: str = "standard"
    """Name of the run in logs."""
    seed: int = 0
    """Seed of all random numbers."""
    run: str = "runs/standard"
    """Folder of the run; an existing run resumes from its newest checkpoint."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device; auto prefers a GPU."""
    hand: models.TrainedHand = "mano"
    """Hand model of the learned rotations."""
    mano: str | None = None
    """Folder of MANO_LEFT.pkl and MANO_RIGHT.pkl, for hand mano."""
    left_shapedirs_fixed: bool = False
    """Correct MANO's left shape directions; left shapes of other sources are not supervised."""
    start: StartConfig = field(default_factory=StartConfig)
    model: models.ModelConfig = field(default_factory=models.ModelConfig)
    """Sizes of the model and its feature source, see `acehand_core/ace/model/config.py`."""
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


# --- hydra and OmegaConf, imported on use -----------------------------------------------------


def compose(overrides: Sequence[str]) -> TrainConfig:
    """Return the settings of the given overrides, as on the command line. Raises InputError."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    register()
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            return checked(hydra_compose("config", list(overrides)))
    except (HydraException, OmegaConfBaseException) as error:
        raise readable(error) from error


def register() -> None:
    """Register the schema with hydra; conf/config.yaml starts from it."""
    from hydra.core.config_store import ConfigStore

    # "+data.sources.NAME.root=FOLDER" starts from an empty group, which a typed group rejects.
    ConfigStore.instance().store(name="schema", node=schema(TrainConfig, named_groups=False))


def schema(kind: type, named_groups: bool = True) -> type:
    """Return a settings class that OmegaConf 2.3 can read, with the same names and defaults.

    It has no Literal, which becomes the type of its values, and is not frozen. ``named_groups``:
    type groups with names chosen by the user (``data.sources``) too.
    """
    hints = get_type_hints(kind)
    rows = []
    for f in fields(kind):
        hint = hints[f.name]
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            group = schema(hint, named_groups)
            rows.append((f.name, group, field(default_factory=group)))
            continue
        if get_origin(hint) is Literal:
            hint = type(get_args(hint)[0])
        elif get_origin(hint) is dict:
            hint = GenericAlias(dict, (str, schema(get_args(hint)[1]) if named_groups else Any))
        rows.append((f.name, hint, field(default=f.default, default_factory=f.default_factory)))
    return dataclasses.make_dataclass(kind.__name__, rows)


def checked(composed: Any) -> TrainConfig:
    """Return hydra's composed settings, checked. Raises InputError, SchemaError."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        plain = OmegaConf.to_container(composed, resolve=True)
        typed = OmegaConf.merge(OmegaConf.structured(schema(TrainConfig)), plain)
        return structured(TrainConfig, OmegaConf.to_container(typed, resolve=True), "settings")
    except OmegaConfBaseException as error:
        raise readable(error) from error


def readable(error: Exception) -> InputError:
    """Return an error of hydra or OmegaConf as one line with the valid names."""
    from omegaconf import errors

    # hydra wraps OmegaConf's errors and drops the cause from the text.
    inner = error if isinstance(error, errors.OmegaConfBaseException) else error.__cause__
    if not isinstance(inner, errors.OmegaConfBaseException):
        text = str(error).partition("Config search path")[0]
        return InputError(f"configuration: {' '.join(text.split())}")

    name, text = inner.full_key or "", str(inner).partition("\n")[0]
    if isinstance(inner, errors.ConfigKeyError | errors.ConfigAttributeError):
        names = {str(key) for key in inner.parent_node or ()}
        if "." not in name and inner is not error:  # an override may also choose a file of conf/
            names |= {path.name for path in CONF.iterdir() if path.is_dir()}
        new = f" To add it: +{name}.root=FOLDER." if name.split(".")[-2:-1] == ["sources"] else ""
        return InputError(f"unknown setting {name!r}; {nearest(str(inner.key), names)}{new}")
    if "is not a subclass" in text or "Cannot merge" in text:
        text = "a group of settings is needed"
    elif "Optional" in text or "'None'" in text:
        text = "null; a value is needed"
    return InputError(f"{name}: {text.rstrip('.')}.")
