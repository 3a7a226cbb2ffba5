"""Clips of a live camera: recorded as bags, converted like any bag. No ROS.

Messages are kept as they arrive, serialized, so a clip costs no memory and loses no stamp, and the
conversion is the one that every other bag takes. One recorder at a time has a folder of clips; what
it leaves unfinished where it is killed becomes a clip when the next one opens the folder.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

from acehand_core import ConvertOptions, ConvertReport, convert_bag, load_demonstrations
from acehand_core.atomic import DirectoryLock, LockedError, output_errors
from acehand_core.errors import InputError, OutputError
from acehand_core.recordings.bags.bag import Bag
from acehand_core.recordings.bags.messages import Demonstration
from acehand_core.recordings.bags.records import DroppedMessages
from acehand_core.recordings.bags.writer import BagWriter
from acehand_core.types import Progress

IMAGE, COMPRESSED = "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"
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
