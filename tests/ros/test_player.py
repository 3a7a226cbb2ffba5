"""trajectory_player as a process of its own, heard by an independent subscriber."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ros_process import Launched, Process, call, needs, spin_until, trigger

from acehand_core.recordings.hands_file import read_hand_motion, write_hand_motion
from helpers.controller_rules import check_controller_takes
from retarget.robots.robot import load_robot

TRUTH = Path(__file__).parents[2] / "examples" / "two_hands_truth.parquet"
FRAMES, START = 60, 1_700_000_000_123_456_789
SIDES = ("left", "right")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seconds of both hands at 30 Hz, stamped like a recording of a real camera."""
    motion = read_hand_motion(TRUTH)
    stamps = START + motion.timestamps_ns[:FRAMES]
    path = tmp_path_factory.mktemp("hands") / "hands.parquet"
    write_hand_motion(motion.at(np.arange(FRAMES), stamps, motion.fps), path, False)
    return path


@pytest.fixture(scope="module")
def stamps(table: Path) -> np.ndarray:
    return read_hand_motion(table).timestamps_ns


class Heard:
    """Everything a subscriber got on a topic: (steady time in s, message)."""

    def __init__(self, node: Any, kind: Any, topic: str, profile: Any = 100) -> None:
        self.all: list[tuple[float, Any]] = []
        node.create_subscription(kind, topic, self._got, profile)

    def _got(self, message: Any) -> None:
        self.all.append((time.monotonic(), message))

    @property
    def messages(self) -> list[Any]:
        return [message for _, message in self.all]

    @property
    def times(self) -> np.ndarray:
        return np.array([at for at, _ in self.all])


def stamp_ns(message: Any) -> int:
    stamp = message.header.stamp
    return stamp.sec * 1_000_000_000 + stamp.nanosec


def listen(node: Any) -> dict[str, Heard]:
    from rclpy.qos import DurabilityPolicy, QoSProfile
    from rosgraph_msgs.msg import Clock
    from sensor_msgs.msg import JointState
    from trajectory_msgs.msg import JointTrajectory

    late = QoSProfile(depth=10, durability=DurabilityPolicy.VOLATILE)
    heard = {side: Heard(node, JointState, f"/{side}_hand/joint_states", late) for side in SIDES}
    for side in SIDES:
        topic = f"/{side}_hand/joint_trajectory"
        heard[f"{side} trajectory"] = Heard(node, JointTrajectory, topic, late)
    from rclpy.qos import qos_profile_sensor_data

    heard["clock"] = Heard(node, Clock, "/clock", qos_profile_sensor_data)
    return heard


Start = Callable[..., Process]


@pytest.mark.parametrize("rate", [1.0, 2.0])
def test_joint_states_at_the_right_rate_and_stamps(
    node: Any, start: Start, table: Path, stamps: np.ndarray, rate: float
) -> None:
    heard = listen(node)
    player = start(
        "trajectory_player", source=table, rate=rate, wait_for_subscriber=20.0,
        exit_when_done=True, markers=False,
    )  # fmt: skip
    spin_until(node, lambda: player.popen.poll() is not None, 90)
    assert player.wait(5)[0] == 0
    for side in SIDES:
        got = heard[side]
        assert [stamp_ns(message) for message in got.messages] == stamps.tolist()
        assert all(len(message.name) == 12 for message in got.messages)
        assert all(name.startswith(f"{side}_") for name in got.messages[0].name)
        assert all(np.isfinite(message.position).all() for message in got.messages)
        # Against the recorded times, stretched; when the replay began is not known to us.
        due = (stamps - stamps[0]) / 1e9 / rate
        late = got.times - got.times[0] - due
        assert (np.abs(late - np.median(late)) < 0.01).mean() > 0.8
        assert (got.times[-1] - got.times[0]) == pytest.approx(due[-1], abs=0.05)
    clock = [m.clock.sec * 1_000_000_000 + m.clock.nanosec for m in heard["clock"].messages]
    assert len(clock) > 50
    assert (np.diff(clock) >= 0).all() and clock[0] >= stamps[0]


def test_the_trajectory_holds_the_six_commands_of_the_whole_clip(
    node: Any, start: Start, table: Path, stamps: np.ndarray
) -> None:
    heard = listen(node)
    start("trajectory_player", source=table, wait_for_subscriber=20.0, markers=False)
    spin_until(node, lambda: all(heard[f"{s} trajectory"].all for s in SIDES), 60)
    spin_until(node, lambda: all(heard[s].all for s in SIDES), 20)
    for side in SIDES:
        trajectory = heard[f"{side} trajectory"].messages[0]
        assert stamp_ns(trajectory) == 0 and len(trajectory.points) == FRAMES + 1
        hand = load_robot("inspire").hand(side)
        check_controller_takes(trajectory, hand, times=stamps)
        first = dict(
            zip(heard[side].messages[0].name, heard[side].messages[0].position, strict=True)
        )
        commanded = dict(zip(trajectory.joint_names, trajectory.points[0].positions, strict=True))
        for name, value in commanded.items():
            # The controller's hand comes from rest, so it may start a little elsewhere.
            assert first[name] == pytest.approx(value, abs=0.05)


