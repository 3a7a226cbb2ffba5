"""One pass over a bag: places, times and sizes of its pictures, its cameras and camera poses."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Int

from acehand_core.errors import CalibrationError, InputError, SchemaError, nearest
from acehand_core.geometry import frames, rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.recordings.bags import topics
from acehand_core.recordings.bags.bag import Bag
from acehand_core.recordings.bags.frames import codec_of, decode_packets, is_key
from acehand_core.recordings.bags.images import (
    CAMERA_INFO,
    COMPRESSED_IMAGE,
    IMAGE,
    camera_of,
    check_image,
    same_camera,
)
from acehand_core.recordings.bags.library import COMPRESSED_VIDEO, decode
from acehand_core.recordings.bags.records import DroppedMessages, Message, Topic
from acehand_core.recordings.cameras import interpolated_poses
from acehand_core.types import CameraPoses, TimestampsNs

#: Default names of the world frame (REP-105), best first.
WORLD_FRAMES = ("map", "world", "odom")
_ANY_TIME = -1


@dataclass(slots=True)
class _Edge:
    """The transform from a child frame to its parent over time; values: x y z qw qx qy qz."""

    stamps: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))

    def add(self, stamp_ns: int, row: tuple[float, ...]) -> None:
        if self.stamps and self.stamps[0] == _ANY_TIME:
            self.stamps, self.values = array("q"), array("d")
        self.stamps.append(stamp_ns)
        self.values.extend(row)

    def at(self, times: TimestampsNs, tolerance_ns: float) -> CameraPoses:
        """Return the transforms at some times; CalibrationError for times before or after."""
        stamps = np.array(self.stamps, np.int64)
        rows = np.array(self.values, np.float64).reshape(-1, 7)
        if stamps[0] == _ANY_TIME or len(stamps) == 1:
            fixed = frames.rigid(rotations.from_quaternion(rows[-1, 3:]), rows[-1, :3])
            return np.broadcast_to(fixed, (len(times), 4, 4)).copy()

        stamps, keep = np.unique(stamps, return_index=True)
        rows = rows[keep]
        if stamps[0] - times[0] > tolerance_ns or times[-1] - stamps[-1] > tolerance_ns:
            raise CalibrationError(
                f"known from {stamps[0]} to {stamps[-1]} ns, needed from {times[0]} to "
                f"{times[-1]} ns"
            )

        return interpolated_poses(stamps, rows, times)


class FrameTree:
    """The transforms of TF and odometry messages, and the camera poses they make."""

    def __init__(self) -> None:
        self._edges: dict[str, dict[str, _Edge]] = {}  # child -> parent -> transforms
        self._useless: set[tuple[str, str]] = set()

    def add_tf(self, message: Any, static: bool) -> None:
        """Add the transforms of a TFMessage."""
        for entry in message.transforms:
            t, q = entry.transform.translation, entry.transform.rotation
            stamp = _ANY_TIME if static else _ns(entry.header.stamp)
            row = (t.x, t.y, t.z, q.w, q.x, q.y, q.z)
            self._add(_name(entry.header.frame_id), _name(entry.child_frame_id), stamp, row)

    def add_odometry(self, message: Any) -> None:
        """Add the transform of an Odometry."""
        t, q = message.pose.pose.position, message.pose.pose.orientation
        row = (t.x, t.y, t.z, q.w, q.x, q.y, q.z)
        parent, child = _name(message.header.frame_id), _name(message.child_frame_id)
        self._add(parent, child, _ns(message.header.stamp), row)

    def prune(self, kept: str) -> None:
        """Drop all transforms that do not lead to this frame, to save memory."""
        pending, seen = [_name(kept)], set()
        while pending:
            child = pending.pop()
            if child not in seen:
                seen.add(child)
                pending += list(self._edges.get(child, ()))
        for child in self._edges.keys() - seen:
            for parent, edge in self._edges[child].items():
                if len(edge.stamps) > 1:
                    self._edges[child][parent] = _Edge(edge.stamps[-1:], edge.values[-7:])
                    self._useless.add((parent, child))

    def poses(
        self, camera: str, world: str | None, times: TimestampsNs
    ) -> tuple[str, CameraPoses] | None:
        """Return the world's name and T_world_camera at some times.

        With ``world`` None the first connected frame of ``WORLD_FRAMES``; None if there is none.

        Raises:
            CalibrationError: no transforms lead from the named world to the camera, or one of them
                does not cover all times.
        """
        above: list[str] = []
        child = _name(camera)
        while (parents := self._edges.get(child)) and len(above) < 100:
            child = next(iter(parents))
            above.append(child)
        world = world or next((name for name in WORLD_FRAMES if name in above), None)
        if world is None:
            return None
        if _name(world) not in above:
            raise CalibrationError(
                f"no transforms lead from {world!r} to the camera's {camera!r}; "
                f"{nearest(world, above)}"
            )

        tolerance = 2 * float(np.median(np.diff(times))) if len(times) > 1 else 0.1e9
        pose, child = np.broadcast_to(np.eye(4), (len(times), 4, 4)), _name(camera)
        for parent in above[: above.index(_name(world)) + 1]:
            try:
                pose = self._edges[child][parent].at(times, max(tolerance, 0.1e9)) @ pose
            except CalibrationError as error:
                raise CalibrationError(f"transform {parent} -> {child}: {error}") from None
            child = parent
        return _name(world), pose

    def _add(self, parent: str, child: str, stamp_ns: int, row: tuple[float, ...]) -> None:
        length = float(np.linalg.norm(row[3:]))
        if (parent, child) in self._useless or not np.isfinite(row).all() or length < 0.5:
            return
        row = (*row[:3], *(value / length for value in row[3:]))
        edge = self._edges.setdefault(child, {}).setdefault(parent, _Edge())
        if stamp_ns == _ANY_TIME and edge.stamps and edge.stamps[0] != _ANY_TIME:
            return
        edge.add(stamp_ns, row)


def _ns(stamp: Any) -> int:
    return int(stamp.sec) * 10**9 + int(stamp.nanosec)


def _name(frame: str) -> str:
    return frame.lstrip("/")


_PRUNE_EVERY = 20_000


@dataclass(slots=True)
class Scan:
    """The result of one pass; ``rows``: stamp, log, file, place (3), size (2) of each picture."""

    topic: str
    msgtype: str
    rows: array[int] = field(default_factory=lambda: array("q"))
    keys: list[int] = field(default_factory=list)
    codec: str | None = None
    frame_id: str = ""
    cameras: dict[str, Camera | None] = field(default_factory=dict)
    tree: FrameTree = field(default_factory=FrameTree)
    read: Counter[str] = field(default_factory=Counter)

    def table(self) -> Int[np.ndarray, "N 8"]:
        return np.array(self.rows, np.int64).reshape(-1, 8)


def scan_bag(
    bag: Bag, image: Topic, infos: tuple[Topic, ...], poses: bool, read: Callable[[int], None]
) -> Scan:
    """Read the pictures, the calibration and the transforms, once.

    Unusable messages are counted in ``bag.dropped``. ``read`` is called with the size of every
    message, and may raise to stop.

    Raises InputError: no usable picture.
    """
    scan, dropped, known = Scan(image.name, image.msgtype), bag.dropped, bag.topics
    names = {topic.name for topic in (image, *infos)}
    if poses:
        moving = (topics.TF, topics.ODOMETRY)
        names |= {name for name, topic in known.items() if topic.msgtype in moving}
    for message in bag.messages(names, dropped):
        scan.read[message.topic] += 1
        read(len(message.data))
        kind = known[message.topic].msgtype
        try:
            _add_message(scan, message, kind, dropped)
        except (SchemaError, CalibrationError) as error:
            dropped.count(message.topic, str(error).rstrip("."))
        if sum(scan.read.values()) % _PRUNE_EVERY == 0 and scan.frame_id:
            scan.tree.prune(scan.frame_id)

    bag.count_missing(names, scan.read, dropped)
    if not scan.rows:
        reasons = "; ".join(dropped.sentences()) or "the topic has zero messages"
        raise InputError(f"{bag.path}: no picture of {image.name} can be used: {reasons}.")
    return scan


def _add_message(scan: Scan, message: Message, kind: str, dropped: DroppedMessages) -> None:
    content = decode(message.data, kind)
    if message.topic == scan.topic:
        _add_picture(scan, message, content)
    elif kind == CAMERA_INFO:
        camera = camera_of(content, topics.is_rectified(scan.topic))
        known = scan.cameras.setdefault(message.topic, camera)
        if known is not None and camera is not None and not same_camera(known, camera):
            dropped.remark(f"{message.topic}: the calibration changes; the first one is used")
    elif kind == topics.TF:
        scan.tree.add_tf(content, static=message.topic.endswith("tf_static"))
    else:
        scan.tree.add_odometry(content)


def _add_picture(scan: Scan, message: Message, content: Any) -> None:
    kind = scan.msgtype
    packet = kind not in (IMAGE, COMPRESSED_IMAGE)
    size = _packet_size(scan, content) if packet else check_image(content, kind)
    bare = kind == COMPRESSED_VIDEO
    scan.frame_id = scan.frame_id or _name(content.frame_id if bare else content.header.frame_id)
    stamp = _ns(content.timestamp if bare else content.header.stamp)
    scan.rows.extend((stamp, message.log_ns, message.file, *message.place, *size))


def _packet_size(scan: Scan, content: Any) -> tuple[int, int]:
    """Return the size of a packet's picture, that of its key frame."""
    codec = codec_of(content, scan.msgtype)
    scan.codec = scan.codec or codec
    if codec != scan.codec:
        raise SchemaError(f"codec changes from {scan.codec} to {codec}")
    if len(content.data) == 0:
        raise SchemaError("an empty packet")

    if is_key(content, scan.msgtype, codec):
        data = bytes(content.data)
        picture = next((image for _, image in decode_packets(codec, 0, 1, lambda _: data)), None)
        if picture is None:
            raise SchemaError("a key frame that does not decode")
        scan.keys.append(len(scan.rows) // 8)
        return picture.shape[1], picture.shape[0]

    if not scan.keys:
        raise SchemaError("a packet before the first key frame")
    return scan.rows[-2], scan.rows[-1]
