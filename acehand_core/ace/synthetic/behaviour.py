"""What hands do, procedurally: rest, reach, grasp, lift, turn, put down, gesture, leave and return.

A ``Planner`` collects the keys of one hand. Fingers stay within ``hand.articulation``'s limits,
wrists within those of ``body``, and no keypoint of a key goes through the table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Float

from acehand_core.ace.synthetic import layout
from acehand_core.ace.synthetic.grasp_fit import OFF_M, SOFT, Grasp
from acehand_core.ace.synthetic.grasps import facing
from acehand_core.ace.synthetic.hand_geometry import GESTURES, Angles, HandPoints, gesture_angles
from acehand_core.ace.synthetic.layout import Prop
from acehand_core.ace.synthetic.script import (
    Body,
    HandKey,
    Hold,
    Vector,
    bent_within_limits,
    hand_path,
    prop_path,
)
from acehand_core.geometry import frames, rotations
from acehand_core.hand import articulation
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.types import Betas, RigidTransform, Rotation, Side

#: No keypoint of a key is nearer to the table than this.
_CLEAR_M = 0.012
_SPEED_M_S = 0.55
_Y, _Z = np.array([0.0, 1.0, 0.0]), np.array([0.0, 0.0, 1.0])
#: Over what is in the way: how much higher than both ends, how much nearer to the person.
_DETOURS = ((0.05, 0.0), (0.10, 0.0), (0.05, 0.10), (0.16, 0.0), (0.16, 0.10))


@dataclass
class Planner:
    """Keys of one hand as they are planned; ``time`` is the end of what is planned."""

    side: Side
    betas: Betas
    body: Body
    rng: np.random.Generator
    duration: float
    keys: list[HandKey] = field(default_factory=list)
    holds: list[Hold] = field(default_factory=list)
    T_world_prop: dict[str, RigidTransform] = field(default_factory=dict)
    #: Objects that stand in the way.
    obstacles: dict[str, tuple[Prop, RigidTransform]] = field(default_factory=dict)

    @property
    def outwards(self) -> float:
        """Sign of x on the hand's own side."""
        return -1.0 if self.side == "left" else 1.0

    @property
    def time(self) -> float:
        return self.keys[-1].time if self.keys else 0.0

    def facing(self, fingers: tuple[float, ...], back: tuple[float, ...]) -> Rotation:
        """Return an orientation given as for a right hand, shaken by some degrees."""
        return facing(self.side, self.rng, fingers, back)

    def again(self) -> Planner:
        """Return a planner of the same hand with nothing planned; it draws on from here."""
        return replace(self, keys=[], holds=[], T_world_prop={}, obstacles=dict(self.obstacles))

    def go(
        self, angles: Angles, wrist: Vector, R: Rotation, pace: float = 1.0, least: float = 0.2
    ) -> None:
        """Move there, over objects that are in the way; how long it takes follows from how far."""
        goal = self._possible(angles, wrist, R)
        if not self.keys:
            self.keys.append(goal)
            return

        last = self.keys[-1]
        route = [goal]

        half = rotations.exp(0.5 * rotations.log(goal.R_world_hand @ last.R_world_hand.T))
        for rise, back in _DETOURS:
            if self._clear_route(route):
                break
            over = 0.5 * (last.wrist_world + goal.wrist_world) - back * _Y
            over[2] = max(last.wrist_world[2], goal.wrist_world[2]) + rise
            between = 0.5 * (last.angles + goal.angles)
            route = [HandKey(0.0, between, over, half @ last.R_world_hand), goal]

        for key in route:
            self._key(key.angles, key.wrist_world, key.R_world_hand, pace, least)

    def _possible(self, angles: Angles, wrist: Vector, R: Rotation) -> HandKey:
        """Return the hand with its wrist within its limits and above the table."""
        forearm = wrist - self.body.elbow(self.side, wrist)
        R = bent_within_limits(self.side, R, forearm)
        wrist = wrist + _Z * max(0.0, _CLEAR_M - self.lowest(angles, wrist, R))
        return HandKey(0.0, angles, wrist, R)

    def _key(
        self, angles: Angles, wrist: Vector, R: Rotation, pace: float = 1.0, least: float = 0.2
    ) -> None:
        """Move there exactly."""
        last = self.keys[-1]
        far = float(np.linalg.norm(wrist - last.wrist_world))
        turn = float(rotations.angle_between(R[None], last.R_world_hand[None])[0])
        bent = float(np.abs(angles - last.angles).max())
        at = last.time + max(least, far / _SPEED_M_S, turn / 3.0, bent / 5.0) / pace
        self.keys.append(HandKey(at, angles, wrist, R))

    def _clear_route(self, route: list[HandKey]) -> bool:
        """Return whether the way from the last key along ``route`` stays out of all objects."""
        if not self.obstacles:
            return True
        keys = [*self.keys[-2:], *route]
        timed = [replace(key, time=float(i)) for i, key in enumerate(keys)]
        first = len(keys) - len(route) - 1
        times = np.linspace(first, len(keys) - 1, 1 + 7 * len(route))[1:]
        path = hand_path(tuple(timed), times)
        return self._clear(path.angles, path.T_world_hand)

    def _clear(self, angles: np.ndarray, T_world_hand: np.ndarray) -> bool:
        hand = HandPoints.of(self.side, self.betas).coarse
        R, wrist = T_world_hand[:, :3, :3], T_world_hand[:, :3, 3]
        points = hand.points(angles, R, wrist)
        return all(
            penetration(hand, points, prop, pose[None]) < 1e-4
            for prop, pose in self.obstacles.values()
        )

    def _free(self, draw: Callable[[], tuple[Angles, Vector, Rotation]]) -> HandKey:
        """Draw a hand until it is in no object, nearer and nearer to the person."""
        for number in range(12):
            angles, wrist, R = draw()
            key = self._possible(angles, wrist - 0.015 * number * _Y, R)
            T = frames.rigid(key.R_world_hand, key.wrist_world)
            if self._clear(key.angles[None], T[None]):
                break
        return key

    def stay(self, seconds: float) -> None:
        """Keep still, but for a tremor."""
        last = self.keys[-1]
        angles = last.angles + self.rng.normal(0, np.radians(1.0), 22)
        angles = np.clip(angles, *articulation.limits())
        wrist = last.wrist_world + self.rng.normal(0, 0.001, 3)
        self.keys.append(HandKey(last.time + seconds, angles, wrist, last.R_world_hand))

    def rest(self) -> None:
        """Lie on the table, before the person."""
        rng = self.rng

        def draw() -> tuple[Angles, Vector, Rotation]:
            at = [self.outwards * rng.uniform(0.08, 0.22), rng.uniform(-0.06, 0.06), 0.03]
            R = self.facing((-0.25, 1.0, -0.05), (0.15, 0.0, 1.0))
            return gesture_angles("relaxed", rng), np.array(at), R

        key = self._free(draw)
        self.go(key.angles, key.wrist_world, key.R_world_hand, pace=rng.uniform(0.7, 1.3))
        self.stay(rng.uniform(0.2, 0.6))

    def gesture(self, near: Vector | None = None) -> None:
        """Make one to three gestures in the air."""
        rng = self.rng

        def draw() -> tuple[Angles, Vector, Rotation]:
            at = rng.uniform([0.02, -0.04, 0.08], [0.2, 0.16, 0.25]) * [self.outwards, 1.0, 1.0]
            at = at if near is None else near + rng.normal(0, 0.03, 3)
            fingers = (rng.uniform(-0.9, 0.2), rng.uniform(0.3, 1.0), rng.uniform(-0.5, 0.7))
            back = (rng.uniform(-0.3, 1.0), rng.uniform(-0.8, 0.6), rng.uniform(-0.6, 1.0))
            return gesture_angles(str(rng.choice(GESTURES)), rng), at, self.facing(fingers, back)

        for _ in range(int(rng.integers(1, 4))):
            key = self._free(draw)
            self.go(key.angles, key.wrist_world, key.R_world_hand, rng.uniform(0.7, 1.4), 0.3)
            self.stay(rng.uniform(0.05, 0.3))

    def leave(self) -> None:
        """Go out of sight, to the lap or aside, for a while."""
        rng = self.rng
        aside = rng.random() < 0.5
        x, y = (rng.uniform(0.5, 0.7), rng.uniform(0.0, 0.2)) if aside else (0.22, -0.42)
        wrist = np.array([self.outwards * x, y, rng.uniform(0.05, 0.12)])
        R = self.facing((0.5 if aside else -0.2, 1.0, -0.1), (0.1, 0.0, 1.0))
        self.go(gesture_angles("relaxed", rng), wrist, R, pace=rng.uniform(1.0, 1.6))
        self.stay(rng.uniform(0.3, 1.0))

    def fill_time(self) -> None:
        """Rest, gesture and leave until the clip is over."""
        while self.time < self.duration:
            kind = int(self.rng.choice(3, p=[0.4, 0.3, 0.3]))
            (self.rest, self.gesture, self.leave)[kind]()

    def pick(self, prop: Prop, grasp: Grasp) -> None:
        """Take an object that stands on the table, move it about, perhaps let go of it."""
        rng, held = self.rng, grasp.held
        self.T_world_prop[prop.name] = grasp.T_world_prop
        self.obstacles[prop.name] = (prop, grasp.T_world_prop)
        self.come(grasp, rng.uniform(0.8, 1.3))
        self._key(held.angles, held.wrist, held.R, 1.0, 0.25)
        start = self.time
        self._key(held.angles, held.wrist, held.R, 1.0, 0.08)
        del self.obstacles[prop.name]
        T_hand_prop = frames.inverse(frames.rigid(held.R, held.wrist)) @ grasp.T_world_prop
        lift = held.wrist + np.array([0.0, -0.02, rng.uniform(0.05, 0.13)])
        self._carry(prop, T_hand_prop, held.angles, held.wrist + 0.02 * _Z, held.R)
        self._carry(prop, T_hand_prop, held.angles, lift, held.R)

        kept, moves = rng.random() < 0.35, int(rng.integers(1, 4))
        # What is kept is carried about until the clip is over.
        while moves > 0 or (kept and self.time < self.duration):
            moves -= 1
            move = rng.uniform(-1, 1, 3) * np.array([0.07, 0.05, 0.05])
            turn = rotations.exp(rng.normal(0, np.radians(28), 3))
            self._carry(
                prop, T_hand_prop, held.angles, lift + move, turn @ held.R, rng.uniform(0.7, 1.3)
            )

        if kept:
            self.holds.append(Hold(prop.name, self._slot, start, self.duration + 1))
            return

        # As it stood, elsewhere: the hand is turned as it was when it took it.
        shift = self._elsewhere(prop, grasp)
        down = held.wrist + shift
        self._key(held.angles, down + 0.03 * _Z, held.R, 1.0, 0.3)
        self._key(held.angles, down, held.R, 1.0, 0.25)
        self._key(held.angles, down, held.R, 1.0, 0.08)
        self.holds.append(Hold(prop.name, self._slot, start, self.time))
        self._let_go(grasp, shift)
        there = grasp.T_world_prop.copy()
        there[:3, 3] += shift
        self.obstacles[prop.name] = (prop, there)

    def share(self, prop: Prop, grasp: Grasp, carried: CarriedPath) -> None:
        """Hold one side of an object that is carried along a path, and let go of it."""
        held = grasp.held
        start, stop = float(carried.times[0]), float(carried.times[-1])
        T_prop_hand = frames.inverse(grasp.T_world_prop) @ frames.rigid(held.R, held.wrist)
        # Keys so close that both hands stay where they are on it.
        times = np.linspace(start, stop, 1 + round(30 * (stop - start)))
        for time in times:
            T = carried.at(float(time)) @ T_prop_hand
            self.keys.append(HandKey(float(time), held.angles, T[:3, 3], T[:3, :3]))
        there = carried.poses[-1]
        self.T_world_prop[prop.name] = grasp.T_world_prop
        if self.side == "right":  # one of the two says where it is
            self.holds.append(Hold(prop.name, self._slot, start, stop))
        self._let_go(grasp, there[:3, 3] - grasp.T_world_prop[:3, 3])
        self.obstacles[prop.name] = (prop, there)

    def come(self, grasp: Grasp, pace: float = 1.0) -> None:
        """Move to just before an object, open."""
        held = grasp.held
        off = held.wrist - OFF_M * grasp.approach
        self.go(grasp.opened, off, held.R, pace)
        # The wrist's limits were checked when the grasp was fitted.
        self.keys[-1] = replace(self.keys[-1], wrist_world=off, R_world_hand=held.R)
        # Straight in; a key between keeps what was sideways in the motion before out of it.
        self._key(grasp.opened, 0.5 * (off + grasp.before), held.R, 1.0, 0.15)
        self._key(grasp.opened, grasp.before, held.R, 1.0, 0.15)

    def _let_go(self, grasp: Grasp, shift: Vector) -> None:
        """Open and go back, from where the object was put down, so far from where it stood."""
        off = grasp.held.wrist - OFF_M * grasp.approach
        self._key(grasp.opened, grasp.before + shift, grasp.held.R, 1.0, 0.25)
        self._key(grasp.opened, 0.5 * (off + grasp.before) + shift, grasp.held.R, 1.0, 0.15)
        self._key(grasp.opened, off + shift, grasp.held.R, 1.2, 0.15)

    def _carry(
        self, prop: Prop, T_hand_prop: RigidTransform, angles: Angles, wrist: Vector, R: Rotation,
        pace: float = 1.0,
    ) -> None:  # fmt: skip
        """Move there with an object in the hand, which stays above the table."""
        key = self._possible(angles, wrist, R)
        T = frames.rigid(key.R_world_hand, key.wrist_world) @ T_hand_prop
        rise = _Z * max(0.0, 0.006 - layout.lowest(prop, T))
        self._key(angles, key.wrist_world + rise, key.R_world_hand, pace, 0.3)

    def _elsewhere(self, prop: Prop, grasp: Grasp) -> Vector:
        """Return how far from its place an object is put down, clear of others."""
        held = grasp.held
        for _ in range(6):
            shift = np.array([self.rng.uniform(-0.05, 0.05), self.rng.uniform(-0.03, 0.05), 0.0])
            there = grasp.T_world_prop[:2, 3] + shift[:2]
            others = [pose[:2, 3] for _, pose in self.obstacles.values()]
            if any(np.linalg.norm(there - other) < 0.14 for other in others):
                continue
            wrist = held.wrist + shift
            forearm = wrist - self.body.elbow(self.side, wrist)
            if np.allclose(bent_within_limits(self.side, held.R, forearm), held.R):
                return shift
        return np.zeros(3)

    def finish(self) -> tuple[HandKey, ...]:
        """Return the keys; a hand is still after the last."""
        return tuple(self.keys)

    @property
    def _slot(self) -> int:
        return 0 if self.side == "left" else 1

    def lowest(self, angles: Angles, wrist: Vector, R: Rotation) -> float:
        """Return the height of the lowest keypoint."""
        rest = CapsuleHand().rest_keypoints(self.side, self.betas)
        points, _ = articulation.keypoints_with_jacobian(angles[None], self.side, rest)
        return float((points[0] @ R.T)[:, 2].min() + wrist[2])


