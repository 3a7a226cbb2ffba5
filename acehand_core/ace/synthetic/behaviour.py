"""Procedural hand motion within the limits of fingers and wrists, above the table.

Hands rest, reach, grasp, lift, turn, put down, gesture, leave and return.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Float

from acehand_core.ace.synthetic import layout
from acehand_core.ace.synthetic.grasp_fit import OFF_M, SOFT, Grasp, GraspPose
from acehand_core.ace.synthetic.grasps import facing
from acehand_core.ace.synthetic.hand_geometry import GESTURES, HandPoints, gesture_angles
from acehand_core.ace.synthetic.layout import Prop
from acehand_core.ace.synthetic.script import (
    Body,
    HandKey,
    Hold,
    Vector,
    bent_within_limits,
    hand_path,
    prop_paths,
)
from acehand_core.geometry import frames, rotations
from acehand_core.hand import articulation
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.types import SIDES, Betas, RigidTransform, Side

#: Least height of a key's keypoints above the table.
_CLEAR_M = 0.012
_SPEED_M_S = 0.55
_Y, _Z = np.array([0.0, 1.0, 0.0]), np.array([0.0, 0.0, 1.0])
#: Detours: rise above both ends, and shift towards the person.
_DETOURS = ((0.05, 0.0), (0.10, 0.0), (0.05, 0.10), (0.16, 0.0), (0.16, 0.10))


@dataclass
class Planner:
    """Plans the keys of one hand; ``time`` is the end of the plan."""

    side: Side
    betas: Betas
    body: Body
    rng: np.random.Generator
    duration: float
    keys: list[HandKey] = field(default_factory=list)
    holds: list[Hold] = field(default_factory=list)
    T_world_prop: dict[str, RigidTransform] = field(default_factory=dict)
    obstacles: dict[str, tuple[Prop, RigidTransform]] = field(default_factory=dict)

    @property
    def outwards(self) -> float:
        """Sign of x on the hand's own side."""
        return -1.0 if self.side == "left" else 1.0

    @property
    def time(self) -> float:
        return self.keys[-1].time if self.keys else 0.0

    def again(self) -> Planner:
        """Return an empty planner of the same hand with the same random generator."""
        return replace(self, keys=[], holds=[], T_world_prop={}, obstacles=dict(self.obstacles))

    def go(self, pose: GraspPose, pace: float = 1.0, least: float = 0.2) -> None:
        """Move to a pose, around obstacles; the duration follows from the distance."""
        goal = self._possible(pose)
        if not self.keys:
            self.keys.append(HandKey(0.0, goal.angles, goal.wrist, goal.R))
            return

        last, route = self.keys[-1], [goal]
        half = rotations.exp(0.5 * rotations.log(goal.R @ last.R_world_hand.T))
        for rise, back in _DETOURS:
            if self._clear_route(route):
                break
            over = 0.5 * (last.wrist_world + goal.wrist) - back * _Y
            over[2] = max(last.wrist_world[2], goal.wrist[2]) + rise
            between = 0.5 * (last.angles + goal.angles)
            route = [GraspPose(between, half @ last.R_world_hand, over), goal]
        for step in route:
            self._key(step, least, pace)

    def _possible(self, pose: GraspPose) -> GraspPose:
        """Return a pose with its wrist within its limits and its keypoints above the table."""
        forearm = pose.wrist - self.body.elbow(self.side, pose.wrist)
        R = bent_within_limits(self.side, pose.R, forearm)
        rest = CapsuleHand().rest_keypoints(self.side, self.betas)
        points, _ = articulation.keypoints_with_jacobian(pose.angles[None], self.side, rest)
        lowest = float((points[0] @ R.T)[:, 2].min() + pose.wrist[2])
        return GraspPose(pose.angles, R, pose.wrist + _Z * max(0.0, _CLEAR_M - lowest))

    def _key(self, pose: GraspPose, least: float, pace: float = 1.0) -> None:
        """Move exactly to a pose."""
        last = self.keys[-1]
        far = float(np.linalg.norm(pose.wrist - last.wrist_world))
        turn = float(rotations.angle_between(pose.R[None], last.R_world_hand[None])[0])
        bent = float(np.abs(pose.angles - last.angles).max())
        at = last.time + max(least, far / _SPEED_M_S, turn / 3.0, bent / 5.0) / pace
        self.keys.append(HandKey(at, pose.angles, pose.wrist, pose.R))

    def _clear_route(self, route: list[GraspPose]) -> bool:
        """Whether the way from the last key along ``route`` is free of objects."""
        if not self.obstacles:
            return True
        keys = [replace(key, time=float(i)) for i, key in enumerate(self.keys[-2:])]
        first = len(keys) - 1
        for pose in route:
            keys.append(HandKey(float(len(keys)), pose.angles, pose.wrist, pose.R))
        times = np.linspace(first, len(keys) - 1, 1 + 7 * len(route))[1:]
        path = hand_path(tuple(keys), times)
        return self._clear(path.angles, path.T_world_hand)

    def _clear(self, angles: np.ndarray, T_world_hand: np.ndarray) -> bool:
        hand = HandPoints.of(self.side, self.betas).coarse
        points = hand.points(angles, T_world_hand[:, :3, :3], T_world_hand[:, :3, 3])
        return all(
            penetration(hand, points, prop, pose[None]) < 1e-4
            for prop, pose in self.obstacles.values()
        )

    def _free(self, draw: Callable[[], GraspPose]) -> GraspPose:
        """Draw a pose until it touches no object, ever nearer to the person."""
        for number in range(12):
            drawn = draw()
            pose = self._possible(replace(drawn, wrist=drawn.wrist - 0.015 * number * _Y))
            if self._clear(pose.angles[None], frames.rigid(pose.R, pose.wrist)[None]):
                break
        return pose

    def stay(self, seconds: float) -> None:
        """Keep still with a slight tremor."""
        last = self.keys[-1]
        angles = last.angles + self.rng.normal(0, np.radians(1.0), 22)
        angles = np.clip(angles, *articulation.limits())
        wrist = last.wrist_world + self.rng.normal(0, 0.001, 3)
        self.keys.append(HandKey(last.time + seconds, angles, wrist, last.R_world_hand))

    def rest(self) -> None:
        """Rest on the table in front of the person."""
        rng = self.rng

        def draw() -> GraspPose:
            at = [self.outwards * rng.uniform(0.08, 0.22), rng.uniform(-0.06, 0.06), 0.03]
            R = facing(self.side, rng, (-0.25, 1.0, -0.05), (0.15, 0.0, 1.0))
            return GraspPose(gesture_angles("relaxed", rng), R, np.array(at))

        self.go(self._free(draw), rng.uniform(0.7, 1.3))
        self.stay(rng.uniform(0.2, 0.6))

    def gesture(self, near: Vector | None = None) -> None:
        """Make one to three gestures in the air."""
        rng = self.rng

        def draw() -> GraspPose:
            at = rng.uniform([0.02, -0.04, 0.08], [0.2, 0.16, 0.25]) * [self.outwards, 1.0, 1.0]
            at = at if near is None else near + rng.normal(0, 0.03, 3)
            fingers = (rng.uniform(-0.9, 0.2), rng.uniform(0.3, 1.0), rng.uniform(-0.5, 0.7))
            back = (rng.uniform(-0.3, 1.0), rng.uniform(-0.8, 0.6), rng.uniform(-0.6, 1.0))
            angles = gesture_angles(str(rng.choice(GESTURES)), rng)
            return GraspPose(angles, facing(self.side, rng, fingers, back), at)

        for _ in range(int(rng.integers(1, 4))):
            self.go(self._free(draw), rng.uniform(0.7, 1.4), 0.3)
            self.stay(rng.uniform(0.05, 0.3))

    def leave(self) -> None:
        """Leave the view for a while, to the lap or sideways."""
        rng = self.rng
        aside = rng.random() < 0.5
        x, y = (rng.uniform(0.5, 0.7), rng.uniform(0.0, 0.2)) if aside else (0.22, -0.42)
        wrist = np.array([self.outwards * x, y, rng.uniform(0.05, 0.12)])
        R = facing(self.side, rng, (0.5 if aside else -0.2, 1.0, -0.1), (0.1, 0.0, 1.0))
        self.go(GraspPose(gesture_angles("relaxed", rng), R, wrist), rng.uniform(1.0, 1.6))
        self.stay(rng.uniform(0.3, 1.0))

    def fill_time(self) -> None:
        """Rest, gesture and leave until the clip ends."""
        while self.time < self.duration:
            kind = int(self.rng.choice(3, p=[0.4, 0.3, 0.3]))
            (self.rest, self.gesture, self.leave)[kind]()

    def pick(self, prop: Prop, grasp: Grasp) -> None:
        """Take an object from the table, move it and perhaps put it down."""
        rng, held = self.rng, grasp.held
        self.T_world_prop[prop.name] = grasp.T_world_prop
        self.obstacles[prop.name] = (prop, grasp.T_world_prop)
        self.come(grasp, rng.uniform(0.8, 1.3))
        self._key(held, 0.25)
        start = self.time
        self._key(held, 0.08)
        del self.obstacles[prop.name]
        T_hand_prop = frames.inverse(frames.rigid(held.R, held.wrist)) @ grasp.T_world_prop
        lift = np.array([0.0, -0.02, rng.uniform(0.05, 0.13)])
        lifted = replace(held, wrist=held.wrist + lift)
        self._carry(prop, T_hand_prop, replace(held, wrist=held.wrist + 0.02 * _Z))
        self._carry(prop, T_hand_prop, lifted)

        kept, moves = rng.random() < 0.35, int(rng.integers(1, 4))
        # A kept object is carried until the clip ends.
        while moves > 0 or (kept and self.time < self.duration):
            moves -= 1
            move = rng.uniform(-1, 1, 3) * np.array([0.07, 0.05, 0.05])
            turned = rotations.exp(rng.normal(0, np.radians(28), 3)) @ held.R
            moved = GraspPose(held.angles, turned, lifted.wrist + move)
            self._carry(prop, T_hand_prop, moved, rng.uniform(0.7, 1.3))

        slot = SIDES.index(self.side)
        if kept:
            self.holds.append(Hold(prop.name, slot, start, self.duration + 1))
            return

        # Put down elsewhere, in the orientation of the grasp.
        shift = self._elsewhere(prop, grasp)
        down = replace(held, wrist=held.wrist + shift)
        self._key(replace(held, wrist=down.wrist + 0.03 * _Z), 0.3)
        self._key(down, 0.25)
        self._key(down, 0.08)
        self.holds.append(Hold(prop.name, slot, start, self.time))
        self._let_go(grasp, shift)
        T_world_prop = grasp.T_world_prop.copy()
        T_world_prop[:3, 3] += shift
        self.obstacles[prop.name] = (prop, T_world_prop)

    def share(self, prop: Prop, grasp: Grasp, times: np.ndarray, poses: np.ndarray) -> None:
        """Hold one side of an object along smoothly joined ``poses`` at ``times``; let go of it."""
        held, start, stop = grasp.held, float(times[0]), float(times[-1])
        T_prop_hand = frames.inverse(grasp.T_world_prop) @ frames.rigid(held.R, held.wrist)
        # Dense keys keep both hands in place on the object.
        for time in np.linspace(start, stop, 1 + round(30 * (stop - start))).tolist():
            T = _pose_between(times, poses, time) @ T_prop_hand
            self.keys.append(HandKey(time, held.angles, T[:3, 3], T[:3, :3]))
        last = poses[-1]
        self.T_world_prop[prop.name] = grasp.T_world_prop
        if self.side == "right":  # one of the two hands holds it in the script
            self.holds.append(Hold(prop.name, 1, start, stop))
        self._let_go(grasp, last[:3, 3] - grasp.T_world_prop[:3, 3])
        self.obstacles[prop.name] = (prop, last)

    def come(self, grasp: Grasp, pace: float = 1.0) -> None:
        """Approach an object with an open hand."""
        held = grasp.held
        off = GraspPose(grasp.opened, held.R, held.wrist - OFF_M * grasp.approach)
        self.go(off, pace)
        # The wrist's limits were checked when the grasp was fitted.
        self.keys[-1] = replace(self.keys[-1], wrist_world=off.wrist, R_world_hand=held.R)
        # Straight in: the key in between removes sideways motion.
        self._key(replace(off, wrist=0.5 * (off.wrist + grasp.before)), 0.15)
        self._key(replace(off, wrist=grasp.before), 0.15)

    def _let_go(self, grasp: Grasp, shift: Vector) -> None:
        """Open and retreat from an object that was put down ``shift`` away from its place."""
        off = grasp.held.wrist - OFF_M * grasp.approach
        opened = GraspPose(grasp.opened, grasp.held.R, grasp.before + shift)
        self._key(opened, 0.25)
        self._key(replace(opened, wrist=0.5 * (off + grasp.before) + shift), 0.15)
        self._key(replace(opened, wrist=off + shift), 0.15, 1.2)

    def _carry(
        self, prop: Prop, T_hand_prop: RigidTransform, pose: GraspPose, pace: float = 1.0
    ) -> None:
        """Move to a pose with an object in the hand that stays above the table."""
        pose = self._possible(pose)
        T = frames.rigid(pose.R, pose.wrist) @ T_hand_prop
        rise = _Z * max(0.0, 0.006 - layout.lowest(prop, T))
        self._key(replace(pose, wrist=pose.wrist + rise), 0.3, pace)

    def _elsewhere(self, prop: Prop, grasp: Grasp) -> Vector:
        """Return the shift to a free place for putting an object down."""
        held = grasp.held
        for _ in range(6):
            shift = np.array([self.rng.uniform(-0.05, 0.05), self.rng.uniform(-0.03, 0.05), 0.0])
            place = grasp.T_world_prop[:2, 3] + shift[:2]
            others = [pose[:2, 3] for _, pose in self.obstacles.values()]
            if any(np.linalg.norm(place - other) < 0.14 for other in others):
                continue
            wrist = held.wrist + shift
            forearm = wrist - self.body.elbow(self.side, wrist)
            if np.allclose(bent_within_limits(self.side, held.R, forearm), held.R):
                return shift
        return np.zeros(3)


