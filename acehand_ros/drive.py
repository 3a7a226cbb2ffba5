"""Drives hands through their controllers: a goal per hand, or a command per cycle.

Both start from the measured hands and keep their limits; ``RosControllers`` is their ROS side.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.interpolate import CubicHermiteSpline

from acehand_core.errors import InputError
from acehand_core.motion import Course
from acehand_core.pipeline.bag_write import courses
from acehand_core.recordings.bags.messages import (
    JOINT_TRAJECTORY,
    Demonstration,
    PlainMessage,
    trajectory_fields,
)
from acehand_core.types import SIDES, Side
from acehand_ros.control import JointMap
from acehand_ros.messages import to_ros
from retarget.robots.hand_spec import CommandLimits
from retarget.robots.robot import Robot
from retarget.solve.qp import nearest_path

Measured = Mapping[Side, Float[np.ndarray, "C"]]
#: Delay between sending goals and their common start, so that both hands have received theirs.
START_NS = 200_000_000
_CANCEL_S = 2.0
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


class _Drive:
    """Common part of the drives. ``problem`` is why the hands stopped, until the next start."""

    def __init__(
        self,
        demonstration: Demonstration,
        robot: Robot,
        maps: Mapping[Side, JointMap],
        controllers: RosControllers,
        now_ns: Callable[[], int],
    ) -> None:
        self._demonstration, self._robot, self._maps = demonstration, robot, maps
        self._controllers, self._now_ns = controllers, now_ns
        self._lock = threading.Condition()
        self.problem: str | None = None
        self.on_problem: Callable[[], None] = lambda: None

    def _courses(
        self, frame: int, rate: float, start: Measured
    ) -> tuple[dict[Side, Course], float]:
        """Return the remaining courses from the measured hands, and when they pass the frame."""
        rest = rest_of(self._demonstration, self._robot, frame, rate, start)
        courses = {side: one for side, one in rest.courses.items() if side in self._maps}
        known, fps = self._demonstration.known[frame:], self._demonstration.fps * rate
        begins = [
            float(one.seconds[0]) - int(known[:, SIDES.index(side)].argmax()) / fps
            for side, one in courses.items()
        ]
        return courses, min(begins, default=0.0)


class ActionDrive(_Drive):
    """A FollowJointTrajectory goal per hand, all with the same start.

    A refused or failed goal cancels the others, and the controllers hold. ``result`` and
    ``feedback`` are called from the spinning thread, ``begin`` from that of playback.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._goal = 0
        self._active: dict[Side, int] = {}
        self._errors: dict[Side, float] = {}
        self._stopped_by = 0.0

    @property
    def stopped(self) -> bool:
        """Whether a problem has stopped the hands and the other goals have ended or timed out."""
        late = time.monotonic() > self._stopped_by
        return self.problem is not None and (late or not self._active)

    @property
    def busy(self) -> bool:
        return bool(self._active)

    def begin(self, frame: int, rate: float) -> float:
        """Send the goals from a frame on; return the seconds until then. Raises InputError."""
        self.stop()
        with self._lock:
            # Measure stopped hands once they are at rest.
            self._lock.wait_for(lambda: not self._active, _CANCEL_S)
            self._goal += 1
            goal, self.problem = self._goal, None

        courses, begin = self._courses(frame, rate, self._controllers.measure())
        with self._lock:
            if goal != self._goal:
                return 0.0
            start_ns = self._now_ns() + START_NS
            for side, course in courses.items():
                self._active[side] = goal
                one = self._maps[side]
                fields = trajectory_fields(one.joints, one.course(course), start_ns)
                self._controllers.send(side, goal, fields)
        return begin + START_NS / 1e9

    def stop(self) -> None:
        """Cancel the goals; the controllers hold."""
        with self._lock:
            self._goal += 1
            for side in self._active:
                self._controllers.cancel(side)

    def step(self) -> float | None:
        """Nothing to do: the controllers have their own clock."""
        return None

    def feedback(self, side: Side, goal: int, errors: Float[np.ndarray, "C"]) -> None:
        """Store a hand's largest tracking error, in its controller's unit."""
        if self._active.get(side) == goal:
            self._errors[side] = float(np.abs(errors).max(initial=0.0))

    def result(self, side: Side, goal: int, problem: str | None) -> None:
        """Take the end of a goal; ``problem`` is None on success."""
        with self._lock:
            if self._active.get(side) == goal:
                del self._active[side]
            self._lock.notify_all()
            if problem is None or goal != self._goal:
                return  # it succeeded, or we cancelled it
            self.problem = f"{side} hand: {problem}"
            self._stopped_by = time.monotonic() + _CANCEL_S
        self.stop()
        self.on_problem()

    def values(self) -> dict[str, str]:
        out = {f"{side}_goal": "active" if side in self._active else "none" for side in self._maps}
        return out | {f"{side}_error": f"{one:.4f}" for side, one in self._errors.items()}


