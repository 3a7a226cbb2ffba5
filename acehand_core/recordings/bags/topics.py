"""What a bag holds, and which topics have the pictures, the calibration and the camera's pose."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from acehand_core.errors import InputError, nearest
from acehand_core.recordings.bags.bag import Bag
from acehand_core.recordings.bags.images import CAMERA_INFO, COMPRESSED_IMAGE, IMAGE
from acehand_core.recordings.bags.library import COMPRESSED_VIDEO, FFMPEG_PACKET, store_for
from acehand_core.recordings.bags.records import UNKNOWN_TOPIC, BytesRead, DroppedMessages, Topic
from acehand_core.types import Progress

TF = "tf2_msgs/msg/TFMessage"
ODOMETRY = "nav_msgs/msg/Odometry"
#: Types that hold pictures; of two forms of the same pictures the first is taken.
PICTURES = (IMAGE, COMPRESSED_IMAGE, FFMPEG_PACKET, COMPRESSED_VIDEO)
_TRANSPORTS = ("compressed", "ffmpeg", "h264", "image_raw", "image_color", "image_rect_color",
               "image_rect", "image_mono", "image", "compressed_video", "video")  # fmt: skip
_DEPTH = re.compile(r"depth|disparity|/range|points", re.IGNORECASE)
_RIGHT = ((r"right", "left"), (r"infra2", "infra1"), (r"cam1(?!\d)", "cam0"), (r"_r(?=/|$)", "_l"))


def choose_image_topic(
    topics: Mapping[str, Topic], counts: Mapping[str, int], given: str | None, bag: str
) -> tuple[Topic, str | None]:
    """Return the topic with pictures: the given one, the only one, or the left of two eyes.

    And what was decided for the user, if something was.
    ``counts`` has the number of messages where it is known; an empty topic is never chosen.

    Raises:
        InputError: there is none, there are several, or the given one is not such a topic or empty.
    """
    pictures = {name: t for name, t in topics.items() if t.msgtype in PICTURES}
    if given is not None:
        return _named(topics, counts, given, "image-topic", PICTURES, bag), None

    if not pictures:
        kinds = sorted({t.msgtype for t in topics.values()})
        raise InputError(
            f"{bag}: no topic with pictures; valid types: {', '.join(PICTURES)}. "
            f"The bag holds {', '.join(kinds) or 'no topic'}."
        )

    filled = {name: t for name, t in pictures.items() if counts.get(name, 1)}
    if not filled:
        raise InputError(f"{bag}: {', '.join(pictures)} has zero messages, so there is no picture.")
    colour = {name: t for name, t in filled.items() if not _DEPTH.search(name)} or filled
    cameras: dict[str, Topic] = {}
    for topic in sorted(colour.values(), key=lambda t: PICTURES.index(t.msgtype)):
        cameras.setdefault(camera_namespace(topic.name), topic)

    if len(cameras) == 1:
        return next(iter(cameras.values())), None
    if len(cameras) == 2 and (left := _left_of(list(cameras))) is not None:
        other = next(name for name in cameras if name != left)
        note = f"stereo: {cameras[left].name} is read, {cameras[other].name} is not"
        return cameras[left], note

    raise InputError(
        f"{bag}: several topics with pictures: {', '.join(t.name for t in cameras.values())}; "
        "choose one with --image-topic."
    )


def choose_camera_info(
    topics: Mapping[str, Topic], counts: Mapping[str, int], image: str, given: str | None, bag: str
) -> tuple[Topic, ...]:
    """Return the topics that may hold the image topic's calibration, the likeliest first.

    Raises:
        InputError: the given one is not such a topic, or has no message.
    """
    if given is not None:
        return (_named(topics, counts, given, "camera-info-topic", (CAMERA_INFO,), bag),)
    infos = [
        topic
        for name, topic in topics.items()
        if topic.msgtype == CAMERA_INFO and counts.get(name, 1) and not name.startswith("/acehand/")
    ]
    own = [topic for topic in infos if camera_namespace(topic.name) == camera_namespace(image)]
    return tuple(own[:1] or (infos if len(infos) == 1 else ()))


def camera_namespace(topic: str) -> str:
    """Return what the topics of one camera share: /cam of /cam/image_raw/compressed."""
    parts = topic.strip("/").split("/")
    while len(parts) > 1 and (parts[-1] in _TRANSPORTS or parts[-1] == "camera_info"):
        parts.pop()
    return "/" + "/".join(parts)


def is_rectified(topic: str) -> bool:
    """Tell whether an image topic's name says that its pictures are rectified."""
    return re.search(r"(^|[/_])rect(ified)?([/_]|$)|image_rect", topic) is not None


