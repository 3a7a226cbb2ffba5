"""What ROS receives about a demonstration, as plain messages: built once, filled by anybody.

A ``PlainMessage`` holds nested dicts with the field names of the ROS type. The bag writer turns
them into serialized messages, a node into rclpy's. Conventions: REP-103 and REP-105, SI units,
quaternions xyzw, stamps of capture. Topics and frames: docs/ros2.md.
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
#: Wrist, then thumb to pinky: distinct also for those who do not see red and green alike.
_COLOURS = (
    (0.85, 0.85, 0.85), (0.90, 0.62, 0.00), (0.34, 0.71, 0.91), (0.00, 0.62, 0.45),
    (0.94, 0.89, 0.26), (0.80, 0.47, 0.65),
)  # fmt: skip
_JOINT_M, _BONE_M = 0.010, 0.004
#: REP-103: the body of the camera, and its optical frame below it.
CAMERA_LINK, OPTICAL = "camera_link", "camera_optical_frame"
#: rpy (-pi/2, 0, -pi/2) of the optical frame in the camera's body: xyzw.
_OPTICAL_TURN = (-0.5, 0.5, -0.5, 0.5)
_DIAGNOSTICS_HZ = 1.0
_OK, _WARN, _ERROR = 0, 1, 2
_LEVELS = {"pass": _OK, "warn": _WARN, "fail": _ERROR}


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic that is written: its type and what subscribers can rely on."""

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
#: Topics that are shared with other writers of the bag and other publishers beside a node of ours.
SHARED = ("/diagnostics", "/tf", "/tf_static")


