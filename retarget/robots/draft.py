"""A robot.yaml drafted from somebody's MJCF or URDF: what its geometry and structure say.

What they do not say is marked (``draft_text.py``), nothing is invented silently.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from acehand_core.errors import InputError
from acehand_core.geometry import rotations
from acehand_core.hand.skeleton import FINGERS
from acehand_core.types import SIDES, Side
from retarget.robots import anatomy
from retarget.robots.anatomy import Finger, HandPosture, JointValues, Point, slides
from retarget.robots.couplings import Drive, find_drive, joint_ranges
from retarget.robots.fingers import FoundHand, find_hands, hand_roots, link_points
from retarget.robots.model_file import compiled, load_spec, urdf_limits
from retarget.robots.naming import named_fingers, named_side, our_joints

if TYPE_CHECKING:
    import mujoco

#: Makers put axes of the palm along those of its link; a frame that is this near is taken for one.
_ALONG_LINK_DEG = 12.0
#: A jaw's tip is on its face, the middle of what lies within so much (m) of its end and its face.
_JAW_END_M, _JAW_FACE_M = 0.02, 0.002


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A user's file, compiled, with what compiling loses.

    ``velocity`` and ``effort`` are those of a URDF's joints, by name; ``degrees``: the file states
    angles in degrees.
    """

    file: Path
    model: mujoco.MjModel
    degrees: bool
    velocity: dict[str, float]
    effort: dict[str, float]


@dataclass(frozen=True, slots=True)
class DraftedHand:
    """What was found of one hand.

    ``names`` are the human fingers of ``found.fingers``. ``joints`` maps our names to the model's
    joints. ``turn`` and ``origin`` are the place of the root link in the base frame. ``lower`` and
    ``upper`` are limits by joint number. ``opened`` and ``closed`` are values of all joints.
    ``doubts`` are what the file leaves open, by what they are about.
    """

    side: Side
    facts: ModelFacts
    found: FoundHand
    drive: Drive
    names: tuple[str, ...]
    joints: dict[str, int]
    turn: Float[np.ndarray, "3 3"]
    origin: Point
    lower: JointValues
    upper: JointValues
    opened: JointValues
    closed: JointValues
    doubts: dict[str, str]

    @property
    def gripper(self) -> bool:
        """Whether it opens and closes two jaws."""
        return len(self.names) == 2


def read_facts(file: Path) -> ModelFacts:
    """Read a user's MJCF or URDF. Raises InputError."""
    spec = load_spec(file)
    velocity, effort = urdf_limits(file, "velocity"), urdf_limits(file, "effort")
    degrees = file.suffix.lower() != ".urdf" and bool(spec.compiler.degree)
    return ModelFacts(file, compiled(spec, file), degrees, velocity, effort)


def draft_hands(
    file: Path, left: Path | None = None, side: Side | None = None, root: str | None = None
) -> dict[Side, DraftedHand]:
    """Return the hands of a model file.

    Args:
        file: MJCF or URDF with one hand, or with both.
        left: the left hand's own file; ``file`` is then the right one's.
        side: which hand it is, or which of two is wanted; None: what names and geometry say. A
            gripper fits both sides.
        root: the link that carries the hand, where there is more below the file's world.

    Raises:
        InputError: MuJoCo cannot read a file, or there is no hand in it, or the two differ.
    """
    if left is not None:
        right = draft_hands(file, side="right", root=root)["right"]
        return _same_joints({"left": draft_hands(left, side="left")["left"], "right": right})

    facts = read_facts(file)
    hands = find_hands(facts.model, root)
    if len(hands) > 2:
        roots = [facts.model.body(hand.root).name for hand in hands]
        raise InputError(f"{file}: has hands at {', '.join(roots)}; say which with --root LINK.")
    if len(hands) == 2:
        pair = {one.side: one for one in (_drafted(facts, hand, None) for hand in hands)}
        if len(pair) < 2:
            names = " and ".join(facts.model.body(hand.root).name for hand in hands)
            raise InputError(f"{file}: which of the hands {names} is the left one cannot be told; "
                             "draft them one by one with --root LINK --side SIDE.")  # fmt: skip
        return {side: pair[side]} if side else _same_joints(pair)

    drafted = _drafted(facts, hands[0], side)
    if drafted.gripper and side is None:
        return {one: _drafted(facts, hands[0], one) for one in SIDES}
    return {drafted.side: drafted}


def _same_joints(pair: dict[Side, DraftedHand]) -> dict[Side, DraftedHand]:
    """Return both hands; InputError where their joints go by different names."""
    left, right = ({*pair[side].joints} for side in SIDES)
    odd = sorted(left ^ right)
    if not odd:
        driven = [{n for n, j in hand.joints.items() if j in hand.drive.actuators}
                  for hand in pair.values()]  # fmt: skip
        odd = sorted(driven[0] ^ driven[1])
    if odd:
        raise InputError(
            f"{pair['left'].facts.file}: the two hands have different joints, or others of them "
            f"are driven ({', '.join(odd[:4])}); draft each one by itself with --side."
        )
    order = tuple(pair["right"].joints)
    same = {name: pair["left"].joints[name] for name in order}
    return {"left": replace(pair["left"], joints=same), "right": pair["right"]}


