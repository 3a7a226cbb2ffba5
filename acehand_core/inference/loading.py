"""From a path of weights to a model that is ready to read recordings."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import torch

from acehand_core.encoder.config import Precision
from acehand_core.encoder.sources import source_kind
from acehand_core.encoder.vae import VideoEncoder
from acehand_core.errors import InputError
from acehand_core.inference.options import WeightsRecord
from acehand_core.inference.pixels import PixelEncoder
from acehand_core.model import AceModel
from acehand_core.weights.config import AS_RELEASED, InferenceConfig, Variant
from acehand_core.weights.load import load_weights

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
