"""What a bag holds, whether it is whole, and what would be read from it."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from acehand_core.data.bags.bag import Bag
from acehand_core.data.bags.records import BytesRead, Losses, Progress
from acehand_core.data.bags.topics import choose_camera_info, choose_image_topic
from acehand_core.data.bags.typestore import store_for
from acehand_core.errors import InputError


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
        out = asdict(self) | {"topics": topics, "duration_s": self.duration_s}
        out["bag"] = out.pop("path")
        return out


def bag_info(
    path: Path,
    image_topic: str | None = None,
    camera_info_topic: str | None = None,
    progress: Progress | None = None,
) -> BagInfo:
    """Read a whole bag once and say what is in it.

    Raises:
        InputError: it is no bag, or nothing of it can be read.
    """
    read = BytesRead("read the bag", path, progress)
    with Bag(path, read.still) as bag:
        losses: Losses = bag.losses
        counts: Counter[str] = Counter()
        first, last = None, None
        for message in bag.messages(None, losses):
            counts[message.topic] += 1
            read.add(len(message.data))
            first = message.log_ns if first is None else min(first, message.log_ns)
            last = message.log_ns if last is None else max(last, message.log_ns)
        read.end_pass(1)
        known = store_for(bag.distro).fielddefs
        missing = {
            name: promised - counts[name] - losses.unread[name]
            for name, promised in bag.promised.items()
        }
        for name, count in missing.items():
            if count > 0:
                losses.forget("*")
                losses.lose(name, "listed in metadata.yaml but not in the files", count)
        image, info, remark = None, None, None
        totals = {name: counts[name] for name in bag.topics}
        try:
            choice = choose_image_topic(bag.topics, totals, image_topic, str(path))
            image, remark = choice.topic.name, choice.note
            found = choose_camera_info(bag.topics, totals, image, camera_info_topic, str(path))
            info = found[0].name if found else None
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
            lost_messages=dict(losses.by_topic),
            notes=losses.sentences(),
        )
