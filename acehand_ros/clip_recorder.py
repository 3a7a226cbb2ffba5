"""Node ``clip_recorder``: records clips of a live camera and converts each to a trajectory.

A lifecycle node: configured it owns its output folder, active it subscribes to the camera.
"""

from __future__ import annotations

import functools
import itertools
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
from acehand_core.motion import DroppedMessages
from acehand_core.recordings.bags import messages
from acehand_core.recordings.bags.bag import Bag
from acehand_core.recordings.bags.library import LATEST, typestore
from acehand_core.recordings.bags.messages import Demonstration
from acehand_core.recordings.bags.writer import BagWriter, load_library
from acehand_core.types import SIDES, Progress
from acehand_ros import parameters, runtime
from acehand_ros.messages import DIAGNOSTICS, Outlet
from acehand_ros.offline_bag import exit_code
from acehand_ros.worker import OK, JobLog, JobWorker, diagnostics, job_diagnostics

# A clip is a bag of the serialized messages: no memory, no lost stamps, the usual conversion.
IMAGE, COMPRESSED = "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"
CAMERA_INFO = "sensor_msgs/msg/CameraInfo"
#: Clips in a folder, hidden while recording (``BagWriter``).
_CLIP = re.compile(r"\.?(clip_\d{6})(?!\d)")
_UNFINISHED = re.compile(r"\.(clip_\d{6})\.partial-\d+")

_DIAGNOSTICS_S, _LOOK_S, _REMIND_S = 0.5, 0.2, 3.0


def next_clip(folder: Path) -> Path:
    """Return the first free clip name in a folder: clip_000000, clip_000001, ..."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    taken = {match[1] for name in names if (match := _CLIP.match(name))}
    free = (name for i in itertools.count() if (name := f"clip_{i:06d}") not in taken)
    return folder / next(free)


class ClipFolder:
    """The output folder of one recorder, locked until closed; OutputError if it is in use."""

    def __init__(self, folder: Path) -> None:
        self.path = folder
        with output_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            try:
                self._lock = DirectoryLock(folder)
            except LockedError as error:
                problem = "another clip_recorder records to it; give this one another output_dir."
                raise OutputError(f"{folder}: {problem}") from error

    def next_clip(self) -> Path:
        return next_clip(self.path / "clips")

    def recover(self) -> Iterator[str]:
        """Turn unclosed clips of a killed recorder into clips; yield what happened to each."""
        folder = self.path / "clips"
        work = folder / ".recovering"
        shutil.rmtree(work, ignore_errors=True)  # of an interrupted attempt

        for partial in sorted(folder.iterdir()) if folder.is_dir() else ():
            match = _UNFINISHED.fullmatch(partial.name)
            if match is None:
                continue
            if not self._lock.held:
                yield f"{partial}: an unclosed clip, or one being recorded; left alone"
                continue
            try:
                target = folder / match[1]
                yield _recover(partial, work, next_clip(folder) if target.exists() else target)
            except OutputError as error:
                yield f"{partial}: an unclosed clip stays until the next start: {error}"
        shutil.rmtree(work, ignore_errors=True)

    def close(self) -> None:
        """Release the lock. Safe to call twice."""
        self._lock.release()


def _recover(partial: Path, work: Path, target: Path) -> str:
    """Make a clip of an unclosed one and remove that; return what was done."""
    bag_path = partial / partial.name.split(".")[1]
    if not any(file.stat().st_size for file in bag_path.glob("*") if file.is_file()):
        with output_errors(partial):
            shutil.rmtree(partial)
        return f"{partial}: removed; no data of this clip was on disk"

    recorder = ClipRecorder()
    try:
        bag = Bag(bag_path)
    except InputError as error:
        aside = target.with_name(f"{target.name}_unreadable")
        with output_errors(aside):
            partial.rename(aside)
        return f"{aside}: an unclosed clip cannot be read: {error}"

    with bag:
        topics = bag.topics
        recorder.start(work / target.name)
        for message in bag.messages(None, DroppedMessages()):
            msgtype = topics[message.topic].msgtype
            recorder.add(message.topic, msgtype, message.log_ns, bytes(message.data))

    clip = recorder.stop()
    with output_errors(target):
        if clip is not None:
            clip.rename(target)
        shutil.rmtree(partial)
    if clip is None:
        return f"{partial}: removed; this clip had no image"
    return f"{target}: recovered {recorder.images} images of an unclosed clip"


def camera_info_topic(image_topic: str) -> str:
    """Return image_transport's CameraInfo topic of an image topic."""
    return image_topic.removesuffix("/compressed").rsplit("/", 1)[0] + "/camera_info"


