"""Memory over length and time per clip of the model, with random weights.

Memory: a whole recording of 720p frames through a tiny model, one minute and ten minutes, each in
a process of its own; the peak of the resident set counts. The limit is 1.1 x the short one + 50 MB.

Time: one clip of 81 frames, by stage: video VAE, trunk, decoder with hands and solver. The peers
are diffusers' plain modules in the same run: ``AutoencoderKLWan.encode`` and
``WanTransformer3DModel`` with as many blocks as run here. ``--size real`` is the released model at
672 x 480 in bfloat16 and needs a graphics card; ``tiny`` runs anywhere, in float32.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch

from acehand_core.ace.model.batch import ClipBatch, Readout, pinhole_batch
from acehand_core.ace.model.config import (
    RELEASED,
    DecoderConfig,
    ModelConfig,
    TrunkConfig,
    VaeConfig,
)
from acehand_core.ace.model.encoder.vae import VideoEncoder
from acehand_core.ace.model.inference.loading import InferenceOptions, WeightsRecord
from acehand_core.ace.model.inference.reconstruction import reconstruct
from acehand_core.ace.model.network import AceModel, place
from acehand_core.ace.model.weights.state import LoadedWeights, state_shapes
from acehand_core.ace.model.weights.tables import Shapes
from acehand_core.geometry.cameras import Camera
from acehand_core.hand.hands_torch import TorchHands
from acehand_core.motion import Recording
from benchmarks import provenance

SHORT_S, LONG_S = 60, 600
LIMIT_FACTOR, LIMIT_MB = 1.1, 50
CLIP_FRAMES = 81
CAPTION_TOKENS = 27
TINY = ModelConfig(
    vae=VaeConfig(base_dim=8),
    trunk=TrunkConfig(
        dim=48, ffn_dim=64, num_heads=2, num_layers=4, text_dim=32, text_length=32, tap=2,
        lora_rank=4, lora_alpha=4.0,
    ),
    decoder=DecoderConfig(feature_dim=48, width=32, num_heads=2),
)  # fmt: skip
SIZES = {"tiny": (TINY, (96, 64), "float32"), "real": (ModelConfig(), (672, 480), "bfloat16")}


def main() -> int:
    """Run what is asked for; return 1 if memory grows beyond the limit."""
    run = provenance.start(__file__)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="tiny", help="of the timed model")
    parser.add_argument("--runs", type=int, default=3, help="timed runs; the median counts")
    parser.add_argument("--no-memory", action="store_true", help="time only")
    parser.add_argument("--no-time", action="store_true", help="memory only")
    parser.add_argument("--windows", default="paper", help="plan of the memory run (%(default)s)")
    parser.add_argument("--child-seconds", type=int, help=argparse.SUPPRESS)
    provenance.add_output(parser)
    arguments = parser.parse_args()
    if arguments.child_seconds is not None:
        print(json.dumps(one_recording(arguments.child_seconds, arguments.windows)))
        return 0
    cuda = torch.cuda.is_available()
    result: dict = {}
    if not arguments.no_memory:
        result["memory"] = memory(arguments.windows)
    if not arguments.no_time:
        with torch.no_grad():
            result["time"] = clip_times(arguments.size, arguments.runs, "cuda" if cuda else "cpu")
    provenance.publish(run, result, arguments.output)
    return 0 if result.get("memory", {}).get("within_limit", True) else 1


def memory(windows: str) -> dict:
    """Return peaks of a short and a long recording, each measured in its own process."""
    short, long = (
        json.loads(
            subprocess.run(
                [sys.executable, "-m", "benchmarks.reconstruct", "--child-seconds", str(s),
                 "--windows", windows],
                cwd=provenance.ROOT, stdout=subprocess.PIPE, text=True, check=True,
            ).stdout.splitlines()[-1]
        )
        for s in (SHORT_S, LONG_S)
    )  # fmt: skip
    limit = LIMIT_FACTOR * short["peak_mb"] + LIMIT_MB
    return {
        "model": "tiny",
        "windows": windows,
        "one_minute": short,
        "ten_minutes": long,
        "limit_mb": round(limit, 1),
        "within_limit": long["peak_mb"] <= limit,
    }


def one_recording(seconds: int, windows: str) -> dict:
    """Reconstruct a recording of 720p frames; return the peak of this process."""
    torch.set_num_threads(1)
    frames = Frames(30 * seconds)
    camera = Camera.nominal(Frames.WIDTH, Frames.HEIGHT)
    times = np.round(np.arange(len(frames)) * 1e9 / 30).astype(np.int64)
    clip = Recording("synthetic", None, times, 30.0, Frames.WIDTH, Frames.HEIGHT, frames, camera)
    model, encoder = build(TINY, "float32", "cpu")
    started, before = time.perf_counter(), peak_mb()
    motion = reconstruct(
        clip, model, encoder, TorchHands.acehand(), WeightsRecord("random", "0" * 64),
        InferenceOptions(windows=windows, encode_width=64, precision="float32"),
    )  # fmt: skip
    arrays = (getattr(motion, name) for name in motion.__slots__)
    size = sum(a.nbytes for a in arrays if isinstance(a, np.ndarray))
    return {
        "frames": len(motion),
        "peak_mb": round(peak_mb(), 1),
        "before_mb": round(before, 1),
        "result_mb": round(size / 1e6, 1),
        "seconds": round(time.perf_counter() - started, 1),
    }


class Frames:
    """720p frames made when they are asked for: a noise picture that drifts."""

    WIDTH, HEIGHT = 1280, 720

    def __init__(self, count: int) -> None:
        noise = np.random.default_rng(0).integers(0, 256, (90, 160, 3), np.uint8)
        picture = noise.repeat(8, axis=0).repeat(8, axis=1)
        self._count, self._wide = count, np.concatenate([picture, picture], axis=1)

    def __len__(self) -> int:
        return self._count

    def at(self, index: int) -> np.ndarray:
        """Return one frame."""
        shift = 4 * index % self.WIDTH
        return np.ascontiguousarray(self._wide[:, shift : shift + self.WIDTH])

    def read(self, start: int, stop: int) -> Iterator[np.ndarray]:
        """Yield frames."""
        return map(self.at, range(start, stop))


def peak_mb() -> float:
    """Return the largest resident set of this process so far (Linux counts in KiB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def build(config: ModelConfig, precision: str, device: str) -> tuple[AceModel, VideoEncoder]:
    """Return a model and its video encoder with random weights."""
    parts = {p: random_tensors(s, precision, device) for p, s in state_shapes(config).items()}
    caption = torch.randn(CAPTION_TOKENS, config.trunk.text_dim)
    encoder = VideoEncoder.from_tensors(config.vae, parts["vae"], precision, device)
    weights = LoadedWeights(config, **parts, caption=caption)
    return AceModel.from_weights(weights, precision, device), encoder


def random_tensors(shapes: Shapes, precision: str, device: str) -> dict:
    """Return small random numbers, so that nothing overflows; gains are one."""
    generator = torch.Generator(device).manual_seed(0)
    out = {}
    for name, shape in shapes.items():
        drawn = torch.randn(shape, generator=generator, device=device)
        gain = name.endswith(("gamma", "norm.weight")) or (".norm" in name and len(shape) == 1)
        out[name] = (torch.ones_like(drawn) if gain else 0.02 * drawn).to(getattr(torch, precision))
    return out


def clip_times(size: str, runs: int, device: str) -> dict:
    """Time one clip by stage, and the peers."""
    if size == "real" and device == "cpu":
        raise SystemExit("--size real needs a graphics card.")
    config, (width, height), precision = SIZES[size]
    clip = np.stack([Frames(CLIP_FRAMES).at(i)[:height, :width] for i in range(CLIP_FRAMES)])
    model, encoder = build(config, precision, device)
    hands = TorchHands.acehand().to(device)
    held: dict[str, torch.Tensor] = {"latents": encoder.encode(clip)[None]}
    held["features"] = model.source(held["latents"])
    scale = torch.tensor([[width, height]], dtype=torch.float32, device=device)
    camera = pinhole_batch([Camera.nominal(width, height)], device)

    def solve(readout: Readout) -> None:
        joints = hands.joints(readout.global_orient, readout.hand_pose, readout.betas)
        place(readout, joints, scale, camera, RELEASED["k"])

    def decode() -> None:
        solve(model.decoder(held["features"], model.ray_head(held["features"])))

    def whole() -> None:
        solve(model(ClipBatch(encoder.encode(clip)[None], scale)))

    stages = {
        "vae": lambda: encoder.encode(clip),
        "trunk": lambda: model.source(held["latents"]),
        "decoder_and_solver": decode,
        "clip": whole,
    }
    ours, peak = timed(stages, runs, device)
    model = encoder = None  # their memory is not the peers
    theirs, peer_peak = timed(peers(config, clip, held["latents"], precision, device), runs, device)
    return {
        "size": size,
        "frames": CLIP_FRAMES,
        "pixels": [width, height],
        "precision": precision,
        "seconds": ours,
        "peak_gpu_mb": peak,
        "peer_seconds": theirs,
        "peer_peak_gpu_mb": peer_peak,
        "ratio_to_peer": {n: round(ours[n] / theirs[n], 3) for n in theirs},
    }


def peers(
    config: ModelConfig, clip: np.ndarray, latents: torch.Tensor, precision: str, device: str
) -> dict[str, Callable[[], object]]:
    """Return diffusers' plain modules at the same sizes, with random weights."""
    from diffusers import AutoencoderKLWan, WanTransformer3DModel

    dtype, trunk = getattr(torch, precision), config.trunk
    vae = AutoencoderKLWan(
        base_dim=config.vae.base_dim, z_dim=config.vae.z_dim, is_residual=True, in_channels=12,
        out_channels=12, patch_size=2, latents_mean=[0.0] * 48, latents_std=[1.0] * 48,
        decoder_base_dim=8, scale_factor_spatial=16,
    )  # fmt: skip
    with torch.device(device):
        transformer = WanTransformer3DModel(
            num_attention_heads=trunk.num_heads, attention_head_dim=trunk.dim // trunk.num_heads,
            in_channels=trunk.in_channels, out_channels=trunk.out_channels,
            text_dim=trunk.text_dim, freq_dim=trunk.freq_dim, ffn_dim=trunk.ffn_dim,
            num_layers=trunk.executed, qk_norm="rms_norm_across_heads",
        )  # fmt: skip
    vae, transformer = vae.to(device, dtype).eval(), transformer.to(dtype).eval()
    control = latents.new_zeros(1, trunk.in_channels - 48, *latents.shape[2:])
    noisy = torch.cat([latents, control], dim=1).to(dtype)
    text = torch.randn(1, trunk.text_length, trunk.text_dim, device=device, dtype=dtype)
    step = torch.zeros(1, device=device)

    def encode() -> object:
        pixels = torch.from_numpy(clip).to(device).permute(3, 0, 1, 2)[None]
        return vae.encode((pixels.float() / 255 * 2 - 1).to(dtype)).latent_dist.mode()

    return {"vae": encode, "trunk": lambda: transformer(noisy, step, text, return_dict=False)}


def timed(
    jobs: dict[str, Callable[[], object]], runs: int, device: str
) -> tuple[dict[str, float], float | None]:
    """Return the median seconds of each job after a run to warm up, and the peak on the card."""
    out = {}
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    for name, job in jobs.items():
        times = []
        for _ in range(runs + 1):
            synchronise(device)
            started = time.perf_counter()
            job()
            synchronise(device)
            times.append(time.perf_counter() - started)
        out[name] = round(sorted(times[1:])[runs // 2], 4)
    peak = torch.cuda.max_memory_allocated() / 1e6 if device == "cuda" else None
    return out, None if peak is None else round(peak, 1)


def synchronise(device: str) -> None:
    """Wait for the card."""
    if device == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    sys.exit(main())
