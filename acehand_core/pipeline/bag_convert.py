"""Converting a bag into a dataset and, optionally, another bag: ``acehand bag convert``.

The written bag has the original topics and ours, on the recording's clock.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from acehand_core.atomic import check_free
from acehand_core.errors import (
    AcehandError,
    InputError,
    Interrupted,
    OutputError,
    SchemaError,
    nearest,
)
from acehand_core.lerobot.dataset import episode_contents
from acehand_core.motion import DroppedMessages
from acehand_core.pipeline.bag_write import (
    WriteOptions,
    stoppable,
    stored_demonstrations,
    write_demonstration,
)
from acehand_core.pipeline.job import run_job
from acehand_core.pipeline.report import Failure, JobReport
from acehand_core.pipeline.settings import JobSettings, Span
from acehand_core.processes import release_memory
from acehand_core.recordings.bag import BagIndex
from acehand_core.recordings.bags.bag import Bag
from acehand_core.recordings.bags.library import decode
from acehand_core.recordings.bags.messages import OPTICAL, SHARED, STRING, TOPICS, Demonstration
from acehand_core.recordings.bags.writer import BagWriter, Storage, clean_siblings, load_library
from acehand_core.recordings.lerobot_video import is_dataset
from acehand_core.recordings.registry import Registry
from acehand_core.recordings.selection import hands_at, poses_at
from acehand_core.settings import group, like, setting
from acehand_core.types import Progress, TimestampsNs, no_progress

_REPORT_EVERY = 200
_BOOL = "std_msgs/msg/Bool"
#: Name of the custom data (rosbag2) with a written bag's origin.
BAG_ORIGIN = "acehand_origin"


@dataclass(frozen=True, slots=True)
class BagOrigin:
    """Origin of a written bag: hash of the bag read, settings by flag, hashes of episodes."""

    source_sha256: str
    settings: Mapping[str, Any]
    episodes: Mapping[int, str]

    @classmethod
    def of_bag(cls, path: Path) -> tuple[BagOrigin, dict[str, int]]:
        """Return a bag's origin and message counts. Raises OutputError if it has no origin."""
        try:
            with Bag(path) as bag:
                content, counts = json.loads(bag.custom_data[BAG_ORIGIN]), bag.counts
            episodes = {int(number): str(sha256) for number, sha256 in content["episodes"].items()}
            return cls(content["source_sha256"], content["settings"], episodes), counts
        except (InputError, KeyError, ValueError, TypeError, AttributeError) as error:
            raise OutputError(
                f"{path} exists and `existing=resume` cannot complete it: it is no bag that "
                "acehand wrote from a dataset. Move it away, or choose another name."
            ) from error

    def check_fits(self, path: Path, wanted: BagOrigin) -> None:
        """Raise OutputError if the bag at ``path`` differs by more than missing episodes."""
        same = (self.source_sha256, self.settings) == (wanted.source_sha256, wanted.settings)
        if not same or self.episodes.items() - wanted.episodes.items():
            raise OutputError(
                f"{path} exists and is not the bag of this conversion: it was made from another "
                "bag, with another `storage`, or has episodes that the dataset lacks. Resume with "
                "the same bag and settings, move it away, or choose another name."
            )


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """Settings of a bag's conversion."""

    bag: Path = setting(..., "rosbag2 folder, .mcap, .db3 or .bag", metavar="BAG", positional=True)
    job: JobSettings = group(JobSettings)
    bag_output: Path | None = setting(
        None,
        "write a bag (.mcap file or folder) with the original topics and ours",
        metavar="OUT",
        common=True,
    )
    episode_topic: str | None = setting(
        None,
        "cut into episodes by this topic: while a Bool is true, or from a String with the task to "
        "an empty one",
        metavar="TOPIC",
        common=True,
    )
    storage: Storage = like(WriteOptions, "storage", "mcap")

    def origin(self, index: BagIndex, episodes: Mapping[int, str]) -> BagOrigin:
        """Return what the written bag is made from."""
        return BagOrigin(index.whole.sha256 or "", {"storage": self.storage}, episodes)


@dataclass(frozen=True, slots=True)
class ConvertReport:
    """A finished conversion.

    Attributes:
        topics: those read, and messages written by topic.
        lost_messages: unusable messages by topic ("*": unknown topic).
        losses: those of ``notes`` about lost or damaged messages of the bag.
    """

    job: JobReport
    bag: str | None
    topics: Mapping[str, Any]
    lost_messages: Mapping[str, int]
    notes: tuple[str, ...]
    losses: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return {
            **self.job.to_json(),
            "bag": self.bag,
            "topics": dict(self.topics),
            "lost_messages": dict(self.lost_messages),
            "notes": list(self.notes),
        }


