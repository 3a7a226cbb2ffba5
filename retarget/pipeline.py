"""From hands to robot: targets, calibration, trajectory, base pose, replay, verdict."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float

from acehand_core.errors import InputError, nearest
from acehand_core.geometry import frames
from acehand_core.motion import (
    Calibration,
    FlexionReport,
    HandMotion,
    RobotTrajectory,
    held_index,
)
from acehand_core.types import SIDES, Side
from retarget import metrics
from retarget.base import BaseLimits, smooth_bases
from retarget.calibration import calibrate
from retarget.dex import solve_dex
from retarget.flexion import flexion_report
from retarget.grasp import opening_calibration, opening_targets
from retarget.hand_spec import HandSpec
from retarget.kinematics import KinematicTree
from retarget.limits import CommandLimits, Commands, limit_violations, speed_violations
from retarget.objective import Follow, PoseObjective, Weights
from retarget.physics import Physics, play, second_pass, sent_commands
from retarget.pinch import impossible_pinches, missed_pinches
from retarget.robot import Robot
from retarget.simulate import ReplayReport
from retarget.targets import HandTargets, bridged_poses, calibrated, hand_targets
from retarget.trajectory import solve_trajectory
from retarget.verdict import GATES, Gates, judge

Solver = Literal["trajectory", "dex-vector", "dex-dexpilot", "dex-position"]
PHYSICS = Physics()
SOLVERS: tuple[str, ...] = get_args(Solver)


@dataclass(frozen=True, slots=True)
class _Followed:
    """One hand's result over T frames."""

    commands: Commands
    sent: Commands
    calibration: Calibration
    tip_error_m: Float[np.ndarray, "T K"]
    T_camera_base: Float[np.ndarray, "T 4 4"] | None
    report: ReplayReport
    flexion: FlexionReport | None
    seconds: float
    notes: tuple[str, ...]


def retarget_motion(
    motion: HandMotion,
    robot: Robot,
    solver: str = "trajectory",
    weights: Weights = Weights(),
    base_limits: BaseLimits | None = BaseLimits(),
    calibrations: Mapping[Side, Calibration] | None = None,
    physics: Physics = PHYSICS,
    gates: Gates = GATES,
) -> RobotTrajectory:
    """Make a robot hand follow each human hand of a motion, whose frames are ``1 / fps`` apart.

    ``data.selection.steady`` makes frames so. Where the stamps are others, the limits of speed are
    not kept between them; the count of the report and the verdict go by the stamps.

    Limits are kept exactly whatever the solver; ``tip_error_m`` is the distance of robot tips from
    calibrated human tips. The verdict covers the whole clip. Without ``base_limits`` every base is
    fixed to its palm, however that moves. ``calibrations`` are used for the sides that they have;
    the others are fitted to this motion. ``gates`` are the verdict's limits.

    Raises:
        InputError: unknown solver, or a hand that the robot does not have.
    """
    if solver not in SOLVERS:
        raise InputError(f"Unknown solver {solver!r}; {nearest(solver, SOLVERS)}")
    targets = [_targets(motion, robot, side) for side in SIDES]
    # A robot may lack a side that the motion lacks too; the other side's rest pose stands in.
    substitute = next(iter(robot.hands.values()))
    hands = [
        robot.hand(side) if target is not None else robot.hands.get(side, substitute)
        for side, target in zip(SIDES, targets, strict=True)
    ]
    if solver != "trajectory" and any(hand.follows == "opening" for hand in hands):
        raise InputError(
            f"--solver {solver} follows fingers, but {robot.label} the opening between thumb and "
            "index: use the default solver."
        )
    known = calibrations or {}
    followed = [
        _follow(hand, target, motion.fps, solver, weights, known.get(side), physics)
        if target is not None
        else None
        for side, hand, target in zip(SIDES, hands, targets, strict=True)
    ]
    return _assemble(motion, robot, solver, hands, targets, followed, base_limits, gates)


