"""Arms attached to the robot hands of a trajectory, one for each hand that appears.

Bases are given or searched (``arm_search.py``). Then each arm follows its path and avoids the other
arm, itself and the table (``arm_scene.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
from jaxtyping import Bool, Float

from acehand_core.errors import InputError
from acehand_core.geometry import frames, rotations
from acehand_core.motion import ArmMotion, RobotTrajectory, Verdict, runs
from acehand_core.processes import one_blas_thread
from acehand_core.types import SIDES
from retarget.replay.checks import CHECKS
from retarget.robots.robot import Robot
from retarget.solve import arm_search
from retarget.solve.arm import Arm, ArmJoints, ArmSettings, BasePath
from retarget.solve.arm_path import follow_path, refine
from retarget.solve.arm_scene import ArmScene
from retarget.solve.arm_search import ArmPlacement, ArmTask, levels_of, place_arms

#: Rounds in which each arm moves aside for the other.
_AVOID_ROUNDS = 3
#: The z axis of the arm's base: a level camera is assumed.
UP = {"camera": (0.0, -1.0, 0.0), "world": (0.0, 0.0, 1.0)}
_LISTED_SPANS = 5


@one_blas_thread()
def attach_arms(
    trajectory: RobotTrajectory, arm: Arm, settings: ArmSettings, robot: Robot | None = None
) -> RobotTrajectory:
    """Return the trajectory with an arm for every hand that appears.

    ``arms`` and the verdict name frames out of reach and those with too small distances.

    Args:
        robot: its hands count in collisions; None: the arms alone.

    Raises:
        InputError: the hands have no place before a camera.
    """
    poses = trajectory.T_frame_base
    if poses is None or trajectory.frame == "none":
        raise InputError(
            "`arm` needs to know where the hands are, but this input gives joints relative to the "
            "wrist only."
        )

    slots = [slot for slot in range(2) if trajectory.active[:, slot].any()]
    if not slots:
        return trajectory
    tasks = {
        slot: ArmTask(poses[:, slot], trajectory.active[:, slot], settings.base(slot))
        for slot in slots
    }
    up = np.array(settings.up or UP[trajectory.frame], float)
    up = up / np.linalg.norm(up)
    levels = levels_of(arm, list(tasks.values()), up, settings.table_m, settings.table == "auto")
    scene = ArmScene(arm, trajectory, robot, slots, settings.clearance_m)
    placements = place_arms(scene, tasks, trajectory.fps, up, levels)

    # The search tests only some frames, so its best placement may still collide.
    best: dict[int, ArmMotion] = {}
    for placement in placements:
        motions = _follow_paths(scene, tasks, placement, trajectory.fps)
        if not best or _faults(motions, tasks) < _faults(best, tasks):
            best = motions
        # If all placements collide, the mount is the cause; unreached frames stay unreached.
        colliding, unreached = _faults(best, tasks)
        expected = placement.cost * sum(int(task.active.sum()) for task in tasks.values())
        if placement.cost >= arm_search.COLLIDES or (not colliding and unreached <= expected):
            break

    notes = tuple(_assumptions(scene, best, settings))
    best = {slot: replace(arm, notes=arm.notes + notes) for slot, arm in best.items()}
    findings = [*_reach_findings(best, tasks), *_distance_findings(best, settings)]
    verdict = trajectory.verdict
    if verdict is not None and findings:
        statuses = {verdict.status, *(status for status, _ in findings)}
        reasons = (*verdict.reasons, *(reason for _, reason in findings))
        verdict = Verdict("fail" if "fail" in statuses else "warn", reasons)

    return replace(trajectory, arms=(best.get(0), best.get(1)), verdict=verdict)


def _follow_paths(
    scene: ArmScene, tasks: Mapping[int, ArmTask], placement: ArmPlacement, fps: float
) -> dict[int, ArmMotion]:
    """Return arms that follow their paths and keep apart where they can."""
    arm, table, every = scene.arm, placement.table, slice(None)
    joints, paths, places = {}, {}, {}
    for slot, task in tasks.items():
        base = placement.bases[slot]
        paths[slot] = frames.inverse(base) @ task.poses
        joints[slot] = follow_path(arm, paths[slot], task.active, fps, placement.postures[slot])
        places[slot] = scene.places(slot, base, joints[slot], every)
    unobstructed = dict(joints)

    for _ in range(_AVOID_ROUNDS):
        moved = False
        for slot, task in tasks.items():
            others = {other: places[other] for other in tasks if other != slot}
            avoid = scene.avoidance(slot, placement.bases[slot], others, table)
            if not len(avoid(joints[slot], every).frame):
                continue
            moved = True
            joints[slot] = refine(arm, joints[slot], paths[slot], task.active, fps, avoid)
            places[slot] = scene.places(slot, placement.bases[slot], joints[slot], every)
        if not moved:
            break

    distances = scene.distances(places, table)
    motions = {}
    for slot, task in tasks.items():
        base, distance = placement.bases[slot], distances[slot]
        off, reached = _off(arm, task, paths[slot], joints[slot])
        T_frame_table = None
        if table is not None:
            foot = base[:3, 3] + (table.height_m - table.up @ base[:3, 3]) * table.up
            upright = rotations.between(np.array([0.0, 0.0, 1.0]), table.up)
            T_frame_table = frames.rigid(upright, foot)
        motions[slot] = ArmMotion(
            model=arm.path.name,
            link=arm.link,
            joint_names=arm.joint_names,
            T_frame_arm=base,
            joints=joints[slot],
            reached=reached,
            reached_alone=_off(arm, task, paths[slot], unobstructed[slot])[1],
            position_error_m=np.where(task.active, off, np.nan),
            notes=arm.notes,
            to_other_m=distance.other,
            to_itself_m=distance.own,
            to_table_m=distance.table,
            T_frame_table=T_frame_table,
        )
    return motions


def _off(
    arm: Arm, task: ArmTask, path: BasePath, joints: ArmJoints
) -> tuple[Float[np.ndarray, "T"], Bool[np.ndarray, "T"]]:
    """Return the hand base's position error, metres, and frames with position and turn reached."""
    reached = arm.base_poses(joints)
    off = np.linalg.norm((reached - path)[:, :3, 3], axis=1)
    angle = rotations.angle_between(reached[:, :3, :3], path[:, :3, :3])
    return off, task.active & (off <= arm_search.REACHED_M) & (angle <= arm_search.REACHED_RAD)


