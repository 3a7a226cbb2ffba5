"""A folder of pictures, one per frame, as a recording.

Frames are in the order of the numbers in their names. Their times come from the names where these
are times: nanoseconds (16 digits or more, as EuRoC names them) or seconds with decimals (as TUM
RGB-D does). Else frames follow each other at a given rate.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import cv2
import numpy as np

from acehand_core.errors import InputError, VideoError
from acehand_core.motion import Recording
from acehand_core.safe_files import content_sha256
from acehand_core.types import ImageRgb, TimestampsNs

#: File names that are taken for pictures.
EXTENSIONS = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp")
DEFAULT_RATE = 30.0
_NANOSECONDS = re.compile(r"\d{16,19}")
_SECONDS = re.compile(r"\d{1,10}\.\d{3,9}")


class FolderFrames:
    """The T pictures of a folder as a ``FrameSource``; each is read when it is asked for."""

    def __init__(self, paths: Sequence[Path], size: tuple[int, int], mirrored: bool) -> None:
        self.paths, self.size, self.mirrored = tuple(paths), size, mirrored

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, start: int, stop: int) -> Iterator[ImageRgb]:
        """Yield frames ``start`` to ``stop - 1``."""
        return map(self.at, range(start, stop))

    def at(self, index: int) -> ImageRgb:
        """Return one frame. Raises VideoError: it is damaged or of another size than the first."""
        image = _read(self.paths[index])
        size = image.shape[1], image.shape[0]
        if size != self.size:
            raise VideoError(
                f"{self.paths[index]}: {size[0]} x {size[1]} pixels, but the first picture of the "
                f"folder has {self.size[0]} x {self.size[1]}; all must have the same size."
            )
        return np.ascontiguousarray(image[:, ::-1]) if self.mirrored else image


def pictures_in(folder: Path) -> list[Path]:
    """Return the pictures directly in a folder, by the numbers in their names; maybe none."""

    def by_number(path: Path) -> list[tuple[bool, int, str]]:
        parts = re.split(r"(\d+)", path.stem)
        return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts]

    return sorted(
        (
            path
            for path in folder.iterdir()
            if path.suffix.lower() in EXTENSIONS
            and path.is_file()
            and not path.name.startswith(".")
        ),
        key=by_number,
    )


def open_frames(folder: Path, rate: float | None = None, mirrored: bool = False) -> Recording:
    """Return a folder of pictures as a recording.

    Args:
        rate: frames per second, for pictures whose names are not times; None: ``DEFAULT_RATE``,
            which the recording's notes then say.
        mirrored: the pictures are mirror images (selfies); turn them back.

    Raises:
        VideoError: the first picture cannot be read.
        InputError: there is none, the rate is not above 0, or it is given for pictures whose names
            are times; or two names are the same time.
    """
    paths = pictures_in(folder)
    if not paths:
        raise InputError(
            f"{folder} has no pictures; valid: files ending in {' '.join(EXTENSIONS)}."
        )
    height, width = _read(paths[0]).shape[:2]

    notes: tuple[str, ...] = ()
    times = _times_of_names(folder, [path.stem for path in paths])
    if times is None:
        if rate is None:
            notes = (f"no frame rate given: {DEFAULT_RATE:g} frames per second assumed",)
        fps = DEFAULT_RATE if rate is None else rate
        if not 0 < fps <= 1000:
            raise InputError(f"{folder}: a frame rate of {fps:g}; valid: above 0, up to 1000.")
        times = np.round(np.arange(len(paths)) * 1e9 / fps).astype(np.int64)
    elif rate is not None:
        raise InputError(
            f"{folder}: the names of its pictures are their times, so --frame-rate does not apply."
        )
    else:
        steps = np.diff(times)
        fps = DEFAULT_RATE if not len(steps) else 1e9 / float(np.median(steps))

    return Recording(
        source=str(folder),
        sha256=content_sha256(folder),
        timestamps_ns=times,
        fps=fps,
        width=width,
        height=height,
        frames=FolderFrames(paths, (width, height), mirrored),
        notes=notes,
        processing={"rotation": 0, "mirrored": mirrored},
    )


def _times_of_names(folder: Path, stems: Sequence[str]) -> TimestampsNs | None:
    """Return the times that names of pictures are, or None where they are none."""
    if all(_NANOSECONDS.fullmatch(stem) for stem in stems):
        times = np.array([int(stem) for stem in stems], np.int64)
    elif all(_SECONDS.fullmatch(stem) for stem in stems):
        # By digits: a float has too few for nanoseconds since 1970.
        whole = (stem.split(".") for stem in stems)
        times = np.array([int(s) * 10**9 + int(f.ljust(9, "0")) for s, f in whole], np.int64)
    else:
        return None

    if (np.diff(times) <= 0).any():
        frame = int(np.argmax(np.diff(times) <= 0))
        raise InputError(f"{folder}: {stems[frame]} and {stems[frame + 1]} name the same time.")
    return times


def _read(path: Path) -> ImageRgb:
    """Return a picture as RGB, turned upright as its EXIF says."""
    try:
        data = np.frombuffer(path.read_bytes(), np.uint8)
    except OSError as error:
        raise VideoError(f"{path}: cannot be read ({error.strerror or error}).") from error
    image = cv2.imdecode(data, cv2.IMREAD_COLOR) if len(data) else None
    if image is None:
        raise VideoError(f"{path}: is damaged, or not a picture.")
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
