"""A robot's motion that follows hands, and its verdict."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from acehand_core.errors import SchemaError
from acehand_core.motion.objects import GraspReport
from acehand_core.motion.recording import check_times
from acehand_core.provenance import Provenance
from acehand_core.types import (
    PerHand,
    PerHandFlag,
    PointsCamera,
    TimestampsNs,
)


@dataclass(frozen=True, slots=True)
class Calibration:
    """Similarity from a subject's palm to the robot's base frame: ``x_base = s R x_hand + t``.

    Metres. Each finger, thumb first, is shifted by its offset (base frame) and stretched from its
    knuckle (the thumb from the wrist) by its length. ``residual_m``: rms error of the robot's tips.
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
    """MuJoCo's response to the commands of one hand.

    Contacts are stiff: a commanded collision shows as tracking error, its depth as
    ``commanded_penetration_mm``. Tracking is in rad for hinge joints, in m for slide joints.
    """

    rms_tracking_rad: float
    max_penetration_mm: float
    commanded_penetration_mm: float
    saturation_share: float
    coupling_residual_rad: float
    unstable_steps: int
    rms_tracking_m: float = 0.0


@dataclass(frozen=True, slots=True)
class FlexionReport:
    """Mean flexion of fingers with a knuckle, in degrees; the human's within the robot's range.

    ``error_deg``: mean absolute difference.
    """

    fingers: tuple[str, ...]
    human_deg: Float[np.ndarray, "K"]
    robot_deg: Float[np.ndarray, "K"]
    error_deg: Float[np.ndarray, "K"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Pass, warn or fail, with one sentence per reason."""

    status: Literal["pass", "warn", "fail"]
    reasons: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.status


@dataclass(frozen=True, slots=True, eq=False)
class Course:
    """Trajectory of one hand for a controller with cubic interpolation, from rest to rest.

    N points, rad and rad/s.
    """

    seconds: Float[np.ndarray, "N"]
    positions: Float[np.ndarray, "N C"]
    velocities: Float[np.ndarray, "N C"]


@dataclass(frozen=True, slots=True)
class ArmMotion:
    """An arm of J joints that carries a robot hand; radians or metres, in the trajectory's frame.

    ``reached``: the hand's base is at its pose in time; ``reached_alone``: it would be without
    obstacles. ``to_..._m``: distances per frame, at most 1 m, negative inside.
    """

    model: str
    link: str
    joint_names: tuple[str, ...]
    T_frame_arm: Float[np.ndarray, "4 4"]
    joints: Float[np.ndarray, "T J"]
    reached: Bool[np.ndarray, "T"]
    reached_alone: Bool[np.ndarray, "T"]
    position_error_m: Float[np.ndarray, "T"]
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
    """A robot hand per slot that follows a HandMotion.

    Names of Q joints and C commands have no side prefix; commands are in the vendor's order.
    ``T_frame_base``: pose of the base link in ``frame``, None without placement. An absent hand
    holds the last valid or rest pose with ``confidence`` 0. ``notes``: what cannot be reproduced.
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
    grasps: tuple[GraspReport, ...] = ()  # of tracked objects

    def __post_init__(self) -> None:
        check_times(self.timestamps_ns, self.fps)
        for name in ("joints", "commands", "registers"):
            if not np.isfinite(getattr(self, name)).all():
                raise SchemaError(f"RobotTrajectory.{name} has NaN or infinite values.")
        if self.T_frame_base is not None and not np.isfinite(self.T_frame_base).all():
            raise SchemaError("RobotTrajectory.T_frame_base has NaN or infinite values.")

    def __len__(self) -> int:
        return len(self.timestamps_ns)


def held_index(valid: Bool[np.ndarray, "T"]) -> Int[np.ndarray, "T"]:
    """Return the index of each frame's last valid frame, else of the first one; 0 without any."""
    last = np.maximum.accumulate(np.where(valid, np.arange(len(valid)), -1))
    return np.where(last < 0, np.argmax(valid), last)
