"""The hands of a compiled model: palms, where chains of joints fork, fingertips and names."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from acehand_core.errors import InputError, nearest
from acehand_core.geometry import rotations
from acehand_core.hand.skeleton import FINGERS
from acehand_core.mujoco_gl import import_mujoco
from acehand_core.types import SIDES, Side
from retarget.robots.anatomy import Finger, HandPosture, Point
from retarget.robots.kinematics import ancestors

if TYPE_CHECKING:
    import mujoco

#: A chain with more joints is a limb.
_FINGER_JOINTS = 5
#: Distance of a named fingertip from its joint, as a share of the last link's length: some links
#: called tips only begin there.
_TIP_SHARE = (0.8, 1.1)
#: The end of a link is the mean of its points beyond this share of its length.
_END_SHARE = 0.9
#: Names of links and joints of each finger; LinkerHand's L25 has a "trumb".
_NAMES = {
    "thumb": r"t[hr]umb|(^|[_/])th(?=$|[_/\d]|j\d|base|prox|mid|dist|hub|tip)",
    "index": r"index|(^|[_/])[fi]f(?=$|[_/\d]|[ja]\d|knuckle|base|prox|mid|med|dist|tip)",
    "middle": r"middle|(^|[_/])mf(?=$|[_/\d]|[ja]\d|knuckle|base|prox|mid|med|dist|tip)",
    "ring": r"(^|[_/])ring|(^|[_/])rf(?=$|[_/\d]|[ja]\d|knuckle|base|prox|mid|med|dist|tip)",
    "pinky": r"pinky|little|(^|[_/])[lp]f(?=$|[_/\d]|[ja]\d|meta|knuckle|prox|mid|med|dist|tip)",
}
_SIDE_MARK = r"(?i)(?:^(?:{0})(?:[_/.\- ]|hand)|[_/.\- ](?:{0})(?=$|[_/.\- ]))"
_MARKS = {"left": r"left|lh|l", "right": r"right|rh|r"}

_CORNERS = np.array([*itertools.product((-1.0, 1.0), repeat=3)])
_TURNS = np.pi * (3 - np.sqrt(5)) * np.arange(200)
_HEIGHTS = np.linspace(1, -1, 202)[1:-1]
_RADII = np.sqrt(1 - _HEIGHTS**2)
#: Evenly distributed on the unit sphere.
_DIRECTIONS = np.column_stack([_RADII * np.cos(_TURNS), _RADII * np.sin(_TURNS), _HEIGHTS])


@dataclass(frozen=True, slots=True)
class ModelHand:
    """One hand of a model: its root link, fingers, and all joints below the palm.

    ``root`` is the link to name in a robot.yaml, 0 for the file's world. ``tip_names`` has the site
    or body at each fingertip, or None. ``looped`` marks fingers closed by a constraint (linkages).
    """

    root: int
    palm: int
    fingers: tuple[Finger, ...]
    tip_names: tuple[str | None, ...]
    joints: tuple[int, ...]
    looped: tuple[bool, ...]


def find_hands(model: mujoco.MjModel, root: str | None = None) -> list[ModelHand]:
    """Return the hands of a model below a link, at most one below every arm.

    Links without joints between them count as one. Raises InputError without such a link or hand.
    """
    top = 0
    if root is not None:
        names = [model.body(i).name for i in range(1, model.nbody)]
        if root not in names:
            raise InputError(f"The model has no link {root!r}; {nearest(root, names)}")
        top = model.body(root).id
    children = defaultdict(list)
    carriers = {b for j in model.jnt_bodyid for b in ancestors(model, int(j))}
    for body in sorted(carriers):  # bodies without joints, as mocap targets, are no links
        if model.body_weldid[body] == body:
            children[int(model.body_weldid[model.body_parentid[body]])].append(body)
    starts = children[int(model.body_weldid[top])]
    if root is not None:
        starts = [b for b in starts if top in ancestors(model, b)]

    groups = _palms(model, children, int(model.body_weldid[top]), starts)
    hands = [_hand(model, children, palm, roots, top) for palm, roots in groups]
    hands = [hand for hand in hands if len(hand.fingers) > 1]  # a closed linkage is one finger
    if not hands:
        raise InputError("No hand: two or more chains of joints must begin at one link.")
    return hands


def hand_roots(model: mujoco.MjModel) -> list[str]:
    """Return the links with exactly one hand of up to five fingers below them."""
    roots = []
    for name in (model.body(i).name for i in range(1, model.nbody)):
        with contextlib.suppress(InputError):
            hands = find_hands(model, name)
            roots += [name] if len(hands) == 1 and len(hands[0].fingers) <= len(FINGERS) else []
    return roots


def _palms(
    model: mujoco.MjModel, children: dict[int, list[int]], node: int, starts: list[int]
) -> list[tuple[int, list[int]]]:
    """Return palms and the first links of their chains."""
    forked = [b for b in starts if len(_leaves(children, b)) > 1]
    if len(starts) == 1:
        return _palms(model, children, starts[0], children[starts[0]])
    if len(starts) < 2:
        return []

    limbs = [b for b in starts if b not in forked and _depth(children, b) > _FINGER_JOINTS]
    # Every branch forks again, or the others are legs: these branches are arms.
    if (len(forked) > 1 and len(forked) == len(starts)) or (forked and limbs):
        return [p for b in forked for p in _palms(model, children, b, children[b])]

    # Hands side by side in the file's world differ in their first links.
    if node == 0:
        parts = defaultdict(list)
        for start in starts:
            parts[ancestors(model, start)[-1]].append(start)
        if len(parts) > 1 and all(len(part) > 1 for part in parts.values()):
            return [(0, part) for part in parts.values()]
    return [(node, starts)]


def _hand(
    model: mujoco.MjModel, children: dict[int, list[int]], palm: int, starts: list[int], top: int
) -> ModelHand:
    joints = _joints(model, [b for start in starts for b in _subtree(children, start)])
    balls = [j for j in joints if model.jnt_type[j] < int(import_mujoco().mjtJoint.mjJNT_SLIDE)]
    if balls:
        listed = ", ".join(model.joint(j).name for j in balls)
        raise InputError(f"Ball joints are not supported, only hinges and slides: {listed}.")

    chains = [[leaf] for start in starts for leaf in _leaves(children, start)]
    looped = []
    for ends in _ties(model):
        tied = [c for c in chains if any(ends & {*_chain(model, leaf, palm)} for leaf in c)]
        if len(tied) == 2:
            chains.remove(tied[1])
            tied[0].extend(tied[1])
            looped.append(tied[0])

    fingers, names = [], []
    posture = HandPosture(model, np.array([model.qpos0[a] for a in model.jnt_qposadr]))
    roots = np.mean([posture.positions[s] for s in starts], axis=0)
    for chain in chains:
        tips = [_fingertip(model, posture, leaf, palm) for leaf in chain]
        far = [np.linalg.norm(posture.point(f.link, f.tip) - roots) for f, _ in tips]
        finger, name = tips[int(np.argmax(far))]
        fingers.append(finger)
        names.append(name)

    carriers = [ancestors(model, s)[1:] for s in starts]
    common = [b for b in carriers[0] if all(b in others for others in carriers)]
    # On an arm the hand begins at the link shared by all fingers; a separate hand at its base.
    root = top or (0 if not common else common[0] if palm else common[-1])
    loops = tuple(chain in looped for chain in chains)
    return ModelHand(root, palm, tuple(fingers), tuple(names), joints, loops)


def _joints(model: mujoco.MjModel, links: Sequence[int]) -> tuple[int, ...]:
    first = model.body_jntadr
    return tuple(j for b in links for j in range(first[b], first[b] + model.body_jntnum[b]))


def _fingertip(
    model: mujoco.MjModel, posture: HandPosture, leaf: int, palm: int
) -> tuple[Finger, str | None]:
    """Return the chain that ends in a link, and the name of its tip if the file has one."""
    joints = _joints(model, _chain(model, leaf, palm)[::-1])
    anchor = posture.turns[leaf].T @ (posture.anchors[joints[-1]] - posture.positions[leaf])
    named = {name: place - anchor for name, place in _named_tips(model, posture, leaf).items()}
    reach = link_points(model, posture, leaf) - anchor
    if not len(reach):  # its meshes are missing
        far = max(named, key=lambda n: float(np.linalg.norm(named[n])), default="")
        return Finger(joints, leaf, anchor + named.get(far, np.zeros(3))), far or None

    along = reach[np.argmax(np.linalg.norm(reach, axis=1))]
    along = along / np.linalg.norm(along)
    length = float((reach @ along).max())
    for name, place in named.items():
        if _TIP_SHARE[0] <= place @ along / length <= _TIP_SHARE[1]:
            return Finger(joints, leaf, anchor + place), name
    end = reach[reach @ along > _END_SHARE * length].mean(axis=0)
    return Finger(joints, leaf, anchor + end + (length - end @ along) * along), None


def _named_tips(model: mujoco.MjModel, posture: HandPosture, link: int) -> dict[str, Point]:
    """Return sites and empty links that may be a link's tip, first those called tips."""
    tips = {}
    for body in range(model.nbody):
        if model.body_weldid[body] == link and body != link:
            name = model.body(body).name
            if model.body_geomnum[body] == 0 or "tip" in name.lower():
                tips[name] = posture.positions[body]
    for site in range(model.nsite):
        name, body = model.site(site).name, int(model.site_bodyid[site])
        if model.body_weldid[body] == link and "tip" in name.lower():
            tips[name] = posture.point(body, model.site_pos[site])
    names = sorted((name for name in tips if name), key=lambda name: "tip" not in name.lower())
    return {name: posture.turns[link].T @ (tips[name] - posture.positions[link]) for name in names}


