"""Decisions of a review: their file, and applying them.

``{"format": "acehand-decisions", "version": 1, "decisions": [{"dataset", "episode", "fingerprint",
"decision": "accept" | "doubt" | "reject" | null, "trim": [first, stop] | null, "time"}]}``. The
fingerprint names the episode: numbers change when others are removed. ``trim`` are the first frame
to keep and the one after the last (null: the end).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from acehand_core.atomic import atomic_path
from acehand_core.drawing.overlay import contact_sheet, shrunk, write_png
from acehand_core.errors import InputError
from acehand_core.lerobot import format as layout
from acehand_core.lerobot.assemble import link
from acehand_core.lerobot.edit import Removal, remove_episodes
from acehand_core.lerobot.episode import DatasetReader
from acehand_core.lerobot.trim import TRIM, EpisodePiece, Trimming, trim_episodes
from acehand_core.lerobot.trim_rules import TrimCut
from acehand_core.motion import HandMotion
from acehand_core.pipeline.report import measures_of_hands
from acehand_core.recordings.hands_file import read_hand_motion, write_hand_motion
from acehand_core.recordings.selection import part
from acehand_core.recordings.video import open_video
from acehand_core.recordings.video_encode import OVERLAY_ENCODING, encode_video
from acehand_core.types import ImageRgb, Progress, no_progress
from acehand_core.user_files import Text, Valid, read_json, structured, without_header

FORMAT, VERSION = "acehand-decisions", 1
Verdict = Literal["accept", "doubt", "reject"]
#: What to keep: all but rejected, doubted and accepted, or accepted episodes.
Keep = Literal["undecided", "doubt", "accept"]


_Trim = Annotated[
    tuple[int, int | None],
    Valid(
        "[first frame to keep, the one after the last, or null for the end]",
        lambda trim: trim[0] >= 0 and (trim[1] is None or trim[0] < trim[1]),
    ),
]

#: Entries of a report about the origin of an episode, which stay valid.
_ORIGIN = ("source", "fps", "tracker", "subject", "episode_index", "provenance", "trimmed")
_COLUMNS, _ROWS, _THUMB_WIDTH = 3, 4, 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The decision on one episode."""

    dataset: str = ""
    episode: int = -1
    fingerprint: Text
    decision: Verdict | None = None
    trim: _Trim | None = None
    time: str = ""


@dataclass(frozen=True, slots=True)
class _Decisions:
    """A file of decisions."""

    decisions: tuple[Decision, ...]


def read_decisions(path: Path) -> dict[str, Decision]:
    """Return the decisions of a file by fingerprint, the latest of each.

    Raises InputError: it cannot be read. SchemaError: it is not a file of decisions.
    """
    content = without_header(read_json(path), FORMAT, VERSION, str(path))
    listed = structured(_Decisions, content, path).decisions
    return {decision.fingerprint: decision for decision in listed}


def write_decisions(path: Path, decisions: Mapping[str, Decision]) -> None:
    """Replace a file of decisions, atomically. Raises OutputError."""
    listed = [asdict(decision) for decision in decisions.values()]
    content = {"format": FORMAT, "version": VERSION, "decisions": listed}
    with atomic_path(path, overwrite=True) as partial:
        partial.write_text(json.dumps(content, indent=1) + "\n", "utf-8")


@dataclass(frozen=True, slots=True)
class DecisionOutcome:
    """Result of ``apply_decisions``; ``stale`` counts decisions without an episode."""

    removal: Removal | None
    trimming: Trimming | None
    stale: int


def apply_decisions(
    root: Path,
    decisions: Mapping[str, Decision],
    *,
    keep: Keep = "undecided",
    delete: bool = False,
    dry_run: bool = False,
    progress: Progress = no_progress,
) -> DecisionOutcome:
    """Remove rejected episodes, then trim those with a trim; the same call resumes.

    Args:
        keep: what to keep (``Keep``).
        delete, dry_run: as in ``lerobot.edit.remove_episodes``.

    Raises InputError: no decision matches an episode, none would be left, or a trim is outside its
    episode. As ``remove_episodes`` and ``trim_episodes``.
    """
    matched = _decided(root, decisions, progress)
    if not matched:
        raise InputError(
            f"{root}: none of the {len(decisions)} decisions matches an episode: they belong to "
            "another dataset, or the episodes have changed since."
        )

    stays = {"undecided": (None, "doubt", "accept"), "doubt": ("doubt", "accept"),
             "accept": ("accept",)}[keep]  # fmt: skip

    known = len({decision.fingerprint for decision in matched.values()})
    removed: dict[int, tuple[str, ...]] = {}
    for number in DatasetReader(root).numbers:
        choice = matched[number].decision if number in matched else None
        if choice not in stays:
            what = {None: "not decided", "doubt": "doubted", "reject": "rejected"}
            removed[number] = (f"{what[choice]} in the review",)
    _cuts(root, matched)  # raises before anything is changed

    removal, trimming = None, None
    left = {number: decision for number, decision in matched.items() if number not in removed}
    if removed:
        removal = remove_episodes(root, removed, delete=delete, dry_run=dry_run)
        if not dry_run:
            left = _decided(root, decisions, progress)
    if cuts := _cuts(root, left):
        trimming = trim_episodes(
            root, cuts, write_sidecars, delete=delete, dry_run=dry_run, progress=progress
        )
    return DecisionOutcome(removal, trimming, len(decisions) - known)


