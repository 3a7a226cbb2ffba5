"""What joint_trajectory_controller asks of a trajectory and how it follows one, for tests.

And whether what was written keeps the limits of the robot's URDF at its times.

Read from ros2_controllers, branch jazzy, joint_trajectory_controller 4.42:
``src/joint_trajectory_controller.cpp`` (``validate_trajectory_msg``, defaults of its parameters)
and ``src/trajectory.cpp`` (``sample``, ``interpolate_between_points``). Written anew in numpy.
"""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from rosbags.highlevel import AnyReader

from retarget.robots.robot import load_robot

#: The controller's own comparison: std::numeric_limits<float>::epsilon().
EPSILON = float(np.finfo(np.float32).eps)


@dataclass
class Trajectory:
    """A JointTrajectory of N points; ``velocities`` and ``accelerations`` may be empty rows."""

    stamp_ns: int
    names: list[str]
    at_ns: list[int]
    positions: list[list[float]]
    velocities: list[list[float]]
    accelerations: list[list[float]]
    effort: list[list[float]]

    @classmethod
    def of(cls, message) -> Trajectory:
        """Take a message of rosbags or rclpy, or the fields of a plain one."""

        def get(value, name):
            return value[name] if isinstance(value, dict) else getattr(value, name)

        def ns(value):
            return get(value, "sec") * 10**9 + get(value, "nanosec")

        points = get(message, "points")
        names = ("positions", "velocities", "accelerations", "effort")
        columns = ([list(get(point, name)) for point in points] for name in names)
        stamp, joints = ns(get(get(message, "header"), "stamp")), list(get(message, "joint_names"))
        return cls(stamp, joints, [ns(get(p, "time_from_start")) for p in points], *columns)


def refusals(t: Trajectory, joints: list[str], now_ns: int) -> list[str]:
    """Return why a controller of these joints, with default parameters, would not take it."""
    if len(t.names) != len(joints):
        return ["joints don't match the controller's"]
    if not t.names:
        return ["empty joint names"]
    if not t.at_ns:
        return ["empty trajectory"]
    out = [f"{name} is not a joint of the controller" for name in t.names if name not in joints]
    out += [f"last velocity is {v}" for v in t.velocities[-1] if abs(v) > EPSILON]
    if t.stamp_ns != 0 and t.stamp_ns + t.at_ns[-1] < now_ns:
        out.append("ends in the past")
    for i, at in enumerate(t.at_ns):
        if i > 0 and at <= t.at_ns[i - 1]:
            out.append(f"points {i - 1} and {i} are not strictly increasing")
        if len(t.positions[i]) != len(t.names):
            out.append(f"positions at point {i}")
        for name in ("velocities", "accelerations"):
            if getattr(t, name)[i] and len(getattr(t, name)[i]) != len(t.names):
                out.append(f"{name} at point {i}")
        if t.effort[i]:
            out.append(f"effort at point {i}")
    return out


def followed(t: Trajectory, start: np.ndarray, period_s: float) -> np.ndarray:
    """Return the controller's reference every cycle, from a hand at rest: cubics between points."""
    assert all(t.velocities) and not any(t.accelerations)
    times = np.concatenate([[0.0], np.array(t.at_ns) / 1e9])
    positions = np.concatenate([[start], t.positions])
    velocities = np.concatenate([[np.zeros(len(start))], t.velocities])
    out = [start]
    for now in np.arange(period_s, times[-1] + period_s, period_s):
        i = min(int(np.searchsorted(times, now, side="right")) - 1, len(times) - 2)
        length = times[i + 1] - times[i]
        x = min((now - times[i]) / length, 1.0)
        p, q = positions[i], positions[i + 1]
        v, w = length * velocities[i], length * velocities[i + 1]
        # The cubic with these values and slopes at 0 and 1.
        out.append(p + v * x + (3 * (q - p) - 2 * v - w) * x**2 + (2 * (p - q) + v + w) * x**3)
    return np.array(out)


