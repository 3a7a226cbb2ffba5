"""Checks of a robot.yaml by how the hand is built: fingers, their size, palm frame, side.

Fingers are closed over their commands in the kinematics. What that says of frame, side and order
does not depend on what the robot.yaml states, so that a mistake is found and can be named.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from acehand_core.errors import AcehandError
from acehand_core.geometry import rotations
from acehand_core.hand.skeleton import FINGERS, KEYPOINT_NAMES, finger_keypoints
from retarget.robots import anatomy
from retarget.robots.anatomy import Bend, Finger, HandPosture, JointValues
from retarget.robots.hand_spec import HandSpec, JointVector
from retarget.robots.kinematics import ancestors, load_mjcf
from retarget.robots.model_file import compiled_model
from retarget.robots.naming import fingers_named

if TYPE_CHECKING:
    import mujoco

#: Largest angle between an axis of the base and what the fingers say. Of all robots here and of
#: public models with a right frame it is 11 degrees at most (docs/robots.md).
PALM_DEG = 25.0
#: A human finger from knuckle to tip, and the opening of thumb and index (m).
_HUMAN_FINGER_M, _HUMAN_OPENING_M = 0.09, 0.09
#: Robots' may be so many times larger or smaller.
_SIZE_FACTOR = 5.0
#: The base is at most so far (m) from where fingers begin; of forearms that come with a hand 0.35.
_BASE_M = 0.5
#: Fingers of the right and of the left hand may be so many times longer or shorter.
_OTHER_SIDE = 1.25
#: Another finger must look so much more like the thumb (degrees) to contradict the robot.yaml.
_THUMB_DEG = 10.0
#: A hand is shown closed over this share of its way: fists hide their fingertips.
_CLOSED = 0.75
#: Fingers whose roots are nearer side by side (m) have no order.
_SAME_PLACE_M = 0.003


class Wrong(AcehandError):
    """A check's own verdict."""


@dataclass(frozen=True, slots=True)
class Anatomy:
    """A hand's fingers as its model has them, in the base frame; joints by the model's number.

    ``ends`` are all joints at the commands' lower and upper ends.
    """

    model: mujoco.MjModel
    fingers: tuple[Finger, ...]
    rest: JointValues
    ends: tuple[JointValues, JointValues]

    @property
    def bends(self) -> list[Bend]:
        """How each finger stands and closes."""
        lower, upper = np.minimum(*self.ends), np.maximum(*self.ends)
        return anatomy.bends(self.model, self.fingers, self.rest, lower, upper)

    @property
    def openings(self) -> list[float]:
        """How far the jaws are apart at the commands' lower and upper ends (m)."""
        return [anatomy.opening(self.model, self.fingers, values) for values in self.ends]


def read_anatomy(hand: HandSpec) -> Anatomy:
    """Return the fingers of a hand and what its commands do to its joints."""
    model = load_mjcf(hand.mjcf_path)
    rows = [model.joint(hand.full_name(name)).id for name in hand.joint_names]
    zero = hand.expand(np.clip(0.0, hand.command_lower, hand.command_upper))
    values = np.zeros((3, model.njnt))
    values[:, rows] = [zero, hand.expand(hand.command_lower), hand.expand(hand.command_upper)]
    sites = {model.site(i).name: i for i in range(model.nsite)}

    fingers = []
    for tip in hand.tip_names:
        name = hand.full_name(tip)
        link = int(model.site_bodyid[sites[name]]) if name in sites else model.body(name).id
        place = model.site_pos[sites[name]].copy() if name in sites else np.zeros(3)
        joints = [int(model.body_jntadr[b]) for b in ancestors(model, link) if model.body_jntnum[b]]
        fingers.append(Finger(tuple(joints[::-1]), link, place))
    return Anatomy(model, tuple(fingers), values[0], (values[1], values[2]))


def size(hand: HandSpec, hands: tuple[HandSpec, ...] = ()) -> str:
    """Check that hand and base are as large and near as a human's, fingers as the other hand's."""
    body = read_anatomy(hand)
    lengths: dict[str, float] = {}
    if hand.tracks == "opening":
        what, long, typical = "jaws open", "", _HUMAN_OPENING_M
        length = max(body.openings)
    else:
        what, long, typical = "fingers are", " long", _HUMAN_FINGER_M
        lengths = _lengths(hand, body)
        length = float(np.median([*lengths.values()]))
    ratio = length / typical
    if ratio > 200:
        raise Wrong(f"{what} {length:.3g} m{long}: looks like millimetres, where metres are meant")
    if ratio < 1 / 200:
        raise Wrong(f"{what} {length * 1e3:.2g} mm{long}: looks like a model scaled by 0.001 twice")
    if not 1 / _SIZE_FACTOR < ratio < _SIZE_FACTOR:
        raise Wrong(f"{what} {length * 1e3:.0f} mm{long}, a human's are {typical * 1e3:.0f} mm: "
                    "is the unit of the model metres?")  # fmt: skip

    roots = HandPosture(body.model, body.rest).anchors[
        [finger.joints[0] for finger in body.fingers]
    ]
    away = float(np.linalg.norm(roots.mean(axis=0)))
    if away > _BASE_M:
        raise Wrong(f"the base is {away:.3g} m from where fingers begin, {_BASE_M} m at most are "
                    "valid: is `xyz` in millimetres, where metres are meant?")  # fmt: skip

    for other in hands if lengths else ():
        for finger, theirs in _lengths(other, read_anatomy(other)).items():
            pair = sorted((lengths.get(finger, theirs), theirs))
            if pair[1] > _OTHER_SIDE * pair[0]:
                raise Wrong(f"the {finger} is {lengths[finger] * 1e3:.0f} mm long, on the other "
                            f"hand {theirs * 1e3:.0f} mm: does each tip end it?")  # fmt: skip
    return f"{what} {length * 1e3:.0f} mm{long}"


