"""Poses of the last frames and distances of their points, adjusted together.

The camera may move as well as turn: near points shift, and a fit that knew only turns would take
that for a turn. What comes of the movement is thrown away: its scale is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

from acehand_core.camera_motion.odometry import Observations
from acehand_core.camera_motion.pose import (
    Matrix3,
    Points,
    Pose,
    agreed_turn,
    direction_slopes,
    fit_pose,
    tangents,
)
from acehand_core.geometry import rotations

#: Frames that are adjusted at once; those that stay as they are; new ones between two adjustments.
WINDOW, FIXED, STRIDE = 30, 6, 8
_ROUNDS = 5
#: A head's change of velocity from frame to frame at 30 fps, in units of a usual distance.
ACCELERATION = 0.004
#: Inverse distances are about 1, give or take this, before anything is known.
_SPREAD = 0.6
#: Residuals beyond this many standard deviations lose their weight.
_ROBUST = 2.0
#: What a turn from whole pictures is worth, rad, and per rad of it: near things that shift turn it.
TURN_SIGMA, TURN_SHARE = np.radians(0.3), 0.1
#: Turns further off than this many standard deviations lose their weight.
TURN_ROBUST = 4.0
#: What a centre may change by in a round that has nothing to say of it.
_CENTRE_RIDGE = 1.0


#: Of a frame that is done with: R_reference_camera, points that agree, sigma of its step (rad).
Done = tuple[Matrix3, int, float]


class Window:
    """The last frames of a piece and all that was observed in them."""

    def __init__(self, fps: float) -> None:
        self.acceleration = ACCELERATION * (30.0 / fps) ** 2
        self.frames: list[Observations] = []
        self.poses: list[Pose] = []
        #: Inverse distance and variance of each point by its number.
        self.distances: dict[int, tuple[float, float]] = {}
        self._inliers: list[int] = []
        self._sigma: list[float] = []
        #: Poses of frames that are done with, while points that were found in them are followed.
        self.past: dict[int, Pose] = {}
        self._since, self._begun = 0, True

    def add(self, seen: Observations) -> list[Done]:
        """Take a frame; return those that will not change any more."""
        if not self.frames:
            pose, count, sigma = Pose(np.eye(3), np.zeros(3)), 0, 0.0
        else:
            assert seen.turn is not None
            last = self.poses[-1]
            move = last.centre - self.poses[-2].centre if len(self.poses) > 1 else np.zeros(3)
            turn = agreed_turn(seen.before, seen.bearing, seen.known, seen.turn)
            pose, count, sigma = self._fit(
                seen, Pose(last.R @ turn, last.centre + move), turn_sigma(seen.turn)
            )
        self.frames.append(seen)
        self.poses.append(pose)
        self._inliers.append(count)
        self._sigma.append(sigma)

        self._since += 1
        if self._since < STRIDE:
            return []
        self._adjust()
        return self._drop(len(self.frames) - WINDOW)

    def finish(self) -> list[Done]:
        """Adjust the last frames and return them."""
        self._adjust()
        return self._drop(len(self.frames))

    def _fit(self, seen: Observations, start: Pose, sigma: float) -> tuple[Pose, int, float]:
        if not len(seen.number):
            return start, 0, sigma
        poses = self.past | {f.frame: p for f, p in zip(self.frames, self.poses, strict=True)}
        hosts = [poses[int(host)] for host in seen.host]
        usual = self._usual()
        known = [self.distances.get(int(n), (usual, (_SPREAD * usual) ** 2)) for n in seen.number]
        rho, variance = np.array(known).T
        points = Points(
            np.stack([host.R for host in hosts]),
            np.stack([host.centre for host in hosts]),
            seen.host_bearing, rho, variance,
        )  # fmt: skip
        fit = fit_pose(points, seen.bearing, seen.known, start, sigma, self.acceleration)
        for n, d, v in zip(seen.number, fit.inverse_distance, fit.variance, strict=True):
            if int(n) not in self.distances:
                self.distances[int(n)] = (float(d), max(float(v), (0.3 * usual) ** 2))
        sigma = float(np.sqrt(np.trace(fit.covariance[:3, :3])))
        return fit.pose, int(fit.inliers.sum()), sigma

    def _usual(self) -> float:
        """Return the usual inverse distance of the points in the last frame."""
        last = [
            self.distances[int(n)][0] for n in self.frames[-1].number if int(n) in self.distances
        ]
        return float(np.clip(np.median(last), 0.2, 5.0)) if len(last) > 20 else 1.0

    def _drop(self, count: int) -> list[Done]:
        count = max(count, 0)
        rotations_done = [pose.R for pose in self.poses[:count]]
        done = list(zip(rotations_done, self._inliers[:count], self._sigma[:count], strict=True))
        used = {int(host) for frame in self.frames[count:] for host in frame.host}
        gone = {f.frame: p for f, p in zip(self.frames[:count], self.poses, strict=False)}
        self.past = {host: pose for host, pose in (self.past | gone).items() if host in used}
        for rows in (self.frames, self.poses, self._inliers, self._sigma):
            del rows[:count]
        self._begun = self._begun and count == 0
        return done

    def _adjust(self) -> None:
        """Adjust all poses but the first ones, and all distances."""
        self._since = 0
        fixed = 1 if self._begun else FIXED
        problem = _Problem.of(self, fixed)
        if problem is None:
            return
        problem.solve()
        for i in range(fixed, len(self.poses)):
            self.poses[i] = Pose(problem.R[problem.past + i], problem.centre[problem.past + i])
        found = zip(problem.numbers, problem.rho, problem.variance, strict=True)
        self.distances = {int(n): (float(rho), float(variance)) for n, rho, variance in found}
        self._inliers[fixed:] = problem.inliers[problem.past + fixed :]


def turn_sigma(turn: Matrix3) -> float:
    """Return the standard deviation of a turn from whole pictures, rad."""
    return float(TURN_SIGMA + TURN_SHARE * np.linalg.norm(rotations.log(turn)))


@dataclass
class _Problem:
    """Least squares over the poses of F frames and the inverse distances of K points.

    The first ``past`` of these are not of the window, and the first ``fixed`` stay as they are.
    """

    R: Float[np.ndarray, "F 3 3"]
    centre: Float[np.ndarray, "F 3"]
    rho: Float[np.ndarray, "K"]
    numbers: np.ndarray
    usual: float
    frame: np.ndarray
    host: np.ndarray
    point: np.ndarray
    host_bearing: np.ndarray
    bearing: np.ndarray
    across: np.ndarray
    turns: Float[np.ndarray, "W 3 3"]
    turn_sigma: Float[np.ndarray, "W"]
    acceleration: float
    past: int
    fixed: int
    variance: np.ndarray = field(default_factory=lambda: np.zeros(0))
    inliers: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, window: Window, fixed: int) -> _Problem | None:
        past, frames = sorted(window.past), window.frames
        index = {number: i for i, number in enumerate([*past, *(f.frame for f in frames)])}
        some = [f for f in frames if len(f.number)]
        if not some or len(frames) <= fixed:
            return None
        frame = np.concatenate([np.full(len(f.number), index[f.frame]) for f in some])
        host = np.array([index[int(h)] for f in some for h in f.host])
        host_bearing = np.concatenate([f.host_bearing for f in some])
        bearing = np.concatenate([f.bearing for f in some])
        across = np.concatenate([f.known for f in some]) @ tangents(bearing)

        number = np.concatenate([f.number for f in some])
        numbers, point = np.unique(number, return_inverse=True)
        usual = window._usual()
        rho = np.array([window.distances.get(int(n), (usual, 0.0))[0] for n in numbers])
        poses = [*(window.past[number] for number in past), *window.poses]
        turns = np.stack([np.eye(3) if f.turn is None else f.turn for f in frames])
        return cls(
            np.stack([pose.R for pose in poses]), np.stack([pose.centre for pose in poses]),
            rho, numbers, usual, frame, host, point, host_bearing, bearing, across, turns,
            np.array([turn_sigma(turn) for turn in turns]), window.acceleration, len(past),
            len(past) + fixed,
        )  # fmt: skip

    def residuals(self) -> tuple[np.ndarray, ...]:
        """Return what each point is off by (N, 2) in standard deviations, and what led to it."""
        world = np.einsum("nij,nj->ni", self.R[self.host], self.host_bearing)
        apart = self.centre[self.host] - self.centre[self.frame]
        R = self.R[self.frame]
        ahead = world + self.rho[self.point][:, None] * apart
        moved = np.einsum("nji,nj->ni", R, ahead)
        unit = moved / np.linalg.norm(moved, axis=1)[:, None]
        r = np.einsum("nij,nj->ni", self.across, unit - self.bearing)
        return r, moved, apart, R

    def cost(self) -> float:
        r = self.residuals()[0]
        s = (r**2).sum(1) / _ROBUST**2
        return float((_ROBUST**2 * s / (1 + s)).sum() + self._prior_cost())

    def _prior_cost(self) -> float:
        c = self.centre[self.past :]
        bend = (c[2:] - 2 * c[1:-1] + c[:-2]) / self.acceleration
        s = self._turn_off() ** 2 / TURN_ROBUST**2
        spread = (self.rho - self.usual) / (_SPREAD * self.usual)
        return float((bend**2).sum() + (TURN_ROBUST**2 * s / (1 + s)).sum() + (spread**2).sum())

    def _turn_residual(self) -> np.ndarray:
        R = self.R[self.past :]
        step = np.swapaxes(R[:-1], 1, 2) @ R[1:]
        return rotations.log(np.swapaxes(self.turns[1:], 1, 2) @ step)

    def _turn_off(self) -> np.ndarray:
        """Return how far each step is from the turn of whole pictures, in standard deviations."""
        return np.linalg.norm(self._turn_residual(), axis=1) / self.turn_sigma[1:]

    def solve(self) -> None:
        damping, cost = 1e-4, self.cost()
        for _ in range(_ROUNDS):
            H, g, E, C, b = self._normal()
            for _ in range(4):
                Cd = C * (1 + damping)
                S = H + damping * np.diag(np.diag(H)) - (E / Cd) @ E.T
                try:
                    step = -np.linalg.solve(S, g - E @ (b / Cd))
                except np.linalg.LinAlgError:
                    damping *= 100
                    continue
                back = self.R.copy(), self.centre.copy(), self.rho.copy()
                shift = -(b + E.T @ step) / Cd
                step = step.reshape(-1, 6)
                self.R[self.fixed :] = self.R[self.fixed :] @ rotations.exp(step[:, :3])
                self.centre[self.fixed :] += step[:, 3:]
                self.rho = np.clip(self.rho + shift, 0.02 * self.usual, 20 * self.usual)
                new = self.cost()
                if new < cost:
                    break
                self.R, self.centre, self.rho = back
                damping *= 30
            else:
                break
            damping = max(damping / 10, 1e-6)
            done = cost - new < 1e-3 * cost
            cost = new
            if done:
                break
        self.variance = 1 / C
        size = np.linalg.norm(self.residuals()[0], axis=1)
        self.inliers = np.bincount(self.frame[size < 4.0], minlength=len(self.R)).tolist()

    def _normal(self) -> tuple[np.ndarray, ...]:
        """Return the parts of the normal equations: poses, their gradient, both, points, theirs."""
        F, K = len(self.R), len(self.rho)
        r, moved, apart, R = self.residuals()
        weight = 1 / (1 + (r**2).sum(1) / _ROBUST**2) ** 2
        # A point that often disagrees, as a shadow that moves, is not believed where it agrees.
        often = np.bincount(self.point, weight, K) / np.bincount(self.point, minlength=K)
        weight = weight * (often[self.point] ** 2)
        _, slope = direction_slopes(self.across, moved)
        slope_world = slope @ np.swapaxes(R, 1, 2)
        rho = self.rho[self.point][:, None, None]
        here = np.concatenate([slope @ rotations.skew(moved), -rho * slope_world], axis=2)
        turned = slope_world @ self.R[self.host]
        there = np.concatenate([-turned @ rotations.skew(self.host_bearing), rho * slope_world], 2)
        by_rho = np.einsum("nij,nj->ni", slope_world, apart)

        w = weight[:, None, None]
        H = np.zeros((F, F, 6, 6))
        blocks = ((self.frame, here), (self.host, there))
        for ia, a in blocks:
            wa = np.swapaxes(a * w, 1, 2)
            for ib, b in blocks:
                if ia is self.host and ib is self.frame:
                    continue
                product = (wa @ b).reshape(len(r), 36)
                H += _sums(ia * F + ib, product, F * F).reshape(F, F, 6, 6)
                if ia is not ib:
                    other = product.reshape(-1, 6, 6).swapaxes(1, 2).reshape(-1, 36)
                    H += _sums(ib * F + ia, other, F * F).reshape(F, F, 6, 6)
        g = np.zeros((F, 6))
        E = np.zeros((F, K, 6))
        for i, a in blocks:
            g += _sums(i, np.einsum("nki,nk->ni", a * w, r), F)
            mixed = np.einsum("nki,nk->ni", a * w, by_rho)
            E += _sums(i * K + self.point, mixed, F * K).reshape(F, K, 6)
        spread = (_SPREAD * self.usual) ** -2
        C = np.bincount(self.point, weight * (by_rho**2).sum(1), minlength=K) + spread
        off = np.bincount(self.point, weight * (by_rho * r).sum(1), minlength=K)
        b_rho = off + spread * (self.rho - self.usual)

        poses = H.transpose(0, 2, 1, 3).reshape(6 * F, 6 * F)
        gradient = g.reshape(-1)
        self._add_priors(poses, gradient)
        mixed = E.transpose(0, 2, 1).reshape(6 * F, K)
        free = 6 * self.fixed
        return poses[free:, free:], gradient[free:], mixed[free:], C, b_rho

    def _add_priors(self, H: np.ndarray, g: np.ndarray) -> None:
        """Add what is expected of the window's frames, whatever is seen."""
        F, past = len(self.R) - self.past, 6 * self.past
        bend = np.zeros((max(F - 2, 0), F))
        for i in range(F - 2):
            bend[i, i : i + 3] = 1, -2, 1
        information = bend.T @ bend / self.acceleration**2
        gradient = information @ self.centre[self.past :]
        for axis in (3, 4, 5):
            rows = slice(past + axis, None, 6)
            H[rows, rows] += information + _CENTRE_RIDGE * np.eye(F)
            g[rows] += gradient[:, axis - 3]

        # Small turns of both frames of a step change it by their difference, seen in the later one.
        R = self.R[self.past :]
        step = np.swapaxes(R[:-1], 1, 2) @ R[1:]
        off = self._turn_residual()
        trusted = self.turn_sigma[1:] ** -2 / (1 + (self._turn_off() / TURN_ROBUST) ** 2) ** 2
        for i, weight in enumerate(trusted):
            a = slice(past + 6 * i, past + 6 * i + 3)
            b = slice(past + 6 * i + 6, past + 6 * i + 9)
            J = -step[i].T
            H[a, a] += weight * J.T @ J
            H[b, b] += weight * np.eye(3)
            H[a, b] += weight * J.T
            H[b, a] += weight * J
            g[a] += weight * J.T @ off[i]
            g[b] += weight * off[i]


def _sums(index: np.ndarray, rows: np.ndarray, size: int) -> np.ndarray:
    """Return the sums of the rows of each index, (size, columns)."""
    return np.stack([np.bincount(index, column, minlength=size) for column in rows.T], axis=-1)
