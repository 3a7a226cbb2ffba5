"""One pass over a bag: places, times and sizes of pictures and depth, cameras and transforms."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Int

from acehand_core.errors import CalibrationError, InputError, SchemaError, nearest
from acehand_core.geometry import frames, rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import DroppedMessages
from acehand_core.recordings.bags import images, topics
from acehand_core.recordings.bags.bag import Bag
from acehand_core.recordings.bags.depth import check_depth
from acehand_core.recordings.bags.frames import codec_of, decode_packets, is_key
from acehand_core.recordings.bags.library import COMPRESSED_VIDEO, decode
from acehand_core.recordings.bags.records import Message, Topic
from acehand_core.recordings.cameras import interpolated_poses
from acehand_core.types import CameraPoses, RigidTransform, TimestampsNs

#: Default names of the world frame (REP-105), best first.
WORLD_FRAMES = ("map", "world", "odom")
_ANY_TIME = -1
#: Transforms that differ by less, in metres and matrices, are equal.
_SAME_PLACE = 1e-6

_PRUNE_EVERY = 20_000


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

    def add_extrinsics(self, message: Any, topic: str) -> None:
        """Add a camera of RealSense's viewer, from T_camera_group on its topic CAMERA/tf/GROUP."""
        t, q = message.translation, message.rotation
        turn = rotations.from_quaternion(np.array([q.w, q.x, q.y, q.z]))
        pose = frames.inverse(frames.rigid(turn, np.array([t.x, t.y, t.z])))
        row = (*pose[:3, 3].tolist(), *rotations.to_quaternion(pose[:3, :3]).tolist())
        camera, _, group = topic.rpartition("/tf/")
        self._add(group, _name(camera), _ANY_TIME, row)

    def prune(self, kept: Iterable[str]) -> None:
        """Drop all transforms that do not lead to these frames, to save memory."""
        pending, seen = [_name(frame) for frame in kept], set()
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
        above = self._chain(camera)[1:]
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

    def between(self, target: str, source: str, times: TimestampsNs) -> RigidTransform:
        """Return T_target_source. Raises CalibrationError: not connected, or it changes."""
        below = self._chain(source)
        common = next((frame for frame in self._chain(target) if frame in below), None)
        if common is None:
            reason = f"no transforms connect {source!r} with {target!r}"
            raise CalibrationError(f"{reason}; valid: a /tf_static from both to one frame")
        ends = [end != common and self.poses(end, common, times) for end in (target, source)]
        ours, theirs = (end[1] if end else np.eye(4)[None] for end in ends)
        pose = frames.inverse(ours) @ theirs
        if np.ptp(pose, axis=0).max() > _SAME_PLACE:
            raise CalibrationError(f"{source!r} moves in {target!r}; valid: fixed to each other")
        return np.asarray(pose[0])

    def _chain(self, frame: str) -> list[str]:
        """Return a frame and those above it."""
        chain = [_name(frame)]
        while (parents := self._edges.get(chain[-1])) and len(chain) <= 100:
            chain.append(next(iter(parents)))
        return chain

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


