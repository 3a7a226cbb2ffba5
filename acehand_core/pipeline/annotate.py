"""``acehand dataset annotate``: hands beside the columns of anybody's LeRobot v3 dataset."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from acehand_core.atomic import DirectoryLock, output_errors
from acehand_core.errors import InputError, NoHandError, OutputError, SchemaError
from acehand_core.lerobot import format as files
from acehand_core.lerobot.edit import opened
from acehand_core.lerobot.extend import add_features, check_new
from acehand_core.lerobot.features import hand_columns, hand_features
from acehand_core.motion import HandMotion, Recording
from acehand_core.pipeline.report import measures_of_hands
from acehand_core.pipeline.settings import JobSettings
from acehand_core.provenance import Provenance
from acehand_core.recordings.hands_file import read_hand_motion, write_hand_motion
from acehand_core.recordings.options import RecordingOptions
from acehand_core.recordings.registry import Registry
from acehand_core.recordings.selection import only_hands
from acehand_core.settings import group, identity_of, like, setting
from acehand_core.trackers.ace_settings import AceSettings
from acehand_core.trackers.base import Tracker, TrackerSettings, resolved_name
from acehand_core.trackers.choose import open_tracked
from acehand_core.types import Hands, Progress, Quality, TurnsMode, no_progress


@dataclass(frozen=True, slots=True)
class AnnotateSettings:
    """How hands are found in a dataset's video."""

    tracker: str = setting(
        "auto", "as of acehand-retarget, but for files of hands", metavar="NAME", identity="never"
    )
    hands: Hands = like(JobSettings, "hands", "both", "which hands to look for")
    reading: RecordingOptions = group(RecordingOptions)
    hand_length_m: float | None = like(JobSettings, "hand_length_m", None)
    camera_motion: TurnsMode = like(JobSettings, "camera_motion", "rotation")
    quality: Quality = like(JobSettings, "quality", "balanced")
    palm_calibration: float = like(JobSettings, "palm_calibration", 1.0)
    ace: AceSettings = group(AceSettings, "tracker ace", identity=False)

    def __post_init__(self) -> None:
        reading = self.reading
        given = {
            "--start": reading.start_s is not None,
            "--duration": reading.duration_s is not None,
            "--camera-poses": reading.camera_poses is not None,
            "--keypoints": reading.keypoints is not None,
        }
        if flags := ", ".join(flag for flag, is_given in given.items() if is_given):
            raise InputError(f"{flags}: of one recording; annotate reads whole episodes.")

    def tracking(self, work_dir: Path) -> TrackerSettings:
        """Return the tracker's share of the settings."""
        return TrackerSettings(
            hands=self.hands,
            hand_length_m=self.hand_length_m,
            work_dir=work_dir,
            ace=self.ace.if_weights,
            camera_motion=self.camera_motion,
            quality=self.quality,
            palm_calibration=self.palm_calibration,
        )


