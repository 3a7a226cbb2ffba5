"""Retargeting of a motion of human hands to a robot, with replay and verdict."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

import numpy as np
from jaxtyping import Float

from acehand_core.errors import InputError
from acehand_core.geometry import frames
from acehand_core.motion import (
    Calibration,
    FlexionReport,
    HandMotion,
    ObjectTrack,
    ReplayReport,
    RobotTrajectory,
    Verdict,
    held_index,
)
from acehand_core.processes import one_blas_thread
from acehand_core.types import SIDES, Latency, Side, TimestampsNs
from retarget.replay.checks import CHECKS, Checks, Measure, findings, status_of
from retarget.replay.clip import EpisodeArrays, clip_measures, clip_of, evidence_measures
from retarget.replay.grasps import (
    Grasp,
    GraspScene,
    Joints,
    Poses,
    find_grasps,
    grasp_measure,
    in_frame,
    replay_grasps,
    upright,
)
from retarget.replay.metrics import flexion_report
from retarget.replay.simulate import Physics, play, sent_commands
from retarget.robots.hand_spec import Commands, HandSpec, limit_violations, speed_violations
from retarget.robots.kinematics import KinematicTree
from retarget.robots.robot import Robot, is_packaged
from retarget.solve import methods
from retarget.solve.base import BaseLimits, smooth_bases
from retarget.solve.contacts import fit_contacts, plan_grasp, within_limits
from retarget.solve.methods import HandSolution, Retargeter
from retarget.solve.pinch import impossible_pinches, missed_pinches
from retarget.targets import HandTargets, bridged_poses, calibrated, unseen_fingers

#: Checks without a measured number: their reasons name no limit.
_WITHOUT_LIMIT = (
    *("few_frames", "frame_s", "absent", "wrong_side", "joint_limits", "speed_limits"),
    *("unstable", "cannot", "unused_evidence", "assumed", "grasps"),
)


@dataclass(frozen=True, slots=True)
class _RetargetedHand:
    """One robot hand over T frames; without ``targets`` it is absent and keeps its rest pose."""

    spec: HandSpec
    targets: HandTargets | None
    commands: Commands
    sent: Commands
    tip_error_m: Float[np.ndarray, "T K"]
    calibration: Calibration | None = None
    T_camera_base: Float[np.ndarray, "T 4 4"] | None = None
    report: ReplayReport | None = None
    flexion: FlexionReport | None = None
    seconds: float = 0.0
    notes: tuple[str, ...] = ()


@one_blas_thread()
def retarget_motion(
    motion: HandMotion,
    robot: Robot,
    method: str | Retargeter = "trajectory",
    base_limits: BaseLimits | None = BaseLimits(),
    calibrations: Mapping[Side, Calibration] | None = None,
    physics: Physics = Physics(),
    limits: Checks = CHECKS,
    unchecked: bool = False,
    source_ns: TimestampsNs | None = None,
    objects: ObjectTrack | None = None,
    contacts: bool = True,
) -> RobotTrajectory:
    """Retarget both human hands of a motion to a robot, replay and judge the result.

    The T frames are ``1 / fps`` apart, see ``recordings.selection.at_rate``. With other stamps the
    speed limits hold per frame, not in time; the report's count and the verdict use the stamps.
    All other limits are exact for every method.

    Args:
        motion: joints (T, 2, 21, 3), left and right, metres, in the camera frame or relative to the
            wrist.
        robot: from ``load_robot``, with the hands that the motion has.
        method: a name of ``plugins.names("methods")``, or a ``Retargeter``.
        base_limits: smoothness of the bases; None fixes each base to its palm.
        calibrations: known ones by side; the others are fitted to this motion.
        physics: how commands are replayed and delayed.
        limits: limits of the verdict (``checks.read_limits``).
        unchecked: accept a user's robot that fails its checks, and list them in the notes.
        source_ns: stamps of the source's frames; None: those of the motion.
        objects: tracked objects, whose grasps are simulated.
        contacts: close the robot's fingers on them (``solve/contacts.py``).

    Returns:
        Joints (T, 2, Q) and commands (T, 2, C) in rad (slides: m); controller registers (T, 2, C);
        base poses (T, 2, 4, 4) in the world if camera poses are known, otherwise in the camera
        frame; ``tip_error_m`` (T, 2, K) between robot tips and calibrated human tips; ``verdict``.

    Raises:
        InputError: unknown method, a hand that the robot lacks, a user's robot that fails its
            checks (``check_hand``), or objects in another frame than the base poses.
        MissingDependencyError: MuJoCo, or a library of the method.
    """
    retargeter = method
    if isinstance(retargeter, str):
        retargeter = methods.retargeter_named(retargeter, physics.second_pass)
    targets = [methods.robot_targets(motion, robot, side) for side in SIDES]
    seen = [side for side, target in zip(SIDES, targets, strict=True) if target is not None]
    if not unchecked:
        refuse_faulty(robot, seen)
    # A side that both robot and motion lack is filled with the other hand at rest.
    substitute = next(iter(robot.hands.values()))
    specs = [
        robot.hand(side) if target is not None else robot.hands.get(side, substitute)
        for side, target in zip(SIDES, targets, strict=True)
    ]
    retargeter.check(robot.label, specs)

    hands = []
    for side, spec, target in zip(SIDES, specs, targets, strict=True):
        if target is None:
            idle = np.tile(spec.rest, (len(motion), 1))
            unknown = np.full((len(motion), len(spec.tip_names)), np.nan)
            hands.append(_RetargetedHand(spec, None, idle, idle, unknown))
        else:
            known = (calibrations or {}).get(side)
            solution = retargeter.solve(spec, target, motion.fps, known)
            hands.append(_measured(spec, target, motion.fps, solution, physics.latency))
    trajectory = _assemble(motion, robot, retargeter.name, hands, base_limits)
    if objects is not None:
        trajectory = _with_grasps(
            motion, robot, hands, trajectory, base_limits, objects, contacts, physics.latency
        )
    if wrong := faults(robot, seen):
        notes = (f"the robot does not pass its checks: {'; '.join(wrong)}", *trajectory.notes)
        trajectory = replace(trajectory, notes=notes)
    return replace(trajectory, verdict=judge(motion, trajectory, limits, robot, source_ns))


def _with_grasps(
    motion: HandMotion,
    robot: Robot,
    hands: Sequence[_RetargetedHand],
    trajectory: RobotTrajectory,
    base_limits: BaseLimits | None,
    objects: ObjectTrack,
    contacts: bool,
    latency: Latency,
) -> RobotTrajectory:
    """Return a trajectory whose hands close on tracked objects, with what a simulation shows."""
    joints = in_frame(motion, trajectory.frame, objects)
    grasps = find_grasps(objects, motion.timestamps_ns, motion.fps, joints)
    if contacts and grasps:
        closing, shifts = list(hands), np.tile(np.eye(4), (len(motion), 2, 1, 1))
        for slot in {grasp.slot for grasp in grasps}:
            own = [grasp for grasp in grasps if grasp.slot == slot]
            assert trajectory.T_frame_base is not None
            bases = trajectory.T_frame_base[:, slot]
            closing[slot], shifts[:, slot] = _closing_on(
                own, hands[slot], bases, joints, motion.fps, objects.up, latency
            )
        trajectory = _assemble(motion, robot, trajectory.method, closing, base_limits, shifts)

    poses = trajectory.T_frame_base
    assert poses is not None
    reports = replay_grasps(robot, grasps, trajectory.commands, poses, motion.fps, objects.up)
    return replace(trajectory, grasps=reports)


def _closing_on(
    grasps: Sequence[Grasp],
    hand: _RetargetedHand,
    bases: Poses,
    joints: Joints,
    fps: float,
    up: Float[np.ndarray, "3"],
    latency: Latency,
) -> tuple[_RetargetedHand, Poses]:
    """Return a hand whose fingers close on the objects, and corrections of its base."""
    spec, targets, calibration = hand.spec, hand.targets, hand.calibration
    assert targets is not None and calibration is not None
    commands, shifts = hand.commands, np.tile(np.eye(4), (len(bases), 1, 1))
    started = time.perf_counter()
    for grasp in grasps:
        scene = GraspScene(spec, grasp.object)
        fitted = fit_contacts(scene, grasp, hand.commands, bases, joints, fps, upright(up))
        if fitted is not None:
            commands, corrections = plan_grasp(spec, grasp, fitted, commands, fps)
            shifts = shifts @ corrections
    if commands is hand.commands:
        return hand, shifts
    commands = within_limits(spec, targets, calibration, commands, fps)
    seconds = hand.seconds + time.perf_counter() - started
    solution = HandSolution(commands, calibration, seconds)
    return _measured(spec, targets, fps, solution, latency), shifts


def _measured(
    hand: HandSpec, targets: HandTargets, fps: float, solution: HandSolution, latency: Latency
) -> _RetargetedHand:
    """Return a solution with its base pose, replay, errors and notes."""
    tree = KinematicTree.of(hand)
    commands, calibration = solution.commands, solution.calibration
    robot = tree.points(hand.expand(commands), hand.tip_names)
    human = targets.tips_of(hand.fingers)
    goals = replace(targets, joints_hand=calibrated(targets.joints_hand, calibration))

    # Robot and human hand differ in size. One rigid transform from palm to base aligns their mean
    # fingertips, where objects are touched.
    poses = targets.T_camera_hand
    if poses is not None:
        seen = targets.measured
        turn = calibration.rotation.T  # base to palm
        ours = np.where(np.isfinite(human), robot, np.nan)  # the same tips
        touching = np.nanmean(human[seen], (0, 1)) - turn @ np.nanmean(ours[seen], (0, 1))
        poses = poses @ frames.rigid(turn, touching)
    return _RetargetedHand(
        hand,
        targets,
        commands,
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
    hands: Sequence[_RetargetedHand],
    base_limits: BaseLimits | None,
    shifts: Float[np.ndarray, "T 2 4 4"] | None = None,
) -> RobotTrajectory:
    """Return both hands as one trajectory, without a verdict; ``shifts`` correct the bases."""
    specs, (left, right) = [hand.spec for hand in hands], hands
    commands, sent = np.stack([left.commands, right.commands], 1), (left.sent, right.sent)
    joints = np.stack([spec.expand(commands[:, i]) for i, spec in enumerate(specs)], axis=1)
    absent = np.zeros(len(motion), bool)
    active = np.stack([hand.targets.active if hand.targets else absent for hand in hands], axis=1)
    frame, poses = _in_frame(motion, hands)
    if poses is not None:
        poses = poses if shifts is None else poses @ shifts
        if base_limits is not None:
            weights = np.where(active, motion.quality, 0.0)
            poses = smooth_bases(poses, active, weights, motion.fps, base_limits)
        # The base of an absent hand keeps its last pose, or its first before the hand appears.
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
        registers=np.stack(
            [s.controller.to_registers(sent[i]) for i, s in enumerate(specs)], axis=1
        ),
        frame=frame,
        T_frame_base=poses,
        confidence=np.where(active, motion.quality, 0.0),
        active=active,
        tip_error_m=np.stack([left.tip_error_m, right.tip_error_m], axis=1),
        calibration=(left.calibration, right.calibration),
        limit_violations=sum(limit_violations(s, joints[:, i]) for i, s in enumerate(specs)),
        speed_violations=sum(
            speed_violations(s, commands[:, i], rates) for i, s in enumerate(specs)
        ),
        coupling_residual_rad=max(s.coupling_residual(joints[:, i]) for i, s in enumerate(specs)),
        method=method,
        solve_seconds=left.seconds + right.seconds,
        provenance=motion.provenance,
        replay=(left.report, right.report),
        flexion=(left.flexion, right.flexion),
        notes=(*left.notes, *right.notes),
    )


def _in_frame(
    motion: HandMotion, hands: Sequence[_RetargetedHand]
) -> tuple[Literal["camera", "world", "none"], Float[np.ndarray, "T 2 4 4"] | None]:
    """Return base poses in the world if camera poses are known, otherwise in the camera frame."""
    if not motion.placed:
        return "none", None

    poses = np.broadcast_to(np.eye(4), (len(motion), 2, 4, 4)).copy()
    for slot, hand in enumerate(hands):
        if hand.targets is None or hand.T_camera_base is None:
            continue
        pose = hand.T_camera_base
        if motion.T_world_camera is not None:
            # Bridge in the world: the camera moves between known frames too.
            placed = np.isfinite(motion.T_world_camera).all((1, 2))
            known = hand.targets.usable & placed
            if not known.any():
                raise InputError("no frame with a hand has a camera pose, so no base in the world.")
            pose = bridged_poses(motion.T_world_camera @ pose, known)
        poses[hand.targets.active, slot] = pose[hand.targets.active]

    return ("camera" if motion.T_world_camera is None else "world"), poses


def judge(
    motion: HandMotion,
    trajectory: RobotTrajectory,
    limits: Checks = CHECKS,
    robot: Robot | None = None,
    source_ns: TimestampsNs | None = None,
) -> Verdict:
    """Return the verdict over both hands of one clip.

    A hand that never appears is no fault; a clip without hands fails. Frames of confidence 0 are
    reported even if too few to change the status.

    Args:
        robot: the trajectory's, to measure its distance from the human hands.
        source_ns: stamps of the source's frames; None: those of the motion.
    """
    if not trajectory.active.any():
        return Verdict("fail", ("no hand was found",))
    clip = EpisodeArrays(**clip_of(motion, trajectory, source_ns))
    # Counted in the exact trajectory, not in the stored one.
    outside, fast = trajectory.limit_violations, trajectory.speed_violations
    measures = [
        Measure("joint_limits", outside, f"{outside} joint-frames are outside the joint limits"),
        Measure("speed_limits", fast, f"{fast} joint-frames are faster than the hand"),
    ]
    counted = {measure.check for measure in measures}
    measures += [Measure("cannot", 1, note) for note in trajectory.notes]
    measures += evidence_measures(asdict(motion.provenance))
    from_columns = clip_measures(clip, robot, trajectory.tip_error_m)
    measures += [measure for measure in from_columns if measure.check not in counted]
    if trajectory.grasps:
        measures.append(grasp_measure(trajectory.grasps))
    for slot, side in enumerate(SIDES):
        if clip.valid[:, slot].any():
            measures += _replay_measures(trajectory, slot, side)

    results, reasons = findings(measures, limits), []
    for finding in results:
        limit = getattr(limits[finding.check], finding.level, None)
        named = limit is not None and finding.check not in _WITHOUT_LIMIT
        reasons.append(f"{finding.text} (limit {limit:g})" if named else finding.text)
    return Verdict(status_of(results), tuple(reasons))


def _replay_measures(trajectory: RobotTrajectory, slot: int, side: Side) -> Iterator[Measure]:
    if (flexion := trajectory.flexion[slot]) is not None:
        worst = int(np.argmax(flexion.error_deg))  # a mean would hide one finger of four
        degrees, finger = float(flexion.error_deg[worst]), flexion.fingers[worst]
        text = f"the {side} robot's {finger} finger bends {degrees:.0f} degrees off the human's "
        text += f"(mean {flexion.robot_deg[worst]:.0f} and {flexion.human_deg[worst]:.0f})"
        yield Measure("flexion_deg", degrees, text, side)
    if (replay := trajectory.replay[slot]) is None:
        return
    turning, sliding = replay.rms_tracking_rad, replay.rms_tracking_m
    depth = max(replay.max_penetration_mm, replay.commanded_penetration_mm)
    share, follows = replay.saturation_share, f"the simulated {side} hand follows with"
    for name, value, text in (
        ("tracking_rad", turning, f"{follows} {turning:.2f} rad rms error"),
        ("tracking_m", sliding, f"{follows} {sliding * 1e3:.1f} mm rms error"),
        ("penetration_mm", depth, f"the {side} hand would reach {depth:.1f} mm into itself"),
        ("saturation", share, f"{share:.0%} of the {side} hand's actuator steps are saturated"),
        ("unstable", replay.unstable_steps,
         f"the {side} simulation was unstable in {replay.unstable_steps} steps"),
    ):  # fmt: skip
        yield Measure(name, value, text, side)


@one_blas_thread()
def calibrate_motion(motion: HandMotion, robot: Robot) -> dict[Side, Calibration]:
    """Return the calibrations of a motion's hands to a robot, for reuse. Raises InputError."""
    return methods.TrajectoryRetargeter().calibrate([motion], robot, {})


def faults(robot: Robot, sides: Iterable[Side]) -> tuple[str, ...]:
    """Return the faults of a user's robot that would make retargeting wrong."""
    hands = tuple(robot.hands.values())
    own = [hand for hand in hands if hand.user_model is not None or not is_packaged(robot)]
    if not own:
        return ()
    from retarget.check import quick_faults

    return tuple(fault for hand in own if hand.side in sides for fault in quick_faults(hand, hands))


def refuse_faulty(robot: Robot, sides: Iterable[Side]) -> None:
    """Raise InputError with the faults of a user's robot, if any."""
    if wrong := faults(robot, sides):
        raise InputError(
            f"{robot.path}: the robot does not pass its checks: {'; '.join(wrong)}. See `acehand "
            "robots check`, `acehand robots show` and docs/my_robot.md; `robot_unchecked` uses it "
            "anyway."
        )
