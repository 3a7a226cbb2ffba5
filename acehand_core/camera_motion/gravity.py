"""Where up is, by an accelerometer, and what that says of a gyroscope's bias.

Over seconds the specific force of a head is that of gravity: it speeds up and slows down again. So
in a frame that the camera turns in, means of single seconds point up, and turn only as far as the
camera's turn is wrong.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from acehand_core.geometry import rotations
from acehand_core.motion import CameraMotion, Imu
from acehand_core.types import TimestampsNs

_GRAVITY = 9.81
_MEAN_S = 1.0
#: A second whose mean is off by this, m/s^2, says half as much.
_ACCELERATED = 0.5
#: Of the recording, what is used to find up (turns drift), and parts that tell a bias, seconds.
_LONGEST_S, _PART_S = 60.0, 20.0
#: The largest spread, rad, and how far from 9.81 the mean may be, as a share.
_MOST_SPREAD, _MOST_OFF = np.radians(10.0), 0.15
#: Seconds that are needed.
_LEAST_MEANS = 3
#: How well the mean of a second tells up at best, rad.
_FLOOR = np.radians(1.0)


@dataclass(frozen=True, slots=True)
class Gravity:
    """Where up is, a unit vector in the camera frame of the first frame.

    ``spread``: rms angle to it of the means of single seconds, rad.
    """

    up: Float[np.ndarray, "3"]
    spread: float


def gravity_in_camera(
    imu: Imu, timestamps_ns: TimestampsNs, motion: CameraMotion
) -> Gravity | None:
    """Find up from the specific force, averaged in a frame that the camera turns in.

    Args:
        imu: as ``from_gyroscope`` returns it.
        timestamps_ns: (T,) of the frames.
        motion: how the camera turned; its first piece is used, up to a minute of it.

    Returns:
        None: there is no accelerometer, its mounting is not known, there are not three seconds, or
        the camera moves so that the seconds disagree by more than 10 degrees, or their mean is no
        gravity.
    """
    if imu.specific_force is None or imu.R_camera_imu is None:
        return None
    times = (timestamps_ns - timestamps_ns[0]) * 1e-9
    rows = np.flatnonzero((motion.piece == 0) & (times <= _LONGEST_S))
    turned = motion.rotations[0].T @ motion.rotations[rows] @ imu.R_camera_imu
    at = (imu.timestamps_ns - timestamps_ns[0]) * 1e-9
    _, means, weight = _means(at, imu.specific_force, times[rows], turned)
    if len(means) < _LEAST_MEANS:
        return None
    mean = np.average(means, axis=0, weights=weight)
    size = float(np.linalg.norm(mean))
    if abs(size - _GRAVITY) > _MOST_OFF * _GRAVITY:
        return None
    up = mean / size
    cosine = means @ up / np.maximum(np.linalg.norm(means, axis=1), 1e-9)
    spread = float(np.sqrt(np.mean(np.arccos(np.clip(cosine, -1, 1)) ** 2)))
    return Gravity(up, spread) if spread <= _MOST_SPREAD else None


def bias_by_gravity(
    at: Float[np.ndarray, "N"],
    force: Float[np.ndarray, "N 3"],
    times: Float[np.ndarray, "T"],
    turned: Float[np.ndarray, "T 3 3"],
    piece: Int[np.ndarray, "T"],
) -> tuple[Float[np.ndarray, "3 3"], Float[np.ndarray, "3"]]:
    """Return what gravity, which stays where it is, says of an error e in a bias (rad/s).

    Returned are its information A and A @ e; about the vertical there is none.

    Args:
        at, force: samples of the accelerometer, s and m/s^2.
        times, turned: T frames, s, and R_reference_imu by a gyroscope with that bias.
        piece: frames of one number share a reference.
    """
    information, pull = np.zeros((3, 3)), np.zeros(3)
    # The last frame of a part is the first of the next, so that no second falls between.
    part = piece + ((times - times[0]) / _PART_S).astype(int)
    for number in np.unique(part):
        rows = np.flatnonzero(part == number)
        after = int(rows[-1]) + 1
        if after < len(times) and piece[after] == piece[after - 1]:
            rows = np.append(rows, after)
        if len(rows) < 2:
            continue
        middle, means, weight = _means(at, force, times[rows], turned[rows])
        if len(means) < _LEAST_MEANS:
            continue
        unit = means / np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-9)
        up = np.average(unit, axis=0, weights=weight)

        # A bias that is wrong by e turns gravity by the sum of turned @ e over time.
        steps = turned[rows[:-1]] * np.diff(times[rows])[:, None, None]
        sums = np.array(list(itertools.accumulate(steps, initial=np.zeros((3, 3)))))
        flat = sums.reshape(len(rows), 9)
        there = np.stack([np.interp(middle, times[rows], v) for v in flat.T], -1).reshape(-1, 3, 3)
        slope = -rotations.skew(up) @ (there - np.average(there, axis=0, weights=weight))
        apart = unit - up
        fitted = np.linalg.lstsq(slope.reshape(-1, 3), apart.reshape(-1), rcond=None)[0]
        left = np.linalg.norm(apart - slope @ fitted, axis=1)
        freedom = max(len(means) - 2.0, 0.5) / len(means)
        variance = max(float(np.average(left**2, weights=weight)) / freedom / 2, _FLOOR**2)

        scaled = slope * (weight / variance)[:, None, None]
        information += np.einsum("nki,nkj->ij", scaled, slope)
        pull += np.einsum("nki,nk->i", scaled, apart)
    return information, pull


def _means(
    at: Float[np.ndarray, "N"],
    force: Float[np.ndarray, "N 3"],
    times: Float[np.ndarray, "T"],
    turned: Float[np.ndarray, "T 3 3"],
) -> tuple[Float[np.ndarray, "W"], Float[np.ndarray, "W 3"], Float[np.ndarray, "W"]]:
    """Return middles, means and weights of the force in the reference frame, by whole seconds."""
    rows = np.flatnonzero((at >= times[0]) & (at < times[-1]))
    if not len(rows):
        return np.zeros(0), np.zeros((0, 3)), np.zeros(0)
    after = np.searchsorted(times, at[rows], side="right")
    share = (at[rows] - times[after - 1]) / (times[after] - times[after - 1])
    R = rotations.slerp(turned[after - 1], turned[after], share)
    there = np.einsum("nij,nj->ni", R, force[rows])

    second = ((at[rows] - times[0]) / _MEAN_S).astype(int)
    counts = np.bincount(second)
    full = counts > 0.5 * np.median(counts)
    sums = np.stack([np.bincount(second, axis) for axis in there.T], axis=-1)
    means = sums[full] / counts[full, None]
    middle = times[0] + (np.flatnonzero(full) + 0.5) * _MEAN_S
    off = (np.linalg.norm(means, axis=1) - _GRAVITY) / _ACCELERATED
    return middle, means, 1 / (1 + off**2)