def image_msgtype(topic: str, choice: str, graph: dict[str, list[str]]) -> str | None:
    """Return the message type of an image topic, None if it has no publisher.

    ``choice`` "auto" takes it from ``graph`` (topic -> types); InputError if it has no images.
    """
    if choice != "auto":
        return IMAGE if choice == "raw" else COMPRESSED
    types = graph.get(topic, [])
    msgtype = next((kind for kind in (IMAGE, COMPRESSED) if kind in types), None)
    if types and msgtype is None:
        raise InputError(f"{topic} carries {', '.join(types)}; valid: {IMAGE}, {COMPRESSED}.")
    return msgtype


def image_topics(graph: dict[str, list[str]], but: str) -> str:
    """List the other topics of a graph (topic -> types) that carry images."""
    kinds = {IMAGE, COMPRESSED}
    return ", ".join(t for t in sorted(graph) if t != but and kinds & set(graph[t])) or "none"


class ClipRecorder:
    """Writes one clip at a time. The caller passes the time of every message (ns)."""

    def __init__(self) -> None:
        self._writer: BagWriter | None = None
        self._first_ns: int | None = None
        self.path: Path | None = None
        self.images = 0
        self.camera_infos = 0

    @property
    def recording(self) -> bool:
        return self._writer is not None

    def start(self, path: Path) -> None:
        """Open a clip. Raises InputError if one is open, OutputError if it cannot be written."""
        if self._writer is not None:
            raise InputError("A clip is being recorded already; ~/stop ends it.")
        distro = os.environ.get("ROS_DISTRO", "")
        self._writer = BagWriter(path, keep_partial=True, recorded_on=distro)
        self.path, self._first_ns = path, None
        self.images = self.camera_infos = 0

    def add(self, topic: str, msgtype: str, time_ns: int, data: bytes) -> None:
        """Write a serialized message to the open clip, if any. Raises OutputError (disk full)."""
        if self._writer is None:
            return
        self._writer.write_raw(topic, msgtype, time_ns, data)
        if msgtype == CAMERA_INFO:
            self.camera_infos += 1
        else:
            self.images += 1
            self._first_ns = time_ns if self._first_ns is None else self._first_ns

    def length_s(self, now_ns: int) -> float:
        """Return the time since the first image."""
        return 0.0 if self._first_ns is None else (now_ns - self._first_ns) / 1e9

    def stop(self) -> Path | None:
        """Close the clip and return it; None, without a clip, if no image was recorded."""
        if self._writer is None or self.path is None:
            raise InputError("No clip is being recorded; ~/start begins one.")
        writer, self._writer = self._writer, None
        if not self.images:
            writer.abort()
            return None
        try:
            writer.close()
        except OutputError as error:
            hint = "The data on disk is recovered when a clip_recorder next starts here."
            raise OutputError(f"{error} {hint}") from error
        return self.path


def convert_clip(
    options: ConvertOptions, progress: Progress, cancel: threading.Event
) -> tuple[ConvertReport, Demonstration | None]:
    """Add a clip to its dataset; return its episode too, None without a hand."""
    report = convert_bag(options, progress, cancel)
    numbers = [e.episode_index for e in report.job.episodes if e.episode_index is not None]
    if report.job.dataset is None or not numbers:
        return report, None
    episodes = load_demonstrations(Path(report.job.dataset), options.job.robot, (numbers[-1],))
    return report, next((demonstration for demonstration, _ in episodes), None)


