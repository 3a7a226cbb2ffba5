"""A training step on any number of processes; learning rates (paper, appendix "Optimization")."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import nn

from acehand_core.ace.model.batch import ClipBatch
from acehand_core.ace.model.camera_fit import guarded_pinhole
from acehand_core.ace.model.config import SolveOptions
from acehand_core.ace.model.encoder.sources import TRUNK_SOURCES
from acehand_core.ace.model.network import AceModel, bearings_of, place_with
from acehand_core.ace.model.pnp import sampled_bearings
from acehand_core.ace.training import losses
from acehand_core.ace.training.batches import Batch
from acehand_core.ace.training.config import OptimConfig
from acehand_core.ace.training.losses import LossWeights, Sums, counts_of, total
from acehand_core.ace.training.targets import Prediction, Targets
from acehand_core.errors import AcehandError
from acehand_core.hand.hands_torch import TorchHands

#: Least depth of a ray in the solve, which divides by it; it starts at 0. Unit rays up to 89
#: degrees off the axis stay unchanged.
MIN_RAY_DEPTH = 0.02
#: Validation score: mean distance of the hand model's labelled joints to the truth, wrists aligned
#: (the paper's MPJPE without its penalties).
SCORE = "wrist_aligned_mm"


def group_of(name: str, source: str) -> str:
    """Return the group of an ``AceModel`` parameter; "decoder" is all that starts from scratch."""
    if source in TRUNK_SOURCES and ".lora_" in name:
        return "lora"
    if source in TRUNK_SOURCES and "patch_embedding" in name:
        return "patch_embedding"
    return "decoder"


def trained(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the trained parameters by name."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            yield name, parameter


def make_optimizer(model: AceModel, config: OptimConfig) -> torch.optim.AdamW:
    """Return AdamW over the trained parameters, in named groups; each step sets the rates."""
    groups: dict[str, list[nn.Parameter]] = {"decoder": [], "lora": [], "patch_embedding": []}
    for name, parameter in trained(model):
        groups[group_of(name, model.config.source)].append(parameter)
    rows = [
        {"params": parameters, "name": name, "lr": rate(config, name, 0)}
        for name, parameters in groups.items()
        if parameters
    ]
    return torch.optim.AdamW(
        rows, betas=(config.beta1, config.beta2), weight_decay=config.weight_decay
    )


def factor(config: OptimConfig, step: int) -> float:
    """Return the factor of all rates: linear warm-up to 1, then half a cosine to 0."""
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    length = max(1, config.steps - config.warmup_steps)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - config.warmup_steps) / length)))


def rate(config: OptimConfig, group: str, step: int) -> float:
    return getattr(config, f"lr_{group}") * factor(config, step)


class DivergedError(AcehandError):
    """Too many consecutive steps had a gradient that is not finite."""


class TrainingModel(nn.Module):
    """The model with hand model and solve: batch and ground truth in, sums of loss terms out."""

    def __init__(self, model: AceModel, hands: TorchHands, options: SolveOptions) -> None:
        super().__init__()
        self.model, self.hands, self.options = model, hands, options

    def forward(self, clips: ClipBatch, targets: Targets) -> Sums:
        """Return ``losses.term_sums`` of a batch; in validation also ``SCORE``'s sum."""
        prediction = self.predict(clips, targets)
        sums = losses.term_sums(prediction, targets)
        if not self.training:
            # Over labelled joints of hands with a labelled wrist.
            taught = losses.Elements.of(targets).relative
            predicted, truth = (j - j[..., :1, :] for j in (prediction.joints, targets.joints))
            sums[SCORE] = 1e3 * ((predicted - truth).norm(dim=-1) * taught).sum()
        return sums

    def predict(self, clips: ClipBatch, targets: Targets) -> Prediction:
        """Predict and place; of the ground truth only the calibrated camera is used."""
        readout = self.model(clips)
        hands = self.hands.to(readout.betas.device)
        joints = hands.joints(readout.global_orient, readout.hand_pose, readout.betas)
        rays, size, fit = _deep(readout.rays), targets.camera.size, None
        if self.options.bearings == "pinhole":
            fit = guarded_pinhole(rays, self.options.fit_guards)
        if self.options.bearings == "intrinsics" and not bool(targets.pinhole.all()):
            # A calibrated lens other than a pinhole: its own rays, not the predicted ones.
            given, head = _deep(targets.rays), readout.camera[..., :2]
            bearings = sampled_bearings(given, readout.anchors, head, size, cell_centres=True)
        else:
            bearings = bearings_of(readout, rays, size, targets.camera, self.options, fit)

        placed = place_with(readout, joints, bearings, self.options)
        if fit is None:
            return Prediction(readout, joints, placed.translation)
        return Prediction(readout, joints, placed.translation, fit.focal, fit.centre, fit.within)


