"""Where a bag is cut into episodes: nowhere, at gaps, by a topic, or at times in a table."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from acehand_core.bags.library import decode
from acehand_core.bags.records import DroppedMessages
from acehand_core.errors import InputError, SchemaError, nearest
from acehand_core.recordings.bag import BagIndex

MODES = ("whole", "gaps", "topic")
#: A pause between two frames that ends an episode.
GAP_NS = 1_000_000_000
_BOOL, _STRING = "std_msgs/msg/Bool", "std_msgs/msg/String"
_COLUMNS = (("start_s", "end_s"), ("start_ns", "end_ns"))


@dataclass(frozen=True, slots=True)
class Cut:
    """Frames ``start`` to ``stop - 1`` are one episode; ``task`` says what is done in it."""

    start: int
    stop: int
    task: str | None = None


def cuts(index: BagIndex, mode: str, topic: str | None = None) -> list[Cut]:
    """Return the episodes of a bag.

    Args:
        mode: "whole"; "gaps": a new one after each pause of more than a second and where the clock
            was set back; "topic": from a true or a text to a false or an empty text of ``topic``
            (std_msgs Bool or String, whose text is the task); else a csv file with columns start_s,
            end_s (seconds after the first frame) or start_ns, end_ns (header stamps), and task.
        topic: for "topic"; None takes the only Bool or String topic with "episode" in its name.

    Raises:
        InputError: no such mode, file or topic, or an episode without a frame.
    """
    if mode == "whole":
        return [Cut(0, len(index.timestamps_ns))]
    if mode == "gaps":
        return _at_gaps(index)
    if mode == "topic":
        return _by_topic(index, topic)
    path = Path(mode)
    if path.suffix != ".csv":
        raise InputError(f"--episodes {mode!r}; {nearest(mode, (*MODES, 'times.csv'))}")
    return _by_table(index, path)


def _at_gaps(index: BagIndex) -> list[Cut]:
    times = index.timestamps_ns
    starts = {0, *index.breaks, *(np.flatnonzero(np.diff(times) > GAP_NS) + 1).tolist()}
    edges = [*sorted(starts), len(times)]
    return [Cut(a, b) for a, b in pairwise(edges) if b > a]


def _by_topic(index: BagIndex, topic: str | None) -> list[Cut]:
    with index.bag() as bag:
        fitting = [n for n, t in bag.topics.items() if t.msgtype in (_BOOL, _STRING)]
        if topic is None:
            named = [name for name in fitting if "episode" in name.lower()]
            if len(named) != 1:
                raise InputError(
                    f"{index.path}: --episodes topic needs --episode-topic; "
                    f"{nearest('episode', fitting)}"
                )
            topic = named[0]
        if topic not in fitting:
            raise InputError(
                f"{index.path}: --episode-topic {topic!r} is no std_msgs Bool or String topic; "
                f"{nearest(topic, fitting)}"
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
    found: list[Cut] = []

    start: tuple[int, str | None] | None = None
    for time, value in [*sorted(events, key=lambda e: e[0]), (int(log[-1]) + 1, False)]:
        at = int(np.searchsorted(log, time))
        if start is not None and at > start[0]:
            found.append(Cut(start[0], at, start[1]))
        start = (at, value if isinstance(value, str) else None) if value else None

    if not found:
        raise InputError(f"{index.path}: {topic} marks no episode with a frame in it.")
    return found


def _by_table(index: BagIndex, path: Path) -> list[Cut]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read: {error}.") from error
    header = set(rows[0]) if rows else set()
    columns = next((c for c in _COLUMNS if set(c) <= header), None)
    if columns is None:
        raise InputError(
            f"{path}: needs rows with the columns start_s,end_s or start_ns,end_ns, and task if "
            "wanted."
        )
    return [_row(index, path, number, row, columns) for number, row in enumerate(rows, 2)]


def _row(
    index: BagIndex, path: Path, line: int, row: dict[str, str], columns: Sequence[str]
) -> Cut:
    times = index.timestamps_ns
    try:
        if columns[0] == "start_ns":
            start, end = (int(row[name]) for name in columns)
        else:
            start, end = (int(times[0]) + round(float(row[name]) * 1e9) for name in columns)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{path}, line {line}: {columns[0]} and {columns[1]} must be numbers.") \
            from None  # fmt: skip

    first, last = (int(np.searchsorted(times, time)) for time in (start, end))
    if not first < last:
        raise InputError(
            f"{path}, line {line}: no frame lies between {row[columns[0]]} and {row[columns[1]]}; "
            f"the bag has frames from {times[0]} to {times[-1]} ns."
        )

    return Cut(first, last, (row.get("task") or "").strip() or None)
