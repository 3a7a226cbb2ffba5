"""What a robot hand may do: angles, speeds, and exact checks of both."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from retarget.robot import HandSpec

#: Angles and speeds beyond their limits by less than this are rounding.
ANGLE_EPS = 1e-6
SPEED_EPS = 1e-6
#: Share of the speed limit that the solver uses: float32 storage must not push a step over it.
SPEED_MARGIN = 1e-4

Commands = Float[np.ndarray, "T C"]


@dataclass(frozen=True, slots=True)
class CommandLimits:
    """Bounds of the driven joints (rad), and how far each may move from one frame to the next."""

    lower: Float[np.ndarray, "C"]
    upper: Float[np.ndarray, "C"]
    step: Float[np.ndarray, "C"]

    @classmethod
    def of(cls, hand: HandSpec, fps: float) -> CommandLimits:
        """Return the limits of a hand commanded at a fixed rate."""
        step = hand.command_velocity / fps * (1 - SPEED_MARGIN)
        return cls(hand.command_lower, hand.command_upper, step)

    def without_rate(self) -> CommandLimits:
        """Return the same bounds for frames that do not follow each other."""
        return CommandLimits(self.lower, self.upper, np.full_like(self.step, np.inf))

    def enforce(
        self, commands: Commands, previous: Float[np.ndarray, "C"] | None = None
    ) -> Commands:
        """Return commands that keep every limit exactly.

        One forward pass: each frame is clipped to what the frame before allows. A solver that
        meets the limits to its tolerance is changed by no more than that tolerance.
        """
        out = np.clip(commands, self.lower, self.upper)
        last = out[0] if previous is None else previous
        for frame in out:
            np.clip(frame, last - self.step, last + self.step, out=frame)
            last = frame
        return out


def limit_violations(hand: HandSpec, joints: Float[np.ndarray, "T Q"]) -> int:
    """Count joint-frames outside the limits, coupled joints included."""
    outside = (joints < hand.lower - ANGLE_EPS) | (joints > hand.upper + ANGLE_EPS)
    return int(outside.sum())


def speed_violations(hand: HandSpec, commands: Commands, fps: float) -> int:
    """Count driven joint-frames that move faster than the hand can."""
    speed = np.abs(np.diff(commands, axis=0)) * fps
    return int((speed > hand.command_velocity * (1 + SPEED_EPS)).sum())
