"""Collision capsules of a model, and frames fixed to its links."""

from __future__ import annotations

import itertools
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
class Capsules:
    """G collision capsules: axis ends in the link's frame (a sphere has equal ends), and radii.

    ``pairs`` lists which of them may touch: not those of one link, of a link and its parent, or of
    links that the model excludes.
    """

    names: tuple[str, ...]
    links: Int[np.ndarray, "G"]
    ends: Float[np.ndarray, "G 2 3"]
    radii: Float[np.ndarray, "G"]
    pairs: Int[np.ndarray, "P 2"]

    def frames(self) -> FrameSet:
        """Return the 2 G axis ends, both ends of a capsule next to each other."""
        count = 2 * len(self.links)
        turns = np.broadcast_to(np.eye(3), (count, 3, 3))
        return FrameSet(np.repeat(self.links, 2), self.ends.reshape(count, 3), turns)


def read_capsules(model: mujoco.MjModel, prefix: str) -> Capsules:
    """Return the capsules and spheres that collide; names without ``prefix``."""
    import mujoco

    capsule = int(mujoco.mjtGeom.mjGEOM_CAPSULE)
    names, links, ends, radii = [], [], [], []
    for geom in range(model.ngeom):
        kind = int(model.geom_type[geom])
        if kind not in (capsule, int(mujoco.mjtGeom.mjGEOM_SPHERE)):
            continue
        if not (model.geom_contype[geom] or model.geom_conaffinity[geom]):
            continue
        long_axis = rotations.from_quaternion(model.geom_quat[geom])[:, 2]
        half = model.geom_size[geom, 1] if kind == capsule else 0.0
        names.append(model.geom(geom).name.removeprefix(prefix))
        links.append(int(model.geom_bodyid[geom]) - 1)
        ends.append(model.geom_pos[geom] + half * np.outer([-1, 1], long_axis))
        radii.append(float(model.geom_size[geom, 0]))
    return Capsules(
        tuple(names),
        np.array(links, int),
        np.array(ends, float).reshape(-1, 2, 3),
        np.array(radii, float),
        _touching(model, links),
    )


def _touching(model: mujoco.MjModel, links: list[int]) -> Int[np.ndarray, "P 2"]:
    """Return the pairs of capsules on these links that MuJoCo would let collide."""
    body = np.array(links, int) + 1
    excluded = {(int(s) >> 16, int(s) & 0xFFFF) for s in model.exclude_signature}
    pairs = []
    for first, second in itertools.combinations(range(len(body)), 2):
        a, b = int(body[first]), int(body[second])
        weld_a, weld_b = int(model.body_weldid[a]), int(model.body_weldid[b])
        parents = [int(model.body_weldid[model.body_parentid[w]]) for w in (weld_a, weld_b)]
        # What hangs on the world may touch what is fixed to it.
        child = bool(weld_a and weld_b) and (parents[0] == weld_b or parents[1] == weld_a)
        related = weld_a == weld_b or child
        if not related and not {(a, b), (b, a)} & excluded:
            pairs.append((first, second))
    return np.array(pairs, int).reshape(-1, 2)
