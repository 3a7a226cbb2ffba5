"""The main job in a process that is killed, as by the system, at a chosen moment.

python tests/helpers/dying_runs.py MOMENT ARGUMENTS...

ARGUMENTS are those of acehand-retarget, or of acehand; MOMENT is one of

drawing      an episode is in place, none of its pictures is begun
sheet        the contact sheet is written but has not got its name
overlay      the overlay is written but has not got its name
statistics   the last episode is in place, the exact statistics are not

and of ``acehand bag convert`` those in ``BAG``.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from acehand_core import atomic
from acehand_core.cli import console, retarget
from acehand_core.cli.main import main as acehand
from acehand_core.lerobot import writer as lerobot_writer
from acehand_core.lerobot.writer import LeRobotWriter
from acehand_core.pipeline import bag_convert, dataset
from acehand_core.recordings.bags import writer as bag_writer
from acehand_core.recordings.bags.writer import BagWriter
from acehand_core.trackers.choose import FileTracker

NAMES = {"sheet": "contact_sheet.png.partial", "overlay": "overlay.mp4.partial"}

#: Moments of a conversion: what is called then, and which of its calls it is.
BAG: dict[str, tuple[Any, str, Callable[..., bool]]] = {
    "index": (console.Bars, "__call__", lambda _, stage, done, total: stage == "index the bag"),
    "track": (FileTracker, "track", lambda *_: True),
    "retarget": (console.Bars, "__call__", lambda _, stage, *__: stage == "retarget"),
    "pictures": (dataset, "draw", lambda *_: True),
    "second": (LeRobotWriter, "add_episode", lambda writer, *_: writer.total_episodes == 1),
    "statistics": (lerobot_writer, "dataset_stats", lambda *_: True),
    "dataset": (bag_convert, "_write_bag", lambda *_: True),
    "copy": (console.Bars, "__call__", lambda _, stage, *__: stage == "copy the bag"),
    "write": (console.Bars, "__call__", lambda _, stage, n, __: (stage, n) == (WRITE, 3)),
    "place": (BagWriter, "_put_in_place", lambda *_: True),
    "placed": (bag_writer, "sync", lambda path: (path / "dataset").is_dir()),
}  # fmt: skip
WRITE = "write messages"


def at(moment: str, act: Callable[[], None]) -> tuple[Any, str, Callable[..., Any]]:
    """Return what to put where so that a conversion does ``act`` at a moment, before that."""
    where, name, when = BAG[moment]
    whole = getattr(where, name)

    def call(*arguments: Any, **named: Any) -> Any:
        if when(*arguments):
            act()
        return whole(*arguments, **named)

    return where, name, call


def stop_at(monkeypatch: pytest.MonkeyPatch, episode: int) -> None:
    """Press Ctrl-C when this episode is about to be written."""
    add = LeRobotWriter.add_episode

    def interrupted(writer: LeRobotWriter, *arguments: Any) -> int:
        if writer.total_episodes == episode:
            raise KeyboardInterrupt
        return add(writer, *arguments)

    monkeypatch.setattr(LeRobotWriter, "add_episode", interrupted)


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(moment: str, arguments: list[str]) -> int:
    if arguments[0] == "bag":
        setattr(*at(moment, die))
        return acehand(arguments)
    if moment == "drawing":
        dataset.draw = die
    elif moment == "statistics":
        LeRobotWriter.finish = die
    else:
        sync = atomic.sync

        def sync_or_die(path: Path) -> None:
            if NAMES[moment] in path.name:
                die()
            sync(path)

        atomic.sync = sync_or_die
    return retarget.main(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
