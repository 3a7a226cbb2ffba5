"""Latents of whole recordings, encoded once and kept under a hash of what made them.

Latent s of a recording belongs to video frame 4 s; windows are cut at whole latents. A window
encoded on its own differs from a cut in its first latents, because the encoder is causal.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float

from acehand_core.atomic import atomic_path
from acehand_core.datasets.clips.schema import Clip, ClipInfo
from acehand_core.datasets.clips.windows import STRIDE, Sample
from acehand_core.errors import InputError, SchemaError
from acehand_core.model.encoder.vae import VideoEncoder

_CHUNK = 16
Picture = Callable[[np.ndarray, tuple[int, int]], np.ndarray]


class LatentCache:
    """A folder of float16 arrays (48, F, H/16, W/16), one per recording and encoder.

    ``encoder_sha256`` identifies the encoder's weights and precision.
    """

    def __init__(self, folder: Path, encoder_sha256: str, image_frames: int = 5) -> None:
        self.folder, self.encoder = folder, encoder_sha256
        self.image_frames = image_frames

    def path(self, info: ClipInfo, size: tuple[int, int]) -> Path:
        """Return where a clip's latents are: the name is a hash of pictures, size and encoder."""
        stored = ("video", "image")
        pictures = {name: info.files[name] for name in info.files if name.startswith(stored)}
        reference = info.reference
        origin = [reference.sha256, reference.first, reference.stop] if reference else pictures
        copies = self.image_frames if info.kind == "image" else 0
        text = json.dumps([origin, size, self.encoder, copies], sort_keys=True)
        return self.folder / f"{hashlib.sha256(text.encode()).hexdigest()}.npy"

    def read(
        self, sample: Sample, info: ClipInfo, first: int, count: int
    ) -> Float[torch.Tensor, "c n rows columns"]:
        """Return latents ``first`` to ``first + count - 1`` of a recording, float32.

        Raises:
            InputError: they were not encoded. SchemaError: a damaged file.
        """
        path = self.path(info, sample.size)
        if not path.exists():
            raise InputError(
                f"{info.dataset}/{info.id}: its latents are not in {self.folder}; encode first."
            )
        try:
            latents = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise SchemaError(f"{path}: damaged ({error}); delete it to encode again.") from error
        if first + count > latents.shape[1]:
            raise SchemaError(f"{path}: {latents.shape[1]} latents; {first + count} are needed.")
        return torch.from_numpy(np.array(latents[:, first : first + count])).float()

    def ensure(
        self,
        clips: Iterable[tuple[Clip, tuple[int, int]]],
        encoder: VideoEncoder,
        resize: Picture,
        progress: Callable[[int], None] = lambda done: None,
    ) -> int:
        """Encode the recordings that are not there yet; return how many were. Can be resumed."""
        made = 0
        self.folder.mkdir(parents=True, exist_ok=True)
        for done, (clip, size) in enumerate(clips, 1):
            path = self.path(clip.info, size)
            if not path.exists():
                _save(path, encode(clip, size, encoder, resize, self.image_frames))
                made += 1
            progress(done)
        return made


def encode(
    clip: Clip, size: tuple[int, int], encoder: VideoEncoder, resize: Picture, image_frames: int
) -> np.ndarray:
    """Encode a whole recording, or an image as a static clip; float16 (48, F, rows, columns)."""
    assert clip.frames is not None
    stream, parts = encoder.stream(), []
    if clip.info.kind == "image":
        image = resize(clip.frames.at(0), size)
        parts.append(stream.push(np.repeat(image[None], image_frames, 0)))
    else:
        held: list[np.ndarray] = []
        whole = STRIDE * ((clip.info.frames - 1) // STRIDE) + 1
        for image in clip.frames.read(0, whole):
            held.append(resize(image, size))
            if len(held) == _CHUNK:
                parts.append(stream.push(np.stack(held)))
                held = []
        if held:
            parts.append(stream.push(np.stack(held)))
    parts.append(stream.finish())
    return torch.cat(parts, dim=1).cpu().numpy().astype(np.float16)


def encoder_key(tensors: Mapping[str, torch.Tensor], precision: str) -> str:
    """Return what identifies an encoder: a hash of its weights, and its precision."""
    digest = hashlib.sha256(precision.encode())
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].contiguous().flatten().view(torch.uint8).cpu().numpy())
    return digest.hexdigest()


def _save(path: Path, latents: np.ndarray) -> None:
    with atomic_path(path, overwrite=True) as partial:
        np.save(partial, latents, allow_pickle=False)
