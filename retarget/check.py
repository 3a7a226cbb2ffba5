"""Does a robot.yaml fit its model files? One finding per question."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from acehand_core.errors import AcehandError
from acehand_core.mujoco_gl import import_mujoco, quiet_mujoco
from retarget.replay.simulate import PENETRATION_LIMIT_M, replay, self_penetration
from retarget.robots import check_anatomy
from retarget.robots.anatomy import NoHingeError
from retarget.robots.check_anatomy import Wrong
from retarget.robots.file_facts import compare_couplings, compare_limits, compare_shapes
from retarget.robots.hand_spec import HandSpec
from retarget.robots.kinematics import KinematicTree, load_mjcf
from retarget.robots.model_file import compiled_model, unread_meshes

#: Tolerance between two computations of a point (m).
SAME_POINT_M = 1e-6
#: MuJoCo writes model files with six digits.
SAME_LIMIT = 1e-5
#: Contradictions listed in one line.
SHOWN = 3
#: Largest rms lag of the simulated hand in a slow sweep of a command, as a share of its range.
SWEEP_LAG = 0.05
SWEEP_FRAMES = 91
SWEEP_FPS = 30.0


@dataclass(frozen=True, slots=True)
class CheckFinding:
    """The answer to one question; ``passed`` is None if it could not be checked."""

    name: str
    passed: bool | None
    detail: str


def check_hand(
    hand: HandSpec, quick: bool = False, hands: tuple[HandSpec, ...] = ()
) -> Iterator[CheckFinding]:
    """Check one hand; nothing raises, and the checks stop if the joints are wrong.

    ``quick`` checks kinematics only, in a fraction of a second. Finger lengths are compared with
    those of the robot's other ``hands``.
    """
    first = _finding("joints", _joints, hand)
    yield first
    if not first.passed:
        return
    checks: dict[str, Callable[[HandSpec], str]] = {
        "limits": _limits,
        "coupling": _coupling,
        "tips": _tips,
        "size": functools.partial(check_anatomy.size, hands=hands),
        "fingers": check_anatomy.fingers,
        "side": check_anatomy.side,
        "palm frame": check_anatomy.palm_frame,
    }
    if not quick:
        checks |= {
            "actuators": _actuators,
            "registers": _registers,
            "MuJoCo": _against_mujoco,
            "pinocchio": _against_pinocchio,
            "idle pose": _idle_pose,
            "servos": _servos,
        }
    for name, check in checks.items():
        yield _finding(name, check, hand)


@functools.lru_cache(maxsize=16)
def quick_faults(hand: HandSpec, hands: tuple[HandSpec, ...]) -> tuple[str, ...]:
    """Return the faults of a hand that would make retargeting wrong."""
    return tuple(
        f"{hand.side} {finding.name}: {finding.detail}"
        for finding in check_hand(hand, quick=True, hands=hands)
        if finding.passed is False
    )


def _finding(name: str, check: Callable[[HandSpec], str], hand: HandSpec) -> CheckFinding:
    try:
        with quiet_mujoco():
            return CheckFinding(name, True, check(hand))
    except ImportError as error:
        return CheckFinding(name, None, f"not installed: {error}")
    except NoHingeError as error:
        return CheckFinding(name, None, f"cannot be checked: {error}")
    except AcehandError as error:
        return CheckFinding(name, False, str(error))


def _joints(hand: HandSpec) -> str:
    tree = KinematicTree.of(hand)
    said = f"{len(tree.joint_names)} joints, {len(hand.command_names)} driven"
    unread = list(unread_meshes(hand.user_model)) if hand.user_model else []
    more = f" and {len(unread) - 1} more" if len(unread) > 1 else ""
    return said + (f"; ignored meshes: {unread[0]}{more}" if unread else "")


def _limits(hand: HandSpec) -> str:
    said = _of_file(hand, compare_limits)
    model = load_mjcf(hand.mjcf_path)
    for name, *limits in zip(hand.joint_names, hand.lower, hand.upper, strict=True):
        low, high = model.joint(hand.full_name(name)).range
        if np.abs(np.subtract((low, high), limits)).max() > SAME_LIMIT:
            raise Wrong(f"{name} has [{low:g}, {high:g}] in the model file, not as in robot.yaml")
    return "; ".join(["within the file's", *said]) if hand.user_model else "as in robot.yaml"


def _of_file(
    hand: HandSpec, compare: Callable[[HandSpec, Any], tuple[list[str], list[str]]]
) -> list[str]:
    """Return the remarks of a comparison with the user's file; raise Wrong on contradictions."""
    if hand.user_model is None:
        return []
    wrong, said = compare(hand, compiled_model(hand.user_model))
    if wrong:
        more = f"; and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        raise Wrong("; ".join(wrong[:SHOWN]) + more)
    return said


