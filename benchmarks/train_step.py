"""Time training steps, and what they need of memory.

    python -m benchmarks.train_step                # the small model, CPU
    python -m benchmarks.train_step --size real    # the real one, random weights, one GPU

Random frames or latents and the truth of the rendered example: loading is not timed. The peer in
the same run is the same forward pass without gradients. ``--size real`` also checks that a gradient
reaches exactly the expected tensors. One JSON line last.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from acehand_core.ace.labelled.clips.schema import ClipInfo
from acehand_core.ace.model.batch import ClipBatch
from acehand_core.ace.model.config import TEMPORAL_STRIDE, TOKEN_PIXELS, ModelConfig, SolveOptions
from acehand_core.ace.model.weights import inspection
from acehand_core.ace.training import build
from acehand_core.ace.training.config import TrainConfig, compose
from acehand_core.ace.training.losses import LossWeights, counts_of, total
from acehand_core.ace.training.step import TrainingModel, make_optimizer
from acehand_core.ace.training.targets import Targets, targets_of
from acehand_core.hand.hands_torch import TorchHands
from acehand_core.recordings.hands_file import read_hand_motion
from benchmarks import provenance


def main() -> int:
    """Run the benchmark; exit code 1 where a gradient goes where it should not."""
    run = provenance.start(__file__)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=("tiny", "real"), default="tiny")
    parser.add_argument("--clips", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    provenance.add_output(parser)
    arguments = parser.parse_args()
    real = arguments.size == "real"
    device = torch.device("cuda" if real else "cpu")
    extra = ["hand=acehand", "start.random=true"] if real else []
    config = compose([f"experiment={'standard' if real else 'tiny'}", *extra])
    model = TrainingModel(
        build.build_model(config, build.read_start(config.model, config.start)),
        TorchHands.acehand(), SolveOptions("intrinsics", fallback="paper"),
    ).to(device)  # fmt: skip
    optimizer = make_optimizer(model.model, config.optim)
    width, height = (672, 480) if real else (128, 96)
    token = 32 if real else 16
    truth = example_truth((width, height), (height // token, width // token))
    truth = Targets.stack([truth] * arguments.clips).to(device)
    data = torch.randn(arguments.clips, 48, 21, height // 16, width // 16) if real else (
        torch.rand(arguments.clips, 3, 81, height, width) * 2 - 1)  # fmt: skip
    data = data.to(device)
    clips = ClipBatch(data if real else None, truth.camera.size, truth.camera,
                      None if real else data)  # fmt: skip

    def step() -> None:
        sums = model(clips, truth)
        total(sums, counts_of(truth), LossWeights(), 0).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    def forward() -> None:
        with torch.no_grad():
            model(clips, truth)

    step()
    reached = {n for n, p in model.named_parameters() if p.grad is not None}
    learn = {n for n, p in model.named_parameters() if p.requires_grad}
    odd = sorted((learn ^ reached) - {f"model.decoder.shape_norm.{n}" for n in ("weight", "bias")})
    optimizer.zero_grad(set_to_none=True)
    steps = [_timed(step, device) for _ in range(arguments.repeats)]
    peak = torch.cuda.max_memory_allocated() if real else None
    passes = [_timed(forward, device) for _ in range(arguments.repeats)]
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    result = {
        "benchmark": "train_step", "size": arguments.size, "clips": arguments.clips,
        "frames": 81, "pixels": [width, height],
        "step_s": round(statistics.median(steps), 3),
        "forward_s": round(statistics.median(passes), 3),
        "step_over_forward": round(statistics.median(steps) / statistics.median(passes), 2),
        "peak_bytes": peak, "trained": trained,
        "odd_tensors": odd, "estimate": _estimate(config, arguments.clips) if real else None,
    }  # fmt: skip
    provenance.publish(run, result, arguments.output)
    return 1 if odd else 0


def example_truth(size: tuple[int, int], grid: tuple[int, int]) -> Targets:
    """Return the truth of the example's first 81 frames, as one clip."""
    motion = read_hand_motion(provenance.ROOT / "examples" / "two_hands_truth.parquet")
    motion = motion.at(np.arange(81), motion.timestamps_ns[:81], motion.fps)
    camera = motion.camera
    assert camera is not None
    info = ClipInfo(
        id="two_hands", dataset="example", split="train", kind="video", frames=81, fps=motion.fps,
        width=camera.width, height=camera.height, camera=camera, hand_model=motion.hand_model,
    )  # fmt: skip
    return targets_of(info, motion, size, grid, TorchHands.acehand())


