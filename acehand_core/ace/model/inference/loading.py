"""From weights and options to a model that is ready to read recordings."""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal

import torch

from acehand_core.ace.model.config import (
    AS_RELEASED,
    RELEASED,
    InferenceConfig,
    Precision,
    SolveOptions,
    Variant,
)
from acehand_core.ace.model.encoder.sources import source_kind
from acehand_core.ace.model.encoder.vae import PixelEncoder, VideoEncoder
from acehand_core.ace.model.inference.reading import Tail
from acehand_core.ace.model.inference.windows import DEFAULT_ENCODE_WIDTH, PAPER_LATENTS
from acehand_core.ace.model.network import AceModel
from acehand_core.ace.model.weights.load import load_weights
from acehand_core.ace.model.weights.sums import joint_sha256
from acehand_core.errors import InputError, MissingDependencyError
from acehand_core.hand.hands_torch import TorchHands
from acehand_core.hand.mano import find_mano, load_mano


@dataclass(frozen=True, slots=True)
class WeightsRecord:
    """The identity of weights: a name, the hash of their content, licences."""

    name: str
    sha256: str
    licenses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class InferenceOptions:
    """How a recording is reconstructed.

    ``every_slot`` also returns poses of absent hands and anchors of occluded ones, as the paper
    scores them (section "Metric Definitions and Penalty Protocol"). For ``windows``, ``tail`` and
    ``every_frame`` see ``windows.plan_windows`` and ``reading.plan_input``.
    """

    windows: str = "paper"
    window_latents: int = PAPER_LATENTS
    encode_width: int = DEFAULT_ENCODE_WIDTH  # pixels; 0 for the video's own
    tail: Tail = "repeat"
    every_frame: bool = False
    solve: SolveOptions | None = None  # as by ``solve_options`` without a record
    second_opinion: bool = False  # also read the mirrored clip
    hands: Literal["both", "left", "right"] = "both"
    every_slot: bool = False
    batch: int = 1  # windows at once
    precision: Precision = "bfloat16"

    @property
    def slots(self) -> tuple[bool, bool]:
        """The slots to use."""
        return self.hands != "right", self.hands != "left"


def solve_options(
    variant: Variant, has_hand_model: bool, trained: InferenceConfig = AS_RELEASED
) -> SolveOptions:
    """Return how to place hands: as recorded in the weights, else as released.

    Without a hand model rigid PnP of the network's own joints replaces mixed PnP, which needs
    articulated ones.
    """
    recorded = {f.name: getattr(trained, f.name) for f in fields(SolveOptions)}
    options = replace(RELEASED[variant], **{n: v for n, v in recorded.items() if v is not None})
    if options.solve == "mixed" and not has_hand_model:
        options = replace(options, solve="rigid")
    return options


def has_mano() -> bool:
    """Return whether MANO is configured. Raises InputError for a wrong path."""
    try:
        find_mano()
    except MissingDependencyError:
        return False
    return True


@functools.lru_cache(maxsize=1)
def mano_hands() -> TorchHands:
    """Return the user's MANO, left shape directions as in the file, as released."""
    return TorchHands.mano(load_mano())


@functools.lru_cache(maxsize=1)
def default_hands() -> TorchHands:
    """Return the default hand."""
    return TorchHands.acehand()


@dataclass(frozen=True, slots=True)
class ReadyModel:
    """A model, its encoder, and the identity of its weights."""

    model: AceModel
    encoder: VideoEncoder | PixelEncoder
    weights: WeightsRecord


def load_model(
    path: Path,
    variant: Variant | None = None,
    base: Path | None = None,
    vae: Path | None = None,
    caption: Path | None = None,
    precision: Precision = "bfloat16",
    device: str | None = None,
) -> ReadyModel:
    """Load weights (see ``weights.load.load_weights``) and build the model.

    ``device``: "cpu", "cuda" or "cuda:N"; default the first GPU, else the CPU. Raises InputError:
    no such device, or no video VAE; and as ``load_weights``.
    """
    device = choose_device(device)
    weights = load_weights(path, variant, base, vae, caption)
    if source_kind(weights.config.source).needs == "frames":
        encoder: VideoEncoder | PixelEncoder = PixelEncoder(device)
    elif weights.vae is None:
        raise InputError(f"{path}: no video VAE; give its file with `vae`.")
    else:
        encoder = VideoEncoder.from_tensors(weights.config.vae, weights.vae, precision, device)

    model = AceModel.from_weights(weights, precision, device)
    digest = joint_sha256(weights.sha256s.values())
    record = WeightsRecord(path.name, digest, (weights.licence,) if weights.licence else ())
    return ReadyModel(model, encoder, record)


def choose_device(name: str | None) -> str:
    """Return the device to compute on. Raises InputError for one that is absent."""
    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    present = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    valid = ["cpu", *(["cuda"] if present else []), *present]
    if name not in valid:
        raise InputError(f"`device={name}`: not here; valid: {', '.join(valid)}.")
    return name
