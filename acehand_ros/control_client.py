"""The ROS side of ``drive``: goals, commands and measured joints of controllers."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from acehand_core.errors import InputError
from acehand_core.recordings.bags.messages import JOINT_TRAJECTORY, PlainMessage
from acehand_core.types import Side
from acehand_ros.control import JointMap
from acehand_ros.drive import ActionDrive, Measured
from acehand_ros.messages import to_ros

_POLL_S = 0.02
#: Of control_msgs/action/FollowJointTrajectory.
_CODES = {
    -1: "INVALID_GOAL",
    -2: "INVALID_JOINTS",
    -3: "OLD_HEADER_TIMESTAMP",
    -4: "PATH_TOLERANCE_VIOLATED",
    -5: "GOAL_TOLERANCE_VIOLATED",
}
_SUCCEEDED = 4  # action_msgs/msg/GoalStatus


class RosControllers:
    """The controllers of joint maps, for goals (``action``) or commands.

    Callbacks run in the thread that spins the node. ``wait_s`` is the timeout for controllers and
    joint states, ``tolerance`` a goal's path tolerance in their unit; 0: their own.
    """

    def __init__(
        self, node: Any, maps: dict[Side, JointMap], action: bool, wait_s: float, tolerance: float
    ) -> None:
        self._node, self._maps = node, maps
        self._wait_s, self._tolerance = wait_s, tolerance
        self._closed = threading.Event()
        #: The function that sends a hand's goal, then the goal's future.
        self._goals: dict[Side, Any] = {}
        self._sending = threading.Lock()
        self._seen: dict[str, dict[str, tuple[float, float]]] = {}
        self.drive: ActionDrive | None = None
        for topic in {one.joint_states for one in maps.values()}:
            self._listen(topic)
        self._clients: dict[Side, Any] = {}
        self._publishers: dict[Side, Any] = {}
        for side, one in maps.items():
            if action:
                from control_msgs.action import FollowJointTrajectory
                from rclpy.action import ActionClient

                name = f"{one.controller}/follow_joint_trajectory"
                self._clients[side] = ActionClient(node, FollowJointTrajectory, name)
            else:
                from std_msgs.msg import Float64MultiArray

                name = f"{one.controller}/commands"
                self._publishers[side] = node.create_publisher(Float64MultiArray, name, 10)

    def measure(self) -> Measured:
        """Wait for controllers and new joint states; return the driven angles, else InputError."""
        for side, client in self._clients.items():
            name = f"{self._maps[side].controller}/follow_joint_trajectory"
            self._until(client.server_is_ready, functools.partial(self._absent, name))
        for side, publisher in self._publishers.items():
            problem = f"{self._maps[side].controller}/commands: no controller listens"
            self._until(publisher.get_subscription_count, functools.partial(str, problem))
        since = time.monotonic()
        return {side: self._measured(one, since) for side, one in self._maps.items()}

    def _measured(self, joint_map: JointMap, since: float) -> Any:
        """Wait for joint states of a hand newer than ``since``; return the driven angles."""
        # A controller's joints may arrive in several messages.
        self._until(
            lambda: self._fresh(joint_map, since).keys() >= set(joint_map.joints),
            lambda: self._missing(joint_map, since),
        )
        return joint_map.measured(self._fresh(joint_map, since))

    def send(self, side: Side, goal: int, trajectory: Mapping[str, Any]) -> None:
        """Send a JointTrajectory as a goal; ``ActionDrive.result`` gets its end.

        Goals are sent from the spinning thread: rclpy 7 registers a goal only after sending it, and
        that thread could otherwise drop the response.
        """
        from control_msgs.action import FollowJointTrajectory
        from control_msgs.msg import JointTolerance

        drive = self.drive
        assert drive is not None
        message = FollowJointTrajectory.Goal()
        message.trajectory = to_ros(PlainMessage("", JOINT_TRAJECTORY, 0, dict(trajectory)))
        if self._tolerance > 0:
            message.path_tolerance = [
                JointTolerance(name=name, position=self._tolerance)
                for name in self._maps[side].joints
            ]

        def feedback(got: Any) -> None:
            drive.feedback(side, goal, np.array(got.feedback.error.positions))

        def answered(future: Any) -> None:
            handle = future.result()
            if not handle.accepted:
                name = self._maps[side].controller
                drive.result(side, goal, f"{name} refused the goal; its log says why.")
            else:
                handle.get_result_async().add_done_callback(ended)

        def ended(future: Any) -> None:
            got = future.result()
            good = got.status == _SUCCEEDED
            drive.result(side, goal, None if good else self._reason(side, got.result))

        def start() -> None:
            with self._sending:
                wanted = self._goals.get(side) is start
                if wanted:
                    sent = self._clients[side].send_goal_async(message, feedback)
                    self._goals[side] = sent
            if wanted:
                sent.add_done_callback(answered)
            else:
                drive.result(side, goal, None)  # cancelled by now

        self._goals[side] = start
        self._node.executor.create_task(start)

    def cancel(self, side: Side) -> None:
        """Cancel a hand's goal, even before it is accepted."""

        def accepted(future: Any) -> None:
            if future.result().accepted:
                future.result().cancel_goal_async()

        with self._sending:
            sent = self._goals.pop(side, None)
        if sent is None or callable(sent):
            return
        if sent.done():  # a callback would wait for the node to spin, which may be closing
            accepted(sent)
        else:
            sent.add_done_callback(accepted)

    def command(self, side: Side, values: Any) -> None:
        """Send the current target positions to a hand's controller."""
        from std_msgs.msg import Float64MultiArray

        self._publishers[side].publish(Float64MultiArray(data=values.tolist()))

    def close(self) -> None:
        """Stop waiting."""
        self._closed.set()

    def _until(self, done: Callable[[], object], problem: Callable[[], str]) -> None:
        until = time.monotonic() + self._wait_s
        while not done():
            if self._closed.is_set() or time.monotonic() > until:
                raise InputError(f"{problem()} (waited {self._wait_s:g} s).")
            time.sleep(_POLL_S)

    def _listen(self, topic: str) -> None:
        from rclpy.qos import qos_profile_sensor_data
        from sensor_msgs.msg import JointState

        seen = self._seen.setdefault(topic, {})

        def got(message: Any) -> None:
            now = time.monotonic()
            # A JointState may lack all positions.
            for name, position in zip(message.name, message.position, strict=False):
                if np.isfinite(position):
                    seen[name] = now, position

        self._node.create_subscription(JointState, topic, got, qos_profile_sensor_data)

    def _fresh(self, one: JointMap, since: float) -> dict[str, float]:
        seen = dict(self._seen[one.joint_states])
        return {name: position for name, (at, position) in seen.items() if at > since}

    def _missing(self, one: JointMap, since: float) -> str:
        found = self._fresh(one, since)
        missing = [name for name in one.joints if name not in found]
        return (
            f"{one.joint_states}: no position of {', '.join(missing)}; it has those of "
            f"{', '.join(sorted(found)) or 'no joint'}"
        )

    def _absent(self, name: str) -> str:
        from rclpy.action import get_action_names_and_types

        kind = "control_msgs/action/FollowJointTrajectory"
        there = [n for n, kinds in get_action_names_and_types(self._node) if kind in kinds]
        # The list includes actions that only our own clients use.
        ours = {client._action_name.lstrip("/") for client in self._clients.values()}
        others = [n for n in there if n.lstrip("/") not in ours]
        return (
            f"{name}: no such action; other trajectory controllers: {', '.join(others) or 'none'}"
        )

    def _reason(self, side: Side, result: Any) -> str:
        code = _CODES.get(result.error_code, str(result.error_code))
        text = result.error_string.strip().rstrip(".")
        return f"{self._maps[side].controller} ended the goal: {code}{': ' if text else ''}{text}."
