"""A recording, and how its camera turned."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int

from acehand_core.errors import SchemaError
from acehand_core.geometry.cameras import Camera
from acehand_core.types import (
    CameraPoses,
    ImageRgb,
    TimestampsNs,
)


@runtime_checkable
class FrameSource(Protocol):
    """RGB frames of a recording by index, any number of times."""

    def __len__(self) -> int: ...

    def read(self, start: int, stop: int) -> Iterator[ImageRgb]:
        """Yield frames ``start`` to ``stop - 1``."""
        ...

    def at(self, index: int) -> ImageRgb:
        """Return one frame."""
        ...


@dataclass(frozen=True, slots=True)
class ChangedFrames:
    """A ``FrameSource`` of another one's frames, each as ``change`` makes it."""

    frames: FrameSource
    change: Callable[[ImageRgb], ImageRgb]

    def __len__(self) -> int:
        return len(self.frames)

    def read(self, start: int, stop: int) -> Iterator[ImageRgb]:
        """Yield frames ``start`` to ``stop - 1``."""
        return map(self.change, self.frames.read(start, stop))

    def at(self, index: int) -> ImageRgb:
        """Return one frame."""
        return self.change(self.frames.at(index))


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording with T frames. ``frames`` is None where only joints are known.

    ``fps`` is the nominal rate; ``timestamps_ns`` is what counts. ``T_world_camera`` maps camera
    points to the world. ``processing`` says what was done to the file's pixels on reading (turned,
    mirrored, undistorted): one file read in two ways gives two sets of pictures. ``task`` is what
    the recording itself says that is done in it. ``source`` is the input as it was given, for
    messages; ``name`` is what results call it, by default the file's name without its folders.
    ``camera_frame`` is the ROS frame that a bag's pictures name, "" where none is named.
    ``source_timestamps_ns`` are, after resampling, the times of the source's frames that are shown.
    """

    source: str
    sha256: str | None
    timestamps_ns: TimestampsNs
    fps: float
    width: int
    height: int
    frames: FrameSource | None
    camera: Camera | None = None
    T_world_camera: CameraPoses | None = None
    notes: tuple[str, ...] = ()
    processing: Mapping[str, Any] = field(default_factory=dict)
    task: str | None = None
    name: str = ""
    camera_frame: str = ""
    source_timestamps_ns: Int[np.ndarray, "T"] | None = None

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", PurePath(self.source).name or self.source)
        check_times(self.timestamps_ns, self.fps)
        if self.frames is not None and len(self.frames) != len(self):
            raise SchemaError(
                f"{self.source}: {len(self.frames)} frames but {len(self)} timestamps; "
                "one timestamp per frame is needed."
            )

    def __len__(self) -> int:
        return len(self.timestamps_ns)


#: Of rendered clips every step of an estimate that was off by 3 degrees was known worse than this.
DOUBTFUL_RAD = np.radians(0.9)


@dataclass(frozen=True, slots=True)
class CameraMotion:
    """How a camera turned over T frames.

    A piece is a run of frames whose steps are all known; each has a reference of its own: of an
    estimate the camera frame of its first frame, of poses the world.

    Attributes:
        rotations: R_reference_camera, which takes vectors of a frame's camera to the reference.
        broken: the step from the frame before is not known: here a piece begins. Never in frame 0.
        sigma_rad: standard deviation of the step from the frame before, radians.
    """

    rotations: Float[np.ndarray, "T 3 3"]
    broken: Bool[np.ndarray, "T"]
    sigma_rad: Float[np.ndarray, "T"]

    def __post_init__(self) -> None:
        if not (np.isfinite(self.rotations).all() and np.isfinite(self.sigma_rad).all()):
            raise SchemaError("CameraMotion has NaN; a step that is not known is broken.")
        if self.broken[:1].any():
            raise SchemaError("CameraMotion.broken: nothing comes before frame 0.")

    @classmethod
    def from_poses(cls, T_world_camera: CameraPoses) -> CameraMotion:
        """Return the rotation of poses, which counts as exact; one with NaN is not known."""
        known = np.isfinite(T_world_camera).all((1, 2))
        rotations = np.where(known[:, None, None], T_world_camera[:, :3, :3], np.eye(3))
        broken = np.zeros(len(known), bool)
        broken[1:] = ~(known[1:] & known[:-1])
        return cls(rotations, broken, np.zeros(len(known)))

    def __len__(self) -> int:
        return len(self.rotations)

    @property
    def piece(self) -> Int[np.ndarray, "T"]:
        """The number of each frame's piece, from 0."""
        return np.cumsum(self.broken)

    @property
    def from_first(self) -> Float[np.ndarray, "T 3 3"]:
        """R_first_camera: how the camera turned since the first frame of each piece."""
        first = np.flatnonzero(np.r_[True, self.broken[1:]])[self.piece]
        return np.asarray(np.swapaxes(self.rotations[first], 1, 2) @ self.rotations)

    @property
    def doubtful(self) -> Bool[np.ndarray, "T"]:
        """Steps that may be off by degrees: broken ones, and those known worse than 0.9 degrees."""
        return self.broken | (self.sigma_rad > DOUBTFUL_RAD)

    def between(self, a: int, b: int) -> Float[np.ndarray, "3 3"] | None:
        """Return R_a_b, from the camera frame of frame ``b`` to that of ``a``.

        None where a broken step lies between them.
        """
        if self.piece[a] != self.piece[b]:
            return None
        return np.asarray(self.rotations[a].T @ self.rotations[b])

    def transferred(
        self, camera: Camera, pixels: Float[np.ndarray, "N 2"], a: int, b: int
    ) -> Float[np.ndarray, "N 2"] | None:
        """Return where frame ``b`` shows what frame ``a`` shows at some pixels, by the turn alone.

        None where the turn is not known, or where it leaves one of them out of the camera's view.
        """
        turn = self.between(b, a)
        if turn is None:
            return None
        there = camera.project(camera.unproject(pixels) @ turn.T)
        return there if np.isfinite(there).all() else None

    def part(self, start: int, stop: int) -> CameraMotion:
        """Return frames ``start`` to ``stop - 1``."""
        rows = slice(start, stop)
        broken = self.broken[rows].copy()
        broken[:1] = False
        return CameraMotion(self.rotations[rows], broken, self.sigma_rad[rows])


def runs(flags: Bool[np.ndarray, "T"]) -> list[tuple[int, int]]:
    """Return first frame and the one after the last of each stretch that is true."""
    edges = np.flatnonzero(np.diff(flags, prepend=False, append=False))
    return [(int(start), int(stop)) for start, stop in edges.reshape(-1, 2)]


def check_times(timestamps_ns: np.ndarray, fps: float) -> None:
    if len(timestamps_ns) == 0:
        raise SchemaError("A recording needs at least one frame.")
    if not (np.isfinite(fps) and fps > 0):
        raise SchemaError(f"fps must be a positive number, got {fps}.")
    if (np.diff(timestamps_ns) <= 0).any():
        frame = int(np.argmax(np.diff(timestamps_ns) <= 0)) + 1
        raise SchemaError(f"Timestamps must increase; frame {frame} does not.")
