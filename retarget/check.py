"""Does a robot.yaml fit its model files? One finding per question.

A user's own file is compiled unchanged for its checks: the rewritten model has the limits and
couplings of the robot.yaml.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from acehand_core.errors import AcehandError
from acehand_core.mujoco_gl import import_mujoco, quiet_mujoco
from retarget.replay.simulate import PENETRATION_LIMIT_M, replay, self_penetration
from retarget.robots import check_anatomy
from retarget.robots.anatomy import KNUCKLES_M, HandPosture, NoHingeError, slides
from retarget.robots.check_anatomy import Fault, read_anatomy
from retarget.robots.hand_spec import HandSpec
from retarget.robots.kinematics import KinematicTree, load_mjcf
from retarget.robots.model_file import compiled_model, unread_meshes

if TYPE_CHECKING:
    import mujoco

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

#: Rounding of numbers copied by hand: rad, and m of slides.
ROUNDING = 2e-3
ROUNDING_M = 1e-4
#: Tolerances of couplings (rad; m of slides) and closed loops (m).
COUPLING_RAD, COUPLING_M, LOOP_M = 0.01, 5e-4, 2e-3
#: A range in another unit is recognized if it covers this share of the file's.
_SAME_RANGE_SHARE = 0.3
_RANDOM_POSES = 32
_FULL_TURN = 2 * math.pi
#: A tip closer to its last joint (m) belongs to a link without shapes.
_AT_JOINT_M = 1e-3


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
    counts = f"{len(tree.joint_names)} joints, {len(hand.command_names)} driven"
    unread = list(unread_meshes(hand.user_model)) if hand.user_model else []
    more = f" and {len(unread) - 1} more" if len(unread) > 1 else ""
    return counts + (f"; ignored meshes: {unread[0]}{more}" if unread else "")


def _limits(hand: HandSpec) -> str:
    remarks = _against_file(hand, _compare_limits)
    model = load_mjcf(hand.mjcf_path)
    for name, *limits in zip(hand.joint_names, hand.lower, hand.upper, strict=True):
        low, high = model.joint(hand.full_name(name)).range
        if np.abs(np.subtract((low, high), limits)).max() > SAME_LIMIT:
            raise Fault(f"{name} has [{low:g}, {high:g}] in the model file, not as in robot.yaml")
    return "; ".join(["within the file's", *remarks]) if hand.user_model else "as in robot.yaml"


def _compare_limits(hand: HandSpec, model: mujoco.MjModel) -> tuple[list[str], list[str]]:
    """Compare the robot.yaml's limits with the file's ranges, radians or metres."""
    wrong, narrower, open_ = [], [], []
    for row, (name, sign) in enumerate(zip(hand.joint_names, _signs(hand), strict=True)):
        joint = _joint_in_file(hand, model, row)
        own = np.array([hand.lower[row], hand.upper[row]])
        if not model.jnt_limited[joint]:
            open_.append(name)
            if name in hand.command_joints and np.ptp(own) > _FULL_TURN - ROUNDING:
                wrong.append(
                    f"{name} has no range in the file (none, or one without a width) and "
                    f"{_interval(own)} here: state its range"
                )
            continue
        sliding = slides(model, joint)
        unit, rounding = ("m", ROUNDING_M) if sliding else ("rad", ROUNDING)
        theirs = np.sort(sign * model.jnt_range[joint])
        if not _within(own, theirs, rounding):
            wrong.append(
                f"{name} has {_interval(own)} {unit}, the file {_interval(theirs)} {unit}"
                f"{_likely_mistake(own, theirs, rounding, sliding)}"
            )
        elif not sliding and np.abs(own).max() > _FULL_TURN + ROUNDING:
            wrong.append(f"{name} has {_interval(own)} rad: the file's look like degrees")
        elif not _within(theirs, own, rounding):
            narrower.append(name)

    remarks = [f"narrower for {', '.join(narrower)}"] if narrower else []
    return wrong, remarks + ([f"it has none for {', '.join(open_)}"] if open_ else [])


def _likely_mistake(own: np.ndarray, theirs: np.ndarray, rounding: float, slides: bool) -> str:
    """Suggest the unit or sense in which the limits would fit, if any."""
    scale, unit = (1000.0, "millimetres") if slides else (math.degrees(1), "degrees")
    if _within(own / scale, theirs, rounding) and np.ptp(own) / scale > _SAME_RANGE_SHARE * np.ptp(
        theirs
    ):
        if not slides and np.ptp(theirs) * scale < _FULL_TURN:
            return ': the file\'s look like radians read as degrees (no angle="radian"?)'
        return f": robot.yaml's look like {unit}"
    if _within(-own[::-1], theirs, rounding):
        return ": with the other sense it would fit, see `reversed`"
    return ""


def _within(inner: np.ndarray, outer: np.ndarray, rounding: float) -> bool:
    return bool(inner[0] >= outer[0] - rounding and inner[1] <= outer[1] + rounding)


def _interval(ends: np.ndarray) -> str:
    return f"[{ends[0]:.4g}, {ends[1]:.4g}]"


def _coupling(hand: HandSpec) -> str:
    for commands in (hand.command_lower, hand.command_upper):
        joints = hand.expand(commands)
        outside = (joints < hand.lower - SAME_LIMIT) | (joints > hand.upper + SAME_LIMIT)
        if outside.any():
            raise Fault(f"{hand.joint_names[int(outside.argmax())]} leaves its limits")

    coupled = [name for name in hand.joint_names if name not in hand.command_joints]
    model = load_mjcf(hand.mjcf_path)
    rows = np.flatnonzero(model.eq_type == int(import_mujoco().mjtEq.mjEQ_JOINT))
    tied = {model.joint(int(model.eq_obj1id[i])).name: model.eq_data[i, :2] for i in rows}
    for name in coupled:
        row = hand.joint_names.index(name)
        stated = (hand.coupling_offset[row], hand.coupling[row].sum())
        if not np.allclose(tied.get(hand.full_name(name), np.nan), stated, atol=SAME_LIMIT):
            raise Fault(f"the model file couples {name} differently from robot.yaml")
    coupled_text = f"{len(coupled)} coupled joints stay within their limits"
    return "; ".join([coupled_text, *_against_file(hand, _compare_couplings)])


def _compare_couplings(hand: HandSpec, model: mujoco.MjModel) -> tuple[list[str], list[str]]:
    """Compare couplings with the file's equalities (mimic tags of a URDF) and motors.

    MuJoCo measures the violation of its constraints (joints, tendons, closed loops) in random
    poses of the robot.yaml's commands.
    """
    equalities = import_mujoco().mjtEq
    joints = [_joint_in_file(hand, model, row) for row in range(len(hand.joint_names))]
    rows = {joint: row for row, joint in enumerate(joints)}
    residual = _residuals(hand, model, joints)

    wrong: list[str] = []
    remarks: list[str] = []
    for equality, off in residual.items():
        kind = equalities(model.eq_type[equality])
        unit, limit = "m", LOOP_M
        text = f"{kind.name.removeprefix('mjEQ_').lower()} constraint of the file"
        if kind == equalities.mjEQ_JOINT:
            sliding = slides(model, int(model.eq_obj1id[equality]))
            unit, limit = ("m", COUPLING_M) if sliding else ("rad", COUPLING_RAD)
            text = _joint_equality(hand, model, equality, rows)
        (wrong if off > limit else remarks).append(f"{text}: off by up to {off:.2g} {unit}")
    if not wrong and residual:
        remarks = [f"{len(residual)} of the file's own are kept"]
    return wrong + _split_motors(hand, model, rows), remarks


def _residuals(hand: HandSpec, model: mujoco.MjModel, joints: list[int]) -> dict[int, float]:
    """Return the largest violation of every equality that only the hand can move."""
    mujoco = import_mujoco()
    model.opt.jacobian = mujoco.mjtJacobian.mjJAC_DENSE
    data: Any = mujoco.MjData(model)
    own = np.zeros(model.nv, bool)
    own[model.jnt_dofadr[joints]] = True
    share = np.random.default_rng(0).random((_RANDOM_POSES, len(hand.command_names)))
    share[0], share[1] = 0, 1

    worst: dict[int, float] = {}
    moved: dict[int, np.ndarray] = {}
    for commands in hand.commands_at(share):
        data.qpos[model.jnt_qposadr[joints]] = _signs(hand) * hand.expand(commands)
        mujoco.mj_fwdPosition(model, data)
        jacobian = data.efc_J.reshape(-1, model.nv) != 0
        ties = data.efc_type == int(mujoco.mjtConstraint.mjCNSTR_EQUALITY)
        for equality in np.unique(data.efc_id[ties]).tolist():
            rows = ties & (data.efc_id == equality)  # one of a joint or tendon, three of a point
            moved[equality] = moved.get(equality, False) | jacobian[rows].any(0)
            off = float(np.linalg.norm(data.efc_pos[rows]))
            worst[equality] = max(worst.get(equality, 0.0), off)
    return {e: off for e, off in worst.items() if moved[e].any() and not moved[e][~own].any()}


def _joint_equality(
    hand: HandSpec, model: mujoco.MjModel, equality: int, rows: dict[int, int]
) -> str:
    """Return the coupling of two joints in both files, in our names and senses."""
    first = rows[int(model.eq_obj1id[equality])]
    offset, factor, *higher = model.eq_data[equality, :5]
    zeros = model.qpos0[model.jnt_qposadr[[model.eq_obj1id[equality], model.eq_obj2id[equality]]]]
    offset += zeros[0] - (factor * zeros[1] if model.eq_obj2id[equality] >= 0 else 0.0)
    signs, name = _signs(hand), hand.joint_names[first]
    if model.eq_obj2id[equality] < 0:
        return f"{name} stands at {signs[first] * offset:g} in the file"
    second = rows[int(model.eq_obj2id[equality])]
    other = hand.joint_names[second]
    if np.any(higher):
        return f"{name} follows {other} by a polynomial in the file"

    theirs = f"{signs[first] * signs[second] * factor:.4g} * {other}"
    if offset:
        theirs += f" {signs[first] * offset:+.4g}"
    column, source = hand.coupling[first], hand.coupling[second]
    if not np.array_equal(column != 0, source != 0):
        return f"{name} is {theirs} in the file, and not tied to {other} in robot.yaml"
    ratio = float(column.sum() / source.sum())
    shift = hand.coupling_offset[first] - ratio * hand.coupling_offset[second]
    ours = f"{ratio:.4g} * {other}" + (f" {shift:+.4g}" if shift else "")
    return f"{name} is {theirs} in the file, {ours} in robot.yaml"


def _split_motors(hand: HandSpec, model: mujoco.MjModel, rows: dict[int, int]) -> list[str]:
    """Report joints on one motor's fixed tendon that several commands of the robot.yaml drive."""
    mujoco = import_mujoco()
    direct = model.actuator_trntype == int(mujoco.mjtTrn.mjTRN_JOINT)
    alone = {*model.actuator_trnid[direct, 0].tolist()}

    wrong = []
    for actuator in np.flatnonzero(model.actuator_trntype == int(mujoco.mjtTrn.mjTRN_TENDON)):
        tendon = int(model.actuator_trnid[actuator, 0])
        first = model.tendon_adr[tendon]
        wraps = slice(first, first + model.tendon_num[tendon])
        pulled = model.wrap_objid[wraps].tolist()
        string = (model.wrap_type[wraps] != int(mujoco.mjtWrap.mjWRAP_JOINT)).any()
        if string or not {*pulled} <= {*rows} or {*pulled} & alone:
            continue
        if hand.coupling[[rows[joint] for joint in pulled]].any(0).sum() > 1:
            names = " and ".join(hand.joint_names[rows[joint]] for joint in pulled)
            wrong.append(f"one motor of the file moves {names}, several commands of robot.yaml do")
    return wrong