@dataclass(slots=True)
class Stream:
    """One topic's pictures; ``rows``: stamp, log, file, place (3), size (2) of each."""

    topic: str
    msgtype: str
    dropped: DroppedMessages
    check: Callable[[Any, str], tuple[int, int]] = images.check_image
    rows: array[int] = field(default_factory=lambda: array("q"))
    keys: list[int] = field(default_factory=list)
    codec: str | None = None
    frame_id: str = ""

    def table(self) -> Int[np.ndarray, "N 8"]:
        """Return the rows. Raises InputError: there are none."""
        if not self.rows:
            reasons = "; ".join(self.dropped.sentences()) or "the topic has zero messages"
            raise InputError(f"no picture of {self.topic} can be used: {reasons}")
        return np.array(self.rows, np.int64).reshape(-1, 8)

    def add(self, message: Message, content: Any) -> None:
        """Add a picture. Raises SchemaError: it is damaged, or of another kind."""
        kind = self.msgtype
        packet = kind not in (images.IMAGE, images.COMPRESSED_IMAGE)
        size = self._packet_size(content) if packet else self.check(content, kind)
        bare = kind == COMPRESSED_VIDEO
        frame = content.frame_id if bare else content.header.frame_id
        if frame.isdigit():  # RealSense's viewer: a version
            frame = topics.camera_namespace(self.topic)
        self.frame_id = self.frame_id or _name(frame)
        stamp = _ns(content.timestamp if bare else content.header.stamp)
        self.rows.extend((stamp, message.log_ns, message.file, *message.place, *size))

    def _packet_size(self, content: Any) -> tuple[int, int]:
        """Return the size of a packet's picture, that of its key frame."""
        codec = codec_of(content, self.msgtype)
        self.codec = self.codec or codec
        if codec != self.codec:
            raise SchemaError(f"codec changes from {self.codec} to {codec}")
        if len(content.data) == 0:
            raise SchemaError("an empty packet")

        if is_key(content, self.msgtype, codec):
            data = bytes(content.data)
            first = next((image for _, image in decode_packets(codec, 0, 1, lambda _: data)), None)
            if first is None:
                raise SchemaError("a key frame that does not decode")
            self.keys.append(len(self.rows) // 8)
            return first.shape[1], first.shape[0]

        if not self.keys:
            raise SchemaError("a packet before the first key frame")
        return self.rows[-2], self.rows[-1]


@dataclass(slots=True)
class Scan:
    """The result of one pass; ``cameras`` are those of the pictures, ``infos`` of all topics."""

    image: Stream
    depth: tuple[Stream, ...]
    views: dict[str, Stream]
    cameras: dict[str, Camera | None] = field(default_factory=dict)
    infos: dict[str, Any] = field(default_factory=dict)
    tree: FrameTree = field(default_factory=FrameTree)
    read: Counter[str] = field(default_factory=Counter)

    @property
    def streams(self) -> tuple[Stream, ...]:
        return (self.image, *self.depth, *self.views.values())


def scan_bag(
    bag: Bag,
    image: Topic,
    infos: tuple[Topic, ...],
    poses: bool,
    read: Callable[[int], None],
    depth: tuple[Topic, ...],
    views: Mapping[str, Topic],
) -> Scan:
    """Read pictures, depth, calibrations and transforms, once.

    Unusable messages are counted in ``bag.dropped``, those of depth in its streams.
    ``read`` is called with the size of every message, and may raise to stop.

    Raises InputError: no usable picture.
    """
    dropped, known = bag.dropped, bag.topics
    scan = Scan(
        Stream(image.name, image.msgtype, dropped),
        tuple(Stream(t.name, t.msgtype, DroppedMessages(), check_depth) for t in depth),
        {name: Stream(view.name, view.msgtype, dropped) for name, view in views.items()},
    )
    streams = {stream.topic: stream for stream in scan.streams}
    of_image = {topic.name for topic in infos}
    names = streams.keys() | of_image
    kinds = {topics.TF, topics.ODOMETRY} if poses else set()
    kinds |= {topics.TF, topics.TRANSFORM, images.CAMERA_INFO} if len(streams) > 1 else set()
    names |= {name for name, topic in known.items() if topic.msgtype in kinds}

    for message in bag.messages(names, dropped):
        scan.read[message.topic] += 1
        read(len(message.data))
        kind, stream = known[message.topic].msgtype, streams.get(message.topic)
        try:
            content = decode(message.data, kind)
            if stream is not None:
                stream.add(message, content)
            elif kind == images.CAMERA_INFO:
                scan.infos.setdefault(message.topic, content)
                if message.topic in of_image:
                    _add_camera(scan, message.topic, content, dropped)
            elif kind == topics.TF:
                scan.tree.add_tf(content, static=message.topic.endswith("tf_static"))
            elif kind == topics.TRANSFORM:
                scan.tree.add_extrinsics(content, message.topic)
            else:
                scan.tree.add_odometry(content)
        except (SchemaError, CalibrationError) as error:
            counts = dropped if stream is None else stream.dropped
            counts.count(message.topic, str(error).rstrip("."))
        if sum(scan.read.values()) % _PRUNE_EVERY == 0 and scan.image.frame_id:
            scan.tree.prune(s.frame_id for s in scan.streams if s.frame_id)

    bag.count_missing(names, scan.read, dropped)
    try:
        scan.image.table()
    except InputError as error:
        raise InputError(f"{bag.path}: {error}.") from None
    return scan


def _add_camera(scan: Scan, topic: str, content: Any, dropped: DroppedMessages) -> None:
    camera = images.camera_of(content, topics.is_rectified(scan.image.topic))
    known = scan.cameras.setdefault(topic, camera)
    if known is not None and camera is not None and not images.same_camera(known, camera):
        dropped.remark(f"{topic}: the calibration changes; the first one is used")
