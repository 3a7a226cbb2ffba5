"""Pictures of datasets as ``FrameSource``s, and as a clip stores them.

Folders of images, members of a tar and VRS streams are read by index. A clip stores them unchanged,
undistorted or smaller, or refers to a video elsewhere.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np
from jaxtyping import UInt8

from acehand_core.ace.labelled.clips.media import ByIndex
from acehand_core.ace.labelled.clips.schema import Reference
from acehand_core.ace.labelled.readers.base import NativeRecording
from acehand_core.errors import CalibrationError, InputError, MissingDependencyError, VideoError
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import FrameSource
from acehand_core.recordings.cameras import undistorted_frames
from acehand_core.recordings.video import VideoFrames
from acehand_core.safe_files import content_sha256
from acehand_core.types import ImageRgb, TimestampsNs

_IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png")


class ImageFiles(ByIndex):
    """Image files in order, one per frame."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = tuple(paths)

    def __len__(self) -> int:
        return len(self.paths)

    def at(self, index: int) -> ImageRgb:
        """Return one frame. Raises VideoError with the file named."""
        path = self.paths[index]
        try:
            data = path.read_bytes()
        except OSError as error:
            raise VideoError(f"{path}: cannot be read ({error.strerror or error}).") from error
        return decode(data, str(path))


class TarImages(ByIndex):
    """Image members of an uncompressed tar, one per frame; nothing is unpacked."""

    def __init__(self, archive: Path, members: Sequence[tuple[str, int, int]]) -> None:
        """``members`` are name, offset of the data and size, as ``list_tar`` gives them."""
        self.archive, self.members = archive, tuple(members)

    def __len__(self) -> int:
        return len(self.members)

    def at(self, index: int) -> ImageRgb:
        """Return one frame. Raises VideoError with archive and member named."""
        name, _, _ = self.members[index]
        return decode(read_member(self.archive, self.members[index]), f"{self.archive}:{name}")


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


def decode(data: bytes, where: str) -> ImageRgb:
    """Return a jpg or png as RGB, as it is stored: orientation tags are not applied."""
    flags = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
    image = cv2.imdecode(np.frombuffer(data, np.uint8), flags) if data else None
    if image is None:
        raise VideoError(f"{where}: not a readable jpg or png.")
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB)


def numbered_images(folder: Path) -> dict[int, Path]:
    """Return the images of a folder whose names are numbers, by number, in order.

    Raises InputError where a number has two images.
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


def open_vrs(path: Path, stream: str, timestamps_ns: TimestampsNs) -> FrameSource:
    """Return the pictures of one stream of a VRS recording at time-code times.

    Raises MissingDependencyError without projectaria-tools; InputError where a time has no picture.
    """
    try:
        from projectaria_tools.core import data_provider
    except ImportError as error:
        raise MissingDependencyError(
            f"{path}: reading VRS recordings needs projectaria-tools ({error}); install acehand's "
            "extra 'vrs', or convert without pictures (--images none)."
        ) from error
    if data_provider.create_vrs_data_provider(str(path)) is None:
        raise InputError(f"{path}: not a readable VRS recording.")
    return VrsImages(path, stream, timestamps_ns)


class VrsImages(ByIndex):
    """Pictures of one stream of an Aria recording, as stored: neither rotated nor undistorted."""

    def __init__(self, path: Path, stream: str, timestamps_ns: TimestampsNs) -> None:
        self.path, self.stream, self.timestamps_ns = path, stream, timestamps_ns
        self._provider: Any = None  # of projectaria_tools, opened when first needed

    def __reduce__(self) -> tuple[type[VrsImages], tuple[Path, str, TimestampsNs]]:
        return VrsImages, (self.path, self.stream, self.timestamps_ns)

    def __len__(self) -> int:
        return len(self.timestamps_ns)

    def at(self, index: int) -> ImageRgb:
        """Return one frame. Raises VideoError where the recording has none at exactly its time."""
        from projectaria_tools.core import data_provider
        from projectaria_tools.core.sensor_data import TimeDomain, TimeQueryOptions
        from projectaria_tools.core.stream_id import StreamId

        if self._provider is None:
            self._provider = data_provider.create_vrs_data_provider(str(self.path))
        time = int(self.timestamps_ns[index])
        picture, record = self._provider.get_image_data_by_time_ns(
            StreamId(self.stream), time, TimeDomain.TIME_CODE, TimeQueryOptions.CLOSEST
        )
        nearest = self._provider.convert_from_device_time_to_timecode_ns(
            record.capture_timestamp_ns
        )
        if abs(nearest - time) > 1_000_000:
            raise VideoError(
                f"{self.path}: stream {self.stream} has no picture at {time} ns; the nearest is "
                f"{abs(nearest - time) / 1e6:.1f} ms away."
            )
        image = np.asarray(picture.to_numpy_array())
        return np.ascontiguousarray(
            image if image.ndim == 3 else np.repeat(image[..., None], 3, axis=-1)
        )


#: Maps points of the upright camera's frame to those of the camera as it is stored: pictures of
#: Aria lie on their side and are rotated by a quarter turn clockwise. The upright frame has x where
#: the stored one has -y, and y where it has x.
UPRIGHT = np.array([[0.0, 1, 0, 0], [-1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])


def upright_camera(camera: Camera) -> Camera:
    """Return the camera of the rotated picture: exact, lens parameters change places and signs.

    Raises CalibrationError for Brown-Conrady lenses, which nothing here needs.
    """
    lens = camera.distortion
    if camera.model == "fisheye624":
        *radial, p1, p2, s1, s2, s3, s4 = lens
        lens = (*radial, -p2, p1, -s3, -s4, s1, s2)
    elif camera.model == "brown_conrady":
        raise CalibrationError("A Brown-Conrady camera cannot be rotated by a quarter turn.")

    return replace(
        camera,
        width=camera.height,
        height=camera.width,
        fx=camera.fy,
        fy=camera.fx,
        cx=camera.height - 1 - camera.cy,
        cy=camera.cx,
        distortion=lens,
    )


def upright_image(image: UInt8[np.ndarray, "H W 3"]) -> UInt8[np.ndarray, "W H 3"]:
    return np.ascontiguousarray(np.rot90(image, 3))


Images = Literal["auto", "keep", "undistort", "none"]


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
    asked = options.media == "reference" or (options.media == "auto" and native.plain)
    frames = native.frames
    if not asked or options.images == "none" or not isinstance(frames, VideoFrames):
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
        done.append("the last column or row was cut off: the video format needs even sizes")
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
