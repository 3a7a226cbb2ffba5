"""An arm from a user's MJCF or URDF: its chain of joints up to the link that carries the hand."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from acehand_core.errors import InputError, SchemaError, nearest
from acehand_core.geometry import frames
from acehand_core.types import RigidTransform
from retarget.kinematics import FrameSet, KinematicTree
from retarget.user_model import compiled_model

ArmJoints = Float[np.ndarray, "T J"]

#: What files call the place where a tool is mounted, in order of preference.
LINK_NAMES = ("attachment_site", "tool0", "flange", "link_eef", "ee_link", "panda_link8")
#: Where the file gives no joint speed (an MJCF never does), and no range.
ASSUMED_SPEED = 2.0
ASSUMED_RANGE = (-2 * np.pi, 2 * np.pi)
#: Distance of the points that stand for the mount's orientation: 1 degree moves them 2.6 mm.
LEVER_M = 0.15


@dataclass(frozen=True, slots=True, eq=False)
class Arm:
    """The J joints between the arm's base and ``link``, which carries the hand.

    ``mount`` is the pose of the hand's base frame in the link's. ``posture`` holds all joints of
    the file; those that do not carry the link stay as they are there.
    """

    path: Path
    link: str
    joint_names: tuple[str, ...]
    lower: Float[np.ndarray, "J"]
    upper: Float[np.ndarray, "J"]
    speed: Float[np.ndarray, "J"]
    mount: RigidTransform
    notes: tuple[str, ...]
    tree: KinematicTree
    columns: tuple[int, ...]
    posture: Float[np.ndarray, "Q"]

    def base_poses(self, joints: ArmJoints) -> Float[np.ndarray, "T 4 4"]:
        """Return the pose of the hand's base in the arm's base frame."""
        return self.tree.poses(self._all(joints), (self.link,))[:, 0] @ self.mount

    def points_and_jacobian(
        self, joints: ArmJoints
    ) -> tuple[Float[np.ndarray, "T 4 3"], Float[np.ndarray, "T 4 3 J"]]:
        """Return four points that stand for the hand's base pose, and their derivatives."""
        link = self.tree.frames((self.link,))
        where = np.array([[0, 0, 0], *(LEVER_M * np.eye(3))])
        offsets = link.offsets + frames.apply(self.mount, where) @ link.turns[0].T
        points = FrameSet(np.repeat(link.links, 4), offsets, np.repeat(link.turns, 4, axis=0))
        placed, jacobian = self.tree.points_and_jacobian(self._all(joints), points)
        return placed, jacobian[..., list(self.columns)]

    def _all(self, joints: ArmJoints) -> Float[np.ndarray, "T Q"]:
        out = np.tile(self.posture, (len(joints), 1))
        out[:, list(self.columns)] = joints
        return out


def pose_points(poses: RigidTransform) -> Float[np.ndarray, "*batch 4 3"]:
    """Return the four points that stand for poses, as ``Arm.points_and_jacobian`` gives them."""
    origin = poses[..., None, :3, 3]
    axes = LEVER_M * np.swapaxes(poses[..., :3, :3], -1, -2)
    return np.concatenate([origin, origin + axes], axis=-2)


def load_arm(path: Path, link: str | None = None, mount: RigidTransform | None = None) -> Arm:
    """Read an arm.

    Args:
        path: MJCF or URDF. Meshes that are missing or that MuJoCo cannot read are left out.
        link: the link or site that carries the hand; default the first of ``LINK_NAMES`` there is,
            else the end of the longest chain of joints.
        mount: pose of the hand's base frame (+z to the fingers) in that link's; default the same.

    Raises:
        InputError: no such file, or MuJoCo cannot read it, or it has no such link.
        SchemaError: the link hangs on no joint, or on one that neither turns nor slides.
    """
    model = compiled_model(path)
    tree = KinematicTree.from_model(model, path)
    bodies = {model.body(i).name: i for i in range(1, model.nbody)}
    bodies |= {model.site(i).name: int(model.site_bodyid[i]) for i in range(model.nsite)}
    if link is None:
        link = next((name for name in LINK_NAMES if name in bodies), None) or _far_end(model)
    if link not in bodies:
        raise InputError(f"{path}: no link or site {link!r}; {nearest(link, bodies)}")
    chain = _joints_of(model, bodies[link])
    if not chain:
        raise SchemaError(f"{path}: link {link!r} hangs on no joint; name another (--arm-link).")
    limited = model.jnt_limited.astype(bool)
    ranges = np.where(limited[:, None], model.jnt_range, ASSUMED_RANGE)
    names = tuple(model.joint(i).name for i in chain)
    speeds = _speeds(path)
    speed = np.array([speeds.get(name, ASSUMED_SPEED) for name in names])
    notes = []
    if missing := [name for name in names if name not in speeds]:
        notes.append(f"assumed: {ASSUMED_SPEED:g} per second at most for {', '.join(missing)}")
    if wide := [name for i, name in zip(chain, names, strict=True) if not limited[i]]:
        notes.append(f"assumed: two turns for {', '.join(wide)}, which has no range")
    return Arm(
        path=path,
        link=link,
        joint_names=names,
        lower=ranges[chain, 0],
        upper=ranges[chain, 1],
        speed=speed,
        mount=np.eye(4) if mount is None else mount,
        notes=tuple(notes),
        tree=tree,
        columns=tuple(tree.joint_names.index(name) for name in names),
        posture=np.clip(np.zeros(model.njnt), ranges[:, 0], ranges[:, 1]),
    )


def _joints_of(model: object, body: int) -> list[int]:
    """Return the joints between the world and a body, from the base on."""
    out: list[int] = []
    while body > 0:
        first, count = model.body_jntadr[body], model.body_jntnum[body]
        out[:0] = range(first, first + count)
        body = int(model.body_parentid[body])
    return out


def _far_end(model: object) -> str:
    """Return the first link after the longest chain of hinges: a gripper's slides do not count."""
    import mujoco

    def turns(body: int) -> int:
        kinds = model.jnt_type[_joints_of(model, body)]
        return int((kinds == mujoco.mjtJoint.mjJNT_HINGE).sum())

    return model.body(max(range(1, model.nbody), key=lambda b: (turns(b), -b))).name


def _speeds(path: Path) -> dict[str, float]:
    """Return the joint speeds that a URDF gives."""
    if path.suffix.lower() != ".urdf":
        return {}
    out = {}
    for joint in ET.parse(path).getroot().findall("joint"):
        limit = joint.find("limit")
        speed = float(limit.get("velocity", 0)) if limit is not None else 0.0
        if speed > 0:
            out[joint.get("name", "")] = speed
    return out
