"""The 22 ways a healthy hand bends, their limits, and fast kinematics with Jacobians.

Each finger flexes (positive towards the palm) at three joints and spreads (positive towards the
thumb) at the knuckle; the thumb's base also twists. The fit of a tracker moves only along these,
so its hands stay possible; the result is stored as the 15 full rotations that MANO uses.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from acehand_core.geometry import rotations
from acehand_core.hand.anthropometry import DIRECTIONS
from acehand_core.hand.skeleton import FINGER_JOINT_NAMES, FINGERS, TREE_PARENTS, TREE_TO_KEYPOINT
from acehand_core.types import GlobalOrient, HandPose, Keypoints, Side

Angles = Float[np.ndarray, "*batch 22"]

#: Anatomical axes (distal, dorsal, radial) of a right hand in MANO's rest axes: fingers along -x,
#: back of the hand +y, thumb side +z.
ANATOMICAL_TO_MODEL = np.diag([-1.0, 1.0, 1.0])
#: A left hand is the mirror image in x.
MIRROR = np.array([-1.0, 1.0, 1.0])

# (kind, lowest, highest, comfortable) in degrees. Sources of the ranges: active flexion of MCP
# 87 +- 10, PIP 97 +- 17, DIP 82 to 85 (Indian J Plast Surg 2024); spread between neighbours up to
# 15 to 32 (Chatzioglou et al. 2024). A margin is left for landmarks that sit on the skin.
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


@dataclass(frozen=True, slots=True)
class Freedom:
    """One angle: which finger joint it turns (0..14), its kind and its range in radians."""

    joint: int
    name: str
    kind: str
    low: float
    high: float
    comfortable: float


@functools.cache
def freedoms() -> tuple[Freedom, ...]:
    """Return the 22 freedoms in the order of the angle vector: joint by joint, MANO's order."""
    out = []
    for joint, name in enumerate(FINGER_JOINT_NAMES):
        finger, part = name.split("_")
        ranges = (_THUMB_RANGES if finger == "thumb" else _FINGER_RANGES)[part]
        for kind, low, high, rest in ranges:
            if finger == "pinky" and kind == "spread":
                _, low, high, rest = _PINKY_SPREAD
            low, high, rest = np.radians([low, high, rest])
            out.append(Freedom(joint, f"{name}_{kind}", kind, low, high, rest))
    return tuple(out)


NUM_ANGLES = 22


@functools.cache
def limits() -> tuple[np.ndarray, np.ndarray]:
    """Return the lowest and highest angles in radians, each (22,)."""
    return (
        np.array([freedom.low for freedom in freedoms()]),
        np.array([freedom.high for freedom in freedoms()]),
    )


@functools.cache
def comfortable() -> np.ndarray:
    """Return the angles of a relaxed hand in radians, (22,)."""
    return np.array([freedom.comfortable for freedom in freedoms()])


@functools.cache
def finger_axes(side: Side) -> dict[str, np.ndarray]:
    """Return per finger the unit axes (flex, spread, twist) as rows, in the model's rest axes."""
    out = {}
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
        out[finger] = axes
    return out


@functools.cache
def _axes(side: Side) -> np.ndarray:
    row = {"flex": 0, "spread": 1, "twist": 2}
    return np.stack(
        [
            finger_axes(side)[FINGER_JOINT_NAMES[f.joint].split("_")[0]][row[f.kind]]
            for f in freedoms()
        ]
    )


def angles_to_pose(angles: Angles, side: Side) -> HandPose:
    """Return the rotations of the 15 finger joints relative to their parents."""
    single = rotations.exp(angles[..., None] * _axes(side))
    pose = np.broadcast_to(np.eye(3), (*angles.shape[:-1], 15, 3, 3)).copy()
    for index, freedom in enumerate(freedoms()):
        pose[..., freedom.joint, :, :] = pose[..., freedom.joint, :, :] @ single[..., index, :, :]
    return pose


