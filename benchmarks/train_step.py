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

import numpy as np
import torch

from acehand_core.datasets.clips.schema import ClipInfo
from acehand_core.hand.hands_torch import TorchHands
from acehand_core.model.batch import ClipBatch
from acehand_core.model.network import SolveOptions
from acehand_core.recordings.hands_file import read_hand_motion
from acehand_core.training import build
from acehand_core.training.compose import compose
from acehand_core.training.config import TrainConfig
from acehand_core.training.losses import LossWeights, Masks, total
from acehand_core.training.step import TrainingModel, make_optimizer
from acehand_core.training.targets import Targets, targets_of
from benchmarks import provenance
from benchmarks.step_size import step_size


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
        total(sums, Masks.of(truth).counts(), LossWeights(), 0).backward()
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


if __name__ == "__main__":
    sys.exit(main())
