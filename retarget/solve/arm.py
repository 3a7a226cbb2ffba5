"""An arm that carries a robot hand: read from a user's MJCF or URDF, and moved along a path.

``follow_path`` sweeps through the frames from several postures at once (damped least squares), and
refines the best sweep over all frames together: Gauss-Newton with a sparse QP (PIQP) in which
ranges and speeds of the joints are bounds and acceleration is a cost. A differential solver that
steps from frame to frame, such as mink's, would not know that a fast stretch is coming; here the
arm starts early. Collisions are not looked at.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import piqp
import scipy.sparse as sp
from jaxtyping import Bool, Float

from acehand_core.errors import InputError, SchemaError, nearest
from acehand_core.geometry import frames
from acehand_core.types import RigidTransform
from retarget.robots.collision_shapes import FrameSet
from retarget.robots.kinematics import KinematicTree, import_mujoco
from retarget.robots.user_model import compiled_model

if TYPE_CHECKING:
    import mujoco

BasePath = Float[np.ndarray, "T 4 4"]
ArmJoints = Float[np.ndarray, "T J"]

#: What files call the place where a tool is mounted, in order of preference.
LINK_NAMES = ("attachment_site", "tool0", "flange", "link_eef", "ee_link", "panda_link8")
#: Where the file gives no joint speed (an MJCF never does), and no range.
ASSUMED_SPEED = 2.0
ASSUMED_RANGE = (-2 * np.pi, 2 * np.pi)
#: Distance of the points that stand for the mount's orientation: 1 degree moves them 2.6 mm.
LEVER_M = 0.15
CHUNK_FRAMES, LOOK_AHEAD = 1024, 64
_DAMPING = 1e-3
_ROUNDS = 8
#: Frames that stay farther off than this count less and less: one that is out of reach must not
#: pull the arm away from others (Geman-McClure).
_FAR_M = 0.1
#: Weights beside that of the path (1 per m2): acceleration per frame^2, and the middle of ranges.
_SMOOTH, _REST = 1e-2, 1e-6


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
        positions, jacobian = self.tree.points_and_jacobian(self._all(joints), points)
        return positions, jacobian[..., list(self.columns)]

    def _all(self, joints: ArmJoints) -> Float[np.ndarray, "T Q"]:
        full = np.tile(self.posture, (len(joints), 1))
        full[:, list(self.columns)] = joints
        return full


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


def _joints_of(model: mujoco.MjModel, body: int) -> list[int]:
    """Return the joints between the world and a body, from the base on."""
    chain: list[int] = []
    while body > 0:
        first, count = model.body_jntadr[body], model.body_jntnum[body]
        chain[:0] = range(first, first + count)
        body = int(model.body_parentid[body])
    return chain


def _far_end(model: mujoco.MjModel) -> str:
    """Return the first link after the longest chain of hinges: a gripper's slides do not count."""
    hinge = int(import_mujoco().mjtJoint.mjJNT_HINGE)

    def turns(body: int) -> int:
        return int((model.jnt_type[_joints_of(model, body)] == hinge).sum())

    return model.body(max(range(1, model.nbody), key=lambda b: (turns(b), -b))).name


def _speeds(path: Path) -> dict[str, float]:
    """Return the joint speeds that a URDF gives."""
    if path.suffix.lower() != ".urdf":
        return {}
    speeds = {}
    for joint in ET.parse(path).getroot().findall("joint"):
        limit = joint.find("limit")
        speed = float(limit.get("velocity", 0)) if limit is not None else 0.0
        if speed > 0:
            speeds[joint.get("name", "")] = speed
    return speeds


def follow_path(
    arm: Arm,
    path: BasePath,
    active: Bool[np.ndarray, "T"],
    fps: float,
    posture: Float[np.ndarray, "J"],
) -> ArmJoints:
    """Return joints within ranges and speeds that follow ``path`` (arm frame) where ``active``."""
    step = arm.speed / fps
    targets = pose_points(path)
    weights = active.astype(float)
    start = sweep(arm, targets, weights, step, posture)
    joints = np.empty_like(start)
    for first in range(0, len(start), CHUNK_FRAMES):
        stop = min(first + CHUNK_FRAMES, len(start))
        rows = slice(first, min(stop + LOOK_AHEAD, len(start)))
        history = joints[max(0, first - 2) : first]
        solved = _refine(arm, start[rows], targets[rows], weights[rows], step, history, fps)
        joints[first:stop] = solved[: stop - first]
    return joints


def descend(
    arm: Arm, joints: ArmJoints, targets: Float[np.ndarray, "T 4 3"], rounds: int
) -> ArmJoints:
    for _ in range(rounds):
        joints = np.clip(joints + _step(arm, joints, targets), arm.lower, arm.upper)
    return joints


def _step(arm: Arm, joints: ArmJoints, targets: Float[np.ndarray, "T 4 3"]) -> ArmJoints:
    """Return one damped least-squares step per row, of at most half a radian."""
    points, jacobian = arm.points_and_jacobian(joints)
    matrix = jacobian.reshape(len(joints), 12, -1)
    residual = (targets - points).reshape(len(joints), 12, 1)
    transposed = np.swapaxes(matrix, 1, 2)
    normal = transposed @ matrix + _DAMPING * np.eye(matrix.shape[-1])
    step = np.linalg.solve(normal, transposed @ residual)[..., 0]
    return step / np.maximum(np.abs(step).max(axis=1, keepdims=True) / 0.5, 1)


