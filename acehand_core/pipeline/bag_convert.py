"""A bag into a dataset and, if wanted, into another bag: what ``acehand bag convert`` calls.

The written bag has the original topics and ours, on the recording's own clock.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
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
from acehand_core.motion import Recording
from acehand_core.pipeline.bag_write import (
    of_episode,
    read_episodes,
    stoppable,
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
from acehand_core.recordings.bags.records import BagOptions, DroppedMessages
from acehand_core.recordings.bags.writer import BagWriter, Storage, clean_beside, load_library
from acehand_core.recordings.lerobot_video import is_dataset
from acehand_core.recordings.registry import Registry
from acehand_core.recordings.selection import hands_at, poses_at
from acehand_core.settings import group, setting
from acehand_core.types import Progress, TimestampsNs, no_progress
from retarget.robots.robot import load_stored_robot

_REPORT_EVERY = 200
_BOOL = "std_msgs/msg/Bool"
#: Name of the custom data (rosbag2) of a bag that was made of a dataset.
BAG_ORIGIN = "acehand_origin"


@dataclass(frozen=True, slots=True)
class BagOrigin:
    """What a converted bag was made from.

    ``source_sha256`` is the content of the bag that was converted, ``settings`` are named like the
    flags, and ``episodes`` has the content of each of the dataset's episodes, by number.
    """

    source_sha256: str
    settings: Mapping[str, Any]
    episodes: Mapping[int, str]

    @classmethod
    def of_bag(cls, path: Path) -> tuple[BagOrigin, dict[str, int]]:
        """Return the origin that a bag records, and its messages by topic.

        Raises:
            OutputError: it is not a bag, or not one that was made of a dataset.
        """
        try:
            with Bag(path) as bag:
                content, counts = json.loads(bag.custom_data[BAG_ORIGIN]), bag.counts
            episodes = {int(number): str(sha256) for number, sha256 in content["episodes"].items()}
            return cls(content["source_sha256"], content["settings"], episodes), counts
        except (InputError, KeyError, ValueError, TypeError, AttributeError) as error:
            raise OutputError(
                f"{path} exists and is not a bag that --resume could complete: it does not record "
                "which dataset it was made of. Move it away, or choose another name."
            ) from error

    def custom_data(self) -> dict[str, str]:
        """Return the custom data that a bag keeps of this."""
        return {BAG_ORIGIN: json.dumps(asdict(self), sort_keys=True)}

    def check_fits(self, path: Path, wanted: BagOrigin) -> None:
        """Refuse a bag at ``path`` that differs by more than episodes it lacks.

        Raises:
            OutputError: it does.
        """
        same = (self.source_sha256, self.settings) == (wanted.source_sha256, wanted.settings)
        if not same or self.episodes.items() - wanted.episodes.items():
            raise OutputError(
                f"{path} exists and is not the bag of this conversion: it was made from another "
                "bag, with another --storage, or has episodes that the dataset does not have. "
                "Resume with what it was made of, move it away, or choose another name."
            )


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """How to convert a bag: the main job's settings, and what becomes of its other topics."""

    bag: Path = setting(..., "rosbag2 folder, .mcap or .db3", metavar="BAG", positional=True)
    job: JobSettings = group(JobSettings)
    bag_output: Path | None = setting(
        None,
        "write a bag (.mcap file or folder) with the original topics and ours",
        metavar="OUT",
    )
    episode_topic: str | None = setting(
        None,
        "cut into episodes by this topic: while a Bool is true, or from a String with a text, the "
        "task, to an empty one",
        metavar="TOPIC",
    )
    storage: Storage = setting("mcap", "of the written bag")

    def origin(self, index: BagIndex, episodes: Mapping[int, str]) -> BagOrigin:
        """Return what the written bag is made from."""
        return BagOrigin(index.whole.sha256 or "", {"storage": self.storage}, episodes)


