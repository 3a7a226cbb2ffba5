"""Our nodes in processes of their own, and how a test waits for what they do."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def spin_until(node: Any, done: Callable[[], bool], seconds: float) -> None:
    """Spin until something holds; fail when it does not in time."""
    import rclpy

    until = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < until, f"not within {seconds} s"
        rclpy.spin_once(node, timeout_sec=0.05)


def call(node: Any, kind: Any, name: str, request: Any) -> Any:
    """Call a service and return its response."""
    client = node.create_client(kind, name)
    assert client.wait_for_service(timeout_sec=20), f"no service {name}"
    future = client.call_async(request)
    spin_until(node, future.done, 20)
    node.destroy_client(client)
    return future.result()


def trigger(node: Any, name: str) -> Any:
    """Call a std_srvs/Trigger service."""
    from std_srvs.srv import Trigger

    return call(node, Trigger, name, Trigger.Request())


def needs(*packages: str) -> None:
    """Skip the test where one of these packages is not in a sourced workspace."""
    index = pytest.importorskip("ament_index_python.packages", reason="needs ROS 2")
    for name in packages:
        try:
            index.get_package_prefix(name)
        except index.PackageNotFoundError:
            pytest.skip(f"needs {name}")


class Process:
    """One of our nodes in a process of its own, as ``ros2 run`` starts it.

    ``remap`` are the names that are given as ``-r``: topics, and ``__ns``.
    """

    def __init__(
        self, module: str, parameters: dict[str, Any], remap: Mapping[str, str] | None = None
    ) -> None:
        code = f"import sys; from acehand_ros.entry import {module}; sys.exit({module}())"
        settings = [text for key, value in parameters.items() for text in ("-p", _set(key, value))]
        names = [text for key, to in (remap or {}).items() for text in ("-r", f"{key}:={to}")]
        self.popen = subprocess.Popen(
            [sys.executable, "-c", code, "--ros-args", *settings, *names],
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def wait(self, seconds: float) -> tuple[int, str]:
        """Wait for its end; return the exit code and what it printed."""
        out, _ = self.popen.communicate(timeout=seconds)
        return self.popen.returncode, out

    def stop(self) -> None:
        """Send SIGINT, as Ctrl-C does, and wait for its end."""
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGINT)
        try:
            self.popen.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            self._kill()
            self.popen.communicate()

    def _kill(self) -> None:
        self.popen.kill()


class Launched(Process):
    """A launch file of ours, as ``ros2 launch`` starts it from a sourced colcon workspace.

    By its name, or a path where another file includes one of ours.
    """

    def __init__(self, name: str | Path, arguments: Mapping[str, Any]) -> None:
        from ament_index_python.packages import PackageNotFoundError, get_package_share_directory

        try:
            get_package_share_directory("acehand_ros")
        except PackageNotFoundError:
            pytest.skip("acehand_ros is not installed in a sourced colcon workspace")
        if shutil.which("ros2") is None:
            pytest.skip("the ros2 command is not installed")
        given = [f"{key}:={_text(value)}" for key, value in arguments.items()]
        file = [str(name)] if isinstance(name, Path) else ["acehand_ros", f"{name}.launch.py"]
        self.popen = subprocess.Popen(
            ["ros2", "launch", *file, *given],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def _kill(self) -> None:
        """Kill launch with its nodes."""
        os.killpg(self.popen.pid, signal.SIGKILL)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _set(name: str, value: Any) -> str:
    text = _text(value)
    return f"{name}:='{text}'" if isinstance(value, str | Path) else f"{name}:={text}"
