"""The main job in a process that is killed, as by the system, at a chosen moment.

python dying_runs.py MOMENT ARGUMENTS...   ARGUMENTS are those of acehand-retarget

drawing      an episode is in place, none of its pictures is begun
sheet        the contact sheet is written but has not got its name
overlay      the overlay is written but has not got its name
statistics   the last episode is in place, the exact statistics are not
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from acehand_core import atomic
from acehand_core.cli import retarget
from acehand_core.export.lerobot_writer import LeRobotWriter
from acehand_core.pipeline import job

NAMES = {"sheet": "contact_sheet.png.partial", "overlay": "overlay.mp4.partial"}


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(moment: str, arguments: list[str]) -> int:
    if moment == "drawing":
        job.draw = die
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
