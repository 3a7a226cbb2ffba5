"""Whether a policy cloned from a converted dataset does DexSuite's lift, by its own test.

    ACEHAND_DEXSUITE_PYTHON=PYTHON python -m benchmarks.policy.learn [--clips 50]

Rendered people lift the world's object (``replay.py``). Their true hands become a dataset, once for
each method: ours closing on the object, ours and dex-retargeting's vector mode squeezed by the best
constant of ``replay.py``. ``observation.state`` of each episode, placed on a start of the world and
played at half speed, is replayed; from the motions that succeed a small network learns: from the
commanded pose of the hand relative to the object, its six commands and the object's height to the
next poses and commands in the object's frame. Poses are shifted at random in training, so that the
network leads back to the motions. It then acts from 100 starts that it has not seen
(``dexsuite_policy.py``).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from acehand_core import Dataset, Recording
from acehand_core.geometry import frames, rotations
from acehand_core.lerobot import columns
from acehand_core.lerobot.episode import DatasetReader
from benchmarks import provenance
from benchmarks.grasps import squeezed, wilson
from benchmarks.policy import dexsuite_policy as policy
from benchmarks.policy.replay import (
    PYTHON,
    Demonstration,
    Motion,
    World,
    demonstration,
)
from retarget import load_robot, retarget
from retarget.robots.robot import Robot

#: Width and layers of the network, steps and size of its batches.
_WIDTH, _LAYERS, _STEPS, _BATCH = 256, 3, 6000, 512
#: Standard deviations of the shifts (m) and turns (rad) of the commanded pose in training.
_SHIFT_M, _TURN_RAD = 0.008, 0.04
#: Speed over the human's: DexSuite's finger servos are slow (``replay.py``).
_PACE = 0.5
#: Method, or contacts, and squeeze in rad.
METHODS = {
    "ours, contacts": ("contacts", 0.0),
    "ours, plain, squeezed 0.1": ("trajectory", 0.1),
    "dex-vector, squeezed 0.1": ("dex-vector", 0.1),
}


def main() -> int:
    run = provenance.start(__file__)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clips", type=int, default=50)
    parser.add_argument("--seed", type=int, default=7100)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    provenance.add_output(parser)
    options = parser.parse_args()

    world, robot = World("lift", options.clips), load_robot("inspire")
    shown = [demonstration(options.seed + k, world.about) for k in range(options.clips)]
    rows = {}
    for name in options.methods:
        placed, outcomes = replayed(world, name, robot, shown)
        kept = [k for k, outcome in enumerate(outcomes) if outcome["success"]]
        began = time.perf_counter()
        layers = trained(*examples(*steps(world, placed, outcomes, kept)))
        trained_s = time.perf_counter() - began
        acted = acting(layers)
        rows[name] = row(len(kept), len(outcomes), acted, trained_s)
        print(f"{name}: {rows[name]}", file=sys.stderr, flush=True)
    provenance.publish(run, {"clips": options.clips, "rows": rows}, options.output)
    return 0


def row(
    kept: int, replayed: int, acted: Sequence[dict[str, Any]], trained_s: float
) -> dict[str, Any]:
    """Return how many motions and attempts of the policy succeeded, and why others failed."""
    won = sum(one["success"] for one in acted)
    return {
        "replayed": f"{kept}/{replayed}",
        "replayed_95": wilson(kept, replayed),
        "policy": f"{won}/{len(acted)}",
        "policy_95": wilson(won, len(acted)),
        "faults": Counter(one["fault"] for one in acted if one["fault"]),
        "trained_s": trained_s,
    }


def replayed(
    world: World, method: str, robot: Robot, shown: Sequence[Demonstration]
) -> tuple[tuple[np.ndarray, np.ndarray], list[Any]]:
    """Return the placed motions of a dataset that is made by a method, and what became of them."""
    turns = np.array([_turn(world, start, demo) for start, demo in enumerate(shown)])
    with tempfile.TemporaryDirectory(prefix="acehand-policy-") as folder:
        motions = converted(Path(folder) / "dataset", method, robot, shown)
    placed = world.placed(motions, shown, turns, _PACE)
    return placed, world.replay({method: placed})[method]


def converted(
    path: Path, method: str, robot: Robot, shown: Sequence[Demonstration]
) -> list[Motion | None]:
    """Return the motions of a dataset that is made of demonstrations by a method."""
    how, squeeze = METHODS[method]
    with Dataset.open(path, robot, fps=30) as dataset:
        for demo in shown:
            objects = demo.track if how == "contacts" else None
            trajectory = retarget(
                demo.motion, robot, "trajectory" if objects else how, objects=objects
            )
            if squeeze:
                hand, commands = robot.hand("right"), trajectory.commands.copy()
                commands[:, 1] = squeezed(hand, commands[:, 1], demo.grasp, squeeze, 30.0)
                trajectory = replace(trajectory, commands=commands)
            recording = Recording(
                source=demo.episode.script.name,
                sha256=None,
                timestamps_ns=demo.motion.timestamps_ns,
                fps=demo.motion.fps,
                width=demo.episode.camera.width,
                height=demo.episode.camera.height,
                frames=None,
                camera=demo.episode.camera,
                T_world_camera=demo.motion.T_world_camera,
            )
            dataset.add(recording, demo.motion, trajectory, task="lift the cube", overlay=False)

    found: list[Motion | None] = []
    reader = DatasetReader(path)
    for number in reader.numbers:
        states = columns.STATE.read(reader.read(number).columns[columns.STATE.name])
        bases, commands = columns.split_states(states, "world")
        assert bases is not None
        found.append(Motion(bases[:, 1], commands[:, 1]))
    return found


def _turn(world: World, start: int, demo: Demonstration) -> int:
    """Return the quarter turns after which a person's hand comes from the arm's side."""
    at = np.array(world.about["T_world_object"][start])
    grasp = demo.grasp
    wrist = demo.motion.joints_camera[grasp.first, 1, 0]
    assert demo.motion.T_world_camera is not None
    wrist_world = frames.apply(demo.motion.T_world_camera[grasp.first], wrist)
    away = frames.apply(frames.inverse(grasp.T_frame_object[0]), wrist_world)
    nearness = []
    for k in range(4):
        turn = rotations.exp(np.array([0.0, 0.0, 0.5 * np.pi * k]))
        nearness.append(-(at[:3, :3] @ turn @ away)[0])
    return int(np.argmax(nearness))


def steps(
    world: World, placed: tuple[np.ndarray, np.ndarray], outcomes: list[Any], kept: list[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Return what is seen (T, K, 18) and commanded (T, K, 15) in each step of the kept motions."""
    poses, commands = (values[kept] for values in placed)
    at = np.array(world.about["T_world_object"])[kept]
    frame, start, count = policy.object_frame(at), at[:, :3, 3], poses.shape[1]
    # The replay keeps every other place of the object.
    paths = np.stack([np.repeat(outcomes[k]["path"], 2, axis=0)[:count] for k in kept])
    now = [(poses[:, step], commands[:, step]) for step in range(count)]
    seen = [policy.observed(frame, paths[:, k], start[:, 2], *now[k]) for k in range(count)]
    return np.stack(seen), np.stack([policy.wanted(frame, start, *one) for one in now])