def mean_error(
    arm: Arm, joints: ArmJoints, targets: Float[np.ndarray, "T 4 3"]
) -> Float[np.ndarray, "T"]:
    """Return the mean distance of the four points from theirs, metres."""
    points, _ = arm.points_and_jacobian(joints)
    return np.linalg.norm(points - targets, axis=-1).mean(axis=-1)


def sweep(
    arm: Arm,
    targets: Float[np.ndarray, "T 4 3"],
    weights: Float[np.ndarray, "T"],
    step: Float[np.ndarray, "J"],
    posture: Float[np.ndarray, "J"],
) -> ArmJoints:
    """Return the best of several sweeps through the frames, each within ranges and speeds."""
    random = np.random.default_rng(1)
    first = int(np.argmax(weights > 0))
    others = random.uniform(arm.lower, arm.upper, (23, len(posture)))
    joints = np.concatenate([posture[None], others])
    joints = descend(arm, joints, np.repeat(targets[first : first + 1], 24, axis=0), 40)
    goals = np.repeat(targets[first : first + 1], len(joints), axis=0)
    joints = joints[np.argsort(mean_error(arm, joints, goals), kind="stable")[:8]]
    ways = np.empty((len(targets), *joints.shape))
    errors = np.zeros(len(joints))

    for frame, goal in enumerate(targets):
        if frame > first and weights[frame]:
            low, high = np.maximum(arm.lower, joints - step), np.minimum(arm.upper, joints + step)
            goals = np.repeat(goal[None], len(joints), axis=0)
            for _ in range(2):
                joints = np.clip(joints + _step(arm, joints, goals), low, high)
            errors += mean_error(arm, joints, goals)
        ways[frame] = joints

    return ways[:, int(errors.argmin())]


def _refine(
    arm: Arm,
    x: ArmJoints,
    targets: Float[np.ndarray, "T 4 3"],
    weights: Float[np.ndarray, "T"],
    step: Float[np.ndarray, "J"],
    history: Float[np.ndarray, "H J"],
    fps: float,
) -> ArmJoints:
    """Gauss-Newton over one run of frames that follows ``history``; never worse than ``x``."""
    count, size = x.shape
    done = len(history)
    eye = sp.eye_array(size)
    total = count + done
    steps = sp.eye_array(total, format="csr")[1:] - sp.eye_array(total, format="csr")[:-1]
    second = sp.kron(steps[1:] - steps[:-1], eye).tocsr()
    first = sp.kron(steps, eye).tocsr()[max(done - 1, 0) * size :]
    smooth = _SMOOTH * (fps / 30) ** 4
    middle = np.tile((arm.lower + arm.upper) / 2, (count, 1))
    x = _within(arm, x, step, history)

    def cost(joints: ArmJoints) -> float:
        points, _ = arm.points_and_jacobian(joints)
        gap = ((points - targets) ** 2).sum((1, 2))
        gap = (gap / (1 + gap / _FAR_M**2)) @ weights
        bend = second @ np.concatenate([history, joints]).reshape(-1)
        return float(gap + smooth * bend @ bend + _REST * ((joints - middle) ** 2).sum())

    best, trust = cost(x), 0.5
    for _ in range(_ROUNDS):
        points, jacobian = arm.points_and_jacobian(x)
        gap = ((points - targets) ** 2).sum((1, 2))
        scale = (np.sqrt(weights) / (1 + gap / _FAR_M**2))[:, None, None]
        rows = jacobian.reshape(count, 12, size) * scale
        residual = (points - targets).reshape(count, 12, 1) * scale
        across = np.swapaxes(rows, 1, 2)
        bends = second[:, done * size :]
        whole = np.concatenate([history, x]).reshape(-1)
        hessian = sp.block_diag(across @ rows, format="csr") + smooth * (bends.T @ bends)
        hessian = (hessian + _REST * sp.eye_array(count * size)).tocsc()
        gradient = (across @ residual).reshape(-1) + smooth * (bends.T @ (second @ whole))
        gradient = gradient + _REST * (x - middle).reshape(-1)
        low = np.maximum(arm.lower - x, -trust).reshape(-1)
        high = np.minimum(arm.upper - x, trust).reshape(-1)
        moves, bound = first @ whole, np.tile(step, first.shape[0] // size)
        solver = piqp.SparseSolver()
        rates = first[:, done * size :].tocsc()
        if first.shape[0]:
            solver.setup(hessian, gradient, None, None, rates, -bound - moves, bound - moves,
                         low, high)  # fmt: skip
        else:
            solver.setup(hessian, gradient, None, None, None, None, None, low, high)
        solver.solve()
        trial = _within(arm, x + solver.result.x.reshape(x.shape), step, history)
        reached = cost(trial)
        if not reached < best:
            trust *= 0.25
            continue
        largest, x, best = float(np.abs(trial - x).max()), trial, reached
        if largest < 1e-5:
            break
    return x


def _within(
    arm: Arm, joints: ArmJoints, step: Float[np.ndarray, "J"], history: Float[np.ndarray, "H J"]
) -> ArmJoints:
    """Return joints within ranges and speeds exactly: solvers leave a rest of 1e-8."""
    kept = np.clip(joints, arm.lower, arm.upper)
    previous = history[-1] if len(history) else None
    for row in kept:
        if previous is not None:
            row[:] = np.clip(row, previous - step, previous + step)
        previous = row
    return kept