class ForwardDrive(_Drive):
    """The commands themselves, at the controllers' rate, for controllers that only forward them.

    At the clip's rate, each command would be a step too large for one control cycle. A thread that
    wakes up late skips commands as far as the speed limit allows.
    """

    def __init__(self, *args: Any, command_hz: float = 100.0) -> None:
        super().__init__(*args)
        self._paths: dict[Side, Float[np.ndarray, "K C"]] = {}
        self._period_s, self._started_s, self._sent_s = 1 / command_hz, 0.0, 0.0
        self._next, self._count = 1, 0

    @property
    def stopped(self) -> bool:
        """Never: forwarding controllers report nothing."""
        return False

    @property
    def busy(self) -> bool:
        return self._next < self._count

    def begin(self, frame: int, rate: float) -> float:
        """Prepare the commands from a frame on; return the seconds until they pass it."""
        self.problem = None
        start = self._controllers.measure()
        courses, begin = self._courses(frame, rate, start)
        lasts_s = max((course.seconds[-1] for course in courses.values()), default=0.0)
        with self._lock:
            self._count = int(np.ceil(round(lasts_s / self._period_s, 6))) + 1
            self._paths = {
                side: _sampled(course, start[side], np.arange(self._count) * self._period_s)
                for side, course in courses.items()
            }
            self._started_s = self._sent_s = time.monotonic()
            self._next = 1
        return begin

    def stop(self) -> None:
        """Send no more commands; a controller keeps its last one."""
        with self._lock:
            self._count = 0

    def step(self) -> float | None:
        """Send the command that is due; return seconds until the next, None after the last."""
        with self._lock:
            if not self.busy:
                return None
            now = time.monotonic()
            # Two commands within one control cycle would make a hand jump.
            soonest = self._sent_s + 0.9 * self._period_s
            due = max(self._started_s + self._next * self._period_s, soonest)
            if now < due:
                return due - now

            on_time = min(int((now - self._started_s) / self._period_s), self._count - 1)
            last = self._next - 1
            while self._next < on_time and self._within_limits(last, self._next + 1):
                self._next += 1

            for side, path in self._paths.items():
                self._controllers.command(side, self._maps[side].values(path[self._next]))
            self._sent_s = now
            self._next += 1
            return max(0.0, self._started_s + self._next * self._period_s - time.monotonic())

    def _within_limits(self, last: int, following: int) -> bool:
        """Whether every hand can move between two commands within one period."""
        steps = {side: np.abs(path[following] - path[last]) for side, path in self._paths.items()}
        return all(
            (step <= self._robot.hand(side).command_velocity * self._period_s).all()
            for side, step in steps.items()
        )

    def values(self) -> dict[str, str]:
        return {"command": f"{self._next - 1} of {max(0, self._count - 1)}"}


Drive = ActionDrive | ForwardDrive


