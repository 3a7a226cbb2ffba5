"""Entry points of the nodes, ``ros2 run acehand_ros NAME``: signals, ``--help``, missing libraries.

Imports of our own packages are inside functions, so that a missing library is reported.
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

    Signals are handled here from the first import to the end of the process: a terminal and
    ``ros2 launch`` send several, and none may kill a node that is starting or ending.
    """
    argv = sys.argv if argv is None else argv
    for number in _SIGNALS:
        signal.signal(number, lambda *_: STOP.set())

    try:
        try:
            parameters = importlib.import_module("acehand_ros.parameters")
            if {"-h", "--help"} & set(argv):
                print(parameters.usage(name))
                return 0
            node = importlib.import_module(f"acehand_ros.{name}")
            importlib.import_module("rclpy")
        except ImportError as error:
            print(
                f"{name}: {error}. It needs ROS 2 and acehand's libraries in one environment: "
                "source the setup of ROS and that of the workspace, and activate the Python "
                f"environment that acehand is installed in (this is {sys.executable}). "
                "See docs/ros2.md.",
                file=sys.stderr,
            )
            return 2  # EXIT_USAGE of acehand_core, which may be the missing library
        return int(node.main(argv))
    finally:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)


clip_recorder = functools.partial(main, "clip_recorder")
offline_bag = functools.partial(main, "offline_bag")
trajectory_player = functools.partial(main, "trajectory_player")
