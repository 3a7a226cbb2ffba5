"""Recordings of human hands in, robot demonstration datasets out.

The public API, with ``retarget``: docs/api.md. Nothing is loaded before it is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from acehand_core.errors import AcehandError, InputError, NoHandError, OutputError
    from acehand_core.geometry.cameras import Camera
    from acehand_core.motion import HandMotion, Recording, RobotTrajectory
    from acehand_core.pipeline.bag_convert import ConvertOptions, ConvertReport, convert_bag
    from acehand_core.pipeline.bag_write import (
        WriteOptions,
        load_demonstrations,
        write_bag,
    )
    from acehand_core.pipeline.dataset import Dataset
    from acehand_core.pipeline.job import run_job
    from acehand_core.pipeline.settings import JobSettings
    from acehand_core.recordings.hands_file import read_hand_motion, write_hand_motion
    from acehand_core.recordings.keypoints.joints import motion_from_joints
    from acehand_core.recordings.options import RecordingOptions
    from acehand_core.recordings.registry import open_recording
    from acehand_core.recordings.selection import resample
    from acehand_core.review.inspect import inspect
    from acehand_core.trackers.base import Tracker, TrackerSettings
    from acehand_core.trackers.choose import track

__version__ = "0.1.0"

_HOME = {
    "Camera": "geometry.cameras",
    "HandMotion": "motion",
    "Recording": "motion",
    "RobotTrajectory": "motion",
    "RecordingOptions": "recordings.options",
    "open_recording": "recordings.registry",
    "resample": "recordings.selection",
    "motion_from_joints": "recordings.keypoints.joints",
    "read_hand_motion": "recordings.hands_file",
    "write_hand_motion": "recordings.hands_file",
    "Tracker": "trackers.base",
    "TrackerSettings": "trackers.base",
    "track": "trackers.choose",
    "Dataset": "pipeline.dataset",
    "JobSettings": "pipeline.settings",
    "run_job": "pipeline.job",
    "ConvertOptions": "pipeline.bag_convert",
    "ConvertReport": "pipeline.bag_convert",
    "convert_bag": "pipeline.bag_convert",
    "WriteOptions": "pipeline.bag_write",
    "write_bag": "pipeline.bag_write",
    "load_demonstrations": "pipeline.bag_write",
    "inspect": "review.inspect",
    "AcehandError": "errors",
    "InputError": "errors",
    "NoHandError": "errors",
    "OutputError": "errors",
}

__all__ = [
    "AcehandError",
    "Camera",
    "ConvertOptions",
    "ConvertReport",
    "Dataset",
    "HandMotion",
    "InputError",
    "JobSettings",
    "NoHandError",
    "OutputError",
    "Recording",
    "RecordingOptions",
    "RobotTrajectory",
    "Tracker",
    "TrackerSettings",
    "WriteOptions",
    "__version__",
    "convert_bag",
    "inspect",
    "load_demonstrations",
    "motion_from_joints",
    "open_recording",
    "read_hand_motion",
    "resample",
    "run_job",
    "track",
    "write_bag",
    "write_hand_motion",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
