"""Pictures of datasets as ``FrameSource``s: folders of images, members of a tar, a VRS stream."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import cv2
import numpy as np

from acehand_core.errors import InputError, MissingDependencyError, VideoError
from acehand_core.motion import FrameSource
from acehand_core.types import ImageRgb, TimestampsNs

_IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png")


class _ByIndex:
    """The part of ``FrameSource`` that follows from ``at`` and ``__len__``."""

    def __len__(self) -> int:
        raise NotImplementedError

    def at(self, index: int) -> ImageRgb:
        """Return one frame."""
        raise NotImplementedError

    def read(self, start: int, stop: int) -> Iterator[ImageRgb]:
        """Yield frames ``start`` to ``stop - 1``."""
        return (self.at(index) for index in range(start, stop))

    def read_reversed(self, start: int, stop: int) -> Iterator[ImageRgb]:
        """Yield frames ``stop - 1`` down to ``start``."""
        return (self.at(index) for index in range(stop - 1, start - 1, -1))


class ImageFiles(_ByIndex):
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


class TarImages(_ByIndex):
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
    out: dict[int, Path] = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.suffix.lower() in _IMAGE_SUFFIXES and path.stem.isdecimal():
            if int(path.stem) in out:
                raise InputError(f"{path}: {out[int(path.stem)].name} is the same frame.")
            out[int(path.stem)] = path
    return dict(sorted(out.items()))


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


class VrsImages(_ByIndex):
    """Pictures of one stream of an Aria recording, as stored: not turned, not undistorted."""

    def __init__(self, path: Path, stream: str, timestamps_ns: TimestampsNs) -> None:
        self.path, self.stream, self.timestamps_ns = path, stream, timestamps_ns
        self._provider = None

    def __reduce__(self) -> tuple:
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
        wanted = int(self.timestamps_ns[index])
        picture, record = self._provider.get_image_data_by_time_ns(
            StreamId(self.stream), wanted, TimeDomain.TIME_CODE, TimeQueryOptions.CLOSEST
        )
        found = self._provider.convert_from_device_time_to_timecode_ns(record.capture_timestamp_ns)
        if abs(found - wanted) > 1_000_000:
            raise VideoError(
                f"{self.path}: stream {self.stream} has no picture at {wanted} ns; the nearest is "
                f"{abs(found - wanted) / 1e6:.1f} ms away."
            )
        image = np.asarray(picture.to_numpy_array())
        return np.ascontiguousarray(
            image if image.ndim == 3 else np.repeat(image[..., None], 3, axis=-1)
        )