def _tips(hand: HandSpec) -> str:
    tree = KinematicTree.of(hand)
    joints = hand.expand((hand.command_lower + hand.command_upper)[None] / 2)
    _, jacobian = tree.points_and_jacobian(joints, hand.tip_names)
    reach = np.abs(jacobian[0] @ hand.coupling).max((1, 2))
    if (reach < SAME_POINT_M).any():
        raise Fault(f"nothing moves {hand.tip_names[int(reach.argmin())]}")
    return "; ".join([", ".join(hand.fingers), *_against_file(hand, _compare_shapes)])


def _compare_shapes(hand: HandSpec, model: mujoco.MjModel) -> tuple[list[str], list[str]]:
    """Find tips at their last joints, and a base at the knuckles, caused by missing meshes."""
    names, weld = [model.body(i).name for i in range(model.nbody)], model.body_weldid.tolist()
    lost = {}
    for mesh, links in unread_meshes(hand.user_model).items() if hand.user_model else ():
        for link in (names.index(n) if n in names else 0 for n in links):  # a URDF's first is world
            if not model.body_geomnum[np.equal(weld, weld[link])].any():
                lost[weld[link]] = mesh

    body = read_anatomy(hand)
    posture = HandPosture(body.model, body.rest)
    numbers = [body.model.joint(hand.full_name(name)).id for name in hand.joint_names]
    theirs = [_joint_in_file(hand, model, row) for row in range(len(numbers))]
    own = dict(zip(numbers, model.jnt_bodyid[theirs].tolist(), strict=True))
    suspects = []
    if hand.tracks != "opening" and np.mean([b.base[2] for b in body.bends]) < KNUCKLES_M:
        palm = model.body_parentid[own[body.fingers[0].joints[0]]]
        suspects.append(("the base is at the knuckles", palm))
    for name, finger in zip(hand.tip_names, body.fingers, strict=True):
        away = posture.point(finger.link, finger.tip) - posture.anchors[finger.joints[-1]]
        if np.linalg.norm(away) < _AT_JOINT_M:
            suspects.append((f"{name} is at its last joint", own[finger.joints[-1]]))

    missing = ((what, lost.get(weld[link])) for what, link in suspects)
    return [f"{what}, the mesh there is missing ({mesh})" for what, mesh in missing if mesh], []


