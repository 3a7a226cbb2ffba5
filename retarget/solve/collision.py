"""Collision avoidance of a hand: its shapes, and open fingertips, keep a distance.

``CollisionPairs`` has capsules (axes with a clearance) against capsules and boxes, in closed form.
``HullPairs`` has all other pairs, measured by MuJoCo on the replayed model: meshes count as their
convex hulls, as they do in its contacts. Both keep only pairs that the hand can bring together.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from acehand_core.geometry import rotations
from acehand_core.mujoco_gl import import_mujoco
from retarget.robots.collision_shapes import (
    FrameSet,
    Posture,
    closest_points,
    distances_to_boxes,
    link_places,
)
from retarget.robots.hand_spec import HandSpec
from retarget.robots.kinematics import KinematicTree, load_mjcf
from retarget.solve.costs import Cost, PairGaps, Problem, State, Weights
from retarget.solve.pinch import pinch_fingers

if TYPE_CHECKING:
    import mujoco

#: Frames whose pairs are compared at once, to bound the memory.
_BLOCK = 256
#: Random poses that show which pairs can meet, and those tried for parting a pair.
_SAMPLES, _PARTING = 2048, 64
#: At a smaller distance the line between the nearest points has no direction.
_TOUCHING_M = 1e-9
#: Contact may press this deep, as pads that hold something do; penetration begins at 1 mm.
CONTACT_M = 0.0003
#: Pairs further apart than their clearance and this are skipped in a round.
NEAR_M = 0.010


_Rows = Int[np.ndarray, "N"]
_Vectors = Float[np.ndarray, "N 3"]
_Axes = Float[np.ndarray, "N 3 3"]
_Points = Float[np.ndarray, "T G 3"]
_Turns = Float[np.ndarray, "T G 3 3"]


@dataclass(frozen=True, slots=True, eq=False)
class Close:
    """N near pairs, each in one frame.

    ``distance`` is negative inside each other; ``points`` are the nearest or, inside, the deepest
    of the first and the second shape. ``normal`` leads from the second to the first.
    """

    frames: Int[np.ndarray, "N"]
    pairs: Int[np.ndarray, "N"]
    distance: Float[np.ndarray, "N"]
    points: Float[np.ndarray, "N 2 3"]
    normal: Float[np.ndarray, "N 3"]


def volumes(model: mujoco.MjModel) -> Int[np.ndarray, "G"]:
    """Return the shapes with a volume: no planes."""
    kinds = import_mujoco().mjtGeom
    names = ("SPHERE", "CAPSULE", "ELLIPSOID", "CYLINDER", "BOX", "MESH")
    known = [int(getattr(kinds, f"mjGEOM_{name}")) for name in names]
    return np.flatnonzero(np.isin(model.geom_type, known))


class HullPairs:
    """Pairs of shapes fixed to links whose distances MuJoCo measures."""

    def __init__(self, hand: HandSpec, tree: KinematicTree) -> None:
        """Keep the pairs that some poses bring near and some part."""
        self._mujoco: Any = import_mujoco()
        self._tree, self._coupling = tree, hand.coupling
        self._model = load_mjcf(hand.mjcf_path)
        self._data = self._mujoco.MjData(self._model)
        pairs = tree.capsules.other_pairs
        self._use(pairs[np.isin(pairs, volumes(self._model)).all(axis=1)])

        rng = np.random.default_rng(0)
        commands = hand.commands_at(rng.random((_SAMPLES, len(hand.rest))))
        posture = tree.posture(hand.expand(np.concatenate([hand.rest[None], commands])))
        self._use(self._geoms[self._pairs[self._meeting(posture)]])
        self._use(self._geoms[self._pairs[self._parted(posture)]])

    def _use(self, pairs: Int[np.ndarray, "P 2"]) -> None:
        """Restrict the object to some pairs of the model's shapes."""
        model = self._model
        self._geoms, self._pairs = np.unique(pairs, return_inverse=True)
        self._pairs = self._pairs.reshape(-1, 2)
        self._links = model.geom_bodyid[self._geoms].astype(int) - 1
        self._offsets = model.geom_pos[self._geoms]
        self._turns = rotations.from_quaternion(model.geom_quat[self._geoms])
        # Bounding boxes along the shapes' axes, and spheres around these.
        self._middles, self._halves = np.split(model.geom_aabb[self._geoms].reshape(-1, 6), 2, 1)
        self._radii = np.linalg.norm(self._halves, axis=1)

    def __len__(self) -> int:
        return len(self._pairs)

    def close(self, posture: Posture, within: float) -> Close:
        """Return the pairs nearer than ``within`` (m), frame by frame."""
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
        """Return near pairs, linearised; ``weight`` as in ``PairGaps``."""
        links = self._links[self._pairs[close.pairs]]
        room = replace(close, distance=close.distance + CONTACT_M)
        return _linearised(self._tree, self._coupling, posture, room, links, weight)

    def _candidates(
        self, origins: _Points, turns: _Turns, within: float
    ) -> tuple[Int[np.ndarray, "N"], Int[np.ndarray, "N"]]:
        """Return frames and pairs possibly nearer than ``within``, by spheres, then by boxes."""
        first, second = self._pairs.T
        middles = origins + (turns @ self._middles[..., None])[..., 0]
        apart = middles[:, first] - middles[:, second]
        reach = within + self._radii[first] + self._radii[second]
        frame, pair = np.nonzero(np.einsum("npx,npx->np", apart, apart) < reach**2)

        first, second = self._pairs[pair].T
        halves = self._halves[first], self._halves[second]
        apart, turns_first = apart[frame, pair], turns[frame, first]
        near = _box_distances(apart, turns_first, turns[frame, second], *halves) < within
        return frame[near], pair[near]

    def _distances(
        self, origins: _Points, turns: _Turns, frames: _Rows, pairs: _Rows, within: float
    ) -> tuple[Float[np.ndarray, "N"], Float[np.ndarray, "N 2 3"]]:
        """Return distances of pairs (``within`` if further apart) and their nearest points."""
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
        """Return the pairs that some pose may bring near."""
        pairs = [np.zeros(0, int)]
        for start in range(0, _SAMPLES, _BLOCK):
            rows = np.arange(start, start + _BLOCK)
            places = link_places(posture.at(rows), self._links, self._offsets, self._turns)
            pairs.append(self._candidates(*places, NEAR_M / 2)[1])
        return np.unique(np.concatenate(pairs))

    def _parted(self, posture: Posture) -> Int[np.ndarray, "K"]:
        """Return the pairs that some pose parts: nothing can be done about the others."""
        left = np.arange(len(self._pairs))
        for frame in range(_PARTING):
            touching = self.close(posture.at(np.array([frame])), 0.0).pairs
            left = np.intersect1d(left, touching)
            if not len(left):
                break
        return np.setdiff1d(np.arange(len(self._pairs)), left)


