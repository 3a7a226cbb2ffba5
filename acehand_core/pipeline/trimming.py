"""``acehand dataset trim``: what lies beside a piece of an episode, made of the episode's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from acehand_core.drawing.overlay import contact_sheet, shrunk, write_png
from acehand_core.drawing.video import OVERLAY_ENCODING
from acehand_core.lerobot import format as files
from acehand_core.lerobot.assemble import link
from acehand_core.lerobot.trim import TRIM, EpisodePiece
from acehand_core.motion import HandMotion
from acehand_core.pipeline.report import measures_of_hands
from acehand_core.recordings.hands_file import read_hand_motion, write_hand_motion
from acehand_core.recordings.selection import part
from acehand_core.recordings.video import open_video
from acehand_core.recordings.video_encode import encode_video
from acehand_core.types import ImageRgb

#: Entries of a report that stay as they are, since they say where an episode comes from.
_ORIGIN = ("source", "fps", "tracker", "subject", "episode_index", "provenance", "trimmed")
_COLUMNS, _ROWS, _THUMB_WIDTH = 3, 4, 600


def write_beside(folder: Path, target: Path, piece: EpisodePiece) -> None:
    """Write the files beside a piece of an episode to ``target``, of those in ``folder``.

    Hands and overlay are cut, and the contact sheet is of the cut overlay. What the report says of
    the human hands is measured anew; the rest of it is of the whole episode, and it says so. Where
    there is no overlay the contact sheet stays that of the whole episode, as do files that are not
    ours.

    Raises:
        SchemaError, VideoError: a file cannot be read. OSError.
    """
    motion: HandMotion | None = None
    if (folder / files.HANDS).is_file():
        whole = read_hand_motion(folder / files.HANDS)
        rows = np.arange(piece.start, piece.stop)
        motion = whole.at(rows, whole.timestamps_ns[piece.start : piece.stop], whole.fps)
        write_hand_motion(motion, target / files.HANDS)
    if (folder / files.OVERLAY).is_file():
        _cut_overlay(folder / files.OVERLAY, target, piece)
    if (folder / files.REPORT).is_file():
        report = _report(files.read_json(folder / files.REPORT), motion, piece)
        (target / files.REPORT).write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    for path in sorted(folder.rglob("*")):
        place = target / path.relative_to(folder)
        if path.is_file() and path.name != TRIM and not place.exists():
            link(path, place)


def _cut_overlay(source: Path, target: Path, piece: EpisodePiece) -> None:
    """Write a piece's overlay, and a contact sheet of its pictures."""
    recording = open_video(source)
    clip = part(recording, piece.start, piece.stop)
    encode_video(clip, target / files.OVERLAY, round(recording.fps), OVERLAY_ENCODING)

    assert clip.frames is not None
    count = min(_COLUMNS * _ROWS, len(piece))
    chosen = np.unique(np.linspace(0, len(piece) - 1, count).round().astype(int))
    thumbs: list[ImageRgb] = [shrunk(clip.frames.at(int(k)), _THUMB_WIDTH) for k in chosen]
    title = (
        f"frames {piece.start} to {piece.stop - 1} of an episode of {piece.length}, "
        "numbered as there"
    )
    write_png(contact_sheet(thumbs, min(_COLUMNS, len(thumbs)), title), target / files.SHEET)


def _report(
    report: dict[str, Any], motion: HandMotion | None, piece: EpisodePiece
) -> dict[str, Any]:
    """Return a piece's report."""
    measured = {} if motion is None else measures_of_hands(motion)
    report = {**report, "frames": len(piece), **measured}
    stale = [key for key in report if key not in (*_ORIGIN, "frames", *measured)]
    report["trimmed"] = {
        "frames": [piece.start, piece.stop],
        "of": piece.length,
        "of_the_whole_episode": stale,
    }
    return report
