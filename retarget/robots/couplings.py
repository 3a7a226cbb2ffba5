"""Which joints of a model are driven and which follow them.

A model says so by equalities of joints (a URDF's ``mimic`` becomes one), by tendons, or by closing
a linkage. The last two have no factor to be read: the model's own actuators move it in simulation,
and a straight line is laid through what its joints do.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from acehand_core.mujoco_gl import import_mujoco, quiet_mujoco
from retarget.robots.anatomy import JointValues, slides

if TYPE_CHECKING:
    import mujoco

#: A sweep of an actuator: so many places, each for at most so long (s), until nothing moves faster.
_SWEEP_STEPS, _SETTLE_S, _STILL = 17, 2.0, 1e-3
#: A driver that goes less than this share of its range in a sweep tells nothing.
_MOVES = 0.03
#: A straight line that misses a joint by more than this (rad or m) is said to.
_STRAIGHT = (np.radians(2.0), 5e-4)


@dataclass(frozen=True, slots=True)
class Follow:
    """``q = factor * q_driver + offset``; ``doubt`` says what the file leaves open, if anything."""

    driver: int
    factor: float
    offset: float
    doubt: str = ""


@dataclass(frozen=True, slots=True)
class Drive:
    """What moves a hand's joints.

    ``actuators`` has the driven joints, in the order of their actuators, and the actuator of each:
    None where the file has none. Every other joint is in ``follows``.
    """

    actuators: dict[int, int | None]
    follows: dict[int, Follow]


def joint_ranges(model: mujoco.MjModel) -> tuple[JointValues, JointValues]:
    """Return the limits of all joints; half a turn each way where the file has none."""
    limited = model.jnt_limited.astype(bool)
    lower = np.where(limited, model.jnt_range[:, 0], -np.pi)
    return lower, np.where(limited, model.jnt_range[:, 1], np.pi)


def find_drive(model: mujoco.MjModel, joints: Sequence[int], looped: bool) -> Drive:
    """Return what drives and what follows among some joints.

    Args:
        model: compiled from the user's file.
        joints: of one hand.
        looped: whether the file closes linkages among them.
    """
    own = _own_actuators(model, joints)
    pulled = sorted(_tendons(model, joints), key=lambda item: len(item[1]))
    drivers: dict[int, int | None] = dict(own)
    for actuator, group in pulled:
        tied = _tied(model, joints, list(drivers))
        taken = {*drivers, *(j for j, f in tied.items() if f.driver in drivers)}
        free = [j for j in group if j not in taken]
        drivers.update({free[0]: actuator} if free else {})
    if not drivers:
        tied = _tied(model, joints, [])
        drivers = {j: None for j in joints if j not in tied}

    tied = _tied(model, joints, list(drivers))
    follows = {j: f for j, f in tied.items() if f.driver in drivers}
    paths = {}
    if looped or not all(_fixed(model, actuator) for actuator, _ in pulled):
        with quiet_mujoco():  # one that is unstable tells nothing
            paths = {j: sweep(model, a) for j, a in drivers.items() if a is not None}
    for joint in joints:
        if joint in drivers or joint in follows:
            continue
        head = tied[joint].driver if joint in tied else joint
        if head not in follows and head not in drivers:
            found = _by_tendon(model, head, pulled, drivers) if not paths else None
            found = found or _by_sweep(model, head, paths)
            if found is None:  # nothing in the file moves it
                drivers[head] = None
            else:
                follows[head] = found
        if joint != head:
            follows[joint] = _through(tied[joint], follows.get(head))

    order = sorted(drivers, key=lambda j: (drivers[j] is None, drivers[j], j))
    return Drive({j: drivers[j] for j in order}, follows)


def _through(one: Follow, head: Follow | None) -> Follow:
    """Return a coupling to a joint that itself follows another (None: it is driven)."""
    if head is None:
        return one
    return Follow(
        head.driver, one.factor * head.factor, one.factor * head.offset + one.offset, head.doubt
    )


def _own_actuators(model: mujoco.MjModel, joints: Sequence[int]) -> dict[int, int]:
    """Return the actuator of each joint that has one for itself."""
    kinds = import_mujoco().mjtTrn
    direct = (int(kinds.mjTRN_JOINT), int(kinds.mjTRN_JOINTINPARENT))
    found: dict[int, int] = {}
    for i in range(model.nu):
        joint = int(model.actuator_trnid[i, 0])
        if int(model.actuator_trntype[i]) in direct and joint in joints:
            found.setdefault(joint, i)
    return found


def _tendons(model: mujoco.MjModel, joints: Sequence[int]) -> list[tuple[int, list[int]]]:
    """Return the actuators that pull tendons, with the joints that each tendon moves."""
    mujoco = import_mujoco()
    data: Any = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    # By how much each tendon changes with each degree of freedom.
    lengths = np.zeros((model.ntendon, model.nv))
    if model.ntendon:
        mujoco.mju_sparse2dense(
            lengths, data.ten_J, model.ten_J_rownnz, model.ten_J_rowadr, model.ten_J_colind
        )
    found = []
    for i in range(model.nu):
        if int(model.actuator_trntype[i]) != int(mujoco.mjtTrn.mjTRN_TENDON):
            continue
        row = lengths[int(model.actuator_trnid[i, 0])]
        group = [j for j in joints if abs(row[model.jnt_dofadr[j]]) > 1e-9]
        if group:
            found.append((i, group))
    return found


def _fixed(model: mujoco.MjModel, actuator: int) -> bool:
    """Whether an actuator's tendon is a sum of joints, not a string over pulleys."""
    tendon = int(model.actuator_trnid[actuator, 0])
    wrap = int(model.wrap_type[model.tendon_adr[tendon]])
    return wrap == int(import_mujoco().mjtWrap.mjWRAP_JOINT)


