"""A recording, the hands in it, and the rotation of its camera."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int

from acehand_core.errors import SchemaError
from acehand_core.geometry.cameras import Camera
from acehand_core.motion.objects import ObjectTrack
from acehand_core.provenance import Provenance
from acehand_core.types import (
    BothBetas,
    CameraPoses,
    DepthImage,
    FingerRotations,
    ImageRgb,
    JointsCamera,
    JointsImage,
    PerHand,
    PerHandFlag,
    PointCamera,
    RigidTransform,
    RotationsCamera,
    TimestampsNs,
)

HandModelName = Literal["mano", "acehand", "none"]

#: Frame of a filled gap: the camera, the camera without its rotation, or the world.
FillFrame = Literal["camera", "rotation", "world"]
FILL_FRAMES: tuple[FillFrame, ...] = get_args(FillFrame)

_PER_FRAME = ("presence", "visible", "quality", "observed", "filled", "global_orient", "hand_pose",
              "translation", "joints_camera", "joints_image")  # fmt: skip
_PER_FRAME_OR_NONE = ("fill_frame", "T_world_camera", "joint_sigma", "evidence")

#: Every estimated step of rendered clips with an error of 3 degrees had a larger sigma.
DOUBTFUL_RAD = np.radians(0.9)


@runtime_checkable
class FrameSource(Protocol):
    """RGB frames of a recording by index, readable repeatedly."""

    def __len__(self) -> int: ...

    def read(self, start: int, stop: int) -> Iterator[ImageRgb]:
        """Yield frames ``start`` to ``stop - 1``."""
        ...

    def at(self, index: int) -> ImageRgb:
        """Return one frame."""
        ...


@dataclass(frozen=True, slots=True)
class ChangedFrames:
    """A ``FrameSource`` of another one's frames, changed by ``change``."""

    frames: FrameSource
    change: Callable[[ImageRgb], ImageRgb]

    def __len__(self) -> int:
        return len(self.frames)

    def read(self, start: int, stop: int) -> Iterator[ImageRgb]:
        return map(self.change, self.frames.read(start, stop))

    def at(self, index: int) -> ImageRgb:
        return self.change(self.frames.at(index))


@runtime_checkable
class DepthSource(Protocol):
    """Depth pictures by index, readable repeatedly."""

    def __len__(self) -> int: ...

    def at(self, index: int) -> DepthImage:
        """Return one picture: z of the depth camera in metres, NaN without a reading."""
        ...


@dataclass(frozen=True, slots=True)
class Depth:
    """Depth pictures of the same scene, with times on the recording's clock.

    Attributes:
        camera: of the depth pictures, with any distortion; of the recording's pictures as stored
            if the driver has registered depth to them.
        T_camera_depth: pose of that camera in the recording's camera.
        sigma_per_m: standard deviation of a reading at z metres, over z squared.
    """

    frames: DepthSource
    timestamps_ns: TimestampsNs
    camera: Camera
    T_camera_depth: RigidTransform
    sigma_per_m: float = 0.004


@dataclass(frozen=True, slots=True)
class View:
    """Another camera of a rig, with times on the recording's clock.

    Attributes:
        recording: what it saw, with its camera; itself without views and depth.
        T_camera_view: pose of its camera in the first recording's camera.
        synchronised: its clock is known to be the recording's; else an offset is estimated.
    """

    name: str
    recording: Recording
    T_camera_view: RigidTransform
    synchronised: bool = True


