"""A recording format: a folder of frames as .npy arrays (H, W, 3), RGB, 8 bits."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from acehand_core import Recording, RecordingOptions
from acehand_core.recordings.registry import PICTURE_OPTIONS, RecordingFormat
from acehand_core.settings import setting


@dataclass(frozen=True)
class ArraysSettings:
    """Flags for folders of arrays."""

    array_rate: float = setting(30.0, "frames per second of a folder of arrays", metavar="HZ")


@dataclass(frozen=True)
class Arrays:
    """Frames that are read when they are asked for."""

    paths: list[Path]

    def __len__(self) -> int:
        return len(self.paths)

    def at(self, index: int) -> np.ndarray:
        return np.load(self.paths[index], allow_pickle=False)

    def read(self, start: int, stop: int) -> Iterator[np.ndarray]:
        return map(self.at, range(start, stop))


class ArraysFolder(RecordingFormat):
    noun = "a folder of arrays"
    folder_of_frames = True
    takes = PICTURE_OPTIONS - {"mirrored"}

    @staticmethod
    def matches(path: Path) -> bool:
        return path.is_dir() and any(path.glob("*.npy"))

    def open(self, path: Path, options: RecordingOptions, progress) -> Recording:
        rate = options.own["arrays"].array_rate
        frames = Arrays(sorted(path.glob("*.npy")))
        height, width = frames.at(0).shape[:2]
        times = np.round(np.arange(len(frames)) * 1e9 / rate).astype(np.int64)
        return Recording(str(path), None, times, rate, width, height, frames)
