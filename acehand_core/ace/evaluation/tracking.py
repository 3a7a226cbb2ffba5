"""Trackers run over the recordings of segments, and their timing."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np

from acehand_core.ace.evaluation.inputs import GroundTruth
from acehand_core.errors import InputError
from acehand_core.motion import HandMotion, Recording
from acehand_core.provenance import Provenance
from acehand_core.recordings.cameras import undistort
from acehand_core.recordings.selection import part
from acehand_core.types import ImageRgb


@runtime_checkable
class ScoredTracker(Protocol):
    """The scored part of ``acehand_core.trackers.base.Tracker``."""

    name: str

    def track(self, recording: Recording, progress: Any = ...) -> HandMotion:
        """Return the hands of the recording."""
        ...


@runtime_checkable
class OnePassTracker(ScoredTracker, Protocol):
    """A tracker whose network reads chosen frames in one pass.

    ``trained_frames`` is its training length, None if unknown.
    """

    trained_frames: int | None

    def track_passes(
        self, recording: Recording, spans: Sequence[tuple[int, int]], progress: Any = ...
    ) -> Iterator[HandMotion]:
        """Yield the hands of parts of the recording, each read in one pass."""
        ...


@dataclass(frozen=True, slots=True)
class Decoding:
    """Frames that a tracker reads in one pass.

    Attributes:
        frames: number from the segment's first on, moved back at the recording's end; 0 the whole
            recording; None the segment's (paper, "Decoded Sequence Length").
        in_windows: the whole recording in the tracker's own windows.
    """

    frames: int | None = None
    in_windows: bool = False

    def __post_init__(self) -> None:
        if self.in_windows and self.frames:
            raise InputError(
                f"`decode_frames={self.frames}` reads a segment in one pass, `windows` cuts the "
                "recording; give one of them."
            )


#: One pass per segment, as in the paper's tables.
ONE_PASS = Decoding()


class DoNothing:
    """The tracker that never detects a hand: a baseline of charges."""

    name = "do-nothing"

    def track(self, recording: Recording, progress: Any = None) -> HandMotion:
        """Return a motion without hands."""
        frames = len(recording)
        zero, never = np.zeros((frames, 2)), np.zeros((frames, 2), bool)

        def empty(*shape: int) -> np.ndarray:
            return np.full((frames, 2, *shape), np.nan)

        return HandMotion(
            timestamps_ns=recording.timestamps_ns,
            fps=recording.fps,
            presence=zero,
            visible=zero,
            quality=zero,
            observed=never,
            filled=never,
            global_orient=empty(3, 3),
            hand_pose=empty(15, 3, 3),
            betas=np.zeros((2, 10)),
            translation=empty(3),
            joints_camera=empty(21, 3),
            joints_image=empty(21, 2),
            hand_model="acehand",
            provenance=Provenance(recording.name, recording.sha256, self.name),
            camera=recording.camera,
        )


def suited(tracker: ScoredTracker, truth: GroundTruth, decoding: Decoding) -> Decoding:
    """Return the decoding, or the default for ``ONE_PASS``.

    By default a segment is read in one pass, as in the paper's tables; weights trained on fewer
    frames read the recording in windows of their training length.
    """
    if decoding != ONE_PASS or not isinstance(tracker, OnePassTracker):
        return decoding
    learned = tracker.trained_frames
    longest = max(stop - start for _, start, stop in map(truth.place, truth.segments))
    return Decoding(in_windows=learned is not None and learned < longest)


def track_segments(
    tracker: ScoredTracker,
    truth: GroundTruth,
    segments: Sequence[str],
    decoding: Decoding = ONE_PASS,
) -> Iterator[tuple[str, HandMotion]]:
    """Yield segments with a tracker's hands; each recording is tracked, or encoded, once."""
    by_clip: dict[str, list[str]] = {}
    for segment in segments:
        by_clip.setdefault(truth.place(segment)[0], []).append(segment)
    for clip, of_clip in by_clip.items():
        whole = truth.recording(clip)
        # One-pass trackers undistort if they need a pinhole.
        distorted = whole.camera is not None and whole.camera.model != "pinhole"
        if distorted and not isinstance(tracker, OnePassTracker):
            whole = undistort(whole)
        yield from _tracked(tracker, whole, {s: truth.place(s)[1:] for s in of_clip}, decoding)