def _coupling(hand: HandSpec) -> str:
    for commands in (hand.command_lower, hand.command_upper):
        joints = hand.expand(commands)
        outside = (joints < hand.lower - SAME_LIMIT) | (joints > hand.upper + SAME_LIMIT)
        if outside.any():
            raise Wrong(f"{hand.joint_names[int(outside.argmax())]} leaves its limits")

    coupled = [name for name in hand.joint_names if name not in hand.command_joints]
    model = load_mjcf(hand.mjcf_path)
    rows = np.flatnonzero(model.eq_type == int(import_mujoco().mjtEq.mjEQ_JOINT))
    tied = {model.joint(int(model.eq_obj1id[i])).name: model.eq_data[i, :2] for i in rows}
    for name in coupled:
        row = hand.joint_names.index(name)
        stated = (hand.coupling_offset[row], hand.coupling[row].sum())
        if not np.allclose(tied.get(hand.full_name(name), np.nan), stated, atol=SAME_LIMIT):
            raise Wrong(f"the model file couples {name} differently from robot.yaml")
    kept = f"{len(coupled)} coupled joints stay within their limits"
    return "; ".join([kept, *_of_file(hand, compare_couplings)])


def _tips(hand: HandSpec) -> str:
    tree = KinematicTree.of(hand)
    joints = hand.expand((hand.command_lower + hand.command_upper)[None] / 2)
    _, jacobian = tree.points_and_jacobian(joints, hand.tip_names)
    reach = np.abs(jacobian[0] @ hand.coupling).max((1, 2))
    if (reach < SAME_POINT_M).any():
        raise Wrong(f"nothing moves {hand.tip_names[int(reach.argmin())]}")
    return "; ".join([", ".join(hand.fingers), *_of_file(hand, compare_shapes)])


def _actuators(hand: HandSpec) -> str:
    model = load_mjcf(hand.mjcf_path)
    for i, (command, joint) in enumerate(zip(hand.command_names, hand.command_joints, strict=True)):
        try:
            servo = model.actuator(hand.full_name(command)).id
        except KeyError as error:
            raise Wrong(f"{hand.mjcf_path.name}: {error.args[0]}") from error
        driven = model.joint(int(model.actuator_trnid[servo, 0])).name
        if driven != hand.full_name(joint):
            raise Wrong(f"{command} drives {driven}, not {hand.full_name(joint)}")
        limits = (hand.command_lower[i], hand.command_upper[i])
        if np.abs(model.actuator_ctrlrange[servo] - limits).max() > SAME_LIMIT:
            raise Wrong(f"{command} takes {model.actuator_ctrlrange[servo]}, not {limits}")
    return ", ".join(hand.command_names)


def _registers(hand: HandSpec) -> str:
    registers = hand.controller
    share = np.random.default_rng(0).random((9, len(hand.rest)))
    commands = hand.command_lower + share * (hand.command_upper - hand.command_lower)
    if np.abs(registers.to_angles(registers.to_registers(commands)) - commands).max() > SAME_LIMIT:
        raise Wrong("register values do not convert back to the angles")
    low = min(registers.at_lower.min(), registers.at_upper.min())
    high = max(registers.at_lower.max(), registers.at_upper.max())
    return f"{low:g} to {high:g} ({registers.unit})"


def _frames(hand: HandSpec) -> list[str]:
    return list(dict.fromkeys((*hand.tip_names, *hand.target_frames)))


