"""Recordings of human hands in, robot demonstration datasets out.

The public API, with ``retarget``: docs/api.md. Nothing is loaded before it is used.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "Camera": "geometry.cameras",
    "HandMotion": "motion",
    "Recording": "motion",
    "RobotTrajectory": "motion",
    "RecordingOptions": "recordings.options",
    "open_recording": "recordings.registry",
    "resample": "recordings.selection",
    "read_hand_motion": "recordings.hands_file",
    "write_hand_motion": "recordings.hands_file",
    "Tracker": "trackers.base",
    "TrackerSettings": "trackers.base",
    "track": "trackers.choose",
    "Dataset": "pipeline.dataset",
    "JobSettings": "pipeline.settings",
    "run_job": "pipeline.job",
    "AcehandError": "errors",
    "InputError": "errors",
    "NoHandError": "errors",
    "OutputError": "errors",
}

__all__ = ["__version__", *sorted(_HOME)]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
