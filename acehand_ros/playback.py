"""Playing a demonstration on time, from a thread. Needs no ROS."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from acehand_core.errors import InputError
from acehand_core.recordings.bags import messages
from acehand_core.recordings.bags.messages import Demonstration, PlainMessage
from acehand_core.types import TimestampsNs
from acehand_ros.drive import Drive, at_rate, rest_of
from acehand_ros.messages import Outlet
from retarget.robots.robot import Robot

_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Due:
    """The frames due now, whether play starts anew at the first, whether the episode has ended."""

    frames: tuple[int, ...]
    restarted: bool
    ended: bool


class Timeline:
    """Plays T recorded stamps against the caller's steady clock.

    An episode ends one mean frame after its last stamp, so that a loop keeps the rate. ``now_ns``
    is the caller's clock and must not go back.
    """

    def __init__(self, stamps_ns: TimestampsNs, rate: float, loop: bool, paused: bool) -> None:
        if len(stamps_ns) == 0:
            raise InputError("There is no frame to play.")
        self._offsets = stamps_ns - stamps_ns[0]
        self._start_ns = int(stamps_ns[0])
        last = int(self._offsets[-1])
        self.length_ns = last + (last // (len(stamps_ns) - 1) if len(stamps_ns) > 1 else _NS // 30)
        self.rate, self.loop = rate, loop
        self.paused = paused
        self._anchor_ns: int | None = None  # time of the caller's clock at ...
        self._origin_ns = 0  # ... this playhead, in ns from the first stamp
        self._next = 0
        self.starting = True  # play starts anew at the next frame
        self._single = False

    def position_ns(self, now_ns: int) -> int:
        """Return the playhead in ns from the first stamp."""
        if self.paused or self._anchor_ns is None:
            return self._origin_ns
        elapsed = max(0, int((now_ns - self._anchor_ns) * self.rate))
        return min(self._origin_ns + elapsed, self.length_ns)

    def stamp_ns(self, now_ns: int) -> int:
        """Return the playhead in the recording's time."""
        return self._start_ns + self.position_ns(now_ns)

    def start(self, now_ns: int) -> None:
        """Start the clock; until then the playhead waits at the start."""
        self._move(self._origin_ns, now_ns)

    def pause(self, now_ns: int) -> None:
        self._move(self.position_ns(now_ns), now_ns)
        self.paused = True

    def resume(self, now_ns: int) -> None:
        """Continue; at the end, from the start."""
        if self._next >= len(self._offsets) and self.position_ns(now_ns) >= self.length_ns:
            self.seek(0.0, now_ns)
        self._move(self.position_ns(now_ns), now_ns)
        self.paused = False

    def set_rate(self, rate: float, now_ns: int) -> None:
        self._move(self.position_ns(now_ns), now_ns)
        self.rate = rate

    def hold(self, frame: int, until_ns: int) -> None:
        """Continue from a frame at a future time."""
        self._move(int(self._offsets[frame]), until_ns)
        self._next = frame

    def seek(self, seconds: float, now_ns: int) -> None:
        """Move to a time and publish its frame even when paused; InputError outside the episode."""
        target = round(seconds * _NS)
        if not 0 <= target <= int(self._offsets[-1]):
            last = self._offsets[-1] / _NS
            raise InputError(f"position: {seconds:g} s; valid: 0 to {last:.3f} s.")
        self._move(target, now_ns)
        self._next = int(np.searchsorted(self._offsets, target))
        self.starting, self._single = True, self.paused

    def due(self, now_ns: int) -> Due:
        """Return what is due and count it as done."""
        if self._single:
            self._single = False
            frame, self._next = self._next, self._next + 1
            restarted, self.starting = self.starting, False
            return Due((frame,), restarted, False)

        if self.paused or self._anchor_ns is None or now_ns < self._anchor_ns:
            return Due((), False, False)

        position = self.position_ns(now_ns)
        stop = int(np.searchsorted(self._offsets, position, side="right"))
        frames = tuple(range(self._next, stop))
        self._next = max(self._next, stop)
        restarted = self.starting and bool(frames)
        self.starting = self.starting and not frames

        ended = position >= self.length_ns
        if ended and self.loop:
            # Missed rounds are not made up for.
            end_ns = self._anchor_ns + int((self.length_ns - self._origin_ns) / self.rate)
            self._move(0, now_ns if now_ns - end_ns >= self.length_ns / self.rate else end_ns)
            self._next, self.starting = 0, True
            return Due(frames, restarted, False) if frames else self.due(now_ns)
        return Due(frames, restarted, ended)

    def wait_s(self, now_ns: int) -> float | None:
        """Return seconds until something is due, None if nothing will be."""
        if self._single:
            return 0.0
        if self.paused or self._anchor_ns is None:
            return None
        if now_ns < self._anchor_ns:
            return (self._anchor_ns - now_ns) / _NS
        position = self.position_ns(now_ns)
        if self._next < len(self._offsets):
            target = int(self._offsets[self._next])
        elif position < self.length_ns or self.loop:
            target = self.length_ns
        else:
            return None
        return max(0.0, (target - position) / self.rate / _NS)

    def _move(self, position_ns: int, now_ns: int) -> None:
        self._origin_ns, self._anchor_ns = position_ns, now_ns


