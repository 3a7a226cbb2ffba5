"""One hand of a robot: names, limits, couplings, command units and model files.

Joint and command names carry no side prefix here; in MJCF, URDF, datasets and ROS they are
``{side}_{name}``. Vectors over joints follow ``joint_names`` (Q), vectors over commands the
vendor's order, ``command_names`` (C).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Float

from acehand_core.types import Side
from retarget.body import HandBody
from retarget.registers import Registers

Follows = Literal["keypoints", "opening"]

JointVector = Float[np.ndarray, "Q"]
CommandVector = Float[np.ndarray, "C"]
Joints = Float[np.ndarray, "*batch Q"]
Commands = Float[np.ndarray, "*batch C"]


@dataclass(frozen=True, slots=True, eq=False)
class HandSpec:
    """One hand of a robot. Angles in radians, speeds in rad/s, torques in N m.

    ``lower``, ``upper`` are the limits of all joints. The ``command_*`` limits are what the driven
    joints may use so that coupled joints keep theirs as well. ``joints = coupling @ commands +
    coupling_offset``. ``target_frames[i]`` is the link or tip that should follow human keypoint
    ``target_keypoints[i]`` (OpenPose index); ``tip_names`` are the frames of the tips, thumb first,
    one per entry of ``fingers``. ``follows`` says what the hand does of the human's: all of these
    keypoints, or, as a gripper, only how far thumb and index are apart. ``body`` is None where the
    model files are not written from here; ``user_model`` is the file of the user that stands in for
    them, if any. ``calibration_path`` is where the robot's own calibration is kept, if it is.
    """

    robot: str
    side: Side
    variant: str
    joint_names: tuple[str, ...]
    lower: JointVector
    upper: JointVector
    command_names: tuple[str, ...]
    command_joints: tuple[str, ...]
    command_lower: CommandVector
    command_upper: CommandVector
    command_velocity: CommandVector
    command_acceleration: CommandVector
    command_torque: CommandVector
    rest: CommandVector
    coupling: Float[np.ndarray, "Q C"]
    coupling_offset: JointVector
    registers: Registers
    latency_s: float
    follows: Follows
    fingers: tuple[str, ...]
    tip_names: tuple[str, ...]
    target_keypoints: tuple[int, ...]
    target_frames: tuple[str, ...]
    mjcf_path: Path
    urdf_path: Path
    body: HandBody | None = field(repr=False)
    user_model: Path | None = None
    calibration_path: Path | None = None

    def full_name(self, name: str) -> str:
        """Return a joint, command, link or tip name as model files and datasets write it."""
        return f"{self.side}_{name}"

    @property
    def command_indices(self) -> tuple[int, ...]:
        """Position in ``joint_names`` of the joint that each command drives."""
        return tuple(self.joint_names.index(name) for name in self.command_joints)

    def expand(self, commands: Commands) -> Joints:
        """Return all joints for driven angles in command order."""
        return commands @ self.coupling.T + self.coupling_offset

    def reduce(self, joints: Joints) -> Commands:
        """Return the driven angles in command order out of all joints."""
        return joints[..., list(self.command_indices)]

    def coupling_residual(self, joints: Joints) -> float:
        """Return the largest ``|q - (factor * q_driven + offset)|`` of any coupled joint."""
        return float(np.abs(joints - self.expand(self.reduce(joints))).max(initial=0.0))

    def to_registers(self, commands: Commands) -> Commands:
        """Return the vendor's units for driven angles; angles beyond the limits are clipped."""
        return self.registers.of(commands)

    def from_registers(self, registers: Commands) -> Commands:
        """Return driven angles for the vendor's units; the inverse of ``to_registers``."""
        return self.registers.inverse(registers)
