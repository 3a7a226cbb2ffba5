"""An arm that carries a robot hand: its settings, and reading it from a user's MJCF or URDF."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from acehand_core.errors import InputError, SchemaError, nearest
from acehand_core.geometry import frames, rotations
from acehand_core.mujoco_gl import import_mujoco
from acehand_core.settings import numbers, setting
from acehand_core.types import RigidTransform
from retarget.robots.collision_shapes import FrameSet, Posture
from retarget.robots.kinematics import KinematicTree, ancestors

if TYPE_CHECKING:
    import mujoco

BasePath = Float[np.ndarray, "T 4 4"]
ArmJoints = Float[np.ndarray, "T J"]
_Rows = Int[np.ndarray, "N"]

#: Names of tool mounts in files, in order of preference.
LINK_NAMES = (
    "attachment_site", "tool0", "flange", "link_eef", "ee_link", "panda_link8", "pinch_site",
)  # fmt: skip
#: For files without joint speeds (all MJCF) and ranges.
ASSUMED_SPEED = 2.0
ASSUMED_RANGE = (-2 * np.pi, 2 * np.pi)
#: Distance of the points that represent an orientation: 1 degree moves them 2.6 mm.
LEVER_M = 0.15

_POSE: dict[str, Any] = {"metavar": "X,Y,Z,R,P,Y", "parse": numbers}
_OWN: dict[str, Any] = {"identity": "always"}


@dataclass(frozen=True, slots=True, eq=False)
class Arm:
    """The J joints between the arm's base and ``link``, which carries the hand.

    ``mount`` is the pose of the hand's base frame in the link's. ``posture`` has all joints of the
    file; those that do not carry the link keep it.
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
    model: mujoco.MjModel
    #: The body of ``link``, and those below it, which the hand replaces.
    body: int
    carried: frozenset[int]
    #: Joints at rest, where no contact counts as a collision.
    rests: tuple[Float[np.ndarray, "J"], ...]

    @property
    def shapeless(self) -> tuple[str, ...]:
        """The moving links without a shape, whose collisions are unknown."""
        model, links = self.model, ancestors(self.model, self.body)[::-1]
        moving = [b for b in links if model.body_jntnum[b] and not model.body_geomnum[b]]
        return tuple(model.body(b).name for b in moving)

    def base_poses(self, joints: ArmJoints) -> Float[np.ndarray, "T 4 4"]:
        """Return the pose of the hand's base in the arm's base frame."""
        return self.tree.poses(self.all_joints(joints), (self.link,))[:, 0] @ self.mount

    def points_and_jacobian(
        self, joints: ArmJoints
    ) -> tuple[Float[np.ndarray, "T 4 3"], Float[np.ndarray, "T 4 3 J"]]:
        """Return four points that represent the hand's base pose, and their derivatives."""
        link = self.tree.frames((self.link,))
        where = np.array([[0, 0, 0], *(LEVER_M * np.eye(3))])
        offsets = link.offsets + frames.apply(self.mount, where) @ link.turns[0].T
        points = FrameSet(np.repeat(link.links, 4), offsets, np.repeat(link.turns, 4, axis=0))
        positions, jacobian = self.tree.points_and_jacobian(self.all_joints(joints), points)
        return positions, jacobian[..., list(self.columns)]

    def point_rates(
        self, joints: ArmJoints, rows: _Rows, links: _Rows, points: Float[np.ndarray, "N 3"]
    ) -> Float[np.ndarray, "N 3 J"]:
        """Return the derivatives of points (base frame) fixed to links; -1: the base."""
        rates = np.zeros((len(rows), 3, joints.shape[1]))
        posture, eye = self.posture_at(joints), np.eye(len(self.posture))
        for link in np.unique(links[links >= 0]):
            here = np.flatnonzero(links == link)
            at, moved = posture.at(rows[here]), points[here, None]
            by_joint = self.tree.jacobian(at, np.array([link]), moved, eye)[:, 0]
            rates[here] = by_joint[..., list(self.columns)]
        return rates

    def posture_at(self, joints: ArmJoints) -> Posture:
        return self.tree.posture(self.all_joints(joints))

    def all_joints(self, joints: ArmJoints) -> Float[np.ndarray, "T Q"]:
        """Return the angles of all joints of the file."""
        full = np.tile(self.posture, (len(joints), 1))
        full[:, list(self.columns)] = joints
        return full


