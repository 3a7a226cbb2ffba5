"""Forward kinematics and Jacobians of a robot hand for many frames at once.

The tree is read from the compiled MJCF, so it is the one that is simulated and rendered. Frames are
links (their origin), tips (sites) or any point fixed to a link. Everything is in the base frame,
metres and radians; joint vectors follow ``joint_names``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from acehand_core.errors import InputError, MissingDependencyError, SchemaError, nearest
from acehand_core.geometry import frames as rigid_frames
from acehand_core.geometry import rotations
from retarget.robot import HandSpec

if TYPE_CHECKING:
    import mujoco

JointFrames = Float[np.ndarray, "T Q"]


@dataclass(frozen=True, slots=True, eq=False)
class FrameSet:
    """K frames fixed to links: link index and pose in the link's frame."""

    links: Int[np.ndarray, "K"]
    offsets: Float[np.ndarray, "K 3"]
    turns: Float[np.ndarray, "K 3 3"]


@dataclass(frozen=True, slots=True, eq=False)
class Capsules:
    """G collision capsules: axis ends in the link's frame (a sphere has equal ends), and radii."""

    names: tuple[str, ...]
    links: Int[np.ndarray, "G"]
    ends: Float[np.ndarray, "G 2 3"]
    radii: Float[np.ndarray, "G"]

    def frames(self) -> FrameSet:
        """Return the 2 G axis ends, both ends of a capsule next to each other."""
        count = 2 * len(self.links)
        turns = np.broadcast_to(np.eye(3), (count, 3, 3))
        return FrameSet(np.repeat(self.links, 2), self.ends.reshape(count, 3), turns)


@dataclass(frozen=True, slots=True, eq=False)
class _Link:
    parent: int  # -1: the base frame
    position: np.ndarray
    turn: np.ndarray
    column: int | None  # in the joint vector; None: fixed
    axis: np.ndarray
    anchor: np.ndarray
    slides: bool


