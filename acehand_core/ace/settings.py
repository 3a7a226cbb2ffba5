"""What the ace tracker is told beside what every tracker is told. Loads nothing heavy."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float

from acehand_core.errors import AcehandError, InputError, MissingDependencyError, SchemaError
from acehand_core.safe_files import content_sha256
from acehand_core.settings import check_values, setting
from acehand_core.types import SIDES

if TYPE_CHECKING:
    from acehand_core.ace.model.config import InferenceConfig

#: Weights of a user who does not want to name them every time.
ENVIRONMENT_VARIABLE = "ACEHAND_WEIGHTS"

#: Why ``--tracker auto`` leaves weights alone.
_NOT_AUTOMATIC = {
    "synthetic": "trained on synthetic clips alone",
    "unknown": "it is not recorded what they were trained on",
}
NATIVE = "native"
#: Above it the trunk sees far more tokens than it was trained with.
_MAX_ENCODE_WIDTH = 4096


@dataclass(frozen=True, slots=True)
class AceSettings:
    """Settings of the ace tracker. None, where it is not said otherwise: as the weights record it.

    ``weights`` is whatever layout ``model.weights`` reads; ``base``, ``vae`` and ``caption`` are
    pieces of the released model that are not beside the checkpoint. For the rest see
    ``model.config.InferenceConfig``, ``model.inference.windows.plan_windows`` and ``read_betas``.
    ``every_slot`` also emits hands that count as absent, for scoring.
    """

    weights: Path | None = setting(
        None, "folder or checkpoint", default_text=f"${ENVIRONMENT_VARIABLE}"
    )
    variant: str | None = setting(
        None, "k (needs the camera) or kfree, where the weights hold both", choices=("k", "kfree")
    )
    base: Path | None = setting(
        None, "folder of the base transformer, if not beside the checkpoint"
    )
    vae: Path | None = setting(None, "file of the video VAE, if not beside the checkpoint")
    caption: Path | None = setting(
        None, "file of the caption embedding, if not beside the checkpoint"
    )
    encode_width: str | None = setting(
        None,
        "width at which the model sees the video, or native",
        default_text="as trained, else 832",
        metavar="PIXELS",
    )
    windows: str | None = setting(
        None,
        "paper as released, blended overlapping and cross-faded, full one pass",
        default_text="paper",
        choices=("paper", "blended", "full"),
    )
    window_latents: int | None = setting(
        None,
        "length of a window; shorter than 22 they follow one another with one latent in common",
        default_text="as trained, else 22",
        low=2,
        high=1024,
    )
    bearings: str | None = setting(
        None,
        "where directions come from",
        default_text="as trained, else as released",
        choices=("intrinsics", "rays", "pinhole", "radial"),
    )
    solve: str | None = setting(
        None,
        "how hands are placed; without MANO files rigid in place of mixed",
        default_text="as trained, else as released",
        choices=("mixed", "rigid", "inverse", "direct"),
    )
    fallback: str | None = setting(
        None,
        "where a hand goes whose anchors are rejected",
        default_text="as trained, else released",
        choices=("released", "paper"),
    )
    fit_guards: str | None = setting(
        None,
        "which fits --bearings pinhole places hands by: within the paper's two guards, or only "
        "those without an excess over a radial lens",
        default_text="as trained, else excess",
        choices=("paper", "excess"),
    )
    ray_cells: str | None = setting(
        None,
        "with --bearings rays: outer cells of the ray field on the image's edges, as released, or "
        "all at their centres",
        default_text="as trained, else edges",
        choices=("edges", "centres"),
    )
    hand_model: str | None = setting(
        None,
        "whose rotations the weights learned",
        default_text="as trained, else mano",
        choices=("mano", "acehand"),
    )
    betas: Path | None = setting(
        None,
        "measured shape of both hands: a HandMotion table or JSON",
        metavar="FILE",
        default_text="the recording's",
    )
    second_opinion: bool = setting(
        False, "also look at the mirrored video; keep what both looks see"
    )
    drop_tail: bool = setting(False, "leave out up to three last frames, as released")
    read_rate: str | None = setting(
        None,
        "read 30 frames a second, or every frame of the recording",
        default_text="model; source in acehand evaluate",
        choices=("model", "source"),
    )
    precision: str = setting("bfloat16", "of the model", choices=("bfloat16", "float32"))
    device: str | None = setting(
        None, "cpu, cuda or cuda:N", metavar="NAME", default_text="the first GPU, else cpu"
    )
    batch: int | None = setting(None, "windows read at once", low=1, default_text="by memory")
    every_slot: bool = False

    def __post_init__(self) -> None:
        check_values(self)
        _ = self.encode_pixels  # checked on construction

    def with_environment(self, tracker: str) -> tuple[AceSettings, str]:
        """Return these settings with weights that ``tracker`` may use, and what is to be said.

        Weights that are not named are those of the environment.

        Raises:
            InputError: weights were named that would not be used.
        """
        weights = self.weights or os.environ.get(ENVIRONMENT_VARIABLE)
        if not weights:
            return self, ""
        if tracker not in ("auto", "ace"):
            if self.weights is None:
                return self, ""
            raise InputError(f"--weights is for --tracker ace, not {tracker}.")

        settings = replace(self, weights=Path(weights))
        try:
            kind = settings.trained_on() if tracker == "auto" else "real"
        except AcehandError:  # said where they are used: a file of hands needs none
            return settings, ""
        if kind == "real":
            return settings, ""
        reason = _NOT_AUTOMATIC[kind]
        if self.weights is not None:
            raise InputError(f"--weights {weights}: {reason}; say --tracker ace to use them.")
        return self, (f"${ENVIRONMENT_VARIABLE}={weights}: {reason}; used with --tracker ace only")

    def automatic(self) -> bool:
        """Whether ``--tracker auto`` is ace: with weights that are known to be of recordings.

        What was trained on synthetic clips alone, or on nobody knows what, is taken by name only.
        Raises as ``identity``.
        """
        return self.weights is not None and self.trained_on() == "real"

    @property
    def place(self) -> Path:
        """Where the weights are. Raises InputError: nobody said."""
        if self.weights is None:
            raise InputError(
                "--tracker ace needs its weights: give --weights PATH, or set ACEHAND_WEIGHTS."
            )
        return self.weights

    @property
    def encode_pixels(self) -> int | None:
        """The encode width in pixels, 0 for the video's own, None as the weights say."""
        if self.encode_width is None:
            return None
        if self.encode_width == NATIVE:
            return 0
        if self.encode_width.isdecimal() and 32 <= int(self.encode_width) <= _MAX_ENCODE_WIDTH:
            return int(self.encode_width)
        raise InputError(
            f"--encode-width {self.encode_width}; valid: {NATIVE}, or 32 to {_MAX_ENCODE_WIDTH} "
            "pixels (832 as released)."
        )

    def identity(self) -> dict[str, Any]:
        """Return what tells results apart: every setting that shapes them, as plain values.

        Weights and betas count by their content; the pieces of a released model are part of
        ``weights``, named or found beside the checkpoint. How many windows are read at once, and
        where, changes nothing.

        Raises:
            InputError: a file is not there, or the weights are of no known layout.
            MissingDependencyError: torch is not installed.
        """
        values = {k: v for k, v in asdict(self).items() if k not in ("device", "batch")}
        values |= dict.fromkeys(("base", "vae", "caption")) | {"windows": self.windows or "paper"}
        values["weights"] = self.content()
        if self.betas is not None:
            values["betas"] = content_sha256(self.betas)
        return values

    def content(self) -> str:
        """Return a hash of all that is read of the weights. Raises as ``identity``."""
        return _weights().identity(self.place, self.variant, self.base, self.vae, self.caption)

    def trained_on(self) -> Literal["real", "synthetic", "unknown"]:
        """Return the kind of clips that the weights were trained on; "real" if any were.

        Raises as ``identity``.
        """
        data = _weights().recorded(self.place, self.variant)[0]
        from acehand_core.ace.model.weights.state import training_kind

        return training_kind(data)

    def trained(self) -> InferenceConfig:
        """Return how the weights are to be run, as they record it. Raises as ``identity``."""
        return _weights().recorded(self.place, self.variant)[1]

    def told(self, trained: InferenceConfig) -> tuple[InferenceConfig, tuple[str, ...]]:
        """Return how to run: as ``trained`` but for flags, and a sentence per flag that differs."""
        flags = {
            "bearings": self.bearings, "solve": self.solve, "fallback": self.fallback,
            "fit_guards": self.fit_guards, "ray_cells": self.ray_cells,
            "hand_model": self.hand_model, "encode_width": self.encode_pixels,
            "window_latents": self.window_latents,
        }  # fmt: skip
        given: dict[str, Any] = {n: value for n, value in flags.items() if value is not None}
        notes = tuple(
            f"{name} {value}; these weights were trained with {was}"
            for name, value in given.items()
            if (was := getattr(trained, name)) is not None and was != value
        )
        return replace(trained, **given), notes