def convert_bag(
    options: ConvertOptions, progress: Progress = no_progress, cancel: threading.Event | None = None
) -> ConvertReport:
    """Make a dataset of a bag and, if wanted, a bag with the original topics and ours.

    A resumed run keeps a complete bag, and writes one that is missing or lacks episodes.

    Raises:
        InputError: the bag, its topics or the episodes are not usable: nothing was written.
        OutputError: an output exists; on resuming, one that is not of this conversion. A bag that
            cannot be written later is a failure in the job's report.
        Interrupted: its report is a ``ConvertReport`` of what was finished.
    """
    if options.bag_output is not None:
        load_library()
        clean_siblings(options.bag_output)
        if options.job.existing != "resume":
            check_free(options.bag_output, options.job.existing == "overwrite")
        output, bag = options.bag_output.absolute(), options.bag.absolute()
        if output == bag or output.is_relative_to(bag):
            raise OutputError(
                f"{options.bag_output}: is inside the bag that is read; choose another path."
            )

    progress = stoppable(progress, cancel)
    registry = Registry()
    try:
        index = registry.bags.index(options.bag, options.job.reading, progress)
        written, dataset = options.bag_output, options.job.output
        if options.job.existing == "resume" and written is not None and written.exists():
            # Refused before any work: another file than the resumed run's bag.
            contents = episode_contents(dataset) if is_dataset(dataset) else {}
            BagOrigin.of_bag(written)[0].check_fits(written, options.origin(index, contents))
        return _convert(options, index, registry, progress)
    except Interrupted:
        raise
    except KeyboardInterrupt as stop:
        nothing = JobReport(None, 0.0, 0.0, ())
        raise Interrupted(ConvertReport(nothing, None, {}, {}, ())) from stop


def _convert(
    options: ConvertOptions, index: BagIndex, registry: Registry, progress: Progress
) -> ConvertReport:
    job = replace(options.job, spans=_split(options, index))
    written: Mapping[str, int] | None = None
    passed = DroppedMessages()
    stopped: KeyboardInterrupt | None = None
    try:
        done = run_job([options.bag], job, progress, registry)
    except Interrupted as stop:
        done, stopped = stop.report, stop
    try:
        release_memory()
        new = (e.episode_index for e in done.episodes if e.episode_index is not None)
        numbers = tuple(sorted({*new, *done.skipped_episodes}))
        if options.bag_output and numbers and not job.dry_run and not stopped:
            written = _write_bag(options, options.bag_output, index, numbers, progress, passed)
    except KeyboardInterrupt as stop:
        stopped = stop
    except AcehandError as error:  # the dataset is complete
        failures = (*done.failures, Failure(str(options.bag_output), error))
        done = replace(done, failures=failures)
    # The main job repeats the notes of opening the bag.
    notes = (*index.dropped.sentences(), *done.notes, *passed.remarks)
    report = ConvertReport(
        job=done,
        bag=None if written is None else str(options.bag_output),
        topics={**index.topics, "written": dict(written or {})},
        lost_messages=dict(index.dropped.by_topic | passed.by_topic),
        notes=tuple(dict.fromkeys(notes)),
        # Depth that was found is no loss.
        losses=tuple(s for s in index.dropped.sentences() if not s.startswith("depth of ")),
    )
    if stopped is not None:
        raise Interrupted(report) from stopped
    return report


def _split(options: ConvertOptions, index: BagIndex) -> tuple[Span, ...] | None:
    """Return the spans that become episodes; None: by the settings of the main job."""
    topic, reading = options.episode_topic, options.job.reading
    if topic is None:
        return None
    if options.job.split != "none":
        raise InputError(
            f"`split={options.job.split}` and `episode_topic` both cut; give only one."
        )
    if reading.start_s is not None or reading.duration_s is not None:
        raise InputError("`start` and `duration` cannot be combined with `episode_topic`.")
    return tuple(_marked_episodes(index, topic))


def _marked_episodes(index: BagIndex, topic: str) -> list[Span]:
    """Return the spans from a true or a text to a false or an empty text of a topic.

    Raises InputError for a topic that is no std_msgs Bool or String, or marks no frame.
    """
    with index.bag() as bag:
        fitting = [n for n, t in bag.topics.items() if t.msgtype in (_BOOL, STRING)]
        if topic not in fitting:
            raise InputError(
                f"{index.whole.source}: `episode_topic={topic!r}` is no std_msgs Bool or String "
                f"topic; {nearest(topic, fitting)}"
            )
        kind = bag.topics[topic].msgtype
        events = []
        for message in bag.messages({topic}, DroppedMessages()):
            try:
                events.append((message.log_ns, decode(message.data, kind).data))
            except SchemaError as error:
                index.dropped.count(topic, str(error))

    # Without a header they are compared with the frames' receipt times.
    log = np.maximum.accumulate(index.log_ns)
    spans: list[Span] = []
    start: tuple[int, str | None] | None = None
    for time, value in [*sorted(events, key=lambda e: e[0]), (int(log[-1]) + 1, False)]:
        at = int(np.searchsorted(log, time))
        if start is not None and at > start[0]:
            spans.append(Span(start[0], at, start[1]))
        start = (at, value if isinstance(value, str) else None) if value else None

    if not spans:
        raise InputError(f"{index.whole.source}: {topic} marks no episode with a frame in it.")
    return spans


