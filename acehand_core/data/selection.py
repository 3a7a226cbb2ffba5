"""Views of a recording: another rate or a part of it, without copying frames."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Int

from acehand_core.data.video import VideoFrames
from acehand_core.errors import InputError
from acehand_core.motion import FrameSource, Recording
from acehand_core.types import ImageRgb, TimestampsNs

#: A view at a rate may repeat each frame this often, and a frame for an hour beyond that.
_REPEATS, _HELD_S = 100, 3600


def at_rate(recording: Recording, fps: int) -> tuple[Recording, Int[np.ndarray, "N"]]:
    """Return the recording at exactly ``1 / fps`` and the source frame of each of its N frames.

    Frame k lies k / fps after the first and shows the source frame nearest in time, of two the
    earlier. Raises InputError for a rate that is not 1 to 1000, or a pause of hours.
    """
    if not 1 <= fps <= 1000:
        raise InputError(f"{recording.source}: {fps} frames per second; valid: 1 to 1000.")
    times = recording.timestamps_ns
    # Stamps are rounded, so the last tick may lie a little after the last frame.
    reach = int(times[-1] - times[0]) + round(0.5e9 / max(fps, recording.fps))
    count = reach * fps // 10**9 + 1
    if count > _REPEATS * len(times) + _HELD_S * fps:
        raise InputError(
            f"{recording.source}: {len(times)} frames lie in {reach / 8.64e13:.3g} days: the "
            "clock was set, or the pause is very long. Take a part (--start, "
            "--duration), or cut a bag at its pauses (--episodes gaps)."
        )
    ticks = times[0] + np.round(np.arange(count) * 1e9 / fps).astype(np.int64)
    middles = times[:-1] + np.diff(times) // 2
    index = np.searchsorted(middles, ticks)
    return _taken(recording, index, ticks, float(fps)), index


def part(recording: Recording, start: int, stop: int) -> Recording:
    """Return frames ``start`` to ``stop - 1``. Raises InputError for a part that is not there."""
    if not 0 <= start < stop <= len(recording):
        raise InputError(
            f"{recording.source}: frames {start} to {stop - 1} asked for; "
            f"valid: 0 to {len(recording) - 1}."
        )
    index = np.arange(start, stop)
    return _taken(recording, index, recording.timestamps_ns[start:stop], recording.fps)


def _taken(
    recording: Recording, index: Int[np.ndarray, "N"], timestamps_ns: TimestampsNs, fps: float
) -> Recording:
    poses = recording.T_world_camera
    return replace(
        recording,
        timestamps_ns=timestamps_ns,
        fps=fps,
        frames=_frames(recording.frames, index),
        T_world_camera=None if poses is None else poses[index],
    )


def _frames(frames: FrameSource | None, index: Int[np.ndarray, "N"]) -> FrameSource | None:
    if frames is None or np.array_equal(index, np.arange(len(frames))):
        return frames
    if isinstance(frames, VideoFrames):
        return frames.select(index)
    return _Taken(frames, index)


@dataclass(frozen=True, slots=True)
class _Taken:
    """Frames of another source by a non-decreasing index."""

    frames: FrameSource
    index: Int[np.ndarray, "N"]

    def __len__(self) -> int:
        return len(self.index)

    def read(self, start: int, stop: int) -> Iterator[ImageRgb]:
        wanted = self.index[start:stop]
        if len(wanted):
            images = self.frames.read(int(wanted[0]), int(wanted[-1]) + 1)
            yield from _every(images, np.diff(wanted))

    def read_reversed(self, start: int, stop: int) -> Iterator[ImageRgb]:
        wanted = self.index[start:stop]
        if len(wanted):
            images = self.frames.read_reversed(int(wanted[0]), int(wanted[-1]) + 1)
            yield from _every(images, np.diff(wanted)[::-1])

    def at(self, index: int) -> ImageRgb:
        return self.frames.at(int(self.index[index]))


def _every(images: Iterator[ImageRgb], steps: Int[np.ndarray, "S"]) -> Iterator[ImageRgb]:
    """Yield the first image, then the one reached by each step; a step of 0 repeats it."""
    image = next(images)
    yield image
    for step in steps:
        for _ in range(step):
            image = next(images)
        yield image
