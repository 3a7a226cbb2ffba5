"""Recordings of human hands in, robot demonstration datasets out.

The public API, with ``retarget``: docs/api.md. Names are imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from acehand_core.errors import AcehandError as AcehandError
    from acehand_core.errors import InputError as InputError
    from acehand_core.errors import NoHandError as NoHandError
    from acehand_core.errors import OutputError as OutputError
    from acehand_core.geometry.cameras import Camera as Camera
    from acehand_core.motion import HandMotion as HandMotion
    from acehand_core.motion import Recording as Recording
    from acehand_core.motion import RobotTrajectory as RobotTrajectory
    from acehand_core.pipeline.bag_convert import ConvertOptions as ConvertOptions
    from acehand_core.pipeline.bag_convert import ConvertReport as ConvertReport
    from acehand_core.pipeline.bag_convert import convert_bag as convert_bag
    from acehand_core.pipeline.bag_write import WriteOptions as WriteOptions
    from acehand_core.pipeline.bag_write import load_demonstrations as load_demonstrations
    from acehand_core.pipeline.bag_write import write_bag as write_bag
    from acehand_core.pipeline.dataset import Dataset as Dataset
    from acehand_core.pipeline.job import run_job as run_job
    from acehand_core.pipeline.settings import JobSettings as JobSettings
    from acehand_core.recordings.hands_file import read_hand_motion as read_hand_motion
    from acehand_core.recordings.hands_file import write_hand_motion as write_hand_motion
    from acehand_core.recordings.keypoints.joints import motion_from_joints as motion_from_joints
    from acehand_core.recordings.objects import read_objects as read_objects
    from acehand_core.recordings.objects import write_objects as write_objects
    from acehand_core.recordings.options import RecordingOptions as RecordingOptions
    from acehand_core.recordings.registry import open_recording as open_recording
    from acehand_core.recordings.selection import resample as resample
    from acehand_core.review.grasps import check_grasps as check_grasps
    from acehand_core.review.inspect import inspect as inspect
    from acehand_core.trackers.base import Tracker as Tracker
    from acehand_core.trackers.base import TrackerSettings as TrackerSettings
    from acehand_core.trackers.choose import track as track

__version__ = "0.1.0"

_PUBLIC = {
    "errors": "AcehandError InputError NoHandError OutputError",
    "geometry.cameras": "Camera",
    "motion": "HandMotion Recording RobotTrajectory",
    "pipeline.bag_convert": "ConvertOptions ConvertReport convert_bag",
    "pipeline.bag_write": "WriteOptions load_demonstrations write_bag",
    "pipeline.dataset": "Dataset",
    "pipeline.job": "run_job",
    "pipeline.settings": "JobSettings",
    "recordings.hands_file": "read_hand_motion write_hand_motion",
    "recordings.keypoints.joints": "motion_from_joints",
    "recordings.objects": "read_objects write_objects",
    "recordings.options": "RecordingOptions",
    "recordings.registry": "open_recording",
    "recordings.selection": "resample",
    "review.grasps": "check_grasps",
    "review.inspect": "inspect",
    "trackers.base": "Tracker TrackerSettings",
    "trackers.choose": "track",
}
_HOME = {name: module for module, names in _PUBLIC.items() for name in names.split()}
__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
