"""Driven and coupled joints of a model.

Equalities of joints (mimic tags of a URDF) state couplings. Tendons and closed linkages do not:
the model's actuators move them in simulation, and a line is fitted to the motion of the joints.
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

#: A sweep of an actuator: steps, longest time per step (s), and the speed that counts as rest.
_SWEEP_STEPS, _SETTLE_S, _REST_SPEED = 17, 2.0, 1e-3
#: Least motion of a driver in a sweep, as a share of its range.
_LEAST_TRAVEL = 0.03
#: Deviations from the line above this (rad, m) are reported.
_LINE_TOLERANCE = (np.radians(2.0), 5e-4)


@dataclass(frozen=True, slots=True)
class Coupling:
    """``q = factor * q_driver + offset``; ``doubt`` is what the file leaves open, if anything."""

    driver: int
    factor: float
    offset: float
    doubt: str = ""


@dataclass(frozen=True, slots=True)
class Drivetrain:
    """Driven joints with their actuators, in actuator order (None: no actuator), and the others."""

    actuators: dict[int, int | None]
    couplings: dict[int, Coupling]


def joint_ranges(model: mujoco.MjModel) -> tuple[JointValues, JointValues]:
    """Return the limits of all joints; half a turn each way if the file has none."""
    limited = model.jnt_limited.astype(bool)
    lower = np.where(limited, model.jnt_range[:, 0], -np.pi)
    return lower, np.where(limited, model.jnt_range[:, 1], np.pi)


def find_drivetrain(model: mujoco.MjModel, joints: Sequence[int], looped: bool) -> Drivetrain:
    """Return the drive of a hand's joints; ``looped``: the file closes linkages among them."""
    kinds = import_mujoco().mjtTrn
    direct = (int(kinds.mjTRN_JOINT), int(kinds.mjTRN_JOINTINPARENT))
    drivers: dict[int, int | None] = {}
    for i in range(model.nu):
        joint = int(model.actuator_trnid[i, 0])
        if int(model.actuator_trntype[i]) in direct and joint in joints:
            drivers.setdefault(joint, i)
    pulled = sorted(_tendons(model, joints), key=lambda item: len(item[1]))
    for actuator, group in pulled:
        tied = _tied(model, joints, list(drivers))
        taken = {*drivers, *(j for j, f in tied.items() if f.driver in drivers)}
        free = [j for j in group if j not in taken]
        drivers.update({free[0]: actuator} if free else {})
    if not drivers:
        tied = _tied(model, joints, [])
        drivers = {j: None for j in joints if j not in tied}

    tied = _tied(model, joints, list(drivers))
    couplings = {j: f for j, f in tied.items() if f.driver in drivers}
    paths = {}
    if looped or not all(_fixed(model, actuator) for actuator, _ in pulled):
        with quiet_mujoco():  # an unstable simulation has no result
            paths = {j: sweep(model, a) for j, a in drivers.items() if a is not None}
    for joint in joints:
        if joint in drivers or joint in couplings:
            continue
        head = tied[joint].driver if joint in tied else joint
        if head not in couplings and head not in drivers:
            coupling = _by_tendon(model, head, pulled, drivers) if not paths else None
            coupling = coupling or _by_sweep(model, head, paths)
            if coupling is None:  # nothing in the file moves it
                drivers[head] = None
            else:
                couplings[head] = coupling
        if joint != head:
            couplings[joint] = _chained(tied[joint], couplings.get(head))

    order = sorted(drivers, key=lambda j: (drivers[j] is None, drivers[j], j))
    return Drivetrain({j: drivers[j] for j in order}, couplings)


def _chained(coupling: Coupling, head: Coupling | None) -> Coupling:
    """Chain a coupling with that of its driver, if the driver follows another joint."""
    if head is None:
        return coupling
    factor, offset = coupling.factor * head.factor, coupling.factor * head.offset + coupling.offset
    return Coupling(head.driver, factor, offset, head.doubt)


def _tendons(model: mujoco.MjModel, joints: Sequence[int]) -> list[tuple[int, list[int]]]:
    """Return the actuators of tendons, with the joints that each tendon moves."""
    mujoco = import_mujoco()
    data: Any = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    moments = np.zeros((model.ntendon, model.nv))  # d length / d degree of freedom
    if model.ntendon:
        mujoco.mju_sparse2dense(
            moments, data.ten_J, model.ten_J_rownnz, model.ten_J_rowadr, model.ten_J_colind
        )
    pulled = []
    for i in np.flatnonzero(model.actuator_trntype == int(mujoco.mjtTrn.mjTRN_TENDON)).tolist():
        row = moments[int(model.actuator_trnid[i, 0])]
        if group := [j for j in joints if abs(row[model.jnt_dofadr[j]]) > 1e-9]:
            pulled.append((i, group))
    return pulled


