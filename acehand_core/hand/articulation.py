"""The 22 joint angles of a hand, their limits, and fast kinematics with Jacobians.

Each finger flexes (positive towards the palm) at three joints and spreads (positive towards the
thumb) at the knuckle; the thumb's base also twists. Results are stored as the 15 full rotations of
MANO.

Also the proportions of the default hand. Segment lengths are the means of A. Buryanov and V.
Kotiuk, "Proportions of hand segments", Int. J. Morphol. 28(3), 2010 (radiographs of 66 adults); the
last phalanx includes the soft tissue of the fingertip. The rest (wrist to metacarpals, arches, rest
directions) is set here for a hand 187 mm long and 63 mm wide between the outer knuckles, in
millimetres and the anatomical axes of a right hand: distal, dorsal, radial.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from acehand_core.geometry import rotations
from acehand_core.hand.skeleton import FINGER_JOINT_NAMES, FINGERS, TREE_PARENTS, TREE_TO_KEYPOINT
from acehand_core.types import GlobalOrient, HandPose, Keypoints, Side

#: Phalanges from proximal to distal; the thumb's row starts with its metacarpal.
SEGMENT_LENGTHS_MM = {
    "thumb": (46.22, 31.57, 21.67 + 5.67),
    "index": (39.78, 22.38, 15.82 + 3.84),
    "middle": (44.63, 26.33, 17.40 + 3.95),
    "ring": (41.37, 25.65, 17.30 + 3.95),
    "pinky": (32.74, 18.11, 15.96 + 3.73),
}

#: Knuckles (thumb: CMC joint) from the wrist centre: distal, dorsal, radial.
KNUCKLES_MM = {
    "thumb": (25.5, -9.0, 25.0),
    "index": (92.5, -1.0, 25.0),
    "middle": (95.0, 1.5, 4.0),
    "ring": (88.5, -1.0, -16.5),
    "pinky": (79.5, -6.5, -36.0),
}

#: Rest direction of the straight finger and the direction its nail faces.
DIRECTIONS = {
    "thumb": ((0.72, -0.28, 0.635), (-0.45, 0.48, 0.75)),
    "index": ((0.995, -0.02, 0.10), (0.02, 1.0, 0.0)),
    "middle": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0)),
    "ring": ((0.992, -0.02, -0.125), (0.02, 1.0, 0.0)),
    "pinky": ((0.968, -0.05, -0.245), (0.05, 1.0, 0.0)),
}

Angles = Float[np.ndarray, "*batch 22"]

#: Anatomical axes (distal, dorsal, radial) of a right hand in MANO's rest axes: fingers along -x,
#: back of the hand +y, thumb side +z.
ANATOMICAL_TO_MODEL = np.diag([-1.0, 1.0, 1.0])
#: A left hand is the mirror image in x.
MIRROR = np.array([-1.0, 1.0, 1.0])

# (kind, lowest, highest, comfortable) in degrees. Active flexion is MCP 87 +- 10, PIP 97 +- 17, DIP
# 82 to 85 (Indian J Plast Surg 2024); spread between neighbours is at most 15 to 32 (Chatzioglou et
# al. 2024). The margin is for landmarks on the skin.
_FINGER_RANGES = {
    "mcp": (("spread", -22.0, 22.0, 0.0), ("flex", -30.0, 95.0, 15.0)),
    "pip": (("flex", -8.0, 112.0, 20.0),),
    "dip": (("flex", -12.0, 88.0, 12.0),),
}
_THUMB_RANGES = {
    "cmc": (("spread", -35.0, 40.0, 0.0), ("flex", -30.0, 45.0, 5.0), ("twist", -30.0, 50.0, 10.0)),
    "mcp": (("spread", -15.0, 15.0, 0.0), ("flex", -20.0, 70.0, 15.0)),
    "ip": (("flex", -25.0, 88.0, 15.0),),
}
_PINKY_SPREAD = ("spread", -35.0, 25.0, -3.0)

NUM_ANGLES = 22


@dataclass(frozen=True, slots=True)
class Proportions:
    """Multipliers of the mean hand; all one at zero betas."""

    palm_length: float = 1.0
    palm_breadth: float = 1.0
    palm_thickness: float = 1.0
    finger_thickness: float = 1.0
    segments: tuple[tuple[float, float, float], ...] = ((1.0, 1.0, 1.0),) * 5


def proportion_gradients() -> list[Proportions]:
    """Return, per beta, the change of every multiplier for one standard deviation.

    In order: size, palm breadth, fingers to palm, thumb, index to ring, pinky, middle finger,
    proximal to distal phalanges, thickness of the fingers, of the palm.

    Size is 5.5 % per standard deviation (adult hand length varies by 5 to 6 % in the ANSUR and
    ACOPLA surveys). The remaining betas spread the 5 to 8 % residual variation of a segment in
    Buryanov and Kotiuk.
    """

    def segments(**fingers: tuple[float, float, float]) -> tuple[tuple[float, float, float], ...]:
        return tuple(fingers.get(name, (0.0, 0.0, 0.0)) for name in FINGERS)

    def same(change: float) -> tuple[float, float, float]:
        return (change, change, change)

    still = segments()
    return [
        Proportions(0.055, 0.055, 0.055, 0.055, (same(0.055),) * 5),
        Proportions(0.0, 0.055, 0.0, 0.02, still),
        Proportions(-0.03, 0.0, 0.0, 0.0, (same(0.0), *[same(0.045)] * 4)),
        Proportions(0.0, 0.0, 0.0, 0.0, segments(thumb=same(0.06))),
        Proportions(0.0, 0.0, 0.0, 0.0, segments(index=same(0.03), ring=same(-0.03))),
        Proportions(0.0, 0.0, 0.0, 0.0, segments(pinky=same(0.06))),
        Proportions(0.0, 0.0, 0.0, 0.0, segments(middle=same(0.04))),
        Proportions(0.0, 0.0, 0.0, 0.0, ((0.06, -0.05, -0.05),) * 5),
        Proportions(0.0, 0.0, 0.0, 0.08, still),
        Proportions(0.0, 0.0, 0.08, 0.0, still),
    ]


def rest_keypoints(proportions: Proportions) -> np.ndarray:
    """Return the 21 rest keypoints from the wrist, anatomical axes, mm.

    Linear in the proportions, so linear in betas.
    """
    palm = np.array([proportions.palm_length, proportions.palm_thickness, proportions.palm_breadth])
    points = [np.zeros(3)]
    for finger, multipliers in zip(FINGERS, proportions.segments, strict=True):
        direction = np.array(DIRECTIONS[finger][0])
        direction = direction / np.linalg.norm(direction)
        point = np.array(KNUCKLES_MM[finger]) * palm
        points.append(point)
        for length, multiplier in zip(SEGMENT_LENGTHS_MM[finger], multipliers, strict=True):
            point = point + direction * length * multiplier
            points.append(point)
    return np.array(points)


@dataclass(frozen=True, slots=True)
class Freedom:
    """One angle: the finger joint it turns (0..14), its kind and its range in radians."""

    joint: int
    name: str
    kind: str
    low: float
    high: float
    comfortable: float


@functools.cache
def freedoms() -> tuple[Freedom, ...]:
    """Return the 22 freedoms in the order of the angle vector: joint by joint, as MANO."""
    listed = []
    for joint, name in enumerate(FINGER_JOINT_NAMES):
        finger, part = name.split("_")
        ranges = (_THUMB_RANGES if finger == "thumb" else _FINGER_RANGES)[part]
        for kind, low, high, rest in ranges:
            if finger == "pinky" and kind == "spread":
                _, low, high, rest = _PINKY_SPREAD
            low, high, rest = np.radians([low, high, rest])
            listed.append(Freedom(joint, f"{name}_{kind}", kind, low, high, rest))
    return tuple(listed)


@functools.cache
def limits() -> tuple[np.ndarray, np.ndarray]:
    """Return the lowest and highest angles in radians, each (22,)."""
    low, high = np.array([(freedom.low, freedom.high) for freedom in freedoms()]).T
    return low, high


@functools.cache
def comfortable() -> np.ndarray:
    """Return the angles of a relaxed hand in radians, (22,)."""
    return np.array([freedom.comfortable for freedom in freedoms()])


@functools.cache
def finger_axes(side: Side) -> dict[str, np.ndarray]:
    """Return per finger the unit axes (flex, spread, twist) as rows, in the model's rest axes."""
    axes_of_finger = {}
    for finger in FINGERS:
        along, nail = (ANATOMICAL_TO_MODEL @ np.array(v) for v in DIRECTIONS[finger])
        along = along / np.linalg.norm(along)
        nail = nail - (nail @ along) * along
        nail = nail / np.linalg.norm(nail)
        # Turning by +flex about nail x along moves the tip away from the nail.
        flex = np.cross(nail, along)
        axes = np.stack([flex, nail, along])
        if side == "left":
            axes = -axes * MIRROR  # an axis is a pseudo-vector
        axes_of_finger[finger] = axes
    return axes_of_finger


