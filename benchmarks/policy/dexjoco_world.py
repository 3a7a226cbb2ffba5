"""DexJoCo's ``hammer_nail`` as a judge of motions; runs in DexJoCo's own Python environment.

    $ACEHAND_DEXJOCO_PYTHON benchmarks/policy/dexjoco_world.py --count 20 --world world.json
    $ACEHAND_DEXJOCO_PYTHON benchmarks/policy/dexjoco_world.py --count 20 \
        --motions motions.npz --result result.json

ACEHAND_DEXJOCO is the checkout's folder with the package ``dexjoco``. The first form describes the
world: per start the part of the handle below the head as a level box, the hammer's face and the
nail. The second replays ``T_world_base`` (R, N, T, 4, 4), poses of the body ``allegro_palm``, and
``commands`` (R, N, T, 16), rad, in the order of the world's action, at 50 Hz of simulated time.
Success is DexJoCo's own ``_compute_success``: the nail is 40 mm deeper than at the start.

After a motion the wrist is led so that the hammer strikes the nail, up to three times, with the
fingers as the motion leaves them and the wrist's orientation kept: from where the lowest end of the
head truly is when a blow begins.

Two things are set. Pictures are not rendered, and a step does not wait for real time; physics is
untouched. The wrist is led: its controller follows a pose like a first-order lag (position 0.4 s,
rotation 0.57 s, from its gains), which the command makes up for by that much of its velocity.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import sys
import time
import types
from pathlib import Path
from typing import Any

import numpy as np
from scipy.spatial.transform import Rotation

HZ = 50
#: Damping over stiffness of ``opspace`` at damping_ratio 4, gains 400 and 200: 2 * 4 / sqrt(gain).
_LAG_S, _TURN_LAG_S = 8 / math.sqrt(400), 8 / math.sqrt(200)
#: The handle's last 74 mm below the head, where it is taken: half sizes and centre on its axis.
_HALF_M, _TAKEN_M = (0.0254, 0.037, 0.0254), 0.09
#: Limits, in metres, of what counts as touched, pushed away, lifted and left behind by the hand.
_TOUCHED_M, _PUSHED_M, _LIFTED_M, _LEFT_M = 0.003, 0.03, 0.05, 0.18
_SETTLE, _HORIZON = HZ, 1000  # steps: the hammer falls by 50 mm; the episode's end
#: The lowest end of the head comes to this height over the nail; a blow aims below the nail's top.
_OVER_M, _BELOW_M, _BLOWS = 0.12, 0.06, 3
#: Seconds: to the nail, up again, stays, and down.
_CARRY_S, _AGAIN_S, _REST_S, _DOWN_S = 2.5, 1.0, 0.3, 0.3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=20, help="starts")
    parser.add_argument("--world", type=Path, help="where to write the description")
    parser.add_argument("--motions", type=Path)
    parser.add_argument("--result", type=Path, help="where to write the outcome of --motions")
    options = parser.parse_args()

    env = make_world()
    if options.world:
        options.world.write_text(json.dumps(described(env, options.count)))
    if options.motions:
        with np.load(options.motions) as file:
            rows = zip(file["T_world_base"], file["commands"], strict=True)
            outcomes: list[list[dict[str, Any]]] = []
            for poses, commands in rows:  # written after each: a run may be cut short
                starts = enumerate(zip(poses, commands, strict=True))
                outcomes.append([replayed(env, seed, *motion) for seed, motion in starts])
                options.result.write_text(json.dumps(outcomes))
    return 0


def make_world() -> Any:
    """Return the environment, without pictures and without waiting."""
    sys.path.insert(0, os.environ["ACEHAND_DEXJOCO"])
    module: Any = importlib.import_module("dexjoco.sim.envs.panda_hammer_nail_env")
    module.MujocoRenderer = _NoPictures
    module.time = types.SimpleNamespace(time=time.time, sleep=lambda seconds: None)
    return module.PandaHammerNailGymEnv()


class _NoPictures:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def render(self, *args: Any, **kwargs: Any) -> None:
        return None


def described(env: Any, count: int) -> dict[str, Any]:
    """Return object, starts and hand, in the world (metres, z up)."""
    objects, bases = [], []
    for seed in range(count):
        started(env, seed)
        hammer = _pose(env, "hammer_body")
        across, along = hammer[:3, 1], hammer[:3, 2] * [1, 1, 0]
        box = np.eye(4)
        box[:3, 0] = across * [1, 1, 0] / np.linalg.norm(across[:2])
        box[:3, 1] = along / np.linalg.norm(along)
        box[:3, 2] = np.cross(box[:3, 0], box[:3, 1])
        if box[2, 2] < 0:
            box[:3, 0] *= -1
            box[:3, 2] *= -1
        box[:3, 3] = (hammer @ [0, 0, _TAKEN_M, 1])[:3]
        objects.append(box.tolist())
        bases.append(_pose(env, "allegro_palm").tolist())
    return {
        "shape": "box",
        "half_m": _HALF_M,
        "mass_kg": float(env.model.body("hammer_body").mass[0]),
        "friction": float(env.model.geom("handle").friction[0]),
        "T_world_object": objects,
        "T_world_base": bases,
    }


def started(env: Any, seed: int) -> None:
    """Reset to a start and let the hammer come to rest."""
    np.random.seed(seed)  # noqa: NPY002 - its reset draws from the global generator
    env.reset()
    home = env.data.site("attachment_site")
    turn = Rotation.from_matrix(home.xmat.reshape(3, 3)).as_quat(scalar_first=True)
    still = np.concatenate([home.xpos, turn, env.data.qpos[env._allegro_dof_ids]])
    for _ in range(_SETTLE):
        env.step(still)


def replayed(env: Any, seed: int, T_world_base: np.ndarray, commands: np.ndarray) -> dict[str, Any]:
    """Replay a motion, then the blows; return what became of it.

    It ends with success, or when the hand has left the hammer behind.
    """
    began = time.perf_counter()
    started(env, seed)
    run = _Run(env, _pose(env, "hammer_body")[:3, 3])
    last = np.abs(np.diff(T_world_base, axis=0)).max((1, 2)).nonzero()[0][-1] + 1
    wrist = T_world_base[: last + 1] @ run.T_palm_flange
    success = run.follow(wrist, commands[: last + 1])
    wrist, held = wrist[-1], commands[last]
    for blow in range(_BLOWS):
        if success or run.path[-1][2] < _LIFTED_M:
            break
        over = env.data.site("nail_top_site").xpos - _lowest(env) + [0, 0, _OVER_M]
        down = over - [0, 0, _OVER_M + _BELOW_M]
        at = np.cumsum([0, _CARRY_S if blow == 0 else _AGAIN_S, _REST_S, _DOWN_S, _REST_S])
        way = _eased(at, np.array([0 * over, over, over, down, down]))
        poses = np.tile(wrist, (len(way), 1, 1))
        poses[:, :3, 3] += way
        success = run.follow(poses, np.tile(held, (len(way), 1)))
        wrist = poses[-1]
    moved = np.array(run.path)
    return {
        "success": success,
        "fault": None if success else fault(moved),
        "nail_mm": 1e3 * float(env.get_nail_depth()),
        "steps": len(run.path),
        "rise_m": float(moved[:, 2].max()),
        "wrist_error_m": float(np.median(run.off)),
        "wrist_errors_m": np.round(run.off, 4).tolist(),
        "finger_errors_rad": np.round(run.fingers, 4).tolist(),
        "path": np.round(moved[::5], 3).tolist(),
        "seconds": time.perf_counter() - began,
    }


class _Run:
    """A replay under way, and what it has seen."""

    def __init__(self, env: Any, start: np.ndarray) -> None:
        self.env, self.start = env, start
        self.path = list[np.ndarray]()  # this and the errors: per step
        self.off, self.fingers = list[float](), list[float]()
        flange, site = np.eye(4), env.data.site("attachment_site")
        flange[:3, :3], flange[:3, 3] = site.xmat.reshape(3, 3), site.xpos
        self.T_palm_flange = np.linalg.inv(_pose(env, "allegro_palm")) @ flange
        self.low = np.inf

    def follow(self, wrist: np.ndarray, commands: np.ndarray) -> bool:
        """Follow poses of the flange (T, 4, 4); return whether DexJoCo's test is passed."""
        env, site = self.env, self.env.data.site("attachment_site")
        for step, action in enumerate(np.concatenate([*led(wrist), commands], axis=1)):
            info = env.step(action)[-1]
            self.path.append(_pose(env, "hammer_body")[:3, 3] - self.start)
            self.off.append(float(np.linalg.norm(site.xpos - wrist[step, :3, 3])))
            errors = env.data.qpos[env._allegro_dof_ids] - commands[step]
            self.fingers.append(float(np.abs(errors).max()))
            self.low = min(self.low, wrist[step, 2, 3])
            left = wrist[step, 2, 3] > self.low + _LEFT_M and self.path[-1][2] < _LIFTED_M
            if info["succeed"] or left or env.env_step >= _HORIZON:
                return bool(info["succeed"])
        return False


