"""Batches of a run: pictures or latents with their ground truth.

Latents are encoded once per recording: the encoder is causal, so the first latents of a window
would depend on its start. Latent s belongs to video frame 4 s.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import signal
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch.utils.data import DataLoader, Dataset

from acehand_core.ace.labelled.clips.schema import Clip, ClipInfo
from acehand_core.ace.labelled.clips.store import ClipStore
from acehand_core.ace.labelled.clips.windows import STRIDE, Mixture, Sample, mixture
from acehand_core.ace.model.batch import ClipBatch
from acehand_core.ace.model.config import TINY_TOKEN_PIXELS, TOKEN_PIXELS
from acehand_core.ace.model.encoder.sources import source_kind
from acehand_core.ace.model.encoder.vae import VideoEncoder
from acehand_core.ace.model.inference.windows import encode_size
from acehand_core.ace.training.config import DataConfig, SourceConfig
from acehand_core.ace.training.targets import Targets, mapped, targets_of
from acehand_core.atomic import atomic_path
from acehand_core.errors import AcehandError, InputError, SchemaError
from acehand_core.hand.hands_torch import TorchHands

_CHUNK = 16


class LatentCache:
    """A folder of float16 latents (48, F, H/16, W/16), by a hash of recording, size and encoder."""

    def __init__(self, folder: Path, encoder_sha256: str, image_frames: int = 5) -> None:
        self.folder, self.encoder = folder, encoder_sha256
        self.image_frames = image_frames

    def path(self, info: ClipInfo, size: tuple[int, int]) -> Path:
        """Return the file of a clip's latents, named by a hash of pictures, size and encoder."""
        stored = ("video", "image")
        pictures = {name: info.files[name] for name in info.files if name.startswith(stored)}
        reference = info.reference
        origin = [reference.sha256, reference.first, reference.stop] if reference else pictures
        copies = self.image_frames if info.kind == "image" else 0
        text = json.dumps([origin, size, self.encoder, copies], sort_keys=True)
        return self.folder / f"{hashlib.sha256(text.encode()).hexdigest()}.npy"

    def read(self, sample: Sample, info: ClipInfo) -> Float[torch.Tensor, "c n rows columns"]:
        """Return float32 latents. Raises InputError for missing, SchemaError for damaged ones."""
        path, first = self.path(info, sample.size), sample.start // STRIDE
        stop = first + (sample.frames - 1) // STRIDE + 1
        if not path.exists():
            raise InputError(
                f"{info.dataset}/{info.id}: its latents are not in {self.folder}; encode first."
            )
        try:
            latents = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise SchemaError(f"{path}: damaged ({error}); delete it to encode again.") from error
        if stop > latents.shape[1]:
            raise SchemaError(f"{path}: {latents.shape[1]} latents; {stop} are needed.")
        return torch.from_numpy(np.array(latents[:, first:stop])).float()

    def ensure(
        self,
        clips: Iterable[tuple[Clip, tuple[int, int]]],
        encoder: VideoEncoder,
        progress: Callable[[int], None] = lambda done: None,
    ) -> int:
        """Encode the recordings that the folder lacks; return their number. Can be resumed."""
        encoded = 0
        self.folder.mkdir(parents=True, exist_ok=True)
        for done, (clip, size) in enumerate(clips, 1):
            path = self.path(clip.info, size)
            if not path.exists():
                latents = encode(clip, size, encoder, self.image_frames)
                with atomic_path(path, overwrite=True) as partial:
                    np.save(partial, latents, allow_pickle=False)
                encoded += 1
            progress(done)
        return encoded


