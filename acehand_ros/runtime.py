"""The life of a node's process: start, spin, stop on Ctrl-C or SIGTERM, exit code. Needs rclpy."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from acehand_core.errors import EXIT_INTERRUPTED, EXIT_OK, AcehandError, exit_code
from acehand_ros.entry import STOP
from acehand_ros.parameters import as_parameters

_SPIN_S = 0.1


class App(Protocol):
    """The behaviour of a node, called from the thread that spins it."""

    @property
    def finished(self) -> bool:
        """Whether the process may end."""
        ...

    def close(self) -> int:
        """Stop all work, publish the final diagnostics and return the exit code."""
        ...


def run(
    name: str,
    build: Callable[[Any], App],
    argv: Sequence[str] | None = None,
    lifecycle: bool = False,
) -> int:
    """Spin a node until it has finished or a signal arrives; return the exit code.

    ``entry`` handles signals: rclpy's handler would close the context at once, before the final
    diagnostics and before the worker has saved its results. A node stopped by a signal returns 0,
    because ``ros2 launch`` takes any other code for a crash.
    """
    import rclpy
    from rclpy.executors import SingleThreadedExecutor
    from rclpy.node import Node
    from rclpy.signals import SignalHandlerOptions

    rclpy.init(args=argv, signal_handler_options=SignalHandlerOptions.NO)
    node: Any = None
    try:
        node = _lifecycle_node(name) if lifecycle else Node(name)
        executor = SingleThreadedExecutor()
        executor.add_node(node)
        app = build(node)
        while not (STOP.is_set() or app.finished):
            executor.spin_once(timeout_sec=_SPIN_S)
        code = app.close()
        return EXIT_OK if STOP.is_set() and code == EXIT_INTERRUPTED else code
    except AcehandError as error:
        if node is None:
            raise
        node.get_logger().fatal(as_parameters(str(error)))
        return exit_code(error)
    finally:
        if node is not None:
            node.destroy_node()
        rclpy.try_shutdown()


def _lifecycle_node(name: str) -> Any:
    """Return a lifecycle node that forwards transitions to ``node.app``; the app sets itself.

    ``node.error`` is the last transition's error. The class is local because its base needs rclpy.
    """
    from rclpy.lifecycle import Node, TransitionCallbackReturn

    class LifecycleNode(Node):
        app: Any = None
        error: AcehandError | None = None

        def step(self, action: Callable[[], None]) -> TransitionCallbackReturn:
            self.error = None
            try:
                action()
            except AcehandError as error:
                self.error = error
                self.get_logger().error(as_parameters(str(error)))
                return TransitionCallbackReturn.FAILURE
            return TransitionCallbackReturn.SUCCESS

        def on_configure(self, state: Any) -> TransitionCallbackReturn:
            return self.step(self.app.configure)

        def on_activate(self, state: Any) -> TransitionCallbackReturn:
            return self.step(self.app.activate)

        def on_deactivate(self, state: Any) -> TransitionCallbackReturn:
            return self.step(self.app.deactivate)

        def on_cleanup(self, state: Any) -> TransitionCallbackReturn:
            return self.step(self.app.cleanup)

        on_shutdown = on_deactivate

    return LifecycleNode(name)


def add_timer(node: Any, seconds: float, action: Callable[[], None]) -> None:
    """Call regularly in steady time, even while /clock stands still."""
    from rclpy.clock import Clock, ClockType

    node.create_timer(seconds, action, clock=Clock(clock_type=ClockType.STEADY_TIME))


def now_ns(node: Any) -> int:
    return int(node.get_clock().now().nanoseconds)


def add_triggers(node: Any, **actions: Callable[[], str]) -> None:
    """Offer a std_srvs/Trigger service ``~/NAME`` per action, which returns its message."""
    from std_srvs.srv import Trigger

    def answer(action: Callable[[], str], _: Any, response: Any) -> Any:
        try:
            response.message, response.success = action(), True
        except AcehandError as error:
            response.message, response.success = as_parameters(str(error)), False
        return response

    for name, action in actions.items():
        node.create_service(Trigger, f"~/{name}", functools.partial(answer, action))