def check_controller_takes(message, hand, times=None, period_s=0.001) -> None:
    """Assert that a controller takes a trajectory, and keeps the hand's limits while it follows.

    ``times`` are those of the recording's frames, ns; the trajectory lasts as long.
    """
    t = Trajectory.of(message)
    joints = [f"{hand.side}_{name}" for name in hand.command_joints]
    assert refusals(t, joints, now_ns=2 * 10**18) == []
    assert np.isfinite(t.positions).all() and np.isfinite(t.velocities).all()
    for start in (hand.command_lower, hand.command_upper, np.array(t.positions[0])):
        path = followed(t, np.array(start, float), period_s)
        speed = np.diff(path, axis=0) / period_s
        assert (np.abs(speed) <= hand.command_velocity * (1 + 1e-6)).all()
        bend = np.abs(np.diff(speed, axis=0)) / period_s
        assert (bend <= hand.command_acceleration * (1 + 1e-3)).all()
        assert (path >= hand.command_lower - 1e-6).all()
        assert (path <= hand.command_upper + 1e-6).all()
        np.testing.assert_allclose(path[-1], t.positions[-1], atol=1e-9)
    if times is not None:
        lasts = (t.at_ns[-1] - t.at_ns[0]) / 1e9
        frame = (times[-1] - times[0]) / max(1, len(times) - 1) / 1e9
        assert abs(lasts - (times[-1] - times[0]) / 1e9 - frame) < 0.1 * frame


def check_urdf_limits(
    urdf: Path, names: Sequence[str], seconds: np.ndarray, path: np.ndarray, share: float = 1e-4
) -> None:
    """Assert that joints (T, Q) at these times keep their limits of angle and speed.

    ``names`` are the URDF's; ``share`` is what rounding of the times and angles may add.
    """
    found = {j.get("name"): j.find("limit") for j in ElementTree.parse(urdf).iter("joint")}
    keys = ("lower", "upper", "velocity")
    lower, upper, speed = np.array([[float(found[n].get(key)) for n in names] for key in keys])
    assert (path >= lower - 1e-6).all() and (path <= upper + 1e-6).all()
    between = np.diff(np.asarray(seconds, np.float64))
    assert (between > 0).all()
    assert (np.abs(np.diff(path, axis=0)) <= speed * between[:, None] * (1 + share) + 1e-6).all()


def check_dataset_limits(dataset: Path, robot: str = "inspire") -> int:
    """Assert that every episode keeps the limits; return how many hands were moved.

    All of a dataset is executed: joints, states, actions and what registers mean, one row per
    timestamp, the held pose of an absent hand among them.
    """
    hands = load_robot(robot).hands
    features = json.loads((dataset / "meta" / "info.json").read_text())["features"]
    moved = 0
    for file in sorted(dataset.glob("data/*/*.parquet")):
        table = pq.read_table(file, partitioning=None)
        episode = np.asarray(table["episode_index"])
        for number, (side, hand) in ((n, h) for n in np.unique(episode) for h in hands.items()):
            rows = episode == number
            seconds = np.asarray(table["timestamp"], np.float64)[rows]
            for key in ("observation.joints.robot", "observation.state", "action"):
                names, joints = features[key]["names"], map(hand.full_name, hand.joint_names)
                own = sorted({*joints} & {*names}, key=names.index)
                values = np.array(table[key].to_pylist(), np.float64)[rows]
                values = values[:, [names.index(name) for name in own]]
                check_urdf_limits(hand.urdf_path, own, seconds, values, 1e-3)
            registers = np.array(table["action.register"].to_pylist(), np.float64)[rows]
            half = registers.shape[1] // 2
            registers = registers[:, :half] if side == "left" else registers[:, half:]
            driven = [f"{side}_{name}" for name in hand.command_joints]
            angles = hand.controller.to_angles(registers)
            check_urdf_limits(hand.urdf_path, driven, seconds, angles, 1e-3)
            moved += bool(np.ptp(registers, axis=0).any())
    return moved


def check_bag_limits(bag: Path, robot: str = "inspire") -> int:
    """Assert that joint states keep the limits on their own stamps, and that controllers take every
    trajectory; return how many messages of both there were.
    """
    hands, states, count = load_robot(robot).hands, defaultdict(list), 0
    with AnyReader([bag]) as reader:
        for connection, _, raw in reader.messages():
            side, _, name = connection.topic.strip("/").partition("_hand/")
            if name == "joint_states":
                states[side].append(reader.deserialize(raw, connection.msgtype))
            elif name == "joint_trajectory":
                message = reader.deserialize(raw, connection.msgtype)
                check_controller_takes(message, hands[side])
                count += 1
    for side, own in states.items():
        stamps = [m.header.stamp.sec * 10**9 + m.header.stamp.nanosec for m in own]
        seconds, path = (np.array(stamps) - stamps[0]) / 1e9, np.array([m.position for m in own])
        check_urdf_limits(hands[side].urdf_path, own[0].name, seconds, path)
        count += len(own)
    return count
