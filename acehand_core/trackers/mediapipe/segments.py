"""Long passes over a recording: segments that run side by side, and are kept.

Partial results are kept in a folder, so that an interrupted run resumes where it stopped. A
segment's key is a hash of the pictures (file and how it was read), the networks and the settings:
never of a name.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np

from acehand_core.errors import InputError, OutputError
from acehand_core.motion import FrameSource
from acehand_core.processes import thread_count
from acehand_core.safe_files import safe_load_npz
from acehand_core.trackers.mediapipe.detector import Detection
from acehand_core.trackers.mediapipe.networks import naming
from acehand_core.types import ImageRgb, Progress

#: Frames of one segment. Fixed, so that a result does not depend on the machine.
SEGMENT_FRAMES = 320

Frames = list[list[Detection]]
#: From a frame's number and picture to its hands; called for the frames of a segment in order.
PerFrame = Callable[[int, ImageRgb], list[Detection]]


def in_segments(
    frames: FrameSource,
    begin: Callable[[], PerFrame],
    stage: str,
    progress: Progress,
    cache: SegmentCache,
) -> Frames:
    """Return the hands of every frame.

    Args:
        begin: makes what looks at one segment; segments know nothing of each other.
        stage: what the progress is called.
        cache: segments in it are not looked at.
    """
    count = len(frames)
    pieces = max(1, -(-count // SEGMENT_FRAMES))
    edges = np.linspace(0, count, pieces + 1).round().astype(int)
    segments = list(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True))
    detections: Frames = [[] for _ in range(count)]
    stop = threading.Event()
    lock = threading.Lock()
    done = 0

    def work(jobs: Iterator[tuple[int, int]]) -> None:
        nonlocal done
        while not stop.is_set():
            with lock:
                job = next(jobs, None)
            if job is None:
                return

            result = cache.get(*job)
            if result is None:
                look, result = begin(), []
                for frame, image in enumerate(frames.read(*job), job[0]):
                    if stop.is_set():
                        return
                    with naming(frame):
                        result.append(look(frame, image))
                    with lock:
                        done += 1
                        progress(stage, done, count)
                cache.put(*job, result)
            else:
                with lock:
                    done += job[1] - job[0]
                    progress(stage, done, count)

            detections[job[0] : job[1]] = result

    jobs = iter(segments)
    workers = min(len(segments), thread_count())
    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(work, jobs) for _ in range(workers)]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            stop.set()
    for future in futures:
        future.result()
    return detections


class SegmentCache:
    """Detections per segment in a folder; with no folder nothing is kept."""

    def __init__(self, folder: Path | None, key: dict[str, Any]) -> None:
        self._folder = folder
        digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
        self._prefix = f"detections-{digest[:24]}"

    def get(self, start: int, stop: int) -> list[list[Detection]] | None:
        """Return a finished segment, or None. A damaged file counts as absent."""
        path = self._path(start, stop)
        if path is None or not path.is_file():
            return None

        try:
            data = safe_load_npz(path)
            known = np.isfinite(data["covariance"]).all((1, 2, 3))
            flat = [
                Detection(
                    pixels, world, float(p_right), str(look), float(presence),
                    covariance if several else None,
                )
                for pixels, world, p_right, look, presence, covariance, several in zip(
                    data["pixels"], data["world"], data["p_right"], data["look"],
                    data["presence"], data["covariance"], known, strict=True,
                )
            ]  # fmt: skip
            ends = np.cumsum(data["count"])
            if len(ends) != stop - start or ends[-1] != len(flat):
                return None
        except (InputError, EOFError, KeyError, ValueError):
            return None

        return [flat[end - count : end] for end, count in zip(ends, data["count"], strict=True)]

    def put(self, start: int, stop: int, frames: list[list[Detection]]) -> None:
        """Write a finished segment; it appears whole or not at all.

        Raises OutputError when the folder cannot be written.
        """
        path = self._path(start, stop)
        if path is None:
            return
        flat = [d for detections in frames for d in detections]
        one = np.full((21, 2, 2), np.nan)

        partial = path.with_suffix(f".{os.getpid()}.partial")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with partial.open("wb") as file:
                np.savez_compressed(
                    file,
                    count=np.array([len(d) for d in frames]),
                    pixels=np.array([d.pixels for d in flat]).reshape(-1, 21, 2),
                    world=np.array([d.world for d in flat]).reshape(-1, 21, 3),
                    p_right=np.array([d.p_right for d in flat]),
                    look=np.array([d.look for d in flat], dtype="U16"),
                    presence=np.array([d.presence for d in flat]),
                    covariance=np.array(
                        [one if d.covariance is None else d.covariance for d in flat]
                    ).reshape(-1, 21, 2, 2),
                )
            partial.replace(path)
        except OSError as error:
            raise OutputError(
                f"{path.parent}: partial results cannot be written: {error.strerror or error}."
            ) from error

    def _path(self, start: int, stop: int) -> Path | None:
        if self._folder is None:
            return None
        return self._folder / f"{self._prefix}-{start:09d}-{stop:09d}.npz"