def encode(
    clip: Clip, size: tuple[int, int], encoder: VideoEncoder, image_frames: int
) -> np.ndarray:
    """Encode a whole recording, or an image as a static clip; float16 (48, F, rows, columns)."""
    assert clip.frames is not None
    stream, parts = encoder.stream(), []
    images: Iterator[np.ndarray]
    if clip.info.kind == "image":
        images = itertools.repeat(clip.frames.at(0), image_frames)
    else:
        images = clip.frames.read(0, STRIDE * ((clip.info.frames - 1) // STRIDE) + 1)
    # In chunks: a recording may exceed memory.
    while chunk := [resized(image, size) for image in itertools.islice(images, _CHUNK)]:
        parts.append(stream.push(np.stack(chunk)))
    parts.append(stream.finish())
    return torch.cat(parts, dim=1).cpu().numpy().astype(np.float16)


def encoder_key(tensors: Mapping[str, torch.Tensor], precision: str) -> str:
    """Return a hash of an encoder's weights and precision."""
    digest = hashlib.sha256(precision.encode())
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].contiguous().flatten().view(torch.uint8).cpu().numpy().data)
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Batch:
    """Model inputs, ground truth and their samples."""

    clips: ClipBatch
    targets: Targets
    samples: tuple[Sample, ...]

    def to(self, device: torch.device) -> Batch:
        clips, targets = (
            mapped(lambda tensors: tensors[0].to(device), [part])
            for part in (self.clips, self.targets)
        )
        return Batch(clips, targets, self.samples)


class ClipReader:
    """Reads samples as batches for one feature source; can be sent to loader processes."""

    def __init__(
        self,
        stores: dict[str, ClipStore],
        source: str,
        hands: TorchHands,
        left_shapedirs_fixed: bool = False,
        cache: LatentCache | None = None,
    ) -> None:
        self.stores, self.hands, self.cache = stores, hands, cache
        self.needs = source_kind(source).needs
        self.token = TINY_TOKEN_PIXELS if source == "tiny" else TOKEN_PIXELS
        self.fixed = left_shapedirs_fixed
        if self.needs == "latents" and cache is None:
            raise InputError(f"source {source!r} reads latents; set data.latent_cache=FOLDER.")

    def read(self, samples: Sequence[Sample]) -> Batch:
        """Return samples of one bucket as a batch."""
        truths, clips = [], []
        for sample in samples:
            clip = self.stores[sample.dataset].open(sample.clip, pictures=self.needs == "frames")
            width, height = sample.size
            grid = height // self.token, width // self.token
            fps, count = clip.info.fps, np.arange(sample.frames)
            index = 0 * count if clip.info.kind == "image" else sample.start + count
            motion = clip.motion.at(index, count * round(1e9 / fps), fps)
            truths.append(targets_of(clip.info, motion, sample.size, grid, self.hands, self.fixed))
            if self.cache is not None:
                clips.append(self.cache.read(sample, clip.info))
            else:
                clips.append(scaled(frames_of(sample, clip)))

        targets, data = Targets.stack(truths), torch.stack(clips)
        latents, frames = (None, data) if self.needs == "frames" else (data, None)
        read = ClipBatch(latents, targets.camera.size, targets.camera, frames)
        return Batch(read, targets, tuple(samples))


def frames_of(sample: Sample, clip: Clip) -> UInt8[np.ndarray, "n H W 3"]:
    """Return the pictures of a sample at the encoded size."""
    assert clip.frames is not None
    if clip.info.kind == "image":
        return np.repeat(resized(clip.frames.at(0), sample.size)[None], sample.frames, 0)
    read = clip.frames.read(sample.start, sample.start + sample.frames)
    return np.stack([resized(image, sample.size) for image in read])


def resized(image: UInt8[np.ndarray, "H W 3"], size: tuple[int, int]) -> UInt8[np.ndarray, "_ _ 3"]:
    """Return a picture at (width, height), resized as in inference."""
    if image.shape[1::-1] == size:
        return image
    return cv2.resize(image, size, interpolation=cv2.INTER_AREA)


def scaled(frames: UInt8[np.ndarray, "n H W 3"]) -> Float[torch.Tensor, "3 n H W"]:
    """Return pictures scaled to -1..1."""
    return torch.from_numpy(frames).permute(3, 0, 1, 2).float() / 255 * 2 - 1


