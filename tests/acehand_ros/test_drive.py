"""Goals and commands for controllers, without ROS: who gets what, and when it stops."""

import time
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import numpy as np
import pytest

from acehand_core.errors import InputError
from acehand_core.pipeline.bag_write import load_demonstrations
from acehand_ros import control
from acehand_ros.control import own_names, read_joint_maps
from acehand_ros.drive import START_NS, ActionDrive, ForwardDrive
from acehand_ros.playback import Playback, PlayerSettings, Timeline
from helpers import ROOT
from helpers.controller_rules import Trajectory, followed, refusals
from helpers.outlets import Collected, wait

TRUTH = ROOT / "examples" / "two_hands_truth.parquet"
NOW = 5 * 10**18


class Controllers:
    """Controllers that keep what they get, and hands that are half closed."""

    def __init__(self, robot, share=0.5):
        self.at = {
            side: hand.command_lower + share * (hand.command_upper - hand.command_lower)
            for side, hand in robot.hands.items()
        }
        self.sent, self.cancelled, self.commands = [], [], {"left": [], "right": []}
        self.measured = 0

    def measure(self):
        self.measured += 1
        return self.at

    def send(self, side, goal, trajectory):
        self.sent.append((side, goal, trajectory))

    def cancel(self, side):
        self.cancelled.append(side)

    def command(self, side, values):
        self.commands[side].append(values)


@pytest.fixture(scope="module")
def loaded():
    return next(iter(load_demonstrations(TRUTH)))


def driven(loaded, kind=ActionDrive, maps=None):
    demonstration, robot = loaded
    controllers = Controllers(robot)
    found = maps or own_names(robot)
    return kind(demonstration, robot, found, controllers, lambda: NOW), controllers


@pytest.mark.parametrize("rate", [1.0, 2.0])
def test_a_goal_per_hand_with_one_start_from_where_it_is(loaded, rate):
    drive, controllers = driven(loaded)
    begin = drive.begin(0, rate)
    assert [side for side, _, _ in controllers.sent] == ["left", "right"] and drive.busy
    # As a controller: the goals are taken, start together in the future, and keep the limits.
    for side, _, fields in controllers.sent:
        hand, t = loaded[1].hand(side), Trajectory.of(fields)
        assert refusals(t, [f"{side}_{name}" for name in hand.command_joints], NOW) == []
        assert t.stamp_ns == NOW + START_NS
        path = followed(t, controllers.at[side], 0.001)
        speed = np.diff(path, axis=0) / 0.001
        assert (np.abs(speed) <= hand.command_velocity * (1 + 1e-6)).all()
        assert (path >= hand.command_lower - 1e-6).all()
        assert (path <= hand.command_upper + 1e-6).all()
        # The thumb's pitch, the slowest, has 0.3 rad to go at most: 1.5 * 0.3 / 0.8 s.
        assert t.at_ns[0] <= 0.6 * 10**9
    first = min(Trajectory.of(fields).at_ns[0] for _, _, fields in controllers.sent)
    assert begin == pytest.approx((first + START_NS) / 1e9)


def test_when_one_goal_fails_the_other_is_cancelled_and_nothing_more_is_sent(loaded):
    drive, controllers = driven(loaded)
    problems = []
    drive.on_problem = lambda: problems.append(drive.problem)
    drive.begin(0, 1.0)
    goal = controllers.sent[0][1]
    drive.feedback("left", goal, np.array([0.01, -0.25, 0.1]))
    assert drive.values()["left_error"] == "0.2500" and drive.values()["left_goal"] == "active"
    drive.result("left", goal, "left_hand ended the goal: PATH_TOLERANCE_VIOLATED")
    assert controllers.cancelled == ["right"]
    assert problems == ["left hand: left_hand ended the goal: PATH_TOLERANCE_VIOLATED"]
    assert drive.busy and not drive.stopped  # until the other has stopped
    drive.result("right", goal, "cancelled")
    assert drive.stopped and not drive.busy
    assert problems == [drive.problem] and len(controllers.sent) == 2
    drive.begin(10, 1.0)  # by the user's wish
    assert drive.problem is None and len(controllers.sent) == 4 and controllers.measured == 2


def test_results_of_goals_that_were_stopped_are_no_problem(loaded):
    drive, controllers = driven(loaded)
    drive.begin(0, 1.0)
    goal = controllers.sent[0][1]
    drive.stop()
    assert controllers.cancelled == ["left", "right"]
    for side in ("left", "right"):
        drive.result(side, goal, "cancelled")
    assert not drive.busy and drive.problem is None
    drive.begin(0, 1.0)
    drive.result("left", goal, "late news of the first")
    drive.feedback("left", goal, np.array([9.0]))
    assert drive.problem is None and drive.values()["left_goal"] == "active"
    for side in ("left", "right"):
        drive.result(side, controllers.sent[-1][1], None)
    assert not drive.busy and drive.problem is None


def test_goals_with_the_names_of_another_controller(loaded):
    maps = read_joint_maps("renesas_inspire_rh56", loaded[1])
    drive, controllers = driven(loaded, maps={"right": maps["right"]})
    drive.begin(0, 1.0)
    ((side, _, fields),) = controllers.sent
    assert side == "right" and fields["joint_names"][0] == "thumb_proximal_yaw_joint"
    course = loaded[0].courses["right"]
    sent = np.array(Trajectory.of(fields).positions)
    np.testing.assert_allclose(sent, course.positions[:, ::-1], atol=1e-9)


