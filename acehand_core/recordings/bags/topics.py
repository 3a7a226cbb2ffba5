"""The content of a bag, and the choice of its image and camera_info topics."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from acehand_core.errors import InputError, nearest
from acehand_core.recordings.bags import library
from acehand_core.recordings.bags.bag import Bag
from acehand_core.recordings.bags.images import CAMERA_INFO, COMPRESSED_IMAGE, IMAGE
from acehand_core.recordings.bags.records import BytesRead, Topic
from acehand_core.types import Progress

TF = "tf2_msgs/msg/TFMessage"
ODOMETRY = "nav_msgs/msg/Odometry"
#: Of RealSense's viewer, on the topic CAMERA/tf/GROUP.
TRANSFORM = "geometry_msgs/msg/Transform"
#: Types with pictures, the preferred first.
PICTURES = (IMAGE, COMPRESSED_IMAGE, library.FFMPEG_PACKET, library.COMPRESSED_VIDEO)
DEPTHS = (IMAGE, COMPRESSED_IMAGE)
_TRANSPORT = re.compile(
    r"(compressed_)?video|compressed(Depth)?|ffmpeg|h264|data|info|image(_(rect|(rect_)?(raw|color)|mono))?"
)
_NO_PICTURE = re.compile(r"depth|disparity|/range|points|/stereo/image_raw", re.IGNORECASE)
_DEPTH = re.compile(r"depth|/stereo/image_raw", re.IGNORECASE)  # the second of an OAK
_RIGHT = ((r"right", "left"), (r"infra2", "infra1"), (r"cam1(?!\d)", "cam0"), (r"_r(?=/|$)", "_l"))


def choose_image_topic(
    bag: Bag, counts: Mapping[str, int], given: str | None
) -> tuple[Topic, str | None]:
    """Return the image topic (the given one, the only one, or the left of two) and a note on it.

    ``counts`` are the known numbers of messages; an empty topic is never chosen. Raises InputError.
    """
    if given is not None:
        return _named(bag, counts, given, "image_topic", PICTURES), None
    pictures = {name: t for name, t in bag.topics.items() if t.msgtype in PICTURES}
    if not pictures:
        kinds = sorted({t.msgtype for t in bag.topics.values()})
        raise InputError(
            f"{bag.path}: no topic with pictures; valid types: {', '.join(PICTURES)}. "
            f"The bag holds {', '.join(kinds) or 'no topic'}."
        )

    cameras = _cameras(bag, counts)
    if not cameras:
        raise InputError(f"{bag.path}: {', '.join(pictures)} has zero messages.")
    if len(cameras) == 1:
        return next(iter(cameras.values())), None
    if len(cameras) == 2 and (left := _left_of(list(cameras))) is not None:
        right = cameras[next(name for name in cameras if name != left)]
        return cameras[left], f"stereo: {cameras[left].name} is read, {right.name} is not"

    raise InputError(
        f"{bag.path}: several topics with pictures: {', '.join(t.name for t in cameras.values())}; "
        "choose one with `image_topic`."
    )


def _cameras(bag: Bag, counts: Mapping[str, int]) -> dict[str, Topic]:
    """Return the preferred topic of each camera by namespace; depth only if nothing else is."""
    pictures = _filled(bag, counts, PICTURES)
    colour = {name: t for name, t in pictures.items() if not _NO_PICTURE.search(name)} or pictures
    cameras: dict[str, Topic] = {}
    for topic in sorted(colour.values(), key=lambda t: PICTURES.index(t.msgtype)):
        cameras.setdefault(camera_namespace(topic.name), topic)
    return cameras


def choose_depth(
    bag: Bag, counts: Mapping[str, int], image: str, given: str | None
) -> tuple[Topic, ...]:
    """Return topics that may have depth: the given one, or those named so. Raises InputError."""
    if given == "none":
        return ()
    if given is not None:
        topic = _named(bag, counts, given, "depth_topic", DEPTHS)
        if topic.name == image:
            raise InputError(f"{bag.path}: `depth_topic={given!r}` is that of the pictures.")
        return (topic,)
    candidates: dict[str, Topic] = {}
    likely = _filled(bag, counts, DEPTHS)
    for name, topic in sorted(likely.items(), key=lambda entry: entry[1].msgtype != IMAGE):
        if _DEPTH.search(name) and name != image and not name.endswith("/compressed"):
            candidates.setdefault(name.removesuffix("/compressedDepth"), topic)
    return tuple(candidates.values())


def other_cameras(bag: Bag, counts: Mapping[str, int], image: str) -> dict[str, Topic]:
    """Return the topics of the cameras besides that of ``image``, by namespace."""
    own = camera_namespace(image)
    return {name: t for name, t in _cameras(bag, counts).items() if name != own}


def choose_views(
    bag: Bag, counts: Mapping[str, int], image: str, given: str | None
) -> dict[str, Topic]:
    """Return the topics of the views by name: topics, or words that one camera's name has.

    The pictures' own camera is left out. Raises InputError.
    """
    own, others = camera_namespace(image), other_cameras(bag, counts, image)
    views: dict[str, Topic] = {}
    for name in (word.strip() for word in given.split(",")) if given is not None else ():
        word = re.compile(rf"(^|[/_]){re.escape(name)}([/_]|$)")
        named = [topic for camera, topic in others.items() if word.search(camera)]
        if "/" in name:
            named = [_named(bag, counts, name, "views", PICTURES)]
        if len(named) > 1 or not (named or word.search(own)):
            fits = ", ".join(t.name for t in named or others.values()) or "no other camera"
            raise InputError(
                f"{bag.path}: `views={name!r}` names {len(named)} cameras; valid: {fits}."
            )
        for topic in named:
            if camera_namespace(topic.name) != own:
                views[camera_namespace(name)[1:].replace("/", "_")] = topic
    if given is not None and not views:
        raise InputError(f"{bag.path}: `views={given!r}` names no camera besides {image}.")
    return views


def choose_camera_info(
    bag: Bag, counts: Mapping[str, int], image: str, given: str | None
) -> tuple[Topic, ...]:
    """Return the camera_info topics of an image topic, the likeliest first. Raises InputError."""
    if given is not None:
        return (_named(bag, counts, given, "camera_info_topic", (CAMERA_INFO,)),)
    known = _filled(bag, counts, (CAMERA_INFO,))
    infos = [topic for name, topic in known.items() if not name.startswith("/acehand/")]
    own = [topic for topic in infos if camera_namespace(topic.name) == camera_namespace(image)]
    return tuple(own[:1] or (infos if len(infos) == 1 else ()))


def camera_namespace(topic: str) -> str:
    """Return the prefix of a camera's topics: /cam of /cam/image_raw/compressed."""
    parts = topic.strip("/").split("/")
    while len(parts) > 1 and (parts[-1] == "camera_info" or _TRANSPORT.fullmatch(parts[-1])):
        parts.pop()
    return "/" + "/".join(parts)


