"""Arms under the robot hands of a trajectory: one for each hand that appears."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float

from acehand_core.errors import InputError
from acehand_core.geometry import frames, rotations
from acehand_core.motion import ArmMotion, RobotTrajectory, Verdict
from acehand_core.types import SIDES
from retarget.arm import Arm, load_arm
from retarget.arm_solver import solve_arm

#: Where the arm's base z axis points: in the camera frame against y (a level camera is assumed), in
#: the world along z.
UP = {"camera": (0.0, -1.0, 0.0), "world": (0.0, 0.0, 1.0)}
_LISTED_SPANS = 5


@dataclass(frozen=True, slots=True)
class ArmSettings:
    """What an arm may be told. ``mount``: x, y, z, roll, pitch, yaw of the hand's base on the link.

    ``up`` None takes the frame's own. Metres and radians.
    """

    path: Path
    link: str | None = None
    mount: tuple[float, ...] = (0.0,) * 6
    up: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if len(self.mount) != 6 or not np.isfinite(self.mount).all():
            raise InputError("--arm-mount takes six numbers: x,y,z,roll,pitch,yaw (m, rad).")
        if self.up is not None and not (len(self.up) == 3 and np.linalg.norm(self.up) > 1e-6):
            raise InputError("--arm-up takes a direction: three numbers that are not all 0.")

    def load(self) -> Arm:
        """Read the arm. Raises InputError, SchemaError."""
        place = np.array(self.mount, float)
        mount = frames.rigid(rotations.from_rpy(place[3:]), place[:3])
        return load_arm(self.path, self.link, mount)


def with_arms(trajectory: RobotTrajectory, arm: Arm, settings: ArmSettings) -> RobotTrajectory:
    """Return the trajectory with an arm for every hand that appears.

    Frames that an arm does not reach are marked in ``arms`` and named in the verdict, which is then
    no better than "warn".

    Raises:
        InputError: the hands have no place before a camera.
    """
    poses = trajectory.T_frame_base
    if poses is None or trajectory.frame == "none":
        raise InputError(
            "--arm needs to know where the hands are, but this input gives joints relative to the "
            "wrist only."
        )
    up = settings.up or UP[trajectory.frame]
    arms: list[ArmMotion | None] = []
    for slot in range(2):
        active = trajectory.active[:, slot]
        if not active.any():
            arms.append(None)
            continue
        others = [other.T_frame_arm for other in arms if other is not None]
        arms.append(solve_arm(arm, poses[:, slot], active, trajectory.fps, up, others))
    reasons = [
        f"the {side} arm does not reach {_share(one, trajectory.active[:, slot]):.1%} of the "
        f"frames ({_spans(trajectory.active[:, slot] & ~one.reached)})"
        for slot, (side, one) in enumerate(zip(SIDES, arms, strict=True))
        if one is not None and not one.reached[trajectory.active[:, slot]].all()
    ]
    verdict = trajectory.verdict
    if verdict is not None and reasons:
        status = "fail" if verdict.status == "fail" else "warn"
        verdict = Verdict(status, (*verdict.reasons, *reasons))
    return replace(trajectory, arms=(arms[0], arms[1]), verdict=verdict)


def spans(flags: Bool[np.ndarray, "T"]) -> list[tuple[int, int]]:
    """Return first and last frame of every run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(int)))
    return [(int(a), int(b) - 1) for a, b in edges.reshape(-1, 2)]


def _share(arm: ArmMotion, active: Bool[np.ndarray, "T"]) -> float:
    missed: Float[np.ndarray, "N"] = (~arm.reached[active]).astype(float)
    return float(missed.mean())


def _spans(flags: Bool[np.ndarray, "T"]) -> str:
    runs = [f"{a} to {b}" if b > a else str(a) for a, b in spans(flags)]
    more = f" and {len(runs) - _LISTED_SPANS} more spans" if len(runs) > _LISTED_SPANS else ""
    return ", ".join(runs[:_LISTED_SPANS]) + more
