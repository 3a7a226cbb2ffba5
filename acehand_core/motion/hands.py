"""The hands in a recording, frame by frame."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float, Int

from acehand_core.errors import SchemaError
from acehand_core.geometry.cameras import Camera
from acehand_core.motion.recording import check_times
from acehand_core.provenance import Provenance
from acehand_core.types import (
    BothBetas,
    CameraPoses,
    FingerRotations,
    JointsCamera,
    JointsImage,
    PerHand,
    PerHandFlag,
    PointCamera,
    RotationsCamera,
    TimestampsNs,
)

HandModelName = Literal["mano", "acehand", "none"]

#: In which frame a gap was filled: the camera's, one that does not turn with it, or the world.
FillFrame = Literal["camera", "rotation", "world"]
FILL_FRAMES: tuple[FillFrame, ...] = get_args(FillFrame)


_PER_FRAME = ("presence", "visible", "quality", "observed", "filled", "global_orient", "hand_pose",
              "translation", "joints_camera", "joints_image")  # fmt: skip


@dataclass(frozen=True, slots=True)
class HandMotion:
    """Both hands of one recording, slot 0 left and 1 right.

    ``joints_camera = hand(global_orient, hand_pose, betas) + translation``: ``translation`` places
    the model's own joints, so the wrist is ``J0(betas) + translation``. A joint that nothing is
    known about is NaN. Where rotations are not known they are NaN and ``hand_model`` is "none".
    ``T_world_camera`` is NaN in frames whose camera pose is not known. ``joints_image`` is
    the tracker's own 2D evidence, never a projection. ``joint_sigma`` are standard deviations of
    ``joints_camera`` in metres: across the camera's line of sight, in each of the two directions,
    and along it; NaN where a joint is not known, None where the tracker does not tell.
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
    joint_sigma: Float[np.ndarray, "T 2 21 2"] | None = None

    def __post_init__(self) -> None:
        check_times(self.timestamps_ns, self.fps)
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
        sigma = self.joint_sigma
        if sigma is not None and (sigma.shape != (frames, 2, 21, 2) or (sigma < 0).any()):
            raise SchemaError(
                f"HandMotion.joint_sigma must have shape ({frames}, 2, 21, 2) and be positive."
            )
        if self.T_world_camera is not None and len(self.T_world_camera) != frames:
            raise SchemaError(
                f"HandMotion.T_world_camera has {len(self.T_world_camera)} poses for "
                f"{frames} frames."
            )

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
        sigma = self.joint_sigma
        return replace(
            self,
            timestamps_ns=timestamps_ns,
            fps=fps,
            fill_frame=None if filled_in is None else filled_in[rows],
            T_world_camera=None if poses is None else poses[rows],
            joint_sigma=None if sigma is None else sigma[rows],
            **{name: getattr(self, name)[rows] for name in _PER_FRAME},
        )

    @property
    def doubtful(self) -> PerHandFlag:
        """True where a hand was seen, but so that nothing is trusted of it."""
        return self.observed & (self.quality == 0)

    @property
    def known(self) -> PerHandFlag:
        """True where a hand was measured or filled."""
        return self.observed | self.filled
