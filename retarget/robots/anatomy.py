"""Palm, fingers and thumb of a robot hand, from its joints and fingertips.

Used for drafting and for checking a robot.yaml. Directions are in the model's world frame.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from acehand_core.errors import InputError
from acehand_core.mujoco_gl import import_mujoco
from acehand_core.types import Side

if TYPE_CHECKING:
    import mujoco

Point = Float[np.ndarray, "3"]
#: Joint values of the model, by joint number.
JointValues = Float[np.ndarray, "J"]

#: Least distance (m) of the knuckles from the base's origin, which otherwise moves down the palm.
KNUCKLES_M = 0.03
#: A joint twists a finger if it moves the tip by less than this share of its length per radian.
_TWIST_SHARE = 0.1
#: A thumb within this share of the hand's width from the middle does not determine the side.
_MIDDLE_SHARE = 0.1
#: Fingers with directions further apart (rad) surround the palm instead of lying side by side.
_AROUND_RAD = np.radians(15.0)
#: Smaller differences of angles (rad) do not identify the thumb.
_SAME_RAD = np.radians(3.0)
#: A finger closes in the direction in which its joints bend further, by at least this share of
#: their range.
_ONE_WAY_SHARE = 0.15


@dataclass(frozen=True, slots=True)
class Finger:
    """The joints from the palm to a fingertip, by number; ``tip`` is a point of body ``link``."""

    joints: tuple[int, ...]
    link: int
    tip: Point


@dataclass(frozen=True, slots=True)
class Bend:
    """A finger of the open hand and how it closes.

    Turning about ``axis`` closes it; ``base`` is its first bending joint, ``along`` the direction
    of the straight finger. Unless ``one_way``, the limits allow both ways and ``axis`` closes
    towards the other fingers.
    """

    axis: Point
    base: Point
    along: Point
    tip: Point
    one_way: bool


@dataclass(frozen=True, slots=True)
class RobotPalm:
    """The palm frame of a hand, and the order of its fingers.

    Columns of ``rotation`` are x (out of the palm), y, z (to the fingers). ``order`` lists the
    fingers from the thumb's side on. ``thumb_side`` is the thumb's offset from the middle of the
    others towards +y, as a share of the hand's width: positive on a right hand. ``spread_deg`` is
    the mean angle between the others.
    """

    rotation: Float[np.ndarray, "3 3"]
    order: tuple[int, ...]
    thumb_side: float
    spread_deg: float

    @property
    def side(self) -> Side | None:
        """Left or right; None with the thumb in the middle."""
        if abs(self.thumb_side) < _MIDDLE_SHARE:
            return None
        return "right" if self.thumb_side > 0 else "left"


class NoHingeError(InputError):
    """A finger without hinges, which does not determine the palm."""


class HandPosture:
    """Links and joints of a model at given joint values."""

    def __init__(self, model: mujoco.MjModel, values: JointValues) -> None:
        """Place every link. Free and ball joints stay where the file has them."""
        mujoco = import_mujoco()
        self._data: Any = mujoco.MjData(model)
        for joint, value in enumerate(values):
            if int(model.jnt_type[joint]) >= int(mujoco.mjtJoint.mjJNT_SLIDE):  # or a hinge
                self._data.qpos[model.jnt_qposadr[joint]] = value
        mujoco.mj_kinematics(model, self._data)
        self.axes, self.anchors = self._data.xaxis, self._data.xanchor
        self.positions, self.turns = self._data.xpos, self._data.xmat.reshape(-1, 3, 3)

    def point(self, link: int, place: Point) -> Point:
        """Return a point of a link in the world."""
        return self.positions[link] + self.turns[link] @ place


def slides(model: mujoco.MjModel, joint: int) -> bool:
    return int(model.jnt_type[joint]) == int(import_mujoco().mjtJoint.mjJNT_SLIDE)


def find_bends(
    model: mujoco.MjModel,
    fingers: Sequence[Finger],
    rest: JointValues,
    lower: JointValues,
    upper: JointValues,
) -> list[Bend]:
    """Return how each finger of the open hand (joints at ``rest``) lies and closes.

    The bending axis covers most of the joints' range, so a spreading knuckle does not outweigh the
    others. A finger closes in the direction in which its joints move further. Raises NoHingeError.
    """
    posture = HandPosture(model, rest)
    tips = [posture.point(f.link, f.tip) for f in fingers]
    center = np.mean(tips, axis=0)
    bends = []
    for finger, tip in zip(fingers, tips, strict=True):
        hinges = [j for j in finger.joints if not slides(model, j)]
        if not hinges:
            link = model.body(finger.link).name
            raise NoHingeError(f"the finger that ends at {link!r} has no hinge")
        levers = {j: np.cross(posture.axes[j], tip - posture.anchors[j]) for j in hinges}
        length = max(float(np.linalg.norm(lever)) for lever in levers.values())
        turning = [j for j in hinges if np.linalg.norm(levers[j]) > _TWIST_SHARE * length]

        axes = {j: posture.axes[j] for j in turning}
        spread = sum((upper[j] - lower[j]) * np.outer(axes[j], axes[j]) for j in turning)
        axis = np.linalg.eigh(spread)[1][:, -1]
        shares = {j: float(axes[j] @ axis) for j in turning}
        flexing = [j for j in turning if abs(shares[j]) > np.cos(np.pi / 4)] or turning
        farther = sum(shares[j] * (upper[j] + lower[j] - 2 * rest[j]) for j in flexing)
        span = sum(abs(shares[j]) * (upper[j] - lower[j]) for j in flexing)
        one_way = bool(abs(farther) > _ONE_WAY_SHARE * span)
        if not one_way:
            farther = float(np.cross(axis, tip - posture.anchors[flexing[0]]) @ (center - tip))

        base = posture.anchors[flexing[0]]
        joints = [posture.anchors[j] for j in flexing]
        beyond = next((p for p in joints if np.linalg.norm(p - base) > 0.15 * length), tip)
        axis = axis if farther >= 0 else -axis
        bends.append(Bend(axis, base, _unit(beyond - base), tip, one_way))
    return bends


def thumb_spreads(bends: Sequence[Bend]) -> Float[np.ndarray, "K"]:
    """Return the mean angle between the other fingers (rad): least without the thumb."""
    rest = [[b for j, b in enumerate(bends) if j != i] for i in range(len(bends))]
    return np.array([_mean_angle(others) for others in rest])


def likely_thumb(bends: Sequence[Bend]) -> int:
    """Return the thumb of three or more fingers by position, the first if ambiguous."""
    spreads = thumb_spreads(bends)
    return int(np.argmax(spreads < spreads.min() + _SAME_RAD))


def find_palm(bends: Sequence[Bend], thumb: int | None) -> RobotPalm:
    """Return the palm frame of a hand, given the index of the thumb, if any."""
    others = [i for i in range(len(bends)) if i != thumb]
    spread = _mean_angle([bends[i] for i in others])
    y = _unit(sum(bends[i].axis for i in others))
    # Fingers around the palm lean outwards; the thumb's direction balances theirs.
    z = sum(b.along for i, b in enumerate(bends) if i != thumb or spread > _AROUND_RAD)
    z = _unit(z - (z @ y) * y)
    rotation = np.stack([np.cross(y, z), y, z], axis=1)

    # The thumb is next to the index finger by its root, or by its tip if the root is in the middle.
    across = {i: float(bends[i].base @ y) for i in others}
    middle, width = np.mean(list(across.values())), max(np.ptp(list(across.values())), 1e-9)
    place = 0.0
    if thumb is not None and len(others) > 1:
        root, tip = (float(p @ y - middle) / width for p in (bends[thumb].base, bends[thumb].tip))
        place = root if abs(root) > _MIDDLE_SHARE else tip
    order = sorted(others, key=lambda i: -np.sign(place) * across[i])
    return RobotPalm(rotation, tuple(order), place, float(np.degrees(spread)))


def opening(model: mujoco.MjModel, jaws: Sequence[Finger], values: JointValues) -> float:
    """Return the distance between the tips of a gripper's first two jaws (m)."""
    posture = HandPosture(model, values)
    first, second = (posture.point(jaw.link, jaw.tip) for jaw in jaws[:2])
    return float(np.linalg.norm(first - second))


