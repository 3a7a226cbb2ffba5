"""What the ace tracker is told beside what every tracker is told. Loads nothing heavy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float

from acehand_core.errors import InputError, MissingDependencyError, SchemaError, nearest
from acehand_core.files.safe_files import content_sha256
from acehand_core.types import SIDES

if TYPE_CHECKING:
    from acehand_core.model.config import InferenceConfig

VARIANTS = ("k", "kfree")
WINDOWS = ("paper", "blended", "full")
BEARINGS = ("intrinsics", "rays", "pinhole", "radial")
SOLVES = ("mixed", "rigid", "inverse", "direct")
FALLBACKS = ("released", "paper")
FIT_GUARDS = ("paper", "excess")
RAY_CELLS = ("edges", "centres")
HAND_MODELS = ("mano", "acehand")
READ_RATES = ("model", "source")
PRECISIONS = ("bfloat16", "float32")
NATIVE = "native"
#: Above it the trunk sees far more tokens than it was trained with.
_MAX_ENCODE_WIDTH = 4096
_MAX_LATENTS = 1024


@dataclass(frozen=True, slots=True)
class AceSettings:
    """Settings of the ace tracker; values are named like the flags.

    Attributes:
        weights: whatever layout ``model.weights`` reads.
        variant: "k" or "kfree", where ``weights`` holds both.
        base, vae, caption: pieces of the released model that are not beside the checkpoint.
        windows: see ``model.inference.windows.plan_windows``.
        window_latents, encode_width (pixels, or "native"), bearings, solve, fallback, fit_guards,
            ray_cells, hand_model: see ``model.config.InferenceConfig``; None as the weights say.
        betas: file of a measured shape (see ``read_betas``).
        second_opinion: also look at the mirrored clip.
        drop_tail: leave out frames beyond the last multiple of four, as released.
        read_rate: "model", 30 frames a second, or "source", every frame; None is "model".
        every_slot: also emit hands that count as absent, for scoring.
        precision, device, batch: how to compute; None chooses the device and batch.
    """

    weights: Path
    variant: str | None = None
    base: Path | None = None
    vae: Path | None = None
    caption: Path | None = None
    windows: str = "paper"
    window_latents: int | None = None
    encode_width: str | None = None
    bearings: str | None = None
    solve: str | None = None
    fallback: str | None = None
    fit_guards: str | None = None
    ray_cells: str | None = None
    hand_model: str | None = None
    betas: Path | None = None
    second_opinion: bool = False
    drop_tail: bool = False
    read_rate: str | None = None
    every_slot: bool = False
    precision: str = "bfloat16"
    device: str | None = None
    batch: int | None = None

    def __post_init__(self) -> None:
        for flag, value, valid in (
            ("--variant", self.variant, VARIANTS),
            ("--windows", self.windows, WINDOWS),
            ("--bearings", self.bearings, BEARINGS),
            ("--solve", self.solve, SOLVES),
            ("--fallback", self.fallback, FALLBACKS),
            ("--fit-guards", self.fit_guards, FIT_GUARDS),
            ("--ray-cells", self.ray_cells, RAY_CELLS),
            ("--hand-model", self.hand_model, HAND_MODELS),
            ("--read-rate", self.read_rate, READ_RATES),
            ("--precision", self.precision, PRECISIONS),
        ):
            if value is not None and value not in valid:
                raise InputError(f"{flag} {value!r}; {nearest(value, valid)}")

        if self.batch is not None and self.batch < 1:
            raise InputError(f"--batch {self.batch}; valid: 1 or more windows at once.")
        if self.window_latents is not None and not 2 <= self.window_latents <= _MAX_LATENTS:
            raise InputError(f"--window-latents {self.window_latents}; valid: 2 to {_MAX_LATENTS}.")
        _ = self.encode_pixels  # checked on construction

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
        values |= dict.fromkeys(("base", "vae", "caption"))
        values["weights"] = self.content()
        if self.betas is not None:
            values["betas"] = content_sha256(self.betas)
        return values

    def content(self) -> str:
        """Return a hash of all that is read of the weights. Raises as ``identity``."""
        return _weights().identity(self.weights, self.variant, self.base, self.vae, self.caption)

    def trained_on(self) -> Literal["real", "synthetic", "unknown"]:
        """Return the kind of clips that the weights were trained on; "real" if any were.

        Raises as ``identity``.
        """
        data = _weights().training_data_of(self.weights, self.variant)
        from acehand_core.model.weights.state import training_kind

        return training_kind(data)

    def trained(self) -> InferenceConfig:
        """Return how the weights are to be run, as they record it. Raises as ``identity``."""
        return _weights().inference_of(self.weights, self.variant)

    def told(self, trained: InferenceConfig) -> tuple[InferenceConfig, tuple[str, ...]]:
        """Return how to run: as ``trained`` but for flags, and a sentence per flag that differs."""
        flags = {
            "bearings": self.bearings, "solve": self.solve, "fallback": self.fallback,
            "fit_guards": self.fit_guards, "ray_cells": self.ray_cells,
            "hand_model": self.hand_model, "encode_width": self.encode_pixels,
            "window_latents": self.window_latents,
        }  # fmt: skip
        given = {name: value for name, value in flags.items() if value is not None}
        notes = tuple(
            f"{name} {value}; these weights were trained with {was}"
            for name, value in given.items()
            if (was := getattr(trained, name)) is not None and was != value
        )
        return replace(trained, **given), notes


def _weights() -> Any:
    """Return the module that reads weights; torch is loaded here, not before."""
    try:
        from acehand_core.model.weights import load
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
    if path.suffix == ".parquet":
        from acehand_core.recordings.hand_table import read_hand_motion

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
