"""``python -m acehand_core.training.hand_prior run=FOLDER``: trains the network of bone directions.

Settings are those of ``PriorConfig``, given as KEY=VALUE. A round makes fresh stretches and trains
on them in random order; ``state.pt`` is written after each, and the same command resumes from
there. In the end it writes ``hand_prior.npz`` and ``result.json``.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from acehand_core.atomic import atomic_path
from acehand_core.errors import AcehandError, InputError
from acehand_core.training.compose import readable, schema
from acehand_core.training.hand_prior.landmarks import observed
from acehand_core.training.hand_prior.motions import Motions, generated, random_motions, views
from acehand_core.training.hand_prior.network import Network, loss, rolled


@dataclass(frozen=True, slots=True)
class PriorConfig:
    """Settings of a training; the last four make the ablations of docs/hand_prior.md."""

    run: str = "runs/hand_prior"
    seed: int = 1
    clips: int = 350
    random_motions: int = 400
    rounds: int = 8
    #: Batches made in a round, and how often each stretch is used in it.
    batches: int = 128
    uses: int = 4
    batch: int = 32
    frames: int = 64
    learning_rate: float = 1e-3
    covariance: bool = True
    context: bool = True
    camera: bool = True
    wide: float = 1.0

    def __post_init__(self) -> None:
        for name in ("clips", "random_motions", "rounds", "batches", "uses", "batch", "frames"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; valid: 1 or more.")
        if self.frames > 120:
            raise InputError(f"frames is {self.frames}; valid: 1 to 120.")
        if not self.wide >= 0 or not self.learning_rate > 0:
            raise InputError("wide must be 0 or more, learning_rate above 0.")


def settings_of(overrides: Sequence[str]) -> PriorConfig:
    """Return the settings of KEY=VALUE words. Raises InputError."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        known = OmegaConf.structured(schema(PriorConfig))
        given = OmegaConf.merge(known, OmegaConf.from_dotlist(list(overrides)))
        values: Any = OmegaConf.to_container(given)
    except OmegaConfBaseException as error:
        raise readable(error) from error
    return PriorConfig(**values)


def train(config: PriorConfig) -> dict[str, Any]:
    """Train, or resume a training; return what result.json says. Raises InputError."""
    torch.set_num_threads(1)
    torch.manual_seed(config.seed)
    run = Path(config.run)
    network = Network()
    if not config.context:
        network.forget_neighbours()
    optimiser = torch.optim.AdamW(network.parameters(), config.learning_rate, weight_decay=1e-3)
    done, results = 0, []
    if (run / "state.pt").is_file():
        state = torch.load(run / "state.pt", weights_only=True)
        if {**state["config"], "run": ""} != {**asdict(config), "run": ""}:
            raise InputError(f"{run}: made with other settings; choose another run.")
        network.load_state_dict(state["network"])
        optimiser.load_state_dict(state["optimiser"])
        done, results = state["done"], state["results"]
    if done == config.rounds:
        return _written(config, network, results)

    motions = _motions(config, run / "motions.npz")
    held_out = _tensors(config, motions, round_number=-1, batches=8)
    for number in range(done, config.rounds):
        _round(
            config, network, optimiser, number, _tensors(config, motions, number, config.batches)
        )
        results.append({"round": number, **_measured(network, held_out)})
        _say(json.dumps(results[-1]))
        with atomic_path(run / "state.pt", overwrite=True) as path:
            torch.save(
                {"config": asdict(config), "network": network.state_dict(),
                 "optimiser": optimiser.state_dict(), "done": number + 1, "results": results}, path,
            )  # fmt: skip
    return _written(config, network, results)


def _motions(config: PriorConfig, kept: Path) -> Motions:
    """Return the motions of a training, made once."""
    if kept.is_file():
        with np.load(kept, allow_pickle=False) as arrays:
            return Motions(**{name: arrays[name] for name in Motions.__slots__})
    rng = np.random.default_rng((config.seed, 0))
    made = generated(77000 + config.seed, config.clips, lambda n: _say(f"clip {n}"))
    motions = made + random_motions(rng, config.random_motions)
    with atomic_path(kept) as path:
        np.savez(path, **{name: getattr(motions, name) for name in Motions.__slots__})
    return motions


