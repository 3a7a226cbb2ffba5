"""The ROS messages of a demonstration as nested dicts of their fields (docs/ros2.md).

Conventions: REP-103 and REP-105, SI units, quaternions xyzw, capture stamps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from acehand_core.errors import CalibrationError
from acehand_core.geometry import frames, rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.hand.skeleton import BONES
from acehand_core.motion import Course, HandMotion
from acehand_core.recordings.bags.images import CAMERA_INFO, camera_info_fields
from acehand_core.types import SIDES, CameraPoses, Side, TimestampsNs

JOINT_STATE = "sensor_msgs/msg/JointState"
JOINT_TRAJECTORY = "trajectory_msgs/msg/JointTrajectory"
POSE = "geometry_msgs/msg/PoseStamped"
POSES = "geometry_msgs/msg/PoseArray"
TF = "tf2_msgs/msg/TFMessage"
DIAGNOSTICS = "diagnostic_msgs/msg/DiagnosticArray"
STRING = "std_msgs/msg/String"
MARKERS = "visualization_msgs/msg/MarkerArray"
_LINE_LIST, _SPHERE_LIST = 5, 7
_ADD, _DELETE = 0, 2
#: Wrist, then thumb to pinky: distinct to colour-blind viewers too.
_COLOURS = (
    (0.85, 0.85, 0.85), (0.90, 0.62, 0.00), (0.34, 0.71, 0.91), (0.00, 0.62, 0.45),
    (0.94, 0.89, 0.26), (0.80, 0.47, 0.65),
)  # fmt: skip
_JOINT_M, _BONE_M = 0.010, 0.004
#: REP-103: the camera's body and its optical frame.
CAMERA_LINK, OPTICAL = "camera_link", "camera_optical_frame"
#: Rotation of the optical frame in the camera's body: rpy (-pi/2, 0, -pi/2) as xyzw.
_OPTICAL_TURN = (-0.5, 0.5, -0.5, 0.5)
_DIAGNOSTICS_HZ = 1.0
_OK, _WARN, _ERROR = 0, 1, 2
_LEVELS = {"pass": _OK, "warn": _WARN, "fail": _ERROR}

#: Topics that other nodes publish too.
SHARED = ("/diagnostics", "/tf", "/tf_static")

_Place = tuple[dict[str, float], dict[str, float]]


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A written topic: its type and QoS."""

    msgtype: str
    latched: bool = False
    depth: int = 10


def _per_hand(name: str, spec: TopicSpec) -> dict[str, TopicSpec]:
    return {f"/{side}_hand/{name}": spec for side in SIDES}


TOPICS: Mapping[str, TopicSpec] = {
    **_per_hand("joint_states", TopicSpec(JOINT_STATE)),
    **_per_hand("joint_trajectory", TopicSpec(JOINT_TRAJECTORY, latched=True, depth=1)),
    **_per_hand("wrist_pose", TopicSpec(POSE)),
    **_per_hand("joints", TopicSpec(POSES)),
    **_per_hand("skeleton", TopicSpec(MARKERS)),
    **_per_hand("robot_description", TopicSpec(STRING, latched=True, depth=1)),
    "/acehand/camera_info": TopicSpec(CAMERA_INFO),
    "/acehand/task": TopicSpec(STRING, latched=True, depth=1),
    "/diagnostics": TopicSpec(DIAGNOSTICS),
    "/tf": TopicSpec(TF, depth=100),
    "/tf_static": TopicSpec(TF, latched=True, depth=1),
}


