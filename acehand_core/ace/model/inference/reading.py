"""From frames to a store with the readout of every window.

Frames are resampled, resized and encoded in a stream; a window is read as soon as its latents are
complete. Memory does not grow with the recording: a few frames, the latents of open windows, and
one batch; readouts go to files, so a run can resume. File names are hashes of pictures, weights and
settings, never of names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from itertools import groupby, islice
from typing import Literal, Protocol, runtime_checkable

import cv2
import numpy as np
import torch
from jaxtyping import Int, Num, UInt8

from acehand_core.ace.model.batch import ClipBatch, Readout
from acehand_core.ace.model.config import TEMPORAL_STRIDE
from acehand_core.ace.model.encoder.vae import PixelEncoder, unpack
from acehand_core.ace.model.inference.windows import (
    MIN_FRAMES,
    Window,
    frames_padded,
    frames_used,
)
from acehand_core.errors import InputError
from acehand_core.motion import Recording
from acehand_core.recordings.selection import at_rate
from acehand_core.safe_files import ArrayCache
from acehand_core.types import Picture

Tail = Literal["repeat", "drop"]
Chunk = UInt8[np.ndarray, "n H W 3"]
Arrays = dict[str, np.ndarray]
#: One entry per latent along the last axis but two: latents (48, k, h, w), or packed frames.
Latents = Num[torch.Tensor, "*c k h w"]

#: The rate of the paper's training clips.
MODEL_FPS = 30
#: Recordings are not resampled if this share of frame intervals is within the tolerance.
_RATE_TOLERANCE = 0.1
_REGULAR_SHARE = 0.9
#: Frames decoded and encoded at once.
CHUNK_FRAMES = 16
#: Warm-up of a fresh stream, beyond which latents are exact (the VAE's causal convolutions reach
#: back 27 latents).
WARM_UP_LATENTS = 32
#: The stored part of the mirrored recording's readouts.
SECOND_OPINION = ("presence", "visible", "anchors")


@dataclass(frozen=True, slots=True)
class ModelInput:
    """How a recording goes into the model.

    ``recording`` is at the model's rate, with M frames; frame k shows frame ``shown[k]`` of the
    original. ``size`` is (width, height) of the encoded image. ``count`` frames are encoded: M
    brought to 4k + 1.
    """

    recording: Recording
    shown: Int[np.ndarray, "M"]
    resampled: bool
    size: tuple[int, int]
    count: int

    def chunks(self, start: int = 0) -> Iterator[Chunk]:
        """Yield frames ``start`` to ``count - 1``, RGB at the encoded size, ``CHUNK_FRAMES`` each.

        The last frame is repeated beyond the end. A thread decodes one chunk ahead.
        """
        images = self._images(start)

        def next_chunk() -> Chunk | None:
            pictures = list(islice(images, CHUNK_FRAMES))
            return np.stack(pictures) if pictures else None

        with ThreadPoolExecutor(1, "decode") as pool:
            coming = pool.submit(next_chunk)
            while (chunk := coming.result()) is not None:
                coming = pool.submit(next_chunk)
                yield chunk

    def _images(self, start: int) -> Iterator[Picture]:
        """Yield frames from ``start`` on at the encoded size, the last one as often as needed."""
        frames, have, size = self.recording.frames, len(self.recording), self.size
        assert frames is not None
        index = min(start, have - 1)
        for image in frames.read(index, min(have, self.count)):
            if image.shape[:2] != size[::-1]:
                image = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
            if index >= start:
                yield image
            index += 1
        for _ in range(max(index, start), self.count):
            yield image


def plan_input(
    recording: Recording, size: tuple[int, int], tail: Tail, every_frame: bool = False
) -> ModelInput:
    """Return how to read a recording.

    Footage that is irregular or not within 10 % of 30 fps is resampled to 30 fps (nearest frame).
    Raises InputError: no images, or too few frames for "drop".

    Args:
        tail: "repeat" the last frame until the last latent is full, or "drop" frames beyond the
            last multiple of four, as released.
        every_frame: read the recording's own frames at any rate, as in training and scoring.
    """
    if recording.frames is None:
        raise InputError(f"{recording.source}: `tracker=ace` needs a video.")
    taken, shown = recording, np.arange(len(recording))
    off = np.abs(np.diff(recording.timestamps_ns) * MODEL_FPS / 1e9 - 1)
    as_trained = not len(off) or (off <= _RATE_TOLERANCE).mean() >= _REGULAR_SHARE
    resampled = not (every_frame or as_trained)
    if resampled:
        taken, shown = at_rate(recording, MODEL_FPS)

    if tail == "drop" and len(taken) < MIN_FRAMES:
        raise InputError(
            f"{recording.source}: {len(taken)} frames at {taken.fps:.3g} fps; with the tail "
            f"dropped {MIN_FRAMES} or more are needed."
        )
    count = frames_used(len(taken)) if tail == "drop" else frames_padded(len(taken))
    return ModelInput(taken, shown, resampled, size, count)


@runtime_checkable
class LatentStream(Protocol):
    """The encoder's stream of one clip (``encoder.vae.EncoderStream``)."""

    def push(self, frames: Chunk) -> Latents: ...

    def finish(self) -> Latents: ...


