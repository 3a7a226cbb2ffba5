"""Controllers of ros2_control as ``drive`` needs them: goals, commands and measured joints."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from acehand_core.errors import InputError
from acehand_core.recordings.bags.messages import JOINT_TRAJECTORY, PlainMessage
from acehand_core.types import Side
from acehand_ros.drive import ActionDrive, Measured
from acehand_ros.joint_maps import JointMap
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
    """The controllers that the maps name. Callbacks come from the thread that spins the node.

    Args:
        action: goals; otherwise commands.
        wait_s: how long to wait for controllers and joint states.
        tolerance: of a goal's path, in the controllers' unit; 0: their own.
    """

    def __init__(
        self, node: Any, maps: Mapping[Side, JointMap], action: bool, wait_s: float,
        tolerance: float,
    ) -> None:  # fmt: skip
        self._node, self._maps = node, maps
        self._wait_s, self._tolerance = wait_s, tolerance
        self._closed = threading.Event()
        #: The future of a hand's goal; what sends it, until it is sent.
        self._goals: dict[Side, Any] = {}
        self._sending = threading.Lock()
        self._seen: dict[str, dict[str, tuple[float, float]]] = {}
        self.drive: ActionDrive | None = None
        for topic in {one.joint_states for one in maps.values()}:
            self._listen(topic)
        if action:
            self._clients = {side: self._client(one) for side, one in maps.items()}
            self._publishers: dict[Side, Any] = {}
        else:
            self._clients = {}
            self._publishers = {side: self._publisher(one) for side, one in maps.items()}

    def measure(self) -> Measured:
        """Wait for the controllers and for new joint states; return the driven angles (C,).

        Raises:
            InputError: none come, they lack a joint, or a controller is not there.
        """
        for side, joint_map in self._maps.items():
            self._until_ready(side, joint_map)
        since = time.monotonic()
        return {side: self._measured(joint_map, since) for side, joint_map in self._maps.items()}

    def _until_ready(self, side: Side, joint_map: JointMap) -> None:
        """Wait for the controller of a hand."""
        if side in self._clients:
            name = f"{joint_map.controller}/follow_joint_trajectory"
            self._until(self._clients[side].server_is_ready, lambda: self._absent(name))
            return
        publisher, name = self._publishers[side], f"{joint_map.controller}/commands"
        self._until(
            lambda: publisher.get_subscription_count() > 0, lambda: f"{name}: no controller listens"
        )

    def _measured(self, joint_map: JointMap, since: float) -> Any:
        """Wait for the joint states of a hand that are newer than ``since``; return the angles."""
        # A controller's joints may come in several messages, each without the others.
        self._until(
            lambda: self._fresh(joint_map, since).keys() >= set(joint_map.joints),
            lambda: self._missing(joint_map, since),
        )
        return joint_map.measured(self._fresh(joint_map, since))

    def send(self, side: Side, goal: int, trajectory: Mapping[str, Any]) -> None:
        """Send a JointTrajectory's fields as a goal; ``ActionDrive.result`` hears how it ends.

        They are sent from the thread that spins, which else may drop the answer:
        rclpy 7 notes a goal only after it was sent.
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
        """Cancel a hand's goal, also one that is not accepted yet."""

        def accepted(future: Any) -> None:
            if future.result().accepted:
                future.result().cancel_goal_async()

        with self._sending:
            sent = self._goals.pop(side, None)
        if sent is None or callable(sent):
            return
        if sent.done():  # at once: a callback waits for the node to spin, which may be at its end
            accepted(sent)
        else:
            sent.add_done_callback(accepted)

    def command(self, side: Side, values: Any) -> None:
        """Send the positions that a controller is to have now."""
        from std_msgs.msg import Float64MultiArray

        self._publishers[side].publish(Float64MultiArray(data=values.tolist()))

    def close(self) -> None:
        """Wait for nothing more."""
        self._closed.set()

    def _until(self, done: Callable[[], bool], problem: Callable[[], str]) -> None:
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
            # Positions may be left out of a JointState, all of them.
            for name, position in zip(message.name, message.position, strict=False):
                if np.isfinite(position):
                    seen[name] = now, position

        self._node.create_subscription(JointState, topic, got, qos_profile_sensor_data)

    def _client(self, one: JointMap) -> Any:
        from control_msgs.action import FollowJointTrajectory
        from rclpy.action import ActionClient

        name = f"{one.controller}/follow_joint_trajectory"
        return ActionClient(self._node, FollowJointTrajectory, name)

    def _publisher(self, one: JointMap) -> Any:
        from std_msgs.msg import Float64MultiArray

        return self._node.create_publisher(Float64MultiArray, f"{one.controller}/commands", 10)

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
        # Our own clients count as well: an action that nobody serves is listed.
        ours = {client._action_name.lstrip("/") for client in self._clients.values()}
        others = [n for n in there if n.lstrip("/") not in ours]
        return (
            f"{name}: no such action; other trajectory controllers: {', '.join(others) or 'none'}"
        )

    def _reason(self, side: Side, result: Any) -> str:
        code = _CODES.get(result.error_code, str(result.error_code))
        text = result.error_string.strip().rstrip(".")
        return f"{self._maps[side].controller} ended the goal: {code}{': ' if text else ''}{text}."