@functools.cache
def _axes(side: Side) -> np.ndarray:
    row = {"flex": 0, "spread": 1, "twist": 2}
    return np.stack([finger_axes(side)[f.name.split("_")[0]][row[f.kind]] for f in freedoms()])


@functools.cache
def moves() -> tuple[Int[np.ndarray, "50"], Int[np.ndarray, "50"], Int[np.ndarray, "50"]]:
    """Return every pair of an angle and a keypoint it moves: angle, keypoint, joint's keypoint."""
    pairs = []
    for index, freedom in enumerate(freedoms()):
        base = TREE_TO_KEYPOINT[freedom.joint + 1]
        tip = base + 3 - freedom.joint % 3
        pairs += [(index, point, base) for point in range(base + 1, tip + 1)]
    angle, keypoint, joint = np.array(pairs).T
    return angle, keypoint, joint


@functools.cache
def _crosses(side: Side) -> tuple[np.ndarray, np.ndarray]:
    """Return the matrices of the cross product with each axis (22, 3, 3), and their squares."""
    cross = rotations.skew(_axes(side))
    return cross, cross @ cross


def _turns(angles: Angles, side: Side) -> Float[np.ndarray, "*batch 22 3 3"]:
    """Return the rotation about its axis by each angle (Rodrigues)."""
    cross, twice = _crosses(side)
    sine, cosine = np.sin(angles)[..., None, None], np.cos(angles)[..., None, None]
    return np.eye(3) + sine * cross + (1 - cosine) * twice


