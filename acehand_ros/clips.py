"""Clips of a live camera: recorded as bags, converted like any bag. No ROS.

Messages are kept as they arrive, serialized, so a clip costs no memory and loses no stamp, and the
conversion is the one that every other bag takes.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acehand_core.bag_jobs.convert import ConvertOptions, ConvertReport, convert_bag
from acehand_core.bag_jobs.demonstrations import load_demonstrations
from acehand_core.errors import InputError
from acehand_core.export.bag_messages import Demonstration
from acehand_core.export.bag_writer import BagWriter
from acehand_core.trackers.base import Progress

IMAGE, COMPRESSED = "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"
CAMERA_INFO = "sensor_msgs/msg/CameraInfo"
_COMPRESSED_SUFFIX = "/compressed"


def next_clip(folder: Path) -> Path:
    """Return the first free clip name in a folder: clip_000000, clip_000001, ..."""
    taken = {path.name for path in folder.glob("clip_*")} if folder.is_dir() else set()
    number = 0
    while f"clip_{number:06d}" in taken:
        number += 1
    return folder / f"clip_{number:06d}"


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
        path.parent.mkdir(parents=True, exist_ok=True)
        writer = BagWriter(path)
        writer.__enter__()
        self._writer, self.path, self._first_ns = writer, path, None
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

    def stop(self) -> Path:
        """Close the clip and return it.

        Raises:
            InputError: none is open. OutputError: it cannot be closed.
        """
        if self._writer is None or self.path is None:
            raise InputError("No clip is being recorded; ~/start begins one.")
        writer, self._writer = self._writer, None
        writer.__exit__(None, None, None)
        return self.path


@dataclass(frozen=True, slots=True)
class ClipResult:
    """What became of a clip; ``demonstration`` is None where no hand was found."""

    convert: ConvertReport
    demonstration: Demonstration | None

    @property
    def job(self) -> Any:
        """The report of the main job."""
        return self.convert.job

    @property
    def bag(self) -> str | None:
        """The bag written."""
        return self.convert.bag

    @property
    def lost_messages(self) -> dict[str, int]:
        """Messages that could not be read, by topic."""
        return dict(self.convert.lost_messages)


def convert_clip(
    options: ConvertOptions, progress: Progress, cancel: threading.Event
) -> ClipResult:
    """Make a clip an episode of its dataset and return it, ready to be published."""
    report = convert_bag(options, progress, cancel)
    numbers = [e.episode_index for e in report.job.episodes if e.episode_index is not None]
    if report.job.dataset is None or not numbers:
        return ClipResult(report, None)
    found = load_demonstrations(Path(report.job.dataset), options.job.robot, (numbers[-1],))
    return ClipResult(report, next((demonstration for demonstration, _ in found), None))