def _tied(
    model: mujoco.MjModel, joints: Sequence[int], drivers: Sequence[int]
) -> dict[int, Follow]:
    """Return the joints that equalities tie to another: to a driver where one is among them."""
    mujoco = import_mujoco()
    links: dict[int, list[tuple[int, float, float, str]]] = defaultdict(list)
    firsts = set()
    for i in range(model.neq):
        first, second = int(model.eq_obj1id[i]), int(model.eq_obj2id[i])
        is_joint = int(model.eq_type[i]) == int(mujoco.mjtEq.mjEQ_JOINT)
        if not is_joint or not {first, second} <= {*joints}:
            continue
        firsts.add(first)
        offset, factor, *higher = (float(v) for v in model.eq_data[i, :5])
        zero = [float(model.qpos0[model.jnt_qposadr[j]]) for j in (first, second)]
        offset += zero[0] - factor * zero[1]
        doubt = "the file couples them by a curve; these are its first terms" if any(higher) else ""
        links[second].append((first, factor, offset, doubt))
        if factor:
            links[first].append((second, 1 / factor, -offset / factor, doubt))

    # Without a driver the second joint of an equality is the free one.
    starts = [j for j in drivers if j in links]
    starts += [j for j in sorted(links) if j not in firsts] + sorted(links)
    follows: dict[int, Follow] = {}
    done: set[int] = set()
    for start in starts:
        if start in done:
            continue
        done.add(start)
        queue = [(start, Follow(start, 1.0, 0.0))]
        while queue:
            joint, so_far = queue.pop(0)
            for other, factor, offset, doubt in links[joint]:
                if other not in done:
                    done.add(other)
                    follows[other] = _through(Follow(joint, factor, offset, doubt), so_far)
                    follows[other] = replace(follows[other], doubt=doubt or so_far.doubt)
                    queue.append((other, follows[other]))
    return follows


def _by_tendon(
    model: mujoco.MjModel,
    joint: int,
    pulled: Sequence[tuple[int, list[int]]],
    drivers: dict[int, int | None],
) -> Follow | None:
    """Let joints that one tendon pulls, and nothing else, share its way by their ranges."""
    lower, upper = joint_ranges(model)
    for actuator, group in pulled:
        driver = next((j for j in group if drivers.get(j) == actuator), None)
        if joint not in group or driver is None:
            continue
        factor = float((upper[joint] - lower[joint]) / (upper[driver] - lower[driver]))
        name = model.tendon(int(model.actuator_trnid[actuator, 0])).name
        doubt = f"tendon {name} moves both; that they share its way by their ranges is assumed"
        return Follow(driver, factor, float(lower[joint] - factor * lower[driver]), doubt)
    return None


def sweep(model: mujoco.MjModel, actuator: int) -> Float[np.ndarray, "S J"]:
    """Return where all joints come to rest as one actuator goes through its range.

    Without gravity and contact; the other actuators stay at zero.
    """
    mujoco = import_mujoco()
    still = copy.copy(model)
    still.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONTACT)
    still.opt.gravity[:] = 0
    data: Any = mujoco.MjData(still)
    hinged = still.jnt_type >= int(mujoco.mjtJoint.mjJNT_SLIDE)
    found = []
    low, high = still.actuator_ctrlrange[actuator].tolist()
    for value in np.linspace(low, high, _SWEEP_STEPS):
        data.ctrl[actuator] = value
        for step in range(int(_SETTLE_S / still.opt.timestep)):
            mujoco.mj_step(still, data)
            if step * still.opt.timestep > 0.1 and np.abs(data.qvel).max() < _STILL:
                break
        found.append(np.where(hinged, data.qpos[still.jnt_qposadr], 0.0))
    return np.array(found)


def _by_sweep(
    model: mujoco.MjModel, joint: int, paths: dict[int, Float[np.ndarray, "S J"]]
) -> Follow | None:
    """Lay a line through where a joint is as the driver that moves it most goes its way."""
    lower, upper = joint_ranges(model)
    if not paths:
        return None
    driver = max(paths, key=lambda j: float(np.ptp(paths[j][:, joint])))
    moves, follows = paths[driver][:, driver], paths[driver][:, joint]
    if abs(moves[-1] - moves[0]) < _MOVES * (upper[driver] - lower[driver]):
        return None
    # Through the open and the closed hand: tendons may bend one joint after the other.
    factor = float((follows[-1] - follows[0]) / (moves[-1] - moves[0]))
    offset = float(follows[0] - factor * moves[0])
    missed = float(np.abs(factor * moves + offset - follows).max())

    # The line must end within the joint's own limits, or it would take from the driver's.
    ends = np.clip(
        factor * np.array([lower[driver], upper[driver]]) + offset, lower[joint], upper[joint]
    )
    factor = float(np.diff(ends)[0] / (upper[driver] - lower[driver]))
    offset = float(ends[0] - factor * lower[driver])
    unit = f"{missed * 1e3:.1f} mm" if slides(model, joint) else f"{np.degrees(missed):.1f} deg"
    doubt = f"a line through the open and the closed hand in simulation, off by up to {unit}"
    return Follow(driver, factor, offset, doubt if missed > _STRAIGHT[slides(model, joint)] else "")
