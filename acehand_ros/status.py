"""What a node says on /diagnostics about its work. No ROS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from acehand_core.bags.messages import PlainMessage
from acehand_ros.messages import DIAGNOSTICS, stamp_fields
from acehand_ros.parameters import as_parameters
from acehand_ros.worker import JobStatus

OK, WARN, ERROR = 0, 1, 2
_LEVELS = {"idle": OK, "running": OK, "done": OK, "cancelled": WARN, "failed": ERROR}


def diagnostics(
    name: str,
    level: int,
    message: str,
    values: Mapping[str, Any],
    now_ns: int,
    more: Sequence[Mapping[str, Any]] = (),
) -> PlainMessage:
    """Return a DiagnosticArray with a node's status, and ``more`` of them."""
    status = {
        "level": level,
        "name": name,
        "message": message,
        "hardware_id": "acehand",
        "values": [{"key": key, "value": str(value)} for key, value in values.items()],
    }
    header = {"stamp": stamp_fields(now_ns), "frame_id": ""}
    fields = {"header": header, "status": [status, *more]}
    return PlainMessage(DIAGNOSTICS, "diagnostic_msgs/msg/DiagnosticArray", now_ns, fields)


def job_diagnostics(
    name: str, status: JobStatus, now_ns: int, more: Sequence[Mapping[str, Any]] = ()
) -> PlainMessage:
    """Return how far a job is, or how it ended, and ``more`` of such statuses."""
    values: dict[str, Any] = {"state": status.state}
    if status.stage:
        values["stage"] = status.stage
    if status.total:
        values |= {"done": status.done, "total": status.total}
        values["percent"] = f"{100 * status.done / status.total:.0f}"
    level, message = _LEVELS[status.state], status.message or _progress_text(status)
    if status.report is not None:
        values |= report_values(status.report)
        if status.state == "done" and values.get("failures"):
            level, message = WARN, values["failures"]
    return diagnostics(name, level, message, values, now_ns, more)


def _progress_text(status: JobStatus) -> str:
    if not status.total:
        return status.stage or status.state
    return f"{status.stage}: {status.done} of {status.total}"


def report_values(report: Any) -> dict[str, Any]:
    """Return what a ConvertReport says, as short texts."""
    job = report.job
    values: dict[str, Any] = {
        "dataset": job.dataset or "none",
        "bag": report.bag or "none",
        "episodes": len(job.episodes),
        "verdicts": ", ".join(episode.verdict for episode in job.episodes),
        "seconds": f"{job.seconds:.1f}",
        "lost_messages": sum(report.lost_messages.values()),
    }
    if job.failures:
        values["failures"] = as_parameters(" ".join(str(failure.error) for failure in job.failures))
    return values
