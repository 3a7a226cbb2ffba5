"""Data between packages: recordings, hands and robot trajectories, frozen and checked.

Axes, frames and units: ``acehand_core.types``.
"""

from __future__ import annotations

from acehand_core.motion.objects import (
    GraspFault,
    GraspReport,
    ObjectPart,
    ObjectTrack,
    TrackedObject,
)
from acehand_core.motion.recording import (
    FILL_FRAMES,
    CameraMotion,
    ChangedFrames,
    Depth,
    DepthSource,
    DroppedMessages,
    FillFrame,
    FrameSource,
    HandModelName,
    HandMotion,
    Recording,
    View,
    neighbours,
    runs,
)
from acehand_core.motion.robot import (
    ArmMotion,
    Calibration,
    Course,
    FlexionReport,
    ReplayReport,
    RobotTrajectory,
    Verdict,
    held_index,
)

__all__ = [
    "FILL_FRAMES",
    "ArmMotion",
    "Calibration",
    "CameraMotion",
    "ChangedFrames",
    "Course",
    "Depth",
    "DepthSource",
    "DroppedMessages",
    "FillFrame",
    "FlexionReport",
    "FrameSource",
    "GraspFault",
    "GraspReport",
    "HandModelName",
    "HandMotion",
    "ObjectPart",
    "ObjectTrack",
    "Recording",
    "ReplayReport",
    "RobotTrajectory",
    "TrackedObject",
    "Verdict",
    "View",
    "held_index",
    "neighbours",
    "runs",
]
