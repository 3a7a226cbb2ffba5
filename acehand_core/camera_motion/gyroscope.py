"""How a camera turned by a gyroscope that is fixed to it, checked against its pictures."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool

from acehand_core.camera_motion.gravity import bias_by_gravity
from acehand_core.camera_motion.gyroscope_fit import (
    STATED_SIGMA,
    Fit,
    PerStep,
    Seconds,
    Sensor,
    Steps,
    correlation,
    difference,
    fit_sensor,
    wrong_scale,
)
from acehand_core.errors import InputError, SchemaError
from acehand_core.geometry import rotations
from acehand_core.motion import CameraMotion, Imu
from acehand_core.types import Rotation, TimestampsNs

#: Steps that both must know.
_LEAST_STEPS = 20
#: They agree where they differ by less than this share of the turn, or, where the camera hardly
#: turns, by this angle, rad.
AGREED_SHARE, AGREED_ANGLE = 0.25, np.radians(0.5)
#: The largest uncertainty of a mounting that was found (rad), and the largest bias (rad/s).
_MOUNTING_KNOWN, _MOST_BIAS = np.radians(3.0), np.radians(10.0)
#: Bias of a gyroscope that was compared with nothing, rad/s.
_UNKNOWN_BIAS = np.radians(1.0)
#: A step whose residual is beyond so many standard deviations is wrong in the pictures.
_WRONG = 4.0


@dataclass(frozen=True, slots=True)
class GyroscopeMotion:
    """How a camera turned, and what was found out about its gyroscope.

    Attributes:
        motion: by gyroscope and pictures; by the pictures alone where ``imu`` is None.
        imu: on the frames' clock, without bias, its mounting known; None: it was not used.
        note: what was found, or why it was not used.
    """

    motion: CameraMotion
    imu: Imu | None
    note: str


def from_gyroscope(
    imu: Imu, timestamps_ns: TimestampsNs, visual: CameraMotion | None = None
) -> GyroscopeMotion:
    """Estimate how a camera turned from its gyroscope, and from pictures where these are known.

    Bias, offset and, where it is not stated, the mounting are fitted to the steps that the pictures
    know; the bias also to gravity, where there is an accelerometer. Each step is then the mean of
    both, weighted by what is known of each; where the pictures know nothing or are far off it is
    the gyroscope's. A piece ends only where neither knows. With fewer than 20 such steps the
    offset, and without accelerometer the bias, are taken for zero.

    Args:
        timestamps_ns: (T,) when the frames that are shown were taken.
        visual: of the T frames; None: there are no pictures.

    Raises:
        SchemaError: ``visual`` has another number of frames.
        InputError: without ``visual``: the mounting is not known, or no sample lies between frames.
    """
    if visual is not None and len(visual) != len(timestamps_ns):
        raise SchemaError(f"turns of {len(visual)} frames, but {len(timestamps_ns)} times.")
    seconds = (timestamps_ns - timestamps_ns[0]) * 1e-9
    sensor = Sensor.of(imu, int(timestamps_ns[0]))
    covered = sensor.covers(seconds)
    if visual is None or (covered & ~visual.broken[1:]).sum() < _LEAST_STEPS:
        return _alone(imu, sensor, seconds, visual)

    steps = Steps.of(seconds, visual, covered)
    stated = [] if imu.R_camera_imu is None else [imu.R_camera_imu]
    refusals = []
    for mounting in (*stated, None):
        fit = fit_sensor(sensor, steps, mounting)
        refused = _refusal(steps, fit, mounting)
        if refused is None:
            return _both(imu, sensor, steps, _levelled(imu, sensor, steps, fit, visual), visual)
        refusals.append(refused)
    return GyroscopeMotion(visual, None, f"{imu.source} is not used: {refusals[0]}"
                           f"{wrong_scale(sensor, steps)}")  # fmt: skip


def _levelled(imu: Imu, sensor: Sensor, steps: Steps, fit: Fit, visual: CameraMotion) -> Fit:
    """Correct the bias by gravity, in which a drift shows that the pictures share."""
    if imu.specific_force is None:
        return fit
    seconds = steps.seconds
    covered = sensor.covers(seconds + fit.offset)
    start, known = fit.bias, np.linalg.inv(fit.covariance[3:6, 3:6])
    for _ in range(2):
        turns = np.where(covered[:, None], fit.turns, steps.seen)
        way = _chained(rotations.exp(turns), ~covered & visual.broken[1:], steps.sigma, visual)
        information, pull = bias_by_gravity(
            sensor.times - fit.offset, imu.specific_force, seconds, way.rotations @ fit.mounting,
            way.piece,
        )  # fmt: skip
        covariance = np.linalg.inv(known + information)
        bias = fit.bias + covariance @ (pull + known @ (start - fit.bias))
        turns = sensor.turns(steps.seconds + fit.offset, bias) @ fit.mounting.T
        whole = fit.covariance.copy()
        whole[3:6, 3:6] = covariance
        fit = replace(fit, bias=bias, turns=turns, covariance=whole)
    return fit


def _refusal(steps: Steps, fit: Fit, stated: Rotation | None) -> str | None:
    """Return why a fit is not to be trusted, or None."""
    off, turn = difference(steps, fit.turns)
    if off > max(AGREED_SHARE * turn, AGREED_ANGLE):
        return (
            f"it differs from the pictures by {np.degrees(off):.1f} degrees in a third of a second "
            f"in which the camera turns by {np.degrees(turn):.1f}"
        )
    if (bias := float(np.linalg.norm(fit.bias))) > _MOST_BIAS:
        return f"its bias would be {np.degrees(bias):.1f} degrees a second"
    unknown = float(np.sqrt(np.linalg.eigvalsh(fit.covariance[:3, :3])[-1]))
    if stated is None and unknown > _MOUNTING_KNOWN:
        return (
            "how it is mounted is not stated, and the camera turns too little, or about one axis "
            f"only, to find out (+-{np.degrees(unknown):.0f} degrees)"
        )
    return None


def _both(
    imu: Imu, sensor: Sensor, steps: Steps, fit: Fit, visual: CameraMotion
) -> GyroscopeMotion:
    """Return the weighted mean of both, step by step."""
    residual = np.linalg.norm(fit.turns - steps.seen, axis=1)
    correlated = correlation(steps, fit.turns - steps.seen)
    by_pictures = (steps.sigma * fit.scale) ** 2 * correlated
    covariance = fit.covariance
    by_gyroscope = _variance(sensor, steps.length, float(np.trace(covariance[3:6, 3:6])))
    by_gyroscope += np.linalg.norm(fit.turns, axis=1) ** 2 * np.linalg.norm(covariance[:3, :3], 2)
    faster = np.diff(sensor.at(steps.seconds + fit.offset), axis=0)
    by_gyroscope += covariance[6, 6] * (faster**2).sum(1)

    covered = sensor.covers(steps.seconds + fit.offset)
    wrong = residual > _WRONG * np.sqrt(by_pictures + by_gyroscope)
    seen = ~visual.broken[1:]
    share = by_pictures / (by_pictures + by_gyroscope)
    share = np.where(covered, np.where(seen & ~wrong, share, 1.0), 0.0)
    turns = rotations.slerp(rotations.exp(steps.seen), rotations.exp(fit.turns), share)
    mean = by_pictures * by_gyroscope / (by_pictures + by_gyroscope)
    alone = np.where(covered, by_gyroscope, visual.sigma_rad[1:] ** 2)
    variance = np.where(covered & seen & ~wrong, mean, alone)

    off, turn = difference(steps, fit.turns)
    note = (
        f"{imu.source}: {np.degrees(off):.2f} degrees from the pictures in a third of a second in "
        f"which the camera turns by {np.degrees(turn):.1f}; bias "
        f"{np.degrees(np.linalg.norm(fit.bias)):.2f} degrees a second, clock "
        f"{fit.offset * 1e3:+.0f} ms"
    )
    if imu.R_camera_imu is None:
        sigma = np.degrees(np.sqrt(np.trace(covariance[:3, :3])))
        note += f"; mounting found from the pictures, +-{sigma:.1f} degrees"
    else:
        away = float(np.linalg.norm(rotations.log(imu.R_camera_imu.T @ fit.mounting)))
        if away > 5 * STATED_SIGMA:
            note += f"; mounted {np.degrees(away):.0f} degrees from how it is stated"
    calibrated = replace(
        imu,
        timestamps_ns=imu.timestamps_ns - round(fit.offset * 1e9),
        angular_velocity=imu.angular_velocity - fit.bias,
        R_camera_imu=fit.mounting,
    )
    motion = _chained(turns, ~covered & visual.broken[1:], np.sqrt(variance), visual)
    return GyroscopeMotion(motion, calibrated, note)


def _alone(
    imu: Imu, sensor: Sensor, seconds: Seconds, visual: CameraMotion | None
) -> GyroscopeMotion:
    """Return what the gyroscope says by itself, or the pictures where it says nothing."""
    covered = sensor.covers(seconds)
    refused, mounting = "", imu.R_camera_imu
    if mounting is None:
        refused = "how it is mounted on the camera is not stated, and pictures do not tell it"
    elif not covered.any():
        refused = "it has no samples between the frames"
    if refused and visual is None:
        raise InputError(f"{imu.source}: {refused}.")
    if visual is None:
        count = len(seconds)
        visual = CameraMotion(
            np.broadcast_to(np.eye(3), (count, 3, 3)).copy(), np.zeros(count, int),
            np.arange(count) > 0, np.zeros(count),
        )  # fmt: skip
    if refused or mounting is None:
        return GyroscopeMotion(visual, None, f"{imu.source} is not used: {refused}")

    steps = Steps.of(seconds, visual, covered)
    unknown = np.diag([0.0, 0.0, 0.0, *[_UNKNOWN_BIAS**2] * 3, 0.0])
    turns = sensor.turns(seconds, np.zeros(3)) @ mounting.T
    fit = Fit(mounting, np.zeros(3), 0.0, turns, 1.0, unknown)
    fit = _levelled(imu, sensor, steps, fit, visual)
    variance = _variance(sensor, steps.length, float(np.trace(fit.covariance)))
    chosen = np.where(covered[:, None], fit.turns, steps.seen)
    sigma = np.where(covered, np.sqrt(variance), visual.sigma_rad[1:])
    motion = _chained(rotations.exp(chosen), ~covered & visual.broken[1:], sigma, visual)
    by = "taken for 0" if imu.specific_force is None else "by gravity alone"
    note = f"{imu.source}: not compared with pictures; its bias is {by}"
    calibrated = replace(imu, angular_velocity=imu.angular_velocity - fit.bias)
    return GyroscopeMotion(motion, calibrated, note)


def _variance(sensor: Sensor, length: PerStep, bias: float) -> PerStep:
    """Return the variance of steps; ``bias``: its variance, (rad/s) ** 2.

    A wrong bias is the same in every step. It is counted so that the sum over a second is right.
    """
    return 3 * sensor.noise() ** 2 * length + bias * length * np.maximum(length, 1.0)


def _chained(
    turns: Rotation, broken: Bool[np.ndarray, "S"], sigma: PerStep, visual: CameraMotion
) -> CameraMotion:
    """Return the motion of these steps; each piece begins where the pictures have it."""
    rows = [visual.rotations[0]]
    for frame, (turn, apart) in enumerate(zip(turns, broken, strict=True), start=1):
        rows.append(visual.rotations[frame] if apart else rows[-1] @ turn)
    first = np.zeros(1)
    return CameraMotion(
        rotations.project_to_rotation(np.array(rows)), visual.inliers,
        np.concatenate([first > 0, broken]), np.concatenate([first, sigma]),
    )  # fmt: skip