def _estimate(config: TrainConfig, clips: int) -> dict[str, int]:
    return step_size(config.model, clips, 81, 672, 480, True).to_json()


def _timed(work: object, device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


# How large a step is before anything is loaded: parameters counted on the meta device, activations
# by formula.

_FLOAT, _HALF = 4, 2
#: AdamW: gradient and two moments, on top of the float32 weight.
_PER_TRAINED = 4 * _FLOAT


@dataclass(frozen=True, slots=True)
class StepSize:
    """Counts of parameters and bytes on one GPU.

    ``registered`` is what the paper's optimiser is given, ``reached`` what a gradient can reach and
    all that is held here, ``frozen`` the rest that is held. ``activations`` is the sum of block
    inputs kept by checkpointing (``kept``), the one block recomputed at a time (``block``) and the
    decoder (``decoder``).
    """

    registered: int
    reached: int
    frozen: int
    tokens: int
    kept: int
    block: int
    decoder: int
    weights: int
    optimiser: int

    @property
    def activations(self) -> int:
        """Bytes of activations at the worst moment."""
        return self.kept + self.block + self.decoder

    @property
    def total(self) -> int:
        """Bytes in all, without the allocator's slack and temporary buffers of kernels."""
        return self.activations + self.weights + self.optimiser

    def to_json(self) -> dict[str, Any]:
        """Return plain types."""
        return {**asdict(self), "activations": self.activations, "total": self.total}


def step_size(
    config: ModelConfig, clips: int, frames: int, width: int, height: int, checkpointing: bool
) -> StepSize:
    """Estimate a step of the model that reads the transformer, frozen weights in bfloat16.

    Attention does not keep its matrix (fused kernels). A block keeps, per token and channel, in
    bfloat16 unless noted: two modulated inputs, queries, keys, values and output of self-attention
    (with float32 copies for norm and rotation), the same without keys and values for
    cross-attention, its residuals in float32, and three times the feed-forward width.
    """
    counted = {name: row.parameters for name, row in inspection.account(config).items()}
    latents = (frames - 1) // TEMPORAL_STRIDE + 1
    tokens = latents * (width // TOKEN_PIXELS) * (height // TOKEN_PIXELS)
    dim, wide = config.trunk.dim, config.trunk.ffn_dim
    rank = config.trunk.lora_rank
    channels = (
        (2 * _HALF + 4 * _HALF + 4 * _FLOAT + 3 * _HALF + 2 * _FLOAT + 4 * _FLOAT) * dim
        + 3 * _HALF * wide
        + 10 * _HALF * rank
    )
    block = clips * tokens * channels
    stream = clips * tokens * dim * _FLOAT
    executed = config.trunk.executed
    kept = stream * executed if checkpointing else block * (executed - 1)
    decoder = config.decoder
    queries = 2 + 42 + decoder.num_registers
    per_round = tokens * 4 + latents * queries * (10 + 2 * decoder.mlp_ratio)
    attention = decoder.num_heads * latents * queries * (tokens // latents)
    video_frames = frames * 2 * 8
    decoding = (
        clips
        * _FLOAT
        * (
            decoder.width * (per_round * decoder.num_layers + 6 * tokens + video_frames)
            + attention * (decoder.num_layers + 1)
            + tokens * decoder.feature_dim
        )
    )
    reached, live = counted["live_trained"], counted["live"]

    return StepSize(
        registered=counted["optimiser"],
        reached=reached,
        frozen=live - reached,
        tokens=tokens,
        kept=kept,
        block=block,
        decoder=decoding,
        weights=(live - reached) * _HALF,
        optimiser=reached * _PER_TRAINED,
    )


if __name__ == "__main__":
    sys.exit(main())
