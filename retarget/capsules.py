"""Collision capsules and boxes of a model, and frames fixed to its links."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

from acehand_core.geometry import rotations

if TYPE_CHECKING:
    import mujoco


@dataclass(frozen=True, slots=True, eq=False)
class FrameSet:
    """K frames fixed to links: link index and pose in the link's frame."""

    links: Int[np.ndarray, "K"]
    offsets: Float[np.ndarray, "K 3"]
    turns: Float[np.ndarray, "K 3 3"]


@dataclass(frozen=True, slots=True, eq=False)
class Boxes:
    """B collision boxes: centre and turn in the link's frame, half sizes along their axes."""

    names: tuple[str, ...]
    links: Int[np.ndarray, "B"]
    centres: Float[np.ndarray, "B 3"]
    turns: Float[np.ndarray, "B 3 3"]
    halves: Float[np.ndarray, "B 3"]

    def frames(self) -> FrameSet:
        """Return the B centres."""
        return FrameSet(self.links, self.centres, self.turns)


@dataclass(frozen=True, slots=True, eq=False)
class Capsules:
    """G collision capsules: axis ends in the link's frame (a sphere has equal ends), and radii.

    ``pairs`` lists which of them may touch: not those of one link, of a link and its parent, or of
    links that the model excludes. ``box_pairs`` lists likewise which capsule may touch which of
    the ``boxes``.
    """

    names: tuple[str, ...]
    links: Int[np.ndarray, "G"]
    ends: Float[np.ndarray, "G 2 3"]
    radii: Float[np.ndarray, "G"]
    pairs: Int[np.ndarray, "P 2"]
    boxes: Boxes
    box_pairs: Int[np.ndarray, "R 2"]

    def frames(self) -> FrameSet:
        """Return the 2 G axis ends, both ends of a capsule next to each other."""
        count = 2 * len(self.links)
        turns = np.broadcast_to(np.eye(3), (count, 3, 3))
        return FrameSet(np.repeat(self.links, 2), self.ends.reshape(count, 3), turns)


def read_capsules(model: mujoco.MjModel, prefix: str) -> Capsules:
    """Return the capsules, spheres and boxes that collide; names without ``prefix``."""
    import mujoco

    kinds = mujoco.mjtGeom
    names, links, ends, radii = [], [], [], []
    boxes = []
    for geom in range(model.ngeom):
        kind = int(model.geom_type[geom])
        if not (model.geom_contype[geom] or model.geom_conaffinity[geom]):
            continue
        name = model.geom(geom).name.removeprefix(prefix)
        link = int(model.geom_bodyid[geom]) - 1
        turn = rotations.from_quaternion(model.geom_quat[geom])
        if kind == int(kinds.mjGEOM_BOX):
            boxes.append((name, link, model.geom_pos[geom], turn, model.geom_size[geom]))
        if kind not in (int(kinds.mjGEOM_CAPSULE), int(kinds.mjGEOM_SPHERE)):
            continue
        half = model.geom_size[geom, 1] if kind == int(kinds.mjGEOM_CAPSULE) else 0.0
        names.append(name)
        links.append(link)
        ends.append(model.geom_pos[geom] + half * np.outer([-1, 1], turn[:, 2]))
        radii.append(float(model.geom_size[geom, 0]))
    box_links = [box[1] for box in boxes]
    return Capsules(
        tuple(names),
        np.array(links, int),
        np.array(ends, float).reshape(-1, 2, 3),
        np.array(radii, float),
        _touching(model, itertools.combinations(enumerate(links), 2)),
        Boxes(
            tuple(box[0] for box in boxes),
            np.array(box_links, int),
            np.array([box[2] for box in boxes], float).reshape(-1, 3),
            np.array([box[3] for box in boxes], float).reshape(-1, 3, 3),
            np.array([box[4] for box in boxes], float).reshape(-1, 3),
        ),
        _touching(model, itertools.product(enumerate(links), enumerate(box_links))),
    )


def _touching(
    model: mujoco.MjModel, candidates: Iterable[tuple[tuple[int, int], tuple[int, int]]]
) -> Int[np.ndarray, "P 2"]:
    """Return the pairs, of shapes each given by index and link, that MuJoCo would let collide."""
    excluded = {(int(s) >> 16, int(s) & 0xFFFF) for s in model.exclude_signature}
    pairs = []
    for (first, first_link), (second, second_link) in candidates:
        a, b = first_link + 1, second_link + 1
        weld_a, weld_b = int(model.body_weldid[a]), int(model.body_weldid[b])
        parents = [int(model.body_weldid[model.body_parentid[w]]) for w in (weld_a, weld_b)]
        # What hangs on the world may touch what is fixed to it.
        child = bool(weld_a and weld_b) and (parents[0] == weld_b or parents[1] == weld_a)
        related = weld_a == weld_b or child
        if not related and not {(a, b), (b, a)} & excluded:
            pairs.append((first, second))
    return np.array(pairs, int).reshape(-1, 2)
