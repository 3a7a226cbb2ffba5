"""Scripts of clips: keyed hands, objects, camera and body, with smooth paths between keys.

World frame of ``layout``; metres, radians, seconds.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.interpolate import PchipInterpolator

from acehand_core.ace.synthetic.layout import Prop
from acehand_core.errors import SchemaError
from acehand_core.geometry import frames, rotations
from acehand_core.types import SIDES, RigidTransform, Rotation, Side

Times = Float[np.ndarray, "T"]
Vector = Float[np.ndarray, "3"]

Points = Float[np.ndarray, "*batch 3"]

#: Shoulder to elbow and elbow to wrist of an adult.
UPPER_ARM_M, FOREARM_M = 0.30, 0.26
#: A wrist bends about 80 degrees to the palm, 70 to the back, 20 to 35 sideways; one limit for all.
MAX_WRIST_BEND = np.radians(55.0)


@dataclass(frozen=True, slots=True)
class HandKey:
    """A hand at one time: the 22 angles of ``hand.articulation`` and the wrist in the world."""

    time: float
    angles: Float[np.ndarray, "22"]
    wrist_world: Vector
    R_world_hand: Rotation


@dataclass(frozen=True, slots=True)
class CameraKey:
    """The camera at one time: position, target, and roll about the line of sight."""

    time: float
    position_world: Vector
    target_world: Vector
    roll: float = 0.0


@dataclass(frozen=True, slots=True)
class WalkKey:
    """Displacement of the body at one time from its seat."""

    time: float
    shift_world: Vector


@dataclass(frozen=True, slots=True)
class Hold:
    """From ``start`` to ``stop`` an object moves rigidly with a hand."""

    prop: str
    slot: int
    start: float
    stop: float


@dataclass(frozen=True, slots=True)
class Script:
    """A short scene. A slot without keys has no hand; props rest at ``T_world_prop`` until held."""

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
    #: If given, elbows follow the wrists and ``elbows_world`` is ignored.
    body: Body | None = None
    #: The person's walk; the keys of the hands include it (``carried``).
    walk: tuple[WalkKey, ...] = ()

    def __post_init__(self) -> None:
        for keys in (*self.hands, self.cameras):
            times = [key.time for key in keys]
            if any(b <= a for a, b in itertools.pairwise(times)):
                raise SchemaError(f"Script {self.name!r}: key times must increase, got {times}.")
        if not self.cameras:
            raise SchemaError(f"Script {self.name!r} needs at least one camera key.")
        names, placed = {prop.name for prop in self.props}, set(self.T_world_prop)
        used = placed | {hold.prop for hold in self.holds}
        if not names == placed == used:
            raise SchemaError(
                f"Script {self.name!r}: props {sorted(names)} must be exactly those placed or "
                f"held, {sorted(used)}."
            )

    @property
    def timestamps_ns(self) -> Int[np.ndarray, "T"]:
        """Capture time of each frame, from 0."""
        frames = np.arange(round(self.duration * self.fps))
        return np.round(frames * 1e9 / self.fps).astype(np.int64)


@dataclass(frozen=True, slots=True)
class HandPath:
    """One hand over T frames."""

    angles: Float[np.ndarray, "T 22"]
    T_world_hand: Float[np.ndarray, "T 4 4"]  # the origin is the wrist keypoint


def hand_path(keys: tuple[HandKey, ...], times: Times) -> HandPath:
    """Return the hand at ``times`` (seconds), at rest before the first and after the last key."""
    turns = rotations.to_quaternion(np.stack([key.R_world_hand for key in keys]))
    for i in range(1, len(turns)):  # of q and -q the nearer one: the shorter path
        turns[i] *= np.sign(turns[i] @ turns[i - 1]) or 1.0
    turned = rotations.from_quaternion(_smooth([key.time for key in keys], turns, times))
    wrist = _path(keys, "wrist_world", times)
    return HandPath(_path(keys, "angles", times), frames.rigid(turned, wrist))


def elbow_path(
    script: Script, slot: int, path: HandPath, times: Times
) -> Float[np.ndarray, "*T 3"]:
    """Return the elbow in the world; one per frame if the script has a body."""
    if script.body is None:
        return script.elbows_world[slot]
    side, wrist = SIDES[slot], path.T_world_hand[:, :3, 3]
    fingers = path.T_world_hand[:, :3, 0] * (1.0 if side == "left" else -1.0)
    shift = walked(script.walk, times)
    elbow = script.body.elbow(side, wrist - shift) + shift
    return elbow_within_limits(elbow, wrist, fingers)


def walked(walk: tuple[WalkKey, ...], times: Times) -> Float[np.ndarray, "T 3"]:
    """Return the body's displacement at ``times``, 0 without keys."""
    return _path(walk, "shift_world", times) if walk else np.zeros((len(times), 3))


def carried(keys: tuple[HandKey, ...], walk: tuple[WalkKey, ...]) -> tuple[HandKey, ...]:
    """Return the keys of a hand that moves with its body, with a key wherever ``walk`` has one."""
    if not keys:
        return ()
    times = np.union1d([key.time for key in keys], [key.time for key in walk])
    path, shifts = hand_path(keys, times), walked(walk, times)
    return tuple(
        HandKey(float(t), angles, T[:3, 3] + shift, T[:3, :3])
        for t, angles, T, shift in zip(times, path.angles, path.T_world_hand, shifts, strict=True)
    )


