"""Predictions and ground truth: checked HandMotion tables, one per segment."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from acehand_core.ace.evaluation.protocol import HandLibrary
from acehand_core.ace.labelled.clips.store import ClipStore
from acehand_core.ace.labelled.segments import LENGTH, make_segments, read_segments
from acehand_core.errors import InputError, SchemaError, nearest
from acehand_core.motion import HandMotion, Recording
from acehand_core.recordings.hands_file import read_hand_motion
from acehand_core.safe_files import content_sha256
from acehand_core.types import SIDES

SUFFIX = ".parquet"
#: Tolerance between joints and parameters: toolkits differ in fingertip vertices, and methods may
#: change a hand's shape per frame.
AGREEMENT_M = 0.03
_FIELDS = ("joints_camera", "global_orient", "hand_pose", "translation")


def find_predictions(folder: Path, segments: Collection[str]) -> dict[str, Path]:
    """Return the file of every segment, in the folder or its subfolders.

    Raises:
        InputError: no such folder, a segment without a file or with two, or a file of an unknown
            segment.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder of predictions.")
    files: dict[str, Path] = {}
    for path in sorted(folder.rglob(f"*{SUFFIX}")):
        name = path.name.removesuffix(SUFFIX)
        if name in files:
            raise InputError(
                f"{path}: segment {name!r} is predicted twice; the other file is {files[name]}."
            )
        files[name] = path

    missing = [name for name in segments if name not in files]
    unknown = [name for name in files if name not in set(segments)]
    if missing:
        raise InputError(
            f"{folder}: {len(missing)} of {len(segments)} segments have no prediction, first "
            f"{missing[0]!r}; {missing[0]}{SUFFIX} is needed, also without any hand."
        )
    if unknown:
        raise InputError(
            f"{files[unknown[0]]}: no segment of the list is named {unknown[0]!r}; "
            f"{nearest(unknown[0], list(segments)[:8])}"
        )
    return files


def read_prediction(path: Path, truth: HandMotion, library: HandLibrary) -> HandMotion:
    """Read the prediction of one segment.

    Raises:
        SchemaError: not a HandMotion table, frames missing or out of order, or refused by
            ``check_prediction``.
    """
    motion = read_hand_motion(path)

    # The table's reader does not check frame numbers.
    try:
        frames = pq.read_table(path, columns=["frame"])["frame"].to_numpy()[::2]
    except pa.ArrowException as error:
        raise SchemaError(f"{path}: 'frame' cannot be read: {error}.") from error
    wrong = np.flatnonzero(np.diff(frames) != 1)
    if len(wrong):
        row = int(wrong[0])
        raise SchemaError(
            f"{path}: 'frame' jumps from {frames[row]} to {frames[row + 1]}; every frame of the "
            "segment is needed, in order."
        )

    check_prediction(motion, truth, str(path), library)
    return motion


def check_prediction(
    motion: HandMotion, truth: HandMotion, where: str, library: HandLibrary
) -> None:
    """Raise SchemaError, naming ``where`` and the field, unless the motion can be scored.

    Refused: another number of frames, other timestamps, joints relative to the wrist, NaN in a
    present hand, and joints that disagree with the parameters (as hands in the wrong slot do).
    """
    if len(motion) != len(truth):
        raise SchemaError(
            f"{where}: 'frame' has {len(motion)} frames; the segment has {len(truth)}."
        )

    # Times from the first frame on must agree within half a frame.
    offset = motion.timestamps_ns - truth.timestamps_ns
    offset = offset - offset[0]
    late = np.flatnonzero(np.abs(offset) > 0.5e9 / truth.fps)
    if len(late):
        raise SchemaError(
            f"{where}: 'timestamp_ns' of frame {late[0]} is {offset[late[0]] * 1e-6:.1f} ms from "
            "the segment's."
        )

    if not motion.placed:
        raise SchemaError(
            f"{where}: 'placed' is false: joints are relative to the wrist; joints in the camera "
            "frame are needed."
        )

    # A hand is finite or all NaN; an active hand is finite.
    active, known = motion.presence > 0.5, np.isfinite(motion.joints_camera).all((-1, -2))
    for name in _FIELDS[:1] if motion.hand_model == "none" else _FIELDS:
        finite = np.isfinite(getattr(motion, name)).reshape(*active.shape, -1)
        unknown = ~finite.all(-1)
        for wrong, what in (
            (unknown & finite.any(-1), "is NaN in part"),
            (unknown & active, "is NaN while presence is above 0.5"),
            (unknown & known, "is NaN while joints_camera is known"),
        ):
            if wrong.any():
                frame, slot = np.argwhere(wrong)[0]
                raise SchemaError(
                    f"{where}: {name!r} of the {SIDES[slot]} hand in frame {frame} {what}."
                )

    if motion.hand_model != "none" and not np.isfinite(motion.betas).all():
        raise SchemaError(f"{where}: 'betas' has NaN.")

    model = library.find(motion.hand_model, motion.left_shapedirs_fixed)
    if model is None:
        return

    for slot, side in enumerate(SIDES):
        rows = np.flatnonzero(known[:, slot])
        if not len(rows):
            continue
        pose = motion.global_orient[rows, slot], motion.hand_pose[rows, slot], motion.betas[slot]
        posed = model.joints(side, *pose) + motion.translation[rows, slot, None]
        distance = np.linalg.norm(posed - motion.joints_camera[rows, slot], axis=-1).max(-1)
        worst = int(distance.argmax())
        if distance[worst] > AGREEMENT_M:
            raise SchemaError(
                f"{where}: 'joints_camera' of the {side} hand in frame {rows[worst]} is "
                f"{1e3 * distance[worst]:.0f} mm from what global_orient, hand_pose, betas and "
                f"translation give for a {side} {motion.hand_model} hand (at most "
                f"{1e3 * AGREEMENT_M:.0f} mm): another side, hand model, mean pose or frame."
            )


