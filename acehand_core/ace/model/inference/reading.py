"""A recording as the network reads it: frames in, the readout of every window in a store.

Frames are taken at the model's rate and the encoded size and encoded in a stream; a window is read
as soon as its latents are there. Memory does not depend on the recording's length: at any time
there are a few frames, the latents of open windows, and one batch; readouts go to files, so a run
can be resumed. A file's name is a hash of the pictures, the weights and the settings that its
numbers depend on, never of a name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

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
    latents_of,
)
from acehand_core.atomic import atomic_path
from acehand_core.errors import InputError
from acehand_core.motion import Recording
from acehand_core.recordings.selection import at_rate
from acehand_core.safe_files import safe_load_npz
from acehand_core.types import Picture

Tail = Literal["repeat", "drop"]
Chunk = UInt8[np.ndarray, "n H W 3"]
Arrays = dict[str, np.ndarray]
#: One entry per latent along the last axis but two: latents (48, k, h, w), or packed frames.
Latents = Num[torch.Tensor, "*c k h w"]

#: The rate of the paper's training clips.
MODEL_FPS = 30
#: A recording is read as it is while its rate is this near, and this share of its frames regular.
_RATE_TOLERANCE = 0.1
_REGULAR_SHARE = 0.9
#: Frames decoded and encoded at once.
CHUNK_FRAMES = 16
#: A latent depends on this many latents before it at most: a fresh stream that starts so far back
#: gives the same numbers (the VAE's causal convolutions reach back 27). A test holds it.
WARM_UP_LATENTS = 32
#: What is kept of the readouts of the mirrored recording.
SECOND_OPINION = ("presence", "visible", "anchors")


@dataclass(frozen=True, slots=True)
class ModelInput:
    """How a recording goes into the model.

    ``recording`` is at the model's rate, with M frames; frame k shows frame ``shown[k]`` of the
    recording as it was. ``size`` (width, height) is that of the encoded image. ``count`` frames
    are encoded: M brought to 4k + 1.
    """

    recording: Recording
    shown: Int[np.ndarray, "M"]
    resampled: bool
    size: tuple[int, int]
    count: int

    @property
    def latents(self) -> int:
        """Latents that the frames make."""
        return latents_of(self.count)

    def chunks(self, start: int = 0) -> Iterator[Chunk]:
        """Yield frames ``start`` to ``count - 1``, RGB at the encoded size, ``CHUNK_FRAMES`` each.

        Beyond the recording's end its last frame is repeated. One chunk is decoded ahead, in
        another thread.
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

    Footage whose rate is not within 10 % of 30 fps, or irregular, is read at 30 fps (the frame
    nearest in time).

    Args:
        tail: what to do with frames beyond the last multiple of four: "repeat" the last frame
            until they fill a latent, or "drop" them as the released code does.
        every_frame: read the recording's own frames whatever its rate, as training reads a
            dataset's and as tables are scored.

    Raises:
        InputError: there are no images, or too few frames for "drop".
    """
    if recording.frames is None:
        raise InputError(f"{recording.source}: the ace tracker needs a video; this input has none.")
    taken, shown = recording, np.arange(len(recording))
    off = np.abs(np.diff(recording.timestamps_ns) * MODEL_FPS / 1e9 - 1)
    as_trained = not len(off) or (off <= _RATE_TOLERANCE).mean() >= _REGULAR_SHARE
    resampled = not (every_frame or as_trained)
    if resampled:
        taken, shown = at_rate(recording, MODEL_FPS)

    if tail == "drop" and len(taken) < MIN_FRAMES:
        raise InputError(
            f"{recording.source}: {len(taken)} frames at {taken.fps:.3g} fps; the model needs "
            f"{MIN_FRAMES} or more. Without dropping the tail a shorter clip is filled up."
        )
    count = frames_used(len(taken)) if tail == "drop" else frames_padded(len(taken))
    return ModelInput(taken, shown, resampled, size, count)


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
            values = {name: value.numpy() for name, value in arrays.items()}
            np.savez(partial, allow_pickle=False, **values)

    def _path(self, start: int, stop: int) -> Path:
        return self._folder / f"{self._prefix}-{start:06d}-{stop:06d}.npz"


@runtime_checkable
class LatentStream(Protocol):
    """One clip on its way through the encoder (``encoder.vae.EncoderStream``)."""

    def push(self, frames: Chunk) -> Latents: ...

    def finish(self) -> Latents: ...


@runtime_checkable
class Encoder(Protocol):
    """What makes latents of frames: ``VideoEncoder`` or ``PixelEncoder`` of ``encoder.vae``."""

    def stream(self) -> LatentStream: ...


@dataclass(frozen=True, slots=True)
class WindowView:
    """The recording as it is, or mirrored left to right, and the store of its readouts."""

    store: WindowStore
    mirrored: bool


def read_windows(
    clip: ModelInput,
    windows: Sequence[Window],
    model: Callable[[ClipBatch], Readout],
    encoder: Encoder,
    views: Sequence[WindowView],
    batch: int,
    progress: Callable[[int, int], None],
) -> None:
    """Fill the stores of all views with the readouts of all windows.

    Windows that a store has already are not read again; encoding then starts as late as possible.

    Args:
        batch: windows read at once.
        progress: called with the frames encoded and the number of all.
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
        """Begin a stream whose first frame is that of ``latent``."""
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
        """Read what is left."""
        if self._waiting:
            self.take(self._stream.finish())
        assert not self._waiting, "the stream gave fewer latents than the frames make"

    def take(self, latents: torch.Tensor) -> None:
        """Take the next latents, read the windows that they complete and drop what is done."""
        held = latents if self.latents is None else torch.cat([self.latents, latents], dim=-3)
        end = self._base + held.shape[-3]
        while self._waiting:
            # One tensor holds windows of one length only.
            first = self._waiting[0]
            together = [first]
            for window in self._waiting[1 : self._batch]:
                if window.stop - window.start != first.stop - first.start:
                    break
                together.append(window)
            if together[-1].stop > end:
                break
            self._read(together, held)
            self._waiting = self._waiting[len(together) :]

        keep = max(0, (self._waiting[0].start if self._waiting else end) - self._base)
        # A copy: a view would keep every latent that ever was. What warms up only is not kept.
        drop = min(keep, held.shape[-3])
        self.latents, self._base = held[..., drop:, :, :].clone(), self._base + drop

    def _read(self, windows: Sequence[Window], held: torch.Tensor) -> None:
        """Run the network on windows of one length and store what it reads."""
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
            arrays = {name: getattr(readout, name)[row : row + 1] for name in names}
            self._view.store.put(window.start, window.stop, arrays)
