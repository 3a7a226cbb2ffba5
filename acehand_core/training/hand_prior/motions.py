"""Motions of right hands to learn from: generated clips, and hands that move at random.

A left hand is kept as its mirror image.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
from jaxtyping import Bool, Float
from scipy.interpolate import PchipInterpolator

from acehand_core.geometry import rotations
from acehand_core.hand import articulation
from acehand_core.hand.articulation import MIRROR
from acehand_core.synthetic.episode import SynthOptions, make_episode
from acehand_core.synthetic.hand_geometry import GESTURES, gesture_angles
from acehand_core.synthetic.script import camera_path, hand_path
from acehand_core.types import SIDES

#: Motions are kept at this rate and lie so many frames long.
RATE_HZ, FRAMES = 60, 480
#: From the fastest to the slowest pace at which one is played; at 30 frames per second.
PACES = 0.4, 1.8
#: How often a generated motion is seen from its own head, and a random one taken at all.
FROM_HEAD, RANDOM = 0.5, 0.55
#: Nearest keypoint to a camera, m.
NEAREST_M = 0.15


@dataclass(frozen=True, slots=True)
class Motions:
    """N motions of ``FRAMES`` frames; ``head``: the camera is one on a head, else it hangs free."""

    angles: Float[np.ndarray, "N F 22"]
    hand: Float[np.ndarray, "N F 4"]  # quaternions, hand to world
    wrist_world: Float[np.ndarray, "N F 3"]
    camera: Float[np.ndarray, "N F 4"]  # quaternions, camera to world
    eye_world: Float[np.ndarray, "N F 3"]
    betas: Float[np.ndarray, "N 10"]
    head: Bool[np.ndarray, "N"]

    def __add__(self, other: Motions) -> Motions:
        names = [field.name for field in fields(self)]
        return Motions(*(np.concatenate([getattr(self, n), getattr(other, n)]) for n in names))


@dataclass(frozen=True, slots=True)
class Views:
    """B stretches of T frames at 30 per second, as a camera sees them."""

    angles: Float[np.ndarray, "B T 22"]
    R_camera_hand: Float[np.ndarray, "B T 3 3"]
    wrist_camera: Float[np.ndarray, "B T 3"]
    R_camera_world: Float[np.ndarray, "B T 3 3"]
    betas: Float[np.ndarray, "B 10"]


def generated(seed: int, clips: int, progress: Callable[[int], None]) -> Motions:
    """Return the hands of ``clips`` clips of ``acehand synth``."""
    options = SynthOptions(frames=FRAMES // 2 + 1, cameras="pinhole")
    times = np.arange(FRAMES) / RATE_HZ
    rows = []
    for index in range(clips):
        script = make_episode(seed, index, options).script
        T_world_camera = camera_path(script.cameras, times)
        for side, keys, betas in zip(SIDES, script.hands, script.betas, strict=True):
            if not keys:
                continue
            path = hand_path(keys, times)
            flip = MIRROR if side == "left" else np.ones(3)
            hand, camera = (
                rotations.to_quaternion(T[:, :3, :3] * flip[:, None] * flip)
                for T in (path.T_world_hand, T_world_camera)
            )
            places = (T[:, :3, 3] * flip for T in (path.T_world_hand, T_world_camera))
            wrist, eye = places
            rows.append((path.angles, hand, wrist, camera, eye, betas, True))
        progress(index + 1)
    return Motions(*(np.stack(column) for column in zip(*rows, strict=True)))


def random_motions(rng: np.random.Generator, count: int) -> Motions:
    """Return hands that go from one random posture, place and orientation to another."""
    times = np.arange(FRAMES) / RATE_HZ
    rows = []
    for _ in range(count):
        steps = rng.uniform(0.2, 1.2, 60) * np.exp(rng.normal(0, 0.4))
        at = np.concatenate([[0.0], np.cumsum(steps)])
        at = at[: np.searchsorted(at, times[-1]) + 1]
        angles = np.stack([_posture(rng) for _ in at])
        for i in np.flatnonzero(rng.random(len(at) - 1) < 0.2):
            angles[i + 1] = angles[i]  # fingers rest
        swing = rng.choice([0.1, 0.5, 0.75], (len(at), 1))
        hand = _walk(rng.normal(0, swing, (len(at), 3)), rng)
        camera = _walk(rng.normal(0, 0.1, (len(at), 3)) * rng.choice([0, 0, 1]), rng)
        step = rng.normal(0, 0.06, (len(at), 3)) * rng.choice([0.3, 1, 1.5], (len(at), 1))
        wrist = np.cumsum(step, axis=0)
        smooth = [PchipInterpolator(at, keys)(times) for keys in (angles, hand, wrist, camera)]
        betas = np.clip(rng.normal(0, 1, 10), -2.5, 2.5)
        rows.append((*smooth, np.zeros((FRAMES, 3)), betas, False))
    return Motions(*(np.stack(column) for column in zip(*rows, strict=True)))


def views(rng: np.random.Generator, motions: Motions, count: int, frames: int) -> Views:
    """Return stretches of the motions at some pace, forwards or backwards, seen from somewhere."""
    of_heads, free = np.flatnonzero(motions.head), np.flatnonzero(~motions.head)
    rows = []
    for _ in range(count):
        take_free = len(of_heads) == 0 or (len(free) > 0 and rng.random() < RANDOM)
        row = rng.choice(free if take_free else of_heads)
        low, high = PACES
        step = RATE_HZ / 30 * low * (high / low) ** rng.random()
        step = min(step, (FRAMES - 2) / frames)
        at = rng.uniform(0, FRAMES - 1 - step * (frames - 1)) + step * np.arange(frames)
        if rng.random() < 0.5:
            at = at[::-1]
        rows.append(_view(rng, motions, int(row), at))
    return Views(*(np.stack(column) for column in zip(*rows, strict=True)))


def _view(
    rng: np.random.Generator, motions: Motions, row: int, at: Float[np.ndarray, "T"]
) -> tuple[np.ndarray, ...]:
    angles, wrist, eye = (
        _between(values[row], at)
        for values in (motions.angles, motions.wrist_world, motions.eye_world)
    )
    R_world_hand, R_world_camera = (
        rotations.from_quaternion(_between(values[row], at))
        for values in (motions.hand, motions.camera)
    )
    betas = np.clip(motions.betas[row] + rng.normal(0, 0.4, 10), -3, 3)
    R_camera_world = np.swapaxes(R_world_camera, 1, 2)
    if motions.head[row] and rng.random() < FROM_HEAD:
        R_camera_world = rotations.exp(np.array([0, 0, rng.normal(0, 0.5)])) @ R_camera_world
        place = (R_camera_world @ (wrist - eye)[..., None])[..., 0]
        return angles, R_camera_world @ R_world_hand, place, R_camera_world, betas

    # From anywhere: still, or turning as the head did.
    if rng.random() < 0.5:
        R_camera_world = np.tile(np.eye(3), (len(at), 1, 1))
    R_camera_world = rotations.exp(rng.normal(0, 2, 3)) @ R_camera_world
    moved = (wrist - wrist.mean(0)) * rng.uniform(0.3, 1.2)
    depth = 0.22 * (1.1 / 0.22) ** rng.random()
    place = depth * np.array([rng.normal(0, 0.25), rng.normal(0, 0.2), 1])
    place = (R_camera_world @ moved[..., None])[..., 0] + place
    place[:, 2] += max(0.0, NEAREST_M - place[:, 2].min())
    return angles, R_camera_world @ R_world_hand, place, R_camera_world, betas


def _posture(rng: np.random.Generator) -> Float[np.ndarray, "22"]:
    """Return a gesture, or fingers that are each bent at random."""
    low, high = articulation.limits()
    if rng.random() < 0.3:
        angles = gesture_angles(str(rng.choice(GESTURES)), rng)
    else:
        freedoms = articulation.freedoms()
        finger = [freedom.joint // 3 for freedom in freedoms]
        bent = rng.beta(1.2, 1.5, 5)[finger] * rng.uniform(0.6, 1.2) + rng.normal(0, 0.12, 22)
        sideways = articulation.comfortable() + rng.normal(0, 0.2, 22) * (high - low)
        flexes = np.array([freedom.kind == "flex" for freedom in freedoms])
        angles = np.where(flexes, low + (high - low) * np.clip(bent, 0, 1), sideways)
    return np.clip(angles + rng.normal(0, 0.08, 22), low, high)


def _walk(turns: Float[np.ndarray, "K 3"], rng: np.random.Generator) -> Float[np.ndarray, "K 4"]:
    """Return quaternions that turn on by each rotation vector, from any orientation."""
    R = rotations.exp(rng.normal(0, 2, 3))
    found = []
    for turn in rotations.exp(turns):
        R = turn @ R
        found.append(R)
    return _continuous(rotations.to_quaternion(np.stack(found)))


def _continuous(quaternions: Float[np.ndarray, "K 4"]) -> Float[np.ndarray, "K 4"]:
    """Return each as the nearer of q and -q to the one before."""
    cosine = np.sum(quaternions[1:] * quaternions[:-1], axis=1)
    flips = np.cumprod(np.where(cosine < 0, -1.0, 1.0))
    return quaternions * np.concatenate([[1.0], flips])[:, None]


def _between(values: Float[np.ndarray, "F D"], at: Float[np.ndarray, "T"]) -> np.ndarray:
    """Return values between frames; quaternions are given their length back."""
    if values.shape[1] == 4:
        values = _continuous(values)
    i = np.clip(at.astype(int), 0, len(values) - 2)
    share = (at - i)[:, None]
    out = (1 - share) * values[i] + share * values[i + 1]
    return out / np.linalg.norm(out, axis=1, keepdims=True) if values.shape[1] == 4 else out
