"""A cloned network in DexSuite's lift; runs in DexSuite's own Python environment.

    $ACEHAND_DEXSUITE_PYTHON benchmarks/policy/dexsuite_policy.py policy.npz --result result.json

Every ``CHUNK`` steps the network sees what ``observed`` returns and commands the next ``CHUNK``
poses and commands. Success is DexSuite's own, as in ``dexsuite_world.py``.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

try:
    from benchmarks.policy import dexsuite_world as world
except ImportError:  # run as a script
    import dexsuite_world as world

#: Steps (of 20 a second) that the network commands at once, and of an attempt.
CHUNK, STEPS = 4, 320


def object_frame(T_world_object: np.ndarray) -> np.ndarray:
    """Return the yaw (N, 3, 3) of cubes (N, 4, 4) that is nearest to the world's."""
    yaw = np.arctan2(T_world_object[:, 1, 0], T_world_object[:, 0, 0])
    yaw -= np.pi / 2 * np.round(yaw / (np.pi / 2))
    turns = np.zeros((len(yaw), 3, 3))
    turns[:, 0, 0] = turns[:, 1, 1] = np.cos(yaw)
    turns[:, 1, 0], turns[:, 0, 1] = np.sin(yaw), -np.sin(yaw)
    turns[:, 2, 2] = 1
    return turns


def observed(
    frame: np.ndarray, place: np.ndarray, start_z: np.ndarray, base: np.ndarray, drive: np.ndarray
) -> np.ndarray:
    """Return the network's input (N, 18).

    Args:
        frame: ``object_frame`` at the start, (N, 3, 3).
        place: of the object now (N, 3), and ``start_z`` (N) at the start, metres.
        base, drive: the commanded pose of the hand's base (N, 4, 4) and commands (N, 6).
    """
    inverse = np.swapaxes(frame, 1, 2)
    away = (inverse @ (base[:, :3, 3] - place)[..., None])[..., 0]
    turn = (inverse @ base[:, :3, :3])[..., :2]
    rise = (place[:, 2] - start_z)[:, None]
    height = (base[:, 2, 3] - start_z)[:, None]
    turned = np.swapaxes(turn, 1, 2).reshape(-1, 6)
    return np.concatenate([away, turned, drive, rise, height, rise > 0.01], axis=1)


def wanted(frame: np.ndarray, start: np.ndarray, base: np.ndarray, drive: np.ndarray) -> np.ndarray:
    """Return poses and commands as the network's output (N, 15), relative to the object's start."""
    inverse = np.swapaxes(frame, 1, 2)
    away = (inverse @ (base[:, :3, 3] - start)[..., None])[..., 0]
    turned = np.swapaxes((inverse @ base[:, :3, :3])[..., :2], 1, 2).reshape(-1, 6)
    return np.concatenate([away, turned, drive], axis=1)


def commanded(
    frame: np.ndarray, start: np.ndarray, output: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return base poses (N, 4, 4) and commands (N, 6) of ``wanted``'s numbers."""
    first, second = output[:, 3:6], output[:, 6:9]
    first = first / np.linalg.norm(first, axis=1, keepdims=True)
    second = second - first * np.sum(first * second, axis=1, keepdims=True)
    second = second / np.linalg.norm(second, axis=1, keepdims=True)
    poses = np.tile(np.eye(4), (len(output), 1, 1))
    poses[:, :3, :3] = frame @ np.stack([first, second, np.cross(first, second)], axis=-1)
    poses[:, :3, 3] = start + (frame @ output[:, :3, None])[..., 0]
    return poses, output[:, 9:15]


def network(layers: dict[str, np.ndarray], inputs: np.ndarray) -> np.ndarray:
    """Return the output (N, CHUNK * 15) of a perceptron with ReLUs."""
    values = (inputs - layers["mean"]) / layers["spread"]
    count = sum(name.startswith("weight") for name in layers)
    for k in range(count):
        values = values @ layers[f"weight{k}"].T + layers[f"bias{k}"]
        if k < count - 1:
            values = np.maximum(values, 0)
    return values * layers["out_spread"] + layers["out_mean"]


class Scenes:
    """DexSuite's lift in several scenes at once, as a policy sees it and acts in it."""

    def __init__(self, count: int) -> None:
        self._env = world.make_world("lift", count)
        self.steps = min(STEPS, self._env.horizon)

    def reset(self, seed: int) -> None:
        """Start every scene anew, with the hand at the arm's home."""
        self._env.reset(seed=seed)
        self._home = world._poses(*world._base(self._env))
        for _ in range(world.HZ // 2):
            world._hold(self._env)
        at = world._poses(self._env.cube.get_pos(), self._env.cube.get_quat())
        self._frame, self._start, self.place = object_frame(at), at[:, :3, 3], at[:, :3, 3]
        self.base, self._drive = self._home.copy(), np.zeros((len(at), 6))
        self.success, self.failed = np.zeros((2, len(at)), bool)
        self._path: list[np.ndarray] = []

    def seen(self) -> np.ndarray:
        """Return what ``observed`` says of now."""
        return observed(self._frame, self.place, self._start[:, 2], self.base, self._drive)

    def step(self, output: np.ndarray) -> None:
        """Command ``wanted``'s numbers (N, 15) for one control step."""
        import torch

        self.base, self._drive = commanded(self._frame, self._start, output)
        turns = self.base[:, :3, :3] @ np.swapaxes(self._home[:, :3, :3], 1, 2)
        shifts = self.base[:, :3, 3] - self._home[:, :3, 3]
        action = np.concatenate([shifts, world._quaternions(turns), self._drive], axis=-1)
        now, wrong = world.stepped(self._env, torch.as_tensor(action, dtype=torch.float32))
        self.success |= now & ~self.failed
        self.failed |= wrong
        self.place = world._array(self._env.cube.get_pos())
        self._path.append(self.place)

    def outcomes(self) -> list[dict[str, Any]]:
        """Return what became of each scene since its start."""
        moved = np.stack(self._path, 1) - self._start[:, None]
        return [
            {"success": bool(won), "fault": None if won else world.fault(path)}
            for won, path in zip(self.success, moved, strict=True)
        ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("policy", type=Path)
    parser.add_argument("--count", type=int, default=25, help="scenes at once")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1001, 1002, 1003, 1004])
    parser.add_argument("--result", type=Path, required=True)
    options = parser.parse_args()
    with np.load(options.policy) as file:
        layers = dict(file)
    scenes = Scenes(options.count)
    outcomes = [one for seed in options.seeds for one in attempt(scenes, seed, layers)]
    options.result.write_text(json.dumps(outcomes))
    return 0


def attempt(scenes: Scenes, seed: int, layers: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """Let the network act in every scene; return what became of each."""
    scenes.reset(seed)
    for step in range(scenes.steps):
        if step % CHUNK == 0:
            plan = network(layers, scenes.seen()).reshape(-1, CHUNK, 15)
        scenes.step(plan[:, step % CHUNK])
    return scenes.outcomes()


if __name__ == "__main__":
    sys.exit(main())
