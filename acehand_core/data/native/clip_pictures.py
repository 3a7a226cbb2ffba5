"""Pictures of a recording as a clip stores them: unchanged, undistorted, smaller, or elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import cv2
import numpy as np

from acehand_core.data.clips.schema import Reference
from acehand_core.data.content_hash import content_sha256
from acehand_core.data.native.protocol import NativeRecording
from acehand_core.data.undistort import UndistortedFrames
from acehand_core.data.video import VideoFrames
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import FrameSource
from acehand_core.types import ImageRgb

Images = Literal["auto", "keep", "undistort", "none"]
#: Datasets that are videos and nothing else: these are referred to, not copied.
PLAIN_RECORDINGS = ("egocentric", "holoassist", "xperience10m")
#: Datasets whose distorted pictures the paper feeds undistorted; Re:InterHand's stay fisheye.
_UNDISTORTED = ("arctic", "hot3d", "hot3d_clips")


@dataclass(frozen=True, slots=True)
class ClipOptions:
    """How recordings become clips.

    Attributes:
        images: "keep" pictures with their lens, "undistort" them to a pinhole of the same focal
            length, "none" at all; "auto" undistorts ARCTIC and HOT3D: the paper
            calls Re:InterHand alone fisheye.
        width: pictures are made this wide, camera rescaled; None keeps the native size.
        quality: of stored video, see ``ClipWriter.write``.
        media: "copy" pictures into the clip, or only "reference" the user's own video where there
            is one and its pictures are not changed; "auto" refers to plain recordings alone.
        mano: the user's MANO files; None converts without (see ``conventions.to_camera``).
    """

    images: Images = "auto"
    width: int | None = None
    quality: Literal["visual", "lossless"] = "visual"
    media: Literal["auto", "copy", "reference"] = "auto"
    mano: Path | None = None


def native_model(native: NativeRecording) -> str:
    """Return the camera model of the native pictures, or "" where it is not known."""
    return native.camera.model if native.camera else ""


def reference(native: NativeRecording, options: ClipOptions) -> Reference | None:
    """Return a reference to the user's own video, where it is wanted and shows just this clip."""
    wanted = options.media == "reference" or (
        options.media == "auto" and native.item.dataset in PLAIN_RECORDINGS
    )
    frames = native.frames
    if not wanted or options.images == "none" or not isinstance(frames, VideoFrames):
        return None
    if options.width not in (None, native.width):
        return None
    if options.images == "undistort" and native_model(native) not in ("", "pinhole"):
        return None
    first, count = int(frames.source_indices[0]), len(frames)
    if not np.array_equal(frames.source_indices, np.arange(first, first + count)):
        return None
    path = frames.path.resolve()
    return Reference(str(path), content_sha256(path), first, first + count)


def pictures(
    native: NativeRecording, options: ClipOptions
) -> tuple[Iterator[ImageRgb] | None, Camera | None, tuple[int, int], list[str]]:
    """Return pictures to store, their camera and size, and what was done to them."""
    camera, source = native.camera, native.frames
    size, done = (native.width, native.height), []
    undistort = options.images == "undistort" or (
        options.images == "auto" and native.item.dataset in _UNDISTORTED
    )
    if undistort and camera is not None and camera.model != "pinhole":
        done.append(f"undistorted from {camera.model} to a pinhole of the same focal length")
        source = None if source is None else UndistortedFrames(source, camera)
        camera = camera.pinhole_like()
    target = size
    if options.width is not None and options.width != size[0]:
        height = max(2, round(options.width * size[1] / size[0] / 2) * 2)
        target = (options.width, height)
        done.append(f"resized from {size[0]} x {size[1]} to {target[0]} x {target[1]}")
        camera = None if camera is None else camera.rescaled(*target)
    even = (target[0] - target[0] % 2, target[1] - target[1] % 2)
    if not native.still and options.quality == "visual" and even != target:
        done.append("the last column or row was cut off: the video format needs even sizes")
    else:
        even = target
    camera = None if camera is None else camera.cropped(0, 0, *even)
    if source is None or options.images == "none":
        return None, camera, even, done
    return _prepared(source, target, even), camera, even, done


def _prepared(
    source: FrameSource, target: tuple[int, int], even: tuple[int, int]
) -> Iterator[ImageRgb]:
    for image in source.read(0, len(source)):
        if (image.shape[1], image.shape[0]) != target:
            smaller = target[0] < image.shape[1]
            how = cv2.INTER_AREA if smaller else cv2.INTER_LINEAR
            image = cv2.resize(image, target, interpolation=how)
        yield np.ascontiguousarray(image[: even[1], : even[0]])