def _lowest(env: Any) -> np.ndarray:
    """Return the lowest of the middles of the head's ends: face, top, claw."""
    ends = [[0.0976, 0, 0.1575, 1], [0, 0, 0.188, 1], [-0.08, 0, 0.1575, 1]]
    points = (np.array(ends) @ _pose(env, "hammer_body").T)[:, :3]
    return points[points[:, 2].argmin()]


def _eased(at: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return places on the way between others, at rest in each, at 50 Hz."""
    times = np.arange(0.0, at[-1], 1 / HZ)
    i = np.searchsorted(at, times, "right") - 1
    share = ((times - at[i]) / (at[i + 1] - at[i]))[:, None]
    return places[i] + share * share * (3 - 2 * share) * (places[i + 1] - places[i])


def led(flange: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return positions and wxyz quaternions to command so that the wrist follows (T, 4, 4)."""
    turns = Rotation.from_matrix(flange[:, :3, :3])
    ahead = (turns[1:] * turns[:-1].inv()).as_rotvec() * HZ
    ahead = np.concatenate([ahead, 0 * ahead[-1:]])
    speed = np.diff(flange[:, :3, 3], axis=0, append=flange[-1:, :3, 3]) * HZ
    places = flange[:, :3, 3] + _LAG_S * speed
    return places, (Rotation.from_rotvec(_TURN_LAG_S * ahead) * turns).as_quat(scalar_first=True)


def fault(moved: np.ndarray) -> str:
    """Return why a motion failed, from the hammer's path relative to its start, metres."""
    rise, aside = moved[:, 2], np.linalg.norm(moved[:, :2], axis=1)
    if np.linalg.norm(moved, axis=1).max() < _TOUCHED_M:
        return "not touched"
    if rise.max() < _LIFTED_M:
        return "pushed away" if aside.max() > _PUSHED_M else "not lifted"
    return "dropped" if rise[-1] < _LIFTED_M else "nail not driven in"


def _pose(env: Any, body: str) -> np.ndarray:
    pose, found = np.eye(4), env.data.body(body)
    pose[:3, :3], pose[:3, 3] = found.xmat.reshape(3, 3), found.xpos
    return pose


if __name__ == "__main__":
    sys.exit(main())
