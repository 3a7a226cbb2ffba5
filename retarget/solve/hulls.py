"""Collision avoidance of other shapes: meshes, boxes, cylinders and ellipsoids of makers' hands.

MuJoCo measures the distances on the model that is replayed, so a mesh counts as its convex hull, as
it does where MuJoCo collides it. The pairs are those that may touch there and that capsules and
boxes (``collision.py``) do not cover. Spheres and boxes around the shapes tell which are near.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from acehand_core.geometry import rotations
from acehand_core.mujoco_gl import import_mujoco
from retarget.robots.collision_shapes import link_places
from retarget.robots.hand_spec import HandSpec
from retarget.robots.kinematics import KinematicTree, Posture, load_mjcf
from retarget.solve.collision import CONTACT_M, NEAR_M, separation_rates
from retarget.solve.costs import Cost, PairGaps, Problem, State, Weights

#: Frames whose pairs are compared at once, which bounds the memory.
_BLOCK = 256
#: Poses that say which pairs can meet, and those that are asked whether they part a pair.
_SAMPLES, _PARTING = 2048, 64
#: At a smaller distance the line between the nearest points has no direction.
_TOUCHING_M = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Close:
    """N pairs that are near, each in one frame.

    ``distance`` is negative where they are inside each other; ``points`` are the nearest, or the
    deepest, of the first and the second. ``normal`` leads from the second to the first.
    """

    frames: Int[np.ndarray, "N"]
    pairs: Int[np.ndarray, "N"]
    distance: Float[np.ndarray, "N"]
    points: Float[np.ndarray, "N 2 3"]
    normal: Float[np.ndarray, "N 3"]


class HullPairs:
    """Pairs of shapes fixed to links whose distances MuJoCo measures."""

    def __init__(self, hand: HandSpec, tree: KinematicTree) -> None:
        """Use the pairs that some poses bring near and some part."""
        self._mujoco: Any = import_mujoco()
        self._tree, self._coupling = tree, hand.coupling
        self._model = load_mjcf(hand.mjcf_path)
        self._data = self._mujoco.MjData(self._model)
        kinds = self._mujoco.mjtGeom
        convex = [int(k) for k in (kinds.mjGEOM_SPHERE, kinds.mjGEOM_CAPSULE, kinds.mjGEOM_BOX,
                                   kinds.mjGEOM_ELLIPSOID, kinds.mjGEOM_CYLINDER,
                                   kinds.mjGEOM_MESH)]  # fmt: skip
        pairs = tree.capsules.other_pairs
        self._use(pairs[np.isin(self._model.geom_type[pairs], convex).all(axis=1)])

        rng = np.random.default_rng(0)
        span = hand.command_upper - hand.command_lower
        commands = hand.command_lower + span * rng.random((_SAMPLES, len(span)))
        posture = tree.posture(hand.expand(np.concatenate([hand.rest[None], commands])))
        self._use(self._geoms[self._pairs[self._meeting(posture)]])
        self._use(self._geoms[self._pairs[self._parted(posture)]])

    def _use(self, pairs: Int[np.ndarray, "P 2"]) -> None:
        """Look at pairs of the model's shapes from now on."""
        model = self._model
        self._geoms, self._pairs = np.unique(pairs, return_inverse=True)
        self._pairs = self._pairs.reshape(-1, 2)
        self._links = model.geom_bodyid[self._geoms].astype(int) - 1
        self._offsets = model.geom_pos[self._geoms]
        self._turns = rotations.from_quaternion(model.geom_quat[self._geoms])
        # The box around a shape, along its axes, and the sphere around that.
        self._middles, self._halves = np.split(model.geom_aabb[self._geoms].reshape(-1, 6), 2, 1)
        self._radii = np.linalg.norm(self._halves, axis=1)

    def __len__(self) -> int:
        return len(self._pairs)

    def close(self, posture: Posture, within: float) -> Close:
        """Return the pairs that are nearer than ``within`` (m), frame by frame."""
        count = posture.positions.shape[1]
        parts = []
        for start in range(0, count, _BLOCK):
            rows = np.arange(start, min(start + _BLOCK, count))
            origins, turns = link_places(posture.at(rows), self._links, self._offsets, self._turns)
            frames, pairs = self._candidates(origins, turns, within)
            distance, points = self._distances(origins, turns, frames, pairs, within)
            near = distance < within
            parts.append((start + frames[near], pairs[near], distance[near], points[near]))

        frames, pairs, distance, points = (np.concatenate(p) for p in zip(*parts, strict=True))
        apart = points[:, 0] - points[:, 1]
        clear = np.abs(distance) > _TOUCHING_M
        normal = np.zeros_like(apart)
        normal[clear] = apart[clear] / distance[clear, None]
        return Close(frames, pairs, distance, points, normal)

    def gaps(self, posture: Posture, close: Close, weight: float) -> PairGaps:
        """Return pairs that are near, linearised; ``weight`` as in ``PairGaps``."""
        links = self._links[self._pairs[close.pairs]]
        gradient = separation_rates(
            self._tree, self._coupling, posture, close.frames, links, close.points, close.normal
        )
        room = close.distance + CONTACT_M
        return PairGaps(close.frames, close.pairs, room, gradient, np.full(len(room), weight))

    def _candidates(
        self,
        origins: Float[np.ndarray, "T G 3"],
        turns: Float[np.ndarray, "T G 3 3"],
        within: float,
    ) -> tuple[Int[np.ndarray, "N"], Int[np.ndarray, "N"]]:
        """Return frames and pairs that may be nearer than ``within``: spheres, then boxes are."""
        first, second = self._pairs.T
        middles = origins + (turns @ self._middles[..., None])[..., 0]
        apart = middles[:, first] - middles[:, second]
        reach = within + self._radii[first] + self._radii[second]
        frame, pair = np.nonzero(np.einsum("npx,npx->np", apart, apart) < reach**2)

        first, second = self._pairs[pair].T
        least = _box_distances(
            apart[frame, pair], turns[frame, first], turns[frame, second],
            self._halves[first], self._halves[second],
        )  # fmt: skip
        return frame[least < within], pair[least < within]

    def _distances(
        self,
        origins: Float[np.ndarray, "T G 3"],
        turns: Float[np.ndarray, "T G 3 3"],
        frames: Int[np.ndarray, "N"],
        pairs: Int[np.ndarray, "N"],
        within: float,
    ) -> tuple[Float[np.ndarray, "N"], Float[np.ndarray, "N 2 3"]]:
        """Return the distances of pairs and their nearest points; ``within`` if further apart."""
        model, data, geoms = self._model, self._data, self._geoms
        measure = self._mujoco.mj_geomDistance
        distance, points = np.empty(len(frames)), np.zeros((len(frames), 6))
        starts = np.searchsorted(frames, np.arange(len(origins) + 1)).tolist()
        first, second = geoms[self._pairs[pairs]].T.tolist()
        for frame, (start, stop) in enumerate(itertools.pairwise(starts)):
            if start == stop:
                continue
            data.geom_xpos[geoms] = origins[frame]
            data.geom_xmat[geoms] = turns[frame].reshape(-1, 9)
            for row in range(start, stop):
                distance[row] = measure(model, data, first[row], second[row], within, points[row])
        return distance, points.reshape(-1, 2, 3)

    def _meeting(self, posture: Posture) -> Int[np.ndarray, "K"]:
        """Return the pairs that may come near in some pose."""
        found = [np.zeros(0, int)]
        for start in range(0, _SAMPLES, _BLOCK):
            rows = np.arange(start, start + _BLOCK)
            places = link_places(posture.at(rows), self._links, self._offsets, self._turns)
            found.append(self._candidates(*places, NEAR_M / 2)[1])
        return np.unique(np.concatenate(found))

    def _parted(self, posture: Posture) -> Int[np.ndarray, "K"]:
        """Return the pairs that some pose parts: about the others nothing could be done."""
        left = np.arange(len(self._pairs))
        for frame in range(_PARTING):
            touching = self.close(posture.at(np.array([frame])), 0.0).pairs
            left = np.intersect1d(left, touching)
            if not len(left):
                break
        return np.setdiff1d(np.arange(len(self._pairs)), left)