def chain(
    angles: Float[np.ndarray, "N 22"], side: Side, rest: Float[np.ndarray, "*N 21 3"]
) -> tuple[Float[np.ndarray, "N 21 3"], Float[np.ndarray, "N 16 3 3"], Float[np.ndarray, "N 22 3"]]:
    """Return how the hand's tree is turned, for identity orientation and the wrist at the origin.

    Keypoints, rotations of the 16 joints and the unit axes that the 22 angles turn about. ``rest``
    are the shaped rest keypoints, one set or one per row.
    """
    count = len(angles)
    offset = np.broadcast_to(rest - rest[..., :1, :], (count, 21, 3))
    single = rotations.exp(angles[..., None] * _axes(side))
    world = np.empty((count, 16, 3, 3))
    world[:, 0] = np.eye(3)
    points = np.zeros((count, 21, 3))
    axes_world = np.empty((count, NUM_ANGLES, 3))
    index = 0
    for joint in range(1, 16):
        parent = TREE_PARENTS[joint]
        keypoint, parent_keypoint = TREE_TO_KEYPOINT[joint], TREE_TO_KEYPOINT[parent]
        bone = offset[:, keypoint] - offset[:, parent_keypoint]
        points[:, keypoint] = points[:, parent_keypoint] + _turn(world[:, parent], bone)
        rotation = world[:, parent]
        while index < NUM_ANGLES and freedoms()[index].joint == joint - 1:
            axes_world[:, index] = rotation @ _axes(side)[index]
            rotation = rotation @ single[:, index]
            index += 1
        world[:, joint] = rotation
        if joint % 3 == 0:  # last joint of a finger: its tip hangs on it
            bone = offset[:, keypoint + 1] - offset[:, keypoint]
            points[:, keypoint + 1] = points[:, keypoint] + _turn(rotation, bone)
    return points, world, axes_world


def keypoints_with_jacobian(
    angles: Float[np.ndarray, "N 22"], side: Side, rest: Float[np.ndarray, "*N 21 3"]
) -> tuple[Float[np.ndarray, "N 21 3"], Float[np.ndarray, "N 21 3 22"]]:
    """Return wrist-relative keypoints for identity orientation, and their derivatives.

    ``rest`` are the shaped rest keypoints, one set or one per row. A turn about a world axis
    through a joint moves a point by ``axis x (point - joint)``.
    """
    points, _, axes_world = chain(angles, side, rest)
    jacobian = np.zeros((len(angles), 21, 3, NUM_ANGLES))
    for index, freedom in enumerate(freedoms()):
        base = TREE_TO_KEYPOINT[freedom.joint + 1]
        tip = base + 3 - freedom.joint % 3
        arms = points[:, base + 1 : tip + 1] - points[:, base : base + 1]
        jacobian[:, base + 1 : tip + 1, :, index] = np.cross(axes_world[:, index, None], arms)
    return points, jacobian


def pose_keypoints(
    global_orient: GlobalOrient, hand_pose: HandPose, rest: Keypoints
) -> tuple[Keypoints, np.ndarray]:
    """Return posed keypoints turned about the rest wrist, and the 16 world rotations.

    ``joints = R (chain(hand_pose) - J0) + J0``: the wrist stays at its rest position, as in MANO.
    """
    batch = np.broadcast_shapes(global_orient.shape[:-2], hand_pose.shape[:-3], rest.shape[:-2])
    rest = np.broadcast_to(rest, (*batch, 21, 3))
    world = np.empty((*batch, 16, 3, 3))
    world[..., 0, :, :] = global_orient
    points = np.empty((*batch, 21, 3))
    points[..., 0, :] = rest[..., 0, :]
    for joint in range(1, 16):
        parent = TREE_PARENTS[joint]
        keypoint, parent_keypoint = TREE_TO_KEYPOINT[joint], TREE_TO_KEYPOINT[parent]
        bone = rest[..., keypoint, :] - rest[..., parent_keypoint, :]
        points[..., keypoint, :] = points[..., parent_keypoint, :] + _turn(
            world[..., parent, :, :], bone
        )
        world[..., joint, :, :] = world[..., parent, :, :] @ hand_pose[..., joint - 1, :, :]
        if joint % 3 == 0:
            bone = rest[..., keypoint + 1, :] - rest[..., keypoint, :]
            points[..., keypoint + 1, :] = points[..., keypoint, :] + _turn(
                world[..., joint, :, :], bone
            )
    return points, world


def _turn(rotation: np.ndarray, vector: np.ndarray) -> np.ndarray:
    return (rotation @ vector[..., None])[..., 0]