def _lengths(hand: HandSpec, body: Anatomy) -> dict[str, float]:
    """Return how long each straight finger is, from the first joint that bends to the tip (m)."""
    bends = zip(hand.fingers, body.bends, strict=True)
    return {finger: float(np.linalg.norm(bend.tip - bend.base)) for finger, bend in bends}


def fingers(hand: HandSpec) -> str:
    """Check that fingers, joints and keypoints are where their names say."""
    body = read_anatomy(hand)
    _keypoints_along_fingers(hand, body)
    _joints_on_their_fingers(hand, body)
    if hand.tracks == "opening" or "thumb" not in hand.fingers or len(hand.fingers) < 3:
        return ", ".join(hand.fingers)
    bends, thumb = body.bends, hand.fingers.index("thumb")
    spreads = np.degrees(anatomy.thumb_spreads(bends))
    likely = int(np.argmin(spreads))
    if spreads[thumb] > spreads[likely] + _THUMB_DEG:
        raise Wrong(f"by its place the {hand.fingers[likely]} looks like the thumb: it stands "
                    "against the others. Are keypoints of two fingers exchanged?")  # fmt: skip

    palm = anatomy.find_palm(bends, thumb)
    if palm.side is None:
        return f"{', '.join(hand.fingers)}; the thumb stands in the middle"
    places = {i: float(bends[i].base @ palm.rotation[:, 1]) for i in palm.order}
    for one, after in itertools.pairwise(palm.order):
        names = hand.fingers[one], hand.fingers[after]
        reverse = FINGERS.index(names[0]) > FINGERS.index(names[1])
        if reverse and abs(places[one] - places[after]) > _SAME_PLACE_M:
            raise Wrong(f"the {names[0]} is nearer to the thumb than the {names[1]}: are keypoints "
                        "of two fingers exchanged?")  # fmt: skip
    return ", ".join(hand.fingers)


def _keypoints_along_fingers(hand: HandSpec, body: Anatomy) -> None:
    """Raise Wrong where keypoints of a finger do not follow each other from the palm to the tip."""
    model = body.model
    frames = dict(zip(hand.target_keypoints, hand.target_frames, strict=True))
    sites = {model.site(i).name: int(model.site_bodyid[i]) for i in range(model.nsite)}
    for finger in FINGERS:
        keys = [k for k in finger_keypoints(finger) if k in frames]
        names = [hand.full_name(frames[k]) for k in keys]
        links = [sites[n] if n in sites else model.body(n).id for n in names]
        placed = list(zip(keys, links, strict=True))
        for (key, link), (after, beyond) in itertools.pairwise(placed):
            if link not in ancestors(model, beyond):
                raise Wrong(
                    f"keypoint {KEYPOINT_NAMES[after]} is on {frames[after]}, which "
                    f"{KEYPOINT_NAMES[key]} on {frames[key]} does not carry: is their order right?"
                )


