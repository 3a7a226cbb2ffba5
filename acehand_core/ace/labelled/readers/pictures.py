"""Pictures of datasets as ``FrameSource``s, and their conversion for a clip.

Folders of images, members of a tar and VRS streams are read by index. A clip stores them unchanged,
undistorted or resized, or references an external video.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import cv2
import numpy as np
from jaxtyping import UInt8

from acehand_core.ace.labelled.clips.media import ByIndex, ImageFiles, decode
from acehand_core.ace.labelled.clips.schema import Reference
from acehand_core.ace.labelled.readers.base import NativeRecording
from acehand_core.errors import InputError, VideoError
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import FrameSource, neighbours
from acehand_core.recordings.cameras import undistorted_frames
from acehand_core.recordings.video import VideoFrames
from acehand_core.recordings.vrs import AriaFrames, VrsFile
from acehand_core.safe_files import content_sha256
from acehand_core.settings import setting
from acehand_core.types import ImageRgb, TimestampsNs

_IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png")

Images = Literal["auto", "keep", "undistort", "none"]


class TarImages(ByIndex):
    """Image members of an uncompressed tar, as ``list_tar`` lists them, one per frame."""

    def __init__(self, archive: Path, members: Sequence[tuple[str, int, int]]) -> None:
        self.archive, self.members = archive, tuple(members)

    def __len__(self) -> int:
        return len(self.members)

    def at(self, index: int) -> ImageRgb:
        """Return one frame. Raises VideoError with archive and member named."""
        member = self.members[index]
        return decode(read_member(self.archive, member), f"{self.archive}:{member[0]}")


def list_tar(archive: Path) -> dict[str, tuple[str, int, int]]:
    """Return name to (name, offset, size) of every plain file of an uncompressed tar."""
    try:
        with tarfile.open(archive, "r:") as packed:
            return {m.name: (m.name, m.offset_data, m.size) for m in packed if m.isreg()}
    except (tarfile.TarError, EOFError) as error:
        raise InputError(f"{archive}: not a readable tar ({error}).") from error
    except OSError as error:
        raise InputError(f"{archive}: cannot be read ({error.strerror or error}).") from error


def read_member(archive: Path, member: tuple[str, int, int]) -> bytes:
    """Return the bytes of one member."""
    _, offset, size = member
    with archive.open("rb") as file:
        file.seek(offset)
        return file.read(size)


def numbered_images(folder: Path) -> dict[int, Path]:
    """Return a folder's images with numbers as names, by number, in order.

    Raises InputError for two images of one number.
    """
    images: dict[int, Path] = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.suffix.lower() in _IMAGE_SUFFIXES and path.stem.isdecimal():
            if int(path.stem) in images:
                raise InputError(f"{path}: {images[int(path.stem)].name} is the same frame.")
            images[int(path.stem)] = path
    return dict(sorted(images.items()))


def image_size(path: Path) -> tuple[int, int]:
    """Return (width, height) of an image file."""
    height, width, _ = ImageFiles([path]).at(0).shape
    return width, height


def rescaled_to(camera: Camera, size: tuple[int, int], findings: list[str]) -> Camera:
    """Return the camera for pictures of (width, height) ``size``; report another size."""
    if size == (camera.width, camera.height):
        return camera
    findings.append(
        f"pictures are {size[0]} x {size[1]}, the calibration {camera.width} x {camera.height}; "
        "the camera was rescaled."
    )
    return camera.rescaled(*size)


class VrsImages(AriaFrames):
    """Pictures of one stream of a VRS recording at time-code times, as stored.

    Raises as ``open_vrs``; VideoError: no picture within 1 ms of a time.
    """

    def __init__(self, path: Path, stream: str, timestamps_ns: TimestampsNs) -> None:
        file = VrsFile(path)
        from projectaria_tools.core.sensor_data import TimeDomain
        from projectaria_tools.core.stream_id import StreamId

        stream_id = StreamId(stream)
        times = np.array(file.provider.get_timestamps_ns(stream_id, TimeDomain.TIME_CODE))
        before, after, share = neighbours(times, timestamps_ns)
        rows = np.where(share > 0.5, after, before)
        away = np.abs(times[rows] - timestamps_ns)
        if away.max() > 1_000_000:
            raise VideoError(
                f"{path}: stream {stream} has no picture at {timestamps_ns[away.argmax()]} ns; the "
                f"nearest is {away.max() / 1e6:.1f} ms away."
            )
        super().__init__(file, stream_id, rows, 0)


def upright_image(image: UInt8[np.ndarray, "H W 3"]) -> UInt8[np.ndarray, "W H 3"]:
    return np.ascontiguousarray(np.rot90(image, 3))


@dataclass(frozen=True, slots=True)
class ClipOptions:
    """Settings of clips. For ``quality`` see ``ClipWriter.write``.

    ``images`` "auto" undistorts ARCTIC and HOT3D, to a pinhole of the same focal length: the paper
    calls only Re:InterHand fisheye. ``media`` "auto" references unlabelled video only. Without
    ``mano`` see ``conventions.to_camera``.
    """

    images: Images = setting("auto", "undistort to a pinhole, keep the lens, or no pictures")
    width: int | None = setting(None, "width to resize to", metavar="PX", low=2)
    quality: Literal["visual", "lossless"] = setting("visual", "of stored video")
    media: Literal["auto", "copy", "reference"] = setting(
        "auto", "copy pictures, or reference the dataset's unchanged videos"
    )
    mano: Path | None = setting(
        None, "folder with MANO_LEFT and MANO_RIGHT", default_text="$ACEHAND_MANO"
    )


def native_model(native: NativeRecording) -> str:
    """Return the camera model of the native pictures, "" if unknown."""
    return native.camera.model if native.camera else ""


def reference(native: NativeRecording, options: ClipOptions) -> Reference | None:
    """Return a reference to the user's video, if wanted and if the clip is an unchanged part."""
    asked = options.media == "reference" or (options.media == "auto" and native.plain)
    resized = options.width not in (None, native.size[0])
    undistorted = options.images == "undistort" and native_model(native) not in ("", "pinhole")
    frames = native.frames
    if not asked or resized or undistorted or options.images == "none":
        return None
    if not isinstance(frames, VideoFrames):
        return None
    first, count = int(frames.source_indices[0]), len(frames)
    if not np.array_equal(frames.source_indices, np.arange(first, first + count)):
        return None
    path = frames.path.resolve()
    return Reference(str(path), content_sha256(path), first, first + count)


