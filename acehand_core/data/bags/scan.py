"""One pass over a bag: where its pictures are, when they were taken, and by which camera."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Int

from acehand_core.data.bags import packets, topics
from acehand_core.data.bags.bag import Bag
from acehand_core.data.bags.camera_info import CAMERA_INFO, camera_of, same_camera
from acehand_core.data.bags.images import COMPRESSED_IMAGE, IMAGE, check_image
from acehand_core.data.bags.poses import FrameTree
from acehand_core.data.bags.records import UNKNOWN_TOPIC, Losses, Message
from acehand_core.data.bags.typestore import COMPRESSED_VIDEO, decode
from acehand_core.errors import CalibrationError, InputError, SchemaError
from acehand_core.geometry.cameras import Camera

_PRUNE_EVERY = 20_000


@dataclass(slots=True)
class Scan:
    """What one pass found, one row per usable picture message, as stored."""

    topic: str
    msgtype: str
    stamps: array[int] = field(default_factory=lambda: array("q"))
    logs: array[int] = field(default_factory=lambda: array("q"))
    places: array[int] = field(default_factory=lambda: array("q"))  # file and place, 4 per row
    sizes: array[int] = field(default_factory=lambda: array("q"))  # width and height
    keys: list[int] = field(default_factory=list)
    codec: str | None = None
    frame_id: str = ""
    cameras: dict[str, Camera | None] = field(default_factory=dict)
    tree: FrameTree = field(default_factory=FrameTree)
    read: Counter[str] = field(default_factory=Counter)

    def table(self) -> Int[np.ndarray, "N 4"]:
        """Return file and place of each picture."""
        return np.array(self.places, np.int64).reshape(-1, 4)

    def size_table(self) -> Int[np.ndarray, "N 2"]:
        """Return width and height of each picture."""
        return np.array(self.sizes, np.int64).reshape(-1, 2)


def scan_bag(
    bag: Bag,
    image: topics.Topic,
    infos: tuple[topics.Topic, ...],
    poses: bool,
    losses: Losses,
    read: Callable[[int], None],
) -> Scan:
    """Read the pictures' messages and what says where the camera is, once.

    Nothing of a picture is kept. Messages that cannot be used are counted in ``losses``. ``read``
    is told the bytes of every message, and may raise to stop.

    Raises:
        InputError: video packets of an unknown codec, or not one picture that can be used.
    """
    scan = Scan(image.name, image.msgtype)
    known = bag.topics
    names = {image.name, *(topic.name for topic in infos)}
    if poses:
        names |= {n for n, t in known.items() if t.msgtype in (topics.TF, topics.ODOMETRY)}
    for message in bag.messages(names, losses):
        scan.read[message.topic] += 1
        read(len(message.data))
        kind = known[message.topic].msgtype
        try:
            _take(scan, message, kind, losses)
        except (SchemaError, CalibrationError) as error:
            losses.lose(message.topic, str(error).rstrip("."))
        if poses and sum(scan.read.values()) % _PRUNE_EVERY == 0 and scan.frame_id:
            scan.tree.prune(scan.frame_id)
    _count_what_is_missing(bag.promised, scan.read, names, losses)
    if not scan.stamps:
        reasons = "; ".join(losses.sentences()) or "the topic has zero messages"
        raise InputError(f"{bag.path}: no picture of {image.name} can be used: {reasons}.")
    return scan


def _take(scan: Scan, message: Message, kind: str, losses: Losses) -> None:
    content = decode(message.data, kind)
    if message.topic == scan.topic:
        _take_picture(scan, message, content)
    elif kind == CAMERA_INFO:
        camera = camera_of(content, topics.is_rectified(scan.topic))
        known = scan.cameras.setdefault(message.topic, camera)
        if known is not None and camera is not None and not same_camera(known, camera):
            losses.remark(f"{message.topic}: the calibration changes; the first one is used")
    elif kind == topics.TF:
        scan.tree.add_tf(content, static=message.topic.endswith("tf_static"))
    else:
        scan.tree.add_odometry(content)


def _take_picture(scan: Scan, message: Message, content: Any) -> None:
    kind = scan.msgtype
    if kind in (IMAGE, COMPRESSED_IMAGE):
        size = check_image(content, kind)
    else:
        size = _packet_size(scan, content)
    stamp = content.timestamp if kind == COMPRESSED_VIDEO else content.header.stamp
    frame_id = content.frame_id if kind == COMPRESSED_VIDEO else content.header.frame_id
    scan.frame_id = scan.frame_id or frame_id.lstrip("/")
    scan.stamps.append(stamp.sec * 10**9 + stamp.nanosec)
    scan.logs.append(message.log_ns)
    scan.places.extend((message.file, *message.place))
    scan.sizes.extend(size)


def _packet_size(scan: Scan, content: Any) -> tuple[int, int]:
    """Return the size of the stream's pictures; the first key frame tells."""
    codec = packets.codec_of(content, scan.msgtype)
    scan.codec = scan.codec or codec
    if codec != scan.codec:
        raise SchemaError(f"codec changes from {scan.codec} to {codec}")
    if len(content.data) == 0:
        raise SchemaError("an empty packet")
    if packets.is_key(content, scan.msgtype, codec):
        data = bytes(content.data)
        decoder = packets.PacketDecoder(codec, [0], 1, lambda _: data)
        picture = next((image for _, image in decoder.decode(0)), None)
        if picture is None:
            raise SchemaError("a key frame that does not decode")
        scan.keys.append(len(scan.stamps))
        return picture.shape[1], picture.shape[0]
    if not scan.keys:
        raise SchemaError("a packet before the first key frame")
    return scan.sizes[-2], scan.sizes[-1]


def _count_what_is_missing(
    promised: Mapping[str, int], read: Mapping[str, int], names: set[str], losses: Losses
) -> None:
    """Count what metadata.yaml lists and the files no longer hold."""
    for name in sorted(names & promised.keys()):
        missing = promised[name] - read.get(name, 0) - losses.unread.get(name, 0)
        if missing > 0:
            losses.lose(name, "listed in metadata.yaml but not in the files", missing)
            # The exact count replaces the guess of at least one.
            losses.forget(UNKNOWN_TOPIC)
