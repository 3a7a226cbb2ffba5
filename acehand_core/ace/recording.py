"""A clip of a store as an input: its pictures with their labelled hands."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from acehand_core.motion import Recording
from acehand_core.recordings.options import RecordingOptions
from acehand_core.recordings.registry import PICTURE_OPTIONS, RecordingFormat
from acehand_core.recordings.selection import only_hands, part
from acehand_core.safe_files import content_sha256
from acehand_core.types import Progress


class StoreClip(RecordingFormat):
    """``STORE/clips/ID``, or ``STORE/SEGMENT`` (no such path): the clip from its first frame on."""

    noun = "a clip of a store"
    order = 5
    takes = PICTURE_OPTIONS - {"mirrored"}

    @staticmethod
    def matches(path: Path) -> bool:
        return (not path.exists() and (path.parent / "store.json").is_file()) or _is_clip(path)

    def expand(self, path: Path) -> list[Path]:
        return [path]

    def sha256(self, path: Path, options: RecordingOptions) -> str:
        return content_sha256(_clip_folder(path)[0] / "clip.json")  # it has those of all others

    def open(self, path: Path, options: RecordingOptions, progress: Progress | None) -> Recording:
        from acehand_core.ace.labelled.clips.store import ClipStore

        folder, first = _clip_folder(path)
        clip = ClipStore(folder.parents[1]).open(folder.name)
        recording = part(clip.recording(), first, clip.info.frames)
        poses = recording.T_world_camera
        if poses is not None and np.isnan(poses).any():
            poses = None
        recording = replace(
            recording,
            T_world_camera=poses,
            sha256=content_sha256(folder / "clip.json"),
            objects=None if poses is None else recording.objects,
        )
        frames = np.arange(first, clip.info.frames)
        hands = clip.motion.at(frames, recording.timestamps_ns, recording.fps)
        hands = replace(only_hands(hands, options.hands), T_world_camera=poses)
        return replace(recording, hands=hands)


def _is_clip(path: Path) -> bool:
    return (path / "clip.json").is_file() and (path.parent.parent / "store.json").is_file()


def _clip_folder(path: Path) -> tuple[Path, int]:
    """Return a clip's folder and first frame. Raises InputError for an unknown segment name."""
    from acehand_core.ace.labelled.clips.store import ClipStore
    from acehand_core.ace.labelled.segments import segment_place

    if _is_clip(path):
        return path, 0
    store = ClipStore(path.parent)
    clip, first = segment_place(path.name, store.info.dataset)
    return store.folder(clip), first
