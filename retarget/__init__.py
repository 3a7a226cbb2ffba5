"""Retargeting of human hands to robot hands.

    robot = retarget.load_robot("inspire")
    trajectory = retarget.retarget(motion, robot)
    print(trajectory.verdict, trajectory.verdict.reasons)

``check_hand`` checks a robot's files. ``calibrate`` and ``read_calibrations`` share a calibration
among recordings of a subject, ``attach_arms`` puts arms under the hands, ``Cost`` and
``VectorCost`` are bases of your own costs. Names are imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from retarget.check import check_hand as check_hand
    from retarget.replay.checks import read_limits as read_limits
    from retarget.replay.simulate import Physics as Physics
    from retarget.retargeting import calibrate_motion, retarget_motion
    from retarget.robots.robot import Robot as Robot
    from retarget.robots.robot import load_robot as load_robot
    from retarget.robots.robot import robot_names as robot_names
    from retarget.solve.arm import ArmSettings as ArmSettings
    from retarget.solve.arm_attachment import attach_arms as attach_arms
    from retarget.solve.base import BaseLimits as BaseLimits
    from retarget.solve.calibration_file import known_calibrations
    from retarget.solve.costs import Cost as Cost
    from retarget.solve.costs import VectorCost as VectorCost
    from retarget.solve.costs import Weights as Weights

    calibrate, retarget, read_calibrations = calibrate_motion, retarget_motion, known_calibrations

_PUBLIC = {
    "ArmSettings": "solve.arm:ArmSettings",
    "BaseLimits": "solve.base:BaseLimits",
    "Cost": "solve.costs:Cost",
    "Physics": "replay.simulate:Physics",
    "Robot": "robots.robot:Robot",
    "VectorCost": "solve.costs:VectorCost",
    "Weights": "solve.costs:Weights",
    "attach_arms": "solve.arm_attachment:attach_arms",
    "calibrate": "retargeting:calibrate_motion",
    "check_hand": "check:check_hand",
    "load_robot": "robots.robot:load_robot",
    "read_calibrations": "solve.calibration_file:known_calibrations",
    "read_limits": "replay.checks:read_limits",
    "retarget": "retargeting:retarget_motion",
    "robot_names": "robots.robot:robot_names",
}
__all__ = [*_PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _PUBLIC[name].partition(":")
    return getattr(importlib.import_module(f"{__name__}.{module}"), attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