def _against_file(
    hand: HandSpec, compare: Callable[[HandSpec, Any], tuple[list[str], list[str]]]
) -> list[str]:
    """Return the remarks of a comparison with the user's file; raise Fault on contradictions."""
    if hand.user_model is None:
        return []
    wrong, remarks = compare(hand, compiled_model(hand.user_model))
    if wrong:
        more = f"; and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        raise Fault("; ".join(wrong[:SHOWN]) + more)
    return remarks


def _signs(hand: HandSpec) -> Float[np.ndarray, "Q"]:
    return np.array([sign for _, sign in hand.user_joints], float)


def _joint_in_file(hand: HandSpec, model: mujoco.MjModel, row: int) -> int:
    mujoco = import_mujoco()
    names = (hand.user_joints[row][0], hand.full_name(hand.joint_names[row]))
    ids = [mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_JOINT, name) for name in names]
    return max(ids) if ids[0] < 0 else ids[0]


def _actuators(hand: HandSpec) -> str:
    model = load_mjcf(hand.mjcf_path)
    for i, (command, joint) in enumerate(zip(hand.command_names, hand.command_joints, strict=True)):
        try:
            servo = model.actuator(hand.full_name(command)).id
        except KeyError as error:
            raise Fault(f"{hand.mjcf_path.name}: {error.args[0]}") from error
        driven = model.joint(int(model.actuator_trnid[servo, 0])).name
        if driven != hand.full_name(joint):
            raise Fault(f"{command} drives {driven}, not {hand.full_name(joint)}")
        limits = (hand.command_lower[i], hand.command_upper[i])
        if np.abs(model.actuator_ctrlrange[servo] - limits).max() > SAME_LIMIT:
            raise Fault(f"{command} takes {model.actuator_ctrlrange[servo]}, not {limits}")
    return ", ".join(hand.command_names)


