"""Node ``clip_recorder``: clips of a live camera in, each clip's trajectory out.

A life-cycle node: configured it holds its output, active it listens to the camera.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from acehand_core import ConvertOptions, ConvertReport, convert_bag, load_demonstrations
from acehand_core.atomic import DirectoryLock, LockedError, output_errors
from acehand_core.errors import EXIT_OK, AcehandError, InputError, OutputError
from acehand_core.recordings.bags.bag import Bag
from acehand_core.recordings.bags.messages import (
    Demonstration,
    latched_messages,
    trajectory_messages,
    verdict_status,
)
from acehand_core.recordings.bags.records import DroppedMessages
from acehand_core.recordings.bags.writer import BagWriter
from acehand_core.types import SIDES, Progress
from acehand_ros import runtime
from acehand_ros.messages import DIAGNOSTICS, Outlet
from acehand_ros.offline_bag import exit_code
from acehand_ros.parameters import (
    CLIP_RECORDER,
    check_ace,
    clip_options,
    declare,
    refuse_bad_values,
)
from acehand_ros.worker import OK, JobLog, JobStatus, JobWorker, diagnostics, job_diagnostics

IMAGE, COMPRESSED = "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"
# Clips of a live camera: recorded as bags, converted like any bag. No ROS.
#
# Messages are kept as they arrive, serialized, so a clip costs no memory and loses no stamp, and
# the conversion is the one that every other bag takes. One recorder at a time has a folder of
# clips; what it leaves unfinished where it is killed becomes a clip when the next one opens the
# folder.

CAMERA_INFO = "sensor_msgs/msg/CameraInfo"
_COMPRESSED_SUFFIX = "/compressed"
#: Clips in a folder: whole, or hidden while they are recorded (``BagWriter``).
_CLIP = re.compile(r"\.?(clip_\d{6})(?!\d)")
_UNFINISHED = re.compile(r"\.(clip_\d{6})\.partial-\d+")


def next_clip(folder: Path) -> Path:
    """Return the first free clip name in a folder: clip_000000, clip_000001, ..."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    taken = {found[1] for name in names if (found := _CLIP.match(name))}
    number = 0
    while f"clip_{number:06d}" in taken:
        number += 1
    return folder / f"clip_{number:06d}"