def find_jaws(
    model: mujoco.MjModel, jaws: Sequence[Finger], opened: JointValues, closed: JointValues
) -> Float[np.ndarray, "3 3"]:
    """Return a gripper's frame, its first jaw towards +y, the opening direction."""
    wide, shut = HandPosture(model, opened), HandPosture(model, closed)
    first, second = ((wide.point(j.link, j.tip), shut.point(j.link, j.tip)) for j in jaws)
    y = _unit((first[0] - second[0]) - (first[1] - second[1]))
    roots = [wide.anchors[j.joints[0]] for j in jaws]
    bodies = [wide.positions[model.body_parentid[model.jnt_bodyid[j.joints[0]]]] for j in jaws]
    at_one_place = np.ptp(roots, axis=0).max() < 1e-3
    z = (first[0] + second[0]) / 2 - np.mean(bodies if at_one_place else roots, axis=0)
    z = _unit(z - (z @ y) * y)
    return np.stack([np.cross(y, z), y, z], axis=1)


def _mean_angle(bends: Sequence[Bend]) -> float:
    """Return the mean angle between directions and axes of fingers (rad)."""
    pairs = list(itertools.combinations(bends, 2))
    if not pairs:
        return 0.0
    cosines = [np.clip([a.axis @ b.axis, a.along @ b.along], -1, 1) for a, b in pairs]
    return float(np.arccos(cosines).mean())


def _unit(vector: Any) -> Point:
    vector = np.asarray(vector, float)
    return vector / np.linalg.norm(vector)
