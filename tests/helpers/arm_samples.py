"""Arms for tests, and a scene of two of them that MuJoCo alone puts together."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import mujoco
import numpy as np

from acehand_core.geometry import frames, rotations
from helpers.retarget_samples import FPS
from retarget.solve import arm_search

RADIUS = 0.05
AXES = ("0 0 1", "0 1 0", "0 0 1", "0 1 0", "0 0 1", "0 1 0", "0 0 1")
LENGTHS = (0.3, 0.2, 0.2, 0.2, 0.2, 0.1, 0.1)


def capsule_arm(path: Path) -> Path:
    """Write an arm of capsules, upright at rest, with a site where the hand sits, 0.1 m beyond.

    Its base is 0.06 m high and of radius 0.08 m; link i begins at 0.06 m and the lengths before it,
    its capsule's axis 0.06 m after that. The last two links are spheres about their joints.
    """
    opened, closed = [], []
    for i in range(len(AXES)):
        at = "0 0 0.06" if i == 0 else f"0 0 {LENGTHS[i - 1]}"
        ends = f'type="capsule" fromto="0 0 0.06 0 0 {LENGTHS[i] - 0.06}"'
        shape = ends if LENGTHS[i] > 0.12 else 'type="sphere"'
        opened.append(
            f'<body name="link{i + 1}" pos="{at}"><joint name="j{i + 1}" axis="{AXES[i]}"/>'
            f'<geom size="{RADIUS}" {shape}/>'
        )
        closed.append("</body>")
    path.write_text(
        '<mujoco><compiler angle="radian" autolimits="true"/>'
        '<default><joint range="-2.8 2.8"/></default><worldbody>'
        '<body name="base"><geom type="cylinder" size="0.08 0.03" pos="0 0 0.03"/>'
        f'{"".join(opened)}<site name="attachment_site" pos="0 0 0.1"/>{"".join(closed)}'
        "</body></worldbody></mujoco>"
    )
    return path


def menagerie_arm(folder: Path) -> Path:
    """Write an arm as MuJoCo Menagerie has them: meshdir, classes, a keyframe, excludes."""
    (folder / "assets").mkdir(parents=True)
    corners = np.array(
        [[x, y, z] for z in (0.0, 0.16) for y in (-0.04, 0.04) for x in (-0.05, 0.05)]
    )
    faces = [(1, 3, 4), (1, 4, 2), (5, 6, 8), (5, 8, 7), (1, 2, 6), (1, 6, 5),
             (3, 7, 8), (3, 8, 4), (1, 5, 7), (1, 7, 3), (2, 4, 8), (2, 8, 6)]  # fmt: skip
    text = [f"v {x} {y} {z}" for x, y, z in corners] + [f"f {a} {b} {c}" for a, b, c in faces]
    (folder / "assets" / "bar.obj").write_text("\n".join(text))
    opened = [
        f'<body name="link{i + 1}" pos="0 0 {0.06 if i == 0 else 0.2}"><joint name="joint{i + 1}" '
        f'axis="{axis}"/><geom mesh="bar" class="visual"/><geom mesh="bar" class="collision"/>'
        for i, axis in enumerate(AXES)
    ]
    file = folder / "arm.xml"
    file.write_text(
        '<mujoco model="arm"><compiler angle="radian" meshdir="assets" autolimits="true"/>'
        '<default><default class="arm"><joint range="-2.8 2.8"/><default class="visual">'
        '<geom type="mesh" contype="0" conaffinity="0" group="2" material="white"/></default>'
        '<default class="collision"><geom type="mesh" group="3"/></default></default></default>'
        '<asset><material name="white" rgba="1 1 1 1"/><mesh file="bar.obj"/></asset><worldbody>'
        '<body name="base" childclass="arm"><geom class="collision" type="box" size=".08 .08 .02" '
        f'pos="0 0 .02"/>{"".join(opened)}<site name="attachment_site" pos="0 0 .17"/>'
        f"{'</body>' * len(opened)}</body></worldbody>"
        '<contact><exclude body1="link1" body2="link3"/></contact>'
        '<keyframe><key name="home" qpos="0 .3 0 .6 0 .6 0"/></keyframe></mujoco>'
    )
    return file


def few_stands(monkeypatch, sectors=8, frames=20):
    """Try fewer stands of the arms: paths of tests are easy."""
    for name, value in (("_SECTORS", sectors), ("_DIRECTIONS", sectors // 2), ("_TRIED_STANDS", 4),
                        ("_TRIED_FRAMES", frames), ("_KEPT_CANDIDATES", 2)):  # fmt: skip
        monkeypatch.setattr(arm_search, name, value)


def wandering(count=90, seed=0, noise=0.0):
    """Two hands on smooth ways with a turn of more than half a circle, and a common jitter."""
    random = np.random.default_rng(seed)
    time = np.arange(count)[:, None] / FPS
    out = np.empty((count, 2, 4, 4))
    for hand in (0, 1):
        phase = random.uniform(0, 6, 3)
        place = 0.1 * np.sin(2.0 * time + phase) + [0.3 * hand, 0, 0.6]
        turn = np.stack([1.2 * time[:, 0], 0.4 * np.sin(2 * time[:, 0]), 0.2 * time[:, 0]], axis=1)
        out[:, hand] = frames.rigid(rotations.exp(turn), place)
    shake = noise * random.standard_normal((count, 1, 3))
    twist = rotations.exp(8 * noise * random.standard_normal((count, 1, 3)))
    out[..., :3, 3] += shake
    out[..., :3, :3] = twist @ out[..., :3, :3]
    return out


def along(trajectory, paths, active=None):
    """Return the trajectory with other base poses, one path for each hand that is there."""
    count, poses = len(paths[0]), np.tile(np.eye(4), (len(paths[0]), 2, 1, 1))
    there = np.zeros((count, 2), bool)
    for slot, path in enumerate(paths, start=2 - len(paths)):
        poses[:, slot], there[:, slot] = path, True if active is None else active
    names = ("timestamps_ns", "joints", "commands", "registers", "confidence", "tip_error_m")
    rows = {name: getattr(trajectory, name)[:count] for name in names}
    return dataclasses.replace(trajectory, T_frame_base=poses, active=there, **rows)


class TwoArms:
    """Both arms with the robot's hands as MuJoCo attaches them."""

    def __init__(self, file: Path, robot, bases) -> None:
        spec = mujoco.MjSpec()
        for side, base in zip(("left", "right"), bases, strict=True):
            arm = mujoco.MjSpec.from_file(str(file))
            for key in list(arm.keys):
                arm.delete(key)
            if robot is not None:
                hand = mujoco.MjSpec.from_file(str(robot.hand(side).mjcf_path))
                arm.attach(hand, site=arm.site("attachment_site"), prefix="hand:")
                spec.option.integrator, spec.option.gravity = hand.option.integrator, (0, 0, 0)
                arm.option.integrator, arm.option.gravity = hand.option.integrator, (0, 0, 0)
            quat = rotations.to_quaternion(base[:3, :3])
            mount = spec.worldbody.add_frame(pos=base[:3, 3], quat=quat)
            spec.attach(arm, frame=mount, prefix=f"{side}:")
        self.model = spec.compile()
        self.data = mujoco.MjData(self.model)
        model = self.model
        solid = (model.geom_contype != 0) | (model.geom_conaffinity != 0)
        self.shapes = {}
        for side in ("left", "right"):
            names = [model.body(b).name for b in model.geom_bodyid]
            own = np.array([name.startswith(f"{side}:") for name in names]) & solid
            hand = np.array([name.startswith(f"{side}:hand:") for name in names])
            self.shapes[side] = np.flatnonzero(own & ~hand), np.flatnonzero(own & hand)

    def set(self, trajectory, frame: int, joints: np.ndarray) -> None:
        """Put both arms into joints (2, J), and the hands as they are in a frame."""
        for slot, side in enumerate(("left", "right")):
            names = [f"{side}:j{i + 1}" for i in range(joints.shape[1])]
            names += [f"{side}:hand:{side}_{name}" for name in trajectory.joint_names]
            angles = np.concatenate([joints[slot], trajectory.joints[frame, slot]])
            for name, angle in zip(names, angles, strict=True):
                self.data.joint(name).qpos = angle
        mujoco.mj_kinematics(self.model, self.data)

    def between(self) -> float:
        """Return the smallest distance of everything but hand and hand."""
        (arm_a, hand_a), (arm_b, hand_b) = self.shapes["left"], self.shapes["right"]
        pairs = [(a, b) for a in arm_a for b in (*arm_b, *hand_b)]
        pairs += [(a, b) for a in hand_a for b in arm_b]
        return min(mujoco.mj_geomDistance(self.model, self.data, int(a), int(b), 1.0, None)
                   for a, b in pairs)  # fmt: skip