def _weights() -> Any:
    """Return the module that reads weights; torch is loaded here, not before."""
    try:
        from acehand_core.ace.model.weights import load
    except ImportError as error:
        raise MissingDependencyError(
            f"The ace tracker needs torch and diffusers ({error}); pip install '.[ace]'."
        ) from error
    return load


def read_betas(path: Path, hand_model: str) -> Float[np.ndarray, "2 10"]:
    """Return the shape of both hands from a file.

    The file is a HandMotion table (.parquet), whose shape is taken, or JSON:
    ``{"hand_model": "mano" or "acehand", "left": [10 numbers], "right": [10 numbers]}``.

    Raises:
        SchemaError: it is not such a file. InputError: it cannot be read, or its betas belong to
            another hand model: they mean nothing there.
    """
    theirs: str
    if path.suffix == ".parquet":
        from acehand_core.recordings.hands_file import read_hand_motion

        motion = read_hand_motion(path)
        theirs, betas = motion.hand_model, motion.betas
    else:
        theirs, betas = _read_json(path)
    if theirs != hand_model:
        raise InputError(
            f"{path}: betas of the hand model {theirs!r}, but this run uses {hand_model!r}; the "
            "numbers of one mean nothing to the other."
        )
    return betas.astype(float)


def _read_json(path: Path) -> tuple[str, np.ndarray]:
    try:
        data = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}).") from error
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"{path}: not JSON ({error}).") from error

    wanted = ("hand_model", *SIDES)
    if not isinstance(data, Mapping) or set(data) != set(wanted):
        names = ", ".join(map(str, data)) if isinstance(data, Mapping) else type(data).__name__
        raise SchemaError(f"{path}: holds {names}; {', '.join(wanted)} are needed.")

    rows = []
    for side in SIDES:
        try:
            row = np.array(data[side], float)
        except (TypeError, ValueError):
            row = np.empty(0)
        if row.shape != (10,) or not np.isfinite(row).all():
            raise SchemaError(f"{path}: {side!r} must be 10 numbers.")
        rows.append(row)

    return str(data["hand_model"]), np.stack(rows)