@pytest.mark.parametrize("late_s", [0.0015, 0.004])
def test_a_thread_that_is_always_late_keeps_the_clips_time(loaded, monkeypatch, late_s):
    """Late by so much at every waking, a clip of 4 s takes 4 s, and no step is beyond the limit."""
    drive, controllers = driven(loaded, ForwardDrive)
    begin = drive.begin(0, 1.0)
    now = started = drive._started_s
    monkeypatch.setattr("acehand_ros.drive.time.monotonic", lambda: now)
    times = []
    while (wait := drive.step()) is not None:
        if len(controllers.commands["left"]) > len(times):
            times.append(now)
        now += wait + late_s if wait > 1e-6 else 1e-6
    assert now - started == pytest.approx(begin + len(loaded[0]) / 30, abs=0.2)
    assert np.diff(times).min() > 0.0089
    for side, sent in controllers.commands.items():
        path = np.array([controllers.at[side], *sent])
        limit, slot = loaded[1].hand(side).command_velocity / 100, ("left", "right").index(side)
        assert (np.abs(np.diff(path, axis=0)) <= limit * (1 + 1e-6)).all()
        np.testing.assert_allclose(path[-1], loaded[0].commands[-1, slot], atol=0.05)


def test_forwarded_registers_are_whole(loaded):
    maps = {side: replace(one, unit="register") for side, one in own_names(loaded[1]).items()}
    drive, controllers = driven(loaded, ForwardDrive, maps)
    drive.begin(110, 1.0)
    time.sleep(drive.step())
    drive.step()
    (first,) = controllers.commands["left"]
    assert first.tolist() == np.round(first).tolist()
    assert (np.abs(first - 500) < 30).all()  # half closed, a hundredth of a second later


def test_play_waits_for_the_hands_and_is_paused_by_a_problem(loaded):
    demonstration, robot = loaded
    drive, controllers = driven(loaded)
    outlet, states = Collected(), "/left_hand/joint_states"
    line = Timeline(demonstration.stamps_ns, 1.0, loop=False, paused=False)
    settings = PlayerSettings(stamps="now", clock_rate=None)
    player = Playback(
        demonstration, robot, line, outlet, settings, lambda: NOW, lambda _: None, drive
    )
    player.prepare()
    started = time.monotonic()
    player.start()
    wait(lambda: outlet.of(states))
    first = Trajectory.of(controllers.sent[0][2]).at_ns[0] / 1e9
    assert time.monotonic() - started >= first  # the lead-in
    drive.result("right", controllers.sent[1][1], "refused")
    assert player.paused and "refused" in drive.problem
    assert controllers.cancelled.count("left") >= 1
    drive.result("left", controllers.sent[0][1], "cancelled")
    player.set("paused", False)
    wait(lambda: len(controllers.sent) == 4)
    assert drive.problem is None
    # Goals of what is left, not of the whole clip.
    left = len(controllers.sent[2][2]["points"])
    assert left <= len(controllers.sent[0][2]["points"])
    player.set("position", 3.5)
    for side in ("left", "right"):
        drive.result(side, controllers.sent[-1][1], "cancelled")
    wait(lambda: len(controllers.sent) == 6)
    assert len(controllers.sent[-1][2]["points"]) == 16  # 15 frames of 30 Hz
    wait(lambda: line.position_ns(time.monotonic_ns()) >= line.length_ns)
    assert not player.ended
    for side in ("left", "right"):
        drive.result(side, controllers.sent[-1][1], None)
    wait(lambda: player.ended)
    player.close()
    assert not [m for m, _ in outlet.all if m.topic.endswith("joint_trajectory")]


def test_the_description_for_ros2_control(loaded):
    root = ElementTree.fromstring(control.description(loaded[1], "both"))
    assert len([e for e in root.iter("ros2_control")]) == 2
    with_command = "ros2_control/joint/command_interface/.."
    commanded = [e.get("name") for e in root.findall(with_command)]
    assert len(commanded) == 12 and "left_index_intermediate" not in commanded
    children = {e.get("link") for e in root.iter("child")}
    links = [e.get("name") for e in root.findall("link")]
    assert [name for name in links if name not in children] == ["hands"]  # one root
    assert len(links) == len(set(links))
    given = control.hardware_parameters("baudrate=115200, left.serial_port=/dev/a,x=1=2")
    root = ElementTree.fromstring(control.description(loaded[1], "left", "p/Driver", given))
    (system,) = root.findall("ros2_control")
    assert {e.get("name"): e.text for e in system.find("hardware").findall("param")} == {
        "baudrate": "115200", "serial_port": "/dev/a", "x": "1=2",
    }  # fmt: skip
    assert len(system.findall("joint")) == 6  # a driver is given what it drives
    yaw = system.find("joint[@name='left_thumb_proximal_yaw']/command_interface")
    assert {e.get("name"): e.text for e in yaw} == {"min": "0", "max": "1.308"}
    with pytest.raises(InputError, match="'baudrate'"):
        control.hardware_parameters("baudrate")
    with pytest.raises(InputError, match="up hand; valid: left, right"):
        control.description(loaded[1], "up")
