"""The nodes as commands, ``ros2 run acehand_ros NAME``: signals, help, and what is missing.

Nothing of ours is imported before ``main`` looks: without its libraries a node is to say so.
"""

from __future__ import annotations

import functools
import importlib
import signal
import sys
import threading
from collections.abc import Sequence

#: Set by the first Ctrl-C or SIGTERM.
STOP = threading.Event()
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def main(name: str, argv: Sequence[str] | None = None) -> int:
    """Run a node; return its exit code.

    Signals are ours from the first import to the end of the process: a terminal and ``ros2 launch``
    send several, and none may end a node that is starting or ending.
    """
    for number in _SIGNALS:
        signal.signal(number, lambda *_: STOP.set())
    try:
        return _run(name, sys.argv if argv is None else argv)
    finally:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)


def _run(name: str, argv: Sequence[str]) -> int:
    try:
        parameters = importlib.import_module("acehand_ros.parameters")
        if {"-h", "--help"} & set(argv):
            print(parameters.usage(name))
            return 0
        node = importlib.import_module(f"acehand_ros.{name}")
        importlib.import_module("rclpy")
    except ImportError as error:
        print(
            f"{name}: {error}. It needs ROS 2 and acehand's libraries in one environment: source "
            "the setup of ROS and that of the workspace, and activate the Python environment that "
            f"acehand is installed in (this is {sys.executable}). docs/ros2.md says how.",
            file=sys.stderr,
        )
        return 2  # EXIT_USAGE of acehand_core, which may be what is missing
    code: int = node.main(argv)
    return code


clip_recorder = functools.partial(main, "clip_recorder")
offline_bag = functools.partial(main, "offline_bag")
trajectory_player = functools.partial(main, "trajectory_player")
