"""Clips that hands are tracked in: rendered ones with their truth, and videos without."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from acehand_core.ace.labelled.clips.store import ClipStore
from acehand_core.motion import FrameSource, HandMotion, Recording
from acehand_core.recordings.hands_file import read_hand_motion
from acehand_core.recordings.registry import open_recording
from acehand_core.types import ImageRgb
from benchmarks import provenance
from benchmarks.tracking.score import Truth

EXAMPLE = provenance.ROOT / "examples" / "two_hands.mp4"
VIDEO = Path("data") / "human_hand_video.mp4"


@dataclass(frozen=True, slots=True)
class Case:
    """A rendered clip: ``store`` it is from, the recording with its camera, and the true hands."""

    store: str
    recording: Recording
    truth: Truth

    @property
    def name(self) -> str:
        return self.recording.name

    @property
    def hand_length_m(self) -> float:
        """One length for both hands: users measure one."""
        return float(np.nanmedian(self.truth.length_m))


def cases(stores: Sequence[Path]) -> Iterator[Case]:
    """Yield the example and every clip of some stores, or of the stores in a folder."""
    truth = read_hand_motion(EXAMPLE.with_name("two_hands_truth.parquet"))
    frames = open_recording(EXAMPLE).frames
    assert frames is not None
    yield Case("example", _recording("two_hands", frames, truth), Truth.of(truth))
    for given in stores:
        found = [given] if (given / "store.json").is_file() else sorted(
            path.parent for path in given.glob("*/store.json")
        )  # fmt: skip
        for folder in found:
            store = ClipStore(folder)
            for name in store.ids():
                clip = store.open(name)
                assert clip.frames is not None
                seen = store.extra(name, "sight")["joints_seen"]
                recording = _recording(name, clip.frames, clip.motion)
                yield Case(folder.name, recording, Truth.of(clip.motion, seen))


def videos(given: Sequence[Path] | None) -> list[Recording]:
    """Return the videos without truth: those given, else the two at hand."""
    at_hand = [provenance.shared_folder() / VIDEO, EXAMPLE]
    found = [path for path in at_hand if path.is_file()] if given is None else list(given)
    return [open_recording(path) for path in found]


def mirrored(recording: Recording) -> Recording:
    """Return a recording with its pictures mirrored left to right; of a pinhole camera or none."""
    assert recording.frames is not None
    camera = recording.camera
    if camera is not None:
        assert camera.model == "pinhole"
        camera = replace(camera, cx=camera.width - 1 - camera.cx)
    return replace(
        recording,
        frames=_Mirrored(recording.frames),
        camera=camera,
        T_world_camera=None,
        sha256=None,
    )


@dataclass(frozen=True, slots=True)
class _Mirrored:
    frames: FrameSource

    def __len__(self) -> int:
        return len(self.frames)

    def read(self, start: int, stop: int) -> Iterator[ImageRgb]:
        return (_flipped(image) for image in self.frames.read(start, stop))

    def at(self, index: int) -> ImageRgb:
        return _flipped(self.frames.at(index))


def _flipped(image: ImageRgb) -> ImageRgb:
    return np.ascontiguousarray(image[:, ::-1])


def _recording(name: str, frames: FrameSource, truth: HandMotion) -> Recording:
    """Return what a tracker is given: pictures, times and the camera, but not where it was."""
    camera = truth.camera
    assert camera is not None
    return Recording(
        name, None, truth.timestamps_ns, truth.fps, camera.width, camera.height, frames, camera
    )
