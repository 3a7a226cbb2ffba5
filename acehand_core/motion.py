"""What packages hand to each other: a recording, the hands in it, and what a robot does with them.

Frozen, checked on construction, numpy only. Axes, frames and units: ``acehand_core.types``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int

from acehand_core.errors import SchemaError
from acehand_core.geometry.cameras import Camera
from acehand_core.provenance import Provenance
from acehand_core.types import (
    BothBetas,
    CameraPoses,
    FingerRotations,
    ImageRgb,
    JointsCamera,
    JointsImage,
    PerHand,
    PerHandFlag,
    PointCamera,
    PointsCamera,
    RotationsCamera,
    Side,
    TimestampsNs,
)

HandModelName = Literal["mano", "acehand", "none"]

#: In which frame a gap was filled: the camera's, one that does not turn with it, or the world.
FillFrame = Literal["camera", "rotation", "world"]
FILL_FRAMES: tuple[FillFrame, ...] = get_args(FillFrame)


@runtime_checkable
class FrameSource(Protocol):
    """RGB frames of a recording by index, any number of times and in either direction."""

    def __len__(self) -> int: ...

    def read(self, start: int, stop: int) -> Iterator[ImageRgb]:
        """Yield frames ``start`` to ``stop - 1``."""
        ...

    def read_reversed(self, start: int, stop: int) -> Iterator[ImageRgb]:
        """Yield frames ``stop - 1`` down to ``start`` in bounded memory."""
        ...

    def at(self, index: int) -> ImageRgb:
        """Return one frame."""
        ...


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
        _check_times(self.timestamps_ns, self.fps)
        if self.frames is not None and len(self.frames) != len(self):
            raise SchemaError(
                f"{self.source}: {len(self.frames)} frames but {len(self)} timestamps; "
                "one timestamp per frame is needed."
            )

    def __len__(self) -> int:
        return len(self.timestamps_ns)


@dataclass(frozen=True, slots=True)
class CameraMotion:
    """How a camera turned over T frames.

    A piece is a run of frames whose steps are all known; each has a reference of its own.

    Attributes:
        rotations: R_reference_camera, which takes vectors of a frame's camera to the reference.
        inliers: points that agree with a frame's rotation; 0 where it does not come of points.
        broken: the step from the frame before is not known: here a piece begins. Never in frame 0.
        sigma_rad: standard deviation of the step from the frame before.
    """

    rotations: Float[np.ndarray, "T 3 3"]
    inliers: Int[np.ndarray, "T"]
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
        return cls(rotations, np.zeros(len(known), int), broken, np.zeros(len(known)))

    def __len__(self) -> int:
        return len(self.rotations)

    def part(self, start: int, stop: int) -> CameraMotion:
        """Return frames ``start`` to ``stop - 1``."""
        rows = slice(start, stop)
        broken = self.broken[rows].copy()
        broken[:1] = False
        return CameraMotion(self.rotations[rows], self.inliers[rows], broken, self.sigma_rad[rows])


_PER_FRAME = ("presence", "visible", "quality", "observed", "filled", "global_orient", "hand_pose",
              "translation", "joints_camera", "joints_image")  # fmt: skip


@dataclass(frozen=True, slots=True)
class HandMotion:
    """Both hands of one recording, slot 0 left and 1 right.

    ``joints_camera = hand(global_orient, hand_pose, betas) + translation``: ``translation`` places
    the model's own joints, so the wrist is ``J0(betas) + translation``. A joint that nothing is
    known about is NaN. Where rotations are not known they are NaN and ``hand_model`` is "none".
    ``T_world_camera`` is NaN in frames whose camera pose is not known. ``joints_image`` is the
    tracker's own 2D evidence, never a projection.
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
    #: False when joints are relative to the wrist: then no wrist pose may be exported.
    placed: bool = True
    #: In which frame gap filling wrote a hand: its number in ``FILL_FRAMES`` plus one, 0 where it
    #: did not; None where nothing was known of the camera's motion.
    fill_frame: Int[np.ndarray, "T 2"] | None = None

    def __post_init__(self) -> None:
        _check_times(self.timestamps_ns, self.fps)
        frames = len(self.timestamps_ns)
        for name in _PER_FRAME:
            value = getattr(self, name)
            if value.shape[:2] != (frames, 2):
                raise SchemaError(
                    f"HandMotion.{name} has shape {value.shape}; its first axes must be "
                    f"({frames}, 2): frames and hand slots."
                )

        for name in ("presence", "visible", "quality"):
            value = getattr(self, name)
            if not (np.isfinite(value).all() and (value >= 0).all() and (value <= 1).all()):
                raise SchemaError(f"HandMotion.{name} must lie in 0..1 without NaN.")

        if (self.observed & self.filled).any():
            raise SchemaError("HandMotion: a hand cannot be observed and filled in one frame.")
        known = self.observed | self.filled
        if self.hand_model != "none" and not np.isfinite(self.joints_camera[known]).all():
            raise SchemaError("HandMotion.joints_camera has NaN where a hand is known.")

        if self.fill_frame is not None:
            valid = (self.fill_frame >= 0) & (self.fill_frame <= len(FILL_FRAMES))
            if self.fill_frame.shape != (frames, 2) or not valid.all():
                raise SchemaError(
                    f"HandMotion.fill_frame must have shape ({frames}, 2) and numbers from 0 to "
                    f"{len(FILL_FRAMES)}."
                )
        if self.T_world_camera is not None and len(self.T_world_camera) != frames:
            raise SchemaError(
                f"HandMotion.T_world_camera has {len(self.T_world_camera)} poses for "
                f"{frames} frames."
            )

    @classmethod
    def from_joints(
        cls,
        joints: np.ndarray,
        *,
        fps: float | int | None = None,
        timestamps_ns: np.ndarray | None = None,
        side: Side | None = None,
        confidence: np.ndarray | None = None,
        frame: Literal["camera", "wrist", "world"] | None = None,
        order: str | Sequence[str] | None = None,
        unit: Literal["m", "cm", "mm", "in"] = "m",
        missing: float | int | str | Sequence[float | int | str] | None = None,
        wrist_pose: np.ndarray | None = None,
        source: str = "joints",
    ) -> HandMotion:
        """Return the motion that anybody's keypoints show; rotations stay unknown.

        Args:
            joints: (T, J, 3) of one hand or (T, 2, J, 3), left first, in ``unit``; or their poses,
                4 x 4. NaN where a joint is not known.
            fps: frames per second; None: 30, or what the stamps show.
            timestamps_ns: (T,) increasing integers; None: steady at ``fps``.
            side: which hand a single one is.
            confidence: (T,) or (T, 2) in 0..1, or one per joint: 0 is a joint that is not known.
            frame: OpenCV camera frame, world (z up), or relative to the wrist: then there is no
                wrist pose. None: wrist, or world where ``wrist_pose`` is given.
            order: of the J joints, a preset's name or their names (docs/my_keypoints.md); None:
                the 21 of docs/conventions.md.
            unit: of lengths.
            missing: numbers that stand for a joint that is not known, or "zeros" for (0, 0, 0).
            wrist_pose: (T, 4, 4) or (T, 2, 4, 4), metres: where joints relative to the wrist are.
            source: what messages and files call it.

        Raises:
            SchemaError: another shape, times that do not increase, a missing side, or joints that
                look like those of another order, unit or hand.
        """
        from acehand_core.keypoints.joints import motion_from_joints

        given = {"joints": joints, "fps": fps, "timestamps_ns": timestamps_ns, "side": side,
                 "confidence": confidence, "frame": frame, "order": order, "unit": unit,
                 "missing": missing, "wrist_pose": wrist_pose}  # fmt: skip
        entries = {name: np.asarray(value) for name, value in given.items() if value is not None}
        return motion_from_joints(source, entries)

    def __len__(self) -> int:
        return len(self.timestamps_ns)

    def at(
        self, index: Int[np.ndarray, "N"], timestamps_ns: TimestampsNs, fps: float
    ) -> HandMotion:
        """Return the motion at some of its frames, with their time in another recording.

        Frames that follow each other are not copied: a long recording's hands are large.
        """
        rows: slice | Int[np.ndarray, "N"] = index
        if len(index) > 0 and index[0] >= 0 and (np.diff(index) == 1).all():
            rows = slice(int(index[0]), int(index[-1]) + 1)
        poses, filled_in = self.T_world_camera, self.fill_frame
        return replace(
            self,
            timestamps_ns=timestamps_ns,
            fps=fps,
            fill_frame=None if filled_in is None else filled_in[rows],
            T_world_camera=None if poses is None else poses[rows],
            **{name: getattr(self, name)[rows] for name in _PER_FRAME},
        )

    @property
    def known(self) -> PerHandFlag:
        """True where a hand was measured or filled."""
        return self.observed | self.filled


