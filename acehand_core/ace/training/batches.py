"""Batches of a run, by step: pictures or latents and the truth, ready for the model.

Latents are encoded once, of whole recordings, and kept under a hash of what made them. Latent s of
a recording belongs to video frame 4 s; windows are cut at whole latents. A window encoded on its
own differs from a cut in its first latents, because the encoder is causal.
"""

from __future__ import annotations

import hashlib
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
from acehand_core.ace.labelled.clips.windows import STRIDE, Mixture, Sample, WindowSettings, mixture
from acehand_core.ace.model.batch import ClipBatch, PinholeBatch
from acehand_core.ace.model.config import TINY_TOKEN_PIXELS, TOKEN_PIXELS
from acehand_core.ace.model.encoder.sources import source_kind
from acehand_core.ace.model.encoder.vae import VideoEncoder
from acehand_core.ace.model.inference.windows import encode_size
from acehand_core.ace.training.config import DataConfig, SourceConfig
from acehand_core.ace.training.targets import Targets, targets_of
from acehand_core.atomic import atomic_path
from acehand_core.errors import AcehandError, InputError, SchemaError
from acehand_core.hand.hands_torch import TorchHands

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
                latents = encode(clip, size, encoder, resize, self.image_frames)
                with atomic_path(path, overwrite=True) as partial:
                    np.save(partial, latents, allow_pickle=False)
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
        # Chunk by chunk: a recording may be longer than memory.
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
        digest.update(tensors[name].contiguous().flatten().view(torch.uint8).cpu().numpy().data)
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Batch:
    """What a model reads, the truth, and where it came from."""

    clips: ClipBatch
    targets: Targets
    samples: tuple[Sample, ...]

    def to(self, device: torch.device) -> Batch:
        """Return the batch on a device."""
        clips = self.clips
        targets = self.targets.to(device)
        moved = ClipBatch(
            None if clips.latents is None else clips.latents.to(device),
            clips.size.to(device),
            targets.camera,
            None if clips.frames is None else clips.frames.to(device),
        )
        return Batch(moved, targets, self.samples)


class ClipReader:
    """Samples to batches, for one feature source; may be sent to loader processes."""

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
            still = clip.info.kind == "image"
            index = np.full(sample.frames, 0) if still else sample.start + np.arange(sample.frames)
            motion = clip.motion.at(
                index, np.arange(len(index)) * round(1e9 / clip.info.fps), clip.info.fps
            )
            truths.append(targets_of(clip.info, motion, sample.size, grid, self.hands, self.fixed))
            clips.append(self._clip(sample, clip))

        targets, data = Targets.stack(truths), torch.stack(clips)
        frames = self.needs == "frames"
        camera: PinholeBatch = targets.camera
        read = ClipBatch(None if frames else data, camera.size, camera, data if frames else None)
        return Batch(read, targets, tuple(samples))

    def _clip(self, sample: Sample, clip: Clip) -> Float[torch.Tensor, "c n rows columns"]:
        if self.needs == "latents":
            assert self.cache is not None
            first = sample.start // STRIDE
            count = (sample.frames - 1) // STRIDE + 1
            return self.cache.read(sample, clip.info, first, count)
        return scaled(frames_of(sample, clip))


def frames_of(sample: Sample, clip: Clip) -> UInt8[np.ndarray, "n H W 3"]:
    """Return the pictures of a sample at the size they are encoded at."""
    assert clip.frames is not None
    if clip.info.kind == "image":
        return np.repeat(resized(clip.frames.at(0), sample.size)[None], sample.frames, 0)
    read = clip.frames.read(sample.start, sample.start + sample.frames)
    return np.stack([resized(image, sample.size) for image in read])


def resized(image: UInt8[np.ndarray, "H W 3"], size: tuple[int, int]) -> UInt8[np.ndarray, "_ _ 3"]:
    """Return a picture at (width, height), as inference does it."""
    if image.shape[1::-1] == size:
        return image
    return cv2.resize(image, size, interpolation=cv2.INTER_AREA)


def scaled(frames: UInt8[np.ndarray, "n H W 3"]) -> Float[torch.Tensor, "3 n H W"]:
    """Return pictures as the sources read them, -1..1."""
    return torch.from_numpy(frames).permute(3, 0, 1, 2).float() / 255 * 2 - 1


class _Steps(Dataset[Batch | AcehandError]):
    """One process's batches; entry ``step * accumulation + part``."""

    def __init__(self, reader: ClipReader, plan: Plan) -> None:
        self.reader, self.plan = reader, plan

    def __len__(self) -> int:
        return self.plan.steps * self.plan.accumulation

    def __getitem__(self, index: int) -> Batch | AcehandError:
        torch.set_num_threads(1)
        cv2.setNumThreads(1)
        try:
            return self.reader.read(self.plan.samples(*divmod(index, self.plan.accumulation)))
        except AcehandError as error:
            return error  # raised, it would come out of a loader process with its traceback as text


