"""Goals of the player against an action server that answers before rclpy has noted the request."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from acehand_ros.control import own_names
from acehand_ros.drive import RosControllers
from retarget.robots.robot import load_robot

LEFT = {"left": own_names(load_robot("inspire"))["left"]}
FIELDS = {
    "header": {"stamp": {"sec": 0, "nanosec": 0}, "frame_id": ""},
    "joint_names": list(LEFT["left"].joints),
    "points": [],
}


class Noted(dict[int, Any]):
    """The requests that an ActionClient waits for: it looks here between sending and noting one."""

    def __contains__(self, number: object) -> bool:
        time.sleep(0.5)
        return super().__contains__(number)


class Drive:
    """What is told of the goals."""

    def __init__(self) -> None:
        self.results: list[tuple[str, int, str | None]] = []

    def feedback(self, side: str, goal: int, errors: np.ndarray) -> None:
        """Leave it."""

    def result(self, side: str, goal: int, problem: str | None) -> None:
        """Note how a goal ended."""
        self.results.append((side, goal, problem))


@pytest.fixture
def spun() -> Iterator[Any]:
    """A node of ours and one with a controller, each spun by a thread of its own."""
    pytest.importorskip("control_msgs", reason="needs control_msgs")
    import rclpy
    from control_msgs.action import FollowJointTrajectory
    from rclpy.action import ActionServer
    from rclpy.executors import SingleThreadedExecutor

    taken: list[Any] = []

    def execute(handle: Any) -> Any:
        taken.append(handle)
        handle.succeed()
        return FollowJointTrajectory.Result()

    ours, theirs = rclpy.create_node("ours"), rclpy.create_node("theirs")
    server = ActionServer(
        theirs, FollowJointTrajectory, "left_hand/follow_joint_trajectory", execute
    )
    executors = []
    for node in (ours, theirs):
        executors.append(SingleThreadedExecutor())
        executors[-1].add_node(node)
        threading.Thread(target=executors[-1].spin, daemon=True).start()
    yield ours, taken
    for executor in executors:
        executor.shutdown()
    server.destroy()
    ours.destroy_node()
    theirs.destroy_node()


def test_a_goal_is_heard_of_however_soon_it_is_answered(spun: Any) -> None:
    ours, taken = spun
    controllers = RosControllers(ours, LEFT, True, 5.0, 0.0)
    client = controllers._clients["left"]
    assert client.wait_for_server(10)
    client._pending_goal_requests = Noted()
    drive = controllers.drive = Drive()
    controllers.send("left", 1, FIELDS)
    until = time.monotonic() + 10
    while not drive.results and time.monotonic() < until:
        time.sleep(0.02)
    assert drive.results == [("left", 1, None)] and len(taken) == 1


def test_a_goal_that_is_cancelled_at_once_is_not_sent(spun: Any) -> None:
    ours, taken = spun
    controllers = RosControllers(ours, LEFT, True, 5.0, 0.0)
    assert controllers._clients["left"].wait_for_server(10)
    drive = controllers.drive = Drive()
    busy = threading.Event()
    ours.executor.create_task(busy.wait, 10)
    controllers.send("left", 1, FIELDS)
    controllers.cancel("left")
    busy.set()
    until = time.monotonic() + 10
    while not drive.results and time.monotonic() < until:
        time.sleep(0.02)
    assert drive.results == [("left", 1, None)] and taken == []
