"""Settings of a training run, composed by hydra; defaults are the paper's (section 3.4, appendix).

The texts of the fields are listed in docs/training.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from copy import copy
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from types import GenericAlias
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from acehand_core.ace.labelled.clips.windows import WindowSettings
from acehand_core.ace.model import config as models
from acehand_core.ace.training.losses import LossWeights
from acehand_core.errors import InputError, nearest
from acehand_core.settings import group, setting
from acehand_core.user_files import Count, Text, Valid, structured

CONF = Path(__file__).with_name("conf")
#: Seeds of steps are derived from the run's and must stay below 2**64.
_Seed = Annotated[int, Valid(f"0 to {2**32 - 1}", lambda value: 0 <= value < 2**32)]
#: The released code reads outer cells of the ray field on the edges.
_SOLVER = models.SolveOptions(ray_cells="centres")


_Whole = Annotated[int, Valid("a whole number above 0", lambda value: value > 0)]
_Positive = Annotated[float, Valid("a number above 0", lambda value: value > 0)]
_FromZero = Annotated[float, Valid("a number, 0 or more", lambda value: value >= 0)]
_Decay = Annotated[float, Valid("a number from 0 to below 1", lambda value: 0 <= value < 1)]


@dataclass(frozen=True, slots=True)
class StartConfig:
    """Initial weights."""

    weights: str | None = setting(None, "Whole model: acehand's format, released or re-packaged.")
    base: str | None = setting(
        None, "Folder of the released transformer, to start from the backbone alone."
    )
    vae: str | None = setting(None, "File of the released video encoder.")
    caption: str | None = setting(None, "File of the embedded caption.")
    random: bool = setting(False, "Random backbone, for measurements and tests.")


@dataclass(frozen=True, slots=True)
class OptimConfig:
    """AdamW with three learning rates, warm-up and cosine decay (appendix "Optimization").

    A resumed run must keep ``clips_per_process`` times ``processes`` times ``accumulation``.
    """

    steps: _Whole = setting(20_000, "Steps of the whole run.")
    warmup_steps: Count = setting(200, "Steps of linear warm-up.")
    lr_decoder: _Positive = setting(
        2e-4, "Rate of decoder, heads and all other parts trained from scratch."
    )
    lr_lora: _Positive = setting(1e-4, "Rate of the adapters.")
    lr_patch_embedding: _Positive = setting(2e-5, "Rate of the transformer's patch embedding.")
    weight_decay: _FromZero = setting(1e-2, "Weight decay of all trained parameters.")
    beta1: _Decay = setting(0.9, "Decay of AdamW's first moment.")
    beta2: _Decay = setting(0.999, "Decay of AdamW's second moment.")
    gradient_clip: _Positive = setting(1.0, "Largest norm of a step's gradient.")
    max_skipped: Count = setting(
        10, "Consecutive steps that may be skipped for a gradient that is not finite."
    )
    clips_per_process: _Whole = setting(4, "Clips per process and part.")
    processes: _Whole = setting(16, "Processes that must be running.")
    accumulation: _Whole = setting(
        1, "Parts of a process's share of a step, computed one after the other."
    )
    precision: models.Precision = setting(
        "bfloat16", "Precision of the frozen backbone; trained parameters are float32."
    )
    checkpointing: bool = setting(
        True, "Recompute the activations of blocks: less memory, more time."
    )

    def __post_init__(self) -> None:
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
class SourceConfig:
    """A dataset to train or validate on."""

    root: str | None = setting(None, "Folder of its store of clips.")
    weight: _FromZero = setting(
        1.0, "Share of the steps, relative to the other sources; 0 leaves it out."
    )
    encode_width: Count = setting(
        0, "Width of encoded pictures, rounded to whole tokens; 0 keeps the stored one."
    )


@dataclass(frozen=True, slots=True)
class DataConfig:
    """Training data. Every source needs a ``root`` unless its weight is 0."""

    sources: dict[str, SourceConfig] = group(dict, "The datasets, by name.")
    window: WindowSettings = group(
        WindowSettings,
        "Windows cut out of a clip, see `acehand_core/ace/labelled/clips/windows.py`.",
    )
    workers: Count = setting(4, "Processes that read ahead.")
    latent_cache: str | None = setting(
        None, "Folder of encoded recordings, for feature sources that read latents."
    )
    leave_out: list[str] | None = setting(None, "Clips to leave out, each as SOURCE/CLIP.")

    def __post_init__(self) -> None:
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
class ValidationConfig:
    """Windows of other recordings, scored by the distance of wrist-aligned joints."""

    sources: dict[str, SourceConfig] = group(
        dict, "The datasets, by name; one without a root is left out."
    )
    every: _Whole = setting(500, "Steps between validations.")
    windows: _Whole = setting(32, "Windows, drawn once per run.")


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Logs, besides TensorBoard's."""

    every: _Whole = setting(10, "Steps between lines of metrics.jsonl.")
    wandb: bool = setting(False, "Log to wandb too; needs the package.")


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """Checkpoints to keep: the newest, and the best by validation."""

    every: _Whole = setting(500, "Steps between checkpoints.")
    keep_last: _Whole = setting(2, "Number of newest checkpoints to keep.")
    keep_best: Count = setting(1, "Number of best checkpoints to keep.")
    whole: bool = setting(
        False, "Store the whole model in each, in acehand's format, with the frozen backbone."
    )


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """A whole run."""

    name: str = setting("standard", "Name of the run in logs.")
    seed: _Seed = setting(0, "Seed of all random numbers.")
    run: Text = setting(
        "runs/standard", "Folder of the run; an existing run resumes from its newest checkpoint."
    )
    device: Literal["auto", "cpu", "cuda"] = setting("auto", "Device; auto prefers a GPU.")
    hand: models.TrainedHand = setting("mano", "Hand model of the learned rotations.")
    mano: str | None = setting(None, "Folder of MANO_LEFT.pkl and MANO_RIGHT.pkl, for hand mano.")
    left_shapedirs_fixed: bool = setting(
        False,
        "Correct MANO's left shape directions; left shapes of other sources are not supervised.",
    )
    start: StartConfig = field(default_factory=StartConfig)
    model: models.ModelConfig = group(
        models.ModelConfig,
        "Sizes of the model and its feature source, see `acehand_core/ace/model/config.py`.",
    )
    solver: models.SolveOptions = _SOLVER
    losses: LossWeights = field(default_factory=LossWeights)
    optim: OptimConfig = field(default_factory=OptimConfig)
    data: DataConfig = field(default_factory=DataConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    log: LogConfig = field(default_factory=LogConfig)
    checkpoints: CheckpointConfig = field(default_factory=CheckpointConfig)

    def __post_init__(self) -> None:
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
    ConfigStore.instance().store(name="schema", node=schema(TrainConfig(), named_groups=False))


def schema(default: Any, named_groups: bool = True) -> type:
    """Return a class that OmegaConf 2.3 can read, with the names and values of ``default``.

    It has no Literal, which becomes the type of its values, and is not frozen. ``named_groups``:
    type groups with names chosen by the user (``data.sources``) too.
    """
    hints = get_type_hints(type(default))
    rows = []
    for f in fields(default):
        hint, value = hints[f.name], getattr(default, f.name)
        if dataclasses.is_dataclass(value):
            group = schema(value if isinstance(value, hint) else hint(), named_groups)
            rows.append((f.name, group, field(default_factory=group)))
            continue
        if get_origin(hint) is Literal:
            hint = type(value)
        elif get_origin(hint) is dict:
            entry = schema(get_args(hint)[1](), True) if named_groups else Any
            hint = GenericAlias(dict, (str, entry))
        rows.append((f.name, hint, field(default_factory=partial(copy, value))))
    return dataclasses.make_dataclass(type(default).__name__, rows)


def checked(composed: Any) -> TrainConfig:
    """Return hydra's composed settings, checked. Raises InputError, SchemaError."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        plain = OmegaConf.to_container(composed, resolve=True)
        typed = OmegaConf.merge(OmegaConf.structured(schema(TrainConfig())), plain)
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
