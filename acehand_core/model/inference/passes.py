"""Recording to readouts: encoded in a stream, read by the model as soon as a window is there.

Memory does not depend on the recording's length: at any time there are a few frames, the latents of
open windows, and one batch; readouts go to a store.

What the network said, window by window, in files: memory stays flat and a run can be resumed.

A file's name is a hash of the pictures, the weights and the settings that the numbers depend on:
never of a name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from itertools import takewhile
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Num, UInt8

from acehand_core.atomic import atomic_path
from acehand_core.errors import InputError
from acehand_core.files.safe_files import safe_load_npz
from acehand_core.model.batch import ClipBatch, Readout
from acehand_core.model.config import TEMPORAL_STRIDE
from acehand_core.model.inference.loading import PixelEncoder, unpack
from acehand_core.model.inference.options import Reading
from acehand_core.model.inference.windows import Window

Arrays = dict[str, np.ndarray]


class WindowStore:
    """Named arrays per window in a folder."""

    def __init__(self, folder: Path, key: Mapping[str, Any]) -> None:
        self._folder = folder
        digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
        self._prefix = f"windows-{digest[:24]}"

    def get(self, start: int, stop: int) -> Arrays | None:
        """Return the arrays of the window of latents ``start`` to ``stop - 1``, or None.

        A damaged file counts as absent.
        """
        path = self._path(start, stop)
        if not path.is_file():
            return None
        try:
            return safe_load_npz(path)
        except (InputError, EOFError, ValueError):
            return None

    def put(self, start: int, stop: int, arrays: Mapping[str, torch.Tensor]) -> None:
        """Write a window; it appears whole or not at all.

        Raises OutputError when the folder cannot be written.
        """
        with atomic_path(self._path(start, stop), overwrite=True) as partial:
            np.savez(partial, **{name: value.numpy() for name, value in arrays.items()})

    def _path(self, start: int, stop: int) -> Path:
        return self._folder / f"{self._prefix}-{start:06d}-{stop:06d}.npz"


#: A latent depends on this many latents before it at most: a fresh stream that starts so far back
#: gives the same numbers (the VAE's causal convolutions reach back 27). A test holds it.
WARM_UP_LATENTS = 32
#: What a second look at the mirrored clip is asked for.
SECOND_OPINION = ("presence", "visible", "anchors")

#: One entry per latent along the last axis but two: latents (48, k, h, w), or packed frames.
Latents = Num[torch.Tensor, "*c k h w"]


@runtime_checkable
class LatentStream(Protocol):
    """One clip on its way through the encoder (``encoder.vae.EncoderStream``)."""

    def push(self, frames: UInt8[np.ndarray, "n H W 3"]) -> Latents: ...

    def finish(self) -> Latents: ...


@runtime_checkable
class Encoder(Protocol):
    """What makes latents of frames: ``encoder.vae.VideoEncoder``, or ``pixels.PixelEncoder``."""

    def stream(self) -> LatentStream: ...


class Pass:
    """One look at the recording: as it is, or mirrored left to right."""

    def __init__(self, store: WindowStore, mirrored: bool) -> None:
        self.store, self.mirrored = store, mirrored

    def missing(self, windows: Sequence[Window]) -> list[Window]:
        """Return the windows that the store lacks."""
        return [w for w in windows if self.store.get(w.start, w.stop) is None]


def read_windows(
    reading: Reading,
    windows: Sequence[Window],
    model: Callable[[ClipBatch], Readout],
    encoder: Encoder,
    passes: Sequence[Pass],
    batch: int,
    progress: Callable[[int, int], None],
) -> None:
    """Fill the stores of all passes with the readouts of all windows.

    Windows that a store has already are not read again; encoding then starts as late as possible.

    Args:
        batch: windows read at once.
        progress: called with the frames encoded and the number of all.
    """
    looks = [_Look(one, windows, model, encoder, batch, reading.size) for one in passes]
    needed = [look.first_latent for look in looks if look.first_latent is not None]
    if not needed:
        progress(reading.count, reading.count)
        return
    begin = max(0, min(needed) - WARM_UP_LATENTS)
    for look in looks:
        look.start(begin)
    done = TEMPORAL_STRIDE * begin
    for chunk in reading.chunks(done):
        for look in looks:
            look.push(chunk)
        done += len(chunk)
        progress(done, reading.count)
        if all(look.first_latent is None for look in looks):
            break
    for look in looks:
        look.finish()


class _Look:
    """One pass at work: its stream, the latents of open windows and the windows still to read."""

    def __init__(
        self,
        one: Pass,
        windows: Sequence[Window],
        model: Callable[[ClipBatch], Readout],
        encoder: Encoder,
        batch: int,
        size: tuple[int, int],
    ) -> None:
        self._pass, self._model, self._encoder = one, model, encoder
        self._batch, self._size = batch, size
        self._waiting = one.missing(windows)
        self._latents: torch.Tensor | None = None
        self._base = 0

    @property
    def first_latent(self) -> int | None:
        """The first latent that is needed, or None."""
        return self._waiting[0].start if self._waiting else None

    def start(self, latent: int) -> None:
        """Begin a stream whose first frame is that of ``latent``."""
        self._base = latent
        self._stream = self._encoder.stream()

    def push(self, frames: UInt8[np.ndarray, "n H W 3"]) -> None:
        """Take the next frames and read the windows that they complete."""
        if not self._waiting:
            return
        if self._pass.mirrored:
            frames = np.ascontiguousarray(frames[:, :, ::-1])
        self._take(self._stream.push(frames))

    def finish(self) -> None:
        """Read what is left."""
        if self._waiting:
            self._take(self._stream.finish())
        assert not self._waiting, "the stream gave fewer latents than the frames make"

    def _take(self, latents: torch.Tensor) -> None:
        held = self._latents
        held = latents if held is None else torch.cat([held, latents], dim=-3)
        end = self._base + held.shape[-3]
        while (batch := self._next_batch()) and batch[-1].stop <= end:
            self._read(batch, held)
            self._waiting = self._waiting[len(batch) :]
        keep = max(0, (self._waiting[0].start if self._waiting else end) - self._base)
        # A copy: a view would keep every latent that ever was. What warms up only is not kept.
        drop = min(keep, held.shape[-3])
        self._latents, self._base = held[..., drop:, :, :].clone(), self._base + drop

    def _next_batch(self) -> list[Window]:
        """Return the windows to read next: one tensor holds windows of one length only."""
        ahead = self._waiting[: self._batch]
        return list(takewhile(lambda w: w.stop - w.start == ahead[0].stop - ahead[0].start, ahead))

    def _clip_batch(self, clips: list[torch.Tensor], size: torch.Tensor) -> ClipBatch:
        if isinstance(self._encoder, PixelEncoder):
            return ClipBatch(None, size, frames=torch.stack([unpack(clip) for clip in clips]))
        return ClipBatch(torch.stack(clips), size)

    def _read(self, windows: Sequence[Window], held: torch.Tensor) -> None:
        clips = [held[..., w.start - self._base : w.stop - self._base, :, :] for w in windows]
        size = torch.tensor([self._size], dtype=torch.float32, device=held.device)
        with torch.inference_mode():
            readout = self._model(self._clip_batch(clips, size.expand(len(clips), 2))).detached()
        names = SECOND_OPINION if self._pass.mirrored else tuple(f.name for f in fields(Readout))
        for row, window in enumerate(windows):
            arrays = {name: getattr(readout, name)[row : row + 1] for name in names}
            self._pass.store.put(window.start, window.stop, arrays)
