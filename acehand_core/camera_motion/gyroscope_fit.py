"""A gyroscope fitted to pictures: its mounting, its bias, and what its clock is ahead.

Between two frames the gyroscope turns by phi in its own frame and the camera by nu, as rotation
vectors. With the bias taken off and the clocks set right, ``nu = R_camera_imu @ phi`` for a turn of
any size. An offset is what the sensor's clock is ahead of that of the frames.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from acehand_core.geometry import rotations
from acehand_core.motion import CameraMotion, Imu
from acehand_core.types import Rotation

Seconds = Float[np.ndarray, "T"]
Turns = Float[np.ndarray, "S 3"]
PerStep = Float[np.ndarray, "S"]
Vector = Float[np.ndarray, "3"]

#: The offset is looked for within this, seconds, in steps of that.
_REACH_S, _SEARCH_S = 0.5, 0.005
#: What is thought of the offset before anything is seen: a standard deviation, s.
_OFFSET_SIGMA = 0.25
#: And of the bias: Student's distribution with one degree of freedom and this scale, rad/s. Most
#: are below a degree a second, some (that of EuRoC's sensor) 4.6.
_BIAS_SCALE = np.radians(2.0)
#: How well a mounting is known that somebody states; and one that nobody does, rad.
STATED_SIGMA, _ANY_SIGMA = np.radians(1.0), np.pi
#: Pictures do not tell a step better than this, rad.
_FLOOR = np.radians(0.05)
#: Residuals beyond so many standard deviations hardly count.
_ROBUST = 3.0
#: Samples further apart than so many usual intervals are not interpolated.
_DROPOUT = 3.5
#: Steps that are enough to find the offset.
_SEARCHED_STEPS = 4000
_ROUNDS = 6
#: Over so many seconds at most the errors of pictures are alike.
_CORRELATED_S = 3.0
#: Windows in which gyroscope and pictures are compared, seconds.
_WINDOW_S = 1 / 3
#: Of a normal vector in three dimensions: its rms over the median of its length.
_RMS_OVER_MEDIAN = 1.126


@dataclass(frozen=True, slots=True)
class Sensor:
    """Rates (rad/s) at N times, in seconds after the first frame."""

    times: Float[np.ndarray, "N"]
    rates: Float[np.ndarray, "N 3"]

    @classmethod
    def of(cls, imu: Imu, start_ns: int) -> Sensor:
        return cls((imu.timestamps_ns - start_ns) * 1e-9, imu.angular_velocity)

    def at(self, times: Seconds) -> Float[np.ndarray, "T 3"]:
        """Return the rates at some times, on lines between samples."""
        return np.stack([np.interp(times, self.times, axis) for axis in self.rates.T], axis=-1)

    def turns(self, times: Seconds, bias: Vector) -> Turns:
        """Return how the sensor turns from each time to the next.

        The rates lie on lines between samples; of the turn of such a line the terms up to the
        fourth power of its length are there (Magnus' expansion; the second is the coning term).
        """
        inside = self.times[(self.times > times[0]) & (self.times < times[-1])]
        ticks = np.union1d(inside, times)
        rates, length = self.at(ticks) - bias, np.diff(ticks)[:, None]
        before, after = rates[:-1], rates[1:]
        vectors = length / 2 * (before + after) + length**2 / 12 * np.cross(before, after)
        parts = itertools.accumulate(rotations.exp(vectors), np.matmul, initial=np.eye(3))
        R = np.array(list(parts))[np.searchsorted(ticks, times)]
        return rotations.log(np.swapaxes(R[:-1], 1, 2) @ R[1:])

    def covers(self, times: Seconds) -> Bool[np.ndarray, "S"]:
        """Tell between which times there are samples without a dropout."""
        intervals = np.diff(self.times)
        usual = float(np.median(intervals))
        dropouts = np.concatenate([[0], np.cumsum(intervals > _DROPOUT * usual)])
        last = len(self.times) - 1
        first = np.clip(np.searchsorted(self.times, times[:-1], side="right") - 1, 0, last)
        final = np.clip(np.searchsorted(self.times, times[1:]), 0, last)
        inside = (times >= self.times[0] - usual) & (times <= self.times[-1] + usual)
        return inside[:-1] & inside[1:] & (dropouts[first] == dropouts[final])

    def noise(self) -> float:
        """Return the white noise of an angle over time, rad / sqrt(s); motion may add to it."""
        second = np.diff(self.rates, 2, axis=0)
        deviation = 1.48 * float(np.median(np.abs(second))) / np.sqrt(6) if len(second) else 0.0
        return deviation * float(np.sqrt(np.median(np.diff(self.times))))


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps between T frames as pictures tell them; ``use``: both know them."""

    seconds: Seconds
    seen: Turns
    sigma: PerStep
    use: Bool[np.ndarray, "S"]

    @classmethod
    def of(cls, seconds: Seconds, visual: CameraMotion, covered: Bool[np.ndarray, "S"]) -> Steps:
        R = visual.rotations
        seen = rotations.log(np.swapaxes(R[:-1], 1, 2) @ R[1:])
        sigma = np.hypot(visual.sigma_rad[1:], _FLOOR)
        return cls(seconds, seen, sigma, covered & ~visual.broken[1:])

    @property
    def length(self) -> PerStep:
        """Seconds of each step; 0 where a frame is shown twice."""
        return np.diff(self.seconds)

    def within(self, seconds: float) -> int:
        """Return how many steps are usually that long together, at least one."""
        apart = self.length > 0
        usual = float(np.median(self.length[apart]) * apart.mean())
        return max(1, round(seconds / usual))


@dataclass(frozen=True, slots=True)
class Fit:
    """What a gyroscope needs to agree with pictures.

    ``turns``: of the camera, by the gyroscope. ``scale``: by how much the pictures are worse than
    they say. ``covariance``: of mounting, bias and offset.
    """

    mounting: Rotation
    bias: Vector
    offset: float
    turns: Turns
    scale: float
    covariance: Float[np.ndarray, "7 7"]


def fit_sensor(sensor: Sensor, steps: Steps, stated: Rotation | None) -> Fit:
    """Fit mounting, bias and offset: a search for the offset, then robust least squares."""
    mounting, bias, offset = _search(sensor, steps, stated)
    known = _ANY_SIGMA if stated is None else STATED_SIGMA
    start = mounting
    prior = np.array([*[known] * 3, *[_BIAS_SCALE] * 3, _OFFSET_SIGMA]) ** -2.0
    use, seconds = steps.use, steps.seconds
    for round_ in range(_ROUNDS + 1):
        turns = sensor.turns(seconds + offset, bias) @ mounting.T
        residual = turns - steps.seen
        size = np.linalg.norm(residual, axis=1) / steps.sigma
        scale = max(0.3, _RMS_OVER_MEDIAN * float(np.median(size[use])))
        weight = use * 3 / (steps.sigma * scale) ** 2
        weight = weight / (1 + (size / scale / _ROBUST) ** 2) ** 2  # Geman and McClure's
        weight = weight / correlation(steps, residual)

        prior[3:6] = 4 / (_BIAS_SCALE**2 + bias @ bias)
        slope = np.zeros((len(turns), 3, 7))
        slope[:, :, :3] = -rotations.skew(turns)
        slope[:, :, 3:6] = -steps.length[:, None, None] * mounting
        slope[:, :, 6] = np.diff(sensor.at(seconds + offset), axis=0) @ mounting.T
        weighted = slope * weight[:, None, None]
        H = np.einsum("ski,skj->ij", weighted, slope) + np.diag(prior)
        if round_ == _ROUNDS:
            break
        away = np.concatenate([rotations.log(mounting @ start.T), bias, [offset]])
        change = -np.linalg.solve(H, np.einsum("ski,sk->i", weighted, residual) + prior * away)
        mounting = rotations.exp(change[:3]) @ mounting
        bias, offset = bias + change[3:6], float(np.clip(offset + change[6], -_REACH_S, _REACH_S))
    return Fit(mounting, bias, offset, turns, scale, np.linalg.inv(H))


def _search(
    sensor: Sensor, steps: Steps, stated: Rotation | None
) -> tuple[Rotation, Vector, float]:
    """Return mounting, bias and offset: of every offset the best of the other two is known."""
    rows = np.flatnonzero(steps.use)
    rows = rows[:: -(-len(rows) // _SEARCHED_STEPS)]
    seen, sigma, length = steps.seen[rows], steps.sigma[rows], steps.length[rows]
    found: tuple[Rotation, Vector, float] = np.eye(3), np.zeros(3), 0.0
    least = np.inf
    for offset in np.arange(-_REACH_S, _REACH_S + 1e-9, _SEARCH_S):
        turns = _summed(sensor, steps, rows, float(offset))
        weight = sigma**-2.0
        for _ in range(4):
            moment = weight * length
            mean, seen_mean = (moment @ v / (moment @ length) for v in (turns, seen))
            x, y = turns - length[:, None] * mean, seen - length[:, None] * seen_mean
            best = (y * weight[:, None]).T @ x
            R = rotations.project_to_rotation(best) if stated is None else stated
            square = ((x @ R.T - y) ** 2).sum(1) / (_ROBUST * sigma) ** 2
            weight = sigma**-2.0 / (1 + square) ** 2
        cost = _ROBUST**2 * float(np.sum(square / (1 + square))) + (offset / _OFFSET_SIGMA) ** 2
        if cost < least:
            found, least = (R, mean - R.T @ seen_mean, float(offset)), cost
    return found


def _summed(sensor: Sensor, steps: Steps, rows: np.ndarray, offset: float) -> Turns:
    """Return the sums of rates over some steps, which are nearly the turns of the sensor."""
    between = (sensor.rates[1:] + sensor.rates[:-1]) / 2 * np.diff(sensor.times)[:, None]
    angle = np.concatenate([np.zeros((1, 3)), np.cumsum(between, axis=0)])
    summed = Sensor(sensor.times, angle)
    return summed.at(steps.seconds[rows + 1] + offset) - summed.at(steps.seconds[rows] + offset)


def correlation(steps: Steps, residual: Turns) -> float:
    """Return how much larger sums of residuals over seconds are than of independent ones, squared.

    The pictures' errors drift, so that many steps together are known less well than they seem.
    """
    count = max(2, min(steps.within(_CORRELATED_S), len(residual) // 4))
    sums = _windows(residual * steps.use[:, None], count)
    whole = _windows(steps.use[:, None] * 1.0, count)[:, 0] == count
    if not whole.any():
        return float(count)
    of_sum = np.median(np.linalg.norm(sums, axis=1)[whole])
    of_one = np.median(np.linalg.norm(residual[steps.use], axis=1))
    # The fit took the mean of all steps away, so that sums vary less than the errors do.
    independent = count * (1 - count / len(residual)) * max(of_one, 1e-9) ** 2
    return float(np.clip(of_sum**2 / independent, 1.0, count))


def difference(steps: Steps, turns: Turns) -> tuple[float, float]:
    """Return how far apart gyroscope and pictures are where the camera turns most, and how far.

    Both are medians over the faster third of all windows of a third of a second, rad: in single
    steps a slow turn is lost in the pictures' noise.
    """
    count = steps.within(_WINDOW_S)
    by, seen = (_windows(v * steps.use[:, None], count) for v in (turns, steps.seen))
    whole = _windows(steps.use[:, None] * 1.0, count)[:, 0] > 0.8 * count
    if not whole.any():
        return np.inf, 0.0
    size = np.maximum(np.linalg.norm(by, axis=1), np.linalg.norm(seen, axis=1))
    fast = whole & (size >= np.quantile(size[whole], 2 / 3))
    return float(np.median(np.linalg.norm(by - seen, axis=1)[fast])), float(np.median(size[fast]))


def _windows(values: Float[np.ndarray, "S K"], count: int) -> Float[np.ndarray, "W K"]:
    """Return the sums of every ``count`` steps in a row."""
    sums = np.concatenate([np.zeros((1, values.shape[1])), np.cumsum(values, axis=0)])
    return sums[count:] - sums[:-count]


def wrong_scale(sensor: Sensor, steps: Steps) -> str:
    """Return what is likely wrong where it would agree but for a factor; empty: it would not."""
    rows = np.flatnonzero(steps.use)
    rows = rows[:: -(-len(rows) // _SEARCHED_STEPS)]
    best, factor = 0.0, 1.0
    y = steps.seen[rows] - np.median(steps.seen[rows], axis=0)
    for offset in np.arange(-_REACH_S, _REACH_S + 1e-9, 2 * _SEARCH_S):
        x = _summed(sensor, steps, rows, float(offset))
        x = x - np.median(x, axis=0)
        together = np.linalg.svd(y.T @ x, compute_uv=False).sum()
        alike = together / max(1e-12, float(np.linalg.norm(x) * np.linalg.norm(y)))
        if alike > best:
            best, factor = alike, float(np.linalg.norm(x) / np.linalg.norm(y))
    if best < 0.9 or 0.9 < factor < 1.1:
        return ""
    if 40 < factor < 80:
        return "; its rates look like degrees a second, radians a second are needed"
    return (
        f"; but for a factor of {factor:.2f} both agree: the rates' unit, or the camera's focal "
        f"length, which the pictures would say is {1 / factor:.2f} times as long"
    )