@dataclass(frozen=True, slots=True)
class PlainMessage:
    """One message; ``time_ns`` is its time of receipt."""

    topic: str
    msgtype: str
    time_ns: int
    fields: dict[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class Demonstration:
    """One episode of T frames: a robot hand per side, and the human hands if known.

    ``stamps_ns`` are times of capture, ``log_ns`` times of receipt. ``clock_ns`` are the times of
    capture on a monotonic clock, if that of the stamps was set back. ``fps`` is the command rate;
    ``courses`` are the commands of the visible hands as a controller takes them. ``joint_names``
    (Q) and ``command_joints`` (C) carry no side. ``T_camera_base`` and ``T_camera_wrist`` are NaN
    for absent hands, None without places. ``camera_frame`` is the optical frame, published below
    camera_link with ``publish_camera_tf``; ``world_frame`` is the parent of ``T_world_camera``,
    None: not published. ``frame_prefix``: see ``with_frame_prefix``.
    """

    name: str
    task: str
    stamps_ns: TimestampsNs
    log_ns: Int[np.ndarray, "T"]
    fps: float
    robot: str
    joint_names: tuple[str, ...]
    command_joints: tuple[str, ...]
    joints: Float[np.ndarray, "T 2 Q"]
    commands: Float[np.ndarray, "T 2 C"]
    confidence: Float[np.ndarray, "T 2"]
    courses: Mapping[Side, Course] = field(default_factory=dict, repr=False)
    clock_ns: Int[np.ndarray, "T"] | None = None
    T_camera_base: Float[np.ndarray, "T 2 4 4"] | None = None
    T_camera_wrist: Float[np.ndarray, "T 2 4 4"] | None = None
    motion: HandMotion | None = None
    camera: Camera | None = None
    T_world_camera: CameraPoses | None = None
    world_frame: str | None = None
    camera_frame: str = OPTICAL
    publish_camera_tf: bool = True
    verdict: str = "pass"
    reasons: tuple[str, ...] = ()
    descriptions: Mapping[Side, str] = field(default_factory=dict, repr=False)
    base_links: Mapping[Side, str] = field(default_factory=dict)
    frame_prefix: str = ""

    def __len__(self) -> int:
        return len(self.stamps_ns)

    @property
    def times_ns(self) -> TimestampsNs:
        """Increasing times of capture; see ``clock_ns``."""
        return self.stamps_ns if self.clock_ns is None else self.clock_ns

    @property
    def known(self) -> Bool[np.ndarray, "T 2"]:
        """Which hands were measured or filled."""
        return self.confidence > 0 if self.motion is None else self.motion.known


def with_frame_prefix(demo: Demonstration, prefix: str) -> Demonstration:
    """Return a demonstration with robot_state_publisher's frame_prefix before every frame."""
    return replace(
        demo,
        frame_prefix=prefix + demo.frame_prefix,
        camera_frame=prefix + demo.camera_frame,
        world_frame=None if demo.world_frame is None else prefix + demo.world_frame,
        base_links={side: prefix + link for side, link in demo.base_links.items()},
    )


def joint_state(demo: Demonstration, index: int, slot: int) -> PlainMessage:
    """Return all joints of one hand at one frame."""
    side = SIDES[slot]
    content = {
        "header": header_of(int(demo.stamps_ns[index]), ""),
        "name": [f"{side}_{name}" for name in demo.joint_names],
        "position": floats(demo.joints[index, slot]),
        "velocity": [],
        "effort": [],
    }
    return _message(f"/{side}_hand/joint_states", demo, index, content)


def trajectory_messages(demo: Demonstration) -> Iterator[PlainMessage]:
    """Yield the driven joints of each visible hand over the clip, as a controller takes them.

    The stamp is zero: start on receipt. ``time_from_start`` leaves time to reach the first point.
    """
    for side, course in demo.courses.items():
        names = [f"{side}_{name}" for name in demo.command_joints]
        content = trajectory_fields(names, course)
        yield _message(f"/{side}_hand/joint_trajectory", demo, 0, content)


def trajectory_fields(names: Sequence[str], course: Course, stamp_ns: int = 0) -> dict[str, Any]:
    """Return the fields of a JointTrajectory; ``stamp_ns`` is its start, 0: on receipt."""
    rows = zip(course.seconds.tolist(), course.positions, course.velocities, strict=True)
    points = [
        {
            "positions": floats(position),
            "velocities": floats(velocity),
            "accelerations": [],
            "effort": [],
            "time_from_start": time_of(round(seconds * 1e9)),
        }
        for seconds, position, velocity in rows
    ]
    return {"header": header_of(stamp_ns, ""), "joint_names": list(names), "points": points}


def latched_messages(demo: Demonstration) -> list[PlainMessage]:
    """Return the latched messages: robot descriptions, the task, fixed transforms."""
    messages = [
        _message(f"/{side}_hand/robot_description", demo, 0, {"data": text})
        for side, text in demo.descriptions.items()
    ]
    messages.append(_message("/acehand/task", demo, 0, {"data": demo.task}))
    if demo.publish_camera_tf and demo.T_camera_wrist is not None:
        place = dict(zip("xyz", (0.0, 0.0, 0.0), strict=True))
        turn = dict(zip("xyzw", _OPTICAL_TURN, strict=True))
        link = demo.frame_prefix + CAMERA_LINK
        fixed = _transform(int(demo.stamps_ns[0]), link, demo.camera_frame, (place, turn))
        messages.append(_message("/tf_static", demo, 0, {"transforms": [fixed]}))
    return messages


def frame_messages(demo: Demonstration, index: int, human: bool = True) -> list[PlainMessage]:
    """Return the messages of one frame; an absent hand has no joint states.

    ``human`` adds the human's wrists, joints, skeleton and camera.
    """
    messages = [joint_state(demo, index, slot) for slot in range(2) if demo.known[index, slot]]
    if human:
        for slot in range(2):
            messages += _hand_messages(demo, index, slot)
    if transforms := _transforms(demo, index):
        messages.append(_message("/tf", demo, index, {"transforms": transforms}))

    if human and demo.camera is not None:
        header = header_of(int(demo.stamps_ns[index]), demo.camera_frame)
        try:
            content = {"header": header, **camera_info_fields(demo.camera)}
        except CalibrationError:
            return messages  # ROS has no model for this lens
        messages.append(_message("/acehand/camera_info", demo, index, content))
    return messages


def diagnostics_messages(demo: Demonstration) -> list[PlainMessage]:
    """Return the quality once a second, and the verdict at the end."""
    period = float(np.median(np.diff(demo.times_ns))) if len(demo) > 1 else 1e9
    rate = 1e9 / period if period > 0 else 1.0
    sampled = range(0, len(demo), max(1, round(rate / _DIAGNOSTICS_HZ)))
    statuses = [(index, quality_status(demo, index)) for index in sampled]
    messages = []
    for index, status in (*statuses, (len(demo) - 1, [verdict_status(demo)])):
        content = {"header": header_of(int(demo.stamps_ns[index]), ""), "status": status}
        messages.append(_message("/diagnostics", demo, index, content))
    return messages


def quality_status(demo: Demonstration, index: int) -> list[dict[str, Any]]:
    """Return the diagnostic status of each hand at one frame.

    A doubtful hand was seen, but the robot does not follow it.
    """
    status = []
    for slot, side in enumerate(SIDES):
        level, message = _OK, "followed"
        if not demo.known[index, slot]:
            level, message = _WARN, "absent; not commanded"
        elif demo.motion is not None and demo.motion.doubtful[index, slot]:
            level, message = _WARN, "doubtful; not followed"

        values: dict[str, Any] = {"confidence": round(float(demo.confidence[index, slot]), 4)}
        if demo.motion is not None:
            values |= {
                "visible": round(float(demo.motion.visible[index, slot]), 4),
                "observed": bool(demo.motion.observed[index, slot]),
                "filled": bool(demo.motion.filled[index, slot]),
            }
        status.append(status_of(level, f"acehand: {side} hand", message, demo.robot, values))
    return status


def verdict_status(demo: Demonstration) -> dict[str, Any]:
    """Return the diagnostic status of the whole episode."""
    level = _LEVELS.get(demo.verdict, _WARN)
    message = f"{demo.verdict}: {'; '.join(demo.reasons)}" if demo.reasons else demo.verdict
    values = {"task": demo.task, "frames": len(demo), "source": demo.name}
    return status_of(level, "acehand: verdict", message, demo.robot, values)


def _hand_messages(demo: Demonstration, index: int, slot: int) -> list[PlainMessage]:
    side, wrists, messages = SIDES[slot], demo.T_camera_wrist, []
    frame = f"{demo.frame_prefix}{side}_wrist" if wrists is None else demo.camera_frame
    header = header_of(int(demo.stamps_ns[index]), frame)

    if wrists is not None and np.isfinite(wrists[index, slot]).all():
        position, orientation = _place(wrists[index, slot])
        pose = {"position": position, "orientation": orientation}
        content: dict[str, Any] = {"header": header, "pose": pose}
        messages.append(_message(f"/{side}_hand/wrist_pose", demo, index, content))

    if demo.motion is None:
        return messages
    points = demo.motion.joints_camera[index, slot]
    seen = bool(demo.known[index, slot] and np.isfinite(points).all())
    if seen:
        content = {"header": header, "poses": [_position_only(point) for point in points]}
        messages.append(_message(f"/{side}_hand/joints", demo, index, content))
    markers = skeleton_markers(header, side, points if seen else None)
    messages.append(_message(f"/{side}_hand/skeleton", demo, index, {"markers": markers}))
    return messages


def _transforms(demo: Demonstration, index: int) -> list[dict[str, Any]]:
    if demo.T_camera_wrist is None:
        return []
    stamp, transforms = int(demo.stamps_ns[index]), []

    def add(parent: str, child: str, pose: np.ndarray) -> None:
        transforms.append(_transform(stamp, parent, child, _place(pose)))

    if demo.T_world_camera is not None and demo.world_frame is not None:
        pose, child = demo.T_world_camera[index], demo.camera_frame
        if demo.publish_camera_tf:
            # camera_link is the parent of the optical frame, the only one with a measured pose.
            turn = rotations.from_quaternion(np.array(_OPTICAL_TURN)[[3, 0, 1, 2]])
            pose = pose @ frames.inverse(frames.rigid(turn, np.zeros(3)))
            child = demo.frame_prefix + CAMERA_LINK
        add(demo.world_frame, child, pose)

    for side, wrist in zip(SIDES, demo.T_camera_wrist[index], strict=True):
        if not np.isfinite(wrist).all():
            continue
        name = f"{demo.frame_prefix}{side}_wrist"
        add(demo.camera_frame, name, wrist)
        if demo.T_camera_base is not None and side in demo.base_links:
            base = frames.inverse(wrist) @ demo.T_camera_base[index, SIDES.index(side)]
            add(name, demo.base_links[side], base)

    return transforms


def _message(topic: str, demo: Demonstration, index: int, fields: dict[str, Any]) -> PlainMessage:
    return PlainMessage(topic, TOPICS[topic].msgtype, int(demo.log_ns[index]), fields)


def header_of(stamp_ns: int, frame: str) -> dict[str, Any]:
    """Return a std_msgs Header."""
    return {"stamp": time_of(stamp_ns), "frame_id": frame}


def time_of(ns: int) -> dict[str, int]:
    """Return a builtin_interfaces Time or Duration of whole nanoseconds."""
    return {"sec": ns // 10**9, "nanosec": ns % 10**9}


def floats(values: np.ndarray) -> list[float]:
    return [float(value) for value in values]


def status_of(
    level: int, name: str, message: str, hardware: str, values: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a diagnostic_msgs DiagnosticStatus."""
    pairs = [{"key": key, "value": str(value)} for key, value in values.items()]
    fields = {"level": level, "name": name, "message": message, "hardware_id": hardware}
    return {**fields, "values": pairs}


def _place(transform: Float[np.ndarray, "4 4"]) -> _Place:
    """Return translation (m) and rotation of a transform."""
    qw, qx, qy, qz = floats(rotations.to_quaternion(transform[:3, :3]))
    xyz = dict(zip("xyz", floats(transform[:3, 3]), strict=True))
    return xyz, {"x": qx, "y": qy, "z": qz, "w": qw}


def _position_only(point: Float[np.ndarray, "3"]) -> dict[str, Any]:
    identity = {"x": 0.0, "y": 0.0, "z": 0.0, "w": 1.0}
    return {"position": dict(zip("xyz", floats(point), strict=True)), "orientation": identity}


def _transform(stamp_ns: int, parent: str, child: str, place: _Place) -> dict[str, Any]:
    """Return a geometry_msgs TransformStamped."""
    transform = dict(zip(("translation", "rotation"), place, strict=True))
    header = header_of(stamp_ns, parent)
    return {"header": header, "child_frame_id": child, "transform": transform}


def skeleton_markers(
    header: dict[str, Any], side: Side, points: Float[np.ndarray, "21 3"] | None
) -> list[dict[str, Any]]:
    """Return the markers of 21 joints and their bones, or those that delete them."""
    none = np.zeros((0, 3))
    if points is None:
        return [
            _marker(header, f"{side}_{part}", _SPHERE_LIST, 1.0, none, []) | {"action": _DELETE}
            for part in ("joints", "bones")
        ]
    colours = [
        _rgba((*_COLOURS[0 if joint == 0 else (joint - 1) // 4 + 1], 1.0)) for joint in range(21)
    ]
    joints = _marker(header, f"{side}_joints", _SPHERE_LIST, _JOINT_M, points, colours)
    ends = [joint for bone in BONES for joint in bone]
    shades = [colours[child] for _, child in BONES for _ in range(2)]
    return [joints, _marker(header, f"{side}_bones", _LINE_LIST, _BONE_M, points[ends], shades)]


def _rgba(values: tuple[float, ...]) -> dict[str, float]:
    return dict(zip("rgba", values, strict=True))


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
        "pose": _position_only(np.zeros(3)),
        "scale": {"x": scale, "y": across, "z": across},
        "color": _rgba((1.0, 1.0, 1.0, 1.0)),
        "points": [dict(zip("xyz", floats(point), strict=True)) for point in points],
        "colors": colours,
    }