def _named(
    topics: Mapping[str, Topic],
    counts: Mapping[str, int],
    given: str,
    flag: str,
    types: tuple[str, ...],
    bag: str,
) -> Topic:
    topic = topics.get(given) or topics.get(f"/{given.lstrip('/')}")
    if topic is None:
        fitting = [name for name, t in topics.items() if t.msgtype in types]
        raise InputError(f"{bag}: --{flag} {given!r} is not there; {nearest(given, fitting)}")
    if topic.msgtype not in types:
        raise InputError(
            f"{bag}: --{flag} {given!r} is of type {topic.msgtype}; valid: {', '.join(types)}."
        )
    if counts.get(topic.name) == 0:
        raise InputError(f"{bag}: --{flag} {given!r} has zero messages.")
    return topic


def _left_of(names: list[str]) -> str | None:
    for right, left in _RIGHT:
        for name in names:
            other = re.sub(right, left, name)
            if other != name and other in names:
                return other
    return None


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """One topic: its messages that can be read, and whether its type is known here."""

    name: str
    msgtype: str
    messages: int
    known_type: bool


@dataclass(frozen=True, slots=True)
class BagInfo:
    """A bag. ``image`` and ``camera_info`` are what a conversion would read, or None.

    ``remark`` says why no image topic would be read. Times are those of receipt.
    """

    path: str
    storage: str
    compression: str
    distro: str
    files: tuple[str, ...]
    messages: int
    start_ns: int | None
    end_ns: int | None
    topics: tuple[TopicInfo, ...]
    image: str | None
    camera_info: str | None
    remark: str | None
    lost_messages: dict[str, int]
    notes: tuple[str, ...]

    @property
    def duration_s(self) -> float:
        """Seconds from the first message to the last."""
        if self.start_ns is None or self.end_ns is None:
            return 0.0
        return (self.end_ns - self.start_ns) / 1e9

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``acehand bag info --json`` prints."""
        topics = {t.name: {"type": t.msgtype, "messages": t.messages, "known_type": t.known_type}
                  for t in self.topics}  # fmt: skip
        values = asdict(self) | {"topics": topics, "duration_s": self.duration_s}
        values["bag"] = values.pop("path")
        return values


def bag_info(path: Path, progress: Progress | None = None) -> BagInfo:
    """Read a whole bag once and return what is in it.

    Raises:
        InputError: it is not a bag, or nothing of it can be read.
    """
    read = BytesRead("read the bag", path, progress)
    with Bag(path, read.still) as bag:
        dropped: DroppedMessages = bag.dropped
        counts: Counter[str] = Counter()

        first, last = None, None
        for message in bag.messages(None, dropped):
            counts[message.topic] += 1
            read.add(len(message.data))
            first = message.log_ns if first is None else min(first, message.log_ns)
            last = message.log_ns if last is None else max(last, message.log_ns)

        read.end_pass(1)
        known = store_for(bag.distro).fielddefs

        for name, promised in bag.promised.items():
            missing = promised - counts[name] - dropped.unread[name]
            if missing > 0:
                dropped.forget(UNKNOWN_TOPIC)
                dropped.count(name, "listed in metadata.yaml but not in the files", missing)

        image, info, remark = None, None, None
        totals = {name: counts[name] for name in bag.topics}
        try:
            topic, remark = choose_image_topic(bag.topics, totals, None, str(path))
            image = topic.name
            infos = choose_camera_info(bag.topics, totals, image, None, str(path))
            info = infos[0].name if infos else None
        except InputError as error:
            remark = str(error)

        return BagInfo(
            path=str(path),
            storage=bag.storage,
            compression=bag.compression,
            distro=bag.distro,
            files=tuple(file.name for file in bag.storage_paths),
            messages=sum(counts.values()),
            start_ns=first,
            end_ns=last,
            topics=tuple(
                TopicInfo(name, topic.msgtype, counts[name], topic.msgtype in known)
                for name, topic in sorted(bag.topics.items())
            ),
            image=image,
            camera_info=info,
            remark=remark,
            lost_messages=dict(dropped.by_topic),
            notes=dropped.sentences(),
        )
