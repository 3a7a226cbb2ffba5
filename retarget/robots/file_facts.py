"""Compares a robot.yaml with the limits, couplings and meshes of the user's own model file.

The file is compiled unchanged: the rewritten model has the limits and couplings of the robot.yaml.
Each function returns contradictions and remarks; joints by our names.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from acehand_core.mujoco_gl import import_mujoco
from retarget.robots.anatomy import KNUCKLES_M, HandPosture, slides
from retarget.robots.check_anatomy import read_anatomy
from retarget.robots.hand_spec import HandSpec
from retarget.robots.model_file import unread_meshes

if TYPE_CHECKING:
    import mujoco

#: Rounding of numbers copied by hand: rad, and m of slides.
ROUNDING = 2e-3
ROUNDING_M = 1e-4
#: Tolerances of couplings (rad; m of slides) and closed loops (m).
COUPLING_RAD, COUPLING_M, LOOP_M = 0.01, 5e-4, 2e-3
#: A range in another unit is recognized if it covers this share of the file's.
_ALIKE = 0.3
_POSES = 32
_TURN = 2 * math.pi
#: A tip closer to its last joint (m) belongs to a link without shapes.
_AT_JOINT_M = 1e-3


def compare_limits(hand: HandSpec, model: mujoco.MjModel) -> tuple[list[str], list[str]]:
    """Compare the robot.yaml's limits with the file's ranges, radians or metres."""
    wrong, narrower, open_ = [], [], []
    for row, (name, sign) in enumerate(zip(hand.joint_names, _signs(hand), strict=True)):
        joint = _joint(hand, model, row)
        own = np.array([hand.lower[row], hand.upper[row]])
        if not model.jnt_limited[joint]:
            open_.append(name)
            if name in hand.command_joints and np.ptp(own) > _TURN - ROUNDING:
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
        elif not sliding and np.abs(own).max() > _TURN + ROUNDING:
            wrong.append(f"{name} has {_interval(own)} rad: the file's look like degrees")
        elif not _within(theirs, own, rounding):
            narrower.append(name)

    said = [f"narrower for {', '.join(narrower)}"] if narrower else []
    return wrong, said + ([f"it has none for {', '.join(open_)}"] if open_ else [])


def compare_couplings(hand: HandSpec, model: mujoco.MjModel) -> tuple[list[str], list[str]]:
    """Compare couplings with the file's equalities (mimic tags of a URDF) and motors.

    MuJoCo measures the violation of its constraints (joints, tendons, closed loops) in random
    poses of the robot.yaml's commands.
    """
    equalities = import_mujoco().mjtEq
    joints = [_joint(hand, model, row) for row in range(len(hand.joint_names))]
    rows = {joint: row for row, joint in enumerate(joints)}
    residual = _residuals(hand, model, joints)

    wrong: list[str] = []
    said: list[str] = []
    for equality, off in residual.items():
        kind = equalities(model.eq_type[equality])
        unit, limit = "m", LOOP_M
        text = f"{kind.name.removeprefix('mjEQ_').lower()} constraint of the file"
        if kind == equalities.mjEQ_JOINT:
            sliding = slides(model, int(model.eq_obj1id[equality]))
            unit, limit = ("m", COUPLING_M) if sliding else ("rad", COUPLING_RAD)
            text = _joint_equality(hand, model, equality, rows)
        (wrong if off > limit else said).append(f"{text}: off by up to {off:.2g} {unit}")
    if not wrong and residual:
        said = [f"{len(residual)} of the file's own are kept"]
    return wrong + _split_motors(hand, model, rows), said


def compare_shapes(hand: HandSpec, model: mujoco.MjModel) -> tuple[list[str], list[str]]:
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
    theirs = [_joint(hand, model, row) for row in range(len(numbers))]
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


def _residuals(hand: HandSpec, model: mujoco.MjModel, joints: list[int]) -> dict[int, float]:
    """Return the largest violation of every equality that only the hand can move."""
    mujoco = import_mujoco()
    model.opt.jacobian = mujoco.mjtJacobian.mjJAC_DENSE
    data: Any = mujoco.MjData(model)
    own = np.zeros(model.nv, bool)
    own[model.jnt_dofadr[joints]] = True
    share = np.random.default_rng(0).random((_POSES, len(hand.command_names)))
    share[0], share[1] = 0, 1

    worst: dict[int, float] = {}
    moved: dict[int, np.ndarray] = {}
    for commands in hand.command_lower + share * (hand.command_upper - hand.command_lower):
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


def _signs(hand: HandSpec) -> Float[np.ndarray, "Q"]:
    return np.array([sign for _, sign in hand.user_joints], float)


def _joint(hand: HandSpec, model: mujoco.MjModel, row: int) -> int:
    mujoco = import_mujoco()
    names = (hand.user_joints[row][0], hand.full_name(hand.joint_names[row]))
    ids = [mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_JOINT, name) for name in names]
    return max(ids) if ids[0] < 0 else ids[0]


def _within(inner: np.ndarray, outer: np.ndarray, rounding: float) -> bool:
    return bool(inner[0] >= outer[0] - rounding and inner[1] <= outer[1] + rounding)


def _interval(ends: np.ndarray) -> str:
    return f"[{ends[0]:.4g}, {ends[1]:.4g}]"


def _likely_mistake(own: np.ndarray, theirs: np.ndarray, rounding: float, slides: bool) -> str:
    """Suggest the unit or sense in which the limits would fit, if any."""
    scale, unit = (1000.0, "millimetres") if slides else (math.degrees(1), "degrees")
    if _within(own / scale, theirs, rounding) and np.ptp(own) / scale > _ALIKE * np.ptp(theirs):
        if not slides and np.ptp(theirs) * scale < _TURN:
            return ': the file\'s look like radians read as degrees (no angle="radian"?)'
        return f": robot.yaml's look like {unit}"
    if _within(-own[::-1], theirs, rounding):
        return ": with the other sense it would fit, see `reversed`"
    return ""
