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
        """Yield frames ``start`` to ``stop - 1``; each array is the caller's own."""
        ...


def resized(recording: Recording, size: tuple[int, int]) -> Iterator[ImageRgb]:
    """Yield all frames of a recording in a size (width, height), each the caller's own."""
    source = recording.frames
    assert source is not None
    if isinstance(source, ResizingSource):
        yield from source.read_resized(0, len(recording), *size)
        return
    for image in source.read(0, len(recording)):
        if (image.shape[1], image.shape[0]) == size:
            yield image.copy()
        else:
            yield cv2.resize(image, size, interpolation=cv2.INTER_AREA)
