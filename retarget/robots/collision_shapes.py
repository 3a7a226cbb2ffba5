"""Collision capsules and boxes of a model, frames on its links, and distances between shapes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

from acehand_core.geometry import rotations

if TYPE_CHECKING:
    import mujoco

_GOLDEN_STEPS = 24


@dataclass(frozen=True, slots=True, eq=False)
class FrameSet:
    """K frames fixed to links: link index and pose in the link's frame."""

    links: Int[np.ndarray, "K"]
    offsets: Float[np.ndarray, "K 3"]
    turns: Float[np.ndarray, "K 3 3"]


@dataclass(frozen=True, slots=True, eq=False)
class Posture:
    """Links (L), joint axes and anchors (Q) over T frames in contiguous blocks; base frame."""

    positions: Float[np.ndarray, "L T 3"]
    turns: Float[np.ndarray, "L T 3 3"]
    axes: Float[np.ndarray, "Q T 3"]
    anchors: Float[np.ndarray, "Q T 3"]

    def points(self, frames: FrameSet) -> Float[np.ndarray, "T K 3"]:
        """Return the origins of frames."""
        points = np.empty((self.turns.shape[1], len(frames.links), 3))
        for k, (link, offset) in enumerate(zip(frames.links, frames.offsets, strict=True)):
            points[:, k] = self.positions[link] + times(self.turns[link], offset)
        return points

    def at(self, rows: Int[np.ndarray, "N"]) -> Posture:
        return Posture(*(a[:, rows] for a in (self.positions, self.turns, self.axes, self.anchors)))


@dataclass(frozen=True, slots=True, eq=False)
class Boxes:
    """B collision boxes: centre and rotation in the link's frame, half sizes."""

    names: tuple[str, ...]
    links: Int[np.ndarray, "B"]
    centres: Float[np.ndarray, "B 3"]
    turns: Float[np.ndarray, "B 3 3"]
    halves: Float[np.ndarray, "B 3"]


@dataclass(frozen=True, slots=True, eq=False)
class Capsules:
    """G collision capsules: axis ends in the link's frame (equal for a sphere), and radii.

    ``pairs`` of capsules and ``box_pairs`` of capsule and box may touch, see ``colliding_pairs``;
    ``other_pairs`` are the remaining pairs, by geom number.
    """

    names: tuple[str, ...]
    links: Int[np.ndarray, "G"]
    ends: Float[np.ndarray, "G 2 3"]
    radii: Float[np.ndarray, "G"]
    pairs: Int[np.ndarray, "P 2"]
    boxes: Boxes
    box_pairs: Int[np.ndarray, "R 2"]
    other_pairs: Int[np.ndarray, "S 2"]

    def frames(self) -> FrameSet:
        """Return the 2 G axis ends, both ends of a capsule in a row."""
        count = 2 * len(self.links)
        turns = np.broadcast_to(np.eye(3), (count, 3, 3))
        return FrameSet(np.repeat(self.links, 2), self.ends.reshape(count, 3), turns)


