"""The files beside an episode's LeRobot files: hands, report, calibration and pictures.

Hands, report and calibration appear together with the episode. Its pictures are drawn afterwards,
which takes long enough to be interrupted: until all of them are there, the file ``PENDING`` lists
them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

#: Folder of a dataset that holds a folder per episode.
EXTRAS = "acehand"
HANDS, REPORT, CALIBRATION = "hand_motion.parquet", "report.json", "calibration.json"
SHEET, OVERLAY = "contact_sheet.png", "overlay.mp4"
PENDING = "pictures_pending.json"

#: What every episode has; an overlay and a calibration only some.
_ALWAYS = (HANDS, REPORT, SHEET)


def episode_folder(number: int) -> str:
    """Return the folder of an episode, relative to the dataset."""
    return f"{EXTRAS}/episode_{number:06d}"


def pending_bytes(pictures: Sequence[str]) -> bytes:
    """Return the content of ``PENDING``."""
    return (json.dumps({"pictures": list(pictures)}) + "\n").encode()


def partial_files(folder: Path) -> list[Path]:
    """Return what a killed process left of files that it was writing to a folder."""
    return sorted(folder.glob(".*.partial-*"))


def missing_files(dataset: Path, number: int) -> tuple[str, ...]:
    """Return the names of files that an interrupted writer of ours did not begin or finish.

    Writers before ``PENDING`` existed are known by what every episode has, and by an overlay that
    was begun.
    """
    folder = dataset / episode_folder(number)
    names = [name for name in _ALWAYS if not (folder / name).is_file()]
    names += [OVERLAY for path in partial_files(folder) if path.name.startswith(f".{OVERLAY}.")]
    pending = folder / PENDING
    if pending.is_file():
        try:
            pictures = json.loads(pending.read_text("utf-8"))["pictures"]
            names += [name for name in pictures if name in (SHEET, OVERLAY)]
        except (OSError, ValueError, TypeError, KeyError):  # damaged: the sheet at least is drawn
            names.append(SHEET)
    return tuple(name for name in (*_ALWAYS, OVERLAY) if name in names)
