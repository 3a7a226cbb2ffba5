"""Array aliases with axes, frames and units, and the values of settings.

Axis glossary
    T    frames of a recording
    S    hand slots, always 2: 0 left, 1 right
    N    points
    21   keypoints in OpenPose order (``acehand_core.hand.skeleton``)
    15   finger joints in MANO order
    B    betas, always 10
    V F  mesh vertices and faces
    Q C  joints and commands of a robot hand

Frames
    camera  OpenCV: x right, y down, z forward; metres
    image   pixels; integer coordinates are pixel centres
    world   only where camera poses are known; metres
    base    the robot hand's base link; metres
    hand    the human palm: x out of the palm, z wrist to fingers, y to the thumb (right hand)

They are jaxtyping annotations; only the test suite checks them.
"""

from __future__ import annotations

from typing import Literal, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Float32, Int, UInt8

Side = Literal["left", "right"]
SIDES: tuple[Side, Side] = ("left", "right")

# Geometry, any leading batch axes.
Rotation = Float[np.ndarray, "*batch 3 3"]
RotationVector = Float[np.ndarray, "*batch 3"]
Quaternion = Float[np.ndarray, "*batch 4"]  # wxyz
Rotation6D = Float[np.ndarray, "*batch 6"]  # first two matrix columns: r11 r21 r31 r12 r22 r32
RigidTransform = Float[np.ndarray, "*batch 4 4"]
PointsCamera = Float[np.ndarray, "*batch 3"]
PointsImage = Float[np.ndarray, "*batch 2"]
Rays = Float[np.ndarray, "*batch 3"]  # unit length, camera frame

# Hands; leading axes broadcast.
GlobalOrient = Float[np.ndarray, "*#batch 3 3"]
HandPose = Float[np.ndarray, "*#batch 15 3 3"]
Betas = Float[np.ndarray, "*#batch 10"]
Keypoints = Float[np.ndarray, "*#batch 21 3"]
Vertices = Float[np.ndarray, "*#batch V 3"]
Faces = Int[np.ndarray, "F 3"]

# A whole recording.
TimestampsNs = Int[np.ndarray, "T"]
PerHand = Float[np.ndarray, "T 2"]
PerHandFlag = Bool[np.ndarray, "T 2"]
RotationsCamera = Float[np.ndarray, "T 2 3 3"]
FingerRotations = Float[np.ndarray, "T 2 15 3 3"]
PointCamera = Float[np.ndarray, "T 2 3"]
BothBetas = Float[np.ndarray, "2 10"]
JointsCamera = Float[np.ndarray, "T 2 21 3"]
JointsImage = Float[np.ndarray, "T 2 21 2"]
CameraPoses = Float[np.ndarray, "T 4 4"]  # T_world_camera

# Values of settings.
Hands = Literal["both", "left", "right"]
ImageFit = Literal["letterbox", "crop"]
SplitMode = Literal["none", "auto", "tasks"]  # what becomes an episode
Existing = Literal["refuse", "append", "overwrite", "resume"]  # what to do with a dataset
Latency = Literal["off", "on", "ahead"]  # from command to motion of the hand
TurnsMode = Literal["off", "rotation"]  # whether trackers estimate how the camera turns
Quality = Literal["fast", "balanced", "best"]  # of tracking, against its time

# Images.
ImageRgb = UInt8[np.ndarray, "H W 3"]
DepthImage = Float32[np.ndarray, "_ _"]  # z in metres, NaN without a reading
Picture = UInt8[np.ndarray, "_ _ 3"]  # of another size than the images around it


@runtime_checkable
class Progress(Protocol):
    """A callback for progress; may raise to stop the work."""

    def __call__(self, stage: str, done: int, total: int) -> None: ...


def no_progress(stage: str, done: int, total: int) -> None:
    """Report nothing."""
