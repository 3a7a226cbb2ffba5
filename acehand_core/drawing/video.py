"""Videos encoded while their pictures are drawn."""

from __future__ import annotations

import itertools
import queue
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from acehand_core.motion import Recording
from acehand_core.recordings.video_encode import (
    EncodingCancelledError,
    VideoEncoding,
    VideoFacts,
    encode_video,
)
from acehand_core.types import ImageRgb

#: Largest number of pictures waiting for the next thread.
_WAITING = 4
#: Half the work of the preset for datasets at the same error; files are a third larger.
OVERLAY_ENCODING = VideoEncoding(preset="ultrafast", crf=24, gop=30)

Item = TypeVar("Item")


def ahead(items: Iterator[Item]) -> Iterator[Item]:
    """Yield items made in another thread, a few ahead."""

    def following() -> list[Item]:
        return list(itertools.islice(items, 1))

    with ThreadPoolExecutor(1, "ahead") as pool:
        made = deque(pool.submit(following) for _ in range(_WAITING))
        while found := made.popleft().result():
            made.append(pool.submit(following))
            yield found[0]


def write_video(
    recording: Recording,
    pictures: Iterable[ImageRgb],
    size: tuple[int, int],
    fps: float,
    path: Path,
) -> None:
    """Encode a picture of ``size`` (width, height) per frame of a recording, as they are made."""
    frames = _DrawnFrames(len(recording))
    drawn = replace(recording, width=size[0], height=size[1], camera=None, frames=frames)
    with ThreadPoolExecutor(1, "encode") as pool:
        encoded = pool.submit(encode_video, drawn, path, round(fps), OVERLAY_ENCODING)
        try:
            for picture in pictures:
                if not frames.put(picture, encoded):
                    break
        finally:
            frames.end()
        encoded.result()


class _DrawnFrames:
    """A FrameSource over pictures being drawn, read once and in order."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._made: queue.SimpleQueue[ImageRgb | None] = queue.SimpleQueue()
        self._room = threading.Semaphore(_WAITING)

    def __len__(self) -> int:
        return self._count

    def put(self, picture: ImageRgb, reader: Future[VideoFacts]) -> bool:
        """Wait for room and hand over the next picture; return whether ``reader`` is running."""
        while not self._room.acquire(timeout=0.2):
            if reader.done():
                return False
        self._made.put(picture)
        return True

    def end(self) -> None:
        """End the pictures."""
        self._made.put(None)

    def read(self, start: int, stop: int) -> Iterator[ImageRgb]:
        """Yield the next ``stop - start`` pictures. Raises EncodingCancelledError at their end."""
        for _ in range(start, stop):
            picture = self._made.get()
            if picture is None:
                raise EncodingCancelledError("The pictures of a video ended too early.")
            self._room.release()
            yield picture

    def at(self, index: int) -> ImageRgb:
        """Raise NotImplementedError."""
        raise NotImplementedError("Pictures being drawn are read in order.")
