"""Frames of a recording in another size: for pictures of it, or for a dataset of one size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import cv2
import numpy as np
from jaxtyping import UInt8

from acehand_core.geometry.cameras import Camera
from acehand_core.motion import ChangedFrames, HandMotion, Recording
from acehand_core.types import ImageFit, ImageRgb


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


@dataclass(frozen=True, slots=True)
class Fit:
    """How pictures of ``source`` (width, height) become pictures of ``size``.

    They are scaled alike in both directions, but for rounding to whole pixels, and then lie in the
    middle: with black bars (letterbox), or with what reaches out cut off (crop).
    """

    source: tuple[int, int]
    size: tuple[int, int]
    mode: ImageFit

    @property
    def scaled(self) -> tuple[int, int]:
        """Size of the scaled picture: within ``size`` (letterbox), or not less than it (crop)."""
        ratios = [new / old for new, old in zip(self.size, self.source, strict=True)]
        ratio = min(ratios) if self.mode == "letterbox" else max(ratios)
        return max(1, round(self.source[0] * ratio)), max(1, round(self.source[1] * ratio))

    @property
    def corner(self) -> tuple[int, int]:
        """Where the scaled picture's first pixel lies; negative where it is cut off."""
        return (self.size[0] - self.scaled[0]) // 2, (self.size[1] - self.scaled[1]) // 2

    def image(self, image: UInt8[np.ndarray, "H W 3"]) -> UInt8[np.ndarray, "h w 3"]:
        """Return a picture in the new size."""
        shrinks = self.scaled[0] < self.source[0]
        how = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
        scaled = cv2.resize(image, self.scaled, interpolation=how)
        fitted = np.zeros((self.size[1], self.size[0], 3), np.uint8)
        x, y = self.corner
        left, top = max(-x, 0), max(-y, 0)
        shown = scaled[top : top + self.size[1], left : left + self.size[0]]
        x, y = max(x, 0), max(y, 0)
        fitted[y : y + shown.shape[0], x : x + shown.shape[1]] = shown
        return fitted

    def camera(self, camera: Camera) -> Camera:
        """Return the camera of the picture in the new size."""
        x, y = self.corner
        return camera.rescaled(*self.scaled).cropped(-x, -y, *self.size)

    def recording(self, recording: Recording) -> Recording:
        """Return the recording with its pictures, and its camera, in the new size."""
        assert recording.frames is not None
        camera = recording.camera
        return replace(
            recording,
            width=self.size[0],
            height=self.size[1],
            frames=ChangedFrames(recording.frames, self.image),
            camera=None if camera is None else self.camera(camera),
        )

    def hands(self, motion: HandMotion) -> HandMotion:
        """Return the hands with their camera, pixels and visible shares as of the new pictures."""
        if motion.camera is None:
            return motion
        camera = self.camera(motion.camera)
        scale = np.divide(self.scaled, self.source)
        pixels = (motion.joints_image + 0.5) * scale - 0.5 + self.corner
        visible = motion.visible
        if self.mode == "crop" and motion.placed:
            inside = camera.contains(camera.project(motion.joints_camera)).mean(-1)
            visible = np.where(visible > 0, inside, 0.0)
        kept = {**motion.provenance.settings, "source_size": list(self.source)}
        provenance = replace(motion.provenance, settings=kept)
        return replace(
            motion, camera=camera, joints_image=pixels, visible=visible, provenance=provenance
        )
