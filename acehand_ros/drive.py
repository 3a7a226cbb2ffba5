"""Driving hands through their controllers: a goal per hand, or a command per cycle. No ROS.

Both come from where the hands are measured, within limits. ``control_client`` is what talks to ROS.
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
from acehand_ros.joint_maps import JointMap
from acehand_ros.playback import rest_of
from retarget.robots.robot import Robot

if TYPE_CHECKING:
    from acehand_ros.control_client import RosControllers

Measured = Mapping[Side, Float[np.ndarray, "C"]]
#: Goals start so much later than they are sent, so that both hands have theirs by then.
START_NS = 200_000_000
_CANCEL_S = 2.0


class _Drive:
    """What both ways share. ``problem`` is why the hands were stopped, until they begin again."""

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
        """Return what is still to come from where the hands are, and when it passes the frame."""
        rest = rest_of(self._demonstration, self._robot, frame, rate, start)
        found = {side: one for side, one in rest.courses.items() if side in self._maps}
        known, fps = self._demonstration.known[frame:], self._demonstration.fps * rate
        begins = [
            float(one.seconds[0]) - int(known[:, SIDES.index(side)].argmax()) / fps
            for side, one in found.items()
        ]
        return found, min(begins, default=0.0)


class ActionDrive(_Drive):
    """A goal for the action FollowJointTrajectory per hand, all with the same start.

    Any goal that is refused or does not succeed cancels the others, and nothing more is sent: the
    controllers hold. ``result`` and ``feedback`` come from the thread that spins, ``begin`` from
    that of playback.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._goal = 0
        self._active: dict[Side, int] = {}
        self._errors: dict[Side, float] = {}
        self._stopped_by = 0.0

    @property
    def stopped(self) -> bool:
        """Whether a problem has stopped the hands, the others' goals included if they answer."""
        late = time.monotonic() > self._stopped_by
        return self.problem is not None and (late or not self._active)

    @property
    def busy(self) -> bool:
        """Whether a goal has not ended."""
        return bool(self._active)

    def begin(self, frame: int, rate: float) -> float:
        """Send the goals from a frame on; return after how many seconds they pass it.

        Raises:
            InputError: the hands' places are not known, or a controller is not there.
        """
        self.stop()
        with self._lock:
            # A hand that was stopped is measured once it stands.
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
        """Cancel what is under way; the controllers hold."""
        with self._lock:
            self._goal += 1
            for side in self._active:
                self._controllers.cancel(side)

    def step(self) -> float | None:
        """Do what is due; return seconds until more is, None for a controller's own clock."""
        return None

    def feedback(self, side: Side, goal: int, errors: Float[np.ndarray, "C"]) -> None:
        """Note how far a hand is from where it should be, in its controller's unit."""
        if self._active.get(side) == goal:
            self._errors[side] = float(np.abs(errors).max(initial=0.0))

    def result(self, side: Side, goal: int, problem: str | None) -> None:
        """Hear how a goal ended: None, or why it did not succeed."""
        with self._lock:
            if self._active.get(side) == goal:
                del self._active[side]
            self._lock.notify_all()
            if problem is None or goal != self._goal:
                return  # succeeded, or we had stopped it
            self.problem = f"{side} hand: {problem}"
            self._stopped_by = time.monotonic() + _CANCEL_S
        self.stop()
        self.on_problem()

    def values(self) -> dict[str, str]:
        """Return what diagnostics tell."""
        out = {f"{side}_goal": "active" if side in self._active else "none" for side in self._maps}
        return out | {f"{side}_error": f"{one:.4f}" for side, one in self._errors.items()}


class ForwardDrive(_Drive):
    """The commands themselves, for controllers that only forward them, at those controllers' rate.

    At the clip's rate each would be a step: as far in one cycle as the limit of speed allows in
    several. A thread that woke late leaves commands out to be in time again, as far as the limit
    allows from one to the next.
    """

    def __init__(self, *args: Any, command_hz: float = 100.0) -> None:
        super().__init__(*args)
        self._paths: dict[Side, Float[np.ndarray, "K C"]] = {}
        self._period_s, self._started_s, self._sent_s = 1 / command_hz, 0.0, 0.0
        self._next, self._count = 1, 0

    @property
    def stopped(self) -> bool:
        """Nothing is heard of controllers that only forward."""
        return False

    @property
    def busy(self) -> bool:
        """Whether there are commands to send."""
        return self._next < self._count

    def begin(self, frame: int, rate: float) -> float:
        """Prepare the commands from a frame on; return after how many seconds they pass it.

        Raises:
            InputError: the hands' places are not known.
        """
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
        """Send nothing more; a controller keeps what it had last."""
        with self._lock:
            self._count = 0

    def step(self) -> float | None:
        """Send the command that is due; return seconds until the next, None if there is none."""
        with self._lock:
            if not self.busy:
                return None
            now = time.monotonic()
            # Two commands in one cycle of the controller would make a hand jump.
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
        """Whether every hand may go from one command to another within one period."""
        return all(
            (
                np.abs(path[following] - path[last])
                <= self._robot.hand(side).command_velocity * self._period_s
            ).all()
            for side, path in self._paths.items()
        )

    def values(self) -> dict[str, str]:
        """Return what diagnostics tell."""
        return {"command": f"{self._next - 1} of {max(0, self._count - 1)}"}


Drive = ActionDrive | ForwardDrive


def _sampled(
    course: Course, start: Float[np.ndarray, "C"], seconds: Float[np.ndarray, "K"]
) -> Float[np.ndarray, "K C"]:
    """Return where a hand at rest is on its course at some times, as a controller has it."""
    path = CubicHermiteSpline(
        np.concatenate([[0.0], course.seconds]),
        np.concatenate([[start], course.positions]),
        np.concatenate([np.zeros((1, len(start))), course.velocities]),
    )
    return path(np.minimum(seconds, course.seconds[-1]))