def camera_path(keys: tuple[CameraKey, ...], times: Times) -> Float[np.ndarray, "T 4 4"]:
    """Return ``T_world_camera`` at ``times``: upright but for the roll, looking at the target."""
    position, roll = _path(keys, "position_world", times), _path(keys, "roll", times)
    forward = rotations.unit(_path(keys, "target_world", times) - position)
    right = rotations.unit(np.cross(forward, np.array([0.0, 0.0, 1.0])))
    upright = np.stack([right, np.cross(forward, right), forward], axis=-1)
    tilt = rotations.exp(np.stack([0 * roll, 0 * roll, roll], axis=-1))
    return frames.rigid(upright @ tilt, position)


def prop_paths(
    T_world_prop: Mapping[str, RigidTransform],
    holds: Sequence[Hold],
    hands: tuple[tuple[HandKey, ...], tuple[HandKey, ...]],
    paths: Sequence[HandPath | None],
    times: Times,
) -> dict[str, Float[np.ndarray, "T 4 4"]]:
    """Return the pose of each object: at rest, fixed to a hand, then where that hand left it."""
    moving = {
        name: np.repeat(rest[None], len(times), axis=0) for name, rest in T_world_prop.items()
    }

    rests = dict(T_world_prop)
    for hold in sorted(holds, key=lambda h: h.start):
        path, after = paths[hold.slot], times >= hold.start
        if path is None or not after.any():
            continue
        # The hand at both ends of the hold, whatever ``times`` are.
        ends = hand_path(hands[hold.slot], np.array([hold.start, hold.stop]))
        grasp = frames.inverse(ends.T_world_hand[0]) @ rests[hold.prop]
        rests[hold.prop] = ends.T_world_hand[1] @ grasp
        held = after & (times <= hold.stop)
        moving[hold.prop][after] = rests[hold.prop]
        moving[hold.prop][held] = path.T_world_hand[held] @ grasp
    return moving


def hand_rotation(side: Side, fingers: Vector, back: Vector) -> Rotation:
    """Return ``R_world_hand`` from directions of fingers and back, made orthogonal."""
    along = fingers / np.linalg.norm(fingers)
    up = back - (back @ along) * along
    up = up / np.linalg.norm(up)
    x = along if side == "left" else -along
    return np.stack([x, up, np.cross(x, up)], axis=-1)


def _path(keys: Sequence[Any], name: str, times: Times) -> np.ndarray:
    values = np.stack([getattr(key, name) for key in keys])
    return _smooth([key.time for key in keys], values, times)


def _smooth(at: list[float], values: Float[np.ndarray, "K *D"], times: Times) -> np.ndarray:
    """Interpolate without overshoot, at rest in every extreme as a hand is."""
    if len(at) == 1:
        return np.repeat(values, len(times), axis=0)
    return PchipInterpolator(at, values)(np.clip(times, at[0], at[-1]))


@dataclass(frozen=True, slots=True)
class Body:
    """A seated person."""

    shoulders_world: Float[np.ndarray, "2 3"]

    @classmethod
    def below(cls, head_world: Float[np.ndarray, "3"]) -> Body:
        """Return a body with its shoulders a little below and behind the camera."""
        shoulders = np.array([[-0.18, -0.06, -0.20], [0.18, -0.06, -0.20]])
        return cls(head_world + shoulders)

    def elbow(self, side: Side, wrist_world: Points) -> Points:
        """Return the elbow of an arm that reaches the wrist; the upper arm grows if needed."""
        outwards = -1.0 if side == "left" else 1.0
        shoulder = self.shoulders_world[SIDES.index(side)]
        reach = wrist_world - shoulder
        distance = np.linalg.norm(reach, axis=-1, keepdims=True)
        along = reach / distance

        # Law of cosines: the elbow's foot on the line to the wrist.
        reached = np.clip(distance, 0.08, 0.995 * (UPPER_ARM_M + FOREARM_M))
        foot = (UPPER_ARM_M**2 - FOREARM_M**2 + reached**2) / (2 * reached)
        rise = np.sqrt(np.maximum(UPPER_ARM_M**2 - foot**2, 0.0))
        pole = np.array([0.6 * outwards, -0.2, -1.0])
        pole = pole - np.sum(pole * along, axis=-1, keepdims=True) * along
        pole = rotations.unit(pole)
        elbow = shoulder + foot * along + rise * pole
        elbow[..., 2] = np.maximum(elbow[..., 2], 0.045)  # it rests on the table
        return elbow


def elbow_within_limits(elbow_world: Points, wrist_world: Points, fingers_world: Points) -> Points:
    """Return the elbow, moved until the wrist bends within its limits; ``fingers_world``: unit."""
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
    """Return the hand, turned to the forearm (from the elbow) until it bends by ``most``."""
    fingers = R_world_hand[:, 0] * (1.0 if side == "left" else -1.0)
    along = forearm_world / np.linalg.norm(forearm_world)
    axis = np.cross(fingers, along)
    sine = np.linalg.norm(axis)
    angle = np.arctan2(sine, fingers @ along)
    if angle <= most or sine < 1e-6:
        return R_world_hand
    return rotations.exp(axis / sine * (angle - most)) @ R_world_hand
