"""Running any tracker over the segments, and timing it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np

from acehand_core.data.selection import part
from acehand_core.data.undistort import undistort
from acehand_core.errors import InputError
from acehand_core.evaluation.ground_truth import GroundTruth
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.motion import HandModelName, HandMotion, Provenance, Recording
from acehand_core.types import ImageRgb

Progress = Callable[[str, int, int], None]


@runtime_checkable
class Tracker(Protocol):
    """What is needed of a tracker (``acehand_core.trackers.base.Tracker`` has it)."""

    name: str

    def track(self, recording: Recording, progress: Any = ...) -> HandMotion:
        """Return the hands of the recording."""
        ...


class DoNothing:
    """The tracker that never sees a hand: what every miss costs, and nothing else."""

    name = "do-nothing"
    placed = True
    hand_model: HandModelName = "acehand"

    def track(self, recording: Recording, progress: Any = None) -> HandMotion:
        """Return a motion without hands."""
        frames = len(recording)

        def empty(*shape: int) -> np.ndarray:
            return np.full((frames, 2, *shape), np.nan)

        return HandMotion(
            timestamps_ns=recording.timestamps_ns,
            fps=recording.fps,
            presence=np.zeros((frames, 2)),
            visible=np.zeros((frames, 2)),
            quality=np.zeros((frames, 2)),
            observed=np.zeros((frames, 2), bool),
            filled=np.zeros((frames, 2), bool),
            global_orient=empty(3, 3),
            hand_pose=empty(15, 3, 3),
            betas=np.zeros((2, 10)),
            translation=empty(3),
            joints_camera=empty(21, 3),
            joints_image=empty(21, 2),
            hand_model=CapsuleHand.name,
            provenance=Provenance(recording.name, recording.sha256, self.name),
            camera=recording.camera,
        )


def track_segment(
    tracker: Tracker, truth: GroundTruth, segment: str, decode_frames: int | None
) -> HandMotion:
    """Return a tracker's hands of one segment.

    Args:
        decode_frames: how many frames the tracker sees at once: None those of the segment, 0 the
            whole clip, else so many from the segment's first on, moved back where the clip ends
            (paper, "Decoded Sequence Length").
    """
    clip, start, stop = truth.place(segment)
    whole = truth.recording(clip)
    first, last = _window(start, stop, len(whole), decode_frames)
    seen = part(whole, first, last)
    if seen.camera is not None and seen.camera.model != "pinhole":
        seen = undistort(seen)
    motion = tracker.track(seen)
    rows = np.arange(start - first, stop - first)
    motion = motion.at(rows, motion.timestamps_ns[rows], motion.fps)
    settings = dict(motion.provenance.settings) | {"decoded_frames": last - first}
    return replace(motion, provenance=replace(motion.provenance, settings=settings))


def _window(start: int, stop: int, total: int, decode_frames: int | None) -> tuple[int, int]:
    if decode_frames is None:
        return start, stop
    if decode_frames == 0:
        return 0, total
    if decode_frames < stop - start:
        raise InputError(
            f"--decode-frames {decode_frames}: the segments have {stop - start} frames; valid: "
            "at least as many, or 0 for whole recordings."
        )
    first = max(0, min(start, total - decode_frames))
    return first, min(total, first + decode_frames)


@dataclass(frozen=True, slots=True)
class Memory:
    """Decoded frames held in memory, so that timing leaves decoding out."""

    images: tuple[ImageRgb, ...]

    def __len__(self) -> int:
        return len(self.images)

    def read(self, start: int, stop: int) -> Iterator[ImageRgb]:
        """Yield frames ``start`` to ``stop - 1``."""
        return iter(self.images[start:stop])

    def read_reversed(self, start: int, stop: int) -> Iterator[ImageRgb]:
        """Yield frames ``stop - 1`` down to ``start``."""
        return reversed(self.images[start:stop])

    def at(self, index: int) -> ImageRgb:
        """Return one frame."""
        return self.images[index]


def throughput(
    tracker: Tracker, truth: GroundTruth, segment: str, passes: int = 3
) -> dict[str, Any]:
    """Time a tracker on one segment as the paper does.

    From decoded frames in memory to hands in memory; one full pass to warm up, then the median of
    ``passes``. ``hands_per_frame`` counts the hands that came out, so that misses cannot pass for
    speed. (Paper, "Inference Throughput".)
    """
    clip, start, stop = truth.place(segment)
    seen = part(truth.recording(clip), start, stop)
    if seen.camera is not None and seen.camera.model != "pinhole":
        seen = undistort(seen)
    assert seen.frames is not None
    held = replace(seen, frames=Memory(tuple(seen.frames.read(0, len(seen)))))
    times = []
    motion = tracker.track(held)
    for _ in range(passes):
        began = time.perf_counter()
        motion = tracker.track(held)
        times.append(time.perf_counter() - began)
    seconds = statistics.median(times)
    there = np.isfinite(motion.joints_camera).all((-1, -2)) & (motion.presence > 0.5)
    return {
        "segment": segment,
        "frames": len(held),
        "passes": passes,
        "seconds": seconds,
        "fps": len(held) / seconds,
        "hands_per_frame": float(there.sum() / len(held)),
    }