def _box_distances(
    apart: _Vectors, first: _Axes, second: _Axes, first_halves: _Vectors, second_halves: _Vectors
) -> Float[np.ndarray, "N"]:
    """Return lower bounds of boxes' distances: the widest gap along the normals of faces.

    ``apart`` leads from the second's centre to the first's; columns of turns are a box's axes.
    """
    across = np.abs(np.swapaxes(first, 1, 2) @ second)
    along_first = np.abs(np.einsum("nxi,nx->ni", first, apart)) - first_halves
    along_first -= (across @ second_halves[..., None])[..., 0]
    along_second = np.abs(np.einsum("nxi,nx->ni", second, apart)) - second_halves
    along_second -= (np.swapaxes(across, 1, 2) @ first_halves[..., None])[..., 0]
    return np.maximum(along_first.max(axis=1), along_second.max(axis=1))


class HullCost(Cost):
    """Shapes other than capsules stay clear of each other. One-sided."""

    def __init__(self, pairs: HullPairs, weights: Weights) -> None:
        self._pairs, self._weights = pairs, weights
        self._known: tuple[Posture, Close] | None = None

    @classmethod
    def over(cls, problem: Problem, rows: slice) -> HullCost | None:
        if problem.weights.contact <= 0 or not len(problem.tree.capsules.other_pairs):
            return None
        pairs = hull_pairs(problem.hand, problem.tree)
        return cls(pairs, problem.weights) if len(pairs) else None

    def value(self, state: State, residual: Float[np.ndarray, "T M"]) -> Float[np.ndarray, "T"]:
        close = self._close(state)
        deep = np.maximum(-CONTACT_M - close.distance, 0) / self._weights.length_m
        squared = np.bincount(close.frames, deep**2, minlength=len(state.commands))
        return 0.5 * self._weights.contact * squared

    def gaps(self, state: State) -> PairGaps:
        weight = self._weights.contact / self._weights.length_m**2
        return self._pairs.gaps(state.posture, self._close(state), weight)

    def _close(self, state: State) -> Close:
        """Return the near pairs of a state, kept between ``value`` and ``gaps``."""
        if self._known is None or self._known[0] is not state.posture:
            self._known = state.posture, self._pairs.close(state.posture, NEAR_M - CONTACT_M)
        return self._known[1]