def times(turns: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    # One large product instead of many small ones.
    return (turns.reshape(-1, 3) @ matrix).reshape(len(turns), 3, *matrix.shape[1:])


def read_capsules(model: mujoco.MjModel, prefix: str) -> Capsules:
    """Return the colliding capsules, spheres and boxes; names without ``prefix``."""
    import mujoco

    kinds = mujoco.mjtGeom
    capsule, sphere, box = map(int, (kinds.mjGEOM_CAPSULE, kinds.mjGEOM_SPHERE, kinds.mjGEOM_BOX))
    # Geoms fixed to the world have no link.
    solid = (model.geom_contype | model.geom_conaffinity).astype(bool) & (model.geom_bodyid > 0)
    round_ = np.flatnonzero(solid & np.isin(model.geom_type, (capsule, sphere)))
    boxes = np.flatnonzero(solid & (model.geom_type == box))
    turns = rotations.from_quaternion(model.geom_quat)
    half = np.where(model.geom_type == capsule, model.geom_size[:, 1], 0.0)
    along = half[round_, None] * turns[round_, :, 2]

    # The index of every geom among capsules or boxes; -1: neither.
    pairs = colliding_pairs(model)
    as_capsule, as_box = np.full((2, model.ngeom), -1)
    as_capsule[round_], as_box[boxes] = np.arange(len(round_)), np.arange(len(boxes))
    both = (as_capsule[pairs] >= 0).all(axis=1)
    with_box = (as_capsule[pairs] >= 0).any(axis=1) & (as_box[pairs] >= 0).any(axis=1)
    box_pairs = np.stack([table[pairs[with_box]].max(axis=1) for table in (as_capsule, as_box)], 1)

    def names(geoms: Int[np.ndarray, "G"]) -> tuple[str, ...]:
        return tuple(model.geom(geom).name.removeprefix(prefix) for geom in geoms)

    links = model.geom_bodyid.astype(int) - 1
    return Capsules(
        names(round_),
        links[round_],
        model.geom_pos[round_, None] + np.stack([-along, along], axis=1),
        model.geom_size[round_, 0].copy(),
        as_capsule[pairs[both]],
        Boxes(
            names(boxes), links[boxes], model.geom_pos[boxes], turns[boxes], model.geom_size[boxes]
        ),
        box_pairs[np.lexsort(box_pairs.T[::-1])],
        pairs[~(both | with_box)],
    )


def colliding_pairs(model: mujoco.MjModel) -> Int[np.ndarray, "P 2"]:
    """Return the pairs of geoms that MuJoCo lets collide, in ascending order.

    As in the replay: not within a link, between a link and its parent, between excluded links or
    with incompatible masks; and the pairs that the model names.
    """
    solid = np.flatnonzero(model.geom_contype | model.geom_conaffinity)
    pairs = solid[np.stack(np.triu_indices(len(solid), 1), axis=1)]
    a, b = pairs.T
    mask = model.geom_contype[a] & model.geom_conaffinity[b]
    mask |= model.geom_contype[b] & model.geom_conaffinity[a]

    bodies = model.geom_bodyid[pairs].astype(int)
    weld = model.body_weldid[bodies]
    above = model.body_weldid[model.body_parentid[weld]]
    # Children of the world may touch what is fixed to it.
    child = weld.all(axis=1) & (above == weld[:, ::-1]).any(axis=1)
    related = (weld[:, 0] == weld[:, 1]) | child
    excluded = np.isin((bodies[:, 0] << 16) + bodies[:, 1], model.exclude_signature)
    excluded |= np.isin((bodies[:, 1] << 16) + bodies[:, 0], model.exclude_signature)

    named = np.sort(np.stack([model.pair_geom1, model.pair_geom2], axis=1), axis=1)
    free = pairs[(mask != 0) & ~related & ~excluded]
    return np.unique(np.concatenate([free, named]), axis=0).astype(int)


def link_places(
    posture: Posture,
    links: Int[np.ndarray, "G"],
    centres: Float[np.ndarray, "G 3"],
    turns: Float[np.ndarray, "G 3 3"],
) -> tuple[Float[np.ndarray, "T G 3"], Float[np.ndarray, "T G 3 3"]]:
    """Return centres and rotations of shapes on links, in the base frame; link -1 is the base."""
    count = posture.positions.shape[1]
    base = np.broadcast_to(np.eye(3), (1, count, 3, 3))
    link_turns = np.concatenate([posture.turns, base])[links]
    positions = np.concatenate([posture.positions, np.zeros((1, count, 3))])[links]
    where = positions + (link_turns @ centres[:, None, :, None])[..., 0]
    turned = link_turns @ turns[:, None]
    # Frames are used one by one: make their rows contiguous.
    where, turned = (np.ascontiguousarray(np.swapaxes(a, 0, 1)) for a in (where, turned))
    return where, turned


def closest_points(
    a: Float[np.ndarray, "*n 3"],
    b: Float[np.ndarray, "*n 3"],
    c: Float[np.ndarray, "*n 3"],
    d: Float[np.ndarray, "*n 3"],
) -> tuple[np.ndarray, np.ndarray]:
    """Return the nearest points of segments a-b and c-d.

    The pair inside both segments if it exists, otherwise the nearest pair of an end and its foot on
    the other segment: exact, because the distance is convex.
    """
    u, v, w = b - a, d - c, a - c
    uu, vv = np.maximum(np.sum(u * u, -1), 0), np.maximum(np.sum(v * v, -1), 0)
    uv, uw, vw = np.sum(u * v, -1), np.sum(u * w, -1), np.sum(v * w, -1)

    tiny = 1e-18
    determinant = uu * vv - uv * uv
    best_s = (uv * vw - vv * uw) / np.maximum(determinant, tiny)
    best_t = (uu * vw - uv * uw) / np.maximum(determinant, tiny)
    inside = (best_s >= 0) & (best_s <= 1) & (best_t >= 0) & (best_t <= 1)
    inside &= determinant > 1e-9 * uu * vv + tiny
    best = np.where(inside, -1.0, np.inf)

    zero, one = np.zeros_like(uu), np.ones_like(uu)
    vs, us = np.maximum(vv, tiny), np.maximum(uu, tiny)
    for s_try, t_try in (
        (zero, np.clip(vw / vs, 0, 1)),
        (one, np.clip((vw + uv) / vs, 0, 1)),
        (np.clip(-uw / us, 0, 1), zero),
        (np.clip((uv - uw) / us, 0, 1), one),
    ):
        gap = w + s_try[..., None] * u - t_try[..., None] * v
        distance = np.sum(gap * gap, -1)
        better = distance < best
        best_s, best_t = np.where(better, s_try, best_s), np.where(better, t_try, best_t)
        best = np.where(better, distance, best)
    return a + best_s[..., None] * u, c + best_t[..., None] * v


def nearest_to_boxes(
    a: Float[np.ndarray, "*n 3"],
    b: Float[np.ndarray, "*n 3"],
    axes: Float[np.ndarray, "*n 3 3"],
    centres: Float[np.ndarray, "*n 3"],
    halves: Float[np.ndarray, "*n 3"],
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return where segments a-b are nearest to boxes, or deepest inside.

    Columns of ``axes`` are a box's axes. The signed distance is convex along a segment, so golden
    section search finds its minimum.

    Returns:
        The point of the segment, the nearest point on the box, the direction out of the box there
        (*n, 3) and the signed distance (*n), negative inside.
    """
    local_a, local_b = (np.einsum("...x,...xi->...i", end - centres, axes) for end in (a, b))
    along = local_b - local_a

    def distance(share: np.ndarray) -> np.ndarray:
        return _signed_distance(local_a + share[..., None] * along, halves)

    low, high = np.zeros(a.shape[:-1]), np.ones(a.shape[:-1])
    golden = (math.sqrt(5) - 1) / 2
    for _ in range(_GOLDEN_STEPS):
        left, right = high - golden * (high - low), low + golden * (high - low)
        lower = distance(left) <= distance(right)
        low, high = np.where(lower, low, left), np.where(lower, right, high)
    tries = np.stack([np.zeros_like(low), np.ones_like(low), (low + high) / 2])
    best = np.argmin([distance(share) for share in tries], axis=0)
    share = np.take_along_axis(tries, best[None], axis=0)[0]

    point = local_a + share[..., None] * along
    beyond = np.abs(point) - halves
    outside = np.maximum(beyond, 0)
    length = np.linalg.norm(outside, axis=-1)[..., None]
    # From inside, the way out is through the nearest face.
    face = np.eye(3)[beyond.argmax(-1)]
    outward = np.where(length > 1e-9, outside / np.maximum(length, 1e-9), face)
    normal = np.einsum("...i,...xi->...x", outward * np.where(point < 0, -1, 1), axes)
    signed = _signed_distance(point, halves)
    place = a + share[..., None] * (b - a)
    return place, place - signed[..., None] * normal, normal, signed


def _signed_distance(
    points: Float[np.ndarray, "*n 3"], halves: Float[np.ndarray, "*n 3"]
) -> Float[np.ndarray, "*n"]:
    """Return distances from a box about the origin, negative inside."""
    beyond = np.abs(points) - halves
    return np.linalg.norm(np.maximum(beyond, 0), axis=-1) + np.minimum(beyond.max(-1), 0)


def distances_to_boxes(
    posture: Posture,
    starts: Float[np.ndarray, "T N 3"],
    stops: Float[np.ndarray, "T N 3"],
    boxes: Boxes,
    which: Int[np.ndarray, "N"],
    within: Float[np.ndarray, "N"],
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return ``nearest_to_boxes`` of each segment and its box, in the base frame.

    Pairs further apart than ``within`` get a lower bound of their distance only: few are near, and
    the search is expensive.
    """
    axes = np.swapaxes(posture.turns[boxes.links] @ boxes.turns[:, None], 0, 1)[:, which]
    centres = posture.points(FrameSet(boxes.links, boxes.centres, boxes.turns))[:, which]
    halves = np.broadcast_to(boxes.halves[which], centres.shape)

    middle, half = (starts + stops) / 2, np.linalg.norm(stops - starts, axis=-1) / 2
    local = np.einsum("tnx,tnxi->tni", middle - centres, axes)
    distance = _signed_distance(local, halves) - half
    first, second, normal = middle.copy(), middle.copy(), np.zeros_like(middle)

    near = distance < within
    first[near], second[near], normal[near], distance[near] = nearest_to_boxes(
        starts[near], stops[near], axes[near], centres[near], halves[near]
    )
    return first, second, normal, distance