def _faults(motions: Mapping[int, ArmMotion], tasks: Mapping[int, ArmTask]) -> tuple[int, int]:
    """Return the numbers of frames with a collision and of frames not reached."""
    colliding = sum(int((arm.clearance_m < 0).sum()) for arm in motions.values())
    reached = sum(int(arm.reached.sum()) for arm in motions.values())
    return colliding, sum(int(task.active.sum()) for task in tasks.values()) - reached


def _assumptions(
    scene: ArmScene, motions: Mapping[int, ArmMotion], settings: ArmSettings
) -> Iterator[str]:
    if not scene.has_hands:
        yield "assumed: hands without shapes, since no robot was given"
    if names := scene.arm.shapeless:
        yield f"no shape, so no collision, of {', '.join(names)}"
    if all(motion.T_frame_table is None for motion in motions.values()):
        yield "no table is considered (`arm_table`)"
    elif settings.table_m is None:
        yield "assumed: a table at the height of the bases (`arm_table`)"


def _reach_findings(
    motions: Mapping[int, ArmMotion], tasks: Mapping[int, ArmTask]
) -> Iterator[tuple[str, str]]:
    for slot, motion in motions.items():
        active = tasks[slot].active
        share = np.mean(~motion.reached[active])
        if share:
            base = "" if tasks[slot].base is None else " from the given base"
            unobstructed = np.mean(~motion.reached_alone[active])
            obstacle_note = (
                f"; without obstacles {unobstructed:.1%}" if unobstructed < share else ""
            )
            yield (
                "fail" if share > CHECKS["reach"].fail else "warn",
                f"the {SIDES[slot]} arm does not reach {share:.1%} of the frames{base} "
                f"({_listed(active & ~motion.reached)}){obstacle_note}",
            )


def _distance_findings(
    motions: Mapping[int, ArmMotion], settings: ArmSettings
) -> Iterator[tuple[str, str]]:
    """Yield too small distances, those between the arms first, and a hint."""
    clearance = settings.clearance_m
    findings: list[tuple[str, str]] = []
    if len(motions) > 1:
        between = next(iter(motions.values())).to_other_m
        findings += _too_close("the arms", "each other", between, clearance, "fail")
    for slot, motion in motions.items():
        side = f"the {SIDES[slot]} arm"
        findings += _too_close(side, "itself or its hand", motion.to_itself_m, 0.0, "fail")
        given = settings.table_m is not None
        table = "the table" if given else "the assumed table below it"
        findings += _too_close(
            side, table, motion.to_table_m, clearance, "fail" if given else "warn"
        )
    yield from findings
    if any(motion.clearance_m.min() < 0 for motion in motions.values()):
        yield (
            "warn",
            "no motion without these collisions was found; try `arm_base_left` and "
            "`arm_base_right`, another `arm_mount`, `arm_up` or `arm_table`",
        )


def _too_close(
    who: str, what: str, distance: Float[np.ndarray, "T"], clearance_m: float, status: str
) -> Iterator[tuple[str, str]]:
    inside, near = distance < 0, (distance >= 0) & (distance < clearance_m)
    if inside.any():
        depth, share = -1e3 * distance.min(), inside.mean()
        verb = "go" if who == "the arms" else "goes"
        text = f"{who} {verb} up to {depth:.1f} mm into {what} in {share:.1%} of the frames"
        yield status, f"{text} ({_listed(inside)})"
    elif near.any():
        gap = 1e3 * distance[near].min()
        verb = "come" if who == "the arms" else "comes"
        yield "warn", f"{who} {verb} within {gap:.1f} mm of {what} ({_listed(near)})"


def _listed(flags: Bool[np.ndarray, "T"]) -> str:
    spans = [f"{a} to {b - 1}" if b - a > 1 else str(a) for a, b in runs(flags)]
    more = f" and {len(spans) - _LISTED_SPANS} more spans" if len(spans) > _LISTED_SPANS else ""
    return ", ".join(spans[:_LISTED_SPANS]) + more
