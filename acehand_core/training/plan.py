"""``acehand-train plan``: the disk, GPU memory and hours that a run needs, before it is started.

Everything is arithmetic on the composed configuration; nothing here was measured. What it rests on
is printed with the numbers. Sources with a root are counted; for the others stands the paper's
table "Training and evaluation data".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from acehand_core.datasets.clips.store import ClipStore
from acehand_core.datasets.clips.windows import STRIDE, WindowSettings
from acehand_core.datasets.readers.splits import PAPER
from acehand_core.errors import InputError, nearest
from acehand_core.model.config import SPATIAL_STRIDE
from acehand_core.model.encoder.sources import source_kind
from acehand_core.model.inference.windows import encode_size
from acehand_core.training.batches import sorted_clips
from acehand_core.training.config import SourceConfig, TrainConfig
from acehand_core.training.estimate import Size, step_size, trunk_flops

_HALF = 2
_GB, _TERA, _HOUR = 1e9, 1e12, 3600
#: Peak of dense bfloat16 matrix products in 1e12 operations per second, and memory in GB, of the
#: SXM models, as NVIDIA's data sheets have them.
GPUS: Mapping[str, tuple[float, float]] = {
    "a100": (312.0, 80.0), "h100": (989.0, 80.0), "h200": (989.0, 141.0),
}  # fmt: skip
#: Names of the sources in the paper's table that differ from those of our readers.
_READERS = {"reinterhand": "interhand"}
#: Pictures as published; the paper gives what they are encoded at for the first four (672 x 480,
#: 480 x 480, and a width of 832). Re:InterHand's are not stated anywhere we could read.
_PUBLISHED: Mapping[str, Size] = {
    "arctic": (2800, 2000), "hot3d": (1408, 1408), "h2o": (1280, 720), "oakink2": (848, 480),
    "freihand": (224, 224), "rhd": (320, 320),
}  # fmt: skip
#: Datasets of single pictures, which the paper counts as clips of five frames.
_STILL = ("freihand", "rhd")
#: For hours and memory of a source whose pictures are of unknown size; its storage stays unknown.
_ASSUMED: Size = (672, 480)
#: The paper, "Inference Throughput": 63.1 frames of 672 x 480 a second on one A100, 72 % of the
#: time in the VAE.
_ENCODED_FPS, _ENCODED_PIXELS = 63.1 / 0.72, 672 * 480


@dataclass(frozen=True, slots=True)
class Part:
    """Clips of one source that are encoded at one size.

    ``size`` (width, height) None: not known. ``share``: of the steps that see such clips; 0 for
    validation. ``latents`` None: not known; for the paper's counts at most so many, since it does
    not give the lengths of recordings.
    """

    source: str
    counted: bool
    clips: int
    frames: int
    latents: int
    size: Size | None
    window: int
    share: float

    def cache_bytes(self, channels: int) -> int | None:
        """Return the latents' size on disk, float16, without the files' headers."""
        if self.size is None:
            return None
        cells = (self.size[0] // SPATIAL_STRIDE) * (self.size[1] // SPATIAL_STRIDE)
        return channels * _HALF * cells * self.latents


def parts_of(config: TrainConfig, sizes: Mapping[str, Size]) -> list[Part]:
    """Return what a run trains on, and what it validates on where that has a root.

    Args:
        sizes: (width, height) that a source's pictures are encoded at, for those without a root.

    Raises:
        InputError: a source has neither a root nor a row in the paper's table, none is left, or a
            root is not a store of clips.
    """
    used = {name: source for name, source in config.data.sources.items() if source.weight > 0}
    if not used:
        raise InputError("data.sources: none has a weight above 0; there is nothing to plan.")

    unknown = [name for name in sizes if name not in used or used[name].root]
    if unknown:
        without = [name for name, source in used.items() if not source.root]
        raise InputError(
            f"--size {unknown[0]}: no source without a root is called that; "
            f"{nearest(unknown[0], without)}"
        )

    total = sum(source.weight for source in used.values())
    parts: list[Part] = []
    for name, source in used.items():
        share = source.weight / total
        if source.root:
            parts += _counted(name, source, config.data.window, share)
        else:
            parts.append(_stated(name, source, config.data.window, share, sizes.get(name)))

    for name, source in config.validation.sources.items():
        if source.root and source.weight > 0:
            parts += _counted(f"{name} (validation)", source, config.data.window, 0.0)
    return parts


def _counted(
    name: str, source: SourceConfig, window: WindowSettings, share: float
) -> Iterator[Part]:
    """Yield the clips of a store that are long enough to be drawn, by size."""
    by_frames = window.weighting == "frame"
    store = ClipStore(Path(source.root or ""))
    buckets = sorted_clips(name, source, store, window).buckets[name]
    masses = [sum(b.lengths) if by_frames else len(b.clips) for b in buckets]

    for bucket, mass in zip(buckets, masses, strict=True):
        still = bucket.kind == "image"
        lengths = [window.image_frames] * len(bucket.clips) if still else bucket.lengths
        yield Part(
            source=name, counted=True, clips=len(bucket.clips), frames=sum(lengths),
            latents=sum(map(_latents, lengths)), size=bucket.size,
            window=_latents(window.frames(bucket.kind)), share=share * mass / sum(masses),
        )  # fmt: skip


def _stated(
    name: str, source: SourceConfig, window: WindowSettings, share: float, size: Size | None
) -> Part:
    """Return a source as the paper's table has it."""
    reader = _READERS.get(name, name)
    if reader not in PAPER or "train" not in PAPER[reader]:
        raise InputError(
            f"data.sources.{name}: no root, and the paper has no such training set; give "
            f"data.sources.{name}.root=FOLDER of a store of clips, or weight=0 to leave it out."
        )

    clips, frames = PAPER[reader]["train"]
    kind: Literal["image", "video"] = "image" if name in _STILL else "video"
    if kind == "image":
        frames = clips * window.image_frames
        latents = clips * _latents(window.image_frames)
    else:
        # A recording of f frames has at most (f + 3) / 4 latents.
        latents = (frames + (STRIDE - 1) * clips) // STRIDE

    if size is None and name in _PUBLISHED:
        size = encode_size(*_PUBLISHED[name], source.encode_width)
    return Part(name, False, clips, frames, latents, size, _latents(window.frames(kind)), share)


