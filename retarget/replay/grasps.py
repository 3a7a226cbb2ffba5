"""Grasps of tracked objects, repeated in MuJoCo: the object is free, the hand follows its commands.

One grasp is one simulation, in a frame with z up: the object starts where it was tracked, on a
plane under its lowest point. The hand's base is pulled to its poses by a spring of limited force,
as by an arm; its joints are driven as in ``simulate``. Both hands holding one object, and objects
that are pushed without being lifted, are left out.

Contact settings matter: with MuJoCo's default stiffness fingers sink into objects by a centimetre,
and with ``impratio`` 1 held objects creep out of the hand.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from acehand_core.errors import InputError
from acehand_core.geometry import frames, rotations
from acehand_core.hand.skeleton import TIPS, WRIST
from acehand_core.motion import (
    GraspFault,
    GraspReport,
    HandMotion,
    ObjectTrack,
    TrackedObject,
    runs,
)
from acehand_core.mujoco_gl import import_mujoco, quiet_mujoco
from acehand_core.types import SIDES, RigidTransform
from retarget.replay.checks import Measure
from retarget.robots.hand_spec import Commands, HandSpec
from retarget.robots.robot import Robot

if TYPE_CHECKING:
    import mujoco

Poses = Float[np.ndarray, "T 4 4"]
Joints = Float[np.ndarray, "T 2 21 3"]

#: Limits of a held object's pose.
POSE_M, POSE_DEG = 0.03, 30.0
#: An object moves if it goes further than this in ``_MOVE_S``, is lifted if it rises by ``LIFT_M``.
_MOVE_M, _MOVE_RAD, _MOVE_S = 0.005, np.radians(4), 0.1
LIFT_M, _REST_S = 0.02, 0.3
#: Simulated before the object moves.
_LEAD_S = 0.6
#: A hand holds an object in whose frame its wrist keeps within this, a fingertip this near.
_STEADY_M, _NEAR_M = 0.025, 0.03
#: A spring of this frequency pulls a wrist of this mass and inertia, with limited force.
_PULL_RAD_S, _WRIST_KG, _WRIST_KG_M2 = 100.0, 1.5, 0.006
_FORCE_N, _TORQUE_NM = 60.0, 6.0
#: Of rubber pads on hard objects: contact stiffness, torsional and rolling friction (m).
_SOLREF, _TWIST_M, _ROLL_M, _IMPRATIO = (0.004, 1.0), 0.005, 1e-4, 100.0
_PUSHED_M = 0.015
#: Radius of the ball that measures distances of points.
_PROBE_M = 1e-4
_PREFIX = "hand/"


@dataclass(frozen=True, slots=True, eq=False)
class Grasp:
    """A human grasp: frames ``first`` to ``last``, in which an object moves with a hand.

    ``T_frame_object`` are the object's poses in all frames, NaN where unknown.
    """

    object: TrackedObject
    slot: int
    first: int
    last: int
    T_frame_object: Poses


def find_grasps(
    track: ObjectTrack, times_ns: np.ndarray, fps: float, joints: Joints
) -> tuple[Grasp, ...]:
    """Return the grasps in which one hand lifts an object; ``joints``: human, in its frame."""
    grasps = []
    for item in track.objects:
        poses = item.at(times_ns)
        height = poses[:, :3, 3] @ track.up
        for first, last in _moves(poses, height, fps):
            known = np.isfinite(poses[first : last + 1]).all()
            if not known or np.ptp(height[first : last + 1]) < LIFT_M:
                continue
            span = slice(first, last + 1)
            radius = _reach(item)
            holds = [_holds(poses[span], joints[span, slot], radius) for slot in (0, 1)]
            if sum(holds) == 1:
                grasps.append(Grasp(item, holds.index(True), first, last, poses))
    return tuple(sorted(grasps, key=lambda grasp: grasp.first))


def _moves(poses: Poses, height: Float[np.ndarray, "T"], fps: float) -> Iterator[tuple[int, int]]:
    """Yield first and last frames of motion, joined over short pauses and those in the air."""
    window = max(1, round(_MOVE_S * fps))
    step = np.linalg.norm(poses[window:, :3, 3] - poses[:-window, :3, 3], axis=1)
    turn = rotations.angle_between(poses[window:, :3, :3], poses[:-window, :3, :3])
    moving = np.zeros(len(poses), bool)
    for start in np.flatnonzero((step > _MOVE_M) | (turn > _MOVE_RAD)):
        moving[start : start + window + 1] = True

    run: tuple[int, int] | None = None
    for first, stop in runs(moving):
        last = stop - 1
        if run and (first - run[1] < _REST_S * fps or height[run[1]] > height[run[0]] + LIFT_M):
            run = run[0], last
            continue
        if run:
            yield run
        run = first, last
    if run:
        yield run


def _holds(poses: Poses, joints: Float[np.ndarray, "T 21 3"], radius: float) -> bool:
    """Whether a hand is steady to the object, a fingertip near it."""
    if not np.isfinite(joints[:, [WRIST, *TIPS]]).all((1, 2)).mean() > 0.8:
        return False
    wrist = frames.apply(frames.inverse(poses), joints[:, WRIST])
    tips = np.linalg.norm(joints[:, TIPS] - poses[:, None, :3, 3], axis=-1).min(1)
    spread = np.linalg.norm(wrist - np.nanmedian(wrist, axis=0), axis=1)
    return bool(np.nanmedian(spread) < _STEADY_M and np.nanmedian(tips) < radius + _NEAR_M)


def _reach(item: TrackedObject) -> float:
    """Return the radius of a ball around an object's origin that contains it."""
    spec = import_mujoco().MjSpec()
    add_object(spec, item)
    model = spec.compile()
    return float((np.linalg.norm(model.geom_pos, axis=1) + model.geom_rbound).max())