def _box_distances(
    apart: Float[np.ndarray, "N 3"],
    first: Float[np.ndarray, "N 3 3"],
    second: Float[np.ndarray, "N 3 3"],
    first_halves: Float[np.ndarray, "N 3"],
    second_halves: Float[np.ndarray, "N 3"],
) -> Float[np.ndarray, "N"]:
    """Return what distances of boxes are not below: the widest gap along the normals of faces.

    ``apart`` leads from the second's centre to the first's; columns of turns are a box's axes.
    """
    across = np.abs(np.swapaxes(first, 1, 2) @ second)
    along_first = np.abs(np.einsum("nxi,nx->ni", first, apart)) - first_halves
    along_first -= (across @ second_halves[..., None])[..., 0]
    along_second = np.abs(np.einsum("nxi,nx->ni", second, apart)) - second_halves
    along_second -= (np.swapaxes(across, 1, 2) @ first_halves[..., None])[..., 0]
    return np.maximum(along_first.max(axis=1), along_second.max(axis=1))


class HullCost(Cost):
    """Shapes that are not capsules stay clear of each other. One-sided."""

    def __init__(self, pairs: HullPairs, weights: Weights) -> None:
        """Keep these pairs apart."""
        self._pairs, self._weights = pairs, weights
        self._known: tuple[Posture, Close] | None = None

    @classmethod
    def over(cls, problem: Problem, rows: slice) -> HullCost | None:
        """Return the cost; see ``Cost``."""
        if problem.weights.contact <= 0 or not len(problem.tree.capsules.other_pairs):
            return None
        pairs = hull_pairs(problem.hand, problem.tree)
        return cls(pairs, problem.weights) if len(pairs) else None

    def value(self, state: State, residual: Float[np.ndarray, "T M"]) -> Float[np.ndarray, "T"]:
        """Return what each frame costs."""
        close = self._close(state)
        deep = np.maximum(-CONTACT_M - close.distance, 0) / self._weights.length_m
        squared = np.bincount(close.frames, deep**2, minlength=len(state.commands))
        return 0.5 * self._weights.contact * squared

    def gaps(self, state: State) -> PairGaps:
        """Return the pairs that are too close or nearly so."""
        weight = self._weights.contact / self._weights.length_m**2
        return self._pairs.gaps(state.posture, self._close(state), weight)

    def _close(self, state: State) -> Close:
        """Return the near pairs; a pose that is taken is asked for its gaps after its value."""
        if self._known is None or self._known[0] is not state.posture:
            self._known = state.posture, self._pairs.close(state.posture, NEAR_M - CONTACT_M)
        return self._known[1]


@functools.lru_cache(maxsize=8)
def hull_pairs(hand: HandSpec, tree: KinematicTree) -> HullPairs:
    """Return what must stay apart in a hand; which pairs can meet is found out once."""
    return HullPairs(hand, tree)
