"""Arms attached to the robot hands of a trajectory: one for each hand that appears.

``place_arm`` searches where an arm's base stands: from positions around the path at several
distances and headings, those from which most of the path can be reached, then nearby ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float

from acehand_core.errors import InputError
from acehand_core.geometry import frames, rotations
from acehand_core.motion import ArmMotion, RobotTrajectory, Verdict
from acehand_core.settings import numbers, setting
from acehand_core.types import SIDES, RigidTransform
from retarget.solve.arm import (
    Arm,
    BasePath,
    descend,
    follow_path,
    load_arm,
    mean_error,
    pose_points,
    sweep,
)

#: A frame is reached when the hand's base is this near.
REACHED_M, REACHED_RAD = 0.005, np.radians(3.0)
#: Arms that carry two hands stand at least this far apart.
APART_M = 0.4
#: Placements whose way through at most so many frames is tried.
_TRIED_WAYS, _TRIED_FRAMES = 8, 120


@dataclass(frozen=True, slots=True)
class _Reach:
    """How well a batch of N placements follows K poses; the better, the higher."""

    share: Float[np.ndarray, "N"]
    error_m: Float[np.ndarray, "N"]
    joints: Float[np.ndarray, "N K J"]

    @property
    def score(self) -> Float[np.ndarray, "N"]:
        return self.share - 0.2 * np.minimum(self.error_m / 0.1, 1)


def solve_arm(
    arm: Arm,
    poses: BasePath,
    active: Bool[np.ndarray, "T"],
    fps: float,
    up: Sequence[float],
    others: Sequence[RigidTransform] = (),
) -> ArmMotion:
    """Return an arm's motion that brings the hand's base to ``poses`` where ``active``.

    Args:
        poses: ``T_frame_base`` of the hand, metres.
        up: direction in that frame in which the arm's base z axis points.
        others: ``T_frame_arm`` of arms that stand already.
    """
    T_frame_arm, posture = place_arm(arm, poses[active], fps, np.array(up, float), others)
    path = frames.inverse(T_frame_arm) @ poses
    joints = follow_path(arm, path, active, fps, posture)
    reached_poses = arm.base_poses(joints)
    off = np.linalg.norm((reached_poses - path)[:, :3, 3], axis=1)
    angle = rotations.angle_between(reached_poses[:, :3, :3], path[:, :3, :3])

    return ArmMotion(
        model=arm.path.name,
        link=arm.link,
        joint_names=arm.joint_names,
        T_frame_arm=T_frame_arm,
        joints=joints,
        reached=active & (off <= REACHED_M) & (angle <= REACHED_RAD),
        position_error_m=np.where(active, off, np.nan),
        rotation_error_rad=np.where(active, angle, np.nan),
        notes=arm.notes,
    )


def place_arm(
    arm: Arm,
    poses: BasePath,
    fps: float,
    up: Float[np.ndarray, "3"],
    others: Sequence[RigidTransform] = (),
) -> tuple[RigidTransform, Float[np.ndarray, "J"]]:
    """Return where the arm's base stands, and a posture for the first pose.

    Deterministic. The arm stands upright along ``up``; ``APART_M`` from any of the ``others``.
    """
    random = np.random.default_rng(0)
    joints = random.uniform(arm.lower, arm.upper, (500, len(arm.lower)))
    reach = float(np.linalg.norm(arm.base_poses(joints)[:, :3, 3], axis=1).max())
    few = poses[np.unique(np.linspace(0, len(poses) - 1, 5).round().astype(int))]
    many = poses[np.unique(np.linspace(0, len(poses) - 1, 24).round().astype(int))]
    stands = _apart(_around(poses[:, :3, 3].mean(0), reach, up), others)
    coarse = _try(arm, stands, few, random, starts=2, rounds=12)
    best = stands[np.argsort(-coarse.score, kind="stable")[:8]]
    near = np.concatenate([best, *(_jittered(best, up, random) for _ in range(3))])
    near = _apart(near, others)
    fine = _try(arm, near, many, random, starts=4, rounds=30)

    # Each pose alone says nothing of the way between them.
    stride = -(-len(poses) // _TRIED_FRAMES)
    path, ends = poses[::stride], []
    for index in np.argsort(-fine.score, kind="stable")[:_TRIED_WAYS]:
        targets = pose_points(frames.inverse(near[index]) @ path)
        step, weights = arm.speed * stride / fps, np.ones(len(path))
        way = sweep(arm, targets, weights, step, fine.joints[index, 0])
        missed = mean_error(arm, way, targets)
        ends.append((-(missed <= REACHED_M).mean(), missed.mean(), index, way[0]))

    _, _, index, posture = min(ends, key=lambda end: end[:2])
    return near[index], posture


def _around(
    middle: Float[np.ndarray, "3"], reach: float, up: Float[np.ndarray, "3"]
) -> Float[np.ndarray, "N 4 4"]:
    """Return upright poses around a point, heading to it and to the sides."""
    upright = rotations.between(np.array([0.0, 0.0, 1.0]), up / np.linalg.norm(up))
    stands = []
    for distance in (0.45, 0.6, 0.75):
        for height in (-0.6, -0.3, 0.0, 0.3):
            for side in np.arange(0, 2 * np.pi, np.pi / 6):
                level = np.sqrt(1 - height**2)
                away = np.array([level * np.cos(side), level * np.sin(side), height])
                for heading in (0, np.pi / 2, np.pi, -np.pi / 2):
                    turn = rotations.exp(np.array([0, 0, side + np.pi + heading]))
                    place = middle + upright @ (away * distance * reach)
                    stands.append(frames.rigid(upright @ turn, place))
    return np.stack(stands)


def _jittered(
    stands: Float[np.ndarray, "N 4 4"], up: Float[np.ndarray, "3"], random: np.random.Generator
) -> Float[np.ndarray, "N 4 4"]:
    near = stands.copy()
    near[:, :3, 3] += random.normal(0, 0.06, (len(stands), 3))
    turn = rotations.exp(random.normal(0, 0.3, (len(stands), 1)) * (up / np.linalg.norm(up)))
    near[:, :3, :3] = turn @ near[:, :3, :3]
    return near


def _apart(
    stands: Float[np.ndarray, "N 4 4"], others: Sequence[RigidTransform]
) -> Float[np.ndarray, "M 4 4"]:
    keep = np.ones(len(stands), bool)
    for other in others:
        keep &= np.linalg.norm(stands[:, :3, 3] - other[:3, 3], axis=1) >= APART_M
    return stands[keep]


def _try(
    arm: Arm,
    stands: Float[np.ndarray, "N 4 4"],
    poses: Float[np.ndarray, "K 4 4"],
    random: np.random.Generator,
    starts: int,
    rounds: int,
) -> _Reach:
    """Return how well each placement reaches the poses, from several postures each."""
    goals = frames.inverse(stands)[:, None] @ poses
    flat = np.repeat(goals.reshape(-1, 4, 4), starts, axis=0)
    postures = random.uniform(0.25, 0.75, (starts, len(arm.lower)))
    postures[0] = 0.5
    joints = arm.lower + (arm.upper - arm.lower) * np.tile(postures, (len(flat) // starts, 1))
    joints = descend(arm, joints, pose_points(flat), rounds)
    error = mean_error(arm, joints, pose_points(flat)).reshape(len(stands), len(poses), starts)
    pick = error.argmin(axis=-1)[..., None]
    error = np.take_along_axis(error, pick, -1)[..., 0]
    shaped = joints.reshape(len(stands), len(poses), starts, -1)
    chosen = np.take_along_axis(shaped, pick[..., None], 2)[:, :, 0]
    return _Reach((error <= REACHED_M).mean(axis=1), error.mean(axis=1), chosen)


#: Where the arm's base z axis points: in the camera frame against y (a level camera is assumed), in
#: the world along z.
UP = {"camera": (0.0, -1.0, 0.0), "world": (0.0, 0.0, 1.0)}
_LISTED_SPANS = 5


@dataclass(frozen=True, slots=True)
class ArmSettings:
    """The arm that carries a hand, if ``path`` names one. Metres and radians.

    ``up`` None takes the frame's own.
    """

    path: Path | None = setting(
        None,
        "your own MJCF or URDF of an arm that carries each hand",
        flag="arm",
        metavar="FILE",
        identity="always",
    )
    link: str | None = setting(
        None,
        "its link or site that carries the hand",
        flag="arm-link",
        metavar="NAME",
        identity="always",
        default_text="found",
    )
    mount: tuple[float, ...] | None = setting(
        None,
        "pose of the hand's base on that link (m, rad)",
        flag="arm-mount",
        metavar="X,Y,Z,R,P,Y",
        default_text="0,0,0,0,0,0",
        parse=numbers,
        identity="always",
    )
    up: tuple[float, ...] | None = setting(
        None,
        "direction of the arm's base z axis",
        default_text="0,-1,0; in the world frame 0,0,1",
        flag="arm-up",
        metavar="X,Y,Z",
        parse=numbers,
        identity="always",
    )

    def __post_init__(self) -> None:
        if self.path is None and (self.link or self.up or any(self.mount or ())):
            raise InputError("--arm-link, --arm-mount and --arm-up say how to use --arm FILE.")
        if self.mount is not None and (len(self.mount) != 6 or not np.isfinite(self.mount).all()):
            raise InputError("--arm-mount takes six numbers: x,y,z,roll,pitch,yaw (m, rad).")
        if self.up is not None and not (len(self.up) == 3 and np.linalg.norm(self.up) > 1e-6):
            raise InputError("--arm-up takes a direction: three numbers that are not all 0.")

    def load(self) -> Arm | None:
        """Read the arm, if there is one. Raises InputError, SchemaError."""
        if self.path is None:
            return None
        place = np.array(self.mount or (0,) * 6, float)
        mount = frames.rigid(rotations.from_rpy(place[3:]), place[:3])
        return load_arm(self.path, self.link, mount)


def attach_arms(trajectory: RobotTrajectory, arm: Arm, settings: ArmSettings) -> RobotTrajectory:
    """Return the trajectory with an arm for every hand that appears.

    Frames that an arm does not reach are marked in ``arms`` and named in the verdict, which is then
    no better than "warn".

    Raises:
        InputError: the hands have no place before a camera.
    """
    poses = trajectory.T_frame_base
    if poses is None or trajectory.frame == "none":
        raise InputError(
            "--arm needs to know where the hands are, but this input gives joints relative to the "
            "wrist only."
        )

    up = settings.up or UP[trajectory.frame]
    arms: list[ArmMotion | None] = []
    for slot in range(2):
        active = trajectory.active[:, slot]
        if not active.any():
            arms.append(None)
            continue
        others = [other.T_frame_arm for other in arms if other is not None]
        arms.append(solve_arm(arm, poses[:, slot], active, trajectory.fps, up, others))

    reasons = []
    for slot, (side, motion) in enumerate(zip(SIDES, arms, strict=True)):
        active = trajectory.active[:, slot]
        if motion is not None and not motion.reached[active].all():
            reasons.append(
                f"the {side} arm does not reach {np.mean(~motion.reached[active]):.1%} of the "
                f"frames ({_listed(active & ~motion.reached)})"
            )

    verdict = trajectory.verdict
    if verdict is not None and reasons:
        reasons = [*verdict.reasons, *reasons]
        verdict = Verdict("fail" if verdict.status == "fail" else "warn", tuple(reasons))

    return replace(trajectory, arms=(arms[0], arms[1]), verdict=verdict)


def spans(flags: Bool[np.ndarray, "T"]) -> list[tuple[int, int]]:
    """Return first and last frame of every run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(int)))
    return [(int(a), int(b) - 1) for a, b in edges.reshape(-1, 2)]


def _listed(flags: Bool[np.ndarray, "T"]) -> str:
    runs = [f"{a} to {b}" if b > a else str(a) for a, b in spans(flags)]
    more = f" and {len(runs) - _LISTED_SPANS} more spans" if len(runs) > _LISTED_SPANS else ""
    return ", ".join(runs[:_LISTED_SPANS]) + more
