"""Drafts a robot hand from a user's MJCF or URDF.

What geometry and structure leave open is marked in the robot.yaml (``draft_text.py``).
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
from retarget.robots import anatomy, fingers
from retarget.robots.anatomy import Finger, HandPosture, JointValues, Point, slides
from retarget.robots.couplings import Drivetrain, find_drivetrain, joint_ranges
from retarget.robots.model_file import compiled, load_spec, urdf_limits

if TYPE_CHECKING:
    import mujoco

#: A palm frame this close to its link's axes is aligned with them, as makers do.
_ALONG_LINK_DEG = 12.0
#: A jaw's tip is the mean of its points this close (m) to its end and its face.
_JAW_END_M, _JAW_FACE_M = 0.02, 0.002


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A user's file, compiled, and what compiling loses.

    ``velocity`` and ``effort`` are by joint of a URDF; ``degrees``: the file states degrees.
    """

    file: Path
    model: mujoco.MjModel
    degrees: bool
    velocity: dict[str, float]
    effort: dict[str, float]


@dataclass(frozen=True, slots=True)
class DraftedHand:
    """The draft of one hand, whose links and joints in the file are ``parts``.

    ``names`` are the human fingers of ``parts.fingers``; ``joints`` maps our names to numbers.
    ``turn`` and ``origin`` place the root link in the base frame. ``lower``, ``upper``, ``opened``
    and ``closed`` are values of all joints. ``doubts`` are what the file leaves open, by topic.
    """

    side: Side
    facts: ModelFacts
    parts: fingers.ModelHand
    drive: Drivetrain
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
        """Whether it is a gripper of two jaws."""
        return len(self.names) == 2


def draft_hands(
    file: Path, left: Path | None = None, side: Side | None = None, root: str | None = None
) -> dict[Side, DraftedHand]:
    """Return the hands of a model file.

    Args:
        file: MJCF or URDF with one hand, or with both.
        left: the left hand's file; ``file`` is then the right one's.
        side: the side of the hand, or of the one to take; None: by names and geometry. A gripper
            fits both sides.
        root: the link that carries the hand, if there is more in the file.

    Raises:
        InputError: MuJoCo cannot read a file, it has no hand, or the two differ.
    """
    if left is not None:
        right = draft_hands(file, side="right", root=root)["right"]
        return _same_joints({"left": draft_hands(left, side="left")["left"], "right": right})

    spec = load_spec(file)
    velocity, effort = urdf_limits(file, "velocity"), urdf_limits(file, "effort")
    degrees = file.suffix.lower() != ".urdf" and bool(spec.compiler.degree)
    facts = ModelFacts(file, compiled(spec, file), degrees, velocity, effort)
    hands = fingers.find_hands(facts.model, root)
    if len(hands) > 2:
        roots = ", ".join(facts.model.body(hand.root).name for hand in hands)
        raise InputError(f"{file}: has hands at {roots}; choose one with `root=LINK`.")
    if len(hands) == 2:
        pair = {one.side: one for one in (_drafted(facts, hand, None) for hand in hands)}
        if len(pair) < 2:
            names = " and ".join(facts.model.body(hand.root).name for hand in hands)
            raise InputError(
                f"{file}: cannot tell left from right hand ({names}); draft them one by one with "
                "`root=LINK` and `side=SIDE`."
            )
        return {side: pair[side]} if side else _same_joints(pair)

    drafted = _drafted(facts, hands[0], side)
    if drafted.gripper and side is None:
        return {one: _drafted(facts, hands[0], one) for one in SIDES}
    return {drafted.side: drafted}


def _same_joints(pair: dict[Side, DraftedHand]) -> dict[Side, DraftedHand]:
    """Return both hands with joints in the same order; InputError if they differ."""
    left, right = pair["left"], pair["right"]
    odd = sorted({*left.joints} ^ {*right.joints})
    if not odd:
        driven = [
            {n for n, j in hand.joints.items() if j in hand.drive.actuators}
            for hand in (left, right)
        ]
        odd = sorted(driven[0] ^ driven[1])
    if odd:
        raise InputError(
            f"{left.facts.file}: the two hands have different joints, or different joints are "
            f"driven ({', '.join(odd[:4])}); draft each one with `side`."
        )
    return {"left": replace(left, joints={n: left.joints[n] for n in right.joints}), "right": right}