def angles_to_pose(angles: Angles, side: Side) -> HandPose:
    """Return the rotations of the 15 finger joints relative to their parents."""
    single = _turns(angles, side)
    pose = np.broadcast_to(np.eye(3), (*angles.shape[:-1], 15, 3, 3)).copy()
    for index, freedom in enumerate(freedoms()):
        pose[..., freedom.joint, :, :] = pose[..., freedom.joint, :, :] @ single[..., index, :, :]
    return pose


def chain(
    angles: Float[np.ndarray, "N 22"], side: Side, rest: Float[np.ndarray, "*N 21 3"]
) -> tuple[Float[np.ndarray, "N 21 3"], Float[np.ndarray, "N 16 3 3"], Float[np.ndarray, "N 22 3"]]:
    """Return the kinematics for identity orientation and the wrist at the origin.

    Keypoints, rotations of the 16 joints and the unit axes of the 22 angles. ``rest`` are the
    shaped rest keypoints, one set or one per row.
    """
    count = len(angles)
    offset = np.broadcast_to(rest - rest[..., :1, :], (count, 21, 3))
    single = _turns(angles, side)
    world = np.empty((count, 16, 3, 3))
    world[:, 0] = np.eye(3)
    points = np.zeros((count, 21, 3))
    axes_world = np.empty((count, NUM_ANGLES, 3))

    index = 0
    for joint in range(1, 16):
        keypoint, rotation = TREE_TO_KEYPOINT[joint], world[:, TREE_PARENTS[joint]]
        parent = TREE_TO_KEYPOINT[TREE_PARENTS[joint]]
        bone = offset[:, keypoint] - offset[:, parent]
        points[:, keypoint] = points[:, parent] + _turn(rotation, bone)
        while index < NUM_ANGLES and freedoms()[index].joint == joint - 1:
            axes_world[:, index] = rotation @ _axes(side)[index]
            rotation = rotation @ single[:, index]
            index += 1
        world[:, joint] = rotation
        if joint % 3 == 0:  # the last joint of a finger carries its tip
            bone = offset[:, keypoint + 1] - offset[:, keypoint]
            points[:, keypoint + 1] = points[:, keypoint] + _turn(rotation, bone)

    return points, world, axes_world


def keypoints_with_jacobian(
    angles: Float[np.ndarray, "N 22"], side: Side, rest: Float[np.ndarray, "*N 21 3"]
) -> tuple[Float[np.ndarray, "N 21 3"], Float[np.ndarray, "N 21 3 22"]]:
    """Return wrist-relative keypoints for identity orientation, and their derivatives.

    ``rest`` is as in ``chain``. A turn about a world axis through a joint moves a point by ``axis x
    (point - joint)``.
    """
    points, _, axes_world = chain(angles, side, rest)
    angle, keypoint, joint = moves()
    turned = np.cross(axes_world[:, angle], points[:, keypoint] - points[:, joint])
    jacobian = np.zeros((len(angles), 21, NUM_ANGLES, 3))
    jacobian[:, keypoint, angle] = turned
    return points, np.swapaxes(jacobian, 2, 3)


def pose_keypoints(
    global_orient: GlobalOrient, hand_pose: HandPose, rest: Keypoints
) -> tuple[Keypoints, np.ndarray]:
    """Return keypoints posed about the rest wrist, and the 16 world rotations.

    ``joints = R (chain(hand_pose) - J0) + J0``: the wrist stays at its rest position, as in MANO.
    """
    batch = np.broadcast_shapes(global_orient.shape[:-2], hand_pose.shape[:-3], rest.shape[:-2])
    rest = np.broadcast_to(rest, (*batch, 21, 3))
    world = np.empty((*batch, 16, 3, 3))
    world[..., 0, :, :] = global_orient
    points = np.empty((*batch, 21, 3))
    points[..., 0, :] = rest[..., 0, :]

    def place(keypoint: int, parent: int, turn: np.ndarray) -> None:
        bone = rest[..., keypoint, :] - rest[..., parent, :]
        points[..., keypoint, :] = points[..., parent, :] + _turn(turn, bone)

    for joint in range(1, 16):
        keypoint, turn = TREE_TO_KEYPOINT[joint], world[..., TREE_PARENTS[joint], :, :]
        place(keypoint, TREE_TO_KEYPOINT[TREE_PARENTS[joint]], turn)
        world[..., joint, :, :] = turn @ hand_pose[..., joint - 1, :, :]
        if joint % 3 == 0:
            place(keypoint + 1, keypoint, world[..., joint, :, :])
    return points, world


def _turn(rotation: np.ndarray, vector: np.ndarray) -> np.ndarray:
    return (rotation @ vector[..., None])[..., 0]
