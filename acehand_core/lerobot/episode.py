"""One episode as its dataset holds it, for any dataset with ``observation.hand.*``.

The columns are judged, since they train. The table of hands next to an episode adds the tracker's
2D landmarks and the observed frames.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Int

from acehand_core.errors import InputError, SchemaError
from acehand_core.lerobot import columns
from acehand_core.lerobot import format as layout
from acehand_core.motion import HandMotion, Recording, RobotTrajectory
from acehand_core.recordings import lerobot_video
from acehand_core.recordings.hands_file import read_hand_motion
from acehand_core.recordings.lerobot_video import Latest
from retarget.replay.clip import EpisodeArrays, RobotColumns, clip_of

_HANDS = (
    columns.JOINTS, columns.WRIST_JOINTS, columns.CONFIDENCE, columns.FILLED, columns.VALID,
    columns.JOINT_SIGMA, columns.CAMERA, columns.SOURCE_TIMES,
)  # fmt: skip
_ROBOT = (columns.STATE, columns.ROBOT_JOINTS, columns.REGISTERS)
#: State of a hand in a frame.
ABSENT, OBSERVED, FILLED, DOUBTFUL = range(4)


@dataclass(frozen=True, slots=True, eq=False)
class Episode(EpisodeArrays):
    """One episode: the clip of its columns, and the files next to it.

    ``columns`` are the dataset's, (T, N) each. ``report`` and ``origin`` (provenance) are empty
    without such files. ``fingerprint`` is a hash of its values, so that a decision stays with its
    episode after renumbering.
    """

    dataset: Path
    number: int
    task: str
    robot_label: str
    image_size: tuple[int, int] | None
    columns: Mapping[str, np.ndarray]
    report: Mapping[str, Any]
    origin: Mapping[str, Any]
    fingerprint: str

    @property
    def states(self) -> Int[np.ndarray, "T 2"]:
        """State of each hand: ABSENT, OBSERVED, FILLED or DOUBTFUL (seen, confidence 0)."""
        state = np.where(self.valid, DOUBTFUL, ABSENT)
        state[self.observed] = OBSERVED
        state[self.valid & self.filled] = FILLED
        return state

    @property
    def folder(self) -> Path:
        """Folder of hands, report and pictures; it may be missing."""
        return self.dataset / layout.episode_folder(self.number)

    @property
    def subject(self) -> str | None:
        """The recorded person, if known."""
        name = self.report.get("subject") or self.origin.get("subject")
        return None if name is None else str(name)

    @property
    def source(self) -> str:
        return str(self.report.get("source") or self.origin.get("source") or "")


class DatasetReader:
    """Reader of a dataset, with one episode in memory at a time.

    Raises InputError: the dataset has no hands. SchemaError: one of its files is damaged.
    """

    def __init__(self, dataset: Path) -> None:
        self.dataset = dataset
        self._info = layout.read_json(dataset / layout.INFO_PATH)
        if not {columns.JOINTS.name, columns.WRIST_JOINTS.name} & {*self._info.get("features", {})}:
            raise InputError(
                f"{dataset}: no {columns.JOINTS.name!r}. acehand-retarget makes a dataset with the "
                "hands in its videos."
            )
        rows = sorted(layout.read_episode_rows(dataset), key=lambda row: row["episode_index"])
        self._rows = {row["episode_index"]: row for row in rows}
        self._tables, self._videos = Latest(1), Latest(1)  # a file may have many episodes

    @property
    def numbers(self) -> tuple[int, ...]:
        """The episode numbers, in order."""
        return tuple(self._rows)

    @property
    def robot_label(self) -> str:
        """The dataset's robot; empty: none."""
        return str(self._info.get("robot_type") or "")

    def read(self, number: int) -> Episode:
        """Return an episode. Raises InputError for an unknown number, SchemaError for damage."""
        row = self._row(number)
        name = layout.data_file(row)
        table = self._tables(name, lambda: layout.read_parquet(self.dataset / name))
        table = table.filter(pc.equal(table["episode_index"], number))
        if table.num_rows != row["length"] or not table.num_rows:
            raise SchemaError(
                f"{self.dataset}: episode {number} has {table.num_rows} rows, its metadata says "
                f"{row['length']}; see acehand dataset check."
            )
        return _episode(self.dataset, self._info, row, table)

    def video(self, number: int) -> lerobot_video.SourceEpisode | None:
        """Return the place of an episode's video; None without one."""
        row, keys = self._row(number), layout.video_keys(self._info["features"])
        if not keys:
            return None
        return lerobot_video.SourceEpisode(
            dataset=self.dataset, number=number,
            video=self.dataset / layout.video_file(row, keys[0]),
            start_s=float(row[f"videos/{keys[0]}/from_timestamp"]), frames=int(row["length"]),
            fps=float(self._info["fps"]), task=row["tasks"][0] if row["tasks"] else None,
        )  # fmt: skip

    def overlay(self, number: int) -> Path | None:
        """Return the overlay video of an episode; None without one."""
        overlay = self.dataset / layout.episode_folder(number) / layout.OVERLAY
        return overlay if overlay.is_file() else None

    def recording(self, number: int) -> Recording | None:
        """Return an episode's pictures; None without a video. Raises VideoError."""
        video = self.video(number)
        return None if video is None else lerobot_video.recording_of(video, kept=self._videos)

    def files(self, number: int) -> set[str]:
        """Return the names of an episode's data file, videos and folder."""
        row, keys = self._row(number), layout.video_keys(self._info["features"])
        videos = {layout.video_file(row, key) for key in keys}
        return {layout.data_file(row), layout.episode_folder(number), *videos}

    def _row(self, number: int) -> Mapping[str, Any]:
        if number not in self._rows:
            raise InputError(
                f"{self.dataset}: no episode {number}; valid: 0 to {max(self._rows, default=0)}."
            )
        return self._rows[number]