@dataclass(frozen=True, slots=True)
class Plan:
    """Which samples which process sees when: a slice of the step's whole batch."""

    mixture: Mixture
    seed: int
    steps: int
    per_process: int
    processes: int
    accumulation: int
    rank: int

    def samples(self, step: int, part: int) -> list[Sample]:
        """Return this process's samples of a part of a step."""
        group = part * self.processes + self.rank
        if self.mixture.settings.dataset_per == "process":
            return self.mixture.draw(self.seed, step, self.per_process, group)
        total = self.per_process * self.processes * self.accumulation
        first = group * self.per_process
        return self.mixture.draw(self.seed, step, total)[first : first + self.per_process]


def batches(reader: ClipReader, plan: Plan, first_step: int, workers: int) -> Iterator[list[Batch]]:
    """Yield, per step from ``first_step`` on, the parts of this process.

    Raises:
        AcehandError: what reading a sample raises, or a loader process that ended by itself.
    """
    order = range(first_step * plan.accumulation, plan.steps * plan.accumulation)
    loader = DataLoader(
        _Steps(reader, plan), batch_size=None, sampler=order, num_workers=workers,
        multiprocessing_context="forkserver" if workers else None,
        prefetch_factor=2 if workers else None, worker_init_fn=_deaf,
    )  # fmt: skip
    parts: list[Batch] = []
    for batch in _loaded(loader):
        if isinstance(batch, AcehandError):
            raise batch
        parts.append(batch)
        if len(parts) == plan.accumulation:
            yield parts
            parts = []


def _deaf(worker: int) -> None:
    """Ignore what asks a run to stop, and may reach all of its processes: it stops its loaders."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _loaded(loader: DataLoader[Batch | AcehandError]) -> Iterator[Batch | AcehandError]:
    try:
        yield from loader
    except RuntimeError as error:
        if "exited unexpectedly" not in str(error) and "killed by signal" not in str(error):
            raise
        raise AcehandError(
            "a process that loads clips ended by itself; memory may be short: fewer data.workers "
            "need less. The same command resumes from the last checkpoint."
        ) from error


def shares(samples: Sequence[Sample], processes: int, rank: int) -> list[tuple[Sample, bool]]:
    """Return one process's part of some samples, and which of them count.

    Every process gets as many, for they compute together; what fills up the last ones does not
    count, so the result is the same for any number of processes.
    """
    each = -(-len(samples) // processes)
    places = range(rank * each, (rank + 1) * each)
    return [(samples[p % len(samples)], p < len(samples)) for p in places]


def open_stores(sources: dict[str, SourceConfig]) -> dict[str, ClipStore]:
    """Open the stores of sources. Raises InputError or SchemaError naming the folder."""
    return {name: ClipStore(Path(source.root or "")) for name, source in sources.items()}


def check_hand_models(stores: dict[str, ClipStore], hand: str) -> None:
    """Raise InputError unless the hands of all clips are the run's, or joints alone."""
    for name, store in stores.items():
        for info in store.infos().values():
            if info.hand_model not in ("none", hand):
                raise InputError(
                    f"data.sources.{name}: the hands of {info.id} are {info.hand_model!r}, this "
                    f"run's {hand!r}; use hand={info.hand_model}, or leave the source out."
                )


def sorted_clips(
    name: str,
    source: SourceConfig,
    store: ClipStore,
    window: WindowSettings,
    leave_out: Collection[str] = (),
) -> Mixture:
    """Return the mixture of one source: its clips by the size that they are encoded at."""

    def size(info: ClipInfo) -> tuple[int, int]:
        return encode_size(info.width, info.height, source.encode_width)

    return mixture({name: store}, {name: 1.0}, window, size, leave_out)


def make_mixture(
    config: DataConfig,
    sources: dict[str, SourceConfig],
    stores: dict[str, ClipStore],
    leave_out: Collection[str] = (),
) -> Mixture:
    """Return the mixture of sources, without the clips (SOURCE/CLIP) that are left out."""
    parts = {
        name: sorted_clips(name, source, stores[name], config.window, leave_out)
        for name, source in sources.items()
    }
    return Mixture(
        {name: part.buckets[name] for name, part in parts.items()},
        {name: source.weight for name, source in sources.items()},
        config.window,
        {name: part.skipped[name] for name, part in parts.items()},
    )