class KinematicTree:
    """The kinematics of one hand."""

    def __init__(
        self,
        joint_names: tuple[str, ...],
        links: tuple[_Link, ...],
        frames: dict[str, tuple[int, np.ndarray, np.ndarray]],
        capsules: Capsules,
    ) -> None:
        """Use ``of`` or ``from_mjcf``."""
        self.joint_names = joint_names
        self.capsules = capsules
        self._links = links
        self._frames = frames
        axes = np.zeros((len(joint_names), 3))
        for link in links:
            if link.column is not None:
                axes[link.column] = link.axis
        # Rodrigues: exp(angle axis) = 1 + sin(angle) K + (1 - cos(angle)) K K.
        self._skew = rotations.skew(axes)
        self._skew2 = self._skew @ self._skew

    @classmethod
    def of(cls, hand: HandSpec) -> KinematicTree:
        """Return the tree of a hand, joints in its order and names without its side."""
        tree = cls.from_mjcf(hand.mjcf_path, hand.joint_names, prefix=f"{hand.side}_")
        tree.frames((*hand.tip_names, *hand.target_frames))  # every promised frame exists
        return tree

    @classmethod
    def from_mjcf(
        cls, path: Path, joint_names: Sequence[str] | None = None, prefix: str = ""
    ) -> KinematicTree:
        """Read a model whose world frame is the hand's base frame.

        Args:
            path: MJCF or URDF file.
            joint_names: order of the joint vectors; default the file's. All of its joints.
            prefix: dropped from the names in the file.

        Raises:
            InputError: the file is missing or MuJoCo cannot read it.
            SchemaError: a joint is missing, unknown, or neither hinge nor slide.
        """
        return cls.from_model(load_mjcf(path), path, joint_names, prefix)

    @classmethod
    def from_model(
        cls,
        model: mujoco.MjModel,
        path: Path,
        joint_names: Sequence[str] | None = None,
        prefix: str = "",
    ) -> KinematicTree:
        """Read a compiled model, as ``from_mjcf`` does; ``path`` is for messages."""
        names = [model.joint(i).name.removeprefix(prefix) for i in range(model.njnt)]
        order = tuple(names if joint_names is None else joint_names)
        for name in {*names} ^ {*order}:
            where = "is not in the model" if name in order else "has no place in the joint order"
            raise SchemaError(f"{path}: joint {name!r} {where}; {nearest(name, names)}")
        links = tuple(_read_link(path, model, i, order, prefix) for i in range(1, model.nbody))
        table = {}
        for i in range(1, model.nbody):
            name = model.body(i).name.removeprefix(prefix)
            table[name] = (i - 1, np.zeros(3), np.eye(3))
        for i in range(model.nsite):
            turn = rotations.from_quaternion(model.site_quat[i])
            body = int(model.site_bodyid[i]) - 1
            table[model.site(i).name.removeprefix(prefix)] = (body, model.site_pos[i].copy(), turn)
        return cls(order, links, table, _read_capsules(model, prefix))

    @property
    def frame_names(self) -> tuple[str, ...]:
        """Every link and site."""
        return tuple(self._frames)

    def frames(self, names: Sequence[str]) -> FrameSet:
        """Return named links and sites as a set; InputError for an unknown name."""
        for name in names:
            if name not in self._frames:
                raise InputError(f"No frame {name!r}; {nearest(name, self._frames)}")
        rows = [self._frames[name] for name in names]
        return FrameSet(
            np.array([r[0] for r in rows], int),
            np.array([r[1] for r in rows]).reshape(-1, 3),
            np.array([r[2] for r in rows]).reshape(-1, 3, 3),
        )

    def points(
        self, joints: JointFrames, frames: FrameSet | Sequence[str]
    ) -> Float[np.ndarray, "T K 3"]:
        """Return the origins of the frames for every row of joint angles."""
        frames = self._resolve(frames)
        positions, turns, _, _ = self._pose_links(joints)
        return _place(positions, turns, frames)

    def poses(
        self, joints: JointFrames, frames: FrameSet | Sequence[str]
    ) -> Float[np.ndarray, "T K 4 4"]:
        """Return ``T_base_frame`` of the frames for every row of joint angles."""
        frames = self._resolve(frames)
        positions, turns, _, _ = self._pose_links(joints)
        turned = np.swapaxes(turns[frames.links] @ frames.turns[:, None], 0, 1)
        return rigid_frames.rigid(turned, _place(positions, turns, frames))

    def points_and_jacobian(
        self, joints: JointFrames, frames: FrameSet | Sequence[str]
    ) -> tuple[Float[np.ndarray, "T K 3"], Float[np.ndarray, "T K 3 Q"]]:
        """Return the origins of the frames and their derivatives by each joint.

        A hinge moves a point by ``axis x (point - anchor)`` per radian, a slide by its axis.
        """
        frames = self._resolve(frames)
        positions, turns, axes, anchors = self._pose_links(joints)
        points = _place(positions, turns, frames)
        jacobian = np.zeros((*points.shape, len(self.joint_names)))
        for k, index in enumerate(frames.links):
            while index >= 0:
                link = self._links[index]
                if link.column is not None:
                    axis = axes[link.column]
                    jacobian[:, k, :, link.column] = (
                        axis if link.slides else _cross(axis, points[:, k] - anchors[link.column])
                    )
                index = link.parent
        return points, jacobian

    def _resolve(self, frames: FrameSet | Sequence[str]) -> FrameSet:
        return frames if isinstance(frames, FrameSet) else self.frames(frames)

    def _pose_links(
        self, joints: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return link positions (L, T, 3) and turns (L, T, 3, 3), joint axes and anchors (Q, T, 3).

        Links first: each link's block is contiguous, which is what makes this fast.
        """
        count = len(joints)
        positions = np.empty((len(self._links), count, 3))
        turns = np.empty((len(self._links), count, 3, 3))
        axes = np.zeros((len(self.joint_names), count, 3))
        anchors = np.zeros_like(axes)
        angles = joints.T[:, :, None, None]
        hinges = (
            np.eye(3)
            + np.sin(angles) * self._skew[:, None]
            + (1 - np.cos(angles)) * self._skew2[:, None]
        )
        for index, link in enumerate(self._links):
            if link.parent < 0:
                position, turn = link.position, np.broadcast_to(link.turn, (count, 3, 3))
            else:
                position = positions[link.parent] + turns[link.parent] @ link.position
                turn = turns[link.parent] @ link.turn
            if link.column is not None:
                axis = turn @ link.axis
                anchor = position + turn @ link.anchor
                axes[link.column], anchors[link.column] = axis, anchor
                if link.slides:
                    position = position + axis * joints[:, link.column, None]
                else:
                    turn = turn @ hinges[link.column]
                    position = anchor - turn @ link.anchor
            positions[index], turns[index] = position, turn
        return positions, turns, axes, anchors


def import_mujoco() -> Any:
    """Import MuJoCo, which refuses unknown values of MUJOCO_GL even where nothing is drawn."""
    try:
        import mujoco
    except (ImportError, RuntimeError) as error:
        raise MissingDependencyError(
            f"MuJoCo cannot be imported: {error}. Install the `mujoco` package; MUJOCO_GL must be "
            "unset or one of egl, osmesa, glfw, disable (egl needs the Debian packages libegl1 and "
            "libgl1-mesa-dri, osmesa needs libosmesa6)."
        ) from error
    return mujoco


def load_mjcf(path: Path) -> mujoco.MjModel:
    """Compile a model file; InputError if it is missing or MuJoCo refuses it."""
    mujoco = import_mujoco()
    if not path.is_file():
        raise InputError(f"{path}: robot model file not found; it is named in the robot.yaml.")
    try:
        return mujoco.MjModel.from_xml_path(str(path))
    except ValueError as error:
        raise InputError(f"{path}: MuJoCo cannot read this model: {error}") from error


def _cross(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    # np.cross spends most of its time on axis bookkeeping.
    (ax, ay, az), (bx, by, bz) = a.T, b.T
    return np.stack([ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx], axis=-1)


def _place(positions: np.ndarray, turns: np.ndarray, frames: FrameSet) -> np.ndarray:
    moved = (turns[frames.links] @ frames.offsets[:, None, :, None])[..., 0]
    return np.ascontiguousarray(np.swapaxes(positions[frames.links] + moved, 0, 1))


def _read_link(
    path: Path, model: mujoco.MjModel, body: int, order: tuple[str, ...], prefix: str
) -> _Link:
    mujoco = import_mujoco()
    column, axis, anchor, slides = None, np.zeros(3), np.zeros(3), False
    if model.body_jntnum[body]:
        joint = int(model.body_jntadr[body])
        name = model.joint(joint).name.removeprefix(prefix)
        kind = int(model.jnt_type[joint])
        slides = kind == int(mujoco.mjtJoint.mjJNT_SLIDE)
        hinges = kind == int(mujoco.mjtJoint.mjJNT_HINGE)
        if model.body_jntnum[body] > 1 or not (slides or hinges):
            raise SchemaError(f"{path}: joint {name!r}: one hinge or slide per link is supported.")
        column, axis, anchor = order.index(name), model.jnt_axis[joint], model.jnt_pos[joint]
        if model.qpos0[model.jnt_qposadr[joint]] != 0:
            raise SchemaError(f"{path}: joint {name!r} has a reference angle; it must be 0.")
    return _Link(
        parent=int(model.body_parentid[body]) - 1,
        position=model.body_pos[body].copy(),
        turn=rotations.from_quaternion(model.body_quat[body]),
        column=column,
        axis=axis.copy(),
        anchor=anchor.copy(),
        slides=slides,
    )


def _read_capsules(model: mujoco.MjModel, prefix: str) -> Capsules:
    mujoco = import_mujoco()
    capsule = int(mujoco.mjtGeom.mjGEOM_CAPSULE)
    names, links, ends, radii = [], [], [], []
    for geom in range(model.ngeom):
        kind = int(model.geom_type[geom])
        if kind not in (capsule, int(mujoco.mjtGeom.mjGEOM_SPHERE)):
            continue
        if not (model.geom_contype[geom] or model.geom_conaffinity[geom]):
            continue
        long_axis = rotations.from_quaternion(model.geom_quat[geom])[:, 2]
        half = model.geom_size[geom, 1] if kind == capsule else 0.0
        names.append(model.geom(geom).name.removeprefix(prefix))
        links.append(int(model.geom_bodyid[geom]) - 1)
        ends.append(model.geom_pos[geom] + half * np.outer([-1, 1], long_axis))
        radii.append(float(model.geom_size[geom, 0]))
    return Capsules(
        tuple(names),
        np.array(links, int),
        np.array(ends, float).reshape(-1, 2, 3),
        np.array(radii, float),
    )
