"""A dataset, a table of hands or a joints file into a bag: what ``acehand bag write`` calls."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from acehand_core.atomic import check_free
from acehand_core.bag_jobs.demonstrations import load_demonstrations
from acehand_core.data.bags.typestore import LATEST
from acehand_core.errors import InputError, Interrupted
from acehand_core.export.bag_messages import (
    Demonstration,
    PlainMessage,
    diagnostics_messages,
    frame_messages,
    latched_messages,
    trajectory_messages,
)
from acehand_core.export.bag_writer import BagWriter, Storage
from acehand_core.trackers.base import Progress, no_progress

#: Between episodes of a written bag that would lie on top of each other.
PAUSE_NS = 2_000_000_000


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What to turn into a bag: a dataset's folder, a HandMotion table or a joints file."""

    source: Path
    output: Path
    robot: str | None = None
    robot_model: Path | None = None
    episodes: tuple[int, ...] | None = None
    storage: Storage = "mcap"
    mesh: bool = True
    overwrite: bool = False
    distro: str = LATEST


@dataclass(frozen=True, slots=True)
class WriteReport:
    """A written bag: messages by topic. ``notes`` name the episodes whose stamps were moved."""

    bag: str
    topics: Mapping[str, int]
    messages: int
    lost_messages: Mapping[str, int]
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``acehand bag write --json`` prints."""
        return asdict(self)


def write_bag(
    options: WriteOptions,
    progress: Progress = no_progress,
    cancel: threading.Event | None = None,
) -> WriteReport:
    """Make a bag of a dataset or of a table of hands.

    Raises:
        InputError: it is neither, or has no such episode. OutputError: the bag cannot be written.
        Interrupted: stopped; nothing was written.
    """
    progress = stoppable(progress, cancel)
    check_free(options.output, options.overwrite)
    try:
        with BagWriter(
            options.output, options.storage, options.overwrite, options.distro
        ) as writer:
            found = load_demonstrations(
                options.source, options.robot, options.episodes, options.robot_model
            )
            end_ns, notes = None, []
            for demo, _ in found:
                demo, note = _after(demo, end_ns)
                notes += note
                end_ns = int(demo.log_ns[-1]) if end_ns is None else max(end_ns, demo.log_ns[-1])
                write_demonstration(writer, demo, options.mesh, {}, progress)
            if not writer.counts:
                raise InputError(f"{options.source}: there is no episode to write.")
    except KeyboardInterrupt as stop:
        raise Interrupted(WriteReport(str(options.output), {}, 0, {})) from stop
    counts = dict(writer.counts)
    return WriteReport(str(options.output), counts, sum(counts.values()), {}, tuple(notes))


def _after(demo: Demonstration, end_ns: int | None) -> tuple[Demonstration, list[str]]:
    """Return an episode that begins after ``end_ns``, and a note where it had to be moved.

    Every episode of a video begins at stamp 0; in a bag there is one clock for all of them.
    """
    if end_ns is None or min(demo.log_ns[0], demo.stamps_ns[0]) > end_ns:
        return demo, []
    shift = end_ns + PAUSE_NS - int(min(demo.log_ns[0], demo.stamps_ns[0]))
    note = f"{demo.name}: moved on by {shift / 1e9:.3f} s, since another episode has its times"
    return replace(demo, stamps_ns=demo.stamps_ns + shift, log_ns=demo.log_ns + shift), [note]


def write_demonstration(
    writer: BagWriter,
    demo: Demonstration,
    mesh: bool,
    renamed: Mapping[str, str],
    progress: Progress,
) -> None:
    def put(message: PlainMessage) -> None:
        writer.write(message, renamed.get(message.topic))

    for message in latched_messages(demo):
        put(message)
    for message in trajectory_messages(demo):
        put(message)
    for index in range(len(demo)):
        for message in frame_messages(demo, index, mesh):
            put(message)
        progress("write messages", index + 1, len(demo))
    for message in diagnostics_messages(demo):
        put(message)


def stoppable(progress: Progress, cancel: threading.Event | None) -> Progress:
    def call(stage: str, done: int, total: int) -> None:
        if cancel is not None and cancel.is_set():
            raise KeyboardInterrupt
        progress(stage, done, total)

    return call