def _decided(
    root: Path, decisions: Mapping[str, Decision], progress: Progress
) -> dict[int, Decision]:
    """Return the decisions on episodes of a dataset, by current number."""
    reader, matched = DatasetReader(root), {}
    for number in reader.numbers:
        progress("match decisions", number, len(reader.numbers))
        decision = decisions.get(reader.read(number).fingerprint)
        if decision is not None:
            matched[number] = decision
    return matched


def _cuts(root: Path, decisions: Mapping[int, Decision]) -> dict[int, list[TrimCut]]:
    """Return the cuts of each episode with a trim. Raises InputError."""
    lengths = {row["episode_index"]: row["length"] for row in layout.read_episode_rows(root)}
    cuts = {}
    for number, decision in decisions.items():
        if decision.trim is None:
            continue

        first, stop = decision.trim[0], decision.trim[1] or lengths[number]
        if stop > lengths[number]:
            raise InputError(
                f"{root}: the trim of episode {number} ends at frame {stop - 1}; it has "
                f"{lengths[number]} frames."
            )
        ends = ((0, first), (stop, lengths[number]))
        listed = [TrimCut(a, b, "trimmed in the review") for a, b in ends if b > a]
        if listed:
            cuts[number] = listed
    return cuts


def write_sidecars(folder: Path, target: Path, piece: EpisodePiece) -> None:
    """Write the sidecar files of a piece of an episode to ``target``, from those in ``folder``.

    Hands and overlay are cut, and the contact sheet shows the cut overlay. The human hands are
    measured anew for the report; its other entries are listed as ``of_the_whole_episode``. Other
    files, and a contact sheet without an overlay, stay those of the whole episode.

    Raises SchemaError, VideoError: a file cannot be read. OSError.
    """
    motion: HandMotion | None = None
    if (folder / layout.HANDS).is_file():
        whole = read_hand_motion(folder / layout.HANDS)
        rows = np.arange(piece.start, piece.stop)
        motion = whole.at(rows, whole.timestamps_ns[piece.start : piece.stop], whole.fps)
        write_hand_motion(motion, target / layout.HANDS)
    if (folder / layout.OVERLAY).is_file():
        _cut_overlay(folder / layout.OVERLAY, target, piece)
    if (folder / layout.REPORT).is_file():
        report = _report(layout.read_json(folder / layout.REPORT), motion, piece)
        (target / layout.REPORT).write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    for path in sorted(folder.rglob("*")):
        place = target / path.relative_to(folder)
        if path.is_file() and path.name != TRIM and not place.exists():
            link(path, place)


def _cut_overlay(source: Path, target: Path, piece: EpisodePiece) -> None:
    """Write a piece's overlay, and a contact sheet of its pictures."""
    recording = open_video(source)
    clip = part(recording, piece.start, piece.stop)
    encode_video(clip, target / layout.OVERLAY, round(recording.fps), OVERLAY_ENCODING)

    assert clip.frames is not None
    count = min(_COLUMNS * _ROWS, len(piece))
    chosen = np.unique(np.linspace(0, len(piece) - 1, count).round().astype(int))
    thumbs: list[ImageRgb] = [shrunk(clip.frames.at(int(k)), _THUMB_WIDTH) for k in chosen]
    span = f"frames {piece.start} to {piece.stop - 1}"
    title = f"{span} of an episode of {piece.length}, numbered as there"
    write_png(contact_sheet(thumbs, min(_COLUMNS, len(thumbs)), title), target / layout.SHEET)


def _report(
    report: dict[str, Any], motion: HandMotion | None, piece: EpisodePiece
) -> dict[str, Any]:
    """Return a piece's report."""
    measured = {} if motion is None else measures_of_hands(motion)
    report = {**report, "frames": len(piece), **measured}
    stale = [key for key in report if key not in (*_ORIGIN, "frames", *measured)]
    trimmed = {"frames": [piece.start, piece.stop], "of": piece.length}
    return report | {"trimmed": trimmed | {"of_the_whole_episode": stale}}