def pose_points(poses: RigidTransform) -> Float[np.ndarray, "*batch 4 3"]:
    """Return the four points that represent poses, as ``Arm.points_and_jacobian`` does."""
    origin = poses[..., None, :3, 3]
    axes = LEVER_M * np.swapaxes(poses[..., :3, :3], -1, -2)
    return np.concatenate([origin, origin + axes], axis=-2)


def load_arm(path: Path, link: str | None = None, mount: RigidTransform | None = None) -> Arm:
    """Read an arm.

    Args:
        path: MJCF or URDF; missing and unreadable meshes are left out.
        link: the link or site that carries the hand; default the first of ``LINK_NAMES``, else the
            end of the longest chain of joints.
        mount: pose of the hand's base frame (+z to the fingers) in that link's; default identity.

    Raises:
        InputError: the file cannot be read, or lacks the link.
        SchemaError: no joint moves the link, or one that is neither a hinge nor a slide.
    """
    from retarget.robots.model_file import compiled_model, urdf_limits

    model = compiled_model(path)
    tree = KinematicTree(model, path)
    bodies = {model.body(i).name: i for i in range(1, model.nbody)}
    bodies |= {model.site(i).name: int(model.site_bodyid[i]) for i in range(model.nsite)}
    if link is None:
        link = next((name for name in LINK_NAMES if name in bodies), None) or _far_end(model)
    if link not in bodies:
        raise InputError(f"{path}: no link or site {link!r}; {nearest(link, bodies)}")
    chain = _joints_of(model, bodies[link])
    if not chain:
        raise SchemaError(f"{path}: no joint moves link {link!r}; name another (`arm_link`).")

    limited = model.jnt_limited.astype(bool)
    ranges = np.where(limited[:, None], model.jnt_range, ASSUMED_RANGE)
    names = tuple(model.joint(i).name for i in chain)
    speeds = urdf_limits(path, "velocity")
    posture = np.clip(np.zeros(model.njnt), ranges[:, 0], ranges[:, 1])

    notes = []
    if missing := [name for name in names if name not in speeds]:
        notes.append(f"assumed: {ASSUMED_SPEED:g} per second at most for {', '.join(missing)}")
    if wide := [name for i, name in zip(chain, names, strict=True) if not limited[i]]:
        notes.append(f"assumed: two turns for {', '.join(wide)}, which has no range")

    body = bodies[link]
    carried = (b for b in range(1, model.nbody) if body in ancestors(model, b)[1:])
    return Arm(
        path=path,
        link=link,
        joint_names=names,
        lower=ranges[chain, 0],
        upper=ranges[chain, 1],
        speed=np.array([speeds.get(name, ASSUMED_SPEED) for name in names]),
        mount=np.eye(4) if mount is None else mount,
        notes=tuple(notes),
        tree=tree,
        columns=tuple(tree.joint_names.index(name) for name in names),
        posture=posture,
        model=model,
        body=body,
        carried=frozenset(carried),
        rests=tuple(rest[chain] for rest in (posture, *model.key_qpos[:1])),
    )


def _joints_of(model: mujoco.MjModel, body: int) -> list[int]:
    """Return the joints from the world to a body."""
    links = ancestors(model, body)[::-1]
    return [j for b in links for j in np.flatnonzero(model.jnt_bodyid == b).tolist()]