@dataclass(frozen=True, slots=True)
class Calibration:
    """What carries a subject's hand to the robot's: one similarity, ``x_base = s R x_hand + t``.

    ``x_hand`` is in metres in the human palm frame, ``x_base`` in the robot's base frame. Each
    finger, thumb first, is moved by its offset (m, base frame) and stretched from its knuckle (the
    thumb from the wrist) by its length. ``residual_m`` is the rms distance of the robot's tips from
    the targets it was fitted on.
    """

    scale: float
    rotation: Float[np.ndarray, "3 3"]
    translation: Float[np.ndarray, "3"]
    residual_m: float
    finger_offsets: Float[np.ndarray, "5 3"] = field(default_factory=lambda: np.zeros((5, 3)))
    lengths: Float[np.ndarray, "5"] = field(default_factory=lambda: np.ones(5))

    def apply(self, points: PointsCamera) -> PointsCamera:
        """Return points of the palm frame in the robot's base frame, by the similarity alone."""
        return self.scale * points @ self.rotation.T + self.translation


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """What MuJoCo did when it was given the commands of one hand.

    Contacts are stiff, so a commanded collision shows as tracking error; how deep the commanded
    joints themselves would reach into each other is ``commanded_penetration_mm``. Tracking is of
    joints that turn; of those that slide, as a gripper's, it is ``rms_tracking_m``. 0 without any.
    """

    rms_tracking_rad: float
    max_penetration_mm: float
    commanded_penetration_mm: float
    penetration_share: float
    saturation_share: float
    coupling_residual_rad: float
    unstable_steps: int
    rms_tracking_m: float = 0.0


