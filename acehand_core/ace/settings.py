"""Settings of the ace tracker. Loads nothing heavy."""

from __future__ import annotations

import importlib
import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from acehand_core.ace.model.config import NATIVE, InferenceConfig, Precision, Variant
from acehand_core.errors import AcehandError, InputError, MissingDependencyError, SchemaError
from acehand_core.safe_files import content_sha256
from acehand_core.settings import check_values, group, setting
from acehand_core.types import SIDES

#: Default of ``weights``.
ENVIRONMENT_VARIABLE = "ACEHAND_WEIGHTS"

#: Why the tracker ``auto`` does not use weights.
_NOT_AUTOMATIC = {
    "synthetic": "trained on synthetic clips alone",
    "unknown": "their training data is not recorded",
}


@dataclass(frozen=True, slots=True)
class AceSettings:
    """Settings of the ace tracker.

    ``weights`` is any layout that ``model.weights`` reads; ``base``, ``vae`` and ``caption`` locate
    pieces of the released model elsewhere. ``run_as`` takes precedence over what the weights
    record. For ``windows`` and ``betas`` see ``model.inference.windows.plan_windows`` and
    ``read_betas``. ``every_slot`` also emits absent hands, for scoring.
    """

    weights: Path | None = setting(
        None, "folder or checkpoint", default_text=f"${ENVIRONMENT_VARIABLE}", common=True
    )
    variant: Variant | None = setting(None, "k (needs the camera) or kfree, for weights with both")
    base: Path | None = setting(
        None, "folder of the base transformer, if not next to the checkpoint"
    )
    vae: Path | None = setting(None, "file of the video VAE, if not next to the checkpoint")
    caption: Path | None = setting(
        None, "file of the caption embedding, if not next to the checkpoint"
    )
    windows: str | None = setting(
        None,
        "paper: as released; blended: overlapping, cross-faded; full: one pass",
        default_text="paper",
        choices=("paper", "blended", "full"),
    )
    run_as: InferenceConfig = group(InferenceConfig)
    betas: Path | None = setting(
        None,
        "measured shape of both hands: a HandMotion table or JSON",
        metavar="FILE",
        default_text="the recording's",
    )
    use_depth: bool = setting(
        False, "move hands along their rays to the recording's depth (not of the paper)"
    )
    second_opinion: bool = setting(False, "keep only hands that the mirrored video confirms")
    drop_tail: bool = setting(False, "drop up to three last frames, as released")
    read_rate: str | None = setting(
        None,
        "30 fps, or every frame of the recording",
        default_text="model; source in acehand evaluate",
        choices=("model", "source"),
    )
    precision: Precision = setting("bfloat16", "of the model")
    device: str | None = setting(
        None, "cpu, cuda or cuda:N", metavar="NAME", default_text="the first GPU, else cpu"
    )
    batch: int | None = setting(None, "windows read at once", low=1, default_text="by memory")
    every_slot: bool = False

    def __post_init__(self) -> None:
        check_values(self)
        check_values(self.run_as)

    def with_environment(self, tracker: str) -> tuple[AceSettings, str]:
        """Return these settings with weights that ``tracker`` may use, and a note.

        The default weights are those of ``$ACEHAND_WEIGHTS``. Raises InputError: ``weights`` that
        this tracker does not use.
        """
        weights = self.weights or os.environ.get(ENVIRONMENT_VARIABLE)
        if not weights:
            return self, ""
        if tracker not in ("auto", "ace"):
            if self.weights is None:
                return self, ""
            raise InputError(f"`weights` is for `tracker=ace`, not {tracker}.")

        settings = replace(self, weights=Path(weights))
        try:
            kind = settings.trained_on() if tracker == "auto" else "real"
        except AcehandError:  # reported where they are used
            return settings, ""
        if kind == "real":
            return settings, ""
        reason = _NOT_AUTOMATIC[kind]
        if self.weights is not None:
            raise InputError(f"`weights={weights}`: {reason}; use them with `tracker=ace`.")
        return self, f"${ENVIRONMENT_VARIABLE}={weights}: {reason}; used with `tracker=ace` only"

    def automatic(self) -> bool:
        """Return whether the weights were trained on recordings, for the tracker ``auto``."""
        return self.weights is not None and self.trained_on() == "real"

    @property
    def place(self) -> Path:
        """The path of the weights. Raises InputError without one."""
        if self.weights is None:
            raise InputError("`tracker=ace` needs `weights=PATH`, or ACEHAND_WEIGHTS.")
        return self.weights

    def identity(self) -> dict[str, Any]:
        """Return every setting that results depend on, as plain values.

        Weights and betas count by content. Raises InputError for a missing file or unknown layout,
        MissingDependencyError without torch.
        """
        values = {k: v for k, v in asdict(self).items() if k not in ("device", "batch")}
        values |= values.pop("run_as")
        if (width := self.run_as.encode_width) is not None:
            values["encode_width"] = str(width or NATIVE)
        values |= dict.fromkeys(("base", "vae", "caption")) | {"windows": self.windows or "paper"}
        values["weights"] = self.content()
        if self.betas is not None:
            values["betas"] = content_sha256(self.betas)
        return values

    def content(self) -> str:
        """Return a hash of all files of the weights. Raises as ``identity``."""
        pieces = self.base, self.vae, self.caption
        return import_model("weights.load").identity(self.place, self.variant, *pieces)

    def trained_on(self) -> Literal["real", "synthetic", "unknown"]:
        """Return the kind of the training clips; "real" if any are. Raises as ``identity``."""
        data = import_model("weights.load").recorded(self.place, self.variant)[0]
        return import_model("weights.state").training_kind(data)

    def trained(self) -> InferenceConfig:
        """Return how to run the weights, as recorded in them. Raises as ``identity``."""
        return import_model("weights.load").recorded(self.place, self.variant)[1]


def import_model(name: str) -> Any:
    """Import a module of ``ace.model``, and with it torch."""
    try:
        return importlib.import_module(f"acehand_core.ace.model.{name}")
    except ImportError as error:
        raise MissingDependencyError(
            f"The ace tracker needs torch and diffusers ({error}); pip install '.[ace]'."
        ) from error


def read_betas(path: Path, hand_model: str) -> Float[np.ndarray, "2 10"]:
    """Return the shape of both hands from a HandMotion table (.parquet) or JSON.

    JSON is ``{"hand_model": "mano" or "acehand", "left": [10 numbers], "right": [10 numbers]}``.
    Raises SchemaError for other content, InputError for another hand model or an unreadable file.
    """
    if path.suffix == ".parquet":
        from acehand_core.recordings.hands_file import read_hand_motion

        motion = read_hand_motion(path)
        theirs, betas = str(motion.hand_model), motion.betas
    else:
        try:
            data = json.loads(path.read_text("utf-8"))
            theirs, betas = str(data["hand_model"]), np.array([data[s] for s in SIDES], float)
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror or error}).") from error
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            what = "JSON with hand_model, left and right is needed"
            raise SchemaError(f"{path}: {what} ({error!r}).") from error
        if betas.shape != (2, 10) or not np.isfinite(betas).all():
            raise SchemaError(f"{path}: left and right must be 10 numbers each.")
    if theirs != hand_model:
        raise InputError(
            f"{path}: betas of the hand model {theirs!r}; this run needs those of {hand_model!r}."
        )
    return betas.astype(float)
