"""Who moves when: keyed hands, objects and camera, smooth paths between the keys, and the person.

World frame of ``layout``: z up, table at z = 0, y away from the person; metres, radians, seconds.
``Body`` has the person's shoulders and elbows, and says what a wrist can do.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int
from scipy.interpolate import PchipInterpolator

from acehand_core.ace.synthetic.layout import Prop
from acehand_core.errors import SchemaError
from acehand_core.geometry import frames, rotations
from acehand_core.types import SIDES, RigidTransform, Rotation, Side

Times = Float[np.ndarray, "T"]
Vector = Float[np.ndarray, "3"]


@dataclass(frozen=True, slots=True)
class HandKey:
    """A hand at one time: the 22 angles of ``hand.articulation`` and the wrist in the world."""

    time: float
    angles: Float[np.ndarray, "22"]
    wrist_world: Vector
    R_world_hand: Rotation


@dataclass(frozen=True, slots=True)
class CameraKey:
    """The camera at one time: where it is, what it looks at, its tilt about the line of sight."""

    time: float
    position_world: Vector
    target_world: Vector
    roll: float = 0.0


@dataclass(frozen=True, slots=True)
class WalkKey:
    """How far the body has gone at one time from where it was planned to sit."""

    time: float
    gone_world: Vector


@dataclass(frozen=True, slots=True)
class Hold:
    """From ``start`` to ``stop`` an object moves with a hand as if glued to it."""

    prop: str
    slot: int
    start: float
    stop: float


@dataclass(frozen=True, slots=True)
class Script:
    """A short scene. A slot without keys has no hand. Props rest at ``T_world_prop`` until held."""

    name: str
    duration: float
    fps: float
    hands: tuple[tuple[HandKey, ...], tuple[HandKey, ...]]
    cameras: tuple[CameraKey, ...]
    elbows_world: Float[np.ndarray, "2 3"]
    betas: Float[np.ndarray, "2 10"] = field(default_factory=lambda: np.zeros((2, 10)))
    props: tuple[Prop, ...] = ()
    T_world_prop: Mapping[str, RigidTransform] = field(default_factory=dict)
    holds: tuple[Hold, ...] = ()
    #: Where given, elbows follow the wrists and ``elbows_world`` is not read.
    body: Body | None = None
    #: Of somebody who walks. The keys of the hands have it in them (``carried``).
    walk: tuple[WalkKey, ...] = ()

    def __post_init__(self) -> None:
        for keys in (*self.hands, self.cameras):
            times = [key.time for key in keys]
            if any(b <= a for a, b in itertools.pairwise(times)):
                raise SchemaError(f"Script {self.name!r}: key times must increase, got {times}.")
        if not self.cameras:
            raise SchemaError(f"Script {self.name!r} needs at least one camera key.")
        names = {prop.name for prop in self.props}
        used = set(self.T_world_prop) | {hold.prop for hold in self.holds}
        if names != set(self.T_world_prop) or not used <= names:
            raise SchemaError(
                f"Script {self.name!r}: props {sorted(names)} must be exactly those placed or "
                f"held, {sorted(used)}."
            )

    @property
    def timestamps_ns(self) -> Int[np.ndarray, "T"]:
        """Capture time of each frame; the first is 0."""
        return np.round(np.arange(round(self.duration * self.fps)) * 1e9 / self.fps).astype(
            np.int64
        )


@dataclass(frozen=True, slots=True)
class HandPath:
    """One hand over T frames."""

    angles: Float[np.ndarray, "T 22"]
    T_world_hand: Float[np.ndarray, "T 4 4"]  # the origin is the wrist keypoint


def hand_path(keys: tuple[HandKey, ...], times: Times) -> HandPath:
    """Return the hand at ``times`` (seconds), still before the first and after the last key."""
    at = [key.time for key in keys]
    turns = rotations.to_quaternion(np.stack([key.R_world_hand for key in keys]))
    for i in range(1, len(turns)):  # the nearer of q and -q, so that the path is the short one
        turns[i] *= np.sign(turns[i] @ turns[i - 1]) or 1.0
    turned = rotations.from_quaternion(_smooth(at, turns, times))
    wrist = _smooth(at, np.stack([key.wrist_world for key in keys]), times)
    angles = _smooth(at, np.stack([key.angles for key in keys]), times)
    return HandPath(angles, frames.rigid(turned, wrist))


def elbow_path(
    script: Script, slot: int, path: HandPath, times: Times
) -> Float[np.ndarray, "*T 3"]:
    """Return the elbow in the world: one place, or one per frame where there is a body."""
    if script.body is None:
        return script.elbows_world[slot]
    side, wrist = SIDES[slot], path.T_world_hand[:, :3, 3]
    fingers = path.T_world_hand[:, :3, 0] * (1.0 if side == "left" else -1.0)
    gone = walked(script.walk, times)
    elbow = script.body.elbow(side, wrist - gone) + gone
    return elbow_within_limits(elbow, wrist, fingers)


def walked(walk: tuple[WalkKey, ...], times: Times) -> Float[np.ndarray, "T 3"]:
    """Return how far the body has gone at ``times``; nowhere without keys."""
    if not walk:
        return np.zeros((len(times), 3))
    return _smooth([key.time for key in walk], np.stack([key.gone_world for key in walk]), times)


def carried(keys: tuple[HandKey, ...], walk: tuple[WalkKey, ...]) -> tuple[HandKey, ...]:
    """Return the keys of a hand that its body carries along, with a key wherever ``walk`` has one.

    The hand's own motion between two keys is no slower for that: ``hand_path`` is sampled.
    """
    if not keys:
        return ()
    times = np.union1d([key.time for key in keys], [key.time for key in walk])
    path, gone = hand_path(keys, times), walked(walk, times)
    return tuple(
        HandKey(float(t), angles, T[:3, 3] + moved, T[:3, :3])
        for t, angles, T, moved in zip(times, path.angles, path.T_world_hand, gone, strict=True)
    )


def camera_path(keys: tuple[CameraKey, ...], times: Times) -> Float[np.ndarray, "T 4 4"]:
    """Return ``T_world_camera`` at ``times``: upright but for the roll, looking at the target."""
    at = [key.time for key in keys]
    position = _smooth(at, np.stack([key.position_world for key in keys]), times)
    target = _smooth(at, np.stack([key.target_world for key in keys]), times)
    roll = _smooth(at, np.array([[key.roll] for key in keys]), times)[:, 0]
    forward = target - position
    forward = forward / np.linalg.norm(forward, axis=1, keepdims=True)
    right = np.cross(forward, np.array([0.0, 0.0, 1.0]))
    right = right / np.linalg.norm(right, axis=1, keepdims=True)
    upright = np.stack([right, np.cross(forward, right), forward], axis=-1)
    tilt = rotations.exp(np.stack([0 * roll, 0 * roll, roll], axis=-1))
    return frames.rigid(upright @ tilt, position)


def prop_paths(
    script: Script, paths: tuple[HandPath | None, HandPath | None], times: Times
) -> dict[str, Float[np.ndarray, "T 4 4"]]:
    """Return where each object is: at rest, glued to a hand, then where that hand left it."""
    return {
        prop.name: prop_path(
            script.T_world_prop[prop.name],
            [hold for hold in script.holds if hold.prop == prop.name],
            script.hands, paths, times,
        )
        for prop in script.props
    }  # fmt: skip


def prop_path(
    T_world_prop: RigidTransform,
    holds: list[Hold],
    hands: tuple[tuple[HandKey, ...], tuple[HandKey, ...]],
    paths: tuple[HandPath | None, HandPath | None],
    times: Times,
) -> Float[np.ndarray, "T 4 4"]:
    """Return where one object is that stands at ``T_world_prop`` until it is held."""
    rest = T_world_prop
    poses = np.repeat(rest[None], len(times), axis=0)
    for hold in sorted(holds, key=lambda h: h.start):
        path = paths[hold.slot]
        after = times >= hold.start
        if path is None or not after.any():
            continue
        # From where the hand is at both ends of the hold, whichever times are asked for.
        ends = hand_path(hands[hold.slot], np.array([hold.start, hold.stop]))
        grasp = frames.inverse(ends.T_world_hand[0]) @ rest
        rest = ends.T_world_hand[1] @ grasp
        held = after & (times <= hold.stop)
        poses[after] = rest
        poses[held] = path.T_world_hand[held] @ grasp

    return poses


def hand_rotation(side: Side, fingers: Vector, back: Vector) -> Rotation:
    """Return ``R_world_hand`` whose straight fingers and back of the hand point as given.

    ``back`` need not be at a right angle to ``fingers``; only its part across them counts.
    """
    along = fingers / np.linalg.norm(fingers)
    up = back - (back @ along) * along
    up = up / np.linalg.norm(up)
    x = along if side == "left" else -along
    return np.stack([x, up, np.cross(x, up)], axis=-1)


def _smooth(at: list[float], values: Float[np.ndarray, "K D"], times: Times) -> np.ndarray:
    """Interpolate without overshoot; still at every extreme, as a hand is."""
    if len(at) == 1:
        return np.repeat(values, len(times), axis=0)
    return PchipInterpolator(at, values)(np.clip(times, at[0], at[-1]))


Points = Float[np.ndarray, "*batch 3"]

#: Shoulder to elbow and elbow to wrist of an adult.
UPPER_ARM_M, FOREARM_M = 0.30, 0.26
#: A wrist bends about 80 degrees towards the palm, 70 to the back, 20 to 35 sideways; one round
#: limit between them is used.
MAX_WRIST_BEND = np.radians(55.0)


@dataclass(frozen=True, slots=True)
class Body:
    """Where the person sits."""

    shoulders_world: Float[np.ndarray, "2 3"]

    @classmethod
    def below(cls, head_world: Float[np.ndarray, "3"]) -> Body:
        """Return a body whose shoulders are a little below and behind the camera."""
        shoulders = np.array([[-0.18, -0.06, -0.20], [0.18, -0.06, -0.20]])
        return cls(head_world + shoulders)

    def elbow(self, side: Side, wrist_world: Points) -> Points:
        """Return the elbow of an arm that reaches the wrist, bent down and outwards.

        A wrist beyond the arm's length gets a longer upper arm, which nobody sees.
        """
        outwards = -1.0 if side == "left" else 1.0
        shoulder = self.shoulders_world[SIDES.index(side)]
        reach = wrist_world - shoulder
        distance = np.linalg.norm(reach, axis=-1, keepdims=True)
        along = reach / distance

        # Law of cosines: how far along the line to the wrist the elbow's foot lies.
        reached = np.clip(distance, 0.08, 0.995 * (UPPER_ARM_M + FOREARM_M))
        foot = (UPPER_ARM_M**2 - FOREARM_M**2 + reached**2) / (2 * reached)
        rise = np.sqrt(np.maximum(UPPER_ARM_M**2 - foot**2, 0.0))
        pole = np.array([0.6 * outwards, -0.2, -1.0])
        pole = pole - np.sum(pole * along, axis=-1, keepdims=True) * along
        pole = pole / np.linalg.norm(pole, axis=-1, keepdims=True)
        elbow = shoulder + foot * along + rise * pole
        elbow[..., 2] = np.maximum(elbow[..., 2], 0.045)  # it rests on the table

        return elbow


def elbow_within_limits(elbow_world: Points, wrist_world: Points, fingers_world: Points) -> Points:
    """Return the elbow moved about the wrist to where the wrist need not bend too far.

    The hand's motion is what matters, and the upper arm is not drawn. ``fingers_world``: unit, the
    direction of the hand's straight fingers.
    """
    arm = wrist_world - elbow_world
    length = np.linalg.norm(arm, axis=-1, keepdims=True)
    axis = np.cross(arm / length, fingers_world)
    sine = np.linalg.norm(axis, axis=-1, keepdims=True)
    cosine = np.sum(arm / length * fingers_world, axis=-1, keepdims=True)
    excess = np.maximum(np.arctan2(sine, cosine) - MAX_WRIST_BEND, 0.0)
    turn = rotations.exp(axis / np.maximum(sine, 1e-9) * excess)
    return wrist_world - FOREARM_M * (turn @ (arm / length)[..., None])[..., 0]


def bent_within_limits(
    side: Side,
    R_world_hand: Rotation,
    forearm_world: Float[np.ndarray, "3"],
    most: float = MAX_WRIST_BEND,
) -> Rotation:
    """Return the hand turned towards the forearm where the wrist would bend by more than ``most``.

    ``forearm_world`` points from the elbow to the wrist.
    """
    fingers = R_world_hand[:, 0] * (1.0 if side == "left" else -1.0)
    along = forearm_world / np.linalg.norm(forearm_world)
    axis = np.cross(fingers, along)
    sine = np.linalg.norm(axis)
    angle = np.arctan2(sine, fingers @ along)
    if angle <= most or sine < 1e-6:
        return R_world_hand
    return rotations.exp(axis / sine * (angle - most)) @ R_world_hand
