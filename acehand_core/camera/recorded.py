"""How the camera of a recording turned: segment by segment, beside hands that are masked."""

from __future__ import annotations

import hashlib
import itertools
import json
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float

from acehand_core.atomic import atomic_path
from acehand_core.camera.turns import estimate_rotations, hand_mask
from acehand_core.errors import InputError
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import CameraMotion, Recording, runs
from acehand_core.processes import one_blas_thread, thread_count
from acehand_core.safe_files import safe_load_npz
from acehand_core.types import Progress, no_progress

#: Counts up with whatever changes the result, so that no older one is taken for it.
VERSION = 4
#: Frames of a segment; fixed, so that a result does not depend on the machine. One that continues
#: another begins so many frames earlier than its own, which tell what stays dark along the edge.
SEGMENT_FRAMES, LEAD_FRAMES = 320, 30
#: What is looked at begins so long before the frames that are asked for, and ends so long after.
MARGIN_S = 0.5
#: A hand that was missed for up to so long is masked between its sightings, and so long beyond.
_MISSED_S, _BEYOND_S = 1.0, 0.2

Landmarks = Float[np.ndarray, "T S 21 2"]


@dataclass(frozen=True, slots=True)
class FrameSegment:
    """Frames ``start`` to ``stop - 1``, of which those from ``first`` on are its own."""

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
    """Return how the camera of a recording turned, from its pictures.

    Args:
        camera: of the pictures, whatever the recording says of it.
        landmarks: pixels of the hands, which are not looked at; NaN where one is not seen.
        wanted: frames across which the turn is to be known; those about them are looked at too, and
            all other steps are broken. None: all frames.
        work_dir: where finished segments are kept, and found by a run that resumes; None: nowhere.
        progress: called with ("camera", frames done, frames in all).

    Raises:
        InputError: the recording has no pictures.
        OutputError: ``work_dir`` cannot be written.
    """
    if recording.frames is None:
        raise InputError(f"{recording.source}: it has no pictures to tell the camera's motion by.")
    frames, hands = recording.frames, bridged(landmarks, recording.fps)
    cache = _Cache(work_dir, recording, camera, hands)
    segments = segments_of(np.ones(len(recording), bool) if wanted is None else wanted,
                           round(MARGIN_S * recording.fps))  # fmt: skip
    count, done = sum(s.stop - s.start for s in segments), 0
    stop, lock = threading.Event(), threading.Lock()

    def advance(by: int) -> None:
        nonlocal done
        with lock:
            done += by
            progress("camera", done, count)

    def pictures(segment: FrameSegment) -> Iterator[np.ndarray]:
        for picture in frames.read(segment.start, segment.stop):
            if stop.is_set():
                return
            yield picture
            advance(1)

    def mask(number: int) -> Bool[np.ndarray, "H W"]:
        return hand_mask(hands[number], recording.width, recording.height)

    def estimated(segment: FrameSegment) -> CameraMotion:
        motion = cache.get(segment)
        if motion is not None:
            advance(len(motion))
            return motion
        motion = estimate_rotations(
            pictures(segment), camera, lambda number: mask(segment.start + number)
        )
        if not stop.is_set():
            cache.put(segment, motion)
        return motion

    with ThreadPoolExecutor(thread_count()) as pool:
        futures = [pool.submit(estimated, segment) for segment in segments]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)
        # Of several that were stopped the one with the reason.
        for future in futures:
            if not future.cancelled():
                future.result()
    made = {segment: future.result() for segment, future in zip(segments, futures, strict=True)}
    return joined(made, len(recording))


def segments_of(wanted: Bool[np.ndarray, "T"], margin: int) -> list[FrameSegment]:
    """Return segments of the wanted frames and ``margin`` more on both sides."""
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
    """Return one motion over ``count`` frames; what no segment holds is broken.

    The frame before a segment's own, where it holds that too, carries it on from the one before.
    """
    rotations = np.tile(np.eye(3), (count, 1, 1))
    broken, sigma = np.arange(count) > 0, np.zeros(count)
    for segment, motion in segments.items():
        own, at = segment.first - segment.start, slice(segment.first, segment.stop)
        carry = np.eye(3)
        if own:
            carry = rotations[segment.first - 1] @ motion.rotations[own - 1].T
        rotations[at] = carry @ motion.rotations[own:]
        broken[at], sigma[at] = motion.broken[own:], motion.sigma_rad[own:]
        broken[segment.first] |= not own and segment.first > 0
    return CameraMotion(rotations, broken, sigma)


def bridged(landmarks: Landmarks, fps: float) -> Landmarks:
    """Return landmarks with hands also where they were missed for a moment.

    Between two sightings they move evenly; for a moment before and after they stay.
    """
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


class _Cache:
    """Finished segments in a folder; with no folder nothing is kept."""

    def __init__(
        self, folder: Path | None, recording: Recording, camera: Camera, hands: Landmarks
    ) -> None:
        self._folder = folder
        key = {
            "version": VERSION,
            "source": recording.sha256,
            "processing": dict(recording.processing),
            "times": hashlib.sha256(recording.timestamps_ns.tobytes()).hexdigest(),
            "camera": repr(camera),
            "hands": hashlib.sha256(hands.tobytes()).hexdigest(),
        }
        digest = hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()
        self._prefix = f"camera-{digest[:24]}"

    def get(self, segment: FrameSegment) -> CameraMotion | None:
        """Return a finished segment, or None. A damaged file counts as absent."""
        path = self._path(segment)
        if path is None or not path.is_file():
            return None
        try:
            motion = CameraMotion(**safe_load_npz(path))
        except (InputError, EOFError, TypeError, ValueError):
            return None
        return motion if len(motion) == segment.stop - segment.start else None

    def put(self, segment: FrameSegment, motion: CameraMotion) -> None:
        """Write a finished segment; it appears whole or not at all."""
        path = self._path(segment)
        if path is None:
            return
        with atomic_path(path, overwrite=True) as partial, partial.open("wb") as file:
            np.savez_compressed(
                file, rotations=motion.rotations, broken=motion.broken, sigma_rad=motion.sigma_rad
            )

    def _path(self, segment: FrameSegment) -> Path | None:
        if self._folder is None:
            return None
        return self._folder / f"{self._prefix}-{segment.start:09d}-{segment.stop:09d}.npz"