def _follow(
    hand: HandSpec,
    targets: HandTargets,
    fps: float,
    solver: str,
    weights: Weights,
    calibration: Calibration | None,
    physics: Physics,
) -> _Followed:
    tree = KinematicTree.of(hand)
    limits = CommandLimits.of(hand, fps)
    if solver == "trajectory":
        if calibration is None:
            calibration = _calibration(hand, tree, targets, weights)
        started = time.perf_counter()
        commands = solve_hand(hand, tree, targets, calibration, limits, weights)
    else:
        started = time.perf_counter()
        commands = limits.enforce(solve_dex(hand, targets, solver.removeprefix("dex-")))
    seconds = time.perf_counter() - started
    if solver == "trajectory" and calibration is not None and physics.second_pass:
        commands = second_pass(
            hand, commands, fps, targets.active,
            lambda follow: solve_hand(hand, tree, targets, calibration, limits, weights, follow),
        )  # fmt: skip
    robot = tree.points(hand.expand(commands), hand.tip_names)
    human = targets.tips_of(hand.fingers)
    if solver != "trajectory" or calibration is None:
        calibration = _best_fit(human, robot)
    wanted = replace(targets, joints_hand=calibrated(targets.joints_hand, calibration))
    goal = wanted.tips_of(hand.fingers)
    return _Followed(
        commands=commands,
        sent=sent_commands(hand, commands, fps, physics.latency),
        calibration=calibration,
        tip_error_m=np.linalg.norm(robot - goal, axis=-1),
        T_camera_base=_base_poses(targets, calibration, human, robot),
        report=play(hand, commands, fps, targets.active, physics.latency).report,
        flexion=flexion_report(hand, tree, targets, commands),
        seconds=seconds,
        notes=impossible_pinches(hand, tree, targets)
        + missed_pinches(hand, tree, targets, commands),
    )


def solve_hand(
    hand: HandSpec,
    tree: KinematicTree,
    targets: HandTargets,
    calibration: Calibration,
    limits: CommandLimits,
    weights: Weights = Weights(),
    follow: Follow | None = None,
) -> Commands:
    """Return the commands of one hand, from the idle hand as first guess."""
    objective = PoseObjective(hand, tree, targets, calibration, weights, follow)
    start = np.tile(hand.rest, (len(targets.joints_hand), 1))
    return solve_trajectory(objective, limits, start)


def calibrate_motion(
    motion: HandMotion,
    robot: Robot,
    weights: Weights = Weights(),
    known: Mapping[Side, Calibration] | None = None,
) -> dict[Side, Calibration]:
    """Return the calibration of every hand that appears: the known one, else fitted to it."""
    out = dict(known or {})
    for side in SIDES:
        targets = _targets(motion, robot, side)
        if targets is not None and side not in out:
            hand = robot.hand(side)
            out[side] = _calibration(hand, KinematicTree.of(hand), targets, weights)
    return out


def _targets(motion: HandMotion, robot: Robot, side: Side) -> HandTargets | None:
    """Return what the robot's hand is to follow, fingers or an opening; None without a hand."""
    targets = hand_targets(motion, side)
    if targets is not None and robot.hand(side).follows == "opening":
        return opening_targets(targets, motion.fps)
    return targets


def _calibration(
    hand: HandSpec, tree: KinematicTree, targets: HandTargets, weights: Weights
) -> Calibration:
    if hand.follows == "opening":
        return opening_calibration(hand, tree, targets)
    return calibrate(hand, tree, targets, weights)


def _best_fit(human: Float[np.ndarray, "T K 3"], robot: Float[np.ndarray, "T K 3"]) -> Calibration:
    """Return from where a hand that was posed by another objective is best measured."""
    ground = metrics.CommonGround.fit(human, robot)
    error = metrics.tip_error(human, robot, ground)
    residual = float(np.sqrt(np.nanmean(error**2)))
    return Calibration(ground.scale, ground.rotation, ground.translation, residual)


def _base_poses(
    targets: HandTargets,
    calibration: Calibration,
    human: Float[np.ndarray, "T K 3"],
    robot: Float[np.ndarray, "T K 3"],
) -> Float[np.ndarray, "T 4 4"] | None:
    """Return the base link's pose: fixed to the palm, so that the fingertips meet on average.

    The robot hand is larger or smaller than the human's. One rigid transform holds base and palm
    together; of all choices it lets the mean fingertip coincide, where objects are touched.
    """
    if targets.T_camera_hand is None:
        return None
    seen = targets.measured
    turn = calibration.rotation.T  # base to palm
    touching = human[seen].mean((0, 1)) - turn @ robot[seen].mean((0, 1))
    T_hand_base = frames.rigid(turn, touching)
    return targets.T_camera_hand @ T_hand_base


