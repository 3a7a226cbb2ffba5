"""Forward kinematics and Jacobians of a robot hand for many frames at once.

The tree comes from the compiled MJCF that is simulated and rendered. Frames are links (their
origin), tips (sites) or points fixed to a link. Base frame, metres, radians; joint vectors follow
``joint_names``.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

from acehand_core.errors import InputError, SchemaError, nearest
from acehand_core.geometry import frames as rigid_frames
from acehand_core.geometry import rotations
from acehand_core.mujoco_gl import import_mujoco, quiet_mujoco
from retarget.robots.collision_shapes import FrameSet, Posture, read_capsules, times
from retarget.robots.hand_spec import HandSpec

if TYPE_CHECKING:
    import mujoco

#: Rows computed together: all links over an hour would not fit in memory.
BLOCK_FRAMES = 4096

JointFrames = Float[np.ndarray, "T Q"]


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
        model: mujoco.MjModel,
        path: Path,
        joint_names: Sequence[str] | None = None,
        prefix: str = "",
    ) -> None:
        """Read a model whose world frame is the hand's base frame.

        Args:
            model: a compiled MJCF or URDF.
            path: its file, for messages.
            joint_names: order of the joint vectors; default the file's. All joints are required.
            prefix: removed from the names in the file.

        Raises:
            SchemaError: a joint is missing, unknown, or neither hinge nor slide.
        """
        names = [model.joint(i).name.removeprefix(prefix) for i in range(model.njnt)]
        self.joint_names = order = tuple(names if joint_names is None else joint_names)
        missing = [name for name in order if name not in names]
        if unknown := [name for name in names if name not in order]:
            problem = f"{unknown[0]!r} has no place in the joint order"
            raise SchemaError(f"{path}: joint {problem}; {nearest(unknown[0], missing or order)}")
        if missing:
            hint = nearest(missing[0], names)
            raise SchemaError(f"{path}: joint {missing[0]!r} is not in the model; {hint}")
        self._links = [_read_link(path, model, i, order, prefix) for i in range(1, model.nbody)]
        sliding = {link.column for link in self._links if link.slides}
        self._slides = [column in sliding for column in range(len(order))]

        self._frames: dict[str, tuple[int, np.ndarray, np.ndarray]] = {}
        for i in range(1, model.nbody):
            name = model.body(i).name.removeprefix(prefix)
            self._frames[name] = (i - 1, np.zeros(3), np.eye(3))
        for i in range(model.nsite):
            name = model.site(i).name.removeprefix(prefix)
            turn = rotations.from_quaternion(model.site_quat[i])
            self._frames[name] = (int(model.site_bodyid[i]) - 1, model.site_pos[i].copy(), turn)
        self.capsules = read_capsules(model, prefix)

    def slides(self, name: str) -> bool:
        return self._slides[self.joint_names.index(name)]

    @classmethod
    @functools.lru_cache(maxsize=16)
    def of(cls, hand: HandSpec) -> KinematicTree:
        """Return the tree of a hand; cached, because other caches have it as a key."""
        model = load_mjcf(hand.mjcf_path)
        tree = cls(model, hand.mjcf_path, hand.joint_names, prefix=f"{hand.side}_")
        tree.frames((*hand.tip_names, *hand.target_frames))  # every promised frame exists
        return tree

    def frames(self, names: Sequence[str]) -> FrameSet:
        """Return named links and sites; InputError for an unknown name."""
        for name in names:
            if name not in self._frames:
                raise InputError(f"No frame {name!r}; {nearest(name, self._frames)}")
        rows = [self._frames[name] for name in names]
        links = np.array([link for link, _, _ in rows], int)
        offsets = np.array([offset for _, offset, _ in rows]).reshape(-1, 3)
        return FrameSet(links, offsets, np.array([turn for _, _, turn in rows]).reshape(-1, 3, 3))

    def points(
        self, joints: JointFrames, frames: FrameSet | Sequence[str]
    ) -> Float[np.ndarray, "T K 3"]:
        """Return the origins of the frames."""
        frames = self._resolve(frames)
        points = np.empty((len(joints), len(frames.links), 3))
        for first in range(0, len(joints), BLOCK_FRAMES):
            rows = slice(first, first + BLOCK_FRAMES)
            points[rows] = self.posture(joints[rows]).points(frames)
        return points

    def poses(
        self, joints: JointFrames, frames: FrameSet | Sequence[str]
    ) -> Float[np.ndarray, "T K 4 4"]:
        """Return ``T_base_frame`` of the frames."""
        frames = self._resolve(frames)
        posture = self.posture(joints)
        rotation = np.swapaxes(posture.turns[frames.links] @ frames.turns[:, None], 0, 1)
        return rigid_frames.rigid(rotation, posture.points(frames))

    def points_and_jacobian(
        self, joints: JointFrames, frames: FrameSet | Sequence[str]
    ) -> tuple[Float[np.ndarray, "T K 3"], Float[np.ndarray, "T K 3 Q"]]:
        """Return the origins of the frames and their derivatives by joint."""
        frames = self._resolve(frames)
        posture = self.posture(joints)
        points = posture.points(frames)
        return points, self.jacobian(posture, frames.links, points, np.eye(len(self.joint_names)))

    def jacobian(
        self,
        posture: Posture,
        links: Int[np.ndarray, "K"],
        points: Float[np.ndarray, "T K 3"],
        coupling: Float[np.ndarray, "Q C"],
    ) -> Float[np.ndarray, "T K 3 C"]:
        """Return the derivatives of points on links by the commands of the joints.

        A hinge moves a point by ``axis x (point - anchor)`` per radian, a slide by its axis.
        """
        jacobian = np.zeros((*points.shape, coupling.shape[1]))
        for k, index in enumerate(links):
            for column in self.chain(int(index)):
                by_joint = self._by_joint(posture, column, points[:, k])
                for command in np.flatnonzero(coupling[column]):
                    jacobian[:, k, :, command] += coupling[column, command] * by_joint
        return jacobian

    def curvature(
        self,
        posture: Posture,
        links: Int[np.ndarray, "K"],
        points: Float[np.ndarray, "T K 3"],
        forces: Float[np.ndarray, "T K 3"],
        coupling: Float[np.ndarray, "Q C"],
    ) -> Float[np.ndarray, "T C C"]:
        """Return the second derivatives of ``sum(forces * points)`` for constant forces.

        A hinge also rotates the derivatives by outer joints: ``axis x derivative``.
        """
        size = coupling.shape[1]
        hessian = np.zeros((len(points), size, size))

        for k, index in enumerate(links):
            chain = self.chain(int(index))  # from the point towards the base
            for place, outer in enumerate(chain):
                by_joint = self._by_joint(posture, outer, points[:, k])
                across = rotations.cross(by_joint, forces[:, k])
                for inner in chain[place:]:
                    if self._slides[inner]:
                        continue
                    value = np.sum(posture.axes[inner] * across, axis=1)
                    for a in np.flatnonzero(coupling[inner]):
                        for b in np.flatnonzero(coupling[outer]):
                            share = coupling[inner, a] * coupling[outer, b] * value
                            hessian[:, a, b] += share
                            if inner != outer:
                                hessian[:, b, a] += share
        return hessian

    def chain(self, link: int) -> tuple[int, ...]:
        """Return the joints that move a link, the nearest first."""
        chain = []
        while link >= 0:
            column = self._links[link].column
            if column is not None:
                chain.append(column)
            link = self._links[link].parent
        return tuple(chain)

    def posture(self, joints: JointFrames) -> Posture:
        """Return every link and joint for every row of joint angles."""
        count = len(joints)
        positions = np.empty((len(self._links), count, 3))
        turns = np.empty((len(self._links), count, 3, 3))
        axes = np.zeros((len(self.joint_names), count, 3))
        anchors = np.zeros_like(axes)
        sines, versines = np.sin(joints.T)[:, :, None], 1 - np.cos(joints.T)[:, :, None]

        base = np.broadcast_to(np.eye(3), (count, 3, 3))
        for index, link in enumerate(self._links):
            turn = base if link.parent < 0 else turns[link.parent]
            position = times(turn, link.position)
            if link.parent >= 0:
                position += positions[link.parent]
            if link.column is None:
                positions[index], turns[index] = position, times(turn, link.turn)
                continue
            column = link.column
            axes[column] = times(turn, link.turn @ link.axis)
            anchors[column] = position + times(turn, link.turn @ link.anchor)
            rotation = times(turn, link.turn)
            if link.slides:
                positions[index] = position + axes[column] * joints[:, column, None]
                turns[index] = rotation
                continue
            # Rodrigues: exp(angle axis) = 1 + sin(angle) K + (1 - cos(angle)) K K.
            skew = rotations.skew(link.axis)
            by_sine, by_versine = (times(turn, link.turn @ s) for s in (skew, skew @ skew))
            rotation += sines[column, :, :, None] * by_sine
            rotation += versines[column, :, :, None] * by_versine
            turns[index] = rotation
            positions[index] = anchors[column] - times(rotation, link.anchor)

        return Posture(positions, turns, axes, anchors)

    def _resolve(self, frames: FrameSet | Sequence[str]) -> FrameSet:
        return frames if isinstance(frames, FrameSet) else self.frames(frames)

    def _by_joint(self, posture: Posture, column: int, points: np.ndarray) -> np.ndarray:
        """Return the derivatives of points (T, 3) by a joint that moves them."""
        axis = posture.axes[column]
        if self._slides[column]:
            return axis
        return rotations.cross(axis, points - posture.anchors[column])


def load_mjcf(path: Path) -> mujoco.MjModel:
    """Compile a model file; InputError if it is missing or MuJoCo refuses it."""
    mujoco = import_mujoco()
    if not path.is_file():
        raise InputError(f"{path}: robot model file not found; it is named in the robot.yaml.")
    try:
        with quiet_mujoco():
            return mujoco.MjModel.from_xml_path(str(path))
    except ValueError as error:
        raise InputError(f"{path}: MuJoCo cannot read this model: {error}") from error


def _read_link(
    path: Path, model: mujoco.MjModel, body: int, order: tuple[str, ...], prefix: str
) -> _Link:
    joints = import_mujoco().mjtJoint
    column, axis, anchor, slides = None, np.zeros(3), np.zeros(3), False
    if model.body_jntnum[body]:
        joint = int(model.body_jntadr[body])
        name = model.joint(joint).name.removeprefix(prefix)
        kind = joints(model.jnt_type[joint])
        slides = kind == joints.mjJNT_SLIDE
        if model.body_jntnum[body] > 1 or not (slides or kind == joints.mjJNT_HINGE):
            raise SchemaError(f"{path}: joint {name!r}: one hinge or slide per link is supported.")
        column = order.index(name)
        axis, anchor = model.jnt_axis[joint].copy(), model.jnt_pos[joint].copy()
        if model.qpos0[model.jnt_qposadr[joint]] != 0:
            raise SchemaError(f"{path}: joint {name!r} has a reference angle; it must be 0.")

    parent, position = int(model.body_parentid[body]) - 1, model.body_pos[body].copy()
    turn = rotations.from_quaternion(model.body_quat[body])
    return _Link(parent, position, turn, column, axis, anchor, slides)


def ancestors(model: mujoco.MjModel, body: int, end: int = 0) -> list[int]:
    """Return a body and its ancestors up to ``end``, excluded."""
    chain = []
    while body not in (0, end):
        chain.append(body)
        body = int(model.body_parentid[body])
    return chain