def _drafted(facts: ModelFacts, found: FoundHand, side: Side | None) -> DraftedHand:
    """Return what is found of one hand whose side may be known."""
    model = facts.model
    if len(found.fingers) > len(FINGERS):
        links = ", ".join(model.body(f.link).name for f in found.fingers)
        roots = ", ".join(hand_roots(model)[:4])
        raise InputError(f"{facts.file}: {len(found.fingers)} chains of joints begin at "
                         f"{model.body(found.palm).name!r} ({links}), which are no fingers; "
                         + (f"--root LINK says where the hand begins: {roots}." if roots else
                            "below no link (--root LINK) do two to five begin."))  # fmt: skip

    drive = find_drive(model, found.joints, any(found.looped))
    lower, upper = joint_ranges(model)
    drive = _within_limits(drive, lower, upper)
    rest = at_commands(drive, np.clip(0.0, lower, upper))
    named = named_side(facts.model, facts.file, found)
    if len(found.fingers) == 2:
        gripper = _gripper(facts, found, drive, rest, lower, upper)
        if (side or named) != "left":
            return gripper
        # Its thumb is towards -y.
        half_turn = np.diag([-1.0, -1.0, 1.0])
        turn, origin = half_turn @ gripper.turn, half_turn @ gripper.origin
        return replace(gripper, side="left", turn=turn, origin=origin)

    bends = anatomy.bends(model, found.fingers, rest, lower, upper)
    names, palm, doubts = _named(model, found, bends)
    if palm.side is None and side is None and named is None:
        doubts["side"] = "the thumb stands in the middle, and no name tells right from left"
    elif palm.side is not None and palm.side != (side or named or palm.side):
        doubts["side"] = f"it is called {side or named}, but looks like a {palm.side} hand"

    posture = HandPosture(model, rest)
    turn, origin = _root_place(model, posture, found, palm.rotation, [b.base for b in bends])
    closed = rest.copy()
    for finger, bend in zip(found.fingers, bends, strict=True):
        for joint in finger.joints:
            share = float(posture.axes[joint] @ bend.axis)
            if joint in drive.actuators and abs(share) > 0.7 and not slides(model, joint):
                closed[joint] = upper[joint] if share > 0 else lower[joint]
    return DraftedHand(
        side=side or named or palm.side or "right",
        facts=facts,
        found=found,
        drive=drive,
        names=names,
        joints=our_joints(model, found, named),
        turn=turn,
        origin=origin,
        lower=lower,
        upper=upper,
        opened=rest,
        closed=at_commands(drive, closed),
        doubts=doubts,
    )


def _named(
    model: mujoco.MjModel, found: FoundHand, bends: Sequence[anatomy.Bend]
) -> tuple[tuple[str, ...], anatomy.RobotPalm, dict[str, str]]:
    """Return the human finger of each finger, the palm that they stand on, and what is in doubt."""
    names, doubts = named_fingers(model, found), {}
    seen = anatomy.likely_thumb(bends)
    thumb = names.index("thumb") if "thumb" in names else seen
    palm = anatomy.find_palm(bends, thumb)

    if "" in names or len({*names}) < len(names) or "thumb" not in names:
        doubts["keypoints"] = "the names say nothing of the fingers; these are told by their place"
        names = [""] * len(found.fingers)
        names[thumb] = "thumb"
        for name, place in zip(FINGERS[1:], palm.order, strict=False):
            names[place] = name
    elif names[seen] != "thumb":
        doubts["keypoints"] = f"the names say thumb, by its place {names[seen]} looks like it"
    elif palm.side is not None and list(palm.order) != sorted(
        palm.order, key=lambda i: FINGERS.index(names[i])
    ):
        doubts["keypoints"] = "beside the thumb stands another finger than the index finger"

    if not all(bend.sure for bend in bends):
        doubts["rpy"] = "joints go as far one way as the other, so where the palm is was guessed"
    elif palm.alike > 40:
        doubts["rpy"] = "the fingers stand around the palm; where they close was taken for +x"
    return tuple(names), palm, doubts


def _within_limits(drive: Drive, lower: JointValues, upper: JointValues) -> Drive:
    """Turn couplings about that the file's own limits forbid, where that makes them possible."""
    follows = dict(drive.follows)
    for joint, one in drive.follows.items():
        ends = np.array([lower[one.driver], upper[one.driver]])
        for factor in (one.factor, -one.factor):
            low, high = np.sort(factor * ends + one.offset)
            if min(high, upper[joint]) - max(low, lower[joint]) > 1e-6:
                break
        else:
            factor = one.factor
            doubt = "the limits of the two joints forbid this coupling, which the file has"
            follows[joint] = replace(one, doubt=doubt)
        if factor != one.factor:
            doubt = f"the file has factor {one.factor:g}, which its limits forbid"
            follows[joint] = replace(one, factor=factor, doubt=doubt)
    return Drive(drive.actuators, follows)


