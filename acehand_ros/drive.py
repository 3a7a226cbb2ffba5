"""Drives hands through their controllers: a goal per hand, or a command per cycle. No ROS.

Both start from the measured hands and keep their limits. ``control_client`` connects to ROS.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from scipy.interpolate import CubicHermiteSpline

from acehand_core.motion import Course
from acehand_core.recordings.bags.messages import Demonstration, trajectory_fields
from acehand_core.types import SIDES, Side
from acehand_ros.control import JointMap
from acehand_ros.playback import rest_of
from retarget.robots.robot import Robot

if TYPE_CHECKING:
    from acehand_ros.control_client import RosControllers

Measured = Mapping[Side, Float[np.ndarray, "C"]]
#: Delay between sending goals and their common start, so that both hands have received theirs.
START_NS = 200_000_000
_CANCEL_S = 2.0


class _Drive:
    """Common part of the drives. ``problem`` is why the hands stopped, until the next start."""

    def __init__(
        self,
        demonstration: Demonstration,
        robot: Robot,
        maps: Mapping[Side, JointMap],
        controllers: RosControllers,
        now_ns: Callable[[], int],
    ) -> None:
        self._demonstration, self._robot, self._maps = demonstration, robot, maps
        self._controllers, self._now_ns = controllers, now_ns
        self._lock = threading.Condition()
        self.problem: str | None = None
        self.on_problem: Callable[[], None] = lambda: None

    def _courses(
        self, frame: int, rate: float, start: Measured
    ) -> tuple[dict[Side, Course], float]:
        """Return the remaining courses from the measured hands, and when they pass the frame."""
        rest = rest_of(self._demonstration, self._robot, frame, rate, start)
        found = {side: one for side, one in rest.courses.items() if side in self._maps}
        known, fps = self._demonstration.known[frame:], self._demonstration.fps * rate
        begins = [
            float(one.seconds[0]) - int(known[:, SIDES.index(side)].argmax()) / fps
            for side, one in found.items()
        ]
        return found, min(begins, default=0.0)


class ActionDrive(_Drive):
    """A FollowJointTrajectory goal per hand, all with the same start.

    A refused or failed goal cancels the others, and the controllers hold. ``result`` and
    ``feedback`` are called from the spinning thread, ``begin`` from that of playback.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._goal = 0
        self._active: dict[Side, int] = {}
        self._errors: dict[Side, float] = {}
        self._stopped_by = 0.0

    @property
    def stopped(self) -> bool:
        """Whether a problem has stopped the hands and the other goals have ended or timed out."""
        late = time.monotonic() > self._stopped_by
        return self.problem is not None and (late or not self._active)

    @property
    def busy(self) -> bool:
        return bool(self._active)

    def begin(self, frame: int, rate: float) -> float:
        """Send the goals from a frame on; return the seconds until then. Raises InputError."""
        self.stop()
        with self._lock:
            # Measure stopped hands once they are at rest.
            self._lock.wait_for(lambda: not self._active, _CANCEL_S)
            self._goal += 1
            goal, self.problem = self._goal, None
        courses, begin = self._courses(frame, rate, self._controllers.measure())
        with self._lock:
            if goal != self._goal:
                return 0.0
            start_ns = self._now_ns() + START_NS
            for side, course in courses.items():
                self._active[side] = goal
                one = self._maps[side]
                fields = trajectory_fields(one.joints, one.course(course), start_ns)
                self._controllers.send(side, goal, fields)
        return begin + START_NS / 1e9

    def stop(self) -> None:
        """Cancel the goals; the controllers hold."""
        with self._lock:
            self._goal += 1
            for side in self._active:
                self._controllers.cancel(side)

    def step(self) -> float | None:
        """Nothing to do: the controllers have their own clock."""
        return None

    def feedback(self, side: Side, goal: int, errors: Float[np.ndarray, "C"]) -> None:
        """Store a hand's largest tracking error, in its controller's unit."""
        if self._active.get(side) == goal:
            self._errors[side] = float(np.abs(errors).max(initial=0.0))

    def result(self, side: Side, goal: int, problem: str | None) -> None:
        """Take the end of a goal; ``problem`` is None on success."""
        with self._lock:
            if self._active.get(side) == goal:
                del self._active[side]
            self._lock.notify_all()
            if problem is None or goal != self._goal:
                return  # it succeeded, or we cancelled it
            self.problem = f"{side} hand: {problem}"
            self._stopped_by = time.monotonic() + _CANCEL_S
        self.stop()
        self.on_problem()

    def values(self) -> dict[str, str]:
        out = {f"{side}_goal": "active" if side in self._active else "none" for side in self._maps}
        return out | {f"{side}_error": f"{one:.4f}" for side, one in self._errors.items()}