@dataclass(frozen=True, slots=True)
class ConvertReport:
    """A finished conversion. ``topics`` says what was read and how much was written.

    ``lost_messages`` counts by topic what could not be used ("*": of an unknown topic); ``losses``
    are those of the notes that say what was lost or damaged in the bag read.
    """

    job: JobReport
    bag: str | None
    topics: Mapping[str, Any]
    lost_messages: Mapping[str, int]
    notes: tuple[str, ...]
    losses: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``acehand bag convert --json`` prints."""
        return {
            **self.job.to_json(),
            "bag": self.bag,
            "topics": dict(self.topics),
            "lost_messages": dict(self.lost_messages),
            "notes": list(self.notes),
        }


def convert_bag(
    options: ConvertOptions,
    progress: Progress = no_progress,
    cancel: threading.Event | None = None,
) -> ConvertReport:
    """Make a dataset of a bag and, if wanted, a bag with the original topics and ours.

    A resumed run leaves a bag that is complete as it is, writes one that is not there, and writes
    one anew that lacks episodes which the dataset has by now.

    Raises:
        InputError: the bag, its topics or the episodes are not usable: nothing was written.
        OutputError: a place to write to is taken, on resuming by something else than the bag of
            this conversion. A bag that cannot be written later on is a failure in the report of
            the job, which tells of the dataset.
        Interrupted: stopped; its report is a ``ConvertReport`` of what was finished.
    """
    if options.bag_output is not None:
        load_library()
        clean_beside(options.bag_output)
        if options.job.existing != "resume":
            check_free(options.bag_output, options.job.existing == "overwrite")
        _check_not_inside(options)

    progress = stoppable(progress, cancel)
    registry = Registry()
    try:
        index = registry.bags.index(
            options.bag, options.job.reading.own.get("bag", BagOptions()), progress
        )
        _check_resumed(options, index)
        return _convert(options, index, registry, progress)
    except Interrupted:
        raise
    except KeyboardInterrupt as stop:
        nothing = JobReport(None, 0.0, 0.0, ())
        raise Interrupted(ConvertReport(nothing, None, {}, {}, ())) from stop


def _convert(
    options: ConvertOptions, index: BagIndex, registry: Registry, progress: Progress
) -> ConvertReport:
    job = replace(options.job, spans_of=_split(options, index))

    def report(
        done: JobReport, written: Mapping[str, int] | None, passed: DroppedMessages
    ) -> ConvertReport:
        lost = index.dropped.by_topic | passed.by_topic
        # What the bag said on opening, the main job says again.
        notes = (*index.dropped.sentences(), *done.notes, *passed.remarks)
        return ConvertReport(
            job=done,
            bag=None if written is None else str(options.bag_output),
            topics={**index.topics, "written": dict(written or {})},
            lost_messages=dict(lost),
            notes=tuple(dict.fromkeys(notes)),
            losses=index.dropped.sentences(),
        )

    try:
        done = run_job([options.bag], job, progress, registry)
    except Interrupted as stop:
        raise Interrupted(report(stop.report, None, DroppedMessages())) from stop
    passed = DroppedMessages()
    try:
        release_memory()
        made = (e.episode_index for e in done.episodes if e.episode_index is not None)
        numbers = tuple(sorted({*made, *done.skipped_episodes}))
        if options.bag_output is None or not numbers or job.dry_run:
            return report(done, None, passed)
        written = _write_beside(options, options.bag_output, index, numbers, progress, passed)
    except KeyboardInterrupt as stop:
        raise Interrupted(report(done, None, passed)) from stop
    except AcehandError as error:  # the dataset is complete all the same
        failures = (*done.failures, Failure(str(options.bag_output), error))
        return report(replace(done, failures=failures), None, passed)
    return report(done, written, passed)


def _split(
    options: ConvertOptions, index: BagIndex
) -> Callable[[Recording], Sequence[Span]] | None:
    """Return how the main job cuts the bag; None: by its own settings."""
    topic, reading = options.episode_topic, options.job.reading
    if topic is None:
        return None
    if options.job.split != "none":
        raise InputError(
            f"--split {options.job.split} and --episode-topic both cut; give one of them."
        )
    if reading.start_s is not None or reading.duration_s is not None:
        raise InputError("--start and --duration do not go with --episode-topic.")
    spans = _marked_episodes(index, topic)
    return lambda recording: spans


def _marked_episodes(index: BagIndex, topic: str) -> list[Span]:
    """Return the frames from a true or a text to a false or an empty text of a topic.

    Raises:
        InputError: it is no std_msgs Bool or String topic, or marks no frame.
    """
    with index.bag() as bag:
        fitting = [n for n, t in bag.topics.items() if t.msgtype in (_BOOL, STRING)]
        if topic not in fitting:
            raise InputError(
                f"{index.whole.source}: --episode-topic {topic!r} is no std_msgs Bool or String "
                f"topic; {nearest(topic, fitting)}"
            )
        kind = bag.topics[topic].msgtype
        events = []
        for message in bag.messages({topic}, DroppedMessages()):
            try:
                events.append((message.log_ns, decode(message.data, kind).data))
            except SchemaError as error:
                index.dropped.count(topic, str(error))

    # These messages have no header: they are compared with the frames' times of receipt.
    log = np.maximum.accumulate(index.log_ns)
    found: list[Span] = []
    start: tuple[int, str | None] | None = None
    for time, value in [*sorted(events, key=lambda e: e[0]), (int(log[-1]) + 1, False)]:
        at = int(np.searchsorted(log, time))
        if start is not None and at > start[0]:
            found.append(Span(start[0], at, start[1]))
        start = (at, value if isinstance(value, str) else None) if value else None

    if not found:
        raise InputError(f"{index.whole.source}: {topic} marks no episode with a frame in it.")
    return found


def _write_beside(
    options: ConvertOptions,
    output: Path,
    index: BagIndex,
    numbers: tuple[int, ...],
    progress: Progress,
    dropped: DroppedMessages,
) -> dict[str, int]:
    """Write the original topics as they are, and what these episodes of the dataset say.

    Returns the messages by topic, also where a resumed run finds all of it written.
    """
    origin = options.origin(index, episode_contents(options.job.output, numbers))
    overwrite = options.job.existing == "overwrite"

    if options.job.existing == "resume" and output.exists():
        there, counts = BagOrigin.of_bag(output)
        if there == origin:
            dropped.remark(f"{output}: complete already, left as it is")
            return counts
        there.check_fits(output, origin)
        dropped.remark(f"{output}: lacked episodes that the dataset has, written anew")
        overwrite = True

    with index.bag() as bag:
        topics = bag.topics
        with BagWriter(
            output, options.storage, overwrite, bag.definitions, recorded_on=bag.distro
        ) as writer:
            writer.describe(origin.custom_data())
            for topic in topics.values():
                writer.add_topic(topic)
            total = max(sum(bag.counts.values()), 1)
            for count, message in enumerate(bag.messages(None, dropped)):
                writer.write_raw(
                    message.topic, topics[message.topic].msgtype, message.log_ns, message.data
                )
                if count % _REPORT_EVERY == 0:
                    progress("copy the bag", min(count, total - 1), total)
            progress("copy the bag", total, total)
            renamed = _renamed(topics)
            if renamed:
                dropped.remark(f"topics taken already, written as {', '.join(renamed.values())}")
            for episode in read_episodes(options.job.output, numbers):
                robot = load_stored_robot(
                    episode.robot, options.job.robot, options.job.robot_model, episode.name
                )
                demo = _on_clock(of_episode(episode, robot), episode.source_ns, index)
                del episode
                release_memory()
                write_demonstration(writer, demo, renamed, progress)
        return dict(writer.counts)


def _on_clock(demo: Demonstration, source_ns: TimestampsNs, index: BagIndex) -> Demonstration:
    """Return the episode at the pictures that it shows, with their header stamps and receipt times.

    Between two frames the robot moves on a line, so it is no faster than at their own times. A
    picture that the dataset shows twice is said once.

    Args:
        source_ns: of every frame, the time of the picture that it shows.
    """
    at = np.searchsorted(index.whole.timestamps_ns, source_ns)
    at = np.minimum(at, len(index.whole.timestamps_ns) - 1)
    if not np.array_equal(index.whole.timestamps_ns[at], source_ns):
        raise InputError(f"{index.whole.source}: has no frame at a time that the dataset names.")
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
    """Return a demonstration at other times; ``frames`` are those that show the same pictures."""
    motion = demo.motion

    def poses(
        values: Float[np.ndarray, "T *n 4 4"] | None,
    ) -> Float[np.ndarray, "N *n 4 4"] | None:
        return None if values is None else poses_at(values, demo.stamps_ns, times)

    return replace(
        demo,
        stamps_ns=times,
        log_ns=times,
        joints=_on_lines(demo.joints, demo.stamps_ns, times),
        commands=_on_lines(demo.commands, demo.stamps_ns, times),
        confidence=demo.confidence[frames],
        motion=None if motion is None else hands_at(motion, times, motion.fps),
        T_camera_base=poses(demo.T_camera_base),
        T_camera_wrist=poses(demo.T_camera_wrist),
        T_world_camera=poses(demo.T_world_camera),
    )


def _on_lines(
    values: Float[np.ndarray, "T 2 Q"], before: TimestampsNs, after: Int[np.ndarray, "N"]
) -> Float[np.ndarray, "N 2 Q"]:
    columns = values.reshape(len(values), -1).T
    found = np.stack([np.interp(after, before, column) for column in columns], axis=1)
    return found.reshape(len(after), *values.shape[1:])


def _renamed(topics: Mapping[str, Any]) -> dict[str, str]:
    """Return other names for topics of ours that the bag has already."""
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


def _check_resumed(options: ConvertOptions, index: BagIndex) -> None:
    """Refuse, before any work, what stands where a resumed run would write its bag."""
    output, dataset = options.bag_output, options.job.output
    if options.job.existing != "resume" or output is None or not output.exists():
        return
    there, _ = BagOrigin.of_bag(output)
    contents = episode_contents(dataset) if is_dataset(dataset) else {}
    there.check_fits(output, options.origin(index, contents))


def _check_not_inside(options: ConvertOptions) -> None:
    assert options.bag_output is not None
    output, bag = options.bag_output.absolute(), options.bag.absolute()
    if output == bag or output.is_relative_to(bag):
        raise OutputError(f"{options.bag_output}: lies in the bag that is read; choose another.")
