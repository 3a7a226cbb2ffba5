"""Whether lerobot's ACT, trained from a converted dataset, does DexSuite's lift.

    ACEHAND_LEROBOT_PYTHON=PYTHON python -m benchmarks.policy.act [--clips 50 200]

``pip install benchmarks/policy`` gives a Python 3.12 what it needs: lerobot 0.6.1, DexSuite 0.1.0
and the plug-in ``lerobot_env_acehand.py``, by which ``lerobot-eval`` finds world and task.

The motions are those of ``learn.py``, "ours, contacts". Those that succeed become a dataset by
lerobot's own writer (``act_dataset.py``): what its network sees and the next command, once as it
was and ``_COPIES`` times with the pose shifted at random in every step, as there. ``lerobot-train``
trains ACT without pictures; ``lerobot-eval`` lets it act (``lerobot_env_acehand.py``). Both are
lerobot's, unmodified.

Settings are judged on other starts than those of the result: ``--first 2001 --starts 50``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import provenance
from benchmarks.policy import learn
from benchmarks.policy.replay import PYTHON, World, demonstration
from retarget import load_robot

LEROBOT = "ACEHAND_LEROBOT_PYTHON"
#: Scenes that act at once.
BATCH = 25
_COPIES = 7
#: Settings of lerobot-train; the rest are lerobot's.
TRAIN = {
    "policy.type": "act",
    "policy.device": "cpu",
    "policy.push_to_hub": "false",
    "policy.dim_model": 128,
    "policy.n_heads": 4,
    "policy.dim_feedforward": 512,
    "policy.n_encoder_layers": 2,
    "policy.use_vae": "false",
    "policy.dropout": 0,
    "policy.chunk_size": 16,
    "policy.n_action_steps": 4,
    "policy.normalization_mapping": json.dumps(
        dict.fromkeys(("STATE", "ENV", "ACTION"), "MEAN_STD")
    ),
    "use_policy_training_preset": "false",
    "optimizer.type": "adam",
    "optimizer.lr": 5e-4,
    "scheduler.type": "cosine_annealing_with_warmup",
    "scheduler.num_warmup_steps": 200,
    "batch_size": 64,
    "steps": 3000,
    "save_freq": 100_000,
    "num_workers": 0,
    "seed": 0,
    "wandb.enable": "false",
}


def main() -> int:
    run = provenance.start(__file__)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clips", type=int, nargs="+", default=[50])
    parser.add_argument("--seed", type=int, default=7100)
    parser.add_argument("--first", type=int, default=1001, help="the world's first seed")
    parser.add_argument("--starts", type=int, default=100)
    provenance.add_output(parser)
    options = parser.parse_args()
    if LEROBOT not in os.environ:
        sys.exit(f"{LEROBOT}: name the Python that has lerobot 0.6.1 and dexsuite 0.1.0.")
    os.environ.setdefault(PYTHON, os.environ[LEROBOT])

    rows = {}
    for clips in options.clips:
        world, robot = World("lift", clips), load_robot("inspire")
        shown = [demonstration(options.seed + k, world.about) for k in range(clips)]
        placed, outcomes = learn.replayed(world, "ours, contacts", robot, shown)
        kept = [k for k, outcome in enumerate(outcomes) if outcome["success"]]
        with tempfile.TemporaryDirectory(prefix="acehand-policy-") as folder:
            trained_s = trained(Path(folder), *learn.steps(world, placed, outcomes, kept))
            acted = acting(Path(folder), options.first, options.starts)
        rows[clips] = learn.row(len(kept), len(outcomes), acted, trained_s)
        print(f"{clips} clips: {rows[clips]}", file=sys.stderr, flush=True)
        # Written after each: a run may be cut short.
        result = {"train": TRAIN, "copies": _COPIES, "rows": rows}
        provenance.publish(run, result, options.output)
    return 0


def copies(seen: np.ndarray, commanded: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return ``learn.steps`` as episodes (E, T, ...), as they were and as disturbed."""
    rng = np.random.default_rng(0)
    shifted = [
        learn.disturbed(seen.reshape(-1, seen.shape[-1]), rng).reshape(seen.shape)
        for _ in range(_COPIES)
    ]
    episodes = np.concatenate([seen, *shifted], axis=1)
    return np.swapaxes(episodes, 0, 1), np.swapaxes(np.tile(commanded, (1, 1 + _COPIES, 1)), 0, 1)


def trained(folder: Path, seen: np.ndarray, commanded: np.ndarray) -> float:
    """Write the dataset and train; return the seconds that lerobot-train took."""
    seen, commanded = copies(seen, commanded)
    np.savez(folder / "motions.npz", seen=seen, commanded=commanded)
    script, dataset = Path(__file__).with_name("act_dataset.py"), folder / "dataset"
    _run(os.environ[LEROBOT], script, folder / "motions.npz", dataset)
    began = time.perf_counter()
    where = {
        "dataset.repo_id": "acehand/lift",
        "dataset.root": dataset,
        "output_dir": folder / "act",
    }
    _lerobot("train", {**where, **TRAIN})
    return time.perf_counter() - began


def acting(folder: Path, first: int, starts: int) -> list[dict[str, Any]]:
    """Return the policy's outcomes from starts of the world's seeds, from the first on."""
    settings = {
        "policy.path": folder / "act/checkpoints/last/pretrained_model",
        "env.type": "acehand",
        "env.outcomes": folder / "outcomes.json",
        "eval.n_episodes": starts,
        "eval.batch_size": BATCH,
        "seed": first * BATCH,
        "output_dir": folder / "eval",
    }
    _lerobot("eval", settings)
    outcomes = json.loads((folder / "outcomes.json").read_text())
    judged = json.loads((folder / "eval/eval_info.json").read_text())["overall"]["pc_success"]
    assert round(judged * starts / 100) == sum(one["success"] for one in outcomes)
    return outcomes


def _lerobot(name: str, settings: dict[str, Any]) -> None:
    program = Path(os.environ[LEROBOT]).with_name(f"lerobot-{name}")
    _run(program, *(f"--{key}={value}" for key, value in settings.items()))


def _run(*command: Any) -> None:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [str(word) for word in command],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{Path(command[0]).name} failed:\n{done.stderr[-3000:]}")


if __name__ == "__main__":
    sys.exit(main())