class _Steps(Dataset[Batch | AcehandError]):
    """One process's batches; entry ``step * accumulation + part``."""

    def __init__(self, reader: ClipReader, plan: SamplingPlan) -> None:
        self.reader, self.plan = reader, plan

    def __len__(self) -> int:
        return self.plan.steps * self.plan.accumulation

    def __getitem__(self, index: int) -> Batch | AcehandError:
        torch.set_num_threads(1)
        cv2.setNumThreads(1)
        try:
            return self.reader.read(self.plan.samples(*divmod(index, self.plan.accumulation)))
        except AcehandError as error:
            return error  # raised, it would leave the loader process as a formatted traceback


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """The samples of each process: slices of a step's whole batch."""

    mixture: Mixture
    seed: int
    steps: int
    per_process: int
    processes: int
    accumulation: int
    rank: int

    def samples(self, step: int, part: int) -> list[Sample]:
        """Return this process's samples of one part of a step."""
        group = part * self.processes + self.rank
        if self.mixture.settings.dataset_per == "process":
            return self.mixture.draw(self.seed, step, self.per_process, group)
        total = self.per_process * self.processes * self.accumulation
        first = group * self.per_process
        return self.mixture.draw(self.seed, step, total)[first : first + self.per_process]


def batches(
    reader: ClipReader, plan: SamplingPlan, first_step: int, workers: int
) -> Iterator[list[Batch]]:
    """Yield this process's parts of each step. Raises AcehandError, also for a dead loader."""
    order = range(first_step * plan.accumulation, plan.steps * plan.accumulation)
    loader = DataLoader(
        _Steps(reader, plan), batch_size=None, sampler=order, num_workers=workers,
        multiprocessing_context="forkserver" if workers else None,
        prefetch_factor=2 if workers else None, worker_init_fn=_deaf,
    )  # fmt: skip

    parts: list[Batch] = []
    try:
        for batch in loader:
            if isinstance(batch, AcehandError):
                raise batch
            parts.append(batch)
            if len(parts) == plan.accumulation:
                yield parts
                parts = []
    except RuntimeError as error:
        if "exited unexpectedly" not in str(error) and "killed by signal" not in str(error):
            raise
        raise AcehandError(
            "a process that loads clips died, perhaps for lack of memory; use fewer data.workers. "
            "The same command resumes from the last checkpoint."
        ) from error


def _deaf(worker: int) -> None:
    """Ignore signals that stop a run: they may reach its loaders, which the run itself ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def shares(samples: Sequence[Sample], processes: int, rank: int) -> list[tuple[Sample, bool]]:
    """Return one process's part of some samples, and whether each counts.

    All parts are equally long, for synchronous processes; padding does not count.
    """
    each = -(-len(samples) // processes)
    places = range(rank * each, (rank + 1) * each)
    return [(samples[p % len(samples)], p < len(samples)) for p in places]


def open_stores(sources: dict[str, SourceConfig]) -> dict[str, ClipStore]:
    """Open the stores. Raises InputError or SchemaError naming the folder."""
    return {name: ClipStore(Path(source.root or "")) for name, source in sources.items()}


def check_hand_models(stores: dict[str, ClipStore], hand: str) -> None:
    """Raise InputError for clips with another hand model than the run's; joints alone are valid."""
    for name, store in stores.items():
        for info in store.infos().values():
            if info.hand_model not in ("none", hand):
                raise InputError(
                    f"data.sources.{name}: the hands of {info.id} are {info.hand_model!r}, this "
                    f"run's {hand!r}; use hand={info.hand_model}, or leave the source out."
                )


def make_mixture(
    config: DataConfig,
    sources: dict[str, SourceConfig],
    stores: dict[str, ClipStore],
    leave_out: Collection[str] = (),
) -> Mixture:
    """Return the mixture of sources without the clips (SOURCE/CLIP) to leave out."""

    def size(name: str, info: ClipInfo) -> tuple[int, int]:
        return encode_size(info.width, info.height, sources[name].encode_width)

    weights = {name: source.weight for name, source in sources.items()}
    return mixture(stores, weights, config.window, size, leave_out)