def _compare(hand: HandSpec, theirs: Callable[[np.ndarray], np.ndarray], what: str) -> str:
    """Compare frame origins at random joint angles with those of another library."""
    names = _frames(hand)
    share = np.random.default_rng(0).random((10, len(hand.lower)))
    joints = hand.lower + (hand.upper - hand.lower) * share
    ours = KinematicTree.of(hand).points(joints, names)
    away = np.linalg.norm(ours - np.stack([theirs(row) for row in joints]), axis=-1).max(0)
    if away.max() > SAME_POINT_M:
        worst = int(away.argmax())
        raise Wrong(f"{names[worst]} is {away[worst] * 1e3:.3g} mm off its place in {what}")
    return f"agrees within {away.max() * 1e3:.1g} mm"


def _against_mujoco(hand: HandSpec) -> str:
    mujoco = import_mujoco()
    model = load_mjcf(hand.mjcf_path)
    data: Any = mujoco.MjData(model)
    sites = {model.site(i).name for i in range(model.nsite)}
    names = [hand.full_name(name) for name in _frames(hand)]

    def points(row: np.ndarray) -> np.ndarray:
        for name, angle in zip(hand.joint_names, row, strict=True):
            data.joint(hand.full_name(name)).qpos = angle
        mujoco.mj_kinematics(model, data)
        return np.stack([(data.site(n) if n in sites else data.body(n)).xpos for n in names])

    return _compare(hand, points, "MuJoCo")


def _against_pinocchio(hand: HandSpec) -> str:
    import pinocchio as pin

    if not hand.urdf_path.is_file():
        raise Wrong(f"{hand.urdf_path}: not found")
    model = pin.buildModelFromUrdf(str(hand.urdf_path))
    data = model.createData()
    missing = [n for n in hand.joint_names if not model.existJointName(hand.full_name(n))]
    if missing:
        raise Wrong(f"{hand.urdf_path.name} has no joint {hand.full_name(missing[0])}")

    def points(row: np.ndarray) -> np.ndarray:
        configuration = pin.neutral(model)
        for name, angle in zip(hand.joint_names, row, strict=True):
            configuration[model.joints[model.getJointId(hand.full_name(name))].idx_q] = angle
        pin.framesForwardKinematics(model, data, configuration)
        frames = [model.getFrameId(hand.full_name(name), pin.BODY) for name in _frames(hand)]
        return np.stack([data.oMf[frame].translation for frame in frames])

    return _compare(hand, points, "pinocchio")


def _idle_pose(hand: HandSpec) -> str:
    depth = float(self_penetration(hand, hand.expand(hand.rest[None]))[0])
    if depth > PENETRATION_LIMIT_M:
        raise Wrong(f"the idle hand penetrates itself by {depth * 1e3:.1f} mm: see no_contact")
    if hand.user_model is None:
        return "no self-contact"
    return f"no self-contact; {load_mjcf(hand.mjcf_path).nexclude} pairs of links excluded"


def _servos(hand: HandSpec) -> str:
    """Open and close each command over a third of its range in three seconds, without contact."""
    phase = (1 - np.cos(np.linspace(0, 2 * np.pi, SWEEP_FRAMES))) / 2
    times = np.arange(SWEEP_FRAMES) / SWEEP_FPS
    span = hand.command_upper - hand.command_lower

    worst, name = 0.0, ""
    for i, command in enumerate(hand.command_names):
        away = np.where(hand.rest[i] + span[i] / 3 <= hand.command_upper[i], 1, -1) / 3
        share = np.minimum(1.0, hand.command_velocity[i] / (span[i] * np.pi / 9))
        commands = np.tile(hand.rest, (SWEEP_FRAMES, 1))
        commands[:, i] += away * share * span[i] * phase
        followed = replay(hand, commands, times, contact=False)
        if followed.report.unstable_steps:
            raise Wrong(f"{command}: the simulation is unstable")
        error = (hand.reduce(followed.joints) - commands)[:, i]
        lag = float(np.sqrt(np.mean(error**2))) / span[i]
        if lag > worst:
            worst, name = lag, command

    if worst > SWEEP_LAG:
        raise Wrong(f"{name} lags by {worst:.0%} of its range in a slow sweep")
    return f"follow a slow sweep within {worst:.1%} of their range"
