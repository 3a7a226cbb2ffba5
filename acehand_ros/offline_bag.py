"""Node ``offline_bag``: converts a recorded bag to a dataset and a bag."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from acehand_core import errors
from acehand_core.errors import AcehandError, InputError
from acehand_ros import runtime
from acehand_ros.messages import DIAGNOSTICS, Outlet
from acehand_ros.parameters import OFFLINE_BAG, declare, offline_options, refuse_bad_values
from acehand_ros.worker import JobLog, JobStatus, JobWorker, job_diagnostics

_DIAGNOSTICS_S = 0.5


class OfflineBag:
    """Converts on ~/start (or at once) with the current parameters, stops on ~/cancel."""

    def __init__(self, node: Any) -> None:
        self._node = node
        self._values: dict[str, Any] = dict(declare(node, OFFLINE_BAG))
        self._worker = JobWorker()
        self._outlet = Outlet(node)
        self._outlet.open([DIAGNOSTICS])
        self._log = JobLog(node.get_logger(), self._worker)
        refuse_bad_values(node, OFFLINE_BAG, self._values.__setitem__)
        runtime.add_triggers(node, start=self._start, cancel=self._cancel)
        runtime.add_timer(node, _DIAGNOSTICS_S, self._publish_status)
        if self._values["autostart"]:
            node.get_logger().info(self._start())

    @property
    def finished(self) -> bool:
        ended = self._worker.status.state not in ("idle", "running")
        return ended and bool(self._values["exit_when_done"])

    def close(self) -> int:
        """Stop the job and return the exit code of ``acehand bag convert``."""
        if self._worker.cancel():
            self._node.get_logger().info("stopping; saving finished episodes")
        self._worker.join()
        self._publish_status()
        return exit_code(self._worker.status)

    def _start(self) -> str:
        from acehand_core import convert_bag

        options = offline_options(self._values)
        self._worker.start(lambda progress, cancel: convert_bag(options, progress, cancel))
        return f"converting {options.bag}"

    def _cancel(self) -> str:
        if not self._worker.cancel():
            raise InputError("No conversion is running.")
        return "stopping at the next step; finished episodes stay"

    def _publish_status(self) -> None:
        now_ns, name = runtime.now_ns(self._node), self._node.get_name()
        self._outlet.publish([job_diagnostics(name, self._worker.status, now_ns)])
        self._log.update()


def exit_code(status: JobStatus) -> int:
    """Return the exit code of ``acehand bag convert``: 130 if cancelled, 1 if unexpected."""
    if status.state == "cancelled":
        return errors.EXIT_INTERRUPTED
    if status.state == "failed":
        if isinstance(status.error, AcehandError):
            return errors.exit_code(status.error)
        return errors.EXIT_SOME_FAILED
    return errors.EXIT_OK if status.report is None else status.report.job.exit_code


def main(argv: Sequence[str] | None = None) -> int:
    return runtime.run("offline_bag", OfflineBag, argv)