@dataclass(frozen=True, slots=True)
class Annotation:
    """What ``annotate`` made; ``without_hands`` are the numbers of episodes that show none."""

    episodes: int
    frames: int
    without_hands: tuple[int, ...]
    features: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``acehand dataset annotate --json`` prints."""
        return asdict(self)


def annotate(
    root: Path,
    output: Path,
    settings: AnnotateSettings,
    *,
    hard_links: bool = False,
    progress: Progress = no_progress,
) -> Annotation:
    """Write a dataset that is ``root`` with the hands that one of its videos shows.

    The hands of each episode are kept in a hidden folder beside ``output`` until all are done, so
    that the same call resumes an interrupted one. An episode without hands is no error: its
    confidence is 0.

    Args:
        hard_links: see ``extend.add_features``.

    Raises:
        InputError: there is no such dataset, video or tracker, or it has such features already.
        SchemaError: it needs the repair first. VideoError: a video cannot be read. OutputError:
            ``output`` exists, cannot be written, or another process works on it.
    """
    root, output = root.resolve(), output.absolute()
    if output.exists():
        raise OutputError(f"{output} exists; choose a folder that does not.")
    with opened(root) as (info, rows, _):
        features: Mapping[str, Any] = info["features"]
    work_dir = output.with_name(f".{output.name}.acehand-work")
    with output_errors(work_dir):
        work_dir.mkdir(parents=True, exist_ok=True)
    with DirectoryLock(work_dir):
        tracks = _Tracks(root, settings, work_dir, progress)
        specs = hand_features(tracks.tracker.placed, tracks.tracker.hand_model)
        check_new(root, features, specs)
        kept = {}
        for place, row in enumerate(rows):
            progress("episodes", place, len(rows))
            kept[row["episode_index"]] = tracks.of(row["episode_index"], row["length"])
        progress("episodes", len(rows), len(rows))

        without = []

        def columns_of(row: Mapping[str, Any], folder: Path) -> Mapping[str, np.ndarray]:
            number = row["episode_index"]
            motion = read_hand_motion(kept[number])
            if not motion.known.any():
                without.append(number)
            shutil.copy2(kept[number], folder / files.HANDS)
            report = {
                "source": f"{root.name}/episode_{number:06d}",
                "frames": len(motion),
                "fps": info["fps"],
                "tracker": motion.provenance.tracker,
                **measures_of_hands(motion),
                "episode_index": number,
                "provenance": asdict(motion.provenance),
            }
            (folder / files.REPORT).write_text(json.dumps(report, indent=2) + "\n", "utf-8")
            confidence = np.where(motion.known, motion.quality, 0.0)
            return hand_columns(motion, tracks.tracker.placed, confidence, motion.known)

        add_features(root, output, specs, columns_of, hard_links=hard_links, progress=progress)
        shutil.rmtree(work_dir, ignore_errors=True)
    frames = sum(row["length"] for row in rows)
    return Annotation(len(rows), frames, tuple(without), tuple(spec.key for spec in specs))


class _Tracks:
    """The hands of episodes as tables that are kept in ``work_dir``."""

    def __init__(
        self, root: Path, settings: AnnotateSettings, work_dir: Path, progress: Progress
    ) -> None:
        self._root, self._settings, self._work_dir = root, settings, work_dir
        self._progress, self._registry = progress, Registry()
        self._tracking = settings.tracking(work_dir)
        name = resolved_name(settings.tracker, self._tracking)
        self._identity = identity_of(settings) | {
            "tracker": name,
            "ace": settings.ace.identity() if name == "ace" else None,
        }
        self.tracker: Tracker = self._open(0)[1]

    def _open(self, number: int) -> tuple[Recording, Tracker]:
        path, settings = self._root / f"episode_{number:06d}", self._settings
        opened, tracker = open_tracked(
            path, settings.tracker, self._tracking, settings.reading, self._registry, self._progress
        )
        return opened.recording, tracker

    def of(self, number: int, frames: int) -> Path:
        """Return the table of an episode's hands, tracked now unless it is there already."""
        path = self._root / f"episode_{number:06d}"
        content = self._registry.sha256(path, self._settings.reading)
        text = json.dumps([content, self._identity], sort_keys=True, default=str)
        name = hashlib.sha256(text.encode()).hexdigest()[:24]
        table = self._work_dir / f"hands-{number:06d}-{name}.parquet"
        if table.is_file():
            return table

        recording, _ = self._open(number)
        try:
            motion = self.tracker.track(recording, self._progress)
        except NoHandError as error:
            motion = _no_hands(recording, self.tracker, str(error))
        if len(motion) != frames:
            raise SchemaError(f"{path}: the tracker gave {len(motion)} of {frames} frames.")
        write_hand_motion(only_hands(motion, self._settings.hands), table)
        return table


def _no_hands(recording: Recording, tracker: Tracker, reason: str) -> HandMotion:
    """Return the motion of hands that never appear."""
    frames = len(recording)
    none, never = np.zeros((frames, 2)), np.zeros((frames, 2), bool)
    turns = np.full((frames, 2, 16, 3, 3), np.nan)
    return HandMotion(
        timestamps_ns=recording.timestamps_ns,
        fps=recording.fps,
        presence=none,
        visible=none,
        quality=none,
        observed=never,
        filled=never,
        global_orient=turns[:, :, 0],
        hand_pose=turns[:, :, 1:],
        betas=np.zeros((2, 10)),
        translation=np.full((frames, 2, 3), np.nan),
        joints_camera=np.full((frames, 2, 21, 3), np.nan),
        joints_image=np.full((frames, 2, 21, 2), np.nan),
        hand_model=tracker.hand_model,
        provenance=Provenance(recording.source, recording.sha256, tracker.name, notes=(reason,)),
        camera=recording.camera,
        placed=tracker.placed,
    )
