"""Retargeting: a motion of human hands becomes a trajectory of robot hands, replayed and judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import numpy as np
from jaxtyping import Float

from acehand_core.errors import InputError
from acehand_core.geometry import frames
from acehand_core.motion import (
    Calibration,
    FlexionReport,
    HandMotion,
    ReplayReport,
    RobotTrajectory,
    held_index,
)
from acehand_core.processes import one_blas_thread
from acehand_core.types import SIDES, Latency, Side, TimestampsNs
from retarget.replay.judgements import JUDGEMENTS, Judgements
from retarget.replay.metrics import flexion_report
from retarget.replay.simulate import Physics, play, sent_commands
from retarget.replay.verdict import judge
from retarget.robots.check import faults, refuse_faulty
from retarget.robots.hand_spec import Commands, HandSpec, limit_violations, speed_violations
from retarget.robots.kinematics import KinematicTree
from retarget.robots.robot import Robot
from retarget.solve.base import BaseLimits, smooth_bases
from retarget.solve.methods import (
    Retargeter,
    Solution,
    TrajectoryRetargeter,
    retargeter_named,
    robot_targets,
)
from retarget.solve.pinch import impossible_pinches, missed_pinches
from retarget.solve.targets import HandTargets, bridged_poses, calibrated, unseen_fingers

Value = TypeVar("Value")
PHYSICS = Physics()


@dataclass(frozen=True, slots=True)
class _Hand:
    """One robot hand over T frames: what it tracks, if anything, and its result."""

    spec: HandSpec
    targets: HandTargets | None
    result: _Result | None


@dataclass(frozen=True, slots=True)
class _Result:
    commands: Commands
    sent: Commands
    calibration: Calibration
    tip_error_m: Float[np.ndarray, "T K"]
    T_camera_base: Float[np.ndarray, "T 4 4"] | None
    report: ReplayReport
    flexion: FlexionReport | None
    seconds: float
    notes: tuple[str, ...]


@one_blas_thread()
def retarget_motion(
    motion: HandMotion,
    robot: Robot,
    method: str | Retargeter = "trajectory",
    base_limits: BaseLimits | None = BaseLimits(),
    calibrations: Mapping[Side, Calibration] | None = None,
    physics: Physics = PHYSICS,
    gates: Judgements = JUDGEMENTS,
    unchecked: bool = False,
    source_ns: TimestampsNs | None = None,
) -> RobotTrajectory:
    """Let a robot hand do what each human hand of a motion does, replay it and judge the result.

    The T frames are ``1 / fps`` apart: ``recordings.selection.at_rate`` makes them so. Where the
    stamps are others, the limits of speed are not kept between them; the count of the report and
    the verdict go by the stamps. Limits are kept exactly, whatever the method.

    Args:
        motion: joints (T, 2, 21, 3) of the left and the right hand, metres, in the camera frame or
            relative to the wrist.
        robot: what ``load_robot`` returned. It needs the hands that the motion has.
        method: one of ``methods.METHODS``, or a ``Retargeter``, as one of other weights.
        base_limits: how smooth the bases move; None: every base is fixed to its palm, however that
            moves.
        calibrations: of the sides that are known; the others are fitted to this motion.
        physics: how commands are replayed and lowered.
        gates: limits of the verdict (``judgements.read_gates``).
        unchecked: go on with a robot of your own that does not pass its checks; the trajectory's
            notes name them.
        source_ns: stamps of the source's frames that the motion's show; None: those of the motion.

    Returns:
        Joints (T, 2, Q) and commands (T, 2, C) in rad, in m where they slide; the registers of the
        hand's controller (T, 2, C); base poses (T, 2, 4, 4) in the world where camera poses are
        known, else in the camera frame; ``tip_error_m`` (T, 2, K), the distance of robot tips from
        calibrated human tips; and ``verdict`` with ``reasons``, over the whole clip.

    Raises:
        InputError: unknown method, a hand that the robot does not have, or a robot of your own
            whose frame, side, size, joints or limits are wrong (``check_hand``).
        MissingDependencyError: MuJoCo, or a library that the method needs, is not installed.
    """
    retargeter = method
    if isinstance(retargeter, str):
        retargeter = retargeter_named(retargeter, physics.second_pass)
    targets = [robot_targets(motion, robot, side) for side in SIDES]
    seen = [side for side, target in zip(SIDES, targets, strict=True) if target is not None]
    if not unchecked:
        refuse_faulty(robot, seen)
    # A robot may lack a side that the motion lacks too; the other side's rest pose stands in.
    substitute = next(iter(robot.hands.values()))
    specs = [
        robot.hand(side) if target is not None else robot.hands.get(side, substitute)
        for side, target in zip(SIDES, targets, strict=True)
    ]
    retargeter.check(robot.label, specs)

    hands = []
    for side, spec, target in zip(SIDES, specs, targets, strict=True):
        result = None
        if target is not None:
            known = (calibrations or {}).get(side)
            solution = retargeter.solve(spec, target, motion.fps, known)
            result = _measured(spec, target, motion.fps, solution, physics.latency)
        hands.append(_Hand(spec, target, result))
    trajectory = _assemble(motion, robot, retargeter.name, hands, base_limits)
    if wrong := faults(robot, seen):
        notes = (f"the robot does not pass its checks: {'; '.join(wrong)}", *trajectory.notes)
        trajectory = replace(trajectory, notes=notes)
    return replace(trajectory, verdict=judge(motion, trajectory, gates, robot, source_ns))


def _measured(
    hand: HandSpec, targets: HandTargets, fps: float, solution: Solution, latency: Latency
) -> _Result:
    """Return a solution with what becomes of it: base pose, replay, distances, notes."""
    tree = KinematicTree.of(hand)
    commands, calibration = solution.commands, solution.calibration
    robot = tree.points(hand.expand(commands), hand.tip_names)
    human = targets.tips_of(hand.fingers)
    goals = replace(targets, joints_hand=calibrated(targets.joints_hand, calibration))

    # The robot hand is larger or smaller than the human's. One rigid transform holds base and palm
    # together; of all choices it lets the mean fingertip coincide, where objects are touched.
    poses = targets.T_camera_hand
    if poses is not None:
        seen = targets.measured
        turn = calibration.rotation.T  # base to palm
        ours = np.where(np.isfinite(human), robot, np.nan)  # of the same tips
        touching = np.nanmean(human[seen], (0, 1)) - turn @ np.nanmean(ours[seen], (0, 1))
        poses = poses @ frames.rigid(turn, touching)
    return _Result(
        commands=commands,
        sent=sent_commands(hand, commands, fps, latency),
        calibration=calibration,
        tip_error_m=np.linalg.norm(robot - goals.tips_of(hand.fingers), axis=-1),
        T_camera_base=poses,
        report=play(hand, commands, fps, targets.active, latency).report,
        flexion=flexion_report(hand, tree, targets, commands),
        seconds=solution.seconds,
        notes=unseen_fingers(hand, targets)
        + impossible_pinches(hand, tree, targets)
        + missed_pinches(hand, tree, targets, commands),
    )


def _assemble(
    motion: HandMotion,
    robot: Robot,
    method: str,
    hands: Sequence[_Hand],
    base_limits: BaseLimits | None,
) -> RobotTrajectory:
    """Return both hands as one trajectory, without a verdict."""
    count, specs = len(motion), [hand.spec for hand in hands]
    results = [hand.result for hand in hands]
    idle = [np.tile(spec.rest, (count, 1)) for spec in specs]
    commands = _both(results, lambda r: r.commands, idle)
    sent = _both(results, lambda r: r.sent, idle)
    unknown = [np.full((count, len(spec.tip_names)), np.nan) for spec in specs]
    joints = np.stack([spec.expand(commands[:, i]) for i, spec in enumerate(specs)], axis=1)
    active = np.stack(
        [hand.targets.active if hand.targets else np.zeros(count, bool) for hand in hands], axis=1
    )

    frame, poses = _in_frame(motion, hands)
    if poses is not None:
        if base_limits is not None:
            weights = np.where(active, motion.quality, 0.0)
            poses = smooth_bases(poses, active, weights, motion.fps, base_limits)
        # Where the hand is absent the base keeps its last pose, or its first before it appears.
        held = np.stack([held_index(active[:, slot]) for slot in range(2)], axis=1)
        poses = poses[held, np.arange(2)]

    rates = 1e9 / np.diff(motion.timestamps_ns)
    return RobotTrajectory(
        robot=robot.label,
        timestamps_ns=motion.timestamps_ns,
        fps=motion.fps,
        joint_names=specs[0].joint_names,
        command_names=specs[0].command_names,
        command_joints=specs[0].command_joints,
        joints=joints,
        commands=commands,
        registers=np.stack([s.to_controller(sent[:, i]) for i, s in enumerate(specs)], axis=1),
        frame=frame,
        T_frame_base=poses,
        confidence=np.where(active, motion.quality, 0.0),
        active=active,
        tip_error_m=_both(results, lambda r: r.tip_error_m, unknown),
        calibration=_pair(results, lambda r: r.calibration),
        limit_violations=sum(limit_violations(s, joints[:, i]) for i, s in enumerate(specs)),
        speed_violations=sum(
            speed_violations(s, commands[:, i], rates) for i, s in enumerate(specs)
        ),
        coupling_residual_rad=max(s.coupling_residual(joints[:, i]) for i, s in enumerate(specs)),
        method=method,
        solve_seconds=sum((result.seconds for result in results if result), 0.0),
        provenance=motion.provenance,
        replay=_pair(results, lambda r: r.report),
        flexion=_pair(results, lambda r: r.flexion),
        notes=tuple(note for result in results if result for note in result.notes),
    )


def _pair(
    results: Sequence[_Result | None], value: Callable[[_Result], Value | None]
) -> tuple[Value | None, Value | None]:
    """Return one value of the left and the right hand; None where there is no result."""
    left, right = (None if result is None else value(result) for result in results)
    return left, right


def _both(
    results: Sequence[_Result | None],
    value: Callable[[_Result], np.ndarray],
    absent: Sequence[np.ndarray],
) -> Float[np.ndarray, "T 2 D"]:
    """Return one value of both hands, side by side; an absent hand's where there is no result."""
    values = [
        value(r) if r is not None else other for r, other in zip(results, absent, strict=True)
    ]
    return np.stack(values, axis=1)


