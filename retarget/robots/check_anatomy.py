"""Checks of a robot.yaml against the hand's geometry: fingers, size, palm frame, side.

Fingers are closed by kinematics. Frame, side and order found that way do not depend on the
robot.yaml, so mistakes in it can be named.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from acehand_core.errors import AcehandError
from acehand_core.geometry import rotations
from acehand_core.hand.skeleton import FINGERS, KEYPOINT_NAMES, finger_keypoints
from retarget.robots import anatomy
from retarget.robots.anatomy import Bend, Finger, HandPosture, JointValues
from retarget.robots.fingers import fingers_named
from retarget.robots.hand_spec import HandSpec, JointVector
from retarget.robots.kinematics import ancestors, load_mjcf
from retarget.robots.model_file import compiled_model

if TYPE_CHECKING:
    import mujoco

#: Largest angle between the base's axes and those of the fingers. Correct frames of the robots here
#: and of public models are within 11 degrees (docs/robots.md).
PALM_DEG = 25.0
#: A human finger from knuckle to tip, and the opening of thumb and index (m).
_HUMAN_FINGER_M, _HUMAN_OPENING_M = 0.09, 0.09
#: Largest ratio between robot and human sizes.
_SIZE_FACTOR = 5.0
#: Largest distance (m) from the base to the finger roots; hands with forearms have up to 0.35.
_BASE_M = 0.5
#: Largest ratio between finger lengths of both hands.
_SIDE_RATIO = 1.25
#: Another finger contradicts the robot.yaml's thumb if it fits better by this angle (degrees).
_THUMB_DEG = 10.0
#: A closed hand is shown at this share of its way: fists hide their fingertips.
_CLOSED_SHARE = 0.75
#: Fingers with roots closer side by side (m) have no order.
_SAME_PLACE_M = 0.003


class Fault(AcehandError):
    """What is wrong with a robot.yaml."""


@dataclass(frozen=True, slots=True)
class Anatomy:
    """A hand's fingers in the base frame, with all joints at rest and at the commands' ends."""

    model: mujoco.MjModel
    fingers: tuple[Finger, ...]
    rest: JointValues
    ends: tuple[JointValues, JointValues]

    @property
    def bends(self) -> list[Bend]:
        """How each finger lies and closes."""
        lower, upper = np.minimum(*self.ends), np.maximum(*self.ends)
        return anatomy.find_bends(self.model, self.fingers, self.rest, lower, upper)

    def openings(self) -> list[float]:
        """Return the opening of the jaws at both ends of the commands (m)."""
        return [anatomy.opening(self.model, self.fingers, values) for values in self.ends]


def read_anatomy(hand: HandSpec) -> Anatomy:
    """Return the fingers of a hand and the joint values of its commands."""
    model = load_mjcf(hand.mjcf_path)
    rows = [model.joint(hand.full_name(name)).id for name in hand.joint_names]
    zero = hand.expand(np.clip(0.0, hand.command_lower, hand.command_upper))
    values = np.zeros((3, model.njnt))
    values[:, rows] = [zero, hand.expand(hand.command_lower), hand.expand(hand.command_upper)]

    fingers = []
    for link, place in (_frame(hand, model, tip) for tip in hand.tip_names):
        joints = [int(model.body_jntadr[b]) for b in ancestors(model, link) if model.body_jntnum[b]]
        fingers.append(Finger(tuple(joints[::-1]), link, place))
    return Anatomy(model, tuple(fingers), values[0], (values[1], values[2]))


def _frame(hand: HandSpec, model: mujoco.MjModel, name: str) -> tuple[int, anatomy.Point]:
    """Return the link of a named site or link, and the place in it."""
    sites = {model.site(i).name: i for i in range(model.nsite)}
    site = sites.get(hand.full_name(name))
    if site is None:
        return model.body(hand.full_name(name)).id, np.zeros(3)
    return int(model.site_bodyid[site]), model.site_pos[site].copy()


def size(hand: HandSpec, hands: tuple[HandSpec, ...] = ()) -> str:
    """Check the size of fingers or opening, their distance from the base, and the other hand."""
    body = read_anatomy(hand)
    lengths: dict[str, float] = {}
    if hand.tracks == "opening":
        what, long, typical = "jaws open", "", _HUMAN_OPENING_M
        length = max(body.openings())
    else:
        what, long, typical = "fingers are", " long", _HUMAN_FINGER_M
        lengths = _lengths(hand, body)
        length = float(np.median([*lengths.values()]))
    ratio = length / typical
    if ratio > 200:
        raise Fault(f"{what} {length:.3g} m{long}: looks like millimetres instead of metres")
    if ratio < 1 / 200:
        raise Fault(f"{what} {length * 1e3:.2g} mm{long}: looks like a model scaled by 0.001 twice")
    if not 1 / _SIZE_FACTOR < ratio < _SIZE_FACTOR:
        human = f"a human's are {typical * 1e3:.0f} mm"
        raise Fault(f"{what} {length * 1e3:.0f} mm{long}, {human}: is the model in metres?")

    anchors = HandPosture(body.model, body.rest).anchors
    away = float(np.linalg.norm(anchors[[f.joints[0] for f in body.fingers]].mean(axis=0)))
    if away > _BASE_M:
        raise Fault(
            f"the base is {away:.3g} m from where fingers begin; valid: up to {_BASE_M} m. "
            "Is `xyz` in millimetres instead of metres?"
        )

    for other in hands if lengths else ():
        for finger, theirs in _lengths(other, read_anatomy(other)).items():
            short, longer = sorted((lengths.get(finger, theirs), theirs))
            if longer > _SIDE_RATIO * short:
                ours, theirs = lengths[finger] * 1e3, theirs * 1e3
                raise Fault(
                    f"the {finger} is {ours:.0f} mm long, on the other hand {theirs:.0f} mm: "
                    "is each tip at its end?"
                )
    return f"{what} {length * 1e3:.0f} mm{long}"


def _lengths(hand: HandSpec, body: Anatomy) -> dict[str, float]:
    """Return the length of each straight finger, from its first bending joint to the tip (m)."""
    bends = zip(hand.fingers, body.bends, strict=True)
    return {finger: float(np.linalg.norm(bend.tip - bend.base)) for finger, bend in bends}


def fingers(hand: HandSpec) -> str:
    """Check that fingers, joints and keypoints are where their names say."""
    body = read_anatomy(hand)
    _keypoints_along_fingers(hand, body)
    _joints_on_their_fingers(hand, body)
    named = ", ".join(hand.fingers)
    if _thumbless(hand):
        return named
    bends, thumb = body.bends, hand.fingers.index("thumb")
    spreads = np.degrees(anatomy.thumb_spreads(bends))
    likely = int(np.argmin(spreads))
    if spreads[thumb] > spreads[likely] + _THUMB_DEG:
        raise Fault(
            f"by its place the {hand.fingers[likely]} looks like the thumb: it opposes the others. "
            "Are keypoints of two fingers exchanged?"
        )

    palm = anatomy.find_palm(bends, thumb)
    if palm.side is None:
        return f"{named}; the thumb is in the middle"
    places = {i: float(bends[i].base @ palm.rotation[:, 1]) for i in palm.order}
    for one, after in itertools.pairwise(palm.order):
        names = hand.fingers[one], hand.fingers[after]
        reverse = FINGERS.index(names[0]) > FINGERS.index(names[1])
        if reverse and abs(places[one] - places[after]) > _SAME_PLACE_M:
            raise Fault(
                f"the {names[0]} is nearer to the thumb than the {names[1]}: are keypoints of two "
                "fingers exchanged?"
            )
    return named


def _thumbless(hand: HandSpec) -> bool:
    """Whether a hand has too few fingers, or no thumb, to tell left from right."""
    return hand.tracks == "opening" or "thumb" not in hand.fingers or len(hand.fingers) < 3


def _keypoints_along_fingers(hand: HandSpec, body: Anatomy) -> None:
    """Raise Fault if a finger's keypoints do not follow each other from palm to tip."""
    frames = hand.frame_of_keypoint
    for finger in FINGERS:
        keys = [k for k in finger_keypoints(finger) if k in frames]
        placed = [(key, _frame(hand, body.model, frames[key])[0]) for key in keys]
        for (key, link), (after, beyond) in itertools.pairwise(placed):
            if link not in ancestors(body.model, beyond):
                raise Fault(
                    f"keypoint {KEYPOINT_NAMES[after]} is on {frames[after]}, which "
                    f"{KEYPOINT_NAMES[key]} on {frames[key]} does not carry: is their order right?"
                )