@dataclass(frozen=True, slots=True)
class StepReport:
    """Loss and unweighted terms of a step over all processes.

    ``skipped``: windows (SOURCE/CLIP@FRAME) of a step skipped for a gradient that is not finite.
    """

    loss: float
    terms: dict[str, float]
    gradient_norm: float
    rates: dict[str, float]
    dataset: str
    skipped: tuple[str, ...] = ()


def optimise(
    accelerator: Any,
    model: nn.Module,
    optimizer: Any,
    parts: Sequence[Batch],
    weights: LossWeights,
    config: OptimConfig,
    step: int,
    seed: int,
) -> StepReport:
    """Take one step over this process's parts of the batch, unless the gradient is not finite.

    Terms are divided by their counts over all parts and processes: the cut does not matter.
    """
    from accelerate.utils import gather_object

    device = accelerator.device
    batches = [part.to(device) for part in parts]
    counts = reduced(accelerator, [counts_of(batch.targets) for batch in batches])

    # Random numbers of a step: the noise of a noised read-out (sigma above 0).
    torch.manual_seed((seed * 1_000_003 + step) * 4096 + accelerator.process_index)
    parts_sums: list[Sums] = []
    for number, batch in enumerate(batches):
        last = number == len(batches) - 1
        with contextlib.nullcontext() if last else accelerator.no_sync(model):
            sums = model(batch.clips, batch.targets)
            # Processes average their gradients; terms are sums.
            accelerator.backward(total(sums, counts, weights, step) * accelerator.num_processes)
        parts_sums.append({name: value.detach() for name, value in sums.items()})

    norm = float(accelerator.clip_grad_norm_(model.parameters(), config.gradient_clip))
    dataset = parts[0].samples[0].dataset
    if not math.isfinite(norm):  # on all processes: gradients are averaged
        optimizer.zero_grad(set_to_none=True)
        names = [f"{s.dataset}/{s.clip}@{s.start}" for b in parts for s in b.samples]
        skipped = tuple(sorted(set(gather_object(names))))
        return StepReport(math.nan, {}, norm, {}, dataset, skipped)

    rates = {}
    for group in optimizer.param_groups:
        rates[group["name"]] = group["lr"] = rate(config, group["name"], step)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)

    sums = reduced(accelerator, parts_sums)
    terms = {name: float(sums[name] / counts[name].clamp(min=1)) for name in losses.TERMS}
    loss = float(total(sums, counts, weights, step))
    return StepReport(loss, terms, norm, rates, dataset)


def reduced(accelerator: Any, parts: Sequence[Sums]) -> Sums:
    names = list(parts[0])
    table = torch.stack([torch.stack([part[name] for name in names]) for part in parts]).sum(0)
    table = accelerator.reduce(table, reduction="sum")
    return dict(zip(names, table.unbind(), strict=True))


@torch.no_grad()
def validate(
    accelerator: Any, model: nn.Module, batches: Sequence[tuple[Batch, bool]], weights: LossWeights
) -> dict[str, float]:
    """Return ``SCORE`` (infinite without labelled joints), loss and terms of batches that count."""
    model.eval()
    sums, counts = [], []
    for batch, counted in batches:
        moved = batch.to(accelerator.device)
        batch_sums, batch_counts = model(moved.clips, moved.targets), counts_of(moved.targets)
        batch_counts[SCORE] = batch_counts["joint_relative_direct"]
        sums.append({name: value * counted for name, value in batch_sums.items()})
        counts.append({name: value * counted for name, value in batch_counts.items()})
    model.train()

    all_sums, all_counts = reduced(accelerator, sums), reduced(accelerator, counts)
    terms = {name: float(all_sums[name] / all_counts[name].clamp(min=1)) for name in losses.TERMS}
    joints = float(all_counts[SCORE])
    score = float(all_sums[SCORE]) / joints if joints else math.inf
    # The final weights: with a warm-up, losses of different steps would not compare.
    loss = float(total(all_sums, all_counts, weights, None))
    return {SCORE: score, "loss": loss, **terms}


def _deep(rays: Float[torch.Tensor, "B 3 h w"]) -> Float[torch.Tensor, "B 3 h w"]:
    return torch.cat([rays[:, :2], rays[:, 2:].clamp(min=MIN_RAY_DEPTH)], dim=1)
