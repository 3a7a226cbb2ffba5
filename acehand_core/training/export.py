"""Weights of a run at any of its checkpoints, finished or not."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn

from acehand_core.errors import InputError
from acehand_core.model.network import AceModel
from acehand_core.model.weights.own import save_own
from acehand_core.training import build, checkpoints
from acehand_core.training.checkpoints import Checkpoint
from acehand_core.training.config import TrainConfig
from acehand_core.training.run_folder import run_as, trained_on

#: Sources whose own weights are not written: they are frozen and read from where they came from.
NOT_WRITTEN = ("vjepa2", "videomae")


@dataclass(frozen=True, slots=True)
class Pieces:
    """Where the frozen pieces of a start lie now, if not where the run found them."""

    weights: Path | None = None
    base: Path | None = None
    vae: Path | None = None
    caption: Path | None = None


def export(
    path: Path,
    output: Path,
    step: int | None = None,
    pieces: Pieces | None = None,
    overwrite: bool = False,
) -> Checkpoint:
    """Write the weights of a checkpoint, in our format; return the checkpoint.

    Args:
        path: a run's folder, or one of its checkpoints.
        step: which checkpoint of a run; default the best by validation, else the newest.

    Raises:
        InputError: no run or no such checkpoint, or the frozen pieces are not there.
        SchemaError: the checkpoint is damaged, or of another model. OutputError.
    """
    run, step = _run_of(path, step)
    config = _config(run)
    checkpoint = _chosen(run, step)
    moved = {n: str(p) for n in Pieces.__slots__ if (p := getattr(pieces or Pieces(), n))}
    start = build.read_start(config.model_config(), replace(config.start, **moved))
    model = build.build_model(config, start)
    trained, _ = checkpoints.read(checkpoint)
    checkpoints.set_trained(_Holder(model), trained)
    weights = build.weights_of(model, start, trained_on(run, start), run_as(run, config))
    save_own(output, weights, overwrite=overwrite)
    return checkpoint


class _Holder(nn.Module):
    """Gives a model's parameters the names that checkpoints have, without hands."""

    def __init__(self, model: AceModel) -> None:
        super().__init__()
        self.model = model


def _run_of(path: Path, step: int | None) -> tuple[Path, int | None]:
    found = checkpoints.step_of(path)
    if found is None:
        return path, step
    return path.resolve().parent.parent, found


def _config(run: Path) -> TrainConfig:
    path = run / "config.json"
    try:
        return TrainConfig.from_json(json.loads(path.read_text("utf-8")))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not the configuration of a run: {error}.") from error


def _chosen(run: Path, step: int | None) -> Checkpoint:
    there = checkpoints.listed(run)
    chosen = checkpoints.best(run)
    if step is not None:
        chosen = next((c for c in there if c.step == step), None)
    if chosen is None:
        steps = ", ".join(str(c.step) for c in there) or "none"
        raise InputError(f"{run}: no checkpoint {'' if step is None else step}; there: {steps}.")
    return chosen
