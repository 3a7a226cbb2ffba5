"""What packages hand to each other: a recording, the hands in it, and what a robot does with them.

Frozen, checked on construction, numpy only. Axes, frames and units: ``acehand_core.types``.
"""

from __future__ import annotations

from acehand_core.motion.hands import FILL_FRAMES, FillFrame, HandModelName, HandMotion
from acehand_core.motion.recording import CameraMotion, FrameSource, Recording
from acehand_core.motion.robot import (
    ArmMotion,
    Calibration,
    Course,
    FlexionReport,
    ReplayReport,
    RobotTrajectory,
    Verdict,
    held_index,
    runs,
)

__all__ = [
    "FILL_FRAMES",
    "ArmMotion",
    "Calibration",
    "CameraMotion",
    "Course",
    "FillFrame",
    "FlexionReport",
    "FrameSource",
    "HandModelName",
    "HandMotion",
    "Recording",
    "ReplayReport",
    "RobotTrajectory",
    "Verdict",
    "held_index",
    "runs",
]