@dataclass(slots=True)
class DroppedMessages:
    """Unusable messages by topic and by reason; ``unread`` of them are not even readable."""

    by_topic: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    remarks: list[str] = field(default_factory=list)
    unread: Counter[str] = field(default_factory=Counter)

    def count(self, topic: str, reason: str, count: int = 1, unread: bool = False) -> None:
        self.by_topic[topic] += count
        self.reasons[f"{topic}: {reason}"] += count
        if unread:
            self.unread[topic] += count

    def forget(self, topic: str) -> None:
        """Remove the counts of one topic."""
        for counts in (self.by_topic, self.unread):
            counts.pop(topic, None)
        for reason in [r for r in self.reasons if r.startswith(f"{topic}: ")]:
            del self.reasons[reason]

    def add(self, other: DroppedMessages) -> None:
        """Add the counts and remarks of another."""
        self.by_topic.update(other.by_topic)
        self.reasons.update(other.reasons)
        self.unread.update(other.unread)
        for remark in other.remarks:
            self.remark(remark)

    def remark(self, text: str) -> None:
        """Keep a sentence about the bag, once."""
        if text not in self.remarks:
            self.remarks.append(text)

    def sentences(self) -> tuple[str, ...]:
        """Return every remark, and every reason with its count."""
        lost = (f"{reason}: {count} lost" for reason, count in self.reasons.items())
        return (*self.remarks, *lost)


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording with T frames; ``frames`` is None if only joints are known.

    Attributes:
        source: the input as given, for messages; ``name``: in results, by default the file's name.
        fps: nominal; ``timestamps_ns`` are exact.
        processing: changes to the pixels on reading (rotated, mirrored, undistorted).
        assumed: as ``Provenance.assumed``, of what is not known of the pictures, as their lens.
        camera_frame: ROS frame of a bag's pictures, or "".
        source_timestamps_ns: after resampling, the source's times of the frames.
        views: the other cameras of a rig; ``sha256`` is then of all their files, and of depth.
        hands: of a file of hands, or a clip's labels, for each frame; None: to be tracked.
        dropped: unusable messages of a bag, and remarks on a file of hands; reading adds to it.
        objects: tracked objects in the picture, on the recording's clock.
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
    views: tuple[View, ...] = ()
    depth: Depth | None = None
    assumed: Mapping[str, float] = field(default_factory=dict)
    hands: HandMotion | None = None
    dropped: DroppedMessages | None = None
    objects: ObjectTrack | None = None

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