def pictures(
    native: NativeRecording, options: ClipOptions
) -> tuple[Iterator[ImageRgb] | None, Camera | None, tuple[int, int], list[str]]:
    """Return pictures to store, their camera and size, and a list of changes."""
    camera, source = native.camera, native.frames
    size, done = native.size, []

    undistort = options.images == "undistort" or (options.images == "auto" and native.undistort)
    if undistort and camera is not None and camera.model != "pinhole":
        done.append(f"undistorted from {camera.model} to a pinhole of the same focal length")
        plain = camera.pinhole_like()
        source = None if source is None else undistorted_frames(source, camera, plain)
        camera = plain

    target = size
    if options.width is not None and options.width != size[0]:
        height = max(2, round(options.width * size[1] / size[0] / 2) * 2)
        target = (options.width, height)
        done.append(f"resized from {size[0]} x {size[1]} to {target[0]} x {target[1]}")
        camera = None if camera is None else camera.rescaled(*target)

    even = (target[0] - target[0] % 2, target[1] - target[1] % 2)
    if not native.still and options.quality == "visual" and even != target:
        done.append("the last column or row was cropped: the video format needs even sizes")
    else:
        even = target
    camera = None if camera is None else camera.cropped(0, 0, *even)

    if source is None or options.images == "none":
        return None, camera, even, done
    return _resized(source, target, even), camera, even, done


def _resized(
    source: FrameSource, target: tuple[int, int], crop: tuple[int, int]
) -> Iterator[ImageRgb]:
    for image in source.read(0, len(source)):
        if (image.shape[1], image.shape[0]) != target:
            smaller = target[0] < image.shape[1]
            how = cv2.INTER_AREA if smaller else cv2.INTER_LINEAR
            image = cv2.resize(image, target, interpolation=how)
        yield np.ascontiguousarray(image[: crop[1], : crop[0]])