@dataclass(frozen=True, slots=True)
class PlayerSettings:
    """What is published. ``stamps`` "now" is the time of publishing instead of capture."""

    stamps: Literal["recorded", "now"] = "recorded"
    clock_rate: float | None = 100.0
    tf: bool = True
    descriptions: bool = True
    markers: bool = True


class Playback:
    """Plays one demonstration. All methods are thread-safe.

    Args:
        now_ns: the node's clock, for stamps "now".
        publish_clock: gets the playhead in the recording's time at ``clock_rate``.
        drive: moves the hands through controllers instead of published trajectories. Play waits for
            it at every start, pauses on its problems and ends with it.
    """

    def __init__(
        self,
        demonstration: Demonstration,
        robot: Robot,
        timeline: Timeline,
        outlet: Outlet,
        settings: PlayerSettings,
        now_ns: Callable[[], int],
        publish_clock: Callable[[int], None],
        drive: Drive | None = None,
    ) -> None:
        self._recorded, self._robot = demonstration, robot
        self._timeline, self._outlet = timeline, outlet
        self._demonstration = at_rate(demonstration, robot, timeline.rate)
        self._settings, self._now_ns, self._publish_clock = settings, now_ns, publish_clock
        self._lock = threading.RLock()
        self._wake = threading.Condition(self._lock)
        self._closed = self._ended = False
        self._changes = 0
        self._cached_from: tuple[int, float] | None = None
        self._cached: list[PlainMessage] = []
        self._thread = threading.Thread(target=self._run, name="playback")
        self._drive = drive
        if drive is not None:
            drive.on_problem = lambda: self.set("paused", True)
        self.error: BaseException | None = None

    def prepare(self) -> None:
        """Advertise every topic."""
        trajectories = [] if self._drive is not None else self._from(0)
        self._outlet.prepare([*self._frame(0), *trajectories])

    def start(self) -> None:
        """Publish the latched messages and begin."""
        self._outlet.publish(self._latched(), self._stamp())
        self._timeline.start(time.monotonic_ns())
        self._thread.start()

    def close(self) -> None:
        """Stop publishing and driving."""
        with self._wake:
            self._closed = True
            self._wake.notify_all()
        if self._thread.is_alive():
            self._thread.join()
        if self._drive is not None:
            self._drive.stop()

    @property
    def ended(self) -> bool:
        """Whether the end was reached, and no loop, seek or resume has left it."""
        driven = self._drive is not None and self._drive.busy
        return (self._ended and not driven) or self.error is not None

    @property
    def paused(self) -> bool:
        return self._timeline.paused

    def position_s(self) -> float:
        """Return the playhead in seconds from the start."""
        with self._lock:
            return self._timeline.position_ns(time.monotonic_ns()) / 1e9

    def status(self) -> list[dict[str, Any]]:
        """Return the diagnostics of each hand at the playhead, and of the whole episode."""
        with self._lock:
            demo = self._demonstration
            stamp_ns = self._timeline.stamp_ns(time.monotonic_ns())
        index = int(np.searchsorted(demo.stamps_ns, stamp_ns, side="right")) - 1
        return [*messages.quality_status(demo, max(index, 0)), messages.verdict_status(demo)]

    def set(self, name: str, value: Any) -> None:
        """Set ``rate``, ``loop``, ``paused`` or ``position``; InputError outside the episode."""
        now = time.monotonic_ns()
        with self._wake:
            if name == "rate":
                self._timeline.set_rate(float(value), now)
                self._demonstration = at_rate(self._recorded, self._robot, float(value))
            elif name == "loop":
                self._timeline.loop = bool(value)
            elif name == "paused":
                (self._timeline.pause if value else self._timeline.resume)(now)
            elif name == "position":
                self._timeline.seek(float(value), now)

            if self._drive is not None and name != "loop":
                # Commands already sent are for another time: start anew from the measured hands.
                self._drive.stop()
                self._timeline.starting = True
            self._ended = False
            self._changes += 1
            self._wake.notify_all()

    def _run(self) -> None:
        try:
            self._play()
        except Exception as error:  # reported by the node
            self.error = error

    def _play(self) -> None:
        tick_s = None if self._settings.clock_rate is None else 1 / self._settings.clock_rate
        next_tick = time.monotonic()
        while True:
            with self._wake:
                if self._closed:
                    return
                now = time.monotonic_ns()
                due = self._timeline.due(now)
                clock_ns = self._timeline.stamp_ns(now)
                changes = self._changes

            if tick_s is not None and (time.monotonic() >= next_tick or due.frames):
                self._publish_clock(clock_ns)
                next_tick = max(next_tick + tick_s, time.monotonic() - tick_s)
            if self._drive is not None and due.restarted and due.frames and not self.paused:
                self._begin(self._drive, due.frames[0])
                continue

            driving_s = None if self._drive is None else self._drive.step()
            if self._drive is None and due.restarted and due.frames:
                # Not stamped: a controller starts a trajectory with stamp zero on arrival.
                self._outlet.publish(self._from(due.frames[0]))
            for frame in due.frames:
                self._outlet.publish(self._frame(frame), self._stamp())

            with self._wake:
                if self._closed:
                    return
                if changes == self._changes:  # else a change has left the end
                    self._ended = self._ended or due.ended
                waits = [driving_s]
                if not self._ended:
                    # From when frames were due: an end reached since then still has to be reported.
                    left = self._timeline.wait_s(now)
                    late = (time.monotonic_ns() - now) / _NS
                    waits.append(None if left is None else max(0.0, left - late))
                if tick_s is not None:
                    waits.append(max(0.0, next_tick - time.monotonic()))
                self._wake.wait(min((s for s in waits if s is not None), default=None))

    def _begin(self, drive: Drive, frame: int) -> None:
        """Move the hands to a frame and continue from it once they are there."""
        until_ns = round(drive.begin(frame, self._timeline.rate) * 1e9) + time.monotonic_ns()
        with self._wake:
            if self._timeline.paused or self._timeline.starting:
                drive.stop()  # paused or changed meanwhile
            else:
                self._timeline.hold(frame, until_ns)

    def _stamp(self) -> int | None:
        return self._now_ns() if self._settings.stamps == "now" else None

    def _latched(self) -> list[PlainMessage]:
        return [
            m
            for m in messages.latched_messages(self._demonstration)
            if (self._settings.tf or m.topic != "/tf_static")
            and (self._settings.descriptions or not m.topic.endswith("/robot_description"))
        ]

    def _from(self, frame: int) -> list[PlainMessage]:
        """Return the remaining trajectories at the current rate; the last ones are cached."""
        wanted = frame, self._timeline.rate
        if wanted != self._cached_from:
            rest = rest_of(self._recorded, self._robot, *wanted)
            self._cached_from, self._cached = wanted, list(messages.trajectory_messages(rest))
        return self._cached

    def _frame(self, frame: int) -> list[PlainMessage]:
        settings = self._settings
        of_frame = messages.frame_messages(self._demonstration, frame, human=settings.markers)
        return [m for m in of_frame if settings.tf or m.topic != "/tf"]