def _write_bag(
    options: ConvertOptions,
    output: Path,
    index: BagIndex,
    numbers: tuple[int, ...],
    progress: Progress,
    dropped: DroppedMessages,
) -> dict[str, int]:
    """Write the original topics, and our messages of these episodes; return counts by topic."""
    origin = options.origin(index, episode_contents(options.job.output, numbers))
    overwrite = options.job.existing == "overwrite"

    if options.job.existing == "resume" and output.exists():
        earlier, counts = BagOrigin.of_bag(output)
        if earlier == origin:
            dropped.remark(f"{output}: already complete")
            return counts
        earlier.check_fits(output, origin)
        dropped.remark(f"{output}: lacked episodes of the dataset, written anew")
        overwrite = True

    with index.bag() as bag:
        topics = {name: t for name, t in bag.topics.items() if t.serialization != "ros1"}
        if unknown := ", ".join(bag.topics.keys() - topics.keys()):
            dropped.remark(f"of types that ROS 2 does not have, not copied: {unknown}")
        with BagWriter(
            output, options.storage, overwrite, bag.definitions, recorded_on=bag.distro
        ) as writer:
            writer.describe({BAG_ORIGIN: json.dumps(asdict(origin), sort_keys=True)})
            for topic in topics.values():
                writer.add_topic(topic)
            total = max(sum(bag.counts.values()), 1)
            for count, message in enumerate(bag.messages(topics.keys(), dropped)):
                writer.write_raw(
                    message.topic, topics[message.topic].msgtype, message.log_ns, message.data
                )
                if count % _REPORT_EVERY == 0:
                    progress("copy the bag", min(count, total - 1), total)
            progress("copy the bag", total, total)
            renamed = _renamed(topics)
            if renamed:
                dropped.remark(f"topics taken, written as {', '.join(renamed.values())}")
            job = options.job
            for demo, _, source_ns in stored_demonstrations(
                job.output, numbers, job.robot, job.robot_model
            ):
                demo = _on_clock(demo, source_ns, index)
                release_memory()
                write_demonstration(writer, demo, renamed, progress)
        return dict(writer.counts)


def _on_clock(demo: Demonstration, source_ns: TimestampsNs, index: BagIndex) -> Demonstration:
    """Return the episode at its pictures, with their header stamps and receipt times.

    The robot moves on lines between frames; pictures that the dataset repeats count once.
    ``source_ns`` are the times of every frame's picture.
    """
    at = np.searchsorted(index.whole.timestamps_ns, source_ns)
    at = np.minimum(at, len(index.whole.timestamps_ns) - 1)
    if not np.array_equal(index.whole.timestamps_ns[at], source_ns):
        raise InputError(f"{index.whole.source}: has no frame at the times stored in the dataset.")
    keep = np.flatnonzero(np.concatenate([[True], np.diff(at) > 0]))
    at = at[keep]
    times = index.whole.timestamps_ns[at]
    if not np.array_equal(times, demo.stamps_ns):  # else nothing is copied: hands are large
        demo = _at(demo, times, keep)
    return replace(
        demo,
        stamps_ns=index.header_ns[at],
        log_ns=index.log_ns[at],
        clock_ns=times,
        camera_frame=index.whole.camera_frame or OPTICAL,
        # Whoever named the camera's frame says where it is.
        publish_camera_tf=not index.whole.camera_frame,
        T_world_camera=None if index.topics["world_frame"] is not None else demo.T_world_camera,
    )


def _at(
    demo: Demonstration, times: Int[np.ndarray, "N"], frames: Int[np.ndarray, "N"]
) -> Demonstration:
    """Return a demonstration at other times; ``frames`` show the same pictures."""
    motion, before = demo.motion, demo.stamps_ns

    def poses(values: Float[np.ndarray, "T *n 4 4"] | None) -> Float[np.ndarray, "N *n 4 4"] | None:
        return None if values is None else poses_at(values, before, times)

    def on_lines(values: Float[np.ndarray, "T 2 Q"]) -> Float[np.ndarray, "N 2 Q"]:
        columns = values.reshape(len(values), -1).T
        between = np.stack([np.interp(times, before, column) for column in columns], axis=1)
        return between.reshape(len(times), *values.shape[1:])

    return replace(
        demo,
        stamps_ns=times,
        log_ns=times,
        joints=on_lines(demo.joints),
        commands=on_lines(demo.commands),
        confidence=demo.confidence[frames],
        motion=None if motion is None else hands_at(motion, times, motion.fps),
        T_camera_base=poses(demo.T_camera_base),
        T_camera_wrist=poses(demo.T_camera_wrist),
        T_world_camera=poses(demo.T_world_camera),
    )


def _renamed(topics: Mapping[str, Any]) -> dict[str, str]:
    """Return new names for topics of ours that the bag has."""
    out = {}
    for name in TOPICS:
        if name not in topics:
            continue
        if name in SHARED and topics[name].msgtype == TOPICS[name].msgtype:
            continue
        new = f"/acehand{name}"
        while new in topics:
            new += "_"
        out[name] = new
    return out
