"""Checkpoints of a run: written atomically, checked when read, pruned.

```
RUN/checkpoints/step-00000500/state.json             step, validation, SHA-256 of the files
RUN/checkpoints/step-00000500/trained.safetensors    trained parameters by name, float32
RUN/checkpoints/step-00000500/optimizer.safetensors  PARAMETER|STATE
RUN/checkpoints/step-00000500/weights/               the whole model, if kept
```
The step is the number of steps done. Random states are not stored: a step draws from its number.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from acehand_core.ace.model.weights.storage import save_safetensors
from acehand_core.ace.model.weights.sums import sha256s
from acehand_core.ace.training.config import CheckpointConfig
from acehand_core.atomic import atomic_folder
from acehand_core.errors import SchemaError
from acehand_core.safe_files import content_sha256

FOLDER = "checkpoints"
_STATE, _TRAINED, _OPTIMIZER = "state.json", "trained.safetensors", "optimizer.safetensors"
_NAME = re.compile(r"step-(\d{8})")
_FORMAT = "acehand-checkpoint"
_MEASURE = "wrist_aligned_mm"

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A stored checkpoint; ``score`` is its validation score (lower is better), or None."""

    path: Path
    step: int
    score: float | None


def save(
    run: Path,
    step: int,
    score: float | None,
    trained: Tensors,
    optimizer: Tensors,
    config: CheckpointConfig,
    write_weights: Callable[[Path], None] | None = None,
) -> Path:
    """Write a checkpoint and remove those no longer kept. Raises OutputError."""
    path = run / FOLDER / f"step-{step:08d}"
    with atomic_folder(path, True, lambda folder: (folder / _STATE).exists()) as folder:
        save_safetensors(folder / _TRAINED, trained)
        save_safetensors(folder / _OPTIMIZER, optimizer)
        digests = sha256s({name: folder / name for name in (_TRAINED, _OPTIMIZER)})
        state = {
            "format": _FORMAT, "version": 1, "step": step, "measure": _MEASURE, "score": score,
            "sha256": digests,
        }  # fmt: skip
        if write_weights is not None:
            write_weights(folder / "weights")
        (folder / _STATE).write_text(json.dumps(state, indent=1) + "\n", "utf-8")

    present = listed(run)
    keep = {c.path for c in [*present[-config.keep_last :], *_scored(present)[: config.keep_best]]}
    for checkpoint in present:
        if checkpoint.path not in keep:
            old = checkpoint.path.with_name(f".{checkpoint.path.name}.old")
            checkpoint.path.rename(old)  # atomic; the removal may be interrupted
            shutil.rmtree(old, ignore_errors=True)
    return path


def listed(run: Path) -> list[Checkpoint]:
    """Return the undamaged checkpoints of a run, oldest first."""
    present = []
    for path in sorted((run / FOLDER).glob("step-" + 8 * "[0-9]")):
        with contextlib.suppress(SchemaError):
            state = _state(path)
            # Older versions scored by the loss.
            score = state["score"] if state.get("measure") == _MEASURE else None
            present.append(Checkpoint(path, int(state["step"]), score))
    return present


def step_of(path: Path) -> int | None:
    """Return the step of a checkpoint folder; None for another path."""
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match and (path / _STATE).is_file() else None


def best(run: Path) -> Checkpoint | None:
    """Return the checkpoint with the best validation score, else the newest."""
    present = listed(run)
    return next(iter([*_scored(present), *reversed(present)]), None)


def _scored(checkpoints: list[Checkpoint]) -> list[Checkpoint]:
    """Return the checkpoints with a score, best first."""
    return sorted((c for c in checkpoints if c.score is not None), key=lambda c: c.score or 0.0)


def read(checkpoint: Checkpoint) -> tuple[Tensors, Tensors]:
    """Return trained parameters and optimiser state. Raises SchemaError for a damaged file."""
    state = _state(checkpoint.path)
    for name in (_TRAINED, _OPTIMIZER):
        path = checkpoint.path / name
        if not path.is_file() or content_sha256(path) != state["sha256"].get(name):
            raise SchemaError(f"{path}: missing or damaged; delete {checkpoint.path} to go back.")
    return load_file(checkpoint.path / _TRAINED), load_file(checkpoint.path / _OPTIMIZER)


def clean(run: Path) -> None:
    """Remove incomplete checkpoints of a killed process."""
    for path in (run / FOLDER).glob(".step-*"):
        shutil.rmtree(path, ignore_errors=True)


def plain(tensors: Mapping[str, torch.Tensor]) -> Tensors:
    """Return tensors to save: on the CPU, without a graph."""
    return {name: value.detach().cpu().contiguous() for name, value in tensors.items()}


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> Tensors:
    """Return an optimiser's state by parameter name; none for those without a gradient yet."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return plain(
        {
            f"{names[id(parameter)]}|{key}": torch.as_tensor(value)
            for parameter, state in optimizer.state.items()
            for key, value in state.items()
        }
    )


def set_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, torch.Tensor]
) -> None:
    """Restore the state of ``optimizer_tensors``. Raises SchemaError for an unknown name."""
    parameters = dict(model.named_parameters())
    for key, value in tensors.items():
        name, _, entry = key.rpartition("|")
        if name not in parameters:
            raise SchemaError(f"the checkpoint's optimiser knows {name!r}, this model does not.")
        parameter = parameters[name]
        optimizer.state[parameter][entry] = value if entry == "step" else value.to(parameter.device)


@torch.no_grad()
def set_trained(model: nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Restore all trained parameters. Raises SchemaError for other names or shapes."""
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
    if set(parameters) != set(tensors):
        odd = sorted(set(parameters) ^ set(tensors))
        raise SchemaError(f"the checkpoint is of another model; tensors that differ: {odd[:5]}.")
    for name, parameter in parameters.items():
        if parameter.shape != tensors[name].shape:
            raise SchemaError(f"the checkpoint's {name!r} is {tuple(tensors[name].shape)}.")
        parameter.copy_(tensors[name])


def _state(path: Path) -> dict[str, Any]:
    try:
        state = json.loads((path / _STATE).read_text("utf-8"))
        if state["format"] != _FORMAT or not isinstance(state["sha256"], dict):
            raise ValueError(state["format"])
        _ = int(state["step"]), state["score"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SchemaError(f"{path}: not a checkpoint: {error!r}.") from error
    return state
