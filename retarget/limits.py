"""What a robot hand may do: angles, speeds, accelerations, and exact checks of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from retarget.hand_spec import HandSpec

#: Angles and rates beyond their limits by less than this (rates: this share) are rounding.
ANGLE_EPS = 1e-6
SPEED_EPS = 1e-6
#: Shares of the limits that the solver leaves unused: float32 storage must not push a step over.
SPEED_MARGIN = 1e-4
ACCELERATION_MARGIN = 1e-3

Commands = Float[np.ndarray, "T C"]


@dataclass(frozen=True, slots=True)
class CommandLimits:
    """Bounds of the driven joints for commands ``1 / fps`` apart; ``fps`` 0: without an order.

    ``step`` and ``bend`` are the largest first and second differences, rad.
    """

    lower: Float[np.ndarray, "C"]
    upper: Float[np.ndarray, "C"]
    step: Float[np.ndarray, "C"]
    bend: Float[np.ndarray, "C"]
    fps: float

    @classmethod
    def of(cls, hand: HandSpec, fps: float) -> CommandLimits:
        """Return the limits of a hand commanded at a fixed rate."""
        step = hand.command_velocity / fps * (1 - SPEED_MARGIN)
        bend = hand.command_acceleration / fps**2 * (1 - ACCELERATION_MARGIN)
        return cls(hand.command_lower, hand.command_upper, step, bend, fps)

    def without_rate(self) -> CommandLimits:
        """Return the same bounds for frames that do not follow each other."""
        free = np.full_like(self.step, np.inf)
        return CommandLimits(self.lower, self.upper, free, free, 0.0)

    def every(self, stride: int) -> CommandLimits:
        """Return the limits of every stride-th frame."""
        fps = self.fps / stride
        return CommandLimits(self.lower, self.upper, self.step * stride, self.bend * stride**2, fps)

    def enforce(
        self, commands: Commands, history: Float[np.ndarray, "H C"] | None = None
    ) -> Commands:
        """Return commands that keep every limit exactly, each as near as it can be.

        One forward pass from ``history``, the last one or two finished frames. A joint moves
        towards its bound only as fast as it can still brake before it.
        """
        out = np.clip(commands, self.lower, self.upper)
        done = [] if history is None else list(history[-2:])
        bend = np.where(np.isfinite(self.bend), self.bend, 1e9)
        for frame in out:
            if done:
                last = done[-1]
                high = np.minimum(self.step, _fastest(self.upper - last, bend))
                low = -np.minimum(self.step, _fastest(last - self.lower, bend))
                if len(done) > 1:
                    speed = last - done[-2]
                    # What the frames before allow comes first: rounding must not cross the two.
                    high = np.maximum(np.minimum(high, speed + bend), speed - bend)
                    low = np.minimum(np.maximum(low, speed - bend), speed + bend)
                np.clip(frame, last + low, last + high, out=frame)
                np.clip(frame, self.lower, self.upper, out=frame)
            done = [*done[-1:], frame]
        return out

    def kept_by(self, commands: Commands, history: Float[np.ndarray, "H C"] | None = None) -> bool:
        """Whether commands that follow ``history`` keep all limits, margins used as tolerance."""
        if (commands < self.lower).any() or (commands > self.upper).any():
            return False
        path = commands if history is None else np.concatenate([history[-2:], commands])
        if self.fps == 0:
            return True
        step, bend = (
            np.abs(np.diff(path, order, axis=0)) <= limit * (1 + margin / 2)
            for order, limit, margin in (
                (1, self.step, SPEED_MARGIN),
                (2, self.bend, ACCELERATION_MARGIN),
            )
        )
        return bool(step.all() and bend.all())


def limit_violations(hand: HandSpec, joints: Float[np.ndarray, "T Q"]) -> int:
    """Count joint-frames outside the limits, coupled joints included."""
    outside = (joints < hand.lower - ANGLE_EPS) | (joints > hand.upper + ANGLE_EPS)
    return int(outside.sum())


def speed_violations(
    hand: HandSpec, commands: Commands, fps: float | Float[np.ndarray, "S"]
) -> int:
    """Count driven joint-frames that move faster than the hand can.

    ``fps`` is one over the time of every step, or of each of the S = T - 1.
    """
    rate = np.broadcast_to(fps, max(0, len(commands) - 1))[:, None]
    step = np.abs(np.diff(commands, axis=0))
    return int((step > hand.command_velocity / rate * (1 + SPEED_EPS)).sum())


def acceleration_violations(hand: HandSpec, commands: Commands, fps: float) -> int:
    """Count driven joint-frames that accelerate harder than the hand can."""
    rate = np.abs(np.diff(commands, 2, axis=0)) * fps**2
    return int((rate > hand.command_acceleration * (1 + SPEED_EPS)).sum())


def _fastest(room: Float[np.ndarray, "C"], bend: Float[np.ndarray, "C"]) -> np.ndarray:
    """Return the largest step after which steps that shrink by ``bend`` end within ``room``.

    A step v and its brake, v - b, v - 2 b, ..., together go (n + 1) v - b n (n + 1) / 2 with
    n = floor(v / b).
    """
    room = np.maximum(room, 0.0)
    n = np.floor((np.sqrt(1 + 8 * room / bend) - 1) / 2)
    return (room + bend * n * (n + 1) / 2) / (n + 1)