def _joints_on_their_fingers(hand: HandSpec, body: Anatomy) -> None:
    """Raise Fault if a joint moves another finger than it is named after, or follows another's."""
    model = body.model
    numbers = {name: model.joint(hand.full_name(name)).id for name in hand.joint_names}
    moved = {
        name: [i for i, f in enumerate(body.fingers) if number in f.joints]
        for name, number in numbers.items()
    }
    for name, places in moved.items():
        named = fingers_named(name)
        fits = any(hand.fingers[i] in named for i in places)
        if len(places) == 1 and named and not fits and {*named} & {*hand.fingers}:
            finger = hand.fingers[places[0]]
            raise Fault(
                f"joint {name} moves the {finger}, but is named after the {named[0]}: are joints "
                "exchanged?"
            )
    if hand.tracks == "opening":
        return

    for row, name in enumerate(hand.joint_names):
        drivers = np.flatnonzero(hand.coupling[row])
        if name in hand.command_joints or len(moved[name]) != 1 or not len(drivers):
            continue
        place, driver = moved[name][0], hand.command_joints[int(drivers[0])]
        chain = body.fingers[place].joints
        driven = {numbers[n] for n in hand.command_joints}
        if numbers[driver] in chain:
            # ``coupling`` compares couplings with those of the user's own file.
            tied = hand.user_model is not None and compiled_model(hand.user_model).neq
            if not tied and chain.index(numbers[driver]) > chain.index(numbers[name]):
                raise Fault(
                    f"{name} is nearer to the palm than {driver}, which it follows: are joints of "
                    "that finger exchanged?"
                )
        elif driven & {*chain} and len(moved[driver]) == 1 and chain.index(numbers[name]) > 0:
            axis = HandPosture(model, body.rest).axes[numbers[name]]
            if abs(axis @ body.bends[place].axis) > np.cos(np.pi / 4):
                raise Fault(
                    f"{name} bends the {hand.fingers[place]} and follows {driver} of another "
                    "finger: are joints exchanged?"
                )


