"""Our nodes in processes of their own, and how a test waits for what they do."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


class Process:
    """One of our nodes in a process of its own, as ``ros2 run`` starts it."""

    def __init__(self, module: str, parameters: dict[str, Any]) -> None:
        code = f"import sys; from acehand_ros.{module} import main; sys.exit(main(sys.argv))"
        settings = [text for key, value in parameters.items() for text in ("-p", _set(key, value))]
        self.popen = subprocess.Popen(
            [sys.executable, "-c", code, "--ros-args", *settings],
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def wait(self, seconds: float) -> tuple[int, str]:
        """Wait for its end; return the exit code and what it printed."""
        out, _ = self.popen.communicate(timeout=seconds)
        return self.popen.returncode, out


def _set(name: str, value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"{name}:='{text}'" if isinstance(value, str | Path) else f"{name}:={text}"