def test_pause_seek_and_resume(node: Any, start: Start, table: Path, stamps: np.ndarray) -> None:
    from rcl_interfaces.msg import Parameter, ParameterType, ParameterValue
    from rcl_interfaces.srv import SetParameters

    def set_position(seconds: float) -> Any:
        value = ParameterValue(type=ParameterType.PARAMETER_DOUBLE, double_value=seconds)
        request = SetParameters.Request(parameters=[Parameter(name="position", value=value)])
        return call(node, SetParameters, "/trajectory_player/set_parameters", request).results[0]

    heard = listen(node)
    start("trajectory_player", source=table, paused=True, markers=False)
    refused = set_position(99.0)
    assert not refused.successful and "valid: 0 to 1.967 s" in refused.reason
    assert not heard["left"].all
    assert set_position(1.0).successful
    spin_until(node, lambda: len(heard["left"].all) == 1 and heard["left trajectory"].all, 20)
    assert stamp_ns(heard["left"].messages[0]) == stamps[30]
    left = len(heard["left trajectory"].messages[-1].points)
    assert left == FRAMES - 30 + 1
    assert trigger(node, "/trajectory_player/resume").success
    spin_until(node, lambda: len(heard["left"].all) >= 5, 20)
    assert trigger(node, "/trajectory_player/pause").success
    spin_until(node, lambda: True, 1)
    for _ in range(5):  # what was on its way
        spin_for(node, 0.1)
    count = len(heard["left"].all)
    spin_for(node, 0.5)
    assert len(heard["left"].all) == count
    got = [stamp_ns(message) for message in heard["left"].messages]
    assert got == stamps[30 : 30 + count].tolist()


def test_who_comes_late_still_gets_what_is_latched(node: Any, start: Start, table: Path) -> None:
    from rclpy.qos import DurabilityPolicy, QoSProfile
    from std_msgs.msg import String
    from trajectory_msgs.msg import JointTrajectory

    heard = listen(node)
    start("trajectory_player", source=table, wait_for_subscriber=20.0, markers=False)
    spin_until(node, lambda: len(heard["right"].all) >= 10, 60)
    latched = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
    late = {
        topic: Heard(node, kind, topic, latched)
        for topic, kind in (
            ("/right_hand/robot_description", String),
            ("/left_hand/robot_description", String),
            ("/acehand/task", String),
            ("/right_hand/joint_trajectory", JointTrajectory),
        )
    }
    spin_until(node, lambda: all(got.all for got in late.values()), 20)
    assert '<robot name="inspire_right">' in late["/right_hand/robot_description"].messages[0].data
    assert '<robot name="inspire_left">' in late["/left_hand/robot_description"].messages[0].data
    assert len(late["/right_hand/joint_trajectory"].messages[0].points) == FRAMES + 1


def test_quality_is_told_as_long_as_it_plays(node: Any, start: Start, table: Path) -> None:
    from diagnostic_msgs.msg import DiagnosticArray

    heard = listen(node)
    start("trajectory_player", source=table, markers=False, loop=True)
    spin_until(node, lambda: len(heard["right"].all) >= 10, 60)
    told = Heard(node, DiagnosticArray, "/diagnostics")
    spin_until(node, lambda: len(told.all) >= 2, 20)
    for message in told.messages[:2]:
        named = {status.name: status for status in message.status}
        assert set(named) == {
            "trajectory_player", "acehand: left hand", "acehand: right hand", "acehand: verdict",
        }  # fmt: skip
        assert named["acehand: right hand"].message == "followed"
        assert named["acehand: verdict"].message.startswith("pass")


def test_one_publisher_of_each_description(
    node: Any, launch: Callable[..., Launched], table: Path
) -> None:
    from sensor_msgs.msg import JointState

    needs("robot_state_publisher")
    # A namespace of its own: publishers of a killed process stay known for a while.
    states = Heard(node, JointState, "/alone/right_hand/joint_states")
    launch("replay", source=table, view="none", loop=True, namespace="alone")
    topics = [f"/alone/{side}_hand/robot_description" for side in SIDES]
    spin_until(node, lambda: len(states.all) > 30, 60)
    spin_until(node, lambda: all(node.count_publishers(topic) for topic in topics), 20)
    for topic in topics:
        (publisher,) = node.get_publishers_info_by_topic(topic)
        assert publisher.node_name == "robot_state_publisher"


def spin_for(node: Any, seconds: float) -> None:
    until = time.monotonic() + seconds
    spin_until(node, lambda: time.monotonic() >= until, seconds + 5)


def test_a_live_robot_gets_stamps_of_now_and_a_loop(node: Any, start: Start, table: Path) -> None:
    heard = listen(node)
    player = start(
        "trajectory_player", source=table, rate=10.0, stamps="now", loop=True,
        wait_for_subscriber=20.0, markers=False,
    )  # fmt: skip
    spin_until(node, lambda: len(heard["right"].all) > 2 * FRAMES, 60)
    delay = [time.time() - stamp_ns(m) / 1e9 for m in heard["right"].messages[-3:]]
    assert all(0 <= d < 1.0 for d in delay)
    assert not heard["clock"].all
    assert len(heard["right trajectory"].all) >= 2
    player.popen.send_signal(signal.SIGINT)
    code, output = player.wait(10)
    assert code == 0 and "Traceback" not in output


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"source": "/no/such/dataset"}, "/no/such/dataset"),
        ({"source": str(TRUTH), "episode": 7}, "no episode 7"),
        ({"source": str(TRUTH), "rate": 99.0}, "rate"),
        ({"source": ""}, "give source:=PATH"),
    ],
)
def test_bad_parameters_end_the_node_with_a_sentence(
    start: Start, parameters: dict[str, Any], message: str
) -> None:
    code, output = start("trajectory_player", **parameters).wait(60)
    assert code == 2, output
    assert message in output and "Traceback" not in output
