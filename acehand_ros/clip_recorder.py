"""Node ``clip_recorder``: clips of a live camera in, each clip's trajectory out.

A life-cycle node: configured it holds its output, active it listens to the camera.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from acehand_core import ConvertReport
from acehand_core.errors import EXIT_OK, AcehandError, InputError
from acehand_core.recordings.bags.messages import (
    Demonstration,
    latched_messages,
    trajectory_messages,
    verdict_status,
)
from acehand_core.types import SIDES, Progress
from acehand_ros import runtime
from acehand_ros.clips import (
    CAMERA_INFO,
    ClipFolder,
    ClipRecorder,
    camera_info_topic,
    convert_clip,
    image_msgtype,
    image_topics,
)
from acehand_ros.messages import DIAGNOSTICS, Outlet
from acehand_ros.offline_bag import exit_code
from acehand_ros.options import check_ace, clip_options
from acehand_ros.parameters import CLIP_RECORDER, declare, refuse_bad_values
from acehand_ros.status import OK, JobLog, diagnostics, job_diagnostics
from acehand_ros.worker import JobStatus, JobWorker

_DIAGNOSTICS_S, _LOOK_S, _REMIND_S = 0.5, 0.2, 3.0


class ClipRecorderNode:
    """~/start and ~/stop (or a duration) bound a clip; ~/cancel drops the work on the last one."""

    def __init__(self, node: Any) -> None:
        self._node = node
        self._values: dict[str, Any] = dict(declare(node, CLIP_RECORDER))
        self._folder = Path(self._values["output_dir"]).expanduser()
        # Beside the images as they are called after remapping, which image_transport does too.
        self._image_topic = node.resolve_topic_name(self._values["image_topic"])
        self._info_topic = node.resolve_topic_name(
            self._values["camera_info_topic"] or camera_info_topic(self._image_topic)
        )
        check_ace(self._values)  # refused now, not after the first clip
        self._clip, self._worker, self._outlet = ClipRecorder(), JobWorker(), Outlet(node)
        self._clips: ClipFolder | None = None
        self._subscriptions: list[Any] = []
        self._demonstration: Demonstration | None = None  # of the clip that is converted
        self._verdict: list[dict[str, Any]] = []  # of the last clip
        self._active = self._ended = False
        self._log = JobLog(node.get_logger(), self._worker)
        self._exit_code = EXIT_OK
        refuse_bad_values(node, CLIP_RECORDER, self._values.__setitem__)
        for name, action in (
            ("start", self._start), ("stop", self._stop), ("cancel", self._cancel),
        ):  # fmt: skip
            runtime.add_trigger(node, name, action)
        runtime.add_timer(node, _DIAGNOSTICS_S, self._tell)
        runtime.add_timer(node, _LOOK_S, self._look_for_camera)
        runtime.add_timer(node, _REMIND_S, self._remind)
        node.app = self
        if self._values["autostart"]:
            for step in (node.trigger_configure, node.trigger_activate):
                step()
                if node.error is not None:
                    raise node.error

    @property
    def finished(self) -> bool:
        """Whether the first clip is done, where that ends the node."""
        return self._ended and bool(self._values["exit_when_done"])

    def close(self) -> int:
        """Close an open clip, which stays, and stop the work."""
        if self._clip.recording:
            self._keep("not converted")
        self._worker.cancel()
        self._worker.join()
        self._tell()
        if self._clips is not None:
            self._clips.close()
        return self._exit_code

    def configure(self) -> None:
        """Take the output folder, recover clips that were not closed, and advertise the topics.

        Raises:
            OutputError: there can be no such folder, or another recorder has it.
        """
        self._clips = self._clips or ClipFolder(self._folder)
        for sentence in self._clips.recover():
            self._node.get_logger().warning(sentence)
        self._outlet.open([f"/{side}_hand/joint_trajectory" for side in SIDES])
        self._outlet.open([DIAGNOSTICS])

    def activate(self) -> None:
        """Listen to the camera."""
        self._active = True
        self._look_for_camera()
        if self._values["record_at_start"]:
            self._start()

    def deactivate(self) -> None:
        """Stop listening; a clip that is open ends here and is converted."""
        self._active = False
        for subscription in self._subscriptions:
            self._node.destroy_subscription(subscription)
        self._subscriptions = []
        if self._clip.recording and self._clip.images:
            self._stop()
        elif self._clip.recording:
            self._keep("not converted")

    def cleanup(self) -> None:
        """Take the topics down; work that is under way is cancelled."""
        self._worker.cancel()
        self._worker.join()
        self._outlet.close()
        if self._clips is not None:
            self._clips.close()
            self._clips = None

    def _look_for_camera(self) -> None:
        """Subscribe as soon as it is known which type of image the topic carries."""
        if not self._active or self._subscriptions:
            return
        topic = self._image_topic
        graph = dict(self._node.get_topic_names_and_types())
        try:
            msgtype = image_msgtype(topic, self._values["image_type"], graph)
        except InputError as error:
            self._node.get_logger().error(str(error), throttle_duration_sec=5.0)
            return
        if msgtype is not None:
            self._subscribe(topic, msgtype)
            self._subscribe(self._info_topic, CAMERA_INFO)
            self._node.get_logger().info(f"listening to {topic} ({msgtype})")

    def _remind(self) -> None:
        """Log what is waited for, or how long the clip is by now."""
        log, topic = self._node.get_logger(), self._image_topic
        if self._active and not self._node.count_publishers(topic):
            there = image_topics(dict(self._node.get_topic_names_and_types()), topic)
            log.info(f"waiting for images on {topic}; image topics there are: {there}")
        elif self._clip.recording:
            seconds = self._clip.length_s(runtime.now_ns(self._node))
            log.info(f"recording {self._clip.path}: {self._clip.images} images, {seconds:.1f} s")

    def _subscribe(self, topic: str, msgtype: str) -> None:
        from rclpy.qos import qos_profile_sensor_data
        from rosidl_runtime_py.utilities import get_message

        def received(data: bytes) -> None:
            self._received(topic, msgtype, data)

        self._subscriptions.append(
            self._node.create_subscription(
                get_message(msgtype), topic, received, qos_profile_sensor_data, raw=True
            )
        )

    def _received(self, topic: str, msgtype: str, data: bytes) -> None:
        if not self._clip.recording:
            return
        now_ns = runtime.now_ns(self._node)
        try:
            self._clip.add(topic, msgtype, now_ns, data)
            duration = self._values["duration"]
            if duration and self._clip.length_s(now_ns) >= duration:
                self._stop()
        except AcehandError as error:
            self._node.get_logger().error(str(error))
            if self._clip.recording:
                self._keep("not converted, since it ended early")

    def _keep(self, why: str) -> None:
        """Close an open clip without converting it, and say what became of it."""
        log = self._node.get_logger()
        try:
            path = self._clip.stop()
        except AcehandError as error:
            log.error(str(error))
            return
        if path is None:
            log.info(f"{self._clip.path}: no image came, nothing was kept")
        else:
            log.info(f"{path}: kept, {self._clip.images} images, {why}")

    def _start(self) -> str:
        if not self._active or self._clips is None:
            raise InputError("The node is not active; `ros2 lifecycle set` can activate it.")
        if self._worker.running:
            raise InputError("The last clip is still being converted; ~/cancel stops that.")
        path = self._clips.next_clip()
        self._clip.start(path)
        return f"recording {path}"

    def _stop(self) -> str:
        clip = self._clip.stop()
        if clip is None:
            topic = self._image_topic
            raise InputError(f"{self._clip.path}: no image came on {topic}; nothing was kept.")
        info = self._info_topic if self._clip.camera_infos else ""
        values: Mapping[str, Any] = {**self._values, "image_topic": self._image_topic}
        options = clip_options(values, clip, self._folder / "bags" / clip.name, info)

        self._demonstration = None

        def convert(progress: Progress, cancel: threading.Event) -> ConvertReport:
            report, self._demonstration = convert_clip(options, progress, cancel)
            return report

        self._worker.start(convert)
        return f"{clip}: {self._clip.images} images, converting"

    def _cancel(self) -> str:
        if not self._worker.cancel():
            raise InputError("No clip is being converted.")
        return "stopping at the next step; the recorded clip stays"

    def _tell(self) -> None:
        now_ns, name = runtime.now_ns(self._node), self._node.get_name()
        status = self._worker.status
        if self._clip.recording:
            length = f"{self._clip.length_s(now_ns):.2f}"
            values = {"clip": self._clip.path, "images": self._clip.images, "seconds": length}
            self._outlet.publish([diagnostics(name, OK, "recording", values, now_ns)])
        else:
            self._outlet.publish([job_diagnostics(name, status, now_ns, self._verdict)])
        if self._log.tell():
            self._publish_clip(self._worker.status)

    def _publish_clip(self, status: JobStatus) -> None:
        """Publish the trajectory of a clip whose work has ended."""
        if (demonstration := self._demonstration) is not None:
            self._outlet.publish(latched_messages(demonstration))
            self._outlet.publish(trajectory_messages(demonstration))
            self._verdict = [verdict_status(demonstration)]
        self._exit_code, self._ended = exit_code(status), True


def main(argv: Sequence[str] | None = None) -> int:
    """Run the node; return its exit code."""
    return runtime.run("clip_recorder", ClipRecorderNode, argv, lifecycle=True)
