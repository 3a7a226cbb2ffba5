"""The hands of a compiled model: palms, where chains of joints fork, and their fingertips."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from acehand_core.errors import InputError, nearest
from acehand_core.geometry import rotations
from acehand_core.hand.skeleton import FINGERS
from acehand_core.mujoco_gl import import_mujoco
from retarget.robots.anatomy import Finger, HandPosture, Point
from retarget.robots.kinematics import ancestors

if TYPE_CHECKING:
    import mujoco

#: A chain with more joints than a finger has is a limb.
_FINGER_JOINTS = 5
#: A named fingertip counts where it is at least this share of the last link's length from its
#: joint: some links called tips are where the tip begins.
_TIP_SHARE = (0.8, 1.1)
#: The end of a link is the middle of what lies beyond this share of its length.
_END_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class FoundHand:
    """One hand of a model: the link that carries it, its fingers, every joint below the palm.

    ``root`` is the body to be named in a robot.yaml, 0 where the file's world carries the hand.
    ``tip_names`` has the site or body that already is a fingertip, or None. ``looped`` tells of
    each finger whether it is a linkage that the file closes by a constraint.
    """

    root: int
    palm: int
    fingers: tuple[Finger, ...]
    tip_names: tuple[str | None, ...]
    joints: tuple[int, ...]
    looped: tuple[bool, ...]


def find_hands(model: mujoco.MjModel, root: str | None = None) -> list[FoundHand]:
    """Return the hands of a model, at most one below every arm.

    Args:
        model: compiled; links without joints between them count as one.
        root: look below this link only.

    Raises:
        InputError: there is no such link, or no hand: nothing forks into two chains of joints.
    """
    top = 0
    if root is not None:
        names = [model.body(i).name for i in range(1, model.nbody)]
        if root not in names:
            raise InputError(f"The model has no link {root!r}; {nearest(root, names)}")
        top = model.body(root).id
    children = defaultdict(list)
    carriers = {b for j in model.jnt_bodyid for b in ancestors(model, int(j))}
    for body in sorted(carriers):  # not what has no joint, as a target that is set (mocap)
        if model.body_weldid[body] == body:
            children[int(model.body_weldid[model.body_parentid[body]])].append(body)
    starts = children[int(model.body_weldid[top])]
    if root is not None:
        starts = [b for b in starts if top in ancestors(model, b)]

    groups = _palms(model, children, int(model.body_weldid[top]), starts)
    hands = [_hand(model, children, palm, roots, top) for palm, roots in groups]
    hands = [hand for hand in hands if len(hand.fingers) > 1]  # a closed linkage is one finger
    if not hands:
        raise InputError("No hand: two chains of joints or more must begin at one link.")
    return hands


def hand_roots(model: mujoco.MjModel) -> list[str]:
    """Return the links below which there is one hand of at most five fingers."""
    found = []
    for name in (model.body(i).name for i in range(1, model.nbody)):
        with contextlib.suppress(InputError):
            hands = find_hands(model, name)
            found += [name] if len(hands) == 1 and len(hands[0].fingers) <= len(FINGERS) else []
    return found


def _palms(
    model: mujoco.MjModel, children: dict[int, list[int]], node: int, starts: list[int]
) -> list[tuple[int, list[int]]]:
    """Return palms and the first links of the chains that begin there."""
    forked = [b for b in starts if len(_leaves(children, b)) > 1]
    if len(starts) == 1:
        return _palms(model, children, starts[0], children[starts[0]])
    if len(starts) < 2:
        return []
    limbs = [b for b in starts if b not in forked and _depth(children, b) > _FINGER_JOINTS]
    # Every branch forks again, or those that do not are legs: these are arms.
    if (len(forked) > 1 and len(forked) == len(starts)) or (forked and limbs):
        return [p for b in forked for p in _palms(model, children, b, children[b])]
    # Hands that stand side by side in the file's world are told apart by their first links.
    if node == 0:
        parts = defaultdict(list)
        for start in starts:
            parts[ancestors(model, start)[-1]].append(start)
        if len(parts) > 1 and all(len(part) > 1 for part in parts.values()):
            return [(0, part) for part in parts.values()]
    return [(node, starts)]


def _hand(
    model: mujoco.MjModel, children: dict[int, list[int]], palm: int, starts: list[int], top: int
) -> FoundHand:
    below = [b for start in starts for b in _subtree(children, start)]
    joints = tuple(
        j
        for b in below
        for j in range(model.body_jntadr[b], model.body_jntadr[b] + model.body_jntnum[b])
    )
    balls = [j for j in joints if model.jnt_type[j] < int(import_mujoco().mjtJoint.mjJNT_SLIDE)]
    if balls:
        said = ", ".join(model.joint(j).name for j in balls)
        raise InputError(f"Ball joints are not supported, only hinges and slides: {said}.")

    chains = [[leaf] for start in starts for leaf in _leaves(children, start)]
    looped = []
    for ends in _ties(model):
        tied = [c for c in chains if any(set(ends) & set(_chain(model, leaf, palm)) for leaf in c)]
        if len(tied) == 2:
            chains.remove(tied[1])
            tied[0].extend(tied[1])
            looped.append(tied[0])

    fingers, names = [], []
    posture = HandPosture(model, np.array([model.qpos0[a] for a in model.jnt_qposadr]))
    roots = np.mean([posture.positions[s] for s in starts], axis=0)
    for chain in chains:
        found = [_fingertip(model, posture, leaf, palm) for leaf in chain]
        far = [np.linalg.norm(posture.point(f.link, f.tip) - roots) for f, _ in found]
        finger, name = found[int(np.argmax(far))]
        fingers.append(finger)
        names.append(name)

    carriers = [ancestors(model, s)[1:] for s in starts]
    common = [b for b in carriers[0] if all(b in others for others in carriers)]
    # On an arm the hand begins at the link that all fingers share; alone its whole base is it.
    root = top or (0 if not common else common[0] if palm else common[-1])
    return FoundHand(
        root, palm, tuple(fingers), tuple(names), joints, tuple(c in looped for c in chains)
    )


def _fingertip(
    model: mujoco.MjModel, posture: HandPosture, leaf: int, palm: int
) -> tuple[Finger, str | None]:
    """Return the chain that ends in a link, and the name of its tip if the file has one."""
    chain = _chain(model, leaf, palm)
    joints = [j for b in chain[::-1] for j in
              range(model.body_jntadr[b], model.body_jntadr[b] + model.body_jntnum[b])]  # fmt: skip
    anchor = posture.turns[leaf].T @ (posture.anchors[joints[-1]] - posture.positions[leaf])
    named = {name: place - anchor for name, place in _named_tips(model, posture, leaf).items()}
    reach = link_points(model, posture, leaf) - anchor
    if not len(reach):  # its meshes are missing
        far = max(named, key=lambda n: float(np.linalg.norm(named[n])), default="")
        return Finger(tuple(joints), leaf, anchor + named.get(far, np.zeros(3))), far or None

    along = reach[np.argmax(np.linalg.norm(reach, axis=1))]
    along = along / np.linalg.norm(along)
    length = float((reach @ along).max())
    for name, place in named.items():
        if _TIP_SHARE[0] <= place @ along / length <= _TIP_SHARE[1]:
            return Finger(tuple(joints), leaf, anchor + place), name
    end = reach[reach @ along > _END_SHARE * length].mean(axis=0)
    return Finger(tuple(joints), leaf, anchor + end + (length - end @ along) * along), None


def _named_tips(model: mujoco.MjModel, posture: HandPosture, link: int) -> dict[str, Point]:
    """Return what may be a link's tip by the file, those called so first: sites, empty links."""
    found = {}
    for body in range(model.nbody):
        if model.body_weldid[body] == link and body != link:
            name = model.body(body).name
            if model.body_geomnum[body] == 0 or "tip" in name.lower():
                found[name] = posture.positions[body]
    for site in range(model.nsite):
        name, body = model.site(site).name, int(model.site_bodyid[site])
        if model.body_weldid[body] == link and "tip" in name.lower():
            found[name] = posture.point(body, model.site_pos[site])
    names = sorted((name for name in found if name), key=lambda name: "tip" not in name.lower())
    return {name: posture.turns[link].T @ (found[name] - posture.positions[link]) for name in names}