def _latents(frames: int) -> int:
    return (frames - 1) // STRIDE + 1


def plan(
    config: TrainConfig, gpu: str, utilisation: float, sizes: Mapping[str, Size] | None = None
) -> dict[str, Any]:
    """Return the plan as the JSON object of docs/training.md.

    Memory and hours are None for sources of features other than the adapted transformer ("wan").

    Raises:
        InputError: see ``parts_of``; or an unknown GPU, or a utilisation that cannot be.
    """
    if gpu not in GPUS:
        raise InputError(f"--gpu {gpu}: {nearest(gpu, GPUS)}")
    if not 0 < utilisation <= 1:
        raise InputError(f"--mfu {utilisation:g}: above 0, up to 1.")
    model, optim = config.model, config.optim
    parts = parts_of(config, sizes or {})
    estimated = model.source == "wan"
    caches = source_kind(model.source).needs == "latents"

    return {
        "name": config.name,
        "source": model.source,
        "batch": {"processes": optim.processes, "clips_per_process": optim.clips_per_process,
                  "accumulation": optim.accumulation, "clips": optim.batch, "steps": optim.steps},
        "storage": _storage(config, parts) if caches else None,
        "memory": _memory(config, parts, gpu) if estimated else None,
        "time": _time(config, parts, gpu, utilisation) if estimated else None,
        "assumptions": list(_assumptions(config, parts, gpu, utilisation, caches, estimated)),
    }  # fmt: skip


