"""Frames of a recording in another size, as pictures of them need it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import cv2

from acehand_core.motion import Recording
from acehand_core.types import ImageRgb


@runtime_checkable
class ResizingSource(Protocol):
    """A frame source that can make its pictures in another size at once."""

    def read_resized(self, start: int, stop: int, width: int, height: int) -> Iterator[ImageRgb]:
        """Yield frames ``start`` to ``stop - 1``."""
        ...


def resized(recording: Recording, size: tuple[int, int]) -> Iterator[ImageRgb]:
    """Yield all frames of a recording in a size (width, height), each the caller's own."""
    source = recording.frames
    assert source is not None
    if size == (recording.width, recording.height):
        for image in source.read(0, len(recording)):
            yield image if image.flags.writeable else image.copy()
    elif isinstance(source, ResizingSource):
        yield from source.read_resized(0, len(recording), *size)
    else:
        for image in source.read(0, len(recording)):
            yield cv2.resize(image, size, interpolation=cv2.INTER_AREA)