def link_points(model: mujoco.MjModel, posture: HandPosture, link: int) -> Float[np.ndarray, "N 3"]:
    """Return points on the surfaces of a link and of all that is fixed to it, in its frame."""
    points = [np.zeros((0, 3))]
    for geom in range(model.ngeom):
        body = int(model.geom_bodyid[geom])
        if model.body_weldid[body] != model.body_weldid[link]:
            continue
        turn = rotations.from_quaternion(model.geom_quat[geom])
        shape = _surface(model, geom) @ turn.T + model.geom_pos[geom]
        world = shape @ posture.turns[body].T + posture.positions[body]
        points.append((world - posture.positions[link]) @ posture.turns[link])
    return np.concatenate(points)


def _surface(model: mujoco.MjModel, geom: int) -> Float[np.ndarray, "N 3"]:
    """Return points on a geom's surface in its own frame; none of planes and fields."""
    kinds = import_mujoco().mjtGeom
    kind, size = int(model.geom_type[geom]), model.geom_size[geom]
    if kind == int(kinds.mjGEOM_MESH):
        mesh = int(model.geom_dataid[geom])
        first = int(model.mesh_vertadr[mesh])
        return np.array(model.mesh_vert[first : first + int(model.mesh_vertnum[mesh])], float)
    ball = _DIRECTIONS
    if kind == int(kinds.mjGEOM_BOX):
        return np.sign(_CORNERS) * size
    if kind == int(kinds.mjGEOM_SPHERE):
        return ball * size[0]
    if kind == int(kinds.mjGEOM_ELLIPSOID):
        return ball * size
    if kind == int(kinds.mjGEOM_CAPSULE):
        return ball * size[0] + np.sign(ball[:, 2:]) * (0, 0, size[1])
    if kind == int(kinds.mjGEOM_CYLINDER):
        rim = ball[:, :2] / np.linalg.norm(ball[:, :2], axis=1, keepdims=True)
        return np.column_stack([rim * size[0], np.sign(ball[:, 2]) * size[1]])
    return np.zeros((0, 3))