def add_object(spec: mujoco.MjSpec, item: TrackedObject) -> list[str]:
    """Add a free body of an object's mass to a scene; return the names of its geoms."""
    mujoco = import_mujoco()
    body = spec.worldbody.add_body(name="object")
    body.add_freejoint()
    names = []
    for number, part in enumerate(item.parts):
        names.append(f"object {number}")
        shape: dict[str, Any] = {}
        if part.mesh is not None:
            spec.add_mesh(name=names[-1], file=part.mesh, scale=[part.size[0]] * 3)
            shape["meshname"] = names[-1]
        else:
            shape["size"] = [*part.size, 0.0, 0.0][:3]
        body.add_geom(
            name=names[-1],
            type=getattr(mujoco.mjtGeom, f"mjGEOM_{part.shape.upper()}"),
            pos=list(part.position),
            quat=list(rotations.to_quaternion(rotations.from_rpy(np.array(part.rpy)))),
            density=1.0,
            solref=_SOLREF,
            friction=[item.friction, _TWIST_M, _ROLL_M],
            condim=4,
            priority=1,
            **shape,
        )
    return names


class GraspScene:
    """A hand, an object and the plane under it; z is up."""

    def __init__(self, hand: HandSpec, item: TrackedObject) -> None:
        self._mujoco: Any = import_mujoco()
        self.hand = hand
        mujoco, spec = self._mujoco, self._mujoco.MjSpec()
        child = mujoco.MjSpec.from_file(str(hand.mjcf_path))
        spec.option.timestep = child.option.timestep
        spec.option.integrator = child.option.integrator
        spec.option.cone = mujoco.mjtCone.mjCONE_ELLIPTIC
        spec.option.impratio = _IMPRATIO
        spec.compiler.conflict = mujoco.mjtConflict.mjCONFLICT_MERGE
        child.option.gravity = spec.option.gravity

        plane = mujoco.mjtGeom.mjGEOM_PLANE
        # MuJoCo 4.0 throws up a cylinder whose axis is the plane's normal to all but rounding.
        tilt = [1.0, 5e-6, 5e-6, 0.0]
        support = spec.worldbody.add_body(name="support", mocap=True, quat=tilt)
        support.add_geom(
            name="support", type=plane, size=[1, 1, 0.1], solref=_SOLREF, friction=[1, _TWIST_M, 0]
        )
        probe = spec.worldbody.add_body(name="probe", mocap=True)
        probe.add_geom(name="probe", size=[_PROBE_M, 0, 0], contype=0, conaffinity=0)
        names = add_object(spec, item)
        inertia = [_WRIST_KG_M2] * 3
        mount = spec.worldbody.add_body(name="mount", mass=_WRIST_KG, inertia=inertia)
        mount.add_freejoint()
        spec.attach(child, frame=mount.add_frame(), prefix=_PREFIX)
        for body in spec.bodies[1:]:
            body.gravcomp = float(body.name != "object")

        self.model = spec.compile()
        self.data = mujoco.MjData(self.model)
        self._timestep = float(self.model.opt.timestep)
        self._object, self._mount = (self.model.body(name).id for name in ("object", "mount"))
        share = item.mass_kg / self.model.body_mass[self._object]
        self.model.body_mass[self._object] *= share
        self.model.body_inertia[self._object] *= share
        mujoco.mj_setConst(self.model, self.data)

        self._qpos = self._ids("joint", hand.joint_names, "qposadr")
        self._ctrl = self._ids("actuator", hand.command_names, "id")
        self._free = {
            body: self.model.jnt_qposadr[self.model.body_jntadr[body]]
            for body in (self._object, self._mount)
        }
        self._probe = int(self.model.geom("probe").id)
        self.support = int(self.model.geom("support").id)
        self.object_geoms = np.array([self.model.geom(name).id for name in names])
        solid = self.model.geom_contype + self.model.geom_conaffinity > 0
        self._of_hand = self.model.body_rootid[self.model.geom_bodyid] == self._mount
        self.hand_geoms = np.flatnonzero(solid & self._of_hand).tolist()
        self._target = hand.rest

    def _ids(self, kind: str, names: Sequence[str], field: str) -> np.ndarray:
        entries = (getattr(self.model, kind)(_PREFIX + self.hand.full_name(n)) for n in names)
        return np.array([np.ravel(getattr(entry, field))[0] for entry in entries], int)

    def fingertip(self, finger: int) -> list[int]:
        """Return the geoms of a finger's last link that has some."""
        name = _PREFIX + self.hand.full_name(self.hand.tip_names[finger])
        model, objects = self.model, self._mujoco.mjtObj
        site = self._mujoco.mj_name2id(model, objects.mjOBJ_SITE, name)
        link = int(model.site_bodyid[site]) if site >= 0 else int(model.body(name).id)
        while not (geoms := [g for g in self.hand_geoms if model.geom_bodyid[g] == link]):
            link = int(model.body_parentid[link])
        return geoms

    def pose(self, command: np.ndarray, T_base: RigidTransform, T_object: RigidTransform) -> None:
        """Place hand and object, without dynamics."""
        self.data.qpos[self._qpos] = self.hand.expand(command)
        for body, pose in ((self._object, T_object), (self._mount, T_base)):
            at = self._free[body]
            self.data.qpos[at : at + 3] = pose[:3, 3]
            self.data.qpos[at + 3 : at + 7] = rotations.to_quaternion(pose[:3, :3])
        self._mujoco.mj_kinematics(self.model, self.data)

    def start(self, command: np.ndarray, T_base: RigidTransform, T_object: RigidTransform) -> None:
        """Put everything at rest, and the plane under the object."""
        self._mujoco.mj_resetData(self.model, self.data)
        self.data.mocap_pos[0, 2] = -1.0 + T_object[2, 3]
        self.pose(command, T_base, T_object)
        self.data.mocap_pos[0, 2] += min(
            self.distance(geom, self.support, 2.0)[0] for geom in self.object_geoms
        )
        self.data.ctrl[self._ctrl] = self._target = command
        self._mujoco.mj_forward(self.model, self.data)

    def distance(self, a: int, b: int, limit: float) -> tuple[float, Float[np.ndarray, "2 3"]]:
        """Return the signed distance of two geoms, at most ``limit``, and the nearest points."""
        points = np.zeros(6)
        away = self._mujoco.mj_geomDistance(self.model, self.data, int(a), int(b), limit, points)
        return float(away), points.reshape(2, 3)

    def to_object(self, geom: int, limit: float) -> tuple[float, Float[np.ndarray, "3"]]:
        """Return the signed distance of a geom from the object and the object's nearest point."""
        centres, radii = self.data.geom_xpos, self.model.geom_rbound
        apart = np.linalg.norm(centres[self.object_geoms] - centres[geom], axis=1)
        close = apart - radii[self.object_geoms] - radii[geom] < limit
        best = limit, centres[self.object_geoms[int(np.argmin(apart))]]
        for other in self.object_geoms[close]:
            away, points = self.distance(geom, other, best[0])
            if away < best[0]:
                best = away, points[1]
        return best

    def point_to_object(self, point: np.ndarray) -> tuple[float, Float[np.ndarray, "3"]]:
        """Return a point's signed distance from the object, if small, and the nearest point."""
        self.data.mocap_pos[1] = point
        self._mujoco.mj_kinematics(self.model, self.data)
        return self.to_object(self._probe, 0.1)

    def advance(self, commands: Commands, T_base: Float[np.ndarray, "2 4 4"], span: float) -> None:
        """Simulate from one frame to the next, ``span`` seconds; both have two rows."""
        model, data = self.model, self.data
        steps = max(1, math.ceil(span / self._timestep - 1e-6))
        model.opt.timestep = span / steps
        stride = self.hand.command_velocity * model.opt.timestep
        turn = rotations.log(T_base[1, :3, :3] @ T_base[0, :3, :3].T)
        shares = np.arange(1, steps + 1)[:, None] / steps
        turns = rotations.exp(shares * turn) @ T_base[0, :3, :3]
        places = T_base[0, :3, 3] + shares * (T_base[1, :3, 3] - T_base[0, :3, 3])
        speed = (T_base[1, :3, 3] - T_base[0, :3, 3]) / span
        wanted = commands[0] + shares * (commands[1] - commands[0])

        for command, place, R in zip(wanted, places, turns, strict=True):
            self._target = self._target + np.clip(command - self._target, -stride, stride)
            data.ctrl[self._ctrl] = self._target
            data.xfrc_applied[self._mount] = self._pull(place, R, speed, turn / span)
            self._mujoco.mj_step(model, data)

    def _pull(
        self, place: np.ndarray, R: np.ndarray, speed: np.ndarray, spin: np.ndarray
    ) -> Float[np.ndarray, "6"]:
        """Return the force and torque of the arm on the wrist: a damped spring with limits."""
        data, mount, first = self.data, self._mount, self.model.body_dofadr[self._mount]
        turned = data.xmat[mount].reshape(3, 3)
        stiff, damp = _PULL_RAD_S**2, 2 * _PULL_RAD_S
        velocity = data.qvel[first : first + 3], turned @ data.qvel[first + 3 : first + 6]
        force = stiff * (place - data.xpos[mount]) + damp * (speed - velocity[0])
        torque = stiff * rotations.log(R @ turned.T) + damp * (spin - velocity[1])
        force = force * self.model.body_subtreemass[mount]
        torque = torque * _WRIST_KG_M2
        force *= min(1.0, _FORCE_N / max(float(np.linalg.norm(force)), 1e-9))
        torque *= min(1.0, _TORQUE_NM / max(float(np.linalg.norm(torque)), 1e-9))
        return np.concatenate([force, torque])

    def state(self) -> _State:
        """Return what a frame is judged by."""
        data = self.data
        pairs = data.contact.geom[: data.ncon]
        ours = np.isin(pairs, self.object_geoms)
        other = np.where(ours[:, 0], pairs[:, 1], pairs[:, 0])
        touching = ours.any(1) & self._of_hand[other]
        force, normal = np.zeros(6), 0.0
        for contact in np.flatnonzero(touching):
            self._mujoco.mj_contactForce(self.model, data, contact, force)
            normal += abs(float(force[0]))
        return _State(
            self._pose_of(self._object),
            self._pose_of(self._mount),
            hand=bool(touching.any()),
            support=bool((ours.any(1) & (other == self.support)).any()),
            depth=float(max(0.0, -data.contact.dist[: data.ncon][touching].min(initial=0.0))),
            force=normal,
            stable=not data.warning.number.any() and bool(np.isfinite(data.qpos).all()),
        )

    def _pose_of(self, body: int) -> RigidTransform:
        turn = self.data.xmat[body].reshape(3, 3).copy()
        return frames.rigid(turn, self.data.xpos[body].copy())


