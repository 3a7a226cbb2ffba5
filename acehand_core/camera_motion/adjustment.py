"""All poses of a window of frames and all distances of its points, adjusted to what was seen.

Bundle adjustment (Triggs et al., "Bundle Adjustment, a Modern Synthesis", 2000). A point lies along
the bearing at which its host shows it, at an inverse distance. Lengths are in units of about the
usual distance of a point; ``R``, ``centre`` are those of a camera in a frame that only the first
one holds.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sparse
from jaxtyping import Bool, Float, Int

from acehand_core.camera_motion.pose import direction_slopes
from acehand_core.geometry import rotations

#: Inverse distances are about 1, give or take this: it holds the scale, and points far away.
_SPREAD = 2.0
_NEAREST, _FARTHEST = 30.0, 1e-3
#: What a step of the rotation estimate is worth, rad, per root of a frame.
_TURN_SIGMA = np.radians(0.5)
#: A head's change of velocity from frame to frame at 30 fps, in units of a usual distance.
ACCELERATION = 0.005
#: The first frames that are adjusted by themselves, and how many are added at a time.
_FIRST, _MORE, _STRIDE = 12, 8, 3
#: A point that is inlier less often than this, at so many standard deviations, is dropped.
_OFTEN, _INLIER = 0.7, 3.0
_OUTLIER = 6.0


@dataclass(frozen=True, slots=True)
class Sightings:
    """N sightings of points by frames: their numbers, unit bearings, and what is known of these.

    ``across``: square root of the information times the tangents at the bearing.
    """

    frame: Int[np.ndarray, "N"]
    point: Int[np.ndarray, "N"]
    bearing: Float[np.ndarray, "N 3"]
    across: Float[np.ndarray, "N 2 3"]

    def pick(self, which: np.ndarray) -> Sightings:
        return Sightings(
            self.frame[which], self.point[which], self.bearing[which], self.across[which]
        )


@dataclass(frozen=True, slots=True)
class Scene:
    """Poses of F frames and K points; ``number``, ``label``: of these in the window, ascending.

    ``reference``: rotations from the estimate, ``piece``: those of the same piece belong together.
    """

    number: Int[np.ndarray, "F"]
    label: Int[np.ndarray, "K"]
    R: Float[np.ndarray, "F 3 3"]
    centre: Float[np.ndarray, "F 3"]
    host: Int[np.ndarray, "K"]
    bearing_host: Float[np.ndarray, "K 3"]
    inverse_distance: Float[np.ndarray, "K"]
    reference: Float[np.ndarray, "F 3 3"]
    piece: Int[np.ndarray, "F"]
    seen: Sightings
    #: Of the head, per frame.
    acceleration: float

    @property
    def points(self) -> Float[np.ndarray, "K 3"]:
        """Where the points are."""
        ahead = np.einsum("kij,kj->ki", self.R[self.host], self.bearing_host)
        return np.asarray(self.centre[self.host] + ahead / self.inverse_distance[:, None])

    @property
    def shown(self) -> Int[np.ndarray, "F"]:
        """How many points each frame shows."""
        F = len(self.R)
        seen = np.bincount(self.seen.frame, minlength=F)
        return np.asarray(seen + np.bincount(self.host, minlength=F))

    def off(self) -> Float[np.ndarray, "N"]:
        """Return what each sighting is off by, in standard deviations."""
        return np.asarray(np.linalg.norm(self._residuals()[0], axis=1))

    def only(
        self, sightings: Bool[np.ndarray, "N"], frames: np.ndarray | None = None, least: int = 3
    ) -> tuple[Scene, np.ndarray, np.ndarray]:
        """Return a scene of some sightings and frames, with their numbers and those of its points.

        ``least``: sightings of a point, which is left out otherwise.
        """
        frames = np.arange(len(self.R)) if frames is None else np.asarray(frames)
        at = np.full(len(self.R), -1)
        at[frames] = np.arange(len(frames))
        seen = self.seen
        use = sightings & (at[seen.frame] >= 0) & (at[self.host[seen.point]] >= 0)
        count = np.bincount(seen.point[use], minlength=len(self.host))
        use &= count[seen.point] >= least
        points, point = np.unique(seen.point[use], return_inverse=True)
        fewer = replace(seen.pick(use), frame=at[seen.frame[use]], point=point)
        scene = Scene(
            self.number[frames], self.label[points], self.R[frames], self.centre[frames],
            at[self.host[points]], self.bearing_host[points], self.inverse_distance[points],
            self.reference[frames], self.piece[frames], fewer, self.acceleration,
        )  # fmt: skip
        return scene, frames, points

    def _residuals(self) -> tuple[np.ndarray, ...]:
        seen = self.seen
        host = self.host[seen.point]
        world = np.einsum("nij,nj->ni", self.R[host], self.bearing_host[seen.point])
        apart = self.centre[host] - self.centre[seen.frame]
        ahead = world + self.inverse_distance[seen.point][:, None] * apart
        moved = np.einsum("nji,nj->ni", self.R[seen.frame], ahead)
        unit, slope = direction_slopes(seen.across, moved)
        return np.einsum("nij,nj->ni", seen.across, unit - seen.bearing), moved, apart, slope

    def _bend(self) -> Float[np.ndarray, "B F"]:
        """Return the changes of velocity at the inner frames, in standard deviations."""
        F, step = len(self.R), np.diff(self.number)
        bend = np.zeros((max(F - 2, 0), F))
        for i in range(F - 2):
            before, after = 1 / step[i], 1 / step[i + 1]
            size = self.acceleration * np.sqrt((step[i] + step[i + 1]) / 2)
            bend[i, i : i + 3] = before / size, -(before + after) / size, after / size
        return bend

    def _turns(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return steps of the rotation, their distance from the reference's, and its weight."""
        step = np.swapaxes(self.R[:-1], 1, 2) @ self.R[1:]
        given = np.swapaxes(self.reference[:-1], 1, 2) @ self.reference[1:]
        weight = 1 / (_TURN_SIGMA**2 * np.diff(self.number))
        weight = weight * (np.diff(self.piece) == 0)
        return step, rotations.log(np.swapaxes(given, 1, 2) @ step), weight

    def _cost(self, scale: float, bend: np.ndarray) -> float:
        s = (self._residuals()[0] ** 2).sum(1) / scale**2
        _, turned, weight = self._turns()
        prior = ((bend @ self.centre) ** 2).sum() + (weight[:, None] * turned**2).sum()
        prior += (((self.inverse_distance - 1) / _SPREAD) ** 2).sum()
        return float((scale**2 * s / (1 + s)).sum() + prior)

    def adjusted(self, scale: float, rounds: int = 10, gain: float = 1e-3) -> Scene:
        """Return a better scene, by up to so many rounds of Levenberg and Marquardt.

        Args:
            scale: residuals beyond so many standard deviations lose their weight.
            rounds: at most.
            gain: a round that lowers the cost by less than this share is the last.
        """
        scene, bend, damping = self, self._bend(), 1e-3
        cost = scene._cost(scale, bend)
        for _ in range(rounds):
            H, g, E, C, b = scene._normal(scale, bend)
            for _ in range(5):
                damped = C * (1 + damping)
                S = H + damping * np.diag(np.diag(H)) - (E / damped) @ E.T
                right = g - E @ (b / damped)
                step = np.zeros(len(g))
                step[6:] = -np.linalg.solve(S[6:, 6:] + 1e-9 * np.eye(len(g) - 6), right[6:])
                new = scene._moved(step.reshape(-1, 6), -(b + E.T @ step) / damped)
                new_cost = new._cost(scale, bend)
                if new_cost < cost:
                    break
                damping *= 10
            else:
                break
            damping = max(damping / 5, 1e-7)
            done, scene, cost = cost - new_cost < gain * cost, new, new_cost
            if done:
                break
        return scene

    def _moved(self, step: Float[np.ndarray, "F 6"], shift: Float[np.ndarray, "K"]) -> Scene:
        return replace(
            self,
            R=self.R @ rotations.exp(step[:, :3]),
            centre=self.centre + step[:, 3:],
            inverse_distance=np.clip(self.inverse_distance + shift, _FARTHEST, _NEAREST),
        )

    def _normal(self, scale: float, bend: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the normal equations: poses, their gradient, both, points, their gradient."""
        seen, F, K = self.seen, len(self.R), len(self.host)
        r, moved, apart, slope = self._residuals()
        root = 1 / (1 + (r**2).sum(1) / scale**2)  # of Geman and McClure's weight
        host = self.host[seen.point]
        slope_world = slope @ np.swapaxes(self.R[seen.frame], 1, 2)
        rho = self.inverse_distance[seen.point][:, None, None]
        turned = slope_world @ self.R[host]
        J = np.concatenate(
            [slope @ rotations.skew(moved), -rho * slope_world,
             -turned @ rotations.skew(self.bearing_host[seen.point]), rho * slope_world], axis=2,
        ) * root[:, None, None]  # fmt: skip
        by_rho = np.einsum("nij,nj->ni", slope_world, apart) * root[:, None]
        r = (r * root[:, None]).ravel()

        rows = len(r)
        columns = np.concatenate(
            [6 * seen.frame[:, None] + np.arange(6), 6 * host[:, None] + np.arange(6)], axis=1
        )
        J_pose = sparse.csr_matrix(
            (J.ravel(), np.repeat(columns, 2, axis=0).ravel(), np.arange(0, 12 * rows + 1, 12)),
            (rows, 6 * F),
        )
        J_point = sparse.csr_matrix(
            (by_rho.ravel(), np.repeat(seen.point, 2), np.arange(rows + 1)), (rows, K)
        )
        H, g = (J_pose.T @ J_pose).toarray(), J_pose.T @ r
        E, b = (J_pose.T @ J_point).toarray(), J_point.T @ r
        C = np.bincount(seen.point, (by_rho**2).sum(1), minlength=K) + _SPREAD**-2
        self._add_priors(H, g, bend)
        return H, g, E, C, b + (self.inverse_distance - 1) / _SPREAD**2

    def _add_priors(self, H: np.ndarray, g: np.ndarray, bend: np.ndarray) -> None:
        information = bend.T @ bend
        for axis in range(3):
            rows = slice(3 + axis, None, 6)
            H[rows, rows] += information
            g[rows] += information @ self.centre[:, axis]
        for i, (step, off, weight) in enumerate(zip(*self._turns(), strict=True)):
            a, b = slice(6 * i, 6 * i + 3), slice(6 * i + 6, 6 * i + 9)
            J = -step.T  # of the step with the earlier frame's turn; with the later one's it is 1
            H[a, a] += weight * np.eye(3)
            H[b, b] += weight * np.eye(3)
            H[a, b] += weight * J.T
            H[b, a] += weight * J
            g[a] += weight * J.T @ off
            g[b] += weight * off

    def uncertainty(self) -> tuple[Float[np.ndarray, "F"], Float[np.ndarray, "F"]]:
        """Return standard deviations of each frame: of its turn, degrees, and of its place.

        The place's is in units of the path's extent. Both are what is left after the best
        similarity, so that it does not matter which frame is fixed.
        """
        H, _, E, C, _ = self._normal(_INLIER, self._bend())
        S = (H - (E / C) @ E.T)[6:, 6:]
        F = len(self.R)
        covariance = np.zeros((6 * F, 6 * F))
        covariance[6:, 6:] = np.linalg.pinv(S, hermitian=True)
        apart = self.centre - self.centre.mean(0)
        extent = _extent(self.centre)

        by_frame = np.zeros((F, 6, 7))  # what a similarity does to turns and places
        by_frame[:, :3, :3] = np.swapaxes(self.R, 1, 2)
        by_frame[:, 3:, :3], by_frame[:, 3:, 3:6] = -rotations.skew(apart), np.eye(3)
        by_frame[:, 3:, 6] = apart
        free = by_frame.reshape(6 * F, 7)
        weight = np.tile(np.repeat([np.radians(1) ** -2, (0.1 * extent) ** -2], 3), F)
        weighted = (free * weight[:, None]).T
        left = np.eye(6 * F) - free @ np.linalg.solve(weighted @ free, weighted)
        variance = np.einsum("ij,jk,ik->i", left, covariance, left, optimize=True).reshape(F, 6)
        variance = np.maximum(variance, 0)
        angle = np.degrees(np.sqrt(variance[:, :3].sum(1)))
        return angle, np.sqrt(variance[:, 3:].sum(1)) / extent


def _extent(centre: Float[np.ndarray, "F 3"]) -> float:
    """Return the rms distance of a path from its middle."""
    return float(np.sqrt(((centre - centre.mean(0)) ** 2).sum(1).mean())) + 1e-12


def grown(scene: Scene) -> Scene:
    """Return the scene with poses and distances found frame after frame, from rotations alone.

    All at once from a camera that only turns would end beside the answer where it moves far.
    """
    R, centre = scene.R.copy(), scene.centre.copy()
    rho, begun = scene.inverse_distance.copy(), np.zeros(len(scene.host), bool)
    F = len(R)
    nodes = np.unique(np.concatenate([np.arange(0, F, _STRIDE), scene.host, [F - 1]]))
    everything = np.ones(len(scene.seen.frame), bool)
    stop = min(_FIRST, F)
    while True:
        now = nodes[nodes < stop]
        start = replace(scene, R=R, centre=centre, inverse_distance=rho)
        part, _, points = start.only(everything, now, least=2)
        for scale in (16.0, 8.0, 4.0) if not begun.any() else (8.0, 3.0):
            part = part.adjusted(scale, rounds=8)
        R[now], centre[now], rho[points] = part.R, part.centre, part.inverse_distance
        begun[points] = True
        if stop == F:
            break

        last, before = int(now[-1]), int(now[max(len(now) - 2, 0)])
        step = scene.number[last] - scene.number[before]
        speed = 0.5 * (centre[last] - centre[before]) / max(step, 1)
        R[last:] = R[last] @ scene.reference[last].T @ scene.reference[last:]
        centre[last:] = centre[last] + speed * (scene.number[last:] - scene.number[last])[:, None]
        if len(points):
            rho[~begun] = np.median(part.inverse_distance)
        stop = min(stop + _MORE, F)

    grown_to = replace(scene, R=R, centre=centre, inverse_distance=rho)
    return _filled(grown_to, nodes)


def between_nodes(scene: Scene, coarse: Scene) -> Scene:
    """Return the frames of ``scene`` about the poses of some of them, with the same points."""
    nodes = np.searchsorted(scene.number, coarse.number)
    R, centre = scene.R.copy(), scene.centre.copy()
    R[nodes], centre[nodes] = coarse.R, coarse.centre
    at = np.searchsorted(scene.label, coarse.label)
    rho, found = scene.inverse_distance.copy(), np.zeros(len(scene.host), bool)
    rho[at], found[at] = coarse.inverse_distance, True
    filled = _filled(replace(scene, R=R, centre=centre, inverse_distance=rho), nodes)
    return filled.only(found[scene.seen.point])[0]


def _filled(scene: Scene, nodes: np.ndarray) -> Scene:
    """Return the scene with frames between nodes on the rotation's own way, evenly."""
    R, centre = scene.R.copy(), scene.centre.copy()
    for a, b in itertools.pairwise(nodes.tolist()):
        for i in range(a + 1, b):
            share = (scene.number[i] - scene.number[a]) / (scene.number[b] - scene.number[a])
            R[i] = R[a] @ scene.reference[a].T @ scene.reference[i]
            centre[i] = (1 - share) * centre[a] + share * centre[b]
    return replace(scene, R=R, centre=centre)


def cleaned(scene: Scene) -> Scene:
    """Return the scene without sightings that are off, and points that often are."""
    off = scene.off()
    point, K = scene.seen.point, len(scene.host)
    share = np.bincount(point, off < _INLIER, K) / np.maximum(np.bincount(point, minlength=K), 1)
    return scene.only((share[point] > _OFTEN) & (off < _OUTLIER))[0]