@runtime_checkable
class Encoder(Protocol):
    """Maker of latents: ``VideoEncoder`` or ``PixelEncoder`` of ``encoder.vae``."""

    def stream(self) -> LatentStream: ...


@dataclass(frozen=True, slots=True)
class WindowView:
    """The recording as it is, or mirrored, and the store of its readouts."""

    store: ArrayCache
    mirrored: bool

    def arrays(self, window: Window) -> Arrays:
        """Return the stored readout of a window."""
        arrays = self.store.get(window.start, window.stop)
        assert arrays is not None, "every window was read before"
        return arrays


def read_windows(
    clip: ModelInput,
    windows: Sequence[Window],
    model: Callable[[ClipBatch], Readout],
    encoder: Encoder,
    views: Sequence[WindowView],
    batch: int,
    progress: Callable[[int, int], None],
) -> None:
    """Fill the stores of all views with the readouts of all windows, ``batch`` windows at a time.

    Stored windows are skipped, and encoding starts as late as possible. ``progress`` is called with
    the frames encoded and the number of all.
    """
    readers = [ViewReader(view, windows, model, encoder, batch, clip.size) for view in views]
    needed = [reader.first_latent for reader in readers if reader.first_latent is not None]
    if not needed:
        progress(clip.count, clip.count)
        return

    begin = max(0, min(needed) - WARM_UP_LATENTS)
    for reader in readers:
        reader.start(begin)

    done = TEMPORAL_STRIDE * begin
    for chunk in clip.chunks(done):
        for reader in readers:
            reader.push(chunk)
        done += len(chunk)
        progress(done, clip.count)
        if all(reader.first_latent is None for reader in readers):
            break
    for reader in readers:
        reader.finish()


class ViewReader:
    """Reads one view: its stream, the latents of open windows and the windows still to read."""

    def __init__(
        self,
        view: WindowView,
        windows: Sequence[Window],
        model: Callable[[ClipBatch], Readout],
        encoder: Encoder,
        batch: int,
        size: tuple[int, int],
    ) -> None:
        self._view, self._model, self._encoder = view, model, encoder
        self._batch, self._size = batch, size
        self._waiting = [w for w in windows if view.store.get(w.start, w.stop) is None]
        #: Latents from ``_base`` on.
        self.latents: torch.Tensor | None = None
        self._base = 0

    @property
    def first_latent(self) -> int | None:
        """The first latent that is needed, or None."""
        return self._waiting[0].start if self._waiting else None

    def start(self, latent: int) -> None:
        """Begin a stream at the first frame of ``latent``."""
        self._base = latent
        self._stream = self._encoder.stream()

    def push(self, frames: Chunk) -> None:
        """Take the next frames and read the windows that they complete."""
        if not self._waiting:
            return
        if self._view.mirrored:
            frames = np.ascontiguousarray(frames[:, :, ::-1])
        self.take(self._stream.push(frames))

    def finish(self) -> None:
        """Read the remaining windows."""
        if self._waiting:
            self.take(self._stream.finish())
        assert not self._waiting, "the stream gave fewer latents than the frames make"

    def take(self, latents: torch.Tensor) -> None:
        """Take the next latents, read the windows that they complete and drop unused latents."""
        held = latents if self.latents is None else torch.cat([self.latents, latents], dim=-3)
        end = self._base + held.shape[-3]
        while self._waiting:
            # A batch has windows of one length.
            _, alike = next(groupby(self._waiting[: self._batch], lambda w: w.stop - w.start))
            together = list(alike)
            if together[-1].stop > end:
                break
            self._read(together, held)
            self._waiting = self._waiting[len(together) :]

        keep = max(0, (self._waiting[0].start if self._waiting else end) - self._base)
        # A copy, since a view would keep all latents.
        drop = min(keep, held.shape[-3])
        self.latents, self._base = held[..., drop:, :, :].clone(), self._base + drop

    def _read(self, windows: Sequence[Window], held: torch.Tensor) -> None:
        """Run the network on windows of one length and store the readouts."""
        clips = [held[..., w.start - self._base : w.stop - self._base, :, :] for w in windows]
        size = torch.tensor([self._size], dtype=torch.float32, device=held.device)
        size = size.expand(len(clips), 2)
        if isinstance(self._encoder, PixelEncoder):
            batch = ClipBatch(None, size, frames=torch.stack([unpack(clip) for clip in clips]))
        else:
            batch = ClipBatch(torch.stack(clips), size)
        with torch.inference_mode():
            readout = self._model(batch).detached()

        names = SECOND_OPINION if self._view.mirrored else tuple(f.name for f in fields(Readout))
        for row, window in enumerate(windows):
            arrays = {name: getattr(readout, name)[row : row + 1].numpy() for name in names}
            self._view.store.put(window.start, window.stop, arrays)