def _drafted(facts: ModelFacts, parts: fingers.ModelHand, side: Side | None) -> DraftedHand:
    """Return the draft of one hand, of a given side if known."""
    model = facts.model
    if len(parts.fingers) > len(FINGERS):
        links = ", ".join(model.body(f.link).name for f in parts.fingers)
        roots = ", ".join(fingers.hand_roots(model)[:4])
        hint = f"valid: {roots}" if roots else "no link has two to five below it"
        raise InputError(
            f"{facts.file}: {len(parts.fingers)} chains of joints at "
            f"{model.body(parts.palm).name!r} ({links}) are too many fingers; name the link where "
            f"the hand begins with `root=LINK` ({hint})."
        )

    drive = find_drivetrain(model, parts.joints, any(parts.looped))
    lower, upper = joint_ranges(model)
    drive = _within_limits(drive, lower, upper)
    opened = at_commands(drive, np.clip(0.0, lower, upper))
    named = fingers.named_side(facts.model, facts.file, parts)
    if len(parts.fingers) == 2:
        gripper = _gripper(facts, parts, drive, opened, lower, upper)
        if (side or named) != "left":
            return gripper
        # A left one's thumb is towards -y.
        half_turn = np.diag([-1.0, -1.0, 1.0])
        turn, origin = half_turn @ gripper.turn, half_turn @ gripper.origin
        return replace(gripper, side="left", turn=turn, origin=origin)

    bends = anatomy.find_bends(model, parts.fingers, opened, lower, upper)
    names, palm, doubts = _named(model, parts, bends)
    if palm.side is None and side is None and named is None:
        doubts["side"] = "the thumb is in the middle, and no name tells right from left"
    elif palm.side is not None and palm.side != (side or named or palm.side):
        doubts["side"] = f"it is called {side or named}, but looks like a {palm.side} hand"

    posture = HandPosture(model, opened)
    turn, origin = _root_place(model, posture, parts, palm.rotation, [b.base for b in bends])
    closed = opened.copy()
    for finger, bend in zip(parts.fingers, bends, strict=True):
        for joint in finger.joints:
            share = float(posture.axes[joint] @ bend.axis)
            if joint in drive.actuators and abs(share) > 0.7 and not slides(model, joint):
                closed[joint] = upper[joint] if share > 0 else lower[joint]
    closed, joints = at_commands(drive, closed), fingers.our_joints(model, parts, named)
    side = side or named or palm.side or "right"
    return DraftedHand(
        side, facts, parts, drive, names, joints, turn, origin, lower, upper, opened, closed, doubts
    )


def _named(
    model: mujoco.MjModel, parts: fingers.ModelHand, bends: Sequence[anatomy.Bend]
) -> tuple[tuple[str, ...], anatomy.RobotPalm, dict[str, str]]:
    """Return the human name of each finger, the palm, and the doubts."""
    names, doubts = fingers.named_fingers(model, parts), {}
    likely = anatomy.likely_thumb(bends)
    thumb = names.index("thumb") if "thumb" in names else likely
    palm = anatomy.find_palm(bends, thumb)

    if "" in names or len({*names}) < len(names) or "thumb" not in names:
        doubts["keypoints"] = "names do not identify the fingers; they are assigned by position"
        names = [""] * len(parts.fingers)
        names[thumb] = "thumb"
        for name, place in zip(FINGERS[1:], palm.order, strict=False):
            names[place] = name
    elif names[likely] != "thumb":
        doubts["keypoints"] = f"by its position {names[likely]} looks like the thumb"
    elif palm.side is not None and list(palm.order) != sorted(
        palm.order, key=lambda i: FINGERS.index(names[i])
    ):
        doubts["keypoints"] = "the finger next to the thumb is not the index finger"

    if not all(bend.one_way for bend in bends):
        doubts["rpy"] = "joints move equally far both ways; the direction of the palm was guessed"
    elif palm.spread_deg > 40:
        doubts["rpy"] = "fingers surround the palm; +x is assumed where they close"
    return tuple(names), palm, doubts


def _within_limits(drive: Drivetrain, lower: JointValues, upper: JointValues) -> Drivetrain:
    """Invert couplings that the file's limits forbid, if that makes them possible."""
    couplings = dict(drive.couplings)
    for joint, coupling in drive.couplings.items():
        ends = np.array([lower[coupling.driver], upper[coupling.driver]])
        possible = []
        for factor in (coupling.factor, -coupling.factor):
            low, high = np.sort(factor * ends + coupling.offset)
            if min(high, upper[joint]) - max(low, lower[joint]) > 1e-6:
                possible.append(factor)

        if not possible:
            doubt = "the limits of the two joints forbid this coupling, which the file has"
            couplings[joint] = replace(coupling, doubt=doubt)
        elif possible[0] != coupling.factor:
            doubt = f"the file has factor {coupling.factor:g}, which its limits forbid"
            couplings[joint] = replace(coupling, factor=possible[0], doubt=doubt)
    return Drivetrain(drive.actuators, couplings)