@dataclass(frozen=True, slots=True)
class FlexionReport:
    """How far the fingers of one hand were bent, in degrees, means over the frames followed.

    ``error_deg`` is the mean difference, whatever its sign; the human's counts no further than the
    robot's finger can bend. Thumbs and fingers without a knuckle are not among ``fingers``.
    """

    fingers: tuple[str, ...]
    human_deg: Float[np.ndarray, "K"]
    robot_deg: Float[np.ndarray, "K"]
    error_deg: Float[np.ndarray, "K"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Pass, warn or fail, with one plain sentence per reason."""

    status: Literal["pass", "warn", "fail"]
    reasons: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.status


@dataclass(frozen=True, slots=True, eq=False)
class Course:
    """What a controller is to do with one hand: N points, seconds from the start, rad and rad/s.

    Cubic interpolation between points, as of a trajectory controller, keeps the limits that the
    course was made for. It starts and ends at rest.
    """

    seconds: Float[np.ndarray, "N"]
    positions: Float[np.ndarray, "N C"]
    velocities: Float[np.ndarray, "N C"]


@dataclass(frozen=True, slots=True)
class ArmMotion:
    """An arm of J joints that carries one robot hand. Radians or metres, in the trajectory's frame.

    ``reached``: it brings the hand's base to its pose in time; ``reached_alone``: it would with
    nothing in its way. ``to_..._m``: distances in every frame, at most 1 m, negative inside.
    """

    model: str
    link: str
    joint_names: tuple[str, ...]
    T_frame_arm: Float[np.ndarray, "4 4"]
    joints: Float[np.ndarray, "T J"]
    reached: Bool[np.ndarray, "T"]
    reached_alone: Bool[np.ndarray, "T"]
    position_error_m: Float[np.ndarray, "T"]
    rotation_error_rad: Float[np.ndarray, "T"]
    to_other_m: Float[np.ndarray, "T"]
    to_itself_m: Float[np.ndarray, "T"]
    to_table_m: Float[np.ndarray, "T"]
    T_frame_table: Float[np.ndarray, "4 4"] | None
    notes: tuple[str, ...] = ()  # what was assumed

    @property
    def clearance_m(self) -> Float[np.ndarray, "T"]:
        """The smallest distance."""
        return np.min([self.to_other_m, self.to_itself_m, self.to_table_m], axis=0)


@dataclass(frozen=True, slots=True)
class RobotTrajectory:
    """One robot hand per slot following a HandMotion.

    Joints and commands are addressed by name: ``joint_names`` (Q) and ``command_names`` (C) are
    without the side prefix, commands in the vendor's order. ``T_frame_base`` is the base link's
    pose in ``frame``; it is None when the motion had no placement. Where a hand is absent the
    joints hold the last valid or rest pose and ``confidence`` is 0. ``notes`` say what this robot
    cannot do of what the human did.
    """

    robot: str
    timestamps_ns: TimestampsNs
    fps: float
    joint_names: tuple[str, ...]
    command_names: tuple[str, ...]
    command_joints: tuple[str, ...]
    joints: Float[np.ndarray, "T 2 Q"]
    commands: Float[np.ndarray, "T 2 C"]
    registers: Float[np.ndarray, "T 2 C"]
    frame: Literal["camera", "world", "none"]
    T_frame_base: Float[np.ndarray, "T 2 4 4"] | None
    confidence: PerHand
    active: PerHandFlag
    tip_error_m: Float[np.ndarray, "T 2 K"]
    calibration: tuple[Calibration | None, Calibration | None]
    limit_violations: int
    speed_violations: int
    coupling_residual_rad: float
    method: str
    solve_seconds: float
    provenance: Provenance
    replay: tuple[ReplayReport | None, ReplayReport | None] = (None, None)
    flexion: tuple[FlexionReport | None, FlexionReport | None] = (None, None)
    notes: tuple[str, ...] = ()
    verdict: Verdict | None = None
    arms: tuple[ArmMotion | None, ArmMotion | None] = (None, None)  # where asked for

    def __post_init__(self) -> None:
        _check_times(self.timestamps_ns, self.fps)
        for name in ("joints", "commands", "registers"):
            if not np.isfinite(getattr(self, name)).all():
                raise SchemaError(f"RobotTrajectory.{name} has NaN or infinite values.")
        if self.T_frame_base is not None and not np.isfinite(self.T_frame_base).all():
            raise SchemaError("RobotTrajectory.T_frame_base has NaN or infinite values.")

    def __len__(self) -> int:
        return len(self.timestamps_ns)


def held_index(valid: Bool[np.ndarray, "T"]) -> Int[np.ndarray, "T"]:
    """Return, for each frame, the last valid one, or the first where none came before.

    ``values[held_index(valid)]`` holds the last valid value. Without any valid frame all are 0.
    """
    last = np.maximum.accumulate(np.where(valid, np.arange(len(valid)), -1))
    return np.where(last < 0, np.argmax(valid), last)


def _check_times(timestamps_ns: np.ndarray, fps: float) -> None:
    if len(timestamps_ns) == 0:
        raise SchemaError("A recording needs at least one frame.")
    if not (np.isfinite(fps) and fps > 0):
        raise SchemaError(f"fps must be a positive number, got {fps}.")
    if (np.diff(timestamps_ns) <= 0).any():
        frame = int(np.argmax(np.diff(timestamps_ns) <= 0)) + 1
        raise SchemaError(f"Timestamps must increase; frame {frame} does not.")