@dataclass(frozen=True, slots=True)
class CarriedPath:
    """Poses of an object at some times, smooth between."""

    times: np.ndarray
    poses: np.ndarray

    def at(self, time: float) -> RigidTransform:
        """Return the pose; still before the first and after the last."""
        i = int(np.clip(np.searchsorted(self.times, time, "right") - 1, 0, len(self.times) - 2))
        t = np.clip((time - self.times[i]) / (self.times[i + 1] - self.times[i]), 0, 1)
        t = t * t * (3 - 2 * t)
        a, b = self.poses[i], self.poses[i + 1]
        turn = rotations.log(a[:3, :3].T @ b[:3, :3])
        return frames.rigid(a[:3, :3] @ rotations.exp(t * turn), (1 - t) * a[:3, 3] + t * b[:3, 3])


def penetration(
    hand: HandPoints,
    points: Float[np.ndarray, "T N 3"],
    prop: Prop,
    T_world_prop: Float[np.ndarray, "*T 4 4"],
) -> float:
    """Return how deep a hand goes into an object, in metres, at the worst of T times.

    ``points``: those of ``hand`` in the world. A bone counts from ``SOFT`` of its flesh.
    """
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
    """Return how deep any hand goes into any object over the clip, in metres."""
    hands = (planners[0].finish(), planners[1].finish())
    times = np.arange(0.0, planners[0].duration, 1 / 30)
    paths = (hand_path(hands[0], times), hand_path(hands[1], times))
    T_world_prop = planners[0].T_world_prop | planners[1].T_world_prop
    holds = [*planners[0].holds, *planners[1].holds]
    moving = [
        prop_path(
            T_world_prop[prop.name], [h for h in holds if h.prop == prop.name], hands, paths, times
        )
        for prop in props
    ]

    worst = 0.0
    for planner, path in zip(planners, paths, strict=True):
        hand = HandPoints.of(planner.side, planner.betas)
        R, wrist = path.T_world_hand[:, :3, :3], path.T_world_hand[:, :3, 3]
        points = hand.points(path.angles, R, wrist)
        for prop, poses in zip(props, moving, strict=True):
            worst = max(worst, penetration(hand, points, prop, poses))

    return worst