def _tracked(
    tracker: ScoredTracker,
    whole: Recording,
    places: Mapping[str, tuple[int, int]],
    decoding: Decoding,
) -> Iterator[tuple[str, HandMotion]]:
    """Yield the segments of a recording, given by start and stop, with their hands."""
    one_pass = isinstance(tracker, OnePassTracker)
    if decoding.in_windows or (decoding.frames == 0 and not one_pass):
        motion = tracker.track(whole)
        latents = motion.provenance.settings.get("decoded_latents")
        seen = len(whole) if latents is None else min(len(whole), 4 * (latents - 1) + 1)
        for segment, place in places.items():
            yield segment, _cut(motion, place, 0, seen, decoding)
        return

    seen_for: dict[tuple[int, int], list[str]] = {}
    for segment, place in places.items():
        seen_for.setdefault(_span(*place, len(whole), decoding.frames), []).append(segment)
    motions: Iterable[HandMotion]
    if isinstance(tracker, OnePassTracker):
        motions = tracker.track_passes(whole, list(seen_for))
    else:
        motions = (tracker.track(part(whole, *span)) for span in seen_for)
    for (first, stop), motion in zip(seen_for, motions, strict=True):
        for segment in seen_for[first, stop]:
            yield segment, _cut(motion, places[segment], first, stop - first, decoding)


def _cut(
    motion: HandMotion, place: tuple[int, int], first: int, seen: int, decoding: Decoding
) -> HandMotion:
    """Return a segment of a motion that begins at frame ``first`` of the recording."""
    rows = np.arange(place[0] - first, place[1] - first)
    motion = motion.at(rows, motion.timestamps_ns[rows], motion.fps)
    whole = decoding.frames == 0 and not decoding.in_windows
    settings = dict(motion.provenance.settings)
    settings |= {"decoded_frames": seen, "decoded_whole": whole}
    return replace(motion, provenance=replace(motion.provenance, settings=settings))


def _span(start: int, stop: int, total: int, decode_frames: int | None) -> tuple[int, int]:
    """Return first and stop of the frames read in one pass for a segment."""
    if decode_frames is None:
        return start, stop
    if decode_frames == 0:
        return 0, total
    if decode_frames < stop - start:
        raise InputError(
            f"`decode_frames={decode_frames}`: the segments have {stop - start} frames; valid: "
            "at least as many, or 0 for whole recordings."
        )
    first = max(0, min(start, total - decode_frames))
    return first, min(total, first + decode_frames)


class Memory(list[ImageRgb]):
    """Decoded frames in memory, to time a tracker without video decoding."""

    at = list.__getitem__

    def read(self, start: int, stop: int) -> Iterator[ImageRgb]:
        """Yield frames ``start`` to ``stop - 1``."""
        return iter(self[start:stop])


def throughput(
    tracker: ScoredTracker, truth: GroundTruth, segment: str, passes: int = 3
) -> dict[str, Any]:
    """Time a tracker on one segment (paper, "Inference Throughput").

    From frames in memory to hands in memory: the median of ``passes`` after one warm-up.
    ``hands_per_frame`` counts returned hands, which shows speed by misses.
    """
    clip, start, stop = truth.place(segment)
    seen = part(truth.recording(clip), start, stop)
    if seen.camera is not None and seen.camera.model != "pinhole":
        seen = undistort(seen)
    assert seen.frames is not None
    held = replace(seen, frames=Memory(seen.frames.read(0, len(seen))))
    times = []
    for _ in range(passes + 1):
        began = time.perf_counter()
        motion = tracker.track(held)
        times.append(time.perf_counter() - began)

    seconds = statistics.median(times[1:])
    present = np.isfinite(motion.joints_camera).all((-1, -2)) & (motion.presence > 0.5)
    return {
        "segment": segment,
        "frames": len(held),
        "passes": passes,
        "seconds": seconds,
        "fps": len(held) / seconds,
        "hands_per_frame": float(present.sum() / len(held)),
    }