def link_points(model: mujoco.MjModel, posture: HandPosture, link: int) -> Float[np.ndarray, "N 3"]:
    """Return surface points of a link and everything fixed to it, in its frame."""
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
    """Return surface points of a geom in its frame; none of planes and height fields."""
    kinds = import_mujoco().mjtGeom
    kind, size, ball = kinds(model.geom_type[geom]), model.geom_size[geom], _DIRECTIONS

    if kind == kinds.mjGEOM_MESH:
        mesh = int(model.geom_dataid[geom])
        first = int(model.mesh_vertadr[mesh])
        return np.array(model.mesh_vert[first : first + int(model.mesh_vertnum[mesh])], float)
    if kind == kinds.mjGEOM_BOX:
        return _CORNERS * size
    if kind == kinds.mjGEOM_SPHERE:
        return ball * size[0]
    if kind == kinds.mjGEOM_ELLIPSOID:
        return ball * size
    if kind == kinds.mjGEOM_CAPSULE:
        return ball * size[0] + np.sign(ball[:, 2:]) * (0, 0, size[1])
    if kind == kinds.mjGEOM_CYLINDER:
        rim = ball[:, :2] / np.linalg.norm(ball[:, :2], axis=1, keepdims=True)
        return np.column_stack([rim * size[0], np.sign(ball[:, 2]) * size[1]])
    return np.zeros((0, 3))