def _storage(config: TrainConfig, parts: Sequence[Part]) -> dict[str, Any]:
    channels = config.model.vae.z_dim
    rows = [
        {
            "source": part.source, "counted": part.counted, "clips": part.clips,
            "frames": part.frames, "latents": part.latents,
            "size": None if part.size is None else list(part.size),
            "bytes": part.cache_bytes(channels),
        }
        for part in parts
    ]  # fmt: skip
    pixels = sum(part.frames * part.size[0] * part.size[1] for part in parts if part.size)

    return {
        "latent_cache": rows,
        "latent_cache_bytes": sum(part.cache_bytes(channels) or 0 for part in parts),
        "unknown": [part.source for part in parts if part.size is None],
        "encoding_a100_hours": pixels / _ENCODED_PIXELS / _ENCODED_FPS / _HOUR,
    }


def _memory(config: TrainConfig, parts: Sequence[Part], gpu: str) -> list[dict[str, Any]]:
    """Return the bytes of one GPU at every size of the mixture, with checkpointing and without."""
    model, optim = config.model, config.optim
    shared = optim.processes if optim.parallel == "fsdp" else 1
    kinds = {(part.size or _ASSUMED, part.window) for part in parts if part.share}

    rows = []
    for size, window in sorted(kinds, reverse=True):
        frames = STRIDE * (window - 1) + 1
        for checkpointing in (True, False):
            step = step_size(model, optim.clips_per_process, frames, *size, checkpointing)
            held = (step.weights + step.optimiser) // shared
            total = held + step.activations
            rows.append({
                "size": list(size), "frames": frames, "checkpointing": checkpointing,
                "weights_bytes": step.weights // shared,
                "optimiser_bytes": step.optimiser // shared,
                "activations_bytes": step.activations, "total_bytes": total,
                "fits": total < GPUS[gpu][1] * _GB,
            })  # fmt: skip

    return rows


def _time(
    config: TrainConfig, parts: Sequence[Part], gpu: str, utilisation: float
) -> dict[str, Any]:
    model, optim = config.model, config.optim
    clips = optim.clips_per_process * optim.accumulation

    rows, mean = [], 0.0
    for part in parts:
        if not part.share:
            continue
        size = part.size or _ASSUMED
        flops = trunk_flops(model.trunk, model.vae.z_dim, part.window, size, optim.checkpointing)
        mean += part.share * flops.total
        rows.append({
            "source": part.source, "share": part.share, "size": list(size),
            "latents": part.window, "flops_per_clip": {
                **asdict(flops), "forward": flops.forward, "total": flops.total,
            },
        })  # fmt: skip

    seconds = clips * mean / (GPUS[gpu][0] * _TERA * utilisation)
    hours = seconds * optim.steps / _HOUR
    return {
        "gpu": gpu, "peak_tflops": GPUS[gpu][0], "utilisation": utilisation,
        "clips": rows, "flops_per_step_and_gpu": clips * mean, "seconds_per_step": seconds,
        "hours": hours, "gpu_hours": hours * optim.processes,
    }  # fmt: skip


def _assumptions(
    config: TrainConfig, parts: Sequence[Part], gpu: str, utilisation: float, caches: bool,
    estimated: bool,
) -> Iterator[str]:  # fmt: skip
    """Yield what the numbers rest on, one sentence each."""
    source, optim = config.model.source, config.optim
    stated = [part.source for part in parts if not part.counted]
    counted = dict.fromkeys(part.source for part in parts if part.counted)

    if stated:
        yield (
            f"no root given, so counts of the paper's table: {', '.join(stated)}; of their videos "
            "at most so many latents, as the lengths of recordings are not published"
        )

    if counted:
        yield f"counted in their stores, clips long enough for a window: {', '.join(counted)}"
    unknown = [part.source for part in parts if part.size is None]
    if unknown:
        yield (
            f"size of pictures not known: {', '.join(unknown)}; left out of the storage, taken as "
            f"{_ASSUMED[0]} x {_ASSUMED[1]} elsewhere (--size {unknown[0]}=WIDTHxHEIGHT, or a root)"
        )

    if caches:
        yield (
            "latents: float16, one per 16 x 16 pixels and 4 frames; encoding as in the paper, "
            f"{_ENCODED_FPS:.1f} frames of 672 x 480 a second on one A100, by pixels"
        )
    else:
        yield f"model.source {source!r} reads pictures: there is no latent cache"

    if not estimated:
        yield f"memory and hours are not estimated for model.source {source!r}, only for 'wan'"
        return

    shared = (
        f", weights and moments over {optim.processes} GPUs" if optim.parallel == "fsdp" else ""
    )
    yield (
        f"memory: {optim.clips_per_process} clips per GPU, by formula, without the allocator's "
        f"slack and kernels' buffers{shared}; 'fits' against the {GPUS[gpu][1]:.0f} GB of one {gpu}"
    )
    yield (
        "operations: matrix products of the transformer's executed blocks alone; decoder, losses, "
        "validation, pictures and checkpoints come on top"
    )
    again = "; what checkpointing computes again counts" if optim.checkpointing else ""
    yield (
        f"time: {utilisation:.0%} of {GPUS[gpu][0]:.0f} TFLOP/s, one {gpu}'s peak in dense bfloat16"
        f"{again}; clips are read as fast as they are used, GPUs do not wait for one another"
    )
    if config.optim.precision != "bfloat16":
        yield f"optim.precision is {config.optim.precision}: the peak and the memory are bfloat16's"