def _assemble(
    motion: HandMotion,
    robot: Robot,
    solver: str,
    hands: list[HandSpec],
    targets: list[HandTargets | None],
    followed: list[_Followed | None],
    base_limits: BaseLimits | None,
    gates: Gates,
) -> RobotTrajectory:
    count = len(motion)
    commands = np.stack(
        [
            one.commands if one else np.tile(hand.rest, (count, 1))
            for hand, one in zip(hands, followed, strict=True)
        ],
        axis=1,
    )
    joints = np.stack([hand.expand(commands[:, i]) for i, hand in enumerate(hands)], axis=1)
    active = np.stack([t.active if t else np.zeros(count, bool) for t in targets], axis=1)
    frame, poses = _in_frame(motion, targets, followed)
    if poses is not None:
        if base_limits is not None:
            weights = np.where(active, motion.quality, 0.0)
            poses = smooth_bases(poses, active, weights, motion.fps, base_limits)
        # Where the hand is absent the base keeps its last pose, or its first before it appears.
        held = np.stack([held_index(active[:, slot]) for slot in range(2)], axis=1)
        poses = poses[held, np.arange(2)]
    trajectory = RobotTrajectory(
        robot=robot.label,
        timestamps_ns=motion.timestamps_ns,
        fps=motion.fps,
        joint_names=hands[0].joint_names,
        command_names=hands[0].command_names,
        command_joints=hands[0].command_joints,
        joints=joints,
        commands=commands,
        registers=np.stack(
            [
                hand.to_registers(one.sent if one else commands[:, i])
                for i, (hand, one) in enumerate(zip(hands, followed, strict=True))
            ],
            axis=1,
        ),
        frame=frame,
        T_frame_base=poses,
        confidence=np.where(active, motion.quality, 0.0),
        active=active,
        tip_error_m=np.stack(
            [
                one.tip_error_m if one else np.full((count, len(hand.tip_names)), np.nan)
                for hand, one in zip(hands, followed, strict=True)
            ],
            axis=1,
        ),
        calibration=tuple(one.calibration if one else None for one in followed),
        limit_violations=sum(limit_violations(h, joints[:, i]) for i, h in enumerate(hands)),
        speed_violations=sum(
            speed_violations(h, commands[:, i], 1e9 / np.diff(motion.timestamps_ns))
            for i, h in enumerate(hands)
        ),
        coupling_residual_rad=max(h.coupling_residual(joints[:, i]) for i, h in enumerate(hands)),
        solver=solver,
        solve_seconds=sum((one.seconds for one in followed if one), 0.0),
        provenance=motion.provenance,
        replay=tuple(one.report if one else None for one in followed),
        flexion=tuple(one.flexion if one else None for one in followed),
        notes=tuple(note for one in followed if one for note in one.notes),
    )
    return replace(trajectory, verdict=judge(motion, trajectory, gates))


def _in_frame(
    motion: HandMotion, targets: list[HandTargets | None], followed: list[_Followed | None]
) -> tuple[Literal["camera", "world", "none"], Float[np.ndarray, "T 2 4 4"] | None]:
    """Return base poses in the world where camera poses are known, else in the camera frame."""
    if not motion.placed:
        return "none", None
    poses = np.broadcast_to(np.eye(4), (len(motion), 2, 4, 4)).copy()
    for slot, (target, one) in enumerate(zip(targets, followed, strict=True)):
        if target is None or one is None or one.T_camera_base is None:
            continue
        pose = one.T_camera_base
        if motion.T_world_camera is not None:
            # In the world: between two trusted frames the camera moves as well.
            pose = bridged_poses(motion.T_world_camera @ pose, target.followed)
        poses[target.active, slot] = pose[target.active]
    return ("camera" if motion.T_world_camera is None else "world"), poses
