"""Fields of ROS messages as nested dicts: headers, poses, transforms, and the markers of a hand.

Markers are visualization_msgs/MarkerArray: joints and bones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from acehand_core.geometry import rotations
from acehand_core.hand.skeleton import BONES
from acehand_core.types import Side

MARKERS = "visualization_msgs/msg/MarkerArray"
_LINE_LIST, _SPHERE_LIST = 5, 7
_ADD, _DELETE = 0, 2
#: Wrist, then thumb to pinky: distinct also for those who do not see red and green alike.
_COLOURS = (
    (0.85, 0.85, 0.85), (0.90, 0.62, 0.00), (0.34, 0.71, 0.91), (0.00, 0.62, 0.45),
    (0.94, 0.89, 0.26), (0.80, 0.47, 0.65),
)  # fmt: skip
_JOINT_M, _BONE_M = 0.010, 0.004


def header_of(stamp_ns: int, frame: str) -> dict[str, Any]:
    """Return a std_msgs Header."""
    return {"stamp": time_of(stamp_ns), "frame_id": frame}


def time_of(ns: int) -> dict[str, int]:
    """Return a builtin_interfaces Time or Duration of whole nanoseconds."""
    return {"sec": ns // 10**9, "nanosec": ns % 10**9}


def floats(values: np.ndarray) -> list[float]:
    """Return plain numbers of a vector."""
    return [float(value) for value in values]


def key_values(values: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return diagnostic_msgs KeyValues."""
    return [{"key": key, "value": str(value)} for key, value in values.items()]


def pose_of(transform: Float[np.ndarray, "4 4"]) -> dict[str, Any]:
    """Return a geometry_msgs Pose of a 4 x 4 matrix, metres."""
    x, y, z = floats(transform[:3, 3])
    qw, qx, qy, qz = floats(rotations.to_quaternion(transform[:3, :3]))
    return {
        "position": {"x": x, "y": y, "z": z},
        "orientation": {"x": qx, "y": qy, "z": qz, "w": qw},
    }


def joint_poses(points: Float[np.ndarray, "21 3"]) -> list[dict[str, Any]]:
    """Return one pose per joint; only positions are known, so orientations are the identity."""
    turn = {"x": 0.0, "y": 0.0, "z": 0.0, "w": 1.0}
    return [{"position": dict(zip("xyz", floats(p), strict=True)), "orientation": turn}
            for p in points]  # fmt: skip


def rigid_transform(
    stamp_ns: int, parent: str, child: str, pose: Float[np.ndarray, "4 4"]
) -> dict[str, Any]:
    """Return a geometry_msgs TransformStamped of a 4 x 4 matrix, metres."""
    qw, qx, qy, qz = floats(rotations.to_quaternion(pose[:3, :3]))
    x, y, z = floats(pose[:3, 3])
    return transform_of(stamp_ns, parent, child, (x, y, z), (qx, qy, qz, qw))


def transform_of(
    stamp_ns: int,
    parent: str,
    child: str,
    xyz: tuple[float, float, float],
    xyzw: tuple[float, float, float, float],
) -> dict[str, Any]:
    """Return a geometry_msgs TransformStamped."""
    return {
        "header": header_of(stamp_ns, parent),
        "child_frame_id": child,
        "transform": {
            "translation": dict(zip("xyz", xyz, strict=True)),
            "rotation": dict(zip("xyzw", xyzw, strict=True)),
        },
    }


def skeleton_markers(
    header: dict[str, Any], side: Side, points: Float[np.ndarray, "21 3"] | None
) -> list[dict[str, Any]]:
    """Return the markers of 21 joints and their bones, or those that remove them."""
    if points is None:
        return [_removed(header, f"{side}_joints"), _removed(header, f"{side}_bones")]
    colours = [_colour(joint) for joint in range(21)]
    joints = _marker(header, f"{side}_joints", _SPHERE_LIST, _JOINT_M, points, colours)
    ends = [joint for bone in BONES for joint in bone]
    shades = [_colour(child) for _, child in BONES for _ in range(2)]
    return [joints, _marker(header, f"{side}_bones", _LINE_LIST, _BONE_M, points[ends], shades)]


def _colour(joint: int) -> dict[str, float]:
    return _rgba((*_COLOURS[0 if joint == 0 else (joint - 1) // 4 + 1], 1.0))


def _rgba(values: tuple[float, ...]) -> dict[str, float]:
    return dict(zip("rgba", values, strict=True))


def _removed(header: dict[str, Any], name: str) -> dict[str, Any]:
    return _marker(header, name, _SPHERE_LIST, 1.0, np.zeros((0, 3)), []) | {"action": _DELETE}


def _marker(
    header: dict[str, Any],
    name: str,
    kind: int,
    scale: float,
    points: Float[np.ndarray, "N 3"],
    colours: list[dict[str, float]],
) -> dict[str, Any]:
    across = scale if kind != _LINE_LIST else 1.0
    return {
        "header": header,
        "ns": name,
        "id": 0,
        "type": kind,
        "action": _ADD,
        "pose": {
            "position": {"x": 0.0, "y": 0.0, "z": 0.0},
            "orientation": {"x": 0.0, "y": 0.0, "z": 0.0, "w": 1.0},
        },
        "scale": {"x": scale, "y": across, "z": across},
        "color": _rgba((1.0, 1.0, 1.0, 1.0)),
        "points": [{"x": float(x), "y": float(y), "z": float(z)} for x, y, z in points],
        "colors": colours,
    }