def _joints_on_their_fingers(hand: HandSpec, body: Anatomy) -> None:
    """Raise Wrong where a joint moves another finger than its name says, or follows another's."""
    model = body.model
    numbers = {name: model.joint(hand.full_name(name)).id for name in hand.joint_names}
    moved = {
        name: [i for i, f in enumerate(body.fingers) if number in f.joints]
        for name, number in numbers.items()
    }
    for name, places in moved.items():
        said = fingers_named(name)
        fits = any(hand.fingers[i] in said for i in places)
        if len(places) == 1 and said and not fits and {*said} & {*hand.fingers}:
            raise Wrong(f"joint {name} moves the {hand.fingers[places[0]]}, by its name it is of "
                        f"the {said[0]}: are joints exchanged?")  # fmt: skip
    if hand.tracks == "opening":
        return

    for row, name in enumerate(hand.joint_names):
        if name in hand.command_joints or len(moved[name]) != 1:
            continue
        drivers = np.flatnonzero(hand.coupling[row])
        if not len(drivers):  # it stands still
            continue
        driver = hand.command_joints[int(drivers[0])]
        chain = body.fingers[moved[name][0]].joints
        own = [n for n in hand.command_joints if numbers[n] in chain[1:]]
        own = own or [n for n in hand.command_joints if numbers[n] in chain[:1]]
        behind = [numbers[n] for n in own]
        if numbers[driver] in chain:
            # What follows what in the user's own file, ``coupling`` compares.
            tied = hand.user_model is not None and compiled_model(hand.user_model).neq
            if not tied and chain.index(numbers[driver]) > chain.index(numbers[name]):
                raise Wrong(f"{name} is nearer to the palm than {driver}, which it follows: are "
                            "joints of that finger exchanged?")  # fmt: skip
        elif behind and len(moved[driver]) == 1 and chain.index(numbers[name]) > 0:
            bend = body.bends[moved[name][0]]
            axis = HandPosture(model, body.rest).axes[numbers[name]]
            if abs(axis @ bend.axis) > np.cos(np.pi / 4):
                raise Wrong(f"{name} bends the {hand.fingers[moved[name][0]]} and follows {driver} "
                            "of another finger: are joints exchanged?")  # fmt: skip


def palm_frame(hand: HandSpec) -> str:
    """Check the base frame against the one that fingers and thumb, or jaws, say."""
    body = read_anatomy(hand)
    note = ""
    if hand.tracks == "opening":
        gaps = body.openings
        opened, closed = body.ends if gaps[0] > gaps[1] else body.ends[::-1]
        order = sorted(range(len(body.fingers)), key=lambda i: hand.fingers[i] != "thumb")
        jaws = [body.fingers[i] for i in (order if hand.side == "right" else order[::-1])]
        found = anatomy.find_jaws(body.model, jaws, opened, closed)
        what = "where the jaws open (y, from the index jaw to the thumb jaw on a right hand)"
        what += " and point (z)"
    else:
        bends = body.bends
        thumb = hand.fingers.index("thumb") if "thumb" in hand.fingers else None
        if thumb is not None and len(bends) > 2:
            spreads = np.degrees(anatomy.thumb_spreads(bends))
            if spreads[thumb] > spreads.min() + _THUMB_DEG:
                thumb = int(np.argmin(spreads))
        found = anatomy.find_palm(bends, thumb).rotation
        what = "where the fingers close (x) and point (z)"
        others = [bend for i, bend in enumerate(bends) if i != thumb]
        if not all(bend.sure for bend in others) and np.trace(found) < 0:
            # Joints that go as far one way as the other: closing may be the other way.
            found = found * (-1, -1, 1)
            note = "; which way fingers close is not sure"

    angles = np.degrees(np.arccos(np.clip(np.diag(found), -1, 1)))
    said = ", ".join(f"{axis} {angle:.0f}" for axis, angle in zip("xyz", angles, strict=True))
    if angles.max() > PALM_DEG:
        raise Wrong(f"the base frame is off by {said} degrees from {what}; {_better(hand, found)}")
    return f"{said} degrees from {what}{note}"


def _better(hand: HandSpec, found: Float[np.ndarray, "3 3"]) -> str:
    """Return what to write instead: the rpy of a user's model, or how to turn the base."""
    stated = np.eye(3) if hand.user_rpy is None else rotations.from_rpy(np.array(hand.user_rpy))
    rpy = np.round(rotations.to_rpy(found.T @ stated), 3) + 0.0
    text = f"[{', '.join(f'{v:g}' for v in rpy)}]"
    if hand.user_rpy is None:
        return f"the model would have to be turned by rpy {text}"
    return f"rpy: {text} would be right"


def side(hand: HandSpec) -> str:
    """Check that a right hand is a right one, by the side of its thumb."""
    body = read_anatomy(hand)
    if hand.tracks == "opening" or "thumb" not in hand.fingers or len(hand.fingers) < 3:
        return "fits either side"
    bends = body.bends
    palm = anatomy.find_palm(bends, anatomy.likely_thumb(bends))
    others = [bend for i, bend in enumerate(bends) if i != hand.fingers.index("thumb")]
    if palm.side is None or not all(bend.sure for bend in others):
        return "fits either side: the thumb stands in the middle, or fingers bend both ways"
    if palm.side != hand.side:
        raise Wrong(f"looks like a {palm.side} hand: its thumb is on that side of the fingers")
    return f"a {hand.side} hand by its thumb"


def open_and_closed(hand: HandSpec) -> tuple[JointVector, JointVector]:
    """Return all joints of the open hand and of the hand that closes fingers or jaws."""
    body = read_anatomy(hand)
    if hand.tracks == "opening":
        ends = (hand.command_lower, hand.command_upper)
        gaps = body.openings
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
                closed[i] = opened[i] + _CLOSED * (end - opened[i])
    return hand.expand(opened), hand.expand(closed)
