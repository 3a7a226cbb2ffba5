"""From a path of weights, and options, to a model that is ready to read recordings.

Asking whether the user has MANO loads nothing heavy.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch

from acehand_core.ace.model.config import AS_RELEASED, InferenceConfig, Precision, Variant
from acehand_core.ace.model.encoder.sources import source_kind
from acehand_core.ace.model.encoder.vae import PixelEncoder, VideoEncoder
from acehand_core.ace.model.inference.reading import Tail
from acehand_core.ace.model.inference.windows import DEFAULT_ENCODE_WIDTH, PAPER_LATENTS
from acehand_core.ace.model.network import RELEASED, AceModel, SolveOptions
from acehand_core.ace.model.weights.load import load_weights
from acehand_core.ace.model.weights.sums import joint_sha256
from acehand_core.errors import InputError, MissingDependencyError
from acehand_core.hand.mano import find_mano, load_mano

if TYPE_CHECKING:
    from acehand_core.hand.hands_torch import TorchHands


@dataclass(frozen=True, slots=True)
class WeightsRecord:
    """Which weights: a name for people, the hash of their content, what binds their users."""

    name: str
    sha256: str
    licenses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class InferenceOptions:
    """How a recording is reconstructed.

    Attributes:
        windows: see ``windows.plan_windows``.
        window_latents: length of a window.
        encode_width: width in pixels that frames are encoded at; 0 for the video's own.
        tail: what to do with frames beyond the last multiple of four (see ``plan_input``).
        every_frame: read the recording's own frames, not 30 a second.
        solve: how hands are placed; None as the released code does for the variant, and by rigid
            PnP where there is no hand model.
        second_opinion: also look at the mirrored clip, and multiply presence and visibility.
        hands: which hands to look for.
        every_slot: also give the pose of hands that count as absent, and anchors that are out of
            sight, as the paper scores them (section "Metric Definitions and Penalty Protocol").
        batch: windows read by the network at once.
        precision: what the backbone computes in; part of the settings that results depend on.
    """

    windows: str = "paper"
    window_latents: int = PAPER_LATENTS
    encode_width: int = DEFAULT_ENCODE_WIDTH
    tail: Tail = "repeat"
    every_frame: bool = False
    solve: SolveOptions | None = None
    second_opinion: bool = False
    hands: Literal["both", "left", "right"] = "both"
    every_slot: bool = False
    batch: int = 1
    precision: Precision = "bfloat16"

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise InputError(f"{self.batch} windows at once; valid: 1 or more.")

    @property
    def slots(self) -> tuple[bool, bool]:
        """Which slots to look for."""
        return self.hands != "right", self.hands != "left"


def solve_options(
    variant: Variant, has_hand_model: bool, trained: InferenceConfig = AS_RELEASED
) -> SolveOptions:
    """Return how to place hands: as recorded in the weights, and as released where nothing is.

    Without a hand model the network's own joints are placed by all their anchors (rigid PnP) in
    place of the mixed PnP, which needs articulated ones.
    """
    released = RELEASED[variant]
    solve = trained.solve or released.solve
    if solve == "mixed" and not has_hand_model:
        solve = "rigid"
    return SolveOptions(
        trained.bearings or released.bearings,
        solve,
        trained.fallback or released.fallback,
        trained.fit_guards or released.fit_guards,
        trained.ray_cells or released.ray_cells,
    )


def has_mano() -> bool:
    """Return whether MANO is configured. Raises InputError where it is but is not there."""
    try:
        find_mano()
    except MissingDependencyError:
        return False
    return True


@functools.lru_cache(maxsize=1)
def mano_hands() -> TorchHands:
    """Return the user's MANO, left shape directions as the file has them, as released."""
    from acehand_core.hand.hands_torch import TorchHands

    return TorchHands.mano(load_mano())


@functools.lru_cache(maxsize=1)
def default_hands() -> TorchHands:
    """Return the default hand, whose rotations some weights learn."""
    from acehand_core.hand.hands_torch import TorchHands

    return TorchHands.acehand()


#: Windows read at once.
_BATCH = {"cuda": 4, "cpu": 1}


@dataclass(frozen=True, slots=True)
class ReadyModel:
    """A model, what feeds it, which weights they have and how these are to be run.

    ``batch`` suits the device.
    """

    model: AceModel
    encoder: VideoEncoder | PixelEncoder
    weights: WeightsRecord
    batch: int
    trained: InferenceConfig = AS_RELEASED


def load_model(
    path: Path,
    variant: Variant | None = None,
    base: Path | None = None,
    vae: Path | None = None,
    caption: Path | None = None,
    precision: Precision = "bfloat16",
    device: str | None = None,
) -> ReadyModel:
    """Load weights (see ``weights.load.load_weights``) and build what runs.

    Args:
        device: "cpu", "cuda" or "cuda:N"; None takes a graphics card if there is one.

    Raises:
        InputError: no such device, or the weights lack the video VAE; and as ``load_weights``.
    """
    device = choose_device(device)
    weights = load_weights(path, variant, base, vae, caption)
    if source_kind(weights.config.source).needs == "frames":
        encoder: VideoEncoder | PixelEncoder = PixelEncoder(device)
    elif weights.vae is None:
        raise InputError(f"{path}: the video VAE is not there; name its file with --vae.")
    else:
        encoder = VideoEncoder.from_tensors(weights.config.vae, weights.vae, precision, device)

    model = AceModel.from_weights(weights, precision, device)
    # One hash for all files: which file holds which tensor is checked where they are read.
    digest = joint_sha256(weights.sha256s.values())
    record = WeightsRecord(path.name, digest, (weights.licence,) if weights.licence else ())
    return ReadyModel(model, encoder, record, _BATCH[device.split(":")[0]], weights.inference)


def choose_device(name: str | None) -> str:
    """Return the device to compute on. Raises InputError for one that is not there."""
    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name.split(":")[0] not in _BATCH:
        raise InputError(f"--device {name!r}; valid: cpu, cuda, cuda:N.")
    if name != "cpu" and not torch.cuda.is_available():
        raise InputError(f"--device {name}: no such device here; valid: cpu.")
    return name