class ClipFolder:
    """The folder of one recorder: ``clips`` in it, and what is made of them. Locked until closed.

    Raises:
        OutputError: there can be no such folder, or another recorder has it.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder
        with output_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            try:
                self._lock = DirectoryLock(folder)
            except LockedError as error:
                raise OutputError(
                    f"{folder}: another clip_recorder records to it; give this one an "
                    "output_dir of its own."
                ) from error

    def next_clip(self) -> Path:
        """Return where the next clip goes."""
        return next_clip(self.path / "clips")

    def recover(self) -> Iterator[str]:
        """Make clips of what a killed recorder left unfinished; yield what became of each."""
        folder = self.path / "clips"
        work = folder / ".recovering"  # of an earlier attempt; what it was made from is still there
        shutil.rmtree(work, ignore_errors=True)
        for left in sorted(folder.iterdir()) if folder.is_dir() else ():
            found = _UNFINISHED.fullmatch(left.name)
            if found is None:
                continue
            if not self._lock.held:
                yield f"{left}: a clip that was not closed, or that is being recorded; left alone"
                continue
            try:
                target = folder / found[1]
                yield _recover(left, work, next_clip(folder) if target.exists() else target)
            except OutputError as error:
                yield f"{left}: a clip that was not closed stays until the next start: {error}"
        shutil.rmtree(work, ignore_errors=True)

    def close(self) -> None:
        """Let others record to the folder. Safe to call twice."""
        self._lock.release()


def _recover(left: Path, work: Path, target: Path) -> str:
    """Make a clip of an unfinished one, which then vanishes; return what was done."""
    bag_path = left / left.name.split(".")[1]
    if not any(file.stat().st_size for file in bag_path.glob("*") if file.is_file()):
        with output_errors(left):
            shutil.rmtree(left)
        return f"{left}: removed; nothing of this clip had reached the disk"
    recorder = ClipRecorder()
    try:
        bag = Bag(bag_path)
    except InputError as error:
        aside = target.with_name(f"{target.name}_unreadable")
        with output_errors(aside):
            left.rename(aside)
        return f"{aside}: a clip that was not closed cannot be read: {error}"
    with bag:
        topics = bag.topics
        recorder.start(work / target.name)
        for message in bag.messages(None, DroppedMessages()):
            msgtype = topics[message.topic].msgtype
            recorder.add(message.topic, msgtype, message.log_ns, bytes(message.data))
    made = recorder.stop()
    with output_errors(target):
        if made is not None:
            made.rename(target)
        shutil.rmtree(left)
    if made is None:
        return f"{left}: removed; this clip had no image"
    return f"{target}: recovered, {recorder.images} images of a clip that was not closed"


def camera_info_topic(image_topic: str) -> str:
    """Return where image_transport puts the CameraInfo of an image topic: beside it."""
    base = image_topic.removesuffix(_COMPRESSED_SUFFIX)
    return base.rsplit("/", 1)[0] + "/camera_info"


def image_msgtype(topic: str, choice: str, graph: dict[str, list[str]]) -> str | None:
    """Return the message type of an image topic, or None while nobody publishes it.

    Args:
        choice: "raw", "compressed", or "auto" for what the graph (topic -> types) says.

    Raises:
        InputError: the topic carries no images.
    """
    if choice != "auto":
        return IMAGE if choice == "raw" else COMPRESSED
    types = graph.get(topic, [])
    for wanted in (IMAGE, COMPRESSED):
        if wanted in types:
            return wanted
    if types:
        raise InputError(f"{topic} carries {', '.join(types)}; valid: {IMAGE}, {COMPRESSED}.")
    return None


def image_topics(graph: dict[str, list[str]], but: str) -> str:
    """Return the topics of a graph (topic -> types) that carry images, apart from one."""
    kinds = {IMAGE, COMPRESSED}
    return ", ".join(t for t in sorted(graph) if t != but and kinds & set(graph[t])) or "none"


class ClipRecorder:
    """Writes one clip at a time. The caller gives the time of every message (ns)."""

    def __init__(self) -> None:
        self._writer: BagWriter | None = None
        self._first_ns: int | None = None
        self.path: Path | None = None
        self.images = 0
        self.camera_infos = 0

    @property
    def recording(self) -> bool:
        """Whether a clip is open."""
        return self._writer is not None

    def start(self, path: Path) -> None:
        """Open a clip.

        Raises:
            InputError: one is open. OutputError: it cannot be written.
        """
        if self._writer is not None:
            raise InputError("A clip is being recorded already; ~/stop ends it.")
        self._writer, self.path = (
            BagWriter(path, keep_partial=True, recorded_on=os.environ.get("ROS_DISTRO", "")), path
        )  # fmt: skip
        self._first_ns = None
        self.images = self.camera_infos = 0

    def add(self, topic: str, msgtype: str, time_ns: int, data: bytes) -> None:
        """Keep a serialized message.

        Raises:
            OutputError: the disk is full or the file cannot be written.
        """
        if self._writer is None:
            return
        self._writer.write_raw(topic, msgtype, time_ns, data)
        if msgtype == CAMERA_INFO:
            self.camera_infos += 1
        else:
            self.images += 1
            self._first_ns = time_ns if self._first_ns is None else self._first_ns

    def length_s(self, now_ns: int) -> float:
        """Return how long the clip is, from its first image."""
        return 0.0 if self._first_ns is None else (now_ns - self._first_ns) / 1e9

    def stop(self) -> Path | None:
        """Close the clip and return it; None where no image came: then nothing is kept.

        Raises:
            InputError: none is open. OutputError: it cannot be closed.
        """
        if self._writer is None or self.path is None:
            raise InputError("No clip is being recorded; ~/start begins one.")
        writer, self._writer = self._writer, None
        if not self.images:
            writer.abort()
            return None
        try:
            writer.close()
        except OutputError as error:
            raise OutputError(
                f"{error} What is on the disk becomes a clip when a clip_recorder next starts here."
            ) from error
        return self.path


def convert_clip(
    options: ConvertOptions, progress: Progress, cancel: threading.Event
) -> tuple[ConvertReport, Demonstration | None]:
    """Make a clip an episode of its dataset; return it too, None where no hand was found."""
    report = convert_bag(options, progress, cancel)
    numbers = [e.episode_index for e in report.job.episodes if e.episode_index is not None]
    if report.job.dataset is None or not numbers:
        return report, None
    found = load_demonstrations(Path(report.job.dataset), options.job.robot, (numbers[-1],))
    return report, next((demonstration for demonstration, _ in found), None)


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