def _episode(
    dataset: Path, info: Mapping[str, Any], row: Mapping[str, Any], table: pa.Table
) -> Episode:
    features, count, number = info["features"], table.num_rows, row["episode_index"]
    stored = {
        name: layout.column_values(table[name], feature["shape"])
        for name, feature in features.items()
        if feature["dtype"] in layout.ARROW_TYPES and name not in layout.MANDATORY
    }
    digest = hashlib.sha256()
    for name in sorted(stored):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(stored[name]).tobytes())

    report = layout.read_report(dataset, number)
    table_file = dataset / layout.episode_folder(number) / layout.HANDS
    motion = read_hand_motion(table_file) if table_file.is_file() else None
    if motion is not None and len(motion) != count:
        raise SchemaError(f"{table_file}: {len(motion)} frames, the episode has {count}.")

    values = columns.read(stored, _HANDS)
    placed, valid = columns.JOINTS in values, values[columns.VALID]
    joints = values[columns.JOINTS if placed else columns.WRIST_JOINTS]
    times = np.round(np.arange(count) / info["fps"] * 1e9).astype(np.int64)
    camera = values.get(columns.CAMERA)
    image = next((features[k]["shape"] for k in layout.video_keys(features)), None)
    return Episode(
        dataset=dataset,
        number=number,
        task=row["tasks"][0] if row["tasks"] else "",
        fps=float(info["fps"]),
        source_ns=values.get(columns.SOURCE_TIMES, times).reshape(-1),
        joints=np.where(valid[..., None, None], joints, np.nan),
        placed=placed,
        valid=valid,
        filled=values[columns.FILLED],
        confidence=values[columns.CONFIDENCE],
        sigma=values.get(columns.JOINT_SIGMA),
        camera=camera if camera is not None and camera.any() else None,
        robot=_robot(features, stored),
        robot_label=str(info.get("robot_type") or ""),
        image_size=None if image is None else (image[1], image[0]),
        motion=motion,
        columns={name: column.reshape(count, -1) for name, column in stored.items()},
        report={key: value for key, value in report.items() if key != "provenance"},
        origin=layout.read_record(dataset, row) or {},
        fingerprint=digest.hexdigest()[:32],
    )


def _robot(features: Mapping[str, Any], stored: Mapping[str, np.ndarray]) -> RobotColumns | None:
    """Return the robot's columns; None without them: in other datasets a state may be anything."""
    if any(column.name not in stored for column in _ROBOT):
        return None
    values, frame = columns.read(stored, (*_ROBOT, columns.ARM_REACHED)), columns.frame_of(features)
    state, joints, registers = (values[column] for column in _ROBOT)
    poses, commands = columns.split_states(state, frame)
    return RobotColumns(
        joint_names=columns.joints_of(features[columns.ROBOT_JOINTS.name]),
        command_joints=columns.joints_of(features[columns.STATE.name])[-commands.shape[2] :],
        joints=joints,
        commands=commands,
        registers=registers,
        frame=frame,
        T_frame_base=poses,
        arm_reached=values.get(columns.ARM_REACHED),
    )


def hands_as_episode(
    source: Path, motion: HandMotion, trajectory: RobotTrajectory, origin: dict[str, Any]
) -> Episode:
    """Return hands and the robot that follows them as an episode without a dataset.

    ``origin`` is the provenance (``pipeline.report.episode_provenance``).
    """
    camera, verdict = motion.camera, trajectory.verdict
    report = {} if verdict is None else {"verdict": verdict.status, "reasons": [*verdict.reasons]}
    return Episode(
        **clip_of(motion, trajectory), dataset=source, number=0, task="",
        robot_label=trajectory.robot,
        image_size=None if camera is None else (camera.width, camera.height),
        columns={}, report={"source": source.name, **report}, origin=origin, fingerprint="",
    )  # fmt: skip