def _far_end(model: mujoco.MjModel) -> str:
    """Return the first link after the longest chain of hinges; a gripper's slides do not count."""
    hinge = int(import_mujoco().mjtJoint.mjJNT_HINGE)

    def turns(body: int) -> int:
        return int((model.jnt_type[_joints_of(model, body)] == hinge).sum())

    return model.body(max(range(1, model.nbody), key=lambda b: (turns(b), -b))).name


@dataclass(frozen=True, slots=True)
class ArmSettings:
    """The arm that carries a hand, if ``path`` names one. Metres and radians."""

    path: Path | None = setting(
        None,
        "MJCF or URDF of an arm that carries each hand",
        flag="arm",
        metavar="FILE",
        **_OWN,
        common=True,
    )
    link: str | None = setting(
        None,
        "its link or site that carries the hand",
        flag="arm-link",
        metavar="NAME",
        default_text="found",
        **_OWN,
    )
    mount: tuple[float, ...] | None = setting(
        None,
        "pose of the hand's base on that link (m, rad)",
        flag="arm-mount",
        default_text="0,0,0,0,0,0",
        **_POSE,
        **_OWN,
    )
    up: tuple[float, ...] | None = setting(
        None,
        "direction of the arm's base z axis",
        default_text="0,-1,0; in the world frame 0,0,1",
        flag="arm-up",
        metavar="X,Y,Z",
        parse=numbers,
        **_OWN,
    )
    base_left: tuple[float, ...] | None = setting(
        None,
        "pose of the left arm's base, in the frame of the base poses (m, rad)",
        default_text="searched",
        flag="arm-base-left",
        **_POSE,
    )
    base_right: tuple[float, ...] | None = setting(
        None, "the same for the right arm", default_text="searched", flag="arm-base-right", **_POSE
    )
    table: str = setting(
        "auto",
        "table for the arms to avoid: its height along `arm_up` (m), none, or auto: at the height "
        "of searched bases, none where both are given",
        flag="arm-table",
        metavar="auto|none|M",
    )
    clearance_m: float = setting(
        0.02,
        "distance of the arms from one another and from the table, metres",
        flag="arm-clearance",
        metavar="M",
        low=0,
    )

    def __post_init__(self) -> None:
        poses = {"mount": self.mount, "base_left": self.base_left, "base_right": self.base_right}
        used = self.link or self.up or any(self.mount or ()) or self.base_left or self.base_right
        if self.path is None and (used or self.table != "auto"):
            raise InputError(
                "`arm_link`, `arm_mount`, `arm_up`, `arm_base_left`, `arm_base_right` and "
                "`arm_table` need `arm=FILE`."
            )
        for name, pose in poses.items():
            if pose is not None and (len(pose) != 6 or not np.isfinite(pose).all()):
                raise InputError(f"`arm_{name}` takes six numbers: x,y,z,roll,pitch,yaw (m, rad).")
        _ = self.table_m  # raises
        if self.up is not None and not (len(self.up) == 3 and np.linalg.norm(self.up) > 1e-6):
            raise InputError("`arm_up` takes a direction: three numbers that are not all 0.")

    def load(self) -> Arm | None:
        """Read the arm, if any. Raises InputError, SchemaError."""
        if self.path is None:
            return None
        return load_arm(self.path, self.link, pose_of(self.mount or (0.0,) * 6))

    @property
    def table_m(self) -> float | None:
        """The table's height, if given."""
        if self.table in ("auto", "none"):
            return None
        try:
            height = float(self.table)
        except ValueError:
            height = np.nan
        if not np.isfinite(height):
            raise InputError(f"`arm_table={self.table!r}`: give a height in metres, auto or none.")
        return height

    def base(self, slot: int) -> RigidTransform | None:
        """Return the base pose of a side's arm, if given."""
        given = (self.base_left, self.base_right)[slot]
        return None if given is None else pose_of(given)


def pose_of(numbers: Sequence[float]) -> RigidTransform:
    """Return the pose of x, y, z, roll, pitch, yaw (m, rad)."""
    place = np.array(numbers, float)
    return frames.rigid(rotations.from_rpy(place[3:]), place[:3])
