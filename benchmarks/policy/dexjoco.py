"""Whether retargeted hands drive in DexJoCo's nail, by DexJoCo's own success test.

    ACEHAND_DEXJOCO_PYTHON=PYTHON ACEHAND_DEXJOCO=FOLDER python -m benchmarks.policy.dexjoco

PYTHON has ``mujoco==3.4.* numpy<2.3 scipy gymnasium dm-robotics-transformations imageio packaging
glfw PyOpenGL``; FOLDER is that of a checkout with the package ``dexjoco``; ``dexjoco_world.py``
runs in both and says what it sets there. As in ``replay.py``: for each start a rendered person with
a random hand pinches a box and lifts it, true hands become motions of the right Allegro hand, and
these are turned and shifted so that the box coincides with the hammer's handle below its head. The
box is level; the handle is inclined by 16 degrees along it, its two sides being upright as the
box's. Of the two ways to put the box onto itself the one whose wrist stays nearest to its commands,
by the plain motion, is used for every row of that start.

The person takes the hammer and lifts it. The blows are led by ``dexjoco_world.py``, in the same way
for every row. ``pace``: speed of the person's part over the human's, in simulated time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from acehand_core.geometry import frames, rotations
from benchmarks import provenance
from benchmarks.grasps import squeezed
from benchmarks.policy import replay
from benchmarks.policy.dexjoco_world import HZ
from benchmarks.policy.dexsuite_world import HZ as TIMED_HZ
from benchmarks.policy.replay import Demonstration, Motion
from retarget import load_robot
from retarget.robots.robot import Robot

PYTHON, FOLDER = "ACEHAND_DEXJOCO_PYTHON", "ACEHAND_DEXJOCO"
#: The body ``allegro_palm`` in our base link. Measured: with it the distal links of both models
#: agree to 1.3 micrometres at twenty random poses, all joints in the same order, zero and sign.
T_OURS_THEIRS = frames.rigid(np.eye(3), np.array([0.0, 0.0, 0.095]))
_Z = np.array([0.0, 0.0, 1.0])
#: One of 32 random grasps, tried on starts 0 to 4: the palm over the handle, fingers around it. The
#: palm's orientation in the box, the box's centre in the palm's frame, and commands.
_SCRIPTED_TURN = rotations.exp(
    rotations.log(
        np.array([[0.280, -0.065, -0.958], [0.037, -0.996, 0.079], [-0.959, -0.057, -0.276]])
    )
)
_SCRIPTED_GRIP = np.array([0.045, -0.017, 0.002])
_OPENED = np.array([0, 0.1, 0.1, 0.1] * 3 + [0.943, 0.177, 0, 0])
_CLOSED = np.array([0, 1.286, 1.025, 0.939] * 3 + [0.943, 0.36, 1.124, 0.515])


def main() -> int:
    run = provenance.start(__file__)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=20, help="starts")
    parser.add_argument("--seed", type=int, default=6300)
    parser.add_argument("--paces", type=float, nargs="+", default=[1.0, 0.5])
    provenance.add_output(parser)
    options = parser.parse_args()

    world, robot = World(options.count), load_robot("allegro")
    shown, rows = list[Demonstration](), dict[str, list[Motion | None]]()
    for start in range(options.count):
        shown.append(replay.demonstration(options.seed + start, world.about))
        for name, found in _motions(robot, shown[-1]):
            rows.setdefault(name, []).append(found)
        print(f"start {start}", file=sys.stderr, flush=True)
    turns = world.chosen_turns(rows["ours, plain, squeezed 0.0"], shown)

    began = time.perf_counter()
    tried = {
        f"{name}, pace {pace}": (row, pace) for pace in options.paces for name, row in rows.items()
    }
    placed = {name: world.placed(row, shown, turns, pace) for name, (row, pace) in tried.items()}
    outcomes = world.replay({"scripted": world.scripted(), **placed})
    result: dict[str, Any] = {
        "world": {k: v for k, v in world.about.items() if not k.startswith("T_")},
        "task": "hammer_nail",
        "half_turns": turns.tolist(),
        "scripted": _summary(outcomes["scripted"], [0] * options.count),
        "rows": {},
    }
    for name, (_, pace) in tried.items():
        steps = [_step(demo, pace) for demo in shown]
        result["rows"][name] = _summary(outcomes[name], steps)
    best = replay.best_rows(result["rows"])
    for name, row in result["rows"].items():
        row["best"] = name in best
    result["replay_s"] = time.perf_counter() - began
    provenance.publish(run, result, options.output)
    return 0


def _motions(robot: Robot, demo: Demonstration) -> Iterator[tuple[str, Motion]]:
    """Yield each method's motion, the one that closes on contacts also squeezed further."""
    for name, found in replay.motions(robot, demo, demo.motion):
        yield name, found
        for by in replay.SQUEEZES[1:] if name == "ours, contacts" else ():
            pressed = squeezed(robot.hand("right"), found.commands, demo.grasp, by, 30.0)
            yield f"{name}, squeezed {by}", replace(found, commands=pressed)