def lines(value: Mapping[str, Any]) -> Iterator[str]:
    """Yield the plan as text."""
    batch = value["batch"]
    yield (
        f"{value['name']}: {batch['steps']} steps of {batch['clips']} clips "
        f"({batch['processes']} GPUs x {batch['clips_per_process']} clips"
        + (f" x {batch['accumulation']} parts)" if batch["accumulation"] > 1 else ")")
    )

    storage = value["storage"]
    if storage:
        yield "\nlatent cache"
        for row in storage["latent_cache"]:
            size = "size?" if row["size"] is None else "{} x {}".format(*row["size"])
            room = "?" if row["bytes"] is None else f"{row['bytes'] / _GB:.2f} GB"
            kind = "counted" if row["counted"] else "paper"
            yield (
                f"  {row['source']:<22}{size:>11}{row['clips']:>8} clips{row['frames']:>9} frames"
                f"{row['latents']:>8} latents{room:>11}  {kind}"
            )
        less = f" without {', '.join(storage['unknown'])}" if storage["unknown"] else ""
        yield (
            f"  in all {storage['latent_cache_bytes'] / _GB:.1f} GB{less}; to encode once: about "
            f"{storage['encoding_a100_hours']:.1f} A100 hours"
        )

    for number, row in enumerate(value["memory"] or ()):
        if not number:
            yield "\nmemory per GPU, GB: frozen weights + trained with moments + activations"
        parts = [row[f"{name}_bytes"] / _GB for name in ("weights", "optimiser", "activations")]
        yield (
            "  {:>4} x {:<4} {:>3} frames, ".format(*row["size"], row["frames"])
            + ("checkpointing:   " if row["checkpointing"] else "no checkpointing:")
            + " {:.1f} + {:.1f} + {:.1f}".format(*parts)
            + f" = {row['total_bytes'] / _GB:.1f}{'' if row['fits'] else ', does not fit'}"
        )

    time = value["time"]
    if time:
        yield "\noperations a clip, 1e12: forward (linear + adapters + attention), backward, again"
        for row in time["clips"]:
            flops = {name: count / _TERA for name, count in row["flops_per_clip"].items()}
            yield (
                f"  {row['source']:<22}{row['share']:>6.1%} of steps, "
                + "{} x {} x {} latents: ".format(*row["size"], row["latents"])
                + "{forward:.2f} ({linear:.2f} + {adapters:.2f} + {attention:.2f}), ".format(
                    **flops
                )
                + "{backward:.2f}, {recomputed:.2f} = {total:.1f}".format(**flops)
            )
        yield (
            f"  a step on one GPU: {time['flops_per_step_and_gpu'] / _TERA:.0f}e12, "
            f"{time['seconds_per_step']:.1f} s on one {time['gpu']} at {time['utilisation']:.0%}"
        )
        yield (
            f"\n{time['hours']:.1f} hours on {batch['processes']} x {time['gpu']}, "
            f"{time['gpu_hours']:.0f} GPU hours"
        )

    yield "\nassumed, not measured"
    yield from (f"  - {text}" for text in value["assumptions"])