def _sampled(
    course: Course, start: Float[np.ndarray, "C"], seconds: Float[np.ndarray, "K"]
) -> Float[np.ndarray, "K C"]:
    """Return a hand's course, starting at rest, at given times, interpolated as by a controller."""
    path = CubicHermiteSpline(
        np.concatenate([[0.0], course.seconds]),
        np.concatenate([[start], course.positions]),
        np.concatenate([np.zeros((1, len(start))), course.velocities]),
    )
    return path(np.minimum(seconds, course.seconds[-1]))


def at_rate(demonstration: Demonstration, robot: Robot, rate: float) -> Demonstration:
    """Return a demonstration whose hands keep their limits when played at a rate."""
    if rate <= 1.0:
        return demonstration
    joints, commands = demonstration.joints.copy(), demonstration.commands.copy()
    for slot, side in enumerate(SIDES):
        if demonstration.known[:, slot].any():
            hand = robot.hand(side)
            limits = CommandLimits.of(hand, demonstration.fps * rate)
            commands[:, slot] = nearest_path(limits, commands[:, slot].astype(float))
            joints[:, slot] = hand.expand(commands[:, slot])
    return replace(demonstration, joints=joints, commands=commands)


def rest_of(
    demonstration: Demonstration,
    robot: Robot,
    frame: int,
    rate: float,
    start: Mapping[Side, Float[np.ndarray, "C"]] | None = None,
) -> Demonstration:
    """Return the rest of a demonstration with courses at a rate, starting at the measured hands."""
    commands, known = demonstration.commands[frame:], demonstration.known[frame:]
    fps = demonstration.fps * rate
    return replace(demonstration, courses=courses(robot, commands, known, fps, start))


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

        def feedback(message: Any) -> None:
            drive.feedback(side, goal, np.array(message.feedback.error.positions))

        def answered(future: Any) -> None:
            handle = future.result()
            if not handle.accepted:
                name = self._maps[side].controller
                drive.result(side, goal, f"{name} refused the goal; its log says why.")
            else:
                handle.get_result_async().add_done_callback(ended)

        def ended(future: Any) -> None:
            message = future.result()
            good = message.status == _SUCCEEDED
            drive.result(side, goal, None if good else self._reason(side, message.result))

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

        def received(message: Any) -> None:
            now = time.monotonic()
            # A JointState may lack all positions.
            for name, position in zip(message.name, message.position, strict=False):
                if np.isfinite(position):
                    seen[name] = now, position

        self._node.create_subscription(JointState, topic, received, qos_profile_sensor_data)

    def _fresh(self, one: JointMap, since: float) -> dict[str, float]:
        seen = dict(self._seen[one.joint_states])
        return {name: position for name, (at, position) in seen.items() if at > since}

    def _missing(self, one: JointMap, since: float) -> str:
        positions = self._fresh(one, since)
        missing = [name for name in one.joints if name not in positions]
        return (
            f"{one.joint_states}: no position of {', '.join(missing)}; it has those of "
            f"{', '.join(sorted(positions)) or 'no joint'}"
        )

    def _absent(self, name: str) -> str:
        from rclpy.action import get_action_names_and_types

        kind = "control_msgs/action/FollowJointTrajectory"
        names = [n for n, kinds in get_action_names_and_types(self._node) if kind in kinds]
        # The list includes actions that only our own clients use.
        ours = {client._action_name.lstrip("/") for client in self._clients.values()}
        others = [n for n in names if n.lstrip("/") not in ours]
        return (
            f"{name}: no such action; other trajectory controllers: {', '.join(others) or 'none'}"
        )

    def _reason(self, side: Side, result: Any) -> str:
        code = _CODES.get(result.error_code, str(result.error_code))
        text = result.error_string.strip().rstrip(".")
        return f"{self._maps[side].controller} ended the goal: {code}{': ' if text else ''}{text}."
