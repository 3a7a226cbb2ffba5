"""Tests on a real ROS 2: skipped, and said why, where rclpy cannot be imported.

Field checks are off by default since Jazzy; here they are on, before any message is imported.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

os.environ["ROS_PYTHON_CHECK_FIELDS"] = "1"
os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"
os.environ["ROS_DOMAIN_ID"] = str(1 + os.getpid() % 100)  # runs side by side do not meet

from ros_process import Launched, Process


@pytest.fixture(scope="session", autouse=True)
def ros() -> Iterator[None]:
    """An initialised rclpy."""
    rclpy = pytest.importorskip("rclpy", reason="needs ROS 2: source its setup.bash (docs/ros2.md)")
    rclpy.init()
    yield
    rclpy.try_shutdown()


@pytest.fixture
def node() -> Iterator[Any]:
    """A node of the test's own, independent of ours."""
    import rclpy

    node = rclpy.create_node("observer")
    yield node
    node.destroy_node()


@pytest.fixture
def start() -> Iterator[Callable[..., Process]]:
    """Start nodes, ended with the test as by Ctrl-C: ROS lists a killed one for seconds."""
    started: list[Process] = []

    def begin(module: str, remap: dict[str, str] | None = None, **parameters: Any) -> Process:
        started.append(Process(module, parameters, remap))
        return started[-1]

    yield begin
    for process in started:
        process.stop()


@pytest.fixture
def launch() -> Iterator[Callable[..., Launched]]:
    """Start launch files that are ended with the test."""
    started: list[Launched] = []

    def begin(name: str, **arguments: Any) -> Launched:
        started.append(Launched(name, arguments))
        return started[-1]

    yield begin
    for launched in started:
        launched.stop()