def _in_frame(
    motion: HandMotion, hands: Sequence[_Hand]
) -> tuple[Literal["camera", "world", "none"], Float[np.ndarray, "T 2 4 4"] | None]:
    """Return base poses in the world where camera poses are known, else in the camera frame."""
    if not motion.placed:
        return "none", None
    poses = np.broadcast_to(np.eye(4), (len(motion), 2, 4, 4)).copy()
    for slot, hand in enumerate(hands):
        if hand.targets is None or hand.result is None or hand.result.T_camera_base is None:
            continue
        pose = hand.result.T_camera_base
        if motion.T_world_camera is not None:
            # In the world: between two trusted frames the camera moves as well.
            placed = np.isfinite(motion.T_world_camera).all((1, 2))
            known = hand.targets.usable & placed
            if not known.any():
                raise InputError(
                    "no camera pose is known in any frame that shows a hand, so that its base has "
                    "no place in the world."
                )
            pose = bridged_poses(motion.T_world_camera @ pose, known)
        poses[hand.targets.active, slot] = pose[hand.targets.active]
    return ("camera" if motion.T_world_camera is None else "world"), poses


@one_blas_thread()
def calibrate_motion(motion: HandMotion, robot: Robot) -> dict[Side, Calibration]:
    """Return what carries each human hand of a motion over to the robot's, to be used again.

    Args:
        motion, robot: see ``retarget_motion``.

    Raises:
        InputError: the robot lacks a hand that the motion has.
    """
    return TrajectoryRetargeter().calibrate([motion], robot, {})