def _fixed(model: mujoco.MjModel, actuator: int) -> bool:
    """Whether an actuator's tendon is a linear combination of joints, not a string over pulleys."""
    tendon = int(model.actuator_trnid[actuator, 0])
    wrap = int(model.wrap_type[model.tendon_adr[tendon]])
    return wrap == int(import_mujoco().mjtWrap.mjWRAP_JOINT)


def _tied(
    model: mujoco.MjModel, joints: Sequence[int], drivers: Sequence[int]
) -> dict[int, Coupling]:
    """Return the joints tied to others by equalities, preferably to a driver."""
    links: dict[int, list[tuple[int, float, float, str]]] = defaultdict(list)
    firsts = set()
    for i in np.flatnonzero(model.eq_type == int(import_mujoco().mjtEq.mjEQ_JOINT)):
        first, second = int(model.eq_obj1id[i]), int(model.eq_obj2id[i])
        if not {first, second} <= {*joints}:
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
    couplings: dict[int, Coupling] = {}
    for start in starts:
        if start in couplings:
            continue
        couplings[start] = Coupling(start, 1.0, 0.0)
        queue = [start]
        for joint in queue:
            for other, factor, offset, doubt in links[joint]:
                if other not in couplings:
                    one = _chained(Coupling(joint, factor, offset), couplings[joint])
                    couplings[other] = replace(one, doubt=doubt or one.doubt)
                    queue.append(other)
    return {joint: one for joint, one in couplings.items() if one.driver != joint}


def _by_tendon(
    model: mujoco.MjModel,
    joint: int,
    pulled: Sequence[tuple[int, list[int]]],
    drivers: dict[int, int | None],
) -> Coupling | None:
    """Couple joints pulled by one tendon alone in proportion to their ranges."""
    lower, upper = joint_ranges(model)
    for actuator, group in pulled:
        driver = next((j for j in group if drivers.get(j) == actuator), None)
        if joint not in group or driver is None:
            continue
        factor = float((upper[joint] - lower[joint]) / (upper[driver] - lower[driver]))
        name = model.tendon(int(model.actuator_trnid[actuator, 0])).name
        doubt = f"tendon {name} moves both; assumed: in proportion to their ranges"
        return Coupling(driver, factor, float(lower[joint] - factor * lower[driver]), doubt)
    return None


def sweep(model: mujoco.MjModel, actuator: int) -> Float[np.ndarray, "S J"]:
    """Return all joints at rest along the range of one actuator, without gravity and contact."""
    mujoco = import_mujoco()
    free = copy.copy(model)
    free.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONTACT)
    free.opt.gravity[:] = 0
    data: Any = mujoco.MjData(free)

    hinged = free.jnt_type >= int(mujoco.mjtJoint.mjJNT_SLIDE)
    rows = []
    low, high = free.actuator_ctrlrange[actuator].tolist()
    for value in np.linspace(low, high, _SWEEP_STEPS):
        data.ctrl[actuator] = value
        for step in range(int(_SETTLE_S / free.opt.timestep)):
            mujoco.mj_step(free, data)
            if step * free.opt.timestep > 0.1 and np.abs(data.qvel).max() < _REST_SPEED:
                break
        rows.append(np.where(hinged, data.qpos[free.jnt_qposadr], 0.0))
    return np.array(rows)


def _by_sweep(
    model: mujoco.MjModel, joint: int, paths: dict[int, Float[np.ndarray, "S J"]]
) -> Coupling | None:
    """Fit a line to a joint's motion by the driver that moves it most."""
    lower, upper = joint_ranges(model)
    if not paths:
        return None
    driver = max(paths, key=lambda j: float(np.ptp(paths[j][:, joint])))
    moves, follows = paths[driver][:, driver], paths[driver][:, joint]
    if abs(moves[-1] - moves[0]) < _LEAST_TRAVEL * (upper[driver] - lower[driver]):
        return None
    # Through the open and the closed hand: a tendon may bend one joint after the other.
    factor = float((follows[-1] - follows[0]) / (moves[-1] - moves[0]))
    offset = float(follows[0] - factor * moves[0])
    missed = float(np.abs(factor * moves + offset - follows).max())

    # The line must end within the joint's limits, or it would narrow the driver's.
    ends = factor * np.array([lower[driver], upper[driver]]) + offset
    ends = np.clip(ends, lower[joint], upper[joint])
    factor = float(np.diff(ends)[0] / (upper[driver] - lower[driver]))
    offset = float(ends[0] - factor * lower[driver])
    sliding, doubt = slides(model, joint), ""
    if missed > _LINE_TOLERANCE[sliding]:
        error = f"{missed * 1e3:.1f} mm" if sliding else f"{np.degrees(missed):.1f} deg"
        doubt = f"a line through the simulated open and closed hand, off by up to {error}"
    return Coupling(driver, factor, offset, doubt)