class World(replay.World):
    """DexJoCo's task, run in its own process."""

    def __init__(self, count: int) -> None:
        for name in (PYTHON, FOLDER):
            if name not in os.environ:
                sys.exit(f"{name}: name DexJoCo's Python, and the folder of its package.")
        self._count = count
        self._folder = tempfile.TemporaryDirectory(prefix="acehand-dexjoco-")
        described = Path(self._folder.name) / "world.json"
        self._run("--world", str(described))
        self.about: dict[str, Any] = json.loads(described.read_text())

    def _run(self, *arguments: str) -> None:
        script = Path(__file__).with_name("dexjoco_world.py")
        command = [os.environ[PYTHON], str(script), "--count", str(self._count), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"DexJoCo failed:\n{done.stderr[-2000:]}")

    def placed(
        self,
        row: Sequence[Motion | None],
        shown: Sequence[Demonstration],
        turns: np.ndarray,
        pace: float = 1.0,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return poses of the palm in the world (N, T, 4, 4) and commands (N, T, 16), 50 Hz."""
        found = []
        for start, (motion, demo) in enumerate(zip(row, shown, strict=True)):
            assert motion is not None  # true hands
            turn = frames.rigid(rotations.exp(np.pi * turns[start] * _Z), np.zeros(3))
            T_world_clip = (
                np.array(self.about["T_world_object"][start])
                @ turn
                @ frames.inverse(demo.grasp.T_frame_object[0])
            )
            span = slice(demo.first, demo.grasp.last + 1)
            bases = T_world_clip @ motion.bases[span] @ T_OURS_THEIRS
            found.append(self._timed(start, bases, motion.commands[span], pace))
        return _stacked(found)

    def scripted(self) -> tuple[np.ndarray, np.ndarray]:
        """Return a grasp made for this world, as ``placed``: close, wait, lift."""
        at_s = np.arange(105) / 30
        share, up = np.clip(at_s / 0.75, 0, 1)[:, None], np.clip((at_s - 1.3) / 2, 0, 1)
        rise = up * up * (3 - 2 * up) * replay._RISE_M
        grip = frames.rigid(_SCRIPTED_TURN, -_SCRIPTED_TURN @ _SCRIPTED_GRIP)
        found = []
        for start, T_world_object in enumerate(self.about["T_world_object"]):
            bases = np.tile(np.array(T_world_object) @ grip, (len(at_s), 1, 1))
            bases[:, 2, 3] += rise
            found.append(self._timed(start, bases, _OPENED + share * (_CLOSED - _OPENED), 1.0))
        return _stacked(found)

    def chosen_turns(
        self, plain: Sequence[Motion | None], shown: Sequence[Demonstration]
    ) -> np.ndarray:
        """Return by how many half turns the motion of each start is turned."""
        tried = {str(k): self.placed(plain, shown, np.full(len(shown), k)) for k in range(2)}
        errors = [
            [
                max(o["wrist_errors_m"][: _step(demo, 1.0)])
                for o, demo in zip(row, shown, strict=True)
            ]
            for row in self.replay(tried).values()
        ]
        return np.array(errors).argmin(0)

    def _timed(
        self, start: int, bases: np.ndarray, commands: np.ndarray, pace: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the palm's motion of 30 Hz at 50 Hz, from the arm's home on."""
        home = np.array(self.about["T_world_base"][start])
        poses, drive = replay.timed(home, bases, commands, pace)
        old = np.arange(len(poses)) / TIMED_HZ
        new = np.arange(0.0, old[-1], 1 / HZ)
        columns = [np.interp(new, old, column) for column in drive.T]
        return replay._between(old, poses, new), np.stack(columns, axis=1)


def _step(demo: Demonstration, pace: float) -> int:
    """Return the world's step in which the human begins to lift."""
    return round(demo.touching_step(pace) * HZ / TIMED_HZ)


def _stacked(found: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    longest = max(len(poses) for poses, _ in found)
    kinds = zip(*found, strict=True)
    poses, drive = ([replay._longer(one[None], longest)[0] for one in kind] for kind in kinds)
    return np.stack(poses), np.stack(drive)


def _summary(outcomes: Sequence[dict[str, Any]], steps: Sequence[int]) -> dict[str, Any]:
    found = replay.summary(list(zip(outcomes, steps, strict=True)))
    return {**found, "median_nail_mm": float(np.median([o["nail_mm"] for o in outcomes]))}


if __name__ == "__main__":
    sys.exit(main())
