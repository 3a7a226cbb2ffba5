"""Where the head is and what it looks at: at a table, walking, looking back, bending down.

World frame of ``layout``; metres, radians, seconds.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from jaxtyping import Float

from acehand_core.ace.synthetic.script import CameraKey, Times, Vector, WalkKey

HeadMotion = Literal["ordinary", "walking", "looking-back", "bending"]

#: Keys of a moving head are this far apart; a step takes half a second.
_STEP_S = 0.05
#: Peak speed of a head that looks back: 21 degrees in a frame at 30 fps.
PEAK_RAD_S = np.radians(21.0) * 30
#: From the neck's joint forward to a camera on the forehead.
_NECK_M = 0.10


def seated_head(rng: np.random.Generator, duration: float) -> tuple[CameraKey, ...]:
    """Return a head that looks at the table, sways, and now and then looks away."""
    eye = np.array([rng.normal(0, 0.02), rng.uniform(-0.18, -0.02), rng.uniform(0.34, 0.56)])
    target = np.array([rng.normal(0, 0.04), rng.uniform(0.06, 0.18), rng.uniform(0.0, 0.08)])
    tilt = rng.normal(0, 0.04)
    away = _glances(rng, duration)
    keys = []
    for time in np.arange(0, duration + 0.4, 0.4):
        sway = rng.normal(0, 1, 7) * np.array([0.012, 0.01, 0.008, 0.025, 0.02, 0.01, 0.025])
        looks = target + sway[3:6]
        for start, stop, where in away:
            if start <= time <= stop:
                looks = where + 3 * sway[3:6]
        keys.append(CameraKey(float(time), eye + sway[:3], looks, float(tilt + sway[6])))
    return tuple(keys)


def _glances(rng: np.random.Generator, duration: float) -> list[tuple[float, float, Vector]]:
    """Return when the head looks away, and to what: left, right, ahead."""
    if rng.random() > 0.55:
        return []
    start = rng.uniform(0.2, max(0.3, duration - 1.2))
    where = (
        np.array([-0.85, 0.30, 0.25]), np.array([0.85, 0.30, 0.25]),
        np.array([rng.normal(0, 0.3), 1.1, 0.55]), np.array([rng.normal(0, 0.2), 0.55, 0.05]),
    )[int(rng.integers(4))]  # fmt: skip
    return [(start, start + rng.uniform(0.4, 1.3), where)]


def moving_head(
    motion: HeadMotion, rng: np.random.Generator, duration: float, eye: Vector
) -> tuple[tuple[CameraKey, ...], tuple[WalkKey, ...]]:
    """Return a head that moves strongly, and where the body has gone, for one that walks.

    ``eye`` is where the head of a person who sits still would be.
    """
    times = np.arange(0, duration + _STEP_S, _STEP_S)
    if motion == "walking":
        return _walking(rng, times, eye)
    if motion == "looking-back":
        return _looking_back(rng, times, eye), ()
    return _bending(rng, times, eye), ()


def _walking(
    rng: np.random.Generator, times: Times, eye: Vector
) -> tuple[tuple[CameraKey, ...], tuple[WalkKey, ...]]:
    """Walk to and fro before the table, between it and the wall; the head bobs with every step."""
    steps, speed, wide = rng.uniform(1.6, 2.1), rng.uniform(0.7, 1.2), 0.75
    begin, pace = rng.uniform(0, 2 * np.pi), speed / wide
    path = np.zeros((len(times), 3))
    path[:, 0] = wide * np.sin(pace * times + begin)
    path[:, 1] = rng.uniform(-0.8, -0.65) + 0.05 * np.sin(0.7 * pace * times)
    path[:, 2] = rng.uniform(0.55, 0.8)

    # Up and down with every step, sideways and about the line of sight with every second one.
    phase = 2 * np.pi * steps * times
    bob = np.stack([0 * phase, 0.012 * np.sin(phase / 2), 0.02 * np.sin(phase)], axis=1)
    yaw = rng.uniform(0.4, 0.7) * np.cos(pace * times + begin) + 0.03 * np.sin(phase / 2)
    yaw += _sway(rng, times, 0.12)
    pitch = rng.uniform(0.3, 0.6) + 0.02 * np.sin(phase) + _sway(rng, times, 0.08)
    roll = 0.025 * np.sin(phase / 2 + 0.5) + _sway(rng, times, 0.02)
    walk = tuple(WalkKey(float(t), p - eye) for t, p in zip(times, path, strict=True))
    return _keys(times, path + bob, yaw, pitch, roll), walk


def _looking_back(rng: np.random.Generator, times: Times, eye: Vector) -> tuple[CameraKey, ...]:
    """Turn round by 130 to 170 degrees and back, ``PEAK_RAD_S`` at the fastest."""
    turn = rng.choice([-1.0, 1.0]) * np.radians(rng.uniform(130, 170))
    takes = 1.875 * abs(turn) / PEAK_RAD_S  # of minimum jerk the peak is 15/8 of the mean
    away = rng.uniform(0.2, 0.35) * times[-1]
    back = away + takes + rng.uniform(0.3, 0.6)
    share = _eased((times - away) / takes) - _eased((times - back) / takes)
    yaw = turn * share + _sway(rng, times, 0.06)
    pitch = rng.uniform(0.6, 0.9) * (1 - 0.7 * share) + _sway(rng, times, 0.04)
    forward = np.stack([np.sin(yaw), np.cos(yaw), 0 * yaw], axis=1)
    place = eye + _NECK_M * (forward - [0.0, 1.0, 0.0])
    place = place + np.stack([_sway(rng, times, 0.008) for _ in range(3)], axis=1)
    return _keys(times, place, yaw, pitch, _sway(rng, times, 0.03))


def _bending(rng: np.random.Generator, times: Times, eye: Vector) -> tuple[CameraKey, ...]:
    """Bend down over the table, look at it closely and straighten up again."""
    takes = rng.uniform(0.6, 0.9)
    down = rng.uniform(0.1, 0.3) * times[-1]
    up = down + takes + rng.uniform(0.2, 0.5)
    share = _eased((times - down) / takes) - _eased((times - up) / takes)
    low = np.array([rng.uniform(-0.1, 0.1), rng.uniform(0.05, 0.12), 0.24])
    place = eye + share[:, None] * (low - eye)
    place = place + np.stack([_sway(rng, times, 0.01) for _ in range(3)], axis=1)
    pitch = rng.uniform(0.3, 0.5) + share * rng.uniform(0.6, 0.8) + _sway(rng, times, 0.04)
    yaw = _sway(rng, times, 0.1) + share * rng.uniform(-0.3, 0.3)
    return _keys(times, place, yaw, pitch, _sway(rng, times, 0.04) + share * rng.uniform(-0.2, 0.2))


def _eased(share: Times) -> Times:
    """Return the way of minimum jerk from 0 to 1."""
    s = np.clip(share, 0.0, 1.0)
    return s**3 * (10 - 15 * s + 6 * s**2)


def _sway(rng: np.random.Generator, times: Times, size: float) -> Times:
    """Return a slow, irregular movement about 0."""
    rates, phases = rng.uniform(0.3, 1.2, 3), rng.uniform(0, 2 * np.pi, 3)
    waves = np.sin(2 * np.pi * rates * times[:, None] + phases)
    return size / np.sqrt(3) * waves.sum(axis=1)


def _keys(
    times: Times, place: Float[np.ndarray, "T 3"], yaw: Times, pitch: Times, roll: Times
) -> tuple[CameraKey, ...]:
    """Return keys of a camera at ``place``; yaw 0 looks away from the person, pitch is down."""
    across = np.cos(pitch)
    forward = np.stack([across * np.sin(yaw), across * np.cos(yaw), -np.sin(pitch)], axis=1)
    return tuple(
        CameraKey(float(t), p, p + f, float(r))
        for t, p, f, r in zip(times, place, forward, roll, strict=True)
    )
