"""From a path of weights to a model that is ready to read recordings.

Whether the user has MANO, and hand models in torch. Looking loads nothing heavy.

In place of the video VAE, for feature sources that read frames: pixels on the latents' grid.

The stream has the form of the VAE's, so windows are cut alike: entry i holds the frames that
latent i stands for.
"""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, UInt8

from acehand_core.errors import InputError, MissingDependencyError
from acehand_core.hand.mano_files import find_mano, load_mano
from acehand_core.model.config import (
    AS_RELEASED,
    TEMPORAL_STRIDE,
    InferenceConfig,
    Precision,
    Variant,
)
from acehand_core.model.encoder.sources import source_kind
from acehand_core.model.encoder.vae import VideoEncoder
from acehand_core.model.inference.options import WeightsRecord
from acehand_core.model.network import AceModel
from acehand_core.model.weights.load import load_weights

if TYPE_CHECKING:
    from acehand_core.hand.hands_torch import TorchHands


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
    hashes = json.dumps(sorted(weights.sha256s.values()))
    digest = hashlib.sha256(hashes.encode()).hexdigest()
    licences = (weights.licence,) if weights.licence else ()
    record = WeightsRecord(path.name, digest, licences)
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


Packed = UInt8[torch.Tensor, "4 3 k H W"]


class PixelEncoder:
    """Frames in, the same frames out in groups of four."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self._device = device

    def stream(self) -> PixelStream:
        """Start a clip."""
        return PixelStream(self._device)


class PixelStream:
    """One clip: the first frame alone, four times over, then groups of four."""

    def __init__(self, device: torch.device | str) -> None:
        self._device = device
        self._waiting: UInt8[np.ndarray, "n H W 3"] | None = None

    def push(self, frames: UInt8[np.ndarray, "n H W 3"]) -> Packed:
        """Take frames in order; return the groups that are complete."""
        if self._waiting is None:
            frames = np.concatenate([frames[:1]] * (TEMPORAL_STRIDE - 1) + [frames])
        else:
            frames = np.concatenate([self._waiting, frames])
        whole = len(frames) // TEMPORAL_STRIDE * TEMPORAL_STRIDE
        self._waiting = frames[whole:].copy()
        groups = torch.from_numpy(frames[:whole].copy()).to(self._device)
        groups = groups.unflatten(0, (-1, TEMPORAL_STRIDE)) if whole else groups[:, None][:0]
        return groups.expand(-1, TEMPORAL_STRIDE, -1, -1, -1).permute(1, 4, 0, 2, 3)

    def finish(self) -> Packed:
        """Return nothing: frames that do not fill a group are dropped, as by the VAE."""
        assert self._waiting is not None
        height, width = self._waiting.shape[1:3]
        return torch.empty((4, 3, 0, height, width), dtype=torch.uint8, device=self._device)


def unpack(packed: Packed) -> Float[torch.Tensor, "3 N H W"]:
    """Return the video frames of a window, RGB in -1..1: N = 4 (k - 1) + 1."""
    frames = packed.permute(1, 2, 0, 3, 4).flatten(1, 2)
    return frames[:, TEMPORAL_STRIDE - 1 :].float() / 255 * 2 - 1