def _tensors(
    config: PriorConfig, motions: Motions, round_number: int, batches: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what the network is told of the stretches of a round, the true bones, and known."""
    told, true, known = [], [], []
    for number in range(batches):
        rng = np.random.default_rng((config.seed, round_number + 2, number))
        seen = views(rng, motions, config.batch, config.frames)
        batch = observed(rng, seen, config.wide if round_number >= 0 else 1.0)
        if not config.covariance:
            batch.told[..., 42:63] = batch.told[..., 64] = 0.0
        if not config.camera:
            batch.told[..., 66:69] = 0.0
        told.append(batch.told)
        true.append(batch.direction)
        known.append(batch.known)
    return (
        torch.from_numpy(np.concatenate(told).astype(np.float32)),
        torch.from_numpy(np.concatenate(true).astype(np.float32)),
        torch.from_numpy(np.concatenate(known)),
    )


def _round(
    config: PriorConfig,
    network: Network,
    optimiser: torch.optim.Optimizer,
    number: int,
    tensors: tuple[Tensor, Tensor, Tensor],
) -> None:
    """Take the steps of a round; the learning rate falls as a cosine over all rounds."""
    told, true, _ = tensors
    draw = torch.Generator().manual_seed(config.seed * 1000 + number)
    steps = config.batches * config.uses
    for step in range(steps):
        at = number * steps + step
        share = at / (config.rounds * steps)
        rate = min(1.0, (at + 1) / 100) * (0.02 + 0.49 * (1 + math.cos(math.pi * share)))
        for group in optimiser.param_groups:
            group["lr"] = config.learning_rate * rate
        rows = torch.randperm(len(told), generator=draw)[: config.batch]
        angle = 0.6 * torch.randn(len(rows), generator=draw)
        turned, turned_true = rolled(told[rows], true[rows], angle)

        optimiser.zero_grad()
        direction, log_sigma = network(turned)
        loss(direction, log_sigma, turned_true).backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimiser.step()
        if not config.context:
            network.forget_neighbours()


@torch.no_grad()
def _measured(network: Network, tensors: tuple[Tensor, Tensor, Tensor]) -> dict[str, float]:
    """Return mean errors of directions, degrees, and their mean square over sigma squared."""
    told, true, known = tensors
    direction, log_sigma = network(told)
    squared = ((direction - true) ** 2).sum(-1)
    degrees = torch.rad2deg(2 * torch.asin((squared.sqrt() / 2).clamp(0, 1)))
    over = squared * torch.exp(-2 * log_sigma) / 2
    return {
        "seen_deg": round(float(degrees[known].mean()), 2),
        "unseen_deg": round(float(degrees[~known].mean()), 2),
        "squares_over_sigma": round(float(over[known].mean()), 3),
    }


def _written(
    config: PriorConfig, network: Network, results: list[dict[str, Any]]
) -> dict[str, Any]:
    """Write the weights as the tracker reads them, in half precision, and what they are."""
    run = Path(config.run)
    with atomic_path(run / "hand_prior.npz", overwrite=True) as path:
        np.savez(path, **{k: v.numpy().astype(np.float16) for k, v in network.state_dict().items()})
    result = {
        "config": asdict(config),
        "parameters": sum(value.numel() for value in network.parameters()),
        "sha256": hashlib.sha256((run / "hand_prior.npz").read_bytes()).hexdigest(),
        "rounds": results,
    }
    with atomic_path(run / "result.json", overwrite=True) as path:
        path.write_text(json.dumps(result, indent=2), "utf-8")
    return result


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def main() -> None:
    """Entry point."""
    try:
        result = train(settings_of(sys.argv[1:]))
    except AcehandError as error:
        sys.stderr.write(f"hand_prior: {error}\n")
        sys.exit(2)
    sys.stdout.write(json.dumps(result["rounds"][-1] | {"sha256": result["sha256"]}) + "\n")


if __name__ == "__main__":
    main()
