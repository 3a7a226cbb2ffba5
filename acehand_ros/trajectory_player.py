"""Node ``trajectory_player``: replays a demonstration on topics or through controllers."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from acehand_core import load_demonstrations
from acehand_core.errors import EXIT_OK, EXIT_SOME_FAILED, InputError, nearest
from acehand_core.recordings.bags.messages import Demonstration, with_frame_prefix
from acehand_core.types import SIDES
from acehand_ros import runtime
from acehand_ros.control import choose_hands, read_joint_maps
from acehand_ros.drive import ActionDrive, Drive, ForwardDrive, RosControllers
from acehand_ros.messages import Outlet
from acehand_ros.parameters import PLAYER, declare, refuse_bad_values
from acehand_ros.playback import Playback, PlayerSettings, Timeline
from acehand_ros.worker import ERROR, OK, diagnostics
from retarget.robots.robot import Robot

_STATUS_S = 1.0


class TrajectoryPlayer:
    """Plays at once (unless paused); steered by ~/pause, ~/resume, ~/restart and parameters."""

    def __init__(self, node: Any) -> None:
        self._node = node
        values = declare(node, PLAYER)
        self._exit = values["exit_when_done"]
        self._logged_problem: str | None = None  # the problem that was logged
        self._source = values["source"]
        demonstration, robot = load_episode(self._source, values["robot"], values["episode"])
        demonstration = with_frame_prefix(demonstration, values["frame_prefix"])
        self._outlet = Outlet(node)
        clock = values["stamps"] == "recorded" and values["publish_clock"]
        self._clock: Any = None
        if clock:
            from rclpy.qos import QoSProfile, ReliabilityPolicy
            from rosgraph_msgs.msg import Clock

            profile = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
            self._clock = node.create_publisher(Clock, "/clock", profile)

        settings = PlayerSettings(
            stamps=values["stamps"],
            clock_rate=float(values["clock_rate"]) if clock else None,
            tf=values["publish_tf"],
            descriptions=values["publish_description"],
            markers=values["markers"],
        )
        timeline = Timeline(
            demonstration.stamps_ns, float(values["rate"]), values["loop"], values["paused"]
        )
        if values["position"]:
            timeline.seek(float(values["position"]), time.monotonic_ns())

        self._controllers: Any = None
        driven = values["output"] != "topics"
        self._drive = self._driven(demonstration, robot, values) if driven else None
        outlet, now = self._outlet, functools.partial(runtime.now_ns, node)
        self._playback = Playback(
            demonstration, robot, timeline, outlet, settings, now, self._publish_clock, self._drive
        )

        refuse_bad_values(node, PLAYER, self._playback.set)
        actions = {"pause": self._pause, "resume": self._resume, "restart": self._restart}
        runtime.add_triggers(node, **actions)
        runtime.add_timer(node, _STATUS_S, self._publish_status)
        self._playback.prepare()
        self._wait_for_subscriber(float(values["wait_for_subscriber"]))
        # Log before playback starts: rclpy's first log call searches all loaded modules for its
        # caller, which takes seconds next to a fast playback and delays Ctrl-C.
        frames, seconds = len(demonstration.stamps_ns), timeline.length_ns / 1e9
        node.get_logger().info(f"{self._source}: {frames} frames, {seconds:.2f} s")
        self._playback.start()

    @property
    def finished(self) -> bool:
        stopped = self._drive is not None and self._drive.stopped
        over = stopped or self._playback.ended
        return self._playback.error is not None or (self._exit and over)

    def close(self) -> int:
        if self._controllers is not None:
            self._controllers.close()
        self._playback.close()
        self._publish_status()
        if self._playback.error is not None:
            self._node.get_logger().fatal(f"{self._source}: {self._playback.error}")
            return EXIT_SOME_FAILED
        failed = self._drive is not None and self._drive.problem is not None
        return EXIT_SOME_FAILED if failed else EXIT_OK

    def _driven(
        self, demonstration: Demonstration, robot: Robot, values: Mapping[str, Any]
    ) -> Drive:

        names: dict[str, str] = {side: values[f"{side}_controller"] for side in SIDES}
        maps = read_joint_maps(values["controllers"], robot)
        maps = choose_hands(maps, values["hands"], names)
        maps = {side: one for side, one in maps.items() if side in demonstration.courses}
        if not maps:
            seen = ", ".join(demonstration.courses) or "none"
            raise InputError(f"{self._source}: no {values['hands']} hand; present: {seen}.")
        action = values["output"] == "action"
        self._controllers = RosControllers(
            self._node, maps, action, values["wait_for_controller"], values["path_tolerance"]
        )
        now_ns = functools.partial(runtime.now_ns, self._node)
        shared = demonstration, robot, maps, self._controllers, now_ns
        if not action:
            return ForwardDrive(*shared, command_hz=values["command_rate"])
        self._controllers.drive = drive = ActionDrive(*shared)
        return drive

    def _publish_clock(self, time_ns: int) -> None:
        from rosgraph_msgs.msg import Clock

        message = Clock()
        message.clock.sec, message.clock.nanosec = divmod(time_ns, 1_000_000_000)
        if self._clock is not None:
            self._clock.publish(message)

    def _wait_for_subscriber(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        topics = [f"/{side}_hand/joint_states" for side in SIDES]
        while time.monotonic() < until and not any(map(self._outlet.has_subscriber, topics)):
            time.sleep(0.05)

    def _pause(self) -> str:
        self._playback.set("paused", True)
        return f"paused at {self._playback.position_s():.3f} s"

    def _resume(self) -> str:
        self._playback.set("paused", False)
        return "playing"

    def _restart(self) -> str:
        self._playback.set("position", 0.0)
        return "at the start"

    def _publish_status(self) -> None:
        playback = self._playback
        state = "paused" if playback.paused else "ended" if playback.ended else "playing"
        level = OK if playback.error is None else ERROR
        values = {"source": self._source, "position_s": f"{playback.position_s():.3f}"}
        if self._drive is not None:
            values |= self._drive.values()
            problem = self._drive.problem
            if problem is not None:
                state, level = problem, ERROR
            if problem is not None and problem != self._logged_problem:
                self._node.get_logger().error(f"{problem} The hands hold; ~/resume starts anew.")
            self._logged_problem = problem
        name, now_ns = self._node.get_name(), runtime.now_ns(self._node)
        message = diagnostics(name, level, state, values, now_ns, playback.status())
        self._outlet.publish([message])


def load_episode(source: str, robot: str, episode: int) -> tuple[Demonstration, Robot]:
    """Return one episode of a dataset or table of hands, and its robot. Raises InputError."""
    if not source.strip():
        raise InputError("The parameter 'source' is empty; give source:=PATH.")
    demonstrations = load_demonstrations(Path(source).expanduser(), robot)
    episodes = list(itertools.islice(demonstrations, episode + 1))
    if episode >= len(episodes):
        numbers = map(str, range(len(episodes)))
        raise InputError(f"{source}: no episode {episode}; {nearest(str(episode), numbers)}")
    return episodes[episode]


def main(argv: Sequence[str] | None = None) -> int:
    return runtime.run("trajectory_player", TrajectoryPlayer, argv)