def _pose_between(times: np.ndarray, poses: np.ndarray, time: float) -> RigidTransform:
    """Return the pose at ``time`` on a smooth path, at rest before the first and after the last."""
    i = int(np.clip(np.searchsorted(times, time, "right") - 1, 0, len(times) - 2))
    t = np.clip((time - times[i]) / (times[i + 1] - times[i]), 0, 1)
    t = t * t * (3 - 2 * t)
    a, b = poses[i], poses[i + 1]
    turn = rotations.log(a[:3, :3].T @ b[:3, :3])
    return frames.rigid(a[:3, :3] @ rotations.exp(t * turn), (1 - t) * a[:3, 3] + t * b[:3, 3])


def penetration(
    hand: HandPoints,
    points: Float[np.ndarray, "T N 3"],
    prop: Prop,
    T_world_prop: Float[np.ndarray, "*T 4 4"],
) -> float:
    """Return the largest depth, in metres, of a hand's world ``points`` in an object at T times."""
    local = (points - T_world_prop[:, None, :3, 3]) @ T_world_prop[:, :3, :3]
    reach = np.abs(layout.corners(prop)).max(0) + 0.03
    if prop.kind == "mug":
        reach = reach + np.array([0.03, 0.0, 0.0])
    near = (np.abs(local) < reach).all(-1)
    if not near.any():
        return 0.0
    away, _ = layout.distance(prop, np.eye(4), local[near])
    flesh = np.broadcast_to(hand.flesh, near.shape)[near]
    return float(max(0.0, (SOFT * flesh - away).max()))


def deepest(planners: list[Planner], props: list[Prop]) -> float:
    """Return the largest depth, in metres, of any hand in any object over the clip."""
    left, right = planners
    times = np.arange(0.0, left.duration, 1 / 30)
    hands = tuple(left.keys), tuple(right.keys)
    paths = [hand_path(keys, times) for keys in hands]
    placed, holds = left.T_world_prop | right.T_world_prop, [*left.holds, *right.holds]
    moving = prop_paths(placed, holds, hands, paths, times)

    worst = 0.0
    for planner, path in zip(planners, paths, strict=True):
        hand = HandPoints.of(planner.side, planner.betas)
        R, wrist = path.T_world_hand[:, :3, :3], path.T_world_hand[:, :3, 3]
        points = hand.points(path.angles, R, wrist)
        for prop in props:
            worst = max(worst, penetration(hand, points, prop, moving[prop.name]))
    return worst
