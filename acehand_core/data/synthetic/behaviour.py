"""What hands do, procedurally: rest, reach, grip, lift, turn, put down, gesture, leave and return.

A ``Planner`` collects the keys of one hand. Fingers stay within ``hand.articulation``'s limits,
wrists within those of ``body``, and no keypoint of a key goes through the table.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import numpy as np

from acehand_core.data.synthetic.body import Body, bent_within_limits
from acehand_core.data.synthetic.furnish import Prop
from acehand_core.data.synthetic.grasp import Angles, bend, bend_more, pinch
from acehand_core.data.synthetic.script import HandKey, Hold, Vector, hand_rotation
from acehand_core.geometry import frames, rotations
from acehand_core.hand import articulation
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.types import Betas, RigidTransform, Rotation, Side

#: From a keypoint to the skin on the palm's side: at a fingertip, and at a knuckle.
_PAD_M, _PALM_M = 0.008, 0.020
#: No keypoint of a key is nearer to the table than this.
_CLEAR_M = 0.012
_SPEED_M_S = 0.55
_Z = np.array([0.0, 0.0, 1.0])
_GESTURES = ("flat", "fist", "point", "two", "spread", "thumb", "claw", "relaxed")


def closing(amount: float) -> Angles:
    """Return a hand closed by ``amount``: 0 open, 1 around a pencil."""
    c = amount
    return bend(
        fingers_mcp_flex=10 + 58 * c, fingers_pip_flex=14 + 82 * c, fingers_dip_flex=6 + 48 * c,
        thumb_cmc_twist=38.0, thumb_cmc_spread=14 - 10 * c, thumb_cmc_flex=-6 + 30 * c,
        thumb_mcp_flex=8 + 34 * c, thumb_ip_flex=8 + 40 * c,
    )  # fmt: skip


def enclose(side: Side, betas: Betas, radius: float) -> tuple[Angles, Vector]:
    """Return angles around something round, and its middle relative to the wrist, hand axes.

    Its axis runs across the palm, from the little finger to the thumb's side (the hand's z).
    """
    rest = CapsuleHand().rest_keypoints(side, betas)
    amounts = np.linspace(0.05, 1.0, 20)
    angles = np.stack([closing(float(a)) for a in amounts])
    points, _ = articulation.keypoints_with_jacobian(angles, side, rest)
    knuckle = points[:, [5, 9, 13]].mean(1) + np.array([0.0, _PAD_M - _PALM_M, 0.0])
    ring = np.stack(
        [knuckle, *(points[:, [k, k + 4, k + 8]].mean(1) for k in (6, 7, 8)), points[:, 4]], axis=1
    )
    fits = [_circle(one[:, :2]) for one in ring]
    radii = np.array([fit[2] for fit in fits]) - _PAD_M
    best = int(np.argmin(np.abs(radii - radius)))
    middle = np.array([fits[best][0], fits[best][1], points[best, [5, 9, 13], 2].mean()])
    return angles[best], middle


def _circle(points: np.ndarray) -> tuple[float, float, float]:
    """Fit centre and radius to points (N, 2), algebraically."""
    rows = np.concatenate([2 * points, np.ones((len(points), 1))], axis=1)
    x, y, rest = np.linalg.lstsq(rows, (points**2).sum(1), rcond=None)[0]
    return float(x), float(y), float(np.sqrt(max(rest + x * x + y * y, 1e-8)))


def gesture_angles(name: str, rng: np.random.Generator) -> Angles:
    """Return the fingers of a gesture, varied a little."""
    shape = {
        "flat": dict(fingers_mcp_flex=2, fingers_pip_flex=3, fingers_dip_flex=2),
        "fist": dict(fingers_mcp_flex=78, fingers_pip_flex=96, fingers_dip_flex=60,
                     thumb_mcp_flex=40, thumb_ip_flex=45, thumb_cmc_flex=20),
        "point": dict(middle_mcp_flex=70, middle_pip_flex=90, ring_mcp_flex=75, ring_pip_flex=90,
                      pinky_mcp_flex=75, pinky_pip_flex=85, index_mcp_flex=5, index_pip_flex=5,
                      thumb_mcp_flex=35, thumb_ip_flex=30),
        "two": dict(ring_mcp_flex=75, ring_pip_flex=90, pinky_mcp_flex=75, pinky_pip_flex=88,
                    index_mcp_spread=10, middle_mcp_spread=-8, thumb_mcp_flex=40),
        "spread": dict(fingers_mcp_flex=0, fingers_pip_flex=4, index_mcp_spread=15,
                       middle_mcp_spread=3, ring_mcp_spread=-8, pinky_mcp_spread=-20,
                       thumb_cmc_spread=30),
        "thumb": dict(fingers_mcp_flex=72, fingers_pip_flex=92, fingers_dip_flex=50,
                      thumb_cmc_spread=30, thumb_mcp_flex=0, thumb_ip_flex=-10),
        "claw": dict(fingers_mcp_flex=10, fingers_pip_flex=62, fingers_dip_flex=40),
        "relaxed": {},
    }[name]  # fmt: skip
    base = bend(**shape)
    return np.clip(base + rng.normal(0, np.radians(5), base.shape), *articulation.limits())


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
    placed: dict[str, RigidTransform] = field(default_factory=dict)

    @property
    def out(self) -> float:
        """Sign of x on the hand's own side."""
        return -1.0 if self.side == "left" else 1.0

    @property
    def time(self) -> float:
        return self.keys[-1].time if self.keys else 0.0

    def facing(self, fingers: tuple[float, ...], back: tuple[float, ...]) -> Rotation:
        """Return an orientation given as for a right hand, shaken by some degrees."""
        mirror = np.array([self.out, 1.0, 1.0])
        shake = rotations.exp(self.rng.normal(0, np.radians(7), 3))
        return shake @ hand_rotation(self.side, mirror * np.array(fingers), mirror * np.array(back))

    def go(
        self, angles: Angles, wrist: Vector, R: Rotation, pace: float = 1.0, least: float = 0.2
    ) -> None:
        """Move there; how long it takes follows from how far it is."""
        forearm = wrist - self.body.elbow(self.side, wrist)
        R = bent_within_limits(self.side, R, forearm)
        wrist = wrist + _Z * max(0.0, _CLEAR_M - self.lowest(angles, wrist, R))
        at = 0.0
        if self.keys:
            last = self.keys[-1]
            far = float(np.linalg.norm(wrist - last.wrist_world))
            turn = float(rotations.angle_between(R[None], last.R_world_hand[None])[0])
            bent = float(np.abs(angles - last.angles).max())
            at = last.time + max(least, far / _SPEED_M_S, turn / 3.0, bent / 5.0) / pace
        self.keys.append(HandKey(at, angles, wrist, R))

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
        wrist = np.array([self.out * rng.uniform(0.08, 0.22), rng.uniform(-0.06, 0.06), 0.03])
        R = self.facing((-0.25, 1.0, -0.05), (0.15, 0.0, 1.0))
        self.go(gesture_angles("relaxed", rng), wrist, R, pace=rng.uniform(0.7, 1.3))
        self.stay(rng.uniform(0.2, 0.6))

    def gesture(self, near: Vector | None = None) -> None:
        """Make one to three gestures in the air."""
        rng = self.rng
        for _ in range(int(rng.integers(1, 4))):
            wrist = np.array(
                [
                    self.out * rng.uniform(0.02, 0.2),
                    rng.uniform(-0.04, 0.16),
                    rng.uniform(0.08, 0.25),
                ]
            )
            wrist = wrist if near is None else near + rng.normal(0, 0.03, 3)
            fingers = (rng.uniform(-0.9, 0.2), rng.uniform(0.3, 1.0), rng.uniform(-0.5, 0.7))
            back = (rng.uniform(-0.3, 1.0), rng.uniform(-0.8, 0.6), rng.uniform(-0.6, 1.0))
            angles = gesture_angles(str(rng.choice(_GESTURES)), rng)
            self.go(angles, wrist, self.facing(fingers, back), rng.uniform(0.7, 1.4), 0.3)
            self.stay(rng.uniform(0.05, 0.3))

    def leave(self) -> None:
        """Go out of sight, to the lap or aside, for a while."""
        rng = self.rng
        aside = rng.random() < 0.5
        x, y = (rng.uniform(0.5, 0.7), rng.uniform(0.0, 0.2)) if aside else (0.22, -0.42)
        wrist = np.array([self.out * x, y, rng.uniform(0.05, 0.12)])
        R = self.facing((0.5 if aside else -0.2, 1.0, -0.1), (0.1, 0.0, 1.0))
        self.go(gesture_angles("relaxed", rng), wrist, R, pace=rng.uniform(1.0, 1.6))
        self.stay(rng.uniform(0.3, 1.0))

    def pick(self, prop: Prop, at: Vector) -> None:
        """Take an object that stands at ``at`` (on the table), move it about, perhaps let go."""
        rng, grip = self.rng, self._grip(prop, at)
        self.placed[prop.name] = grip.T_world_prop
        opened = bend_more(grip.angles, fingers_mcp_flex=-18, fingers_pip_flex=-16,
                           thumb_cmc_flex=-14, thumb_cmc_spread=8)  # fmt: skip
        back = grip.wrist - 0.055 * grip.approach
        self.go(opened, back, grip.R, rng.uniform(0.8, 1.3))
        self.go(grip.angles, grip.wrist, grip.R, 1.0, 0.25)
        start = self.time
        self.stay(0.08)
        grip_at = self.keys[-1]
        self.keys[-1] = HandKey(grip_at.time, grip.angles, self.keys[-2].wrist_world,
                                self.keys[-2].R_world_hand)  # fmt: skip
        held, base = self.keys[-1], self.keys[-1].wrist_world
        lift = base + np.array([0.0, -0.02, rng.uniform(0.05, 0.13)])
        self.go(held.angles, lift, held.R_world_hand, 1.0, 0.3)
        for _ in range(int(rng.integers(1, 4))):
            move = rng.uniform(-1, 1, 3) * np.array([0.07, 0.05, 0.05])
            turn = rotations.exp(rng.normal(0, np.radians(28), 3))
            self.go(held.angles, lift + move, turn @ held.R_world_hand, rng.uniform(0.7, 1.3), 0.3)
        if rng.random() < 0.35:  # keeps it
            self.holds.append(Hold(prop.name, self._slot, start, self.duration + 1))
            return
        down = base + np.array([rng.uniform(-0.05, 0.05), rng.uniform(-0.03, 0.05), 0.0])
        self.go(held.angles, down + 0.03 * _Z, held.R_world_hand)
        self.go(held.angles, down, held.R_world_hand)
        self.holds.append(Hold(prop.name, self._slot, start, self.time))
        self.go(opened, down - 0.05 * grip.approach, held.R_world_hand, 1.2)

    def finish(self) -> tuple[HandKey, ...]:
        """Return the keys; a hand is still after the last."""
        return tuple(self.keys)

    @property
    def _slot(self) -> int:
        return 0 if self.side == "left" else 1

    def lowest(self, angles: Angles, wrist: Vector, R: Rotation) -> float:
        """Return the height of the lowest keypoint."""
        rest = _rest(self.side, self.betas.tobytes())
        points, _ = articulation.keypoints_with_jacobian(angles[None], self.side, rest)
        return float((points[0] @ R.T)[:, 2].min() + wrist[2])

    def _grip(self, prop: Prop, at: Vector) -> Grip:
        if prop.kind == "box":
            return self._pinched(prop, at)
        return self._enclosed(prop, at)

    def _pinched(self, prop: Prop, at: Vector) -> Grip:
        R = self.facing((-0.30, 0.93, -0.15), (0.25, 0.0, 1.0))
        middle = at + _Z * prop.size[2]
        # Within the wrist's limits before the grip is solved: the object stands as it is gripped.
        R = bent_within_limits(self.side, R, middle - self.body.elbow(self.side, middle))
        angles, wrist, heading = pinch(
            self.side, self.betas, R, middle + _Z * 0.4 * prop.size[2], 2 * prop.size[0]
        )
        wrist = wrist + _Z * max(0.0, _CLEAR_M - self.lowest(angles, wrist, R))
        pose = frames.rigid(rotations.exp(heading * _Z), middle)
        return Grip(angles, wrist, R, pose, R @ np.array([-self.out, -0.4, 0.0]))

    def _enclosed(self, prop: Prop, at: Vector) -> Grip:
        radius = prop.size[0]
        if prop.kind in ("ball", "bowl"):
            R = self.facing((-0.25, 0.85, -0.45), (0.25, 0.25, 1.0))
            centre = at + _Z * (radius if prop.kind == "ball" else prop.size[1])
            radius = min(radius, 0.042)
            standing = at + _Z * prop.size[0] if prop.kind == "ball" else at
        else:
            R = self.facing((-0.45, 0.9, 0.0), (0.85, 0.45, 0.15))
            centre = at + _Z * max(0.55 * prop.size[1], 0.05)
            standing = at
        R = bent_within_limits(self.side, R, centre - self.body.elbow(self.side, centre))
        angles, middle = enclose(self.side, self.betas, radius)
        wrist = centre - R @ middle
        wrist = wrist + _Z * max(0.0, _CLEAR_M - self.lowest(angles, wrist, R))
        pose = frames.rigid(rotations.exp(self.rng.uniform(-3, 3) * _Z), standing)
        return Grip(angles, wrist, R, pose, R @ np.array([-self.out, -0.8, 0.0]))


@dataclass(frozen=True, slots=True)
class Grip:
    """A grip and the object in it; ``approach``: where the hand comes in to, unit-ish."""

    angles: Angles
    wrist: Vector
    R: Rotation
    T_world_prop: RigidTransform
    approach: Vector


@functools.lru_cache(maxsize=64)
def _rest(side: Side, betas: bytes) -> np.ndarray:
    return CapsuleHand().rest_keypoints(side, np.frombuffer(betas))