def _registers(hand: HandSpec) -> str:
    registers = hand.controller
    commands = hand.commands_at(np.random.default_rng(0).random((9, len(hand.rest))))
    if np.abs(registers.to_angles(registers.to_registers(commands)) - commands).max() > SAME_LIMIT:
        raise Fault("register values do not convert back to the angles")
    low = min(registers.at_lower.min(), registers.at_upper.min())
    high = max(registers.at_lower.max(), registers.at_upper.max())
    return f"{low:g} to {high:g} ({registers.unit})"


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

    return _compare_points(hand, points, "MuJoCo")


def _against_pinocchio(hand: HandSpec) -> str:
    import pinocchio as pin

    if not hand.urdf_path.is_file():
        raise Fault(f"{hand.urdf_path}: not found")
    model = pin.buildModelFromUrdf(str(hand.urdf_path))
    data = model.createData()
    missing = [n for n in hand.joint_names if not model.existJointName(hand.full_name(n))]
    if missing:
        raise Fault(f"{hand.urdf_path.name} has no joint {hand.full_name(missing[0])}")

    def points(row: np.ndarray) -> np.ndarray:
        configuration = pin.neutral(model)
        for name, angle in zip(hand.joint_names, row, strict=True):
            configuration[model.joints[model.getJointId(hand.full_name(name))].idx_q] = angle
        pin.framesForwardKinematics(model, data, configuration)
        frames = [model.getFrameId(hand.full_name(name), pin.BODY) for name in _frames(hand)]
        return np.stack([data.oMf[frame].translation for frame in frames])

    return _compare_points(hand, points, "pinocchio")


