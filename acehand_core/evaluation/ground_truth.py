"""What predictions are scored against: segments of a store of clips, or a folder of tables."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from acehand_core.datasets.clips.store import ClipStore
from acehand_core.errors import InputError
from acehand_core.files.safe_files import content_sha256
from acehand_core.motion import HandMotion, Recording
from acehand_core.recordings.hand_table import read_hand_motion

#: Frames of a segment where nothing else is said: the paper's.
SEGMENT_FRAMES = 81


@runtime_checkable
class GroundTruth(Protocol):
    """Segments with what is true in them.

    ``summary`` names the list: name, sha256, count. ``place`` says of which recording a segment is
    a part, and which: (clip, start, stop).
    """

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
        """Return a whole clip with its pictures. Raises InputError where there are none."""
        ...


class TableTruth:
    """A folder of HandMotion tables, one per segment, named by it; there are no pictures."""

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
            "name": self.dataset, "sha256": digest, "count": len(self._files),
        }  # fmt: skip

    def truth(self, segment: str) -> HandMotion:
        """Return the hands of a segment."""
        return read_hand_motion(self._files[segment])

    def place(self, segment: str) -> tuple[str, int, int]:
        """Return the segment itself: it is its own clip."""
        return segment, 0, len(self.truth(segment))

    def recording(self, clip: str) -> Recording:
        """Raise InputError: tables hold no pictures."""
        raise InputError(f"{self._files[clip]}: a tracker needs pictures; give a store of clips.")


class StoreTruth:
    """Segments of a store of clips.

    Args:
        segments: a list as ``acehand data segments`` writes it; without one the store's clips are
            cut from their first frame on, without overlap.
    """

    def __init__(
        self, store: ClipStore, segments: Path | None = None, length: int = SEGMENT_FRAMES
    ) -> None:
        from acehand_core.datasets.segments import make_segments, read_segments

        self._store = store
        info = store.info
        self.dataset = info.dataset
        if segments is None:
            clips = [(name, clip.frames) for name, clip in sorted(store.infos().items())]
            name = f"{info.dataset}-{info.split}-{length}"
            found = make_segments(clips, name, info.dataset, info.split, length, length)
        else:
            found = read_segments(segments)
        self._by_id = found.by_id()
        if not self._by_id:
            raise InputError(
                f"{store.root}: no clip has {length} frames; choose shorter segments "
                "(--segment-length)."
            )
        self._check(segments)
        self.segments = tuple(self._by_id)
        self.summary: Mapping[str, Any] = found.summary()
        self._hands = functools.lru_cache(maxsize=4)(store.hands)

    def _check(self, segments: Path | None) -> None:
        frames = {name: clip.frames for name, clip in self._store.infos().items()}
        for segment in self._by_id.values():
            if segment.clip not in frames:
                raise InputError(
                    f"{segments}: segment {segment.id!r} is of clip {segment.clip!r}, which "
                    f"{self._store.root} does not have."
                )
            if segment.stop > frames[segment.clip]:
                raise InputError(
                    f"{segments}: segment {segment.id!r} ends at frame {segment.stop}; clip "
                    f"{segment.clip!r} has {frames[segment.clip]}."
                )

    def truth(self, segment: str) -> HandMotion:
        """Return the hands of a segment, with the stamps that they have in their clip."""
        clip, start, stop = self.place(segment)
        motion = self._hands(clip)
        return motion.at(np.arange(start, stop), motion.timestamps_ns[start:stop], motion.fps)

    def place(self, segment: str) -> tuple[str, int, int]:
        """Return the segment's clip and frames."""
        found = self._by_id[segment]
        return found.clip, found.start, found.stop

    def recording(self, clip: str) -> Recording:
        """Return a clip with its pictures."""
        recording = self._store.open(clip).recording()
        if recording.frames is None:
            raise InputError(
                f"{self._store.root}: clip {clip!r} has no pictures to track hands in."
            )
        return recording


def open_ground_truth(
    path: Path, segments: Path | None = None, length: int = SEGMENT_FRAMES
) -> GroundTruth:
    """Return what a path holds: a store of clips, or a folder of tables.

    Raises:
        InputError: neither is there, or a list of segments for a folder of tables.
    """
    if not path.is_dir():
        raise InputError(f"{path}: no such folder of ground truth.")
    if (path / "store.json").is_file():
        return StoreTruth(ClipStore(path), segments, length)
    if segments is not None:
        raise InputError(
            f"{path}: --segments cuts a store of clips; here every table is one segment."
        )
    return TableTruth(path)
