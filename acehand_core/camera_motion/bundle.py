"""Poses of the last frames and distances of their points, adjusted together.

The camera may move as well as turn: near points shift, and a fit that knew only turns would take
that for a turn. What comes of the movement is thrown away: its scale is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from acehand_core.camera_motion.odometry import Observations
from acehand_core.camera_motion.pose import (
    Bearings,
    Points,
    Pose,
    agreed_turn,
    angle,
    direction_slopes,
    fit_pose,
    tangents,
)
from acehand_core.geometry import rotations

#: Frames that are adjusted at once; those that stay as they are; new ones between two adjustments.
WINDOW, FIXED, STRIDE = 30, 6, 8
_ROUNDS = 4
#: A head's change of velocity from frame to frame at 30 fps, in units of a usual distance, ...
ACCELERATION = 0.004
#: ... and per radian that its turn changes by: a head turns about the neck, not about the camera.
LEVER = 0.05
#: Inverse distances are about 1, give or take this, before anything is known.
_SPREAD = 0.6
#: Residuals beyond this many standard deviations lose their weight.
_ROBUST = 2.0
#: What a turn from whole pictures is worth, rad, and per rad of it: near things that shift turn it.
TURN_SIGMA, TURN_SHARE = np.radians(0.4), 0.05
#: A step's standard deviation: these shares of that of its fit, and of what the two differ by.
FIT_SHARE, DISAGREEMENT_SHARE = 0.86, 0.38
#: ... and this share of a fast turn, where a head's neck moves the camera and pictures are blurred.
FAST_SHARE = 0.06
#: Turns further off than this many standard deviations lose their weight.
TURN_ROBUST = 4.0
#: What a centre may change by in a round that has nothing to say of it.
_CENTRE_RIDGE = 1.0


@dataclass(frozen=True, slots=True)
class Done:
    """A frame that will not change any more, in the reference of the first one of its piece.

    ``begins``: it is that first one. ``sigma``: of its step from the frame before, rad.
    """

    pose: Pose
    sigma: float
    begins: bool


class Window:
    """The last frames of a piece and all that was observed in them."""

    def __init__(self, fps: float) -> None:
        self.acceleration = ACCELERATION * (30.0 / fps) ** 2
        self.frames: list[Observations] = []
        self.poses: list[Pose] = []
        #: Inverse distance and variance of each point by its number.
        self.distances: dict[int, tuple[float, float]] = {}
        self._sigma: list[float] = []
        #: Poses of frames that are done with, while points that were found in them are followed.
        self.past: dict[int, Pose] = {}
        self._since, self._begun = 0, True
        #: Of the last frame that is done with.
        self._before: Pose | None = None

    def add(self, seen: Observations) -> list[Done]:
        """Take a frame; return those that will not change any more."""
        if not self.frames:
            pose, sigma = Pose(np.eye(3), np.zeros(3)), 0.0
        else:
            assert seen.turn is not None
            last = self.poses[-1]
            move = last.centre - self.poses[-2].centre if len(self.poses) > 1 else np.zeros(3)
            turn = agreed_turn(seen.before, seen.bearing, seen.known, seen.turn)
            pose, sigma = self._fit(seen, Pose(last.R @ turn, last.centre + move))
        self.frames.append(seen)
        self.poses.append(pose)
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

    def usual(self) -> float:
        """Return the usual inverse distance of the points in the last frame."""
        last = [
            self.distances[int(n)][0] for n in self.frames[-1].number if int(n) in self.distances
        ]
        return float(np.clip(np.median(last), 0.2, 5.0)) if len(last) > 20 else 1.0

    def _fit(self, seen: Observations, start: Pose) -> tuple[Pose, float]:
        assert seen.turn is not None
        sigma = float(turn_sigma(seen.turn))
        if not len(seen.number):
            return start, sigma
        points, usual = self._points(seen), self.usual()
        before = self.frames[-1].turn
        turns = np.stack([np.eye(3) if before is None else before, seen.turn])
        step_sigma = float(step_sigmas(np.stack([np.eye(3), *turns]), self.acceleration)[0])
        fit = fit_pose(points, seen.bearing, seen.known, start, sigma, step_sigma)
        for n, d, v in zip(seen.number, fit.inverse_distance, fit.variance, strict=True):
            if int(n) not in self.distances:
                self.distances[int(n)] = (float(d), max(float(v), (0.3 * usual) ** 2))
        sigma = float(np.sqrt(np.trace(fit.covariance[:3, :3])))
        return fit.pose, sigma

    def _points(self, seen: Observations) -> Points:
        """Return what is known of the points that a frame observes; of new ones next to nothing."""
        poses = self.past | {f.frame: p for f, p in zip(self.frames, self.poses, strict=False)}
        hosts = [poses[int(host)] for host in seen.host]
        usual = self.usual()
        known = [self.distances.get(int(n), (usual, (_SPREAD * usual) ** 2)) for n in seen.number]
        rho, variance = np.array(known).reshape(-1, 2).T
        return Points(
            np.array([host.R for host in hosts]).reshape(-1, 3, 3),
            np.array([host.centre for host in hosts]).reshape(-1, 3),
            seen.host_bearing, rho, variance,
        )  # fmt: skip

    def _drop(self, count: int) -> list[Done]:
        count = max(count, 0)
        done = [
            Done(self.poses[i], self._step_sigma(i), self.frames[i].turn is None)
            for i in range(count)
        ]
        if count:
            self._before = self.poses[count - 1]
        used = {int(host) for frame in self.frames[count:] for host in frame.host}
        gone = {f.frame: p for f, p in zip(self.frames[:count], self.poses, strict=False)}
        self.past = {host: pose for host, pose in (self.past | gone).items() if host in used}
        for rows in (self.frames, self.poses, self._sigma):
            del rows[:count]
        self._begun = self._begun and count == 0
        return done

    def _step_sigma(self, i: int) -> float:
        """Return the standard deviation of the step to frame ``i`` of the window."""
        turn, before = self.frames[i].turn, self.poses[i - 1] if i else self._before
        if turn is None or before is None:
            return 0.0
        # That points and whole pictures disagree tells more than what either knows of itself.
        apart = angle(turn.T @ before.R.T @ self.poses[i].R)
        fast = FAST_SHARE * angle(turn) if self.frames[i].scale > 1 else 0.0
        parts = FIT_SHARE * self._sigma[i], DISAGREEMENT_SHARE * apart, fast
        return float(np.linalg.norm(parts))

    def _adjust(self) -> None:
        """Adjust all poses but the first ones, and all distances."""
        self._since = 0
        fixed = 1 if self._begun else FIXED
        if len(self.frames) <= fixed or not any(len(f.number) for f in self.frames):
            return
        problem = _Problem(self, fixed)
        problem.solve()
        past = len(self.past)
        for i in range(fixed, len(self.poses)):
            self.poses[i] = Pose(problem.R[past + i], problem.centre[past + i])
        found = zip(problem.numbers, problem.rho, problem.variance, strict=True)
        self.distances = {int(n): (float(rho), float(variance)) for n, rho, variance in found}


def turn_sigma(turn: Float[np.ndarray, "*batch 3 3"]) -> Float[np.ndarray, "*batch"]:
    """Return the standard deviation of turns from whole pictures, rad."""
    return np.asarray(TURN_SIGMA + TURN_SHARE * np.linalg.norm(rotations.log(turn), axis=-1))


def step_sigmas(turns: Float[np.ndarray, "F 3 3"], acceleration: float) -> Float[np.ndarray, "S"]:
    """Return what the velocity may change by at all but the first and last of F frames.

    ``turns``: of each frame from the one before.
    """
    change = rotations.log(np.swapaxes(turns[1:-1], 1, 2) @ turns[2:])
    return np.asarray(acceleration + LEVER * np.linalg.norm(change, axis=-1))


class _Problem:
    """Least squares over the poses of F frames and the inverse distances of K points.

    The first ``past`` frames are not of the window, and the first ``fixed`` stay as they are. Its N
    observations are sorted by frame and host; ``first`` are the first ones of each pair of these.
    """

    def __init__(self, window: Window, fixed: int) -> None:
        past, frames = sorted(window.past), window.frames
        index = {number: i for i, number in enumerate([*past, *(f.frame for f in frames)])}
        some = [f for f in frames if len(f.number)]
        frame = np.repeat([index[f.frame] for f in some], [len(f.number) for f in some])
        host = np.array([index[int(h)] for f in some for h in f.host])
        order = np.lexsort((host, frame))

        def joined(name: str) -> np.ndarray:
            return np.concatenate([getattr(f, name) for f in some])[order]

        self.frame, self.host = frame[order], host[order]
        pair = self.frame * len(index) + self.host
        self.first = np.flatnonzero(np.diff(pair, prepend=-1))
        self.bearing, self.host_bearing = joined("bearing"), joined("host_bearing")
        self.across = joined("known") @ tangents(self.bearing)
        self.numbers, self.point = np.unique(joined("number"), return_inverse=True)

        self.usual = window.usual()
        known = [window.distances.get(int(n), (self.usual, 0.0))[0] for n in self.numbers]
        self.rho, self.variance = np.array(known), np.zeros(len(known))
        poses = [*(window.past[number] for number in past), *window.poses]
        self.R = np.stack([pose.R for pose in poses])
        self.centre = np.stack([pose.centre for pose in poses])
        self.past, self.fixed = len(past), len(past) + fixed
        self.turns = np.stack([np.eye(3) if f.turn is None else f.turn for f in frames])
        self.turn_sigma = turn_sigma(self.turns[1:])
        self.step_sigma = step_sigmas(self.turns, window.acceleration)

    def solve(self) -> None:
        """Minimise by Levenberg's and Marquardt's method, distances eliminated."""
        damping, cost = 1e-4, self._cost()
        for _ in range(_ROUNDS):
            H, g, E, C, b = self._normal()
            for _ in range(4):
                Cd = C * (1 + damping)
                S = H + damping * np.diag(np.diag(H)) - (E / Cd) @ E.T
                step = -np.linalg.solve(S, g - E @ (b / Cd))
                back = self.R.copy(), self.centre.copy(), self.rho
                shift = -(b + E.T @ step) / Cd
                step = step.reshape(-1, 6)
                self.R[self.fixed :] = self.R[self.fixed :] @ rotations.exp(step[:, :3])
                self.centre[self.fixed :] += step[:, 3:]
                self.rho = np.clip(self.rho + shift, 0.02 * self.usual, 20 * self.usual)
                new = self._cost()
                if new < cost:
                    break
                self.R, self.centre, self.rho = back
                damping *= 30
            else:
                break
            damping = max(damping / 10, 1e-6)
            done = cost - new < 3e-3 * cost
            cost = new
            if done:
                break
        self.variance = 1 / C

    def _residuals(self) -> tuple[Float[np.ndarray, "N 2"], Bearings, Bearings]:
        """Return what each point is off by in standard deviations.

        Also where it is in its frame, scaled by its inverse distance, and its host seen from there.
        """
        apart = self.centre[self.host] - self.centre[self.frame]
        ahead = (self.R[self.host] @ self.host_bearing[..., None])[..., 0]
        ahead += self.rho[self.point][:, None] * apart
        moved = (ahead[:, None] @ self.R[self.frame])[:, 0]
        unit = moved / np.linalg.norm(moved, axis=1)[:, None]
        return (self.across @ (unit - self.bearing)[..., None])[..., 0], moved, apart

    def _cost(self) -> float:
        s = (self._residuals()[0] ** 2).sum(1) / _ROBUST**2
        c = self.centre[self.past :]
        bend = (c[2:] - 2 * c[1:-1] + c[:-2]) / self.step_sigma[:, None]
        off = (self._turn_off() ** 2).sum(1) / (self.turn_sigma * TURN_ROBUST) ** 2
        spread = (self.rho - self.usual) / (_SPREAD * self.usual)
        robust = _ROBUST**2 * (s / (1 + s)).sum() + TURN_ROBUST**2 * (off / (1 + off)).sum()
        return float(robust + (bend**2).sum() + (spread**2).sum())

    def _turn_off(self) -> Float[np.ndarray, "S 3"]:
        """Return how far each step is from the turn of whole pictures, in the later frame."""
        R = self.R[self.past :]
        return rotations.log(np.swapaxes(self.turns[1:], 1, 2) @ np.swapaxes(R[:-1], 1, 2) @ R[1:])

    def _slopes(self, moved: Bearings, apart: Bearings) -> tuple[np.ndarray, np.ndarray]:
        """Return derivatives of residuals: with both poses (N, 2, 12), with distances (N, 2)."""
        R = self.R[self.frame]
        slope = direction_slopes(self.across, moved)[1]
        slope_world = slope @ np.swapaxes(R, 1, 2)
        by_centre = self.rho[self.point][:, None, None] * slope_world
        turned = slope_world @ self.R[self.host] @ rotations.skew(self.host_bearing)
        both = [slope @ rotations.skew(moved), -by_centre, -turned, by_centre]
        return np.concatenate(both, axis=2), (slope_world @ apart[..., None])[..., 0]

    def _normal(self) -> tuple[np.ndarray, ...]:
        """Return the parts of the normal equations: poses, their gradient, both, points, theirs."""
        F, K = len(self.R), len(self.rho)
        r, moved, apart = self._residuals()
        J, by_rho = self._slopes(moved, apart)
        weight = 1 / (1 + (r**2).sum(1) / _ROBUST**2) ** 2
        # A point that often disagrees, as a shadow that moves, is not believed where it agrees.
        often = np.bincount(self.point, weight, K) / np.bincount(self.point, minlength=K)
        weight = weight * often[self.point] ** 2

        Jw = np.swapaxes(J * weight[:, None, None], 1, 2)
        pairs = np.add.reduceat((Jw @ J).reshape(-1, 144), self.first).reshape(-1, 12, 12)
        pulls = np.add.reduceat((Jw @ r[..., None])[..., 0], self.first)
        mixed = (Jw @ by_rho[..., None])[..., 0]
        ends = (self.frame[self.first], slice(0, 6)), (self.host[self.first], slice(6, 12))
        H, g, E = np.zeros((F, F, 6, 6)), np.zeros((F, 6)), np.zeros((F, K, 6))
        for a, rows in ends:
            np.add.at(g, a, pulls[:, rows])
            for b, columns in ends:
                np.add.at(H, (a, b), pairs[:, rows, columns])
        E[self.frame, self.point] = mixed[:, :6]
        hosts = np.stack([np.bincount(self.point, m, minlength=K) for m in mixed[:, 6:].T], -1)
        host_of = np.zeros(K, int)
        host_of[self.point] = self.host
        E[host_of, np.arange(K)] += hosts
        self._add_priors(H, g)

        spread = (_SPREAD * self.usual) ** -2
        C = np.bincount(self.point, weight * (by_rho**2).sum(1), minlength=K) + spread
        off = np.bincount(self.point, weight * (by_rho * r).sum(1), minlength=K)
        poses = H[self.fixed :, self.fixed :].transpose(0, 2, 1, 3)
        size = 6 * (F - self.fixed)
        return (
            poses.reshape(size, size), g[self.fixed :].reshape(-1),
            E[self.fixed :].transpose(0, 2, 1).reshape(size, K), C,
            off + spread * (self.rho - self.usual),
        )  # fmt: skip

    def _add_priors(self, H: np.ndarray, g: np.ndarray) -> None:
        """Add what is expected of the window's frames, whatever is seen."""
        F, own = len(self.R) - self.past, slice(self.past, None)
        bend = np.zeros((max(F - 2, 0), F))
        for i in range(F - 2):
            bend[i, i : i + 3] = 1, -2, 1
        information = bend.T @ (bend / self.step_sigma[:, None] ** 2)
        g[own, 3:] += information @ self.centre[own]
        smooth = information + _CENTRE_RIDGE * np.eye(F)
        H[own, own, 3:, 3:] += smooth[:, :, None, None] * np.eye(3)

        # Small turns of both frames of a step change it by their difference, seen in the later one.
        R = self.R[own]
        step = np.swapaxes(R[:-1], 1, 2) @ R[1:]
        off = self._turn_off()
        size = (off**2).sum(1) / (self.turn_sigma * TURN_ROBUST) ** 2
        weight = (self.turn_sigma**-2 / (1 + size) ** 2)[:, None, None]
        a = np.arange(self.past, len(self.R) - 1)
        both = np.broadcast_to(np.eye(3), step.shape)
        blocks = (
            (a, a, both), (a + 1, a + 1, both), (a, a + 1, -step),
            (a + 1, a, -np.swapaxes(step, 1, 2)),
        )  # fmt: skip
        for rows, columns, block in blocks:
            H[rows, columns, :3, :3] += weight * block
        g[a, :3] -= (weight * step @ off[..., None])[..., 0]
        g[a + 1, :3] += weight[:, 0] * off