@dataclass(frozen=True, slots=True)
class CameraMotion:
    """Rotation of a camera over T frames, in pieces with known steps.

    Attributes:
        rotations: R_reference_camera; the reference is the piece's first camera, or the world.
        broken: the step from the frame before is unknown, so a piece begins; never in frame 0.
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
        """Return the rotation of poses, taken as exact; steps of poses with NaN are broken."""
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
        """R_first_camera: rotation since the first frame of each piece."""
        first = np.flatnonzero(np.r_[True, self.broken[1:]])[self.piece]
        return np.asarray(np.swapaxes(self.rotations[first], 1, 2) @ self.rotations)

    @property
    def doubtful(self) -> Bool[np.ndarray, "T"]:
        """Broken steps, and those with a sigma above 0.9 degrees."""
        return self.broken | (self.sigma_rad > DOUBTFUL_RAD)

    def between(self, a: int, b: int) -> Float[np.ndarray, "3 3"] | None:
        """Return R_a_b, from camera ``b`` to camera ``a``; None across a broken step."""
        if self.piece[a] != self.piece[b]:
            return None
        return np.asarray(self.rotations[a].T @ self.rotations[b])

    def transferred(
        self, camera: Camera, pixels: Float[np.ndarray, "N 2"], a: int, b: int
    ) -> Float[np.ndarray, "N 2"] | None:
        """Return pixels of frame ``a`` in frame ``b``; None if unknown or one is out of view."""
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


@dataclass(frozen=True, slots=True)
class HandMotion:
    """Both hands of one recording, slot 0 left and 1 right.

    ``joints_camera = hand(global_orient, hand_pose, betas) + translation``, so the wrist is
    ``J0(betas) + translation``. Unknown joints, rotations and camera poses are NaN; without
    rotations ``hand_model`` is "none". ``joints_image`` is the tracker's 2D evidence, never a
    projection. ``joint_sigma``: standard deviations of ``joints_camera`` in metres, in each
    direction across the line of sight, and along it; None if unknown.
    """

    timestamps_ns: TimestampsNs
    fps: float
    presence: PerHand
    visible: PerHand
    quality: PerHand
    observed: PerHandFlag
    filled: PerHandFlag
    global_orient: RotationsCamera
    hand_pose: FingerRotations
    betas: BothBetas
    translation: PointCamera
    joints_camera: JointsCamera
    joints_image: JointsImage
    hand_model: HandModelName
    provenance: Provenance
    left_shapedirs_fixed: bool = False
    camera: Camera | None = None
    T_world_camera: CameraPoses | None = None
    #: False if joints are relative to the wrist, which then has no pose to export.
    placed: bool = True
    #: Frame in which a gap was filled: index in ``FILL_FRAMES`` plus one, 0 for no filling; None
    #: without camera motion.
    fill_frame: Int[np.ndarray, "T 2"] | None = None
    joint_sigma: Float[np.ndarray, "T 2 21 2"] | None = None
    #: What placed each hand, added up: 1 the camera, 2 another camera of the rig, 4 depth; None
    #: where there was only the camera.
    evidence: Int[np.ndarray, "T 2"] | None = None

    def __post_init__(self) -> None:
        check_times(self.timestamps_ns, self.fps)
        frames = len(self.timestamps_ns)
        shapes = dict.fromkeys((*_PER_FRAME, "fill_frame", "evidence"), (frames, 2))
        for name, shape in (shapes | {"joint_sigma": (frames, 2, 21, 2)}).items():
            value = getattr(self, name)
            if value is not None and value.shape[: len(shape)] != shape:
                raise SchemaError(
                    f"HandMotion.{name} has shape {value.shape}; its first axes must be {shape}."
                )
        for name in ("presence", "visible", "quality"):
            value = getattr(self, name)
            if not ((value >= 0) & (value <= 1)).all():
                raise SchemaError(f"HandMotion.{name} must lie in 0..1 without NaN.")
        if (self.observed & self.filled).any():
            raise SchemaError("HandMotion: a hand cannot be observed and filled in one frame.")
        if self.hand_model != "none" and not np.isfinite(self.joints_camera[self.known]).all():
            raise SchemaError("HandMotion.joints_camera has NaN where a hand is known.")
        most = len(FILL_FRAMES)
        if self.fill_frame is not None and not np.isin(self.fill_frame, np.arange(most + 1)).all():
            raise SchemaError(f"HandMotion.fill_frame must be 0 to {most}.")
        if self.joint_sigma is not None and (self.joint_sigma < 0).any():
            raise SchemaError("HandMotion.joint_sigma must be positive.")
        if self.T_world_camera is not None and len(self.T_world_camera) != frames:
            raise SchemaError(
                f"HandMotion.T_world_camera: {len(self.T_world_camera)} poses for {frames} frames."
            )

    def __len__(self) -> int:
        return len(self.timestamps_ns)

    def at(
        self, index: Int[np.ndarray, "N"], timestamps_ns: TimestampsNs, fps: float
    ) -> HandMotion:
        """Return the motion at some frames with new times; consecutive frames are not copied."""
        rows: slice | Int[np.ndarray, "N"] = index
        if len(index) > 0 and index[0] >= 0 and (np.diff(index) == 1).all():
            rows = slice(int(index[0]), int(index[-1]) + 1)
        arrays = {name: getattr(self, name) for name in (*_PER_FRAME, *_PER_FRAME_OR_NONE)}
        parts: Any = {name: None if a is None else a[rows] for name, a in arrays.items()}
        return replace(self, timestamps_ns=timestamps_ns, fps=fps, **parts)

    @property
    def doubtful(self) -> PerHandFlag:
        """True where a hand was observed with quality 0."""
        return self.observed & (self.quality == 0)

    @property
    def known(self) -> PerHandFlag:
        """True where a hand was measured or filled."""
        return self.observed | self.filled


def runs(flags: Bool[np.ndarray, "T"]) -> list[tuple[int, int]]:
    """Return start and stop of each run of True."""
    edges = np.flatnonzero(np.diff(flags, prepend=False, append=False))
    return [(int(start), int(stop)) for start, stop in edges.reshape(-1, 2)]


def neighbours(
    stamps_ns: Int[np.ndarray, "D"], times_ns: Int[np.ndarray, "N"]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the stamps before and after some times, and the share of the way, 0 to 1.

    A time that is a stamp, or outside of them, has the same one on both sides.
    """
    last = len(stamps_ns) - 1
    after = np.minimum(np.searchsorted(stamps_ns, times_ns), last)
    before = np.clip(np.searchsorted(stamps_ns, times_ns, side="right") - 1, 0, last)
    apart = np.maximum(stamps_ns[after] - stamps_ns[before], 1)
    return before, after, np.where(after > before, (times_ns - stamps_ns[before]) / apart, 0.0)


def check_times(timestamps_ns: np.ndarray, fps: float) -> None:
    if len(timestamps_ns) == 0:
        raise SchemaError("A recording needs at least one frame.")
    if not (np.isfinite(fps) and fps > 0):
        raise SchemaError(f"fps must be a positive number, got {fps}.")
    if (np.diff(timestamps_ns) <= 0).any():
        frame = int(np.argmax(np.diff(timestamps_ns) <= 0)) + 1
        raise SchemaError(f"Timestamps must increase; frame {frame} does not.")