def palm_frame(hand: HandSpec) -> str:
    """Check the base frame against the one of fingers and thumb, or jaws."""
    body = read_anatomy(hand)
    note = ""
    if hand.tracks == "opening":
        gaps = body.openings()
        opened, closed = body.ends if gaps[0] > gaps[1] else body.ends[::-1]
        order = sorted(range(len(body.fingers)), key=lambda i: hand.fingers[i] != "thumb")
        jaws = [body.fingers[i] for i in (order if hand.side == "right" else order[::-1])]
        axes = anatomy.find_jaws(body.model, jaws, opened, closed)
        what = "where the jaws open (y, from the index jaw to the thumb jaw on a right hand)"
        what += " and point (z)"
    else:
        bends = body.bends
        thumb = hand.fingers.index("thumb") if "thumb" in hand.fingers else None
        if thumb is not None and len(bends) > 2:
            spreads = np.degrees(anatomy.thumb_spreads(bends))
            if spreads[thumb] > spreads.min() + _THUMB_DEG:
                thumb = int(np.argmin(spreads))
        axes = anatomy.find_palm(bends, thumb).rotation
        what = "where the fingers close (x) and point (z)"
        others = [bend for i, bend in enumerate(bends) if i != thumb]
        if not all(bend.one_way for bend in others) and np.trace(axes) < 0:
            axes = axes * (-1, -1, 1)  # the joints allow closing the other way
            note = "; fingers may close either way"

    angles = np.degrees(np.arccos(np.clip(np.diag(axes), -1, 1)))
    listed = ", ".join(f"{axis} {angle:.0f}" for axis, angle in zip("xyz", angles, strict=True))
    if angles.max() <= PALM_DEG:
        return f"{listed} degrees from {what}{note}"
    stated = np.eye(3) if hand.user_rpy is None else rotations.from_rpy(np.array(hand.user_rpy))
    rpy = np.round(rotations.to_rpy(axes.T @ stated), 3) + 0.0
    text = f"[{', '.join(f'{v:g}' for v in rpy)}]"
    fix = f"rpy: {text} would be right"
    if hand.user_rpy is None:
        fix = f"the model would have to be turned by rpy {text}"
    raise Fault(f"the base frame is off by {listed} degrees from {what}; {fix}")


def side(hand: HandSpec) -> str:
    """Check that a right hand is one, by the side of its thumb."""
    if _thumbless(hand):
        return "fits either side"
    bends = read_anatomy(hand).bends
    palm = anatomy.find_palm(bends, anatomy.likely_thumb(bends))
    others = [bend for i, bend in enumerate(bends) if i != hand.fingers.index("thumb")]
    if palm.side is None or not all(bend.one_way for bend in others):
        return "fits either side: the thumb is in the middle, or fingers bend both ways"
    if palm.side != hand.side:
        raise Fault(f"looks like a {palm.side} hand: its thumb is on that side of the fingers")
    return f"a {hand.side} hand by its thumb"


def open_and_closed(hand: HandSpec) -> tuple[JointVector, JointVector]:
    """Return all joints of the open and of the closed hand or gripper."""
    body = read_anatomy(hand)
    if hand.tracks == "opening":
        ends = (hand.command_lower, hand.command_upper)
        gaps = body.openings()
        opened, closed = ends if gaps[0] > gaps[1] else ends[::-1]
        return hand.expand(opened), hand.expand(closed)

    opened = np.clip(0.0, hand.command_lower, hand.command_upper)
    closed = opened.copy()
    axes = HandPosture(body.model, body.rest).axes
    for finger, bend in zip(body.fingers, body.bends, strict=True):
        for i, name in enumerate(hand.command_joints):
            joint = body.model.joint(hand.full_name(name)).id
            share = float(axes[joint] @ bend.axis)
            if joint in finger.joints and abs(share) > np.cos(np.pi / 4):
                end = hand.command_upper[i] if share > 0 else hand.command_lower[i]
                closed[i] = opened[i] + _CLOSED_SHARE * (end - opened[i])
    return hand.expand(opened), hand.expand(closed)