hull_pairs = functools.lru_cache(maxsize=8)(HullPairs)


class CollisionPairs:
    """Pairs of shapes fixed to links, and how far each pair must stay apart.

    Columns are pairs of capsules, then pairs of a capsule and a box, then pairs of tips.
    """

    def __init__(self, hand: HandSpec, tree: KinematicTree, pinching: Int[np.ndarray, "P"]) -> None:
        """Use capsules and boxes, and the thumb with the fingers that can pinch."""
        self.pinching = pinching
        self._tree, self._coupling = tree, hand.coupling
        shapes = tree.capsules
        capsule_frames, tips = shapes.frames(), tree.frames(hand.tip_names)
        # Segment i has its ends at frames 2 i and 2 i + 1; a tip is a segment without length.
        twice = np.repeat(np.arange(len(tips.links)), 2)
        ends = FrameSet(
            np.concatenate([capsule_frames.links, tips.links[twice]]),
            np.concatenate([capsule_frames.offsets, tips.offsets[twice]]),
            np.concatenate([capsule_frames.turns, tips.turns[twice]]),
        )

        pairs, box_pairs = _meeting(hand, tree)
        thumb = len(shapes.radii)
        tip_pairs = np.array([(thumb, thumb + finger) for finger in pinching], int).reshape(-1, 2)
        clearances = (
            shapes.radii[pairs].sum(1) - CONTACT_M,
            shapes.radii[box_pairs[:, 0]] - CONTACT_M,
            np.full(len(tip_pairs), -np.inf),
        )
        self._clearance = np.concatenate(clearances)
        self._boxed = slice(len(pairs), len(pairs) + len(box_pairs))
        self._tips = slice(self._boxed.stop, len(self._clearance))

        # Only segments of some pair are kept.
        segments = np.concatenate([pairs.reshape(-1), box_pairs[:, 0], tip_pairs.reshape(-1)])
        used = np.unique(segments)
        rows = np.stack([2 * used, 2 * used + 1], axis=1).reshape(-1)
        self._ends = FrameSet(ends.links[rows], ends.offsets[rows], ends.turns[rows])
        self._pairs = np.searchsorted(used, np.concatenate([pairs, tip_pairs]))
        self._boxed_segments = np.searchsorted(used, box_pairs[:, 0])
        self._boxes, box = shapes.boxes, box_pairs[:, 1]
        of_segment = self._ends.links[::2]
        of_pair = of_segment[self._pairs]
        of_box_pair = np.stack([of_segment[self._boxed_segments], self._boxes.links[box]], axis=1)
        self._links = np.insert(of_pair, self._boxed.start, of_box_pair, axis=0)
        self._box = box

    def __len__(self) -> int:
        return len(self._clearance)

    def clearance(self, apart: Float[np.ndarray, "T P"]) -> Float[np.ndarray, "T N"]:
        """Return the clearance of every pair and frame for the least distances of open tips.

        Without columns in ``apart`` the tips may meet anywhere.
        """
        clearance = np.tile(self._clearance, (len(apart), 1))
        if apart.shape[1]:
            clearance[:, self._tips] = apart
        return clearance

    def shortfall(
        self, posture: Posture, clearance: Float[np.ndarray, "T N"]
    ) -> Float[np.ndarray, "T N"]:
        """Return the missing distance of each pair, metres; negative where there is room."""
        return clearance - self._nearest(posture)[3]

    def gaps(
        self, posture: Posture, clearance: Float[np.ndarray, "T N"], weight: float = 1.0
    ) -> PairGaps:
        """Return near pairs, linearised; ``weight`` as in ``PairGaps``."""
        first, second, normal, distance = self._nearest(posture)
        frames, pairs = np.nonzero(distance < clearance + NEAR_M)
        points = np.stack([first[frames, pairs], second[frames, pairs]], axis=1)
        room = (distance - clearance)[frames, pairs]
        close = Close(frames, pairs, room, points, normal[frames, pairs])
        return _linearised(self._tree, self._coupling, posture, close, self._links[pairs], weight)

    def _nearest(self, posture: Posture) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return the nearest points of all pairs, the direction to the first, and the distance.

        The distance is negative where the first, a point of an axis, is inside the second's box.
        """
        ends = posture.points(self._ends)
        a, b = self._pairs.T
        starts, stops = ends[:, ::2], ends[:, 1::2]
        first, second = closest_points(starts[:, a], stops[:, a], starts[:, b], stops[:, b])
        apart = first - second
        distance = np.linalg.norm(apart, axis=-1)
        normal = apart / np.maximum(distance, 1e-9)[..., None]
        if not len(self._box):
            return first, second, normal, distance

        segment, at = self._boxed_segments, self._boxed.start
        places = posture, starts[:, segment], stops[:, segment], self._boxes, self._box
        boxed = distances_to_boxes(*places, self._clearance[self._boxed] + NEAR_M)
        columns = zip((first, second, normal, distance), boxed, strict=True)
        first, second, normal, distance = (
            np.concatenate([own[:, :at], new, own[:, at:]], axis=1) for own, new in columns
        )
        return first, second, normal, distance


def _linearised(
    tree: KinematicTree,
    coupling: Float[np.ndarray, "Q C"],
    posture: Posture,
    close: Close,
    links: Int[np.ndarray, "N 2"],
    weight: float,
) -> PairGaps:
    """Return near pairs with the derivatives by commands of the distances between their points.

    Each point is fixed to its link. ``close.distance`` is the room.
    """
    rates = np.zeros((len(close.frames), coupling.shape[1]))
    for end, sign in ((0, 1), (1, -1)):
        for link in np.unique(links[:, end]):
            rows = np.flatnonzero(links[:, end] == link)
            at, points = posture.at(close.frames[rows]), close.points[rows, end : end + 1]
            jacobian = tree.jacobian(at, np.array([link]), points, coupling)
            rates[rows] += sign * np.einsum("nx,nxc->nc", close.normal[rows], jacobian[:, 0])
    weights = np.full(len(rates), weight)
    return PairGaps(close.frames, close.pairs, close.distance, rates, weights)


def _meeting(
    hand: HandSpec, tree: KinematicTree
) -> tuple[Int[np.ndarray, "P 2"], Int[np.ndarray, "R 2"]]:
    """Return capsule and capsule-box pairs that some random pose brings near and some parts."""
    shapes = tree.capsules
    rng = np.random.default_rng(0)
    commands = hand.commands_at(rng.random((_SAMPLES, len(hand.rest))))
    posture = tree.posture(hand.expand(commands))
    ends = posture.points(shapes.frames())
    starts, stops = ends[:, ::2], ends[:, 1::2]

    a, b = shapes.pairs.T
    first, second = closest_points(starts[:, a], stops[:, a], starts[:, b], stops[:, b])
    between = np.linalg.norm(first - second, axis=-1) - shapes.radii[shapes.pairs].sum(1)

    capsule, box = shapes.box_pairs.T
    radii = shapes.radii[capsule]
    *_, distance = distances_to_boxes(
        posture, starts[:, capsule], stops[:, capsule], shapes.boxes, box, radii + NEAR_M / 2
    )
    from_box = distance - radii
    return tuple(
        pairs[(gap.min(0) < NEAR_M / 2) & (gap.max(0) > 0)]
        for pairs, gap in ((shapes.pairs, between), (shapes.box_pairs, from_box))
    )


class CollisionCost(Cost):
    """Shapes of the hand, and open fingertips, keep their clearance. One-sided."""

    def __init__(
        self, pairs: CollisionPairs, clearance: Float[np.ndarray, "T N"], weights: Weights
    ) -> None:
        self._pairs, self._clearance, self._weights = pairs, clearance, weights

    @classmethod
    def over(cls, problem: Problem, rows: slice) -> CollisionCost | None:
        if problem.weights.contact <= 0:
            return None
        pairs = collision_pairs(problem.hand, problem.tree)
        clearance = pairs.clearance(problem.pinches.apart[rows])
        return cls(pairs, clearance, problem.weights) if np.isfinite(clearance).any() else None

    def value(self, state: State, residual: Float[np.ndarray, "T M"]) -> Float[np.ndarray, "T"]:
        shortfall = self._pairs.shortfall(state.posture, self._clearance)
        deep = np.maximum(shortfall, 0) / self._weights.length_m
        return 0.5 * self._weights.contact * np.sum(deep**2, axis=1)

    def gaps(self, state: State) -> PairGaps:
        weight = self._weights.contact / self._weights.length_m**2
        return self._pairs.gaps(state.posture, self._clearance, weight)


@functools.lru_cache(maxsize=8)
def collision_pairs(hand: HandSpec, tree: KinematicTree) -> CollisionPairs:
    """Return the capsule pairs of a hand that can meet."""
    return CollisionPairs(hand, tree, pinch_fingers(hand, tree))