def _ties(model: mujoco.MjModel) -> Iterator[set[int]]:
    """Yield the two links of each connect or weld constraint."""
    mujoco = import_mujoco()
    for i in range(model.neq):
        if mujoco.mjtEq(model.eq_type[i]) in (mujoco.mjtEq.mjEQ_CONNECT, mujoco.mjtEq.mjEQ_WELD):
            ends = np.array([model.eq_obj1id[i], model.eq_obj2id[i]])
            sites = model.eq_objtype[i] == int(mujoco.mjtObj.mjOBJ_SITE)
            yield {*model.body_weldid[model.site_bodyid[ends] if sites else ends].tolist()}


def _chain(model: mujoco.MjModel, link: int, palm: int) -> list[int]:
    """Return the links with joints from one up to the palm, excluded."""
    return [b for b in ancestors(model, link, palm) if model.body_weldid[b] == b]


def _subtree(children: dict[int, list[int]], body: int) -> list[int]:
    return [body, *(b for child in children[body] for b in _subtree(children, child))]


def _leaves(children: dict[int, list[int]], body: int) -> Sequence[int]:
    return [b for b in _subtree(children, body) if not children[b]]


def _depth(children: dict[int, list[int]], body: int) -> int:
    return 1 + max((_depth(children, child) for child in children[body]), default=0)


def fingers_named(text: str) -> tuple[str, ...]:
    """Return the human fingers that the name of a joint or link may mean."""
    return tuple(f for f, names in _NAMES.items() if re.search(names, text, re.IGNORECASE))


def named_fingers(model: mujoco.MjModel, hand: ModelHand) -> list[str]:
    """Return the human finger of each chain by its names; "" if there is none."""
    fingers = []
    for finger in hand.fingers:
        texts = [model.joint(j).name for j in finger.joints]
        texts += [model.body(int(model.jnt_bodyid[j])).name for j in finger.joints]
        votes = Counter(name for text in texts for name in fingers_named(text))
        fingers.append(max(votes, key=lambda name: votes[name], default=""))
    return fingers


def named_side(model: mujoco.MjModel, file: Path, hand: ModelHand) -> Side | None:
    """Return the side in the names of all joints, else of the root, the model or the file."""
    joints = [model.joint(j).name for j in hand.joints]
    root = model.body(hand.root).name if hand.root else ""
    title = model.names[: model.names.find(b"\0")].decode()
    for texts in (joints, [root], [title], [file.stem], [file.resolve().parent.name]):
        marked = [s for s in SIDES if all(re.search(_mark(s), text) for text in texts)]
        if len(marked) == 1:
            return marked[0]
    return None


def _mark(side: Side) -> str:
    return _SIDE_MARK.format(_MARKS[side])


def our_joints(model: mujoco.MjModel, hand: ModelHand, side: Side | None) -> dict[str, int]:
    """Return the joints by our names: theirs without the side and special characters."""
    theirs = {model.joint(j).name: j for j in hand.joints}
    marked = side is not None and all(re.search(_mark(side), name) for name in theirs)
    ours: dict[str, int] = {}
    for name, joint in theirs.items():
        plain = re.sub(_mark(side), "", name, count=1) if side and marked else name
        plain = re.sub(r"[^\w.\-]+", "_", plain).strip("_") or f"joint_{joint}"
        ours[plain if plain not in ours else f"{plain}_{joint}"] = joint
    return ours