@dataclass(frozen=True, slots=True, eq=False)
class _State:
    """The simulation at a frame; ``hand``, ``support``: they touch the object."""

    T_object: RigidTransform
    T_base: RigidTransform
    hand: bool
    support: bool
    depth: float
    force: float
    stable: bool


def upright(up: Float[np.ndarray, "3"]) -> RigidTransform:
    """Return the rotation of a frame to one with z up."""
    return frames.rigid(rotations.between(up, np.array([0.0, 0.0, 1.0])), np.zeros(3))


def in_frame(motion: HandMotion, frame: str, track: ObjectTrack) -> Joints:
    """Return the human joints in the frame of base poses and objects, which must be one.

    Raises InputError.
    """
    if track.frame != frame:
        bases = {
            "none": "the hands have no place",
            "camera": "the recording has no camera poses (`camera_poses`)",
            "world": "the recording has camera poses",
        }[frame]
        raise InputError(f"`objects` in the {track.frame} frame cannot be used: {bases}.")
    if frame == "camera":
        return motion.joints_camera
    assert motion.T_world_camera is not None
    return frames.apply(motion.T_world_camera[:, None], motion.joints_camera)


def replay_grasps(
    robot: Robot,
    grasps: Sequence[Grasp],
    commands: Float[np.ndarray, "T 2 C"],
    T_frame_base: Float[np.ndarray, "T 2 4 4"],
    fps: float,
    up: Float[np.ndarray, "3"],
) -> tuple[GraspReport, ...]:
    """Simulate every grasp, see ``replay_grasp``."""
    reports = []
    for grasp in grasps:
        scene = GraspScene(robot.hand(SIDES[grasp.slot]), grasp.object)
        drive, bases = commands[:, grasp.slot], T_frame_base[:, grasp.slot]
        reports.append(replay_grasp(scene, grasp, drive, bases, fps, upright(up)))
    return tuple(reports)