class ForwardDrive(_Drive):
    """The commands themselves, at the controllers' rate, for controllers that only forward them.

    At the clip's rate, each command would be a step too large for one control cycle. A thread that
    wakes up late skips commands as far as the speed limit allows.
    """

    def __init__(self, *args: Any, command_hz: float = 100.0) -> None:
        super().__init__(*args)
        self._paths: dict[Side, Float[np.ndarray, "K C"]] = {}
        self._period_s, self._started_s, self._sent_s = 1 / command_hz, 0.0, 0.0
        self._next, self._count = 1, 0

    @property
    def stopped(self) -> bool:
        """Never: forwarding controllers report nothing."""
        return False

    @property
    def busy(self) -> bool:
        return self._next < self._count

    def begin(self, frame: int, rate: float) -> float:
        """Prepare the commands from a frame on; return the seconds until they pass it."""
        self.problem = None
        start = self._controllers.measure()
        courses, begin = self._courses(frame, rate, start)
        lasts_s = max((course.seconds[-1] for course in courses.values()), default=0.0)
        with self._lock:
            self._count = int(np.ceil(round(lasts_s / self._period_s, 6))) + 1
            self._paths = {
                side: _sampled(course, start[side], np.arange(self._count) * self._period_s)
                for side, course in courses.items()
            }
            self._started_s = self._sent_s = time.monotonic()
            self._next = 1
        return begin

    def stop(self) -> None:
        """Send no more commands; a controller keeps its last one."""
        with self._lock:
            self._count = 0

    def step(self) -> float | None:
        """Send the command that is due; return seconds until the next, None after the last."""
        with self._lock:
            if not self.busy:
                return None
            now = time.monotonic()
            # Two commands within one control cycle would make a hand jump.
            soonest = self._sent_s + 0.9 * self._period_s
            due = max(self._started_s + self._next * self._period_s, soonest)
            if now < due:
                return due - now
            on_time = min(int((now - self._started_s) / self._period_s), self._count - 1)
            last = self._next - 1
            while self._next < on_time and self._within_limits(last, self._next + 1):
                self._next += 1
            for side, path in self._paths.items():
                self._controllers.command(side, self._maps[side].values(path[self._next]))
            self._sent_s = now
            self._next += 1
            return max(0.0, self._started_s + self._next * self._period_s - time.monotonic())

    def _within_limits(self, last: int, following: int) -> bool:
        """Whether every hand can move between two commands within one period."""
        steps = {side: np.abs(path[following] - path[last]) for side, path in self._paths.items()}
        return all(
            (step <= self._robot.hand(side).command_velocity * self._period_s).all()
            for side, step in steps.items()
        )

    def values(self) -> dict[str, str]:
        return {"command": f"{self._next - 1} of {max(0, self._count - 1)}"}


Drive = ActionDrive | ForwardDrive


def _sampled(
    course: Course, start: Float[np.ndarray, "C"], seconds: Float[np.ndarray, "K"]
) -> Float[np.ndarray, "K C"]:
    """Return a hand's course, starting at rest, at given times, interpolated as by a controller."""
    path = CubicHermiteSpline(
        np.concatenate([[0.0], course.seconds]),
        np.concatenate([[start], course.positions]),
        np.concatenate([np.zeros((1, len(start))), course.velocities]),
    )
    return path(np.minimum(seconds, course.seconds[-1]))
