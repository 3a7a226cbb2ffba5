"""When which frame is due: play, pause, seek, rate and loop over recorded stamps. No ROS."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from acehand_core.errors import InputError
from acehand_core.types import TimestampsNs

_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Due:
    """What to do now: frames to publish, whether play starts anew at one, whether it has ended."""

    frames: tuple[int, ...]
    restarted: bool
    ended: bool


class Timeline:
    """Plays T recorded stamps against a steady clock that the caller reads.

    The episode lasts from its first stamp to one mean frame after its last, so that a loop keeps
    the rate. Times that go in (``now_ns``) are of the caller's clock and must not go back.
    """

    def __init__(self, stamps_ns: TimestampsNs, rate: float, loop: bool, paused: bool) -> None:
        if len(stamps_ns) == 0:
            raise InputError("There is no frame to play.")
        self._offsets = stamps_ns - stamps_ns[0]
        self._start_ns = int(stamps_ns[0])
        last = int(self._offsets[-1])
        self.length_ns = last + (last // (len(stamps_ns) - 1) if len(stamps_ns) > 1 else _NS // 30)
        self.rate, self.loop = rate, loop
        self._paused = paused
        self._anchor_ns: int | None = None  # of the caller's clock, where the playhead was ...
        self._origin_ns = 0  # ... here, in ns from the first stamp
        self._next = 0
        self._restarted = True
        self._single = False

    @property
    def paused(self) -> bool:
        """Whether time stands still."""
        return self._paused

    @property
    def frames(self) -> int:
        """How many frames there are."""
        return len(self._offsets)

    def position_ns(self, now_ns: int) -> int:
        """Return the playhead in ns from the first stamp."""
        if self._paused or self._anchor_ns is None:
            return self._origin_ns
        gone = max(0, int((now_ns - self._anchor_ns) * self.rate))
        return min(self._origin_ns + gone, self.length_ns)

    def stamp_ns(self, now_ns: int) -> int:
        """Return the playhead in the recording's own time."""
        return self._start_ns + self.position_ns(now_ns)

    def start(self, now_ns: int) -> None:
        """Let time run from here on; before, the playhead waits at the start."""
        self._move(self._origin_ns, now_ns)

    def pause(self, now_ns: int) -> None:
        """Stop time."""
        self._move(self.position_ns(now_ns), now_ns)
        self._paused = True

    def resume(self, now_ns: int) -> None:
        """Let time run on; at the end, from the start."""
        at_end = self._next >= self.frames and self.position_ns(now_ns) >= self.length_ns
        if at_end:
            self.seek(0.0, now_ns)
        self._move(self.position_ns(now_ns), now_ns)
        self._paused = False

    def set_rate(self, rate: float, now_ns: int) -> None:
        """Go on with another speed from here."""
        self._move(self.position_ns(now_ns), now_ns)
        self.rate = rate

    @property
    def starting(self) -> bool:
        """Whether the next frame is one at which play starts anew."""
        return self._restarted

    def again(self) -> None:
        """Count the next frame as one at which play starts anew."""
        self._restarted = True

    def hold(self, frame: int, until_ns: int) -> None:
        """Play on from a frame at a time to come."""
        self._move(int(self._offsets[frame]), until_ns)
        self._next = frame

    def seek(self, seconds: float, now_ns: int) -> None:
        """Move to a time; the first frame from there on is published even when paused.

        Raises:
            InputError: it is not within the episode.
        """
        target = round(seconds * _NS)
        if not 0 <= target <= int(self._offsets[-1]):
            last = self._offsets[-1] / _NS
            raise InputError(f"position: {seconds:g} s; valid: 0 to {last:.3f} s.")
        self._move(target, now_ns)
        self._next = int(np.searchsorted(self._offsets, target))
        self._restarted, self._single = True, self._paused

    def due(self, now_ns: int) -> Due:
        """Return what is due and count it as done."""
        if self._single:
            self._single = False
            frame, self._next = self._next, self._next + 1
            return Due((frame,), self._take_restart(), False)
        if self._paused or self._anchor_ns is None or now_ns < self._anchor_ns:
            return Due((), False, False)
        position = self.position_ns(now_ns)
        stop = int(np.searchsorted(self._offsets, position, side="right"))
        frames = tuple(range(self._next, stop))
        self._next = max(self._next, stop)
        restarted = self._take_restart() if frames else False
        if position < self.length_ns:
            return Due(frames, restarted, False)
        if self.loop:
            self._begin_round(now_ns)
            return Due(frames, restarted, False) if frames else self.due(now_ns)
        return Due(frames, restarted, True)

    def _begin_round(self, now_ns: int) -> None:
        """Start again where the round ended; whole rounds that were missed are not made up for."""
        assert self._anchor_ns is not None
        end_ns = self._anchor_ns + int((self.length_ns - self._origin_ns) / self.rate)
        if now_ns - end_ns >= self.length_ns / self.rate:
            end_ns = now_ns
        self._move(0, end_ns)
        self._next, self._restarted = 0, True

    def wait_s(self, now_ns: int) -> float | None:
        """Return seconds until something is due, or None where nothing will be by itself."""
        if self._single:
            return 0.0
        if self._paused or self._anchor_ns is None:
            return None
        if now_ns < self._anchor_ns:
            return (self._anchor_ns - now_ns) / _NS
        position = self.position_ns(now_ns)
        if self._next < self.frames:
            target = int(self._offsets[self._next])
        elif position < self.length_ns or self.loop:
            target = self.length_ns
        else:
            return None
        return max(0.0, (target - position) / self.rate / _NS)

    def _take_restart(self) -> bool:
        restarted, self._restarted = self._restarted, False
        return restarted

    def _move(self, position_ns: int, now_ns: int) -> None:
        self._origin_ns, self._anchor_ns = position_ns, now_ns