def grasp_measure(reports: Sequence[GraspReport]) -> Measure:
    """Return the share of grasps that fail, and why."""
    failed = [report for report in reports if report.fault is not None]
    text = f"{len(failed)} of {len(reports)} grasps fail in simulation"
    if failed:
        text += ": " + ", ".join(
            f"{r.object} of the {r.side} hand, frames {r.first} to {r.last}, {r.fault}"
            for r in failed
        )
    return Measure(
        "grasps", len(failed) / len(reports), text, frame=failed[0].last if failed else None
    )


def replay_grasp(
    scene: GraspScene,
    grasp: Grasp,
    commands: Commands,
    T_frame_base: Poses,
    fps: float,
    T_up_frame: RigidTransform,
) -> GraspReport:
    """Simulate a grasp and judge it; ``commands`` and bases are those of all T frames."""
    first = max(0, grasp.first - round(_LEAD_S * fps))
    known = np.isfinite(grasp.T_frame_object[first : grasp.first]).all((1, 2))
    first = grasp.first - int(np.argmin(known[::-1])) if not known.all() else first
    rows = slice(first, grasp.last + 1)
    tracked, bases = T_up_frame @ grasp.T_frame_object[rows], T_up_frame @ T_frame_base[rows]
    drive = commands[rows]

    with quiet_mujoco():
        scene.start(drive[0], bases[0], tracked[0])
        states = [scene.state()]
        for frame in range(1, len(drive)):
            pair = slice(frame - 1, frame + 1)
            scene.advance(drive[pair], bases[pair], 1 / fps)
            states.append(scene.state())
            if not states[-1].stable:
                break
    return _judged(grasp, states, tracked[: len(states)], grasp.first - first)