_CORNERS = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], float)
_TURNS = np.pi * (3 - np.sqrt(5)) * np.arange(200)
_HEIGHTS = np.linspace(1, -1, 202)[1:-1]
#: Evenly on the unit sphere.
_DIRECTIONS = np.column_stack([
    np.sqrt(1 - _HEIGHTS**2) * np.cos(_TURNS), np.sqrt(1 - _HEIGHTS**2) * np.sin(_TURNS), _HEIGHTS
])  # fmt: skip


def _ties(model: mujoco.MjModel) -> list[tuple[int, int]]:
    """Return pairs of links that a constraint holds together."""
    mujoco = import_mujoco()
    pairs = []
    for i in range(model.neq):
        if int(model.eq_type[i]) not in (
            int(mujoco.mjtEq.mjEQ_CONNECT),
            int(mujoco.mjtEq.mjEQ_WELD),
        ):
            continue
        first, second = int(model.eq_obj1id[i]), int(model.eq_obj2id[i])
        if int(model.eq_objtype[i]) == int(mujoco.mjtObj.mjOBJ_SITE):
            first, second = int(model.site_bodyid[first]), int(model.site_bodyid[second])
        pairs.append((int(model.body_weldid[first]), int(model.body_weldid[second])))
    return pairs


def _chain(model: mujoco.MjModel, link: int, palm: int) -> list[int]:
    """Return the links with joints from one up to the palm, the palm left out."""
    return [b for b in ancestors(model, link, palm) if model.body_weldid[b] == b]


def _subtree(children: dict[int, list[int]], body: int) -> list[int]:
    return [body, *(b for child in children[body] for b in _subtree(children, child))]


def _leaves(children: dict[int, list[int]], body: int) -> Sequence[int]:
    return [b for b in _subtree(children, body) if not children[b]]


def _depth(children: dict[int, list[int]], body: int) -> int:
    return 1 + max((_depth(children, child) for child in children[body]), default=0)