def is_rectified(topic: str) -> bool:
    """Return whether the name of an image topic means rectified pictures."""
    return re.search(r"(^|[/_])rect(ified)?([/_]|$)|image_rect", topic) is not None


def _filled(bag: Bag, counts: Mapping[str, int], types: tuple[str, ...]) -> dict[str, Topic]:
    """Return the topics of some types that are not known to be empty."""
    return {n: t for n, t in bag.topics.items() if t.msgtype in types and counts.get(n, 1)}


def _named(
    bag: Bag, counts: Mapping[str, int], given: str, setting: str, types: tuple[str, ...]
) -> Topic:
    topics, where = bag.topics, f"{bag.path}: `{setting}={given}`"
    topic = topics.get(given) or topics.get(f"/{given.lstrip('/')}")
    if topic is None:
        fitting = [name for name, t in topics.items() if t.msgtype in types]
        raise InputError(f"{where} does not exist; {nearest(given, fitting)}")
    if topic.msgtype not in types:
        raise InputError(f"{where} is of type {topic.msgtype}; valid: {', '.join(types)}.")
    if counts.get(topic.name) == 0:
        raise InputError(f"{where} has zero messages.")
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
    """One topic: its readable messages, and whether its type can be decoded."""

    name: str
    msgtype: str
    messages: int
    known_type: bool


@dataclass(frozen=True, slots=True)
class BagInfo:
    """A bag. ``image`` and ``camera_info`` are the topics that a conversion would read.

    ``depth`` are topics that it would try for depth, ``views`` those that the
    setting of that name may name. ``remark`` is a note on them, or why there is none. Times are
    those of receipt.
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
    depth: tuple[str, ...]
    views: tuple[str, ...]
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
        """Return the description as JSON."""
        values = asdict(self) | {"duration_s": self.duration_s}
        values["topics"] = {
            t.name: {"type": t.msgtype, "messages": t.messages, "known_type": t.known_type}
            for t in self.topics
        }
        values["bag"] = values.pop("path")
        return values


def bag_info(path: Path, progress: Progress | None = None) -> BagInfo:
    """Read a whole bag and describe it. Raises InputError: not a bag, or nothing is readable."""
    read = BytesRead("read the bag", path, progress)
    with Bag(path, read.still) as bag:
        dropped = bag.dropped
        counts: Counter[str] = Counter()
        first, last = None, None
        for message in bag.messages(None, dropped):
            counts[message.topic] += 1
            read.add(len(message.data))
            first = message.log_ns if first is None else min(first, message.log_ns)
            last = message.log_ns if last is None else max(last, message.log_ns)
        read.end_pass(1)
        bag.count_missing(bag.promised.keys(), counts, dropped)

        image, info, remark = None, None, None
        depth, views = [], []
        totals = {name: counts[name] for name in bag.topics}
        distro = bag.distro if bag.distro in library.DISTROS else library.LATEST
        known = library.typestore(distro).fielddefs
        try:
            topic, remark = choose_image_topic(bag, totals, None)
            image = topic.name
            infos = choose_camera_info(bag, totals, image, None)
            info = infos[0].name if infos else None
            depth = [t.name for t in choose_depth(bag, totals, image, None)]
            views = [t.name for t in other_cameras(bag, totals, image).values()]
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
            depth=tuple(depth),
            views=tuple(views),
            remark=remark,
            lost_messages=dict(dropped.by_topic),
            notes=dropped.sentences(),
        )