def examples(seen: np.ndarray, commanded: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and outputs of the network, of ``steps``."""
    count = len(seen) - policy.CHUNK
    later = [commanded[1 + k : 1 + k + count] for k in range(policy.CHUNK)]
    outputs = np.concatenate(later, axis=-1)
    return seen[:count].reshape(-1, seen.shape[-1]), outputs.reshape(-1, outputs.shape[-1])


def disturbed(seen: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return what is seen (N, 18) with commanded poses shifted and turned at random."""
    seen = seen.copy()
    shift = rng.normal(0, _SHIFT_M, (len(seen), 3))
    seen[:, :3] += shift
    seen[:, 16] += shift[:, 2]
    seen[:, 3:9] += rng.normal(0, _TURN_RAD, (len(seen), 6))
    return seen


def trained(inputs: np.ndarray, outputs: np.ndarray) -> dict[str, np.ndarray]:
    """Return the layers of a network that learnt the examples."""
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    mean, spread = inputs.mean(0), inputs.std(0) + 1e-3
    out_mean, out_spread = outputs.mean(0), outputs.std(0) + 1e-3
    sizes = [inputs.shape[1], *[_WIDTH] * _LAYERS, outputs.shape[1]]
    linears = [torch.nn.Linear(a, b) for a, b in pairwise(sizes)]
    parts = [part for linear in linears for part in (linear, torch.nn.ReLU())][:-1]
    net = torch.nn.Sequential(*parts)
    optimiser = torch.optim.Adam(net.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, _STEPS)
    rng = np.random.default_rng(0)
    for _ in range(_STEPS):
        chosen = rng.integers(len(inputs), size=_BATCH)
        seen = disturbed(inputs[chosen], rng)
        one, two = (
            torch.as_tensor(values, dtype=torch.float32)
            for values in ((seen - mean) / spread, (outputs[chosen] - out_mean) / out_spread)
        )
        loss = torch.nn.functional.smooth_l1_loss(net(one), two, beta=0.1)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    layers = {"mean": mean, "spread": spread, "out_mean": out_mean, "out_spread": out_spread}
    for k, linear in enumerate(linears):
        layers[f"weight{k}"] = linear.weight.detach().numpy()
        layers[f"bias{k}"] = linear.bias.detach().numpy()
    return layers


def acting(layers: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """Return the outcomes of the network from 100 starts."""
    script = Path(policy.__file__)
    with tempfile.TemporaryDirectory(prefix="acehand-policy-") as folder:
        np.savez(Path(folder) / "policy.npz", **layers)
        result = Path(folder) / "result.json"
        command = [os.environ[PYTHON], str(script), f"{folder}/policy.npz", "--result", str(result)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"DexSuite failed:\n{done.stderr[-2000:]}")
        return json.loads(result.read_text())


if __name__ == "__main__":
    sys.exit(main())
