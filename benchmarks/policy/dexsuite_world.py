"""DexSuite's single-arm tasks as a judge of motions; runs in DexSuite's own Python environment.

    $ACEHAND_DEXSUITE_PYTHON benchmarks/policy/dexsuite_world.py lift --count 20 --world world.json
    $ACEHAND_DEXSUITE_PYTHON benchmarks/policy/dexsuite_world.py lift --count 20 \
        --motions motions.npz --result result.json

The first form describes the world: its object, and per start the pose of object, goal and hand.
The second replays ``T_world_base`` (R, N, T, 4, 4), poses of the hand's base link (frame ``base``
of its URDF), and ``commands`` (R, N, T, 6), rad, in the order of ``COMMANDS``, at 20 Hz: R rows of
N starts, all starts of a row at once. Success is DexSuite's own ``_is_success``, at any step before
its ``_is_failure`` or its horizon, as in its episodes.

Two things are set that DexSuite 0.1.0 does not set:

- ``mended``: genesis-world 0.4.3 renumbers the joints after a removed base joint when it attaches a
  hand to an arm, but not the joint equalities (URDF mimics) of that hand. Each then couples the
  next joint: the last one ties the free object's x to 0.667 times an index joint. ``--as-shipped``
  leaves that.
- The pose controller's posture cost, an option of it, is 1e-3 per joint. Its default pulls the
  wrist 15 to 170 mm towards the arm's home pose.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import types
from pathlib import Path
from typing import Any

import numpy as np

#: Driven joints in the order of the hand's action.
COMMANDS = (
    "thumb_proximal_yaw",
    "index_proximal",
    "middle_proximal",
    "ring_proximal",
    "pinky_proximal",
    "thumb_proximal_pitch",
)
#: mimic joint: (driving joint, factor, offset), of the hand's URDF.
COUPLED = {
    "thumb_intermediate": ("thumb_proximal_pitch", 1.334, 0.0),
    "thumb_distal": ("thumb_proximal_pitch", 0.667, 0.0),
    "index_intermediate": ("index_proximal", 1.06399, -0.04545),
    "middle_intermediate": ("middle_proximal", 1.06399, -0.04545),
    "ring_intermediate": ("ring_proximal", 1.06399, -0.04545),
    "pinky_intermediate": ("pinky_proximal", 1.06399, -0.04545),
}
HZ = 20
#: Limits, in metres, of what counts as touched, pushed away and lifted.
_TOUCHED_M, _PUSHED_M, _LIFTED_M = 0.003, 0.03, 0.02


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", choices=("lift", "pick_place"))
    parser.add_argument("--count", type=int, default=20, help="starts, at least 2")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--as-shipped", action="store_true", help="do not mend the mimic joints")
    parser.add_argument("--world", type=Path, help="where to write the description")
    parser.add_argument("--motions", type=Path)
    parser.add_argument("--result", type=Path, help="where to write the outcome of --motions")
    options = parser.parse_args()

    env = make_world(options.task, options.count, mended=not options.as_shipped)
    if options.world:
        options.world.write_text(json.dumps(described(env, options.seed)))
    if options.motions:
        with np.load(options.motions) as file:
            rows = zip(file["T_world_base"], file["commands"], strict=True)
            outcomes: list[list[dict[str, Any]]] = []
            for row in rows:  # written after each: a run may be cut short
                outcomes.append(replayed(env, options.seed, *row))
                options.result.write_text(json.dumps(outcomes))
    return 0


def make_world(task: str, count: int, mended: bool = True) -> Any:
    """Return a DexSuite environment of ``count`` scenes: a Franka arm with the Inspire hand."""
    for name in ("pynput", "pynput.keyboard", "pynput.mouse"):  # it needs a display
        sys.modules[name] = types.ModuleType(name)
    sys.modules["pynput"].keyboard = sys.modules["pynput.keyboard"]  # type: ignore[attr-defined]
    sys.modules["pynput"].mouse = sys.modules["pynput.mouse"]  # type: ignore[attr-defined]
    sys.modules["pynput.keyboard"].Listener = object  # type: ignore[attr-defined]
    import dexsuite
    import torch
    from dexsuite.options import ArmOptions, ControllerOptions, RobotOptions

    torch.set_num_threads(1)
    if mended:
        _mend_mimics()
    metric = {"normalized": False, "clip": False}
    wrist = ControllerOptions(
        name="osc_pose_abs_quat", config={**metric, "posture_cost": [1e-3] * 7}
    )
    fingers = ControllerOptions(name="joint_position", config={**metric, "clip": True})
    arm = ArmOptions(
        manipulator="franka",
        gripper="inspire",
        manipulator_controller=wrist,
        gripper_controller=fingers,
    )
    robot = RobotOptions(type_of_robot="single", single=arm)
    return dexsuite.make(task, robot=robot, control_hz=HZ, n_envs=count)


def _mend_mimics() -> None:
    """Renumber the joints of mimics too when a hand's base joint is removed."""
    from dexsuite.api import _lazy_init_genesis

    _lazy_init_genesis(performance_mode=False)
    from genesis.engine.entities.rigid_entity.rigid_entity import KinematicEntity

    attach = KinematicEntity.attach

    def mended(self: Any, *args: Any, **kwargs: Any) -> None:
        base = self.links[0]
        removed = 0 if base.is_fixed else base.n_joints
        attach(self, *args, **kwargs)
        for equality in getattr(self, "_equalities", ()):
            equality._eq_obj1id -= removed
            equality._eq_obj2id -= removed

    KinematicEntity.attach = mended