@runtime_checkable
class GroundTruth(Protocol):
    """Segments with their true hands; ``summary`` is name, sha256 and count of the list."""

    dataset: str
    summary: Mapping[str, Any]
    segments: tuple[str, ...]

    def truth(self, segment: str) -> HandMotion:
        """Return the hands of a segment with its camera."""
        ...

    def place(self, segment: str) -> tuple[str, int, int]:
        """Return the segment's clip, first frame and the frame after its last."""
        ...

    def recording(self, clip: str) -> Recording:
        """Return a whole clip with its pictures. Raises InputError if it has none."""
        ...


class TableTruth:
    """A folder of HandMotion tables without pictures, each one segment and its own clip."""

    def __init__(self, folder: Path) -> None:
        self._files = {p.stem: p for p in sorted(folder.glob("*.parquet"))}
        if not self._files:
            raise InputError(
                f"{folder}: neither a store of clips (store.json) nor a folder of HandMotion "
                "tables (.parquet)."
            )
        hashes = {name: content_sha256(path) for name, path in self._files.items()}
        digest = hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()
        self.dataset = folder.resolve().name
        self.segments = tuple(self._files)
        self.summary: Mapping[str, Any] = {
            "name": self.dataset,
            "sha256": digest,
            "count": len(self._files),
        }

    def truth(self, segment: str) -> HandMotion:
        return read_hand_motion(self._files[segment])

    def place(self, segment: str) -> tuple[str, int, int]:
        return segment, 0, len(self.truth(segment))

    def recording(self, clip: str) -> Recording:
        raise InputError(f"{self._files[clip]}: a tracker needs pictures; give a store of clips.")


class StoreTruth:
    """Segments of a store of clips.

    Args:
        segments: a list written by ``acehand evaluate``; default: cut by the other
            arguments, see ``make_segments``.
    """

    def __init__(
        self,
        store: ClipStore,
        segments: Path | None = None,
        length: int = LENGTH,
        stride: int | None = None,
        count: int | None = None,
        seed: int = 0,
    ) -> None:
        self._store = store
        info = store.info
        self.dataset = info.dataset
        frames = {name: clip.frames for name, clip in store.infos().items()}
        if segments is None:
            drawn = "" if count is None else f"-{count}-seed{seed}"
            name = f"{info.dataset}-{info.split}-{length}{drawn}"
            self.listed = make_segments(
                list(frames.items()), name, info.dataset, info.split, length, stride, count, seed
            )
        else:
            self.listed = read_segments(segments)
        self._by_id = self.listed.by_id()

        for segment in self._by_id.values():
            if segment.clip not in frames:
                raise InputError(
                    f"{segments}: segment {segment.id!r} is of clip {segment.clip!r}, which "
                    f"{store.root} does not have."
                )
            if segment.stop > frames[segment.clip]:
                raise InputError(
                    f"{segments}: segment {segment.id!r} ends at frame {segment.stop}; clip "
                    f"{segment.clip!r} has {frames[segment.clip]}."
                )
        self.segments = tuple(self._by_id)
        self.summary: Mapping[str, Any] = self.listed.summary()
        self._hands = functools.lru_cache(maxsize=4)(store.hands)

    def truth(self, segment: str) -> HandMotion:
        """Return the hands of a segment, with their timestamps in the clip."""
        clip, start, stop = self.place(segment)
        motion = self._hands(clip)
        return motion.at(np.arange(start, stop), motion.timestamps_ns[start:stop], motion.fps)

    def place(self, segment: str) -> tuple[str, int, int]:
        entry = self._by_id[segment]
        return entry.clip, entry.start, entry.stop

    def recording(self, clip: str) -> Recording:
        recording = self._store.open(clip).recording()
        if recording.frames is None:
            raise InputError(f"{self._store.root}: clip {clip!r} has no pictures to track.")
        return recording


def open_ground_truth(path: Path, segments: Path | None = None, **cut: Any) -> GroundTruth:
    """Open a store of clips or a folder of tables.

    ``cut`` are the arguments of ``StoreTruth`` for a store without a list.

    Raises:
        InputError: neither of them, or a list of segments for a folder of tables.
    """
    if not path.is_dir():
        raise InputError(f"{path}: no such folder of ground truth.")
    if (path / "store.json").is_file():
        return StoreTruth(ClipStore(path), segments, **cut)
    if segments is not None:
        raise InputError(
            f"{path}: `segments` cuts a store of clips; here every table is one segment."
        )
    return TableTruth(path)