class ClipRecorderNode:
    """~/start and ~/stop (or a duration) bound a clip; ~/cancel stops the last one's conversion."""

    def __init__(self, node: Any) -> None:
        self._node = node
        self._values: dict[str, Any] = dict(parameters.declare(node, parameters.CLIP_RECORDER))
        self._folder = Path(self._values["output_dir"]).expanduser()
        # The CameraInfo topic follows the remapped image topic, as in image_transport.
        self._image_topic = node.resolve_topic_name(self._values["image_topic"])
        self._info_topic = node.resolve_topic_name(
            self._values["camera_info_topic"] or camera_info_topic(self._image_topic)
        )
        parameters.check_ace(self._values)  # now, not after the first clip

        self._clip, self._worker, self._outlet = ClipRecorder(), JobWorker(), Outlet(node)
        self._clips: ClipFolder | None = None
        self._subscriptions: list[Any] = []
        self._demonstration: Demonstration | None = None  # of the clip being converted
        self._verdict: list[dict[str, Any]] = []  # of the last clip
        self._active = self._ended = False
        self._log = JobLog(node.get_logger(), self._worker)
        self._exit_code = EXIT_OK

        parameters.refuse_bad_values(node, parameters.CLIP_RECORDER, self._values.__setitem__)
        runtime.add_triggers(node, start=self._start, stop=self._stop, cancel=self._cancel)
        runtime.add_timer(node, _DIAGNOSTICS_S, self._publish_status)
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
        return self._ended and bool(self._values["exit_when_done"])

    def close(self) -> int:
        """Close an open clip, which is kept, and stop the conversion."""
        if self._clip.recording:
            self._close_unconverted("not converted")
        self._worker.cancel()
        self._worker.join()
        self._publish_status()
        if self._clips is not None:
            self._clips.close()
        return self._exit_code

    def configure(self) -> None:
        """Take the output folder, recover unclosed clips, advertise the topics, load rosbags."""
        self._clips = self._clips or ClipFolder(self._folder)
        for sentence in self._clips.recover():
            self._node.get_logger().warning(sentence)
        self._outlet.open([*(f"/{side}_hand/joint_trajectory" for side in SIDES), DIAGNOSTICS])

        # Not when a clip begins: loading takes longer than five images, all that the queue holds.
        load_library()
        typestore(LATEST)

    def activate(self) -> None:
        """Subscribe to the camera."""
        self._active = True
        if self._values["record_at_start"]:
            self._start()
        self._look_for_camera()

    def deactivate(self) -> None:
        """Unsubscribe; an open clip ends here and is converted."""
        self._active = False
        for subscription in self._subscriptions:
            self._node.destroy_subscription(subscription)
        self._subscriptions = []
        if self._clip.recording and self._clip.images:
            self._stop()
        elif self._clip.recording:
            self._close_unconverted("not converted")

    def cleanup(self) -> None:
        """Close the topics and cancel a running conversion."""
        self._worker.cancel()
        self._worker.join()
        self._outlet.close()
        if self._clips is not None:
            self._clips.close()
            self._clips = None

    def _look_for_camera(self) -> None:
        """Subscribe as soon as the topic's image type is known."""
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
            # rclpy's first log call takes long, in which images would be lost.
            self._node.get_logger().info(f"listening to {topic} ({msgtype})")
            self._subscribe(topic, msgtype)
            self._subscribe(self._info_topic, CAMERA_INFO)

    def _remind(self) -> None:
        """Log that images are missing, or the length of the open clip."""
        log, topic = self._node.get_logger(), self._image_topic
        if self._active and not self._node.count_publishers(topic):
            others = image_topics(dict(self._node.get_topic_names_and_types()), topic)
            log.info(f"waiting for images on {topic}; current image topics: {others}")
        elif self._clip.recording:
            seconds = self._clip.length_s(runtime.now_ns(self._node))
            log.info(f"recording {self._clip.path}: {self._clip.images} images, {seconds:.1f} s")

    def _subscribe(self, topic: str, msgtype: str) -> None:
        from rclpy.qos import qos_profile_sensor_data
        from rosidl_runtime_py.utilities import get_message

        received = functools.partial(self._received, topic, msgtype)
        subscription = self._node.create_subscription(
            get_message(msgtype), topic, received, qos_profile_sensor_data, raw=True
        )
        self._subscriptions.append(subscription)

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
                self._close_unconverted("not converted, since it ended early")

    def _close_unconverted(self, why: str) -> None:
        """Close an open clip without converting it and log the result."""
        log = self._node.get_logger()
        try:
            path = self._clip.stop()
        except AcehandError as error:
            log.error(str(error))
            return
        if path is None:
            log.info(f"{self._clip.path}: no image received, clip discarded")
        else:
            log.info(f"{path}: kept, {self._clip.images} images, {why}")

    def _start(self) -> str:
        if not self._active or self._clips is None:
            raise InputError("The node is not active; activate it with `ros2 lifecycle set`.")
        if self._worker.running:
            raise InputError("The last clip is still being converted; ~/cancel stops it.")
        path = self._clips.next_clip()
        self._clip.start(path)
        return f"recording {path}"

    def _stop(self) -> str:
        clip = self._clip.stop()
        if clip is None:
            problem = f"no image received on {self._image_topic}; clip discarded."
            raise InputError(f"{self._clip.path}: {problem}")
        info = self._info_topic if self._clip.camera_infos else ""
        values: Mapping[str, Any] = {**self._values, "image_topic": self._image_topic}
        options = parameters.clip_options(values, clip, self._folder / "bags" / clip.name, info)
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

    def _publish_status(self) -> None:
        now_ns, name = runtime.now_ns(self._node), self._node.get_name()
        if self._clip.recording:
            length = f"{self._clip.length_s(now_ns):.2f}"
            values = {"clip": self._clip.path, "images": self._clip.images, "seconds": length}
            message = diagnostics(name, OK, "recording", values, now_ns)
        else:
            message = job_diagnostics(name, self._worker.status, now_ns, self._verdict)
        self._outlet.publish([message])
        if not self._log.update():
            return
        if (demonstration := self._demonstration) is not None:
            self._outlet.publish(messages.latched_messages(demonstration))
            self._outlet.publish(messages.trajectory_messages(demonstration))
            self._verdict = [messages.verdict_status(demonstration)]
        self._exit_code, self._ended = exit_code(self._worker.status), True


def main(argv: Sequence[str] | None = None) -> int:
    return runtime.run("clip_recorder", ClipRecorderNode, argv, lifecycle=True)
