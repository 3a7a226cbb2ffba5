"""Rotation of a recording's camera, segment by segment, with masked hands."""

from __future__ import annotations

import hashlib
import itertools
import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float

from acehand_core.atomic import atomic_path
from acehand_core.camera.turns import estimate_rotations, hand_mask
from acehand_core.errors import AcehandError, InputError
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import CameraMotion, Recording, runs
from acehand_core.processes import in_threads, one_blas_thread
from acehand_core.safe_files import safe_load_npz
from acehand_core.types import Progress, no_progress

#: Part of the cache key; raise it with every change of results.
VERSION = 4
#: Frames of a segment, and of its lead into the segment before, which finds the dark border.
SEGMENT_FRAMES, LEAD_FRAMES = 320, 30
#: Margin around the wanted frames.
MARGIN_S = 0.5
#: Longest gap between sightings of a hand that is masked, and the margin around sightings.
_MISSED_S, _BEYOND_S = 1.0, 0.2

Landmarks = Float[np.ndarray, "T S 21 2"]


@dataclass(frozen=True, slots=True)
class FrameSegment:
    """Frames ``start`` to ``stop - 1``; those before ``first`` are the lead."""

    start: int
    first: int
    stop: int


@one_blas_thread()
def recorded_rotations(
    recording: Recording,
    camera: Camera,
    landmarks: Landmarks,
    wanted: Bool[np.ndarray, "T"] | None = None,
    work_dir: Path | None = None,
    progress: Progress = no_progress,
) -> CameraMotion:
    """Estimate the rotation of a recording's camera from its pictures.

    Args:
        camera: overrides the recording's.
        landmarks: pixels of the hands, which are masked; NaN for hands out of view.
        wanted: frames to estimate, plus a margin; other steps are broken. None: all frames.
        work_dir: cache of finished segments, or None.
        progress: called with ("camera", frames done, frames in all).

    Raises InputError without pictures, OutputError if ``work_dir`` cannot be written.
    """
    if recording.frames is None:
        raise InputError(f"{recording.source}: it has no pictures to estimate camera motion from.")
    frames, hands = recording.frames, bridged(landmarks, recording.fps)
    # Files in the cache are named by pictures, camera and hands.
    key = {
        "version": VERSION,
        "source": recording.sha256,
        "processing": dict(recording.processing),
        "times": hashlib.sha256(recording.timestamps_ns.tobytes()).hexdigest(),
        "camera": repr(camera),
        "hands": hashlib.sha256(hands.tobytes()).hexdigest(),
    }
    digest = hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()
    all_frames = np.ones(len(recording), bool)
    segments = segments_of(
        all_frames if wanted is None else wanted, round(MARGIN_S * recording.fps)
    )
    count, done = sum(s.stop - s.start for s in segments), 0
    lock = threading.Lock()

    def advance(by: int) -> None:
        nonlocal done
        with lock:
            done += by
            progress("camera", done, count)

    def pictures(segment: FrameSegment, stop: threading.Event) -> Iterator[np.ndarray]:
        for picture in frames.read(segment.start, segment.stop):
            if stop.is_set():
                raise AcehandError("stopped")
            yield picture
            advance(1)

    def estimated(segment: FrameSegment, stop: threading.Event) -> CameraMotion:
        path = None
        if work_dir is not None:
            path = work_dir / f"camera-{digest[:24]}-{segment.start:09d}-{segment.stop:09d}.npz"
            motion = _cached(path)
            if motion is not None and len(motion) == segment.stop - segment.start:
                advance(len(motion))
                return motion

        def mask(number: int) -> Bool[np.ndarray, "H W"]:
            return hand_mask(hands[segment.start + number], recording.width, recording.height)

        motion = estimate_rotations(pictures(segment, stop), camera, mask)
        if path is not None:
            with atomic_path(path, overwrite=True) as partial, partial.open("wb") as file:
                np.savez_compressed(file, **asdict(motion))
        return motion

    made = dict(zip(segments, in_threads(estimated, segments), strict=True))
    return joined(made, len(recording))


def segments_of(wanted: Bool[np.ndarray, "T"], margin: int) -> list[FrameSegment]:
    """Return segments that cover the wanted frames and a margin on both sides."""
    count = len(wanted)
    near = np.convolve(wanted, np.ones(2 * margin + 1))[margin : margin + count] > 0.5
    segments = []
    for first, stop in runs(near):
        pieces = -(-(stop - first) // SEGMENT_FRAMES)
        cuts = np.linspace(first, stop, pieces + 1).round().astype(int).tolist()
        segments += [
            FrameSegment(a if a == first else max(first, a - LEAD_FRAMES), a, b)
            for a, b in itertools.pairwise(cuts)
        ]
    return segments


def joined(segments: Mapping[FrameSegment, CameraMotion], count: int) -> CameraMotion:
    """Return one motion over ``count`` frames, broken outside the segments and where one starts."""
    rotations = np.tile(np.eye(3), (count, 1, 1))
    broken, sigma = np.arange(count) > 0, np.zeros(count)
    for segment, motion in segments.items():
        own, at = segment.first - segment.start, slice(segment.first, segment.stop)
        carry = rotations[segment.first - 1] @ motion.rotations[own - 1].T if own else np.eye(3)
        rotations[at] = carry @ motion.rotations[own:]
        broken[at], sigma[at] = motion.broken[own:], motion.sigma_rad[own:]
        broken[segment.first] |= not own and segment.first > 0
    return CameraMotion(rotations, broken, sigma)


def bridged(landmarks: Landmarks, fps: float) -> Landmarks:
    """Return landmarks with short gaps interpolated, and held for a moment before and after."""
    out = landmarks.copy()
    longest, beyond = round(_MISSED_S * fps), max(1, round(_BEYOND_S * fps))
    for hand in range(landmarks.shape[1]):
        seen = np.flatnonzero(np.isfinite(landmarks[:, hand]).all((1, 2)))
        for a, b in itertools.pairwise(seen):
            if 1 < b - a <= longest:
                share = np.linspace(0, 1, b - a + 1)[1:-1, None, None]
                ends = landmarks[a, hand], landmarks[b, hand]
                out[a + 1 : b, hand] = (1 - share) * ends[0] + share * ends[1]
        known = np.isfinite(out[:, hand]).all((1, 2))
        for at in np.flatnonzero(known & ~np.roll(known, 1)):
            out[max(0, at - beyond) : at, hand] = out[at, hand]
        for at in np.flatnonzero(known & ~np.roll(known, -1)):
            out[at + 1 : at + 1 + beyond, hand] = out[at, hand]
    return out


def _cached(path: Path) -> CameraMotion | None:
    """Return a cached segment; None if it is missing or damaged."""
    try:
        return CameraMotion(**safe_load_npz(path)) if path.is_file() else None
    except (InputError, EOFError, TypeError, ValueError):
        return None