def at_commands(drive: Drivetrain, values: JointValues) -> JointValues:
    """Return joint values with coupled joints computed from the driven ones."""
    result = values.copy()
    for joint, coupling in drive.couplings.items():
        result[joint] = coupling.factor * values[coupling.driver] + coupling.offset
    return result


def _gripper(
    facts: ModelFacts,
    parts: fingers.ModelHand,
    drive: Drivetrain,
    rest: JointValues,
    lower: JointValues,
    upper: JointValues,
) -> DraftedHand:
    """Return a right gripper with tips on the faces of its jaws; the first jaw is the thumb."""
    model = facts.model
    ends = []
    for limit in (lower, upper):
        values = rest.copy()
        values[list(drive.actuators)] = limit[list(drive.actuators)]
        ends.append(at_commands(drive, values))
    gaps = [anatomy.opening(model, parts.fingers, values) for values in ends]
    opened, closed = ends if gaps[0] > gaps[1] else ends[::-1]
    frame = anatomy.find_jaws(model, parts.fingers, opened, closed)
    jaws = _jaw_tips(model, parts.fingers, closed, frame)
    frame = anatomy.find_jaws(model, jaws, opened, closed)

    # Fingers are closed where their meshes meet, if that is before the joints' end.
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
    turn, origin = _root_place(model, posture, parts, frame, [])
    names = ("thumb", "index")
    turned = np.diag([-1.0, -1.0, 1.0]) @ turn
    file_names = fingers.named_fingers(model, parts)
    if file_names == ["index", "thumb"] or (
        {*file_names} != {*names} and np.trace(turned) > np.trace(turn) + 1e-6
    ):
        turn, names, origin = turned, ("index", "thumb"), origin * (-1, -1, 1)
    joints = fingers.our_joints(model, parts, fingers.named_side(model, facts.file, parts))
    parts = replace(parts, fingers=tuple(jaws), tip_names=(None, None))
    return DraftedHand(
        "right", facts, parts, drive, names, joints, turn, origin, lower, upper, opened, closed, {}
    )


def _jaw_tips(
    model: mujoco.MjModel,
    jaws: Sequence[Finger],
    closed: JointValues,
    frame: Float[np.ndarray, "3 3"],
) -> list[Finger]:
    """Return the jaws with tips in the middle of the meeting faces, near their ends."""
    posture = HandPosture(model, closed)
    tipped = []
    for sign, jaw in zip((1, -1), jaws, strict=True):
        turn = posture.turns[jaw.link]
        points = fingers.link_points(model, posture, jaw.link) @ turn.T @ frame
        if not len(points):
            tipped.append(jaw)
            continue
        end = points[points[:, 2] > points[:, 2].max() - _JAW_END_M]
        face = sign * end[:, 1]
        tip = end[face < face.min() + _JAW_FACE_M].mean(axis=0)
        tip[1] = sign * face.min()
        tipped.append(replace(jaw, tip=turn.T @ frame @ tip))
    return tipped


def _root_place(
    model: mujoco.MjModel,
    posture: HandPosture,
    parts: fingers.ModelHand,
    axes: Float[np.ndarray, "3 3"],
    knuckles: Sequence[Point],
) -> tuple[Float[np.ndarray, "3 3"], Point]:
    """Return rotation and origin of the root link in the base frame, given the frame's axes.

    The base's origin is that of the link, where makers mount a hand, or the lower end of the palm
    if the link's origin is among the fingers.
    """
    root = parts.root
    turn = axes.T @ posture.turns[root]
    near = np.round(turn)
    if np.linalg.det(near) > 0.5 and np.allclose(near @ near.T, np.eye(3)):
        off = np.degrees(rotations.angle_between(near[None], turn[None])[0])
        turn = near if off < _ALONG_LINK_DEG else turn
    origin = np.zeros(3)
    if knuckles:
        ahead = (np.mean(knuckles, axis=0) - posture.positions[root]) @ posture.turns[root] @ turn.T
        points = fingers.link_points(model, posture, root)
        if ahead[2] < anatomy.KNUCKLES_M and len(points):
            origin[2] = -round(float((points @ turn.T)[:, 2].min()), 3)
    return turn, origin