def _compare_points(hand: HandSpec, theirs: Callable[[np.ndarray], np.ndarray], what: str) -> str:
    """Compare frame origins at random joint angles with those of another library."""
    names = _frames(hand)
    share = np.random.default_rng(0).random((10, len(hand.lower)))
    joints = hand.lower + (hand.upper - hand.lower) * share
    ours = KinematicTree.of(hand).points(joints, names)
    away = np.linalg.norm(ours - np.stack([theirs(row) for row in joints]), axis=-1).max(0)
    if away.max() > SAME_POINT_M:
        worst = int(away.argmax())
        raise Fault(f"{names[worst]} is {away[worst] * 1e3:.3g} mm off its place in {what}")
    return f"agrees within {away.max() * 1e3:.1g} mm"


def _frames(hand: HandSpec) -> list[str]:
    return list(dict.fromkeys((*hand.tip_names, *hand.target_frames)))


def _idle_pose(hand: HandSpec) -> str:
    depth = float(self_penetration(hand, hand.expand(hand.rest[None]))[0])
    if depth > PENETRATION_LIMIT_M:
        raise Fault(f"the idle hand penetrates itself by {depth * 1e3:.1f} mm: see no_contact")
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
            raise Fault(f"{command}: the simulation is unstable")
        error = (hand.reduce(followed.joints) - commands)[:, i]
        lag = float(np.sqrt(np.mean(error**2))) / span[i]
        if lag > worst:
            worst, name = lag, command

    if worst > SWEEP_LAG:
        raise Fault(f"{name} lags by {worst:.0%} of its range in a slow sweep")
    return f"follow a slow sweep within {worst:.1%} of their range"