def described(env: Any, seed: int) -> dict[str, Any]:
    """Return object, starts and hand, in the world (metres, z up), and the couplings' errors."""
    env.reset(seed=seed)
    for _ in range(HZ // 2):  # objects fall by 6 mm onto the table
        _hold(env)
    box = env.cube.geoms[0]
    low, high = (v.reshape(-1, 3)[0] for v in np.moveaxis(_array(env.cube.get_AABB()), -2, 0))
    return {
        "shape": "box",
        "half_m": (0.5 * (high - low)).tolist(),
        "mass_kg": float(env.cube.get_mass()),
        "friction": float(box.friction),
        "T_world_object": _poses(env.cube.get_pos(), env.cube.get_quat()).tolist(),
        "goal_world": _array(env.goal.get_pos()).tolist(),
        "T_world_base": _poses(*_base(env)).tolist(),
        "coupling_errors_rad": coupling_errors(env),
    }


def coupling_errors(env: Any) -> dict[str, float]:
    """Return by how much each mimic joint is off at some commands, the largest."""
    worst = dict.fromkeys(COUPLED, 0.0)
    dofs = {
        joint.name.removesuffix("_joint"): joint.dofs_idx_local[0] for joint in _hand(env).joints
    }
    for level in (0.0, 0.3, 0.6):
        for _ in range(2 * HZ):
            _hold(env, np.array([1.0, 1.0, 1.0, 1.0, 1.0, 0.8]) * level)
        q = _array(_hand(env).get_dofs_position())
        for name, (driver, factor, offset) in COUPLED.items():
            off = q[:, dofs[name]] - factor * q[:, dofs[driver]] - offset
            worst[name] = max(worst[name], float(np.abs(off).max()))
    return worst


def replayed(
    env: Any, seed: int, T_world_base: np.ndarray, commands: np.ndarray
) -> list[dict[str, Any]]:
    """Replay one motion per scene; return what became of each."""
    import torch

    began = time.perf_counter()
    env.reset(seed=seed)
    home = _poses(*_base(env))
    for _ in range(HZ // 2):
        _hold(env)
    start = _array(env.cube.get_pos())
    turns = T_world_base[..., :3, :3] @ np.swapaxes(home[:, None, :3, :3], -1, -2)
    shifts = T_world_base[..., :3, 3] - home[:, None, :3, 3]
    actions = np.concatenate([shifts, _quaternions(turns), commands], axis=-1)

    success, failed, late = np.zeros((3, len(start)), bool)
    places, off, fingers = [], [], []
    for step in range(actions.shape[1]):
        action = torch.as_tensor(actions[:, step], dtype=torch.float32)
        now, wrong = stepped(env, action)
        success |= now & ~failed & (step < env.horizon)
        late |= now & ~failed & ~success
        failed |= wrong
        places.append(_array(env.cube.get_pos()))
        off.append(np.linalg.norm(_array(_base(env)[0]) - T_world_base[:, step, :3, 3], axis=-1))
        q = _array(_hand(env).get_dofs_position())[:, : len(COMMANDS)]
        fingers.append(np.abs(q - commands[:, step]).max(-1))
    path, errors, quats = np.stack(places, 1), np.stack(off, 1), _array(env.cube.get_quat())
    seconds = time.perf_counter() - began
    return [
        {
            "success": bool(success[i]),
            "fault": None if success[i] else "too late" if late[i] else fault(path[i] - start[i]),
            "ended_by_failure": bool(failed[i]),
            "rise_m": float((path[i, :, 2] - start[i, 2]).max()),
            "final_position": path[i, -1].tolist(),
            "final_quaternion": quats[i].tolist(),
            "wrist_error_m": float(np.median(errors[i])),
            "wrist_errors_m": np.round(errors[i], 4).tolist(),
            "finger_errors_rad": np.round(np.stack(fingers, 1)[i], 4).tolist(),
            "path": np.round(path[i, ::2], 4).tolist(),
            "seconds": seconds / len(start),
        }
        for i in range(len(start))
    ]


def stepped(env: Any, action: Any) -> tuple[np.ndarray, np.ndarray]:
    """Make one control step; return where DexSuite's tests of success and of failure hold.

    It is what ``env.step`` does, without the rest of the observation (two thirds of its time), and
    without starting a scene anew that succeeded, which would hide where the object ends.
    """
    env.robot.apply_action_validated(action)
    for _ in range(env._n_phys_per_ctrl):
        env._scene_step_with_robot_hooks()
    from dexsuite.utils.robot_utils import get_tool_center_point_pose

    tool = {"tcp_pos": get_tool_center_point_pose(env.robot)[0]}
    obs = {"state": {"other": env._get_extra_obs(), "gripper": tool}}
    tests = env._is_success(obs), env._is_failure(obs)
    success, failure = (_array(test).astype(bool).reshape(-1) for test in tests)
    return success, failure


def fault(moved: np.ndarray) -> str:
    """Return why a motion failed, from the object's path relative to its start, metres."""
    rise, aside = moved[:, 2], np.linalg.norm(moved[:, :2], axis=1)
    if np.linalg.norm(moved, axis=1).max() < _TOUCHED_M:
        return "not touched"
    if rise.max() < _LIFTED_M:
        return "pushed away" if aside.max() > _PUSHED_M else "not lifted"
    if rise[-1] < 0.5 * rise.max():
        return "dropped"
    return "off the goal"  # still held: too low, or beside it


def _hold(env: Any, fingers: np.ndarray | None = None) -> None:
    """Make one step with the wrist at its reset pose."""
    import torch

    still = [0, 0, 0, 1, 0, 0, 0, *(np.zeros(6) if fingers is None else fingers)]
    stepped(env, torch.tensor(still, dtype=torch.float32).repeat(env.n_envs, 1))


def _hand(env: Any) -> Any:
    return env.robot.hand_ent


def _base(env: Any) -> tuple[Any, Any]:
    base = _hand(env).get_link("base")
    return base.get_pos(), base.get_quat()


def _array(value: Any) -> np.ndarray:
    return value.detach().cpu().numpy().astype(float)


def _poses(position: Any, quaternion: Any) -> np.ndarray:
    """Return (N, 4, 4) from positions and wxyz quaternions."""
    w, x, y, z = np.moveaxis(_array(quaternion), -1, 0)
    turn = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    poses = np.tile(np.eye(4), (len(w), 1, 1))
    poses[:, :3, :3] = np.moveaxis(np.array(turn), -1, 0)
    poses[:, :3, 3] = _array(position)
    return poses


def _quaternions(turns: np.ndarray) -> np.ndarray:
    """Return wxyz quaternions of rotations (..., 3, 3)."""
    from scipy.spatial.transform import Rotation

    xyzw = Rotation.from_matrix(turns.reshape(-1, 3, 3)).as_quat()
    return xyzw[:, [3, 0, 1, 2]].reshape(*turns.shape[:-2], 4)


if __name__ == "__main__":
    sys.exit(main())