@dataclass(frozen=True, slots=True)
class PlainMessage:
    """One message; ``time_ns`` is when it counts as received."""

    topic: str
    msgtype: str
    time_ns: int
    fields: dict[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class Demonstration:
    """One episode of T frames: a robot hand per side, and the human hands where known.

    ``stamps_ns`` are times of capture, ``log_ns`` when messages of a frame count as received.
    ``fps`` is the rate at which the commands are executed.
    ``courses`` are the commands of the hands that appear, as a controller takes them.
    ``clock_ns`` are the times of capture on a clock that only goes forward, where that of the
    stamps was set back; None: the stamps.
    ``joint_names`` (Q) and ``command_joints`` (C) carry no side. ``T_camera_base`` and
    ``T_camera_wrist`` (NaN where a hand is absent) are None where nothing has a place.
    ``camera_frame`` is the optical frame; ``publish_camera_tf`` says whether it is put below
    camera_link here, ``world_frame`` whether ``T_world_camera`` is to be published and as what.
    ``frame_prefix`` goes before the frames that are named here; see ``with_frame_prefix``.
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
        """Times of capture that increase; see ``clock_ns``."""
        return self.stamps_ns if self.clock_ns is None else self.clock_ns

    @property
    def known(self) -> Bool[np.ndarray, "T 2"]:
        """Where a hand was measured or filled."""
        return self.confidence > 0 if self.motion is None else self.motion.known


def with_frame_prefix(demo: Demonstration, prefix: str) -> Demonstration:
    """Return a demonstration with a prefix before every frame, as robot_state_publisher puts it."""
    return replace(
        demo,
        frame_prefix=prefix + demo.frame_prefix,
        camera_frame=prefix + demo.camera_frame,
        world_frame=None if demo.world_frame is None else prefix + demo.world_frame,
        base_links={side: prefix + link for side, link in demo.base_links.items()},
    )


def joint_names(demo: Demonstration, side: Side) -> list[str]:
    """Return the names of all joints of one hand, as in its URDF."""
    return [f"{side}_{name}" for name in demo.joint_names]


def joint_state(demo: Demonstration, index: int, slot: int) -> PlainMessage:
    """Return all joints of one hand at one frame."""
    side = SIDES[slot]
    content = {
        "header": header_of(int(demo.stamps_ns[index]), ""),
        "name": joint_names(demo, side),
        "position": floats(demo.joints[index, slot]),
        "velocity": [],
        "effort": [],
    }
    return _message(f"/{side}_hand/joint_states", demo, index, content)


def trajectory_messages(demo: Demonstration) -> Iterator[PlainMessage]:
    """Yield the driven joints of each hand that appears over the clip, as a controller takes them.

    The stamp is zero: to be started when it is received. ``time_from_start`` leaves the hand the
    time to come to the first point.
    """
    for side, course in demo.courses.items():
        names = [f"{side}_{name}" for name in demo.command_joints]
        content = trajectory_fields(names, course)
        yield _message(f"/{side}_hand/joint_trajectory", demo, 0, content)


def trajectory_fields(names: Sequence[str], course: Course, stamp_ns: int = 0) -> dict[str, Any]:
    """Return the fields of a JointTrajectory; ``stamp_ns`` is when it starts, 0: on receipt."""
    points = [
        {
            "positions": floats(position),
            "velocities": floats(velocity),
            "accelerations": [],
            "effort": [],
            "time_from_start": time_of(round(seconds * 1e9)),
        }
        for seconds, position, velocity in zip(
            course.seconds.tolist(), course.positions, course.velocities, strict=True
        )
    ]
    return {"header": header_of(stamp_ns, ""), "joint_names": list(names), "points": points}


def latched_messages(demo: Demonstration) -> list[PlainMessage]:
    """Return what is published once: robot descriptions, the task, fixed transforms."""
    messages = [
        _message(f"/{side}_hand/robot_description", demo, 0, {"data": text})
        for side, text in demo.descriptions.items()
    ]
    messages.append(_message("/acehand/task", demo, 0, {"data": demo.task}))
    if demo.publish_camera_tf and demo.T_camera_wrist is not None:
        fixed = transform_of(
            int(demo.stamps_ns[0]), _camera_link(demo), demo.camera_frame,
            (0.0, 0.0, 0.0), _OPTICAL_TURN,
        )  # fmt: skip
        messages.append(_message("/tf_static", demo, 0, {"transforms": [fixed]}))
    return messages


def frame_messages(demo: Demonstration, index: int, human: bool = True) -> list[PlainMessage]:
    """Return the messages of one frame; an absent hand has no joint states.

    ``human`` adds the human's wrists, joints and skeleton, and the camera that saw them.
    """
    messages = [joint_state(demo, index, slot) for slot in range(2) if demo.known[index, slot]]
    transforms = []
    if demo.T_camera_wrist is not None:
        transforms = _transforms(demo, index)
    if human:
        for slot in range(2):
            messages += _hand_messages(demo, index, slot)
    if transforms:
        messages.append(_message("/tf", demo, index, {"transforms": transforms}))

    if human and demo.camera is not None:
        header = header_of(int(demo.stamps_ns[index]), demo.camera_frame)
        try:
            content = {"header": header, **camera_info_fields(demo.camera)}
        except CalibrationError:
            return messages  # ROS has no name for this lens
        messages.append(_message("/acehand/camera_info", demo, index, content))

    return messages


def diagnostics_messages(demo: Demonstration) -> list[PlainMessage]:
    """Return quality once a second, and the verdict at the end."""
    messages, step = [], max(1, round(_rate(demo) / _DIAGNOSTICS_HZ))
    for index in range(0, len(demo), step):
        messages.append(_diagnostics(demo, index, quality_status(demo, index)))
    messages.append(_diagnostics(demo, len(demo) - 1, [verdict_status(demo)]))
    return messages


def quality_status(demo: Demonstration, index: int) -> list[dict[str, Any]]:
    """Return the diagnostic status of each hand at one frame.

    A doubtful hand was seen, but the robot passes over it to where it is sure again.
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
        status.append({
            "level": level,
            "name": f"acehand: {side} hand",
            "message": message,
            "hardware_id": demo.robot,
            "values": key_values(values),
        })  # fmt: skip

    return status


def verdict_status(demo: Demonstration) -> dict[str, Any]:
    """Return the diagnostic status of the whole episode."""
    return {
        "level": _LEVELS.get(demo.verdict, _WARN),
        "name": "acehand: verdict",
        "message": f"{demo.verdict}: {'; '.join(demo.reasons)}" if demo.reasons else demo.verdict,
        "hardware_id": demo.robot,
        "values": key_values({"task": demo.task, "frames": len(demo), "source": demo.name}),
    }


def _hand_messages(demo: Demonstration, index: int, slot: int) -> list[PlainMessage]:
    side, stamp = SIDES[slot], int(demo.stamps_ns[index])
    motion, known = demo.motion, bool(demo.known[index, slot])
    in_camera = demo.T_camera_wrist is not None
    frame = demo.camera_frame if in_camera else _wrist(demo, side)
    header = header_of(stamp, frame)

    messages = []
    if demo.T_camera_wrist is not None and np.isfinite(demo.T_camera_wrist[index, slot]).all():
        pose = {"header": header, "pose": pose_of(demo.T_camera_wrist[index, slot])}
        messages.append(_message(f"/{side}_hand/wrist_pose", demo, index, pose))

    if motion is None:
        return messages
    points = motion.joints_camera[index, slot] if known else None
    if points is not None and np.isfinite(points).all():
        content = {"header": header, "poses": joint_poses(points)}
        messages.append(_message(f"/{side}_hand/joints", demo, index, content))
    else:
        points = None

    markers = skeleton_markers(header, side, points)
    messages.append(_message(f"/{side}_hand/skeleton", demo, index, {"markers": markers}))
    return messages


def _camera_link(demo: Demonstration) -> str:
    return f"{demo.frame_prefix}{CAMERA_LINK}"


def _wrist(demo: Demonstration, side: Side) -> str:
    return f"{demo.frame_prefix}{side}_wrist"


def _transforms(demo: Demonstration, index: int) -> list[dict[str, Any]]:
    stamp, transforms = int(demo.stamps_ns[index]), []
    if demo.T_world_camera is not None and demo.world_frame is not None:
        pose = demo.T_world_camera[index]
        child = demo.camera_frame
        if demo.publish_camera_tf:
            # camera_link lies above the optical frame, which alone has a measured place.
            turn = rotations.from_quaternion(np.array(_OPTICAL_TURN)[[3, 0, 1, 2]])
            pose = pose @ frames.inverse(frames.rigid(turn, np.zeros(3)))
            child = _camera_link(demo)
        transforms.append(rigid_transform(stamp, demo.world_frame, child, pose))

    for slot, side in enumerate(SIDES):
        assert demo.T_camera_wrist is not None
        wrist, name = demo.T_camera_wrist[index, slot], _wrist(demo, side)
        if not np.isfinite(wrist).all():
            continue
        transforms.append(rigid_transform(stamp, demo.camera_frame, name, wrist))
        if demo.T_camera_base is not None and side in demo.base_links:
            base = frames.inverse(wrist) @ demo.T_camera_base[index, slot]
            transforms.append(rigid_transform(stamp, name, demo.base_links[side], base))

    return transforms


def _diagnostics(demo: Demonstration, index: int, status: list[dict[str, Any]]) -> PlainMessage:
    content = {"header": header_of(int(demo.stamps_ns[index]), ""), "status": status}
    return _message("/diagnostics", demo, index, content)


def _message(topic: str, demo: Demonstration, index: int, fields: dict[str, Any]) -> PlainMessage:
    return PlainMessage(topic, TOPICS[topic].msgtype, int(demo.log_ns[index]), fields)


def _rate(demo: Demonstration) -> float:
    if len(demo) < 2:
        return 1.0
    step = float(np.median(np.diff(demo.times_ns)))
    return 1e9 / step if step > 0 else 1.0


# Fields of ROS messages: headers, poses, transforms, and the markers of a hand's joints and bones.


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