def _judged(grasp: Grasp, states: Sequence[_State], tracked: Poses, begins: int) -> GraspReport:
    objects = np.stack([state.T_object for state in states])
    in_hand = np.stack([frames.inverse(state.T_base) @ state.T_object for state in states])
    hand = np.array([state.hand for state in states])
    support = np.array([state.support for state in states])
    error = np.linalg.norm(objects[:, :3, 3] - tracked[:, :3, 3], axis=1)
    angle = np.degrees(rotations.angle_between(objects[-1, :3, :3], tracked[-1, :3, :3]))

    in_air = tracked[:, 2, 3] > tracked[0, 2, 3] + LIFT_M
    in_air[:begins] = False
    lifted = in_air & hand & ~support
    held = bool(lifted.any() and not (in_air & support).any() and not (in_air & ~hand)[-1])
    since = int(np.argmax(lifted))
    forces = [state.force for state, up in zip(states, lifted, strict=True) if up]
    fault: GraspFault | None = None
    if not states[-1].stable:
        fault = "unstable"
    elif held:
        fault = None if error[-1] < POSE_M and angle < POSE_DEG else "turned"
    elif error[: begins + 1].max() > _PUSHED_M:
        fault = "pushed away"
    elif not hand.any():
        fault = "not touched"
    else:
        fault = "dropped" if lifted.any() else "not lifted"

    return GraspReport(
        object=grasp.object.name,
        side=SIDES[grasp.slot],
        first=grasp.first,
        last=grasp.last,
        lifted=bool(lifted.any()),
        held=held and fault != "unstable",
        position_error_m=float(error[-1]),
        angle_error_deg=float(angle),
        slip_m=float(np.linalg.norm(in_hand[-1, :3, 3] - in_hand[since, :3, 3])),
        penetration_m=max(state.depth for state in states),
        force_n=float(np.median(forces)) if forces else 0.0,
        fault=fault,
    )