def at_commands(drive: Drive, values: JointValues) -> JointValues:
    """Return joint values with those that follow where the driven ones take them."""
    result = values.copy()
    for joint, one in drive.follows.items():
        result[joint] = one.factor * values[one.driver] + one.offset
    return result


def _gripper(
    facts: ModelFacts,
    found: FoundHand,
    drive: Drive,
    rest: JointValues,
    lower: JointValues,
    upper: JointValues,
) -> DraftedHand:
    """Return a gripper, whose first jaw stands for the thumb: tips on the faces of its jaws."""
    model = facts.model
    ends = []
    for limit in (lower, upper):
        values = rest.copy()
        values[list(drive.actuators)] = limit[list(drive.actuators)]
        ends.append(at_commands(drive, values))
    gaps = [anatomy.opening(model, found.fingers, values) for values in ends]
    opened, closed = ends if gaps[0] > gaps[1] else ends[::-1]
    frame = anatomy.find_jaws(model, found.fingers, opened, closed)
    jaws = _jaw_tips(model, found.fingers, closed, frame)
    frame = anatomy.find_jaws(model, jaws, opened, closed)

    # Where meshes meet before the joint's end, the fingers are closed there.
    for share in np.linspace(0, 1, 201):
        values = at_commands(drive, opened + share * (closed - opened))
        posture = HandPosture(model, values)
        first, second = (posture.point(j.link, j.tip) for j in jaws)
        if (first - second) @ frame[:, 1] < 0:
            closed = values
            for joint in drive.actuators:
                bound = lower if closed[joint] < opened[joint] else upper
                bound[joint] = closed[joint]
            break

    posture = HandPosture(model, opened)
    turn, origin = _root_place(model, posture, found, frame, [])
    names = ("thumb", "index")
    turned = np.diag([-1.0, -1.0, 1.0]) @ turn
    said = named_fingers(model, found)
    if said == ["index", "thumb"] or (
        {*said} != {*names} and np.trace(turned) > np.trace(turn) + 1e-6
    ):
        turn, names, origin = turned, ("index", "thumb"), origin * (-1, -1, 1)
    return DraftedHand(
        side="right",
        facts=facts,
        found=replace(found, fingers=tuple(jaws), tip_names=(None, None)),
        drive=drive,
        names=names,
        joints=our_joints(model, found, named_side(facts.model, facts.file, found)),
        turn=turn,
        origin=origin,
        lower=lower,
        upper=upper,
        opened=opened,
        closed=closed,
        doubts={},
    )


def _jaw_tips(
    model: mujoco.MjModel,
    jaws: Sequence[Finger],
    closed: JointValues,
    frame: Float[np.ndarray, "3 3"],
) -> list[Finger]:
    """Return the jaws with tips in the middle of the faces that meet, near their ends."""
    posture = HandPosture(model, closed)
    found = []
    for sign, jaw in zip((1, -1), jaws, strict=True):
        turn = posture.turns[jaw.link]
        points = link_points(model, posture, jaw.link) @ turn.T @ frame
        if not len(points):
            found.append(jaw)
            continue
        end = points[points[:, 2] > points[:, 2].max() - _JAW_END_M]
        face = sign * end[:, 1]
        tip = end[face < face.min() + _JAW_FACE_M].mean(axis=0)
        tip[1] = sign * face.min()
        found.append(replace(jaw, tip=turn.T @ frame @ tip))
    return found


def _root_place(
    model: mujoco.MjModel,
    posture: HandPosture,
    found: FoundHand,
    axes: Float[np.ndarray, "3 3"],
    knuckles: Sequence[Point],
) -> tuple[Float[np.ndarray, "3 3"], Point]:
    """Return turn and place of the root link in the base frame, given the frame's axes.

    The base's origin is the link's, where makers mount a hand; but if that is among the fingers,
    it is at the lower end of the palm.
    """
    root = found.root
    turn = axes.T @ posture.turns[root]
    near = np.round(turn)
    if np.linalg.det(near) > 0.5 and np.allclose(near @ near.T, np.eye(3)):
        off = np.degrees(rotations.angle_between(near[None], turn[None])[0])
        turn = near if off < _ALONG_LINK_DEG else turn
    origin = np.zeros(3)
    if knuckles:
        ahead = (np.mean(knuckles, axis=0) - posture.positions[root]) @ posture.turns[root] @ turn.T
        points = link_points(model, posture, root)
        if ahead[2] < anatomy.KNUCKLES_M and len(points):
            origin[2] = -round(float((points @ turn.T)[:, 2].min()), 3)
    return turn, origin
